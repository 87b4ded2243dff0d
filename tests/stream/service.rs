//! Messages to systemd.

use std::io::ErrorKind;
use std::os::unix::net::UnixDatagram;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use crate::cli::{Folder, command};
use crate::rtsp::{Server, signal};

/// Time limit of a wait; a longer one counts as a hang.
const LIMIT: Duration = Duration::from_secs(60);

/// The socket on which systemd would receive the messages.
struct Systemd(UnixDatagram);

impl Systemd {
    fn start(folder: &Folder, watchdog: Duration, arguments: &[&str]) -> (Self, Child) {
        let path = folder.file("notify");
        let _was_there = std::fs::remove_file(&path);
        let socket = UnixDatagram::bind(&path).unwrap();
        let mut command = command();
        command.env("NOTIFY_SOCKET", &path).env("WATCHDOG_USEC", watchdog.as_micros().to_string());
        let child = command.args(["run", &folder.file("colors.toml"), "-q"]).args(arguments).stdin(Stdio::null()).spawn().unwrap();
        (Self(socket), child)
    }

    /// Returns the next message; `None` if none comes within this time.
    fn next(&self, within: Duration) -> Option<String> {
        self.0.set_read_timeout(Some(within)).unwrap();
        let mut bytes = [0; 1024];
        match self.0.recv(&mut bytes) {
            Ok(n_bytes) => Some(String::from_utf8_lossy(&bytes[..n_bytes]).trim().to_owned()),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => None,
            Err(error) => panic!("{error}"),
        }
    }

    /// Reads until this message, and returns how often the watchdog was fed before.
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
    assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
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
