//! The backend: resolves streams of the server to plans, and adds them to a pipeline handle.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use roiflow_server::backend::{Parameter, Pipeline};
use roiflow_server::{Backend, Failure, FailureKind, Feed, Prepared, Running, Start, Video};

use super::running::{Observed, RunningStream, tap};
use crate::elements::publish;
use crate::frame::{Gap, Size};
use crate::pipeline::{
    self, Error, ErrorKind, Input, Logins, Outputs, PipelineHandle, Plan, Restart, RestartPolicy, Spec, SpoolFolder, StreamId, Tap, probe,
    spec,
};
use crate::publish::{self as destinations, Url};
use crate::redaction::Secrets;
use crate::stages::Snapshot;

/// Number of frames of an endless test pattern: two years at 30 frames per second.
const ENDLESS: u32 = i32::MAX as u32;

/// How long an input may take until its first frame when it is tested.
const MAX_PROBE: Duration = Duration::from_secs(10);

/// Runs streams of the server as pipelines.
pub struct Pipelines(Arc<Shared>);

/// Destinations of the results of all streams, in addition to those of each stream.
#[derive(Debug, Clone, Default)]
pub struct Destinations {
    /// Servers that get each line of results.
    pub publish: Vec<Url>,
    /// Where results are stored until the servers acknowledge them; `None`: they wait in memory.
    pub spool: Option<SpoolFolder>,
}

/// The state that the backend and its streams share.
pub(super) struct Shared {
    pub(super) handle: PipelineHandle,
    /// State of each stream, as the thread that receives events has recorded it.
    pub(super) observed: Mutex<HashMap<StreamId, Arc<Observed>>>,
    logins: Logins,
    /// Folder with further descriptions.
    folder: Option<PathBuf>,
    destinations: Destinations,
    /// Models and files of the streams that were prepared and are to start, by name.
    prepared: Mutex<HashMap<String, Weak<Snapshot>>>,
    /// Receives credentials that must not appear in messages of the process.
    hide: Box<dyn Fn(Secrets) + Send + Sync>,
}

impl Pipelines {
    /// Creates a backend without streams. `folder` has further pipeline descriptions. `destinations` apply to all streams. `hide` receives
    /// credentials that must not appear in messages of the process.
    ///
    /// # Errors
    /// Returns an error if a thread cannot be started.
    pub fn new(
        logins: Logins,
        folder: Option<PathBuf>,
        destinations: Destinations,
        hide: impl Fn(Secrets) + Send + Sync + 'static,
    ) -> Result<Self, Error> {
        let (handle, events) = PipelineHandle::new()?;
        let (observed, prepared) = (Mutex::default(), Mutex::default());
        let shared = Arc::new(Shared { handle, observed, logins, folder, destinations, prepared, hide: Box::new(hide) });
        // A strong reference would keep the handle alive. But the events, and so this thread, end only when the handle is dropped.
        let of_thread = Arc::downgrade(&shared);
        let receive = move || {
            for event in events {
                let Some(shared) = of_thread.upgrade() else { return };
                let stream = shared.observed.lock().unwrap_or_else(PoisonError::into_inner).get(&event.stream).cloned();
                if let Some(stream) = stream {
                    stream.record(&event.event);
                }
            }
        };
        std::thread::Builder::new()
            .name("roiflow-events".to_owned())
            .spawn(receive)
            .map_err(|error| Error::failed(format!("cannot start the thread that receives events: {error}")))?;
        Ok(Self(shared))
    }
}

impl Shared {
    /// Resolves a stream to a plan.
    pub(super) fn plan(&self, start: &Start, tap: Option<Tap>) -> Result<Plan, Error> {
        let spec = match &start.path {
            Some(path) => Spec::read(path)?,
            None => {
                let named = spec::named().into_iter().find(|named| named.name == start.pipeline);
                named.ok_or_else(|| Error::usage(format!("expected the name of a pipeline, got `{}`", start.pipeline)))?.read()?
            }
        };
        let input = match Input::parse(&start.input)?.with_logins(&self.logins)? {
            Input::Test(_) if start.repeat => Input::Test(ENDLESS),
            other => other,
        };
        if let Input::Images(images) = &input {
            check_links(Path::new(&start.input), images)?;
        }
        (self.hide)(input.secrets());
        start.publish.iter().for_each(|url| (self.hide)(destinations::secrets(&url.text)));
        let policy = match &input {
            // Restart a live source also after a regular end, because a camera that ends its stream usually comes back.
            Input::Uri(uri) if uri.is_live() || start.repeat => Some(RestartPolicy::Always),
            Input::Uri(_) => Some(RestartPolicy::OnError),
            _ => None,
        };
        let outputs = Outputs {
            publish: start.publish.iter().chain(&self.destinations.publish).cloned().collect(),
            repeat: start.repeat,
            tap,
            real_time: true,
            assignment: start.assignment,
            spool: self.destinations.spool.clone(),
            ..Outputs::default()
        };
        let plan = Plan::resolve(&spec, &start.parameters, input, outputs.of_stream(&start.name, true))?;
        plan.check_files_of_client(&start.parameters)?;
        let restart = Restart { policy: plan.restart.policy.or(policy), ..plan.restart };
        Ok(Plan { restart, ..plan })
    }
}

impl Shared {
    /// Prepares a plan of a stream. `size` is the size of the frames, if it is known. While the result exists, the stream of this name starts
    /// with these models and files.
    pub(super) fn prepare(&self, name: &str, plan: &Plan, size: Option<Size>) -> Result<Prepared, Failure> {
        // A file can be opened twice, and tells the size of its frames.
        let size = match &plan.input {
            Input::File(_) => {
                let video = probe(plan.input.clone(), MAX_PROBE).map_err(failure)?;
                Some(Size::new(video.width, video.height))
            }
            _ => size,
        };
        let snapshot = Arc::new(pipeline::prepare(plan, size).map_err(failure)?);
        let mut all = self.prepared.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|_, snapshot| snapshot.strong_count() > 0);
        all.insert(name.to_owned(), Arc::downgrade(&snapshot));
        Ok(Prepared::new(snapshot))
    }

    /// Returns the models and files that were prepared for a stream; an empty snapshot if there are none.
    fn prepared(&self, name: &str) -> Snapshot {
        let all = self.prepared.lock().unwrap_or_else(PoisonError::into_inner);
        all.get(name).and_then(Weak::upgrade).map(|snapshot| Snapshot::clone(&snapshot)).unwrap_or_default()
    }
}

impl Backend for Pipelines {
    fn pipelines(&self) -> Vec<Pipeline> {
        let mut all: Vec<(String, Option<PathBuf>, Result<Spec, Error>)> =
            spec::named().into_iter().map(|named| (named.name.clone(), named.path.clone(), named.read())).collect();
        for (name, path) in self.0.folder.iter().flat_map(|folder| in_folder(folder)) {
            // A description in the folder replaces the named description with the same name.
            all.retain(|(known, _, _)| *known != name);
            let spec = Spec::read(&path);
            all.push((name, Some(path), spec));
        }
        all.sort_by(|a, b| a.0.cmp(&b.0));
        all.into_iter().map(|(name, path, spec)| described(name, path, spec)).collect()
    }

    fn prepare(&self, start: &Start) -> Result<Prepared, Failure> {
        self.0.prepare(&start.name, &self.0.plan(start, None).map_err(failure)?, None)
    }

    fn probe(&self, input: &str) -> Result<Video, Failure> {
        let input = Input::parse(input).and_then(|input| input.with_logins(&self.0.logins)).map_err(failure)?;
        (self.0.hide)(input.secrets());
        let video = match input {
            // The source of a plan with a test pattern.
            Input::Test(_) => Video { width: 640, height: 480, codec: None, fps: Some(30.0) },
            input => {
                let found = probe(input, MAX_PROBE).map_err(failure)?;
                Video { width: found.width, height: found.height, codec: found.codec, fps: found.fps }
            }
        };
        Ok(video)
    }

    fn inspect(&self, model: &Path) -> Result<String, Failure> {
        let failed = |message: String| Failure::new(FailureKind::Usage, message);
        // The command reads the file in another process with limits.
        let program = std::env::current_exe().map_err(|error| failed(format!("cannot inspect the model: {error}")))?;
        let output = std::process::Command::new(program).arg("inspect").arg(model).stdin(std::process::Stdio::null()).output();
        let output = output.map_err(|error| failed(format!("cannot inspect the model: {error}")))?;
        // Remove the folder from the text, because clients must not see the paths of the server.
        let folder = model.parent().map(|folder| format!("{}/", folder.display())).unwrap_or_default();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).replace(&folder, "").trim().to_owned();
        if output.status.success() { Ok(text(&output.stdout)) } else { Err(failed(text(&output.stderr))) }
    }

    fn start(&self, start: &Start, feed: Feed) -> Result<Box<dyn Running>, Failure> {
        let tap = tap(feed.clone());
        let plan = self.0.plan(start, Some(tap)).map_err(failure)?;
        let engine = plan.engine.clone();
        let devices = plan.devices().iter().map(|device| engine.prepare_device(device.as_deref())).collect();
        let observed = Arc::new(Observed::new(feed));
        // Hold the lock until the stream is in the map. Otherwise the thread that receives events would ignore the first events of this
        // stream.
        let mut all = self.0.observed.lock().unwrap_or_else(PoisonError::into_inner);
        let snapshot = self.0.prepared(&start.name);
        let stream = self.0.handle.add_prepared(&plan, snapshot).map_err(failure)?;
        all.insert(stream, observed.clone());
        drop(all);
        Ok(Box::new(RunningStream::new(self.0.clone(), stream, observed, plan, devices)))
    }

    fn announce_gap(&self, gap: Gap) {
        publish::announce_gap(gap);
    }

    fn forget_gap(&self, stream: &str) {
        publish::forget_gap(stream);
    }
}

/// Returns the names and paths of the descriptions in a folder.
fn in_folder(folder: &Path) -> Vec<(String, PathBuf)> {
    let files = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let descriptions = files.filter(|file| file.extension().is_some_and(|ending| ending == "toml"));
    descriptions.filter_map(|file| Some((file.file_stem()?.to_str()?.to_owned(), file))).collect()
}

/// Checks that the images of a folder that a client has named lie in it: links to other places are not for clients.
fn check_links(folder: &Path, images: &[PathBuf]) -> Result<(), Error> {
    let real = folder.canonicalize().unwrap_or_else(|_| folder.to_owned());
    // A file that does not exist is reported when it is read.
    let leads_outside = |image: &&PathBuf| image.canonicalize().is_ok_and(|image| !image.starts_with(&real));
    let Some(link) = images.iter().find(leads_outside) else { return Ok(()) };
    let name = link.file_name().unwrap_or_default().to_string_lossy();
    Err(Error::usage(format!(
        "input: expected images inside the folder, got the link `{name}`, which leads outside. Remove it, or copy the image"
    )))
}

/// Describes a pipeline for clients. If the pipeline cannot be read, the description is the error.
fn described(name: String, path: Option<PathBuf>, spec: Result<Spec, Error>) -> Pipeline {
    let spec = match spec {
        Ok(spec) => spec,
        Err(error) => return Pipeline { name, description: format!("cannot be read: {error}"), parameters: Vec::new(), path },
    };
    let text = |value: &toml::Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let parameters = spec.file.parameters.iter().map(|(name, parameter)| Parameter {
        name: name.clone(),
        r#type: parameter.r#type.name().to_owned(),
        help: parameter.help.clone(),
        required: parameter.default.is_none(),
        default: parameter.default.as_ref().map(text),
    });
    Pipeline { name, description: spec.file.description.clone(), parameters: parameters.collect(), path }
}

pub(super) fn failure(error: Error) -> Failure {
    let kind = match error.kind() {
        ErrorKind::Usage => FailureKind::Usage,
        ErrorKind::Unavailable => FailureKind::Unavailable,
        ErrorKind::Failed | ErrorKind::Closed => FailureKind::Failed,
    };
    Failure::new(kind, error.to_string())
}
