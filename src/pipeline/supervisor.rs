//! The bus loop of the process: one thread handles the messages, requests and timers of all pipelines, and never blocks on a stream.
//!
//! Messages arrive through the synchronous handler of each bus, so nothing is polled. Operations that may block run on separate threads
//! and send their results here: starting, seeking, stopping, querying a server. The thread ends when no handle and no stream is left.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Instant;

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, unbounded};
use gstreamer as gst;

use super::handle::StreamId;
use super::session::Session;
use super::{Ending, Error, Result};

/// Input of the loop.
pub(super) enum Input {
    /// A stream to start.
    Add(Box<Session>),
    /// A request for a stream. Ignored after the stream has ended.
    Request(StreamId, Request),
}

/// A request for a stream.
pub(super) enum Request {
    /// A message of the stream's pipeline.
    Message(gst::Message),
    /// The stream's pipeline was started; false if an element failed to start.
    Started(bool),
    /// A warning of an operation on another thread.
    Warning(String),
    /// An error of an operation on another thread.
    Failed(Error),
    /// Drain: let the frames in flight complete.
    Drain,
    /// Stop at once.
    Stop,
    /// The stream's pipeline has stopped.
    Stopped(Result<Ending>),
}

/// Sender to the loop. The loop ends when the last reference is dropped.
#[derive(Debug)]
pub(super) struct Inbox(Sender<Input>);

impl Inbox {
    /// The inbox of the loop, which is started if necessary.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub(super) fn shared() -> Result<Arc<Self>> {
        static CURRENT: Mutex<Weak<Inbox>> = Mutex::new(Weak::new());
        let mut current = CURRENT.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(inbox) = current.upgrade() {
            return Ok(inbox);
        }
        let (sender, receiver) = unbounded();
        std::thread::Builder::new()
            .name("roiflow-bus".to_owned())
            .spawn(move || supervise(&receiver))
            .map_err(|error| Error::failed(format!("cannot start the thread that supervises streams: {error}")))?;
        let inbox = Arc::new(Self(sender));
        *current = Arc::downgrade(&inbox);
        Ok(inbox)
    }

    /// Sends an input without blocking.
    pub(super) fn send(&self, input: Input) {
        // Cannot fail: the loop runs while this sender exists.
        let _sent = self.0.send(input);
    }
}

fn supervise(inbox: &Receiver<Input>) {
    let mut sessions: HashMap<StreamId, Session> = HashMap::new();
    loop {
        let received = match sessions.values().map(Session::timer).min() {
            Some(timer) => inbox.recv_deadline(timer),
            None => inbox.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        match received {
            Ok(Input::Add(session)) => {
                let stream = session.stream();
                sessions.insert(stream, *session);
                step(&mut sessions, stream, |session| {
                    session.start();
                    ControlFlow::Continue(())
                });
            }
            Ok(Input::Request(stream, request)) => step(&mut sessions, stream, |session| session.handle(request)),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        let now = Instant::now();
        let due: Vec<StreamId> = sessions.values().filter(|session| session.timer() <= now).map(Session::stream).collect();
        due.into_iter().for_each(|stream| step(&mut sessions, stream, |session| session.tick(now)));
    }
}

/// Runs an action on a stream, and removes the stream if it has ended.
fn step(sessions: &mut HashMap<StreamId, Session>, stream: StreamId, act: impl FnOnce(&mut Session) -> ControlFlow<Result<Ending>>) {
    let Some(session) = sessions.get_mut(&stream) else { return };
    let acted = catch_unwind(AssertUnwindSafe(|| act(session)));
    let acted = acted.unwrap_or_else(|_| ControlFlow::Break(Err(Error::failed("internal error: the supervision of the stream panicked"))));
    if let ControlFlow::Break(ended) = acted
        && let Some(session) = sessions.remove(&stream)
    {
        session.end(ended);
    }
}
