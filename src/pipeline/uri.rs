//! The address of an input that GStreamer opens, with its user and password.
//!
//! User and password are removed from an address if the source element has properties for them (RTSP, HTTP). So GStreamer's errors and logs
//! cannot contain user and password. A password may contain special characters without percent-encoding, such as `pa/ss`.
//!
//! A login belongs to one host and port. The source elements would send it to each server to which the first one redirects them. So an
//! `rtspsrc` loses its login when it leaves this place, redirects of a `souphttpsrc` with a login are followed by a new pipeline, and its login
//! is set anew for each segment of a playlist.

use std::fmt;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use gst::glib;
use gst::prelude::*;
use gstreamer as gst;

use super::credentials::{self, Credentials, Login};
use super::logins::Logins;
use super::{Error, Result, reasons};
use crate::elements::redirects;
use crate::intake;
use crate::redaction::{self, Secrets, percent_encoded};
use crate::restart::is_live_scheme;

/// Host, in lower case, and port of a server.
type Place = (String, u16);

/// Maximum number of redirects that are followed.
const MAX_REDIRECTS: u8 = 5;

/// Address of an input. `Debug` and `Display` output contains no credentials. Two addresses are equal if the user has given the same text.
#[derive(Clone)]
pub struct Uri {
    /// The address as given by the user.
    typed: String,
    /// Lowercase scheme.
    scheme: String,
    /// The address that GStreamer opens.
    location: String,
    /// The host and port that get the login: those of the address before all redirects. `None` if they are not clear.
    home: Option<Place>,
    /// User and password, which are set as properties of the source element.
    login: Login,
    /// Further hosts that get the login after a redirect, because the user has set the same login for them.
    login_hosts: Vec<String>,
    /// Number of redirects to `location`.
    n_redirects: u8,
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
        Some(Self::new(text.to_owned(), scheme, location, login))
    }

    fn new(typed: String, scheme: String, location: String, login: Login) -> Self {
        let mut uri =
            Self { typed, scheme, location, home: None, login, login_hosts: Vec::new(), n_redirects: 0, passphrase: None, logins: None };
        uri.home = place(&uri.location);
        uri
    }

    /// The address of standard input, written as `-`.
    pub fn stdin() -> Self {
        Self::new("-".to_owned(), "fd".to_owned(), "fd://0".to_owned(), Login::default())
    }

    /// Returns the host of the address, with its port if it has one; `None` if GStreamer may read another host from the address.
    pub fn host(&self) -> Option<&str> {
        host(&self.location)
    }

    /// Checks that the address of a server names a host, and that all programs read the same one from it.
    ///
    /// # Errors
    /// Returns `Usage` with what was expected.
    pub(super) fn check(&self) -> Result<()> {
        let (_, rest) = self.location.split_once("://").unwrap_or_default();
        // A login for these schemes is a part of the location.
        let place = if takes_login(&self.scheme) { rest } else { user_end(rest).map_or(rest, |end| &rest[end + 1..]) };
        // Without a host, SRT waits for a sender.
        let is_listener = self.scheme == "srt" && place.starts_with(':');
        if !is_network(&self.scheme) || is_listener || host(&format!("{}://{place}", self.scheme)).is_some() {
            return Ok(());
        }
        Err(Error::usage(format!(
            "input `{}`: expected an address such as {}://HOST:PORT/PATH, with a host and a port from 1 to 65535. Write special characters of a user \
             or a password percent-encoded, such as %40 for @",
            self.shown(),
            self.scheme
        )))
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
        let Some(host) = self.host() else { return Ok(self) };
        let found = credentials.of(host, self.login.user.as_deref());
        self.login_hosts = credentials.hosts_of(&found);
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

    /// Adds the login for this host, which is read again for each attempt to open the input.
    ///
    /// # Errors
    /// Returns an error if there is a password but no user.
    pub fn with_logins(self, logins: &Logins) -> Result<Self> {
        Ok(Self { logins: Some(logins.clone()), ..self.with_credentials(&logins.newest())? })
    }

    /// Returns the same address with the login that is valid now. Reads files.
    pub(super) fn with_newest_login(&self) -> Self {
        // After a redirect, the address is not the one that the user has given.
        let typed = Self::parse(&self.typed).filter(|_| self.n_redirects == 0);
        let Some((logins, typed)) = self.logins.as_ref().zip(typed) else { return self.clone() };
        match typed.with_credentials(&logins.newest()) {
            Ok(Self { location, login, login_hosts, passphrase, .. }) => Self { location, login, login_hosts, passphrase, ..self.clone() },
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

    /// Whether the login may be sent to the server of an address, which a source element opens or has opened.
    fn may_log_in(&self, location: &str) -> bool {
        let is_listed = || host(location).is_some_and(|host| credentials::is_among(host, &self.login_hosts));
        place(location).is_some_and(|place| Some(place) == self.home) || is_listed()
    }

    /// Returns the address to which the server of this address redirects; `None` if it is no address of the same protocol, or after too
    /// many redirects.
    pub(super) fn redirected_to(&self, location: &str) -> Option<Self> {
        let target = Self::parse(&resolved(&self.location, location)?)
            .filter(|target| target.scheme.starts_with("http") && self.n_redirects < MAX_REDIRECTS)?;
        let from = if target.login.user.is_some() { target.clone() } else { self.clone() };
        let typed = self.typed.clone();
        Some(Self { typed, scheme: target.scheme, location: target.location, n_redirects: self.n_redirects + 1, ..from })
    }

    /// Returns why a server refuses this address, if it is another server than the one that gets the login. `location` is the address that
    /// the source has opened, after its redirects.
    pub(super) fn missing_login(&self, location: &str) -> Option<String> {
        let has_login = self.login.password.is_some() && !self.may_log_in(location);
        has_login.then(|| {
            let (home, _) = self.home.clone().unwrap_or_default();
            let location = redaction::redact(location);
            format!("the server {home} redirects to `{location}`, which does not get its login. Set a login for the host of that address")
        })
    }

    fn log_in(&self, element: &gst::Element) {
        let has = |property: &str| element.find_property(property).is_some_and(|spec| spec.value_type() == String::static_type());
        let is_rtsp = intake::factory_name(element) == "rtspsrc";
        if is_rtsp {
            redirects::limit(element);
        }
        let has_login = self.login.user.is_some() && takes_login(&self.scheme) && has("user-id") && has("user-pw") && has("location");
        if has_login && is_rtsp {
            if self.may_log_in(&element.property::<Option<String>>("location").unwrap_or_default()) {
                self.log_in_at_home(element);
                return;
            }
        } else if has_login {
            self.log_in_for_request(element);
            // The elements that fetch the segments of a playlist use a source again for another address. This event is the first of a request.
            let uri = self.clone();
            element.static_pad("src").and_then(|pad| {
                pad.add_probe(gst::PadProbeType::EVENT_DOWNSTREAM, move |pad, info| {
                    if let (Some(event), Some(element)) = (info.event(), pad.parent_element())
                        && event.type_() == gst::EventType::StreamStart
                    {
                        uri.log_in_for_request(&element);
                    }
                    gst::PadProbeReturn::Ok
                })
            });
        }
        if let Some(passphrase) = self.passphrase.as_ref().filter(|_| has("passphrase")) {
            element.set_property("passphrase", passphrase);
        }
    }
}

impl Uri {
    /// Sets the login of a source of HTTP if the server of its present address may get it, and removes it otherwise.
    fn log_in_for_request(&self, source: &gst::Element) {
        let may_log_in = self.may_log_in(&source.property::<Option<String>>("location").unwrap_or_default());
        self.set_login(source, may_log_in);
        if source.find_property("automatic-redirect").is_some() {
            source.set_property("automatic-redirect", !may_log_in);
        }
    }

    /// Sets or removes the login of a source element.
    fn set_login(&self, element: &gst::Element, is_set: bool) {
        for (property, value) in [("user-id", &self.login.user), ("user-pw", &self.login.password)] {
            element.set_property(property, value.as_ref().filter(|_| is_set));
        }
    }

    /// Sets the login of an `rtspsrc`, and removes it while a redirect has led to a server that must not get it.
    fn log_in_at_home(&self, rtspsrc: &gst::Element) {
        if self.scheme.starts_with("rtsph") {
            // A tunnel through HTTP sends the login before the first request, so no signal comes first. A login in the address is not
            // used for other addresses.
            let (user, password) = (self.login.user.as_deref().unwrap_or_default(), self.login.password.as_deref().unwrap_or_default());
            let login = format!("://{}:{}@", percent_encoded(user), percent_encoded(password));
            rtspsrc.set_property("location", self.location.replacen("://", &login, 1));
            if rtspsrc.find_property("ignore-x-server-reply").is_some() {
                // This header of a reply names another host, to which the tunnel would send the login.
                rtspsrc.set_property("ignore-x-server-reply", true);
            }
            return;
        }
        self.set_login(rtspsrc, true);
        let (uri, last) = (self.clone(), Mutex::new(self.location.clone()));
        rtspsrc.connect("before-send", false, move |values| {
            // `location` changes with a redirect, before the first request to the other server.
            if let Some(Ok(source)) = values.first().map(|value| value.get::<gst::Element>())
                && let Some(location) = source.property::<Option<String>>("location")
                && let mut last = last.lock().unwrap_or_else(PoisonError::into_inner)
                && *last != location
            {
                uri.set_login(&source, uri.may_log_in(&location));
                *last = location;
            }
            Some(true.to_value())
        });
    }
}

impl fmt::Debug for Uri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Uri({})", self.shown())
    }
}

/// Returns the address to which a server redirects, from a message of an input's source that does not follow redirects.
pub(super) fn redirect(message: &gst::Message) -> Option<String> {
    let gst::MessageView::Element(element) = message.view() else { return None };
    let headers = element.structure().filter(|structure| structure.name() == "http-headers")?;
    // The sources of the parts of a playlist have other names.
    element.src().filter(|source| source.name() == "source")?;
    headers.get::<u32>("http-status-code").ok().filter(|code| (300..400).contains(code))?;
    let response = headers.get::<gst::Structure>("response-headers").ok()?;
    response.iter().find(|(name, _)| name.eq_ignore_ascii_case("location")).and_then(|(_, value)| value.get::<String>().ok())
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

/// Returns the host of an address without a login, with its port if it has one. Returns `None` unless all programs read the same host from it:
/// they take `x#@host`, `x\@host` and `x:1y/@host` for `host` or for `x`.
fn host(location: &str) -> Option<&str> {
    let (_, rest) = location.split_once("://")?;
    let authority = &rest[..rest.find(['/', '?', '#']).unwrap_or(rest.len())];
    let (name, port) = match authority.rsplit_once(':') {
        Some((name, port)) if !authority.ends_with(']') => (name, Some(port)),
        _ => (authority, None),
    };
    let is_name = |c: char| c.is_ascii_alphanumeric() || !c.is_ascii() || "-._~".contains(c);
    let is_host = match name.strip_prefix('[') {
        Some(address) => address
            .strip_suffix(']')
            .is_some_and(|address| address.split('%').next().unwrap_or_default().parse::<std::net::Ipv6Addr>().is_ok()),
        None => !name.is_empty() && name.chars().all(is_name),
    };
    let is_port = port.is_none_or(|port| port.bytes().all(|byte| byte.is_ascii_digit()) && port.parse::<u16>().is_ok_and(|port| port > 0));
    let is_clear = !rest.split('/').next().unwrap_or_default().contains(['@', '\\']);
    (is_host && is_port && is_clear).then_some(authority)
}

/// Returns the host and port of an address; `None` as for [`host`].
fn place(location: &str) -> Option<Place> {
    host(location)?;
    reasons::address(location).map(|(_, host, port)| (host.to_lowercase(), port))
}

/// Returns the absolute address of a reference in a document with the address `base`.
fn resolved(base: &str, reference: &str) -> Option<String> {
    let (scheme, rest) = base.split_once("://")?;
    let (authority, rest) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    let path = rest.split(['?', '#']).next().unwrap_or_default();
    let folder = path.rfind('/').map_or("/", |end| &path[..=end]);
    let is_absolute = reference.split(['/', '?', '#']).next().is_some_and(|first| first.ends_with(':'));
    Some(match reference {
        _ if is_absolute => reference.to_owned(),
        _ if reference.starts_with("//") => format!("{scheme}:{reference}"),
        _ if reference.starts_with('/') => format!("{scheme}://{authority}{reference}"),
        _ if reference.starts_with('?') => format!("{scheme}://{authority}{path}{reference}"),
        _ => format!("{scheme}://{authority}{folder}{reference}"),
    })
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
    fn references_are_resolved() {
        for (reference, address) in [
            ("https://other:81/x", "https://other:81/x"),
            ("//other/x", "http://other/x"),
            ("/x?y", "http://host:80/x?y"),
            ("x/y:z", "http://host:80/a/x/y:z"),
            ("../x", "http://host:80/a/../x"),
            ("?x", "http://host:80/a/b?x"),
        ] {
            assert_eq!(resolved("http://host:80/a/b?c#d", reference).as_deref(), Some(address), "{reference}");
        }
        assert_eq!(resolved("http://host", "x").as_deref(), Some("http://host/x"));
    }

    #[test]
    fn login_follows_to_its_own_host_and_to_hosts_with_the_same_login() {
        let text = "machine host:8080 login u password p\nmachine other login u password p\nmachine third login u password q";
        let uri = Uri::parse("http://host:8080/x").unwrap().with_credentials(&Credentials::netrc(text).unwrap()).unwrap();
        for (location, may) in [
            ("http://HOST:8080/y", true),
            ("/y", true),
            ("http://other/y", true),
            ("https://other:1/y", true),
            ("http://host/y", false),
            ("https://host:8080/y", true),
            ("http://third/y", false),
            ("http://host:8080#@evil/y", false),
            ("http://host:8080\\@evil/y", false),
            ("http://host:8080@evil/y", false),
            ("//evil/host:8080", false),
        ] {
            let next = uri.redirected_to(location).unwrap_or_else(|| panic!("{location}"));
            // A login in the new address is that of the other server.
            assert_eq!(next.may_log_in(&next.location) && next.home == uri.home, may, "{location}");
        }
        for other in ["file:///etc/passwd", "rtsp://host:8080/y", "fd://0"] {
            assert_eq!(uri.redirected_to(other), None, "{other}");
        }
        let last = (0..MAX_REDIRECTS).fold(uri, |uri, _| uri.redirected_to("/y").unwrap());
        assert_eq!(last.redirected_to("/y"), None);
    }

    #[test]
    fn hosts_that_programs_read_differently_get_no_login() {
        let credentials = Credentials::netrc("machine host login a password b\nmachine evil login c password d").unwrap();
        for typed in [
            "rtsp://host#@evil/x",
            "rtsp://host:554#@evil/x",
            "http://host\\@evil/x",
            "http://host\\evil/x",
            "rtmp://host:1#@evil/x",
            "rtsp://a@evil:554x/@host/",
            "rtspt://a@evil:554 /@host/",
            "rtsp://a@evil:x/y@host/",
            "rtsp://x@a@evil:1x/@host",
            "rtsp://a@evil:/x:@host",
            "rtsp://a@host:70000/",
            "rtsp://a@host /",
            "rtsp://a@host%2eevil/",
            "rtsp://a@[::1]evil/",
        ] {
            let uri = Uri::parse(typed).unwrap().with_credentials(&credentials).unwrap();
            assert_eq!(uri.login.password, None, "{typed}");
        }
        let uri = Uri::parse("rtsp://host/x").unwrap().with_credentials(&credentials).unwrap();
        assert!(uri.may_log_in("rtsp://host:554/y?z#w"));
        // A source element opens these addresses as they are, so none of them is of the host.
        for location in
            ["rtsp://evil:8594x/@host/", "rtsp://evil /@host/", "rtsp://a@host/", "rtsp://evil:1x?@host:554/", "rtsp://host:554x/", "/host"]
        {
            assert!(!uri.may_log_in(location), "{location}");
        }
    }

    #[test]
    fn addresses_of_servers_need_a_clear_host() {
        for typed in [
            "rtsp://",
            "rtsp://host:99999/",
            "rtsp://host:0/",
            "rtsp://:554/x",
            "rtsp://u:p@/x",
            "rtsp://[::1/x",
            "rtsp://ho st/x",
            "rtsp://host:abc/",
            "rtsp:///path",
            "rtsp://%zz/",
            "http://",
            "https://",
            "http:///x",
            "rtmp://",
            "rtmp://u:p@/live",
            "http://host\\evil/x",
        ] {
            let error = Uri::parse(typed).unwrap().check().unwrap_err().to_string();
            assert!(error.contains("expected an address such as") && !error.contains("u:p"), "{error}");
        }
        for typed in [
            "rtsp://host/x",
            "rtsp://u:pa/s?s#@host:554/a",
            "rtsp://[::1]:554/x",
            "rtsp://[fe80::1%25eth0]/x",
            "http://cam_1.local:8080?x",
            "https://h\u{f6}f.example/x",
            "rtmp://u:p@host/live",
            "srt://:7000",
            "srt://host:7000?mode=caller",
            "udp://239.1.1.1:5000",
            "v4l2:///dev/video0",
            "test://",
        ] {
            Uri::parse(typed).unwrap().check().unwrap();
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
