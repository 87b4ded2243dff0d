//! A TCP connection, with TLS if required, whose calls end at a [`Deadline`].
//!
//! The clients of MQTT, NATS and Redis use it; these protocols are implemented in this crate. The clients need acknowledgments of single
//! messages and blocking calls that another thread can end, without an asynchronous runtime.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use super::Deadline;
use super::address::Address;
use super::files::NamedFile;

/// Maximum time for name resolution, connecting and the TLS handshake.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Interval at which a blocked call checks the deadline.
const TICK: Duration = Duration::from_millis(100);
/// Size of the buffer for one read.
const READ_BYTES: usize = 16 * 1024;

/// Address of a server, and TLS settings.
#[derive(Debug, Clone)]
pub(crate) struct Endpoint {
    host: String,
    port: u16,
    tls: Option<Tls>,
}

/// TLS settings of an endpoint. The files are read for each connection, because certificates are renewed.
#[cfg_attr(not(feature = "tls"), allow(dead_code, reason = "an address with TLS is an error"))]
#[derive(Debug, Clone, Default)]
pub(crate) struct Tls {
    /// File with the certificates that sign the server's certificate. If `None`, the certificates of the system are used.
    pub(crate) ca: Option<NamedFile>,
    /// The certificate and the key of the client.
    pub(crate) client: Option<(NamedFile, NamedFile)>,
}

impl Tls {
    /// Takes the options from an address; `None` if its scheme is without TLS. Reads the files once, to report a mistake before the start.
    pub(crate) fn of(address: &mut Address) -> Result<Option<Self>, String> {
        if !address.has_tls() {
            return Ok(None);
        }
        if !cfg!(feature = "tls") {
            return Err(format!("{}: this program was built without TLS (feature `tls`)", address.scheme));
        }
        let client = match (address.take_file("cert"), address.take_file("key")) {
            (Some(cert), Some(key)) => Some((cert, key)),
            (None, None) => None,
            _ => return Err("expected both options cert and key, got one of them".to_owned()),
        };
        let tls = Self { ca: address.take_file("ca"), client };
        // Without files, there is nothing to check but the certificates of the system, which can be installed later.
        #[cfg(feature = "tls")]
        if tls.ca.is_some() || tls.client.is_some() {
            super::tls::config(&tls).map_err(|error| error.to_string())?;
        }
        Ok(Some(tls))
    }
}

impl Endpoint {
    /// The endpoint of an address.
    pub(crate) fn of(address: &mut Address) -> Result<Self, String> {
        let tls = Tls::of(address)?;
        let (host, port) = address.hosts().next().ok_or("expected a host, got none")?;
        Ok(Self { host, port, tls })
    }

    /// The endpoints of an address with a list of hosts.
    pub(crate) fn of_each(address: &mut Address) -> Result<Vec<Self>, String> {
        let first = Self::of(address)?;
        Ok(address.hosts().map(|(host, port)| Self { host, port, ..first.clone() }).collect())
    }
}

enum Stream {
    Plain(TcpStream),
    #[cfg(feature = "tls")]
    Tls(Box<rustls::StreamOwned<rustls::ClientConnection, TcpStream>>),
}

/// An open connection, with a buffer of received bytes that are not consumed yet.
pub(crate) struct Connection {
    stream: Stream,
    deadline: Deadline,
    received: Vec<u8>,
}

impl Connection {
    /// Connects, with TLS if the endpoint requires it.
    pub(crate) fn open(endpoint: &Endpoint, deadline: &Deadline) -> io::Result<Self> {
        let mut connection = Self::open_plain(endpoint, deadline)?;
        connection.start_tls(endpoint)?;
        Ok(connection)
    }

    /// Connects without TLS, for protocols that begin in plain text.
    pub(crate) fn open_plain(endpoint: &Endpoint, deadline: &Deadline) -> io::Result<Self> {
        let (host, port) = (endpoint.host.clone(), endpoint.port);
        // Connect on another thread, because name resolution and connecting cannot be interrupted.
        let (connected, result) = channel();
        let connect = move || {
            // The caller may have stopped waiting.
            let _received = connected.send(connect(&host, port));
        };
        std::thread::Builder::new().name("roiflow-connect".to_owned()).spawn(connect)?;
        let stream = loop {
            match result.recv_timeout(deadline.remaining(TICK)?) {
                Ok(stream) => break stream?,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Err(ErrorKind::NotConnected.into()),
            }
        };
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(TICK))?;
        stream.set_write_timeout(Some(TICK))?;
        Ok(Self { stream: Stream::Plain(stream), deadline: deadline.clone(), received: Vec::new() })
    }

    /// Starts TLS on the connection if the endpoint requires TLS.
    #[cfg(feature = "tls")]
    pub(crate) fn start_tls(&mut self, endpoint: &Endpoint) -> io::Result<()> {
        let (Some(tls), Stream::Plain(socket)) = (&endpoint.tls, &self.stream) else { return Ok(()) };
        let mut socket = socket.try_clone()?;
        let name = rustls::pki_types::ServerName::try_from(endpoint.host.clone()).map_err(io::Error::other)?;
        let config = super::tls::config(tls)?;
        let mut session = rustls::ClientConnection::new(config, name).map_err(io::Error::other)?;
        let end = Instant::now() + CONNECT_TIMEOUT;
        while session.is_handshaking() {
            match session.complete_io(&mut socket) {
                Ok(_) => {}
                Err(error) if is_waiting(&error) => self.check(end, "the TLS handshake")?,
                Err(error) => return Err(error),
            }
        }
        self.stream = Stream::Tls(Box::new(rustls::StreamOwned::new(session, socket)));
        Ok(())
    }

    /// Returns an error if the endpoint requires TLS, because this build lacks the feature `tls`.
    #[cfg(not(feature = "tls"))]
    pub(crate) fn start_tls(&mut self, endpoint: &Endpoint) -> io::Result<()> {
        match endpoint.tls {
            Some(_) => Err(ErrorKind::Unsupported.into()),
            None => Ok(()),
        }
    }

    /// Writes all bytes.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut rest = bytes;
        while !rest.is_empty() {
            let written = match &mut self.stream {
                Stream::Plain(stream) => stream.write(rest),
                #[cfg(feature = "tls")]
                Stream::Tls(stream) => stream.write(rest),
            };
            match written {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(n) => rest = &rest[n..],
                Err(error) if is_waiting(&error) => {
                    self.deadline.remaining(TICK)?;
                }
                Err(error) => return Err(error),
            }
        }
        loop {
            let flushed = match &mut self.stream {
                Stream::Plain(_) => Ok(()),
                #[cfg(feature = "tls")]
                Stream::Tls(stream) => stream.flush(),
            };
            match flushed {
                Err(error) if is_waiting(&error) => {
                    self.deadline.remaining(TICK)?;
                }
                flushed => return flushed,
            }
        }
    }

    /// Writes the last bytes of a connection. Makes one attempt, regardless of the deadline.
    pub(crate) fn write_last(&mut self, bytes: &[u8]) {
        self.deadline = Deadline::default();
        self.deadline.set(Instant::now() + TICK);
        let _written = self.write(bytes);
    }

    /// Returns the received bytes that are not consumed yet.
    pub(crate) fn received(&self) -> &[u8] {
        &self.received
    }

    /// Removes the first `n` received bytes.
    pub(crate) fn consume(&mut self, n: usize) {
        self.received.drain(..n.min(self.received.len()));
    }

    /// Waits for further bytes until `end`.
    ///
    /// # Errors
    /// Returns `UnexpectedEof` if the server closed the connection, and `TimedOut` when `end` or the deadline has passed.
    pub(crate) fn receive(&mut self, end: Instant) -> io::Result<()> {
        while !self.receive_some()? {
            self.check(end, "an answer")?;
        }
        Ok(())
    }

    /// Reads the bytes that have arrived, or waits for at most [`TICK`]. Returns whether bytes have arrived.
    fn receive_some(&mut self) -> io::Result<bool> {
        let mut bytes = [0; READ_BYTES];
        let read = match &mut self.stream {
            Stream::Plain(stream) => stream.read(&mut bytes),
            #[cfg(feature = "tls")]
            Stream::Tls(stream) => stream.read(&mut bytes),
        };
        match read {
            Ok(0) => Err(io::Error::new(ErrorKind::UnexpectedEof, "the server closed the connection")),
            Ok(n) => {
                self.received.extend_from_slice(&bytes[..n]);
                Ok(true)
            }
            Err(error) if is_waiting(&error) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Reads the bytes that have arrived, without waiting.
    pub(crate) fn poll(&mut self) -> io::Result<()> {
        self.set_nonblocking(true)?;
        let mut received = Ok(true);
        while received.as_ref().is_ok_and(|is_some| *is_some) {
            received = self.receive_some();
        }
        self.set_nonblocking(false)?;
        received.map(|_| ())
    }

    fn set_nonblocking(&self, is_nonblocking: bool) -> io::Result<()> {
        match &self.stream {
            Stream::Plain(stream) => stream.set_nonblocking(is_nonblocking),
            #[cfg(feature = "tls")]
            Stream::Tls(stream) => stream.sock.set_nonblocking(is_nonblocking),
        }
    }

    fn check(&self, end: Instant, what: &str) -> io::Result<()> {
        self.deadline.remaining(TICK)?;
        if Instant::now() < end {
            return Ok(());
        }
        Err(io::Error::new(ErrorKind::TimedOut, format!("the server did not send {what} in time")))
    }
}

fn is_waiting(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}

/// Connects to the first address of the host that accepts the connection.
fn connect(host: &str, port: u16) -> io::Result<TcpStream> {
    let end = Instant::now() + CONNECT_TIMEOUT;
    let mut last = io::Error::new(ErrorKind::NotFound, "the name of the host has no address");
    for address in (host, port).to_socket_addrs()? {
        let left = end.saturating_duration_since(Instant::now()).max(TICK);
        match TcpStream::connect_timeout(&address, left) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}
