//! The RTSP server of the tests.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};

/// An RTSP server in a separate process. The process ends with this value, and also if the test is killed.
pub struct Server {
    pub process: Child,
    pub port: u16,
}

impl Server {
    /// Starts the server. Returns `None` if Debian's python3-gi and gir1.2-gst-rtsp-server-1.0 are not installed.
    pub fn start(arguments: &[&str]) -> Option<Self> {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/rtsp-server.py");
        let mut command = Command::new("/usr/bin/python3");
        command.arg(script).args(arguments).env_remove("G_DEBUG").stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().ok()?;
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

    /// Gives the server a command; see the script.
    #[allow(dead_code, reason = "not all users of this file have commands")]
    pub fn tell(&mut self, command: &str) {
        let stdin = self.process.stdin.as_mut().expect("a pipe");
        writeln!(stdin, "{command}").expect("the server runs");
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
