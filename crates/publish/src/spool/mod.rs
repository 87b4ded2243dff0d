//! Stores messages on disk until a destination acknowledges them.
//!
//! ```text
//! SpoolWriter (of a Publisher) -> Log (files) -> sender thread -> Destination
//! ```
//!
//! A spool owns a folder and a sender thread for one destination. Several publishers of a process can write to the same spool: they share
//! the connection. A second process that opens the folder gets an error. The sender connects again after each failure, without a limit of
//! attempts. Messages that are not acknowledged when the process ends are sent by the next process that opens the folder.
//!
//! A message counts as stored once it is in the operating system's cache, which survives the end of the process by any signal. Every second
//! the files are also synchronized with the disk, so a power failure loses at most about a second.

mod log;
mod record;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use log::{Appended, Log};
use record::Gap;

pub use log::Limits;

use super::publisher::IDLE_INTERVAL;
use super::{Deadline, Destination, Event, Failure, Message, Retry};

/// Maximum number of messages in flight.
const MAX_IN_FLIGHT: usize = 256;
/// Maximum size of the messages in flight.
const MAX_IN_FLIGHT_BYTES: u64 = 1 << 20;
/// Interval of synchronization with the disk.
const SYNC_INTERVAL: Duration = Duration::from_secs(1);
/// How long dropping the spool waits for the sender thread.
const CLOSE_PATIENCE: Duration = Duration::from_secs(2);
/// How long opening waits until a spool of the same process is closed.
const REOPEN_PATIENCE: Duration = Duration::from_secs(5);
/// Interval at which waiting calls check their deadline.
const TICK: Duration = Duration::from_millis(100);

/// A queue on disk with a sender thread. Dropping it stops the sender; unacknowledged messages stay on disk.
pub struct Spool {
    shared: Arc<Shared>,
    sender: Mutex<Option<JoinHandle<()>>>,
}

/// State of a spool, for statistics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SpoolStatus {
    /// Messages that the destination has acknowledged since the spool was opened.
    pub delivered: u64,
    /// Messages that are stored and not acknowledged.
    pub waiting: u64,
    /// Size of the files.
    pub bytes: u64,
    /// Messages dropped because of the limits or a full disk, since this process first opened a spool in the folder.
    pub dropped: u64,
    /// Messages that the destination rejected, since this process first opened a spool in the folder.
    pub rejected: u64,
    /// Whether the last attempt to reach the destination failed.
    pub is_down: bool,
}

struct Shared {
    state: Mutex<State>,
    /// Notified when the sender has work.
    work: Condvar,
    /// Notified when messages are acknowledged or dropped, and when the destination fails.
    progress: Condvar,
    deadline: Deadline,
    listeners: Mutex<Listeners>,
    losses: Arc<Losses>,
}

struct State {
    log: Log,
    delivered: u64,
    is_down: bool,
    /// Whether dropped messages were reported since the spool was last empty.
    is_dropping: bool,
    /// Whether the number of waiting messages has been reported.
    reports_waiting: bool,
    is_closing: bool,
    /// Set to end the pause before the next attempt.
    retries_now: bool,
    synced_at: Instant,
}

/// The event handlers of the writers, with a number for each. Only the first handler gets an event, so that an outage is reported once.
#[derive(Default)]
struct Listeners {
    next: u64,
    all: Vec<(u64, Arc<Mutex<Listener>>)>,
}

type Listener = Box<dyn FnMut(Event<'_>) + Send>;

/// Numbers of lost messages. They only grow while the process runs, also when the spool is closed and opened again, so that a reader that
/// knows an earlier value can tell new losses from known ones.
#[derive(Debug, Default)]
struct Losses {
    dropped: AtomicU64,
    rejected: AtomicU64,
}

/// A folder in which the process has opened a spool.
struct Known {
    spool: Weak<Spool>,
    losses: Arc<Losses>,
}

/// The folders of the spools that the process has opened so far.
static KNOWN: Mutex<Option<HashMap<PathBuf, Known>>> = Mutex::new(None);

impl Spool {
    /// Opens the spool in `folder`, and starts to deliver stored messages. If this process has opened the spool before, returns the open
    /// spool and ignores `limits`. The returned writer stores messages in the spool. `on_event` gets the events of the spool while this
    /// writer is the oldest writer.
    ///
    /// # Errors
    /// Returns `WouldBlock` if another process uses the folder. Returns another error if the folder cannot be read or written.
    pub fn open<D: Destination>(
        folder: &Path,
        limits: Limits,
        retry: Retry,
        destination: impl FnOnce() -> D,
        on_event: impl FnMut(Event<'_>) + Send + 'static,
    ) -> io::Result<(Arc<Self>, SpoolWriter)> {
        std::fs::create_dir_all(folder)?;
        let folder = folder.canonicalize()?;
        let mut all = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        let all = all.get_or_insert_default();
        let known = all.get(&folder);
        if let Some(spool) = known.and_then(|known| known.spool.upgrade()) {
            let writer = spool.writer(Box::new(on_event));
            return Ok((spool, writer));
        }
        // The previous spool of this process may still be closing.
        let end = Instant::now() + if known.is_some() { REOPEN_PATIENCE } else { Duration::ZERO };
        let losses = known.map(|known| known.losses.clone()).unwrap_or_default();
        let log = loop {
            match Log::open(&folder, limits, losses.clone()) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && Instant::now() < end => std::thread::sleep(TICK / 10),
                opened => break opened?,
            }
        };
        let spool = Arc::new(Self::new(log, losses.clone()));
        // Create the writer before the sender starts, because the sender can report an outage immediately.
        let writer = spool.writer(Box::new(on_event));
        spool.start(retry, Box::new(destination()))?;
        all.insert(folder, Known { spool: Arc::downgrade(&spool), losses });
        Ok((spool, writer))
    }

    fn new(log: Log, losses: Arc<Losses>) -> Self {
        let now = Instant::now();
        let state = State {
            log,
            delivered: 0,
            is_down: false,
            is_dropping: false,
            reports_waiting: false,
            is_closing: false,
            retries_now: false,
            synced_at: now,
        };
        let (work, progress, deadline, listeners) = Default::default();
        let shared = Arc::new(Shared { state: Mutex::new(state), work, progress, deadline, listeners, losses });
        Self { shared, sender: Mutex::new(None) }
    }

    fn start(&self, retry: Retry, destination: Box<dyn Destination>) -> io::Result<()> {
        let mut sender = Sender { shared: self.shared.clone(), destination, retry, is_connected: false, acknowledged: 0, rejected: false };
        let sender = std::thread::Builder::new().name("roiflow-spool".to_owned()).spawn(move || sender.run())?;
        *self.sender.lock().unwrap_or_else(PoisonError::into_inner) = Some(sender);
        Ok(())
    }

    fn writer(self: &Arc<Self>, on_event: Listener) -> SpoolWriter {
        let mut listeners = self.shared.listeners();
        let listener = listeners.next;
        listeners.next += 1;
        listeners.all.push((listener, Arc::new(Mutex::new(on_event))));
        SpoolWriter { spool: self.clone(), listener, n_stored: 0 }
    }

    /// Returns the current state.
    pub fn status(&self) -> SpoolStatus {
        let state = self.shared.lock();
        let (waiting, bytes, dropped) = (state.log.n_waiting(), state.log.n_bytes(), state.log.n_dropped());
        let rejected = self.shared.losses.rejected.load(Ordering::Relaxed);
        SpoolStatus { delivered: state.delivered, waiting, bytes, dropped, rejected, is_down: state.is_down }
    }

    /// Returns the number of waiting messages on the first call, and 0 on later calls. Each stream that ends during an outage calls this
    /// function, and only one stream reports the number.
    pub fn n_waiting_to_report(&self) -> u64 {
        let mut state = self.shared.lock();
        if std::mem::replace(&mut state.reports_waiting, true) { 0 } else { state.log.n_waiting() }
    }

    /// Blocks until the messages stored so far are delivered or dropped. Returns early if the destination acknowledges nothing for
    /// `patience`, or if `is_over` returns true. Returns false if messages are left. During an outage, the next attempt starts immediately.
    pub fn drain(&self, patience: Duration, is_over: impl Fn() -> bool) -> bool {
        let mut state = self.shared.lock();
        state.retries_now = true;
        self.shared.work.notify_all();
        let (n_stored, mut n_done) = state.log.progress();
        let mut since = Instant::now();
        loop {
            let (_, n_now) = state.log.progress();
            if n_now >= n_stored {
                return true;
            }
            if n_now > n_done {
                (n_done, since) = (n_now, Instant::now());
            }
            if since.elapsed() >= patience || is_over() {
                return false;
            }
            state = self.shared.progress.wait_timeout(state, TICK).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Drop for Spool {
    fn drop(&mut self) {
        self.shared.deadline.set(Instant::now());
        let mut state = self.shared.lock();
        state.is_closing = true;
        let file = state.log.writer();
        drop(state);
        self.shared.work.notify_all();
        let sender = self.sender.lock().unwrap_or_else(PoisonError::into_inner).take();
        let end = Instant::now() + CLOSE_PATIENCE;
        if let Some(sender) = sender.filter(|sender| sender.thread().id() != std::thread::current().id()) {
            // A system call of the thread may hang. The thread then ends later.
            while !sender.is_finished() && Instant::now() < end {
                std::thread::sleep(Duration::from_millis(1));
            }
            if sender.is_finished() {
                let _ended = sender.join();
            }
        }
        let _synced = file.sync_data();
    }
}

impl std::fmt::Debug for Spool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Spool").field(&self.status()).finish()
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn listeners(&self) -> MutexGuard<'_, Listeners> {
        self.listeners.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn report(&self, event: Event<'_>) {
        // Release the lock of the list before the call: the listener may wait for a thread that drops a writer, which needs this lock.
        let listener = self.listeners().all.first().map(|(_, listener)| listener.clone());
        if let Some(listener) = listener {
            (listener.lock().unwrap_or_else(PoisonError::into_inner))(event);
        }
    }
}

/// Stores messages in a [`Spool`]. A message is acknowledged when it is stored, or dropped with a gap record.
pub struct SpoolWriter {
    spool: Arc<Spool>,
    listener: u64,
    n_stored: u64,
}

impl Destination for SpoolWriter {
    fn connect(&mut self, _deadline: &Deadline) -> Result<(), Failure> {
        Ok(())
    }

    fn publish(&mut self, message: &Message) -> Result<(), Failure> {
        let shared = &self.spool.shared;
        let mut state = shared.lock();
        let appended = state.log.append(message, now());
        self.n_stored += 1;
        let reason = match appended {
            Appended::Stored => None,
            Appended::Replacing(reason) | Appended::Dropped(reason) => (!std::mem::replace(&mut state.is_dropping, true)).then_some(reason),
        };
        drop(state);
        shared.work.notify_one();
        if let Some(reason) = reason {
            shared.report(Event::Dropping(&reason));
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), Failure> {
        let file = {
            let mut state = self.spool.shared.lock();
            if state.synced_at.elapsed() < SYNC_INTERVAL {
                return Ok(());
            }
            state.synced_at = Instant::now();
            state.log.writer()
        };
        // Synchronize without the lock, so that a slow disk does not delay the sender.
        if let Err(error) = file.sync_data() {
            tracing::warn!("the spool cannot be synchronized with the disk: {error}");
        }
        Ok(())
    }

    fn acknowledged(&self) -> u64 {
        self.n_stored
    }
}

impl Drop for SpoolWriter {
    fn drop(&mut self) {
        self.spool.shared.listeners().all.retain(|(listener, _)| *listener != self.listener);
    }
}

/// Milliseconds since 1970.
fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

/// Data of the sender thread.
struct Sender {
    shared: Arc<Shared>,
    destination: Box<dyn Destination>,
    retry: Retry,
    is_connected: bool,
    /// The value of [`Destination::acknowledged`] at the last check.
    acknowledged: u64,
    /// Whether the destination rejected the next message. A gap record is sent instead.
    rejected: bool,
}

impl Sender {
    fn run(&mut self) {
        let mut n_attempts = 0;
        while self.wait_for_work() {
            let before = self.acknowledged;
            let attempt = self.attempt();
            self.settle();
            let Err(failure) = attempt else {
                n_attempts = 0;
                self.end_outage();
                continue;
            };
            self.is_connected = false;
            let committed = self.destination.committed().saturating_sub(self.acknowledged) as usize;
            let mut state = self.shared.lock();
            state.log.acknowledge(committed);
            state.log.rewind();
            self.acknowledged += committed as u64;
            if failure.is_rejected() {
                self.shared.losses.rejected.fetch_add(u64::from(!self.rejected), Ordering::Relaxed);
                if std::mem::replace(&mut self.rejected, true) {
                    // The destination also rejects the gap record, so skip it.
                    let _skipped = state.log.next();
                    state.log.acknowledge(1);
                    self.rejected = false;
                }
                drop(state);
                self.shared.report(Event::Lost { failure: &failure, n_messages: 1 });
                continue;
            }
            let is_new = !std::mem::replace(&mut state.is_down, true);
            let is_closing = state.is_closing;
            drop(state);
            self.shared.progress.notify_all();
            if is_new && !is_closing {
                self.shared.report(Event::Down(&failure));
            }
            n_attempts = if self.acknowledged > before { 1 } else { n_attempts + 1 };
            // Try again even after a rejected password, because it can be corrected at the broker.
            self.pause(self.retry.pause(n_attempts));
        }
        if self.is_connected {
            let _closed = self.destination.close();
        }
    }

    /// Waits for `duration`, or until [`Spool::drain`] or the end of the spool requests an immediate attempt.
    fn pause(&self, duration: Duration) {
        let end = Instant::now() + duration;
        let mut state = self.shared.lock();
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if std::mem::take(&mut state.retries_now) || state.is_closing || left.is_zero() {
                return;
            }
            state = self.shared.work.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Waits for messages. Does not wait before the first connection, so that an unreachable destination is reported at the start. Returns
    /// false when the spool is closing.
    fn wait_for_work(&mut self) -> bool {
        let mut state = self.shared.lock();
        let mut idle_since = Instant::now();
        loop {
            if state.is_closing {
                return false;
            }
            if !self.is_connected || state.log.has_unread() {
                return true;
            }
            state = self.shared.work.wait_timeout(state, IDLE_INTERVAL).unwrap_or_else(PoisonError::into_inner).0;
            if idle_since.elapsed() >= IDLE_INTERVAL && !state.is_closing && !state.log.has_unread() {
                drop(state);
                idle_since = Instant::now();
                self.is_connected = self.destination.idle().is_ok();
                state = self.shared.lock();
            }
        }
    }

    /// Sends messages until none is left, and waits for acknowledgments.
    fn attempt(&mut self) -> Result<(), Failure> {
        let (mut n_in_flight, mut n_bytes) = (0, 0);
        let (max_bytes, has_dropped) = {
            let mut state = self.shared.lock();
            let has_dropped = state.log.drop_old(now()) && !std::mem::replace(&mut state.is_dropping, true);
            (state.log.segment_bytes().min(MAX_IN_FLIGHT_BYTES), has_dropped)
        };
        if has_dropped {
            self.shared.report(Event::Dropping("stored messages are older than the age limit"));
        }
        if !self.is_connected {
            self.destination.connect(&self.shared.deadline)?;
            self.is_connected = true;
        }
        while n_in_flight < MAX_IN_FLIGHT && n_bytes < max_bytes {
            let next = self.shared.lock().log.next();
            let message = match next {
                Ok(Some((message, is_gap))) if self.rejected && !is_gap => Gap::of(&message, "rejected by the destination").message(),
                Ok(Some((message, _))) => message,
                Ok(None) => break,
                Err(error) => {
                    tracing::warn!("skipping messages of the spool that cannot be read: {error}");
                    self.shared.report(Event::Dropping(&format!("stored messages cannot be read: {error}")));
                    continue;
                }
            };
            n_in_flight += 1;
            n_bytes += message.payload.len() as u64;
            self.destination.publish(&message)?;
            if self.rejected {
                self.destination.flush()?;
                self.rejected = false;
            }
            self.settle();
        }
        self.destination.flush()
    }

    /// Moves the cursor to the position that the destination has acknowledged.
    fn settle(&mut self) {
        let acknowledged = self.destination.acknowledged();
        let n_new = acknowledged.saturating_sub(self.acknowledged);
        self.acknowledged = acknowledged;
        if n_new > 0 {
            let mut state = self.shared.lock();
            state.log.acknowledge(n_new as usize);
            state.delivered += n_new;
            if state.log.n_waiting() == 0 {
                (state.is_dropping, state.reports_waiting) = (false, false);
            }
            drop(state);
            self.shared.progress.notify_all();
            self.end_outage();
        }
    }

    fn end_outage(&self) {
        let was_down = std::mem::take(&mut self.shared.lock().is_down);
        if was_down {
            self.shared.report(Event::Up);
        }
    }
}
