//! The properties that all inference elements have, and what the user asked with them.
//!
//! Knows what a stage can be asked. Knows no pads and no buffers.

use std::path::Path;
use std::sync::LazyLock;
use std::time::Duration;

use gst::glib;
use gst::prelude::*;
use gstreamer as gst;

use super::policy::SchedulingPolicy;
use super::properties::Properties;
use crate::stages;
use crate::stages::{Scheduling, Sharing};

/// Posts what loading a stage said.
pub(super) fn post_load_error(element: &gst::Element, error: &stages::Error) {
    use stages::ErrorKind;
    let text = error.to_string();
    // `gst-launch-1.0` prints it as it is.
    let text = stages::Printable(&text);
    match error.kind() {
        ErrorKind::Io => gst::element_error!(element, gst::ResourceError::NotFound, ("{text}")),
        ErrorKind::Config | ErrorKind::NotFound => gst::element_error!(element, gst::ResourceError::Settings, ("{text}")),
        _ => gst::element_error!(element, gst::LibraryError::Init, ("{text}")),
    }
}

/// Properties that all inference elements have, and what the user asked with them.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ModelSettings {
    pub(super) options: stages::StageOptions,
}

impl Default for ModelSettings {
    fn default() -> Self {
        Self { options: stages::StageOptions { sharing: Sharing::SameOptions, ..stages::StageOptions::default() } }
    }
}

/// The properties of all inference elements that say what the model is and how it runs.
pub(super) static PROPERTIES: LazyLock<Properties<ModelSettings>> = LazyLock::new(|| {
    let text = |name: &'static str, nick: &'static str, blurb: &'static str| {
        glib::ParamSpecString::builder(name).nick(nick).blurb(blurb).mutable_ready().build()
    };
    Properties::<ModelSettings>::new()
        .with(
            text("model", "Model", "Path of the model file (ONNX, or OpenVINO IR). Changes take effect on the way to PAUSED"),
            |settings| from_path(Some(&settings.options.model)),
            |settings, path| settings.options.model = given(path).unwrap_or_default().into(),
        )
        .with(
            text(
                "description",
                "Description",
                "Path of the model's description; default: the .toml file of the same name next to the model, then the built-in description of a known model, then the metadata of the model",
            ),
            |settings| from_path(settings.options.description.as_deref()),
            |settings, path| settings.options.description = given(path).map(Into::into),
        )
        .with(
            text("model-proc", "Model-proc", "Path of a model-proc file of DL Streamer, instead of a description"),
            |settings| from_path(settings.options.model_proc.as_deref()),
            |settings, path| settings.options.model_proc = given(path).map(Into::into),
        )
        .with(
            text("labels", "Labels", "Names of the classes, separated by commas; instead of the description's"),
            |settings| settings.options.labels.as_ref().map(|labels| labels.join(",")),
            |settings, labels| {
                settings.options.labels = given(labels).map(|labels| labels.split(',').map(|label| label.trim().to_owned()).collect());
            },
        )
        .with(
            text("labels-file", "Labels file", "Path of a text file with one label per line; instead of the description's"),
            |settings| from_path(settings.options.labels_file.as_deref()),
            |settings, path| settings.options.labels_file = given(path).map(Into::into),
        )
        .with(
            glib::ParamSpecString::builder("device")
                .nick("Device")
                .blurb("Device that runs the model; AUTO: the fastest available device that supports it; `roiflow devices` lists them")
                .default_value(Some(stages::spec::DEFAULT_DEVICE))
                .mutable_ready()
                .build(),
            |settings| Some(settings.options.device.clone().unwrap_or_else(|| stages::spec::DEFAULT_DEVICE.to_owned())),
            |settings, device| settings.options.device = given(device),
        )
        .with(
            text(
                "config",
                "Configuration",
                "Options of the compiled model, such as performance=latency,threads=2,cache-folder=/var/cache/models,OPENVINO.NUM_STREAMS=2; docs/devices.md lists them",
            ),
            |settings| settings.options.config.clone(),
            |settings, config| settings.options.config = given(config),
        )
        .with(
            fraction("threshold", "Threshold", "Results with less confidence are left out, 0 to 1; -1: what the description says"),
            |settings| settings.options.threshold.unwrap_or(-1.0),
            |settings, threshold| settings.options.threshold = not_negative(threshold),
        )
        .with(
            glib::ParamSpecUInt::builder("nireq")
                .nick("Number of inference requests")
                .blurb("Number of inference requests; 0: the device's optimal number of requests")
                .maximum(1024)
                .mutable_ready()
                .build(),
            |settings| settings.options.n_requests.unwrap_or(0) as u32,
            |settings, n| settings.options.n_requests = positive(n),
        )
        .with(
            text(
                "model-instance-id",
                "Model instance",
                "Elements of the process with the same instance ID share one compiled model and its requests, in all pipelines. Defaults of device, nireq, batch-size and batch-timeout are taken from the other elements. Without an ID, elements share a model if all of these are equal",
            ),
            |settings| match &settings.options.sharing {
                Sharing::Named(name) => Some(name.clone()),
                Sharing::SameOptions | Sharing::Exclusive => None,
            },
            |settings, name| settings.options.sharing = given(name).map_or(Sharing::SameOptions, Sharing::Named),
        )
        .with(
            glib::ParamSpecUInt::builder("batch-size")
                .nick("Batch size")
                .blurb("Most frames or regions in one call of the model, also of different streams; 0: the regions of one frame run in one call if the model supports it and the device gains by it; 1: one at a time")
                .maximum(stages::MAX_BATCH_SIZE as u32)
                .mutable_ready()
                .build(),
            |settings| settings.options.batch_size.unwrap_or(0) as u32,
            |settings, n| settings.options.batch_size = positive(n),
        )
        .with(
            glib::ParamSpecUInt::builder("batch-timeout")
                .nick("Batch timeout")
                .blurb("With batch-size above 1: longest time in milliseconds that a frame or region waits for a full batch")
                .maximum(3_600_000)
                .default_value(stages::DEFAULT_BATCH_TIMEOUT.as_millis() as u32)
                .mutable_ready()
                .build(),
            |settings| settings.options.batch_timeout.unwrap_or(stages::DEFAULT_BATCH_TIMEOUT).as_millis() as u32,
            |settings, milliseconds: u32| settings.options.batch_timeout = Some(Duration::from_millis(milliseconds.into())),
        )
        .with(
            glib::ParamSpecEnum::builder_with_default("scheduling-policy", SchedulingPolicy::default())
                .nick("Scheduling policy")
                .blurb("Order in which the streams that share a model are inferred, and how many frames wait inside the element")
                .mutable_ready()
                .build(),
            |settings| match settings.options.scheduling {
                Scheduling::Throughput => SchedulingPolicy::Throughput,
                Scheduling::Latency => SchedulingPolicy::Latency,
            },
            |settings, policy| {
                settings.options.scheduling = match policy {
                    SchedulingPolicy::Throughput => Scheduling::Throughput,
                    SchedulingPolicy::Latency => Scheduling::Latency,
                };
            },
        )
});

/// The properties of detectors alone.
pub(super) static OF_DETECTORS: LazyLock<Properties<ModelSettings>> = LazyLock::new(|| {
    Properties::<ModelSettings>::new()
        .with(
            fraction(
                "iou-threshold",
                "Overlap threshold",
                "Suppress boxes whose overlap (intersection over union) with a better box exceeds this value, 0 to 1; -1: the description's value",
            ),
            |settings| settings.options.iou_threshold.unwrap_or(-1.0),
            |settings, threshold| settings.options.iou_threshold = not_negative(threshold),
        )
        .with(
            glib::ParamSpecString::builder("class-thresholds")
                .nick("Thresholds of classes")
                .blurb("Confidence thresholds by label, such as person=0.6,car=0.4; other classes use `threshold`")
                .mutable_ready()
                .build(),
            |settings| settings.options.class_thresholds.clone(),
            |settings, thresholds| settings.options.class_thresholds = given(thresholds),
        )
});

impl ModelSettings {
    /// Takes a property; false if it is not one of these.
    pub(super) fn set(&mut self, name: &str, value: &glib::Value) -> bool {
        PROPERTIES.set(self, name, value) || OF_DETECTORS.set(self, name, value)
    }

    /// The value of a property; `None` if it is not one of these.
    pub(super) fn get(&self, name: &str) -> Option<glib::Value> {
        PROPERTIES.get(self, name).or_else(|| OF_DETECTORS.get(self, name))
    }

    /// The options, if they name a model.
    pub(super) fn checked(&self, element: &gst::Element) -> stages::Result<&stages::StageOptions> {
        if self.options.model.as_os_str().is_empty() {
            let message = format!("`{}` has no model: set the property `model` to the path of a model file", element.name());
            return Err(stages::Error::new(stages::ErrorKind::Config, message));
        }
        Ok(&self.options)
    }
}

fn fraction(name: &'static str, nick: &'static str, blurb: &'static str) -> glib::ParamSpec {
    glib::ParamSpecFloat::builder(name).nick(nick).blurb(blurb).minimum(-1.0).maximum(1.0).default_value(-1.0).mutable_ready().build()
}

fn not_negative(fraction: f32) -> Option<f32> {
    Some(fraction).filter(|&fraction| fraction >= 0.0)
}

fn positive(n: u32) -> Option<usize> {
    Some(n as usize).filter(|&n| n > 0)
}

/// An empty text is none.
fn given(text: Option<String>) -> Option<String> {
    text.filter(|text| !text.is_empty())
}

fn from_path(path: Option<&Path>) -> Option<String> {
    path?.to_str().filter(|path| !path.is_empty()).map(str::to_owned)
}
