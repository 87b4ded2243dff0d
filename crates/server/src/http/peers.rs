//! Requests from node to node: a request about a stream of another node goes to the server of that node, and the answer comes back as it
//! is received, so live results and pictures work as well.
//!
//! The guard of this node has checked the client. The other node gets the token of nodes, which is derived from the key that all nodes
//! share. A request from a node is never passed on again.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{RawPathParams, Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Uri, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::clients::{self, Client};
use super::{App, guard};
use crate::error::{Error, Result};
use crate::nodes::Owner;

/// The node that passes a request on.
pub(super) const FROM: HeaderName = HeaderName::from_static("x-roiflow-node");
/// How long another node may take to accept a connection.
const MAX_CONNECT: Duration = Duration::from_secs(3);
/// How long another node may take until its answer begins: loading a model, and a stop and a start of a stream, take seconds.
const MAX_ANSWER: Duration = Duration::from_secs(30);

/// Headers of the client that the other node needs. All others, such as cookies, are for this node only.
const PASSED: [HeaderName; 8] = [
    header::ACCEPT,
    header::CONTENT_TYPE,
    header::CONTENT_LENGTH,
    header::CONNECTION,
    header::UPGRADE,
    header::SEC_WEBSOCKET_KEY,
    header::SEC_WEBSOCKET_VERSION,
    header::SEC_WEBSOCKET_PROTOCOL,
];

/// Sends requests to the servers of other nodes.
#[derive(Debug)]
pub(crate) struct Peers {
    /// Name of this node.
    own: HeaderValue,
    authorization: Option<HeaderValue>,
    tls: Option<Arc<rustls::ClientConfig>>,
}

impl Peers {
    /// `token`: the token of nodes. `tls`: the authorities that sign certificates of nodes.
    pub(crate) fn new(own: &str, token: Option<&str>, tls: Option<Arc<rustls::ClientConfig>>) -> Self {
        let value = |text: &str| HeaderValue::from_str(text).ok();
        let authorization = token.and_then(|token| value(&format!("Bearer {token}")));
        let authorization = authorization.map(|mut secret| {
            secret.set_sensitive(true);
            secret
        });
        Self { own: value(own).unwrap_or(HeaderValue::from_static("?")), authorization, tls }
    }

    /// Sends a request to the node `name` at `url`, and returns its answer.
    pub(crate) async fn send(&self, name: &str, url: &str, request: Request) -> Result<Response> {
        let failed = |reason: &dyn std::fmt::Display| {
            let message = format!(
                "ask the node `{name}` failed: expected an answer from {url}, got {reason}. Check that the node runs, and that this machine reaches its address"
            );
            Error::new(502, "node_unreachable", message)
        };
        let address: Uri = url.parse().map_err(|error| failed(&error))?;
        let (Some(host), Some(scheme)) = (address.host(), address.scheme_str()) else { return Err(failed(&"an address without a host")) };
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let port = address.port_u16().unwrap_or(if scheme == "https" { 443 } else { 80 });
        let connecting = tokio::time::timeout(MAX_CONNECT, TcpStream::connect((host, port)));
        let stream = connecting.await.map_err(|_| failed(&"no connection in time"))?.map_err(|error| failed(&error))?;
        let _set = stream.set_nodelay(true);
        let authority = address.authority().map_or_else(String::new, ToString::to_string);
        let answer = async {
            if scheme == "https" {
                let tls = self.tls.clone().ok_or_else(|| failed(&"no authority that signs certificates of nodes"))?;
                let of_server = ServerName::try_from(host.to_owned()).map_err(|error| failed(&error))?;
                let stream = TlsConnector::from(tls).connect(of_server, stream).await.map_err(|error| failed(&error))?;
                self.exchange(stream, &authority, request).await.map_err(|error| failed(&error))
            } else {
                self.exchange(stream, &authority, request).await.map_err(|error| failed(&error))
            }
        };
        tokio::time::timeout(MAX_ANSWER, answer).await.map_err(|_| failed(&"nothing in time"))?
    }

    async fn exchange<S>(&self, stream: S, authority: &str, mut request: Request) -> Result<Response, hyper::Error>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        tokio::spawn(async move {
            if let Err(error) = connection.with_upgrades().await {
                tracing::debug!("the connection to another node ended: {error}");
            }
        });
        let of_client = request.extensions_mut().remove::<hyper::upgrade::OnUpgrade>();
        let client = request.extensions_mut().remove::<Client>().and_then(|client| HeaderValue::from_str(&client.name).ok());
        let (mut parts, body) = request.into_parts();
        let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
        parts.uri = path.parse().unwrap_or_default();
        let mut headers = HeaderMap::new();
        for name in PASSED {
            if let Some(value) = parts.headers.remove(&name) {
                headers.insert(name, value);
            }
        }
        if let Ok(host) = HeaderValue::from_str(authority) {
            headers.insert(header::HOST, host);
        }
        headers.insert(FROM, self.own.clone());
        // The limits of one client hold at all nodes.
        client.into_iter().for_each(|client| drop(headers.insert(clients::OF_CLIENT, client)));
        self.authorization.iter().for_each(|secret| drop(headers.insert(header::AUTHORIZATION, secret.clone())));
        parts.headers = headers;
        let mut response = sender.send_request(Request::from_parts(parts, body)).await?;
        if let (StatusCode::SWITCHING_PROTOCOLS, Some(of_client)) = (response.status(), of_client) {
            let of_node = hyper::upgrade::on(&mut response);
            tokio::spawn(async move {
                let (Ok(client), Ok(node)) = tokio::join!(of_client, of_node) else { return };
                let _ended = tokio::io::copy_bidirectional(&mut TokioIo::new(client), &mut TokioIo::new(node)).await;
            });
        }
        Ok(response.map(Body::new))
    }
}

/// Whether another node sends this request.
pub(super) fn is_from_node(app: &App, headers: &HeaderMap) -> bool {
    headers.contains_key(FROM) && app.peers.is_some() && (app.nodes.key().is_none() || is_node(app, headers))
}

/// Whether a request has the token of nodes.
pub(super) fn is_node(app: &App, headers: &HeaderMap) -> bool {
    app.nodes.key().zip(guard::bearer(headers)).is_some_and(|(key, token)| key.is_peer(token))
}

/// Passes a request about a stream of another node on to that node.
pub(super) async fn to_owner(State(app): State<App>, parameters: RawPathParams, request: Request, next: Next) -> Response {
    let Some(peers) = app.peers.as_ref().filter(|_| !is_from_node(&app, request.headers())) else {
        return next.run(request).await;
    };
    let stream = parameters.iter().find(|(name, _)| *name == "name").map_or("", |(_, value)| value);
    match app.nodes.owner(stream) {
        Owner::Other { node, url } => peers.send(&node, &url, request).await.unwrap_or_else(IntoResponse::into_response),
        Owner::Here | Owner::None => next.run(request).await,
    }
}
