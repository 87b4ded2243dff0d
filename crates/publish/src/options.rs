//! The options of addresses: one table with the schemes, their options, and what the value of each option is.
//!
//! Parsing, the lists of options in errors, the right to open files and redaction follow from the table. A new destination adds its row.

/// What the value of an option is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Text that messages may show.
    Value,
    /// A login or a key, which no message shows.
    Secret,
    /// Path of a file that roiflow reads. Needs the right to open files, and is available only as a [`NamedFile`](crate::NamedFile).
    File,
    /// Text that can make a library open files, run commands or load libraries. Needs the right to open files.
    Power,
    /// Name of [`Credentials`](crate::Credentials) in the settings of a server.
    Credentials,
}

/// The options of a scheme.
#[derive(Debug, PartialEq, Eq)]
pub struct Scheme {
    /// Names of the scheme, without TLS and with TLS; empty: there is no such scheme.
    pub names: [&'static str; 2],
    /// Default ports, without TLS and with TLS.
    pub ports: [u16; 2],
    /// How the names of all options begin. Other options belong to the URL that the server gets.
    pub prefix: &'static str,
    /// Names of the options, without the prefix.
    pub options: &'static [(&'static str, Kind)],
    /// How the names of settings of a library begin, and the settings that only change how the library sends messages.
    pub settings: Option<(&'static str, &'static [&'static str])>,
    /// Whether the path can contain a secret, as the address of a webhook does.
    pub has_secret_path: bool,
    /// Whether clients of a server may use the scheme.
    pub is_for_clients: bool,
}

/// Options of all servers.
const LOGIN: [(&str, Kind); 3] = [("user", Kind::Secret), ("password-file", Kind::File), ("credentials", Kind::Credentials)];
/// Options of servers with TLS.
const TLS: [(&str, Kind); 3] = [("ca", Kind::File), ("cert", Kind::File), ("key", Kind::File)];
/// How long a server may refuse a single message before the message is given up.
const GIVE_UP_AFTER: (&str, Kind) = ("give-up-after", Kind::Value);

/// Settings of librdkafka that name no file, command, library, server or login. The list names what is allowed, because newer versions of
/// the library have further settings.
const KAFKA_SETTINGS: &[&str] = &[
    "acks",
    "batch.num.messages",
    "batch.size",
    "compression.codec",
    "compression.level",
    "compression.type",
    "connections.max.idle.ms",
    "linger.ms",
    "message.max.bytes",
    "partitioner",
    "queue.buffering.max.kbytes",
    "queue.buffering.max.messages",
    "queue.buffering.max.ms",
    "reconnect.backoff.max.ms",
    "reconnect.backoff.ms",
    "request.required.acks",
    "request.timeout.ms",
    "retries",
    "retry.backoff.max.ms",
    "retry.backoff.ms",
    "socket.keepalive.enable",
    "socket.nagle.disable",
    "socket.timeout.ms",
    "sticky.partitioning.linger.ms",
    "topic.metadata.refresh.interval.ms",
];

const SERVER: Scheme =
    Scheme { names: [""; 2], ports: [0; 2], prefix: "", options: &[], settings: None, has_secret_path: false, is_for_clients: true };

/// All schemes.
pub(crate) static SCHEMES: [Scheme; 6] = [
    Scheme {
        names: ["mqtt", "mqtts"],
        ports: [1883, 8883],
        options: &[
            ("client-id", Kind::Value),
            ("expiry", Kind::Value),
            GIVE_UP_AFTER,
            ("retain", Kind::Value),
            ("status-topic", Kind::Value),
        ],
        ..SERVER
    },
    Scheme { names: ["nats", "tls"], ports: [4222, 4222], options: &[("create", Kind::Value), GIVE_UP_AFTER], ..SERVER },
    Scheme {
        names: ["redis", "rediss"],
        ports: [6379, 6379],
        // With TLS, `key` is the file of a private key.
        options: &[GIVE_UP_AFTER, ("key", Kind::Value), ("stream-key", Kind::Value), ("maxlen", Kind::Value)],
        ..SERVER
    },
    Scheme {
        names: ["http", "https"],
        ports: [80, 443],
        prefix: "x-",
        options: &[
            ("token-file", Kind::File),
            ("secret", Kind::Secret),
            ("secret-file", Kind::File),
            ("format", Kind::Value),
            ("batch", Kind::Value),
        ],
        has_secret_path: true,
        ..SERVER
    },
    Scheme {
        names: ["kafka", "kafkas"],
        ports: [9092, 9092],
        options: &[("client-id", Kind::Value), ("compression", Kind::Value), ("sasl", Kind::Value)],
        settings: Some(("rdkafka.", KAFKA_SETTINGS)),
        is_for_clients: false,
        ..SERVER
    },
    Scheme {
        names: ["file", ""],
        options: &[("max-bytes", Kind::Value), ("max-age", Kind::Value), ("keep", Kind::Value), ("gzip", Kind::Value)],
        is_for_clients: false,
        ..SERVER
    },
];

/// Schemes of servers that may get the results of clients' streams.
pub fn schemes_for_clients() -> impl Iterator<Item = &'static str> {
    SCHEMES.iter().filter(|scheme| scheme.is_for_clients).flat_map(|scheme| scheme.names)
}

impl Scheme {
    /// The scheme with a name in lower case.
    pub(crate) fn named(name: &str) -> Option<&'static Self> {
        SCHEMES.iter().find(|scheme| !name.is_empty() && scheme.names.contains(&name))
    }

    /// What the value of an option is; `None`: the option belongs to the URL that the server gets.
    ///
    /// # Errors
    /// Returns an error if there is no such option. `has_credentials`: whether the error lists the option `credentials`.
    pub(crate) fn kind(&self, has_tls: bool, option: &str, has_credentials: bool) -> Result<Option<Kind>, String> {
        let Some(name) = option.strip_prefix(self.prefix) else { return Ok(None) };
        if let Some((prefix, harmless)) = self.settings
            && let Some(setting) = name.strip_prefix(prefix)
        {
            return Ok(Some(if harmless.contains(&setting) { Kind::Value } else { Kind::Power }));
        }
        match self.all(has_tls).find(|(known, _)| *known == name) {
            Some((_, kind)) => Ok(Some(kind)),
            None if self.all(true).any(|(known, _)| known == name) => {
                Err(format!("option {option}: expected a URL with TLS, as in {}://, got {}://", self.names[1], self.names[0]))
            }
            None => {
                let known = self.all(has_tls).filter(|(_, kind)| has_credentials || *kind != Kind::Credentials);
                let mut known: Vec<String> = known.map(|(name, _)| format!("{}{name}", self.prefix)).collect();
                known.extend(self.settings.map(|(prefix, _)| format!("{prefix}NAME")));
                let others = if self.prefix.is_empty() { "" } else { "; other options are sent to the server" };
                Err(format!("unknown option `{option}`: expected one of {}{others}", known.join(", ")))
            }
        }
    }

    /// The options without the prefix.
    pub(crate) fn all(&self, has_tls: bool) -> impl Iterator<Item = (&'static str, Kind)> {
        let is_new = move |(name, _): &(&str, Kind)| self.options.iter().all(|(own, _)| own != name);
        let login = LOGIN.into_iter().filter(move |_| self.names[0] != "file").filter(is_new);
        let tls = TLS.into_iter().filter(move |_| has_tls && !self.names[1].is_empty());
        let is_own = move |(name, _): &(&str, Kind)| !has_tls || TLS.iter().all(|(of_tls, _)| of_tls != name);
        login.chain(self.options.iter().copied().filter(is_own)).chain(tls)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_option_has_a_kind_and_unknown_ones_are_errors() {
        let kind = |url: &str| {
            let (scheme, option) = url.split_once(' ').unwrap();
            let named = Scheme::named(scheme).unwrap();
            named.kind(scheme == named.names[1], option, false)
        };
        for (option, expected) in [
            ("mqtt user", Some(Kind::Secret)),
            ("mqtts ca", Some(Kind::File)),
            ("redis key", Some(Kind::Value)),
            ("rediss key", Some(Kind::File)),
            ("http key", None),
            ("https x-key", Some(Kind::File)),
            ("http x-secret-file", Some(Kind::File)),
            ("kafka rdkafka.linger.ms", Some(Kind::Value)),
            ("kafka rdkafka.ssl.ca.location", Some(Kind::Power)),
            ("file keep", Some(Kind::Value)),
        ] {
            assert_eq!(kind(option), Ok(expected), "{option}");
        }
        for (option, error) in [
            (
                "mqtt qos",
                "unknown option `qos`: expected one of user, password-file, client-id, expiry, give-up-after, retain, status-topic",
            ),
            ("mqtt ca", "option ca: expected a URL with TLS, as in mqtts://, got mqtt://"),
            ("file user", "unknown option `user`: expected one of max-bytes, max-age, keep, gzip"),
        ] {
            assert_eq!(kind(option), Err(error.to_owned()), "{option}");
        }
        let error = kind("http x-tokenfile").unwrap_err();
        assert!(error.contains("x-token-file") && error.ends_with("; other options are sent to the server"), "{error}");
    }

    #[test]
    fn settings_of_a_library_that_open_files_or_run_commands_are_no_plain_values() {
        for setting in [
            "ssl.ca.location",
            "ssl.certificate.location",
            "ssl.key.location",
            "ssl.crl.location",
            "ssl.keystore.location",
            "ssl.engine.location",
            "ssl.providers",
            "https.ca.location",
            "plugin.library.paths",
            "sasl.kerberos.kinit.cmd",
            "sasl.kerberos.principal",
            "sasl.kerberos.keytab",
            "sasl.oauthbearer.config",
            "sasl.oauthbearer.token.endpoint.url",
            "sasl.oauthbearer.assertion.private.key.file",
            "sasl.oauthbearer.assertion.jwt.template.file",
            "bootstrap.servers",
            "metadata.broker.list",
            "security.protocol",
            "a.setting.of.a.later.version",
        ] {
            let kind = Scheme::named("kafkas").unwrap().kind(true, &format!("rdkafka.{setting}"), false);
            assert_eq!(kind, Ok(Some(Kind::Power)), "{setting}");
        }
    }
}
