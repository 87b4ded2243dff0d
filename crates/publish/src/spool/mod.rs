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
//! If the disk is full or the folder is missing, messages wait in memory, with a limit, until the files can be written again.
//!
//! Messages that the destination refuses for good are appended to the file `refused.jsonl` of the folder, with the reason, and a gap record
//! is sent instead.
//!
//! A message counts as stored once it is in the operating system's cache, which survives the end of the process by any signal. Every second
//! the files are also synchronized with the disk, so a power failure loses at most about a second.

mod cursor;
#[cfg(test)]
mod disk_tests;
mod log;
mod record;
mod segment;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, VecDeque};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use log::{Appended, Log, Next};
use record::Gap;

pub use log::Limits;

use super::publisher::{IDLE_INTERVAL, REFUSALS_OF_OUTAGE};
use super::rotating_file::{RotatingFile, Rotation};
use super::{Deadline, Destination, Event, Failure, Framing, IfExists, Message, Retry};

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
/// The file of refused messages, its maximum size, and the number of earlier files.
const REFUSED: (&str, u64, u64) = ("refused.jsonl", 16 << 20, 1);
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
    /// Size of the files, and of the messages in memory.
    pub bytes: u64,
    /// Messages that were dropped because of the limits or a full disk, damaged or deleted, since this process first opened a spool in the
    /// folder.
    pub dropped: u64,
    /// Messages that the destination refused for good, since this process first opened a spool in the folder.
    pub refused: u64,
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
    /// Whether the destination has refused the first message in the last attempt.
    is_refused: bool,
    /// Whether dropped messages were reported since the spool was last empty.
    is_dropping: bool,
    /// Whether messages in memory were reported.
    is_in_memory: bool,
    /// Number of refused messages that [`Spool::n_refused_to_report`] has returned.
    n_refused_reported: u64,
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
    refused: AtomicU64,
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
        let n_dropped = losses.dropped.load(Ordering::Relaxed);
        let log = loop {
            match Log::open(&folder, limits, losses.clone()) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && Instant::now() < end => std::thread::sleep(TICK / 10),
                opened => break opened?,
            }
        };
        let spool = Arc::new(Self::new(log, losses.clone()));
        // Create the writer before the sender starts, because the sender can report an outage immediately.
        let writer = spool.writer(Box::new(on_event));
        if spool.status().dropped > n_dropped {
            spool.shared.report(Event::Dropping(log::DAMAGED));
        }
        spool.start(&folder, retry, Box::new(destination()))?;
        all.insert(folder, Known { spool: Arc::downgrade(&spool), losses });
        Ok((spool, writer))
    }

    fn new(log: Log, losses: Arc<Losses>) -> Self {
        let now = Instant::now();
        let state = State {
            log,
            delivered: 0,
            is_down: false,
            is_refused: false,
            is_dropping: false,
            is_in_memory: false,
            n_refused_reported: losses.refused.load(Ordering::Relaxed),
            reports_waiting: false,
            is_closing: false,
            retries_now: false,
            synced_at: now,
        };
        let (work, progress, deadline, listeners) = Default::default();
        let shared = Arc::new(Shared { state: Mutex::new(state), work, progress, deadline, listeners, losses });
        Self { shared, sender: Mutex::new(None) }
    }

    fn start(&self, folder: &Path, retry: Retry, destination: Box<dyn Destination>) -> io::Result<()> {
        let (name, max_bytes, keep) = REFUSED;
        let rotation = Rotation { max_bytes: Some(max_bytes), keep: Some(keep), ..Rotation::default() };
        let refused = RotatingFile::new(folder.join(name), IfExists::Append, rotation, Framing::LINES);
        let (shared, sent) = (self.shared.clone(), VecDeque::new());
        let mut sender = Sender { shared, destination, retry, is_connected: false, acknowledged: 0, sent, refused };
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
        let refused = self.shared.losses.refused.load(Ordering::Relaxed);
        SpoolStatus { delivered: state.delivered, waiting, bytes, dropped, refused, is_down: state.is_down }
    }

    /// Returns the number of waiting messages on the first call, and 0 on later calls. Each stream that ends during an outage calls this
    /// function, and only one stream reports the number.
    pub fn n_waiting_to_report(&self) -> u64 {
        let mut state = self.shared.lock();
        if std::mem::replace(&mut state.reports_waiting, true) { 0 } else { state.log.n_waiting() }
    }

    /// Returns the number of messages that the destination has refused for good, refuses now, or that are only in memory, and that no earlier
    /// call has returned. Each stream that ends calls this function, and only one stream reports a message.
    pub fn n_refused_to_report(&self) -> u64 {
        let mut state = self.shared.lock();
        state.log.restore();
        let n_waiting = if state.is_refused { state.log.n_waiting() } else { state.log.n_in_memory() };
        let n_all = self.shared.losses.refused.load(Ordering::Relaxed) + n_waiting;
        n_all - std::mem::replace(&mut state.n_refused_reported, n_all).min(n_all)
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
            if n_now >= n_stored && !state.log.has_unstored() {
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
        state.log.refresh();
        let n_in_memory = state.log.n_in_memory();
        let files = state.log.files();
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
        files.for_each(|file| drop(file.sync_data()));
        if n_in_memory > 0 {
            tracing::error!("{n_in_memory} messages are lost: the spool could not be written");
        }
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
        let disk_error = state.log.disk_error().to_owned();
        let has_failed = !std::mem::replace(&mut state.is_in_memory, !disk_error.is_empty()) && !disk_error.is_empty();
        drop(state);
        shared.work.notify_one();
        if has_failed {
            shared.report(Event::InMemory(&disk_error));
        }
        if let Some(reason) = reason {
            shared.report(Event::Dropping(&reason));
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), Failure> {
        let files = {
            let mut state = self.spool.shared.lock();
            if state.synced_at.elapsed() < SYNC_INTERVAL {
                // The next process then knows the number of the newest message, even if this message is damaged.
                state.log.write_cursor();
                return Ok(());
            }
            state.synced_at = Instant::now();
            state.log.refresh();
            state.log.files()
        };
        // Synchronize without the lock, so that a slow disk does not delay the sender.
        for error in files.filter_map(|file| file.sync_data().err()) {
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
    /// The records in flight.
    sent: VecDeque<Next>,
    /// The file of refused messages.
    refused: RotatingFile,
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
            self.sent.clear();
            self.acknowledged += committed as u64;
            n_attempts = if self.acknowledged > before { 1 } else { n_attempts + 1 };
            state.is_refused = failure.is_refused();
            let is_outage = !failure.is_refused() || n_attempts >= REFUSALS_OF_OUTAGE;
            let is_new = is_outage && !std::mem::replace(&mut state.is_down, true);
            let is_closing = state.is_closing;
            drop(state);
            self.shared.progress.notify_all();
            if is_new && !is_closing {
                self.shared.report(Event::Down(&failure));
            }
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
            let (next, is_dropping) = {
                let mut state = self.shared.lock();
                let next = state.log.next();
                let is_new = next.as_ref().is_some_and(|next| next.loss.is_some()) && !std::mem::replace(&mut state.is_dropping, true);
                (next, is_new)
            };
            let Some(next) = next else { break };
            if let (Some(loss), true) = (next.loss, is_dropping) {
                self.shared.report(Event::Dropping(loss));
            }
            n_in_flight += 1;
            n_bytes += next.message.payload.len() as u64;
            self.sent.push_back(next.clone());
            self.destination.publish(&next.message)?;
            self.settle();
        }
        self.destination.flush()
    }

    /// Moves the cursor to the position that the destination has acknowledged.
    fn settle(&mut self) {
        let acknowledged = self.destination.acknowledged();
        let n_new = acknowledged.saturating_sub(self.acknowledged);
        if n_new == 0 {
            return;
        }
        let refused = self.destination.take_refused();
        let first = std::mem::replace(&mut self.acknowledged, acknowledged);
        let done: Vec<Next> = self.sent.drain(..self.sent.len().min(n_new as usize)).collect();
        let of_position = |position: u64| done.get(position.checked_sub(first)? as usize).filter(|next| !next.is_gap);
        // If a gap record is refused, only the log tells it.
        for (position, error) in &refused {
            match of_position(*position) {
                Some(next) => keep_refused(&mut self.refused, &next.message, error),
                None => tracing::warn!("the destination refuses a gap record: {error}"),
            }
        }
        let mut state = self.shared.lock();
        for (position, error) in &refused {
            let Some(next) = of_position(*position) else { continue };
            self.shared.losses.refused.fetch_add(1, Ordering::Relaxed);
            state.log.send_gap(Gap::of(&next.message, None, &format!("refused by the destination: {error}")));
        }
        // Stores the gap records with the cursor, so that a killed process loses none.
        state.log.acknowledge(n_new as usize);
        state.delivered += n_new - refused.len() as u64;
        if state.log.n_waiting() == 0 {
            (state.is_dropping, state.reports_waiting) = (false, false);
        }
        drop(state);
        self.shared.progress.notify_all();
        if n_new > refused.len() as u64 {
            self.end_outage();
        }
        for (_, error) in refused {
            self.shared.report(Event::Lost { failure: &Failure::retryable(error), n_messages: 1 });
        }
    }

    fn end_outage(&self) {
        let was_down = {
            let mut state = self.shared.lock();
            state.is_refused = false;
            std::mem::take(&mut state.is_down)
        };
        if was_down {
            self.shared.report(Event::Up);
        }
    }
}

/// Appends a refused message to the file of refused messages, with the reason.
fn keep_refused(file: &mut RotatingFile, message: &Message, error: &io::Error) {
    let (id, reason) = (message.id(), error.to_string());
    let time = humantime::format_rfc3339_millis(SystemTime::now()).to_string();
    let text = |text: &str| serde_json::Value::from(text).to_string();
    let result = String::from_utf8_lossy(&message.payload);
    // The message stays as it is if it is JSON.
    let result = if serde_json::from_str::<serde::de::IgnoredAny>(&result).is_ok() { result.into_owned() } else { text(&result) };
    let (id, time, reason) = (text(&id), text(&time), text(&reason));
    let line = format!("{{\"message_id\":{id},\"time\":{time},\"reason\":{reason},\"result\":{result}}}");
    let line = Message { payload: line.into_bytes(), ..Message::default() };
    let kept = file.connect(&Deadline::default()).and_then(|()| file.publish(&line)).and_then(|()| file.flush());
    if let Err(failure) = kept {
        tracing::warn!("a refused message cannot be kept in {}: {}", REFUSED.0, failure.error());
    }
}
