//! TLS settings for all protocols: the system's certificates, or those of a file.

use std::io::{self, ErrorKind};
use std::sync::{Arc, LazyLock};

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};

use super::connection::Tls;

/// The client settings.
pub(super) fn config(tls: &Tls) -> io::Result<Arc<ClientConfig>> {
    let roots = match &tls.ca {
        None => SYSTEM.clone(),
        Some(path) => {
            let mut roots = RootCertStore::empty();
            for certificate in certificates(path)? {
                roots.add(certificate).map_err(|error| invalid(path, "a certificate", &error))?;
            }
            Arc::new(roots)
        }
    };
    if roots.is_empty() {
        return Err(io::Error::new(
            ErrorKind::NotFound,
            "no certificate authorities were found: install ca-certificates, or add ?ca=FILE to the address",
        ));
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().map_err(io::Error::other)?;
    let builder = builder.with_root_certificates(roots);
    let config = match &tls.client {
        None => builder.with_no_client_auth(),
        Some((certificate, key)) => {
            let private = PrivateKeyDer::from_pem_file(key).map_err(|error| invalid(key, "a private key", &error))?;
            builder.with_client_auth_cert(certificates(certificate)?, private).map_err(io::Error::other)?
        }
    };
    Ok(Arc::new(config))
}

/// Certificate authorities of the system.
static SYSTEM: LazyLock<Arc<RootCertStore>> = LazyLock::new(|| {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    Arc::new(roots)
});

fn certificates(path: &str) -> io::Result<Vec<CertificateDer<'static>>> {
    let all = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    all.map_err(|error| invalid(path, "certificates", &error))
}

fn invalid(path: &str, expected: &str, error: &impl std::fmt::Display) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, format!("{path}: expected {expected} in PEM form: {error}"))
}
