//! Reads, writes and watches of the key-value bucket.
//!
//! The client's own functions for buckets cannot replace a value together with a new time-to-live, so writes set the headers themselves, as
//! the specification of buckets defines them: <https://github.com/nats-io/nats-architecture-and-design/blob/main/adr/ADR-8.md>.

use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use async_nats::header::{NATS_EXPECTED_LAST_SUBJECT_SEQUENCE, NATS_MARKER_REASON, NATS_MESSAGE_TTL};
use async_nats::jetstream::consumer::{DeliverPolicy, ReplayPolicy, push::OrderedConfig};
use async_nats::jetstream::context::{CreateStreamErrorKind, PublishErrorKind};
use async_nats::jetstream::stream::{Config, DiscardPolicy, LastRawMessageErrorKind, Stream};
use async_nats::jetstream::{self, kv};
use async_nats::{Client, HeaderMap};
use futures::StreamExt;
use roiflow_nodes::coordinator::{Change, Error, Item, Reply, Request, Revision};
use tokio::sync::watch;

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

/// The bucket. Clones share the connection.
#[derive(Clone)]
pub(crate) struct Bucket {
    context: jetstream::Context,
    stream: Arc<Stream>,
    client: Client,
    /// Beginning of the subjects, before the keys.
    prefix: Arc<str>,
    /// Becomes true when this connection is given up.
    is_lost: Arc<watch::Sender<bool>>,
}

impl Bucket {
    /// Opens the bucket, and creates it and the stream of the results if they are missing.
    ///
    /// # Errors
    /// Returns an error if JetStream is not enabled, or an existing bucket cannot end items after a time.
    pub(crate) async fn open(client: &Client, storage: &Storage) -> Result<Self, String> {
        let mut context = jetstream::new(client.clone());
        context.set_timeout(roiflow_nodes::coordinator::REQUEST_TIMEOUT);
        let name = &storage.bucket;
        let failed = |reason: &dyn Display| format!("open the key-value bucket `{name}` failed: {reason}");
        let store = match context.get_key_value(name).await {
            Ok(store) => store,
            Err(_) => {
                let config = kv::Config {
                    bucket: name.clone(),
                    description: "Streams and nodes of roiflow".to_owned(),
                    max_value_size: MAX_VALUE,
                    history: 1,
                    num_replicas: storage.replicas,
                    limit_markers: Some(MARKER_TTL),
                    ..kv::Config::default()
                };
                match context.create_key_value(config).await {
                    Ok(store) => store,
                    // Another node may have created it meanwhile.
                    Err(error) => context.get_key_value(name).await.map_err(|_| {
                        let advice = "Check that the server runs with JetStream (`nats-server --jetstream`), and that the login may use it";
                        failed(&format_args!("{error}. {advice}"))
                    })?,
                }
            }
        };
        if !store.stream.cached_info().config.allow_message_ttl {
            let advice = "Remove the bucket, or name another one with --group";
            return Err(failed(&format_args!("expected a bucket with a time-to-live of items, got one without. {advice}")));
        }
        if let Some(results) = &storage.results {
            create_results(&context, results, storage.replicas).await?;
        }
        let prefix = format!("$KV.{name}.").into();
        Ok(Self { context, stream: Arc::new(store.stream), client: client.clone(), prefix, is_lost: Arc::new(watch::Sender::new(false)) })
    }

    /// Ends all tasks that use this connection.
    pub(crate) fn declare_lost(&self) {
        self.is_lost.send_replace(true);
    }

    /// Becomes true when this connection is given up.
    pub(crate) fn lost(&self) -> watch::Receiver<bool> {
        self.is_lost.subscribe()
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
        let subject = format!("{}{key}", self.prefix);
        let published = match self.context.publish_with_headers(subject, headers, value.into()).await {
            Ok(acknowledged) => acknowledged.await,
            Err(error) => Err(error),
        };
        published.map(|acknowledged| Reply::Written(Revision(acknowledged.sequence))).map_err(|error| match error.kind() {
            PublishErrorKind::WrongLastSequence => Error::Conflict,
            PublishErrorKind::TimedOut | PublishErrorKind::BrokenPipe | PublishErrorKind::StreamNotFound => {
                Error::Unreachable(error.to_string())
            }
            _ => Error::Rejected(error.to_string()),
        })
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

/// Creates the stream of results, unless it exists. If the server has too little storage for it, the stream becomes smaller.
async fn create_results(context: &jetstream::Context, results: &Results, replicas: usize) -> Result<(), String> {
    let failed = |error: &dyn Display| format!("create the stream `{}` for results failed: {error}", results.stream);
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
            // A stream that exists keeps its settings.
            Err(CreateStreamErrorKind::JetStream(reason)) if is_known(&reason) => return Ok(()),
            Err(CreateStreamErrorKind::JetStream(reason)) if lacks_storage(&reason) && max_bytes / 2 >= LEAST_RESULT_BYTES => {
                max_bytes /= 2
            }
            Err(CreateStreamErrorKind::JetStream(reason)) if lacks_storage(&reason) => {
                let advice = "Free space on the server, raise `max_file_store` of JetStream, or send results elsewhere with --results";
                return Err(failed(&format_args!("expected at least {} MiB of storage, got: {reason}. {advice}", max_bytes >> 20)));
            }
            Err(error) => return Err(failed(&error)),
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
    use async_nats::jetstream::ErrorCode;
    matches!(error.error_code(), ErrorCode::STORAGE_RESOURCES_EXCEEDED | ErrorCode::INSUFFICIENT_RESOURCES)
}

/// Whether a stream was not created because it exists already, or another one has its subjects.
fn is_known(error: &jetstream::Error) -> bool {
    use async_nats::jetstream::ErrorCode;
    matches!(error.error_code(), ErrorCode::STREAM_NAME_EXIST | ErrorCode::STREAM_SUBJECT_OVERLAP)
}
