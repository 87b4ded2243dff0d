//! `roiflow serve`: runs streams that are added at run time, watched in a browser, and measured with Prometheus.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use anyhow::{anyhow, bail};
use clap::ValueEnum;
use roiflow_server::policy::Policy;
use roiflow_server::store::Store;
use roiflow_server::tls::Tls;
use roiflow_server::token::{self, Tokens};
use roiflow_server::{Config, Registry, Server};

use super::service::Service;
use super::signals;
use super::terminal::Terminal;
use crate::pipeline::{self, Credentials};
use crate::serve::Pipelines;
use crate::{folders, stages};

/// Maximum time in which streams complete their frames when the server ends. Together with the time for closing connections, it must be
/// less than the limit in the module `signals`.
const MAX_END: Duration = Duration::from_secs(6);

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// File with the settings of the server, such as server.toml; options replace its values
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
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
    /// File with users and passwords of inputs by host, as for `roiflow run`
    #[arg(long, value_name = "FILE")]
    input_credentials: Option<PathBuf>,
    /// Create a token, print it once, and exit; a running server accepts it after its next start
    #[arg(long, value_enum, value_name = "ROLE")]
    create_token: Option<Role>,
}

/// What the holder of a token may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Role {
    /// See streams, results, pictures and metrics
    Viewer,
    /// Also add, change, restart and remove streams
    Operator,
}

pub(super) fn serve(args: Args, terminal: &Terminal) -> anyhow::Result<()> {
    let config = args.config()?;
    let state = config.state.clone().map_or_else(default_state, Ok)?;
    if let Some(role) = args.create_token {
        let role = match role {
            Role::Viewer => token::Role::Viewer,
            Role::Operator => token::Role::Operator,
        };
        let token = Tokens::create(&state, role).map_err(|error| anyhow!(error))?;
        terminal.print(format!("This token has the role {}. It is stored as a hash only, so keep it now:", role.name()));
        use std::io::Write;
        writeln!(std::io::stdout(), "{token}")?;
        return Ok(());
    }
    let credentials = Credentials::read(args.input_credentials.as_deref())?;
    terminal.hide(credentials.secrets());
    credentials.warnings().iter().for_each(|warning| terminal.warn(warning));
    let tls = config.tls().map_err(|error| anyhow!(pipeline::Error::usage(error)))?.map(Arc::new);
    let tokens = Tokens::read(&state).map_err(|error| anyhow!(error))?;
    stages::Engine::of_process().set_cache_folder(folders::model_cache());

    let store = Store::open(&state).map_err(|error| anyhow!(error))?;
    let of_backend = terminal.clone();
    let backend = Pipelines::new(credentials, config.pipelines.clone(), move |secrets| of_backend.hide(secrets))?;
    let listen = config.listen;
    let registry = Registry::new(Box::new(backend), Policy::new(config), store).map_err(|error| anyhow!(error))?;
    let service = Service::of_process(0);
    let (end, ended) = mpsc::channel();
    let of_signals = service.clone();
    let end = move || {
        of_signals.stop();
        let _ending = end.send(());
    };
    let reload = tls.clone().filter(|_| !signals::has_terminal()).map(|tls| reload(tls, service.clone(), terminal.clone()));
    signals::on_signal(terminal, end, reload)?;
    let scheme = if tls.is_some() { "https" } else { "http" };
    if tls.is_none() && !listen.ip().is_loopback() {
        terminal.warn(format_args!(
            "connections to {listen} are not encrypted, so tokens and pictures can be read in the network: add --tls-cert and --tls-key"
        ));
    }
    let server = Server::start(listen, registry.clone(), tokens, tls, env!("CARGO_PKG_VERSION"))
        .map_err(|error| anyhow!(pipeline::Error::usage(error)))?;
    terminal.print(format!("roiflow serves {scheme}://{}", server.address()));
    registry.start_stored()?;
    service.ready();
    // Wait for the first signal. Receiving cannot fail, because the thread that handles signals owns the sender and does not end.
    let _signal = ended.recv();
    server.end();
    let all_stopped = registry.end(Instant::now() + MAX_END);
    service.end();
    if !all_stopped {
        bail!("streams did not end within {} s: frames in flight are lost", MAX_END.as_secs());
    }
    Ok(())
}

/// Returns what SIGHUP does: it reads the certificate again.
fn reload(tls: Arc<Tls>, service: Service, terminal: Terminal) -> impl Fn() + Send + 'static {
    move || {
        match tls.reload() {
            Ok(()) => terminal.print("the certificate was read again; later connections use it"),
            Err(error) => terminal.warn(format_args!("the earlier certificate stays in use: {error}")),
        }
        service.reload([]);
    }
}

impl Args {
    /// Returns the settings of the configuration file. Command-line options replace them.
    fn config(&self) -> anyhow::Result<Config> {
        let read = self.config.as_deref().map(Config::read).transpose();
        let mut config = read.map_err(|error| anyhow!(pipeline::Error::usage(error)))?.unwrap_or_default();
        config.listen = self.listen.unwrap_or(config.listen);
        let of_options = [
            (&self.state, &mut config.state),
            (&self.pipelines, &mut config.pipelines),
            (&self.models, &mut config.models),
            (&self.media, &mut config.media),
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
        Ok(config)
    }
}

/// Returns the default folder of the state: the folder that systemd sets in `STATE_DIRECTORY`, or else a folder of the user.
fn default_state() -> anyhow::Result<PathBuf> {
    let path = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let of_user = || Some(path("XDG_STATE_HOME").or_else(|| Some(path("HOME")?.join(".local/state")))?.join("roiflow"));
    path("STATE_DIRECTORY")
        .or_else(of_user)
        .ok_or_else(|| anyhow!(pipeline::Error::usage("expected a folder for the state, got none: add --state FOLDER, or set HOME")))
}
