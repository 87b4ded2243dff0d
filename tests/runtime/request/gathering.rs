//! Batched runs: their positions in queues, their threads, engines and memory, and their profiling data.

use std::sync::{Condvar, Mutex, mpsc};
use std::time::{Duration, Instant};

use roiflow::runtime::executor::Pool;
use roiflow::runtime::{NodeStatus, RunContext};
use roiflow::tensor::TensorPool;

use super::batching::{HOURS, batches, check, compile_counting, requests, start, wait};
use super::*;
use crate::support::{eventually, receive, row};

/// Blocks threads until it is opened.
#[derive(Clone, Default)]
struct Latch(Arc<(Mutex<bool>, Condvar)>);

impl Latch {
    fn pass(&self) {
        let is_open = self.0.0.lock().unwrap();
        drop(self.0.1.wait_while(is_open, |is_open| !*is_open).unwrap());
    }

    fn open(&self) {
        *self.0.0.lock().unwrap() = true;
        self.0.1.notify_all();
    }
}

/// A run that is not batched occupies the engine until the last step of the device. The user's later steps do not occupy the engine.
#[test]
fn the_steps_of_the_user_keep_no_engine_from_others() {
    let model = compile_with(doubling(), &batches(2, Duration::ZERO));
    let (requests, hand) = (requests(&model, 3), Arc::new(Manual::default()));
    // The model has two engines.
    for (idx, request) in requests.iter().enumerate() {
        request.append_step_on(hand.clone(), "decode", |_| Ok(())).unwrap();
        request.start_async(row([idx as f32; 4])).unwrap();
        let hand = hand.clone();
        eventually(move || hand.n_queued() == idx + 1);
    }
    while hand.run_one() {}
    check(&requests, 0.0);
}

/// Batching queues no additional task. Each `hand.run_one()` runs one task in the queue of the device.
#[test]
fn a_gathered_run_takes_no_more_turns_than_it_must() {
    let hand = Arc::new(Manual::default());
    let queued = |n| {
        let hand = hand.clone();
        eventually(move || hand.n_queued() == n);
    };
    for timeout in [HOURS, Duration::ZERO] {
        let model = compile_with(Script { executor: Some(hand.clone()), ..doubling() }, &batches(2, timeout));
        let alone = requests(&model, 1);
        start(&alone, 1.0);
        queued(1);
        assert!(hand.run_one());
        if timeout.is_zero() {
            // With a batch timeout of 0, the collector queues a task, so that tasks that are already in the queue run first.
            assert_eq!(hand.n_queued(), 1);
            assert!(hand.run_one());
        }
        assert_eq!(hand.n_queued(), 0, "the only run computes without a further task");
        check(&alone, 1.0);
    }
    let model = compile_with(Script { executor: Some(hand.clone()), ..doubling() }, &batches(2, HOURS));
    let requests = requests(&model, 2);
    start(&requests, 1.0);
    queued(2);
    assert!(hand.run_one() && hand.run_one());
    queued(1);
    assert!(hand.run_one());
    assert_eq!(hand.n_queued(), 1, "one of the two runs continues in the task of the call, the other run is queued");
    assert!(hand.run_one());
    check(&requests, 1.0);
}

/// If a call ends on another executor, its runs continue on the executor of the device.
#[test]
fn runs_go_on_where_the_device_computes_not_where_the_call_ends() {
    let (there, end) = (Arc::new(Manual::default()), Arc::new(Manual::default()));
    let mut script = Script { executor: Some(there.clone()), ..doubling() };
    script.more_steps.push(("end", end.clone()));
    let model = compile_with(script, &batches(2, HOURS));
    let requests = requests(&model, 2);
    start(&requests, 1.0);
    let queued = there.clone();
    eventually(move || queued.n_queued() == 2);
    assert!(there.run_one() && there.run_one());
    let queued = there.clone();
    eventually(move || queued.n_queued() == 1);
    assert!(there.run_one());
    assert_eq!((there.n_queued(), end.n_queued()), (0, 1));
    assert!(end.run_one());
    assert_eq!((there.n_queued(), end.n_queued()), (2, 0));
    assert!(there.run_one() && there.run_one());
    check(&requests, 1.0);
}

/// A callback blocks the only callback thread. Meanwhile the next batch is computed.
#[test]
fn a_callback_that_takes_long_holds_up_no_batch() {
    let model = compile_with(doubling(), &Config { callback_thread: true, ..batches(2, HOURS) });
    let requests = requests(&model, 4);
    let ((sender, receiver), gate) = (mpsc::channel(), Latch::default());
    let (called, held) = (sender.clone(), gate.clone());
    requests[0]
        .set_callback(move |_, _| {
            called.send(0).unwrap();
            held.pass();
        })
        .unwrap();
    let computed = move |_: &RunContext<'_>| {
        sender.send(2).unwrap();
        Ok(())
    };
    requests[2].append_step("decode", computed).unwrap();
    start(&requests[..2], 1.0);
    assert_eq!(receive(&receiver), 0);
    start(&requests[2..], 3.0);
    assert_eq!(receive(&receiver), 2);
    gate.open();
    check(&requests, 1.0);
}

/// If requests are computed together in one call, each of them has the node times of this call. A request that is computed alone has the
/// node times of its own call.
#[test]
fn the_times_of_nodes_are_those_of_the_latest_call() {
    let script = Script::computing(|io, _| {
        let begin = Instant::now();
        while read(io.input(0)).contains(&9.0) && begin.elapsed() < Duration::from_millis(20) {}
        double(io)
    });
    let model = compile_with(script, &Config { profiling: true, ..batches(2, HOURS) });
    let requests = requests(&model, 2);
    let slow = Duration::from_millis(20);
    let time = |request: &InferRequest| match &*request.profiling_info().unwrap() {
        [node] => (node.status == NodeStatus::Executed).then_some(node.real),
        nodes => panic!("{nodes:?}"),
    };
    assert_eq!(time(&requests[0]), None, "before the first run");
    start(&requests, 9.0);
    check(&requests, 9.0);
    assert!(requests.iter().all(|request| time(request).unwrap() >= slow));
    // Take the minimum of several runs, because the system may interrupt some of them.
    let of_fast = (0..20).map(|_| requests[0].infer(row([1.0; 4])).map(|()| time(&requests[0]).unwrap()).unwrap()).min();
    assert!(of_fast.unwrap() < slow, "{of_fast:?}");
    assert!(time(&requests[1]).unwrap() >= slow, "the times of this request are unchanged");
}

#[test]
fn what_the_device_ignores_is_told_of_a_gathering_model_too() {
    let model = compile_with(doubling(), &Config { n_threads: Some(2), ..batches(2, HOURS) });
    let ignored: Vec<_> = model.properties().ignored.iter().map(|ignored| ignored.option).collect();
    assert_eq!(ignored, ["n_threads"]);
}

/// After the model is dropped, neither the thread for the batch timeout nor any of its data remains.
#[test]
fn nothing_is_left_of_a_gathering_model_that_is_dropped() {
    let mut core = Core::new();
    core.register(Arc::new(NullDevice::default()));
    let model = compile_on(&core, "NULL", &Config { exclusive_requests: true, ..batches(2, HOURS) });
    let requests = requests(&model, 2);
    start(&requests, 1.0);
    requests.iter().for_each(|request| wait(request).unwrap());
    assert_eq!(core.executors().n_named(), 1);
    drop((model, requests));
    eventually(move || core.executors().n_named() == 0);
}

/// After a run, the owner of a tensor can use the tensor again.
#[test]
fn a_call_keeps_no_tensor_of_its_runs() {
    let (model, _calls) = compile_counting(2, HOURS);
    let requests = requests(&model, 2);
    let lent = TensorPool::new(ElementType::F32, [1, 4], 2).unwrap();
    requests.iter().for_each(|request| request.start_async(lent.take()).unwrap());
    for request in &requests {
        wait(request).unwrap();
        request.clear_inputs().unwrap();
    }
    eventually(move || lent.n_idle() == 2);
}

/// Returns CPU time in hundredths of a second: that of the threads of this process with this name, or that of the calling thread.
#[cfg(target_os = "linux")]
fn processor_time(name: Option<&str>) -> u64 {
    let ticks = |stat: String| {
        let fields: Vec<&str> = stat[stat.rfind(')').unwrap() + 2..].split(' ').collect();
        fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
    };
    let Some(name) = name else { return ticks(std::fs::read_to_string("/proc/thread-self/stat").unwrap()) };
    let threads = std::fs::read_dir("/proc/self/task").unwrap().map(|thread| thread.unwrap().path());
    // The files of a thread disappear when the thread ends, so errors are skipped.
    let of_name = threads.filter(|thread| std::fs::read_to_string(thread.join("comm")).is_ok_and(|comm| comm.trim() == name));
    of_name.filter_map(|thread| std::fs::read_to_string(thread.join("stat")).ok()).map(ticks).sum()
}

/// The thread for batch timeouts uses no CPU time before a timeout expires or while all engines are busy.
#[cfg(target_os = "linux")]
#[test]
fn the_watcher_sleeps_while_there_is_nothing_to_do() {
    crate::support::alone("request::gathering::the_watcher_sleeps_while_there_is_nothing_to_do", || {
        for (timeout, n_busy) in [(HOURS, 0), (Duration::from_millis(1), 2)] {
            let gate = Gate::closed();
            let pool = Arc::new(Pool::new("engines", 3).unwrap());
            let script = Script { gate: Some(gate.clone()), executor: Some(pool), ..doubling() };
            let model = compile_with(script, &batches(2, timeout));
            let requests = requests(&model, 3);
            for idx in 0..n_busy {
                start(&requests[idx..=idx], idx as f32);
                gate.wait_for_arrivals(1 + idx);
            }
            start(&requests[n_busy..=n_busy], n_busy as f32);
            let begin = processor_time(None);
            while processor_time(None) < begin + 30 {}
            let watched = processor_time(Some("roiflow-batches"));
            assert!(watched < 10, "{watched} of 30 hundredths, limit {timeout:?}");
            requests[n_busy].cancel();
            gate.open();
            requests.iter().for_each(|request| assert!(matches!(kind(wait(request)), None | Some(ErrorKind::Canceled))));
        }
    });
}
