//! Messages to systemd, and SIGHUP.

use std::io::ErrorKind;
use std::ops::{Deref, DerefMut};
use std::os::unix::net::UnixDatagram;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::cli::{Folder, command, lines};
use crate::endings::{Said, n_lines};
use crate::harness::eventually;
use crate::restarts::lines_so_far;
use crate::rtsp::{Server, signal};

/// Time limit of each wait. A longer wait counts as a hang.
const LIMIT: Duration = Duration::from_secs(60);

/// The socket on which systemd would receive the messages.
struct Systemd(UnixDatagram);

/// A run as a service. It is killed if the test ends early.
struct Service(Child);

impl Deref for Service {
    type Target = Child;

    fn deref(&self) -> &Child {
        &self.0
    }
}

impl DerefMut for Service {
    fn deref_mut(&mut self) -> &mut Child {
        &mut self.0
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _may_have_ended = self.0.kill();
        let _may_have_ended = self.0.wait();
    }
}

impl Systemd {
    fn start(folder: &Folder, watchdog: Duration, arguments: &[&str]) -> (Self, Service) {
        Self::start_command(command(), folder, watchdog, arguments)
    }

    /// Like [`Systemd::start`], in a process without a terminal, as a service.
    fn start_without_terminal(folder: &Folder, watchdog: Duration, arguments: &[&str]) -> (Self, Service) {
        // `setsid` starts a child process only if it leads a process group. Here it does not, so the process ID stays the same.
        let mut without = Command::new("setsid");
        without.arg(command().get_program()).stderr(Stdio::piped());
        Self::start_command(without, folder, watchdog, arguments)
    }

    fn start_command(mut command: Command, folder: &Folder, watchdog: Duration, arguments: &[&str]) -> (Self, Service) {
        let path = folder.file("notify");
        let _was_there = std::fs::remove_file(&path);
        let socket = UnixDatagram::bind(&path).unwrap();
        command.env("NOTIFY_SOCKET", &path).env("WATCHDOG_USEC", watchdog.as_micros().to_string());
        let child = command.args(["run", &folder.file("colors.toml"), "-q"]).args(arguments).stdin(Stdio::null()).spawn().unwrap();
        (Self(socket), Service(child))
    }

    /// Returns the next message, or `None` if no message arrives within this time.
    fn next(&self, within: Duration) -> Option<String> {
        self.0.set_read_timeout(Some(within)).unwrap();
        let mut bytes = [0; 1024];
        match self.0.recv(&mut bytes) {
            Ok(n_bytes) => Some(String::from_utf8_lossy(&bytes[..n_bytes]).trim().to_owned()),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => None,
            Err(error) => panic!("{error}"),
        }
    }

    /// Reads messages until this message arrives. Returns the number of watchdog messages before it.
    fn wait_for(&self, expected: &str) -> usize {
        let (begin, mut n_fed) = (Instant::now(), 0);
        loop {
            let message = self.next(LIMIT).unwrap_or_else(|| panic!("expected {expected}"));
            if message == expected {
                return n_fed;
            }
            assert_eq!(message, "WATCHDOG=1", "expected {expected}");
            assert!(begin.elapsed() < LIMIT, "expected {expected}");
            n_fed += 1;
        }
    }
}

/// The documented unit, with another path of the command.
fn documented_unit(command: &str) -> String {
    let page = include_str!("../../docs/howto/run-as-a-service.md");
    let unit = page.split_once("```ini\n").and_then(|(_, rest)| rest.split_once("```")).unwrap().0;
    assert!(unit.contains("/usr/local/bin/roiflow"), "{unit}");
    unit.replace("/usr/local/bin/roiflow", command)
}

#[test]
fn documented_unit_is_valid() {
    let folder = crate::harness::Folder::new("unit");
    // The command must exist. Systemd does not accept spaces in its path.
    let unit = documented_unit("/bin/true");
    let verify = |unit: &str| {
        let path = folder.file("roiflow.service");
        std::fs::write(&path, unit).unwrap();
        Command::new("systemd-analyze").args(["verify", "--man=no", &path]).output()
    };
    let Ok(output) = verify(&unit) else {
        return eprintln!("skipped: systemd-analyze is not installed");
    };
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && said.is_empty(), "{said}");
    let typo = verify(&unit.replace("WatchdogSec", "WatchDogSecs")).unwrap();
    assert!(String::from_utf8_lossy(&typo.stderr).contains("WatchDogSecs"), "a typo is found");
}

#[test]
fn service_is_ready_alive_and_stopping() {
    let folder = Folder::new("service");
    let Some(server) = Server::start(&[]) else { return };
    let uri = server.uri("rtspt", "", "/live");
    let absent = "rtspt://127.0.0.1:1/live";
    let arguments = ["--input", &uri, "--input", absent, "--restart", "on-error"];
    let (systemd, mut child) = Systemd::start(&folder, Duration::from_secs(30), &arguments);
    systemd.wait_for("READY=1");
    drop(server);
    // A run whose sources are all lost still feeds the watchdog, because a restart of the service would not help.
    signal(&child, "TERM");
    systemd.wait_for("STOPPING=1");
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn watchdog_is_fed_while_source_is_lost() {
    let folder = Folder::new("service-lost");
    let arguments = ["--input", "rtspt://127.0.0.1:1/live", "--restart", "on-error"];
    let (systemd, mut child) = Systemd::start(&folder, Duration::from_millis(400), &arguments);
    systemd.wait_for("READY=1");
    for _ in 0..10 {
        assert_eq!(systemd.next(LIMIT).as_deref(), Some("WATCHDOG=1"));
    }
    signal(&child, "TERM");
    systemd.wait_for("STOPPING=1");
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn watchdog_starves_when_results_are_not_read() {
    let folder = Folder::new("service-stuck");
    let fifo = folder.file("fifo");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    // The FIFO has a reader that never reads.
    let _reader = std::fs::File::options().read(true).write(true).open(&fifo).unwrap();
    let arguments = ["--input", "test:100000000", "--json", &fifo];
    let (systemd, mut child) = Systemd::start(&folder, Duration::from_secs(1), &arguments);
    systemd.wait_for("READY=1");
    // The messages to the watchdog must end within a limited time, because no stream makes progress once the pipe is full.
    let begin = Instant::now();
    while systemd.next(Duration::from_secs(3)).is_some() {
        assert!(begin.elapsed() < LIMIT, "the watchdog is fed without progress");
    }
    signal(&child, "KILL");
    child.wait().unwrap();
}

/// Waits for the messages of a reload. Returns the status.
fn wait_for_reload(systemd: &Systemd) -> String {
    loop {
        let message = systemd.next(LIMIT).expect("RELOADING=1");
        if message == "WATCHDOG=1" {
            continue;
        }
        let (first, second) = message.split_once('\n').unwrap_or_else(|| panic!("expected two lines, got {message}"));
        assert!(first == "RELOADING=1" && second.starts_with("MONOTONIC_USEC="), "{message}");
        return second.split_once("\nSTATUS=").map_or_else(String::new, |(_, status)| status.to_owned());
    }
}

#[test]
fn hangup_reads_the_description_again_and_keeps_the_old_one_if_it_is_broken() {
    let folder = Folder::new("service-reload");
    let Some(server) = Server::start(&[]) else { return };
    let (json, colors) = (folder.file("o.jsonl"), folder.file("colors.toml"));
    let uri = server.uri("rtspt", "", "/live");
    // Start the run without a terminal, like a service. With a terminal, SIGHUP would end the run.
    let options = ["--input", &uri, "--json", &json];
    let (systemd, mut child) = Systemd::start_without_terminal(&folder, Duration::from_secs(30), &options);
    let mut said = Said::of(&mut child);
    systemd.wait_for("READY=1");
    let n_results = |name: &str| lines_so_far(&json).iter().filter(|line| line["objects"][0][name].is_object()).count();
    eventually("results of the classifier", || n_results("color") > 5);

    let text = std::fs::read_to_string(&colors).unwrap();
    for (broken, says) in [
        (text.replace("[pipeline]", "[pipelines]"), "pipelines"),
        (text.replace("color.onnx", "absent.onnx"), "absent.onnx"),
        (text.replace("roidetect model", "roidetect tiles=100x100 model"), "tiles"),
        (text.replace("color.onnx", "rectangle.onnx"), "classification"),
        (text.replace("roioverlay", "roioverlaid"), "roioverlaid"),
    ] {
        std::fs::write(&colors, broken).unwrap();
        signal(&child, "HUP");
        let status = wait_for_reload(&systemd);
        // A model or an element that is missing is noticed after the answer.
        assert!(status.is_empty() || status.starts_with("not reloaded: ") && status.contains(says), "{status}");
        systemd.wait_for("READY=1");
        said.wait_for(says);
        let n_before = n_lines(&json);
        eventually("the run continues", || n_lines(&json) > n_before + 10);
    }
    assert!(lines_so_far(&json).iter().all(|line| line["objects"][0]["color"].is_object()), "no line without the classifier so far");

    std::fs::write(&colors, text.replace("color.onnx", "brightness.onnx")).unwrap();
    signal(&child, "HUP");
    assert_eq!(wait_for_reload(&systemd), "");
    systemd.wait_for("READY=1");
    said.wait_for("the stream continues with the new description");
    eventually("results of the other classifier", || n_results("brightness") > 5);
    signal(&child, "TERM");
    systemd.wait_for("STOPPING=1");
    assert_eq!(child.wait().unwrap().code(), Some(0), "{}", said.rest());
    let lines = lines(&json);
    let frames: Vec<u64> = lines.iter().map(|line| line["frame"].as_u64().unwrap()).collect();
    assert!(frames.iter().copied().eq(0..frames.len() as u64), "frame numbers go on: {frames:?}");
    assert!(lines.windows(2).all(|pair| pair[0]["timestamp"].as_u64() <= pair[1]["timestamp"].as_u64()));
}

#[test]
fn hangup_does_not_restart_a_file() {
    let folder = Folder::new("service-reload-file");
    let json = folder.file("o.jsonl");
    let (systemd, mut child) =
        Systemd::start_without_terminal(&folder, Duration::from_secs(30), &["--input", "test:100000000", "--json", &json]);
    let mut said = Said::of(&mut child);
    systemd.wait_for("READY=1");
    signal(&child, "HUP");
    wait_for_reload(&systemd);
    systemd.wait_for("READY=1");
    said.wait_for("expected an input with an address");
    signal(&child, "TERM");
    systemd.wait_for("STOPPING=1");
    assert_eq!(child.wait().unwrap().code(), Some(0), "{}", said.rest());
    assert!(n_lines(&json) > 0);
}
