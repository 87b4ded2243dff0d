//! The address of an input that GStreamer opens, with its user and password.
//!
//! User and password are removed from an address if the source element has properties for them (RTSP, HTTP). So GStreamer's errors and logs
//! cannot contain user and password. A password may contain special characters without percent-encoding, such as `pa/ss`.

use std::fmt;
use std::path::Path;

use gst::glib;
use gst::prelude::*;
use gstreamer as gst;

use super::credentials::{Credentials, Login};
use super::logins::Logins;
use super::{Error, Result};
use crate::redaction::{self, Secrets, percent_encoded};
use crate::restart::is_live_scheme;

/// Address of an input. `Debug` and `Display` output contains no credentials. Two addresses are equal if the user has given the same text.
#[derive(Clone)]
pub struct Uri {
    /// The address as given by the user.
    typed: String,
    /// Lowercase scheme.
    scheme: String,
    /// The address that GStreamer opens.
    location: String,
    /// User and password, which are set as properties of the source element.
    login: Login,
    /// Passphrase of SRT.
    passphrase: Option<String>,
    /// Where the login comes from, if it may change.
    logins: Option<Logins>,
}

impl PartialEq for Uri {
    fn eq(&self, other: &Self) -> bool {
        self.typed == other.typed
    }
}

impl Eq for Uri {}

impl Uri {
    /// Parses an address; `None` if the text does not begin with `scheme://`.
    pub fn parse(text: &str) -> Option<Self> {
        let (scheme, rest) = text.split_once("://")?;
        let is_scheme =
            scheme.starts_with(|c: char| c.is_ascii_alphabetic()) && scheme.chars().all(|c| c.is_ascii_alphanumeric() || "+.-".contains(c));
        if !is_scheme {
            return None;
        }
        let scheme = scheme.to_ascii_lowercase();
        let (user, rest) = match user_end(rest).filter(|_| takes_login(&scheme)) {
            Some(end) => (Some(&rest[..end]), &rest[end + 1..]),
            None => (None, rest),
        };
        let decoded = |text: &str| String::from_utf8_lossy(&redaction::percent_decoded(text)).into_owned();
        let login = match user.map(|user| user.split_once(':').unwrap_or((user, ""))) {
            Some((user, "")) => Login { user: Some(decoded(user)), password: None },
            Some((user, password)) => Login { user: Some(decoded(user)), password: Some(decoded(password)) },
            None => Login::default(),
        };
        let location = format!("{scheme}://{rest}");
        Some(Self { typed: text.to_owned(), scheme, location, login, passphrase: None, logins: None })
    }

    /// The address of standard input, written as `-`.
    pub fn stdin() -> Self {
        let (typed, scheme, location) = ("-".to_owned(), "fd".to_owned(), "fd://0".to_owned());
        Self { typed, scheme, location, login: Login::default(), passphrase: None, logins: None }
    }

    /// Whether the data arrives through an open file descriptor, which cannot be opened again.
    pub fn is_descriptor(&self) -> bool {
        self.scheme == "fd"
    }

    /// Whether the address is that of a live source. HTTP addresses do not count as live, because they may name a file.
    pub fn is_live(&self) -> bool {
        is_live_scheme(&self.scheme)
    }

    /// Adds the credentials for this host. Credentials in the address take precedence.
    ///
    /// # Errors
    /// Returns an error if there is a password but no user.
    pub fn with_credentials(mut self, credentials: &Credentials) -> Result<Self> {
        if self.login.password.is_some() || !is_network(&self.scheme) {
            return Ok(self);
        }
        let found = credentials.of(host(&self.location), self.login.user.as_deref());
        if self.scheme == "srt" {
            self.passphrase = found.password;
            return Ok(self);
        }
        let user = self.login.user.take().or(found.user);
        if user.is_none() && found.password.is_some() {
            return Err(Error::usage(format!(
                "input `{}` failed: expected a user for the password, got none. Set ROIFLOW_INPUT_USER, or add `login` to the credentials file",
                self.shown()
            )));
        }
        self.login = Login { user, password: found.password };
        if !takes_login(&self.scheme)
            && let (Some(user), Some(password)) = (&self.login.user, &self.login.password)
        {
            let rest = self.location.split_once("://").map_or("", |(_, rest)| rest);
            if user_end(rest).is_none() {
                self.location = format!("{}://{}:{}@{rest}", self.scheme, percent_encoded(user), percent_encoded(password));
            }
        }
        Ok(self)
    }

    /// Adds the login for this host, which [`Uri::with_newest_login`] reads again.
    ///
    /// # Errors
    /// Returns an error if there is a password but no user.
    pub fn with_logins(self, logins: &Logins) -> Result<Self> {
        Ok(Self { logins: Some(logins.clone()), ..self.with_credentials(&logins.newest())? })
    }

    /// Returns the same address with the login that is valid now. Reads files.
    pub(super) fn with_newest_login(&self) -> Self {
        let Some((logins, typed)) = self.logins.as_ref().zip(Self::parse(&self.typed)) else { return self.clone() };
        match typed.with_credentials(&logins.newest()) {
            Ok(Self { location, login, passphrase, .. }) => Self { location, login, passphrase, ..self.clone() },
            Err(error) => {
                tracing::warn!("the earlier login stays in use: {error}");
                self.clone()
            }
        }
    }

    /// Returns the address without credentials, for messages and results.
    pub fn shown(&self) -> String {
        redaction::redact(&self.typed).into_owned()
    }

    /// Returns the credentials that must be removed from texts about this input.
    pub fn secrets(&self) -> Secrets {
        let mut secrets = Secrets::of(&self.typed);
        secrets.extend(Secrets::of(&self.location));
        for secret in [&self.login.password, &self.passphrase].into_iter().flatten() {
            secrets.add(secret);
        }
        secrets
    }

    /// Sets the address on the element `opener`, which opens it. Also sets the credentials on the source elements that `opener`
    /// creates for this host.
    pub(super) fn open_with(&self, opener: &gst::Element) {
        let Some(bin) = opener.downcast_ref::<gst::Bin>() else { return };
        let uri = self.clone();
        bin.connect_deep_element_added(move |_, _, element| uri.log_in(element));
        opener.set_property("uri", &self.location);
    }

    fn log_in(&self, element: &gst::Element) {
        let has = |property: &str| element.find_property(property).is_some_and(|spec| spec.value_type() == String::static_type());
        let is_for_host = || {
            let location = element.property::<Option<String>>("location");
            location.is_some_and(|location| host(&location).eq_ignore_ascii_case(host(&self.location)))
        };
        if has("user-id") && has("user-pw") && has("location") && is_for_host() && takes_login(&self.scheme) {
            for (property, value) in [("user-id", &self.login.user), ("user-pw", &self.login.password)] {
                if let Some(value) = value {
                    element.set_property(property, value);
                }
            }
        }
        if let Some(passphrase) = self.passphrase.as_ref().filter(|_| has("passphrase")) {
            element.set_property("passphrase", passphrase);
        }
    }
}

impl fmt::Debug for Uri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Uri({})", self.shown())
    }
}

/// Returns the `file:` URI of a path, which need not be UTF-8.
///
/// # Errors
/// Returns an error if the path is empty, or the path is relative and the working folder was deleted.
pub fn file_uri(path: &Path) -> Result<String> {
    let failed = |error: &dyn fmt::Display| Error::failed(format!("input `{}`: {error}", path.display()));
    let absolute = std::path::absolute(path).map_err(|error| failed(&error))?;
    Ok(glib::filename_to_uri(absolute, None).map_err(|error| failed(&error))?.into())
}

/// Whether the source elements of this scheme have properties for user and password.
fn takes_login(scheme: &str) -> bool {
    scheme.starts_with("rtsp") || matches!(scheme, "http" | "https")
}

/// Whether hosts of this scheme may require a password.
fn is_network(scheme: &str) -> bool {
    takes_login(scheme) || scheme.starts_with("rtmp") || matches!(scheme, "srt" | "ftp" | "sftp" | "ws" | "wss" | "mms" | "smb")
}

/// Returns the position of the `@` after user and password; `None` if the address has no user. `rest` is the address after
/// `scheme://`.
fn user_end(rest: &str) -> Option<usize> {
    let authority = &rest[..rest.find(['/', '?', '#']).unwrap_or(rest.len())];
    if let Some(end) = authority.rfind('@') {
        return Some(end);
    }
    // In `user:pa/ss@host`, `pa` is not a port number, so the slash belongs to the password.
    let (name, port) = authority.rsplit_once(':')?;
    let is_port = port.bytes().all(|byte| byte.is_ascii_digit());
    rest.rfind('@').filter(|_| !is_port && !name.starts_with('['))
}

/// Returns the host and port of an address.
fn host(location: &str) -> &str {
    let rest = location.split_once("://").map_or(location, |(_, rest)| rest);
    let rest = user_end(rest).map_or(rest, |end| &rest[end + 1..]);
    &rest[..rest.find(['/', '?', '#']).unwrap_or(rest.len())]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_are_removed_from_location() {
        for (typed, location, user, password) in [
            ("rtsp://u:p@host/a", "rtsp://host/a", Some("u"), Some("p")),
            ("RTSP://u:p%40%2f%@Host:554/a?b", "rtsp://Host:554/a?b", Some("u"), Some("p@/%")),
            ("rtsp://u:pa/s?s#@host/a", "rtsp://host/a", Some("u"), Some("pa/s?s#")),
            ("rtsp://u:p:q@r@host", "rtsp://host", Some("u"), Some("p:q@r")),
            ("https://token@host/@x", "https://host/@x", Some("token"), None),
            ("http://host:80/@x", "http://host:80/@x", None, None),
            ("http://[::1]:80/@x", "http://[::1]:80/@x", None, None),
            ("srt://u:p@host:9000", "srt://u:p@host:9000", None, None),
        ] {
            let uri = Uri::parse(typed).unwrap();
            let got = (uri.location.as_str(), uri.login.user.as_deref(), uri.login.password.as_deref());
            assert_eq!(got, (location, user, password), "{typed}");
            assert!(!format!("{uri:?}").contains("p@/%") && !format!("{uri:?}").contains("u:p"), "{uri:?}");
        }
        for none in ["clip.mp4", "://x", "1a://x", "a b://x", "rtsp:/u:p@h"] {
            assert_eq!(Uri::parse(none), None, "{none}");
        }
    }

    #[test]
    fn credentials_are_used_for_their_host() {
        let credentials = Credentials::netrc("machine host login a password b\nmachine other:81 login c password d").unwrap();
        let login = |typed: &str| {
            let uri = Uri::parse(typed).unwrap().with_credentials(&credentials).unwrap();
            (uri.login.user.unwrap_or_default(), uri.login.password.unwrap_or_default())
        };
        let of = |user: &str, password: &str| (user.to_owned(), password.to_owned());
        assert_eq!(login("rtsp://host:554/x"), of("a", "b"));
        assert_eq!(login("rtsp://a@host/x"), of("a", "b"));
        assert_eq!(login("rtsp://z@host/x"), of("z", ""), "the entry belongs to another user");
        assert_eq!(login("rtsp://u:p@host/x"), of("u", "p"));
        assert_eq!(login("http://other:81/x"), of("c", "d"));
        assert_eq!(login("http://other/x"), of("", ""));
        let rtmp = Uri::parse("rtmp://host/live").unwrap().with_credentials(&credentials).unwrap();
        assert_eq!((rtmp.location.as_str(), &*rtmp.shown()), ("rtmp://a:b@host/live", "rtmp://host/live"));
        let srt = Uri::parse("srt://host:9000").unwrap().with_credentials(&credentials).unwrap();
        assert_eq!((srt.location.as_str(), srt.passphrase.as_deref()), ("srt://host:9000", Some("b")));
    }
}
