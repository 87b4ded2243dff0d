//! Parses the URL or path of a destination, and reports mistakes before anything is opened.

use std::io::{self, ErrorKind};
use std::path::PathBuf;

use super::address::Address;
use super::client::Client;
use super::files::FileAccess;
#[cfg(feature = "http")]
use super::http::Http;
#[cfg(feature = "kafka")]
use super::kafka::Kafka;
use super::mqtt::Mqtt;
use super::nats::Nats;
use super::options::Scheme;
use super::redis::Redis;
use super::rotating_file::{RotatingFile, Rotation};
use super::{Destination, Framing, IfExists, LineFile};

/// A destination that is not connected yet.
pub struct Target {
    shown: String,
    spool_name: String,
    earlier_spool_name: Option<String>,
    kind: Kind,
}

enum Kind {
    File(PathBuf, Rotation),
    Server(Box<dyn Destination>),
}

/// The supported forms, for errors.
const FORMS: &str = "a file, file:///PATH, mqtt://HOST/TOPIC, nats://HOST/SUBJECT, redis://HOST, kafka://HOST/TOPIC or http://HOST/PATH (with TLS: mqtts, tls, rediss, kafkas, https)";

impl Target {
    /// Parses the URL of a server, or the path of a file; `-` is standard output. Reads the files that the options name, to report
    /// mistakes. Connects to nothing.
    ///
    /// # Errors
    /// Returns `InvalidInput` if the URL is malformed, has unknown options, names a missing or wrong file, or has no right to name files.
    pub fn parse(text: &str, access: &FileAccess) -> io::Result<Self> {
        Self::try_parse(text, access).map_err(|error| io::Error::new(ErrorKind::InvalidInput, error))
    }

    fn try_parse(text: &str, access: &FileAccess) -> Result<Self, String> {
        if let Some((path, rotation)) = file(text)? {
            if *access != FileAccess::Allowed {
                return Err("expected the URL of a server, because clients of a server cannot name its files, got a file".to_owned());
            }
            let (shown, spool_name) = (path.to_string_lossy().into_owned(), String::new());
            return Ok(Self { shown, spool_name, earlier_spool_name: None, kind: Kind::File(path, rotation) });
        }
        let address = server(text, access)?;
        let shown = address.shown();
        // The checksum distinguishes addresses that have the same readable form.
        let whole = format!("{}{}", address.origin(), address.raw_path);
        let checksum = crc32fast::hash(format!("{whole} {}", address.user.as_deref().unwrap_or_default()).as_bytes());
        let name = |shown: &str| {
            let readable: String = shown.chars().map(|c| if c.is_ascii_alphanumeric() || c == '.' { c } else { '-' }).take(60).collect();
            format!("{readable}-{checksum:08x}")
        };
        let spool_name = name(&shown);
        // Earlier versions wrote the whole path into the name.
        let earlier_spool_name = Some(name(&whole)).filter(|name| *name != spool_name);
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
        Ok(Self { shown, spool_name, earlier_spool_name, kind: Kind::Server(server) })
    }

    /// The path of the file that a URL names; `None` for a server. Opens nothing.
    pub fn file_of(text: &str) -> Option<PathBuf> {
        file(text).ok().flatten().map(|(path, _)| path)
    }

    /// The URL without credentials and options, or the path of the file. Opens nothing.
    pub fn shown_of(text: &str, access: &FileAccess) -> String {
        let of_file = Self::file_of(text).map(|path| path.to_string_lossy().into_owned());
        of_file.unwrap_or_else(|| server(text, access).map_or_else(|_| super::redact(text).into_owned(), |address| address.shown()))
    }

    /// The path of the file; `None` for a server.
    pub fn file(&self) -> Option<&std::path::Path> {
        match &self.kind {
            Kind::File(path, _) => Some(path),
            Kind::Server(_) => None,
        }
    }

    /// The URL without credentials and options, and without the path of a webhook.
    pub fn shown(&self) -> &str {
        &self.shown
    }

    /// Name of the subfolder that a spool uses for this destination. Different destinations have different names. Contains no password.
    pub fn spool_name(&self) -> &str {
        &self.spool_name
    }

    /// The name that earlier versions gave the subfolder, if it was another one.
    pub fn earlier_spool_name(&self) -> Option<&str> {
        self.earlier_spool_name.as_deref()
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

/// Parses the URL or the path of a file; `None` for the URL of a server.
fn file(text: &str) -> Result<Option<(PathBuf, Rotation)>, String> {
    let is_url = |text: &str| text.split_once("://").is_some_and(|(scheme, _)| scheme.eq_ignore_ascii_case("file"));
    if is_url(text) {
        let rest = &text["file://".len()..];
        if !rest.starts_with('/') {
            return Err("expected file:///PATH with an absolute path".to_owned());
        }
        let table = Scheme::named("file").ok_or("expected a scheme for files")?;
        let mut address = Address::parse(&format!("file://localhost{rest}"), table, &FileAccess::Allowed)?;
        let rotation = rotation(&mut address)?;
        return Ok(Some((format!("/{}", address.path).into(), rotation)));
    }
    if text.contains("://") {
        return Ok(None);
    }
    Ok(Some((text.strip_prefix("file:").unwrap_or(text).into(), Rotation::default())))
}

/// Parses the URL of a server. Opens nothing.
fn server(text: &str, access: &FileAccess) -> Result<Address, String> {
    let scheme = text.split_once("://").map(|(scheme, _)| scheme.to_ascii_lowercase()).unwrap_or_default();
    let table = Scheme::named(&scheme).ok_or_else(|| format!("unknown scheme `{scheme}`: expected {FORMS}"))?;
    Address::parse(text, table, access)
}

/// The options of a file.
fn rotation(address: &mut Address) -> Result<Rotation, String> {
    let (max_bytes, max_age) = (address.take_number("max-bytes")?, address.take_duration("max-age")?);
    let (keep, gzip) = (address.take_number("keep")?, address.take_switch("gzip")?);
    address.finish()?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placeholders_and_numbers_of_a_url_are_checked() {
        let parse = |url: &str| Target::parse(url, &FileAccess::Allowed);
        for url in ["mqtt://h/a/{stream}/b{", "nats://h/}a.{stream}", "redis://h?stream-key={a}:{stream}", "mqtt://h?status-topic=a"] {
            assert!(parse(url).is_ok(), "{url}");
        }
        for (url, expected) in [
            ("mqtt://h/{foo}", "unknown placeholder `{foo}`: expected {stream}"),
            ("mqtt://h/{stream}/%7Bsource%7D", "unknown placeholder `{source}`: expected {stream}"),
            ("mqtts://h/{Stream}", "unknown placeholder `{Stream}`: expected {stream}"),
            ("nats://h/a.{}.{stream}", "unknown placeholder `{}`: expected {stream}"),
            ("nats://h/a.{{stream}}", "unknown placeholder `{{stream}`: expected {stream}"),
            (
                "mqtt://h/a?status-topic=a/{stream}",
                "option status-topic: expected a topic without placeholders, because all streams share it, got `{stream}`",
            ),
        ] {
            assert_eq!(parse(url).unwrap_err().to_string(), expected, "{url}");
        }
    }

    #[cfg(feature = "http")]
    #[test]
    fn batch_and_path_of_a_webhook_are_checked() {
        let parse = |url: &str| Target::parse(url, &FileAccess::Allowed);
        for url in ["http://h/?x-batch=1", "http://h/?x-batch=256", "http://h/%7Ba%7D?q={a}"] {
            assert!(parse(url).is_ok(), "{url}");
        }
        for n in ["0", "257", "-1", "many"] {
            let error = parse(&format!("http://h/?x-batch={n}")).unwrap_err().to_string();
            assert_eq!(error, format!("option x-batch: expected a number of results from 1 to 256, got `{n}`"));
        }
        let error = parse("http://h/{secret}").unwrap_err().to_string();
        assert!(error.contains("expected a path without placeholders") && !error.contains("secret"), "{error}");
    }
}
