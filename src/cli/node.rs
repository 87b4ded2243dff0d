//! `roiflow node`: runs a part of the streams of several machines, and shows and controls all of them.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::path::PathBuf;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use anyhow::{anyhow, bail};
use roiflow_nodes_nats::{Last, Nats, ResultLog, Results, Servers, Storage};
use roiflow_server::nodes::{self, Nodes, key::Key};
use roiflow_server::policy::Policy;
use roiflow_server::token::{Role, Tokens};
use roiflow_server::{Registry, Server, tls};

use super::serve;
use super::service::Service;
use super::signals;
use super::telemetry::Telemetry;
use super::terminal::Terminal;
use crate::elements::{self, guarded_source};
use crate::frame::LastResult;
use crate::pipeline::{self, SpoolFolder};
use crate::publish::{self, Url};
use crate::redaction::Secrets;
use crate::serve::{Destinations, Pipelines};
use crate::{folders, stages};

/// How long results stay on the NATS servers.
const RESULTS_AGE: Duration = Duration::from_secs(24 * 3600);
/// Interval at which a node without a network looks for it.
const NETWORK_CHECK: Duration = Duration::from_secs(1);
/// Maximum size of the results on the NATS servers, in bytes.
const RESULTS_BYTES: i64 = 4 << 30;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// NATS server with JetStream, version 2.11 or newer: nats://host or tls://host, or several hosts with commas between. The login is before the host or in the options user, password-file or credentials; ${NAME} is an environment variable
    #[arg(long, value_name = "URL", required_unless_present_any = ["create_key", "print_token"])]
    nats: Option<String>,
    /// Name of this node: it must differ from those of the other nodes and stay the same over restarts [default: the name of the machine]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Nodes with the same group share their streams; one NATS server can serve several groups
    #[arg(long, value_name = "NAME", default_value = "default")]
    group: String,
    /// A property of this machine that streams can require, such as site=a or network=fast; `node` and `device` are set by roiflow
    #[arg(long, value_name = "NAME=VALUE", value_parser = super::run::parse_assignment)]
    label: Vec<(String, String)>,
    /// Frames per second that this node can process, over all streams; 0: none while there are other nodes [default: measured]
    #[arg(long, value_name = "FPS")]
    capacity: Option<f64>,
    /// File with the key that all nodes share. It encrypts and authenticates what they store on the NATS server, and lets nodes trust each other
    #[arg(long, value_name = "FILE")]
    key: Option<PathBuf>,
    /// Address at which the other nodes reach this one [default: the address of this machine in the network of the NATS server]
    #[arg(long, value_name = "URL")]
    advertise: Option<String>,
    /// File in PEM form with the authority that signed the certificates of the other nodes [default: the authorities of the system]
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// All nodes reach NATS through the same forwarder (load balancer, proxy, port of Docker): when it accepts connections and closes them at once, NATS is down for all nodes, and the streams go on
    #[arg(long)]
    nats_shared_forwarder: bool,
    /// Keep the streams running when this node has lost the NATS server: then another node may run them as well
    #[arg(long)]
    keep_running: bool,
    /// Where the results of all streams go, in addition to the destinations of each stream; none: nowhere [default: the JetStream stream roiflow-GROUP-results of the NATS server]
    #[arg(long, value_name = "URL")]
    results: Option<String>,
    /// Number of NATS servers that keep each item, if these servers form a cluster. The same on all nodes, because leases are longer then
    #[arg(long, value_name = "NUMBER", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=5))]
    replicas: u8,
    /// Encrypt the streams of the group that nodes without --key or of an earlier version have stored, and exit. End all nodes before
    #[arg(long, requires = "key")]
    seal_group: bool,
    /// Write a new key into a file, and exit
    #[arg(long, value_name = "FILE")]
    create_key: Option<PathBuf>,
    /// Print the token of this role that all nodes with the same --key accept, and exit
    #[arg(long, value_enum, value_name = "ROLE", requires = "key")]
    print_token: Option<serve::Role>,
    #[command(flatten)]
    settings: serve::Settings,
}

impl Args {
    /// Starts to send spans and logs, if the settings or the environment name a collector.
    pub(super) fn telemetry(&self, terminal: &Terminal) -> anyhow::Result<Option<Telemetry>> {
        if self.nats.is_none() { Ok(None) } else { self.settings.telemetry(terminal) }
    }
}

pub(super) fn node(args: Args, telemetry: Option<&Telemetry>, terminal: &Terminal) -> anyhow::Result<()> {
    use std::io::Write;
    let usage = |error: String| anyhow!(pipeline::Error::usage(error));
    if let Some(path) = &args.create_key {
        Key::create(path).map_err(usage)?;
        terminal.print(format_args!("the key is in `{}`. Copy it to each machine, readable only for roiflow", path.display()));
        return Ok(());
    }
    let key = args.key.as_deref().map(Key::read).transpose().map_err(usage)?;
    if let (Some(role), Some(key)) = (args.print_token, &key) {
        writeln!(std::io::stdout(), "{}", key.token(role.of_token()))?;
        return Ok(());
    }
    let address = args.nats.clone().unwrap_or_default();
    terminal.hide(Secrets::of(&address));
    let servers = Servers::parse(&address).map_err(|error| usage(format!("--nats: {error}")))?;
    let servers = servers.with_shared_forwarder(args.nats_shared_forwarder);
    let mut secrets = Secrets::default();
    servers.secrets().for_each(|secret| secrets.add(&secret));
    terminal.hide(secrets);
    let name = args.name.clone().or_else(machine_name).ok_or_else(|| usage("--name: expected a name of this node, got none".to_owned()))?;
    let storage = args.storage()?;
    if args.seal_group
        && let Some(key) = key
    {
        let (coordinator, waits) = Nats::connect(servers, Storage { results: None, ..storage }, &name).map_err(|error| anyhow!(error))?;
        if let Some(reason) = waits {
            bail!(reason);
        }
        let lines = nodes::seal_group(Box::new(coordinator), key, &args.group).map_err(|error| anyhow!(error))?;
        lines.iter().for_each(|line| terminal.print(line));
        terminal.print(format_args!("the items of the group {} are sealed: start the nodes", args.group));
        return Ok(());
    }
    if let Some((label, _)) = args.label.iter().find(|(label, _)| matches!(&**label, "node" | "device")) {
        return Err(usage(format!("--label: expected another name than `{label}`, which roiflow sets itself. Choose another name")));
    }
    if args.capacity.is_some_and(|capacity| !capacity.is_finite() || capacity < 0.0) {
        return Err(usage("--capacity: expected a number of frames per second, at least 0, got another one".to_owned()));
    }

    let config = args.settings.config()?;
    let state = config.state.clone().map_or_else(serve::default_state, Ok)?;
    guarded_source::install()?;
    let logins = args.settings.logins(terminal)?;
    let tls = config.tls().map_err(usage)?.map(Arc::new);
    let mut tokens = Tokens::read(&state).map_err(|error| anyhow!(error))?;
    if let Some(key) = key.as_ref().filter(|_| !tokens.is_empty() || !config.listen.ip().is_loopback()) {
        [Role::Viewer, Role::Operator].into_iter().for_each(|role| tokens.accept(role, key.token(role)));
    }
    stages::Engine::of_process().set_cache_folder(folders::model_cache());
    let spool = serve::spool(&config)?.unwrap_or_else(|| SpoolFolder { path: state.join("spool"), max_bytes: None, max_age: None });
    let publish: Vec<Url> = args.results_of(&address, &storage).into_iter().map(Url::of_user).collect();
    publish.iter().for_each(|url| terminal.hide(publish::secrets(&url.text)));
    let destinations = Destinations { spool: Some(spool), publish };
    let of_backend = terminal.clone();
    let backend = Pipelines::new(logins.clone(), config.pipelines.clone(), destinations, move |secrets| of_backend.hide(secrets))?;
    let (listen, rate, of_clients) = (config.listen, config.limits.requests_per_second, config.credentials.clone());
    let authorities = match (&tls, &args.ca) {
        (None, None) => Vec::new(),
        (_, ca) => tls::authorities(ca.as_deref()).map_err(usage)?,
    };
    let registry = Registry::new(Box::new(backend), Policy::new(config));
    serve::show_counts(&registry, telemetry);
    registry.events().keep_in(&state);
    serve::warn_of_root(&state, terminal);
    let service = Service::of_process(0);
    let (end, ended) = mpsc::channel();
    let of_signals = service.clone();
    let end = move || {
        of_signals.stop();
        let _ending = end.send(());
    };
    let of_start = [
        ("the settings", args.settings.config),
        ("the tokens", Some(Tokens::path_in(&state))),
        ("the bytes of the key", args.key),
        ("the authorities", args.ca),
    ];
    let reads_again = serve::ReadsAgain::new(tls.clone(), logins, of_clients, of_start);
    signals::on_signal(terminal, end, serve::on_hangup(reads_again, &service, terminal))?;
    let scheme = serve::scheme(tls.as_ref(), listen, terminal);
    let bound = Server::bind(listen, rate, &tokens).map_err(usage)?;

    let mut has_waited = false;
    let own_address = match &args.advertise {
        Some(url) => url.clone(),
        None => loop {
            match advertised(scheme, bound.address(), servers.first())? {
                Ok(address) => break address,
                Err(reason) => {
                    if !std::mem::replace(&mut has_waited, true) {
                        terminal.print(format_args!("this node waits for its network: {reason}. The option --advertise names the address"));
                    }
                    if ended.recv_timeout(NETWORK_CHECK).is_ok() {
                        return Ok(());
                    }
                }
            }
        },
    };
    let connect = || Nats::connect(servers.clone(), storage.clone(), &name).map_err(|error| anyhow!(error));
    let ((of_streams, waits), (of_clients, _)) = (connect()?, connect()?);
    if let Some(reason) = &waits {
        terminal.print(format_args!("this node waits for NATS: {reason}"));
    }
    let log = storage.results.clone().map(|results| ResultLog::start(servers.clone(), results, &name)).transpose()?;
    let settings = nodes::Settings {
        name: name.clone(),
        group: args.group.clone(),
        is_clustered: args.replicas > 1,
        labels: args.label.iter().cloned().collect::<BTreeMap<_, _>>(),
        capacity: args.capacity,
        devices: devices(),
        address: own_address,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        keep_running: args.keep_running,
        key,
        results: log.map(|log| Arc::new(Log(log)) as Arc<dyn nodes::ResultLog>),
    };
    let nodes = Nodes::join(Box::new(of_streams), Box::new(of_clients), registry.clone(), settings).map_err(usage)?;
    let nodes = Arc::new(nodes);
    elements::publish::permit_results(nodes.permit(), nodes.generation());
    let server = bound.serve(nodes.clone(), tokens, tls, authorities, env!("CARGO_PKG_VERSION")).map_err(usage)?;
    terminal.print(format!("roiflow serves {scheme}://{}", server.address()));
    terminal.print(format!("this is the node {name} of the group {} on {}", args.group, servers.shown()));
    service.ready();
    // Wait for the first signal. Receiving cannot fail, because the thread that handles signals owns the sender and does not end.
    let _signal = ended.recv();
    let deadline = Instant::now() + serve::MAX_END;
    nodes.leave(deadline);
    server.end();
    let all_stopped = registry.end(deadline);
    service.end();
    if !all_stopped {
        bail!("streams did not end within {} s: frames in flight are lost", serve::MAX_END.as_secs());
    }
    Ok(())
}

/// The results of all nodes on the NATS servers.
#[derive(Debug)]
struct Log(ResultLog);

impl nodes::ResultLog for Log {
    fn last(&self, stream: &str) -> Result<Option<LastResult>, String> {
        let last = self.0.last(stream)?;
        Ok(last.map(|Last { position, time }| LastResult { epoch: position.epoch, frame: position.frame, time }))
    }

    fn subscribe(&self) -> nodes::Lines {
        self.0.subscribe()
    }
}

impl Args {
    fn storage(&self) -> anyhow::Result<Storage> {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
        if self.group.is_empty() || self.group.len() > 60 || !self.group.chars().all(is_plain) {
            let group = self.group.escape_debug();
            bail!(pipeline::Error::usage(format!("--group: expected 1 to 60 letters, digits, `-` or `_`, got `{group}`")));
        }
        let results = Results {
            stream: format!("roiflow-{}-results", self.group),
            subjects: format!("roiflow.{}.*", self.group),
            max_age: RESULTS_AGE,
            max_bytes: RESULTS_BYTES,
        };
        let results = self.results.is_none().then_some(results);
        Ok(Storage { bucket: format!("roiflow-{}", self.group), replicas: usize::from(self.replicas), results })
    }

    /// Returns the destinations of the results of all streams. `nats` is the address of the NATS servers.
    fn results_of(&self, nats: &str, storage: &Storage) -> Vec<String> {
        match (&self.results, &storage.results) {
            (Some(url), _) if url == "none" => Vec::new(),
            (Some(url), _) => vec![url.clone()],
            (None, Some(_)) => {
                let (servers, options) =
                    nats.split_once('?').map_or((nats, String::new()), |(servers, options)| (servers, format!("?{options}")));
                vec![format!("{}/roiflow.{}.{{stream}}{options}", servers.trim_end_matches('/'), self.group)]
            }
            (None, None) => Vec::new(),
        }
    }
}

/// Returns the names of the devices of this machine that run models.
fn devices() -> Vec<String> {
    // NULL computes nothing, and AUTO selects one of the others.
    let is_of_machine = |name: &str| !matches!(name, "NULL" | "AUTO");
    let found = crate::devices::core().devices();
    found.into_iter().filter(|(name, info)| info.missing.is_none() && is_of_machine(name)).map(|(name, _)| name).collect()
}

/// Returns the name of the machine, without characters that the name of a node cannot have.
fn machine_name() -> Option<String> {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").ok()?;
    let plain = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '-' | '_') { c } else { '-' };
    let name: String = name.trim().chars().map(plain).collect();
    Some(name).filter(|name| !name.is_empty())
}

/// Returns the address of this machine for the other nodes. A server that listens on all addresses is reached at the one in the network of
/// the NATS server.
///
/// # Errors
/// The inner error says that the network of this machine is not there yet.
fn advertised(scheme: &str, address: SocketAddr, nats: &str) -> anyhow::Result<Result<String, String>> {
    let is_local = |nats: &str| nats.to_socket_addrs().ok().and_then(|mut found| found.next()).is_none_or(|nats| nats.ip().is_loopback());
    if address.ip().is_loopback() && !is_local(nats) {
        bail!(pipeline::Error::usage(format!(
            "--listen: expected an address that the other nodes can reach, because the NATS server is on another machine, got {address}. Listen on \
             0.0.0.0:{}, or name the address with --advertise",
            address.port()
        )));
    }
    if !address.ip().is_unspecified() {
        return Ok(Ok(format!("{scheme}://{address}")));
    }
    let own = |nats: &str| -> std::io::Result<IpAddr> {
        let server = nats.to_socket_addrs()?.next().ok_or(std::io::ErrorKind::NotFound)?;
        let socket = UdpSocket::bind(if server.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" })?;
        // A UDP socket sends nothing when it connects, but the system chooses its address.
        socket.connect(server)?;
        Ok(socket.local_addr()?.ip())
    };
    let address = own(nats).map(|ip| format!("{scheme}://{}", SocketAddr::new(ip, address.port())));
    Ok(address.map_err(|error| format!("expected an address of this machine for the other nodes, got none ({error})")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_for_other_nodes_is_never_unspecified() {
        let address = |address: &str, nats| advertised("http", address.parse().unwrap(), nats).unwrap();
        assert_eq!(address("127.0.0.1:80", "x").unwrap(), "http://127.0.0.1:80");
        let error = advertised("http", "127.0.0.1:80".parse().unwrap(), "192.0.2.1:4222").unwrap_err().to_string();
        assert!(error.contains("--listen: expected an address that the other nodes can reach"), "{error}");
        assert_eq!(address("0.0.0.0:80", "127.0.0.1:4222").unwrap(), "http://127.0.0.1:80");
        assert!(address("0.0.0.0:80", "nats.invalid:4222").unwrap_err().contains("expected an address of this machine"));
    }
}
