//! `roiflow run`: a pipeline description on a video, with a progress bar and a summary.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::trace::Trace;
use crate::pipeline::{self, Ending, Input, Interrupt, Outputs, Plan, Progress, Spec};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The pipeline description, such as pipelines/faces.toml; `roiflow inspect` tells its parameters
    #[arg(value_name = "PIPELINE")]
    pipeline: PathBuf,
    /// A video, a picture, a folder or glob of pictures, rtsp://..., v4l2:///dev/video0, or test:
    #[arg(long, short, value_name = "FILE_OR_URI")]
    input: String,
    /// Write one line of JSON per frame; `-` is standard output
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write the video with boxes drawn (.mp4, .mov, .mkv); `-` is standard output
    #[arg(long, value_name = "FILE")]
    video: Option<PathBuf>,
    /// Show the video in a window
    #[arg(long)]
    show: bool,
    /// Begin again when the input ends, until interrupted
    #[arg(long = "loop")]
    repeat: bool,
    /// The device that runs the models, short for --set device=NAME; `roiflow devices` lists them
    #[arg(long, value_name = "NAME")]
    device: Option<String>,
    /// Set a parameter of the description
    #[arg(long, value_name = "NAME=VALUE", value_parser = parse_assignment)]
    set: Vec<(String, String)>,
    /// Write when each step ran, and where, for ui.perfetto.dev or chrome://tracing
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// No progress and no summary
    #[arg(long, short)]
    quiet: bool,
}

fn parse_assignment(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or_else(|| format!("expected NAME=VALUE, got `{text}`"))?;
    Ok((name.to_owned(), value.to_owned()))
}

impl Args {
    /// Begins the trace, if one is wanted: before anything that could be traced.
    pub(super) fn create_trace(&self) -> anyhow::Result<Option<Trace>> {
        let create = |path: &PathBuf| Trace::create(path).with_context(|| format!("cannot write the trace `{}`", path.display()));
        self.trace.as_ref().map(create).transpose()
    }
}

pub(super) fn run(args: Args, trace: Option<Trace>) -> anyhow::Result<()> {
    let stdout = |path: &Option<PathBuf>| path.as_deref().is_some_and(|path| path.as_os_str() == "-");
    if stdout(&args.json) && stdout(&args.video) {
        bail!(pipeline::Error::usage("--json - and --video -: only one of them can be standard output"));
    }
    let spec = Spec::read(&args.pipeline)?;
    let input = Input::parse(&args.input)?;
    if args.repeat && matches!(input, Input::Uri(_) | Input::Test(_)) {
        bail!(pipeline::Error::usage(format!("--loop needs a file or pictures, got `{}`", args.input)));
    }
    let mut set = args.set.clone();
    set.extend(args.device.clone().map(|device| ("device".to_owned(), device)));
    let outputs = Outputs { json: args.json.clone(), video: args.video.clone(), show: args.show, application: false, repeat: args.repeat };
    let plan = Plan::resolve(&spec, &set, input, outputs)?;

    let interrupt = Interrupt::default();
    handle_signals(&interrupt)?;
    let begin = Instant::now();
    let bar = Bar::new(args.quiet);
    let ended = pipeline::run(&plan, &interrupt, |progress| bar.show(progress));
    bar.finish();
    let traced = trace.map_or(Ok(()), |trace| trace.finish());
    let ending = ended?;
    traced?;
    for warning in &ending.warnings {
        eprintln!("warning: {warning}");
    }
    if !args.quiet {
        eprint!("{}", summary(&args, &ending, begin.elapsed()));
    }
    if ending.stats.n_lines_lost > 0 {
        let path = args.json.unwrap_or_default();
        bail!("{} lines of results could not be written to `{}`", ending.stats.n_lines_lost, path.display());
    }
    Ok(())
}

/// The first signal ends the stream properly, the second one ends the process at once.
fn handle_signals(interrupt: &Interrupt) -> anyhow::Result<()> {
    static ASKED: AtomicBool = AtomicBool::new(false);
    let interrupt = interrupt.clone();
    ctrlc::set_handler(move || {
        if ASKED.swap(true, Ordering::AcqRel) {
            std::process::exit(130);
        }
        eprintln!("\nending the stream (once more to end at once)");
        interrupt.interrupt();
    })
    .context("cannot handle Ctrl-C")
}

/// The progress bar: frames, fps, time left.
struct Bar {
    bar: ProgressBar,
    begin: Instant,
}

impl Bar {
    fn new(quiet: bool) -> Self {
        let target = if quiet { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr() };
        Self { bar: ProgressBar::with_draw_target(None, target), begin: Instant::now() }
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

fn summary(args: &Args, ending: &Ending, elapsed: Duration) -> String {
    use std::fmt::Write;
    let stats = &ending.stats;
    let mut text = String::new();
    let milliseconds = |duration: Duration| duration.as_secs_f64() * 1e3;
    let mut line = |name: &str, value: String| {
        // Writing to a string can't fail.
        let _written = writeln!(text, "{name:>9}  {value}");
    };
    line(
        "frames",
        format!(
            "{} in {:.1} s ({:.1} fps; {:.1} s with start and end)",
            stats.n_frames,
            stats.duration.as_secs_f64(),
            stats.fps(),
            elapsed.as_secs_f64()
        ),
    );
    line("objects", stats.n_objects.to_string());
    if let (Some(p50), Some(p95), Some(p99)) = (stats.latency_percentile(50), stats.latency_percentile(95), stats.latency_percentile(99)) {
        line(
            "latency",
            format!("p50 {:.1} ms, p95 {:.1} ms, p99 {:.1} ms per frame", milliseconds(p50), milliseconds(p95), milliseconds(p99)),
        );
    }
    for stage in &stats.stages {
        let steps: Vec<String> = stage.steps.iter().map(|(step, time)| format!("{step} {:.2} ms", milliseconds(*time))).collect();
        line(&stage.name, format!("{} runs on {}: {}", stage.n_runs, stage.device, steps.join(", ")));
    }
    line("dropped", format!("{} frames; inference failed on {}", stats.n_dropped, stats.n_failed));
    for frames in &stats.not_inferred {
        let what = if frames.dropped { "dropped" } else { "skipped" };
        line(what, format!("{} frames by {}: {}", frames.n_frames, frames.element, frames.reason));
    }
    let results: Vec<String> = [&args.json, &args.video].into_iter().flatten().map(|path| path.display().to_string()).collect();
    if !results.is_empty() {
        line("results", results.join(", "));
    }
    if ending.interrupted {
        line("ended", "by interrupt".to_owned());
    }
    text
}
