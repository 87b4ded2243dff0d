//! The RTSP server of the tests.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

/// An RTSP server in a separate process.
pub struct Server {
    pub process: Child,
    pub port: u16,
}

impl Server {
    /// Starts the server. Returns `None` if Debian's python3-gi and gir1.2-gst-rtsp-server-1.0 are not installed.
    pub fn start(arguments: &[&str]) -> Option<Self> {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/stream/rtsp-server.py");
        let python = Command::new("/usr/bin/python3").arg(script).args(arguments).env_remove("G_DEBUG").stdout(Stdio::piped()).spawn();
        let mut process = python.ok()?;
        let mut line = String::new();
        BufReader::new(process.stdout.take()?).read_line(&mut line).ok()?;
        match line.trim().parse() {
            Ok(port) => Some(Self { process, port }),
            Err(_) => {
                process.wait().ok()?;
                eprintln!("skipped: no RTSP server; install python3-gi and gir1.2-gst-rtsp-server-1.0");
                None
            }
        }
    }

    pub fn uri(&self, scheme: &str, user: &str, path: &str) -> String {
        format!("{scheme}://{user}127.0.0.1:{}{path}", self.port)
    }

    pub fn signal(&self, name: &str) {
        signal(&self.process, name);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ended = self.process.kill();
        let _reaped = self.process.wait();
    }
}

pub fn signal(process: &Child, name: &str) {
    assert!(Command::new("sh").args(["-c", &format!("kill -{name} {}", process.id())]).status().unwrap().success());
}
