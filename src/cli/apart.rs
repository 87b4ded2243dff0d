//! Runs commands that read untrusted files in a child process with limits.
//!
//! A damaged or malicious file can make an engine crash, exhaust the memory or run forever. In a child process, such a failure ends only
//! the child, and the command reports the failure in one line. The child is this program with the same arguments.

use std::io::Read;
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use super::signals;
use super::terminal::{OneLine, Terminal};

/// Environment variable that marks the child process. It is set only for the child.
const VARIABLE: &str = "ROIFLOW_APART";
/// Environment variable with the time limit of the child in seconds.
const TIMEOUT_VARIABLE: &str = "ROIFLOW_INSPECT_SECONDS";
/// Default time limit of the child.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(60);
/// Memory limit of the child.
const MAX_BYTES: u64 = 4 << 30;
/// Maximum number of bytes of the child's standard error that are passed on.
const MAX_STDERR_BYTES: u64 = 1 << 20;

/// Runs this command in a child process and returns the exit code of the child. Returns `None` in the child itself: the caller then
/// executes the command.
pub(super) fn run(terminal: &Terminal) -> Option<ExitCode> {
    if std::env::var_os(VARIABLE).is_some() {
        return None;
    }
    let seconds = std::env::var(TIMEOUT_VARIABLE).ok().and_then(|seconds| seconds.trim().parse().ok());
    let timeout = seconds.filter(|seconds| *seconds > 0).map_or(DEFAULT_TIMEOUT, |seconds: u32| Duration::from_secs(seconds.into()));
    let program = std::env::current_exe().ok()?;
    // A shell sets the limits and then executes the program. The limits are: no core file, memory in KiB, and CPU time in seconds. The
    // limit of CPU time also ends a child whose parent was killed and can no longer end it.
    let limits = format!(
        "ulimit -c 0 2>/dev/null; ulimit -d {} 2>/dev/null; ulimit -t {} 2>/dev/null; exec \"$0\" \"$@\"",
        MAX_BYTES >> 10,
        4 * timeout.as_secs()
    );
    let mut limited = Command::new("/bin/sh");
    limited.args(["-c", &limits]).arg(&program);
    let start = |mut command: Command| {
        command.args(std::env::args_os().skip(1)).env(VARIABLE, "1").stdin(Stdio::null()).stderr(Stdio::piped()).spawn()
    };
    // If the shell cannot be started, start the child without limits. If the child cannot be started either, return `None`, so
    // that the command runs in this process.
    let mut child = start(limited).or_else(|_| start(Command::new(&program))).ok()?;
    let stderr = stderr_of(&mut child);
    let ended = wait(&mut child, timeout);
    let stderr = stderr.recv_timeout(Duration::from_secs(1)).unwrap_or_default();
    Some(match ended {
        Some(status) if status.code().is_some_and(|code| code != PANICKED) => {
            let ours: Vec<&str> = stderr.lines().filter(|line| !is_of_an_engine(line)).collect();
            if !ours.is_empty() {
                terminal.print(ours.join("\n"));
            }
            ExitCode::from(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1))
        }
        Some(status) if has_closed_reader(status) => signals::end_as_by_closed_pipe(),
        Some(status) => {
            let how = how_it_ended(status);
            terminal.error(format_args!(
                "cannot read {}: expected an engine that accepts or refuses the file, got an engine that {how}; the file is damaged, malicious, or needs more than {} GiB of memory",
                what(),
                MAX_BYTES >> 30
            ));
            ExitCode::FAILURE
        }
        None => {
            terminal.error(format_args!(
                "cannot read {}: expected at most {} s, got a longer run time; the file is damaged, malicious, or large. Set {TIMEOUT_VARIABLE} to allow more seconds",
                what(),
                timeout.as_secs()
            ));
            ExitCode::FAILURE
        }
    })
}

/// Whether the library of an engine wrote this line to standard error itself. Such a line is not shown, because the error message of
/// the command contains the same text.
fn is_of_an_engine(line: &str) -> bool {
    let bytes = line.as_bytes();
    // Format of Abseil: `E0000 00:00:1795545623.914190 22196 text_format.cc:417] ...`.
    let is_abseil = bytes.len() > 5 && b"IWEF".contains(&bytes[0]) && bytes[1..5].iter().all(u8::is_ascii_digit) && line.contains(".cc:");
    is_abseil
        || line.starts_with("WARNING: All log messages before absl")
        || ["[E:onnxruntime:", "[W:onnxruntime:"].iter().any(|mark| line.contains(mark))
}

/// Number of the signal with which the system kills a process if memory runs out.
const SIGKILL: i32 = 9;
/// Exit code of a Rust program that panics on its main thread.
const PANICKED: i32 = 101;

/// Returns the name of the file that the command reads, for messages.
fn what() -> String {
    let mut arguments = std::env::args_os().skip(2).filter(|argument| !argument.to_string_lossy().starts_with('-'));
    arguments
        .find(|argument| std::path::Path::new(argument).is_file())
        .map_or("the file".to_owned(), |file| format!("`{}`", OneLine(&file.to_string_lossy())))
}

/// Collects the child's standard error on a separate thread, until the child closes it.
fn stderr_of(child: &mut Child) -> mpsc::Receiver<String> {
    let (send, stderr) = mpsc::channel();
    if let Some(stderr) = child.stderr.take() {
        std::thread::spawn(move || {
            let (mut bytes, mut stderr) = (Vec::new(), stderr);
            let _partly = stderr.by_ref().take(MAX_STDERR_BYTES).read_to_end(&mut bytes);
            // Bytes above the limit are read and discarded, so that the child is not blocked.
            let _partly = std::io::copy(&mut stderr, &mut std::io::sink());
            let _heard = send.send(String::from_utf8_lossy(&bytes).into_owned());
        });
    }
    stderr
}

/// Waits for the child. Returns `None` if this function has killed the child after the timeout.
fn wait(child: &mut Child, timeout: Duration) -> Option<ExitStatus> {
    let begin = Instant::now();
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Some(status),
            Ok(None) if begin.elapsed() < timeout => std::thread::sleep(Duration::from_millis(2)),
            Ok(None) | Err(_) => {
                let _gone = child.kill();
                let _gone = child.wait();
                return None;
            }
        }
    }
}

/// Whether the reader of standard output has closed the pipe, as `head` does.
fn has_closed_reader(status: ExitStatus) -> bool {
    #[cfg(unix)]
    return std::os::unix::process::ExitStatusExt::signal(&status) == Some(signals::CLOSED_READER);
    #[cfg(not(unix))]
    false
}

fn how_it_ended(status: ExitStatus) -> String {
    #[cfg(unix)]
    if let Some(signal) = std::os::unix::process::ExitStatusExt::signal(&status) {
        // The system also kills a process if memory runs out.
        return if signal == SIGKILL {
            "was killed (signal 9), perhaps because the memory of this machine ran out".to_owned()
        } else {
            format!("crashes (signal {signal})")
        };
    }
    let _code = status;
    "breaks off".to_owned()
}
