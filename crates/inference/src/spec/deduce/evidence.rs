//! Whether the ports of a model say that a decoder reads it, or only that it could: other models have such ports, too.
//!
//! What each decoder shares its ports with, and what tells them apart:
//!
//! | decoder | neighbors with such ports | told apart by |
//! |---|---|---|
//! | `yolov5` | BlazeFace (`[1, 896, 16]` and `[1, 896, 1]`), YOLOX of one row per cell, lists of boxes | one table, of three rows per cell |
//! | `yolov8` | poses, masks, rotated boxes | nothing: it is left to say |
//! | `yolov10`, `ultraface` | each other, `yolov5` of one class: `[1, N, 6]` | the number of priors; lists: nothing |
//! | `ultraface` | the same network without its priors applied | the first outputs, see `output_check` |
//! | `boxes-scores` | DETR, SSD without its priors applied, `ultraface`, `retinaface` | nothing: it is never taken by ports |
//! | `retinaface` | its siblings with other priors | the number of priors, and the third output |
//! | `nanodet` | `nanodet-plus`, `picodet` | three strides, the others have four |
//! | `nanodet-plus`, `picodet` | each other | nothing: it is left to say |
//! | `yunet`, `scrfd`, `centerface` | none that is known | every output is used |

use crate::frame::Size;

/// Whether the decoder has a use for every output. One that passes over outputs would read models of other kinds as well.
pub(in crate::spec) fn reads_all(decoder: &str, shapes: &[Vec<usize>]) -> bool {
    let n = shapes.len();
    match decoder {
        // The maps of its strides may come with the table.
        "yolov5" => shapes.iter().filter(|shape| shape.len() != 5).count() == 1,
        "yolov8" | "yolov10" | "yolox" | "ssd" => n == 1,
        "ultraface" => n <= 2,
        "boxes-scores" => n == 2,
        "retinaface" => n == 2 || n == 3,
        "scrfd" => n == 6 || n == 9,
        "yunet" => n == 12,
        "centerface" => n == 4,
        "nanodet" => n == 1 || n == 6,
        "nanodet-plus" | "picodet" => n == 1 || n == 8,
        // Explanations and feature vectors stand beside their lists.
        _ => true,
    }
}

/// Whether tables have as many rows as the decoder's models have at this size of the input; true where that is not known, or rows are a
/// list.
pub(in crate::spec) fn has_rows_of(decoder: &str, shapes: &[Vec<usize>], size: Size) -> bool {
    let table = shapes.iter().find(|shape| shape.len() == 3);
    let Some(n_rows) = table.map(|shape| shape[1]).filter(|&n_rows| n_rows != usize::MAX) else { return true };
    let cells = |strides: &[u32]| -> usize {
        strides.iter().map(|stride| size.width.div_ceil(*stride) as usize * size.height.div_ceil(*stride) as usize).sum()
    };
    match decoder {
        "yolov5" => [&[8, 16, 32][..], &[16, 32], &[8, 16, 32, 64], &[4, 8, 16, 32]].iter().any(|strides| n_rows == 3 * cells(strides)),
        "ultraface" => n_rows == 3 * cells(&[8]) + 2 * cells(&[16, 32]) + 3 * cells(&[64]),
        _ => true,
    }
}
