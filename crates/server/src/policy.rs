//! Which names, pipelines, inputs, files and destinations clients may use.
//!
//! A launch line, a path or an address can read files and open connections. So clients name pipelines only by their names, and files only
//! inside the folders of the settings. Values of parameters are set as properties; they never become part of a launch line.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

use roiflow_nodes::keys::{self, MAX_NAME};
use roiflow_publish::{self as publish, FileAccess, Target, Url};
use roiflow_results::redaction::{HIDDEN, Secrets, redact};

use crate::backend::{Pipeline, Start};
use crate::config::Config;
use crate::error::{Error, Result};
use crate::stream::{StreamSpec, Value};

/// Maximum length of an address or of the value of a parameter.
const MAX_TEXT: usize = 2000;
/// Maximum number of destinations of a stream.
const MAX_DESTINATIONS: usize = 8;

/// The rules of a server.
#[derive(Debug, Clone, Default)]
pub struct Policy {
    config: Config,
}

impl Policy {
    /// The rules of these settings.
    pub fn new(config: Config) -> Self {
        Self { config }
    }

    /// The settings.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Whether clients may use a pipeline of this name.
    pub fn allows_pipeline(&self, name: &str) -> bool {
        self.config.allow_pipelines.as_ref().is_none_or(|allowed| allowed.iter().any(|allowed| allowed == name))
    }

    /// Checks a stream, and resolves the files that it names.
    ///
    /// # Errors
    /// Returns the expected and the actual value, and what to do.
    pub fn resolve(&self, spec: &StreamSpec, pipelines: &[Pipeline]) -> Result<Start> {
        check_name(&spec.name)?;
        let pipeline = self.pipeline(&spec.pipeline, pipelines)?;
        let input = self.input(&spec.input)?;
        let parameters = self.parameters(&spec.parameters, pipeline)?;
        if spec.publish.len() > MAX_DESTINATIONS {
            let found = spec.publish.len().to_string();
            return Err(Error::value("too_many_destinations", "publish", format!("at most {MAX_DESTINATIONS} servers"), found, ""));
        }
        let publish = spec.publish.iter().map(|url| self.destination(url)).collect::<Result<_>>()?;
        Ok(Start {
            name: spec.name.clone(),
            pipeline: pipeline.name.clone(),
            path: pipeline.path.clone(),
            input,
            parameters,
            repeat: spec.repeat,
            publish,
            assignment: 0,
        })
    }

    fn pipeline<'a>(&self, name: &str, pipelines: &'a [Pipeline]) -> Result<&'a Pipeline> {
        let allowed = || pipelines.iter().filter(|pipeline| self.allows_pipeline(&pipeline.name));
        if let Some(found) = allowed().find(|pipeline| pipeline.name == name) {
            return Ok(found);
        }
        let names: Vec<&str> = allowed().map(|pipeline| &*pipeline.name).collect();
        let advice = match nearest(name, &names) {
            Some(near) => format!("Did you mean `{near}`?"),
            None => "`GET /api/pipelines` lists the pipelines".to_owned(),
        };
        Err(Error::value("unknown_pipeline", "pipeline", format!("one of {}", names.join(", ")), quoted(name), advice))
    }

    /// Checks an input, and resolves the file that it names.
    ///
    /// # Errors
    /// Returns the expected and the actual value, and what to do.
    pub fn input(&self, input: &str) -> Result<String> {
        let failed = |expected: String, advice: &str| Error::value("invalid_input", "input", expected, quoted(&redact(input)), advice);
        if input.is_empty() || input.len() > MAX_TEXT || input.contains(char::is_control) {
            return Err(failed(format!("an address of 1 to {MAX_TEXT} printable characters"), ""));
        }
        if let Some(count) = input.strip_prefix("test:") {
            let fits = count.is_empty() || count.parse::<u32>().is_ok_and(|count| count > 0);
            return if fits { Ok(input.to_owned()) } else { Err(failed("`test:` or `test:FRAMES`".to_owned(), "")) };
        }
        if let Some((scheme, place)) = input.split_once("://") {
            let scheme = match &*scheme.to_ascii_lowercase() {
                "srt" if !is_caller(place) => "srt-listener".to_owned(),
                scheme => scheme.to_owned(),
            };
            let is_allowed = self.config.schemes.contains(&scheme);
            if scheme == "v4l2" && is_allowed && !self.is_device(place) {
                let expected = "a device such as v4l2:///dev/video0".to_owned();
                return Err(failed(expected, "The setting `devices` of the server lists further devices"));
            }
            if is_allowed {
                return Ok(input.to_owned());
            }
            let advice = match &*scheme {
                "file" => "Name a file by its path inside the media folder",
                "udp" | "rtp" | "srt-listener" => {
                    "This address opens a port of the server. The setting `schemes` of the server allows it with the entry `udp`, `rtp` or \
                     `srt-listener`"
                }
                _ => "The setting `schemes` of the server lists the allowed schemes",
            };
            return Err(failed(format!("an address with one of the schemes {}", self.config.schemes.join(", ")), advice));
        }
        let resolved = within(self.config.media.as_deref(), input).map_err(|reason| {
            let folder = match self.config.media {
                Some(_) => "a file in the media folder of the server, by its path inside",
                None => "an address such as rtsp://camera/stream, or `test:`",
            };
            let advice = match reason {
                Outside::NoFolder => "The setting `media` of the server names a folder with files that clients may use",
                Outside::NotInside => "Use a relative path without `..`",
                Outside::Missing => "There is no such file",
            };
            failed(folder.to_owned(), advice)
        })?;
        resolved.into_os_string().into_string().map_err(|_| failed("a path in UTF-8".to_owned(), ""))
    }

    /// Checks the URL of a destination. It gets no right to open files, because clients choose it.
    fn destination(&self, url: &str) -> Result<Url> {
        let refused =
            |expected: &str, advice: &str| Error::value("invalid_destination", "publish", expected, quoted(&publish::redact(url)), advice);
        let failed = |advice: &str| {
            let schemes: Vec<&str> = publish::schemes_for_clients().collect();
            refused(&format!("the address of a server with one of the schemes {}", schemes.join(", ")), advice)
        };
        if url.len() > MAX_TEXT || url.contains(char::is_control) {
            return Err(failed("The address is too long, or has control characters"));
        }
        if url.contains("${") {
            return Err(failed("Environment variables of the server can be named on its command line only"));
        }
        if url.contains(HIDDEN) {
            return Err(failed("`***` is in the place of hidden text. Give the whole address"));
        }
        let scheme = url.split_once("://").map(|(scheme, _)| scheme.to_ascii_lowercase());
        if !scheme.is_some_and(|scheme| publish::schemes_for_clients().any(|known| known == scheme)) {
            return Err(failed(""));
        }
        let access = FileAccess::Refused(self.config.credentials.clone());
        let checked = Target::parse(url, &access);
        let expected = "the address of a server, with options that clients may use";
        checked.map_err(|error| refused(expected, &publish::secrets(url).scrub(&error.to_string())))?;
        Ok(Url { text: url.to_owned(), access })
    }

    /// Whether clients may use the device of an address. Whether it exists is not checked.
    fn is_device(&self, path: &str) -> bool {
        let number = path.strip_prefix("/dev/video").unwrap_or_default();
        let is_video = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_');
        is_video || self.config.devices.iter().any(|device| device == path)
    }

    fn parameters(&self, values: &BTreeMap<String, Value>, pipeline: &Pipeline) -> Result<Vec<(String, String)>> {
        let mut resolved = Vec::with_capacity(values.len());
        for (name, value) in values {
            let what = format!("parameter `{name}`");
            let Some(parameter) = pipeline.parameters.iter().find(|parameter| parameter.name == *name) else {
                let names: Vec<&str> = pipeline.parameters.iter().map(|parameter| &*parameter.name).collect();
                let advice = nearest(name, &names).map_or_else(String::new, |near| format!("Did you mean `{near}`?"));
                return Err(Error::value(
                    "unknown_parameter",
                    "parameters",
                    format!("names among {}", names.join(", ")),
                    quoted(name),
                    advice,
                ));
            };
            let text = value.to_string();
            if text.len() > MAX_TEXT || text.contains(char::is_control) {
                let found = format!("{} bytes", text.len());
                return Err(Error::value("invalid_parameter", &what, format!("at most {MAX_TEXT} printable characters"), found, ""));
            }
            let is_path = parameter.r#type == "path";
            let is_file = |path: &PathBuf| path.is_file();
            let text = match within(self.config.models.as_deref(), &text) {
                _ if text.is_empty() || !matches!(value, Value::Text(_)) && !is_path => text,
                Ok(path) if is_path || is_file(&path) => path.to_string_lossy().into_owned(),
                // Texts may also name files, such as descriptions of models.
                _ if !is_path && !text.contains('/') => text,
                failed => {
                    let advice = match failed.err() {
                        Some(Outside::NoFolder) => "The setting `models` of the server names a folder with models that clients may use",
                        Some(Outside::Missing) => "There is no such file",
                        _ => "Use a relative path without `..`",
                    };
                    let expected = "a file in the model folder of the server, by its path inside";
                    return Err(Error::value("invalid_parameter", &what, expected, quoted(&redact(&text)), advice));
                }
            };
            resolved.push((name.clone(), text));
        }
        Ok(resolved)
    }
}

/// Keys of an SRT address that open no port of this machine. `mode` has its own check.
const SRT_KEYS: [&str; 18] = [
    "mode",
    "passphrase",
    "pbkeylen",
    "streamid",
    "latency",
    "rcvlatency",
    "peerlatency",
    "poll-timeout",
    "conntimeo",
    "authentication",
    "enforcedencryption",
    "rcvbuf",
    "fc",
    "mss",
    "maxbw",
    "lossmaxttl",
    "tlpktdrop",
    "nakreport",
];

/// Whether an SRT address, without its scheme, calls a server. Otherwise, it opens a port of this machine and waits for a sender.
fn is_caller(place: &str) -> bool {
    let (authority, query) = place.split_once('?').unwrap_or((place, ""));
    let authority = authority.split(['/', '#']).next().unwrap_or_default();
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    let is_known = |pair: &str| {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        SRT_KEYS.contains(&key) && (key != "mode" || value == "caller")
    };
    let (name, port) = match host.rsplit_once(':') {
        Some((name, port)) if !host.ends_with(']') => (name, port),
        _ => (host, "0"),
    };
    let is_host = match name.strip_prefix('[').and_then(|name| name.strip_suffix(']')) {
        Some(address) => address.parse::<std::net::Ipv6Addr>().is_ok_and(|address| !address.is_unspecified()),
        None => name.starts_with(char::is_alphanumeric) && name.chars().all(|c| c.is_alphanumeric() || "-._".contains(c)),
    };
    is_host && port.parse::<u16>().is_ok() && query.split(['&', ';']).filter(|pair| !pair.is_empty()).all(is_known)
}

/// Why a path is not a file inside a folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outside {
    NoFolder,
    NotInside,
    Missing,
}

/// Returns the existing path `inside` a folder, with all links followed.
fn within(folder: Option<&Path>, inside: &str) -> Result<PathBuf, Outside> {
    let folder = folder.ok_or(Outside::NoFolder)?;
    let relative = Path::new(inside);
    if inside.contains('\0') || !relative.components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir)) {
        return Err(Outside::NotInside);
    }
    let folder = folder.canonicalize().map_err(|_| Outside::Missing)?;
    let path = folder.join(relative).canonicalize().map_err(|_| Outside::Missing)?;
    if path.starts_with(&folder) { Ok(path) } else { Err(Outside::NotInside) }
}

/// Checks the name of a stream.
///
/// # Errors
/// Returns which names are allowed.
pub fn check_name(name: &str) -> Result<()> {
    if keys::is_name(name) && !name.starts_with('-') {
        return Ok(());
    }
    let expected = format!(
        "1 to {MAX_NAME} letters, digits, `-`, `_` or `.`, that begin with a letter, a digit or `_`, with no dot at the end and no two dots \
         together"
    );
    Err(Error::value("invalid_name", "name", expected, quoted(name), ""))
}

/// Returns a stream as clients may see it: without credentials.
pub fn shown(spec: &StreamSpec) -> StreamSpec {
    let parameters = spec.parameters.iter().map(|(name, value)| match value {
        Value::Text(text) => (name.clone(), Value::Text(redact(text).into_owned())),
        other => (name.clone(), other.clone()),
    });
    StreamSpec {
        input: redact(&spec.input).into_owned(),
        parameters: parameters.collect(),
        publish: spec.publish.iter().map(|url| publish::redact(url).into_owned()).collect(),
        ..spec.clone()
    }
}

/// Returns `changed` with the credentials of `before` where a client has sent back what it was shown.
#[must_use]
pub fn with_credentials(mut changed: StreamSpec, before: &StreamSpec) -> StreamSpec {
    let restored = |text: &str, known: &str| (text.contains(HIDDEN) && *redact(known) == *text).then(|| known.to_owned());
    if let Some(input) = restored(&changed.input, &before.input) {
        changed.input = input;
    }
    let hidden: BTreeSet<String> = changed.publish.iter().filter(|url| url.contains(HIDDEN)).cloned().collect();
    for shown in hidden {
        let known: Vec<&String> = before.publish.iter().filter(|url| *publish::redact(url) == *shown).collect();
        let mut alike: Vec<&mut String> = changed.publish.iter_mut().filter(|url| **url == shown).collect();
        // Destinations that are shown alike, such as webhooks of one host, have the same order. If their number differs, it is not known
        // which ones are meant.
        if known.len() == alike.len() {
            alike.iter_mut().zip(known).for_each(|(url, known)| url.clone_from(known));
        }
    }
    for (name, value) in &mut changed.parameters {
        if let (Value::Text(text), Some(Value::Text(known))) = (&*value, before.parameters.get(name))
            && let Some(known) = restored(text, known)
        {
            *value = Value::Text(known);
        }
    }
    changed
}

/// Collects the credentials of a stream, which must not appear in texts.
pub fn secrets(spec: &StreamSpec) -> Secrets {
    let mut secrets = Secrets::of(&spec.input);
    spec.publish.iter().for_each(|url| secrets.extend(publish::secrets(url)));
    secrets
}

/// Returns the name that is most similar to a misspelled one.
pub fn nearest<'a>(name: &str, names: &[&'a str]) -> Option<&'a str> {
    let distance = |other: &str| strsim::damerau_levenshtein(&name.to_lowercase(), &other.to_lowercase());
    let near = names.iter().map(|other| (distance(other), *other)).min_by_key(|(distance, _)| *distance);
    near.filter(|(distance, other)| *distance <= 1 + other.len() / 4).map(|(_, other)| other)
}

/// Returns a short text in quotation marks, without control characters.
fn quoted(text: &str) -> String {
    let plain: String = text.chars().take(120).map(|c| if c.is_control() { '?' } else { c }).collect();
    let dots = if plain.len() < text.len() { "..." } else { "" };
    format!("`{plain}{dots}`")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::Parameter;

    fn pipelines() -> Vec<Pipeline> {
        let parameter = |name: &str, r#type: &str| Parameter {
            name: name.into(),
            r#type: r#type.into(),
            help: String::new(),
            required: false,
            default: None,
        };
        let parameters = vec![parameter("model", "path"), parameter("description", "string"), parameter("threshold", "number")];
        vec![Pipeline { name: "detect".into(), description: String::new(), parameters, path: None }]
    }

    fn spec(input: &str) -> StreamSpec {
        StreamSpec {
            name: "door".into(),
            pipeline: "detect".into(),
            input: input.into(),
            parameters: BTreeMap::new(),
            repeat: false,
            publish: Vec::new(),
            needs: BTreeMap::new(),
            cost: None,
            memory: None,
        }
    }

    struct Files(tempfile::TempDir);

    impl Files {
        /// A model folder and a media folder, with a link that leads out, next to a secret.
        fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            for (name, file) in [("models", "a.onnx"), ("media", "clip.mp4")] {
                std::fs::create_dir(folder.path().join(name)).unwrap();
                std::fs::write(folder.path().join(name).join(file), "x").unwrap();
                std::os::unix::fs::symlink(folder.path().join("secret"), folder.path().join(name).join("link")).unwrap();
            }
            std::fs::write(folder.path().join("secret"), "x").unwrap();
            Self(folder)
        }

        fn policy(&self) -> Policy {
            let path = |name: &str| Some(self.0.path().join(name));
            Policy::new(Config { models: path("models"), media: path("media"), ..Config::default() })
        }
    }

    #[test]
    fn files_outside_the_folders_are_refused() {
        let files = Files::new();
        let policy = files.policy();
        let input = |text: &str| policy.resolve(&spec(text), &pipelines());
        assert!(input("clip.mp4").unwrap().input.ends_with("/media/clip.mp4"));
        assert!(input("./clip.mp4").is_ok());
        for outside in [
            "../secret",
            "/etc/passwd",
            "link",
            "nothing.mp4",
            "a/../../secret",
            "file:///etc/passwd",
            "FILE:///etc/passwd",
            "",
            "a\0b",
            "\n",
        ] {
            let error = input(outside).expect_err(outside);
            assert_eq!((error.status, error.code), (400, "invalid_input"), "{outside:?}: {error}");
            assert!(error.expected.is_some() && error.found.is_some(), "{error:?}");
        }
        let error = Policy::default().resolve(&spec("clip.mp4"), &pipelines()).unwrap_err();
        assert!(error.message.contains("`media`"), "{error}");
    }

    #[test]
    fn only_video_devices_and_listed_devices_are_allowed() {
        let policy = Policy::new(Config { devices: vec!["/dev/v4l/by-id/door".into()], ..Config::default() });
        for device in ["/dev/video0", "/dev/video12", "/dev/v4l/by-id/door"] {
            assert!(policy.input(&format!("v4l2://{device}")).is_ok(), "{device}");
        }
        let mut messages = BTreeSet::new();
        for device in [
            "",
            "/dev/video",
            "/etc/passwd",
            "/no/such/file",
            "/dev/sda",
            "/dev/video0/../../etc/passwd",
            "/dev/video0/",
            "/dev/video.0",
            "/dev/../dev/video0",
            "/dev/video%2e",
            "/dev/v4l/by-id/door/../gate",
            "dev/video0",
            "//dev/video0",
        ] {
            let input = format!("V4L2://{device}");
            let error = policy.input(&input).expect_err(device);
            assert_eq!((error.status, error.code), (400, "invalid_input"), "{error}");
            messages.insert(error.message.replace(error.found.as_deref().unwrap(), ""));
        }
        assert_eq!(messages.len(), 1, "the error tells nothing about files: {messages:?}");
    }

    #[test]
    fn addresses_that_open_ports_need_permission() {
        let allowed =
            Policy::new(Config { schemes: ["udp", "rtp", "srt", "srt-listener"].map(str::to_owned).to_vec(), ..Config::default() });
        for input in [
            "udp://0.0.0.0:5000",
            "UDP://239.1.1.1:5000",
            "rtp://0.0.0.0:5004",
            "srt://0.0.0.0:7000?mode=listener",
            "srt://:7000?mode=listener",
            "srt://:7000",
            "srt://",
            "srt://user@:7000",
            "srt://[]:7000",
            "srt://[::]:7000",
            "srt://[:7000",
            "srt://.:7000",
            "srt://host:70x0",
            "srt://host:7000?mode=rendezvous",
            "srt://host:7000?latency=10&mode=listener",
            "srt://host:7000?mode=caller&mode=listener",
            "srt://host:7000?mode=caller;mode=listener",
            "srt://host:7000?mode=%6cistener",
            "srt://host:7000?%6dode=listener",
            "srt://host:7000?mode=Listener",
            "srt://host:7000?localport=80",
            "srt://host:7000?localaddress=0.0.0.0",
            "srt://host:7000?a=b",
        ] {
            let error = Policy::default().input(input).expect_err(input);
            assert!(error.message.contains("opens a port") && error.message.contains("srt-listener"), "{error}");
            assert!(allowed.input(input).is_ok(), "{input}");
        }
        for input in ["srt://host:7000", "SRT://host:7000?mode=caller&latency=20", "srt://[::1]:7000?streamid=a%3Fb&passphrase=0123456789"]
        {
            assert!(Policy::default().input(input).is_ok(), "{input}");
        }
    }

    #[test]
    fn parameters_name_files_of_the_model_folder_only() {
        let files = Files::new();
        let policy = files.policy();
        let with = |name: &str, value: Value| {
            let parameters = BTreeMap::from([(name.to_owned(), value)]);
            policy.resolve(&StreamSpec { parameters, ..spec("test:") }, &pipelines())
        };
        let text = |text: &str| Value::Text(text.to_owned());
        assert!(with("model", text("a.onnx")).unwrap().parameters[0].1.ends_with("/models/a.onnx"));
        assert!(with("description", text("a.onnx")).unwrap().parameters[0].1.ends_with("/models/a.onnx"), "a text may name a file");
        assert_eq!(with("description", text("yolox-nano")).unwrap().parameters[0].1, "yolox-nano");
        assert_eq!(with("threshold", Value::Number(0.5)).unwrap().parameters[0].1, "0.5");
        for outside in ["/etc/passwd", "../secret", "link", "a.onnx/../../secret"] {
            with("model", text(outside)).expect_err(outside);
        }
        for outside in ["/etc/passwd", "../secret"] {
            with("description", text(outside)).expect_err(outside);
        }
        let error = with("modle", text("a.onnx")).unwrap_err();
        assert!(error.message.contains("Did you mean `model`?"), "{error}");
    }

    #[test]
    fn pipelines_are_named_and_allowed() {
        let unknown = |pipeline: &str| {
            let policy = Policy::new(Config { allow_pipelines: Some(vec!["other".into()]), ..Config::default() });
            policy.resolve(&StreamSpec { pipeline: pipeline.into(), ..spec("test:") }, &pipelines()).unwrap_err()
        };
        assert_eq!(unknown("detect").code, "unknown_pipeline", "it exists, but is not allowed");
        let spec = StreamSpec { pipeline: "../detect".into(), ..spec("test:") };
        let error = Policy::default().resolve(&spec, &pipelines()).unwrap_err();
        assert_eq!((error.expected.as_deref(), error.found.as_deref()), (Some("one of detect"), Some("`../detect`")));
    }

    #[test]
    fn destinations_are_servers_without_variables() {
        let publish = |url: &str| Policy::default().resolve(&StreamSpec { publish: vec![url.into()], ..spec("test:") }, &pipelines());
        assert!(publish("mqtt://user:secret@broker/topic").is_ok());
        for url in ["file:///tmp/x", "/tmp/x", "-", "mqtt://${SECRET}@broker/topic", "gopher://x"] {
            let error = publish(url).expect_err(url);
            assert_eq!(error.code, "invalid_destination");
        }
        let error = publish("gopher://user:hunter22@x").unwrap_err();
        assert!(!format!("{error:?}").contains("hunter22"), "{error:?}");
    }

    #[test]
    fn destinations_name_no_files_of_the_server() {
        let files = Files::new();
        let exists = files.0.path().join("secret").display().to_string();
        let publish = |url: &str| files.policy().resolve(&StreamSpec { publish: vec![url.into()], ..spec("test:") }, &pipelines());
        for url in [
            "http://host/s?x-token-file=FILE",
            "http://host/s?x-user=a&x-password-file=FILE",
            "http://host/s?x-secret-file=FILE",
            "https://host/s?x-ca=FILE",
            "https://host/s?x-cert=FILE&x-key=FILE",
            "mqtt://host/s?password-file=FILE",
            "mqtts://host/s?ca=FILE",
            "nats://host/s?password-file=FILE",
            "tls://host/s?cert=FILE&key=FILE",
            "redis://host?password-file=FILE",
            "rediss://host?ca=FILE",
            "kafka://host/s?rdkafka.ssl.ca.location=FILE",
        ] {
            let answer = |file: &str| publish(&url.replace("FILE", file)).expect_err(url).message.replace(file, "FILE");
            let (of_file, of_nothing) = (answer(&exists), answer("/no/such/file"));
            assert_eq!(of_file, of_nothing, "the answer tells whether the file exists");
            assert!(url.starts_with("kafka") || of_file.contains("clients of a server cannot name its files"), "{of_file}");
        }
        for url in ["http://me:word@host/s?x-secret=abc&x-user=you", "mqtts://me:word@host/s", "tls://token@host"] {
            let start = publish(url).unwrap();
            assert_ne!(start.publish[0].access, FileAccess::Allowed);
        }
    }

    #[test]
    fn destinations_use_credentials_of_the_settings() {
        let files = Files::new();
        std::fs::write(files.0.path().join("word"), "hunter22\n").unwrap();
        let text = "[credentials.broker]\nservers = [\"mqtt://broker\"]\nuser = \"me\"\npassword-file = \"word\"\n";
        std::fs::write(files.0.path().join("server.toml"), text).unwrap();
        let policy = Policy::new(Config::read(&files.0.path().join("server.toml")).unwrap());
        let publish = |url: &str| policy.resolve(&StreamSpec { publish: vec![url.into()], ..spec("test:") }, &pipelines());
        assert!(publish("mqtt://broker/doors?credentials=broker").is_ok());
        let error = publish("mqtt://evil/doors?credentials=broker").unwrap_err();
        assert!(error.message.contains("got mqtt://evil:1883"), "{error}");
    }

    #[test]
    fn names_are_file_names() {
        for name in ["door", "a.b-c_1", "_x", &"a".repeat(100)] {
            check_name(name).unwrap();
        }
        for name in ["", ".", "..", "-a", "a/b", "a b", "ä", "a\n", &"a".repeat(101)] {
            check_name(name).expect_err(name);
        }
    }

    #[test]
    fn credentials_are_hidden_and_restored() {
        let before = StreamSpec { publish: vec!["mqtt://u:hunter22@broker/t".into()], ..spec("rtsp://admin:secret77@cam/1") };
        let seen = shown(&before);
        let text = serde_json::to_string(&seen).unwrap();
        assert!(!text.contains("secret77") && !text.contains("hunter22"), "{text}");
        assert_eq!(with_credentials(seen.clone(), &before), before, "what was shown may be sent back");
        let hooks: Vec<String> = ["a/1", "b/2", "c/3"].map(|path| format!("http://hooks/{path}")).to_vec();
        let before_hooks = StreamSpec { publish: hooks, ..before.clone() };
        let seen_hooks = shown(&before_hooks);
        assert_eq!(seen_hooks.publish, ["http://hooks/***"; 3]);
        assert_eq!(with_credentials(seen_hooks.clone(), &before_hooks), before_hooks);
        let fewer = StreamSpec { publish: vec!["http://hooks/***".into()], ..seen_hooks };
        let fewer = with_credentials(fewer, &before_hooks);
        assert_eq!(fewer.publish, ["http://hooks/***"], "it is not known which one is meant");
        let error = Policy::default().resolve(&StreamSpec { input: "test:".into(), ..fewer }, &pipelines()).unwrap_err();
        assert!(error.message.contains("Give the whole address"), "{error}");
        let other = StreamSpec { input: "rtsp://***@other/1".into(), ..seen };
        assert_eq!(with_credentials(other, &before).input, "rtsp://***@other/1", "a password is not sent to another host");
        assert!(!secrets(&before).scrub("cannot open rtsp://admin:secret77@cam/1").contains("secret77"));
    }
}
