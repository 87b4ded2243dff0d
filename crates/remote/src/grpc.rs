//! Calls over gRPC: unary calls on one HTTP/2 connection.
//!
//! The data frames of a call are the memory of the input tensors, so nothing is copied into a message. If the future of a call is dropped,
//! its stream is reset, which cancels the call on the server.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use h2::client::SendRequest;
use h2::{Reason, RecvStream, SendStream};
use http::{HeaderMap, HeaderValue, Method, Request};
use prost::Message;
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::failure::{Blame, Failure, of_grpc_status, of_http_status};
use super::options::{Address, Options};
use super::protocol::{ModelMetadataResponse, ModelReadyResponse, ModelRequest, SERVICE, framed};
use super::socket::Socket;

/// Flow control of HTTP/2: number of bytes that a server may send before this client has read them, for one call.
const CALL_WINDOW: u32 = 4 << 20;
/// The same for all calls of a connection together.
const CONNECTION_WINDOW: u32 = 16 << 20;
/// Maximum size of a response, which protects the memory of this process.
pub(crate) const MAX_RESPONSE_BYTES: usize = 1 << 30;

/// A connection to a server. Clones use the same connection.
#[derive(Clone)]
pub(crate) struct Grpc {
    sender: SendRequest<Bytes>,
    /// `scheme://host:port`.
    base: Arc<str>,
    model: Arc<ModelRequest>,
    authorization: Option<HeaderValue>,
    /// The task that reads and writes the socket.
    driver: AbortHandle,
    life: Arc<Life>,
}

/// The state that shows whether a connection has ended. Tasks can wait for the end.
#[derive(Default)]
pub(crate) struct Life {
    is_over: AtomicBool,
    over: Notify,
}

impl Life {
    pub(crate) fn end(&self) {
        self.is_over.store(true, Ordering::Release);
        self.over.notify_waiters();
    }

    pub(crate) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }

    /// Waits until the connection has ended.
    pub(crate) async fn ended(&self) {
        loop {
            let notified = self.over.notified();
            if self.is_over() {
                return;
            }
            notified.await;
        }
    }
}

/// Ends a [`Life`] when it is dropped, also if the task of the connection is aborted.
pub(crate) struct EndsLife(pub(crate) Arc<Life>);

impl Drop for EndsLife {
    fn drop(&mut self) {
        self.0.end();
    }
}

impl Grpc {
    /// Begins HTTP/2 on an open socket. The caller limits the time.
    pub(crate) async fn open(
        socket: Box<dyn Socket>,
        address: &Address,
        options: &Options,
        authorization: Option<HeaderValue>,
    ) -> Result<Self, Failure> {
        let mut builder = h2::client::Builder::new();
        builder.initial_window_size(CALL_WINDOW).initial_connection_window_size(CONNECTION_WINDOW).max_concurrent_reset_streams(256);
        let opened = builder.handshake(socket).await;
        let (sender, connection) = opened.map_err(|error| Failure::unavailable(format!("HTTP/2 handshake: {error}")))?;
        let life = Arc::new(Life::default());
        let ends = EndsLife(life.clone());
        let driver = tokio::spawn(async move {
            let _ends = ends;
            if let Err(error) = connection.await {
                tracing::debug!("the connection to an inference server ended: {error}");
            }
        });
        let scheme = if options.is_tls { "https" } else { "http" };
        let model = ModelRequest { name: options.model.clone(), version: options.version.clone() };
        let base = format!("{scheme}://{}", address.authority()).into();
        Ok(Self { sender, base, model: Arc::new(model), authorization, driver: driver.abort_handle(), life })
    }

    pub(crate) fn life(&self) -> &Life {
        &self.life
    }

    /// Closes the connection at once. The memory of all its calls is released.
    pub(crate) fn kill(&self) {
        self.driver.abort();
    }

    /// Asks whether the server can run the model.
    pub(crate) async fn is_ready(&self, timeout: Duration) -> Result<bool, Failure> {
        let request = framed(&*self.model).map_err(too_large)?;
        let response = self.call("ModelReady", vec![request], Instant::now() + timeout).await?;
        Ok(decoded::<ModelReadyResponse>(response)?.ready)
    }

    /// Asks for the inputs and outputs of the model.
    pub(crate) async fn metadata(&self, timeout: Duration) -> Result<ModelMetadataResponse, Failure> {
        let request = framed(&*self.model).map_err(too_large)?;
        decoded(self.call("ModelMetadata", vec![request], Instant::now() + timeout).await?)
    }

    /// Sends a message to a method whose response has no content.
    pub(crate) async fn send(&self, method: &str, message: &impl Message, deadline: Instant) -> Result<(), Failure> {
        let request = framed(message).map_err(too_large)?;
        self.call(method, vec![request], deadline).await.map(|_empty| ())
    }

    /// Sends a framed message, and returns the message of the response.
    pub(crate) async fn call(&self, method: &str, parts: Vec<Bytes>, deadline: Instant) -> Result<Bytes, Failure> {
        let unsent =
            |error: h2::Error| Failure { blames: Blame::Connection, ..Failure::unavailable(format!("cannot send a call: {error}")) };
        let mut sender = self.sender.clone().ready().await.map_err(unsent)?;
        let (response, body) = sender.send_request(self.request(method, deadline)?, false).map_err(unsent)?;
        let mut stream = ResetOnDrop(Some(body));
        let n_parts = parts.len();
        for (idx, part) in parts.into_iter().enumerate() {
            if let Some(body) = &mut stream.0 {
                body.send_data(part, idx + 1 == n_parts).map_err(of_stream)?;
            }
        }
        let response = response.await.map_err(of_stream)?;
        let (head, body) = response.into_parts();
        let read = read(head.status.as_u16(), &head.headers, body).await;
        // The server has ended the stream, so a reset would have no effect.
        stream.0 = None;
        read
    }

    fn request(&self, method: &str, deadline: Instant) -> Result<Request<()>, Failure> {
        let left = deadline.saturating_duration_since(Instant::now()).as_millis().clamp(1, 99_999_999);
        let request = Request::builder()
            .method(Method::POST)
            .uri(format!("{}/{SERVICE}/{method}", self.base))
            .header("te", "trailers")
            .header("content-type", "application/grpc")
            .header("grpc-timeout", format!("{left}m"))
            .header("user-agent", concat!("roiflow/", env!("CARGO_PKG_VERSION")));
        let mut request = request.body(()).map_err(|error| Failure::protocol(format!("invalid request: {error}")))?;
        if let Some(authorization) = &self.authorization {
            request.headers_mut().insert(http::header::AUTHORIZATION, authorization.clone());
        }
        Ok(request)
    }
}

/// Cancels the call on the server if its future is dropped, or if the call fails.
struct ResetOnDrop(Option<SendStream<Bytes>>);

impl Drop for ResetOnDrop {
    fn drop(&mut self) {
        if let Some(stream) = &mut self.0 {
            stream.send_reset(Reason::CANCEL);
        }
    }
}

/// Reads a response: a message, and then a status in the trailers (headers after the body). A response without a message can have the
/// status in its headers.
async fn read(http_status: u16, headers: &HeaderMap, mut body: RecvStream) -> Result<Bytes, Failure> {
    if http_status != 200 {
        return Err(of_http_status(http_status, "expected a server of gRPC"));
    }
    check_status(headers, false)?;
    let mut chunks: Vec<Bytes> = Vec::new();
    let mut n_bytes = 0_usize;
    while let Some(chunk) = body.data().await {
        let chunk = chunk.map_err(of_stream)?;
        body.flow_control().release_capacity(chunk.len()).map_err(of_stream)?;
        n_bytes += chunk.len();
        if n_bytes > MAX_RESPONSE_BYTES {
            return Err(Failure::protocol(format!("the response is too large: expected at most {MAX_RESPONSE_BYTES} bytes")));
        }
        chunks.push(chunk);
    }
    let trailers = body.trailers().await.map_err(of_stream)?.unwrap_or_default();
    check_status(&trailers, !headers.contains_key("grpc-status"))?;
    message_of(chunks, n_bytes)
}

/// Joins the chunks of a response and removes the frame of its only message.
fn message_of(mut chunks: Vec<Bytes>, n_bytes: usize) -> Result<Bytes, Failure> {
    let mut whole = match chunks.len() {
        1 => chunks.remove(0),
        _ => {
            let mut whole = BytesMut::with_capacity(n_bytes);
            chunks.iter().for_each(|chunk| whole.extend_from_slice(chunk));
            whole.freeze()
        }
    };
    let Some((&[is_compressed, a, b, c, d], _)) = whole.split_first_chunk::<5>() else {
        return Err(Failure::protocol(format!("expected a message, got {n_bytes} bytes")));
    };
    if is_compressed != 0 {
        return Err(Failure::protocol("the response is compressed, although the call did not offer this"));
    }
    let len = u32::from_be_bytes([a, b, c, d]) as usize;
    let message = whole.split_off(5);
    match message.len() == len {
        true => Ok(message),
        false => Err(Failure::protocol(format!("expected one message of {len} bytes, got {} bytes", message.len()))),
    }
}

/// Checks the status in headers or trailers.
fn check_status(headers: &HeaderMap, is_required: bool) -> Result<(), Failure> {
    let Some(status) = headers.get("grpc-status") else {
        return match is_required {
            true => Err(Failure::protocol("expected a status at the end of the response, got none")),
            false => Ok(()),
        };
    };
    let code = status.to_str().ok().and_then(|code| code.parse::<u32>().ok());
    match code.ok_or_else(|| Failure::protocol(format!("expected a number as status, got {status:?}")))? {
        0 => Ok(()),
        code => {
            let message = headers.get("grpc-message").map(|message| percent_decoded(message.as_bytes())).unwrap_or_default();
            Err(of_grpc_status(code, &message))
        }
    }
}

/// Decodes the text of a status, in which bytes outside of printable ASCII are written as `%XX`.
fn percent_decoded(text: &[u8]) -> String {
    let mut decoded = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&byte, after)) = rest.split_first() {
        let hex = after.get(..2).filter(|_| byte == b'%').and_then(|hex| std::str::from_utf8(hex).ok());
        match hex.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            Some(value) => {
                decoded.push(value);
                rest = &after[2..];
            }
            None => {
                decoded.push(byte);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&decoded).into_owned()
}

/// Returns the failure for an error of a call that was begun. In HTTP/2, each call is a stream of the connection.
fn of_stream(error: h2::Error) -> Failure {
    let was_refused = error.reason() == Some(Reason::REFUSED_STREAM) && error.is_remote();
    // A server that shuts down names the last stream that it processes. Calls after this stream fail with the error of the GOAWAY frame.
    let came_after_the_last = error.is_go_away() && error.is_remote() && error.reason() == Some(Reason::NO_ERROR);
    if was_refused || came_after_the_last {
        let blames = if was_refused { Blame::Server } else { Blame::Connection };
        return Failure { blames, ..Failure::unavailable(format!("the server refused the call: {error}")) };
    }
    if error.is_reset() && error.is_remote() {
        // A server resets the stream of a call whose deadline is over.
        return Failure { blames: Blame::Server, ..Failure::broken(error) };
    }
    Failure::broken(error)
}

fn too_large(n_bytes: usize) -> Failure {
    Failure::new(
        crate::runtime::ErrorKind::Tensor,
        format!("the inputs are too large: expected a message below 4 GiB, got {n_bytes} bytes"),
    )
}

/// Returns the message of a call with inputs, in parts, of which the contents are not copied.
///
/// # Errors
/// Returns `Tensor` if the message is too large for gRPC.
pub(crate) fn infer_parts(head: &super::protocol::InferHead, contents: &[Bytes]) -> Result<Vec<Bytes>, Failure> {
    super::protocol::encode_infer(head, contents).map_err(too_large)
}

/// Decodes a message.
pub(crate) fn decoded<M: Message + Default>(message: Bytes) -> Result<M, Failure> {
    M::decode(message).map_err(|error| Failure::protocol(format!("expected a message of KServe v2: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_of_a_status_is_decoded() {
        assert_eq!(percent_decoded(b"100%25 of %E2%82%AC, 5% and %zz"), "100% of \u{20ac}, 5% and %zz");
    }

    #[test]
    fn a_response_has_one_whole_message() {
        let whole = [0, 0, 0, 0, 3, 7, 8, 9];
        for split in 0..=whole.len() {
            let chunks = vec![Bytes::copy_from_slice(&whole[..split]), Bytes::copy_from_slice(&whole[split..])];
            assert_eq!(message_of(chunks, whole.len()).unwrap()[..], [7, 8, 9]);
        }
        for wrong in [&whole[..4], &whole[..7], &[1, 0, 0, 0, 3, 7, 8, 9], &[0, 0, 0, 0, 2, 7, 8, 9]] {
            assert!(message_of(vec![Bytes::copy_from_slice(wrong)], wrong.len()).is_err(), "{wrong:?}");
        }
    }
}
