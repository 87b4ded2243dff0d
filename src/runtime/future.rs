//! `.await`: the end of a run as a future, for any executor; nothing here knows one.

use std::fmt;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::task::{Context, Poll};

use super::{Error, InferRequest, Result};

/// The end of one run: its callback has returned, as for [`InferRequest::wait`]. Made by [`InferRequest::run`].
///
/// Dropping it before that cancels the run: it ends at the next step boundary, and the request is busy until then.
#[must_use = "dropping the future cancels the run"]
pub struct RunFuture {
    request: InferRequest,
    state: State,
}

enum State {
    /// The run that is expected; 0 for none, which is over at once.
    Running(u64),
    Failed(Error),
    Over,
}

impl RunFuture {
    pub(super) fn of(request: InferRequest, run: u64) -> Self {
        Self { request, state: State::Running(run) }
    }

    pub(super) fn failed(request: InferRequest, error: Error) -> Self {
        Self { request, state: State::Failed(error) }
    }

    /// The request that runs.
    pub fn request(&self) -> &InferRequest {
        &self.request
    }
}

impl Future for RunFuture {
    type Output = Result<()>;

    /// # Panics
    /// If it is polled again after it was ready.
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        let outcome = match std::mem::replace(&mut self.state, State::Over) {
            State::Running(0) => Ok(()),
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
        if let State::Running(run @ 1..) = self.state {
            self.request.shared().forget(run);
        }
    }
}

impl fmt::Debug for RunFuture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RunFuture of {:?}", self.request)
    }
}

/// Waits for the run that was started last; ready at once if none was. Dropping the future cancels that run.
impl IntoFuture for InferRequest {
    type Output = Result<()>;
    type IntoFuture = RunFuture;

    fn into_future(self) -> RunFuture {
        let run = self.shared().expect_latest();
        RunFuture::of(self, run)
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
