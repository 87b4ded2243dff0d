//! Policy for frames that cannot or need not be inferred: properties, and the skip and drop reasons.
//!
//! This module uses no pads and no stages. Every property may change at any time; the driver copies them once per frame.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use gst::glib;
use gst::prelude::*;
use gstreamer as gst;

use super::format_type_name as format;
use super::properties::Properties;

/// Handling of a frame when the in-flight queue has no free slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, glib::Enum)]
#[enum_type(name = "RoiQueuePolicy", allow_name_conflict)]
pub(super) enum QueuePolicy {
    #[default]
    #[enum_value(name = "Live source: wait while the stream keeps up, else drop-oldest; other sources: wait", nick = "auto")]
    Auto,
    #[enum_value(name = "Block upstream until the queue has a free slot", nick = "wait")]
    Wait,
    #[enum_value(name = "Skip the frame that has waited longest for inference", nick = "drop-oldest")]
    DropOldest,
    #[enum_value(name = "Skip the new frame", nick = "drop-newest")]
    DropNewest,
}

/// What a frame without inference carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, glib::Enum)]
#[enum_type(name = "RoiCarryResults", allow_name_conflict)]
pub(super) enum CarryResults {
    #[default]
    #[enum_value(name = "No objects", nick = "false")]
    No,
    #[enum_value(name = "The objects of the last inferred frame", nick = "true")]
    Yes,
    #[enum_value(
        name = "The objects of the last inferred frame; roitrack downstream moves their boxes to where it predicts them",
        nick = "predicted"
    )]
    Predicted,
}

/// The property `scheduling-policy`: the order of frames of different streams, and whether a further frame waits in the element.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, glib::Enum)]
#[enum_type(name = "RoiSchedulingPolicy", allow_name_conflict)]
pub(super) enum SchedulingPolicy {
    #[default]
    #[enum_value(name = "First come, first served; a next frame waits inside, so no request is idle", nick = "throughput")]
    Throughput,
    #[enum_value(name = "The oldest frame of all streams first; no frame waits inside", nick = "latency")]
    Latency,
}

/// The reason why a frame was skipped or dropped. A reason that is due to a property has the name of that property.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reason {
    /// `inference-interval` did not select the frame.
    Interval,
    /// There was no motion since the last inferred frame.
    Motion,
    /// The in-flight queue had no free slot.
    Queue,
    /// The results were not complete within `max-latency`, or were not expected to be.
    Latency,
    /// QoS events of the sink report that the frame is too late.
    Qos,
    /// A flush or a state change discarded the frame. This reason occurs only for dropped frames.
    Flush,
    /// Downstream returned EOS or an error. This reason occurs only for dropped frames.
    Downstream,
    /// Too many frames in a row failed. This reason occurs only for dropped frames.
    Failures,
}

impl Reason {
    /// All reasons, in the order of the enum.
    pub(super) const ALL: [Self; 8] =
        [Self::Interval, Self::Motion, Self::Queue, Self::Latency, Self::Qos, Self::Flush, Self::Downstream, Self::Failures];
    /// Number of reasons that can skip a frame. These are the first reasons in the enum. The reasons after them only drop frames.
    pub(super) const N_OF_SKIPS: usize = 5;
    /// Number of reasons for which frames are never dropped, because the user has set the property that skips them. These reasons are the
    /// first in the enum.
    pub(super) const N_OF_CHOICES: usize = 2;

    /// Returns the name of the reason in statistics and results.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Interval => "inference-interval",
            Self::Motion => "motion-threshold",
            Self::Queue => "queue-policy",
            Self::Latency => "max-latency",
            Self::Qos => "qos",
            Self::Flush => "flush",
            Self::Downstream => "downstream",
            Self::Failures => "max-failures",
        }
    }

    /// Returns the name of the reason as a shared string.
    pub(super) fn text(self) -> Arc<str> {
        static TEXTS: LazyLock<[Arc<str>; Reason::ALL.len()]> = LazyLock::new(|| Reason::ALL.map(|reason| reason.name().into()));
        TEXTS[self as usize].clone()
    }
}

/// Values of the policy properties of one element.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Policy {
    pub(super) queue: QueuePolicy,
    pub(super) max_latency: Option<Duration>,
    pub(super) drop_frames: bool,
    pub(super) inference_interval: u32,
    pub(super) carry_results: CarryResults,
    /// The property `motion-threshold` of detectors. 0 = every frame counts as changed.
    pub(super) motion_threshold: f32,
    pub(super) qos: bool,
    /// Maximum number of failed frames in a row; `None` = unlimited.
    pub(super) max_failures: Option<u32>,
    pub(super) stats_interval: Option<Duration>,
    /// Whether results are also written as analytics metadata. Has no effect on inference.
    pub(super) analytics_meta: bool,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            queue: QueuePolicy::Auto,
            max_latency: None,
            drop_frames: false,
            inference_interval: 1,
            carry_results: CarryResults::No,
            motion_threshold: 0.0,
            qos: true,
            // This default is larger than the capacity of in-flight queues. A single failure of a device, which fails all frames
            // in flight, thus does not end the stream.
            max_failures: Some(100),
            stats_interval: None,
            analytics_meta: true,
        }
    }
}

/// The policy properties that all inference elements have.
pub(super) static PROPERTIES: LazyLock<Properties<Policy>> = LazyLock::new(|| {
    let default = Policy::default();
    let boolean = |name: &'static str, nick: &'static str, blurb: &'static str, default: bool| {
        glib::ParamSpecBoolean::builder(name).nick(nick).blurb(blurb).default_value(default).mutable_playing().build()
    };
    let milliseconds = |name: &'static str, nick: &'static str, blurb: &'static str| {
        glib::ParamSpecUInt::builder(name).nick(nick).blurb(blurb).maximum(3_600_000).mutable_playing().build()
    };
    Properties::<Policy>::new()
        .field(
            glib::ParamSpecEnum::builder_with_default("queue-policy", default.queue)
                .nick("Queue policy")
                .blurb("What happens to a frame when the in-flight queue is full. A skipped frame keeps its place in the stream and is marked skipped; drop-frames=true drops it")
                .mutable_playing()
                .build(),
            |policy| &mut policy.queue,
        )
        .with(
            milliseconds(
                "max-latency",
                "Maximum latency",
                "Skip a frame whose results are not complete this many milliseconds after it arrived; 0: no limit",
            ),
            |policy| as_milliseconds(policy.max_latency),
            |policy, milliseconds| policy.max_latency = from_milliseconds(milliseconds),
        )
        .field(
            boolean(
                "drop-frames",
                "Drop frames",
                "Drop the frames that queue-policy, max-latency or qos skip, instead of passing them on",
                default.drop_frames,
            ),
            |policy| &mut policy.drop_frames,
        )
        .field(
            glib::ParamSpecUInt::builder("inference-interval")
                .nick("Inference interval")
                .blurb("Infer every Nth frame; the other frames pass and are marked skipped")
                .minimum(1)
                .maximum(100_000)
                .default_value(default.inference_interval)
                .mutable_playing()
                .build(),
            |policy| &mut policy.inference_interval,
        )
        .field(
            glib::ParamSpecEnum::builder_with_default("carry-results", default.carry_results)
                .nick("Carry results")
                .blurb("Skipped frames carry the objects of the last inferred frame with the same IDs; they stay marked skipped. predicted: roitrack downstream also moves their boxes")
                .mutable_playing()
                .build(),
            |policy| &mut policy.carry_results,
        )
        .field(
            boolean(
                "qos",
                "Quality of service",
                "Skip frames that QoS events of the sink report as too late",
                default.qos,
            ),
            |policy| &mut policy.qos,
        )
        .with(
            glib::ParamSpecInt::builder("max-failures")
                .nick("Maximum failures")
                .blurb("Maximum number of consecutive failed frames; one more ends the stream with an error. Failed frames pass without results, and a successful run resets the count. 0: the first failed frame ends the stream; -1: no limit once the model has run")
                .minimum(-1)
                .default_value(as_int(default.max_failures))
                .mutable_playing()
                .build(),
            |policy| as_int(policy.max_failures),
            |policy, limit| policy.max_failures = u32::try_from(limit).ok(),
        )
        .with(
            milliseconds(
                "stats-interval",
                "Statistics interval",
                "Interval in milliseconds at which `stats` is posted as an element message on the bus; 0: never",
            ),
            |policy| as_milliseconds(policy.stats_interval),
            |policy, milliseconds| policy.stats_interval = from_milliseconds(milliseconds),
        )
        .field(
            boolean(
                "analytics-meta",
                "Analytics meta",
                "Also write a GstAnalyticsRelationMeta for GStreamer's analytics elements (GStreamer 1.24 or newer)",
                default.analytics_meta,
            ),
            |policy| &mut policy.analytics_meta,
        )
});

/// The policy properties that only detectors have.
pub(super) static OF_DETECTORS: LazyLock<Properties<Policy>> = LazyLock::new(|| {
    Properties::<Policy>::new()
        .with(
        glib::ParamSpecFloat::builder(MOTION_THRESHOLD)
            .nick("Motion threshold")
            .blurb("Infer a frame only if at least this share of its area, 0 to 1, changed since the last inferred frame; other frames carry its objects; 0: infer every frame")
            .minimum(0.0)
            .maximum(1.0)
            .default_value(Policy::default().motion_threshold)
            .mutable_playing()
            .build(),
        |policy| policy.motion_threshold,
        |policy, threshold| policy.motion_threshold = threshold,
    )
});

pub(super) const MOTION_THRESHOLD: &str = "motion-threshold";

impl Policy {
    /// Sets a property. Returns false if `name` is not a property of the policy.
    pub(super) fn set(&mut self, name: &str, value: &glib::Value) -> bool {
        PROPERTIES.set(self, name, value) || OF_DETECTORS.set(self, name, value)
    }

    /// Returns the value of a property. `None` if `name` is not a property of the policy.
    pub(super) fn get(&self, name: &str) -> Option<glib::Value> {
        PROPERTIES.get(self, name).or_else(|| OF_DETECTORS.get(self, name))
    }

    /// Returns the effective queue policy for a live or non-live source.
    pub(super) fn queue(&self, is_live: bool) -> QueuePolicy {
        match self.queue {
            QueuePolicy::Auto if is_live => QueuePolicy::DropOldest,
            QueuePolicy::Auto => QueuePolicy::Wait,
            policy => policy,
        }
    }

    /// Whether a frame with this skip reason is dropped instead of passed without inference.
    pub(super) fn drops(&self, reason: Reason) -> bool {
        self.drop_frames && reason as usize >= Reason::N_OF_CHOICES
    }

    /// Whether results must be stored for later frames.
    pub(super) fn keeps_results(&self) -> bool {
        self.carry_results != CarryResults::No || self.motion_threshold > 0.0
    }
}

/// Returns the limit as a property value; -1 = no limit.
fn as_int(limit: Option<u32>) -> i32 {
    limit.map_or(-1, |limit| i32::try_from(limit).unwrap_or(i32::MAX))
}

/// Returns the limit as a property value in milliseconds; 0 = no limit.
fn as_milliseconds(limit: Option<Duration>) -> u32 {
    limit.map_or(0, |limit| limit.as_millis() as u32)
}

fn from_milliseconds(milliseconds: u32) -> Option<Duration> {
    Some(milliseconds).filter(|&milliseconds| milliseconds > 0).map(|milliseconds| Duration::from_millis(milliseconds.into()))
}
