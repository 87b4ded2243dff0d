//! The latest crops of a stream, which are cut while clients ask for them.

use std::time::{Duration, UNIX_EPOCH};

use axum::extract::{Path, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use schemars::JsonSchema;
use serde::Serialize;
use tokio::time::Instant;

use super::App;
use super::live::MAX_PICTURE_WAIT;
use super::reply::{Json, Options};
use crate::crops::{Crop, MAX_CROPS};
use crate::error::{Error, Result};
use crate::feed::WeakFeed;

/// Shortest time between two frames that are cut.
const INTERVAL: Duration = Duration::from_millis(200);

/// The latest crops of a stream, newest first.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct CropList {
    crops: Vec<CropView>,
}

/// An object that was cut out of a frame.
#[derive(Debug, Serialize, JsonSchema)]
struct CropView {
    /// Number of the crop in its stream, for `GET /api/streams/{name}/crops/{id}`.
    id: u64,
    /// Label of the class, or its number if the model has no labels.
    label: String,
    /// Confidence of the detector, 0 to 1; `null` if it is unknown.
    confidence: Option<f32>,
    /// Track ID; `null` without a tracker.
    track: Option<i64>,
    /// Number of the frame in its stream.
    frame: u64,
    /// Capture time of the frame in milliseconds since 1970.
    time_ms: u64,
    /// Edges of the object as fractions of the frame size.
    bounding_box: BoundingBox,
    /// Address of the crop as JPEG.
    picture: String,
}

/// Edges of an object as fractions of the frame size.
#[derive(Debug, Serialize, JsonSchema)]
struct BoundingBox {
    x_min: f32,
    y_min: f32,
    x_max: f32,
    y_max: f32,
}

impl CropView {
    fn of(stream: &str, crop: &Crop) -> Self {
        let [x_min, y_min, x_max, y_max] = crop.rect;
        Self {
            id: crop.id,
            label: crop.label.clone(),
            confidence: crop.confidence,
            track: crop.track,
            frame: crop.frame,
            time_ms: crop.time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64),
            bounding_box: BoundingBox { x_min, y_min, x_max, y_max },
            picture: format!("/api/streams/{stream}/crops/{}", crop.id),
        }
    }
}

/// Lists the crops. The first request after a pause waits for a frame.
pub(super) async fn list(State(app): State<App>, Path(name): Path<String>, options: Options) -> Result<Json<CropList>> {
    options.allow(&["limit"])?;
    let limit = options.number("limit", 1..=MAX_CROPS as u64, 20)? as usize;
    let feed = app.registry().feed(&name)?;
    if feed.crops().ask(std::time::Instant::now()) {
        tokio::spawn(cut(app.clone(), feed.downgrade()));
    }
    // A stream without frames has no crops.
    let _in_time = tokio::time::timeout(MAX_PICTURE_WAIT, feed.crops().first()).await;
    let crops = feed.crops().newest(limit);
    Ok(Json(CropList { crops: crops.iter().map(|crop| CropView::of(&name, crop)).collect() }))
}

/// Returns a crop as JPEG.
pub(super) async fn picture(State(app): State<App>, Path((name, id)): Path<(String, String)>) -> Result<Response> {
    let feed = app.registry().feed(&name)?;
    let crop = id.parse().ok().and_then(|id| feed.crops().get(id)).ok_or_else(|| {
        let shown: String = id.chars().take(40).collect();
        let advice =
            "A crop is kept for up to 5 s after it has left the list, while there is space, and only while clients ask for the list";
        Error::value("unknown_crop", "crop", "the `id` of a crop in `GET /api/streams/{name}/crops`", format!("`{shown}`"), advice)
            .with_status(404)
    })?;
    Ok(([(header::CONTENT_TYPE, "image/jpeg"), (header::CACHE_CONTROL, "no-store")], crop.jpeg.clone()).into_response())
}

/// Cuts objects out of frames until no client has asked for a while, the stream is removed, or the server ends.
async fn cut(app: App, weak: WeakFeed) {
    let mut ending = app.ending.clone();
    loop {
        let begin = Instant::now();
        let next = {
            let Some(feed) = weak.upgrade().filter(|feed| feed.crops().is_wanted(std::time::Instant::now())) else { return };
            feed.next_picture()
        };
        let taken = tokio::select! {
            taken = tokio::time::timeout(MAX_PICTURE_WAIT, next) => taken,
            _ = ending.wait_for(|is_ending| *is_ending) => return,
        };
        // A stream with a lost source has no frame.
        if let Ok(Ok(shot)) = taken {
            let Ok(encoder) = app.encoders.acquire().await else { return };
            let hub = app.registry().hub().clone();
            let of_thread = shot.clone();
            let cut = tokio::task::spawn_blocking(move || of_thread.crops(&hub)).await;
            drop(encoder);
            let Some(feed) = weak.upgrade() else { return };
            let cuts = cut.map_err(|error| error.to_string()).and_then(|cuts| cuts).unwrap_or_else(|error| {
                tracing::debug!("objects cannot be cut out of a frame: {error}");
                Vec::new()
            });
            feed.crops().add(shot.number(), shot.time(), cuts, std::time::Instant::now());
        }
        tokio::time::sleep_until(begin + INTERVAL).await;
    }
}
