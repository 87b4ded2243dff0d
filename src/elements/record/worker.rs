//! The worker thread of `roirecord`: turns encoded frames and events into clips.
//!
//! The streaming threads only send to a bounded channel. This thread never waits for the disk: each clip is written by a small pipeline of
//! its own, and a second thread completes the files.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use gstreamer as gst;

use super::clip::ClipWriter;
use super::recorder::{Action, Durations, Recorder, Unit};
use crate::publish::{FileStore, file_name_part};

/// Maximum size of the encoded frames that wait for results.
const MAX_RING_BYTES: usize = 256 << 20;
/// Maximum number of messages that wait for the thread.
const MAX_MESSAGES: usize = 256;
/// Prefix of the names of all files.
pub(super) const PREFIX: &str = "clip-";

/// A message from a streaming thread to the worker thread. Times are in nanoseconds.
pub(super) enum Input {
    /// Caps of the encoded frames that follow. A clip cannot continue with other caps.
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

/// Receives complete clips, and errors of lost clips.
pub(super) type OnClip = Arc<dyn Fn(Result<Clip, String>) + Send + Sync>;

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
    /// Starts the thread.
    ///
    /// # Errors
    /// Returns an error if a thread cannot be started.
    pub(super) fn start(options: Options, store: FileStore, on_clip: OnClip) -> std::io::Result<Self> {
        let (sender, receiver) = sync_channel(MAX_MESSAGES);
        let (to_finish, finishing) = channel::<Finishing>();
        let store = Arc::new(Mutex::new(store));
        let finisher = {
            let (store, on_clip) = (store.clone(), on_clip.clone());
            let run = move || finishing.into_iter().for_each(|clip| clip.finish(&store, &on_clip));
            std::thread::Builder::new().name("roirecord-end".to_owned()).spawn(run)?
        };
        let recorder = Recorder::new(options.durations, MAX_RING_BYTES);
        let (caps, clip, labels, event_ns, n_clips) = Default::default();
        let mut recording = Recording { options, store, recorder, caps, clip, labels, event_ns, n_clips, to_finish, on_clip };
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

/// A clip that has all its frames, and whose file must be completed.
struct Finishing {
    writer: Option<ClipWriter>,
    name: String,
    begin_ns: Option<u64>,
    event_ns: Option<u64>,
    labels: Vec<String>,
    /// Notified when this and all earlier clips are complete.
    done: Option<Sender<()>>,
}

impl Finishing {
    fn finish(self, store: &Mutex<FileStore>, on_clip: &OnClip) {
        let Self { writer, name, begin_ns, event_ns, labels, done } = self;
        if let Some(writer) = writer {
            let (n_frames, duration_ns) = (writer.n_frames, writer.duration().nseconds());
            let written = writer.finish();
            let mut store = store.lock().unwrap_or_else(PoisonError::into_inner);
            let named = match written {
                Ok(()) => store.finish(&name).map_err(|error| error.to_string()),
                Err(error) => {
                    store.abandon(&name);
                    Err(error)
                }
            };
            drop(store);
            let clip = named.map(|path| {
                let n_bytes = std::fs::metadata(&path).map_or(0, |metadata| metadata.len());
                Clip { path, n_frames, n_bytes, duration_ns, begin_ns, event_ns, labels }
            });
            on_clip(clip.map_err(|error| format!("cannot write clip {name}: {error}")));
        }
        drop(done);
    }
}

/// State of the thread.
struct Recording {
    options: Options,
    store: Arc<Mutex<FileStore>>,
    recorder: Recorder<(gst::Buffer, Option<u64>)>,
    caps: Option<gst::Caps>,
    clip: Option<Open>,
    /// Labels and first stream time of the events of the current clip.
    labels: BTreeSet<String>,
    event_ns: Option<u64>,
    n_clips: u64,
    to_finish: Sender<Finishing>,
    on_clip: OnClip,
}

/// The current clip.
struct Open {
    /// `None` after a failure.
    writer: Option<ClipWriter>,
    name: String,
    begin_ns: Option<u64>,
}

impl Recording {
    fn run(&mut self, receiver: &Receiver<Input>) {
        for input in receiver {
            match input {
                Input::Caps(caps) => {
                    if self.caps.as_ref().is_some_and(|own| *own != caps) {
                        self.finish();
                    }
                    self.caps = Some(caps);
                }
                Input::Frame { buffer, running_time, stream_time } => {
                    let (is_key, n_bytes) = (!buffer.flags().contains(gst::BufferFlags::DELTA_UNIT), buffer.size());
                    let actions = self.recorder.add(Unit { data: (buffer, stream_time), time: running_time, is_key, n_bytes });
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
                    let _sent =
                        self.to_finish.send(Finishing { writer: None, name, begin_ns: None, event_ns: None, labels, done: Some(done) });
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

    fn act(&mut self, actions: Vec<Action<(gst::Buffer, Option<u64>)>>) {
        for action in actions {
            match action {
                Action::Begin => self.clip = Some(self.begin()),
                Action::Write(unit) => self.write(unit),
                Action::End => self.end(),
            }
        }
        if !self.recorder.has_clip() {
            (self.labels, self.event_ns) = Default::default();
        }
    }

    fn begin(&mut self) -> Open {
        self.n_clips += 1;
        let name = format!("{PREFIX}{}-{}-{:04}.mp4", file_name_part(&self.options.stream), self.options.epoch, self.n_clips);
        let part = self.store.lock().unwrap_or_else(PoisonError::into_inner).part(&name);
        let caps = self.caps.as_ref().ok_or_else(|| "the video has no caps".to_owned());
        let writer = caps.and_then(|caps| ClipWriter::begin(caps, &part));
        let mut open = Open { writer: None, name, begin_ns: None };
        match writer {
            Ok(writer) => open.writer = Some(writer),
            Err(error) => self.lose(&open.name, &error),
        }
        open
    }

    fn write(&mut self, unit: Unit<(gst::Buffer, Option<u64>)>) {
        let Some(open) = &mut self.clip else { return };
        let Some(writer) = &mut open.writer else { return };
        let (buffer, stream_time) = unit.data;
        if writer.n_frames == 0 {
            open.begin_ns = stream_time;
        }
        if let Err(error) = writer.push(buffer) {
            open.writer = None;
            let name = open.name.clone();
            self.lose(&name, &error);
        }
    }

    fn lose(&self, name: &str, error: &str) {
        self.store.lock().unwrap_or_else(PoisonError::into_inner).abandon(name);
        (self.on_clip)(Err(format!("cannot write clip {name}: {error}")));
    }

    fn end(&mut self) {
        let Some(Open { writer: Some(writer), name, begin_ns }) = self.clip.take() else { return };
        let labels = std::mem::take(&mut self.labels).into_iter().collect();
        // Sending cannot fail, because the thread that completes files ends after this thread.
        let _sent =
            self.to_finish.send(Finishing { writer: Some(writer), name, begin_ns, event_ns: self.event_ns.take(), labels, done: None });
    }
}
