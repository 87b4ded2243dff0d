//! Addresses of servers: `scheme://user:password@host:port/path?option=value`.
//!
//! User, password and values of options may name environment variables, as in `${BROKER_PASSWORD}`, so that a secret is not part of the
//! command line. Errors do not contain credentials.

use std::borrow::Cow;
use std::net::Ipv6Addr;
use std::time::Duration;

use percent_encoding::percent_decode_str;

use super::files::{FileAccess, Login, NamedFile, Setting};
use super::options::{Kind, Scheme};
use super::redaction::shown_path;

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
    table: &'static Scheme,
    /// Options that [`Address::take`] and similar functions have not removed yet, with their whole names.
    options: Vec<(String, Setting)>,
    /// Options of the URL that the server gets.
    passed_on: Vec<(String, String)>,
}

/// Whether an `@` behind the first `/` or `?` may end a login, as in `mqtt://me:1/2@host`, whose first part looks like a port. `is_wrong`: the
/// address is not valid otherwise.
pub(crate) fn has_late_login(text: &str, table: &Scheme, is_wrong: bool) -> bool {
    let rest = text.split_once("://").map_or("", |(_, rest)| rest);
    let (authority, behind) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
    let path = behind.split('?').next().unwrap_or_default();
    // A webhook may have `/@name` as its path.
    let may_be_path = table.has_secret_path && !authority.contains(':');
    // `mqtt://me:1?a=2@host` has no path.
    let is_query_login = path.is_empty() && authority.contains(':');
    !authority.contains('@') && behind.contains('@') && (is_wrong || is_query_login || path.contains('@') && !may_be_path)
}

impl Address {
    /// Parses an address with the options of a scheme. Opens no file.
    ///
    /// # Errors
    /// Returns the description of the first mistake if the text is not a valid address, or may not use its options. The description contains
    /// no part of a login.
    pub fn parse(text: &str, table: &'static Scheme, access: &FileAccess) -> Result<Self, String> {
        let parsed = Self::parse_parts(text, table, access);
        if has_late_login(text, table, parsed.is_err()) {
            let remedy = "in a login write `/` as %2F, `?` as %3F and `@` as %40; in a path or an option write `@` as %40";
            return Err(format!("expected `@` only between a login and the host, got one after `/` or `?`: {remedy}"));
        }
        parsed
    }

    fn parse_parts(text: &str, table: &'static Scheme, access: &FileAccess) -> Result<Self, String> {
        let (scheme, rest) = text.split_once("://").ok_or("expected SCHEME://HOST, got no `://`")?;
        let scheme = scheme.to_ascii_lowercase();
        let (rest, query) = rest.split_once('?').map_or((rest, None), |(rest, query)| (rest, Some(query)));
        let (authority, path) = rest.find('/').map_or((rest, ""), |at| rest.split_at(at));
        let (login, place) = authority.rsplit_once('@').map_or((None, authority), |(login, place)| (Some(login), place));
        let hosts = place.split(',').map(|host| host_and_port(&scheme, host)).collect::<Result<_, _>>()?;
        let value = |text: &str| value(text, access);
        let (user, password) =
            match login.map(|login| login.split_once(':').map_or((login, None), |(user, password)| (user, Some(password)))) {
                None => (None, None),
                Some((user, password)) => (Some(value(user)?), password.map(value).transpose()?),
            };
        let mut address = Self {
            scheme,
            user: user.filter(|user| !user.is_empty()),
            password,
            hosts,
            path: decoded(path.strip_prefix('/').unwrap_or(path))?,
            raw_path: path.to_owned(),
            table,
            options: Vec::new(),
            passed_on: Vec::new(),
        };
        for pair in query.unwrap_or_default().split('&').filter(|pair| !pair.is_empty()) {
            let (name, text) = pair.split_once('=').ok_or_else(|| format!("expected options as NAME=VALUE, got `{pair}`"))?;
            let text = value(text)?;
            match table.kind(address.has_tls(), name, access.has_credentials())? {
                None => address.passed_on.push((name.to_owned(), text)),
                Some(Kind::File) => address.add(name, Setting::File(access.file(name, &text)?))?,
                Some(Kind::Power) => {
                    access.check_power(name)?;
                    address.add(name, Setting::Text(text))?;
                }
                Some(Kind::Value | Kind::Secret | Kind::Credentials) => address.add(name, Setting::Text(text))?,
            }
        }
        if let Some(name) = address.take("credentials") {
            let is_login = |(option, _): &(String, Setting)| table.kind(address.has_tls(), option, false) == Ok(Some(Kind::Secret));
            if address.user.is_some() || address.password.is_some() || address.options.iter().any(is_login) {
                return Err(
                    "option credentials: expected a URL without another login, got one with a user, a password or a secret".to_owned()
                );
            }
            for (option, setting) in access.credentials(&name, &address)? {
                address.add(&format!("{}{option}", table.prefix), setting)?;
            }
        }
        Ok(address)
    }

    fn add(&mut self, name: &str, setting: Setting) -> Result<(), String> {
        if self.options.iter().any(|(known, _)| known == name) {
            return Err(format!("option {name}: expected it once, got it twice"));
        }
        self.options.push((name.to_owned(), setting));
        Ok(())
    }

    /// Removes the options of the login. Reads a password file once, to report a mistake before the start.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read.
    pub fn take_login(&mut self) -> Result<Login, String> {
        let user = self.take("user").or_else(|| self.user.clone());
        let login = Login { user, password: self.password.clone(), file: self.take_file("password-file") };
        login.read().map_err(|error| error.to_string())?;
        Ok(login)
    }

    /// The row of the scheme in the table of options.
    pub(crate) fn table(&self) -> &'static Scheme {
        self.table
    }

    /// Whether the scheme uses TLS.
    pub(crate) fn has_tls(&self) -> bool {
        self.scheme == self.table.names[1]
    }

    /// The URL for an HTTP client: without credentials and options, with the options for the server.
    #[cfg(feature = "http")]
    pub(crate) fn url_of_server(&self) -> String {
        let mut text = format!("{}{}", self.origin(), self.raw_path);
        for (idx, (name, value)) in self.passed_on.iter().enumerate() {
            let value = percent_encoding::utf8_percent_encode(value, percent_encoding::NON_ALPHANUMERIC);
            text += &format!("{}{name}={value}", if idx == 0 { '?' } else { '&' });
        }
        text
    }

    /// Removes the option `name`, which is without the prefix of the scheme, if `convert` accepts its value.
    fn take_if<T>(&mut self, name: &str, convert: impl Fn(&Setting) -> Option<T>) -> Option<T> {
        let prefix = self.table.prefix;
        let mut found = self.options.iter().enumerate().filter(|(_, (known, _))| known.strip_prefix(prefix) == Some(name));
        let (idx, value) = found.find_map(|(idx, (_, setting))| Some((idx, convert(setting)?)))?;
        self.options.remove(idx);
        Some(value)
    }

    /// Removes an option whose value is no file. `name` is without the prefix of the scheme.
    pub fn take(&mut self, name: &str) -> Option<String> {
        self.take_if(name, |setting| if let Setting::Text(text) = setting { Some(text.clone()) } else { None })
    }

    /// Removes an option whose value is a file. `name` is without the prefix of the scheme.
    pub fn take_file(&mut self, name: &str) -> Option<NamedFile> {
        self.take_if(name, |setting| if let Setting::File(file) = setting { Some(file.clone()) } else { None })
    }

    /// Removes the settings of a library. Returns them without the prefix.
    #[cfg(feature = "kafka")]
    pub(crate) fn take_settings(&mut self) -> Vec<(String, String)> {
        let Some((prefix, _)) = self.table.settings else { return Vec::new() };
        let taken = self.options.extract_if(.., |(name, _)| name.starts_with(prefix));
        let text = |(name, setting): (String, Setting)| match setting {
            Setting::Text(text) => Some((name[prefix.len()..].to_owned(), text)),
            Setting::File(_) => None,
        };
        taken.filter_map(text).collect()
    }

    /// Removes an option with the value `true` or `false`. Returns `false` if the option is missing.
    pub(crate) fn take_switch(&mut self, name: &str) -> Result<bool, String> {
        match self.take(name).as_deref() {
            None | Some("false") => Ok(false),
            Some("true") => Ok(true),
            Some(other) => Err(format!("option {}{name}: expected true or false, got `{other}`", self.table.prefix)),
        }
    }

    /// Removes an option and returns it as a number, or `None` if the option is not set. Fails if the value is not a number.
    pub(crate) fn take_number(&mut self, name: &str) -> Result<Option<u64>, String> {
        let prefix = self.table.prefix;
        let parse =
            |text: String| bytes(&text).ok_or_else(|| format!("option {prefix}{name}: expected a number such as 500 or 64M, got `{text}`"));
        self.take(name).map(parse).transpose()
    }

    /// Removes an option and returns it as a duration, or `None` if the option is not set. Fails if the value is not a duration.
    pub(crate) fn take_duration(&mut self, name: &str) -> Result<Option<Duration>, String> {
        let prefix = self.table.prefix;
        let parse = |text: String| duration(&text).map_err(|error| format!("option {prefix}{name}: {error}"));
        self.take(name).map(parse).transpose()
    }

    /// Returns an error if an option is left: the destination does not use it.
    ///
    /// # Errors
    /// Returns which option is left.
    pub fn finish(&self) -> Result<(), String> {
        match self.options.first() {
            None => Ok(()),
            Some((name, _)) => Err(format!("option {name}: expected none, because {}:// does not use it", self.scheme)),
        }
    }

    /// The hosts of the list, each with its port. An IPv6 address has no brackets.
    pub(crate) fn hosts(&self) -> impl Iterator<Item = (String, u16)> {
        let default_port = self.table.ports[usize::from(self.has_tls())];
        self.hosts.iter().map(move |(host, port)| (host.clone(), port.unwrap_or(default_port)))
    }

    /// Scheme, host and port of each server, for comparisons.
    pub(crate) fn endpoints(&self) -> Vec<(String, String, u16)> {
        self.hosts().map(|(host, port)| (self.scheme.clone(), host.to_ascii_lowercase(), port)).collect()
    }

    /// The hosts of the list as `host:port`, or `[host]:port` for an IPv6 address.
    pub fn host_texts(&self) -> Vec<String> {
        self.hosts().map(|(host, port)| format!("{}:{port}", in_brackets(&host))).collect()
    }

    /// The address without credentials, options, and a path that can contain a secret.
    pub(crate) fn shown(&self) -> String {
        let path = if self.table.has_secret_path { shown_path(&self.raw_path).map(str::to_owned) } else { Ok(self.raw_path.clone()) };
        format!("{}{}", self.origin(), path.unwrap_or_else(|hidden| hidden))
    }

    /// Scheme and hosts.
    pub(crate) fn origin(&self) -> String {
        let host = |(host, port): &(String, Option<u16>)| {
            let port = port.map_or(String::new(), |port| format!(":{port}"));
            format!("{}{port}", in_brackets(host))
        };
        let hosts: Vec<String> = self.hosts.iter().map(host).collect();
        format!("{}://{}", self.scheme, hosts.join(","))
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
fn value(text: &str, access: &FileAccess) -> Result<String, String> {
    let (mut out, mut rest) = (String::new(), text);
    while let Some((before, after)) = rest.split_once("${") {
        let (name, after) = after.split_once('}').ok_or("expected `}` after `${`")?;
        out += &decoded(before)?;
        out += &access.variable(name)?;
        rest = after;
    }
    out += &decoded(rest)?;
    Ok(out)
}

/// The parts of a text in braces.
pub(crate) fn placeholders(text: &str) -> impl Iterator<Item = &str> {
    text.split_inclusive('}').filter_map(|part| part.find('{').filter(|_| part.ends_with('}')).map(|at| &part[at..]))
}

/// Text with the placeholder `{stream}`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Template(String);

impl Template {
    const STREAM: &str = "{stream}";

    /// A text in which braces may also be plain characters.
    pub(crate) fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// A text in which braces enclose a placeholder.
    ///
    /// # Errors
    /// Returns an error if a placeholder is unknown.
    pub(crate) fn checked(text: &str) -> Result<Self, String> {
        match placeholders(text).find(|found| *found != Self::STREAM) {
            Some(found) => Err(format!("unknown placeholder `{found}`: expected {}", Self::STREAM)),
            None => Ok(Self::new(text)),
        }
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

    fn parse(text: &str) -> Result<Address, String> {
        let scheme = text.split("://").next().unwrap_or_default().to_ascii_lowercase();
        Address::parse(text, Scheme::named(&scheme).unwrap_or(Scheme::named("mqtt").unwrap()), &FileAccess::Allowed)
    }

    #[test]
    fn addresses_have_all_their_parts() {
        let mut address = parse("MQTTS://me:p%40ss@[::1]:8883/a/{stream}?ca=/x%20y.pem&retain=true").unwrap();
        assert_eq!((&*address.scheme, address.hosts().next()), ("mqtts", Some(("::1".to_owned(), 8883))));
        assert_eq!((address.user.as_deref(), address.password.as_deref(), &*address.path), (Some("me"), Some("p@ss"), "a/{stream}"));
        assert!(address.finish().is_err());
        let ca = address.take_file("ca").unwrap();
        assert_eq!((ca.path(), address.take_switch("retain")), (std::path::Path::new("/x y.pem"), Ok(true)));
        assert_eq!((address.finish(), &*address.shown()), (Ok(()), "mqtts://[::1]:8883/a/{stream}"));
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
            assert_eq!(parse(text).unwrap().host_texts(), expected, "{text}");
        }
        let address = parse("nats://[fd00::1]:5,b/subject").unwrap();
        assert_eq!(address.hosts().collect::<Vec<_>>(), [("fd00::1".to_owned(), 5), ("b".to_owned(), 4222)]);
        assert_eq!(address.shown(), "nats://[fd00::1]:5,b/subject");
    }

    #[test]
    fn environment_variables_are_inserted_or_missed() {
        let path = std::env::var("PATH").unwrap();
        assert_eq!(parse("nats://u:${PATH}@host").unwrap().password, Some(path));
        let error = parse("nats://u:${ROIFLOW_NO_SUCH}@host").unwrap_err();
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
            let error = parse(text).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
        let error = parse("mqtt://host/?password-file=/no/such").unwrap().take_login().unwrap_err();
        assert!(error.contains("/no/such"), "{error}");
        let error = parse("mqtt://host/?retain=true&retain=false").unwrap_err();
        assert_eq!(error, "option retain: expected it once, got it twice");
    }

    #[test]
    fn no_error_shows_a_part_of_a_password() {
        for scheme in ["mqtt", "nats", "redis", "kafka", "http", "https", "tls"] {
            for login in
                ["u:SECRET/PW", "u:SECRET?PW", "u:12345/SECRET", "u:12345?SECRET", "u:12345?SE=CRET", "u:1/SEC@RET", "SEC:RET/SECRET"]
            {
                let text = format!("{scheme}://{login}@127.0.0.1:1/t");
                let error = parse(&text).expect_err(&text);
                assert!(!error.contains("SEC") && !error.contains("PW") && error.contains("%2F"), "{text}: {error}");
                let shown = crate::redact(&text);
                assert!(["SEC", "PW", "1234"].iter().all(|part| !shown.contains(part)), "{text}: {shown}");
            }
        }
        for text in [
            "https://host/@name/hook",
            "https://me:x@host/@name",
            "mqtt://host:1/t?user=me@x",
            "mqtt://host?user=me@x",
            "mqtt://u:a%2Fb#c@host/t",
        ] {
            parse(text).unwrap_or_else(|error| panic!("{text}: {error}"));
        }
        assert!(parse("http://host:8080/@name").unwrap_err().contains("in a path or an option write `@` as %40"));
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
