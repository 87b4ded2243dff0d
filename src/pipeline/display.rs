//! Checks that a window can be shown. The check is needed because GStreamer's sinks crash, or show nothing and report no error,
//! if the display does not work.

use std::env;
use std::ffi::OsStr;
use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use gst::prelude::*;
use gstreamer as gst;

use super::plan::WINDOW;
use super::{Error, Result};

/// Maximum time that a display on another machine may take to respond.
const MAX_WAIT: Duration = Duration::from_secs(3);
/// X11 connection request, version 11, without authorization. The display may refuse it, but a refusal also shows that the
/// display works.
const X_GREETING: [u8; 12] = [b'l', 0, 11, 0, 0, 0, 0, 0, 0, 0, 0, 0];
/// Port of X display 0.
const X_PORT: u16 = 6000;

/// Connects to each display that the environment variables name.
///
/// # Errors
/// Returns an error if no display is named, or a display does not respond.
pub(super) fn check() -> Result<()> {
    let variable = |name: &str| env::var_os(name).filter(|value| !value.is_empty());
    let (x, wayland) = (variable("DISPLAY"), variable("WAYLAND_DISPLAY"));
    if x.is_none() && wayland.is_none() {
        return Err(Error::failed("--show needs a display, and neither DISPLAY nor WAYLAND_DISPLAY is set; use --video FILE instead"));
    }
    for (name, value, connected) in [("WAYLAND_DISPLAY", &wayland, connect_wayland as fn(&OsStr) -> _), ("DISPLAY", &x, connect_x)] {
        let Some(value) = value else { continue };
        if let Err(error) = connected(value) {
            return Err(Error::failed(format!(
                "--show needs a display that responds: {name} is `{}`: {error}; correct or unset {name}, or use --video FILE instead",
                value.to_string_lossy()
            )));
        }
    }
    Ok(())
}

/// Opens the window of a pipeline and checks that a video sink works. GStreamer itself shows nothing and reports no error if none
/// works.
///
/// # Errors
/// Returns an error if the window cannot be opened.
pub(super) fn open(pipeline: &gst::Pipeline) -> Result<()> {
    let Some(window) = pipeline.by_name(WINDOW) else { return Ok(()) };
    let started = window.set_state(gst::State::Ready);
    let factory = |element: &gst::Element| element.factory().map(|factory| factory.name().to_string()).unwrap_or_default();
    let sinks = window.downcast_ref::<gst::Bin>().map(|bin| bin.children()).unwrap_or_default();
    let is_shown = started.is_ok() && sinks.iter().any(|sink| factory(sink) != "fakesink");
    if is_shown {
        return Ok(());
    }
    Err(Error::failed("--show: no window could be opened on this display; check that this user may use it, or use --video FILE instead"))
}

fn connect_wayland(display: &OsStr) -> io::Result<()> {
    let path = PathBuf::from(display);
    if path.is_absolute() {
        return greet_wayland(UnixStream::connect(path)?);
    }
    let folder = env::var_os("XDG_RUNTIME_DIR").ok_or_else(|| io::Error::other("XDG_RUNTIME_DIR is not set"))?;
    greet_wayland(UnixStream::connect(Path::new(&folder).join(path))?)
}

/// Requests the registry of a Wayland compositor, to check that the compositor responds.
fn greet_wayland(stream: UnixStream) -> io::Result<()> {
    const DISPLAY: u32 = 1;
    const REGISTRY: u32 = 2;
    // Message `wl_display.get_registry`: object ID, message size and opcode, ID of the new object.
    let message = [DISPLAY, (12 << 16) | 1, REGISTRY].map(u32::to_ne_bytes).concat();
    stream.set_read_timeout(Some(MAX_WAIT))?;
    stream.set_write_timeout(Some(MAX_WAIT))?;
    greet(stream, &message)
}

/// Sends a message and waits for a response.
fn greet(mut stream: impl Read + Write, message: &[u8]) -> io::Result<()> {
    stream.write_all(message)?;
    match stream.read(&mut [0; 8]) {
        Ok(0) => Err(io::Error::other("the display closed the connection")),
        Ok(_) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(io::Error::other("the display does not respond")),
        Err(error) => Err(error),
    }
}

/// Connects to the X display `host:display.screen`. Without a host, connects to this machine.
fn connect_x(display: &OsStr) -> io::Result<()> {
    let wrong = || io::Error::other("expected HOST:NUMBER, such as :0");
    let (host, number) = display.to_str().and_then(|display| display.rsplit_once(':')).ok_or_else(wrong)?;
    let number: u16 = number.split('.').next().and_then(|number| number.parse().ok()).ok_or_else(wrong)?;
    let host = host.rsplit_once('/').filter(|(_, host)| !host.is_empty()).map_or(host, |(_, host)| host);
    if host.is_empty() || host == "unix" {
        return connect_local_x(&format!("/tmp/.X11-unix/X{number}"));
    }
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let mut failure = io::Error::other("the host has no address");
    for address in (host, X_PORT.checked_add(number).ok_or_else(wrong)?).to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, MAX_WAIT) {
            Ok(stream) => {
                stream.set_read_timeout(Some(MAX_WAIT))?;
                return greet(stream, &X_GREETING);
            }
            Err(error) => failure = error,
        }
    }
    Err(failure)
}

fn connect_local_x(path: &str) -> io::Result<()> {
    #[cfg(target_os = "linux")]
    {
        use std::os::linux::net::SocketAddrExt;
        let address = std::os::unix::net::SocketAddr::from_abstract_name(path)?;
        if let Ok(stream) = UnixStream::connect_addr(&address) {
            return greet_x(stream);
        }
    }
    greet_x(UnixStream::connect(path)?)
}

fn greet_x(stream: UnixStream) -> io::Result<()> {
    stream.set_read_timeout(Some(MAX_WAIT))?;
    stream.set_write_timeout(Some(MAX_WAIT))?;
    greet(stream, &X_GREETING)
}
