//! Command line: arguments, subcommands, exit codes.
//!
//! Results go to standard output, messages to standard error. The exit codes are 0 for success, 1 for a failure, 2 for wrong usage, and 3
//! if some inputs or images failed. 128 + N means that signal N ended the run early. For example, 141 means SIGPIPE: the reader of
//! standard output has closed the pipe.

mod apart;
mod bench;
#[cfg(feature = "serve")]
mod client;
#[cfg(feature = "serve")]
mod ctl;
mod describe;
mod devices;
mod discover;
mod events;
mod frame_memory;
mod gallery;
mod inspect;
mod manual;
#[cfg(feature = "nodes")]
mod node;
mod panics;
mod pipelines;
mod reload;
mod run;
#[cfg(feature = "serve")]
mod serve;
mod service;
mod signals;
mod telemetry;
mod terminal;
#[cfg(feature = "serve")]
mod top;
mod trace;
mod vtune;

use std::io::{IsTerminal, Write};
use std::process::ExitCode;

use clap::builder::styling::{AnsiColor, Styles};
use clap::{CommandFactory, Parser, Subcommand, ValueEnum};

use self::terminal::Terminal;
use crate::pipeline;
use crate::redaction::Secrets;

/// First line of `roiflow --help`.
const ABOUT: &str = "Detects, tracks and classifies objects in video, and writes the results as JSON or as annotated video.";

const STYLES: Styles = Styles::styled()
    .header(AnsiColor::Green.on_default().bold())
    .usage(AnsiColor::Green.on_default().bold())
    .literal(AnsiColor::Cyan.on_default().bold())
    .placeholder(AnsiColor::Cyan.on_default());

/// The arguments of the command `roiflow`.
#[derive(Debug, Parser)]
#[command(name = "roiflow", version, about = ABOUT, after_help = EXAMPLES, max_term_width = 100, styles = STYLES)]
struct Cli {
    #[command(subcommand)]
    command: Command,

    /// Log level on standard error; GST_DEBUG adds GStreamer's own log
    #[arg(long, global = true, value_enum, default_value_t = LogLevel::Warn, value_name = "LEVEL")]
    log: LogLevel,

    /// Allow model descriptions and local playlists to refer to files outside their own folders
    #[arg(long, global = true)]
    allow_outside_files: bool,
}

const EXAMPLES: &str = "\
Examples:
  roiflow run --model yolo11n.onnx --track --input clip.mp4 --json results.jsonl --video results.mp4
  roiflow run --model yolo11n.onnx --classify color.onnx --input rtsp://camera/stream --json -
  roiflow run --model yolo11n.onnx --classify 'color.onnx@car,truck' --input street.mp4 --json results.jsonl
  roiflow discover
  roiflow pipelines
  roiflow run faces --input door.mp4 --input gate.mp4 --json 'out/{stream}.jsonl'
  roiflow inspect yolo11n.onnx
  roiflow describe yolox.onnx --decoder yolox --out yolox.toml
  roiflow bench yolo11n.onnx --device CPU --mode latency";

#[derive(Debug, Subcommand)]
enum Command {
    /// Detect, track and classify objects in videos, images or camera streams
    Run(Box<run::Args>),
    /// Add, watch and measure streams at run time, over HTTP and in a browser
    #[cfg(feature = "serve")]
    Serve(Box<serve::Args>),
    /// Run a part of the streams of several machines, and show and control all of them
    #[cfg(feature = "nodes")]
    Node(Box<node::Args>),
    /// List, add, change, restart and remove the streams of a running `roiflow serve`
    #[cfg(feature = "serve")]
    Ctl(ctl::Args),
    /// Watch the streams of a running `roiflow serve` in the terminal
    #[cfg(feature = "serve")]
    Top(top::Args),
    /// Show the inputs, outputs and description of a model, or check a pipeline description
    Inspect(inspect::Args),
    /// Write a model description to start from
    Describe(describe::Args),
    /// Write a gallery: names and vectors of known objects, for classifiers that compute vectors
    Gallery(gallery::Args),
    /// Find ONVIF cameras on the network, and list the addresses of their streams
    Discover(discover::Args),
    /// List the pipelines that `roiflow run` knows by name
    Pipelines,
    /// List the devices that can run models
    Devices(devices::Args),
    /// Measure how fast a model runs on a device
    Bench(bench::Args),
    /// Print a completion script for a shell
    Completions {
        /// The shell
        #[arg(value_enum)]
        shell: clap_complete::Shell,
    },
    /// Write the manual pages into a folder
    #[command(hide = true)]
    ManPages(manual::Args),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum LogLevel {
    Off,
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

/// Runs the command line of this process.
pub fn main() -> ExitCode {
    crate::devices::malloc_arenas::share();
    let terminal = Terminal::new();
    // Addresses of inputs may contain passwords, which must not appear in any message. Hide them before the arguments are parsed, because
    // errors about arguments contain their text.
    let mut before = std::ffi::OsString::new();
    for argument in std::env::args_os() {
        if !std::path::Path::new(&argument).exists() {
            let text = argument.to_string_lossy();
            // Other parts of the URLs of destinations are secrets, and their options can name files, which errors show.
            let of_option = ["--publish=", "--results="].into_iter().find_map(|option| text.strip_prefix(option));
            let url = of_option.or((before == "--publish" || before == "--results").then_some(&*text));
            terminal.hide(url.map_or_else(|| Secrets::of_argument(&text), crate::publish::secrets));
        }
        before = argument;
    }
    panics::print_as_errors(&terminal);
    let code = panics::guard(|| run_command(&terminal));
    terminal.flush();
    code
}

fn run_command(terminal: &Terminal) -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return refuse(terminal, &error),
    };
    let looks_at_files = match &cli.command {
        Command::Inspect(_) => true,
        Command::Describe(args) => args.reads_a_model(),
        _ => false,
    };
    if let Some(ended) = looks_at_files.then(|| apart::run(terminal)).flatten() {
        return ended;
    }
    let trace = match &cli.command {
        Command::Run(args) => args.create_trace(),
        _ => None,
    };
    if cli.allow_outside_files {
        crate::stages::Engine::of_process().allow_outside_files(true);
    }
    let telemetry = match &cli.command {
        #[cfg(feature = "serve")]
        Command::Serve(args) => args.telemetry(terminal),
        #[cfg(feature = "nodes")]
        Command::Node(args) => args.telemetry(terminal),
        _ => Ok(None),
    };
    let telemetry: Option<telemetry::Telemetry> = match telemetry {
        Ok(telemetry) => telemetry,
        Err(error) => return exit_code(Err(error), terminal),
    };
    init_log(cli.log, terminal, trace.clone(), telemetry.as_ref());
    let done = match cli.command {
        Command::Run(args) => run::run(*args, trace, terminal),
        #[cfg(feature = "serve")]
        Command::Serve(args) => serve::serve(*args, telemetry.as_ref(), terminal),
        #[cfg(feature = "nodes")]
        Command::Node(args) => node::node(*args, telemetry.as_ref(), terminal),
        #[cfg(feature = "serve")]
        Command::Ctl(args) => ctl::control(&args),
        #[cfg(feature = "serve")]
        Command::Top(args) => top::top(&args),
        Command::Inspect(args) => inspect::inspect(&args),
        Command::Describe(args) => describe::describe(&args, terminal),
        Command::Gallery(args) => gallery::gallery(&args, terminal),
        Command::Discover(args) => discover::discover(&args, terminal),
        Command::Pipelines => pipelines::list(),
        Command::Devices(args) => devices::list(&args),
        Command::Bench(args) => bench::bench(&args),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "roiflow", &mut script);
            std::io::stdout().write_all(&script).map_err(Into::into)
        }
        Command::ManPages(args) => manual::write(&args, Cli::command()),
    };
    telemetry.iter().for_each(telemetry::Telemetry::end);
    exit_code(done, terminal)
}

/// Prints the error of a command, and returns the exit code of the process.
fn exit_code(done: anyhow::Result<()>, terminal: &Terminal) -> ExitCode {
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if is_closed_stdout(&error) => {
            terminal.flush();
            signals::end_as_by_closed_pipe()
        }
        Err(error) => {
            if let Some(forced) = error.downcast_ref::<signals::Forced>() {
                terminal.error(forced);
                return ExitCode::from(forced.exit_code());
            }
            terminal.error(format_args!("{error:#}"));
            let is_usage = |error: &pipeline::Error| error.kind() == pipeline::ErrorKind::Usage;
            ExitCode::from(match () {
                () if error.downcast_ref().is_some_and(is_usage) => 2,
                () if error.is::<run::SomeFailed>() || error.is::<run::ImagesSkipped>() => 3,
                () => 1,
            })
        }
    }
}

/// Whether the reader of standard output has closed the pipe. This is not a failure.
fn is_closed_stdout(error: &anyhow::Error) -> bool {
    let is_broken_pipe = |kind| kind == std::io::ErrorKind::BrokenPipe;
    error.downcast_ref::<pipeline::Error>().is_some_and(|error| error.kind() == pipeline::ErrorKind::Closed)
        || error.downcast_ref::<std::io::Error>().is_some_and(|error| is_broken_pipe(error.kind()))
        || error.downcast_ref::<serde_json::Error>().and_then(serde_json::Error::io_error_kind).is_some_and(is_broken_pipe)
}

/// Prints a usage error, or the text of `--help` or `--version`. Returns exit code 2 for wrong usage, and 0 for `--help` and
/// `--version`.
fn refuse(terminal: &Terminal, error: &clap::Error) -> ExitCode {
    // `error.print` uses colors on a terminal, but it neither hides secrets nor escapes control characters. If the arguments contain
    // secrets or control characters, print the text through [`Terminal`], without colors.
    let is_plain = !terminal.hides() && std::env::args_os().all(|argument| !argument.to_string_lossy().contains(terminal::is_obeyed));
    if is_plain {
        let _unreportable = error.print();
    } else {
        terminal.print(error.render().to_string().trim_end());
    }
    ExitCode::from(error.exit_code() as u8)
}

fn init_log(level: LogLevel, terminal: &Terminal, trace: Option<trace::Trace>, telemetry: Option<&telemetry::Telemetry>) {
    use tracing_subscriber::filter::{LevelFilter, Targets, filter_fn};
    use tracing_subscriber::layer::{Layer, SubscriberExt};
    use tracing_subscriber::util::SubscriberInitExt;
    let level = match level {
        LogLevel::Off => LevelFilter::OFF,
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    };
    // At level `trace`, log each span with its duration when the span closes. This gives one line per step of each run.
    let spans = match level {
        LevelFilter::TRACE => tracing_subscriber::fmt::format::FmtSpan::CLOSE,
        _ => tracing_subscriber::fmt::format::FmtSpan::NONE,
    };
    // The log contains only roiflow's own messages, not those of the engine.
    let filter = Targets::new().with_target("roiflow", level);
    let log = tracing_subscriber::fmt::layer()
        .with_span_events(spans)
        .with_writer(terminal.clone())
        .with_ansi(std::io::stderr().is_terminal())
        .with_filter(filter);
    let trace = trace.map(|trace| trace.with_filter(filter_fn(trace::Trace::wants)));
    let subscriber = tracing_subscriber::registry().with(log).with(trace).with(vtune::layer());
    subscriber.with(telemetry::traces(telemetry)).with(telemetry::logs(telemetry)).init();
    take_gstreamer_log(terminal);
}

/// Writes the log of `GST_DEBUG` like our own. GStreamer itself would print passwords in addresses, and would stop the streams while nothing reads
/// standard error.
fn take_gstreamer_log(terminal: &Terminal) {
    use std::io::Write as _;
    use tracing_subscriber::fmt::MakeWriter as _;
    let is_asked = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    if !is_asked("GST_DEBUG") || is_asked("GST_DEBUG_FILE") {
        return;
    }
    gstreamer::log::remove_default_log_function();
    let terminal = terminal.clone();
    gstreamer::log::add_log_function(move |category, level, file, function, line, object, message| {
        let text = category.get_line(level, file, function, line, object, message);
        // Addresses that a client of the server gave are not among the known secrets. A log that cannot be written is not reported.
        let _written = text.map(|text| terminal.make_writer().write_all(crate::redaction::redact_words(&text).as_bytes()));
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_consistent() {
        Cli::command().debug_assert();
    }
}
