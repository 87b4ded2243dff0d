//! TLS settings for all protocols: the system's certificates, or those of a file.

use std::io::{self, ErrorKind};
use std::sync::{Arc, LazyLock};

use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};

use super::connection::Tls;
use super::files::NamedFile;

/// Creates the TLS configuration of a client.
pub(super) fn config(tls: &Tls) -> io::Result<Arc<ClientConfig>> {
    let roots = match &tls.ca {
        None => SYSTEM.clone(),
        Some(file) => {
            let mut roots = RootCertStore::empty();
            for certificate in certificates(file)? {
                roots.add(certificate).map_err(|error| invalid(file, "a certificate", &error))?;
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
    let builder = ClientConfig::builder_with_provider(provider()).with_safe_default_protocol_versions().map_err(io::Error::other)?;
    let builder = builder.with_root_certificates(roots);
    let config = match &tls.client {
        None => builder.with_no_client_auth(),
        Some((certificate, key)) => {
            let private = PrivateKeyDer::from_pem_slice(&key.read()?).map_err(|error| invalid(key, "a private key", &error))?;
            let certificates = certificates(certificate)?;
            builder.with_client_auth_cert(certificates, private).map_err(|error| invalid(key, "the key of the certificate", &error))?
        }
    };
    Ok(Arc::new(config))
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// Creates the TLS configuration of the HTTP client.
#[cfg(feature = "http")]
pub(super) fn http_config(tls: &Tls) -> io::Result<ureq::tls::TlsConfig> {
    use ureq::tls::{Certificate, ClientCert, PrivateKey, RootCerts, TlsConfig};

    let of_system = || rustls_native_certs::load_native_certs().certs;
    let roots = tls.ca.as_ref().map_or_else(|| Ok(of_system()), certificates)?;
    let to_http = |all: &[CertificateDer<'_>]| all.iter().map(|der| Certificate::from_der(der).to_owned()).collect::<Vec<_>>();
    let client = match &tls.client {
        None => None,
        Some((certificate, key)) => {
            let private = PrivateKey::from_pem(&key.read()?).map_err(|error| invalid(key, "a private key", &error))?;
            Some(ClientCert::new_with_certs(&to_http(&certificates(certificate)?), private))
        }
    };
    let builder = TlsConfig::builder().root_certs(RootCerts::Specific(Arc::new(to_http(&roots)))).client_cert(client);
    Ok(builder.unversioned_rustls_crypto_provider(provider()).build())
}

/// The certificate authorities that the system trusts.
static SYSTEM: LazyLock<Arc<RootCertStore>> = LazyLock::new(|| {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    Arc::new(roots)
});

fn certificates(file: &NamedFile) -> io::Result<Vec<CertificateDer<'static>>> {
    let all = CertificateDer::pem_slice_iter(&file.read()?).collect::<Result<Vec<_>, _>>();
    let all = all.map_err(|error| invalid(file, "certificates", &error))?;
    if all.is_empty() { Err(invalid(file, "certificates", &"it has none")) } else { Ok(all) }
}

fn invalid(file: &NamedFile, expected: &str, error: &impl std::fmt::Display) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, format!("{}: expected {expected} in PEM form: {error}", file.shown()))
}
