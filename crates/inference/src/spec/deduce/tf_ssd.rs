//! Recognizes detectors of TensorFlow's Object Detection API and TensorFlow Lite. Only the names of the outputs identify these models,
//! because the shapes of the outputs are dynamic.

use super::super::draft::{Draft, Value};
use super::{Found, layout_of, leaves_size_open, n_channels};
use crate::runtime::{ModelInfo, Port};
use crate::tensor::ElementType;

const NAME: &str = "tf-ssd";

/// Whether the outputs have the names that TensorFlow's Object Detection API or the TensorFlow Lite converter uses.
fn has_names(info: &ModelInfo) -> bool {
    let named = |word: &str| info.outputs.iter().find(|port| port.names.iter().any(|name| name.to_ascii_lowercase().contains(word)));
    let has = |word: &str| named(word).is_some();
    // Names of any function of TensorFlow 2. So the shapes must fit, too: boxes, classes, scores and count.
    let is_lite = info.outputs.len() == 4
        && [(3, 3), (2, 2), (1, 2), (0, 1)].iter().all(|(number, n_axes)| {
            named(&format!("statefulpartitionedcall:{number}")).is_some_and(|port| port.shape.dims().len() == *n_axes)
        });
    (has("detection_boxes") && has("detection_classes") && has("detection_scores"))
        || (has("postprocess:1") && has("postprocess:2"))
        || is_lite
}

/// Deduces the description of a model if its outputs have the names of these detectors, or if the user names this decoder
/// (`is_said`). Otherwise, returns `None`.
pub(super) fn read(info: &ModelInfo, is_said: bool) -> Option<Found> {
    let [port] = &*info.inputs else { return None };
    if !(is_said || has_names(info)) {
        return None;
    }
    let layout = layout_of(port).or_else(|| channels_last(port))?;
    let (mut draft, mut open) = (Draft::default(), Vec::new());
    let why = "TensorFlow's Object Detection API preprocesses images this way";
    draft.about.push("This model is a detector of TensorFlow's Object Detection API, and includes NMS.".to_owned());
    draft.top.set("task", "detection");
    let input = &mut draft.input;
    if n_channels(port, layout) == Some(1) {
        input.set("color", "gray");
    } else {
        input.assume("color", "rgb", why);
    }
    input.set("layout", layout);
    input.assume("resize", "stretch", why);
    // An integer input must be pixels of 0 to 255, so its range is known. A floating-point input may be pixels, or values from -1 to 1.
    if port.element != ElementType::U8 {
        let range = "the model is expected to scale pixels itself; for inputs of -1 to 1, set `mean` and `scale` to 127.5";
        if is_said {
            input.assume("scale", Value::Numbers(vec![1.0]), range);
        } else {
            open.push(format!("the model's outputs match decoder `{NAME}`, but the range of its input {port} is unknown"));
            input.leave(
                "scale",
                Value::Numbers(vec![1.0]),
                "1 if the model scales pixels itself; 127.5, with mean 127.5, for inputs of -1 to 1.",
            );
        }
    }
    if leaves_size_open(port, layout) {
        open.push(format!("the model's outputs match decoder `{NAME}`, but its input {port} has a dynamic size: set `size` in [input]"));
        input.leave("size", Value::Wholes(vec![300, 300]), "Width and height of the input. The model accepts any size.");
    }
    if is_said {
        draft.output.set("decoder", NAME);
    } else {
        draft.output.assume("decoder", NAME, "the names of the outputs are those of TensorFlow detectors");
    }
    Some(Found { from: "the names of its outputs", draft, open })
}

/// Returns `nhwc` for an image input whose extents do not show the layout, because TensorFlow models have the channels last. `None` if the
/// input is not an image.
fn channels_last(port: &Port) -> Option<&'static str> {
    (port.shape.dims().len() == 4).then_some("nhwc")
}
