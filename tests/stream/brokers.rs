//! Real brokers for tests: started by the test on a free port, killed with SIGKILL, and started again.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use crate::harness::{Folder, eventually};

/// Time after which a test is considered hanging.
pub const LIMIT: Duration = Duration::from_secs(60);

/// A broker process on a fixed port, with its files in a folder of the test.
pub struct Broker {
    pub port: u16,
    program: String,
    arguments: Vec<String>,
    process: Option<Child>,
}

/// Returns a port that was free a moment ago.
pub fn free_port() -> u16 {
    TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port()
}

impl Broker {
    /// Returns a broker that is not started yet. Each `{port}` in the arguments is replaced by the port of the broker.
    pub fn new(program: &str, arguments: &[&str]) -> Self {
        let port = free_port();
        // Debian installs servers into folders that are not on the PATH of users.
        let folders = ["/usr/sbin", "/usr/bin"].map(|folder| format!("{folder}/{program}"));
        let found = folders.iter().find(|path| Path::new(path).exists());
        let program = found.unwrap_or_else(|| panic!("{program} is not installed: run scripts/setup-system")).clone();
        let arguments = arguments.iter().map(|argument| argument.replace("{port}", &port.to_string())).collect();
        Self { port, program, arguments, process: None }
    }

    /// Returns an MQTT broker without persistence. `lines` are added to its configuration.
    pub fn mosquitto(folder: &Folder, lines: &str) -> Self {
        let config = folder.file("mosquitto.conf");
        let mut broker = Self::new("mosquitto", &["-c", &config]);
        let text =
            format!("listener {} 127.0.0.1\nallow_anonymous true\npersistence false\nuser root\nlog_type error\n{lines}", broker.port);
        std::fs::write(&config, text).unwrap();
        broker.arguments = vec!["-c".to_owned(), config];
        broker
    }

    /// Returns an MQTT broker that accepts only TLS and only clients with the certificate of the test, and the options of its address.
    pub fn mosquitto_with_tls(folder: &Folder) -> (Self, String) {
        let files = certificates(&folder.0);
        let [ca, cert, key] = ["ca.pem", "cert.pem", "key.pem"].map(|name| folder.file(name));
        let broker = Self::mosquitto(folder, &format!("cafile {ca}\ncertfile {cert}\nkeyfile {key}\nrequire_certificate true\n"));
        (broker, files)
    }

    /// Returns a Redis server that writes each command to its file before it answers.
    pub fn redis(folder: &Folder) -> Self {
        let settings = ["--port", "{port}", "--bind", "127.0.0.1", "--appendonly", "yes", "--appendfsync", "always", "--save", ""];
        let path = folder.0.to_str().unwrap();
        Self::new("redis-server", &[&settings[..], &["--logfile", "/dev/null", "--dir", path]].concat())
    }

    /// Starts the process and waits until it accepts connections.
    pub fn start(&mut self) {
        let mut command = Command::new(&self.program);
        let process = command.args(&self.arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        self.process = Some(process);
        eventually("the broker accepts connections", || TcpStream::connect(("127.0.0.1", self.port)).is_ok());
    }

    /// Sends a signal such as STOP or CONT to the process.
    #[allow(dead_code, reason = "not all users of this file pause brokers")]
    pub fn signal(&self, name: &str) {
        self.process.iter().for_each(|process| crate::rtsp::signal(process, name));
    }

    /// Kills the process with SIGKILL.
    pub fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill().unwrap();
            process.wait().unwrap();
        }
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Creates a certificate authority, and a certificate for 127.0.0.1 with its key. Returns the options of an address that uses them.
pub fn certificates(folder: &Path) -> String {
    let script = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=test-ca -keyout ca.key -out ca.pem \
         -addext basicConstraints=critical,CA:TRUE && \
         openssl req -newkey rsa:2048 -nodes -subj /CN=localhost -keyout key.pem -out request.pem && \
         printf 'subjectAltName=IP:127.0.0.1\\n' > names && \
         openssl x509 -req -days 2 -in request.pem -CA ca.pem -CAkey ca.key -CAcreateserial -extfile names -out cert.pem && chmod 644 *.pem";
    let output = Command::new("sh").args(["-c", script]).current_dir(folder).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let file = |name: &str| folder.join(name).display().to_string().replace(' ', "%20");
    format!("ca={}&cert={}&key={}", file("ca.pem"), file("cert.pem"), file("key.pem"))
}

/// A proxy that passes connections on to a port while the proxy is open.
pub struct Proxy {
    pub port: u16,
    gate: Arc<(Mutex<Gate>, Condvar)>,
}

#[derive(Default)]
struct Gate {
    is_open: bool,
    /// Whether the closed proxy accepts connections and closes them at once, as a broken network may do.
    refuses: bool,
}

impl Proxy {
    /// Returns a closed proxy: it accepts connections, and passes nothing on until it is opened. If `refuses` is true, the proxy closes
    /// connections instead.
    pub fn new(to: u16, refuses: bool) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let gate = Arc::new((Mutex::new(Gate { is_open: false, refuses }), Condvar::new()));
        let of_thread = gate.clone();
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let gate = of_thread.clone();
                std::thread::spawn(move || pass_on(client, to, &gate));
            }
        });
        Self { port, gate }
    }

    pub fn open(&self) {
        self.set(true);
    }

    /// Bytes that arrive from now on wait until the proxy is open again.
    pub fn close(&self) {
        self.set(false);
    }

    fn set(&self, is_open: bool) {
        self.gate.0.lock().unwrap().is_open = is_open;
        self.gate.1.notify_all();
    }
}

fn wait_open((gate, changed): &(Mutex<Gate>, Condvar)) {
    let mut gate = gate.lock().unwrap();
    while !gate.is_open {
        gate = changed.wait(gate).unwrap();
    }
}

fn pass_on(client: TcpStream, to: u16, gate: &Arc<(Mutex<Gate>, Condvar)>) {
    {
        let state = gate.0.lock().unwrap();
        if state.refuses && !state.is_open {
            return;
        }
    }
    wait_open(gate);
    let Ok(server) = TcpStream::connect(("127.0.0.1", to)) else { return };
    let copy = |mut from: TcpStream, mut to: TcpStream, gate: Arc<(Mutex<Gate>, Condvar)>| {
        let mut bytes = [0; 4096];
        while let Ok(n @ 1..) = from.read(&mut bytes) {
            wait_open(&gate);
            if to.write_all(&bytes[..n]).is_err() {
                break;
            }
        }
        let _closed = to.shutdown(std::net::Shutdown::Both);
        let _closed = from.shutdown(std::net::Shutdown::Both);
    };
    let (from_client, from_server) = (client.try_clone().unwrap(), server.try_clone().unwrap());
    let gate_of_answers = gate.clone();
    std::thread::spawn(move || copy(from_server, client, gate_of_answers));
    copy(from_client, server, gate.clone());
}

/// Subscribes to a topic of an MQTT broker, and receives topics and messages until the connection ends. This is a separate small client, so
/// that the test does not share code with the publisher.
pub fn subscribe(port: u16, topic: &str) -> Receiver<(String, Vec<u8>)> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    // A CONNECT packet of MQTT 3.1.1, with a clean session and without a keep-alive time.
    let id = format!("test-{}", free_port());
    let mut connect = vec![0x10, 12 + id.len() as u8, 0, 4, b'M', b'Q', b'T', b'T', 4, 2, 0, 0, 0, id.len() as u8];
    connect.extend_from_slice(id.as_bytes());
    stream.write_all(&connect).unwrap();
    assert_eq!(packet(&mut stream), Some((0x20, vec![0, 0])));
    let mut subscribe = vec![0x82, 5 + topic.len() as u8, 0, 1, 0, topic.len() as u8];
    subscribe.extend_from_slice(topic.as_bytes());
    subscribe.push(0);
    stream.write_all(&subscribe).unwrap();
    assert_eq!(packet(&mut stream), Some((0x90, vec![0, 1, 0])));
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        while let Some((kind, body)) = packet(&mut stream) {
            assert_eq!(kind & 0xf0, 0x30);
            let n_topic = usize::from(u16::from_be_bytes([body[0], body[1]]));
            let topic = String::from_utf8(body[2..2 + n_topic].to_vec()).unwrap();
            if sender.send((topic, body[2 + n_topic..].to_vec())).is_err() {
                return;
            }
        }
    });
    receiver
}

/// Reads an MQTT packet: its first byte and its body. `None` when the connection ends.
pub fn packet(stream: &mut TcpStream) -> Option<(u8, Vec<u8>)> {
    let mut byte = || {
        let mut byte = [0];
        stream.read_exact(&mut byte).ok().map(|()| byte[0])
    };
    let kind = byte()?;
    let (mut n, mut shift) = (0, 0);
    loop {
        let part = byte()?;
        n |= usize::from(part & 0x7f) << shift;
        shift += 7;
        if part & 0x80 == 0 {
            break;
        }
    }
    let mut body = vec![0; n];
    stream.read_exact(&mut body).ok()?;
    Some((kind, body))
}

/// A small client for requests to a NATS server, which does not share code with the publisher.
pub struct NatsClient {
    stream: std::io::BufReader<TcpStream>,
}

impl NatsClient {
    pub fn connect(port: u16) -> Self {
        let mut client = Self { stream: std::io::BufReader::new(TcpStream::connect(("127.0.0.1", port)).unwrap()) };
        client.send("CONNECT {\"verbose\":false}\r\nSUB answer 1\r\nSUB out 2\r\n");
        client
    }

    fn send(&mut self, text: &str) {
        self.stream.get_mut().write_all(text.as_bytes()).unwrap();
    }

    /// Returns the payload of the next message.
    pub fn next(&mut self) -> Vec<u8> {
        loop {
            let mut line = String::new();
            std::io::BufRead::read_line(&mut self.stream, &mut line).unwrap();
            match line.split_whitespace().collect::<Vec<_>>()[..] {
                ["PING"] => self.send("PONG\r\n"),
                [kind @ ("MSG" | "HMSG"), .., headers, n_bytes] => {
                    let n_bytes: usize = n_bytes.parse().unwrap();
                    let n_headers = if kind == "HMSG" { headers.parse().unwrap() } else { 0 };
                    let mut content = vec![0; n_bytes + 2];
                    self.stream.read_exact(&mut content).unwrap();
                    return content[n_headers..n_bytes].to_vec();
                }
                [] => panic!("the server closed the connection"),
                _ => {}
            }
        }
    }

    /// Asks JetStream for messages, which [`NatsClient::next`] returns.
    #[allow(dead_code, reason = "only the chaos test reads so many messages")]
    pub fn ask(&mut self, subject: &str, request: &str) {
        self.send(&format!("PUB {subject} out {}\r\n{request}\r\n", request.len()));
    }

    /// Returns the answer of JetStream to a request.
    pub fn request(&mut self, subject: &str, request: &str) -> serde_json::Value {
        self.send(&format!("PUB {subject} answer {}\r\n{request}\r\n", request.len()));
        serde_json::from_slice(&self.next()).unwrap()
    }
}

/// A request to a [`Webhook`].
#[derive(Debug)]
pub struct Request {
    pub headers: String,
    pub body: Vec<u8>,
}

/// An HTTP server that answers each request with a status that the test chooses.
pub struct Webhook {
    pub port: u16,
    /// Requests that were answered with status 200.
    pub requests: Receiver<Request>,
    /// One item for each request that was answered with another status.
    pub refusals: Receiver<()>,
    status: Arc<Mutex<u16>>,
}

impl Webhook {
    pub fn new(status: u16) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let status = Arc::new(Mutex::new(status));
        let (of_thread, (sender, requests), (refused, refusals)) = (status.clone(), channel(), channel());
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let (status, sender, refused) = (of_thread.clone(), sender.clone(), refused.clone());
                std::thread::spawn(move || {
                    let mut client = std::io::BufReader::new(client);
                    loop {
                        let mut headers = String::new();
                        while !headers.ends_with("\r\n\r\n") {
                            if std::io::BufRead::read_line(&mut client, &mut headers).unwrap_or(0) == 0 {
                                return;
                            }
                        }
                        let headers = headers.to_lowercase();
                        let length = headers.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
                        let mut body = vec![0; length.parse().unwrap()];
                        client.read_exact(&mut body).unwrap();
                        let status = *status.lock().unwrap();
                        if status == 200 {
                            // Sending fails if the test has ended.
                            let _sent = sender.send(Request { headers, body });
                        } else {
                            let _sent = refused.send(());
                        }
                        let answer = format!("HTTP/1.1 {status} x\r\ncontent-length: 2\r\n\r\nno");
                        if client.get_mut().write_all(answer.as_bytes()).is_err() {
                            return;
                        }
                    }
                });
            }
        });
        Self { port, requests, refusals, status }
    }

    pub fn answer_with(&self, status: u16) {
        *self.status.lock().unwrap() = status;
    }
}
