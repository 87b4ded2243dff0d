//! The table of all routes. The router and the OpenAPI document are made from it, so the document cannot miss a route.

use axum::Router;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::{HeaderValue, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, delete, get, patch, post, put};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use tracing::{Instrument, field};

use super::{Access, App, api, crops, guard, live, models, nodes, peers, video};
use crate::backend::Video;
use crate::error::Error;
use crate::models::Uploaded;
use crate::nodes::NodeView;
use crate::page;
use crate::stream::{Change, StreamSpec, StreamView};
use crate::telemetry::TARGET;
use crate::token::Role;

/// Returns the schema of a type.
pub(super) type SchemaOf = fn(&mut SchemaGenerator) -> Schema;

/// What an answer contains.
#[derive(Clone, Copy)]
pub(super) enum Answer {
    Json(u16, SchemaOf),
    /// Another content type.
    Other(&'static str),
    Nothing,
}

/// A route.
pub(super) struct Route {
    pub(super) method: &'static str,
    pub(super) path: &'static str,
    pub(super) access: Access,
    pub(super) summary: &'static str,
    /// Options behind `?`, with explanations.
    pub(super) options: &'static [(&'static str, &'static str)],
    pub(super) body: Option<SchemaOf>,
    pub(super) answer: Answer,
    handler: MethodRouter<App>,
}

fn schema<T: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    generator.subschema_for::<T>()
}

fn json<T: JsonSchema>() -> Answer {
    Answer::Json(200, schema::<T>)
}

const VIEWER: Access = Access::Role(Role::Viewer);
const OPERATOR: Access = Access::Role(Role::Operator);
const PUBLIC: Access = Access::Public;
const SSE: Answer = Answer::Other("text/event-stream");
const PICTURE_OPTIONS: &[(&str, &str)] = &[("width", "Maximum width in pixels [960]"), ("boxes", "Whether results are drawn [true]")];
const MJPEG_OPTIONS: &[(&str, &str)] = &[PICTURE_OPTIONS[0], PICTURE_OPTIONS[1], ("fps", "Maximum frames per second [10]")];

/// Returns all routes.
pub(super) fn routes() -> Vec<Route> {
    let route =
        |method, path, access, summary, answer, handler| Route { method, path, access, summary, options: &[], body: None, answer, handler };
    let stream = json::<StreamView>;
    vec![
        route("get", "/api/streams", VIEWER, "Lists the streams with their states.", json::<api::StreamList>(), get(api::streams)),
        Route {
            body: Some(schema::<StreamSpec>),
            ..route(
                "post",
                "/api/streams",
                OPERATOR,
                "Adds a stream and starts it.",
                Answer::Json(201, schema::<StreamView>),
                post(api::add),
            )
        },
        Route {
            options: &[("percentiles", "Whether the answer has the percentiles of the latency [false]")],
            ..route("get", "/api/streams/{name}", VIEWER, "Returns a stream with its state.", stream(), get(api::stream))
        },
        Route {
            body: Some(schema::<Change>),
            ..route(
                "patch",
                "/api/streams/{name}",
                OPERATOR,
                "Changes a stream, which is restarted only if it cannot continue.",
                stream(),
                patch(api::change),
            )
        },
        Route {
            body: Some(schema::<api::Probe>),
            ..route("post", "/api/probe", OPERATOR, "Opens an input and returns what it sends.", json::<Video>(), post(api::probe))
        },
        route("delete", "/api/streams/{name}", OPERATOR, "Removes a stream and returns its last state.", stream(), delete(api::remove)),
        route("post", "/api/streams/{name}/restart", OPERATOR, "Restarts a stream.", stream(), post(api::restart)),
        Route {
            options: &[("limit", "Maximum number of results, 1 to 100 [10]")],
            ..route(
                "get",
                "/api/streams/{name}/results",
                VIEWER,
                "Returns the newest results of a stream.",
                json::<api::ResultList>(),
                get(api::results),
            )
        },
        route(
            "get",
            "/api/streams/{name}/results/live",
            VIEWER,
            "Sends the results of a stream as server-sent events.",
            SSE,
            get(live::results_of_stream),
        ),
        route(
            "get",
            "/api/streams/{name}/results/ws",
            VIEWER,
            "Sends the results of a stream to a WebSocket.",
            Answer::Nothing,
            get(live::socket_of_stream),
        ),
        Route {
            options: PICTURE_OPTIONS,
            ..route(
                "get",
                "/api/streams/{name}/picture",
                VIEWER,
                "Returns the next frame of a stream as JPEG.",
                Answer::Other("image/jpeg"),
                get(live::picture),
            )
        },
        Route {
            options: MJPEG_OPTIONS,
            ..route(
                "get",
                "/api/streams/{name}/mjpeg",
                VIEWER,
                "Sends the frames of a stream as MJPEG.",
                Answer::Other("multipart/x-mixed-replace"),
                get(live::mjpeg),
            )
        },
        Route {
            options: &[("limit", "Maximum number of crops, 1 to 64 [20]")],
            ..route(
                "get",
                "/api/streams/{name}/crops",
                VIEWER,
                "Lists the latest crops of a stream: pictures of objects, which are cut out of frames while clients ask for this list.",
                json::<crops::CropList>(),
                get(crops::list),
            )
        },
        route("get", "/api/streams/{name}/crops/{id}", VIEWER, "Returns a crop as JPEG.", Answer::Other("image/jpeg"), get(crops::picture)),
        route(
            "get",
            "/api/streams/{name}/video",
            VIEWER,
            "Sends the video of a stream to a WebSocket, as fragments of an MP4 file.",
            Answer::Nothing,
            get(video::socket),
        ),
        route(
            "get",
            "/api/results/live",
            VIEWER,
            "Sends the results of all streams as server-sent events.",
            SSE,
            get(live::results_of_all),
        ),
        route(
            "get",
            "/api/results/ws",
            VIEWER,
            "Sends the results of all streams to a WebSocket.",
            Answer::Nothing,
            get(live::socket_of_all),
        ),
        route(
            "get",
            "/api/nodes",
            VIEWER,
            "Lists the nodes that run streams together; only for `roiflow node`.",
            json::<nodes::NodeList>(),
            get(nodes::list),
        ),
        Route {
            body: Some(schema::<nodes::DrainChange>),
            ..route(
                "put",
                "/api/nodes/{name}/drain",
                OPERATOR,
                "Moves all streams away from a node, or ends that.",
                json::<NodeView>(),
                put(nodes::drain),
            )
        },
        Route {
            body: Some(schema::<nodes::Move>),
            ..route("put", "/api/streams/{name}/node", OPERATOR, "Moves a stream to another node.", stream(), put(nodes::move_to))
        },
        Route {
            options: &[("limit", "Maximum number of events, 1 to 500 [100]"), ("stream", "Name of a stream [all]")],
            ..route("get", "/api/events", VIEWER, "Lists the newest events.", json::<api::EventList>(), get(api::events))
        },
        route("get", "/api/events/live", VIEWER, "Sends events as they occur.", SSE, get(live::events)),
        route(
            "get",
            "/api/pipelines",
            VIEWER,
            "Lists the pipelines that streams may use.",
            json::<api::PipelineList>(),
            get(api::pipelines),
        ),
        route("get", "/api/models", VIEWER, "Lists the files in the folder of models.", json::<models::ModelList>(), get(models::list)),
        Route {
            options: &[("name", "Name of the file"), ("replace", "Whether a file with this name is replaced [false]")],
            ..route(
                "post",
                "/api/models",
                OPERATOR,
                "Adds the body as a file to the folder of models, and inspects it.",
                Answer::Json(201, schema::<Uploaded>),
                post(models::upload),
            )
        },
        route(
            "get",
            "/api/server",
            PUBLIC,
            "Returns version and limits, and what this client may do.",
            json::<api::ServerView>(),
            get(api::server),
        ),
        Route {
            body: Some(schema::<api::Login>),
            ..route(
                "post",
                "/api/login",
                PUBLIC,
                "Stores a token in a cookie of the browser.",
                Answer::Other("application/json"),
                post(api::login),
            )
        },
        route("post", "/api/logout", PUBLIC, "Removes that cookie.", Answer::Nothing, post(api::logout)),
        route("get", "/api/openapi.json", PUBLIC, "Returns this description.", Answer::Other("application/json"), get(api::openapi)),
        route("get", "/metrics", VIEWER, "Returns the metrics for Prometheus.", Answer::Other("text/plain"), get(api::metrics)),
        route("get", "/healthz", PUBLIC, "Answers while the process runs.", Answer::Other("text/plain"), get(api::healthy)),
        route(
            "get",
            "/readyz",
            PUBLIC,
            "Answers 200 when the stored streams were started, 503 before, at the end, and while the store cannot be written.",
            Answer::Other("text/plain"),
            get(api::ready),
        ),
    ]
}

/// Whether the node that runs the stream answers the request. Requests that change the stream for all nodes are answered by any node.
fn is_at_owner(route: &Route) -> bool {
    route.path.starts_with("/api/streams/{name}") && (route.method == "get" || route.path.ends_with("/restart"))
}

/// Returns the router.
pub(super) fn router(app: &App) -> Router {
    let mut router = Router::new();
    for route in routes() {
        let handler = if is_at_owner(&route) {
            route.handler.route_layer(middleware::from_fn_with_state(app.clone(), peers::to_owner))
        } else {
            route.handler
        };
        // The layer that is added last runs first.
        let guarded = handler.route_layer(middleware::from_fn_with_state((app.clone(), route.access), guard::check));
        // Programs that monitor the server send these requests all the time.
        let is_monitoring = ["/metrics", "/healthz", "/readyz"].contains(&route.path);
        let traced = match is_monitoring {
            true => guarded,
            false => guarded.route_layer(middleware::from_fn_with_state((route.method, route.path), traced)),
        };
        router = router.route(route.path, traced);
    }
    for path in ["/", "/{*file}"] {
        let guarded = get(page::file).route_layer(middleware::from_fn_with_state((app.clone(), PUBLIC), guard::check));
        router = router.route(path, guarded);
    }
    router
        .method_not_allowed_fallback(|| async {
            let advice = "`GET /api/openapi.json` lists the routes and their methods";
            Error::value("method", "method", "one that this address supports", "another one", advice).with_status(405)
        })
        .layer(DefaultBodyLimit::max(app.registry().policy().config().limits.body_bytes))
        .layer(middleware::from_fn_with_state(app.clone(), finish))
        .with_state(app.clone())
}

/// Records a request as a span, until the head of the answer is known.
async fn traced(State((method, path)): State<(&'static str, &'static str)>, request: Request, next: Next) -> Response {
    let method = method.to_ascii_uppercase();
    let span = tracing::info_span!(
        target: TARGET,
        "request",
        otel.name = format_args!("{method} {path}"),
        otel.kind = "server",
        otel.status_code = field::Empty,
        http.request.method = method,
        http.route = path,
        url.path = request.uri().path(),
        http.response.status_code = field::Empty,
    );
    let response = next.run(request).instrument(span.clone()).await;
    span.record("http.response.status_code", response.status().as_u16());
    if response.status().is_server_error() {
        span.record("otel.status_code", "ERROR");
    }
    response
}

/// Counts requests, and adds the headers that protect browsers.
async fn finish(State(app): State<App>, request: Request, next: Next) -> Response {
    let mut response = next.run(request).await.into_response();
    app.requests.count(response.status().as_u16());
    let headers = response.headers_mut();
    for (name, value) in [
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::X_FRAME_OPTIONS, "DENY"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CONTENT_SECURITY_POLICY, page::CONTENT_SECURITY_POLICY),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}
