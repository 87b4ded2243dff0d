//! What a program implements that runs the streams of the server.

use std::path::{Path, PathBuf};

use roiflow_results::Gap;
use schemars::JsonSchema;
use serde::Serialize;

use crate::feed::Feed;
use crate::stream::{Counters, Percentiles, State};

/// Runs streams.
pub trait Backend: Send + Sync + 'static {
    /// The pipelines that streams may use.
    fn pipelines(&self) -> Vec<Pipeline>;

    /// Checks whether a stream can start, without opening a camera: loads the models, and runs each on a frame. Blocks for a limited time.
    ///
    /// # Errors
    /// Returns what is wrong with the description of the stream.
    fn prepare(&self, start: &Start) -> Result<Prepared, Failure>;

    /// Opens an input, and returns what it sends. Blocks for seconds. `input` may have credentials.
    ///
    /// # Errors
    /// Returns why the input cannot be opened or decoded.
    fn probe(&self, input: &str) -> Result<Video, Failure>;

    /// Reads a model, and describes it. Blocks for seconds. The file may be damaged or malicious.
    ///
    /// # Errors
    /// Returns why the model cannot be read.
    fn inspect(&self, model: &Path) -> Result<String, Failure>;

    /// Starts a stream, and returns without waiting for its first frame. Results go to `feed`.
    ///
    /// # Errors
    /// Returns what is wrong with the description of the stream, or why it cannot start.
    fn start(&self, start: &Start, feed: Feed) -> Result<Box<dyn Running>, Failure>;

    /// Announces that results are missing before the first result of an assignment. Called before the stream starts, or later if the
    /// earlier machine has ended meanwhile. The program reports the gap to the destinations of the stream.
    fn announce_gap(&self, gap: Gap);

    /// Forgets the announced gap of a stream. Called when the stream was removed from this server.
    fn forget_gap(&self, stream: &str);
}

/// A stream that was started.
pub trait Running: Send + Sync {
    /// What the stream is doing.
    fn status(&self) -> Status;

    /// Percentiles of the latency of its frames; `None` without frames. Takes milliseconds for a stream that has run for an hour.
    fn percentiles(&self) -> Option<Percentiles>;

    /// Like [`Backend::prepare`], for another description of this stream. For a change that the running stream takes, no file is read again.
    ///
    /// # Errors
    /// Returns what is wrong with the description.
    fn prepare(&self, start: &Start) -> Result<Prepared, Failure>;

    /// Continues the stream with another description, without counting a restart. Returns false if that is not possible, for example because
    /// the input would begin again; then the stream runs on as it is.
    ///
    /// # Errors
    /// Returns an error if the description is invalid. The stream then continues unchanged.
    fn change(&self, start: &Start) -> Result<bool, Failure>;

    /// Completes the frames in flight, stops the stream within seconds, and returns its counters.
    fn stop(&self) -> Counters;
}

/// While this value exists, the stream for which it was made starts with the models and files that were loaded for it.
pub struct Prepared(#[expect(dead_code, reason = "only its lifetime matters")] Option<Box<dyn Send>>);

impl Prepared {
    /// A preparation that keeps `models` alive.
    pub fn new(models: impl Send + 'static) -> Self {
        Self(Some(Box::new(models)))
    }

    /// Nothing was prepared.
    pub fn nothing() -> Self {
        Self(None)
    }
}

/// State and counters of a stream that was started.
#[derive(Debug, Clone, PartialEq)]
pub struct Status {
    /// What the stream is doing.
    pub state: State,
    /// Why it failed or waits for its source, without credentials.
    pub error: Option<String>,
    /// Its counters since the start.
    pub counters: Counters,
}

/// A stream whose description the policy has resolved.
#[derive(Debug, Clone, PartialEq)]
pub struct Start {
    /// Name of the stream.
    pub name: String,
    /// Name of the pipeline.
    pub pipeline: String,
    /// File of the pipeline; `None` if it is part of the program.
    pub path: Option<PathBuf>,
    /// Address, file or `test:`, with credentials.
    pub input: String,
    /// Values of parameters; paths are absolute.
    pub parameters: Vec<(String, String)>,
    /// Whether a file starts again at its end.
    pub repeat: bool,
    /// Servers that also get each line of results, with the rights of clients.
    pub publish: Vec<roiflow_publish::Url>,
    /// Number of the assignment of the stream to this node, for the IDs of results; 0: the server has no other nodes.
    pub assignment: u64,
}

/// The video that an input sends.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Video {
    /// Width of a frame in pixels.
    pub width: u32,
    /// Height of a frame in pixels.
    pub height: u32,
    /// Name of the codec; `null`: not compressed, or unknown.
    pub codec: Option<String>,
    /// Frames per second; `null`: unknown.
    pub fps: Option<f64>,
}

/// A pipeline that streams may use.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Pipeline {
    /// Name of the pipeline.
    pub name: String,
    /// What it does, in one line.
    pub description: String,
    /// Its parameters.
    pub parameters: Vec<Parameter>,
    /// File of the pipeline; `None` if it is part of the program.
    #[serde(skip)]
    pub path: Option<PathBuf>,
}

/// A parameter of a pipeline.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Parameter {
    /// Name of the parameter.
    pub name: String,
    /// Type of its value: `path`, `string`, `integer`, `number` or `boolean`.
    pub r#type: String,
    /// What it is for.
    pub help: String,
    /// Whether a stream must give a value.
    pub required: bool,
    /// Default value as text.
    pub default: Option<String>,
}

/// Why a stream did not start.
#[derive(Debug, Clone, PartialEq)]
pub struct Failure {
    /// The kind of the failure.
    pub kind: FailureKind,
    /// The reason, for people.
    pub message: String,
}

/// The kind of a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailureKind {
    /// The description of the stream is wrong, so another attempt would not help.
    Usage,
    /// The description is correct, but the stream cannot run with it: a model cannot be loaded, for example.
    Failed,
    /// It is not known whether the stream can run: an inference server does not answer, or a device takes too long.
    Unavailable,
}

impl Failure {
    /// A failure with a reason.
    pub fn new(kind: FailureKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }
}
