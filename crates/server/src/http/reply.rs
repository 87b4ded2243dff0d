//! JSON in and out, and errors.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::{FromRequest, FromRequestParts, Query, Request};
use axum::http::{StatusCode, header, request::Parts};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::App;
use crate::error::{Error, Result};

/// How long a client may take to send the body of a request.
const MAX_BODY_TIME: Duration = Duration::from_secs(10);

/// A body of JSON.
pub(super) struct Json<T>(pub(super) T);

impl<T: Serialize> IntoResponse for Json<T> {
    fn into_response(self) -> Response {
        match serde_json::to_vec(&self.0) {
            Ok(text) => ([(header::CONTENT_TYPE, "application/json"), (header::CACHE_CONTROL, "no-store")], text).into_response(),
            Err(error) => Error::internal(format!("cannot write the answer as JSON: {error}")).into_response(),
        }
    }
}

impl<T: DeserializeOwned> FromRequest<App> for Json<T> {
    type Rejection = Error;

    async fn from_request(request: Request, app: &App) -> Result<Self> {
        let kind = request.headers().get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or("nothing").to_owned();
        // Other web pages can make a browser send forms, but not JSON.
        if kind.split(';').next().map(str::trim) != Some("application/json") {
            let advice = "Add the header `Content-Type: application/json`";
            let error = Error::value("content_type", "Content-Type", "`application/json`", format!("`{kind}`"), advice);
            return Err(error.with_status(415));
        }
        let max_bytes = app.registry().policy().config().limits.body_bytes;
        let received = tokio::time::timeout(MAX_BODY_TIME, Bytes::from_request(request, app)).await;
        let late = |_| Error::new(408, "body_too_slow", format!("body: expected it within {} s", MAX_BODY_TIME.as_secs()));
        let body = received.map_err(late)?.map_err(|rejection| {
            if rejection.status() == StatusCode::PAYLOAD_TOO_LARGE {
                Error::new(413, "body_too_large", format!("body: expected at most {max_bytes} bytes, got more"))
            } else {
                Error::new(400, "body", format!("the body cannot be read: {}", rejection.body_text()))
            }
        })?;
        serde_json::from_slice(&body).map(Self).map_err(|error| {
            let advice = "`GET /api/openapi.json` describes the body";
            Error::value("invalid_json", "body", "a JSON object of this request", format!("one with an error: {error}"), advice)
        })
    }
}

impl IntoResponse for Error {
    fn into_response(self) -> Response {
        #[derive(Serialize)]
        struct Body {
            error: Error,
        }
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        if status.is_server_error() && status != StatusCode::SERVICE_UNAVAILABLE {
            tracing::warn!("a request failed: {self}");
        }
        let mut response = Json(Body { error: self }).into_response();
        *response.status_mut() = status;
        if status == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, header::HeaderValue::from_static("Bearer"));
        }
        response
    }
}

/// The options behind `?`.
pub(super) struct Options(BTreeMap<String, String>);

impl<S: Send + Sync> FromRequestParts<S> for Options {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self> {
        let query = Query::<BTreeMap<String, String>>::from_request_parts(parts, state).await;
        query.map(|Query(options)| Self(options)).map_err(|rejection| Error::new(400, "query", rejection.body_text()))
    }
}

impl Options {
    /// Checks that only these options exist.
    pub(super) fn allow(&self, names: &[&str]) -> Result<()> {
        match self.0.keys().find(|name| !names.contains(&name.as_str())) {
            None => Ok(()),
            Some(other) => {
                let expected = if names.is_empty() { "no options".to_owned() } else { format!("options among {}", names.join(", ")) };
                let shown: String = other.chars().take(40).collect();
                Err(Error::value("unknown_option", "query", expected, format!("`{shown}`"), ""))
            }
        }
    }

    /// Returns a number in a range, or the default.
    pub(super) fn number(&self, name: &str, range: std::ops::RangeInclusive<u64>, default: u64) -> Result<u64> {
        let Some(text) = self.0.get(name) else { return Ok(default) };
        let number = text.parse().ok().filter(|number| range.contains(number));
        number.ok_or_else(|| {
            let expected = format!("a number from {} to {}", range.start(), range.end());
            let shown: String = text.chars().take(40).collect();
            Error::value("invalid_option", name, expected, format!("`{shown}`"), "")
        })
    }

    /// Returns true or false, or the default.
    pub(super) fn flag(&self, name: &str, default: bool) -> Result<bool> {
        match self.0.get(name).map(String::as_str) {
            None => Ok(default),
            Some("true" | "1" | "") => Ok(true),
            Some("false" | "0") => Ok(false),
            Some(other) => {
                let shown: String = other.chars().take(40).collect();
                Err(Error::value("invalid_option", name, "true or false", format!("`{shown}`"), ""))
            }
        }
    }

    /// Returns a text.
    pub(super) fn text(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }
}
