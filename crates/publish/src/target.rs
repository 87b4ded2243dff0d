//! Parses the URL or path of a destination, and reports mistakes before anything is opened.

use std::io::{self, ErrorKind};
use std::path::PathBuf;

use super::address::Address;
use super::client::Client;
#[cfg(feature = "http")]
use super::http::Http;
#[cfg(feature = "kafka")]
use super::kafka::Kafka;
use super::mqtt::Mqtt;
use super::nats::Nats;
use super::redis::Redis;
use super::rotating_file::{RotatingFile, Rotation};
use super::{Destination, Framing, IfExists, LineFile};

/// A destination that is not connected yet.
pub struct Target {
    shown: String,
    spool_name: String,
    kind: Kind,
}

enum Kind {
    File(PathBuf, Rotation),
    Server(Box<dyn Destination>),
}

/// The supported forms, for errors.
const FORMS: &str = "a file, file:///PATH, mqtt://HOST/TOPIC, nats://HOST/SUBJECT, redis://HOST, kafka://HOST/TOPIC or http://HOST/PATH (with TLS: mqtts, tls, rediss, kafkas, https)";

impl Target {
    /// Parses the URL of a server, or the path of a file; `-` is standard output. Connects to nothing.
    ///
    /// # Errors
    /// Returns `InvalidInput` if the URL is malformed, has unknown options, or names a missing password.
    pub fn parse(text: &str) -> io::Result<Self> {
        Self::try_parse(text).map_err(|error| io::Error::new(ErrorKind::InvalidInput, error))
    }

    fn try_parse(text: &str) -> Result<Self, String> {
        let file =
            |path: &str, rotation| Self { shown: path.to_owned(), spool_name: String::new(), kind: Kind::File(path.into(), rotation) };
        if let Some(rest) = text.strip_prefix("file://") {
            if !rest.starts_with('/') {
                return Err("expected file:///PATH with an absolute path".to_owned());
            }
            let mut address = Address::parse(&format!("file://localhost{rest}"))?;
            let rotation = rotation(&mut address)?;
            return Ok(file(&format!("/{}", address.path), rotation));
        }
        if !text.contains("://") {
            return Ok(file(text.strip_prefix("file:").unwrap_or(text), Rotation::default()));
        }
        let address = Address::parse(text)?;
        let shown = address.shown();
        let readable: String = shown.chars().map(|c| if c.is_ascii_alphanumeric() || c == '.' { c } else { '-' }).take(60).collect();
        // The checksum distinguishes addresses that have the same readable form.
        let user = address.user.as_deref().unwrap_or_default();
        let spool_name = format!("{readable}-{:08x}", crc32fast::hash(format!("{shown} {user}").as_bytes()));
        let server: Box<dyn Destination> = match &*address.scheme {
            "mqtt" | "mqtts" => Box::new(Client::new(Mqtt::new(address)?)),
            #[cfg(feature = "http")]
            "http" | "https" => Box::new(Http::new(address)?),
            #[cfg(feature = "kafka")]
            "kafka" | "kafkas" => Box::new(Kafka::new(address)?),
            "nats" | "tls" => Box::new(Client::new(Nats::new(address)?)),
            "redis" | "rediss" => Box::new(Client::new(Redis::new(address)?)),
            scheme => return Err(format!("unknown scheme `{scheme}`: expected {FORMS}")),
        };
        Ok(Self { shown, spool_name, kind: Kind::Server(server) })
    }

    /// The path of the file; `None` for a server.
    pub fn file(&self) -> Option<&std::path::Path> {
        match &self.kind {
            Kind::File(path, _) => Some(path),
            Kind::Server(_) => None,
        }
    }

    /// The URL without credentials and options.
    pub fn shown(&self) -> &str {
        &self.shown
    }

    /// Name of the subfolder that a spool uses for this destination. Different destinations have different names. Contains no password.
    pub fn spool_name(&self) -> &str {
        &self.spool_name
    }

    /// Creates the destination. [`Destination::connect`] opens it. `if_exists` and `framing` apply to files only.
    pub fn into_destination(self, if_exists: IfExists, framing: Framing) -> Box<dyn Destination> {
        match self.kind {
            Kind::File(path, rotation) if rotation != Rotation::default() => {
                Box::new(RotatingFile::new(path, if_exists, rotation, framing))
            }
            Kind::File(path, _) => Box::new(LineFile::new(path, if_exists).with_framing(framing)),
            Kind::Server(server) => server,
        }
    }
}

/// The options of a file.
fn rotation(address: &mut Address) -> Result<Rotation, String> {
    let (max_bytes, max_age) = (address.take_number("max-bytes")?, address.take_duration("max-age")?);
    let (keep, gzip) = (address.take_number("keep")?, address.take_switch("gzip")?);
    address.finish_file("max-bytes, max-age, keep, gzip")?;
    if max_bytes == Some(0) || max_age.is_some_and(|age| age.is_zero()) {
        return Err("options max-bytes and max-age: expected more than 0".to_owned());
    }
    if (keep.is_some() || gzip) && max_bytes.is_none() && max_age.is_none() {
        return Err("options keep and gzip: expected max-bytes or max-age as well, got neither".to_owned());
    }
    Ok(Rotation { max_bytes, max_age, keep, gzip })
}

impl std::fmt::Debug for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Target").field(&self.shown).finish()
    }
}
