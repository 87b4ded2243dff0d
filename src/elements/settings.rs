//! The properties that all inference elements have, and what the user asked with them.
//!
//! Knows what a stage can be asked. Knows no pads and no buffers.

use std::time::Duration;

use gst::glib;
use gst::prelude::*;
use gstreamer as gst;

use super::policy::SchedulingPolicy;
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
        Self { options: stages::StageOptions { sharing: Sharing::Alike, ..stages::StageOptions::default() } }
    }
}

impl ModelSettings {
    pub(super) fn properties() -> Vec<glib::ParamSpec> {
        let text = |name: &'static str, nick: &'static str, blurb: &'static str| {
            glib::ParamSpecString::builder(name).nick(nick).blurb(blurb).mutable_ready().build()
        };
        vec![
            text("model", "Model", "Path of the model file (ONNX, or OpenVINO IR). Changes take effect on the way to PAUSED"),
            text(
                "description",
                "Description",
                "Path of the model's description; default: the file beside the model with the ending .toml, that of a known model, or what the model says of itself",
            ),
            text("model-proc", "Model-proc", "Path of a model-proc file of DL Streamer, instead of a description"),
            text("labels", "Labels", "Names of the classes, separated by commas; instead of the description's"),
            text("labels-file", "Labels file", "Path of a text file with one label per line; instead of the description's"),
            glib::ParamSpecString::builder("device")
                .nick("Device")
                .blurb("Name of the device that runs the model; AUTO: the fastest that does; `roiflow devices` lists them")
                .default_value(Some(stages::spec::DEFAULT_DEVICE))
                .mutable_ready()
                .build(),
            text(
                "config",
                "Configuration",
                "Options of the compiled model, such as performance=latency,threads=2,cache-folder=/var/cache/models,OPENVINO.NUM_STREAMS=2; the README lists them",
            ),
            glib::ParamSpecFloat::builder("threshold")
                .nick("Threshold")
                .blurb("Results with less confidence are left out, 0 to 1; -1: what the description says")
                .minimum(-1.0)
                .maximum(1.0)
                .default_value(-1.0)
                .mutable_ready()
                .build(),
            glib::ParamSpecUInt::builder("nireq")
                .nick("Number of inference requests")
                .blurb("How many runs are possible at once; 0: what the device likes best")
                .maximum(1024)
                .mutable_ready()
                .build(),
            text(
                "model-instance-id",
                "Model instance",
                "Elements of the process with the same name here use one compiled model, one set of requests and the same batches, whatever their pipeline; what one leaves open (device, nireq, batch-size, batch-timeout) is as the others have it. Without a name those do that ask for the same model and the same of these",
            ),
            glib::ParamSpecUInt::builder("batch-size")
                .nick("Batch size")
                .blurb("The most pictures or regions in one call of the model, of whatever frames and streams; 0: the regions of a frame run in one call where the model takes several and the device gains by it; 1: one by one")
                .maximum(stages::MAX_BATCH_SIZE as u32)
                .mutable_ready()
                .build(),
            glib::ParamSpecUInt::builder("batch-timeout")
                .nick("Batch timeout")
                .blurb("With a batch-size above 1, how many milliseconds a picture or region waits for others at most")
                .maximum(3_600_000)
                .default_value(stages::DEFAULT_BATCH_TIMEOUT.as_millis() as u32)
                .mutable_ready()
                .build(),
            glib::ParamSpecEnum::builder_with_default("scheduling-policy", SchedulingPolicy::default())
                .nick("Scheduling policy")
                .blurb("Which frame is inferred next, of all streams that share the model, and how many may wait inside the element")
                .mutable_ready()
                .build(),
            glib::ParamSpecBoxed::builder::<gst::Structure>("stats")
                .nick("Statistics")
                .blurb("Since the element was made: frames that came, left and were inferred, skipped and dropped by reason, failures, objects, frames per second, percentiles of the latency, runs, and time per step")
                .read_only()
                .build(),
        ]
    }

    /// Takes a property; false if it is not one of these.
    pub(super) fn set(&mut self, name: &str, value: &glib::Value) -> bool {
        let text = || value.get::<Option<String>>().expect("a string property").filter(|text| !text.is_empty());
        let options = &mut self.options;
        match name {
            "model" => options.model = text().unwrap_or_default().into(),
            "description" => options.description = text().map(Into::into),
            "model-proc" => options.model_proc = text().map(Into::into),
            "labels" => options.labels = text().map(|text| text.split(',').map(|label| label.trim().to_owned()).collect()),
            "labels-file" => options.labels_file = text().map(Into::into),
            "device" => options.device = text(),
            "config" => options.config = text(),
            "threshold" => options.threshold = fraction(value),
            "iou-threshold" => options.iou_threshold = fraction(value),
            "class-thresholds" => options.class_thresholds = text(),
            "nireq" => options.n_requests = Some(value.get::<u32>().expect("an unsigned property") as usize).filter(|&n| n > 0),
            "batch-size" => options.batch_size = Some(value.get::<u32>().expect("an unsigned property") as usize).filter(|&n| n > 0),
            "batch-timeout" => {
                let timeout = Duration::from_millis(value.get::<u32>().expect("an unsigned property").into());
                options.batch_timeout = Some(timeout);
            }
            "model-instance-id" => options.sharing = text().map_or(Sharing::Alike, Sharing::Named),
            "scheduling-policy" => {
                options.scheduling = match value.get().expect("an enum property") {
                    SchedulingPolicy::Throughput => Scheduling::Throughput,
                    SchedulingPolicy::Latency => Scheduling::Latency,
                }
            }
            _ => return false,
        }
        true
    }

    /// The value of a property; `None` if it is not one of these.
    pub(super) fn get(&self, name: &str) -> Option<glib::Value> {
        let options = &self.options;
        let path = |path: &std::path::Path| path.to_str().filter(|path| !path.is_empty()).map(str::to_owned).to_value();
        Some(match name {
            "model" => path(&options.model),
            "description" => options.description.as_deref().map_or_else(|| None::<String>.to_value(), path),
            "model-proc" => options.model_proc.as_deref().map_or_else(|| None::<String>.to_value(), path),
            "labels" => options.labels.as_ref().map(|labels| labels.join(",")).to_value(),
            "labels-file" => options.labels_file.as_deref().map_or_else(|| None::<String>.to_value(), path),
            "device" => options.device.as_deref().unwrap_or(stages::spec::DEFAULT_DEVICE).to_value(),
            "config" => options.config.to_value(),
            "threshold" => options.threshold.unwrap_or(-1.0).to_value(),
            "iou-threshold" => options.iou_threshold.unwrap_or(-1.0).to_value(),
            "class-thresholds" => options.class_thresholds.to_value(),
            "nireq" => (options.n_requests.unwrap_or(0) as u32).to_value(),
            "batch-size" => (options.batch_size.unwrap_or(0) as u32).to_value(),
            "batch-timeout" => (options.batch_timeout.unwrap_or(stages::DEFAULT_BATCH_TIMEOUT).as_millis() as u32).to_value(),
            "model-instance-id" => match &options.sharing {
                Sharing::Named(name) => Some(name.as_str()),
                Sharing::Alike | Sharing::Nobody => None,
            }
            .to_value(),
            "scheduling-policy" => match options.scheduling {
                Scheduling::Throughput => SchedulingPolicy::Throughput,
                Scheduling::Latency => SchedulingPolicy::Latency,
            }
            .to_value(),
            _ => return None,
        })
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

fn fraction(value: &glib::Value) -> Option<f32> {
    Some(value.get::<f32>().expect("a float property")).filter(|&fraction| fraction >= 0.0)
}
