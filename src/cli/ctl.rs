//! `roiflow ctl`: the streams of a running `roiflow serve`, from a terminal or a script.

use std::io::Write;
use std::time::Duration;

use anyhow::{anyhow, bail};
use serde_json::{Map, Value, json};

use super::terminal::{self, OneLine};
use crate::pipeline;
use crate::redaction;

/// Environment variable with the token.
const TOKEN: &str = "ROIFLOW_TOKEN";
/// Stopping a stream may take ten seconds.
const TIMEOUT: Duration = Duration::from_secs(30);

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Address of the server; a token is read from the environment variable ROIFLOW_TOKEN
    #[arg(long, global = true, value_name = "URL", default_value = "http://127.0.0.1:8080")]
    server: String,
    /// Print the answer of the server as JSON
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// List the streams with their states
    List,
    /// List the pipelines that streams may use
    Pipelines,
    /// List the newest events
    Events,
    /// Add a stream
    Add {
        /// Name of the stream
        name: String,
        /// Name of a pipeline
        #[arg(long, short)]
        pipeline: String,
        /// rtsp://..., a file in the media folder of the server, or test:
        #[arg(long, short)]
        input: String,
        /// Set a parameter of the pipeline; files are named relative to the model folder of the server
        #[arg(long, value_name = "NAME=VALUE", value_parser = super::run::parse_assignment)]
        set: Vec<(String, String)>,
        /// Start a file again at its end
        #[arg(long = "loop")]
        repeat: bool,
        /// Send each result also to a server, such as mqtt://broker/topic
        #[arg(long, value_name = "URL")]
        publish: Vec<String>,
    },
    /// Change parts of a stream, which restarts
    Change {
        /// Name of the stream
        name: String,
        /// Name of another pipeline
        #[arg(long, short)]
        pipeline: Option<String>,
        /// Address of another input
        #[arg(long, short)]
        input: Option<String>,
        /// Set a parameter of the pipeline
        #[arg(long, value_name = "NAME=VALUE", value_parser = super::run::parse_assignment)]
        set: Vec<(String, String)>,
    },
    /// Restart a stream
    Restart {
        /// Name of the stream
        name: String,
    },
    /// Remove a stream after its frames in flight have completed
    Remove {
        /// Name of the stream
        name: String,
    },
}

pub(super) fn control(args: &Args) -> anyhow::Result<()> {
    let client = Client::new(&args.server)?;
    let of_stream = |name: &str| format!("/api/streams/{}", redaction::percent_encoded(name));
    let parameters =
        |set: &[(String, String)]| -> Map<String, Value> { set.iter().map(|(name, value)| (name.clone(), json!(value))).collect() };
    let answer = match &args.action {
        Action::List => client.send("GET", "/api/streams", None)?,
        Action::Pipelines => client.send("GET", "/api/pipelines", None)?,
        Action::Events => client.send("GET", "/api/events", None)?,
        Action::Add { name, pipeline, input, set, repeat, publish } => {
            let stream = json!({"name": name, "pipeline": pipeline, "input": input, "parameters": parameters(set), "loop": repeat, "publish": publish});
            client.send("POST", "/api/streams", Some(stream))?
        }
        Action::Change { name, pipeline, input, set } => {
            let mut change = json!({"parameters": parameters(set)});
            for (key, value) in [("pipeline", pipeline), ("input", input)] {
                if let Some(value) = value {
                    change[key] = json!(value);
                }
            }
            client.send("PATCH", &of_stream(name), Some(change))?
        }
        Action::Restart { name } => client.send("POST", &format!("{}/restart", of_stream(name)), Some(json!({})))?,
        Action::Remove { name } => client.send("DELETE", &of_stream(name), None)?,
    };
    let mut out = terminal::stdout();
    if args.json {
        writeln!(out, "{}", serde_json::to_string_pretty(&answer)?)?;
        return Ok(());
    }
    match &args.action {
        Action::List => table(&mut out, answer["streams"].as_array().map_or(&[][..], Vec::as_slice)),
        Action::Pipelines => {
            for pipeline in answer["pipelines"].as_array().into_iter().flatten() {
                writeln!(out, "{}: {}", OneLine(&text(&pipeline["name"])), OneLine(&text(&pipeline["description"])))?;
                for parameter in pipeline["parameters"].as_array().into_iter().flatten() {
                    let usual = if parameter["default"].is_null() { "required".to_owned() } else { text(&parameter["default"]) };
                    writeln!(
                        out,
                        "    {}={}  {}",
                        OneLine(&text(&parameter["name"])),
                        OneLine(&usual),
                        OneLine(&text(&parameter["help"]))
                    )?;
                }
            }
            Ok(())
        }
        Action::Events => {
            for event in answer["events"].as_array().into_iter().flatten() {
                let time = std::time::UNIX_EPOCH + Duration::from_millis(event["time_ms"].as_u64().unwrap_or(0));
                let seconds = time.elapsed().unwrap_or_default().as_secs();
                writeln!(
                    out,
                    "{seconds:>7} s ago  {}: {} {}",
                    OneLine(&text(&event["stream"])),
                    OneLine(&text(&event["kind"])),
                    OneLine(&text(&event["message"]))
                )?;
            }
            Ok(())
        }
        Action::Remove { .. } => {
            writeln!(out, "{}: removed after {} frames", OneLine(&text(&answer["name"])), answer["frames"])?;
            Ok(())
        }
        Action::Add { .. } | Action::Change { .. } | Action::Restart { .. } => table(&mut out, std::slice::from_ref(&answer)),
    }
}

/// Prints one line per stream, in columns.
fn table(out: &mut impl Write, streams: &[Value]) -> anyhow::Result<()> {
    let rows = streams.iter().map(|view| {
        let n_dropped: u64 = view["dropped"].as_array().into_iter().flatten().filter_map(|dropped| dropped["frames"].as_u64()).sum();
        let objects = view["objects"].as_object().into_iter().flatten().map(|(label, count)| format!("{count} {label}"));
        let objects = objects.collect::<Vec<_>>().join(", ");
        let last = if view["error"].is_null() { objects } else { text(&view["error"]) };
        let fps = view["fps"].as_f64().unwrap_or(0.0);
        [
            text(&view["name"]),
            text(&view["state"]),
            format!("{fps:.1}"),
            view["frames"].to_string(),
            n_dropped.to_string(),
            text(&view["input"]),
            last,
        ]
    });
    let heads = ["NAME", "STATE", "FPS", "FRAMES", "DROPPED", "INPUT", "OBJECTS OR ERROR"].map(str::to_owned);
    let rows: Vec<[String; 7]> = [heads].into_iter().chain(rows).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..7).map(width).collect();
    for row in &rows {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{:width$}", OneLine(cell).to_string()));
        writeln!(out, "{}", cells.collect::<Vec<_>>().join("  ").trim_end())?;
    }
    Ok(())
}

fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// A connection to the REST API.
struct Client {
    agent: ureq::Agent,
    server: String,
    token: Option<String>,
}

impl Client {
    fn new(server: &str) -> anyhow::Result<Self> {
        let server = server.trim_end_matches('/');
        if !server.starts_with("http://") {
            let shown = redaction::redact(server);
            bail!(pipeline::Error::usage(format!("--server: expected an address such as http://127.0.0.1:8080, got `{shown}`")));
        }
        let config = ureq::Agent::config_builder().http_status_as_error(false).timeout_global(Some(TIMEOUT)).proxy(None);
        let token = std::env::var(TOKEN).ok().filter(|token| !token.is_empty());
        Ok(Self { agent: config.build().new_agent(), server: server.to_owned(), token })
    }

    /// Sends a request. Returns the answer, or the text of the server's error.
    fn send(&self, method: &str, path: &str, body: Option<Value>) -> anyhow::Result<Value> {
        let mut request = ureq::http::Request::builder().method(method).uri(format!("{}{path}", self.server));
        if let Some(token) = &self.token {
            request = request.header("Authorization", format!("Bearer {token}"));
        }
        let sent = match body {
            Some(body) => self.agent.run(request.header("Content-Type", "application/json").body(body.to_string())?),
            None => self.agent.run(request.body(())?),
        };
        let mut answer = sent.map_err(|error| {
            anyhow!(
                "cannot reach the server {}: {error}. Start it with `roiflow serve`, or name it with --server",
                redaction::redact(&self.server)
            )
        })?;
        let is_success = answer.status().is_success();
        let text = answer.body_mut().read_to_string()?;
        let content: Value = serde_json::from_str(&text)
            .map_err(|_| anyhow!("expected an answer of `roiflow serve` from {}, got another one", redaction::redact(&self.server)))?;
        if is_success {
            return Ok(content);
        }
        let message = content["error"]["message"].as_str().unwrap_or("the server refused the request");
        let advice = if answer.status().as_u16() == 401 { format!("; set {TOKEN}") } else { String::new() };
        bail!("{message}{advice}");
    }
}
