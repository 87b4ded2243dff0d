//! The bounded queue before a destination, and its worker thread.
//!
//! A message is queued, then in flight (passed to the destination, not acknowledged), then acknowledged or lost. The limits of the queue
//! count queued and in-flight messages. The worker passes queued messages to the destination [`Options::linger`] after the oldest one
//! arrived, or earlier if a batch is full or a flush is requested. The very first message is passed immediately.
//!
//! One lock protects the state. The lock is not held while the destination is called or a loss is reported.

use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::{Deadline, Destination, Failure, Message, Retry};

/// How long [`Publisher::close`] waits after its deadline for a system call to return.
const CLOSE_PATIENCE: Duration = Duration::from_secs(2);
/// After this number of attempts, a destination that refuses a message counts as one that does not answer.
pub(super) const REFUSALS_OF_OUTAGE: u32 = 2;
/// Interval of [`Destination::idle`].
pub(super) const IDLE_INTERVAL: Duration = Duration::from_secs(5);

/// Options of a publisher. The defaults are for files: nothing is dropped, and a failed write is not retried.
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    /// Maximum number of queued and in-flight messages; at least 1.
    pub max_messages: usize,
    /// Maximum number of bytes of queued and in-flight messages. A single message may be larger.
    pub max_bytes: usize,
    /// What to do when the queue is full.
    pub when_full: WhenFull,
    /// Retries after a temporary failure.
    pub retry: Retry,
    /// Maximum time that a message waits for a batch.
    pub linger: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            max_messages: 256,
            max_bytes: 1 << 20,
            when_full: WhenFull::default(),
            retry: Retry::default(),
            linger: Duration::from_millis(100),
        }
    }
}

/// What to do with a message when the queue is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum WhenFull {
    /// [`Publisher::publish`] blocks until the queue has space.
    #[default]
    Wait,
    /// Drop the oldest queued message. If all messages are in flight, drop the new message.
    DropOldest,
    /// Drop the new message.
    DropNewest,
}

/// Counts of the messages by outcome. Queued and in-flight messages are not counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Messages that the destination has stored.
    pub acknowledged: u64,
    /// Bytes of these messages, without additions of the destination.
    pub bytes: u64,
    /// Messages that the destination did not accept.
    pub lost: u64,
    /// Messages that were dropped because the queue was full.
    pub dropped: u64,
    /// Number of attempts after a failure.
    pub retries: u64,
}

/// An event that a publisher or a spool reports.
#[derive(Debug)]
pub enum Event<'a> {
    /// A loss of messages, or a permanent failure.
    Lost {
        /// The reason.
        failure: &'a Failure,
        /// Number of messages lost by this failure.
        n_messages: u64,
    },
    /// The destination does not answer, or accepts nothing. Attempts continue. Reported once for each outage.
    Down(&'a Failure),
    /// The destination has acknowledged messages after an outage.
    Up,
    /// The spool drops messages, because it or the disk is full. Reported once; reported again only after all messages were delivered.
    Dropping(&'a str),
    /// The spool keeps messages in memory, because its disk is full or its folder is missing. Reported once until it can be written again.
    InMemory(&'a str),
}

/// Why [`Publisher::publish`] did not accept a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refused {
    /// [`Publisher::interrupt`] was called while the caller waited for space. The message is not counted.
    Interrupted,
    /// The destination failed permanently. The message counts as lost.
    Failed,
    /// The publisher is closed. The message counts as lost.
    Closed,
}

/// A message queue with a worker thread for one destination. Dropping the publisher closes it without waiting for a reader.
pub struct Publisher {
    shared: Arc<Shared>,
    worker: Mutex<Option<JoinHandle<()>>>,
}

struct Shared {
    options: Options,
    deadline: Deadline,
    state: Mutex<State>,
    /// Notified when the worker has work.
    work: Condvar,
    /// Notified when space is available, a flush is complete, or the phase changes.
    progress: Condvar,
}

#[derive(Default)]
struct State {
    phase: Phase,
    queue: VecDeque<Arc<Message>>,
    /// Arrival time of the oldest queued message.
    oldest_at: Option<Instant>,
    /// Number and bytes of queued and in-flight messages.
    n_held: usize,
    n_held_bytes: usize,
    counts: Counts,
    n_flushes_requested: u64,
    n_flushes_done: u64,
    /// Set by [`Publisher::interrupt`]: calls return instead of blocking.
    is_interrupted: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Phase {
    /// Nothing was requested yet: no message, no flush and no connection.
    #[default]
    Idle,
    /// Messages are passed to the destination.
    Running,
    /// The queue accepts no more messages; the remaining messages are passed.
    Closing,
    /// The destination failed permanently, and the worker ends.
    Failed,
    /// The publisher is closed, and the worker ends.
    Closed,
}

impl Publisher {
    /// Starts the worker. The destination is opened by the first message or flush. `on_event` is called on the worker thread.
    ///
    /// # Errors
    /// Returns an error if the thread cannot be started.
    pub fn start(
        destination: impl Destination,
        options: Options,
        deadline: Deadline,
        on_event: impl FnMut(Event<'_>) + Send + 'static,
    ) -> io::Result<Self> {
        let (state, work, progress) = Default::default();
        let shared = Arc::new(Shared { options, deadline, state, work, progress });
        let mut worker = Worker {
            shared: shared.clone(),
            destination: Box::new(destination),
            on_event: Box::new(on_event),
            is_down: false,
            is_connected: false,
            in_flight: VecDeque::new(),
            n_acknowledged: 0,
        };
        let body = move || {
            if catch_unwind(AssertUnwindSafe(|| worker.run())).is_err() {
                let error = io::Error::other("internal error: the destination panicked");
                worker.fail(&Failure::fatal(error));
            }
            worker.shared.end();
        };
        let worker = std::thread::Builder::new().name("roiflow-publish".to_owned()).spawn(body)?;
        Ok(Self { shared, worker: Mutex::new(Some(worker)) })
    }

    /// Queues a message. Applies [`Options::when_full`] if the queue is full.
    ///
    /// # Errors
    /// Returns an error if the message was not accepted. A drop because of a full queue is not an error.
    pub fn publish(&self, message: Message) -> Result<(), Refused> {
        let Options { max_messages, max_bytes, when_full, .. } = self.shared.options;
        let mut state = self.shared.lock();
        loop {
            if let Some(refused) = state.refusal() {
                state.counts.lost += 1;
                return Err(refused);
            }
            let has_space = state.n_held < max_messages && state.n_held_bytes + message.payload.len() <= max_bytes;
            if has_space || state.n_held == 0 {
                break;
            }
            match when_full {
                WhenFull::Wait if state.is_interrupted => return Err(Refused::Interrupted),
                WhenFull::Wait => state = self.shared.wait_for_progress(state),
                WhenFull::DropOldest | WhenFull::DropNewest => {
                    state.counts.dropped += 1;
                    if when_full == WhenFull::DropNewest {
                        return Ok(());
                    }
                    let Some(oldest) = state.queue.pop_front() else { return Ok(()) };
                    state.release(&oldest);
                }
            }
        }
        state.n_held += 1;
        state.n_held_bytes += message.payload.len();
        state.queue.push_back(Arc::new(message));
        // Notify at the start of a batch and when it is full.
        let is_first = state.oldest_at.is_none();
        state.oldest_at.get_or_insert_with(Instant::now);
        if is_first || self.shared.is_batch_full(&state) {
            self.shared.work.notify_one();
        }
        Ok(())
    }

    /// Connects to the destination before the first message. Does not block.
    pub fn connect(&self) {
        self.shared.request_flush(&mut self.shared.lock());
    }

    /// Connects and blocks until all published messages are acknowledged, lost or dropped. Returns early if
    /// [`Publisher::interrupt`] is called.
    pub fn flush(&self) {
        let mut state = self.shared.lock();
        let flush = self.shared.request_flush(&mut state);
        while state.n_flushes_done < flush && !state.is_interrupted && state.refusal().is_none() {
            state = self.shared.wait_for_progress(state);
        }
    }

    /// Like [`Publisher::flush`], but blocks at most until `end`. Returns true if no message is queued or in flight.
    pub fn flush_until(&self, end: Instant) -> bool {
        let mut state = self.shared.lock();
        let flush = self.shared.request_flush(&mut state);
        while state.n_flushes_done < flush && !state.is_interrupted && state.refusal().is_none() {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            state = self.shared.progress.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        state.n_held == 0
    }

    /// Wakes up waiting callers. No call blocks until [`Publisher::resume`].
    pub fn interrupt(&self) {
        self.shared.lock().is_interrupted = true;
        self.shared.progress.notify_all();
    }

    /// Allows calls to block again.
    pub fn resume(&self) {
        self.shared.lock().is_interrupted = false;
    }

    /// Outcome of the messages so far.
    pub fn counts(&self) -> Counts {
        self.shared.lock().counts
    }

    /// Number of messages that are queued or in flight.
    pub fn n_waiting(&self) -> usize {
        self.shared.lock().n_held
    }

    /// Passes the queued messages until `deadline` and ends the worker. Unacknowledged messages count as lost. Later calls only return the
    /// counts.
    pub fn close(&self, deadline: Instant) -> Counts {
        self.shared.deadline.set(deadline);
        let mut state = self.shared.lock();
        if matches!(state.phase, Phase::Idle | Phase::Running) {
            state.phase = Phase::Closing;
        }
        self.shared.work.notify_one();
        self.shared.progress.notify_all();
        let end = deadline.max(Instant::now()) + CLOSE_PATIENCE;
        while state.phase == Phase::Closing {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                tracing::warn!("closing a destination timed out: {} messages are lost", state.n_held);
                let lost = state.n_held as u64;
                return Counts { lost: state.counts.lost + lost, ..state.counts };
            }
            state = self.shared.progress.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        let counts = state.counts;
        drop(state);
        let worker = self.worker.lock().unwrap_or_else(PoisonError::into_inner).take();
        // The worker has nothing left to do. If the worker thread itself drops the publisher, it must not join itself.
        if let Some(worker) = worker.filter(|worker| worker.thread().id() != std::thread::current().id()) {
            let _ended = worker.join();
        }
        counts
    }
}

impl Drop for Publisher {
    fn drop(&mut self) {
        self.close(Instant::now());
    }
}

impl std::fmt::Debug for Publisher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let state = self.shared.lock();
        f.debug_struct("Publisher").field("phase", &state.phase).field("held", &state.n_held).field("counts", &state.counts).finish()
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait_for_progress<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.progress.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    fn request_flush(&self, state: &mut State) -> u64 {
        state.n_flushes_requested += 1;
        self.work.notify_one();
        state.n_flushes_requested
    }

    /// Whether a batch is full: half of the queue's limits is used. A longer wait could fill the queue before the destination gets a
    /// message.
    fn is_batch_full(&self, state: &State) -> bool {
        2 * state.n_held >= self.options.max_messages || 2 * state.n_held_bytes >= self.options.max_bytes
    }

    /// Waits for work. Returns the queued messages and the number of the last requested flush, or `None` when the publisher is closed. If
    /// `is_connected`, returns without messages after [`IDLE_INTERVAL`].
    fn next_batch(&self, is_connected: bool) -> Option<(VecDeque<Arc<Message>>, u64)> {
        let mut state = self.lock();
        loop {
            let is_idle = state.queue.is_empty() && state.n_flushes_requested == state.n_flushes_done;
            if is_idle && state.phase == Phase::Closing {
                return None;
            }
            let is_due = state.n_flushes_requested > state.n_flushes_done || state.phase != Phase::Running || self.is_batch_full(&state);
            let linger = state.oldest_at.map(|at| self.options.linger.saturating_sub(at.elapsed()));
            if !is_idle && (is_due || linger.is_none_or(|linger| linger.is_zero())) {
                if state.phase == Phase::Idle && !state.queue.is_empty() {
                    state.phase = Phase::Running;
                }
                state.oldest_at = None;
                return Some((std::mem::take(&mut state.queue), state.n_flushes_requested));
            }
            state = match linger.or(is_connected.then_some(IDLE_INTERVAL)) {
                Some(longest) => {
                    let (state, waited) = self.work.wait_timeout(state, longest).unwrap_or_else(PoisonError::into_inner);
                    if linger.is_none() && waited.timed_out() {
                        return Some((VecDeque::new(), state.n_flushes_done));
                    }
                    state
                }
                None => self.work.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }

    fn end(&self) {
        let mut state = self.lock();
        if state.phase != Phase::Failed {
            state.phase = Phase::Closed;
        }
        self.progress.notify_all();
    }
}

impl State {
    fn refusal(&self) -> Option<Refused> {
        match self.phase {
            Phase::Idle | Phase::Running => None,
            Phase::Failed => Some(Refused::Failed),
            Phase::Closing | Phase::Closed => Some(Refused::Closed),
        }
    }

    fn release(&mut self, message: &Message) {
        self.n_held -= 1;
        self.n_held_bytes -= message.payload.len();
    }

    fn lose(&mut self, messages: &VecDeque<Arc<Message>>) {
        messages.iter().for_each(|message| self.release(message));
        self.counts.lost += messages.len() as u64;
    }

    /// Counts all messages as lost.
    fn fail(&mut self) {
        self.phase = Phase::Failed;
        self.queue.clear();
        self.n_held_bytes = 0;
        self.counts.lost += std::mem::take(&mut self.n_held) as u64;
    }
}

/// State of the worker thread.
struct Worker {
    shared: Arc<Shared>,
    destination: Box<dyn Destination>,
    on_event: Box<dyn FnMut(Event<'_>) + Send>,
    is_connected: bool,
    /// Whether an outage has been reported that has not ended.
    is_down: bool,
    /// Messages that were passed and are not acknowledged.
    in_flight: VecDeque<Arc<Message>>,
    /// The value of [`Destination::acknowledged`] at the last check.
    n_acknowledged: u64,
}

impl Worker {
    fn run(&mut self) {
        while let Some((mut batch, n_flushes)) = self.shared.next_batch(self.is_connected) {
            if batch.is_empty() && self.is_connected && n_flushes == self.shared.lock().n_flushes_done {
                if self.destination.idle().is_ok() {
                    self.settle();
                    continue;
                }
                // Connect again, and pass the unacknowledged messages again.
                self.is_connected = false;
                batch = self.uncommitted();
            }
            if self.send(batch).is_err() {
                return;
            }
            self.shared.lock().n_flushes_done = n_flushes;
            self.shared.progress.notify_all();
        }
        // Make a last attempt to complete a committed message.
        if self.is_connected || !self.in_flight.is_empty() {
            let closed = self.attempt(&mut VecDeque::new()).and_then(|()| self.destination.close());
            self.settle();
            let failure = closed.err().unwrap_or_else(|| Failure::retryable(io::Error::other("the server did not acknowledge it")));
            let rest = std::mem::take(&mut self.in_flight);
            self.give_up(&failure, &rest);
        }
    }

    /// Sends messages, with retries, until each is acknowledged or lost. Fails if the destination fails permanently.
    fn send(&mut self, mut messages: VecDeque<Arc<Message>>) -> Result<(), ()> {
        let retry = self.shared.options.retry;
        let mut n_attempts = 0;
        loop {
            let before = self.n_acknowledged;
            let attempt = self.attempt(&mut messages);
            self.settle();
            let Err(failure) = attempt else {
                if std::mem::take(&mut self.is_down) {
                    (self.on_event)(Event::Up);
                }
                return Ok(());
            };
            self.is_connected = false;
            let mut returned = self.uncommitted();
            returned.append(&mut messages);
            messages = returned;
            if failure.is_fatal() {
                self.fail(&failure);
                return Err(());
            }
            n_attempts = if self.n_acknowledged > before { 1 } else { n_attempts + 1 };
            let is_last = n_attempts >= retry.max_attempts;
            let is_outage = !failure.is_refused() || n_attempts >= REFUSALS_OF_OUTAGE;
            if !is_last && is_outage && !std::mem::replace(&mut self.is_down, true) {
                (self.on_event)(Event::Down(&failure));
            }
            if is_last || self.shared.deadline.sleep(retry.pause(n_attempts)).is_err() {
                self.give_up(&failure, &messages);
                return Ok(());
            }
            self.shared.lock().counts.retries += 1;
        }
    }

    /// Removes and returns the in-flight messages that the destination has discarded.
    fn uncommitted(&mut self) -> VecDeque<Arc<Message>> {
        let n_committed = self.destination.committed().saturating_sub(self.n_acknowledged) as usize;
        self.in_flight.split_off(n_committed.min(self.in_flight.len()))
    }

    fn attempt(&mut self, messages: &mut VecDeque<Arc<Message>>) -> Result<(), Failure> {
        if !self.is_connected {
            self.destination.connect(&self.shared.deadline)?;
            self.is_connected = true;
        }
        while let Some(message) = messages.pop_front() {
            self.in_flight.push_back(message.clone());
            self.destination.publish(&message)?;
            self.settle();
        }
        self.destination.flush()
    }

    /// Processes new acknowledgments of the destination.
    fn settle(&mut self) {
        let n_acknowledged = self.destination.acknowledged();
        let n_new = n_acknowledged.saturating_sub(self.n_acknowledged) as usize;
        self.n_acknowledged = n_acknowledged;
        if n_new == 0 {
            return;
        }
        let refused = self.destination.take_refused();
        let mut state = self.shared.lock();
        for (position, message) in (n_acknowledged - n_new as u64..).zip(self.in_flight.drain(..n_new.min(self.in_flight.len()))) {
            state.release(&message);
            if refused.iter().any(|(refused, _)| *refused == position) {
                state.counts.lost += 1;
                continue;
            }
            state.counts.acknowledged += 1;
            state.counts.bytes += message.payload.len() as u64;
        }
        drop(state);
        self.shared.progress.notify_all();
        for (_, error) in refused {
            (self.on_event)(Event::Lost { failure: &Failure::retryable(error), n_messages: 1 });
        }
    }

    /// Counts messages as lost and reports the loss.
    fn give_up(&mut self, failure: &Failure, messages: &VecDeque<Arc<Message>>) {
        if messages.is_empty() {
            return;
        }
        self.shared.lock().lose(messages);
        (self.on_event)(Event::Lost { failure, n_messages: messages.len() as u64 });
        self.shared.progress.notify_all();
    }

    /// Handles a permanent failure of the destination: all messages are lost.
    fn fail(&mut self, failure: &Failure) {
        // Report the failure before callers can see it. A caller that sees the failure may report an error too, and this report must come
        // second.
        let n_messages = self.shared.lock().n_held as u64;
        (self.on_event)(Event::Lost { failure, n_messages });
        self.shared.lock().fail();
        self.shared.progress.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;
    use std::sync::mpsc::{Receiver, Sender, channel};

    use super::*;

    /// Time after which a test is considered hanging.
    const LIMIT: Duration = Duration::from_secs(60);

    /// The outcome of a call of the test destination. The call waits until the test sends it.
    enum Answer {
        Accept,
        /// Accept without acknowledgment.
        Keep,
        /// Like [`Answer::Keep`], but the message cannot be undone.
        Commit,
        Fail,
        FailForGood,
        Panic,
    }

    /// A destination whose calls wait for answers of the test.
    struct Scripted {
        calls: Sender<String>,
        answers: Receiver<Answer>,
        n_acknowledged: u64,
        n_committed: u64,
        n_handed_over: u64,
    }

    impl Scripted {
        fn call(&mut self, call: String) -> Result<(), Failure> {
            self.calls.send(call).map_err(|_| Failure::fatal(ErrorKind::Other.into()))?;
            let failed = || io::Error::other("on purpose");
            match self.answers.recv_timeout(LIMIT) {
                Ok(Answer::Accept) => self.n_acknowledged = self.n_handed_over,
                Ok(Answer::Keep) => {}
                Ok(Answer::Commit) => self.n_committed = self.n_handed_over,
                Ok(Answer::Panic) => panic!("on purpose"),
                answer => {
                    self.n_committed = self.committed();
                    self.n_handed_over = self.n_committed;
                    let is_fatal = !matches!(answer, Ok(Answer::Fail));
                    return Err(if is_fatal { Failure::fatal(failed()) } else { Failure::retryable(failed()) });
                }
            }
            Ok(())
        }
    }

    impl Destination for Scripted {
        fn connect(&mut self, _deadline: &Deadline) -> Result<(), Failure> {
            self.call("connect".to_owned())
        }

        fn publish(&mut self, message: &Message) -> Result<(), Failure> {
            self.n_handed_over += 1;
            self.call(String::from_utf8(message.payload.clone()).unwrap())
        }

        fn flush(&mut self) -> Result<(), Failure> {
            self.call("flush".to_owned())
        }

        fn acknowledged(&self) -> u64 {
            self.n_acknowledged
        }

        fn committed(&self) -> u64 {
            self.n_committed.max(self.n_acknowledged)
        }

        fn close(&mut self) -> Result<(), Failure> {
            self.call("close".to_owned())
        }
    }

    /// A publisher, the calls of its destination, and their answers.
    struct Rig {
        publisher: Arc<Publisher>,
        calls: Receiver<String>,
        answers: Sender<Answer>,
        losses: Receiver<u64>,
    }

    impl Rig {
        fn new(options: Options) -> Self {
            let ((calls, of_test), (answers, of_destination), (lost, losses)) = (channel(), channel(), channel());
            let destination = Scripted { calls, answers: of_destination, n_acknowledged: 0, n_committed: 0, n_handed_over: 0 };
            let on_event = move |event: Event<'_>| {
                if let Event::Lost { n_messages, .. } = event {
                    // Some tests ignore losses.
                    let _sent = lost.send(n_messages);
                }
            };
            let publisher = Publisher::start(destination, options, Deadline::default(), on_event).unwrap();
            Self { publisher: Arc::new(publisher), calls: of_test, answers, losses }
        }

        /// Expects these calls and answers them.
        fn expect<const N: usize>(&self, calls: [(&str, Answer); N]) {
            for (call, answer) in calls {
                assert_eq!(self.calls.recv_timeout(LIMIT).unwrap(), call);
                self.answers.send(answer).unwrap();
            }
        }

        fn publish(&self, text: &str) -> Result<(), Refused> {
            self.publisher.publish(message(text))
        }

        /// Calls `act` on another thread.
        fn spawn<T: Send + 'static>(&self, act: impl FnOnce(&Publisher) -> T + Send + 'static) -> JoinHandle<T> {
            let publisher = self.publisher.clone();
            std::thread::spawn(move || act(&publisher))
        }

        /// Accepts the calls at the end of the stream.
        fn close(self) -> Counts {
            let closing = self.spawn(|publisher| publisher.close(Instant::now() + LIMIT));
            self.expect([("flush", Answer::Accept), ("close", Answer::Accept)]);
            closing.join().unwrap()
        }
    }

    impl Rig {
        /// Closes the publisher and accepts all calls.
        fn accept_all(self) -> Counts {
            let closing = self.spawn(|publisher| publisher.close(Instant::now() + LIMIT));
            while !closing.is_finished() {
                if self.calls.recv_timeout(Duration::from_millis(1)).is_ok() {
                    self.answers.send(Answer::Accept).unwrap();
                }
            }
            closing.join().unwrap()
        }
    }

    fn message(text: &str) -> Message {
        Message { payload: text.into(), ..Message::default() }
    }

    /// Options for which the worker passes messages only in full batches or for a flush. The first message is passed immediately.
    fn patient() -> Options {
        Options { max_messages: 4, linger: LIMIT, ..Options::default() }
    }

    #[test]
    fn first_message_does_not_wait_for_a_batch() {
        let rig = Rig::new(patient());
        rig.publisher.connect();
        rig.expect([("connect", Answer::Accept), ("flush", Answer::Accept)]);
        rig.publish("a").unwrap();
        rig.expect([("a", Answer::Accept), ("flush", Answer::Accept)]);
        rig.publish("b").unwrap();
        rig.publish("c").unwrap();
        rig.expect([("b", Answer::Keep), ("c", Answer::Keep), ("flush", Answer::Accept)]);
        rig.publish("d").unwrap();
        let flush = rig.spawn(Publisher::flush);
        rig.expect([("d", Answer::Keep), ("flush", Answer::Accept)]);
        flush.join().unwrap();
        assert_eq!(rig.close(), Counts { acknowledged: 4, bytes: 4, ..Counts::default() });
    }

    #[test]
    fn message_waits_at_most_the_linger_time() {
        let rig = Rig::new(Options { linger: Duration::from_millis(1), ..Options::default() });
        for text in ["a", "b"] {
            rig.publish(text).unwrap();
            if text == "a" {
                rig.expect([("connect", Answer::Accept)]);
            }
            rig.expect([(text, Answer::Keep), ("flush", Answer::Accept)]);
        }
        assert_eq!(rig.close().acknowledged, 2);
    }

    #[test]
    fn full_queue_blocks_until_an_acknowledgment() {
        let rig = Rig::new(Options { max_messages: 2, ..patient() });
        rig.publish("a").unwrap();
        assert_eq!(rig.calls.recv_timeout(LIMIT).unwrap(), "connect");
        rig.publish("b").unwrap();
        let waiting = rig.spawn(|publisher| publisher.publish(message("c")));
        rig.answers.send(Answer::Accept).unwrap();
        rig.expect([("a", Answer::Keep)]);
        assert!(!waiting.is_finished(), "messages in flight count toward the limit");
        rig.expect([("flush", Answer::Accept), ("b", Answer::Accept)]);
        assert_eq!(waiting.join().unwrap(), Ok(()));
        assert_eq!(rig.accept_all().acknowledged, 3);
    }

    #[test]
    fn bytes_are_bounded_and_a_large_message_passes_alone() {
        let rig = Rig::new(Options { max_bytes: 4, when_full: WhenFull::DropNewest, ..patient() });
        rig.publish("longer than all").unwrap();
        rig.publish("a").unwrap();
        rig.expect([("connect", Answer::Accept), ("longer than all", Answer::Accept), ("flush", Answer::Accept)]);
        assert_eq!(rig.close(), Counts { acknowledged: 1, bytes: 15, dropped: 1, ..Counts::default() });
    }

    #[test]
    fn interrupt_wakes_a_blocked_publish() {
        let rig = Rig::new(Options { max_messages: 1, ..patient() });
        rig.publish("a").unwrap();
        let waiting = rig.spawn(|publisher| publisher.publish(message("b")));
        let flushing = rig.spawn(Publisher::flush);
        rig.publisher.interrupt();
        assert_eq!(waiting.join().unwrap(), Err(Refused::Interrupted));
        flushing.join().unwrap();
        rig.publisher.resume();
        assert_eq!(rig.accept_all(), Counts { acknowledged: 1, bytes: 1, ..Counts::default() });
    }

    #[test]
    fn full_queue_drops_the_oldest_or_the_newest() {
        for (when_full, kept) in [(WhenFull::DropOldest, ["c", "d"]), (WhenFull::DropNewest, ["b", "c"])] {
            let rig = Rig::new(Options { max_messages: 3, when_full, ..patient() });
            rig.publish("a").unwrap();
            // Once the worker connects, `a` is in flight and is not dropped.
            assert_eq!(rig.calls.recv_timeout(LIMIT).unwrap(), "connect");
            ["b", "c", "d"].iter().for_each(|text| rig.publish(text).unwrap());
            rig.answers.send(Answer::Accept).unwrap();
            rig.expect([("a", Answer::Accept), ("flush", Answer::Accept)]);
            rig.expect([(kept[0], Answer::Accept), (kept[1], Answer::Accept), ("flush", Answer::Accept)]);
            assert_eq!(rig.close(), Counts { acknowledged: 3, bytes: 3, dropped: 1, ..Counts::default() }, "{when_full:?}");
        }
    }

    #[test]
    fn messages_are_passed_again_in_order_after_a_failure() {
        let retry = Retry { max_attempts: 3, delay: Duration::ZERO, ..Retry::default() };
        let rig = Rig::new(Options { max_messages: 6, retry, ..patient() });
        rig.publish("first").unwrap();
        rig.expect([("connect", Answer::Accept), ("first", Answer::Accept), ("flush", Answer::Accept)]);
        ["a", "b", "c"].iter().for_each(|text| rig.publish(text).unwrap());
        // The first is acknowledged, the second is partly written, the third is discarded.
        rig.expect([("a", Answer::Accept), ("b", Answer::Commit), ("c", Answer::Fail), ("connect", Answer::Fail)]);
        rig.expect([("connect", Answer::Keep), ("c", Answer::Keep), ("flush", Answer::Accept)]);
        let counts = rig.close();
        assert_eq!(counts, Counts { acknowledged: 4, bytes: 8, retries: 2, ..Counts::default() });
    }

    #[test]
    fn messages_are_lost_after_the_last_attempt() {
        let rig = Rig::new(patient());
        rig.publish("a").unwrap();
        rig.expect([("connect", Answer::Accept), ("a", Answer::Fail)]);
        assert_eq!(rig.losses.recv_timeout(LIMIT), Ok(1));
        rig.publish("b").unwrap();
        rig.publish("c").unwrap();
        rig.expect([("connect", Answer::Keep), ("b", Answer::Keep), ("c", Answer::Keep), ("flush", Answer::Accept)]);
        assert_eq!(rig.close(), Counts { acknowledged: 2, bytes: 2, lost: 1, ..Counts::default() });
    }

    #[test]
    fn messages_are_rejected_after_a_fatal_failure() {
        for answer in [Answer::FailForGood, Answer::Panic] {
            let rig = Rig::new(Options { max_messages: 1, ..patient() });
            rig.publish("a").unwrap();
            let waiting = rig.spawn(|publisher| publisher.publish(message("b")));
            rig.expect([("connect", answer)]);
            assert_eq!(waiting.join().unwrap(), Err(Refused::Failed));
            assert_eq!(rig.losses.recv_timeout(LIMIT), Ok(1));
            rig.publisher.flush();
            assert_eq!(rig.publish("c"), Err(Refused::Failed));
            assert_eq!(rig.publisher.close(Instant::now()), Counts { lost: 3, ..Counts::default() });
        }
    }

    #[test]
    fn unacknowledged_messages_are_lost_on_close() {
        let rig = Rig::new(patient());
        rig.publish("a").unwrap();
        rig.expect([("connect", Answer::Keep), ("a", Answer::Keep), ("flush", Answer::Keep)]);
        let closing = rig.spawn(|publisher| publisher.close(Instant::now() + LIMIT));
        rig.expect([("flush", Answer::Keep), ("close", Answer::Fail)]);
        assert_eq!(closing.join().unwrap(), Counts { lost: 1, ..Counts::default() });
        assert_eq!((rig.losses.recv_timeout(LIMIT), rig.publish("b")), (Ok(1), Err(Refused::Closed)));
    }

    #[test]
    fn close_does_not_wait_for_a_hanging_call() {
        let rig = Rig::new(patient());
        rig.publish("a").unwrap();
        assert_eq!(rig.calls.recv_timeout(LIMIT).unwrap(), "connect");
        assert_eq!(rig.publisher.close(Instant::now()).lost, 1);
        rig.answers.send(Answer::FailForGood).unwrap();
    }
}
