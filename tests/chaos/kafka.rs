//! The mock cluster of librdkafka, in a process of its own.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;

use crate::rtsp::signal;

/// The cluster with a thread that gets its messages.
pub struct Cluster {
    process: Child,
    pub address: String,
    reader: Option<JoinHandle<()>>,
}

impl Cluster {
    /// Starts the cluster. `on_message` gets each message that arrives, in order.
    pub fn start(on_message: impl Fn(&[u8]) + Send + 'static) -> Self {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/kafka-cluster.py");
        let mut command = Command::new("/usr/bin/python3");
        command.arg(script).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut process = command.spawn().expect("python3 is installed");
        let mut lines = BufReader::new(process.stdout.take().expect("a pipe")).split(b'\n').map_while(Result::ok);
        let address = String::from_utf8(lines.next().unwrap_or_default()).expect("an address");
        assert!(!address.is_empty(), "librdkafka1 is not installed: run scripts/setup-system");
        let reader = std::thread::spawn(move || lines.for_each(|line| on_message(&line)));
        Self { process, address, reader: Some(reader) }
    }

    /// Gives the process a command; see the script.
    pub fn tell(&mut self, command: &str) {
        writeln!(self.process.stdin.as_mut().expect("a pipe"), "{command}").expect("the cluster runs");
    }

    pub fn signal(&self, name: &str) {
        signal(&self.process, name);
    }

    /// Reads all messages, and ends the process.
    pub fn finish(&mut self) {
        self.tell("end");
        self.reader.take().into_iter().for_each(|reader| reader.join().expect("the reader of Kafka"));
        self.process.wait().expect("the cluster ends");
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // The process has usually ended.
        let _ended = self.process.kill();
        let _reaped = self.process.wait();
    }
}
