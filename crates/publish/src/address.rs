//! Addresses of servers: `scheme://user:password@host:port/path?option=value`.
//!
//! User, password and values of options may name environment variables, as in `${BROKER_PASSWORD}`, so that a secret is not part of the
//! command line. Errors do not contain credentials.

use std::borrow::Cow;
use std::net::Ipv6Addr;
use std::time::Duration;

use percent_encoding::percent_decode_str;

/// A parsed address.
#[derive(Clone, PartialEq, Eq)]
pub struct Address {
    /// The scheme, in lower case.
    pub scheme: String,
    /// The user, or the token of a login without a password.
    pub user: Option<String>,
    /// The password.
    pub password: Option<String>,
    /// The hosts of the list before the path, at least one, with their ports. An IPv6 address has no brackets.
    hosts: Vec<(String, Option<u16>)>,
    /// The path without the first slash, percent-decoded.
    pub path: String,
    /// The path as written, with the first slash.
    pub(crate) raw_path: String,
    /// Options that [`Address::take`] and similar functions have not removed yet.
    options: Vec<(String, String)>,
}

impl Address {
    /// Parses an address.
    ///
    /// # Errors
    /// Returns the description of the first mistake if the text is not a valid address.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (scheme, rest) = text.split_once("://").ok_or("expected SCHEME://HOST, got no `://`")?;
        let scheme = scheme.to_ascii_lowercase();
        let (rest, query) = rest.split_once('?').map_or((rest, None), |(rest, query)| (rest, Some(query)));
        let (authority, path) = rest.find('/').map_or((rest, ""), |at| rest.split_at(at));
        let (login, place) = authority.rsplit_once('@').map_or((None, authority), |(login, place)| (Some(login), place));
        let hosts = place.split(',').map(|host| host_and_port(&scheme, host)).collect::<Result<_, _>>()?;
        let (user, password) =
            match login.map(|login| login.split_once(':').map_or((login, None), |(user, password)| (user, Some(password)))) {
                None => (None, None),
                Some((user, password)) => (Some(value(user)?), password.map(value).transpose()?),
            };
        let mut options = Vec::new();
        for pair in query.unwrap_or_default().split('&').filter(|pair| !pair.is_empty()) {
            let (name, text) = pair.split_once('=').ok_or_else(|| format!("expected options as NAME=VALUE, got `{pair}`"))?;
            options.push((name.to_owned(), value(text)?));
        }
        Ok(Self {
            scheme,
            user: user.filter(|user| !user.is_empty()),
            password,
            hosts,
            path: decoded(path.strip_prefix('/').unwrap_or(path))?,
            raw_path: path.to_owned(),
            options,
        })
    }

    /// Removes the options `user` and `password-file`, with `prefix` before their names, and stores their values as the login.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read.
    pub fn take_login(&mut self, prefix: &str) -> Result<(), String> {
        if let Some(user) = self.take(&format!("{prefix}user")) {
            self.user = Some(user);
        }
        if let Some(path) = self.take(&format!("{prefix}password-file")) {
            let text = std::fs::read_to_string(&path).map_err(|error| format!("cannot read the password file {path}: {error}"))?;
            self.password = Some(text.lines().next().unwrap_or_default().to_owned());
        }
        Ok(())
    }

    /// The options that are not removed yet.
    #[cfg(feature = "http")]
    pub(crate) fn options(&self) -> impl Iterator<Item = (&str, &str)> {
        self.options.iter().map(|(name, value)| (&**name, &**value))
    }

    /// The address without credentials, with the options that are not removed yet.
    #[cfg(feature = "http")]
    pub(crate) fn shown_with_options(&self) -> String {
        let mut text = self.shown();
        for (idx, (name, value)) in self.options.iter().enumerate() {
            let value = percent_encoding::utf8_percent_encode(value, percent_encoding::NON_ALPHANUMERIC);
            text += &format!("{}{name}={value}", if idx == 0 { '?' } else { '&' });
        }
        text
    }

    /// Removes an option.
    pub fn take(&mut self, name: &str) -> Option<String> {
        let idx = self.options.iter().position(|(known, _)| known == name)?;
        Some(self.options.remove(idx).1)
    }

    /// Removes the options whose names begin with `prefix`. Returns them without the prefix.
    #[cfg(feature = "kafka")]
    pub(crate) fn take_prefixed(&mut self, prefix: &str) -> Vec<(String, String)> {
        let taken = self.options.extract_if(.., |(name, _)| name.starts_with(prefix));
        taken.map(|(name, value)| (name[prefix.len()..].to_owned(), value)).collect()
    }

    /// Removes an option with the value `true` or `false`. Returns `false` if the option is missing.
    pub(crate) fn take_switch(&mut self, name: &str) -> Result<bool, String> {
        match self.take(name).as_deref() {
            None | Some("false") => Ok(false),
            Some("true") => Ok(true),
            Some(other) => Err(format!("option {name}: expected true or false, got `{other}`")),
        }
    }

    /// Removes an option and returns it as a number, or `None` if the option is not set. Fails if the value is not a number.
    pub(crate) fn take_number(&mut self, name: &str) -> Result<Option<u64>, String> {
        let parse = |text: String| bytes(&text).ok_or_else(|| format!("option {name}: expected a number such as 500 or 64M, got `{text}`"));
        self.take(name).map(parse).transpose()
    }

    /// Removes an option and returns it as a duration, or `None` if the option is not set. Fails if the value is not a duration.
    pub(crate) fn take_duration(&mut self, name: &str) -> Result<Option<Duration>, String> {
        let parse = |text: String| duration(&text).map_err(|error| format!("option {name}: {error}"));
        self.take(name).map(parse).transpose()
    }

    /// Returns an error if an option is left: the destination does not know it. `known` lists the options of the destination, for the
    /// error.
    ///
    /// # Errors
    /// Returns which option is unknown.
    pub fn finish(&self, known: &str) -> Result<(), String> {
        match self.options.first() {
            None => Ok(()),
            Some((name, _)) => Err(format!("unknown option `{name}`: expected one of user, password-file, {known}")),
        }
    }

    /// The hosts of the list, each with its port. An IPv6 address has no brackets.
    pub(crate) fn hosts(&self, default_port: u16) -> impl Iterator<Item = (String, u16)> {
        self.hosts.iter().map(move |(host, port)| (host.clone(), port.unwrap_or(default_port)))
    }

    /// The hosts of the list as `host:port`, or `[host]:port` for an IPv6 address.
    pub fn host_texts(&self, default_port: u16) -> Vec<String> {
        self.hosts(default_port).map(|(host, port)| format!("{}:{port}", in_brackets(&host))).collect()
    }

    /// Like [`Address::finish`], for files. The error does not list the options of a login, because a file has none.
    pub(crate) fn finish_file(&self, known: &str) -> Result<(), String> {
        self.finish("").map_err(|error| format!("{}{known}", error.trim_end_matches("user, password-file, ")))
    }

    /// The address without credentials and options.
    pub(crate) fn shown(&self) -> String {
        let host = |(host, port): &(String, Option<u16>)| {
            let port = port.map_or(String::new(), |port| format!(":{port}"));
            format!("{}{port}", in_brackets(host))
        };
        let hosts: Vec<String> = self.hosts.iter().map(host).collect();
        format!("{}://{}{}", self.scheme, hosts.join(","), self.raw_path)
    }
}

impl std::fmt::Debug for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Address").field(&self.shown()).finish()
    }
}

/// Reads `host`, `host:port`, `[host]` or `[host]:port`.
fn host_and_port(scheme: &str, text: &str) -> Result<(String, Option<u16>), String> {
    let (host, port) = match text.strip_prefix('[').and_then(|text| text.split_once(']')) {
        Some((host, "")) => (host, None),
        Some((host, port)) => (host, Some(port.strip_prefix(':').unwrap_or(port))),
        // An IPv6 address without brackets has several colons.
        None if text.parse::<Ipv6Addr>().is_ok() => (text, None),
        None => text.rsplit_once(':').map_or((text, None), |(host, port)| (host, Some(port))),
    };
    if host.is_empty() {
        return Err(format!("expected a host after {scheme}://, got none"));
    }
    let port = port.map(|port| port.parse().map_err(|_| format!("expected a port from 1 to 65535 after the host, got `{port}`")));
    Ok((decoded(host)?, port.transpose()?))
}

fn in_brackets(host: &str) -> Cow<'_, str> {
    if host.contains(':') { format!("[{host}]").into() } else { host.into() }
}

/// Reads a number of bytes with an optional unit: K, M, G (1024-based).
pub fn bytes(text: &str) -> Option<u64> {
    let (digits, factor) = match text.chars().last()?.to_ascii_uppercase() {
        'K' => (&text[..text.len() - 1], 1 << 10),
        'M' => (&text[..text.len() - 1], 1 << 20),
        'G' => (&text[..text.len() - 1], 1 << 30),
        _ => (text, 1),
    };
    digits.parse::<u64>().ok()?.checked_mul(factor)
}

/// More than thirty years, in seconds.
const MAX_SECONDS: f64 = 1e9;

/// Parses a duration: a number of seconds, or numbers with units, such as `90s`, `5m`, `1h 30m`, `2days`.
///
/// # Errors
/// Returns a text with the expected and the actual value if `text` is not a duration.
pub fn duration(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().ok().map(|seconds| (0.0..=MAX_SECONDS).contains(&seconds).then(|| Duration::from_secs_f64(seconds)));
    let parsed = seconds.unwrap_or_else(|| humantime::parse_duration(text).ok().filter(|time| time.as_secs_f64() <= MAX_SECONDS));
    parsed.ok_or_else(|| format!("expected a duration such as 30, 90s, 5m or 12h, at most {MAX_SECONDS} s, got `{text}`"))
}

fn decoded(text: &str) -> Result<String, String> {
    percent_decode_str(text).decode_utf8().map(|text| text.into_owned()).map_err(|_| "expected percent-encoded UTF-8".to_owned())
}

/// Decodes a value and inserts environment variables.
fn value(text: &str) -> Result<String, String> {
    let (mut out, mut rest) = (String::new(), text);
    while let Some((before, after)) = rest.split_once("${") {
        let (name, after) = after.split_once('}').ok_or("expected `}` after `${`")?;
        out += &decoded(before)?;
        out += &std::env::var(name).map_err(|_| format!("environment variable {name}: expected a value, but the variable is not set"))?;
        rest = after;
    }
    out += &decoded(rest)?;
    Ok(out)
}

/// Text with the placeholder `{stream}`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Template(String);

impl Template {
    const STREAM: &str = "{stream}";

    pub(crate) fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// Inserts the name of a stream. Characters that `is_allowed` refuses become `_`.
    pub(crate) fn of_stream(&self, stream: &str, is_allowed: impl Fn(char) -> bool) -> String {
        let name: String = stream.chars().map(|c| if is_allowed(c) { c } else { '_' }).collect();
        self.0.replace(Self::STREAM, &name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_have_all_their_parts() {
        let mut address = Address::parse("MQTTS://me:p%40ss@[::1]:8883/a/{stream}?ca=/x%20y.pem&retain=true").unwrap();
        assert_eq!((&*address.scheme, address.hosts(1).next()), ("mqtts", Some(("::1".to_owned(), 8883))));
        assert_eq!((address.user.as_deref(), address.password.as_deref(), &*address.path), (Some("me"), Some("p@ss"), "a/{stream}"));
        assert_eq!((address.take("ca").as_deref(), address.take_switch("retain")), (Some("/x y.pem"), Ok(true)));
        assert_eq!((address.finish("ca"), &*address.shown()), (Ok(()), "mqtts://[::1]:8883/a/{stream}"));
        assert!(!format!("{address:?}").contains("p@ss"));
    }

    #[test]
    fn hosts_of_a_list_have_their_own_ports() {
        for (text, expected) in [
            ("nats://me:x@a:4223,b,c:4224/subject", &["a:4223", "b:4222", "c:4224"][..]),
            ("nats://a:1,b", &["a:1", "b:4222"]),
            ("nats://[fd00::1]:5,[fd00::2],c:6", &["[fd00::1]:5", "[fd00::2]:4222", "c:6"]),
            ("nats://a,[fd00::2]:5", &["a:4222", "[fd00::2]:5"]),
            ("nats://fd00::1", &["[fd00::1]:4222"]),
        ] {
            assert_eq!(Address::parse(text).unwrap().host_texts(4222), expected, "{text}");
        }
        let address = Address::parse("nats://[fd00::1]:5,b/subject").unwrap();
        assert_eq!(address.hosts(1).collect::<Vec<_>>(), [("fd00::1".to_owned(), 5), ("b".to_owned(), 1)]);
        assert_eq!(address.shown(), "nats://[fd00::1]:5,b/subject");
    }

    #[test]
    fn environment_variables_are_inserted_or_missed() {
        let path = std::env::var("PATH").unwrap();
        assert_eq!(Address::parse("nats://u:${PATH}@host").unwrap().password, Some(path));
        let error = Address::parse("nats://u:${ROIFLOW_NO_SUCH}@host").unwrap_err();
        assert_eq!(error, "environment variable ROIFLOW_NO_SUCH: expected a value, but the variable is not set");
    }

    #[test]
    fn malformed_addresses_are_errors() {
        for (text, part) in [
            ("mqtt:host", "://"),
            ("mqtt:///topic", "expected a host"),
            ("mqtt://host:port/", "expected a port"),
            ("nats://a:422x,b", "got `422x`"),
            ("nats://a,b:70000,c", "got `70000`"),
            ("nats://[::1]x,c", "got `x`"),
            ("nats://a,,c", "expected a host"),
            ("mqtt://host/?retain", "NAME=VALUE"),
            ("mqtt://host/%ff", "UTF-8"),
        ] {
            let error = Address::parse(text).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
        let error = Address::parse("mqtt://host/?password-file=/no/such").unwrap().take_login("").unwrap_err();
        assert!(error.contains("/no/such"), "{error}");
        let error = Address::parse("mqtt://host/?spool=x").unwrap().finish("ca").unwrap_err();
        assert_eq!(error, "unknown option `spool`: expected one of user, password-file, ca");
    }

    #[test]
    fn sizes_have_units() {
        assert_eq!([bytes("12"), bytes("2K"), bytes("1g"), bytes("x"), bytes("")], [Some(12), Some(2048), Some(1 << 30), None, None]);
    }

    #[test]
    fn durations_are_seconds_or_have_units() {
        for (text, seconds) in
            [("0", 0.0), ("2.5", 2.5), ("90s", 90.0), ("5m", 300.0), ("1h 30m", 5400.0), ("250ms", 0.25), ("7d", 604_800.0)]
        {
            assert_eq!(duration(text), Ok(Duration::from_secs_f64(seconds)), "{text}");
        }
        for text in ["", "-1", "x", "nan", "inf", "5 parsecs", "1e10", "100years"] {
            assert!(duration(text).unwrap_err().contains("expected a duration"), "{text}");
        }
    }
}
