//! The completion of a run as a future, for any async executor.

use std::fmt;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::task::{Context, Poll};

use super::run::Expected;
use super::{Error, InferRequest, Result};

/// Completes when a run is complete and its callback has returned, as [`InferRequest::wait`].
///
/// Dropping the future of [`InferRequest::run`] before its end cancels the run, as [`InferRequest::cancel`]. Dropping the future of
/// [`InferRequest::completed`] or of `request.await` has no effect on the run.
#[must_use = "a future does nothing unless it is awaited, and dropping that of `run` cancels the run"]
pub struct RunFuture {
    request: InferRequest,
    state: State,
    /// The run is canceled if the future is dropped before its end.
    owns_run: bool,
}

enum State {
    Running(Expected),
    Failed(Error),
    Over,
}

impl RunFuture {
    /// That cancels the run if it is dropped.
    pub(super) fn owning(request: InferRequest, run: Expected) -> Self {
        Self { request, state: State::Running(run), owns_run: true }
    }

    pub(super) fn observing(request: InferRequest) -> Self {
        let run = request.shared().expect_latest();
        Self { request, state: State::Running(run), owns_run: false }
    }

    pub(super) fn failed(request: InferRequest, error: Error) -> Self {
        Self { request, state: State::Failed(error), owns_run: false }
    }

    /// The request that runs.
    pub fn request(&self) -> &InferRequest {
        &self.request
    }
}

impl Future for RunFuture {
    type Output = Result<()>;

    /// # Panics
    /// If it is polled after it was ready.
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
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
        Poll::Ready(outcome)
    }
}

impl Drop for RunFuture {
    fn drop(&mut self) {
        if let State::Running(expected @ Expected { run: 1.., .. }) = self.state {
            self.request.shared().forget(expected, self.owns_run);
        }
    }
}

impl fmt::Debug for RunFuture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RunFuture of {:?}", self.request)
    }
}

/// As [`InferRequest::completed`].
impl IntoFuture for InferRequest {
    type Output = Result<()>;
    type IntoFuture = RunFuture;

    fn into_future(self) -> RunFuture {
        RunFuture::observing(self)
    }
}

/// As for the request itself.
impl IntoFuture for &InferRequest {
    type Output = Result<()>;
    type IntoFuture = RunFuture;

    fn into_future(self) -> RunFuture {
        self.clone().into_future()
    }
}
