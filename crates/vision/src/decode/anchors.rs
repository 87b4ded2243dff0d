//! Decodes exports of YOLOv2 to YOLOv5 and YOLOv7 that do not apply the anchors. They have one raw output per grid. The formulas come from
//! Darknet (`exp`: YOLOv2, v3, v4, Fastest), and from YOLOv5 and YOLOv7 (`square`).

use serde::Deserialize;

use super::activate::sigmoid;
use super::boxes::bad;
use super::{BoxScheme, BoxThresholds, Output, Port, RawDetection, Results, Section, unexpected};
use crate::frame::{Rect, Size};
use crate::tensor::Result;

/// Description keys of the anchors.
#[derive(Debug, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
struct AnchorKeys {
    /// Width and height of the anchors in input pixels, one list for each output, finest grid first.
    anchors: Option<Vec<Vec<[f32; 2]>>>,
    /// How sizes are computed: `exp`, anchor * e^t; or `square`, anchor * (2 sigmoid(t))^2. Default: exp.
    #[serde(default)]
    formula: Formula,
    /// Factor by which centers may leave their cell, as `scale_x_y` of Darknet. Default: 1 for `exp`, 2 for `square`.
    center_scale: Option<f32>,
    /// Whether class scores are a distribution (softmax, YOLOv2) instead of independent (sigmoid). Default: false.
    #[serde(default)]
    softmax: bool,
    /// Whether the model includes the sigmoid and softmax, as OpenVINO's operation RegionYolo does. Default: false.
    #[serde(default)]
    activated: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Default, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
enum Formula {
    #[default]
    Exp,
    Square,
}

const EXPECTED: &str = "`anchors`: expected 1 to 8 lists of the same length, of widths and heights in pixels, such as [[[10, 13], [16, 30]], [[30, 61], [62, 45]]]";

/// Number of values before the class scores: center, size and objectness.
const N_LEADING: usize = 5;

/// Outputs `[1, anchors * (5 + classes), h, w]`, `[1, anchors, h, w, 5 + classes]` or `[1, h, w, anchors * (5 + classes)]`. With `activated`,
/// also `[1, anchors * (5 + classes) * h * w]`.
#[derive(Debug)]
pub(super) struct YoloAnchors {
    anchors: Vec<Vec<[f32; 2]>>,
    formula: Formula,
    center_scale: f32,
    softmax: bool,
    activated: bool,
}

/// One grid.
#[derive(Debug, Clone, Copy)]
struct Grid {
    output_idx: usize,
    rows: usize,
    columns: usize,
    n_values: usize,
    /// Distances in the output data: from a value to the next value, from a cell to the next cell, and from an anchor to the next anchor.
    strides: [usize; 3],
}

impl YoloAnchors {
    pub(super) fn new(section: &mut Section<'_>) -> Result<Self> {
        let AnchorKeys { anchors, formula, center_scale, softmax, activated } = section.keys()?;
        // Do not report a missing key here: `check` reports it, after all keys of the decoder are recorded.
        let anchors = anchors.unwrap_or_default();
        let is_size = |size: &[f32; 2]| size.iter().all(|extent| *extent > 0.0 && *extent <= 1e6);
        let n_each = anchors.first().map_or(0, Vec::len);
        let has_lists = anchors.is_empty() || ((1..=16).contains(&n_each) && anchors.len() <= 8);
        if !has_lists || anchors.iter().any(|of| of.len() != n_each || !of.iter().all(is_size)) {
            return Err(bad(format!("{EXPECTED}, got {anchors:?}")));
        }
        let center_scale = center_scale.unwrap_or(if formula == Formula::Exp { 1.0 } else { 2.0 });
        if !(1.0..=4.0).contains(&center_scale) {
            return Err(bad(format!("`center-scale`: expected 1 to 4, got {center_scale}")));
        }
        Ok(Self { anchors, formula, center_scale, softmax, activated })
    }

    /// The grids, finest first.
    fn find<P: Port>(&self, outputs: &[P], input: Size) -> Result<Vec<Grid>> {
        let Some(n_anchors) = self.anchors.first().map(Vec::len) else { return Err(bad(EXPECTED.to_owned())) };
        let grid = |output_idx: usize| {
            let shape = outputs[output_idx].shape();
            let is_grid = |rows: usize, columns: usize| {
                let is_stride = |pixels: u32, cells: usize| cells > 0 && cells != usize::MAX && (pixels as usize).is_multiple_of(cells);
                is_stride(input.width, columns) && is_stride(input.height, rows)
            };
            let split = |n_channels: usize| Some(n_channels / n_anchors).filter(|n| n * n_anchors == n_channels && *n > N_LEADING);
            match *shape {
                [_, n_channels, rows, columns] if is_grid(rows, columns) && split(n_channels).is_some() => {
                    let n_values = split(n_channels)?;
                    let plane = rows * columns;
                    Some(Grid { output_idx, rows, columns, n_values, strides: [plane, 1, n_values * plane] })
                }
                [_, rows, columns, n_channels] if is_grid(rows, columns) => {
                    let n_values = split(n_channels)?;
                    Some(Grid { output_idx, rows, columns, n_values, strides: [1, n_channels, n_values] })
                }
                // RegionYolo joins the axes of a grid of 32 pixels per cell.
                [_, n] if self.activated && self.anchors.len() == 1 => {
                    let (rows, columns) = (input.height as usize / 32, input.width as usize / 32);
                    let plane = rows * columns;
                    let n_channels = n.checked_div(plane).filter(|n_channels| n_channels * plane == n && is_grid(rows, columns))?;
                    let n_values = split(n_channels)?;
                    Some(Grid { output_idx, rows, columns, n_values, strides: [plane, 1, n_values * plane] })
                }
                [_, first, rows, columns, n_values] if first == n_anchors && is_grid(rows, columns) && n_values > N_LEADING => {
                    Some(Grid { output_idx, rows, columns, n_values, strides: [1, n_values, rows * columns * n_values] })
                }
                _ => None,
            }
        };
        let mut grids: Vec<Grid> = (0..outputs.len()).filter_map(grid).collect();
        grids.sort_by_key(|grid| std::cmp::Reverse(grid.rows * grid.columns));
        let is_same = grids.windows(2).all(|pair| pair[0].n_values == pair[1].n_values);
        if grids.len() != self.anchors.len() || !is_same || input.width == 0 || input.height == 0 {
            let expected = format!(
                "{} outputs [1, {n_anchors} * (5 + classes), h, w], one for each list of `anchors`, with a whole number of pixels per cell",
                self.anchors.len()
            );
            return Err(unexpected("yolo-anchors", expected, outputs));
        }
        Ok(grids)
    }
}

impl BoxScheme for YoloAnchors {
    fn check(&self, outputs: &[(&str, &[usize])], input: Size) -> Result<u32> {
        Ok((self.find(outputs, input)?[0].n_values - N_LEADING) as u32)
    }

    fn candidates(&self, outputs: &[Output<'_>], input: Size, score_min: f32, results: &mut Results) -> Result<()> {
        // The score is at most the objectness. So comparing the logit of the objectness rejects most cells without computing an
        // exponential.
        let sigmoid = |value: f32| if self.activated { value } else { sigmoid(value) };
        let least = if self.activated {
            score_min
        } else if score_min > 0.0 {
            (score_min / (1.0 - score_min)).ln()
        } else {
            f32::NEG_INFINITY
        };
        let mut row = 0;
        for (grid, anchors) in self.find(outputs, input)?.iter().zip(&self.anchors) {
            let data = outputs[grid.output_idx].data;
            let [value_stride, cell_stride, anchor_stride] = grid.strides;
            let (x_stride, y_stride) = (input.width as f32 / grid.columns as f32, input.height as f32 / grid.rows as f32);
            for (anchor_idx, &[anchor_width, anchor_height]) in anchors.iter().enumerate() {
                for cell_idx in 0..grid.rows * grid.columns {
                    let begin = anchor_idx * anchor_stride + cell_idx * cell_stride;
                    let at = |value: usize| data[begin + value * value_stride];
                    row += 1;
                    let objectness = at(4);
                    if objectness.is_nan() || objectness < least {
                        continue;
                    }
                    let (mut class_id, mut best) = (0, f32::NEG_INFINITY);
                    for class in 0..grid.n_values - N_LEADING {
                        let logit = at(N_LEADING + class);
                        if logit > best {
                            (class_id, best) = (class as u32, logit);
                        }
                    }
                    let class_score = if self.softmax && !self.activated {
                        1.0 / (N_LEADING..grid.n_values).map(|value| (at(value) - best).exp()).sum::<f32>()
                    } else {
                        sigmoid(best)
                    };
                    let score = sigmoid(objectness) * class_score;
                    if score > score_min {
                        let center =
                            |value: f32, cell: usize| sigmoid(value) * self.center_scale - (self.center_scale - 1.0) / 2.0 + cell as f32;
                        let size = |value: f32, anchor: f32| match self.formula {
                            Formula::Exp => value.exp() * anchor,
                            Formula::Square => (2.0 * sigmoid(value)).powi(2) * anchor,
                        };
                        let (x, y) = (center(at(0), cell_idx % grid.columns) * x_stride, center(at(1), cell_idx / grid.columns) * y_stride);
                        let rect = Rect::from_center(x, y, size(at(2), anchor_width), size(at(3), anchor_height));
                        results.boxes.push(RawDetection { rect, score, class_id, row: row - 1 });
                    }
                }
            }
        }
        Ok(())
    }

    fn default_thresholds(&self) -> BoxThresholds {
        BoxThresholds { score: 0.25, iou: 0.45, ..Default::default() }
    }
}
