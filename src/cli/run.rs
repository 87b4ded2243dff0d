//! `roiflow run`: runs a pipeline description or models on inputs, with a progress bar and a summary.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::bail;
use clap::builder::TypedValueParser;
use indicatif::{ProgressBar, ProgressStyle};

use super::events::Events;
use super::frame_memory::FrameMemoryArg;
use super::reload::{self, Reloads};
use super::service::Service;
use super::signals;
use super::terminal::{Quoted, Terminal};
use super::trace::Trace;
use crate::elements::guarded_source;
use crate::pipeline::stats::Stats;
use crate::pipeline::{
    self, Classifier, Credentials, Crops, Ending, ErrorKind, Event, IfExists, ImageFiles, ImageRate, Input, Interrupt, Limits, Logins,
    Models, Outputs, PipelineHandle, Plan, Progress, Restart, RestartPolicy, Spec, SpoolFolder, StreamId, descriptors, images_out,
    models::check_labels, naming, outputs, streams, uri::Uri,
};
use crate::publish::{self, Url};
use crate::{folders, stages};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The pipeline description: a file such as pipelines/faces.toml, or the name of an installed one, such as faces; `roiflow inspect`
    /// lists its parameters
    #[arg(value_name = "PIPELINE", conflicts_with_all = ["model", "classify", "track"])]
    pipeline: Option<PathBuf>,
    /// Run this detector, instead of a pipeline description
    #[arg(long, short, value_name = "FILE")]
    model: Option<PathBuf>,
    /// Classify each detected object with this model, or whole frames without --model; model.onnx@car,truck: only objects with these
    /// labels. Repeat for several classifiers
    #[arg(long, value_name = "FILE[@LABELS]")]
    classify: Vec<PathBuf>,
    /// Give each detected object a track ID
    #[arg(long, requires = "model")]
    track: bool,
    /// A video, an image, a folder or pattern of images such as 'door/*.jpg' or door/%05d.jpg, rtsp://..., v4l2:///dev/video0, test:, or -
    /// for standard input; repeat for several streams
    #[arg(long, short, value_name = "FILE_OR_URI", required = true, value_parser = clap::builder::OsStringValueParser::new().map(input_text))]
    input: Vec<String>,
    /// File with users and passwords of inputs by host, in .netrc format; alternatives: environment variables ROIFLOW_INPUT_USER with
    /// ROIFLOW_INPUT_PASSWORD or ROIFLOW_INPUT_PASSWORD_FILE
    #[arg(long, value_name = "FILE")]
    input_credentials: Option<PathBuf>,
    /// Write one line of JSON per frame; `-` is standard output; with several inputs, {stream} expands to the input's name
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Send each line also to a server, such as mqtt://broker/topic/{stream}, nats://, redis:// or https://, or to a file; repeat for several. User and
    /// password can name environment variables: 'mqtt://${BROKER_USER}:${BROKER_PASSWORD}@broker'
    #[arg(long, value_name = "URL")]
    publish: Vec<String>,
    /// Store results for the servers of --publish in this folder until they acknowledge them, also beyond the end of this command
    #[arg(long, value_name = "FOLDER", requires = "publish")]
    spool: Option<PathBuf>,
    /// Maximum size of the spool for each server, such as 500M; then the oldest results are dropped [default: 1G]
    #[arg(long, value_name = "BYTES", requires = "spool", value_parser = parse_bytes)]
    spool_max_bytes: Option<u64>,
    /// Drop results that are older than this in the spool, such as 90s, 12h or 7d
    #[arg(long, value_name = "DURATION", requires = "spool", value_parser = parse_duration)]
    spool_max_age: Option<Duration>,
    /// Add a constant field to each line of --json and --publish, in `tags`; VALUE is JSON, or else a text; repeat for several fields
    #[arg(long, value_name = "NAME=VALUE", value_parser = parse_assignment)]
    tag: Vec<(String, String)>,
    /// Write only objects and events with these labels to --json and --publish, with commas between
    #[arg(long, value_name = "LABELS")]
    only_labels: Option<String>,
    /// Write only objects in these zones, and events at these lines and zones, to --json and --publish, with commas between; needs a
    /// description with roianalytics
    #[arg(long, value_name = "ZONES")]
    only_zones: Option<String>,
    /// Write only frames with events to --json and --publish; needs a description with roianalytics
    #[arg(long)]
    only_events: bool,
    /// Write only frames whose objects or attributes have changed to --json and --publish; movement is no change
    #[arg(long)]
    only_changes: bool,
    /// Write at most this number of frames per second of stream time to --json and --publish, and in addition all frames with events
    #[arg(long, value_name = "NUMBER", value_parser = parse_rate)]
    max_rate: Option<String>,
    /// Write the best image of each tracked object as JPEG into this folder, and a line with its path to --json and --publish; without
    /// --track, each object of each frame; {stream} as for --json
    #[arg(long, value_name = "FOLDER")]
    crops: Option<PathBuf>,
    /// Put the images of objects into the lines of --json and --publish, encoded in Base64
    #[arg(long)]
    crops_in_messages: bool,
    /// Write only images of objects with these labels, with commas between
    #[arg(long, value_name = "LABELS")]
    crops_class: Option<String>,
    /// Maximum size of all images in the folder of --crops, such as 500M; then the oldest are deleted [default: 1G]
    #[arg(long, value_name = "BYTES", requires = "crops", value_parser = parse_bytes)]
    crops_max_bytes: Option<u64>,
    /// Write the video with boxes drawn (.mp4, .mov, .mkv); `-` is standard output; {stream} as for --json
    #[arg(long, value_name = "FILE")]
    video: Option<PathBuf>,
    /// Write each frame with boxes drawn as an image file into this folder, named after the input image; the folder is created if it is
    /// missing. Same as --video 'FOLDER/{source}.jpg' for JPEG images
    #[arg(long, value_name = "FOLDER")]
    images: Option<PathBuf>,
    /// Show the video in a window
    #[arg(long)]
    show: bool,
    /// Frame rate of an input of images: frames per second such as 25, or a fraction such as 30000/1001 [default: 5]
    #[arg(long, value_name = "RATE")]
    image_rate: Option<ImageRate>,
    /// Restart the input when it ends, until interrupted
    #[arg(long = "loop")]
    repeat: bool,
    /// End each stream after this number of frames
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    frames: Option<u64>,
    /// End each stream after this much stream time, counted from its first frame: seconds, or a time such as 5m
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    seconds: Option<Duration>,
    /// Name of a stream, for {stream} and in the JSON; repeat in the order of --input
    #[arg(long, value_name = "NAME")]
    name: Vec<String>,
    /// Time without data after which a camera or network source counts as lost: seconds, or a time such as 5m; 0: no limit
    #[arg(long, value_name = "DURATION", default_value = "10", value_parser = parse_timeout)]
    source_timeout: Timeout,
    /// When to open a camera or network source again: on-error: if it fails or its connection ends; always: also after a regular end.
    /// Default: on-error for live sources, but an error at once if the camera rejects the first request
    #[arg(long, value_name = "POLICY", value_parser = parse_policy())]
    restart: Option<RestartPolicy>,
    /// End a stream if its lost source delivers no frame for this long, such as 90s or 12h; without it, roiflow tries until the source is
    /// back
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    give_up_after: Option<Duration>,
    /// Time after which a live source that delivers data but no frame counts as lost, such as 5s; three times as long before the first
    /// frame; 0: no limit
    #[arg(long, value_name = "DURATION", value_parser = parse_timeout)]
    no_frame_timeout: Option<Timeout>,
    /// Write a line of JSON when the source or a recording of a stream, or a server of --publish, is lost, and when it is back; `-` is standard
    /// output
    #[arg(long, value_name = "FILE")]
    events: Option<PathBuf>,
    /// Device that runs the models, same as --set device=NAME; `roiflow devices` lists them
    #[arg(long, value_name = "NAME")]
    device: Option<String>,
    /// Minimum confidence of reported objects, 0 to 1, same as --set threshold=NUMBER
    #[arg(long, value_name = "NUMBER", value_parser = parse_fraction)]
    threshold: Option<String>,
    /// Report only objects with these labels, with commas between, same as --set classes=LABELS
    #[arg(long, value_name = "LABELS")]
    classes: Option<String>,
    /// Report no objects with these labels, with commas between, same as --set drop-classes=LABELS
    #[arg(long, value_name = "LABELS")]
    drop_classes: Option<String>,
    /// Set a parameter of the description
    #[arg(long, value_name = "NAME=VALUE", value_parser = parse_assignment)]
    set: Vec<(String, String)>,
    /// Write a trace of all steps, for ui.perfetto.dev or chrome://tracing
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Fail if a file of --json, --video or --trace exists
    #[arg(long, conflicts_with = "append")]
    no_overwrite: bool,
    /// Append the lines of --json to an existing file
    #[arg(long, requires = "json", conflicts_with_all = ["video", "trace"])]
    append: bool,
    /// For the Python package: write the pixels of each frame to this open file, and read on standard input which frames are in use
    #[arg(long, value_name = "DESCRIPTOR:COLOR", hide = true, requires = "json", value_parser = FrameMemoryArg::parse)]
    frame_memory: Option<FrameMemoryArg>,
    /// Print no progress and no summary
    #[arg(long, short)]
    quiet: bool,
}

/// Returns the value of `--input` as text. A path that is not UTF-8 becomes a `file:` URI.
fn input_text(input: std::ffi::OsString) -> String {
    input
        .into_string()
        .unwrap_or_else(|input| pipeline::file_uri(Path::new(&input)).unwrap_or_else(|_| input.to_string_lossy().into_owned()))
}

pub(super) fn parse_assignment(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or_else(|| format!("expected NAME=VALUE, got `{text}`"))?;
    Ok((name.to_owned(), value.to_owned()))
}

fn parse_rate(text: &str) -> Result<String, String> {
    let is_rate = text.parse::<f64>().is_ok_and(|rate| rate > 0.0 && rate <= 1e6);
    if is_rate { Ok(text.to_owned()) } else { Err(format!("expected frames per second above 0, got `{text}`")) }
}

fn parse_fraction(text: &str) -> Result<String, String> {
    let is_fraction = text.parse::<f32>().is_ok_and(|number| (0.0..=1.0).contains(&number));
    if is_fraction { Ok(text.to_owned()) } else { Err(format!("expected a number from 0 to 1, got `{text}`")) }
}

/// A timeout; `None` = no limit.
#[derive(Debug, Clone, Copy)]
struct Timeout(Option<Duration>);

fn parse_timeout(text: &str) -> Result<Timeout, String> {
    let timeout = publish::parse_duration(text)?;
    Ok(Timeout((!timeout.is_zero()).then_some(timeout.max(Duration::from_millis(1)))))
}

fn parse_policy() -> impl TypedValueParser<Value = RestartPolicy> {
    let names = RestartPolicy::ALL.map(RestartPolicy::name);
    clap::builder::PossibleValuesParser::new(names)
        .map(|name| RestartPolicy::ALL.into_iter().find(|policy| policy.name() == name).expect("one of the names"))
}

pub(super) fn parse_duration(text: &str) -> Result<Duration, String> {
    let duration = publish::parse_duration(text)?;
    if duration.is_zero() { Err("expected a duration above 0, got 0".to_owned()) } else { Ok(duration) }
}

fn parse_bytes(text: &str) -> Result<u64, String> {
    publish::parse_bytes(text).ok_or_else(|| format!("expected a number of bytes such as 500M or 2G, got `{text}`"))
}

impl Args {
    /// Starts the trace, if `--trace` requests one. Call this before any operation that is traced.
    pub(super) fn create_trace(&self) -> Option<Trace> {
        self.trace.as_ref().map(|path| Trace::new(path, self.if_exists()))
    }

    /// Returns how existing files are handled.
    fn if_exists(&self) -> IfExists {
        match (self.no_overwrite, self.append) {
            (true, _) => IfExists::Fail,
            (false, true) => IfExists::Append,
            (false, false) => IfExists::Replace,
        }
    }
}

/// An input, and how the stream of this input ended.
struct Stream {
    name: String,
    input: String,
    ended: Result<Ending, pipeline::Error>,
}

/// The error of a run in which some of several inputs failed, and the remaining inputs were played.
#[derive(Debug)]
pub(super) struct SomeFailed {
    n_failed: usize,
    n_inputs: usize,
}

impl std::fmt::Display for SomeFailed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} of {} inputs failed; all other inputs were played to their end", self.n_failed, self.n_inputs)
    }
}

impl std::error::Error for SomeFailed {}

/// The error of a run in which some images could not be read, and all other images were analyzed.
#[derive(Debug)]
pub(super) struct ImagesSkipped(u64);

impl std::fmt::Display for ImagesSkipped {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} images could not be read and were skipped; the results of all other images are complete", self.0)
    }
}

impl std::error::Error for ImagesSkipped {}

fn check_skipped(n_images: u64) -> anyhow::Result<()> {
    match n_images {
        0 => Ok(()),
        n_skipped => bail!(ImagesSkipped(n_skipped)),
    }
}

pub(super) fn run(args: Args, trace: Option<Trace>, terminal: &Terminal) -> anyhow::Result<()> {
    guarded_source::install()?;
    let of_inputs: Vec<String> = args.input.iter().filter_map(|input| Uri::parse(input)?.host().map(str::to_owned)).collect();
    let (of_logins, file) = (terminal.clone(), args.input_credentials.clone());
    let read = move || Ok(Credentials::read(file.as_deref())?.for_hosts(of_inputs.iter().cloned()));
    let logins = Logins::new(read, move |secrets| of_logins.hide(secrets))?;
    logins.current().warnings().iter().for_each(|warning| terminal.warn(warning));
    let names = naming::names(&args.input, &args.name)?;
    let frame_memory = args.frame_memory.map(FrameMemoryArg::open).transpose()?;
    let is_many = names.len() > 1;
    let read = || {
        let mut plans = read_plans(&args, &logins, &names)?;
        plans.iter_mut().flatten().for_each(|plan| plan.outputs.frame_memory.clone_from(&frame_memory));
        anyhow::Ok(plans)
    };
    let plans = read()?;
    // Return usage errors before any stream starts. If there is a single input, return an error of any kind, because no other stream could
    // run.
    if let Some(error) = plans.iter().find_map(|plan| plan.as_ref().err().filter(|error| !is_many || error.kind() == ErrorKind::Usage)) {
        bail!(error.clone());
    }
    images_out::check_streams(plans.iter().flatten())?;
    check_restart(&args, plans.iter().flatten())?;
    if args.image_rate.is_some() && !plans.iter().flatten().any(|plan| matches!(plan.input, Input::Images(_))) {
        bail!(pipeline::Error::usage("--image-rate: expected an input of images, such as door/%05d.jpg, got only other inputs"));
    }
    if let Some(trace) = &args.trace {
        outputs::check_destination("--trace", trace, args.if_exists())?;
    }
    let password_file = std::env::var_os(pipeline::credentials::PASSWORD_FILE).map(PathBuf::from);
    let secret_files = args.input_credentials.iter().chain(&password_file).map(|path| ("credentials", path.as_path()));
    let secret_files = secret_files.collect::<Vec<_>>();
    let also_written = [("--trace", &args.trace), ("--events", &args.events)];
    let also_written: Vec<(&str, &Path)> = also_written.into_iter().filter_map(|(role, path)| Some((role, path.as_deref()?))).collect();
    outputs::check(plans.iter().flatten(), &also_written, &secret_files)?;
    check_events(&args, &names)?;
    descriptors::check(plans.iter().flatten().map(|plan| &plan.input))?;

    let engine = stages::Engine::of_process();
    engine.set_cache_folder(folders::model_cache());
    let devices: BTreeSet<_> = plans.iter().flatten().flat_map(Plan::devices).collect();
    let _until_the_end: Vec<_> = devices.iter().map(|device| engine.prepare_device(device.as_deref())).collect();
    let interrupt = Interrupt::default();
    let events = args.events.as_ref().map(|path| Events::start(path, args.if_exists(), terminal)).transpose()?;
    let service = Service::of_process(plans.iter().flatten().count());
    let (reloads, requests) = Reloads::new();
    signals::handle(&interrupt, trace.as_ref(), &service, &reloads, terminal)?;
    let begin = Instant::now();
    let reads_again = || {
        // A run with only a part of the new files would be neither the old one nor the new one.
        logins.reload()?;
        let new = read()?;
        check_restart(&args, new.iter().flatten())?;
        Ok(new.into_iter().zip(&plans).filter(|(_, old)| old.is_ok()).map(|(new, _)| new).collect())
    };
    let again = Again { reads_again: &reads_again, reloads: &reloads, requests };
    let ended = play(&plans, &names, &interrupt, (trace.as_ref(), events.as_ref(), &service), again, args.quiet, terminal);
    service.end();
    events.into_iter().for_each(|events| events.finish(Instant::now() + MAX_EVENTS_WAIT));
    // If no stream has played, do not write the trace, so that it does not replace an earlier trace.
    let is_traced = |trace: &Trace| ended.iter().flatten().any(|ending| !ending.forced) || trace.is_open();
    let traced = trace.filter(is_traced).map_or(Ok(()), |trace| trace.finish());
    let all: Vec<Stream> =
        names.into_iter().zip(&args.input).zip(ended).map(|((name, input), ended)| Stream { name, input: input.clone(), ended }).collect();
    if let [one] = &*all {
        let ending = one.ended.clone()?;
        traced?;
        if !args.quiet {
            terminal.print(summary(&args, &all, &ending.stats, begin.elapsed()).trim_end());
        }
        signals::check_forced(ending.forced)?;
        return check_skipped(ending.n_skipped_images);
    }
    traced?;
    let endings = || all.iter().filter_map(|stream| stream.ended.as_ref().ok());
    if !args.quiet {
        let stats = Stats::sum(endings().map(|ending| &ending.stats));
        terminal.print(summary(&args, &all, &stats, begin.elapsed()).trim_end());
    }
    let is_closed = |stream: &Stream| stream.ended.as_ref().is_err_and(|error| error.kind() == ErrorKind::Closed);
    if let Some(Stream { ended: Err(error), .. }) = all.iter().find(|stream| is_closed(stream)) {
        bail!(error.clone());
    }
    match all.iter().filter(|stream| stream.ended.is_err()).count() {
        0 => {
            signals::check_forced(endings().any(|ending| ending.forced))?;
            check_skipped(endings().map(|ending| ending.n_skipped_images).sum())
        }
        n_failed if n_failed == all.len() => bail!("all {n_failed} inputs failed"),
        n_failed => bail!(SomeFailed { n_failed, n_inputs: all.len() }),
    }
}

/// Reads the pipeline description, and returns the plan of each input.
fn read_plans(args: &Args, logins: &Logins, names: &[String]) -> anyhow::Result<Vec<Result<Plan, pipeline::Error>>> {
    let mut models = Models::default();
    let (spec, of_models) = match &args.pipeline {
        Some(pipeline) => (Spec::find(pipeline)?, Vec::new()),
        None if args.model.is_none() && args.classify.is_empty() => bail!(pipeline::Error::usage(
            "expected a pipeline description or a model, got neither: add --model FILE, --classify FILE, or a PIPELINE such as pipelines/faces.toml"
        )),
        None => {
            let classifiers = args.classify.iter().map(|text| Classifier::parse(text)).collect::<Result<_, _>>()?;
            models = Models { detector: args.model.clone(), track: args.track, classifiers };
            models.pipeline()?
        }
    };
    let options =
        [("device", &args.device), ("threshold", &args.threshold), ("classes", &args.classes), ("drop-classes", &args.drop_classes)];
    let options: Vec<_> = options.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value.clone()?))).collect();
    if let Some((name, _)) = options.iter().find(|(name, _)| name != "device" && !spec.has_parameter(name)) {
        bail!(pipeline::Error::usage(match &args.pipeline {
            Some(pipeline) => format!(
                "--{name}: expected a pipeline description with the parameter `{name}`, got `{}` without it. Add the parameter, or use --model",
                pipeline.display()
            ),
            None => format!("--{name}: expected a detector, got none. Add --model FILE"),
        }));
    }
    let set: Vec<_> = of_models.into_iter().chain(args.set.clone()).chain(options).collect();
    check_labels(&models, &set)?;
    let is_many = names.len() > 1;
    let plans = args.input.iter().zip(names).map(|(input, name)| plan(args, (&spec, &set), logins, input, name, is_many));
    Ok(plans.collect())
}

/// The values with which a run reloads its description.
struct Again<'a> {
    /// Reads the description again, and returns the new plans of the streams.
    reads_again: &'a (dyn Fn() -> anyhow::Result<Vec<Result<Plan, pipeline::Error>>> + Sync),
    reloads: &'a Reloads,
    requests: reload::Requests,
}

fn plan(
    args: &Args,
    (spec, set): (&Spec, &[(String, String)]),
    logins: &Logins,
    input: &str,
    name: &str,
    is_many: bool,
) -> Result<Plan, pipeline::Error> {
    let parsed = Input::parse(input)?.with_logins(logins)?;
    if args.repeat && matches!(parsed, Input::Uri(_) | Input::Test(_)) {
        return Err(pipeline::Error::usage(format!("--loop needs a file or images, got `{}`", streams::redacted(input))));
    }
    // A `--video` path such as out/{source}.jpg requests image files instead of a video.
    let images_of_video = args.video.as_deref().map(ImageFiles::of_template).transpose()?.flatten();
    let video = args.video.clone().filter(|_| images_of_video.is_none());
    let images = match (&args.images, images_of_video) {
        (Some(folder), None) => Some(ImageFiles::in_folder(folder)),
        (None, images) => images,
        (Some(_), Some(_)) => return Err(pipeline::Error::usage("--images and --video with images: expected one of them, got both")),
    };
    let (json, show, repeat, if_exists) = (args.json.clone(), args.show, args.repeat, args.if_exists());
    let spool = args.spool.clone().map(|path| SpoolFolder { path, max_bytes: args.spool_max_bytes, max_age: args.spool_max_age });
    let publish: Vec<Url> = args.publish.iter().map(Url::of_user).collect();
    let has_crops = args.crops.is_some() || args.crops_in_messages;
    if args.crops_in_messages && json.is_none() && publish.is_empty() {
        return Err(pipeline::Error::usage("--crops-in-messages: expected --json or --publish, got neither"));
    }
    if args.crops_class.is_some() && !has_crops {
        return Err(pipeline::Error::usage("--crops-class: expected --crops or --crops-in-messages, got neither"));
    }
    let crops = has_crops.then(|| Crops {
        folder: args.crops.clone(),
        in_messages: args.crops_in_messages,
        classes: args.crops_class.clone(),
        max_bytes: args.crops_max_bytes,
    });
    let lines = lines(args);
    if let Some((option, _)) = lines.first_key_value().filter(|_| json.is_none() && publish.is_empty()) {
        let option = option_of(option);
        return Err(pipeline::Error::usage(format!("{option}: expected --json or --publish, got neither")));
    }
    let image_rate = args.image_rate.unwrap_or_default();
    let outputs = Outputs { lines, json, publish, spool, crops, video, images, show, repeat, if_exists, image_rate, ..Outputs::default() };
    outputs.check_for(args.input.len())?;
    let plan = Plan::resolve(spec, set, parsed, outputs.of_stream(name, is_many || !args.name.is_empty()))?;
    let frame_timeout = args.no_frame_timeout.map_or(plan.limits.frame_timeout, |timeout| timeout.0);
    let limits = Limits { n_frames: args.frames, duration: args.seconds, source_timeout: args.source_timeout.0, frame_timeout };
    let policy = args.restart.or(plan.restart.policy);
    let restart = Restart { policy, give_up_after: args.give_up_after.or(plan.restart.give_up_after), ..plan.restart };
    Ok(Plan { limits, restart, ..plan })
}

/// Returns the properties of `roipublish` that the options set.
fn lines(args: &Args) -> BTreeMap<String, String> {
    let tags = args.tag.iter().map(|(name, value)| {
        let value = serde_json::from_str(value).unwrap_or_else(|_| serde_json::Value::String(value.clone()));
        (name.clone(), value)
    });
    let tags: serde_json::Map<String, serde_json::Value> = tags.collect();
    let flag = |is_set: bool| is_set.then(|| "true".to_owned());
    let properties = [
        ("tags", (!tags.is_empty()).then(|| serde_json::Value::Object(tags).to_string())),
        ("labels", args.only_labels.clone()),
        ("zones", args.only_zones.clone()),
        ("events-only", flag(args.only_events)),
        ("only-changes", flag(args.only_changes)),
        ("max-rate", args.max_rate.clone()),
    ];
    properties.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect()
}

/// Returns the option that sets a property of `roipublish`.
fn option_of(property: &str) -> &'static str {
    match property {
        "tags" => "--tag",
        "labels" => "--only-labels",
        "zones" => "--only-zones",
        "events-only" => "--only-events",
        "only-changes" => "--only-changes",
        _ => "--max-rate",
    }
}

/// Maximum time at the end of the run for which lines of events may wait for a reader of their file.
const MAX_EVENTS_WAIT: Duration = Duration::from_secs(1);

/// Checks that events can be written, and that their file is not another output.
fn check_events(args: &Args, names: &[String]) -> Result<(), pipeline::Error> {
    let Some(path) = &args.events else { return Ok(()) };
    let outputs = [("--json", &args.json), ("--video", &args.video), ("--trace", &args.trace)];
    let shown = path.display();
    for (option, output) in outputs.iter().filter_map(|(option, output)| Some((option, output.as_ref()?))) {
        let is_same = |output: &Path| output == path || publish::is_stdout(output) && publish::is_stdout(path);
        if names.iter().any(|name| is_same(Path::new(&output.to_string_lossy().replace(streams::PLACEHOLDER, name)))) {
            return Err(pipeline::Error::usage(format!(
                "--events `{shown}`: expected another file than that of {option}, got the same file"
            )));
        }
    }
    outputs::check_destination("--events", path, args.if_exists())
}

/// Checks that `--restart` can have an effect.
fn check_restart<'a>(args: &Args, plans: impl Iterator<Item = &'a Plan> + Clone) -> Result<(), pipeline::Error> {
    let Some(policy) = args.restart.filter(|policy| *policy != RestartPolicy::Never).map(RestartPolicy::name) else { return Ok(()) };
    if !plans.clone().any(|plan| matches!(&plan.input, Input::Uri(uri) if !uri.is_descriptor())) {
        return Err(pipeline::Error::usage(format!(
            "--restart {policy}: expected an input with an address, such as rtsp://, got only files, images or test patterns; use --loop to \
             repeat a file"
        )));
    }
    match plans.clone().find(|plan| !plan.can_restart()) {
        Some(_) => Err(pipeline::Error::usage(format!(
            "--restart {policy}: expected --video with a file, got a pipe: a video cannot be continued after a gap; write a file, or use \
             --restart never"
        ))),
        None => Ok(()),
    }
}

/// Plays the valid plans to their end. Prints warnings and failures as they occur. Returns the results in the order of `plans`.
fn play(
    plans: &[Result<Plan, pipeline::Error>],
    names: &[String],
    interrupt: &Interrupt,
    (trace, events, service): (Option<&Trace>, Option<&Events>, &Service),
    again: Again<'_>,
    quiet: bool,
    terminal: &Terminal,
) -> Vec<Result<Ending, pipeline::Error>> {
    let is_many = plans.len() > 1;
    let fail = |name: &str, error: &pipeline::Error| terminal.error(format_args!("stream {name}: {error}"));
    let mut playable: Vec<Plan> = Vec::new();
    let mut playable_names: Vec<&str> = Vec::new();
    for (plan, name) in plans.iter().zip(names) {
        match plan {
            Ok(plan) => {
                playable.push(plan.clone());
                playable_names.push(name);
            }
            Err(error) => fail(name, error),
        }
    }
    let mut is_traced = false;
    let (bar, mut all) = (Bar::new((!quiet).then_some(terminal)), vec![None; playable.len()]);
    let tell = |plan_idx: usize, text: &dyn std::fmt::Display| match is_many {
        true => terminal.warn(format_args!("stream {}: {text}", playable_names[plan_idx])),
        false => terminal.warn(text),
    };
    let mut report = |plan_idx: usize, event: &Event| {
        service.record(plan_idx, event);
        if let Some(events) = events {
            events.write(event, playable_names[plan_idx], &playable[plan_idx].input.name());
        }
        match event {
            Event::Progress(progress) => {
                all[plan_idx] = Some(*progress);
                if let Some(trace) = trace.filter(|_| progress.n_frames > 0 && !std::mem::replace(&mut is_traced, true)) {
                    trace.open();
                }
                bar.show(Progress::of_all(all.iter().flatten()));
            }
            Event::Warning(warning) => tell(plan_idx, warning),
            Event::Ended(Err(error)) if is_many && error.kind() != ErrorKind::Closed => fail(playable_names[plan_idx], error),
            Event::SourceLost { reason } => tell(plan_idx, &format_args!("{reason}; trying again until it is back")),
            Event::SourceBack { gap, attempts } => {
                let (gap, attempts) =
                    (gap.as_secs_f64(), if *attempts == 1 { "1 attempt".to_owned() } else { format!("{attempts} attempts") });
                tell(plan_idx, &format_args!("the source is back after {gap:.1} s and {attempts}"));
            }
            Event::RecordingLost { reason } => tell(plan_idx, reason),
            Event::RecordingContinued { reason, path } => {
                tell(plan_idx, &format_args!("{reason}; the recording continues in `{}`", path.display()));
            }
            Event::DestinationBack { destination } => tell(plan_idx, &format_args!("{destination} accepts results again")),
            Event::Reloaded(Ok(())) => tell(plan_idx, &"the stream continues with the new description"),
            Event::Reloaded(Err(error)) => tell(plan_idx, &format_args!("the stream was not reloaded, and continues as before: {error}")),
            Event::DestinationLost { reason, .. } => tell(plan_idx, reason),
            Event::Started | Event::Ended(_) => {}
        }
    };
    let Again { reads_again, reloads, requests } = again;
    let ended = std::thread::scope(|scope| {
        let started = |handle: &PipelineHandle, streams: &[Option<StreamId>]| {
            let (handle, streams) = (handle.clone(), streams.to_vec());
            let serve = move || requests.serve(&handle, &streams, reads_again, service, terminal);
            if let Err(error) = std::thread::Builder::new().name("roiflow-reload".to_owned()).spawn_scoped(scope, serve) {
                terminal.warn(format_args!("SIGHUP has no effect: cannot start the thread that reads the description again: {error}"));
            }
        };
        let ended = streams::run_all_with(&playable, interrupt, started, &mut report);
        reloads.end();
        ended
    });
    bar.finish();
    let mut ended = ended.into_iter();
    let of_plan = |plan: &Result<Plan, pipeline::Error>| match plan {
        Ok(_) => ended.next().unwrap_or_else(|| Err(pipeline::Error::failed("internal error: the input was not played"))),
        Err(error) => Err(error.clone()),
    };
    plans.iter().map(of_plan).collect()
}

/// Progress bar with frames, frame rate and remaining time.
struct Bar {
    bar: ProgressBar,
    begin: Instant,
}

impl Bar {
    /// Creates a bar on this terminal. The bar is hidden if `terminal` is `None`.
    fn new(terminal: Option<&Terminal>) -> Self {
        Self { bar: terminal.map_or_else(ProgressBar::hidden, Terminal::add_bar), begin: Instant::now() }
    }

    fn show(&self, progress: Progress) {
        let seconds = self.begin.elapsed().as_secs_f64();
        let fps = progress.n_frames as f64 / seconds.max(1e-3);
        let Some((position, duration)) = progress.position.zip(progress.duration).filter(|(_, duration)| !duration.is_zero()) else {
            self.bar.set_style(style("{spinner} {msg}"));
            self.bar.set_message(format!("{} frames, {fps:.1} fps", progress.n_frames));
            return self.bar.tick();
        };
        self.bar.set_style(style("{wide_bar} {percent:>3}%  {msg}"));
        self.bar.set_length(duration.as_millis() as u64);
        self.bar.set_position(position.min(duration).as_millis() as u64);
        let done = position.as_secs_f64() / duration.as_secs_f64();
        let left = if done > 0.01 { Duration::from_secs_f64(seconds / done * (1.0 - done).max(0.0)) } else { Duration::ZERO };
        let left = if left.is_zero() { String::new() } else { format!(", {}s left", left.as_secs() + 1) };
        self.bar.set_message(format!("{} frames, {fps:.1} fps{left}", progress.n_frames));
    }

    fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}

fn summary(args: &Args, all: &[Stream], stats: &Stats, elapsed: Duration) -> String {
    use std::fmt::Write;
    let mut text = String::new();
    let mut line = |name: &str, value: String| {
        // Writing to a string cannot fail.
        let _written = writeln!(text, "{name:>9}  {value}");
    };
    if all.len() > 1 {
        for stream in all {
            line("stream", format!("{}: {}", stream.name, of_stream(stream)));
        }
    }
    line(
        "frames",
        format!(
            "{} in {:.1} s ({:.1} fps; {:.1} s including start and end)",
            stats.n_frames,
            stats.duration.as_secs_f64(),
            stats.fps(),
            elapsed.as_secs_f64()
        ),
    );
    line("objects", stats.n_objects.to_string());
    if let Some(latency) = latency(stats) {
        line("latency", format!("{latency} per frame"));
    }
    for stage in &stats.stages {
        let steps: Vec<String> = stage.steps.iter().map(|(step, time)| format!("{step} {:.2} ms", milliseconds(*time))).collect();
        let runs = match stage.n_runs {
            0 => "no runs".to_owned(),
            n_runs => format!("{n_runs} runs on {}: {}", stage.device, steps.join(", ")),
        };
        line(&stage.name, runs);
    }
    line("dropped", format!("{} frames; inference failed on {}", stats.n_dropped, stats.n_failed));
    for frames in &stats.not_inferred {
        let what = if frames.dropped { "dropped" } else { "skipped" };
        line(what, format!("{} frames by {}: {}", frames.n_frames, frames.element, frames.reason));
    }
    if stats.n_restarts > 0 {
        line("restarts", format!("{} of the source; {:.1} s without it", stats.n_restarts, stats.time_down.as_secs_f64()));
    }
    let n_skipped: u64 = all.iter().flat_map(|stream| &stream.ended).map(|ending| ending.n_skipped_images).sum();
    if n_skipped > 0 {
        line("skipped", format!("{n_skipped} unreadable images"));
    }
    let shown = |path: &PathBuf| if path.as_os_str() == "-" { "standard output".to_owned() } else { path.display().to_string() };
    let mut results: Vec<String> = [&args.json, &args.video, &args.images].into_iter().flatten().map(shown).collect();
    results.extend(args.publish.iter().map(|url| publish::redact(url).into_owned()));
    match (results.is_empty(), args.show) {
        (false, _) => {
            line("results", results.join(", "));
            if let Some(next) = next_command(args, all) {
                line("next", next);
            }
        }
        (true, false) => line("results", "not written: add --json FILE, --video FILE, --images FOLDER or --show".to_owned()),
        (true, true) => {}
    }
    if all.iter().any(|stream| stream.ended.as_ref().is_ok_and(|ending| ending.interrupted)) {
        line("ended", "by interrupt".to_owned());
    }
    text
}

/// Returns a command that shows the results, for the summary.
fn next_command(args: &Args, all: &[Stream]) -> Option<String> {
    let first = all.iter().find(|stream| stream.ended.as_ref().is_ok_and(|ending| ending.stats.n_frames > 0))?;
    let of_stream = |path: &Path| path.to_string_lossy().replace("{stream}", &first.name);
    // The command can name a file, but neither standard output nor a set of image files.
    let is_file = |path: &&PathBuf| path.as_os_str() != "-" && !path.to_string_lossy().contains("{source}");
    if let Some(video) = args.video.as_ref().filter(is_file) {
        return Some(format!("gst-play-1.0 {}", Quoted(&of_stream(video))));
    }
    let json = args.json.as_ref().filter(is_file)?;
    Some(format!("head -n 1 {}", Quoted(&of_stream(json))))
}

/// Returns the summary of a stream on one line, for runs with several streams.
fn of_stream(stream: &Stream) -> String {
    let Ok(ending) = &stream.ended else { return format!("failed ({})", streams::redacted(&stream.input)) };
    let stats = &ending.stats;
    let mut parts = vec![
        format!("{} frames in {:.1} s ({:.1} fps)", stats.n_frames, stats.duration.as_secs_f64(), stats.fps()),
        format!("{} objects", stats.n_objects),
    ];
    parts.extend(latency(stats));
    parts.push(format!("{} dropped", stats.n_dropped));
    let n_skipped: u64 = stats.not_inferred.iter().filter(|frames| !frames.dropped).map(|frames| frames.n_frames).sum();
    if n_skipped > 0 {
        parts.push(format!("{n_skipped} skipped"));
    }
    if stats.n_restarts > 0 {
        parts.push(format!("{} restarts, {:.1} s without the source", stats.n_restarts, stats.time_down.as_secs_f64()));
    }
    if stats.n_failed > 0 {
        parts.push(format!("inference failed on {}", stats.n_failed));
    }
    parts.join(", ")
}

fn latency(stats: &Stats) -> Option<String> {
    let percentile = |percent| stats.latency_percentile(percent).map(milliseconds);
    let (p50, p95, p99) = (percentile(50)?, percentile(95)?, percentile(99)?);
    Some(format!("p50 {p50:.1} ms, p95 {p95:.1} ms, p99 {p99:.1} ms"))
}

fn milliseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}
