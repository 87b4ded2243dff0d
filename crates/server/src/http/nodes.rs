//! Requests about nodes, and the lists of streams and events of all nodes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Path, Request, State};
use axum::response::{IntoResponse, Response};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::App;
use super::api::blocking;
use super::peers::Peers;
use super::reply::Json;
use crate::error::{Error, Result};
use crate::events::Event;
use crate::nodes::{NodeView, Nodes};
use crate::stream::StreamView;

/// How long a list waits for the part of another node.
const MAX_WAIT: Duration = Duration::from_secs(2);
/// Largest part of a list.
const MAX_PART: usize = 16 << 20;

/// All nodes.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct NodeList {
    nodes: Vec<NodeView>,
}

/// Whether a node is drained.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct DrainChange {
    /// True: all streams move to other nodes, and the node gets no new ones. False: the node gets streams again.
    drain: bool,
}

/// The next node of a stream.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Move {
    /// Name of the node.
    node: String,
}

fn no_nodes() -> Error {
    let message = "nodes: expected a server that was started with `roiflow node`, got one without other nodes";
    Error::new(404, "no_nodes", message)
}

/// The nodes, if there are several.
fn several(app: &App) -> Result<(&Arc<Nodes>, &Peers)> {
    app.peers.as_ref().map(|peers| (&app.nodes, peers)).ok_or_else(no_nodes)
}

pub(super) async fn list(State(app): State<App>) -> Result<Json<NodeList>> {
    let (nodes, _) = several(&app)?;
    Ok(Json(NodeList { nodes: nodes.views() }))
}

pub(super) async fn drain(State(app): State<App>, Path(name): Path<String>, Json(change): Json<DrainChange>) -> Result<Json<NodeView>> {
    blocking(app.clone(), move |_| {
        let (nodes, _) = several(&app)?;
        nodes.drain(&name, change.drain).map(Json)
    })
    .await
}

pub(super) async fn move_to(State(app): State<App>, Path(name): Path<String>, Json(to): Json<Move>) -> Result<Json<StreamView>> {
    blocking(app.clone(), move |_| {
        let (nodes, _) = several(&app)?;
        nodes.move_to(&name, &to.node).map(Json)
    })
    .await
}

/// Returns the answers of the other nodes to a request, with their names. A node that does not answer in time is left out.
async fn ask_all(app: &App, path: &str) -> Vec<(String, Value)> {
    let Ok((nodes, _)) = several(app) else { return Vec::new() };
    let asked = nodes.others().into_iter().map(|(node, url)| {
        let (app, path) = (app.clone(), path.to_owned());
        async move {
            let peers = app.peers.as_ref()?;
            let request = Request::builder().uri(path).body(Body::empty()).ok()?;
            let response = tokio::time::timeout(MAX_WAIT, peers.send(&node, &url, request)).await.ok()?.ok()?;
            let body = axum::body::to_bytes(response.into_body(), MAX_PART);
            let body = tokio::time::timeout(MAX_WAIT, body).await.ok()?.ok()?;
            Some((node, serde_json::from_slice(&body).ok()?))
        }
    });
    futures::future::join_all(asked).await.into_iter().flatten().collect()
}

/// Returns the streams of all nodes: `own` are those of this node.
pub(super) async fn streams_of_all(app: &App, own: Vec<StreamView>) -> Result<Response> {
    let nodes = &app.nodes;
    let mut found: BTreeMap<(String, String), Value> = BTreeMap::new();
    let mut add = |node: &str, view: Value| {
        if let Some(name) = view["name"].as_str() {
            found.insert((name.to_owned(), node.to_owned()), view);
        }
    };
    for view in own {
        add(nodes.name(), serde_json::to_value(&view).map_err(|error| Error::internal(error.to_string()))?);
    }
    for (node, mut list) in ask_all(app, "/api/streams").await {
        list["streams"].as_array_mut().into_iter().flatten().for_each(|view| add(&node, view.take()));
    }
    let mut streams = Vec::new();
    for name in nodes.stream_names() {
        let Some(known) = nodes.placeholder(&name) else { continue };
        // In a hand-over, two nodes run the stream. Without other nodes, it runs here.
        let node = known.node.clone().or_else(|| nodes.is_alone().then(|| nodes.name().to_owned()));
        let view = node.and_then(|node| found.remove(&(name.clone(), node)));
        streams.push(match view {
            Some(view) => view,
            None => serde_json::to_value(&known).map_err(|error| Error::internal(error.to_string()))?,
        });
    }
    Ok(Json(serde_json::json!({ "streams": streams })).into_response())
}

/// Returns the newest events of all nodes, oldest first: `own` are those of this node.
pub(super) async fn events_of_all(app: &App, own: Vec<Event>, stream: Option<&str>, limit: usize) -> Result<Response> {
    let (nodes, _) = several(app)?;
    let own = serde_json::to_value(&own).map_err(|error| Error::internal(error.to_string()))?;
    // The name of a stream has no character that is encoded in an address; other texts name no stream.
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let of_stream = stream.filter(|stream| stream.chars().all(is_plain)).map_or_else(String::new, |stream| format!("&stream={stream}"));
    let mut parts = vec![(nodes.name().to_owned(), serde_json::json!({ "events": own }))];
    parts.extend(ask_all(app, &format!("/api/events?limit={limit}{of_stream}")).await);
    let mut events = Vec::new();
    for (node, mut part) in parts {
        for event in part["events"].as_array_mut().into_iter().flatten() {
            event["node"] = node.clone().into();
            events.push(event.take());
        }
    }
    events.sort_by_key(|event| event["time_ms"].as_u64());
    let n_older = events.len().saturating_sub(limit);
    Ok(Json(serde_json::json!({ "events": events.split_off(n_older) })).into_response())
}
