//! Live video to a WebSocket.
//!
//! Texts tell what follows: `{"begin": CODEC}` before the header of a file, `{"frame": NUMBER, "time_us": TIME}` for the place of a frame in
//! the file, `{"error": REASON}` if there is no video. Binary messages are the header and the fragments.

use axum::body::Bytes;
use axum::extract::ws::{Message, WebSocket, WebSocketUpgrade};
use axum::extract::{Extension, Path, State};
use axum::response::Response;

use super::App;
use super::clients::Client;
use super::live::{KEEP_ALIVE, Place, send_in_time};
use crate::error::Result;
use crate::video::{Item, Video};

pub(super) async fn socket(
    State(app): State<App>,
    Extension(client): Extension<Client>,
    Path(name): Path<String>,
    upgrade: WebSocketUpgrade,
) -> Result<Response> {
    let video = app.registry().feed(&name)?.video().clone();
    let place = Place::take(&app, &client)?;
    // Clients send nothing but answers to pings.
    Ok(upgrade.max_message_size(4096).on_upgrade(move |socket| async move {
        send(socket, &app, &video).await;
        drop(place);
    }))
}

/// Sends the video until the viewer, the stream or the server ends.
async fn send(mut socket: WebSocket, app: &App, video: &Video) {
    let mut ending = app.ending.clone();
    let mut ping = tokio::time::interval(KEEP_ALIVE);
    let (mut viewer, mut items) = video.watch();
    loop {
        for item in items.drain(..) {
            let counted = match &item {
                Item::Fragment { arrived: Some(arrived), is_encoded, .. } => Some((*arrived, *is_encoded)),
                _ => None,
            };
            for message in messages(item) {
                // A client that reads nothing must not keep the encoder running.
                if !send_in_time(&mut socket, message, KEEP_ALIVE).await {
                    return;
                }
            }
            if let Some((arrived, is_encoded)) = counted {
                app.registry().hub().video.delayed(is_encoded, arrived.elapsed());
            }
        }
        let is_due = tokio::select! {
            next = viewer.next() => match next {
                Some(next) => {
                    items = next;
                    false
                }
                None => break,
            },
            received = socket.recv() => match received {
                Some(Ok(Message::Close(_)) | Err(_)) | None => return,
                Some(Ok(_)) => false,
            },
            _ = ping.tick() => true,
            _ = ending.wait_for(|is_ending| *is_ending) => break,
        };
        if is_due && !send_in_time(&mut socket, Message::Ping(Bytes::new()), KEEP_ALIVE).await {
            return;
        }
    }
    // The viewer may be gone already.
    let _sent = send_in_time(&mut socket, Message::Close(None), KEEP_ALIVE).await;
}

fn messages(item: Item) -> Vec<Message> {
    let text = |content: serde_json::Value| Message::Text(content.to_string().into());
    match item {
        Item::Begin(header) => vec![text(serde_json::json!({"begin": header.codec})), Message::Binary(header.bytes)],
        Item::Fragment { bytes, .. } => vec![Message::Binary(bytes)],
        Item::Frame { time_us, number } => vec![text(serde_json::json!({"frame": number, "time_us": time_us}))],
        Item::Failed(reason) => vec![text(serde_json::json!({"error": &*reason}))],
        // The socket closes instead.
        Item::End => Vec::new(),
    }
}
