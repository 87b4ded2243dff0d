//! The options `remote.*`, and the addresses of servers.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use crate::runtime::{Config, Error, ErrorKind, ModelSource, Result};

/// The prefix of the options of this device.
pub(crate) const PREFIX: &str = "remote";

/// The environment variable with the default of `remote.url`.
pub(crate) const URL_VARIABLE: &str = "ROIFLOW_REMOTE_URL";

/// The schemes of addresses.
const SCHEMES: [(&str, Protocol, bool); 4] =
    [("grpc", Protocol::Grpc, false), ("grpcs", Protocol::Grpc, true), ("http", Protocol::Http, false), ("https", Protocol::Http, true)];

const NAMES: &str = "url, timeout, connect-timeout, health-interval, token-env, ca-file, shared-memory";

/// The protocol by which servers are called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Protocol {
    /// gRPC over HTTP/2.
    Grpc,
    /// JSON with binary tensors over HTTP/1.1.
    Http,
}

/// The address of one server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Address {
    pub(crate) scheme: &'static str,
    /// The host. An IPv6 address has no brackets.
    pub(crate) host: String,
    pub(crate) port: u16,
    /// The path before the model, such as `/prefix`; empty for most servers.
    pub(crate) prefix: String,
}

impl Address {
    /// Returns host and port as in a URL.
    pub(crate) fn authority(&self) -> String {
        match self.host.contains(':') {
            true => format!("[{}]:{}", self.host, self.port),
            false => format!("{}:{}", self.host, self.port),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}{}", self.scheme, self.authority(), self.prefix)
    }
}

/// The options of a model on inference servers.
#[derive(Clone)]
pub(crate) struct Options {
    /// The servers; at least one. All of them have the same model.
    pub(crate) servers: Vec<Address>,
    pub(crate) protocol: Protocol,
    pub(crate) is_tls: bool,
    pub(crate) model: String,
    /// The version of the model; empty if the server chooses.
    pub(crate) version: String,
    /// Longest time of a call, with all its attempts.
    pub(crate) timeout: Duration,
    pub(crate) connect_timeout: Duration,
    /// Time between two checks of a server that gets no calls.
    pub(crate) health_interval: Duration,
    pub(crate) token: Option<Token>,
    /// A file with the certificates of authorities, instead of those of the system.
    pub(crate) ca_file: Option<PathBuf>,
    /// Whether inputs and outputs are in shared memory, which the servers map.
    pub(crate) shared_memory: bool,
}

/// A bearer token. It is never printed.
#[derive(Clone)]
pub(crate) struct Token(String);

impl Token {
    /// Returns the value of the header `authorization`.
    pub(crate) fn header(&self) -> Result<http::HeaderValue> {
        let mut value = http::HeaderValue::from_str(&format!("Bearer {}", self.0))
            .map_err(|_| config("token-env", "a token of visible ASCII characters", "another character. Correct the variable"))?;
        value.set_sensitive(true);
        Ok(value)
    }
}

impl Options {
    /// Returns the options of a model. `source` may be the address of the model, followed by options: `URL[,URL...][,NAME=VALUE...]`.
    /// Options of `settings` have precedence.
    ///
    /// # Errors
    /// Returns `Config` if an option is unknown or invalid, or if there is no address.
    pub(crate) fn of(source: &ModelSource, settings: &Config) -> Result<Self> {
        let mut options = Written::default();
        if let ModelSource::Remote(text) = source {
            options.urls = text.split(',').map(str::trim).filter(|part| part.contains("://")).map(str::to_owned).collect();
            for part in text.split(',').map(str::trim).filter(|part| !part.contains("://") && !part.is_empty()) {
                let (name, value) = part.split_once('=').ok_or_else(|| config("url", "URL or NAME=VALUE", &format!("`{part}`")))?;
                options.set(name, value)?;
            }
        }
        for (name, value) in settings.options_of(PREFIX) {
            match name {
                "url" if matches!(source, ModelSource::Remote(_)) && !options.urls.is_empty() => {}
                _ => options.set(name, value)?,
            }
        }
        options.checked()
    }
}

/// The options as the user has set them, before the check.
#[derive(Default)]
struct Written {
    urls: Vec<String>,
    timeout: Option<Duration>,
    connect_timeout: Option<Duration>,
    health_interval: Option<Duration>,
    token_env: Option<String>,
    ca_file: Option<PathBuf>,
    shared_memory: bool,
}

impl Written {
    fn set(&mut self, name: &str, value: &str) -> Result<()> {
        let time = || {
            let milliseconds = value.parse::<f64>().ok().filter(|time| *time > 0.0 && *time <= 3_600_000.0);
            let time = milliseconds.and_then(|time| Duration::try_from_secs_f64(time / 1e3).ok());
            time.ok_or_else(|| config(name, "milliseconds from 1 to 3600000", &format!("`{value}`"))).map(Some)
        };
        match name {
            "url" => self.urls = value.split(',').map(|url| url.trim().to_owned()).filter(|url| !url.is_empty()).collect(),
            "timeout" => self.timeout = time()?,
            "connect-timeout" => self.connect_timeout = time()?,
            "health-interval" => self.health_interval = time()?,
            "token-env" => self.token_env = Some(value.to_owned()),
            "ca-file" => self.ca_file = Some(PathBuf::from(value)),
            "shared-memory" => {
                self.shared_memory = match value {
                    "yes" => true,
                    "no" => false,
                    _ => return Err(config(name, "yes or no", &format!("`{value}`"))),
                }
            }
            _ => return Err(Error::new(ErrorKind::Config, format!("no option `{PREFIX}.{name}`: expected one of {NAMES}"))),
        }
        Ok(())
    }

    fn checked(mut self) -> Result<Options> {
        if let (true, Ok(urls)) = (self.urls.is_empty(), std::env::var(URL_VARIABLE)) {
            self.set("url", &urls)?;
        }
        let Some(first) = self.urls.first() else {
            return Err(config(
                "url",
                "the address of a model, such as grpc://host:8001/model",
                "none. Set it in `config` or as the model",
            ));
        };
        let (first, protocol, is_tls, model, version) = parse(first)?;
        let mut servers = vec![first];
        for url in &self.urls[1..] {
            let (server, ..) = parse(url)?;
            let (_, _, _, other_model, other_version) = parse(url)?;
            if (server.scheme, &other_model, &other_version) != (servers[0].scheme, &model, &version) {
                let expected = format!("the same scheme, model and version for all servers, {}://.../{model}", servers[0].scheme);
                return Err(config("url", &expected, &format!("`{url}`")));
            }
            if !servers.contains(&server) {
                servers.push(server);
            }
        }
        let token = match self.token_env {
            None => None,
            Some(name) => match std::env::var(&name) {
                Ok(token) if !token.trim().is_empty() => Some(Token(token.trim().to_owned())),
                _ => return Err(config("token-env", "the name of a variable with a token", &format!("`{name}`, which is not set"))),
            },
        };
        if token.is_some() && !is_tls && servers.iter().any(|server| !is_local(&server.host)) {
            tracing::warn!("the token of `{}` is sent without encryption; use grpcs:// or https://", servers[0]);
        }
        Ok(Options {
            servers,
            protocol,
            is_tls,
            model,
            version,
            timeout: self.timeout.unwrap_or(Duration::from_secs(5)),
            connect_timeout: self.connect_timeout.unwrap_or(Duration::from_secs(2)),
            health_interval: self.health_interval.unwrap_or(Duration::from_secs(5)),
            token,
            ca_file: self.ca_file,
            shared_memory: self.shared_memory,
        })
    }
}

fn is_local(host: &str) -> bool {
    host == "localhost" || host.parse().is_ok_and(|address: std::net::IpAddr| address.is_loopback())
}

/// Parses `SCHEME://HOST[:PORT]/[PREFIX/]MODEL[:VERSION]`.
fn parse(url: &str) -> Result<(Address, Protocol, bool, String, String)> {
    let wrong = |expected: &str, got: &str| Err(config("url", expected, got));
    let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
    let Some(&(scheme, protocol, is_tls)) = SCHEMES.iter().find(|(known, ..)| *known == scheme) else {
        return wrong("grpc://, grpcs://, http:// or https://", &format!("`{scheme}`"));
    };
    let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
    if authority.contains('@') {
        return wrong("an address without a login", "a login. Pass a token with remote.token-env");
    }
    let (host, port) = match authority.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((host, port)) => (host, port.strip_prefix(':')),
        None => authority.rsplit_once(':').map_or((authority, None), |(host, port)| (host, Some(port))),
    };
    if host.is_empty() {
        return wrong("a host", &format!("`{url}`"));
    }
    let port = match (port, scheme) {
        (Some(port), _) => match port.parse() {
            Ok(port) if port > 0 => port,
            _ => return wrong("a port from 1 to 65535", &format!("`{port}`")),
        },
        (None, "http") => 80,
        (None, "grpcs" | "https") => 443,
        (None, _) => return wrong("a port, such as grpc://host:8001/model", &format!("`{url}`")),
    };
    let (prefix, model) =
        path.trim_end_matches('/').rsplit_once('/').map_or((String::new(), path), |(prefix, model)| (format!("/{prefix}"), model));
    let (model, version) = model.trim_end_matches('/').split_once(':').unwrap_or((model.trim_end_matches('/'), ""));
    let is_name = |text: &str| !text.contains(|letter: char| letter.is_whitespace() || letter.is_control() || "?#%&".contains(letter));
    if model.is_empty() || !is_name(path) {
        return wrong("a model after the host, such as grpc://host:8001/model", &format!("`{url}`"));
    }
    if protocol == Protocol::Grpc && !prefix.is_empty() {
        return wrong("one name after the host, such as grpc://host:8001/model", &format!("`{url}`"));
    }
    let address = Address { scheme, host: host.to_owned(), port, prefix };
    Ok((address, protocol, is_tls, model.to_owned(), version.to_owned()))
}

fn config(name: &str, expected: &str, got: &str) -> Error {
    Error::new(ErrorKind::Config, format!("option `{PREFIX}.{name}`: expected {expected}, got {got}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str, config: &str) -> Result<Options> {
        let mut settings = Config::default();
        settings.set_all(config)?;
        Options::of(&ModelSource::Remote(text.into()), &settings)
    }

    #[test]
    fn addresses_have_servers_a_model_and_options() {
        let options = of("grpc://a:8001/yolo:3,grpc://[::1]:9/yolo:3,timeout=250", "remote.connect-timeout=1500").unwrap();
        assert_eq!(options.servers.iter().map(Address::to_string).collect::<Vec<_>>(), ["grpc://a:8001", "grpc://[::1]:9"]);
        assert_eq!((&*options.model, &*options.version, options.protocol), ("yolo", "3", Protocol::Grpc));
        assert_eq!((options.timeout, options.connect_timeout), (Duration::from_millis(250), Duration::from_millis(1500)));
        let http = of("", "remote.url=https://host/a/b/yolo").unwrap();
        assert_eq!((http.servers[0].port, &*http.servers[0].prefix, &*http.model, http.is_tls), (443, "/a/b", "yolo", true));
    }

    #[test]
    fn errors_name_the_option_and_hide_logins() {
        for (text, list, says) in [
            ("", "", "expected the address of a model"),
            ("ftp://a/b", "", "expected grpc://, grpcs://, http:// or https://, got `ftp`"),
            ("grpc://a/b", "", "expected a port"),
            ("grpc://a:0/b", "", "expected a port from 1 to 65535, got `0`"),
            ("grpc://a:1", "", "expected a model after the host"),
            ("grpc://a:1/b/c", "", "expected one name after the host"),
            ("grpc://user:hush@a:1/b", "", "expected an address without a login, got a login"),
            ("grpc://a:1/b,grpc://a:2/c", "", "expected the same scheme, model and version"),
            ("grpc://a:1/b", "remote.timeout=0", "expected milliseconds from 1 to 3600000, got `0`"),
            ("grpc://a:1/b", "remote.shared-memory=1", "expected yes or no, got `1`"),
            ("grpc://a:1/b", "remote.speed=1", "no option `remote.speed`: expected one of url, timeout"),
            ("grpc://a:1/b", "remote.token-env=ROIFLOW_NO_SUCH_TOKEN", "`ROIFLOW_NO_SUCH_TOKEN`, which is not set"),
        ] {
            let error = of(text, list).err().unwrap_or_else(|| panic!("{text} {list}"));
            assert!(error.kind() == ErrorKind::Config && error.to_string().contains(says), "{text} {list}: {error}");
            assert!(!error.to_string().contains("hush"), "{error}");
        }
    }
}
