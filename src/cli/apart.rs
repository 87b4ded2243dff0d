//! Commands that look at files of strangers run in a process of their own, with limits.
//!
//! A file that is damaged, or made to do harm, can make an engine crash, fill the memory or compute for ever, and no engine promises not
//! to. Here that ends a child process, and the command says so in one line. The child is this program with the same arguments.

use std::io::Read;
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use super::signals;
use super::terminal::{OneLine, Terminal};

/// Set in the child.
const VARIABLE: &str = "ROIFLOW_APART";
/// Says how many seconds the child may take.
const PATIENCE_VARIABLE: &str = "ROIFLOW_INSPECT_SECONDS";
/// How long it may take otherwise.
const PATIENCE: Duration = Duration::from_secs(60);
/// How much memory it may ask for.
const MAX_BYTES: u64 = 4 << 30;
/// As much of what it says is passed on.
const MAX_SAID: u64 = 1 << 20;

/// Runs this command in a child process, and gives its exit code; `None` in the child, which has to do the work.
pub(super) fn run(terminal: &Terminal) -> Option<ExitCode> {
    if std::env::var_os(VARIABLE).is_some() {
        return None;
    }
    let seconds = std::env::var(PATIENCE_VARIABLE).ok().and_then(|seconds| seconds.trim().parse().ok());
    let patience = seconds.filter(|seconds| *seconds > 0).map_or(PATIENCE, |seconds: u32| Duration::from_secs(seconds.into()));
    let program = std::env::current_exe().ok()?;
    // The shell sets the limits and becomes the program: memory in KiB, no core file, and processor time, which also ends a child whose
    // parent was killed.
    let limits = format!(
        "ulimit -c 0 2>/dev/null; ulimit -d {} 2>/dev/null; ulimit -t {} 2>/dev/null; exec \"$0\" \"$@\"",
        MAX_BYTES >> 10,
        4 * patience.as_secs()
    );
    let mut limited = Command::new("/bin/sh");
    limited.args(["-c", &limits]).arg(&program);
    let start = |mut command: Command| {
        command.args(std::env::args_os().skip(1)).env(VARIABLE, "1").stdin(Stdio::null()).stderr(Stdio::piped()).spawn()
    };
    // Without a shell there are no limits, and where no process can be started the work is done here.
    let mut child = start(limited).or_else(|_| start(Command::new(&program))).ok()?;
    let said = said_by(&mut child);
    let ended = wait(&mut child, patience);
    let said = said.recv_timeout(Duration::from_secs(1)).unwrap_or_default();
    Some(match ended {
        Some(status) if status.code().is_some_and(|code| code != PANICKED) => {
            let ours: Vec<&str> = said.lines().filter(|line| !is_of_an_engine(line)).collect();
            if !ours.is_empty() {
                terminal.print(ours.join("\n"));
            }
            ExitCode::from(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1))
        }
        Some(status) if has_closed_reader(status) => signals::end_as_by_closed_pipe(),
        Some(status) => {
            let how = how_it_ended(status);
            terminal.error(format_args!(
                "cannot look at {}: expected an engine that loads it or refuses it, got one that {how}; the file is damaged, made to do harm, or needs more than {} GiB of memory",
                what(),
                MAX_BYTES >> 30
            ));
            ExitCode::FAILURE
        }
        None => {
            terminal.error(format_args!(
                "cannot look at {}: expected it to take at most {} s, and it takes longer; the file is damaged, made to do harm, or large: {PATIENCE_VARIABLE} gives it more time",
                what(),
                patience.as_secs()
            ));
            ExitCode::FAILURE
        }
    })
}

/// Whether a line was written by an engine's library past this program: what it says is in the error, too.
fn is_of_an_engine(line: &str) -> bool {
    let bytes = line.as_bytes();
    // Of Abseil: `E0000 00:00:1795545623.914190 22196 text_format.cc:417] ...`.
    let is_abseil = bytes.len() > 5 && b"IWEF".contains(&bytes[0]) && bytes[1..5].iter().all(u8::is_ascii_digit) && line.contains(".cc:");
    is_abseil
        || line.starts_with("WARNING: All log messages before absl")
        || ["[E:onnxruntime:", "[W:onnxruntime:"].iter().any(|mark| line.contains(mark))
}

/// The exit code of a Rust program that panics on its main thread.
const PANICKED: i32 = 101;

/// The file that the command is about.
fn what() -> String {
    let mut arguments = std::env::args_os().skip(2).filter(|argument| !argument.to_string_lossy().starts_with('-'));
    arguments
        .find(|argument| std::path::Path::new(argument).is_file())
        .map_or("the file".to_owned(), |file| format!("`{}`", OneLine(&file.to_string_lossy())))
}

/// What the child says on standard error, when it has ended.
fn said_by(child: &mut Child) -> mpsc::Receiver<String> {
    let (send, said) = mpsc::channel();
    if let Some(stderr) = child.stderr.take() {
        std::thread::spawn(move || {
            let (mut bytes, mut stderr) = (Vec::new(), stderr);
            let _partly = stderr.by_ref().take(MAX_SAID).read_to_end(&mut bytes);
            // The rest is read, so that the child is not held up, and left out.
            let _partly = std::io::copy(&mut stderr, &mut std::io::sink());
            let _heard = send.send(String::from_utf8_lossy(&bytes).into_owned());
        });
    }
    said
}

/// How the child ended; `None` if it had to be killed because it took too long.
fn wait(child: &mut Child, patience: Duration) -> Option<ExitStatus> {
    let begin = Instant::now();
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Some(status),
            Ok(None) if begin.elapsed() < patience => std::thread::sleep(Duration::from_millis(2)),
            Ok(None) | Err(_) => {
                let _gone = child.kill();
                let _gone = child.wait();
                return None;
            }
        }
    }
}

/// Whether the reader of standard output closed it, as `head` does.
fn has_closed_reader(status: ExitStatus) -> bool {
    #[cfg(unix)]
    return std::os::unix::process::ExitStatusExt::signal(&status) == Some(signals::CLOSED_READER);
    #[cfg(not(unix))]
    false
}

fn how_it_ended(status: ExitStatus) -> String {
    #[cfg(unix)]
    if let Some(signal) = std::os::unix::process::ExitStatusExt::signal(&status) {
        return format!("crashes (signal {signal})");
    }
    let _code = status;
    "breaks off".to_owned()
}
