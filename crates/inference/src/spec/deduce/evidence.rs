//! Checks whether the ports of a model prove that it needs a certain decoder. There is no proof if other kinds of models have the same
//! ports.
//!
//! The table lists, for each decoder, other models that have the ports that the decoder expects:
//!
//! | decoder | models with such ports | distinguished by |
//! |---|---|---|
//! | `yolov5` | BlazeFace (`[1, 896, 16]` and `[1, 896, 1]`), YOLOX (one row per cell), lists of boxes | a single table with three rows per cell |
//! | `yolov8` | poses, rotated boxes | nothing; the user decides |
//! | `yolov8-pose`, `yolov8-obb`, `yolov10-pose`, `yolov10-obb` | detectors with another number of classes | nothing; they are never deduced |
//! | `detr` | `boxes-scores` | nothing; the user decides |
//! | `rtdetr` | lists of boxes, `yolov5` | nothing; it is never deduced |
//! | `final-boxes` | any list of boxes, `tf-ssd` | the names of the outputs |
//! | `detr-final`, `multiclass-nms` | other names of `final-boxes` | never deduced |
//! | `fastestdet` | every map of several channels | nothing; it is never deduced |
//! | `efficientdet` | SSD with other anchors of the same number | nothing; the user decides |
//! | `blazeface` | none known | the number of rows, and two outputs |
//! | `movenet-multi` | lists with another number of columns | 17 keypoints, at most six persons, and integer pixels |
//! | `yolov10`, `ultraface` | each other, and one-class `yolov5`: all have `[1, N, 6]` | `ultraface`: the number of priors; others: nothing |
//! | `ultraface` | the same network with undecoded priors | the first outputs, see `output_check` |
//! | `boxes-scores` | DETR, SSD with undecoded priors, `ultraface`, `retinaface` | nothing; the user decides |
//! | `retinaface` | variants with other priors | the number of priors, and the third output |
//! | `nanodet` | `nanodet-plus`, `picodet` | three strides; `nanodet-plus` and `picodet` have four |
//! | `nanodet-plus`, `picodet` | each other | nothing; the user decides |
//! | `yunet`, `scrfd`, `centerface` | none known | every output is used |

use crate::frame::Size;

/// Whether the decoder uses every output, given as names and shapes. A decoder that ignored an output could also match other kinds of
/// models.
pub(in crate::spec) fn reads_all(decoder: &str, outputs: &[(&str, &[usize])]) -> bool {
    let shapes: Vec<&[usize]> = outputs.iter().map(|(_, shape)| *shape).collect();
    let n = shapes.len();
    match decoder {
        // The model may also output the maps of the strides, which the decoder does not need.
        "yolov5" => shapes.iter().filter(|shape| shape.len() != 5).count() == 1,
        "yolov8" | "yolov10" | "yolox" | "ssd" => n == 1,
        // Plain detectors with another number of classes have the same outputs.
        "yolov8-pose" | "yolov8-obb" | "yolov10-pose" | "yolov10-obb" | "rtdetr" | "multiclass-nms" | "detr-final" => false,
        "final-boxes" => has_final_boxes(outputs),
        // Other programs write corners with x first.
        "tf-ssd" => !has_final_boxes(outputs),
        "movenet-multi" => n == 1 && shapes[0].get(1) == Some(&6) && shapes[0].get(2) == Some(&56),
        "efficientdet" | "blazeface" => n == 2,
        // Every map of several channels matches `fastestdet`, and every map of one channel `db-text`. `yolo-anchors` needs anchors, which the ports do not show.
        "fastestdet" | "db-text" | "yolo-anchors" => false,
        "yolov5-seg" => shapes.iter().filter(|shape| shape.len() != 5).count() == 2,
        "yolov8-seg" | "yolov10-seg" => n == 2,
        "boxes-masks" => n == 3,
        "detr" => n == 2 || n == 3,
        "ultraface" => n <= 2,
        "boxes-scores" => n == 2,
        "retinaface" => n == 2 || n == 3,
        "scrfd" => n == 6 || n == 9,
        "yunet" => n == 12,
        "centerface" => n == 4,
        "nanodet" => n == 1 || n == 6,
        "nanodet-plus" | "picodet" => n == 1 || n == 8,
        // The model may also output saliency maps and feature vectors, which the decoder does not need.
        _ => true,
    }
}

/// Whether outputs are final boxes with x first: their names are those of a known exporter, or the output is a table of seven columns without
/// a batch axis. TensorFlow's names are not among them, because its corners have y first.
pub(in crate::spec) fn has_final_boxes(outputs: &[(&str, &[usize])]) -> bool {
    let names: Vec<String> = outputs.iter().map(|(name, _)| name.to_ascii_lowercase()).collect();
    let has = |word: &str| names.iter().any(|name| name.contains(word));
    let is_of_tensorflow = ["detection_boxes", "postprocess", "statefulpartitionedcall"].into_iter().any(has);
    let has_lists = has("box") && has("score") && (has("label") || has("class"));
    let has_final_rows = matches!(outputs, [(_, [2..=usize::MAX, 7])]) || (outputs.len() == 1 && has("flat_predictions"));
    !is_of_tensorflow && ((matches!(outputs.len(), 3 | 4) && has_lists) || has_final_rows)
}

/// Whether the outputs are those of TensorRT's operation `EfficientNMS`, as the export scripts of YOLO models name them.
pub(in crate::spec) fn has_efficient_nms(outputs: &[(&str, &[usize])]) -> bool {
    ["num_dets", "det_boxes", "det_scores", "det_classes"].iter().all(|known| outputs.iter().any(|(name, _)| name == known))
}

/// Whether the decoder may read outputs that other kinds of models also have. Such a decoder is only suggested to the user.
pub(in crate::spec) fn is_suggested(decoder: &str, outputs: &[(&str, &[usize])], size: Size) -> bool {
    match (decoder, outputs) {
        ("fastestdet", [(_, [_, _, rows, columns])]) => (16 * rows, 16 * columns) == (size.height as usize, size.width as usize),
        _ => false,
    }
}

/// Whether a decoder reads a list of boxes of any length.
pub(in crate::spec) fn reads_list(decoder: &str) -> bool {
    ["yolov10", "final-boxes", "boxes-labels", "ssd"].contains(&decoder)
}

/// Whether the output tables have the number of rows that models of this decoder have at this input size. Also true if the decoder reads
/// lists of boxes, or if the number of rows is unknown.
pub(in crate::spec) fn has_rows_of(decoder: &str, shapes: &[Vec<usize>], size: Size) -> bool {
    rows_agree(decoder, shapes, size) != Some(false)
}

/// Whether the output tables have the number of rows of a grid, or of priors, of this decoder. `None` if the decoder reads tables of any
/// length, or if the number of rows is unknown.
pub(in crate::spec) fn rows_agree(decoder: &str, shapes: &[Vec<usize>], size: Size) -> Option<bool> {
    let table = shapes.iter().find(|shape| shape.len() == 3)?;
    let n_rows = Some(table[1]).filter(|&n_rows| n_rows != usize::MAX)?;
    let cells = |strides: &[u32]| -> usize {
        strides.iter().map(|stride| size.width.div_ceil(*stride) as usize * size.height.div_ceil(*stride) as usize).sum()
    };
    let has_cells = |n: usize, strides: &[&[u32]]| strides.iter().any(|strides| n == cells(strides));
    Some(match decoder {
        "yolox" if has_cells(n_rows, &[&[8, 16, 32], &[8, 16, 32, 64]]) => true,
        "yolov8" | "yolov8-seg" if has_cells(table[2], &[&[8, 16, 32], &[8, 16, 32, 64], &[4, 8, 16, 32]]) => true,
        "yolov5" | "yolov5-seg" => {
            [&[8, 16, 32][..], &[16, 32], &[8, 16, 32, 64], &[4, 8, 16, 32]].iter().any(|strides| n_rows == 3 * cells(strides))
        }
        "ultraface" => n_rows == 3 * cells(&[8]) + 2 * cells(&[16, 32]) + 3 * cells(&[64]),
        _ => return None,
    })
}
