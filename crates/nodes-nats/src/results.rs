//! The results of all nodes on the NATS servers: the newest result of a stream, and results as they arrive.
//!
//! The thread connects when a result is asked for, or while there are receivers. It never delays streams: results are published over other
//! connections.
//!
//! A receiver gets each line once, also over lost connections: the thread continues after the last message that it has read. It leaves out
//! what a receiver must ignore.

use std::collections::HashMap;
use std::time::Duration;

use async_nats::jetstream;
use async_nats::jetstream::consumer::{DeliverPolicy, ReplayPolicy, push::OrderedConfig};
use async_nats::jetstream::stream::{LastRawMessageErrorKind, Stream};
use async_nats::{Client, HeaderMap};
use bytes::Bytes;
use futures::StreamExt;
use roiflow_publish::{Position, subject_token};
use serde::Deserialize;
use serde::de::IgnoredAny;
use tokio::sync::{broadcast, mpsc, watch};

use crate::{Results, Servers};

/// How long the servers may take to answer.
const MAX_WAIT: Duration = Duration::from_secs(1);
/// Pause between two attempts to connect, and interval at which the thread checks whether there are receivers.
const PAUSE: Duration = Duration::from_millis(500);
/// Number of results that may wait for a slow receiver.
const MAX_WAITING: usize = 1024;
/// Header with the ID of a message, `stream/epoch/frame`.
const MESSAGE_ID: &str = "Nats-Msg-Id";

type Answer = Result<Option<Last>, String>;

/// The newest result of a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Last {
    /// Its position.
    pub position: Position,
    /// Its time of day, as in the line.
    pub time: Option<String>,
}

/// Reads the JetStream stream of the results. A thread of its own has the connection; it ends when the log is dropped.
#[derive(Debug)]
pub struct ResultLog {
    questions: mpsc::UnboundedSender<Question>,
    lines: broadcast::Sender<Bytes>,
}

/// What the thread is asked for.
#[derive(Debug)]
enum Question {
    /// The newest result of a stream.
    Last(String, std::sync::mpsc::Sender<Answer>),
    /// There is a new receiver.
    Follow,
}

impl ResultLog {
    /// Starts the thread. Connects to nothing yet. `node` is the name that the servers show for the connection.
    ///
    /// # Errors
    /// Returns an error if the thread cannot be started.
    pub fn start(servers: Servers, results: Results, node: &str) -> std::io::Result<Self> {
        let (questions, received) = mpsc::unbounded_channel();
        let lines = broadcast::channel(MAX_WAITING).0;
        let (node, lines_of_reader) = (node.to_owned(), lines.clone());
        let reader = Reader { servers, results, node, questions: received, lines: lines_of_reader, waiting: Vec::new(), followed: None };
        std::thread::Builder::new().name("roiflow-results".to_owned()).spawn(move || reader.run())?;
        Ok(Self { questions, lines })
    }

    /// Returns the newest result that the servers have of a stream; `None`: they have none with a position. Blocks for two seconds if the
    /// servers do not answer.
    ///
    /// # Errors
    /// Returns why the servers do not answer.
    pub fn last(&self, stream: &str) -> Result<Option<Last>, String> {
        let (answer, answered) = std::sync::mpsc::channel();
        let ended = || "the thread has ended".to_owned();
        self.questions.send(Question::Last(stream.to_owned(), answer)).map_err(|_| ended())?;
        // The thread may be connecting, or answer another question first.
        answered.recv_timeout(MAX_WAIT * 2).map_err(|_| "no answer in time".to_owned())?
    }

    /// Receives the lines of results of all streams from now on, in the order in which the servers store them. Lines that a later owner of
    /// a stream has replaced, and lines that were sent twice, are left out.
    pub fn subscribe(&self) -> broadcast::Receiver<Bytes> {
        let receiver = self.lines.subscribe();
        // If the thread has ended, no line arrives.
        let _sent = self.questions.send(Question::Follow);
        receiver
    }
}

struct Reader {
    servers: Servers,
    results: Results,
    node: String,
    questions: mpsc::UnboundedReceiver<Question>,
    lines: broadcast::Sender<Bytes>,
    /// Questions that came before there was a connection.
    waiting: Vec<Question>,
    /// The lines that were sent to the receivers so far, over all connections; `None`: there is no receiver.
    followed: Option<Followed>,
}

/// Which lines were sent to the receivers.
#[derive(Debug)]
struct Followed {
    /// Number of the last message in the JetStream stream.
    sequence: u64,
    newest: Newest,
    has_warned: bool,
}

impl Reader {
    fn run(mut self) {
        let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
            Ok(runtime) => runtime,
            Err(error) => {
                tracing::error!("cannot start the runtime that reads results of NATS: {error}");
                return;
            }
        };
        runtime.block_on(async {
            loop {
                // Wait for a question, unless there are receivers already.
                if self.waiting.is_empty() && self.lines.receiver_count() == 0 {
                    let Some(question) = self.questions.recv().await else { return };
                    self.waiting.push(question);
                }
                let (lost, is_lost) = watch::channel(false);
                let Some(connected) = self.connect(lost).await else { return };
                match connected {
                    Ok((client, stream)) => {
                        if self.read(&client, &stream, is_lost).await.is_none() {
                            return;
                        }
                    }
                    Err(error) => {
                        tracing::debug!("cannot read results of NATS: {error}");
                        for question in self.waiting.drain(..) {
                            if let Question::Last(_, answer) = question {
                                // The caller may have stopped waiting.
                                let _sent = answer.send(Err(error.clone()));
                            }
                        }
                        tokio::time::sleep(PAUSE).await;
                    }
                }
            }
        });
    }

    /// Connects to one of the servers, and keeps questions that arrive meanwhile. Returns `None` if the log was dropped.
    async fn connect(&mut self, lost: watch::Sender<bool>) -> Option<Result<(Client, Stream), String>> {
        // There is no limit over all: the client has one for each server, and a server that does not answer must not hide the next one.
        let connecting = async {
            let (client, _) = self.servers.connect(&self.node, lost).await.map_err(|failure| failure.text)?;
            let stream = tokio::time::timeout(MAX_WAIT, jetstream::new(client.clone()).get_stream(&self.results.stream)).await;
            let stream = stream.map_err(|_| "no answer in time".to_owned())?.map_err(|error| error.to_string())?;
            Ok((client, stream))
        };
        tokio::pin!(connecting);
        loop {
            tokio::select! {
                connected = &mut connecting => return Some(connected),
                question = self.questions.recv() => self.waiting.push(question?),
            }
        }
    }

    /// Answers questions and delivers lines until the connection is lost. Returns `None` if the log was dropped.
    async fn read(&mut self, client: &Client, stream: &Stream, mut is_lost: watch::Receiver<bool>) -> Option<()> {
        let mut messages = None;
        let mut check = tokio::time::interval(PAUSE);
        loop {
            if self.lines.receiver_count() == 0 {
                (messages, self.followed) = (None, None);
            } else if messages.is_none() {
                match tokio::time::timeout(MAX_WAIT, self.follow(client, stream)).await {
                    Ok(Ok(ordered)) => messages = Some(ordered),
                    Ok(Err(error)) => tracing::debug!("cannot follow the results of all nodes: {error}"),
                    Err(_) => tracing::debug!("cannot follow the results of all nodes: no answer in time"),
                }
            }
            let question = match self.waiting.pop() {
                Some(question) => Some(question),
                None => tokio::select! {
                    _ = is_lost.wait_for(|is_lost| *is_lost) => return Some(()),
                    question = self.questions.recv() => Some(question?),
                    message = next(&mut messages) => {
                        match message {
                            Some(Ok(message)) => self.deliver(&message),
                            Some(Err(_)) | None => messages = None,
                        }
                        None
                    }
                    _ = check.tick() => None,
                },
            };
            if let Some(Question::Last(name, answer)) = question {
                let last = tokio::time::timeout(MAX_WAIT, self.last(stream, &name)).await;
                let _sent = answer.send(last.unwrap_or_else(|_| Err("no answer in time".to_owned())));
            }
        }
    }

    /// Sends a line to the receivers, unless they must ignore it.
    fn deliver(&mut self, message: &jetstream::Message) {
        let Some(followed) = &mut self.followed else { return };
        if let Ok(info) = message.info() {
            followed.sequence = info.stream_sequence;
        }
        if !is_line(&message.payload) {
            if !std::mem::replace(&mut followed.has_warned, true) {
                let (subject, stream) = (&message.subject, &self.results.stream);
                tracing::warn!(
                    "expected lines of JSON in the JetStream stream `{stream}`, got another message with the subject `{subject}`"
                );
            }
        } else if followed.newest.is_new(message.headers.as_ref()) {
            // The last receiver may be gone: then the line is of no use.
            let _sent = self.lines.send(message.payload.clone());
        }
    }

    async fn last(&self, stream: &Stream, name: &str) -> Answer {
        let subject = self.results.subjects.replace('*', &subject_token(name));
        match stream.get_last_raw_message_by_subject(&subject).await {
            Ok(message) => {
                // Another name may have the same subject.
                let Some((_, position)) = position(Some(&message.headers)).filter(|(stream, _)| *stream == name) else { return Ok(None) };
                Ok(Some(Last { position, time: serde_json::from_slice(&message.payload).ok().and_then(|Line { time }| time) }))
            }
            Err(error) if error.kind() == LastRawMessageErrorKind::NoMessageFound => Ok(None),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Begins after the last message that was read, or after the last one that the server has if none was read.
    async fn follow(&mut self, client: &Client, stream: &Stream) -> Result<jetstream::consumer::push::Ordered, String> {
        let last = stream.get_info().await.map_err(|error| error.to_string())?.state.last_sequence;
        // If the server has fewer messages than were read, it has lost them: the numbers have begun again.
        let followed = self.followed.take().filter(|followed| followed.sequence <= last);
        let followed = followed.unwrap_or_else(|| Followed { sequence: last, newest: Newest::default(), has_warned: false });
        let start_sequence = self.followed.insert(followed).sequence + 1;
        let config = OrderedConfig {
            deliver_subject: client.new_inbox(),
            description: Some("live results of all nodes".to_owned()),
            filter_subject: self.results.subjects.clone(),
            replay_policy: ReplayPolicy::Instant,
            deliver_policy: DeliverPolicy::ByStartSequence { start_sequence },
            ..OrderedConfig::default()
        };
        let consumer = stream.create_consumer(config).await.map_err(|error| error.to_string())?;
        consumer.messages().await.map_err(|error| error.to_string())
    }
}

/// Waits for the next message; forever if nothing is followed.
async fn next(
    messages: &mut Option<jetstream::consumer::push::Ordered>,
) -> Option<Result<jetstream::Message, jetstream::consumer::push::OrderedError>> {
    match messages {
        Some(messages) => messages.next().await,
        None => futures::future::pending().await,
    }
}

/// Position of the newest line of each stream.
#[derive(Debug, Default)]
struct Newest(HashMap<String, Position>);

impl Newest {
    /// Whether a message is newer than all earlier ones of its stream. A message without a readable ID is.
    fn is_new(&mut self, headers: Option<&HeaderMap>) -> bool {
        let Some((stream, position)) = position(headers) else { return true };
        match self.0.get_mut(stream) {
            Some(newest) if position <= *newest => false,
            Some(newest) => {
                *newest = position;
                true
            }
            None => {
                self.0.insert(stream.to_owned(), position);
                true
            }
        }
    }
}

/// Reads the name of the stream and the position of a message.
fn position(headers: Option<&HeaderMap>) -> Option<(&str, Position)> {
    Position::parse(headers?.get(MESSAGE_ID)?.as_str())
}

/// What [`Last`] needs of a line of results.
#[derive(Deserialize)]
struct Line {
    time: Option<String>,
}

/// Whether a message is one line of JSON. Other programs can write to the same subjects.
fn is_line(payload: &[u8]) -> bool {
    !payload.iter().any(|byte| matches!(byte, b'\n' | b'\r')) && serde_json::from_slice::<IgnoredAny>(payload).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_an_earlier_owner_and_repeated_lines_are_left_out() {
        let mut newest = Newest::default();
        let ids = ["a/3/0", "a/3/1", "a/3/1", "b.c/1/7", "a/4/0", "a/4/0.1", "a/3/2", "a/4/gap-1-5", "a/4/5", "a/4/6", "", "x"];
        let new: Vec<&str> = ids
            .into_iter()
            .filter(|id| {
                let mut headers = HeaderMap::new();
                headers.insert(MESSAGE_ID, *id);
                newest.is_new(Some(&headers))
            })
            .collect();
        assert_eq!(new, ["a/3/0", "a/3/1", "b.c/1/7", "a/4/0", "a/4/0.1", "a/4/gap-1-5", "a/4/6", "", "x"]);
    }

    #[test]
    fn messages_that_are_no_line_of_json_are_left_out() {
        assert!(is_line(br#"{"stream":"a","text":"x\r\n"}"#));
        for payload in ["", "x", "{}\r", "{\n}", "{} {}", "{"] {
            assert!(!is_line(payload.as_bytes()), "{payload:?}");
        }
    }
}
