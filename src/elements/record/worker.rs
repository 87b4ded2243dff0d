//! The worker thread of `roirecord`: turns encoded frames and events into clips.
//!
//! The streaming threads only send to a bounded channel. This thread never waits for the disk: each clip is written by a small pipeline of
//! its own, and a second thread completes the files.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use gstreamer as gst;

use super::clip::ClipWriter;
use super::contents::Contents;
use super::recorder::{Action, Durations, Recorder, Unit};
use crate::elements::retry::Retry;
use crate::publish::{FileStore, file_name_part};

/// Maximum size of the encoded frames that wait for results.
const MAX_RING_BYTES: usize = 256 << 20;
/// Maximum number of messages that wait for the thread.
const MAX_MESSAGES: usize = 256;
/// Prefix of the names of all files.
pub(super) const PREFIX: &str = "clip-";

/// A message from a streaming thread to the worker thread. Times are in nanoseconds.
pub(super) enum Input {
    /// Caps of the encoded frames that follow. If they differ, a clip continues in another file.
    Caps(gst::Caps),
    Frame {
        buffer: gst::Buffer,
        running_time: u64,
        stream_time: Option<u64>,
    },
    /// The results are known up to this running time. `event` has the labels of an event at this time; `None` = no event.
    Results {
        running_time: u64,
        stream_time: Option<u64>,
        event: Option<Vec<Arc<str>>>,
    },
    /// The following frames and results start again at time 0, for example after a flush.
    Reset,
    /// No more frames and results follow. The sender is dropped when all clips are complete.
    End(Sender<()>),
}

/// A complete clip.
#[derive(Debug, Clone)]
pub(super) struct Clip {
    pub(super) path: PathBuf,
    pub(super) n_frames: u64,
    pub(super) n_bytes: u64,
    pub(super) duration_ns: u64,
    /// Stream times of the first frame and of the first event.
    pub(super) begin_ns: Option<u64>,
    pub(super) event_ns: Option<u64>,
    pub(super) labels: Vec<String>,
}

/// What the worker reports.
pub(super) enum News {
    /// A clip is complete.
    Clip(Clip),
    /// A clip, or a part of it, could not be written.
    Failed(String),
    /// The recording has stopped, for this reason.
    Lost(String),
    /// The recording continues in this file after a failure.
    Continued { reason: String, path: PathBuf },
}

/// Receives news.
pub(super) type OnNews = Arc<dyn Fn(News) + Send + Sync>;

/// Opens the folder of clips.
pub(super) type OpenStore = Box<dyn Fn() -> std::io::Result<FileStore> + Send>;

/// Settings of the worker thread.
pub(super) struct Options {
    pub(super) durations: Durations,
    /// Name of the stream in file names.
    pub(super) stream: String,
    /// Start time of the run in milliseconds since 1970, as part of file names.
    pub(super) epoch: u64,
}

/// The running thread. Dropping it completes the current clip.
pub(super) struct Worker {
    sender: Option<SyncSender<Input>>,
    thread: Option<JoinHandle<()>>,
}

impl Worker {
    /// Starts the thread. If `store` is `None`, the folder is opened for the next clip.
    ///
    /// # Errors
    /// Returns an error if a thread cannot be started.
    pub(super) fn start(options: Options, store: Option<FileStore>, open_store: OpenStore, on_news: OnNews) -> std::io::Result<Self> {
        let (sender, receiver) = sync_channel(MAX_MESSAGES);
        let (to_finish, finishing) = channel::<Finishing>();
        let shared = Arc::new(Shared { store: Mutex::new(store), retry: Mutex::default(), on_news });
        let finisher = {
            let shared = shared.clone();
            let run = move || finishing.into_iter().for_each(|clip| clip.finish(&shared));
            std::thread::Builder::new().name("roirecord-end".to_owned()).spawn(run)?
        };
        let recorder = Recorder::new(options.durations, MAX_RING_BYTES);
        let (caps, clip, labels, event_ns, n_clips) = Default::default();
        let mut recording = Recording { options, open_store, shared, recorder, caps, clip, labels, event_ns, n_clips, to_finish };
        let run = move || {
            recording.run(&receiver);
            drop(recording);
            // Ignore the result: a panic of this thread was already reported.
            let _ended = finisher.join();
        };
        let thread = std::thread::Builder::new().name("roirecord".to_owned()).spawn(run)?;
        Ok(Self { sender: Some(sender), thread: Some(thread) })
    }

    /// Returns a sender for a streaming thread.
    pub(super) fn sender(&self) -> SyncSender<Input> {
        self.sender.clone().expect("the sender is taken only on drop")
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.sender = None;
        if let Some(thread) = self.thread.take() {
            let _ended = thread.join();
        }
    }
}

/// State that both threads share.
struct Shared {
    /// `None` until the folder can be opened.
    store: Mutex<Option<FileStore>>,
    retry: Mutex<Retry>,
    on_news: OnNews,
}

impl Shared {
    fn store(&self) -> MutexGuard<'_, Option<FileStore>> {
        self.store.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn retry(&self) -> MutexGuard<'_, Retry> {
        self.retry.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts and reports the failure of a file.
    fn fail(&self, name: &str, error: &str) {
        let error = format!("cannot write clip {name}: {error}");
        (self.on_news)(News::Failed(error.clone()));
        let is_lost = self.retry().failed(&error, Instant::now());
        if is_lost {
            (self.on_news)(News::Lost(error));
        }
    }

    /// Notes that a file has video.
    fn works(&self, path: impl FnOnce() -> PathBuf) {
        let reason = self.retry().works(Instant::now());
        if let Some(reason) = reason {
            (self.on_news)(News::Continued { reason, path: path() });
        }
    }
}

/// A clip that has all its frames, and whose file must be completed.
struct Finishing {
    writer: Option<ClipWriter>,
    name: String,
    begin_ns: Option<u64>,
    event_ns: Option<u64>,
    labels: Vec<String>,
    /// Why the clip ends before its last frame.
    failure: Option<String>,
    /// Notified when this and all earlier clips are complete.
    done: Option<Sender<()>>,
}

impl Finishing {
    fn finish(self, shared: &Shared) {
        let Self { writer, name, begin_ns, event_ns, labels, failure, done } = self;
        if let Some(mut writer) = writer {
            let written = failure.map_or_else(|| writer.finish(), Err);
            // Close the file.
            drop(writer);
            let part = shared.store().as_ref().map(|store| store.part(&name));
            // Keep the part of a clip that was written before a failure.
            let contents = part.and_then(|part| Contents::of(&part));
            let named = match (shared.store().as_mut(), &contents) {
                (Some(store), Some(_)) => store.finish(&name).map(Some).map_err(|error| error.to_string()),
                (Some(store), None) => {
                    store.abandon(&name);
                    Err("the file has no video".to_owned())
                }
                (None, _) => Ok(None),
            };
            let (path, error) = match (named, written) {
                (Ok(path), written) => (path, written.err()),
                (Err(_), Err(error)) | (Err(error), Ok(())) => (None, Some(error)),
            };
            if let Some(path) = &path
                && error.is_none()
            {
                shared.works(|| path.clone());
            }
            if let (Some(path), Some(Contents { n_frames, duration_ns })) = (path, contents) {
                let n_bytes = std::fs::metadata(&path).map_or(0, |metadata| metadata.len());
                (shared.on_news)(News::Clip(Clip { path, n_frames, n_bytes, duration_ns, begin_ns, event_ns, labels }));
            }
            if let Some(error) = error {
                shared.fail(&name, &error);
            }
        }
        if done.is_some() {
            let reason = shared.retry().end();
            reason.into_iter().for_each(|reason| (shared.on_news)(News::Lost(reason)));
        }
    }
}

/// An encoded frame with its caps and its stream time.
type Encoded = (gst::Buffer, gst::Caps, Option<u64>);

/// State of the thread.
struct Recording {
    options: Options,
    open_store: OpenStore,
    shared: Arc<Shared>,
    recorder: Recorder<Encoded>,
    /// Caps of the frames that arrive.
    caps: Option<gst::Caps>,
    clip: Option<Open>,
    /// Labels and first stream time of the events of the current clip.
    labels: BTreeSet<String>,
    event_ns: Option<u64>,
    n_clips: u64,
    to_finish: Sender<Finishing>,
}

/// The current clip.
#[derive(Default)]
struct Open {
    /// The current file with its name and caps; `None` before the first frame, and after a failure.
    file: Option<(ClipWriter, String, gst::Caps)>,
    begin_ns: Option<u64>,
    /// Whether a frame of the clip was written, or its loss was counted.
    is_counted: bool,
}

impl Recording {
    fn run(&mut self, receiver: &Receiver<Input>) {
        for input in receiver {
            match input {
                Input::Caps(caps) => self.caps = Some(caps),
                Input::Frame { buffer, running_time, stream_time } => {
                    let Some(caps) = self.caps.clone() else { continue };
                    let (is_key, n_bytes) = (!buffer.flags().contains(gst::BufferFlags::DELTA_UNIT), buffer.size());
                    let data = (buffer, caps, stream_time);
                    let actions = self.recorder.add(Unit { data, time: running_time, is_key, n_bytes });
                    self.act(actions);
                }
                Input::Results { running_time, stream_time, event } => {
                    let actions = self.recorder.know(running_time, event.is_some());
                    // These actions may end the previous clip. So add the labels afterwards: they belong to the clip of this event.
                    self.act(actions);
                    if let Some(labels) = event {
                        self.labels.extend(labels.iter().map(|label| (**label).to_owned()));
                        self.event_ns = self.event_ns.or(stream_time);
                    }
                }
                Input::Reset => self.finish(),
                Input::End(done) => {
                    self.finish();
                    let (name, labels) = Default::default();
                    let (writer, begin_ns, event_ns, failure) = (None, None, None, None);
                    let last = Finishing { writer, name, begin_ns, event_ns, labels, failure, done: Some(done) };
                    let _sent = self.to_finish.send(last);
                }
            }
        }
        self.finish();
    }

    /// Completes the current clip with the frames that have arrived.
    fn finish(&mut self) {
        let actions = self.recorder.finish();
        self.act(actions);
        self.end();
    }

    fn act(&mut self, actions: Vec<Action<Encoded>>) {
        for action in actions {
            match action {
                Action::Begin => self.clip = Some(Open::default()),
                Action::Write(unit) => self.write(unit),
                Action::End => self.end(),
            }
        }
        if !self.recorder.has_clip() {
            (self.labels, self.event_ns) = Default::default();
        }
    }

    fn write(&mut self, unit: Unit<Encoded>) {
        let (buffer, caps, stream_time) = unit.data;
        let Some(open) = &mut self.clip else { return };
        if open.file.as_ref().is_some_and(|(_, _, of_file)| !is_same_video(of_file, &caps)) {
            self.close(None);
        }
        if unit.is_key {
            self.begin(&caps, stream_time);
        }
        let Some(Open { file: Some((writer, name, _)), is_counted, .. }) = &mut self.clip else { return };
        *is_counted = true;
        match writer.push(buffer) {
            Ok(()) if writer.has_video() => {
                let (store, name) = (self.shared.store(), name.clone());
                let path = store.as_ref().map(|store| store.path(&name)).unwrap_or_default();
                drop(store);
                self.shared.works(|| path);
            }
            Ok(()) => {}
            Err(error) => self.close(Some(error)),
        }
    }

    /// Begins a file if none is open, and the last failure is long enough ago.
    fn begin(&mut self, caps: &gst::Caps, stream_time: Option<u64>) {
        let Some(open) = self.clip.as_mut().filter(|open| open.file.is_none()) else { return };
        if !self.shared.retry().may_begin(Instant::now()) {
            return;
        }
        self.n_clips += 1;
        let name = format!("{PREFIX}{}-{}-{:04}.mp4", file_name_part(&self.options.stream), self.options.epoch, self.n_clips);
        let part = {
            let mut store = self.shared.store();
            match store.take().map_or_else(|| (self.open_store)(), Ok) {
                Ok(opened) => store.insert(opened).begin(&name).map_err(|error| error.to_string()),
                Err(error) => Err(error.to_string()),
            }
        };
        match part.and_then(|part| ClipWriter::begin(caps, &part)) {
            Ok(writer) => {
                open.begin_ns = stream_time;
                open.file = Some((writer, name, caps.clone()));
            }
            Err(error) => {
                open.is_counted = true;
                self.shared.store().iter().for_each(|store| store.abandon(&name));
                self.shared.fail(&name, &error);
            }
        }
    }

    /// Ends the current file. The clip may continue in another file.
    fn close(&mut self, failure: Option<String>) {
        let Some(open) = &mut self.clip else { return };
        if let Some((writer, name, _)) = open.file.take() {
            let (labels, begin_ns, event_ns) = (self.labels.iter().cloned().collect(), open.begin_ns, self.event_ns);
            // Sending cannot fail, because the thread that completes files ends after this thread.
            let _sent = self.to_finish.send(Finishing { writer: Some(writer), name, begin_ns, event_ns, labels, failure, done: None });
        }
    }

    /// Ends the current clip.
    fn end(&mut self) {
        self.close(None);
        if self.clip.take().is_some_and(|open| !open.is_counted) {
            (self.shared.on_news)(News::Failed("no file could be written for a clip".to_owned()));
        }
        (self.labels, self.event_ns) = Default::default();
    }
}

/// Whether frames with these caps fit into one file. Other fields of the caps, such as the frame rate, may change within a file.
fn is_same_video(first: &gst::Caps, second: &gst::Caps) -> bool {
    let fixed = |caps: &gst::Caps| {
        let structure = caps.structure(0)?;
        let size = (structure.get::<i32>("width").ok(), structure.get::<i32>("height").ok());
        let header = structure.get::<gst::Buffer>("codec_data").ok()?.map_readable().ok()?.to_vec();
        Some((structure.name().to_string(), size, header))
    };
    first == second || fixed(first).is_some_and(|first| fixed(second) == Some(first))
}
