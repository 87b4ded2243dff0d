//! The file `server.toml`, and the defaults of what it leaves out.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use roiflow_publish::Credentials;
use serde::Deserialize;

use crate::proxies::TrustedProxies;
use crate::tls::Tls;

/// Settings of the server.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct Config {
    /// Address on which the server accepts connections.
    pub listen: SocketAddr,
    /// Folder of the store and of the tokens; `None`: chosen by the command.
    pub state: Option<PathBuf>,
    /// Folder with further pipeline descriptions.
    pub pipelines: Option<PathBuf>,
    /// Names of the pipelines that clients may use; `None`: all.
    pub allow_pipelines: Option<Vec<String>>,
    /// Folder with the models that clients may name.
    pub models: Option<PathBuf>,
    /// Whether operators may add files to the folder of models.
    pub upload_models: bool,
    /// Folder with the video files that clients may name.
    pub media: Option<PathBuf>,
    /// Schemes of addresses that clients may use as inputs. `udp`, `rtp` and `srt-listener` open ports of this machine.
    pub schemes: Vec<String>,
    /// Devices that clients may name in addresses with the scheme `v4l2`, in addition to `/dev/video*`.
    pub devices: Vec<String>,
    /// Host names under which browsers reach the server, in addition to IP addresses and `localhost`.
    pub hosts: Vec<String>,
    /// Reverse proxies that name the addresses of their clients.
    pub trusted_proxies: Option<TrustedProxies>,
    /// File with the certificate of the server; `None`: connections are not encrypted.
    pub tls_cert: Option<PathBuf>,
    /// File with the private key of the certificate.
    pub tls_key: Option<PathBuf>,
    /// Logins and files that destinations of clients may use, by name.
    pub credentials: Credentials,
    /// Where results wait on disk for servers that are away.
    pub spool: Spool,
    /// Where spans and logs go.
    pub telemetry: Telemetry,
    /// Limits against overload.
    pub limits: Limits,
}

/// Where spans and logs go, in addition to the log of the process.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct Telemetry {
    /// Address of a collector of OpenTelemetry that accepts OTLP over HTTP; `None`: that of the environment, or none.
    pub endpoint: Option<String>,
    /// Whether spans are sent.
    pub traces: bool,
    /// Lowest level of the logs that are sent.
    pub logs: LogLevel,
}

/// Level of a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LogLevel {
    /// No logs.
    Off,
    /// Errors.
    Error,
    /// Warnings and errors.
    Warn,
    /// Also the events of streams.
    Info,
    /// Also details for the search of errors.
    Debug,
}

impl Default for Telemetry {
    fn default() -> Self {
        Self { endpoint: None, traces: true, logs: LogLevel::Info }
    }
}

/// Where results wait on disk until the servers of `publish` have acknowledged them.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct Spool {
    /// Folder of the spool; `None`: results wait in memory, and are lost at the end of the process.
    pub folder: Option<PathBuf>,
    /// Maximum size of the results for each server, in bytes; `None`: the default of the program.
    pub max_bytes: Option<u64>,
    /// Maximum age of results, such as `12h` or `7d`; `None`: not limited.
    pub max_age: Option<String>,
}

/// Limits against overload.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct Limits {
    /// Maximum number of streams.
    pub streams: usize,
    /// Maximum number of connections of clients that have named a valid token.
    pub connections: usize,
    /// Maximum number of them for each client.
    pub connections_per_client: usize,
    /// Maximum number of connections from each address on which no valid token was named yet; the oldest one ends for a new one.
    pub unauthenticated_per_address: usize,
    /// Maximum number of clients that receive results or pictures live.
    pub subscribers: usize,
    /// Maximum number of them for each client.
    pub subscribers_per_client: usize,
    /// Maximum number of requests per second of each client; 0: not limited.
    pub requests_per_second: u32,
    /// Maximum size of the body of a request.
    pub body_bytes: usize,
    /// Maximum size of a model that a client uploads.
    pub model_bytes: u64,
}

impl Default for Config {
    fn default() -> Self {
        let schemes = ["rtsp", "rtsps", "rtspt", "http", "https", "rtmp", "srt", "v4l2"];
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 8080)),
            state: None,
            pipelines: None,
            allow_pipelines: None,
            models: None,
            upload_models: false,
            media: None,
            schemes: schemes.map(str::to_owned).to_vec(),
            devices: Vec::new(),
            hosts: Vec::new(),
            trusted_proxies: None,
            tls_cert: None,
            tls_key: None,
            credentials: Credentials::default(),
            spool: Spool::default(),
            telemetry: Telemetry::default(),
            limits: Limits::default(),
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            streams: 64,
            connections: 512,
            connections_per_client: 256,
            unauthenticated_per_address: 64,
            subscribers: 256,
            subscribers_per_client: 128,
            requests_per_second: 200,
            body_bytes: 64 << 10,
            model_bytes: 256 << 20,
        }
    }
}

impl Config {
    /// Reads a file. Relative paths in it are relative to its folder.
    ///
    /// # Errors
    /// Returns what is wrong with the file, with its path.
    pub fn read(path: &Path) -> Result<Self, String> {
        let shown = path.display();
        let text = std::fs::read_to_string(path).map_err(|error| format!("cannot read the settings `{shown}`: {error}"))?;
        let mut config: Self = toml::from_str(&text).map_err(|error| format!("the settings `{shown}` are wrong: {error}"))?;
        let folder = path.parent().unwrap_or(Path::new(""));
        let folders = [&mut config.state, &mut config.pipelines, &mut config.models, &mut config.media, &mut config.spool.folder];
        let files = [&mut config.tls_cert, &mut config.tls_key];
        for path in folders.into_iter().chain(files).flatten() {
            *path = folder.join(&*path);
        }
        config.credentials.resolve(folder);
        Ok(config)
    }

    /// Checks that operators cannot upload anything but models: the folder of models must be none of the folders of pipelines, of the state and of
    /// the spool.
    /// `pipelines` are the folders with pipeline descriptions that the settings do not name. `state` is the folder of the store and of the tokens.
    ///
    /// # Errors
    /// Returns an error if `upload_models` is set and the folders are the same.
    pub fn check_uploads(&self, pipelines: impl IntoIterator<Item = PathBuf>, state: &Path) -> Result<(), String> {
        let Some(models) = self.models.as_deref().filter(|_| self.upload_models) else { return Ok(()) };
        // A folder that does not exist is no other folder's name.
        let is_same =
            |folder: &Path| folder.canonicalize().ok().is_some_and(|folder| models.canonicalize().is_ok_and(|models| models == folder));
        let of_pipelines = self.pipelines.clone().into_iter().chain(pipelines).map(|folder| ("pipelines", folder));
        let of_spool = self.spool.folder.clone().map(|folder| ("the spool", folder));
        match of_pipelines.chain([("the state", state.to_owned())]).chain(of_spool).find(|(_, folder)| is_same(folder)) {
            Some((kind, folder)) => Err(format!(
                "models: expected a folder for models only, because `upload-models` is set, got `{}`, which is the folder of {kind} `{}`. Use \
                 another folder for models",
                models.display(),
                folder.display()
            )),
            None => Ok(()),
        }
    }

    /// Reads the certificate of the server, if the settings name one.
    ///
    /// # Errors
    /// Returns an error if only one of both files is named, or a file is wrong.
    pub fn tls(&self) -> Result<Option<Tls>, String> {
        match (&self.tls_cert, &self.tls_key) {
            (None, None) => Ok(None),
            (Some(certificate), Some(key)) => Tls::read(certificate, key).map(Some),
            (Some(_), None) => {
                Err("tls-cert: expected a private key, too, got none. Add --tls-key, or `tls-key` to the settings".to_owned())
            }
            (None, Some(_)) => {
                Err("tls-key: expected a certificate, too, got none. Add --tls-cert, or `tls-cert` to the settings".to_owned())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_are_not_uploaded_to_the_folder_of_pipelines_or_of_the_state() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        ["models", "pipelines", "state", "spool"].iter().for_each(|name| std::fs::create_dir(path(name)).unwrap());
        std::os::unix::fs::symlink("models", path("link")).unwrap();
        let config = |pipelines: &str| Config {
            models: Some(path("models")),
            pipelines: Some(path(pipelines)),
            upload_models: true,
            ..Config::default()
        };
        let state = path("state");
        assert_eq!(config("pipelines").check_uploads([path("missing")], &state), Ok(()));
        for wrong in ["models", "pipelines/../models", "link"] {
            let error = config(wrong).check_uploads([], &state).unwrap_err();
            assert!(error.contains("upload-models") && error.contains("pipelines"), "{error}");
            assert!(config("pipelines").check_uploads([path(wrong)], &state).is_err());
            assert!(config("pipelines").check_uploads([], &path(wrong)).unwrap_err().contains("state"));
            assert_eq!(Config { upload_models: false, ..config(wrong) }.check_uploads([], &state), Ok(()));
            let spool = |name: &str| Spool { folder: Some(path(name)), ..Spool::default() };
            assert_eq!(Config { spool: spool("spool"), ..config("pipelines") }.check_uploads([], &state), Ok(()));
            let error = Config { spool: spool(wrong), ..config("pipelines") }.check_uploads([], &state).unwrap_err();
            assert!(error.contains("the folder of the spool"), "{error}");
        }
    }

    #[test]
    fn settings_have_defaults_and_relative_paths() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("server.toml");
        std::fs::write(
            &path,
            "listen = \"0.0.0.0:80\"\nmodels = \"m\"\n[limits]\nstreams = 3\n[spool]\nfolder = \"s\"\nmax-age = \"7d\"\n",
        )
        .unwrap();
        let config = Config::read(&path).unwrap();
        assert_eq!((config.models.as_deref(), config.limits.streams), (Some(&*folder.path().join("m")), 3));
        assert_eq!(config.limits.connections, Limits::default().connections);
        assert_eq!(config.spool, Spool { folder: Some(folder.path().join("s")), max_bytes: None, max_age: Some("7d".to_owned()) });
        std::fs::write(
            &path,
            "[credentials.broker]\nservers = [\"mqtts://broker\"]\nuser = \"me\"\npassword-file = \"p\"\nca = \"/ca.pem\"\n",
        )
        .unwrap();
        let error = Config::read(&path).unwrap().credentials.check().unwrap_err();
        assert!(error.starts_with("credentials.broker: cannot read the file `password-file` of the credentials `broker`"), "{error}");
        std::fs::write(folder.path().join("p"), "hunter22\n").unwrap();
        let error = Config::read(&path).unwrap().credentials.check().unwrap_err();
        assert!(error.contains("cannot read the file `ca`"), "{error}");
        std::fs::write(&path, "listn = \"0.0.0.0:80\"\n").unwrap();
        let error = Config::read(&path).unwrap_err();
        assert!(error.contains("server.toml") && error.contains("unknown field `listn`"), "{error}");
    }
}
