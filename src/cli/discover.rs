//! `roiflow discover`: finds ONVIF cameras, and prints the addresses of their streams.

use std::io::Write;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::bail;

use super::terminal::{self, OneLine, Terminal};
use crate::onvif::{self, Device, Login, Stream};
use crate::pipeline::Credentials;
use crate::redaction;

/// Time limit of a request to a camera.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum number of cameras that are queried at the same time.
const N_THREADS: usize = 16;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Ask this address instead of the network, such as 192.168.1.20; repeat for several. Port 3702 unless the address has another one
    #[arg(long, value_name = "ADDRESS", value_parser = parse_address)]
    probe: Vec<SocketAddr>,
    /// How long to wait for cameras, such as 3s
    #[arg(long, value_name = "DURATION", default_value = "3s", value_parser = parse_timeout)]
    timeout: Duration,
    /// File with users and passwords of cameras by host, in .netrc format; alternatives: environment variables ROIFLOW_INPUT_USER with
    /// ROIFLOW_INPUT_PASSWORD or ROIFLOW_INPUT_PASSWORD_FILE, for the hosts of --probe or ROIFLOW_INPUT_HOSTS
    #[arg(long, value_name = "FILE")]
    input_credentials: Option<PathBuf>,
    /// Print one line of JSON per camera
    #[arg(long)]
    json: bool,
}

fn parse_address(text: &str) -> Result<SocketAddr, String> {
    let address = text.parse::<SocketAddr>().ok().or_else(|| Some(SocketAddr::new(text.parse::<IpAddr>().ok()?, onvif::PORT)));
    address.ok_or_else(|| format!("expected an IP address such as 192.168.1.20 or 192.168.1.20:3702, got `{text}`"))
}

fn parse_timeout(text: &str) -> Result<Duration, String> {
    let timeout = crate::publish::parse_duration(text)?;
    let limit = Duration::from_secs(600);
    if (Duration::from_millis(1)..=limit).contains(&timeout) {
        Ok(timeout)
    } else {
        Err(format!("expected a duration from 1ms to 10m, got `{text}`"))
    }
}

/// A camera with the streams that it reported, or with the error.
struct Found {
    device: Device,
    streams: Result<Vec<Stream>, onvif::Error>,
}

pub(super) fn discover(args: &Args, terminal: &Terminal) -> anyhow::Result<()> {
    let named = args.probe.iter().map(|address| address.ip().to_string());
    let credentials = Credentials::read(args.input_credentials.as_deref())?.for_hosts(named);
    terminal.hide(credentials.secrets());
    credentials.warnings().iter().for_each(|warning| terminal.warn(warning));
    let targets = if args.probe.is_empty() { vec![onvif::GROUP] } else { args.probe.clone() };
    let devices = match onvif::discover(&targets, args.timeout) {
        Ok(devices) => devices,
        Err(error) => bail!("cannot search for cameras: {error}. Name a camera with --probe ADDRESS"),
    };
    if devices.is_empty() {
        bail!(
            "no camera answered within {} s; expected a camera with ONVIF and WS-Discovery in this network. Name a camera with --probe ADDRESS, \
             or wait longer with --timeout",
            args.timeout.as_secs_f64()
        );
    }
    let all = ask(devices, &credentials);
    let mut out = terminal::stdout();
    for found in &all {
        if args.json { writeln!(out, "{}", json(found))? } else { print(&mut out, found)? }
    }
    match all.iter().filter(|found| found.streams.is_err()).count() {
        0 => Ok(()),
        n_failed => bail!("{n_failed} of {} cameras did not report their streams", all.len()),
    }
}

/// Queries all cameras for their streams.
fn ask(devices: Vec<Device>, credentials: &Credentials) -> Vec<Found> {
    let mut all = Vec::with_capacity(devices.len());
    for group in devices.chunks(N_THREADS) {
        std::thread::scope(|scope| {
            let asking: Vec<_> = group.iter().map(|device| scope.spawn(move || streams(device, credentials))).collect();
            for (device, asking) in group.iter().zip(asking) {
                let streams = asking.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
                all.push(Found { device: device.clone(), streams });
            }
        });
    }
    all
}

fn streams(device: &Device, credentials: &Credentials) -> Result<Vec<Stream>, onvif::Error> {
    let service = service(device);
    // Any device can answer in the name of another one, so the login is that of the host that gets it.
    let login = onvif::host(service).map(|host| credentials.of(&host, None)).unwrap_or_default();
    let login = login.password.map(|password| Login { user: login.user.unwrap_or_default(), password });
    onvif::streams(service, login.as_ref(), REQUEST_TIMEOUT)
}

/// Returns the URL of a device's service: the URL with the address from which the device answered, or else the first URL.
fn service(device: &Device) -> &str {
    let sender = device.sender.ip().to_string();
    let is_of_sender = |service: &&String| onvif::host(service).is_some_and(|host| host == sender);
    device.services.iter().find(is_of_sender).or(device.services.first()).map_or("", String::as_str)
}

fn print(out: &mut impl Write, Found { device, streams }: &Found) -> std::io::Result<()> {
    let about: Vec<&str> = [&device.name, &device.hardware].into_iter().flatten().map(String::as_str).collect();
    writeln!(out, "{}  {}", device.sender.ip(), OneLine(&about.join(", ")))?;
    match streams {
        Ok(streams) if streams.is_empty() => writeln!(out, "    no streams"),
        Ok(streams) => streams.iter().try_for_each(|stream| {
            let size = stream.size.map(|(width, height)| format!("{width}x{height}"));
            let rate = stream.rate.map(|rate| format!("{rate} fps"));
            let details: Vec<String> = [stream.encoding.clone(), size, rate, Some(stream.profile.clone())].into_iter().flatten().collect();
            writeln!(out, "    {}  {}", OneLine(&redaction::redact(&stream.uri)), OneLine(&details.join(", ")))
        }),
        Err(error) => writeln!(out, "    {}{}", OneLine(&error.to_string()), remedy(error)),
    }
}

fn remedy(error: &onvif::Error) -> &'static str {
    let advice = ". Set ROIFLOW_INPUT_USER and ROIFLOW_INPUT_PASSWORD for the hosts in ROIFLOW_INPUT_HOSTS, or use --input-credentials";
    if error.is_login() { advice } else { "" }
}

fn json(Found { device, streams }: &Found) -> serde_json::Value {
    let stream = |stream: &Stream| {
        let (width, height) = stream.size.unzip();
        serde_json::json!({
            "uri": redaction::redact(&stream.uri),
            "profile": stream.profile,
            "encoding": stream.encoding,
            "width": width,
            "height": height,
            "rate": stream.rate,
        })
    };
    serde_json::json!({
        "address": device.sender.ip().to_string(),
        "id": device.id,
        "name": device.name,
        "hardware": device.hardware,
        "streams": streams.as_ref().ok().map(|streams| streams.iter().map(stream).collect::<Vec<_>>()),
        "error": streams.as_ref().err().map(|error| format!("{error}{}", remedy(error))),
    })
}
