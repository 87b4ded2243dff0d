//! The path of messages from the queue to the destination: directly, or through a spool on disk.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::WhenFull;
use crate::publish::{
    self, Deadline, Event, FileAccess, Framing, IfExists, Limits, Options, OutputFile, Publisher, Retry, Spool, SpoolStatus, Target, Url,
};

/// How long EOS waits for a server that acknowledges no messages.
const PATIENCE: Duration = Duration::from_secs(5);
/// Capacity of the queue for a server without a spool: number of messages, and bytes.
const SERVER_QUEUE: (usize, usize) = (4096, 8 << 20);

/// The settings of a destination.
#[derive(Debug, Clone)]
pub(super) struct Destination {
    /// A file, if `url` is not set; `-` is standard output.
    pub(super) address: String,
    pub(super) url: Option<Url>,
    pub(super) if_exists: IfExists,
    pub(super) when_full: WhenFull,
    /// Folder of the spool.
    pub(super) spool: Option<PathBuf>,
    pub(super) limits: Limits,
    /// The text that a file has before, between and after its messages.
    pub(super) framing: Framing,
}

/// An open destination.
pub(super) struct Route {
    pub(super) publisher: Publisher,
    spool: Option<Arc<Spool>>,
    pub(super) is_server: bool,
}

/// Name of a destination in messages, without credentials.
#[derive(Debug, Clone)]
pub(super) struct Name {
    /// The address that the user has set.
    pub(super) address: String,
    /// Distinguishes destinations that are shown alike.
    pub(super) key: String,
    /// The name for use in sentences of messages.
    pub(super) shown: String,
    /// The folder of the spool.
    pub(super) spool: Option<PathBuf>,
    pub(super) is_server: bool,
}

impl Destination {
    /// Checks the destination. Opens nothing.
    ///
    /// # Errors
    /// Returns the complete error text for the user if a setting is invalid.
    pub(super) fn check(&self) -> Result<(Target, Name), String> {
        let (text, target) = match &self.url {
            Some(Url { text, access }) => (text, Target::parse(text, access)),
            None => (&self.address, Target::parse(&format!("file:{}", self.address), &FileAccess::Allowed)),
        };
        let target = target.map_err(|error| format!("url `{}`: {error}", publish::redact(text)))?;
        let spool = match (&self.spool, target.file()) {
            (Some(_), Some(file)) => {
                let file = file.display();
                return Err(format!("spool: expected the url of a server, got the file {file}; remove `spool`, or set `url`"));
            }
            (Some(folder), None) if self.limits.max_bytes < Limits::MIN_BYTES => {
                let (folder, minimum, got) = (folder.display(), Limits::MIN_BYTES, self.limits.max_bytes);
                return Err(format!("spool {folder}: expected a spool-max-bytes of at least {minimum}, got {got}"));
            }
            (Some(folder), None) => Some(folder.join(target.spool_name())),
            (None, _) => None,
        };
        let (address, shown) = match target.file() {
            Some(file) => {
                let file_name = file.display().to_string();
                let shown = if publish::is_stdout(file) { "standard output".to_owned() } else { file_name.clone() };
                (file_name, shown)
            }
            None => (target.shown().to_owned(), target.shown().to_owned()),
        };
        let is_server = target.file().is_none();
        let key = if is_server { target.spool_name().to_owned() } else { address.clone() };
        Ok((target, Name { address, key, shown, spool, is_server }))
    }

    /// Opens the spool and starts the publisher.
    ///
    /// # Errors
    /// Returns the complete error text for the user if the spool or the destination cannot be opened.
    pub(super) fn open(
        &self,
        (target, name): (Target, &Name),
        deadline: Deadline,
        on_event: impl FnMut(Event<'_>) + Send + 'static,
    ) -> Result<Route, String> {
        let no_thread = |error: io::Error| format!("cannot start the thread that writes results: {error}");
        if let Some(file) = target.file().map(Path::to_owned) {
            if self.if_exists == IfExists::Append && !publish::is_stdout(&file) {
                let remedy = "remove it, or write to another file";
                self.framing
                    .check_append(&file)
                    .map_err(|error| format!("cannot append results to {}: {error}; {remedy}", name.address))?;
            }
            OutputFile::new(&file, self.if_exists, deadline.clone()).check().map_err(|error| cannot_open(&name.address, &error))?;
            let options = Options { when_full: self.when_full.in_front_of(false), ..Options::default() };
            let publisher =
                Publisher::start(target.into_destination(self.if_exists, self.framing), options, deadline, on_event).map_err(no_thread)?;
            return Ok(Route { publisher, spool: None, is_server: false });
        }
        let Some(folder) = &name.spool else {
            let (max_messages, max_bytes) = SERVER_QUEUE;
            let options = Options {
                max_messages,
                max_bytes,
                when_full: self.when_full.in_front_of(true),
                retry: Retry::unlimited(),
                ..Options::default()
            };
            let publisher =
                Publisher::start(target.into_destination(self.if_exists, self.framing), options, deadline, on_event).map_err(no_thread)?;
            return Ok(Route { publisher, spool: None, is_server: true });
        };
        keep_earlier(folder, target.earlier_spool_name());
        let destination = || target.into_destination(self.if_exists, self.framing);
        let opened = Spool::open(folder, self.limits, Retry::unlimited(), destination, on_event);
        let (spool, writer) = opened.map_err(|error| cannot_open_spool(folder, &error))?;
        let options = Options { when_full: self.when_full.in_front_of(false), ..Options::default() };
        // Ignore events of the publisher, because writing to a spool does not fail. The spool reports errors of the destination.
        let publisher = Publisher::start(writer, options, deadline, |_| {}).map_err(no_thread)?;
        Ok(Route { publisher, spool: Some(spool), is_server: true })
    }
}

impl Route {
    /// Waits until all messages are acknowledged. The wait for a server without a spool is limited to [`PATIENCE`]. With a spool, the wait
    /// ends when the server acknowledges nothing for this time. Returns the number of messages that stay in the spool. If several streams
    /// share the spool, one stream gets this number, and the others get 0.
    pub(super) fn finish(&self, is_over: impl Fn() -> bool) -> u64 {
        if let (true, None) = (self.is_server, &self.spool) {
            self.publisher.flush_until(Instant::now() + PATIENCE);
            return 0;
        }
        self.publisher.flush();
        self.spool.as_ref().filter(|spool| !spool.drain(PATIENCE, is_over)).map_or(0, |spool| spool.n_waiting_to_report())
    }

    /// Returns the number of messages that the server did not accept, although they are in the spool, or that the spool could not store. If
    /// several streams share the spool, one stream gets the number of a message.
    pub(super) fn n_refused(&self) -> u64 {
        self.spool.as_ref().map_or(0, |spool| spool.n_refused_to_report())
    }

    /// Returns the state of the spool; zeros without a spool.
    pub(super) fn spool_status(&self) -> SpoolStatus {
        self.spool.as_ref().map(|spool| spool.status()).unwrap_or_default()
    }
}

/// Returns the error message for a destination that cannot be opened, with a remedy.
pub(super) fn cannot_open(address: &str, error: &io::Error) -> String {
    let remedy = match error.kind() {
        ErrorKind::NotFound | ErrorKind::NotADirectory => "create the folder, or set `address` to a file in an existing folder",
        ErrorKind::IsADirectory => "set `address` to a file in that folder",
        ErrorKind::PermissionDenied => "set `address` to a file that this user may write",
        ErrorKind::AlreadyExists => "remove the file, set `if-exists`, or set `address` to another file",
        _ => "set `address` to a file that can be written, or to - for standard output",
    };
    format!("cannot write results to {address}: {error}; {remedy}")
}

/// Gives the folder of a spool its present name, if an earlier version has given it another name, so that its results are delivered.
fn keep_earlier(folder: &Path, earlier: Option<&str>) {
    let earlier = earlier.map(|name| folder.with_file_name(name)).filter(|earlier| earlier.is_dir() && !folder.exists());
    if let Some(Err(error)) = earlier.map(|earlier| std::fs::rename(earlier, folder)) {
        tracing::warn!("results in a spool of an earlier version are not delivered, because its folder cannot be renamed: {error}");
    }
}

fn cannot_open_spool(folder: &Path, error: &io::Error) -> String {
    let remedy = match error.kind() {
        ErrorKind::WouldBlock => "end that process, or set `spool` to another folder",
        _ => "set `spool` to a folder that this user may write",
    };
    format!("cannot open the spool {}: {error}; {remedy}", folder.display())
}
