//! What this node knows of the items that all nodes share, and requests of clients that change them.
//!
//! A thread of its own has a client of the coordinator. It follows all items, so reads need no request.

use std::collections::HashMap;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use roiflow_nodes::Coordinator;
use roiflow_nodes::coordinator::{Error, Event, Reply, Request, Ticket, Waker};
use roiflow_nodes::view::{Items, View};

/// How long the thread waits for an event before it looks whether the program has ended.
const WAIT: Duration = Duration::from_secs(1);
/// The watch of all items.
const WATCH: Ticket = Ticket(0);

type Answer = Result<Reply, Error>;

/// The items, and a way to change them. The thread ends when the directory is dropped.
#[derive(Debug)]
pub(super) struct Directory {
    view: Arc<Mutex<View>>,
    requests: Sender<(Request, Sender<Answer>)>,
    waker: Waker,
    max_wait: Duration,
}

impl Directory {
    /// Follows all items. `max_wait` is how long a request waits for its reply.
    ///
    /// # Errors
    /// Returns an error if the thread cannot be started.
    pub(super) fn start(coordinator: Box<dyn Coordinator>, max_wait: Duration) -> std::io::Result<Self> {
        let view = Arc::new(Mutex::new(View::default()));
        let (requests, received) = channel();
        let (of_thread, waker) = (view.clone(), coordinator.waker());
        std::thread::Builder::new().name("roiflow-directory".to_owned()).spawn(move || follow(coordinator, &received, &of_thread))?;
        Ok(Self { view, requests, waker, max_wait })
    }

    /// Reads the items.
    pub(super) fn read<T>(&self, read: impl FnOnce(&Items) -> T) -> T {
        read(lock(&self.view).items())
    }

    /// Whether this node sees all changes at this time.
    pub(super) fn is_current(&self) -> bool {
        lock(&self.view).is_current()
    }

    /// Sends a request, and waits for its reply.
    ///
    /// # Errors
    /// Returns the error of the coordinator.
    pub(super) fn call(&self, request: Request) -> Answer {
        let (sender, answer) = channel();
        let ended = || Error::Unreachable("the node is ending".to_owned());
        self.requests.send((request, sender)).map_err(|_| ended())?;
        self.waker.wake();
        answer.recv_timeout(self.max_wait).unwrap_or_else(|_| Err(ended()))
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        // The thread sees that there is no sender.
        (self.requests, _) = channel();
        self.waker.wake();
    }
}

fn follow(mut coordinator: Box<dyn Coordinator>, requests: &Receiver<(Request, Sender<Answer>)>, view: &Mutex<View>) {
    let begin = Instant::now();
    let mut waiting: HashMap<Ticket, Sender<Answer>> = HashMap::new();
    let mut next = WATCH.0 + 1;
    coordinator.submit(WATCH, Request::Watch { prefix: String::new() });
    loop {
        loop {
            match requests.try_recv() {
                Ok((request, sender)) => {
                    waiting.insert(Ticket(next), sender);
                    coordinator.submit(Ticket(next), request);
                    next += 1;
                }
                Err(std::sync::mpsc::TryRecvError::Empty) => break,
                Err(std::sync::mpsc::TryRecvError::Disconnected) => return,
            }
        }
        match coordinator.poll(WAIT) {
            Some(Event::Watch { change, .. }) => {
                lock(view).apply(begin.elapsed(), change);
            }
            Some(Event::Reply { ticket, result }) => {
                // The caller may have stopped waiting.
                waiting.remove(&ticket).iter().for_each(|sender| drop(sender.send(result.clone())));
            }
            None => {}
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
