//! Simulated cameras: real RTSP servers that fail in an order that a seed determines.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use crate::random::Random;
use crate::rtsp::Server;

/// How a camera fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The process ends without closing its connections properly, as after a power failure; later it starts again.
    Killed,
    /// The process is stopped by a signal: connections stay open, and new ones get no answer.
    Stopped,
    /// The server answers, but sends no video.
    Stalled,
    /// Each frame takes ten times as long.
    Slow,
    /// The camera starts again with another password; later with the right one.
    WrongPassword,
    /// The resolution changes without a new connection.
    Resized,
    /// The camera starts again with another frame rate.
    OtherRate,
    /// The camera starts again with another codec.
    OtherCodec,
}

impl Fault {
    pub const ALL: [Self; 8] =
        [Self::Killed, Self::Stopped, Self::Stalled, Self::Slow, Self::WrongPassword, Self::Resized, Self::OtherRate, Self::OtherCodec];

    /// Whether the stream of the camera must be restarted. The fault must last longer than the time without data after which a source
    /// counts as lost.
    #[allow(dead_code, reason = "not all users of this file count restarts")]
    pub fn interrupts(self) -> bool {
        !matches!(self, Self::Slow | Self::Resized)
    }
}

/// A fault and its times.
#[derive(Debug, Clone, Copy)]
pub struct Step {
    /// Time from the end of the previous fault.
    pub after: Duration,
    pub fault: Fault,
    pub lasts: Duration,
}

/// Returns the faults of each camera. All kinds of faults occur, if there are enough steps.
pub fn draw(seed: u64, n_cameras: usize, n_steps: usize, longest: Duration) -> Vec<Vec<Step>> {
    let mut random = Random::new(seed);
    let mut faults: Vec<Fault> = Fault::ALL.into_iter().cycle().take(n_cameras * n_steps).collect();
    random.shuffle(&mut faults);
    let mut within = |longest: Duration| Duration::from_millis(random.below(longest.as_millis() as u64));
    let mut step = |fault| Step { after: within(longest), fault, lasts: longest / 2 + within(longest / 2) };
    faults.chunks(n_steps).map(|faults| faults.iter().map(|fault| step(*fault)).collect()).collect()
}

/// What a camera sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Video {
    pub width: u32,
    pub height: u32,
    /// Frames per second.
    pub rate: u32,
    pub codec: &'static str,
}

/// Width of the largest video after a fault.
const MAX_WIDTH: u32 = 320;

impl Video {
    pub const SMALL: Self = Self { width: 160, height: 120, rate: 10, codec: "h264" };
}

/// A camera with the user `user` and the password `secret`.
pub struct Camera {
    pub port: u16,
    video: Video,
    server: Option<Server>,
    fault: Option<Fault>,
    /// Number of times the codec has changed.
    n_recoded: usize,
}

impl Camera {
    /// `None` if there is no RTSP server; see [`Server::start`].
    pub fn start(video: Video) -> Option<Self> {
        let server = server(0, video, "secret")?;
        Some(Self { port: server.port, video, server: Some(server), fault: None, n_recoded: 0 })
    }

    pub fn uri(&self) -> String {
        format!("rtspt://user:secret@127.0.0.1:{}/live", self.port)
    }

    /// Asks the camera for its stream, and describes the answer.
    #[allow(dead_code, reason = "only the chaos test explains hangs")]
    pub fn answer(&self) -> String {
        let begin = Instant::now();
        let ask = || {
            let address = SocketAddr::from(([127, 0, 0, 1], self.port));
            let mut connection = TcpStream::connect_timeout(&address, Duration::from_secs(5))?;
            connection.set_read_timeout(Some(Duration::from_secs(10)))?;
            // The login is `user:secret`.
            let login = "Authorization: Basic dXNlcjpzZWNyZXQ=";
            write!(connection, "DESCRIBE rtsp://127.0.0.1:{}/live RTSP/1.0\r\nCSeq: 1\r\n{login}\r\n\r\n", self.port)?;
            let mut line = String::new();
            BufReader::new(connection).read_line(&mut line).map(|_| line)
        };
        format!("the camera answers to a request of the test: {:?} after {:?}", ask(), begin.elapsed())
    }

    /// Begins a fault.
    pub fn fail(&mut self, fault: Fault) {
        self.fault = Some(fault);
        let Some(server) = &mut self.server else { return };
        match fault {
            Fault::Killed => self.server = None,
            Fault::Stopped => server.signal("STOP"),
            Fault::Stalled => server.tell("stall"),
            Fault::Slow => server.tell(&format!("slow {}", 10_000 / self.video.rate)),
            Fault::WrongPassword => self.restart("other"),
            Fault::Resized => {
                // Larger sizes, then the first again: sizes that only grow would need more memory with each fault.
                let larger = (self.video.height * 2, self.video.width);
                (self.video.width, self.video.height) =
                    if larger.0 <= MAX_WIDTH { larger } else { (Video::SMALL.width, Video::SMALL.height) };
                server.tell(&format!("size {}x{}", self.video.width, self.video.height));
            }
            Fault::OtherRate => {
                self.video.rate = if self.video.rate == Video::SMALL.rate { 15 } else { Video::SMALL.rate };
                self.server = None;
            }
            Fault::OtherCodec => {
                self.n_recoded += 1;
                self.video.codec = ["h264", "vp8", "jpeg", "h265"][self.n_recoded % 4];
                self.server = None;
            }
        }
    }

    /// Ends the fault.
    pub fn heal(&mut self) {
        match self.fault.take() {
            Some(Fault::Stopped) => self.server.iter().for_each(|server| server.signal("CONT")),
            Some(Fault::Stalled | Fault::Slow) => self.server.iter_mut().for_each(|server| server.tell("go")),
            Some(Fault::Killed | Fault::WrongPassword | Fault::OtherRate | Fault::OtherCodec) => self.restart("secret"),
            Some(Fault::Resized) | None => {}
        }
    }

    fn restart(&mut self, password: &str) {
        self.server = None;
        let begin = Instant::now();
        // Another process may have the port for a moment.
        while self.server.is_none() {
            assert!(begin.elapsed() < Duration::from_secs(30), "port {} stays in use", self.port);
            self.server = server(self.port, self.video, password);
        }
    }
}

fn server(port: u16, video: Video, password: &str) -> Option<Server> {
    let Video { width, height, rate, codec } = video;
    let options = [
        "private".to_owned(),
        format!("port={port}"),
        format!("password={password}"),
        format!("size={width}x{height}"),
        format!("rate={rate}"),
        format!("codec={codec}"),
    ];
    Server::start(&options.iter().map(String::as_str).collect::<Vec<_>>())
}
