//! TLS: the certificate of the server from files, and the authorities that clients of the server trust.
//!
//! The files can be read again while the server runs. Connections that are open keep their certificate.

use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::TlsAcceptor;

/// The certificate of a server, with its private key.
pub struct Tls {
    certificate: PathBuf,
    key: PathBuf,
    current: RwLock<Arc<rustls::ServerConfig>>,
}

impl Tls {
    /// Reads a certificate and its private key. Both files are in PEM form. The certificate is followed by those of its intermediate
    /// authorities, if there are any.
    ///
    /// # Errors
    /// Returns which file is wrong, and why.
    pub fn read(certificate: &Path, key: &Path) -> Result<Self, String> {
        let current = RwLock::new(config(certificate, key)?);
        Ok(Self { certificate: certificate.to_owned(), key: key.to_owned(), current })
    }

    /// Reads both files again, for later connections.
    ///
    /// # Errors
    /// Returns which file is wrong, and why; then the earlier certificate stays in use.
    pub fn reload(&self) -> Result<(), String> {
        let config = config(&self.certificate, &self.key)?;
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = config;
        Ok(())
    }

    pub(crate) fn acceptor(&self) -> TlsAcceptor {
        self.current.read().unwrap_or_else(PoisonError::into_inner).clone().into()
    }
}

fn config(certificate: &Path, key: &Path) -> Result<Arc<rustls::ServerConfig>, String> {
    let chain = certificates(certificate)?;
    let private = PrivateKeyDer::from_pem_file(key)
        .map_err(|error| format!("cannot read the private key `{}`: {error}. Give a file with the key in PEM form", key.display()))?;
    let failed = |error: rustls::Error| {
        let (certificate, key) = (certificate.display(), key.display());
        format!("the certificate `{certificate}` cannot be used with the private key `{key}`: {error}. Give the key of this certificate")
    };
    let builder = rustls::ServerConfig::builder_with_provider(provider()).with_safe_default_protocol_versions().map_err(failed)?;
    let mut config = builder.with_no_client_auth().with_single_cert(chain, private).map_err(failed)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

/// Returns the settings of a client that trusts these authorities; `None` if there are none.
///
/// # Errors
/// Returns an error if an authority cannot be used.
pub(crate) fn client(authorities: Vec<CertificateDer<'static>>) -> Result<Option<Arc<rustls::ClientConfig>>, String> {
    if authorities.is_empty() {
        return Ok(None);
    }
    let failed = |error: rustls::Error| format!("an authority for certificates of nodes cannot be used: {error}");
    let mut roots = rustls::RootCertStore::empty();
    for authority in authorities {
        // Systems have authorities that this library does not accept.
        let _added = roots.add(authority);
    }
    let builder = rustls::ClientConfig::builder_with_provider(provider()).with_safe_default_protocol_versions().map_err(failed)?;
    Ok(Some(Arc::new(builder.with_root_certificates(roots).with_no_client_auth())))
}

/// The cryptography of servers and clients.
pub fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// Returns the certificates of a file in PEM form.
///
/// # Errors
/// Returns an error if the file cannot be read, or has no certificate.
pub fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let failed = |error: &dyn std::fmt::Display| {
        format!("cannot read the certificates `{}`: {error}. Give a file with certificates in PEM form", path.display())
    };
    let all = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>).map_err(|error| failed(&error))?;
    if all.is_empty() { Err(failed(&"expected a certificate in PEM form, got none")) } else { Ok(all) }
}

/// Returns the authorities that a client trusts: those of a file, or those of the system.
///
/// # Errors
/// Returns an error if the file cannot be read, or there are no authorities.
pub fn authorities(file: Option<&Path>) -> Result<Vec<CertificateDer<'static>>, String> {
    if let Some(file) = file {
        return certificates(file);
    }
    let all = rustls_native_certs::load_native_certs().certs;
    if all.is_empty() {
        return Err("expected certificate authorities of the system, got none. Install ca-certificates, or name a file by --ca".to_owned());
    }
    Ok(all)
}
