//! A TLS endpoint for tests, which forwards to a server without TLS.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// Starts an endpoint on a free port of 127.0.0.1, and returns its address. It runs until the process ends.
pub fn start(server: SocketAddr, certificate: &Path, key: &Path) -> SocketAddr {
    let certificates = CertificateDer::pem_file_iter(certificate).unwrap().collect::<Result<Vec<_>, _>>().unwrap();
    let key = PrivateKeyDer::from_pem_file(key).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let mut config = builder.with_no_client_auth().with_single_cert(certificates, key).unwrap();
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
        runtime.block_on(async move {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            sender.send(listener.local_addr().unwrap()).unwrap();
            while let Ok((client, _)) = listener.accept().await {
                let acceptor = acceptor.clone();
                tokio::spawn(async move {
                    // A client that refuses the certificate ends the handshake with an error.
                    let Ok(mut client) = acceptor.accept(client).await else { return };
                    let mut server = tokio::net::TcpStream::connect(server).await.unwrap();
                    let _ended = tokio::io::copy_bidirectional(&mut client, &mut server).await;
                });
            }
        });
    });
    receiver.recv().unwrap()
}
