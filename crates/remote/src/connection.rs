//! A connection to a server, by either protocol.

use std::sync::Arc;
use std::time::Duration;

use http::HeaderValue;
use rustls::ClientConfig;
use tokio::time::Instant;

use super::call::{Call, Response};
use super::failure::Failure;
use super::grpc::{Grpc, Life};
use super::options::{Address, Options, Protocol};
use super::protocol::{ModelMetadataResponse, RegisterRequest, UnregisterRequest};
use super::rest::Rest;
use super::socket;

/// A connection to a server. Clones use the same connection.
#[derive(Clone)]
pub(crate) enum Connection {
    Grpc(Grpc),
    Http(Rest),
}

impl Connection {
    /// Connects to a server. The caller limits the time.
    pub(crate) async fn open(
        address: &Address,
        options: &Options,
        authorization: Option<HeaderValue>,
        tls: Option<&Arc<ClientConfig>>,
    ) -> Result<Self, Failure> {
        match options.protocol {
            Protocol::Http => Ok(Self::Http(Rest::new(address, options, authorization, tls.cloned()))),
            Protocol::Grpc => {
                let socket = socket::open(address, tls).await?;
                Grpc::open(socket, address, options, authorization).await.map(Self::Grpc)
            }
        }
    }

    /// Asks whether the server can run the model.
    pub(crate) async fn is_ready(&self, timeout: Duration) -> Result<bool, Failure> {
        match self {
            Self::Grpc(connection) => connection.is_ready(timeout).await,
            Self::Http(connection) => connection.is_ready(timeout).await,
        }
    }

    /// Asks for the inputs and outputs of the model.
    pub(crate) async fn metadata(&self, timeout: Duration) -> Result<ModelMetadataResponse, Failure> {
        match self {
            Self::Grpc(connection) => connection.metadata(timeout).await,
            Self::Http(connection) => connection.metadata(timeout).await,
        }
    }

    /// Runs the model. The caller limits the time. With gRPC, the server also gets the deadline, so it can stop late calls.
    pub(crate) async fn infer(&self, call: &Call, deadline: Instant) -> Result<Response, Failure> {
        let Some(placement) = call.placement() else { return self.call(call, deadline).await };
        placement.register(self, deadline).await?;
        match self.call(call, deadline).await {
            Err(failure) if placement.is_unknown(&failure, self) => {
                placement.register(self, deadline).await?;
                self.call(call, deadline).await
            }
            answer => answer,
        }
    }

    async fn call(&self, call: &Call, deadline: Instant) -> Result<Response, Failure> {
        match self {
            Self::Grpc(connection) => call.over_grpc(connection, deadline).await,
            Self::Http(connection) => connection.infer(call).await,
        }
    }

    /// Registers a region of shared memory with the server, so that calls can refer to it.
    pub(crate) async fn register(&self, name: &str, n_bytes: usize, deadline: Instant) -> Result<(), Failure> {
        let request = RegisterRequest { name: name.to_owned(), key: format!("/{name}"), offset: 0, byte_size: n_bytes as u64 };
        match self {
            Self::Grpc(connection) => connection.send("SystemSharedMemoryRegister", &request, deadline).await,
            Self::Http(connection) => connection.register(&request).await,
        }
    }

    /// Ends the registration of a region, so that the server releases its memory.
    pub(crate) async fn unregister(&self, name: &str, deadline: Instant) -> Result<(), Failure> {
        let request = UnregisterRequest { name: name.to_owned() };
        match self {
            Self::Grpc(connection) => connection.send("SystemSharedMemoryUnregister", &request, deadline).await,
            Self::Http(connection) => connection.unregister(&request).await,
        }
    }

    /// Returns whether both are the same connection.
    pub(crate) fn is(&self, other: &Self) -> bool {
        std::ptr::eq(self.life(), other.life())
    }

    /// Returns the state that shows whether the connection has ended.
    pub(crate) fn life(&self) -> &Life {
        match self {
            Self::Grpc(connection) => connection.life(),
            Self::Http(connection) => connection.life(),
        }
    }

    /// Closes the connection at once.
    pub(crate) fn kill(&self) {
        match self {
            Self::Grpc(connection) => connection.kill(),
            Self::Http(connection) => connection.kill(),
        }
    }
}
