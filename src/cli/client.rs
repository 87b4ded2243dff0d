//! A client of the REST API of a running `roiflow serve`.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{anyhow, bail};
use roiflow_server::tls;
use serde_json::Value;
use ureq::tls::{Certificate, RootCerts, TlsConfig};

use crate::{pipeline, redaction};

/// Environment variable with the token.
const TOKEN: &str = "ROIFLOW_TOKEN";
/// Stopping a stream may take ten seconds.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Which server a command controls.
#[derive(Debug, clap::Args)]
pub(super) struct Server {
    /// Address of the server; a token is read from the environment variable ROIFLOW_TOKEN
    #[arg(long, global = true, value_name = "URL", default_value = "http://127.0.0.1:8080")]
    server: String,
    /// File in PEM form with the authority that signed the certificate of the server, or that certificate itself [default: the authorities of the system]
    #[arg(long, global = true, value_name = "FILE")]
    ca: Option<PathBuf>,
}

/// A connection to the REST API.
pub(super) struct Client {
    agent: ureq::Agent,
    server: String,
    token: Option<String>,
}

impl Client {
    pub(super) fn new(Server { server, ca }: &Server) -> anyhow::Result<Self> {
        let server = server.trim_end_matches('/');
        let is_encrypted = server.starts_with("https://");
        if !is_encrypted && !server.starts_with("http://") {
            let shown = redaction::redact(server);
            bail!(pipeline::Error::usage(format!("--server: expected an address such as http://127.0.0.1:8080, got `{shown}`")));
        }
        if ca.is_some() && !is_encrypted {
            bail!(pipeline::Error::usage("--ca: expected a server with an address that begins with https://, got another one"));
        }
        let mut config = ureq::Agent::config_builder().http_status_as_error(false).timeout_global(Some(TIMEOUT)).proxy(None);
        if is_encrypted {
            let authorities = tls::authorities(ca.as_deref()).map_err(|error| anyhow!(pipeline::Error::usage(error)))?;
            let authorities: Vec<_> = authorities.iter().map(|authority| Certificate::from_der(authority).to_owned()).collect();
            let roots = RootCerts::Specific(Arc::new(authorities));
            config = config.tls_config(TlsConfig::builder().root_certs(roots).unversioned_rustls_crypto_provider(tls::provider()).build());
        }
        let token = std::env::var(TOKEN).ok().filter(|token| !token.is_empty());
        Ok(Self { agent: config.build().new_agent(), server: server.to_owned(), token })
    }

    /// The address of the server, without credentials.
    pub(super) fn shown(&self) -> String {
        redaction::redact(&self.server).into_owned()
    }

    /// Returns the answer of a server that has started its streams.
    pub(super) fn ready(&self) -> anyhow::Result<String> {
        let (is_success, text) = self.exchange("GET", "/readyz", None)?;
        if is_success {
            return Ok(text);
        }
        let content: Value = serde_json::from_str(&text).unwrap_or_default();
        bail!("{}", content["error"]["message"].as_str().unwrap_or("the server is not ready"));
    }

    /// Sends a request. Returns the answer, or the text of the server's error.
    pub(super) fn send(&self, method: &str, path: &str, body: Option<Value>) -> anyhow::Result<Value> {
        let (is_success, text) = self.exchange(method, path, body)?;
        let content: Value = serde_json::from_str(&text)
            .map_err(|_| anyhow!("expected an answer of `roiflow serve` from {}, got another one", self.shown()))?;
        if is_success {
            return Ok(content);
        }
        let message = content["error"]["message"].as_str().unwrap_or("the server refused the request");
        let advice = if content["error"]["code"] == "unauthorized" { format!("; set {TOKEN}") } else { String::new() };
        bail!("{message}{advice}");
    }

    /// Sends a request. Returns whether the server has accepted it, and the text of the answer.
    fn exchange(&self, method: &str, path: &str, body: Option<Value>) -> anyhow::Result<(bool, String)> {
        let mut request = ureq::http::Request::builder().method(method).uri(format!("{}{path}", self.server));
        if let Some(token) = &self.token {
            request = request.header("Authorization", format!("Bearer {token}"));
        }
        let sent = match body {
            Some(body) => self.agent.run(request.header("Content-Type", "application/json").body(body.to_string())?),
            None => self.agent.run(request.body(())?),
        };
        let shown = self.shown();
        let mut answer = sent.map_err(|error| {
            let error = error.to_string();
            let advice = if error.contains("CaUsedAsEndEntity") {
                "Its certificate is that of an authority, and no client accepts it as that of a server. Create one with `openssl req -x509 \
                 -addext basicConstraints=critical,CA:FALSE ...`"
            } else if error.contains("certificate") {
                "Name the authority that signed the certificate with --ca"
            } else {
                "Start it with `roiflow serve`, or name it with --server"
            };
            anyhow!("cannot reach the server {shown}: {error}. {advice}")
        })?;
        let is_success = answer.status().is_success();
        let text = answer.body_mut().read_to_string()?;
        if !is_success && text.starts_with("This server encrypts connections") {
            bail!("the server {shown} encrypts connections: expected --server with https://, got http://");
        }
        Ok((is_success, text))
    }
}
