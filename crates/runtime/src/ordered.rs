//! Runs inputs on a queue and returns the results in the order of the inputs, as an `Iterator` or as a futures `Stream`.
//!
//! Each request can have one running job, and one completed job whose result waits for the results of earlier jobs. So the number of jobs
//! whose results are not yielded yet is at most twice the number of requests. The next input is taken only when a request is idle.

use std::collections::VecDeque;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use futures_core::Stream;

use super::queue::{IdleRequest, Tell};
use super::waits::{self, Waits};
use super::{AsyncInferQueue, Error, ErrorKind, InferRequest, Inputs, Result};
use crate::sync::{Condvar, Mutex};

impl<U: Send + 'static> AsyncInferQueue<U> {
    /// Runs all `inputs`, several at a time. Yields the values that `read` returns for their outputs, in the order of the inputs. `read` is
    /// called on the thread that completed the run. A failed job yields an `Err`.
    ///
    /// If the iterator is dropped early, jobs that are already running still complete, and their results are discarded.
    ///
    /// ```
    /// # use roiflow::{devices, runtime::{AsyncInferQueue, Config}};
    /// # fn main() -> roiflow::runtime::Result<()> {
    /// # let core = devices::core();
    /// # let model = core.compile_model(&core.read_model("assets/tiny/double.onnx")?, "CPU", &Config::default())?;
    /// let queue = AsyncInferQueue::<()>::new(&model, 4)?;
    /// let inputs = (0..10).map(|n| ndarray::arr2(&[[n as f32; 4]]));
    /// let answers = queue.ordered(inputs, |request| Ok(request.results()?.view::<f32>(())?[[0, 0]]));
    /// assert_eq!(answers.collect::<Result<Vec<f32>, _>>()?, (0..10).map(|n| 2.0 * n as f32).collect::<Vec<_>>());
    /// # Ok(())
    /// # }
    /// ```
    pub fn ordered<I, T, R>(&self, inputs: I, read: R) -> Ordered<'_, U, I::IntoIter, T>
    where
        I: IntoIterator<Item: Inputs>,
        T: Send + 'static,
        R: Fn(&InferRequest) -> Result<T> + Send + Sync + 'static,
    {
        Ordered { queue: self, inputs: Some(inputs.into_iter()), pending: Pending::new(self.len(), read) }
    }

    /// Same as [`AsyncInferQueue::ordered`], but takes a `Stream` of inputs and returns a `Stream` of results.
    pub fn ordered_stream<S, T, R>(&self, inputs: S, read: R) -> OrderedStream<'_, U, S, T>
    where
        S: Stream<Item: Inputs> + Unpin,
        T: Send + 'static,
        R: Fn(&InferRequest) -> Result<T> + Send + Sync + 'static,
    {
        OrderedStream { queue: self, inputs: Some(inputs), next_inputs: None, pending: Pending::new(self.len(), read) }
    }
}

type Read<T> = Arc<dyn Fn(&InferRequest) -> Result<T> + Send + Sync>;

/// The jobs whose results were not yielded yet, oldest first.
struct Pending<T> {
    read: Read<T>,
    capacity: usize,
    jobs: VecDeque<Arc<Place<T>>>,
}

/// Holds the result of one job until it is yielded, and the waker of the task that waits for it.
struct Place<T> {
    state: Mutex<(Option<Result<T>>, Option<Waker>)>,
    arrived: Condvar,
}

impl<T: Send + 'static> Pending<T> {
    fn new(n_requests: usize, read: impl Fn(&InferRequest) -> Result<T> + Send + Sync + 'static) -> Self {
        let capacity = n_requests // One running job per request.
            + n_requests; // One completed job per request that waits for earlier jobs.
        Self { read: Arc::new(read), capacity, jobs: VecDeque::with_capacity(capacity) }
    }

    fn is_full(&self) -> bool {
        self.jobs.len() == self.capacity
    }

    fn start<U: Send + 'static>(&mut self, idle: IdleRequest<'_, U>, inputs: impl Inputs) {
        let place = Arc::new(Place { state: Mutex::new((None, None)), arrived: Condvar::new() });
        let (to, read) = (Delivery(Some(place.clone())), self.read.clone());
        let tell: Tell = Box::new(move |request, result| to.deliver(result.and_then(|()| read(request))));
        if let Err(error) = idle.start_telling(inputs, tell) {
            // `start_telling` has dropped the closure, and with it the `Delivery`, which stored a general error. Replace this error by the
            // error of the job.
            place.put(Err(error));
        }
        self.jobs.push_back(place);
    }
}

impl<T> Place<T> {
    fn put(&self, result: Result<T>) {
        let waker = {
            let mut state = self.state.lock().unwrap();
            state.0 = Some(result);
            state.1.take()
        };
        self.arrived.notify_all();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    fn wait<U: Send + 'static>(&self, queue: &AsyncInferQueue<U>) -> Result<T> {
        let mut _waits = Waits::none(); // Declared first, so that it is dropped after the lock guard.
        let mut state = self.state.lock().unwrap();
        if state.0.is_none() && waits::must_report() {
            drop(state);
            _waits = queue.begin_wait()?;
            state = self.state.lock().unwrap();
        }
        loop {
            match state.0.take() {
                Some(result) => return result,
                None => {
                    queue.check_process()?;
                    state = self.arrived.wait(state).unwrap();
                }
            }
        }
    }

    fn poll(&self, waker: &Waker) -> Option<Result<T>> {
        let mut state = self.state.lock().unwrap();
        let result = state.0.take();
        if result.is_none() {
            state.1 = Some(waker.clone());
        }
        result
    }
}

/// Stores the result of a job in its `Place`. If the `Delivery` is dropped without a result (the job was dropped, or `read` panicked), it
/// stores an error, so that no thread waits forever.
struct Delivery<T>(Option<Arc<Place<T>>>);

impl<T> Delivery<T> {
    fn deliver(mut self, result: Result<T>) {
        if let Some(place) = self.0.take() {
            place.put(result);
        }
    }
}

impl<T> Drop for Delivery<T> {
    fn drop(&mut self) {
        if let Some(place) = self.0.take() {
            let (kind, message) = if std::thread::panicking() {
                (ErrorKind::Panic, "the closure that reads the results panicked")
            } else {
                (ErrorKind::Stopped, "the job ended without a result")
            };
            place.put(Err(Error::new(kind, message)));
        }
    }
}

/// The iterator that [`AsyncInferQueue::ordered`] returns.
#[must_use = "nothing runs before the first result is requested"]
pub struct Ordered<'a, U, I, T> {
    queue: &'a AsyncInferQueue<U>,
    inputs: Option<I>,
    pending: Pending<T>,
}

impl<U: Send + 'static, I: Iterator<Item: Inputs>, T: Send + 'static> Iterator for Ordered<'_, U, I, T> {
    type Item = Result<T>;

    fn next(&mut self) -> Option<Result<T>> {
        while let Some(inputs) = &mut self.inputs
            && !self.pending.is_full()
        {
            let idle = if self.pending.jobs.is_empty() {
                match self.queue.take_idle() {
                    Ok(idle) => Some(idle),
                    Err(error) => return Some(Err(error)),
                }
            } else {
                self.queue.try_take_idle()
            };
            let Some(idle) = idle else { break };
            match inputs.next() {
                Some(inputs) => self.pending.start(idle, inputs),
                None => self.inputs = None,
            }
        }
        let job = self.pending.jobs.pop_front()?;
        Some(job.wait(self.queue))
    }
}

impl<U, I, T> fmt::Debug for Ordered<'_, U, I, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Ordered({} pending)", self.pending.jobs.len())
    }
}

/// The stream that [`AsyncInferQueue::ordered_stream`] returns.
#[must_use = "nothing runs before the first result is requested"]
pub struct OrderedStream<'a, U, S: Stream, T> {
    queue: &'a AsyncInferQueue<U>,
    inputs: Option<S>,
    /// An input that was already taken from the stream, but waits until a request is idle.
    next_inputs: Option<S::Item>,
    pending: Pending<T>,
}

// Moving this type is always sound: of its fields, only `inputs` is polled through a `Pin`, and `poll_next` is implemented only for
// `S: Unpin`.
impl<U, S: Stream, T> Unpin for OrderedStream<'_, U, S, T> {}

impl<U: Send + 'static, S: Stream<Item: Inputs> + Unpin, T: Send + 'static> Stream for OrderedStream<'_, U, S, T> {
    type Item = Result<T>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<T>>> {
        let this = self.get_mut();
        while !this.pending.is_full() {
            if this.next_inputs.is_none()
                && let Some(inputs) = &mut this.inputs
            {
                match Pin::new(inputs).poll_next(context) {
                    Poll::Ready(Some(inputs)) => this.next_inputs = Some(inputs),
                    Poll::Ready(None) => this.inputs = None,
                    Poll::Pending => {}
                }
            }
            if this.next_inputs.is_none() {
                break;
            }
            let Some(idle) = this.queue.poll_idle(context.waker()) else { break };
            if let Some(inputs) = this.next_inputs.take() {
                this.pending.start(idle, inputs);
            }
        }
        match this.pending.jobs.front() {
            Some(job) => match job.poll(context.waker()) {
                Some(result) => {
                    this.pending.jobs.pop_front();
                    Poll::Ready(Some(result))
                }
                None => Poll::Pending,
            },
            None if this.inputs.is_none() && this.next_inputs.is_none() => Poll::Ready(None),
            None => Poll::Pending,
        }
    }
}

impl<U, S: Stream, T> fmt::Debug for OrderedStream<'_, U, S, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OrderedStream({} pending)", self.pending.jobs.len())
    }
}
