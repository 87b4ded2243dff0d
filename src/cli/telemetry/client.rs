//! The HTTP client that sends spans and logs. It blocks its thread, which is only that of the queue.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::anyhow;
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use roiflow_server::tls;
use ureq::tls::{Certificate, RootCerts, TlsConfig};

use crate::pipeline;

/// How long the collector may take for a request.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum size of an answer.
const MAX_ANSWER: u64 = 1 << 20;

/// See the module. Clones share the connections.
#[derive(Debug, Clone)]
pub(super) struct Client {
    agent: ureq::Agent,
    /// Why the last request has failed.
    reason: Arc<Mutex<String>>,
}

impl Client {
    /// Creates a client. `is_encrypted`: the collector needs TLS, with a certificate of an authority that the system trusts.
    pub(super) fn new(is_encrypted: bool) -> anyhow::Result<Self> {
        let mut config = ureq::Agent::config_builder().http_status_as_error(false).timeout_global(Some(TIMEOUT)).proxy(None);
        if is_encrypted {
            let authorities = tls::authorities(None).map_err(|error| anyhow!(pipeline::Error::usage(format!("telemetry: {error}"))))?;
            let authorities: Vec<_> = authorities.iter().map(|authority| Certificate::from_der(authority).to_owned()).collect();
            let roots = RootCerts::Specific(Arc::new(authorities));
            config = config.tls_config(TlsConfig::builder().root_certs(roots).unversioned_rustls_crypto_provider(tls::provider()).build());
        }
        Ok(Self { agent: config.build().new_agent(), reason: Arc::default() })
    }

    /// Why the last request has failed.
    pub(super) fn reason(&self) -> String {
        self.reason.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn send(&self, request: Request<Bytes>) -> Result<Response<Bytes>, ureq::Error> {
        let (parts, body) = request.into_parts();
        let (parts, mut body) = self.agent.run(Request::from_parts(parts, &body[..]))?.into_parts();
        let body = body.with_config().limit(MAX_ANSWER).read_to_vec()?;
        Ok(Response::from_parts(parts, body.into()))
    }
}

impl HttpClient for Client {
    fn send_bytes<'a, 'b>(
        &'a self,
        request: Request<Bytes>,
    ) -> Pin<Box<dyn Future<Output = Result<Response<Bytes>, HttpError>> + Send + 'b>>
    where
        'a: 'b,
        Self: 'b,
    {
        let answer = self.send(request);
        let reason = match &answer {
            Ok(answer) if answer.status().is_success() => String::new(),
            Ok(answer) => format!("the status {}", answer.status()),
            Err(error) => error.to_string(),
        };
        *self.reason.lock().unwrap_or_else(PoisonError::into_inner) = reason;
        Box::pin(std::future::ready(answer.map_err(Into::into)))
    }
}
