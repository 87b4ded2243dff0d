//! Spans and logs on their way to the collector: a bounded queue, and the thread that sends them.
//!
//! Threads that end spans or write logs never wait. What does not fit into the queue, or cannot be sent, is counted as lost.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures::executor::block_on;
use opentelemetry::trace::Status;
use opentelemetry::{Context, InstrumentationScope, Value};
use opentelemetry_otlp::{LogExporter, SpanExporter};
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::logs::{LogBatch, LogExporter as _, LogProcessor, SdkLogRecord};
use opentelemetry_sdk::trace::{Span, SpanData, SpanExporter as _, SpanProcessor};
use roiflow_server::telemetry::Counts;

use super::client::Client;
use crate::cli::terminal::Terminal;
use crate::redaction;

/// Number of spans, and of logs, that may wait.
const MAX_WAITING: usize = 2048;
/// Maximum number of spans, or of logs, of one request to the collector.
const MAX_BATCH: usize = 512;
/// Longest time that a span or a log waits for others.
const INTERVAL: Duration = Duration::from_secs(1);

/// See the module. Clones share the queue.
#[derive(Debug, Clone)]
pub(super) struct Queue(Arc<Inner>);

struct Inner {
    state: Mutex<State>,
    /// Notified when a batch is full, at the end, and after the end.
    changed: Condvar,
    counts: Arc<Counts>,
    terminal: Terminal,
}

#[derive(Default)]
struct State {
    spans: Vec<SpanData>,
    logs: Vec<(SdkLogRecord, InstrumentationScope)>,
    is_ending: bool,
    has_ended: bool,
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Queue").finish_non_exhaustive()
    }
}

/// What sends spans and logs to their collectors; `None`: this kind is not sent.
pub(super) struct Exporters {
    pub(super) spans: Option<(SpanExporter, Collector)>,
    pub(super) logs: Option<(LogExporter, Collector)>,
}

/// The collector of spans, or that of logs. A collector may accept one kind and refuse the other.
pub(super) struct Collector {
    /// What the collector gets: `spans` or `logs`.
    items: &'static str,
    /// Address of the collector, without credentials.
    shown: String,
    client: Client,
    /// Whether the last request failed.
    is_away: bool,
}

impl Collector {
    /// `items`: what the collector gets, `spans` or `logs`. `address`: address of the collector. `client`: sends nothing else.
    pub(super) fn new(items: &'static str, address: &str, client: Client) -> Self {
        Self { items, shown: redaction::redact(address).into_owned(), client, is_away: false }
    }

    /// Writes a message when the collector goes away or comes back. Returns whether the request was successful.
    fn note(&mut self, sent: OTelSdkResult, terminal: &Terminal) -> bool {
        let Self { items, shown, client, is_away } = self;
        match (&sent, std::mem::replace(is_away, sent.is_err())) {
            (Err(error), false) => {
                let reason = client.reason();
                let reason = if reason.is_empty() { error.to_string() } else { reason };
                terminal.warn(format_args!(
                    "send {items} failed: expected that the collector {shown} accepts {items}, got {reason}. Streams run on; {items} are lost until the \
                     collector accepts them"
                ));
            }
            (Ok(()), true) => terminal.print(format_args!("the collector {shown} accepts {items} again")),
            _ => {}
        }
        sent.is_ok()
    }
}

impl Queue {
    /// Creates an empty queue. `terminal` knows the credentials that are hidden.
    pub(super) fn new(terminal: &Terminal) -> Self {
        Self(Arc::new(Inner { state: Mutex::default(), changed: Condvar::new(), counts: Arc::default(), terminal: terminal.clone() }))
    }

    /// Starts the thread that sends.
    pub(super) fn start(&self, mut exporters: Exporters) -> std::io::Result<()> {
        let queue = self.clone();
        std::thread::Builder::new().name("roiflow-otlp".to_owned()).spawn(move || queue.send(&mut exporters)).map(drop)
    }

    /// Numbers of sent and lost items.
    pub(super) fn counts(&self) -> Arc<Counts> {
        self.0.counts.clone()
    }

    /// Sends what waits, for at most this time.
    pub(super) fn end(&self, limit: Duration) {
        let mut state = self.lock();
        state.is_ending = true;
        self.0.changed.notify_all();
        let _ended = self.0.changed.wait_timeout_while(state, limit, |state| !state.has_ended);
    }

    /// Returns a text without the credentials that are known, and without those of addresses in it.
    pub(super) fn scrub(&self, text: &str) -> String {
        redaction::redact_words(&self.0.terminal.scrub(text))
    }

    fn add<T>(&self, item: T, list: impl Fn(&mut State) -> &mut Vec<T>, lost: impl Fn(&Counts) -> &AtomicU64) {
        let mut state = self.lock();
        let waiting = list(&mut state);
        if waiting.len() >= MAX_WAITING {
            lost(&self.0.counts).fetch_add(1, Ordering::Relaxed);
            return;
        }
        waiting.push(item);
        if waiting.len() == MAX_BATCH {
            self.0.changed.notify_all();
        }
    }

    fn send(&self, exporters: &mut Exporters) {
        loop {
            let due = Instant::now() + INTERVAL;
            let mut state = self.lock();
            while !state.is_ending && state.spans.len() < MAX_BATCH && state.logs.len() < MAX_BATCH {
                let left = due.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    break;
                }
                state = self.0.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
            }
            let is_last = state.is_ending;
            let first = |len: usize| len.min(MAX_BATCH);
            let n_spans = first(state.spans.len());
            let spans: Vec<SpanData> = state.spans.drain(..n_spans).collect();
            let n_logs = first(state.logs.len());
            let logs: Vec<_> = state.logs.drain(..n_logs).collect();
            if is_last && spans.is_empty() && logs.is_empty() {
                state.has_ended = true;
                self.0.changed.notify_all();
                return;
            }
            drop(state);
            let (counts, terminal) = (&self.0.counts, &self.0.terminal);
            if let (Some((exporter, collector)), false) = (&mut exporters.spans, spans.is_empty()) {
                let n_spans = spans.len() as u64;
                let spans = spans.into_iter().map(|span| self.scrubbed(span)).collect();
                let is_sent = collector.note(block_on(exporter.export(spans)), terminal);
                let counter = if is_sent { &counts.spans_sent } else { &counts.spans_lost };
                counter.fetch_add(n_spans, Ordering::Relaxed);
            }
            if let (Some((exporter, collector)), false) = (&mut exporters.logs, logs.is_empty()) {
                let batch: Vec<_> = logs.iter().map(|(record, scope)| (record, scope)).collect();
                let is_sent = collector.note(block_on(exporter.export(LogBatch::new(&batch))), terminal);
                let counter = if is_sent { &counts.logs_sent } else { &counts.logs_lost };
                counter.fetch_add(logs.len() as u64, Ordering::Relaxed);
            }
        }
    }

    /// Returns a span without credentials.
    fn scrubbed(&self, mut span: SpanData) -> SpanData {
        span.name = self.scrub(&span.name).into();
        for attribute in &mut span.attributes {
            if let Value::String(text) = &attribute.value {
                attribute.value = self.scrub(text.as_str()).into();
            }
        }
        if let Status::Error { description } = &span.status {
            span.status = Status::error(self.scrub(description));
        }
        span
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Texts of spans are scrubbed by the thread that sends them, so that the thread of a request does not wait for it.
impl SpanProcessor for Queue {
    fn on_start(&self, _: &mut Span, _: &Context) {}

    fn on_end(&self, span: SpanData) {
        self.add(span, |state| &mut state.spans, |counts| &counts.spans_lost);
    }

    fn force_flush(&self) -> OTelSdkResult {
        Ok(())
    }

    fn shutdown_with_timeout(&self, _: Duration) -> OTelSdkResult {
        Ok(())
    }
}

/// Texts of logs are scrubbed by the layer that creates them, because a record cannot be changed.
impl LogProcessor for Queue {
    fn emit(&self, record: &mut SdkLogRecord, scope: &InstrumentationScope) {
        self.add((record.clone(), scope.clone()), |state| &mut state.logs, |counts| &counts.logs_lost);
    }

    fn force_flush(&self) -> OTelSdkResult {
        Ok(())
    }

    fn shutdown_with_timeout(&self, _: Duration) -> OTelSdkResult {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_are_hidden_in_any_text() {
        let terminal = Terminal::new();
        terminal.hide(redaction::Secrets::of("rtsp://admin:secret77x@camera/live"));
        let queue = Queue::new(&terminal);
        assert_eq!(queue.scrub("the camera refused `secret77x`"), "the camera refused `***`");
        let text = queue.scrub("cannot load `grpc://user:other88y@server:8001/model`, see grpc://server/x");
        assert!(!text.contains("other88y") && text.contains("server:8001/model`, see grpc://server/x"), "{text}");
        let text = queue.scrub("cannot load grpc://user:ot,her88y@server:8001/model, see grpc://server/x");
        assert!(!text.contains("her88y") && text.contains("server:8001/model, see grpc://server/x"), "{text}");
        assert_eq!(queue.scrub("person: 7 at GET /api/streams/{name}"), "person: 7 at GET /api/streams/{name}");
    }

    #[test]
    fn full_queue_counts_what_it_loses() {
        use opentelemetry::logs::{Logger as _, LoggerProvider as _};
        let queue = Queue::new(&Terminal::new());
        let loggers = opentelemetry_sdk::logs::SdkLoggerProvider::builder().with_log_processor(queue.clone()).build();
        let logger = loggers.logger("test");
        // No thread sends.
        (0..MAX_WAITING + 5).for_each(|_| logger.emit(logger.create_log_record()));
        assert_eq!((queue.counts().logs_lost.load(Ordering::Relaxed), queue.lock().logs.len()), (5, MAX_WAITING));
    }
}
