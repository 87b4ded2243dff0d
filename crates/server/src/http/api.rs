//! Requests about streams, pipelines, events and the server.

use std::collections::BTreeMap;
use std::time::Instant;

use axum::extract::{Extension, Path, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::clients::Client;
use super::reply::{Json, Options};
use super::{App, guard, nodes, openapi, peers};
use crate::backend::{Pipeline, Video};
use crate::error::{Error, Result};
use crate::events::Event;
use crate::feed::MAX_RECENT;
use crate::metrics;
use crate::registry::Registry;
use crate::stream::{Change, StreamSpec, StreamView};
use crate::token::Role;

/// All streams.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct StreamList {
    streams: Vec<StreamView>,
}

/// All pipelines.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct PipelineList {
    pipelines: Vec<Pipeline>,
}

/// The newest events, oldest first.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct EventList {
    events: Vec<Event>,
}

/// The newest results of a stream, oldest first.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct ResultList {
    /// Objects of the format of `--json`.
    results: Vec<serde_json::Value>,
}

/// About the server.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct ServerView {
    version: String,
    /// What this client may do; `null` without a valid token.
    role: Option<Role>,
    /// Whether clients need a token.
    needs_token: bool,
    max_streams: usize,
    schemes: Vec<String>,
    /// Whether clients may name files as inputs.
    has_media: bool,
    /// Name of this node; missing: the server has no other nodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    node: Option<String>,
}

/// Body of a test of an input.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Probe {
    /// Address of a camera, a file in the server's media folder, or `test:`.
    input: String,
}

/// Body of a login.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Login {
    token: String,
}

/// Runs an operation that may block on another thread.
pub(super) async fn blocking<T: Send + 'static>(app: App, act: impl FnOnce(&Registry) -> Result<T> + Send + 'static) -> Result<T> {
    // What the operation does belongs to the request.
    let span = tracing::Span::current();
    let done = tokio::task::spawn_blocking(move || span.in_scope(|| act(app.registry()))).await;
    done.unwrap_or_else(|error| Err(Error::internal(format!("internal error: {error}"))))
}

pub(super) async fn streams(State(app): State<App>, headers: HeaderMap) -> Result<Response> {
    let own = app.nodes.name_among_nodes();
    let views = blocking(app.clone(), |registry| Ok(registry.views())).await?;
    let views: Vec<StreamView> = views.into_iter().map(|view| StreamView { node: own.clone(), ..view }).collect();
    match peers::is_from_node(&app, &headers) {
        true => Ok(Json(StreamList { streams: views }).into_response()),
        false => nodes::streams_of_all(&app, views).await,
    }
}

pub(super) async fn stream(State(app): State<App>, Path(name): Path<String>, options: Options) -> Result<Json<StreamView>> {
    options.allow(&["percentiles"])?;
    let has_percentiles = options.flag("percentiles", false)?;
    let view = move |registry: &Registry, name: &str| match has_percentiles {
        true => registry.view_with_percentiles(name),
        false => registry.view(name),
    };
    blocking(app.clone(), move |registry| match view(registry, &name) {
        Ok(view) => Ok(Json(StreamView { node: app.nodes.name_among_nodes(), ..view })),
        Err(_) => app.nodes.known(&name).map(Json),
    })
    .await
}

pub(super) async fn add(State(app): State<App>, Json(spec): Json<StreamSpec>) -> Result<Response> {
    let view = blocking(app.clone(), move |_| app.nodes.add(&spec)).await?;
    let location = format!("/api/streams/{}", view.spec.name);
    Ok((StatusCode::CREATED, [(header::LOCATION, location)], Json(view)).into_response())
}

pub(super) async fn change(State(app): State<App>, Path(name): Path<String>, Json(change): Json<Change>) -> Result<Json<StreamView>> {
    blocking(app.clone(), move |_| app.nodes.change(&name, &change).map(Json)).await
}

pub(super) async fn remove(State(app): State<App>, Path(name): Path<String>) -> Result<Json<StreamView>> {
    blocking(app.clone(), move |_| app.nodes.remove(&name).map(Json)).await
}

pub(super) async fn restart(State(app): State<App>, Path(name): Path<String>) -> Result<Json<StreamView>> {
    blocking(app, move |registry| registry.restart(&name).map(Json)).await
}

pub(super) async fn results(State(app): State<App>, Path(name): Path<String>, options: Options) -> Result<Response> {
    options.allow(&["limit"])?;
    let limit = options.number("limit", 1..=MAX_RECENT as u64, 10)? as usize;
    let recent = app.registry().feed(&name)?.recent(limit);
    // The lines are JSON already.
    let mut body = b"{\"results\":[".to_vec();
    for (idx, published) in recent.iter().enumerate() {
        body.extend_from_slice(if idx > 0 { b"," } else { b"" });
        body.extend_from_slice(published.line());
    }
    body.extend_from_slice(b"]}");
    Ok(([(header::CONTENT_TYPE, "application/json"), (header::CACHE_CONTROL, "no-store")], body).into_response())
}

pub(super) async fn events(State(app): State<App>, headers: HeaderMap, options: Options) -> Result<Response> {
    options.allow(&["limit", "stream"])?;
    let limit = options.number("limit", 1..=500, 100)? as usize;
    let newest = app.registry().events().newest(options.text("stream"), limit);
    let events: Vec<Event> = newest.iter().map(|event| Event::clone(event)).collect();
    if app.peers.is_some() && !peers::is_from_node(&app, &headers) {
        return nodes::events_of_all(&app, events, options.text("stream"), limit).await;
    }
    Ok(Json(EventList { events }).into_response())
}

pub(super) async fn pipelines(State(app): State<App>) -> Result<Json<PipelineList>> {
    blocking(app, |registry| Ok(Json(PipelineList { pipelines: registry.pipelines() }))).await
}

pub(super) async fn probe(State(app): State<App>, Json(probe): Json<Probe>) -> Result<Json<Video>> {
    let Ok(_place) = app.probes.try_acquire() else {
        return Err(Error::new(503, "busy", "other inputs are being tested. Try again in a few seconds"));
    };
    blocking(app.clone(), move |registry| registry.probe(&probe.input).map(Json)).await
}

pub(super) async fn server(State(app): State<App>, headers: HeaderMap) -> Json<ServerView> {
    let config = app.registry().policy().config();
    Json(ServerView {
        version: app.version.to_owned(),
        role: guard::role(&app, &headers),
        needs_token: !app.tokens.is_empty(),
        max_streams: config.limits.streams,
        schemes: config.schemes.clone(),
        has_media: config.media.is_some(),
        node: app.nodes.name_among_nodes(),
    })
}

pub(super) async fn login(State(app): State<App>, Extension(client): Extension<Client>, Json(login): Json<Login>) -> Result<Response> {
    let Some(role) = app.tokens.role(login.token.trim()) else {
        app.failed_logins.note(client.address, Instant::now());
        let advice = "`roiflow serve --create-token` creates one";
        return Err(Error::value("unauthorized", "token", "a token of this server", "another text", advice).with_status(401));
    };
    // Scripts cannot read the cookie, and other sites cannot use it.
    let secure = if app.tls.is_some() { "; Secure" } else { "" };
    let cookie = format!("{}={}; Path=/; HttpOnly; SameSite=Strict{secure}", guard::COOKIE, login.token.trim());
    Ok(([(header::SET_COOKIE, cookie)], Json(BTreeMap::from([("role", role)]))).into_response())
}

pub(super) async fn logout() -> Response {
    let cookie = format!("{}=; Path=/; HttpOnly; SameSite=Strict; Max-Age=0", guard::COOKIE);
    ([(header::SET_COOKIE, cookie)], StatusCode::NO_CONTENT).into_response()
}

pub(super) async fn metrics(State(app): State<App>) -> Result<Response> {
    let text = tokio::task::spawn_blocking(move || {
        let n_refused_items = (!app.nodes.is_alone()).then(|| app.nodes.n_refused_items());
        let n_connections = app.n_connections.load(std::sync::atomic::Ordering::Relaxed);
        metrics::page(app.registry(), &app.requests, n_connections, n_refused_items, app.version)
    });
    let text = text.await.map_err(|error| Error::internal(format!("internal error: {error}")))?;
    Ok(([(header::CONTENT_TYPE, metrics::CONTENT_TYPE)], text).into_response())
}

/// Answers while the process can answer.
pub(super) async fn healthy() -> &'static str {
    "ok\n"
}

pub(super) async fn ready(State(app): State<App>) -> Result<&'static str> {
    if *app.ending.borrow() {
        return Err(Error::new(503, "ending", "the server is ending"));
    }
    if let Some(reason) = app.nodes.store_failure() {
        return Err(Error::new(503, "store_failed", reason));
    }
    app.nodes.check_fit()?;
    match app.nodes.is_ready() {
        true => Ok("ready\n"),
        false if app.nodes.is_alone() => Err(Error::new(503, "starting", "the streams of the store are being started")),
        false => Err(Error::new(503, "coordinator_unavailable", "the coordinator of the nodes does not answer")),
    }
}

pub(super) async fn openapi(State(app): State<App>) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], openapi::document(app.version)).into_response()
}
