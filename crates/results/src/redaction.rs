//! Hides credentials in all output. Credentials are user names and passwords, and tokens in queries and paths.
//!
//! [`redact`] hides credentials in the address of an input, even if the address is not a valid URI. [`Secrets`] stores the credentials of
//! an input and hides them in other text, such as an error that quotes the address.
//!
//! If it is not clear what belongs to a password, this module hides more text rather than less, because users write passwords with
//! unencoded `/`, `?`, `#` and `@`. A URI parser (the crate `url`) is not sufficient: it rejects such addresses, or interprets a part
//! of the password as host or path. This module uses no files and no GStreamer.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

/// Replacement for hidden text.
pub const HIDDEN: &str = "***";

/// Network schemes. After these schemes, any number of slashes is accepted before the host. After other schemes, `://` is
/// required.
const NETWORK: [&str; 33] = [
    "rtsp", "rtsps", "rtspu", "rtspt", "rtsph", "rtspsu", "rtspst", "rtspsh", "rtsp-sdp", "rtmp", "rtmps", "rtmpt", "rtmpe", "rtmpte",
    "http", "https", "ws", "wss", "srt", "rist", "udp", "tcp", "rtp", "sftp", "ftp", "ftps", "smb", "mms", "mmsh", "icecast", "whep",
    "onvif", "webrtc",
];
/// Schemes with paths that often contain `@`, as in `https://host/@name`.
const WEB: [&str; 4] = ["http", "https", "ws", "wss"];

/// A key names a credential if it contains one of these parts. Case and punctuation are ignored.
const SECRET_PARTS: [&str; 26] = [
    "login",
    "password",
    "passwd",
    "passphrase",
    "passcode",
    "passwort",
    "pwd",
    "token",
    "secret",
    "apikey",
    "accesskey",
    "authkey",
    "streamkey",
    "signature",
    "credential",
    "hmac",
    "hdnea",
    "hdnts",
    "jwt",
    "bearer",
    "session",
    "cookie",
    "auth",
    "username",
    "userid",
    "streamid",
];
/// A key names a credential if it ends with one of these texts. Case and punctuation are ignored.
const SECRET_ENDS: [&str; 9] = ["pass", "pas", "key", "user", "usr", "account", "sig", "sign", "pin"];
/// A key names a credential if it equals one of these words. Case and punctuation are ignored.
const SECRET_WORDS: [&str; 17] =
    ["pw", "psw", "psd", "sas", "sid", "otp", "nonce", "code", "ticket", "tkn", "tok", "md5", "hash", "policy", "u", "p", "k"];
/// Keys of camera paths. A value ends at a `_` that one of these keys follows, as in `/user=admin_password=secret_channel=1_stream=0.sdp`.
const AFTER_UNDERSCORE: [&str; 8] = ["user=", "usr=", "password=", "passwd=", "pwd=", "channel=", "stream=", "subtype="];

/// Hides credentials in the address of an input: `rtsp://***@host/path?token=***`. Text without credentials is unchanged.
///
/// Do not use this function for names of local files, because they are not addresses.
pub fn redact(address: &str) -> Cow<'_, str> {
    let hidden = hidden(address);
    if hidden.is_empty() {
        return Cow::Borrowed(address);
    }
    let (mut text, mut from) = (String::with_capacity(address.len()), 0);
    for range in hidden {
        text.push_str(&address[from..range.start]);
        text.push_str(HIDDEN);
        from = range.end;
    }
    text.push_str(&address[from..]);
    Cow::Owned(text)
}

/// Credentials that must not appear in output.
#[derive(Clone, Default)]
pub struct Secrets {
    /// Pairs of a complete address and its redacted form.
    addresses: Vec<(String, String)>,
    /// Each credential in two forms: as given, and percent-decoded. The longest text is first.
    secrets: Vec<Vec<u8>>,
}

/// Secrets with fewer bytes are hidden only where they are whole words. As parts of words, short secrets would match too often.
const ANYWHERE_BYTES_MIN: usize = 6;
/// Secrets with fewer bytes are not searched in other text. They are hidden only in addresses.
const ALONE_BYTES_MIN: usize = 3;

impl Secrets {
    /// Collects the credentials in the address of an input.
    pub fn of(address: &str) -> Self {
        let mut secrets = Self::default();
        for range in credentials(address) {
            let piece = &address[range.clone()];
            secrets.add(piece);
            if let Some((_, password)) = piece.split_once(':').filter(|_| address[range.end..].starts_with('@')) {
                secrets.add(password);
            }
        }
        secrets.add_address(address, &redact(address));
        secrets
    }

    /// Collects the credentials in a command-line argument, if the argument contains an address. A text `NAME=VALUE` is not an
    /// address by itself.
    pub fn of_argument(argument: &str) -> Self {
        if argument.contains('@') || scheme(argument).is_some() { Self::of(argument) } else { Self::default() }
    }

    /// Adds an address, and the text that is shown instead. It replaces an earlier text for the same address.
    pub fn add_address(&mut self, address: &str, shown: &str) {
        if shown != address {
            self.addresses.insert(0, (address.to_owned(), shown.to_owned()));
        }
    }

    /// Adds a password or token.
    pub fn add(&mut self, secret: &str) {
        for bytes in [secret.as_bytes().to_vec(), percent_decoded(secret)] {
            if bytes.len() >= ALONE_BYTES_MIN && bytes != HIDDEN.as_bytes() && !self.secrets.contains(&bytes) {
                self.secrets.push(bytes);
            }
        }
        self.secrets.sort_by_key(|secret| std::cmp::Reverse(secret.len()));
    }

    /// Adds all credentials of `other`.
    pub fn extend(&mut self, other: Self) {
        // A server adds the same credentials again whenever a stream starts.
        let addresses = other.addresses.into_iter().filter(|address| !self.addresses.contains(address));
        let addresses: Vec<_> = addresses.collect();
        // The text that hides more is used.
        self.addresses.splice(0..0, addresses);
        self.addresses.sort_by_key(|(address, shown)| (std::cmp::Reverse(address.len()), shown.len()));
        self.secrets.extend(other.secrets);
        self.secrets.sort_by(|a, b| b.len().cmp(&a.len()).then_with(|| a.cmp(b)));
        self.secrets.dedup();
    }

    /// Whether this value contains no credentials.
    pub fn is_empty(&self) -> bool {
        self.addresses.is_empty() && self.secrets.is_empty()
    }

    /// Hides these credentials in `text`, also where they are percent-encoded. Also redacts all addresses in `text`. Has no
    /// effect if there are no credentials.
    pub fn scrub<'a>(&self, text: &'a str) -> Cow<'a, str> {
        if self.is_empty() {
            return Cow::Borrowed(text);
        }
        let mut scrubbed = text.to_owned();
        for (address, shown) in &self.addresses {
            scrubbed = scrubbed.replace(address, shown);
        }
        for secret in &self.secrets {
            scrubbed = without(&scrubbed, secret);
        }
        Cow::Owned(redact_words(&scrubbed))
    }
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secrets({})", self.secrets.len())
    }
}

/// Hides the credentials of every address in a text. Use [`redact`] for a text that is an address, because a password may contain a space.
pub fn redact_words(text: &str) -> String {
    let is_between = |c: char| c.is_whitespace() || "`\"'<>()".contains(c);
    text.split_inclusive(is_between)
        .map(|word| {
            let end = word.trim_end_matches(is_between).len();
            if word.contains("://") { Cow::Owned(format!("{}{}", redact(&word[..end]), &word[end..])) } else { Cow::Borrowed(word) }
        })
        .collect()
}

fn without(text: &str, secret: &[u8]) -> String {
    let bytes = text.as_bytes();
    let (mut kept, mut at) = (Vec::with_capacity(bytes.len()), 0);
    let is_alone = |begin: usize, end: usize| {
        let is_part = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
        !is_part(begin.checked_sub(1).and_then(|before| bytes.get(before))) && !is_part(bytes.get(end))
    };
    while at < bytes.len() {
        match match_at(bytes, at, secret) {
            Some(end) if secret.len() >= ANYWHERE_BYTES_MIN || is_alone(at, end) => {
                kept.extend_from_slice(HIDDEN.as_bytes());
                at = end;
            }
            _ => {
                kept.push(bytes[at]);
                at += 1;
            }
        }
    }
    String::from_utf8_lossy(&kept).into_owned()
}

/// If the text contains `secret` at position `at`, returns the position after it, otherwise `None`. Each byte may be percent-encoded
/// or escaped by a backslash.
fn match_at(text: &[u8], at: usize, secret: &[u8]) -> Option<usize> {
    let Some((&byte, rest)) = secret.split_first() else { return Some(at) };
    let text_here = text.get(at..)?;
    let is_encoded =
        matches!(text_here, [b'%', high, low, ..] if hex(*high).zip(hex(*low)).is_some_and(|(high, low)| high << 4 | low == byte));
    let is_escaped = matches!(text_here, [b'\\', second, ..] if *second == byte);
    [(is_encoded, 3), (text_here.first() == Some(&byte), 1), (is_escaped, 2)]
        .into_iter()
        .filter(|(is_match, _)| *is_match)
        .find_map(|(_, n_bytes)| match_at(text, at + n_bytes, rest))
}

/// Returns the ranges of an address that must be hidden, in order.
fn hidden(address: &str) -> Vec<Range<usize>> {
    merged(credentials(address))
}

/// Returns the ranges of an address that may be credentials. Ranges can overlap, because an `@` may end a password or be part of
/// a token.
fn credentials(address: &str) -> Vec<Range<usize>> {
    let mut ranges = Vec::new();
    match scheme(address) {
        Some((scheme, begin)) => {
            let host = match user_end(scheme, &address[begin..]) {
                Some(0) => begin + 1,
                Some(end) => {
                    ranges.push(begin..begin + end);
                    begin + end + 1
                }
                None => begin,
            };
            let tail = host + address[host..].find(['/', '?', '#', '\\']).unwrap_or(address.len() - host);
            if scheme != "file" {
                hide_values(address, begin, &mut ranges);
                hide_encoded_values(address, tail, &mut ranges);
                hide_odd_values(address, tail, &mut ranges);
                hide_segments(address, tail, &mut ranges);
            }
        }
        // The address has no scheme, but may have the form `user:password@host`.
        None => {
            let begin = address.len() - address.trim_start_matches(['/', '\\', ':']).len();
            let end = address.rfind('@').filter(|end| begin < *end && address[..*end].contains(':'));
            ranges.extend(end.map(|end| begin..end));
            hide_values(address, 0, &mut ranges);
        }
    }
    ranges
}

/// Returns the lower-case scheme of an address, and the position after the scheme. Accepts addresses with too few or too many slashes.
fn scheme(address: &str) -> Option<(&'static str, usize)> {
    let is_of_scheme = |c: char| c.is_ascii_alphanumeric() || "+.-".contains(c);
    let mut begin = 0;
    while begin < address.len() {
        let word = &address[begin..];
        let name = &word[..word.find(|c| !is_of_scheme(c)).unwrap_or(word.len())];
        let behind = &word[name.len()..];
        let known = NETWORK.into_iter().find(|known| name.eq_ignore_ascii_case(known));
        if let Some(known) = known.filter(|_| behind.starts_with([':', '\\']) || behind.starts_with("//")) {
            return Some((known, address.len() - behind.trim_start_matches([':', '/', '\\']).len()));
        }
        if !name.is_empty() && behind.starts_with("://") {
            let scheme = if name.eq_ignore_ascii_case("file") { "file" } else { "" };
            return Some((scheme, begin + name.len() + 3));
        }
        begin += name.len().max(word.chars().next().map_or(1, char::len_utf8));
    }
    None
}

/// Returns the end of user and password, which is the position of an `@`. `rest` is the address after the scheme.
fn user_end(scheme: &str, rest: &str) -> Option<usize> {
    let authority = &rest[..rest.find(['/', '?', '#', '\\']).unwrap_or(rest.len())];
    if let Some((user, host)) = authority.rsplit_once('@') {
        // If the text after this `@` is an IP address, it is the host. So the `@` ends the password, and text after the host is
        // not part of it.
        return if is_ip_address(host) || scheme == "file" { Some(user.len()) } else { rest.rfind('@') };
    }
    let may_be_user = match scheme {
        "file" => false,
        _ if authority.is_empty() || is_ip_address(authority) => false,
        // The password may contain a slash, as in `user:pa/ss@host`.
        _ if authority.contains(':') => true,
        scheme => !scheme.is_empty() && !WEB.contains(&scheme),
    };
    rest.rfind('@').filter(|_| may_be_user)
}

/// Whether the text starts with an IPv4 address or an address in brackets, with or without a port.
fn is_ip_address(host: &str) -> bool {
    let is_port = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if let Some((_, port)) = host.strip_prefix('[').and_then(|host| host.split_once(']')) {
        return port.is_empty() || port.strip_prefix(':').is_some_and(is_port);
    }
    let (host, port) = host.split_once(':').unwrap_or((host, ""));
    is_port(port) && host.parse::<std::net::Ipv4Addr>().is_ok()
}

/// Adds the ranges of the values of credential keys, from position `begin` on.
fn hide_values(address: &str, begin: usize, ranges: &mut Vec<Range<usize>>) {
    let (mut at, mut key_begin) = (begin, begin);
    while let Some(equals) = address[at..].find('=').map(|found| at + found) {
        at = equals + 1;
        if is_secret_key(key_before(&address[..equals], key_begin)) {
            let end = value_end(address, at);
            ranges.extend((at < end).then_some(at..end));
            // The next key begins after the hidden value.
            (at, key_begin) = (end, end);
        }
    }
}

/// Adds everything after the host as one range if percent-decoding shows further credential keys. An example is `%2F%3Fpassword%3D...`,
/// which is part of a nested address.
fn hide_encoded_values(address: &str, tail: usize, ranges: &mut Vec<Range<usize>>) {
    let n_secrets = |text: &str| text.match_indices('=').filter(|(equals, _)| is_secret_key(key_before(&text[..*equals], 0))).count();
    let text = &address[tail..];
    let once = String::from_utf8_lossy(&percent_decoded(text)).into_owned();
    let twice = String::from_utf8_lossy(&percent_decoded(&once)).into_owned();
    if n_secrets(&twice) > n_secrets(text) {
        let begin = address.len() - text.trim_start_matches(['/', '?', '#', '\\']).len();
        ranges.extend((begin < address.len()).then_some(begin..address.len()));
    }
}

fn key_before(text: &str, begin: usize) -> &str {
    let text = text.get(begin..).unwrap_or(text);
    let is_of_key = |c: char| c.is_alphanumeric() || "_-.%[]$~*".contains(c);
    &text[text.rfind(|c| !is_of_key(c)).map_or(0, |before| before + text[before..].chars().next().map_or(1, char::len_utf8))..]
}

fn is_secret_key(key: &str) -> bool {
    let decoded = percent_decoded(key);
    let plain: String = String::from_utf8_lossy(&decoded).chars().filter(|c| c.is_alphanumeric()).flat_map(char::to_lowercase).collect();
    SECRET_PARTS.iter().any(|part| plain.contains(part))
        || SECRET_ENDS.iter().any(|end| plain.ends_with(end))
        || SECRET_WORDS.contains(&&*plain)
}

/// Returns the end of a value, which is where the next key begins. The value itself can contain `/`, `?` and `#`.
fn value_end(address: &str, begin: usize) -> usize {
    let value = &address[begin..];
    let is_end = |(at, c): &(usize, char)| {
        let behind = &value[at + c.len_utf8()..];
        match c {
            '&' | ';' => {
                let is_of_key = |c: char| c.is_alphanumeric() || "_-.%[]$~*".contains(c);
                behind.is_empty() || behind.trim_start_matches(is_of_key).starts_with('=') && !behind.starts_with('=')
            }
            '_' => AFTER_UNDERSCORE.iter().any(|word| behind.get(..word.len()).is_some_and(|next| next.eq_ignore_ascii_case(word))),
            _ => false,
        }
    };
    value.char_indices().find(is_end).map_or(address.len(), |(at, _)| begin + at)
}

/// Adds the ranges of all query values that are not numbers or words, because they may be tokens. The keys of the values do not matter.
fn hide_odd_values(address: &str, tail: usize, ranges: &mut Vec<Range<usize>>) {
    let Some(mut begin) = address[tail..].find(['?', '#']).map(|found| tail + found + 1) else { return };
    for item in address[begin..].split(['&', ';', '?', '#']) {
        let value = item.find('=').map_or(0, |equals| equals + 1);
        if !is_harmless(&item[value..]) {
            ranges.push(begin + value..begin + item.len());
        }
        begin += item.len() + 1;
    }
}

fn is_harmless(value: &str) -> bool {
    let all = |is: fn(char) -> bool| value.chars().all(is);
    match value.len() {
        0..=6 => all(|c| c.is_ascii_alphanumeric() || "._-".contains(c)),
        7..=12 => all(|c| c.is_ascii_digit() || c == '.') || all(|c| c.is_ascii_alphabetic() || "_-".contains(c)),
        13..=20 => all(|c| c.is_ascii_alphabetic() || "_-".contains(c)),
        _ => false,
    }
}

/// Adds the ranges of path segments that may be credentials. These are: the segment after a segment that is a credential key, long segments
/// of mixed letters and digits, and pairs such as `user:password`.
fn hide_segments(address: &str, tail: usize, ranges: &mut Vec<Range<usize>>) {
    let end = tail + address[tail..].find(['?', '#']).unwrap_or(address.len() - tail);
    let (mut begin, mut is_token) = (tail, false);
    for segment in address[tail..end].split('/') {
        let name = segment.split('.').next().unwrap_or_default();
        let is_random = name.len() >= 20
            && name.chars().all(|c| c.is_ascii_alphanumeric() || "-_".contains(c))
            && name.chars().filter(char::is_ascii_digit).count() >= 4
            && name.chars().filter(char::is_ascii_alphabetic).count() >= 4;
        // Some cameras have paths such as `/user:password/stream`.
        let is_pair = segment.contains(':');
        let is_hidden = !segment.is_empty() && (is_pair || is_token || is_random || segment.starts_with("eyJ"));
        ranges.extend(is_hidden.then_some(begin..begin + segment.len()));
        is_token = !is_hidden && !segment.contains('=') && segment.len() > 2 && is_secret_key(segment);
        begin += segment.len() + 1;
    }
}

fn merged(mut ranges: Vec<Range<usize>>) -> Vec<Range<usize>> {
    ranges.sort_by_key(|range| (range.start, range.end));
    let mut merged: Vec<Range<usize>> = Vec::with_capacity(ranges.len());
    for range in ranges {
        match merged.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => merged.push(range),
        }
    }
    merged
}

/// Returns the percent-decoded bytes of a text. A `%` that two hexadecimal digits do not follow stays unchanged.
pub fn percent_decoded(text: &str) -> Vec<u8> {
    percent_decode_str(text).collect()
}

/// Returns the text with all characters percent-encoded, except letters, digits and `-_.~`.
pub fn percent_encoded(text: &str) -> String {
    const ENCODED: AsciiSet = NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');
    utf8_percent_encode(text, &ENCODED).to_string()
}

fn hex(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).map(|digit| digit as u8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_are_hidden_and_other_text_is_unchanged() {
        for (address, shown) in [
            ("rtsp://user:pass@host:554/a?b=c", "rtsp://***@host:554/a?b=c"),
            ("rtsp://user:pass@10.0.0.1:554/a?b=c@d", "rtsp://***@10.0.0.1:554/a?b=***"),
            ("rtsp://user@host/", "rtsp://***@host/"),
            ("rtsp://user:p@ss@host/", "rtsp://***@host/"),
            ("rtsp://user:pa/ss@host/", "rtsp://***@host/"),
            ("rtsp://user:pa?ss@host", "rtsp://***@host"),
            ("rtsp://user:pa#ss@host/x", "rtsp://***@host/x"),
            ("rtsp://user:pa:ss@host/x", "rtsp://***@host/x"),
            ("rtsp://user:100%@host/x", "rtsp://***@host/x"),
            ("rtsp://user:p@s/s?@host/x", "rtsp://***@host/x"),
            ("rtsp://user:12/34@host/x", "rtsp://***@host/x"),
            ("RTSP://User:Pass@Host/x", "RTSP://***@Host/x"),
            ("rtsp://u:p@[fe80::1]:554/x", "rtsp://***@[fe80::1]:554/x"),
            ("rtsp:/u:p@host", "rtsp:/***@host"),
            ("rtsp//u:p@h", "rtsp//***@h"),
            ("rtsp:u:p@h/x", "rtsp:***@h/x"),
            ("rtsp:///u:p@h/x", "rtsp:///***@h/x"),
            ("rtsp:\\\\u:p@h\\x", "rtsp:\\\\***@h\\x"),
            (" rtsp://u:p@h", " rtsp://***@h"),
            ("u:p@host/live", "***@host/live"),
            ("//u:p@host/live", "//***@host/live"),
            ("host/live?password=x", "host/live?password=***"),
            ("http://host/v?password=x/y#z", "http://host/v?password=***"),
            ("http://host/v?a=1&pwd=x&channel=2", "http://host/v?a=1&pwd=***&channel=2"),
            ("http://host/v?TOKEN=a&b&access_token=c", "http://host/v?TOKEN=***&access_token=***"),
            ("http://host/v?X-Amz-Signature=00ff&apikey=b;sig=c", "http://host/v?X-Amz-Signature=***&apikey=***;sig=***"),
            ("http://host/v?pass%77ord=x", "http://host/v?pass%77ord=***"),
            ("http://host/v?url=rtsp%3A%2F%2Fu%3Ap%40h", "http://host/v?url=***"),
            ("http://host/v?0123456789abcdef", "http://host/v?***"),
            ("http://host/v#access_token=x", "http://host/v#access_token=***"),
            (
                "rtsp://cam/user=admin_password=tlJwpbo6_channel=1_stream=0.sdp?real_stream",
                "rtsp://cam/user=***_password=***_channel=1_stream=0.sdp?real_stream",
            ),
            ("rtsp://cam/password=secret_channel=1", "rtsp://cam/password=***_channel=1"),
            ("http://host/token/secret/live.m3u8", "http://host/token/***/live.m3u8"),
            ("rtsp://cam/user=admin&password=a/b&channel=1", "rtsp://cam/user=***&password=***&channel=1"),
            ("rtsp://cam/user%3Dadmin%26password%3Dx", "rtsp://cam/***"),
            ("http://host/token/abc/index.m3u8", "http://host/token/***/index.m3u8"),
            ("rtmp://host/live/3f2a9c0011aa22bb33cc44dd", "rtmp://host/live/***"),
            ("srt://host:9000?passphrase=abc&mode=caller", "srt://host:9000?passphrase=***&mode=caller"),
            ("rtsp://cam/cam/realmonitor?channel=1&subtype=0", "rtsp://cam/cam/realmonitor?channel=1&subtype=0"),
            ("http://host/@someone/video", "http://host/@someone/video"),
            ("http://[::1]/@someone", "http://[::1]/@someone"),
            ("file:///home/a:b@c.mp4", "file:///home/a:b@c.mp4"),
            ("v4l2:///dev/video0", "v4l2:///dev/video0"),
            ("a clip.mp4", "a clip.mp4"),
            ("test:100", "test:100"),
            ("", ""),
        ] {
            assert_eq!(redact(address), shown, "{address}");
            assert_eq!(redact(&redact(address)), shown, "{address}, twice");
        }
    }

    #[test]
    fn secrets_are_hidden_in_other_text() {
        let secrets = Secrets::of("rtsp://admin:s3cr%40t/w@cam/live");
        for (text, scrubbed) in [
            ("no one said s3cr@t/w", "no one said ***"),
            ("encoded s3cr%40t%2fw and S3CR", "encoded *** and S3CR"),
            ("could not open rtsp://admin:s3cr%40t/w@cam/live.", "could not open rtsp://***@cam/live."),
            ("quoted \"rtsp://admin:other@cam/track1\" by GStreamer", "quoted \"rtsp://***@cam/track1\" by GStreamer"),
            ("admin is a name", "admin is a name"),
        ] {
            assert_eq!(secrets.scrub(text), scrubbed);
        }
        let short = Secrets::of("rtsp://u:cat@cam");
        assert_eq!(short.scrub("cannot locate `cat`"), "cannot locate `***`");
        assert!(Secrets::of("clip.mp4").is_empty() && Secrets::of("rtsp://cam/live").is_empty());
        assert!(!format!("{secrets:?}").contains("s3cr"));
    }

    /// Tests random passwords that are not percent-encoded, at every position of an address where a password can be.
    #[test]
    fn random_passwords_are_never_shown() {
        let seed = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(0x2545_f491_4f6c_dd1d_u64);
        println!("SEED={seed}");
        let mut state = seed;
        let mut below = |limit: usize| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 11) as usize % limit
        };
        const CHARACTERS: &[u8] = b"abcXYZ019#?@:/%!$*+,._~|^\\ ([{}])'\"`=";
        for _ in 0..5_000 {
            let n_chars = 4 + below(12);
            let password: String = (0..n_chars).map(|_| char::from(CHARACTERS[below(CHARACTERS.len())])).collect();
            let host = ["host", "camera.local", "10.1.2.3", "[fe80::1]", "host:554", "10.1.2.3:80"][below(6)];
            let path = ["", "/", "/live/1", "/a?channel=1", "/a?channel=1#x"][below(5)];
            let scheme = ["rtsp://", "RTSP://", "http://", "srt://", "rtmp:/", "rtsp//", "rtsp:", "other://"][below(8)];
            let user = ["user", "a.b", "user%40x"][below(3)];
            let address = match below(4) {
                0 => format!("{scheme}{user}:{password}@{host}{path}"),
                1 => format!("{scheme}{host}/v?password={password}"),
                2 => format!("{scheme}{host}/v?a=1&token={password}&channel=2"),
                _ => format!("{scheme}{host}/user=admin_password={password}_channel=1_stream=0.sdp"),
            };
            let shown = redact(&address).into_owned();
            assert!(!shown.contains(&password), "{address} is shown as {shown}");
            let secrets = Secrets::of(&address);
            let encoded = percent_encoded(&password);
            let text = secrets.scrub(&format!("Could not open \"{address}\" ({encoded}), {password}: refused")).into_owned();
            let is_short = password.len() < ANYWHERE_BYTES_MIN;
            assert!(is_short || !text.contains(&password) && !text.contains(&encoded), "{address}: {text}");
        }
    }
}
