//! The completion of a run as a future, for any async executor.

use std::fmt;
use std::future::{Future, IntoFuture};
use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{Context, Poll};

use super::request_pool::PooledRequest;
use super::run::Expected;
use super::{Error, InferRequest, Result, Results};

/// A future that becomes ready when a run is complete and its callback has returned, like [`InferRequest::wait`].
///
/// The future of [`InferRequest::run`] returns the [`Results`] of the request. Dropping it before the run is complete cancels the run. The
/// future of [`InferRequest::completed`] or of `request.await` returns `()`. Dropping it has no effect on the run.
#[must_use = "a future does nothing unless it is awaited, and dropping the future of `run` cancels the run"]
pub struct RunFuture<T = ()> {
    request: InferRequest,
    state: State,
    /// Whether the run is canceled if the future is dropped before the run is complete.
    owns_run: bool,
    output: PhantomData<fn() -> T>,
}

/// A value that a [`RunFuture`] can return after a successful run.
pub trait RunOutput: Sized {
    /// Reads the value from a request whose run succeeded.
    ///
    /// # Errors
    /// Returns `Busy` if the request was started again before the value was read.
    fn of(request: &InferRequest) -> Result<Self>;
}

impl RunOutput for () {
    fn of(_request: &InferRequest) -> Result<()> {
        Ok(())
    }
}

/// Returns all outputs, without a copy: [`InferRequest::results`].
impl RunOutput for Results {
    fn of(request: &InferRequest) -> Result<Self> {
        request.results()
    }
}

enum State {
    Running(Expected),
    Failed(Error),
    Over,
}

impl<T> RunFuture<T> {
    /// Creates a future that cancels the run if it is dropped before the run is complete.
    pub(super) fn owning(request: InferRequest, run: Expected) -> Self {
        Self { request, state: State::Running(run), owns_run: true, output: PhantomData }
    }

    pub(super) fn observing(request: InferRequest) -> Self {
        let run = request.shared().expect_latest();
        Self { request, state: State::Running(run), owns_run: false, output: PhantomData }
    }

    pub(super) fn failed(request: InferRequest, error: Error) -> Self {
        Self { request, state: State::Failed(error), owns_run: false, output: PhantomData }
    }

    /// Discards the results: the new future returns `()` when the run is complete.
    pub fn without_results(mut self) -> RunFuture {
        let state = std::mem::replace(&mut self.state, State::Over);
        RunFuture { request: self.request.clone(), state, owns_run: self.owns_run, output: PhantomData }
    }

    /// Returns the request of this run.
    pub fn request(&self) -> &InferRequest {
        &self.request
    }
}

impl<T: RunOutput> Future for RunFuture<T> {
    type Output = Result<T>;

    /// # Panics
    /// Panics if the future is polled after it was ready.
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<T>> {
        let outcome = match std::mem::replace(&mut self.state, State::Over) {
            State::Running(Expected { run: 0, .. }) => Ok(()),
            State::Failed(error) => Err(error),
            State::Over => panic!("a future must not be polled after it was ready"),
            State::Running(run) => match self.request.shared().poll(run, context.waker()) {
                Some(outcome) => outcome,
                None => {
                    self.state = State::Running(run);
                    return Poll::Pending;
                }
            },
        };
        Poll::Ready(outcome.and_then(|()| T::of(&self.request)))
    }
}

impl<T> Drop for RunFuture<T> {
    fn drop(&mut self) {
        if let State::Running(expected @ Expected { run: 1.., .. }) = self.state {
            self.request.shared().forget(expected, self.owns_run);
        }
    }
}

impl<T> fmt::Debug for RunFuture<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RunFuture of {:?}", self.request)
    }
}

/// The future of [`CompiledModel::infer_async`](super::CompiledModel::infer_async). Dropping it before the run is complete cancels the run.
#[must_use = "a future does nothing unless it is awaited, and dropping it cancels the run"]
#[derive(Debug)]
pub struct InferFuture(InferState);

#[derive(Debug)]
enum InferState {
    /// When the run is complete, the `PooledRequest` returns its request to the model. The order of the two fields matters: the `RunFuture`
    /// is dropped first and cancels the run, and only then does the request return to the model.
    Running(RunFuture, PooledRequest),
    Failed(Option<Error>),
}

impl InferFuture {
    pub(super) fn running(run: RunFuture, request: PooledRequest) -> Self {
        Self(InferState::Running(run, request))
    }

    pub(super) fn failed(error: Error) -> Self {
        Self(InferState::Failed(Some(error)))
    }
}

impl Future for InferFuture {
    type Output = Result<Results>;

    /// # Panics
    /// Panics if the future is polled after it was ready.
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<Results>> {
        let outcome = match &mut self.0 {
            InferState::Failed(error) => Err(error.take().expect("a future must not be polled after it was ready")),
            InferState::Running(run, request) => match Pin::new(run).poll(context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(outcome) => outcome.and_then(|()| request.take_outputs()),
            },
        };
        self.0 = InferState::Failed(None);
        Poll::Ready(outcome)
    }
}

/// Same as [`InferRequest::completed`].
impl IntoFuture for InferRequest {
    type Output = Result<()>;
    type IntoFuture = RunFuture;

    fn into_future(self) -> RunFuture {
        RunFuture::observing(self)
    }
}

/// Same as [`InferRequest::completed`].
impl IntoFuture for &InferRequest {
    type Output = Result<()>;
    type IntoFuture = RunFuture;

    fn into_future(self) -> RunFuture {
        self.clone().into_future()
    }
}
