//! Limits the requests of an `rtspsrc`, which follows redirects without an end.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use gst::prelude::*;
use gstreamer as gst;

/// Maximum number of requests within [`PERIOD`]. Opening a camera takes up to 30 requests: each one is sent again with the login, and all
/// of them again by TCP if no video arrives by UDP.
const MAX_REQUESTS: u32 = 64;
const PERIOD: Duration = Duration::from_secs(10);

/// Posts an error and sends no more requests if an `rtspsrc` sends too many, because the server redirects it in a circle.
pub fn limit(rtspsrc: &gst::Element) {
    let period = Mutex::new((Instant::now(), 0));
    rtspsrc.connect("before-send", false, move |values| {
        let mut period = period.lock().unwrap_or_else(PoisonError::into_inner);
        if period.0.elapsed() > PERIOD {
            *period = (Instant::now(), 0);
        }
        period.1 += 1;
        let is_allowed = period.1 <= MAX_REQUESTS;
        if period.1 == MAX_REQUESTS + 1
            && let Some(Ok(source)) = values.first().map(|value| value.get::<gst::Element>())
        {
            let seconds = PERIOD.as_secs();
            gst::element_error!(
                source,
                gst::ResourceError::OpenRead,
                ("the server redirects in a circle: expected video after at most {MAX_REQUESTS} requests in {seconds} s. Check the address")
            );
        }
        Some(is_allowed.to_value())
    });
}
