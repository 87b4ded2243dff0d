//! Results of a queue in the order of the inputs, as an `Iterator` and as a `Stream`.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};

use ::futures::StreamExt as _;
use ::futures::executor::block_on;
use roiflow::runtime::executor::{Executor, Pool, Task};
use roiflow::runtime::{AsyncInferQueue, ErrorKind};
use roiflow::tensor::Tensor;

use super::*;
use crate::support::{in_time, row, values};

/// Compiles a model on which four jobs end in the order 3, 2, 1, 0, because each job waits for the job with the next number.
fn backwards() -> CompiledModel {
    let n_done = Arc::new((Mutex::new(0), Condvar::new()));
    let script = Script::computing(move |io, _| {
        let job = read(io.input(0))[0] as usize;
        let (n_done, changed) = &*n_done;
        let mut n_done = changed.wait_while(n_done.lock().unwrap(), |n_done| *n_done < 3 - job).unwrap();
        *n_done += 1;
        changed.notify_all();
        drop(n_done);
        double(io)
    });
    compile(Script { executor: Some(Arc::new(Pool::new("four", 4).unwrap())), ..script })
}

fn read_first(request: &InferRequest) -> Result<f32> {
    Ok(values(&request.output_tensor(())?)[0])
}

fn inputs(n: usize) -> Vec<Tensor> {
    (0..n).map(|job| row([job as f32; 4])).collect()
}

#[test]
fn results_come_in_the_order_of_the_inputs_however_the_jobs_end() {
    in_time(|| {
        let queue = AsyncInferQueue::<()>::new(&backwards(), 4).unwrap();
        let answers: Vec<f32> = queue.ordered(inputs(4), read_first).map(Result::unwrap).collect();
        assert_eq!(answers, [0.0, 2.0, 4.0, 6.0]);
    });
    in_time(|| {
        let queue = AsyncInferQueue::<()>::new(&backwards(), 4).unwrap();
        let answers: Vec<f32> =
            block_on(queue.ordered_stream(::futures::stream::iter(inputs(4)), read_first).map(Result::unwrap).collect());
        assert_eq!(answers, [0.0, 2.0, 4.0, 6.0]);
    });
}

/// Returns a queue and its inputs. The device fails for inputs below zero, and input 7 has the wrong shape. For input 8, the closure that
/// reads the results fails; for input 9, this closure panics.
fn troubled() -> (AsyncInferQueue, Vec<Tensor>) {
    let script =
        Script::computing(|io, _| if read(io.input(0))[0] < 0.0 { Err(Error::new(ErrorKind::Device, "below zero")) } else { double(io) });
    let mut inputs: Vec<Tensor> = [1, -1, 2, 7, 3, 8, 9, 4].map(|value| row([value as f32; 4])).into();
    inputs[3].set_shape([4, 1]).unwrap();
    (AsyncInferQueue::new(&compile(script), 2).unwrap(), inputs)
}

fn read_troubled(request: &InferRequest) -> Result<f32> {
    match read_first(request)? {
        16.0 => Err(Error::new(ErrorKind::Config, "not this one")),
        18.0 => panic!("in the reader"),
        value => Ok(value),
    }
}

const TROUBLES: [std::result::Result<f32, ErrorKind>; 8] =
    [Ok(2.0), Err(ErrorKind::Device), Ok(4.0), Err(ErrorKind::Tensor), Ok(6.0), Err(ErrorKind::Config), Err(ErrorKind::Panic), Ok(8.0)];

/// A job that fails, is refused, or cannot be read gives an error at its position. The other jobs are not affected.
#[test]
fn failures_stand_in_their_places() {
    in_time(|| {
        let (queue, inputs) = troubled();
        let answers: Vec<_> = queue.ordered(&inputs, read_troubled).map(|answer| answer.map_err(|error| error.kind())).collect();
        assert_eq!(answers, TROUBLES);
        let errors = queue.wait_all().unwrap_err();
        assert!(errors.errors.iter().all(|failed| failed.error.kind() == ErrorKind::Panic), "only the panic is not in `answers`: {errors}");
        queue.wait_all().unwrap();
    });
    in_time(|| {
        let (queue, inputs) = troubled();
        let stream = queue.ordered_stream(::futures::stream::iter(&inputs), read_troubled);
        let answers: Vec<_> = block_on(stream.map(|answer| answer.map_err(|error| error.kind())).collect());
        assert_eq!(answers, TROUBLES);
    });
}

/// The iterator takes at most two inputs per request before it yields their results.
#[test]
fn the_inputs_are_asked_for_as_they_are_needed() {
    let n_asked = Arc::new(AtomicUsize::new(0));
    let n = n_asked.clone();
    let endless = (0..).map(move |job: usize| {
        n.fetch_add(1, Ordering::AcqRel);
        row([job as f32; 4])
    });
    let queue = AsyncInferQueue::<()>::new(&compile(doubling()), 3).unwrap();
    let mut answers = queue.ordered(endless, read_first);
    assert_eq!(n_asked.load(Ordering::Acquire), 0, "nothing runs before the first result is asked for");
    for n_taken in 1..=50 {
        assert_eq!(answers.next().unwrap().unwrap(), 2.0 * (n_taken - 1) as f32);
        let n_ahead = n_asked.load(Ordering::Acquire) - n_taken;
        assert!(n_ahead < 2 * queue.len(), "{n_ahead} are pending");
    }
}

/// The iterator is dropped early. Running jobs complete, and the queue can be used again.
#[test]
fn an_iteration_may_be_dropped_before_its_end() {
    let queue = AsyncInferQueue::new(&compile(doubling()), 2).unwrap();
    {
        let mut answers = queue.ordered(inputs(10), read_first);
        assert_eq!(answers.next().unwrap().unwrap(), 0.0);
    }
    {
        let mut answers = queue.ordered_stream(::futures::stream::iter(inputs(10)), read_first);
        assert_eq!(block_on(answers.next()).unwrap().unwrap(), 0.0);
    }
    in_time(move || {
        queue.wait_all().unwrap();
        queue.start_async(row([1.0; 4]), ()).unwrap();
        queue.wait_all().unwrap();
        assert_eq!(queue.ordered(inputs(3), read_first).map(Result::unwrap).sum::<f32>(), 6.0);
        assert_eq!(queue.ordered(inputs(0), read_first).count(), 0);
    });
}

/// Two streams of inputs share the requests of one queue. Both streams make progress.
#[test]
fn two_streams_share_a_queue() {
    in_time(|| {
        let queue = AsyncInferQueue::<()>::new(&compile(doubling()), 1).unwrap();
        let stream = || queue.ordered_stream(::futures::stream::iter(inputs(20)), read_first).map(Result::unwrap).collect::<Vec<f32>>();
        let (one, other) = block_on(::futures::future::join(stream(), stream()));
        assert_eq!(one, (0..20).map(|job| 2.0 * job as f32).collect::<Vec<_>>());
        assert_eq!(one, other);
    });
}

/// Available results are returned, even if the next input has not arrived.
#[test]
fn results_do_not_wait_for_the_next_input() {
    in_time(|| {
        let queue = AsyncInferQueue::<()>::new(&compile(doubling()), 2).unwrap();
        let (mut sender, receiver) = ::futures::channel::mpsc::channel(4);
        let mut answers = queue.ordered_stream(receiver, read_first);
        for value in [3.0, 5.0] {
            sender.try_send(row([value; 4])).unwrap();
            assert_eq!(block_on(answers.next()).unwrap().unwrap(), 2.0 * value);
        }
        drop(sender);
        assert!(block_on(answers.next()).is_none());
    });
}

/// A stream of inputs that is pending has not ended.
#[test]
fn a_stream_goes_on_after_its_inputs_paused() {
    in_time(|| {
        let queue = AsyncInferQueue::<()>::new(&compile(doubling()), 2).unwrap();
        let (mut sender, receiver) = ::futures::channel::mpsc::channel(4);
        let mut answers = queue.ordered_stream(receiver, read_first);
        let nothing_yet = block_on(async { ::futures::poll!(answers.next()).is_pending() });
        assert!(nothing_yet, "the stream is pending while it has no input");
        sender.try_send(row([3.0; 4])).unwrap();
        assert_eq!(block_on(answers.next()).unwrap().unwrap(), 6.0);
    });
}

/// An executor that runs all tasks immediately, except the first task, which it stores in `first`.
#[derive(Debug, Default)]
struct AllButTheFirst {
    n_tasks: AtomicUsize,
    first: Manual,
}

impl Executor for AllButTheFirst {
    fn execute(&self, task: Arc<dyn Task>) {
        match self.n_tasks.fetch_add(1, Ordering::AcqRel) {
            0 => self.first.execute(task),
            _ => task.run(),
        }
    }
}

/// While the first result is missing, the iterator stores later results: at most one per request, in addition to the running jobs.
#[test]
fn results_that_wait_for_their_turn_are_bounded() {
    let held = Arc::new(AllButTheFirst::default());
    // With this option, preprocessing also runs on that executor.
    let config = Config { exclusive_requests: true, ..Config::default() };
    let model = compile_with(Script { executor: Some(held.clone()), ..doubling() }, &config);
    let queue = AsyncInferQueue::<()>::new(&model, 2).unwrap();
    let (n_asked, is_free) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (asked, free) = (n_asked.clone(), is_free.clone());
    let consuming = std::thread::spawn(move || {
        let inputs = (0..20).map(|job| {
            assert!(asked.fetch_add(1, Ordering::AcqRel) < 4 || free.load(Ordering::Acquire) == 1, "too many jobs are pending");
            row([job as f32; 4])
        });
        queue.ordered(inputs, read_first).map(Result::unwrap).collect::<Vec<f32>>()
    });
    crate::support::eventually(move || n_asked.load(Ordering::Acquire) >= 4);
    is_free.store(1, Ordering::Release);
    assert!(held.first.run_one());
    let answers = in_time(move || consuming.join().unwrap());
    assert_eq!(answers, (0..20).map(|job| 2.0 * job as f32).collect::<Vec<_>>());
}
