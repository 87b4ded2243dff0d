//! Destinations by URL: which destination a text names, checked before anything is opened.

use std::io::{self, ErrorKind};
use std::path::PathBuf;

use super::address::Address;
#[cfg(feature = "http")]
use super::http::Http;
use super::mqtt::Mqtt;
use super::nats::Nats;
use super::redis::Redis;
use super::{Destination, IfExists, LineFile};

/// A destination that is not connected yet.
pub struct Target {
    shown: String,
    spool_name: String,
    kind: Kind,
}

enum Kind {
    File(PathBuf),
    Server(Box<dyn Destination>),
}

/// The supported forms, for errors.
const FORMS: &str =
    "a file, file:///PATH, mqtt://HOST/TOPIC, nats://HOST/SUBJECT, redis://HOST or http://HOST/PATH (with TLS: mqtts, tls, rediss, https)";

impl Target {
    /// Parses the URL of a server, or the path of a file; `-` is standard output. Connects to nothing.
    ///
    /// # Errors
    /// `InvalidInput` if the URL is malformed, has unknown options, or names a missing password.
    pub fn parse(text: &str) -> io::Result<Self> {
        Self::try_parse(text).map_err(|error| io::Error::new(ErrorKind::InvalidInput, error))
    }

    fn try_parse(text: &str) -> Result<Self, String> {
        let file = |path: &str| Self { shown: path.to_owned(), spool_name: String::new(), kind: Kind::File(path.into()) };
        if let Some(path) = text.strip_prefix("file://") {
            return match path.starts_with('/') {
                true => Ok(file(path)),
                false => Err("expected file:///PATH with an absolute path".to_owned()),
            };
        }
        if !text.contains("://") {
            return Ok(file(text.strip_prefix("file:").unwrap_or(text)));
        }
        let address = Address::parse(text)?;
        let shown = address.shown();
        let readable: String = shown.chars().map(|c| if c.is_ascii_alphanumeric() || c == '.' { c } else { '-' }).take(60).collect();
        // The checksum keeps apart addresses that look alike.
        let user = address.user.as_deref().unwrap_or_default();
        let spool_name = format!("{readable}-{:08x}", crc32fast::hash(format!("{shown} {user}").as_bytes()));
        let server: Box<dyn Destination> = match &*address.scheme {
            "mqtt" | "mqtts" => Box::new(Mqtt::new(address)?),
            #[cfg(feature = "http")]
            "http" | "https" => Box::new(Http::new(address)?),
            "nats" | "tls" => Box::new(Nats::new(address)?),
            "redis" | "rediss" => Box::new(Redis::new(address)?),
            scheme => return Err(format!("unknown scheme `{scheme}`: expected {FORMS}")),
        };
        Ok(Self { shown, spool_name, kind: Kind::Server(server) })
    }

    /// The path of the file; `None` for a server.
    pub fn file(&self) -> Option<&std::path::Path> {
        match &self.kind {
            Kind::File(path) => Some(path),
            Kind::Server(_) => None,
        }
    }

    /// The URL without credentials and options.
    pub fn shown(&self) -> &str {
        &self.shown
    }

    /// Name of the subfolder of a spool for this destination. Different for different destinations; without credentials.
    pub fn spool_name(&self) -> &str {
        &self.spool_name
    }

    /// The destination. Connecting opens it; `if_exists` concerns files.
    pub fn into_destination(self, if_exists: IfExists) -> Box<dyn Destination> {
        match self.kind {
            Kind::File(path) => Box::new(LineFile::new(path, if_exists)),
            Kind::Server(server) => server,
        }
    }
}

impl std::fmt::Debug for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Target").field(&self.shown).finish()
    }
}
