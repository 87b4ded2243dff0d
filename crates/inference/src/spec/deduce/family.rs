//! Recognizes model families by their characteristic ports. If all models of a family use the same preprocessing, the ports also determine
//! the preprocessing. For models of no known family, the ports determine at most the decoder, and all other values are missing.

use super::super::description::Source;
use super::super::draft::{Draft, Value};
use super::{Found, evidence, fits, layout_of, leaves_size_open, n_channels, output, size_of};
use crate::frame::Size;
use crate::model_inputs::ModelInputs;
use crate::runtime::ModelInfo;
use crate::tensor::ElementType;
use crate::vision::decode::{DecoderRegistry, Subject};

/// A family of detectors.
struct Family {
    decoder: &'static str,
    /// Name of the family, for messages.
    name: &'static str,
    color: &'static str,
    resize: &'static str,
    pad: f32,
    mean: &'static [f32],
    scale: &'static [f32],
    labels: &'static [&'static str],
    /// Returns whether a model with these ports, which the decoder accepts, must belong to this family.
    is_certain: fn(&ModelInfo, Size) -> bool,
}

const FACE: &[&str] = &["face"];
/// Border of models that are trained with images which OpenCV has resized. OpenCV rounds the pixels.
const CV_PAD: f32 = 114.0;

static FAMILIES: [Family; 30] = [
    Family {
        decoder: "ultraface",
        name: "Ultra-Light-Fast-Generic-Face-Detector-1MB",
        color: "rgb",
        resize: "stretch",
        pad: 0.0,
        mean: &[127.0],
        scale: &[128.0],
        labels: FACE,
        is_certain: has_ultraface_priors,
    },
    Family {
        decoder: "yunet",
        name: "YuNet",
        color: "bgr",
        resize: "letterbox-top-left",
        pad: 0.0,
        mean: &[],
        scale: &[],
        labels: FACE,
        is_certain: is_only_one,
    },
    Family {
        decoder: "scrfd",
        name: "SCRFD",
        color: "rgb",
        resize: "letterbox-top-left",
        pad: 0.0,
        mean: &[127.5],
        scale: &[128.0],
        labels: FACE,
        is_certain: is_only_one,
    },
    Family {
        decoder: "retinaface",
        name: "RetinaFace (PyTorch, biubug6)",
        color: "bgr",
        resize: "letterbox-top-left",
        pad: 0.0,
        mean: &[104.0, 117.0, 123.0],
        scale: &[],
        labels: FACE,
        is_certain: is_only_one,
    },
    Family {
        decoder: "centerface",
        name: "CenterFace",
        color: "rgb",
        resize: "stretch",
        pad: 0.0,
        mean: &[],
        scale: &[],
        labels: FACE,
        is_certain: is_only_one,
    },
    Family {
        decoder: "nanodet",
        name: "NanoDet",
        color: "bgr",
        resize: "stretch",
        pad: 0.0,
        mean: &[103.53, 116.28, 123.675],
        scale: &[57.375, 57.12, 58.395],
        labels: &[],
        is_certain: is_only_one,
    },
    Family {
        decoder: "nanodet-plus",
        name: "NanoDet-Plus",
        color: "bgr",
        resize: "stretch",
        pad: 0.0,
        mean: &[103.53, 116.28, 123.675],
        scale: &[57.375, 57.12, 58.395],
        labels: &[],
        is_certain: is_never,
    },
    Family {
        decoder: "picodet",
        name: "PicoDet",
        color: "rgb",
        resize: "stretch",
        pad: 0.0,
        mean: &[123.675, 116.28, 103.53],
        scale: &[58.395, 57.12, 57.375],
        labels: &[],
        is_certain: is_never,
    },
    Family {
        decoder: "yolox",
        name: "YOLOX",
        color: "bgr",
        resize: "letterbox-top-left",
        pad: 114.0,
        mean: &[],
        scale: &[],
        labels: &[],
        is_certain: is_never,
    },
    Family {
        decoder: "yolov5",
        name: "YOLOv5",
        color: "rgb",
        resize: "letterbox",
        pad: 114.0,
        mean: &[],
        scale: &[255.0],
        labels: &[],
        is_certain: is_never,
    },
    Family {
        decoder: "yolov8",
        name: "YOLOv8",
        color: "rgb",
        resize: "letterbox",
        pad: 114.0,
        mean: &[],
        scale: &[255.0],
        labels: &[],
        is_certain: is_never,
    },
    Family {
        decoder: "yolov10",
        name: "YOLOv10",
        color: "rgb",
        resize: "letterbox",
        pad: 114.0,
        mean: &[],
        scale: &[255.0],
        labels: &[],
        is_certain: is_never,
    },
    Family {
        decoder: "yolov5-seg",
        name: "YOLOv5",
        color: "rgb",
        resize: "letterbox",
        pad: 114.0,
        mean: &[],
        scale: &[255.0],
        labels: &[],
        is_certain: is_never,
    },
    Family {
        decoder: "yolov8-seg",
        name: "YOLOv8",
        color: "rgb",
        resize: "letterbox",
        pad: 114.0,
        mean: &[],
        scale: &[255.0],
        labels: &[],
        is_certain: is_never,
    },
    Family {
        decoder: "yolov10-seg",
        name: "YOLO26",
        color: "rgb",
        resize: "letterbox",
        pad: 114.0,
        mean: &[],
        scale: &[255.0],
        labels: &[],
        is_certain: is_never,
    },
    Family {
        decoder: "yolov8-pose",
        name: "YOLOv8",
        color: "rgb",
        resize: "letterbox",
        pad: 114.0,
        mean: &[],
        scale: &[255.0],
        labels: &[],
        is_certain: is_never,
    },
    Family {
        decoder: "yolov10-pose",
        name: "YOLO26",
        color: "rgb",
        resize: "letterbox",
        pad: 114.0,
        mean: &[],
        scale: &[255.0],
        labels: &[],
        is_certain: is_never,
    },
    Family {
        decoder: "yolov8-obb",
        name: "YOLOv8",
        color: "rgb",
        resize: "letterbox",
        pad: 114.0,
        mean: &[],
        scale: &[255.0],
        labels: &[],
        is_certain: is_never,
    },
    Family {
        decoder: "yolov10-obb",
        name: "YOLO26",
        color: "rgb",
        resize: "letterbox",
        pad: 114.0,
        mean: &[],
        scale: &[255.0],
        labels: &[],
        is_certain: is_never,
    },
    Family {
        decoder: "blazeface",
        name: "BlazeFace (MediaPipe)",
        color: "rgb",
        resize: "letterbox",
        pad: 0.0,
        mean: &[127.5],
        scale: &[127.5],
        labels: FACE,
        is_certain: |info, size| is_only_one(info, size) && has_columns(info, 16),
    },
    Family {
        decoder: "blazeface",
        name: "palm detection (MediaPipe)",
        color: "rgb",
        resize: "letterbox",
        pad: 0.0,
        mean: &[],
        scale: &[255.0],
        labels: &["palm"],
        is_certain: |info, size| is_only_one(info, size) && has_columns(info, 18),
    },
    Family {
        decoder: "blazeface",
        name: "pose detection (MediaPipe)",
        color: "rgb",
        resize: "letterbox",
        pad: 0.0,
        mean: &[127.5],
        scale: &[127.5],
        labels: &["person"],
        is_certain: |info, size| is_only_one(info, size) && has_columns(info, 12),
    },
    Family {
        decoder: "movenet-multi",
        name: "MoveNet MultiPose",
        color: "rgb",
        resize: "letterbox",
        pad: 0.0,
        mean: &[],
        scale: &[],
        labels: &["person"],
        is_certain: is_movenet,
    },
    Family {
        decoder: "fastestdet",
        name: "FastestDet",
        color: "bgr",
        resize: "stretch",
        pad: 0.0,
        mean: &[],
        scale: &[255.0],
        labels: &[],
        is_certain: is_never,
    },
    Family {
        decoder: "db-text",
        name: "PP-OCR (DB)",
        color: "bgr",
        resize: "letterbox-top-left",
        pad: 127.5,
        mean: &[127.5],
        scale: &[127.5],
        labels: &["text"],
        is_certain: is_never,
    },
    Family {
        decoder: "multiclass-nms",
        name: "PP-YOLOE",
        color: "rgb",
        resize: "stretch",
        pad: 0.0,
        mean: &[],
        scale: &[255.0],
        labels: &[],
        is_certain: is_never,
    },
    Family {
        decoder: "yolo-anchors",
        name: "YOLOv3 and YOLOv4 of Darknet",
        color: "rgb",
        resize: "stretch",
        pad: 0.0,
        mean: &[],
        scale: &[255.0],
        labels: &[],
        is_certain: is_never,
    },
    Family {
        decoder: "rtdetr",
        name: "RT-DETR",
        color: "rgb",
        resize: "stretch",
        pad: 0.0,
        mean: &[],
        scale: &[255.0],
        labels: &[],
        is_certain: is_never,
    },
    Family {
        decoder: "final-boxes",
        name: "YOLO with EfficientNMS",
        color: "rgb",
        resize: "letterbox",
        pad: 114.0,
        mean: &[],
        scale: &[255.0],
        labels: &[],
        is_certain: |info, _| evidence::has_efficient_nms(&output::outputs(info, &output::shapes(info), &[])),
    },
    Family {
        decoder: "detr-final",
        name: "RT-DETR, D-FINE or DEIM",
        color: "rgb",
        resize: "stretch",
        pad: 0.0,
        mean: &[],
        scale: &[255.0],
        labels: &[],
        is_certain: is_never,
    },
];

/// Always returns false. It is [`Family::is_certain`] for decoders whose ports also occur in other families. The user must choose
/// such a decoder.
fn is_never(_: &ModelInfo, _: Size) -> bool {
    false
}

/// Decoders that read one or two outputs and ignore all others. A match of such a decoder is weak evidence.
const PASSES_OVER: [&str; 7] = ["yolov5", "yolov8", "yolov10", "yolox", "ssd", "ultraface", "boxes-labels"];

/// Whether the model has several outputs, and exactly one decoder uses all of them.
fn is_only_one(info: &ModelInfo, size: Size) -> bool {
    info.outputs.len() > 1 && readers(info, size).iter().filter(|name| !PASSES_OVER.contains(name)).count() == 1
}

/// Whether the outputs have one row per prior of UltraFace at this input size. A list of boxes is unlikely to have the same
/// number of rows by chance.
fn has_ultraface_priors(info: &ModelInfo, size: Size) -> bool {
    let shapes = output::shapes(info);
    shapes.iter().all(|shape| shape.get(1).is_some_and(|&n_rows| n_rows != usize::MAX)) && evidence::has_rows_of("ultraface", &shapes, size)
}

/// Whether an output has this number of columns.
fn has_columns(info: &ModelInfo, n_columns: usize) -> bool {
    output::shapes(info).iter().any(|shape| shape.last() == Some(&n_columns))
}

/// Whether the model has the ports of MoveNet: pixels as integers, and rows of 17 keypoints and a box.
fn is_movenet(info: &ModelInfo, size: Size) -> bool {
    let takes_integers = info.inputs.iter().all(|port| matches!(port.element, ElementType::I32 | ElementType::U8));
    takes_integers && readers(info, size).contains(&"movenet-multi")
}

/// Returns all decoders of detectors that accept the outputs of this model and use all of them. If the number of rows is that of a grid,
/// decoders of other grids and of lists are left out.
pub(super) fn readers(info: &ModelInfo, size: Size) -> Vec<&'static str> {
    let (registry, shapes) = (DecoderRegistry::built_in(), output::shapes(info));
    let outputs = output::outputs(info, &shapes, &[]);
    let names = registry.names().filter(|name| registry.subject(name) == Some(Subject::Objects));
    let reads = |name: &&str| evidence::reads_all(name, &outputs) || evidence::is_suggested(name, &outputs, size);
    let readers: Vec<&'static str> = names.filter(|name| reads(name) && fits(name, info, size)).collect();
    let agree = |name: &str| evidence::rows_agree(name, &shapes, size);
    let (proven, others): (Vec<&str>, Vec<&str>) = readers.into_iter().partition(|name| agree(name) == Some(true));
    let is_possible = |name: &&'static str| proven.is_empty() || (agree(name).is_none() && !evidence::reads_list(name));
    let others: Vec<&'static str> = others.into_iter().filter(is_possible).collect();
    proven.into_iter().chain(others).collect()
}

/// Deduces a description from ports. If the user names a decoder, adds the preprocessing of that decoder's model family.
pub(super) fn of_ports(info: &ModelInfo, decoder: Option<&str>) -> Found {
    let mut draft = Draft::default();
    let mut open = Vec::new();
    let from = Source::PORTS;
    let Some(port) = ModelInputs::of(&info.inputs).map(|inputs| &info.inputs[inputs.image]) else {
        open.push(format!("the model has {} inputs: expected one image input", info.inputs.len()));
        leave_all(&mut draft, &[]);
        return Found { from, draft, open };
    };
    let Some(layout) = layout_of(port) else {
        open.push(format!("the model's input {port} is not an image of one or three channels"));
        leave_all(&mut draft, &[]);
        return Found { from, draft, open };
    };
    let size = size_of(port, layout).unwrap_or(Size::new(640, 640));
    let readers = readers(info, size);
    let is_certain = |family: &&Family| readers.contains(&family.decoder) && (family.is_certain)(info, size);
    let family = match decoder {
        Some(decoder) => {
            let mut families = FAMILIES.iter().filter(|family| family.decoder == decoder);
            families.clone().find(is_certain).or_else(|| families.next())
        }
        None => FAMILIES.iter().find(is_certain),
    };
    if let Some(family) = family.filter(|_| n_channels(port, layout) == Some(3)) {
        let why = match decoder {
            Some(_) => format!("{} preprocesses images this way", family.name),
            None => format!("the model's ports are those of {}, which is preprocessed this way", family.name),
        };
        draft.top.set("task", "detection");
        let input = &mut draft.input;
        input.assume("color", family.color, &*why);
        input.set("layout", layout);
        input.assume("resize", family.resize, &*why);
        if family.resize.starts_with("letterbox") {
            input.assume("pad", family.pad, &*why);
        }
        if family.pad == CV_PAD {
            input.assume("rounding", "u8", &*why);
        }
        if !family.mean.is_empty() {
            input.assume("mean", Value::Numbers(family.mean.to_vec()), &*why);
        }
        if !family.scale.is_empty() {
            input.assume("scale", Value::Numbers(family.scale.to_vec()), &*why);
        }
        if leaves_size_open(port, layout) {
            open.push(format!("the model's input {port} has a dynamic size: set `size` in [input]"));
            input.leave("size", Value::Wholes(vec![640, 640]), "Width and height of the input. The model accepts any size.");
        }
        match decoder {
            Some(decoder) => draft.output.set("decoder", decoder),
            None => {
                draft.output.assume("decoder", family.decoder, "the model's ports are those of this family; the first outputs are checked")
            }
        }
        if family.decoder == "yolo-anchors" {
            open.push("the ports do not show the anchors: set `anchors` in [output] to those of the model".to_owned());
            let example = vec![vec![[10.0, 14.0], [23.0, 27.0]], vec![[81.0, 82.0], [135.0, 169.0]]];
            draft.output.leave(
                "anchors",
                Value::Anchors(example),
                "Widths and heights in pixels: one list for each output, finest grid first.",
            );
        }
        if !family.labels.is_empty() {
            draft.output.assume(
                "labels",
                Value::Texts(family.labels.iter().map(|&label| label.to_owned()).collect()),
                "models of this family detect only this",
            );
        }
        return Found { from, draft, open };
    }
    draft.input.set("layout", layout);
    match &*readers {
        [] => open
            .push("the model's outputs match no detector decoder, and its ports do not show whether the model is a classifier".to_owned()),
        fitting => open.push(format!(
            "the model's outputs match the decoder {}, but its ports do not show how images are preprocessed",
            fitting.iter().map(|decoder| format!("`{decoder}`")).collect::<Vec<_>>().join(" or ")
        )),
    }
    if leaves_size_open(port, layout) {
        draft.input.leave("size", Value::Wholes(vec![640, 640]), "Width and height of the input. The model has a dynamic size.");
    }
    leave_all(&mut draft, &readers);
    if let Some(decoder) = decoder {
        draft.output.set("decoder", decoder);
    }
    Found { from, draft, open }
}

/// Marks all values as missing, except a known layout. Called if the ports do not identify a family. `readers` are the decoders
/// that accept the outputs.
fn leave_all(draft: &mut Draft, readers: &[&'static str]) {
    draft.about.push("This draft was made from the model's ports and metadata. Set the values that are commented out.".to_owned());
    draft.top.leave("task", "detection", "Task: detection or classification.");
    let input = &mut draft.input;
    input.leave("color", "rgb", "Colors of the channels: rgb, bgr or gray.");
    if input.get("layout").is_none() {
        input.leave("layout", "nchw", "Order of the axes: nchw or nhwc.");
    }
    input.leave("resize", "stretch", "How an image is resized: stretch, letterbox (borders on both sides), letterbox-top-left, or crop.");
    input.leave("pad", 114.0, "Pixel value of the borders, 0 to 255.");
    input.leave(
        "mean",
        Value::Numbers(vec![0.0, 0.0, 0.0]),
        "Mean, subtracted from pixel values (0 to 255): one number, or one per channel.",
    );
    input.leave("scale", Value::Numbers(vec![255.0, 255.0, 255.0]), "Divisor after the mean is subtracted: 255 for inputs of 0 to 1.");
    let output = &mut draft.output;
    let classifiers = "for classifiers: classes, multi-label, expectation, regression, embedding; for any model: custom";
    match readers {
        [] => output.leave("decoder", "classes", format!("Decoder of the outputs. No detector decoder matches; {classifiers}.")),
        [first, ..] => output.leave(
            "decoder",
            *first,
            format!("Decoder of the outputs. Matching detector decoders: {}; {classifiers}.", readers.join(", ")),
        ),
    }
    output.leave("activation", "softmax", "For classifiers: softmax, sigmoid, or none if the model includes it.");
    output.leave("threshold", 0.5, "Minimum score, 0 to 1.");
    output.leave(
        "labels",
        Value::Texts(vec!["first class".to_owned(), "second class".to_owned()]),
        "Labels of the classes in order; or labels-file with one label per line.",
    );
}
