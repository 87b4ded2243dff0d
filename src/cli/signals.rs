//! Signal handling of a run, and the resulting exit codes.
//!
//! The first SIGINT or SIGTERM drains the run, so that its files are complete. A second signal or the timeout `MAX_RUN` ends the process at
//! once. In both cases, the exit code is that of a process that the signal killed. SIGHUP is handled in the same way if the process has a
//! terminal, because SIGHUP then means that the terminal was closed. In a service, which has no terminal, SIGHUP reads the description
//! again.

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

/// Maximum time from the first signal to the end of the process. Together with the time for printing, it is less than ten
/// seconds.
const MAX_RUN: Duration = Duration::from_secs(8);
/// Signals within this time count as one, because `timeout` and service managers send a signal to the process and then to its
/// process group.
const TOGETHER: Duration = Duration::from_millis(250);
/// Maximum time that the trace may wait for its reader after the first signal.
const MAX_WRITE_WAIT: Duration = Duration::from_secs(3);
/// Maximum time for printing the last line to standard error.
const MAX_PRINT_WAIT: Duration = Duration::from_millis(300);

/// Number of the first signal that arrived; 0 = none.
static SIGNAL: AtomicI32 = AtomicI32::new(0);

/// The error of a run in which a stream did not end in time and was stopped, with the signal that has ended it; 0: it has ended by itself. A
/// warning has already reported the frames that were lost.
#[derive(Debug)]
pub(super) struct Forced(i32);

impl Forced {
    /// Returns the exit code that a shell reports for a process that this signal ended.
    pub(super) fn exit_code(&self) -> u8 {
        if self.0 == 0 { 1 } else { u8::try_from(128 + self.0).unwrap_or(1) }
    }
}

impl std::fmt::Display for Forced {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            0 => f.write_str("a stream did not stop in time after its end"),
            signal => write!(f, "{} stopped the run before its end", low_level::signal_name(signal).unwrap_or("a signal")),
        }
    }
}

impl std::error::Error for Forced {}

/// Returns an error if streams were stopped by force.
pub(super) fn check_forced(forced: bool) -> anyhow::Result<()> {
    if forced { Err(Forced(SIGNAL.load(Ordering::Acquire)).into()) } else { Ok(()) }
}

/// Installs the signal handlers, and starts the thread that reacts to the signals.
pub(super) fn handle(
    interrupt: &Interrupt,
    trace: Option<&Trace>,
    service: &Service,
    reloads: &Reloads,
    terminal: &Terminal,
) -> anyhow::Result<()> {
    let (interrupt, trace, service, reloads) = (interrupt.clone(), trace.cloned(), service.clone(), reloads.clone());
    let end = move || {
        interrupt.interrupt();
        service.stop();
        if let Some(trace) = &trace {
            trace.write_until(Instant::now() + MAX_WRITE_WAIT);
        }
    };
    on_signal(terminal, end, (!has_terminal()).then_some(move || reloads.request()))
}

/// Calls `end` at the first signal, and `hang_up` at each SIGHUP if `hang_up` is `Some`. A second signal ends the process at once. Without
/// a second signal, the process ends at the latest `MAX_RUN` after the first signal.
pub(super) fn on_signal(
    terminal: &Terminal,
    end: impl Fn() + Send + 'static,
    hang_up: Option<impl Fn() + Send + 'static>,
) -> anyhow::Result<()> {
    let mut handled = vec![SIGINT, SIGTERM];
    if !is_ignored(SIGHUP) {
        handled.push(SIGHUP);
    }
    let mut signals = Signals::new(handled).context("cannot handle signals")?;
    let terminal = terminal.clone();
    let body = move || {
        let mut first: Option<Instant> = None;
        for signal in signals.forever() {
            if let Some(hang_up) = hang_up.as_ref().filter(|_| signal == SIGHUP) {
                hang_up();
                continue;
            }
            match first {
                Some(first) if first.elapsed() < TOGETHER => continue,
                Some(_) => low_level::exit(128 + signal),
                None => first = Some(Instant::now()),
            }
            SIGNAL.store(signal, Ordering::Release);
            end();
            end_after(MAX_RUN, signal, &terminal);
            // Writing to standard error may block, so print with a time limit.
            print_in_time(&terminal, "\nending the run (press Ctrl+C again to end at once)");
        }
    };
    std::thread::Builder::new().name("roiflow-signals".to_owned()).spawn(body).context("cannot start the thread that handles signals")?;
    Ok(())
}

/// Starts a thread that ends the process after this time, without waiting for anything.
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

/// Prints a text. If the terminal blocks, waits only for a limited time.
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

/// Whether the process has a controlling terminal. True if that is unknown.
pub(super) fn has_terminal() -> bool {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The fields after the name in parentheses are: state, parent, group, session, terminal.
    let number = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(4));
    number.is_none_or(|number| number != "0")
}

/// The signal that ends a process that writes to standard output after the reader has closed the pipe.
pub(super) const CLOSED_READER: i32 = SIGPIPE;

/// Ends the process by SIGPIPE without a message, like other Unix programs whose reader closed the pipe.
pub(super) fn end_as_by_closed_pipe() -> ExitCode {
    let _ended = low_level::emulate_default_handler(SIGPIPE);
    ExitCode::from(128 + SIGPIPE as u8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run_without_a_signal_does_not_end_with_the_code_of_a_signal() {
        assert_eq!((Forced(0).exit_code(), Forced(SIGINT).exit_code(), Forced(SIGTERM).exit_code()), (1, 130, 143));
        assert_eq!(Forced(SIGINT).to_string(), "SIGINT stopped the run before its end");
        assert!(!Forced(0).to_string().contains("signal"));
    }
}
