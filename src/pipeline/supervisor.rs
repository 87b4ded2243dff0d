//! The one bus loop of the process: messages of all pipelines, requests and timers come to one thread, which never blocks on a stream.
//!
//! Messages arrive through the synchronous handler of each bus, so nothing is polled. What may block (starting, seeking, stopping, asking a
//! server why it did not answer) runs on threads of its own and sends its outcome here. The thread ends when no handle and no stream is left.

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

/// What comes to the loop.
pub(super) enum Input {
    /// A stream that is to be started.
    Add(Box<Session>),
    /// Something for a stream. Those that have ended get nothing.
    Request(StreamId, Request),
}

/// What comes to a stream.
pub(super) enum Request {
    /// A message of its pipeline.
    Message(gst::Message),
    /// Its pipeline was started; false if an element refused.
    Started(bool),
    /// What was done for it on another thread found something to warn of.
    Warning(String),
    /// What was done for it on another thread failed.
    Failed(Error),
    /// End properly.
    Drain,
    /// End now.
    Stop,
    /// Its pipeline has stopped.
    Stopped(Result<Ending>),
}

/// The way to the loop. The loop ends when the last reference is dropped.
#[derive(Debug)]
pub(super) struct Inbox(Sender<Input>);

impl Inbox {
    /// The inbox of the loop, which is started if it does not run.
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

    /// Never blocks.
    pub(super) fn send(&self, input: Input) {
        // The loop runs as long as this exists.
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

/// Lets a stream act, and removes it if it has ended.
fn step(sessions: &mut HashMap<StreamId, Session>, stream: StreamId, act: impl FnOnce(&mut Session) -> ControlFlow<Result<Ending>>) {
    let Some(session) = sessions.get_mut(&stream) else { return };
    let acted = catch_unwind(AssertUnwindSafe(|| act(session)));
    let acted = acted.unwrap_or_else(|_| ControlFlow::Break(Err(Error::failed("a bug: the supervision of the stream panicked"))));
    if let ControlFlow::Break(ended) = acted
        && let Some(session) = sessions.remove(&stream)
    {
        session.end(ended);
    }
}
