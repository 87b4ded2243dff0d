//! Properties of all inference elements that describe the model and how it runs.
//!
//! This module uses the options of a stage, but no pads and no buffers.

use std::path::Path;
use std::sync::LazyLock;
use std::time::Duration;

use gst::glib;
use gst::prelude::*;
use gstreamer as gst;

use super::policy::SchedulingPolicy;
use super::properties::Properties;
use crate::stages;
use crate::stages::{GalleryChoice, Scheduling, Sharing};

/// Posts an error message on the bus for a stage that cannot be loaded.
pub(super) fn post_load_error(element: &gst::Element, error: &stages::Error) {
    use stages::ErrorKind;
    let text = error.to_string();
    // `gst-launch-1.0` prints the text without escaping, so control characters are escaped here.
    let text = stages::Printable(&text);
    match error.kind() {
        ErrorKind::Io => gst::element_error!(element, gst::ResourceError::NotFound, ("{text}")),
        ErrorKind::Config | ErrorKind::NotFound => gst::element_error!(element, gst::ResourceError::Settings, ("{text}")),
        _ => gst::element_error!(element, gst::LibraryError::Init, ("{text}")),
    }
}

/// Values of the properties that describe the model of an inference element and how the model runs.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ModelSettings {
    pub(super) options: stages::StageOptions,
}

impl Default for ModelSettings {
    fn default() -> Self {
        Self { options: stages::StageOptions { sharing: Sharing::SameOptions, ..stages::StageOptions::default() } }
    }
}

/// The model properties that all inference elements have.
pub(super) static PROPERTIES: LazyLock<Properties<ModelSettings>> = LazyLock::new(|| {
    let text = |name: &'static str, nick: &'static str, blurb: &'static str| {
        glib::ParamSpecString::builder(name).nick(nick).blurb(blurb).mutable_ready().build()
    };
    Properties::<ModelSettings>::new()
        .with(
            text(
                "model",
                "Model",
                "Path of the model file (ONNX, or OpenVINO IR), or address of a model on an inference server (grpc://host:8001/model). Changes take effect in the next change to PAUSED",
            ),
            |settings| from_path(Some(&settings.options.model)),
            |settings, path| settings.options.model = given(path).unwrap_or_default().into(),
        )
        .with(
            text(
                "description",
                "Description",
                "Path of the model's description; default: the .toml file of the same name next to the model, then a built-in description, then metadata embedded in the model",
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
            text("labels", "Labels", "Names of the classes, separated by commas; replaces the labels of the description"),
            |settings| settings.options.labels.as_ref().map(|labels| labels.join(",")),
            |settings, labels| {
                settings.options.labels = given(labels).map(|labels| labels.split(',').map(|label| label.trim().to_owned()).collect());
            },
        )
        .with(
            text("labels-file", "Labels file", "Path of a text file with one label per line; replaces the labels of the description"),
            |settings| from_path(settings.options.labels_file.as_deref()),
            |settings, path| settings.options.labels_file = given(path).map(Into::into),
        )
        .with(
            glib::ParamSpecString::builder("device")
                .nick("Device")
                .blurb("Device that runs the model; AUTO: the first of OPENVINO.CPU, ORT.CPU, CPU that runs it, or REMOTE for an address; `roiflow devices` lists all")
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
            fraction("threshold", "Threshold", "Results with a lower confidence are not reported, 0 to 1; -1: the description's value"),
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
                .blurb("Maximum batch size: frames or regions per inference, also of different streams; 0: the regions of one frame form a batch if the model supports it and the device is faster with it; 1: no batching")
                .maximum(stages::MAX_BATCH_SIZE as u32)
                .mutable_ready()
                .build(),
            |settings| settings.options.batch_size.unwrap_or(0) as u32,
            |settings, n| settings.options.batch_size = positive(n),
        )
        .with(
            glib::ParamSpecUInt::builder("batch-timeout")
                .nick("Batch timeout")
                .blurb("With batch-size above 1: maximum time in milliseconds that a frame or region waits for a full batch")
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

/// Properties that may change while the element runs, because they concern only the decoding of outputs.
pub(super) const THRESHOLDS: [&str; 5] = ["threshold", "iou-threshold", "class-thresholds", "keep-classes", "drop-classes"];

/// The model properties that only detectors have.
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
                .mutable_playing()
                .build(),
            |settings| settings.options.class_thresholds.clone(),
            |settings, thresholds| settings.options.class_thresholds = given(thresholds),
        )
        .with(
            glib::ParamSpecString::builder("keep-classes")
                .nick("Classes to report")
                .blurb("Report only objects with one of these labels, separated by commas; numbers of classes if the model has no labels; default: all")
                .mutable_playing()
                .build(),
            |settings| settings.options.keep_classes.clone(),
            |settings, classes| settings.options.keep_classes = given(classes),
        )
        .with(
            glib::ParamSpecString::builder("drop-classes")
                .nick("Classes to leave out")
                .blurb("Report no objects with these labels, separated by commas; numbers of classes if the model has no labels")
                .mutable_playing()
                .build(),
            |settings| settings.options.drop_classes.clone(),
            |settings, classes| settings.options.drop_classes = given(classes),
        )
});

/// The model properties that only classifiers have.
pub(super) static OF_CLASSIFIERS: LazyLock<Properties<ModelSettings>> = LazyLock::new(|| {
    Properties::<ModelSettings>::new().with(
        glib::ParamSpecString::builder("gallery")
            .nick("Gallery")
            .blurb("Path of a file with names and vectors of known objects, for models with the decoder `embedding`: the result is the nearest name, or `unknown` below `threshold`")
            .mutable_ready()
            .build(),
        |settings| match &settings.options.gallery {
            GalleryChoice::File(path) => from_path(Some(path)),
            GalleryChoice::Described | GalleryChoice::None => None,
        },
        |settings, path| settings.options.gallery = given(path).map_or(GalleryChoice::Described, |path| GalleryChoice::File(path.into())),
    )
});

impl ModelSettings {
    /// Sets a property. Returns false if `name` is not a model property.
    pub(super) fn set(&mut self, name: &str, value: &glib::Value) -> bool {
        PROPERTIES.set(self, name, value) || OF_DETECTORS.set(self, name, value) || OF_CLASSIFIERS.set(self, name, value)
    }

    /// Returns the value of a property. `None` if `name` is not a model property.
    pub(super) fn get(&self, name: &str) -> Option<glib::Value> {
        PROPERTIES.get(self, name).or_else(|| OF_DETECTORS.get(self, name)).or_else(|| OF_CLASSIFIERS.get(self, name))
    }

    /// Returns the options of the stage.
    pub(super) fn checked(&self, element: &gst::Element) -> stages::Result<stages::StageOptions> {
        let options = self.options.with_remote_model();
        if options.model.as_os_str().is_empty() {
            let message = format!("`{}`: expected a model, got none. Set the property `model` to the path of a model file", element.name());
            return Err(stages::Error::new(stages::ErrorKind::Config, message));
        }
        Ok(options)
    }
}

fn fraction(name: &'static str, nick: &'static str, blurb: &'static str) -> glib::ParamSpec {
    glib::ParamSpecFloat::builder(name).nick(nick).blurb(blurb).minimum(-1.0).maximum(1.0).default_value(-1.0).mutable_playing().build()
}

fn not_negative(fraction: f32) -> Option<f32> {
    Some(fraction).filter(|&fraction| fraction >= 0.0)
}

fn positive(n: u32) -> Option<usize> {
    Some(n as usize).filter(|&n| n > 0)
}

/// Returns the text, or `None` if it is empty, because an empty string means that the property is not set.
fn given(text: Option<String>) -> Option<String> {
    text.filter(|text| !text.is_empty())
}

fn from_path(path: Option<&Path>) -> Option<String> {
    path?.to_str().filter(|path| !path.is_empty()).map(str::to_owned)
}
