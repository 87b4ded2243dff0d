//! Sends traces and logs of `roiflow serve` and `roiflow node` to a collector of OpenTelemetry.
//!
//! - `enabled`: the layers of the log, and the settings of OpenTelemetry. `queue`: the bounded queue and its thread. `client`: HTTP.
//! - `disabled`: the same functions in a build without the feature `telemetry`.

#[cfg(feature = "telemetry")]
mod client;
#[cfg(not(feature = "telemetry"))]
mod disabled;
#[cfg(feature = "telemetry")]
mod enabled;
#[cfg(feature = "telemetry")]
mod queue;

#[cfg(not(feature = "telemetry"))]
pub(super) use disabled::{Telemetry, logs, traces};
#[cfg(feature = "telemetry")]
pub(super) use enabled::{Telemetry, logs, traces};
