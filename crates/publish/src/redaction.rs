//! Hides credentials in the URLs of destinations. The table of options tells what a credential is.

use std::borrow::Cow;
use std::fmt;

#[cfg(feature = "http")]
use base64::Engine;
use roiflow_results::redaction::{self, HIDDEN, Secrets, percent_decoded};

use super::address::has_late_login;
use super::files::FileAccess;
use super::options::{Kind, Scheme};

/// Whole words with at least this number of bytes may be tokens, even if they have lower-case letters only.
const TOKEN_BYTES_MIN: usize = 16;
/// Parts of paths that are no secrets.
const PLAIN_PARTS: [&str; 24] = [
    "alerts",
    "analytics",
    "api",
    "cameras",
    "data",
    "detections",
    "event",
    "events",
    "hook",
    "hooks",
    "ingest",
    "messages",
    "notify",
    "publish",
    "result",
    "results",
    "roiflow",
    "services",
    "streams",
    "v1",
    "v2",
    "v3",
    "webhook",
    "webhooks",
];
/// Shorter parts of a path are not searched in other texts.
const PART_BYTES_MIN: usize = 5;

/// A shorter part of a URL is too short for a secret, and texts contain it by chance.
#[cfg(feature = "http")]
const REPEATED_BYTES_MIN: usize = 3;

/// The URL of a destination, with the rights of the person who wrote it. Messages show it without credentials.
#[derive(Clone, PartialEq, Eq)]
pub struct Url {
    /// The URL of a server, or the URL or path of a file.
    pub text: String,
    /// Whether the options may name files.
    pub access: FileAccess,
}

impl Url {
    /// The URL of the person who started the process.
    pub fn of_user(text: impl Into<String>) -> Self {
        Self { text: text.into(), access: FileAccess::Allowed }
    }
}

impl fmt::Debug for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Url").field(&redact(&self.text)).finish()
    }
}

/// Hides credentials in the URL of a destination: the login, options that are secrets, and the path and query of an HTTP server, because the
/// address of a webhook is a secret. Common words at the beginning of the path are shown.
pub fn redact(url: &str) -> Cow<'_, str> {
    let scheme = url.split_once("://").map(|(scheme, _)| scheme.trim_start().to_ascii_lowercase()).unwrap_or_default();
    let Some(table) = Scheme::named(&scheme) else { return redaction::redact(url) };
    if table.has_secret_path && has_late_login(url, table, false) {
        let behind = url.split('?').next().and_then(|path| path.rfind('@')).map_or("", |at| &url[at..]);
        return Cow::Owned(redact(&format!("{scheme}://{HIDDEN}{behind}")).into_owned());
    }
    if table.has_secret_path {
        let hidden = redaction::redact(url);
        let begin = hidden.find("://").map_or(0, |at| at + 3);
        let host = hidden[begin..].find(['/', '?', '#', '\\']).map_or(hidden.len(), |at| begin + at);
        let path = hidden[host..].find(['?', '#', '\\']).map_or(hidden.len(), |at| host + at);
        let query = if hidden.len() > path + 1 { format!("?{HIDDEN}") } else { String::new() };
        let text = match shown_path(&hidden[host..path]) {
            Ok(plain) => format!("{}{plain}{query}", &hidden[..host]),
            Err(shown) => format!("{}{shown}", &hidden[..host]),
        };
        return if text == url { Cow::Borrowed(url) } else { Cow::Owned(text) };
    }
    // A password may contain a question mark, and the `@` is after it.
    let Some((server, query)) = url.split_once('?').filter(|(_, query)| !query.contains('@')) else { return redaction::redact(url) };
    let shown = |pair: &str| {
        let (name, _) = pair.split_once('=').unwrap_or((pair, ""));
        match table.kind(scheme == table.names[1], name, true) {
            Ok(Some(Kind::Value | Kind::File | Kind::Credentials)) => pair.to_owned(),
            _ => format!("{name}={HIDDEN}"),
        }
    };
    let options: Vec<String> = query.split('&').map(|pair| if pair.is_empty() { String::new() } else { shown(pair) }).collect();
    let text = format!("{}?{}", redaction::redact(server), options.join("&"));
    if text == url { Cow::Borrowed(url) } else { Cow::Owned(text) }
}

/// Returns the path of a webhook as `Ok` if all its parts are common words. Otherwise returns the common words at its beginning, with `***` in
/// the place of the rest.
pub(crate) fn shown_path(path: &str) -> Result<&str, String> {
    let mut end = 0;
    for part in path.split('/') {
        if !part.is_empty() && !PLAIN_PARTS.contains(&part) {
            return Err(format!("{}/{HIDDEN}", path[..end].trim_end_matches('/')));
        }
        end = (end + part.len() + 1).min(path.len());
    }
    Ok(path)
}

/// The credentials in the URL of a destination, to hide them in other texts.
pub fn secrets(url: &str) -> Secrets {
    let (server, query) = url.split_once('?').filter(|(_, query)| !query.contains('@')).unwrap_or((url, ""));
    let mut secrets = Secrets::of(server);
    secrets.add_address(url, &redact(url));
    let Some((scheme, rest)) = server.split_once("://") else { return secrets };
    let Some(table) = Scheme::named(&scheme.to_ascii_lowercase()) else { return secrets };
    for (name, value) in query.split('&').filter_map(|pair| pair.split_once('=')) {
        match table.kind(scheme.eq_ignore_ascii_case(table.names[1]), name, true) {
            Ok(Some(Kind::Secret)) => secrets.add(value),
            Ok(Some(Kind::Value | Kind::File | Kind::Credentials)) => {}
            Ok(Some(Kind::Power) | None) | Err(_) if is_token(value) => secrets.add(value),
            Ok(Some(Kind::Power) | None) | Err(_) => {}
        }
    }
    if let Some((_, path)) = rest.split_once('/').filter(|(_, path)| table.has_secret_path && shown_path(path).is_err()) {
        std::iter::once(path).chain(path.split('/')).filter(|part| is_token(part)).for_each(|part| secrets.add(part));
    }
    secrets
}

/// Whether a text of a server repeats a part of the path or query of its URL that is hidden, or of the header `Authorization`.
#[cfg(feature = "http")]
pub(crate) fn repeats(text: &str, url: &str, authorization: Option<&str>) -> bool {
    let folded = |text: &[u8]| String::from_utf8_lossy(text).to_lowercase();
    let text = folded(text.as_bytes());
    let hides_path = redact(url) != url;
    let path = url.split_once("://").and_then(|(_, rest)| rest.split_once(['/', '?', '#'])).map_or("", |(_, path)| path);
    let of_path = path.split(['/', '?', '&', '=', '#']).filter(|part| hides_path && !PLAIN_PARTS.contains(part));
    let header = authorization.and_then(|header| header.split_once(' ')).map_or("", |(_, secret)| secret);
    let login = base64::prelude::BASE64_STANDARD.decode(header).unwrap_or_default();
    let password = login.splitn(2, |byte| *byte == b':').nth(1).unwrap_or_default();
    let all =
        of_path.flat_map(|part| [part.as_bytes().to_vec(), percent_decoded(part)]).chain([header.as_bytes().to_vec(), password.to_vec()]);
    all.into_iter().any(|part| part.len() >= REPEATED_BYTES_MIN && text.contains(&folded(&part)))
}

/// Whether a text may be a token, and not a word that messages contain.
fn is_token(text: &str) -> bool {
    let is_word = |c: u8| c.is_ascii_lowercase() || b"-_.{}".contains(&c);
    let text = percent_decoded(text);
    text.len() >= PART_BYTES_MIN && (text.len() >= TOKEN_BYTES_MIN || !text.into_iter().all(is_word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logins_and_paths_of_webhooks_are_hidden_and_plain_options_are_not() {
        for (url, shown) in [
            ("https://hooks.example/services/T024BE7LD/B024BE7LD/xoxZabc", "https://hooks.example/services/***"),
            ("http://hooks.example/results", "http://hooks.example/results"),
            ("http://hooks.example/api/v1/results/", "http://hooks.example/api/v1/results/"),
            ("http://hooks.example/results?x-format=array", "http://hooks.example/results?***"),
            ("http://hooks.example/results/resultsx", "http://hooks.example/results/***"),
            ("https://me:word@hooks.example:8443/a?x-format=array", "https://***@hooks.example:8443/***"),
            ("https://me:wo/rd@hooks.example/a", "https://***@hooks.example/***"),
            ("HTTP://hooks.example?token=abc", "HTTP://hooks.example?***"),
            ("http://hooks.example", "http://hooks.example"),
            ("http://hooks.example/", "http://hooks.example/"),
            ("http://hooks.example/x", "http://hooks.example/***"),
            ("mqtt://me:word@broker/doors?retain=true&user=me", "mqtt://***@broker/doors?retain=true&user=***"),
            (
                "mqtts://broker/doors?credentials=broker&client-id=a-1-b-2-c-3-d-4",
                "mqtts://broker/doors?credentials=broker&client-id=a-1-b-2-c-3-d-4",
            ),
            ("mqtt://me:wo?rd@broker/doors", "mqtt://***@broker/doors"),
            ("redis://broker/1?key=doors", "redis://broker/1?key=doors"),
            ("kafka://broker/t?rdkafka.sasl.password=hunter22&acks=1", "kafka://broker/t?rdkafka.sasl.password=***&acks=***"),
            ("nats://token77@broker/subject", "nats://***@broker/subject"),
            ("gopher://me:word@x", "gopher://***@x"),
            ("results.jsonl", "results.jsonl"),
            ("file:///a/b@c.jsonl?keep=3", "file:///a/b@c.jsonl?keep=3"),
        ] {
            assert_eq!(redact(url), shown, "{url}");
            assert_eq!(redact(&redact(url)), shown, "{url}, twice");
        }
        let url = Url::of_user("https://hooks.example/B024BE7LD");
        assert_eq!(format!("{url:?}"), "Url(\"https://hooks.example/***\")");
    }

    #[cfg(feature = "http")]
    #[test]
    fn answers_that_repeat_a_secret_are_found() {
        let url = "http://host:8583/services/T024BE7LD/hunterlower/abc%2Fdef99/Qx9y?tk=geheimwort&sig=Z7z";
        for answer in [
            "no such hook /services/T024BE7LD/x",
            "not found: HUNTERLOWER",
            "abc/def99?",
            "{\"abc%2fdef99\": 1}",
            "Qx9y",
            "sig is z7z",
            "tk: geheimwort",
        ] {
            assert!(repeats(answer, url, None), "{answer}");
        }
        for answer in ["", "no such hook", "expected services", "host:8583 is busy"] {
            assert!(!repeats(answer, url, None), "{answer}");
        }
        // `me:passw0rd99`
        let login = Some("Basic bWU6cGFzc3cwcmQ5OQ==");
        assert!(repeats("you sent bWU6cGFzc3cwcmQ5OQ==", "http://host/results", login));
        assert!(repeats("passw0rd99", "http://host/results", login) && !repeats("me", "http://host/results", login));
        assert!(repeats("Bearer a-token", "http://host/results", Some("Bearer a-token")));
        assert!(!repeats("unknown path /results", "http://host/results", None));
    }

    #[test]
    fn parts_of_a_webhook_are_hidden_in_other_texts() {
        let url = "https://hooks.example/services/T024BE7LD/B024BE7LD/abcdefghijklmnopqrst?key=AIza99";
        let secrets = secrets(url);
        for (text, scrubbed) in [
            (format!("cannot reach {url}"), "cannot reach https://hooks.example/services/***"),
            ("POST /services/T024BE7LD/B024BE7LD/abcdefghijklmnopqrst".to_owned(), "POST /***"),
            ("the hook abcdefghijklmnopqrst, the key AIza99".to_owned(), "the hook ***, the key ***"),
            ("two services".to_owned(), "two services"),
        ] {
            assert_eq!(secrets.scrub(&text), scrubbed);
        }
        let plain = super::secrets("http://host/results");
        assert_eq!(plain.scrub("results wait for http://host/results"), "results wait for http://host/results");
        let file = super::secrets("mqtts://me:hunter22@host/a?ca=/nowhere-1.crt");
        assert_eq!(file.scrub("hunter22: cannot read the file /nowhere-1.crt"), "***: cannot read the file /nowhere-1.crt");
    }
}
