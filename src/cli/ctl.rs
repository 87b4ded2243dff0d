//! `roiflow ctl`: lists and controls the streams of a running `roiflow serve`, from a terminal or a script.

use std::io::Write;
use std::time::Duration;

use serde_json::{Map, Value, json};

use super::client::{Client, Server};
use super::terminal::{self, OneLine};
use crate::redaction;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    server: Server,
    /// Print the answer of the server as JSON
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// Check whether the server answers and has started its streams; exit code 1 if not
    Health,
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
    /// Change parts of a stream, which restarts only if it cannot continue
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
        /// Send each result also to these servers, instead of those that the stream has; an empty text: to none
        #[arg(long, value_name = "URL")]
        publish: Vec<String>,
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
    /// List the nodes of `roiflow node` with their load
    Nodes,
    /// Move all streams away from a node, for maintenance
    Drain {
        /// Name of the node
        node: String,
        /// Let the node run streams again
        #[arg(long)]
        end: bool,
    },
    /// Move a stream to another node
    Move {
        /// Name of the stream
        name: String,
        /// Name of the node
        #[arg(long, value_name = "NODE")]
        to: String,
    },
}

pub(super) fn control(args: &Args) -> anyhow::Result<()> {
    let client = Client::new(&args.server)?;
    let of_stream = |name: &str| format!("/api/streams/{}", redaction::percent_encoded(name));
    let parameters =
        |set: &[(String, String)]| -> Map<String, Value> { set.iter().map(|(name, value)| (name.clone(), json!(value))).collect() };
    let answer = match &args.action {
        Action::Health => json!(client.ready()?.trim()),
        Action::List => client.send("GET", "/api/streams", None)?,
        Action::Pipelines => client.send("GET", "/api/pipelines", None)?,
        Action::Events => client.send("GET", "/api/events", None)?,
        Action::Add { name, pipeline, input, set, repeat, publish } => {
            let stream = json!({"name": name, "pipeline": pipeline, "input": input, "parameters": parameters(set), "loop": repeat, "publish": publish});
            client.send("POST", "/api/streams", Some(stream))?
        }
        Action::Change { name, pipeline, input, set, publish } => {
            let mut change = json!({"parameters": parameters(set)});
            if !publish.is_empty() {
                change["publish"] = publish.iter().filter(|url| !url.is_empty()).map(String::as_str).collect();
            }
            for (key, value) in [("pipeline", pipeline), ("input", input)] {
                if let Some(value) = value {
                    change[key] = json!(value);
                }
            }
            client.send("PATCH", &of_stream(name), Some(change))?
        }
        Action::Restart { name } => client.send("POST", &format!("{}/restart", of_stream(name)), Some(json!({})))?,
        Action::Remove { name } => client.send("DELETE", &of_stream(name), None)?,
        Action::Nodes => client.send("GET", "/api/nodes", None)?,
        Action::Drain { node, end } => {
            let path = format!("/api/nodes/{}/drain", redaction::percent_encoded(node));
            client.send("PUT", &path, Some(json!({"drain": !end})))?
        }
        Action::Move { name, to } => client.send("PUT", &format!("{}/node", of_stream(name)), Some(json!({"node": to})))?,
    };
    let mut out = terminal::stdout();
    if args.json {
        writeln!(out, "{}", serde_json::to_string_pretty(&answer)?)?;
        return Ok(());
    }
    match &args.action {
        Action::Health => {
            writeln!(out, "{}", OneLine(&text(&answer)))?;
            Ok(())
        }
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
            // A stream that no node runs has no counters.
            let frames = answer["frames"].as_u64().filter(|frames| *frames > 0);
            let after = frames.map_or(String::new(), |frames| format!(" after {frames} frames"));
            writeln!(out, "{}: removed{after}", OneLine(&text(&answer["name"])))?;
            Ok(())
        }
        Action::Nodes => nodes(&mut out, answer["nodes"].as_array().map_or(&[][..], Vec::as_slice)),
        Action::Drain { .. } => nodes(&mut out, std::slice::from_ref(&answer)),
        Action::Add { .. } | Action::Change { .. } | Action::Restart { .. } | Action::Move { .. } => {
            table(&mut out, std::slice::from_ref(&answer))
        }
    }
}

/// Prints one line per node, in columns.
fn nodes(out: &mut impl Write, nodes: &[Value]) -> anyhow::Result<()> {
    let rows = nodes.iter().map(|view| {
        let number = |name: &str| view[name].as_f64().unwrap_or(0.0);
        let labels = view["labels"].as_object().into_iter().flatten().map(|(name, value)| format!("{name}={}", text(value)));
        [
            text(&view["name"]),
            text(&view["state"]),
            view["streams"].as_array().map_or(0, Vec::len).to_string(),
            format!("{:.0} of {:.0}", number("assigned"), number("capacity")),
            format!("{:.1}", number("fps")),
            format!("{:.0} %", 100.0 * number("processor")),
            labels.collect::<Vec<_>>().join(" "),
            view["devices"].as_array().into_iter().flatten().map(text).collect::<Vec<_>>().join(" "),
            view["address"].as_str().unwrap_or("-").to_owned(),
        ]
    });
    let heads = ["NODE", "STATE", "STREAMS", "ASSIGNED", "FPS", "PROCESSOR", "LABELS", "DEVICES", "ADDRESS"].map(str::to_owned);
    let rows: Vec<[String; 9]> = [heads].into_iter().chain(rows).collect();
    terminal::columns(out, &rows)
}

/// Prints one line per stream, in columns. The node is a column if the server has nodes.
fn table(out: &mut impl Write, streams: &[Value]) -> anyhow::Result<()> {
    let rows = streams.iter().map(|view| {
        let objects = view["objects"].as_object().into_iter().flatten().map(|(label, count)| format!("{count} {label}"));
        let objects = objects.collect::<Vec<_>>().join(", ");
        let last = if view["error"].is_null() { objects } else { text(&view["error"]) };
        let fps = view["fps"].as_f64().unwrap_or(0.0);
        [
            text(&view["name"]),
            text(&view["state"]),
            format!("{fps:.1}"),
            view["frames"].to_string(),
            view["missed"].to_string(),
            text(&view["input"]),
            view["node"].as_str().unwrap_or("-").to_owned(),
            last,
        ]
    });
    let heads = ["NAME", "STATE", "FPS", "FRAMES", "MISSED", "INPUT", "NODE", "OBJECTS OR ERROR"].map(str::to_owned);
    let rows: Vec<[String; 8]> = [heads].into_iter().chain(rows).collect();
    if streams.iter().any(|view| view["node"].is_string()) {
        return terminal::columns(out, &rows);
    }
    let without_node = |[name, state, fps, frames, missed, input, _, last]: [String; 8]| [name, state, fps, frames, missed, input, last];
    terminal::columns(out, &rows.into_iter().map(without_node).collect::<Vec<_>>())
}

fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_shows_the_missed_frames_of_the_server() {
        let skipped = json!([{"element": "detect", "reason": "inference-interval", "frames": 50}]);
        let stream = json!({"name": "door", "state": "running", "fps": 25.0, "frames": 100, "dropped": [], "skipped": skipped, "missed": 7,
                            "input": "test:", "objects": {"person": 2}, "error": null});
        let mut out = Vec::new();
        table(&mut out, &[stream]).unwrap();
        let lines: Vec<Vec<String>> = String::from_utf8(out)
            .unwrap()
            .lines()
            .map(|line| line.split("  ").map(|cell| cell.trim().to_owned()).filter(|cell| !cell.is_empty()).collect())
            .collect();
        assert_eq!(lines[0], ["NAME", "STATE", "FPS", "FRAMES", "MISSED", "INPUT", "OBJECTS OR ERROR"]);
        assert_eq!(lines[1], ["door", "running", "25.0", "100", "7", "test:", "2 person"]);
    }
}
