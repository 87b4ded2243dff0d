//! ONVIF cameras: finds them by WS-Discovery, and asks them for the addresses of their streams.
//!
//! 1. [`discover`] sends a probe by UDP, to the multicast group of WS-Discovery or to given addresses, and collects the answers.
//! 2. [`streams`] asks the service of a device for its media profiles, and for the address of each profile's stream.
//!
//! A login is sent as the digest (hash) of WS-Security (`UsernameToken`), never as plain text. The digest is computed with the time of the
//! device's clock, because cameras refuse a digest with another time, and their clocks are often wrong.
//!
//! Answers come from the network and are not trusted. So their size is limited, and document type definitions, which can expand to very
//! large texts, are refused. `https` services are not supported.
//!
//! Specifications: WS-Discovery (April 2005), ONVIF Core and ONVIF Media (ver10).

mod discovery;
mod soap;
mod xml;

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

pub use discovery::{Device, discover};
pub use soap::{Login, Stream, host, streams};

/// The port of WS-Discovery.
pub const PORT: u16 = 3702;

/// The multicast group of WS-Discovery.
pub const GROUP: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(239, 255, 255, 250)), PORT);

/// The reason why a request to a device failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    text: String,
    is_login: bool,
}

impl Error {
    fn new(text: impl Into<String>) -> Self {
        Self { text: text.into(), is_login: false }
    }

    fn of_login(text: impl Into<String>) -> Self {
        Self { text: text.into(), is_login: true }
    }

    /// Whether the device refuses the login, or needs one.
    pub fn is_login(&self) -> bool {
        self.is_login
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for Error {}
