//! Requests about the folder of models.

use std::path::PathBuf;
use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures::StreamExt;
use schemars::JsonSchema;
use serde::Serialize;
use tokio::time::Instant;

use super::App;
use super::reply::{Json, Options};
use crate::error::{Error, Result};
use crate::models::{self, MAX_UPLOAD_TIME, ModelFile, Upload};

/// How long a client may send nothing.
const MAX_PAUSE: Duration = Duration::from_secs(10);

/// All files in the folder of models.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct ModelList {
    models: Vec<ModelFile>,
}

fn folder(app: &App) -> Result<PathBuf> {
    let missing =
        || Error::new(404, "no_models", "models: expected a server with a folder of models, got none. Add --models FOLDER to the server");
    app.registry().policy().config().models.clone().ok_or_else(missing)
}

async fn blocking<T: Send + 'static>(act: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    tokio::task::spawn_blocking(act).await.unwrap_or_else(|error| Err(Error::internal(format!("internal error: {error}"))))
}

pub(super) async fn list(State(app): State<App>) -> Result<Json<ModelList>> {
    let folder = folder(&app)?;
    let failed = |error| Error::internal(format!("the folder of models cannot be read: {error}"));
    blocking(move || models::list(&folder).map(|models| Json(ModelList { models })).map_err(failed)).await
}

pub(super) async fn upload(State(app): State<App>, options: Options, headers: HeaderMap, body: Body) -> Result<Response> {
    options.allow(&["name", "replace"])?;
    let config = app.registry().policy().config();
    if !config.upload_models {
        let message = "upload: expected a server that accepts models, got one that does not. Set `upload-models = true` in its settings";
        return Err(Error::new(403, "uploads_off", message));
    }
    let folder = folder(&app)?;
    // Other web pages can make a browser send forms, but not this type.
    if headers.get(header::CONTENT_TYPE).is_none_or(|kind| kind != "application/octet-stream") {
        let advice = "Add the header `Content-Type: application/octet-stream`";
        return Err(Error::value("content_type", "Content-Type", "`application/octet-stream`", "another one", advice).with_status(415));
    }
    let Ok(_place) = app.uploads.try_acquire() else {
        return Err(Error::new(503, "busy", "another model is being uploaded. Try again when it is complete"));
    };
    let (name, replace) = (options.text("name").unwrap_or_default().to_owned(), options.flag("replace", false)?);
    let max_bytes = config.limits.model_bytes;
    let mut upload = blocking(move || {
        models::clean_up(&folder);
        Upload::begin(&folder, &name, replace, max_bytes)
    })
    .await?;
    let mut parts = body.into_data_stream();
    let end = Instant::now() + MAX_UPLOAD_TIME;
    loop {
        let pause = Instant::now() + MAX_PAUSE;
        let late = |_| {
            let (expected, time) = if end < pause { ("the whole file", MAX_UPLOAD_TIME) } else { ("bytes", MAX_PAUSE) };
            Error::new(408, "body_too_slow", format!("body: expected {expected} within {} s, got less", time.as_secs()))
        };
        let Some(part) = tokio::time::timeout_at(end.min(pause), parts.next()).await.map_err(late)? else { break };
        let part = part.map_err(|error| Error::new(400, "body", format!("the body cannot be read: {error}")))?;
        upload = blocking(move || upload.add(&part).map(|()| upload)).await?;
    }
    let registry = app.registry().clone();
    let uploaded = blocking(move || upload.finish(|path| registry.inspect(path))).await?;
    Ok((StatusCode::CREATED, Json(uploaded)).into_response())
}
