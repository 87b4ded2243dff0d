//! Checks runs that share a batch: each run gets its own batch item and result, also if other runs are canceled, and no run waits forever.

use std::sync::Arc;
use std::sync::Mutex as Hidden;
use std::time::Duration;

use roiflow_check::devices::null::{NullDevice, Script};
use roiflow_check::runtime::executor::{Executor, Inline};
use roiflow_check::runtime::{CompiledModel, Config, Core, Error, ErrorKind, InferRequest, Model, ModelInfo, Port};
use roiflow_check::sync::pass_time;
use roiflow_check::tensor::{ElementType, Tensor};
use shuttle::thread;

use crate::Check;
use crate::explore::{Search, explore, point};
use crate::world::{Crank, End};

pub fn checks() -> Vec<Check> {
    vec![
        Check {
            name: "gathered_runs_get_their_own_rows",
            bounds: "2 requests, batches of 2, 1 worker; at most 1 preemption; with a bad run drawn, priorities with 3 changes",
            run: || own_rows(Search::Preemptions(1), 1.0) + own_rows(Search::Pct { depth: 4, n: 5_000 }, -1.0),
        },
        Check {
            name: "gathered_runs_get_their_own_rows_drawn",
            bounds: "as before, 3 requests, 2 workers, two runs each; priorities with 3 changes",
            run: || own_rows_of_three(Search::Pct { depth: 3, n: 3_000 }),
        },
        Check {
            name: "a_gathered_run_may_leave",
            bounds: "3 requests, batches of 2, 2 workers; one is canceled, dropped, or its future is; priorities with 3 changes",
            run: || leaving(Search::Pct { depth: 4, n: 3_000 }),
        },
        Check {
            name: "a_run_waits_no_longer_than_its_time",
            bounds: "a run waits beside the clock, while another one comes, is canceled, or is dropped; at most 1 preemption, and drawn, priorities with 3 changes",
            run: || time_limits(Search::Preemptions(1)) + time_limits(Search::Pct { depth: 4, n: 3_000 }),
        },
    ]
}

/// The batch items of each call.
type Calls = Arc<Hidden<Vec<usize>>>;

/// Creates a model that computes `y = 2 x` for one number per batch item, in batches of two. A call with a negative number fails.
fn model(executor: Arc<dyn Executor>, timeout: Duration, calls: &Calls) -> CompiledModel {
    let calls = calls.clone();
    let script = Script::computing(move |io, _| {
        let rows = io.input(0).dense::<f32>()?.to_vec();
        calls.lock().unwrap().push(rows.len());
        point();
        if rows.iter().any(|value| *value < 0.0) {
            return Err(Error::new(ErrorKind::Device, "run 1"));
        }
        let doubled = rows.iter().map(|value| 2.0 * value);
        io.output(0, &[rows.len(), 1])?.dense_mut::<f32>()?.iter_mut().zip(doubled).for_each(|(output, value)| *output = value);
        Ok(())
    });
    let mut core = Core::new();
    core.register(Arc::new(NullDevice::new(Arc::new(Script { executor: Some(executor), ..script }))));
    let port = |name| Port::new(name, ElementType::F32, [1, 1]);
    let info = ModelInfo { inputs: vec![port("x")], outputs: vec![port("y")], ..ModelInfo::default() };
    // With `exclusive_requests`, all steps, including `fill`, run on the executor of the device, which the checker controls.
    let config = Config { batch_size: 2, batch_timeout: timeout, exclusive_requests: true, ..Config::default() };
    core.compile_model(&Model::from_ports(info), "NULL", &config).unwrap()
}

fn input(value: f32) -> Tensor {
    Tensor::from_slice([1, 1], &[value]).unwrap()
}

/// Asserts that the run is complete with the expected result.
fn check(request: &InferRequest, value: f32, may_be_canceled: bool) {
    match End::from(&request.wait()) {
        End::Good => {
            let output = request.output_tensor(()).unwrap().view::<f32>().unwrap().to_vec();
            assert_eq!(output, [2.0 * value], "the batch item of another run");
        }
        End::Failed(1) => assert!(value < 0.0, "the failure of another run"),
        End::Canceled => assert!(may_be_canceled, "the cancel of another run"),
        other => panic!("it ended {other:?}"),
    }
}

/// Asserts that the model is freed. The script of the model owns a clone of `calls`, which is dropped with the model.
fn check_freed(calls: &Calls) {
    assert_eq!(Arc::strong_count(calls), 1, "the model outlives its owners");
}

fn own_rows(search: Search, first: f32) -> usize {
    explore(search, move || {
        let (calls, (crank, workers)) = (Calls::default(), Crank::start(1));
        let model = model(crank.clone(), Duration::MAX, &calls);
        let (one, other) = (model.create_infer_request().unwrap(), model.create_infer_request().unwrap());
        drop(model);
        let beside = thread::spawn(move || {
            other.start_async(input(5.0)).unwrap();
            check(&other, 5.0, false);
            other
        });
        one.start_async(input(first)).unwrap();
        check(&one, first, false);
        drop((one, beside.join().unwrap()));
        crank.close();
        workers.into_iter().for_each(|worker| worker.join().unwrap());
        let expected: &[usize] = if first > 0.0 { &[2] } else { &[2, 1, 1] };
        assert_eq!(*calls.lock().unwrap(), expected, "both are all that there are");
        check_freed(&calls);
    })
}

fn own_rows_of_three(search: Search) -> usize {
    let mut n = 0;
    for bad in [false, true] {
        n += explore(search, move || {
            let (calls, (crank, workers)) = (Calls::default(), Crank::start(2));
            let model = model(crank.clone(), Duration::ZERO, &calls);
            let threads: Vec<_> = (1..=3)
                .map(|idx| {
                    let request = model.create_infer_request().unwrap();
                    thread::spawn(move || {
                        for round in 0..2 {
                            let value = if bad && idx == 2 { -1.0 } else { (10 * idx + round) as f32 };
                            request.start_async(input(value)).unwrap();
                            check(&request, value, false);
                        }
                    })
                })
                .collect();
            drop(model);
            threads.into_iter().for_each(|thread| thread.join().unwrap());
            crank.close();
            workers.into_iter().for_each(|worker| worker.join().unwrap());
            assert!(calls.lock().unwrap().iter().all(|n_rows| *n_rows <= 2));
            check_freed(&calls);
        });
    }
    n
}

/// The other runs get their own results if one run is canceled, if its request is dropped, or if its future is dropped.
fn leaving(search: Search) -> usize {
    let mut n = 0;
    for way in 0..3 {
        n += explore(search, move || {
            let (calls, (crank, workers)) = (Calls::default(), Crank::start(2));
            let model = model(crank.clone(), Duration::ZERO, &calls);
            let requests: Vec<_> = (0..3).map(|_| model.create_infer_request().unwrap()).collect();
            drop(model);
            let [one, second, third] = <[InferRequest; 3]>::try_from(requests).unwrap();
            let leaving = thread::spawn(move || {
                match way {
                    0 => {
                        one.start_async(input(1.0)).unwrap();
                        one.cancel();
                        check(&one, 1.0, true);
                    }
                    1 => one.start_async(input(1.0)).unwrap(),
                    _ => drop(one.run(input(1.0))),
                }
                drop(one);
            });
            let beside = thread::spawn(move || {
                second.start_async(input(2.0)).unwrap();
                check(&second, 2.0, false);
                second
            });
            third.start_async(input(3.0)).unwrap();
            leaving.join().unwrap();
            check(&third, 3.0, false);
            drop((third, beside.join().unwrap()));
            crank.close();
            workers.into_iter().for_each(|worker| worker.join().unwrap());
            check_freed(&calls);
        });
    }
    n
}

/// All steps run on the caller's thread, so a run still waits for a batch when its start returns. The watcher starts the batch.
fn time_limits(search: Search) -> usize {
    let mut n = 0;
    for way in 0..4 {
        n += explore(search, move || {
            let calls = Calls::default();
            let model = model(Arc::new(Inline), Duration::from_secs(1), &calls);
            let requests: Vec<_> = (0..3).map(|_| model.create_infer_request().unwrap()).collect();
            drop(model);
            let [one, other, idle] = <[InferRequest; 3]>::try_from(requests).unwrap();
            if way == 3 {
                // The request has already waited for a batch in an earlier run, which was canceled.
                one.start_async(input(7.0)).unwrap();
                one.cancel();
                check(&one, 7.0, true);
            }
            one.start_async(input(1.0)).unwrap();
            let beside = thread::spawn(move || {
                if way > 0 {
                    other.start_async(input(2.0)).unwrap();
                }
                match way {
                    1 => {
                        other.cancel();
                        check(&other, 2.0, true);
                    }
                    // Drop the request. Its run is batched with the first run, or still waits for a batch.
                    2 => return None,
                    _ => {}
                }
                Some(other)
            });
            pass_time(Duration::from_secs(1));
            // Drop the requests only now, after the watcher has started the batch. Dropping a request would also start a due batch.
            check(&one, 1.0, false);
            drop((one, beside.join().unwrap(), idle));
        });
    }
    n
}
