//! The results of all nodes on the NATS servers: the newest result of a stream, and results as they arrive.
//!
//! The thread connects when a result is asked for, or while there are receivers. It never delays streams: results are published over other
//! connections.

use std::collections::HashMap;
use std::time::Duration;

use async_nats::jetstream;
use async_nats::jetstream::consumer::{DeliverPolicy, ReplayPolicy, push::OrderedConfig};
use async_nats::jetstream::stream::{LastRawMessageErrorKind, Stream};
use async_nats::{Client, HeaderMap};
use bytes::Bytes;
use futures::StreamExt;
use tokio::sync::{broadcast, mpsc, watch};

use crate::{Results, Servers};

/// How long [`ResultLog::last`] waits for an answer.
const MAX_WAIT: Duration = Duration::from_secs(1);
/// Pause between two attempts to connect, and interval at which the thread checks whether there are receivers.
const PAUSE: Duration = Duration::from_millis(500);
/// Number of results that may wait for a slow receiver.
const MAX_WAITING: usize = 1024;
/// Header with the ID of a message, `stream/epoch/frame`.
const MESSAGE_ID: &str = "Nats-Msg-Id";

type Answer = Result<Option<Bytes>, String>;

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
        let reader = Reader { servers, results, node: node.to_owned(), questions: received, lines: lines.clone() };
        std::thread::Builder::new().name("roiflow-results".to_owned()).spawn(move || reader.run())?;
        Ok(Self { questions, lines })
    }

    /// Returns the newest line of results that the servers have of a stream; `None`: they have none. Blocks for about a second if the
    /// servers do not answer.
    ///
    /// # Errors
    /// Returns why the servers do not answer.
    pub fn last(&self, stream: &str) -> Result<Option<Vec<u8>>, String> {
        let (answer, answered) = std::sync::mpsc::channel();
        let ended = || "the thread has ended".to_owned();
        self.questions.send(Question::Last(stream.to_owned(), answer)).map_err(|_| ended())?;
        // The thread may be connecting, and has a time limit of its own for each attempt.
        let answer = answered.recv_timeout(MAX_WAIT * 2).map_err(|_| "no answer in time".to_owned())?;
        answer.map(|line| line.map(|line| line.to_vec()))
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
            let mut first = None;
            loop {
                // Wait for a question, unless there are receivers already.
                if first.is_none() && self.lines.receiver_count() == 0 {
                    let Some(question) = self.questions.recv().await else { return };
                    first = Some(question);
                }
                let (lost, is_lost) = watch::channel(false);
                let connecting = async {
                    let client = self.servers.connect(&self.node, lost).await?;
                    let stream = jetstream::new(client.clone()).get_stream(&self.results.stream).await;
                    Ok::<_, String>((client, stream.map_err(|error| error.to_string())?))
                };
                let connected =
                    tokio::time::timeout(MAX_WAIT, connecting).await.unwrap_or_else(|_| Err("no connection in time".to_owned()));
                match connected {
                    Ok((client, stream)) => {
                        if self.read(&client, &stream, is_lost, first.take()).await.is_none() {
                            return;
                        }
                    }
                    Err(error) => {
                        tracing::debug!("cannot read results of NATS: {error}");
                        let refused = first.take().into_iter().chain(std::iter::from_fn(|| self.questions.try_recv().ok()));
                        for question in refused {
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

    /// Answers questions and delivers lines until the connection is lost. Returns `None` if the log was dropped.
    async fn read(
        &mut self,
        client: &Client,
        stream: &Stream,
        mut is_lost: watch::Receiver<bool>,
        mut first: Option<Question>,
    ) -> Option<()> {
        let mut messages = None;
        let mut newest = Newest::default();
        let mut check = tokio::time::interval(PAUSE);
        loop {
            if self.lines.receiver_count() == 0 {
                messages = None;
            } else if messages.is_none() {
                match self.follow(client, stream).await {
                    Ok(ordered) => (messages, newest) = (Some(ordered), Newest::default()),
                    Err(error) => tracing::debug!("cannot follow the results of all nodes: {error}"),
                }
            }
            let question = match first.take() {
                Some(question) => Some(question),
                None => tokio::select! {
                    _ = is_lost.wait_for(|is_lost| *is_lost) => return Some(()),
                    question = self.questions.recv() => Some(question?),
                    message = next(&mut messages) => {
                        match message {
                            // Without a receiver, the line is of no use.
                            Some(Ok(message)) if newest.is_new(message.headers.as_ref()) => drop(self.lines.send(message.payload.clone())),
                            Some(Ok(_)) => {}
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

    async fn last(&self, stream: &Stream, name: &str) -> Answer {
        // The publisher of results replaces dots, because they separate the parts of a subject.
        let subject = self.results.subjects.replace('*', &name.replace('.', "_"));
        match stream.get_last_raw_message_by_subject(&subject).await {
            Ok(message) => Ok(Some(message.payload)),
            Err(error) if error.kind() == LastRawMessageErrorKind::NoMessageFound => Ok(None),
            Err(error) => Err(error.to_string()),
        }
    }

    async fn follow(&self, client: &Client, stream: &Stream) -> Result<jetstream::consumer::push::Ordered, String> {
        let config = OrderedConfig {
            deliver_subject: client.new_inbox(),
            description: Some("live results of all nodes".to_owned()),
            filter_subject: self.results.subjects.clone(),
            replay_policy: ReplayPolicy::Instant,
            deliver_policy: DeliverPolicy::New,
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

/// Epoch, frame and part of the newest line of each stream.
#[derive(Debug, Default)]
struct Newest(HashMap<String, (u64, u64, u64)>);

impl Newest {
    /// Whether a message is newer than all earlier ones of its stream. A message without a readable ID is.
    fn is_new(&mut self, headers: Option<&HeaderMap>) -> bool {
        let id = headers.and_then(|headers| headers.get(MESSAGE_ID)).map_or("", |id| id.as_str());
        let Some((stream, position)) = parsed(id) else { return true };
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

/// Reads `stream/epoch/frame`, `stream/epoch/frame.part` and `stream/epoch/gap-first-last`.
fn parsed(id: &str) -> Option<(&str, (u64, u64, u64))> {
    let mut parts = id.rsplitn(3, '/');
    let (frame, epoch, stream) = (parts.next()?, parts.next()?, parts.next()?);
    // A gap ends with its last frame.
    let frame = frame.rsplit('-').next()?;
    let (frame, part) = frame.split_once('.').unwrap_or((frame, "0"));
    Some((stream, (epoch.parse().ok()?, frame.parse().ok()?, part.parse().ok()?)))
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
}
