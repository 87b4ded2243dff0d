//! The bus loop of the process: one thread handles the messages, requests and timers of all pipelines, and never blocks on a stream.
//!
//! Messages arrive through the synchronous handler of each bus, so nothing is polled. Operations that may block run on separate threads
//! and send their results to the loop: starting, seeking, stopping, querying a server. The thread of the loop ends when no handle and no
//! stream is left.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Instant;

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, unbounded};
use gstreamer as gst;

use super::carry::Carried;
use super::handle::StreamId;
use super::life::Life;
use super::session::{Finished, NewSession};
use super::{Ending, Error, Plan, Result};
use crate::stages::Snapshot;

/// An input of the bus loop.
pub(super) enum Input {
    /// A stream to start.
    Add(Box<Life>),
    /// A request of the application for a stream. The loop ignores it after the stream has ended.
    Request(StreamId, Request),
    /// A request for a stream from its session with this number. The loop ignores it after the session has ended.
    OfSession(StreamId, u32, Request),
}

/// A request for a stream.
pub(super) enum Request {
    /// A message of the stream's pipeline.
    Message(gst::Message),
    /// The stream's pipeline was started; false if an element failed to start.
    Started(bool),
    /// An operation on another thread has a warning.
    Warning(String),
    /// An operation on another thread has failed.
    Failed(Error),
    /// The stream must drain: frames in flight complete.
    Drain,
    /// The stream must stop at once.
    Stop,
    /// The stream must continue with this plan.
    Reload(Box<Plan>, Way),
    /// The check of a plan that `Reload` requested has ended, with its models and files or an error.
    Checked(Box<Plan>, Way, Result<Snapshot>),
    /// The stream's pipeline is stopping. The value is the state that the next pipeline takes over.
    Carried(Box<Carried>),
    /// The stream's pipeline has stopped.
    Stopped(Box<Finished>),
    /// The pipeline of the next session is built.
    Built(Box<Result<NewSession>>),
}

/// How a stream continues with another plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// In a new pipeline, whose elements read all files again.
    NewPipeline,
    /// In the running pipeline if it takes the changes, else in a new pipeline.
    InPlace,
}

/// Sends inputs to the bus loop. The loop ends when the last reference to the inbox is dropped.
#[derive(Debug)]
pub(super) struct Inbox(Sender<Input>);

impl Inbox {
    /// Returns the inbox of the loop, which is started if necessary.
    ///
    /// # Errors
    /// Returns an error if the thread cannot be started.
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
        // Sending cannot fail, because the loop runs as long as this sender exists.
        let _sent = self.0.send(input);
    }
}

fn supervise(inbox: &Receiver<Input>) {
    let mut lives: HashMap<StreamId, Life> = HashMap::new();
    loop {
        let received = match lives.values().map(Life::timer).min() {
            Some(timer) => inbox.recv_deadline(timer),
            None => inbox.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        match received {
            Ok(Input::Add(life)) => {
                let stream = life.stream();
                lives.insert(stream, *life);
                step(&mut lives, stream, |life| {
                    life.start();
                    ControlFlow::Continue(())
                });
            }
            Ok(Input::Request(stream, request)) => step(&mut lives, stream, |life| life.handle(request)),
            Ok(Input::OfSession(stream, attempt, request)) => step(&mut lives, stream, |life| life.handle_of(attempt, request)),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        let now = Instant::now();
        let due: Vec<StreamId> = lives.values().filter(|life| life.timer() <= now).map(Life::stream).collect();
        due.into_iter().for_each(|stream| step(&mut lives, stream, |life| life.tick(now)));
    }
}

/// Runs an action on a stream, and removes the stream if it has ended.
fn step(lives: &mut HashMap<StreamId, Life>, stream: StreamId, act: impl FnOnce(&mut Life) -> ControlFlow<Result<Ending>>) {
    let Some(life) = lives.get_mut(&stream) else { return };
    let acted = catch_unwind(AssertUnwindSafe(|| act(life)));
    let acted = acted.unwrap_or_else(|_| ControlFlow::Break(Err(Error::failed("internal error: the supervision of the stream panicked"))));
    if let ControlFlow::Break(ended) = acted
        && let Some(life) = lives.remove(&stream)
    {
        life.end(ended);
    }
}
