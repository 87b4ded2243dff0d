//! `roiflow serve`: runs streams that are added at run time, watched in a browser, and measured with Prometheus.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock, mpsc};
use std::time::{Duration, Instant};

use anyhow::{anyhow, bail};
use clap::ValueEnum;
use roiflow_server::config::Spool;
use roiflow_server::nodes::Nodes;
use roiflow_server::policy::Policy;
use roiflow_server::store::Store;
use roiflow_server::tls::Tls;
use roiflow_server::token::{self, Tokens};
use roiflow_server::{Config, Registry, Server};

use super::service::Service;
use super::signals;
use super::telemetry::Telemetry;
use super::terminal::Terminal;
use crate::elements::guarded_source;
use crate::pipeline::{self, Credentials, Logins, SpoolFolder};
use crate::serve::{Destinations, Pipelines};
use crate::{folders, publish, stages};

/// Maximum time in which streams complete their frames when the server ends. Together with the time for closing connections, it must be
/// less than the limit in the module `signals`.
pub(super) const MAX_END: Duration = Duration::from_secs(6);

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    settings: Settings,
    /// Create a token, print it once, and exit; a running server accepts it after its next start
    #[arg(long, value_enum, value_name = "ROLE")]
    create_token: Option<Role>,
}

/// The options of a server, which `roiflow node` has as well.
#[derive(Debug, clap::Args)]
pub(super) struct Settings {
    /// File with the settings of the server, such as server.toml; options replace its values
    #[arg(long, value_name = "FILE")]
    pub(super) config: Option<PathBuf>,
    /// Address on which the server accepts connections [default: 127.0.0.1:8080]; an address that other machines can reach needs a token
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<SocketAddr>,
    /// File in PEM form with the certificate of the server: connections are encrypted; SIGHUP reads it again
    #[arg(long, value_name = "FILE")]
    tls_cert: Option<PathBuf>,
    /// File in PEM form with the private key of the certificate
    #[arg(long, value_name = "FILE")]
    tls_key: Option<PathBuf>,
    /// Folder in which streams and tokens are kept [default: $STATE_DIRECTORY, or ~/.local/state/roiflow]
    #[arg(long, value_name = "FOLDER")]
    state: Option<PathBuf>,
    /// Folder with pipeline descriptions, in addition to those that `roiflow pipelines` lists
    #[arg(long, value_name = "FOLDER")]
    pipelines: Option<PathBuf>,
    /// Folder with the models that streams may name
    #[arg(long, value_name = "FOLDER")]
    models: Option<PathBuf>,
    /// Folder with the video files that streams may name
    #[arg(long, value_name = "FOLDER")]
    media: Option<PathBuf>,
    /// Folder in which results wait until the servers of the streams have acknowledged them [default: `roiflow serve`: none, they wait in memory; `roiflow node`: the folder spool in the state]
    #[arg(long, value_name = "FOLDER")]
    spool: Option<PathBuf>,
    /// File with users and passwords of inputs by host, as for `roiflow run`
    #[arg(long, value_name = "FILE")]
    input_credentials: Option<PathBuf>,
    /// The content of the file `config`, once it was read.
    #[arg(skip)]
    file: OnceLock<Config>,
}

/// What the holder of a token may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Role {
    /// See streams, results, pictures and metrics
    Viewer,
    /// Also add, change, restart and remove streams
    Operator,
}

impl Args {
    /// Starts to send spans and logs, if the settings or the environment name a collector.
    pub(super) fn telemetry(&self, terminal: &Terminal) -> anyhow::Result<Option<Telemetry>> {
        if self.create_token.is_some() { Ok(None) } else { self.settings.telemetry(terminal) }
    }
}

pub(super) fn serve(args: Args, telemetry: Option<&Telemetry>, terminal: &Terminal) -> anyhow::Result<()> {
    let Args { settings, create_token } = args;
    let config = settings.config()?;
    let state = config.state.clone().map_or_else(default_state, Ok)?;
    if let Some(role) = create_token {
        let role = role.of_token();
        let token = Tokens::create(&state, role).map_err(|error| anyhow!(error))?;
        terminal.print(format!("This token has the role {}. It is stored as a hash only, so keep it now:", role.name()));
        use std::io::Write;
        writeln!(std::io::stdout(), "{token}")?;
        return Ok(());
    }
    guarded_source::install()?;
    let logins = settings.logins(terminal)?;
    let tls = config.tls().map_err(|error| anyhow!(pipeline::Error::usage(error)))?.map(Arc::new);
    let tokens = Tokens::read(&state).map_err(|error| anyhow!(error))?;
    stages::Engine::of_process().set_cache_folder(folders::model_cache());

    let store = Store::open(&state).map_err(|error| anyhow!(error))?;
    let of_backend = terminal.clone();
    let destinations = Destinations { spool: spool(&config)?, ..Destinations::default() };
    let backend = Pipelines::new(logins.clone(), config.pipelines.clone(), destinations, move |secrets| of_backend.hide(secrets))?;
    let (listen, rate, of_clients) = (config.listen, config.limits.requests_per_second, config.credentials.clone());
    let registry = Registry::new(Box::new(backend), Policy::new(config));
    show_counts(&registry, telemetry);
    registry.events().keep_in(&state);
    warn_of_root(&state, terminal);
    let service = Service::of_process(0);
    let (end, ended) = mpsc::channel();
    let of_signals = service.clone();
    let end = move || {
        of_signals.stop();
        let _ending = end.send(());
    };
    let of_start = [("the settings", settings.config), ("the tokens", Some(Tokens::path_in(&state)))];
    let reads_again = ReadsAgain::new(tls.clone(), logins, of_clients, of_start);
    signals::on_signal(terminal, end, on_hangup(reads_again, &service, terminal))?;
    let scheme = scheme(tls.as_ref(), listen, terminal);
    let bound = Server::bind(listen, rate, &tokens).map_err(|error| anyhow!(pipeline::Error::usage(error)))?;
    let nodes = Arc::new(Nodes::alone(registry.clone(), store).map_err(|error| anyhow!(error))?);
    let server = bound.serve(nodes.clone(), tokens, tls, Vec::new(), env!("CARGO_PKG_VERSION")).map_err(|error| anyhow!(error))?;
    terminal.print(format!("roiflow serves {scheme}://{}", server.address()));
    service.ready();
    // Wait for the first signal. Receiving cannot fail, because the thread that handles signals owns the sender and does not end.
    let _signal = ended.recv();
    server.end();
    let all_stopped = registry.end(Instant::now() + MAX_END);
    // Streams must not be removed before they have completed their frames.
    drop(nodes);
    service.end();
    if !all_stopped {
        bail!("streams did not end within {} s: frames in flight are lost", MAX_END.as_secs());
    }
    Ok(())
}

/// Shows the counters of spans and logs in the metrics of the server.
pub(super) fn show_counts(registry: &Registry, telemetry: Option<&Telemetry>) {
    if let Some(telemetry) = telemetry {
        // They are set once.
        let _set = registry.hub().telemetry.set(telemetry.counts());
    }
}

/// Warns if root runs a server in the folder of a service that runs as another user.
pub(super) fn warn_of_root(state: &Path, terminal: &Terminal) {
    use std::os::unix::fs::MetadataExt;
    let owner = |path: &Path| std::fs::metadata(path).map_or(0, |metadata| metadata.uid());
    let owner_of_state = owner(state);
    if owner(Path::new("/proc/self")) == 0 && owner_of_state != 0 {
        terminal.warn(format_args!(
            "the state folder `{}` belongs to the user {owner_of_state}, but root runs this server: results that wait in a spool will belong to root. Run \
             the server as that user",
            state.display()
        ));
    }
}

/// Returns the spool of the settings.
pub(super) fn spool(config: &Config) -> anyhow::Result<Option<SpoolFolder>> {
    let usage = |error: String| anyhow!(pipeline::Error::usage(error));
    let Spool { folder, max_bytes, max_age } = &config.spool;
    if *max_bytes == Some(0) {
        return Err(usage("spool.max-bytes: expected a number of bytes above 0, got 0".to_owned()));
    }
    let max_age = max_age.as_deref().map(super::run::parse_duration).transpose();
    let max_age = max_age.map_err(|error| usage(format!("spool.max-age: {error}")))?;
    if folder.is_none() && (max_bytes.is_some() || max_age.is_some()) {
        return Err(usage("spool: expected a folder, because limits of the spool are set, got none. Add `folder` to `[spool]`".to_owned()));
    }
    Ok(folder.clone().map(|path| SpoolFolder { path, max_bytes: *max_bytes, max_age }))
}

/// Returns the scheme of the server's address. Warns if other machines reach the server without encryption.
pub(super) fn scheme(tls: Option<&Arc<Tls>>, listen: SocketAddr, terminal: &Terminal) -> &'static str {
    if tls.is_none() && !listen.ip().is_loopback() {
        terminal.warn(format_args!(
            "connections to {listen} are not encrypted, so tokens and pictures can be read in the network: add --tls-cert and --tls-key"
        ));
    }
    if tls.is_some() { "https" } else { "http" }
}

/// What SIGHUP reads again, and the files that it can only compare.
pub(super) struct ReadsAgain {
    tls: Option<Arc<Tls>>,
    logins: Logins,
    /// Credentials of destinations, whose files each connection reads again.
    of_destinations: publish::Credentials,
    /// Files that are read only at a start: what they are, their paths, and their contents at the start.
    of_start: Vec<(&'static str, PathBuf, Option<Vec<u8>>)>,
}

impl ReadsAgain {
    /// `of_start` are the files that are read only at a start.
    pub(super) fn new(
        tls: Option<Arc<Tls>>,
        logins: Logins,
        of_destinations: publish::Credentials,
        of_start: impl IntoIterator<Item = (&'static str, Option<PathBuf>)>,
    ) -> Self {
        let with_content = |(what, path): (_, Option<PathBuf>)| path.map(|path| (what, path.clone(), std::fs::read(path).ok()));
        Self { tls, logins, of_destinations, of_start: of_start.into_iter().filter_map(with_content).collect() }
    }

    /// Reads everything again. Returns a sentence about each part that was read, and about each that was not.
    fn read(&self) -> (Vec<String>, Vec<String>) {
        let (mut read, mut not_read) = (Vec::new(), Vec::new());
        match self.tls.as_ref().map(|tls| tls.reload()) {
            Some(Ok(())) => read.push("the certificate was read again; later connections use it".to_owned()),
            Some(Err(error)) => not_read.push(format!("the earlier certificate stays in use: {error}")),
            None => read.push("there is no certificate to read again".to_owned()),
        }
        match self.logins.reload() {
            Ok(()) => read.push("the logins of inputs were read again; later attempts to open an input use them".to_owned()),
            Err(error) => not_read.push(format!("the earlier logins of inputs stay in use: {error}")),
        }
        match self.of_destinations.check() {
            Ok(()) if self.of_destinations.is_empty() => {}
            Ok(()) => read.push("the files of the credentials were read again; later connections to destinations use them".to_owned()),
            Err(error) => not_read.push(format!("files of credentials cannot be used for later connections: {error}")),
        }
        for (what, path, _) in self.of_start.iter().filter(|(_, path, content)| std::fs::read(path).ok() != *content) {
            not_read.push(format!("{what} in `{}` have changed, and are read only at a start. Restart the server", path.display()));
        }
        read.push("running streams keep their pipelines and models, which are read when a stream starts".to_owned());
        (read, not_read)
    }
}

/// Returns what SIGHUP does, if the server has no terminal: it reads again what can change while the server runs, and says what was not read.
pub(super) fn on_hangup(reads_again: ReadsAgain, service: &Service, terminal: &Terminal) -> Option<impl Fn() + Send + 'static> {
    let (service, terminal) = (service.clone(), terminal.clone());
    let hang_up = move || {
        let (read, not_read) = reads_again.read();
        read.iter().for_each(|text| terminal.print(text));
        not_read.iter().for_each(|text| terminal.warn(text));
        service.reload([], &terminal.scrub(&not_read.join("; ")));
    };
    (!signals::has_terminal()).then_some(hang_up)
}

impl Role {
    /// Returns the role of a token.
    pub(super) fn of_token(self) -> token::Role {
        match self {
            Self::Viewer => token::Role::Viewer,
            Self::Operator => token::Role::Operator,
        }
    }
}

impl Settings {
    /// Reads the users and passwords of inputs, which no message shows from then on.
    pub(super) fn logins(&self, terminal: &Terminal) -> anyhow::Result<Logins> {
        let (of_logins, file) = (terminal.clone(), self.input_credentials.clone());
        let logins = Logins::new(move || Credentials::read(file.as_deref())?.for_clients(), move |secrets| of_logins.hide(secrets))?;
        logins.current().warnings().iter().for_each(|warning| terminal.warn(warning));
        Ok(logins)
    }

    /// Starts to send spans and logs, if the settings or the environment name a collector.
    pub(super) fn telemetry(&self, terminal: &Terminal) -> anyhow::Result<Option<Telemetry>> {
        Telemetry::new(&self.file()?.telemetry, terminal)
    }

    /// Returns the settings of the configuration file, or the defaults. The file is read once, so all parts of the server have the same settings.
    fn file(&self) -> anyhow::Result<&Config> {
        if let Some(config) = self.file.get() {
            return Ok(config);
        }
        let read = self.config.as_deref().map(Config::read).transpose();
        let config = read.map_err(|error| anyhow!(pipeline::Error::usage(error)))?.unwrap_or_default();
        Ok(self.file.get_or_init(|| config))
    }

    /// Returns the settings of the configuration file. Command-line options replace them.
    pub(super) fn config(&self) -> anyhow::Result<Config> {
        let mut config = self.file()?.clone();
        config.listen = self.listen.unwrap_or(config.listen);
        let of_options = [
            (&self.state, &mut config.state),
            (&self.pipelines, &mut config.pipelines),
            (&self.models, &mut config.models),
            (&self.media, &mut config.media),
            (&self.spool, &mut config.spool.folder),
            (&self.tls_cert, &mut config.tls_cert),
            (&self.tls_key, &mut config.tls_key),
        ];
        for (option, setting) in of_options {
            if option.is_some() {
                setting.clone_from(option);
            }
        }
        for (name, folder) in [("pipelines", &config.pipelines), ("models", &config.models), ("media", &config.media)] {
            if let Some(folder) = folder.as_ref().filter(|folder| !folder.is_dir()) {
                bail!(pipeline::Error::usage(format!("{name} `{}`: expected a folder, got none. Create it", folder.display())));
            }
        }
        let state = config.state.clone().map_or_else(default_state, Ok)?;
        let of_pipelines = folders::data().into_iter().map(|folder| folder.join("pipelines"));
        config.check_uploads(of_pipelines, &state).map_err(|error| anyhow!(pipeline::Error::usage(error)))?;
        config.credentials.check().map_err(|error| anyhow!(pipeline::Error::usage(error)))?;
        Ok(config)
    }
}

/// Returns the default folder of the state: the folder that systemd sets in `STATE_DIRECTORY`, or else a folder of the user.
pub(super) fn default_state() -> anyhow::Result<PathBuf> {
    let path = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let of_user = || Some(path("XDG_STATE_HOME").or_else(|| Some(path("HOME")?.join(".local/state")))?.join("roiflow"));
    path("STATE_DIRECTORY")
        .or_else(of_user)
        .ok_or_else(|| anyhow!(pipeline::Error::usage("expected a folder for the state, got none: add --state FOLDER, or set HOME")))
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(clap::Parser)]
    struct Command {
        #[command(flatten)]
        settings: Settings,
    }

    #[test]
    fn file_with_the_settings_is_read_once() {
        let folder = std::env::temp_dir().join(format!("roiflow-settings-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("server.toml");
        std::fs::write(&path, "listen = \"127.0.0.1:81\"\n[telemetry]\ntraces = false\n").unwrap();
        let text = |path: &Path| path.to_str().unwrap().to_owned();
        let Command { settings } = Command::parse_from(["roiflow", "--config", &text(&path), "--state", &text(&folder)]);
        assert!(settings.telemetry(&Terminal::new()).unwrap().is_none());
        // A user changes the file while the server starts.
        std::fs::write(&path, "listen = \"127.0.0.1:82\"\n").unwrap();
        let config = settings.config().unwrap();
        assert_eq!((config.listen.port(), config.telemetry.traces), (81, false));
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
