//! Spans and logs for collectors of OpenTelemetry: what this crate records, and how many of them were sent. The program sends them.

use std::sync::atomic::AtomicU64;

/// Target of spans that are traces. The log of the program does not show this target. It is not the name of a crate, so no crate uses it by accident.
pub const TARGET: &str = "telemetry";

/// Counters of spans and logs.
#[derive(Debug, Default)]
pub struct Counts {
    /// Spans that the collector has accepted.
    pub spans_sent: AtomicU64,
    /// Spans that were lost because the collector did not accept them in time.
    pub spans_lost: AtomicU64,
    /// Logs that the collector has accepted.
    pub logs_sent: AtomicU64,
    /// Logs that were lost because the collector did not accept them in time.
    pub logs_lost: AtomicU64,
}
