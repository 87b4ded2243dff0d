//! Signal handling of a run, and the resulting exit codes.
//!
//! The first SIGINT or SIGTERM drains the run, so that its files are complete. A second signal or the timeout `MAX_RUN` ends the process at
//! once. The exit code is that of a process killed by the signal. SIGHUP does the same if the process has a terminal, which is then closed.
//! In a service, which has no terminal, SIGHUP reads the description again.

use std::process::ExitCode;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::Context;
use signal_hook::consts::signal::{SIGHUP, SIGINT, SIGPIPE, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level;

use super::reload::Reloads;
use super::service::Service;
use super::terminal::Terminal;
use super::trace::Trace;
use crate::pipeline::Interrupt;

/// Maximum time from the first signal to the end of the process; together with printing, less than ten seconds.
const MAX_RUN: Duration = Duration::from_secs(8);
/// Signals within this time count as one: `timeout` and service managers signal the process and then its group.
const TOGETHER: Duration = Duration::from_millis(250);
/// How long the trace may wait for its reader after the first signal.
const MAX_WRITE_WAIT: Duration = Duration::from_secs(3);
/// How long printing the last line to standard error may take.
const MAX_PRINT_WAIT: Duration = Duration::from_millis(300);

/// The first signal; 0 = none.
static SIGNAL: AtomicI32 = AtomicI32::new(0);

/// The error of a run in which a stream did not end in time after a signal and was stopped. The losses have been reported.
#[derive(Debug)]
pub(super) struct Forced(i32);

impl Forced {
    /// The exit code that a shell reports for this signal.
    pub(super) fn exit_code(&self) -> u8 {
        u8::try_from(128 + self.0).unwrap_or(1)
    }
}

impl std::fmt::Display for Forced {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} stopped the run before its end", low_level::signal_name(self.0).unwrap_or("a signal"))
    }
}

impl std::error::Error for Forced {}

/// Returns an error if streams were stopped by force.
pub(super) fn check_forced(forced: bool) -> anyhow::Result<()> {
    if forced { Err(Forced(SIGNAL.load(Ordering::Acquire)).into()) } else { Ok(()) }
}

/// Installs the signal handlers.
pub(super) fn handle(
    interrupt: &Interrupt,
    trace: Option<&Trace>,
    service: &Service,
    reloads: &Reloads,
    terminal: &Terminal,
) -> anyhow::Result<()> {
    let hangup_reloads = !has_terminal();
    let mut handled = vec![SIGINT, SIGTERM];
    if !is_ignored(SIGHUP) {
        handled.push(SIGHUP);
    }
    let mut signals = Signals::new(handled).context("cannot handle signals")?;
    let (interrupt, trace, service, reloads, terminal) =
        (interrupt.clone(), trace.cloned(), service.clone(), reloads.clone(), terminal.clone());
    let body = move || {
        let mut first: Option<Instant> = None;
        for signal in signals.forever() {
            if signal == SIGHUP && hangup_reloads {
                reloads.request();
                continue;
            }
            match first {
                Some(first) if first.elapsed() < TOGETHER => continue,
                Some(_) => low_level::exit(128 + signal),
                None => first = Some(Instant::now()),
            }
            SIGNAL.store(signal, Ordering::Release);
            interrupt.interrupt();
            service.stop();
            if let Some(trace) = &trace {
                trace.write_until(Instant::now() + MAX_WRITE_WAIT);
            }
            end_after(MAX_RUN, signal, &terminal);
            // Writing to standard error may block, so print with a time limit.
            print_in_time(&terminal, "\nending the run (press Ctrl+C again to end at once)");
        }
    };
    std::thread::Builder::new().name("roiflow-signals".to_owned()).spawn(body).context("cannot start the thread that handles signals")?;
    Ok(())
}

/// Ends the process after this time, without waiting for anything.
fn end_after(timeout: Duration, signal: i32, terminal: &Terminal) {
    let terminal = terminal.clone();
    let body = move || {
        std::thread::sleep(timeout);
        print_in_time(&terminal, "error: the run did not end in time after the signal and was stopped: results in flight are lost");
        low_level::exit(128 + signal);
    };
    if std::thread::Builder::new().name("roiflow-timeout".to_owned()).spawn(body).is_err() {
        low_level::exit(128 + signal);
    }
}

/// Prints without waiting for a blocked terminal.
fn print_in_time(terminal: &Terminal, text: &'static str) {
    let (printed, is_printed) = mpsc::channel();
    let terminal = terminal.clone();
    let print = move || {
        terminal.print(text);
        let _given_up = printed.send(());
    };
    if std::thread::Builder::new().name("roiflow-print".to_owned()).spawn(print).is_ok() {
        let _in_time = is_printed.recv_timeout(MAX_PRINT_WAIT);
    }
}

/// Whether the process was started with this signal ignored, as by `nohup`.
fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| u64::from_str_radix(line.strip_prefix("SigIgn:")?.trim(), 16).ok());
    ignored.is_some_and(|ignored| ignored >> (signal - 1) & 1 == 1)
}

/// Whether the process has a controlling terminal. If unknown: true.
fn has_terminal() -> bool {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // After the name in parentheses: state, parent, group, session, terminal.
    let number = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(4));
    number.is_none_or(|number| number != "0")
}

/// The signal that ends a process after the reader of its standard output has closed the pipe.
pub(super) const CLOSED_READER: i32 = SIGPIPE;

/// Ends the process by SIGPIPE without a message, like other Unix programs whose reader closed the pipe.
pub(super) fn end_as_by_closed_pipe() -> ExitCode {
    let _ended = low_level::emulate_default_handler(SIGPIPE);
    ExitCode::from(128 + SIGPIPE as u8)
}
