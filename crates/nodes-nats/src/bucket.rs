//! Reads, writes and watches of the key-value bucket.
//!
//! The client's own functions for buckets cannot replace a value together with a new time-to-live, so writes set the headers themselves, as
//! the specification of buckets defines them: <https://github.com/nats-io/nats-architecture-and-design/blob/main/adr/ADR-8.md>.

use std::fmt::Display;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use async_nats::header::{NATS_EXPECTED_LAST_SUBJECT_SEQUENCE, NATS_MARKER_REASON, NATS_MESSAGE_TTL};
use async_nats::jetstream::consumer::{DeliverPolicy, ReplayPolicy, push::OrderedConfig};
use async_nats::jetstream::context::{CreateStreamErrorKind, GetStreamErrorKind, PublishErrorKind, RequestError, RequestErrorKind};
use async_nats::jetstream::stream::{Config, DiscardPolicy, LastRawMessageErrorKind, Stream};
use async_nats::jetstream::{self, ErrorCode, kv};
use async_nats::{Client, HeaderMap};
use bytes::Bytes;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use roiflow_nodes::coordinator::{Change, Error, Item, Reply, Request, Revision};

use crate::servers::Failure;
use crate::{Results, Storage};

/// Smallest size of the stream of results.
const LEAST_RESULT_BYTES: i64 = 64 << 20;

/// Header with the kind of a write that is not a new value, and its value for a deletion.
const OPERATION: &str = "KV-Operation";
const DELETE: &str = "DEL";
/// How long the record of a deletion stays in the bucket, for nodes that watch.
const MARKER_TTL: Duration = Duration::from_secs(600);
/// Largest value.
const MAX_VALUE: i32 = 256 << 10;
/// Smallest time between two comparisons of the clocks of this machine and the servers.
const CLOCK_CHECK: Duration = Duration::from_secs(600);
/// Clocks that differ by more than this are reported.
const MAX_CLOCK_DIFFERENCE: Duration = Duration::from_secs(5);

/// A write or read without an answer is sent again after this time.
const RESEND: Duration = Duration::from_millis(500);

/// The bucket. Clones share the connection.
#[derive(Clone)]
pub(crate) struct Bucket {
    context: jetstream::Context,
    stream: Arc<Stream<()>>,
    client: Client,
    /// Beginning of the subjects, before the keys.
    prefix: Arc<str>,
    /// When the clock of this machine was last compared with that of the servers.
    clock_checked: Arc<Mutex<Option<Instant>>>,
}

impl Bucket {
    /// Returns a bucket without looking it up.
    ///
    /// # Errors
    /// Returns an error if the name is not valid.
    pub(crate) async fn attach(client: &Client, name: &str) -> Result<Self, Failure> {
        let mut context = jetstream::new(client.clone());
        context.set_timeout(roiflow_nodes::coordinator::REQUEST_TIMEOUT);
        let failed = |error: &dyn Display| Failure { text: format!("open the key-value bucket `{name}` failed: {error}"), may_pass: false };
        let stream = context.get_stream_no_info(format!("KV_{name}")).await.map_err(|error| failed(&error))?;
        let prefix = format!("$KV.{name}.").into();
        Ok(Self { context, stream: Arc::new(stream), client: client.clone(), prefix, clock_checked: Arc::default() })
    }

    /// Checks the bucket, and creates it and the stream of the results if they are missing.
    ///
    /// # Errors
    /// Returns an error if the servers do not answer, JetStream is not enabled, or an existing bucket cannot end items after a time.
    pub(crate) async fn prepare(&self, storage: &Storage) -> Result<(), Failure> {
        let name = &storage.bucket;
        let failed = |reason: &dyn Display| format!("open the key-value bucket `{name}` failed: {reason}");
        let found = match look_up(&self.context, &format!("KV_{name}")).await {
            Err(Missing::Stream) => {
                let config = kv::Config {
                    bucket: name.clone(),
                    description: "Streams and nodes of roiflow".to_owned(),
                    max_value_size: MAX_VALUE,
                    history: 1,
                    num_replicas: storage.replicas,
                    limit_markers: Some(MARKER_TTL),
                    ..kv::Config::default()
                };
                let created = self.context.create_key_value(config).await;
                // Another node may have created it meanwhile.
                look_up(&self.context, &format!("KV_{name}")).await.map_err(|missing| (created.err(), missing))
            }
            found => found.map_err(|missing| (None, missing)),
        };
        let info = found.map_err(|(error, missing)| match (error, missing) {
            (error, Missing::Answer(reason)) => Failure { text: failed(&error.map_or(reason, |error| error.to_string())), may_pass: true },
            // Servers of a cluster may not have started yet.
            (Some(error), Missing::Stream) => Failure { text: failed(&error), may_pass: storage.replicas > 1 },
            (None, Missing::Stream) => Failure { text: failed(&"it was removed"), may_pass: true },
            (_, Missing::JetStream(reason)) => {
                let advice = "Check that the server runs with JetStream (`nats-server --jetstream`), and that the login may use it";
                Failure { text: failed(&format_args!("{reason}. {advice}")), may_pass: false }
            }
        })?;
        if !info.config.allow_message_ttl {
            let advice = "Remove the bucket, or name another one with --group";
            let text = failed(&format_args!("expected a bucket with a time-to-live of items, got one without. {advice}"));
            return Err(Failure { text, may_pass: false });
        }
        match &storage.results {
            Some(results) => create_results(&self.context, results, storage.replicas).await,
            None => Ok(()),
        }
    }

    /// Executes a request.
    pub(crate) async fn execute(&self, request: Request) -> Result<Reply, Error> {
        match request {
            Request::Read { key } => self.read(&key).await.map(|found| Reply::Read(found.and_then(Found::item))),
            Request::Update { key, revision, value, ttl } => self.write(&key, revision, value, ttl, false).await,
            Request::Delete { key, revision } => self.write(&key, revision, Vec::new(), Some(MARKER_TTL), true).await,
            Request::Create { key, value, ttl } => {
                match self.write(&key, Revision(0), value.clone(), ttl, false).await {
                    Err(Error::Conflict) => {}
                    other => return other,
                }
                // The key may have the record of a deletion, which the new value replaces.
                match self.read(&key).await? {
                    Some(Found { item, is_removed: true }) => self.write(&key, item.revision, value, ttl, false).await,
                    _ => Err(Error::Conflict),
                }
            }
            Request::Watch { .. } => Err(Error::Rejected("a watch is not a request with a reply".to_owned())),
        }
    }

    async fn read(&self, key: &str) -> Result<Option<Found>, Error> {
        repeated(|| self.read_once(key)).await.0
    }

    async fn read_once(&self, key: &str) -> Result<Option<Found>, Error> {
        // This request asks the server that leads the bucket, so the answer is never older than an earlier write.
        match self.stream.get_last_raw_message_by_subject(&format!("{}{key}", self.prefix)).await {
            Ok(message) => {
                let item = Item { key: key.to_owned(), revision: Revision(message.sequence), value: message.payload.to_vec() };
                Ok(Some(Found { item, is_removed: is_removal(Some(&message.headers)) }))
            }
            Err(error) => match error.kind() {
                LastRawMessageErrorKind::NoMessageFound => Ok(None),
                LastRawMessageErrorKind::InvalidSubject => Err(Error::Rejected(error.to_string())),
                LastRawMessageErrorKind::JetStream(ref reason) => Err(Error::Rejected(reason.to_string())),
                LastRawMessageErrorKind::Other => Err(Error::Unreachable(error.to_string())),
            },
        }
    }

    async fn write(&self, key: &str, expected: Revision, value: Vec<u8>, ttl: Option<Duration>, is_deletion: bool) -> Result<Reply, Error> {
        let mut headers = HeaderMap::new();
        headers.insert(NATS_EXPECTED_LAST_SUBJECT_SEQUENCE, expected.0.to_string());
        if let Some(ttl) = ttl {
            // The server counts whole seconds.
            headers.insert(NATS_MESSAGE_TTL, ttl.as_secs_f64().ceil().max(1.0).to_string());
        }
        if is_deletion {
            headers.insert(OPERATION, DELETE);
        }
        let (subject, value) = (format!("{}{key}", self.prefix), Bytes::from(value));
        let begin = SystemTime::now();
        let (written, is_only_copy) = repeated(|| self.write_once(&subject, &headers, &value)).await;
        match written {
            Ok(revision) => {
                if key.starts_with(roiflow_nodes::keys::NODES) {
                    self.check_clock(revision, begin);
                }
                Ok(Reply::Written(revision))
            }
            // An earlier copy of this write may have been executed.
            Err(Error::Conflict) if !is_only_copy => Err(Error::Unreachable("the answer to a write was lost".to_owned())),
            Err(error) => Err(error),
        }
    }

    /// Sends a write. A copy of it changes nothing if it was executed, because the key then has another revision than this write expects.
    async fn write_once(&self, subject: &str, headers: &HeaderMap, value: &Bytes) -> Result<Revision, Error> {
        let published = match self.context.publish_with_headers(subject.to_owned(), headers.clone(), value.clone()).await {
            Ok(acknowledged) => acknowledged.await,
            Err(error) => Err(error),
        };
        published.map(|acknowledged| Revision(acknowledged.sequence)).map_err(|error| match error.kind() {
            PublishErrorKind::WrongLastSequence => Error::Conflict,
            PublishErrorKind::TimedOut | PublishErrorKind::BrokenPipe | PublishErrorKind::StreamNotFound => {
                Error::Unreachable(error.to_string())
            }
            _ => Error::Rejected(error.to_string()),
        })
    }

    /// Compares the time at which a server has stored a write with the time of this machine, and warns if they differ. `begin` is the
    /// time before the write.
    fn check_clock(&self, revision: Revision, begin: SystemTime) {
        let end = SystemTime::now();
        let mut checked = self.clock_checked.lock().unwrap_or_else(PoisonError::into_inner);
        if checked.is_some_and(|at| at.elapsed() < CLOCK_CHECK) {
            return;
        }
        *checked = Some(Instant::now());
        let stream = self.stream.clone();
        tokio::spawn(async move {
            // A later write may have replaced it.
            let Ok(message) = stream.get_raw_message(revision.0).await else { return };
            let Ok(of_server) = u64::try_from(message.time.unix_timestamp()).map(|at| UNIX_EPOCH + Duration::from_secs(at)) else { return };
            if let Some(warning) = clock_warning(begin, end, of_server) {
                tracing::warn!("{warning}");
            }
        });
    }

    /// Reports items and their changes until the consumer fails. Returns why it failed.
    pub(crate) async fn watch(&self, prefix: &str, report: impl Fn(Change)) -> String {
        // Subjects are matched by whole parts, so other prefixes are compared here.
        let filter = if prefix.ends_with('.') { format!("{}{prefix}>", self.prefix) } else { format!("{}>", self.prefix) };
        let config = OrderedConfig {
            deliver_subject: self.client.new_inbox(),
            description: Some("watch of a roiflow node".to_owned()),
            filter_subject: filter,
            replay_policy: ReplayPolicy::Instant,
            deliver_policy: DeliverPolicy::LastPerSubject,
            ..OrderedConfig::default()
        };
        let consumer = match self.stream.create_consumer(config).await {
            Ok(consumer) => consumer,
            Err(error) => return error.to_string(),
        };
        let mut is_current = consumer.cached_info().num_pending == 0;
        let mut messages = match consumer.messages().await {
            Ok(messages) => messages,
            Err(error) => return error.to_string(),
        };
        report(Change::Begin);
        if is_current {
            report(Change::Current);
        }
        while let Some(message) = messages.next().await {
            let message = match message {
                Ok(message) => message,
                Err(error) => return error.to_string(),
            };
            let (sequence, n_pending) = match message.info() {
                Ok(info) => (info.stream_sequence, info.pending),
                Err(error) => return error.to_string(),
            };
            if let Some(key) = message.subject.strip_prefix(&*self.prefix).filter(|key| key.starts_with(prefix)) {
                let key = key.to_owned();
                if !is_removal(message.headers.as_ref()) {
                    report(Change::Put(Item { key, revision: Revision(sequence), value: message.payload.to_vec() }));
                } else if is_current {
                    report(Change::Removed { key });
                }
            }
            if !is_current && n_pending == 0 {
                is_current = true;
                report(Change::Current);
            }
        }
        "the server has ended it".to_owned()
    }
}

/// The newest message of a key.
struct Found {
    item: Item,
    /// Whether it is the record of a deletion, or of a time-to-live that is over.
    is_removed: bool,
}

impl Found {
    fn item(self) -> Option<Item> {
        (!self.is_removed).then_some(self.item)
    }
}

fn is_removal(headers: Option<&HeaderMap>) -> bool {
    headers.is_some_and(|headers| headers.get(OPERATION).is_some() || headers.get(NATS_MARKER_REASON).is_some())
}

/// Why a JetStream stream cannot be used.
enum Missing {
    /// The servers do not have it.
    Stream,
    /// The servers do not answer now: they elect a leader, or start.
    Answer(String),
    /// JetStream cannot be used.
    JetStream(String),
}

async fn look_up(context: &jetstream::Context, stream: &str) -> Result<jetstream::stream::Info, Missing> {
    match context.get_stream(stream).await {
        Ok(stream) => Ok(stream.cached_info().clone()),
        Err(error) => Err(match error.kind() {
            GetStreamErrorKind::JetStream(reason) if reason.error_code() == ErrorCode::STREAM_NOT_FOUND => Missing::Stream,
            GetStreamErrorKind::JetStream(reason) if reason.error_code() == ErrorCode::CLUSTER_NOT_AVAILABLE => {
                Missing::Answer(reason.to_string())
            }
            GetStreamErrorKind::JetStream(reason) => Missing::JetStream(reason.to_string()),
            GetStreamErrorKind::Request if is_without_jetstream(&error) => {
                Missing::JetStream("no server answers requests to JetStream".to_owned())
            }
            _ => Missing::Answer(error.to_string()),
        }),
    }
}

/// Whether a request failed because no server has JetStream.
fn is_without_jetstream(error: &dyn std::error::Error) -> bool {
    let cause = error.source().and_then(|source| source.downcast_ref::<RequestError>());
    cause.is_some_and(|cause| cause.kind() == RequestErrorKind::NoResponders)
}

/// Starts an operation again and again until a copy of it succeeds, or fails for another reason than a missing answer. The copies together must
/// have the effect of one. Returns that result, and whether there was only one copy.
async fn repeated<T, F: Future<Output = Result<T, Error>>>(operation: impl Fn() -> F) -> (Result<T, Error>, bool) {
    let (mut copies, mut n_copies) = (FuturesUnordered::new(), 0_usize);
    loop {
        copies.push(operation());
        n_copies += 1;
        let pause = tokio::time::sleep(RESEND);
        tokio::pin!(pause);
        loop {
            tokio::select! {
                Some(result) = copies.next() => if !matches!(result, Err(Error::Unreachable(_))) { return (result, n_copies == 1) },
                () = &mut pause => break,
            }
        }
    }
}

/// Returns a warning if a server has stored a write at a time of its clock that is not between the times of this machine before and after the
/// write.
fn clock_warning(begin: SystemTime, end: SystemTime, of_server: SystemTime) -> Option<String> {
    let (difference, relation) = match (begin.duration_since(of_server), of_server.duration_since(end)) {
        (Ok(ahead), _) => (ahead, "ahead of"),
        (_, Ok(behind)) => (behind, "behind"),
        _ => return None,
    };
    let seconds = Some(difference.as_secs()).filter(|_| difference > MAX_CLOCK_DIFFERENCE)?;
    let text = match seconds {
        0..=119 => format!("{seconds} s"),
        120..=7199 => format!("{} min", seconds / 60),
        _ => format!("{} h {} min", seconds / 3600, seconds / 60 % 60),
    };
    Some(format!(
        "the clock of this machine is {text} {relation} that of the NATS server. Times of results and gap records are wrong. Set both          clocks, for example with NTP"
    ))
}

/// Creates the stream of results, unless it exists. If the server has too little storage for it, the stream becomes smaller.
async fn create_results(context: &jetstream::Context, results: &Results, replicas: usize) -> Result<(), Failure> {
    let failed = |error: &dyn Display, may_pass| {
        let text = format!("create the stream `{}` for results failed: {error}", results.stream);
        Failure { text, may_pass }
    };
    match look_up(context, &results.stream).await {
        // A stream that exists keeps its settings.
        Ok(_) => return Ok(()),
        Err(Missing::Answer(reason)) => return Err(failed(&reason, true)),
        Err(Missing::JetStream(reason)) => return Err(failed(&reason, false)),
        Err(Missing::Stream) => {}
    }
    let mut max_bytes = results.max_bytes;
    loop {
        let config = Config {
            name: results.stream.clone(),
            subjects: vec![results.subjects.clone()],
            max_age: results.max_age,
            max_bytes,
            discard: DiscardPolicy::Old,
            num_replicas: replicas,
            ..Config::default()
        };
        match context.create_stream(config).await.map_err(|error| error.kind()) {
            Ok(_) => break,
            // Another node may have created it meanwhile, or a stream of another name has its subjects.
            Err(CreateStreamErrorKind::JetStream(reason)) if is_known(&reason) => return Ok(()),
            Err(CreateStreamErrorKind::JetStream(reason)) if lacks_storage(&reason) && max_bytes / 2 >= LEAST_RESULT_BYTES => {
                max_bytes /= 2
            }
            Err(CreateStreamErrorKind::JetStream(reason)) if lacks_storage(&reason) => {
                let advice = "Free space on the server, raise `max_file_store` of JetStream, or send results elsewhere with --results";
                let found = format!("expected at least {} MiB of storage, got: {reason}. {advice}", max_bytes >> 20);
                return Err(failed(&found, false));
            }
            Err(CreateStreamErrorKind::JetStream(reason)) if reason.error_code() == ErrorCode::CLUSTER_NOT_AVAILABLE => {
                return Err(failed(&reason, true));
            }
            Err(error @ CreateStreamErrorKind::TimedOut) => return Err(failed(&error, true)),
            Err(error) => return Err(failed(&error, false)),
        }
    }
    if max_bytes < results.max_bytes {
        tracing::warn!(
            "the NATS server has too little storage: the stream `{}` keeps at most {} MiB of results, instead of {} MiB",
            results.stream,
            max_bytes >> 20,
            results.max_bytes >> 20
        );
    }
    Ok(())
}

/// Whether a stream was not created because the server has too little storage.
fn lacks_storage(error: &jetstream::Error) -> bool {
    matches!(error.error_code(), ErrorCode::STORAGE_RESOURCES_EXCEEDED | ErrorCode::INSUFFICIENT_RESOURCES)
}

/// Whether a stream was not created because it exists already, or another one has its subjects.
fn is_known(error: &jetstream::Error) -> bool {
    matches!(error.error_code(), ErrorCode::STREAM_NAME_EXIST | ErrorCode::STREAM_SUBJECT_OVERLAP)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clock_that_differs_is_reported_and_a_slow_answer_is_not() {
        let at = |seconds: u64| UNIX_EPOCH + Duration::from_secs(100_000 + seconds);
        let warning = |of_server| clock_warning(at(10), at(13), of_server);
        assert_eq!([warning(at(11)), warning(at(6)), warning(at(17))], [None, None, None]);
        assert!(warning(at(4)).unwrap().contains("is 6 s ahead of that of the NATS server"));
        assert!(warning(at(13 + 3 * 3600 + 125)).unwrap().contains("is 3 h 2 min behind that"));
    }
}
