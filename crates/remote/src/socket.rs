//! A connection to a server: TCP, and TLS if the address requires it.

use std::io;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::failure::Failure;
use super::options::{Address, Options, Protocol};
use crate::runtime::{Error, ErrorKind, Result};

/// A byte stream in both directions.
pub(crate) trait Socket: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Socket for S {}

/// Returns the TLS configuration; `None` if the addresses do not require TLS.
///
/// # Errors
/// Returns `Io` if the file with the authorities cannot be read, and `Config` if it has no certificate.
pub(crate) fn tls(options: &Options) -> Result<Option<Arc<ClientConfig>>> {
    if !options.is_tls {
        return Ok(None);
    }
    let mut roots = RootCertStore::empty();
    match &options.ca_file {
        None => {
            let found = rustls_native_certs::load_native_certs();
            roots.add_parsable_certificates(found.certs);
        }
        Some(path) => {
            let fail = |kind, why: String| Error::new(kind, format!("option `remote.ca-file`: cannot read `{}`: {why}", path.display()));
            let text = std::fs::read(path).map_err(|error| fail(ErrorKind::Io, error.to_string()))?;
            for certificate in CertificateDer::pem_slice_iter(&text) {
                let added =
                    certificate.map_err(|error| error.to_string()).and_then(|one| roots.add(one).map_err(|error| error.to_string()));
                added.map_err(|why| fail(ErrorKind::Config, why))?;
            }
            if roots.is_empty() {
                return Err(fail(ErrorKind::Config, "expected certificates in PEM form, got none".to_owned()));
            }
        }
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let builder = builder.map_err(|error| Error::with_source(ErrorKind::Device, format!("TLS cannot be used: {error}"), error))?;
    let mut config = builder.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = match options.protocol {
        Protocol::Grpc => vec![b"h2".to_vec()],
        Protocol::Http => vec![b"http/1.1".to_vec()],
    };
    Ok(Some(Arc::new(config)))
}

/// Connects to a server. The caller limits the time.
pub(crate) async fn open(address: &Address, tls: Option<&Arc<ClientConfig>>) -> Result<Box<dyn Socket>, Failure> {
    let failed = |error: io::Error| Failure::unavailable(format!("cannot connect: {error}"));
    let socket = TcpStream::connect((&*address.host, address.port)).await.map_err(failed)?;
    // Disable Nagle's algorithm: a call is sent in several writes, and the later ones must not wait until the first is acknowledged.
    socket.set_nodelay(true).map_err(failed)?;
    let Some(tls) = tls else { return Ok(Box::new(socket)) };
    let name = ServerName::try_from(address.host.clone()).map_err(|error| Failure::unavailable(format!("invalid host: {error}")))?;
    let session = TlsConnector::from(tls.clone()).connect(name, socket).await;
    session.map(|session| Box::new(session) as Box<dyn Socket>).map_err(|error| Failure::unavailable(format!("TLS handshake: {error}")))
}
