//! Results, events and pictures as they occur: server-sent events, WebSockets, JPEG, and MJPEG.
//!
//! A client that is too slow loses whole messages: its connection is not read from while its buffer is full, and results that leave the
//! ring meanwhile are counted, and reported to the client as `dropped`.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::ws::{Message, WebSocket, WebSocketUpgrade};
use axum::extract::{Extension, Path, State};
use axum::http::header;
use axum::response::sse::{KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures::stream::BoxStream;
use futures::{Sink, SinkExt, Stream, StreamExt, stream};
use tokio::sync::broadcast::{Receiver, error::RecvError};
use tokio::time::Instant;

use super::App;
use super::clients::{Client, Full, Share};
use super::reply::Options;
use crate::error::{Error, Result};
use crate::feed::{Feed, Hub, Published, Shot, WeakFeed};
use crate::nodes::ResultLog;

/// Interval of signs of life on a quiet connection.
pub(super) const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// How long a picture may wait for a frame.
pub(super) const MAX_PICTURE_WAIT: Duration = Duration::from_secs(3);
/// Widest picture, and the default.
const MAX_WIDTH: u64 = 3840;
const DEFAULT_WIDTH: u64 = 960;
/// Highest and default frame rate of MJPEG.
const MAX_FPS: u64 = 30;
const DEFAULT_FPS: u64 = 10;
/// Separator of the pictures of MJPEG.
const BOUNDARY: &str = "roiflow-picture";

/// A place among the live clients. Dropping it frees the place.
pub(super) struct Place(Arc<Hub>, #[expect(dead_code, reason = "given back when it is dropped")] Share);

impl Place {
    pub(super) fn take(app: &App, client: &Client) -> Result<Self> {
        let share = app.live.take(client).map_err(|full| {
            let message = match full {
                Full::All(max) => format!("expected at most {max} clients that receive live data, got one more. Close another one"),
                Full::OfClient(max) => format!(
                    "expected at most {max} live connections of this client, got one more. Close another one, or raise \
                     `limits.subscribers-per-client` of the server"
                ),
            };
            Error::new(503, "too_many_subscribers", message)
        })?;
        let hub = app.registry().hub();
        hub.subscribers.fetch_add(1, Ordering::AcqRel);
        Ok(Self(hub.clone(), share))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.subscribers.fetch_sub(1, Ordering::AcqRel);
    }
}

/// A message to a client of results.
enum Item {
    /// A line of results.
    Result(Bytes),
    /// Number of results that the client was too slow to receive.
    Dropped(u64),
}

/// Receives results until the stream is removed or the server ends. `line` returns the line of a result.
fn items<T: Clone + Send + 'static>(
    app: &App,
    receiver: Receiver<T>,
    line: fn(T) -> Bytes,
    feed: Option<WeakFeed>,
    place: Place,
) -> BoxStream<'static, Item> {
    let ending = app.ending.clone();
    let items = stream::unfold((receiver, feed, place, ending), move |(mut receiver, feed, place, mut ending)| async move {
        let received = tokio::select! {
            received = receiver.recv() => received,
            _ = ending.wait_for(|is_ending| *is_ending) => return None,
        };
        let item = match received {
            Ok(result) => Item::Result(line(result)),
            Err(RecvError::Lagged(n_results)) => {
                match &feed {
                    Some(feed) => feed.upgrade().into_iter().for_each(|feed| feed.count_dropped(n_results)),
                    None => drop(place.0.dropped.fetch_add(n_results, Ordering::Relaxed)),
                }
                Item::Dropped(n_results)
            }
            Err(RecvError::Closed) => return None,
        };
        Some((item, (receiver, feed, place, ending)))
    });
    items.boxed()
}

fn line(published: Arc<Published>) -> Bytes {
    published.line().clone()
}

/// Receives the results of all streams: those of all nodes, if this node can read them, otherwise those of this server.
fn items_of_all(app: &App, place: Place) -> BoxStream<'static, Item> {
    match app.nodes.results().map(ResultLog::subscribe) {
        Some(lines) => items(app, lines, |line| line, None, place),
        None => items(app, app.registry().hub().subscribe(), line, None, place),
    }
}

/// Server-sent events of results.
fn sse(items: impl Stream<Item = Item> + Send + 'static) -> Response {
    let events = items.map(|item| {
        let event = axum::response::sse::Event::default();
        Ok::<_, Infallible>(match item {
            Item::Result(line) => event.event("result").data(String::from_utf8_lossy(&line)),
            Item::Dropped(n_results) => event.event("dropped").data(format!("{{\"results\":{n_results}}}")),
        })
    });
    Sse::new(events).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)).into_response()
}

pub(super) async fn results_of_stream(
    State(app): State<App>,
    Extension(client): Extension<Client>,
    Path(name): Path<String>,
) -> Result<Response> {
    let feed = app.registry().feed(&name)?;
    Ok(sse(items(&app, feed.subscribe(), line, Some(feed.downgrade()), Place::take(&app, &client)?)))
}

pub(super) async fn results_of_all(State(app): State<App>, Extension(client): Extension<Client>) -> Result<Response> {
    Ok(sse(items_of_all(&app, Place::take(&app, &client)?)))
}

pub(super) async fn socket_of_stream(
    State(app): State<App>,
    Extension(client): Extension<Client>,
    Path(name): Path<String>,
    upgrade: WebSocketUpgrade,
) -> Result<Response> {
    let feed = app.registry().feed(&name)?;
    let items = items(&app, feed.subscribe(), line, Some(feed.downgrade()), Place::take(&app, &client)?);
    Ok(accept(upgrade, items))
}

pub(super) async fn socket_of_all(
    State(app): State<App>,
    Extension(client): Extension<Client>,
    upgrade: WebSocketUpgrade,
) -> Result<Response> {
    Ok(accept(upgrade, items_of_all(&app, Place::take(&app, &client)?)))
}

fn accept(upgrade: WebSocketUpgrade, items: impl Stream<Item = Item> + Send + 'static) -> Response {
    // Clients send nothing but answers to pings.
    upgrade.max_message_size(4096).on_upgrade(move |socket| send(socket, items))
}

/// Sends results to a WebSocket, as texts, until one of both sides ends.
async fn send(mut socket: WebSocket, items: impl Stream<Item = Item>) {
    tokio::pin!(items);
    let mut ping = tokio::time::interval(KEEP_ALIVE);
    loop {
        let message = tokio::select! {
            item = items.next() => match item {
                Some(Item::Result(line)) => Message::Text(String::from_utf8_lossy(&line).into_owned().into()),
                Some(Item::Dropped(n_results)) => Message::Text(format!("{{\"dropped\":{n_results}}}").into()),
                None => Message::Close(None),
            },
            received = socket.recv() => match received {
                Some(Ok(Message::Close(_)) | Err(_)) | None => return,
                Some(Ok(_)) => continue,
            },
            _ = ping.tick() => Message::Ping(Bytes::new()),
        };
        let is_last = matches!(message, Message::Close(_));
        if !send_in_time(&mut socket, message, KEEP_ALIVE).await || is_last {
            return;
        }
    }
}

/// Sends a message. Returns false if the connection is closed, or the client has read nothing for so long that the message cannot be sent.
pub(super) async fn send_in_time(socket: &mut (impl Sink<Message> + Unpin), message: Message, limit: Duration) -> bool {
    matches!(tokio::time::timeout(limit, socket.send(message)).await, Ok(Ok(())))
}

/// Server-sent events of the list of events.
pub(super) async fn events(State(app): State<App>, Extension(client): Extension<Client>) -> Result<Response> {
    let (receiver, ending, place) = (app.registry().events().subscribe(), app.ending.clone(), Place::take(&app, &client)?);
    let events = stream::unfold((receiver, ending, place), |(mut receiver, mut ending, place)| async move {
        let received = tokio::select! {
            received = receiver.recv() => received,
            _ = ending.wait_for(|is_ending| *is_ending) => return None,
        };
        let event = axum::response::sse::Event::default();
        let event = match received {
            Ok(happened) => event.event("event").data(serde_json::to_string(&*happened).unwrap_or_default()),
            Err(RecvError::Lagged(n_events)) => event.event("dropped").data(format!("{{\"events\":{n_events}}}")),
            Err(RecvError::Closed) => return None,
        };
        Some((Ok::<_, Infallible>(event), (receiver, ending, place)))
    });
    Ok(Sse::new(events).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)).into_response())
}

/// Size and content of a picture.
#[derive(Debug, Clone, Copy)]
struct Kind {
    max_width: u32,
    boxes: bool,
}

impl Kind {
    fn of(options: &Options) -> Result<Self> {
        let max_width = options.number("width", 16..=MAX_WIDTH, DEFAULT_WIDTH)?;
        Ok(Self { max_width: max_width as u32, boxes: options.flag("boxes", true)? })
    }
}

/// Takes and encodes the next frame of a stream.
async fn next_picture(app: &App, feed: &Feed, kind: Kind) -> Result<Bytes> {
    let missing = || {
        let message = "picture: expected a frame within 3 s, got none. The state of the stream says why";
        Error::new(503, "no_frame", message)
    };
    let waiting = tokio::time::timeout(MAX_PICTURE_WAIT, feed.next_picture());
    let shot: Arc<Shot> = waiting.await.ok().and_then(Result::ok).ok_or_else(missing)?;
    let internal = |error: &dyn std::fmt::Display| Error::internal(format!("the frame cannot be encoded: {error}"));
    let _encoder = app.encoders.acquire().await.map_err(|error| internal(&error))?;
    let hub = app.registry().hub().clone();
    let encoded = tokio::task::spawn_blocking(move || shot.jpeg(kind.max_width, kind.boxes, &hub)).await;
    encoded.map_err(|error| internal(&error))?.map_err(|error| internal(&error))
}

pub(super) async fn picture(State(app): State<App>, Path(name): Path<String>, options: Options) -> Result<Response> {
    options.allow(&["width", "boxes", "t"])?;
    let (feed, kind) = (app.registry().feed(&name)?, Kind::of(&options)?);
    let picture = next_picture(&app, &feed, kind).await?;
    Ok(([(header::CONTENT_TYPE, "image/jpeg"), (header::CACHE_CONTROL, "no-store")], picture).into_response())
}

pub(super) async fn mjpeg(
    State(app): State<App>,
    Extension(client): Extension<Client>,
    Path(name): Path<String>,
    options: Options,
) -> Result<Response> {
    options.allow(&["width", "boxes", "fps"])?;
    let (feed, kind) = (app.registry().feed(&name)?, Kind::of(&options)?);
    let interval = Duration::from_secs_f64(1.0 / options.number("fps", 1..=MAX_FPS, DEFAULT_FPS)? as f64);
    let (place, feed) = (Place::take(&app, &client)?, feed.downgrade());
    let pictures = stream::unfold((app, feed, place, Instant::now()), move |(app, feed, place, due)| async move {
        let mut ending = app.ending.clone();
        loop {
            let next = async {
                tokio::time::sleep_until(due).await;
                match feed.upgrade() {
                    Some(feed) => Some(next_picture(&app, &feed, kind).await),
                    None => None,
                }
            };
            let taken = tokio::select! {
                taken = next => taken,
                _ = ending.wait_for(|is_ending| *is_ending) => return None,
            };
            // A stream without frames, such as one with a lost source, keeps its viewers until it is removed.
            let Ok(picture) = taken? else { continue };
            let head = format!("--{BOUNDARY}\r\nContent-Type: image/jpeg\r\nContent-Length: {}\r\n\r\n", picture.len());
            let part = [head.as_bytes(), &picture, b"\r\n"].concat();
            drop(ending);
            let due = (due + interval).max(Instant::now());
            return Some((Ok::<_, Infallible>(Bytes::from(part)), (app, feed, place, due)));
        }
    });
    let kind = format!("multipart/x-mixed-replace; boundary={BOUNDARY}");
    Ok(([(header::CONTENT_TYPE, &*kind), (header::CACHE_CONTROL, "no-store")], Body::from_stream(pictures)).into_response())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn client_that_reads_nothing_is_given_up() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let mut stuck = Box::pin(futures::sink::unfold((), |(), _: Message| futures::future::pending::<Result<(), ()>>()));
        let mut closed = Box::pin(futures::sink::unfold((), |(), _: Message| std::future::ready(Err(()))));
        let mut open = Box::pin(futures::sink::unfold((), |(), _: Message| std::future::ready(Ok::<_, ()>(()))));
        let limit = Duration::from_millis(20);
        let sent = runtime.block_on(async {
            [
                send_in_time(&mut stuck, Message::Close(None), limit).await,
                send_in_time(&mut closed, Message::Close(None), limit).await,
                send_in_time(&mut open, Message::Close(None), limit).await,
            ]
        });
        assert_eq!(sent, [false, false, true]);
    }
}
