//! Text: the lines of a text detector (DB, Liao et al. 2020), the characters of a recognizer (CTC, Graves et al. 2006), and texts that a model has
//! already decoded.

use std::sync::Arc;

use serde::Deserialize;

use super::boxes::{bad, fraction};
use super::maps::ClassesAxis;
use super::survey::Expected;
use super::text_format::{FormatKeys, TextFormats};
use super::{
    Activation, BoxScheme, BoxThresholds, Decoder, Output, Port, RawAttribute, RawDetection, Reads, Results, Section, best_class,
    no_output, one, one_port, only, rotated, shape_text, unexpected,
};
use crate::frame::{Outcome, Point, RotatedRect, Size};
use crate::tensor::{Error, ErrorKind, Result};

/// Description keys of recognizers.
#[derive(Debug, Default, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
struct CtcKeys {
    /// Minimum confidence of the text, 0 to 1. Default: 0.
    threshold: Option<f32>,
    /// The activation that turns scores into probabilities. Default: none.
    activation: Option<Activation>,
    /// Position of the class for "no character". Default: first.
    #[serde(default)]
    blank: Blank,
    /// Position of the class axis: last, `[1, steps, classes]`, or first, `[1, classes, steps]`. Default: the axis whose extent is that of the labels, else the last.
    classes_axis: Option<ClassesAxis>,
    /// Formats of the text; the first that matches is used. Texts that match no format are not reported. Default: all texts are reported.
    #[serde(default)]
    formats: Vec<FormatKeys>,
    /// Whether letters become capitals before `formats` apply. Default: false.
    #[serde(default)]
    uppercase: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Default, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
enum Blank {
    #[default]
    First,
    Last,
}

/// Text recognition. For each step, the output has a score for each character and for "no character": `[1, steps, classes]`, or with other
/// axes of extent 1, or with classes before steps.
#[derive(Debug)]
pub(super) struct Ctc {
    threshold: f32,
    activation: Activation,
    blank: Blank,
    classes_axis: Option<ClassesAxis>,
    characters: Vec<Arc<str>>,
    formats: TextFormats,
}

impl Ctc {
    pub(super) fn new(section: &mut Section<'_>) -> Result<Self> {
        let CtcKeys { threshold, activation, blank, classes_axis, formats, uppercase } = section.keys()?;
        let activation = activation.unwrap_or_default();
        if !matches!(activation, Activation::None | Activation::Softmax) {
            return Err(bad(format!("`activation`: expected none or softmax, got {activation}")));
        }
        let threshold = fraction("threshold", section.threshold.or(threshold).unwrap_or(0.0))?;
        let formats = TextFormats::new(&formats, uppercase)?;
        Ok(Self { threshold, activation, blank, classes_axis, characters: Vec::new(), formats })
    }

    /// Returns the number of classes, and whether the axis of the classes is before the axis of the steps.
    fn classes(&self, name: &str, shape: &[usize]) -> Result<(usize, bool)> {
        let n_labels = self.characters.len();
        // The additional class is "no character"; a second one is the space.
        let n_more = |n_classes: usize| n_classes.checked_sub(n_labels).filter(|n_more| n_labels > 0 && (1..=2).contains(n_more));
        let has_labels = |n_classes: usize| n_more(n_classes).is_some();
        let extents: Vec<usize> = shape.iter().copied().filter(|&extent| extent != 1).collect();
        let axes = match (&extents[..], shape) {
            (&[first, last], [_, _] | [_, _, _] | [_, _, _, _]) => Some((first, last)),
            // A single step, or dynamic axes.
            (_, &[first, last] | &[1 | usize::MAX, first, last]) => Some((first, last)),
            _ => None,
        };
        let found = axes.map(|(first, last)| match self.classes_axis {
            Some(ClassesAxis::First) => (first, true),
            None if n_more(first).is_some_and(|of_first| n_more(last).is_none_or(|of_last| of_first < of_last)) => (first, true),
            _ => (last, false),
        });
        let Some((n_classes, is_first)) = found.filter(|(n_classes, _)| *n_classes >= 2) else {
            let message = format!(
                "output `{name}`: expected [1, steps, characters + 1], or other axes of extent 1, or the classes before the steps, got {}",
                shape_text(shape)
            );
            return Err(Error::new(ErrorKind::Shape, message));
        };
        if n_labels > 0 && n_classes != usize::MAX && !has_labels(n_classes) {
            return Err(bad(format!(
                "labels: expected {} characters, or {} if the last one is the space, got {n_labels}. The class for no character has no label",
                n_classes - 1,
                n_classes - 2
            )));
        }
        Ok((n_classes, is_first))
    }
}

impl Decoder for Ctc {
    fn check(&self, outputs: &[(&str, &[usize])], _input: Size) -> Result<u32> {
        let (name, shape) = one_port(outputs)?;
        // The number of labels differs from the number of classes, so this decoder itself checks the number of labels.
        self.classes(name, shape).map(|_| 0)
    }

    /// The best class of each step. Equal classes in succession are one character. The confidence is the mean of the characters'
    /// probabilities. A text without characters is empty and has the confidence 0; it is reported if the threshold is 0.
    fn decode(&self, outputs: &[Output<'_>], _input: Size, results: &mut Results) -> Result<()> {
        // The first axis may have the steps.
        let output = *outputs.first().ok_or_else(no_output)?;
        if !output.is_complete() {
            return Err(output.incomplete());
        }
        let (n_classes, is_first) = self.classes(output.name, output.shape)?;
        let n_steps = output.data.len() / n_classes;
        let step = |step: usize, scores: &mut Vec<f32>| {
            scores.clear();
            match is_first {
                true => scores.extend(output.data[step..].iter().step_by(n_steps)),
                false => scores.extend_from_slice(&output.data[step * n_classes..][..n_classes]),
            }
        };
        results.look_at(&output, Expected::Numbers);
        let blank = if self.blank == Blank::First { 0 } else { n_classes as u32 - 1 };
        let (mut text, mut sum, mut n_characters, mut last) = (String::new(), 0.0, 0_usize, blank);
        let mut scores = Vec::with_capacity(n_classes);
        for step_idx in 0..n_steps {
            step(step_idx, &mut scores);
            let (class, score) = best_class(&scores);
            if class != blank && class != last {
                let probability = match self.activation {
                    Activation::Softmax => 1.0 / scores.iter().map(|other| (other - score).exp()).sum::<f32>(),
                    _ => score,
                };
                if !probability.is_finite() {
                    let message = format!("output `{}`: expected finite scores, got {score}", output.name);
                    return Err(Error::new(ErrorKind::Unsupported, message));
                }
                sum += probability;
                let label_idx = class as usize - usize::from(self.blank == Blank::First);
                match self.characters.get(label_idx) {
                    Some(character) => text.push_str(character),
                    // Recognizers of PaddleOCR have a class for the space, after the classes of the dictionary.
                    None if !self.characters.is_empty() => text.push(' '),
                    None => text += &format!("{}{class}", if n_characters > 0 { " " } else { "" }),
                }
                n_characters += 1;
            }
            last = class;
        }
        let confidence = if n_characters > 0 { (sum / n_characters as f32).clamp(0.0, 1.0) } else { 0.0 };
        if confidence >= self.threshold
            && let Some(text) = self.formats.apply(text)
        {
            results.say(Outcome::Text { text: text.into(), confidence });
        }
        Ok(())
    }

    fn set_labels(&mut self, labels: &[Arc<str>]) {
        self.characters = labels.to_vec();
    }

    fn threshold(&self) -> Option<f32> {
        Some(self.threshold)
    }

    fn reads(&self) -> Reads {
        Reads::One
    }
}

/// Description keys of recognizers that decode the text in the model.
#[derive(Debug, Default, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
struct TextIndexesKeys {
    /// Formats of the text; the first that matches is used. Texts that match no format are not reported. Default: all texts are reported.
    #[serde(default)]
    formats: Vec<FormatKeys>,
    /// Whether letters become capitals before `formats` apply. Default: false.
    #[serde(default)]
    uppercase: bool,
}

/// Text as indexes of characters. The output has one index for each character, and -1 after the last character. The labels are the characters.
#[derive(Debug)]
pub(super) struct TextIndexes {
    characters: Vec<Arc<str>>,
    formats: TextFormats,
}

impl TextIndexes {
    pub(super) fn new(section: &mut Section<'_>) -> Result<Self> {
        let TextIndexesKeys { formats, uppercase } = section.keys()?;
        Ok(Self { characters: Vec::new(), formats: TextFormats::new(&formats, uppercase)? })
    }
}

impl Decoder for TextIndexes {
    /// Checks that one axis after the batch axis has the indexes, and the other axes have extent 1.
    fn check(&self, outputs: &[(&str, &[usize])], _input: Size) -> Result<u32> {
        let (name, shape) = one_port(outputs)?;
        let n_axes = shape.get(1..).unwrap_or_default().iter().filter(|&&extent| extent != 1).count();
        if n_axes != 1 || shape.contains(&0) {
            let message = format!("output `{name}`: expected indexes of characters, [1, n] or [1, n, 1, 1], got {}", shape_text(shape));
            return Err(Error::new(ErrorKind::Shape, message));
        }
        Ok(0)
    }

    /// The model reports no probability, so the confidence of a text is 1. A text without characters is not reported.
    fn decode(&self, outputs: &[Output<'_>], _input: Size, results: &mut Results) -> Result<()> {
        let output = one(outputs)?;
        results.look_at(&output, Expected::Numbers);
        let mut text = String::new();
        for &index in output.data.iter().take_while(|&&index| index != -1.0) {
            let is_index = (0.0..1e6).contains(&index) && index.fract() == 0.0;
            match self.characters.get(index as usize) {
                Some(character) if is_index => text.push_str(character),
                None if is_index && self.characters.is_empty() => {
                    text += &format!("{}{index}", if text.is_empty() { "" } else { " " });
                }
                _ => {
                    let n_labels = self.characters.len();
                    let message = format!(
                        "output `{}`: expected an index of one of the {n_labels} labels, or -1 as the end, got {index}. Add all characters to the labels",
                        output.name
                    );
                    return Err(Error::new(ErrorKind::Unsupported, message));
                }
            }
        }
        if !text.is_empty()
            && let Some(text) = self.formats.apply(text)
        {
            results.say(Outcome::Text { text: text.into(), confidence: 1.0 });
        }
        Ok(())
    }

    fn set_labels(&mut self, labels: &[Arc<str>]) {
        self.characters = labels.to_vec();
    }

    fn reads(&self) -> Reads {
        Reads::One
    }
}

/// Description keys of text detectors.
#[derive(Debug, Default, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
struct DbKeys {
    /// Pixels with a larger probability belong to a line of text, 0 to 1. Default: 0.3.
    pixel_threshold: Option<f32>,
    /// By how much lines are enlarged: each side moves by `area * unclip-ratio / perimeter`. Default: 1.5.
    unclip_ratio: Option<f32>,
}

/// Text detection. Output `[1, 1, h, w]`: the probability that a pixel is inside the core of a line of text. The model is trained with
/// shrunk lines, so that neighboring lines do not touch. So the decoder enlarges the lines by `unclip-ratio`.
#[derive(Debug)]
pub(super) struct Db {
    pixel_threshold: f32,
    unclip_ratio: f32,
}

/// Minimum length of the shorter side of a line, in cells of the map.
const MIN_SIDE: f32 = 3.0;
/// Maximum number of lines.
const MAX_LINES: usize = 1000;

impl Db {
    pub(super) fn new(section: &mut Section<'_>) -> Result<Self> {
        let DbKeys { pixel_threshold, unclip_ratio } = section.keys()?;
        let unclip_ratio = unclip_ratio.unwrap_or(1.5);
        if !(0.0..=10.0).contains(&unclip_ratio) {
            return Err(bad(format!("`unclip-ratio`: expected 0 to 10, got {unclip_ratio}")));
        }
        Ok(Self { pixel_threshold: fraction("pixel-threshold", pixel_threshold.unwrap_or(0.3))?, unclip_ratio })
    }

    fn find<P: Port>(outputs: &[P]) -> Result<usize> {
        only(outputs, |shape| shape.len() == 4 && shape[1] == 1 && shape[2] > 0 && shape[3] > 0)
            .ok_or_else(|| unexpected("db-text", "one output [1, 1, h, w] of probabilities", outputs))
    }
}

impl BoxScheme for Db {
    fn check(&self, outputs: &[(&str, &[usize])], _input: Size) -> Result<u32> {
        Self::find(outputs).map(|_| 1)
    }

    fn candidates(&self, outputs: &[Output<'_>], input: Size, score_min: f32, results: &mut Results) -> Result<()> {
        let output = &outputs[Self::find(outputs)?];
        let (rows, columns) = (output.shape[2], output.shape[3]);
        let (x_scale, y_scale) = (input.width as f32 / columns as f32, input.height as f32 / rows as f32);
        for (row, outline) in (0..).zip(components(output.data, columns, self.pixel_threshold).into_iter().take(MAX_LINES)) {
            let Some(rect) = smallest_rect(&outline).filter(|rect| rect.width.min(rect.height) >= MIN_SIDE) else { continue };
            let score = mean_inside(output.data, rows, columns, &rect);
            let distance = rect.width * rect.height * self.unclip_ratio / (2.0 * (rect.width + rect.height));
            let (width, height) = (rect.width + 2.0 * distance, rect.height + 2.0 * distance);
            if score <= score_min || width.min(height) < MIN_SIDE + 2.0 {
                continue;
            }
            let in_map = upright(RotatedRect { width, height, ..rect });
            // The map has the aspect ratio of the input, so its scales are nearly equal.
            let center = Point { x: in_map.center.x * x_scale, y: in_map.center.y * y_scale };
            let (sin, cos) = in_map.angle.to_radians().sin_cos();
            let (along, across) = ((cos * x_scale).hypot(sin * y_scale), (sin * x_scale).hypot(cos * y_scale));
            let angle = (sin * y_scale).atan2(cos * x_scale).to_degrees();
            let found = RotatedRect { center, width: in_map.width * along, height: in_map.height * across, angle };
            results.boxes.push(RawDetection { rect: rotated::enclosing(&found), score, class_id: 0, row });
            results.add_rotated(row, found);
        }
        Ok(())
    }

    fn add_attributes(&self, _outputs: &[Output<'_>], _input: Size, results: &mut Results) -> Result<()> {
        for of in 0..results.boxes.len() {
            let outcome = results.rotated(results.boxes[of].row).and_then(rotated::outcome);
            results.attributes.extend(outcome.map(|outcome| RawAttribute { of: Some(of), name: Some("rotated_box".into()), outcome }));
        }
        Ok(())
    }

    fn overlaps(&self) -> bool {
        false
    }

    fn default_thresholds(&self) -> BoxThresholds {
        BoxThresholds { score: 0.6, max_boxes: MAX_LINES, ..Default::default() }
    }
}

/// Finds the connected areas of cells above a threshold. Diagonal neighbors are connected. Returns for each area the first and the last
/// cell of each of its runs, from top to bottom. A run is a sequence of neighboring cells in a row.
fn components(data: &[f32], columns: usize, threshold: f32) -> Vec<Vec<(f32, f32)>> {
    /// A run of cells in a row, and the area to which it belongs.
    struct Run {
        begin: usize,
        end: usize,
        row: usize,
        area: usize,
    }
    fn root(of: &mut [usize], mut area: usize) -> usize {
        while of[area] != area {
            of[area] = of[of[area]];
            area = of[area];
        }
        area
    }
    let (mut runs, mut parents): (Vec<Run>, Vec<usize>) = (Vec::new(), Vec::new());
    let (mut above, mut n_before) = (0..0, 0);
    for (row, cells) in data.chunks_exact(columns).enumerate() {
        let (mut column, mut next_above) = (0, above.start);
        while let Some(begin) = cells[column..].iter().position(|value| *value > threshold).map(|offset| column + offset) {
            let end =
                cells[begin..].iter().position(|value| value.is_nan() || *value <= threshold).map_or(columns, |offset| begin + offset);
            let mut area = None;
            while next_above < above.end && runs[next_above].end < begin {
                next_above += 1;
            }
            for run in runs[next_above..above.end].iter().take_while(|run| run.begin <= end) {
                let other = root(&mut parents, run.area);
                match area {
                    None => area = Some(other),
                    Some(area) => parents[other.max(area)] = other.min(area),
                }
                area = area.map(|area| root(&mut parents, area));
            }
            let area = area.unwrap_or_else(|| {
                parents.push(parents.len());
                parents.len() - 1
            });
            runs.push(Run { begin, end, row, area });
            column = end;
            if column == columns {
                break;
            }
        }
        (above, n_before) = (n_before..runs.len(), runs.len());
    }
    let mut areas: Vec<Vec<(f32, f32)>> = vec![Vec::new(); parents.len()];
    for run in &runs {
        let area = root(&mut parents, run.area);
        areas[area].extend([(run.begin as f32, run.row as f32), ((run.end - 1) as f32, run.row as f32)]);
    }
    areas.retain(|area| !area.is_empty());
    areas
}

/// Returns the smallest rectangle around these points; `None` if there are no points. One side of this rectangle contains an edge of the
/// convex hull.
fn smallest_rect(points: &[(f32, f32)]) -> Option<RotatedRect> {
    let hull = hull(points);
    let edges = hull.iter().zip(hull.iter().cycle().skip(1));
    let rect = |(from, to): (&(f32, f32), &(f32, f32))| {
        let (dx, dy) = (to.0 - from.0, to.1 - from.1);
        let length = dx.hypot(dy);
        let (ux, uy) = if length > 0.0 { (dx / length, dy / length) } else { (1.0, 0.0) };
        let range = |project: &dyn Fn(&(f32, f32)) -> f32| {
            hull.iter().map(project).fold((f32::INFINITY, f32::NEG_INFINITY), |(min, max), value| (min.min(value), max.max(value)))
        };
        let along = range(&|point| point.0 * ux + point.1 * uy);
        let across = range(&|point| point.1 * ux - point.0 * uy);
        let (u, v) = ((along.0 + along.1) / 2.0, (across.0 + across.1) / 2.0);
        RotatedRect {
            center: Point { x: u * ux - v * uy, y: u * uy + v * ux },
            width: along.1 - along.0,
            height: across.1 - across.0,
            angle: uy.atan2(ux).to_degrees(),
        }
    };
    edges.map(rect).min_by(|one, other| (one.width * one.height).total_cmp(&(other.width * other.height)))
}

/// Returns the convex hull (Andrew's monotone chain).
fn hull(points: &[(f32, f32)]) -> Vec<(f32, f32)> {
    let mut sorted = points.to_vec();
    sorted.sort_unstable_by(|one, other| one.0.total_cmp(&other.0).then(one.1.total_cmp(&other.1)));
    sorted.dedup();
    if sorted.len() < 3 {
        return sorted;
    }
    let turns_left = |a: (f32, f32), b: (f32, f32), c: (f32, f32)| (b.0 - a.0) * (c.1 - a.1) - (b.1 - a.1) * (c.0 - a.0) > 0.0;
    let chain = |points: &mut dyn Iterator<Item = (f32, f32)>| {
        let mut chain: Vec<(f32, f32)> = Vec::new();
        for point in points {
            while chain.len() >= 2 && !turns_left(chain[chain.len() - 2], chain[chain.len() - 1], point) {
                chain.pop();
            }
            chain.push(point);
        }
        chain.pop();
        chain
    };
    let mut hull = chain(&mut sorted.iter().copied());
    hull.extend(chain(&mut sorted.iter().rev().copied()));
    hull
}

/// Returns the mean of the cells inside a rectangle.
fn mean_inside(data: &[f32], rows: usize, columns: usize, rect: &RotatedRect) -> f32 {
    let (sin, cos) = rect.angle.to_radians().sin_cos();
    let bounds = rotated::enclosing(rect);
    let range = |min: f32, max: f32, limit: usize| (min.floor().max(0.0) as usize)..((max.ceil() as usize + 1).min(limit));
    let (mut sum, mut n_cells) = (0.0_f64, 0_usize);
    for row in range(bounds.y, bounds.y_max(), rows) {
        for column in range(bounds.x, bounds.x_max(), columns) {
            let (x, y) = (column as f32 - rect.center.x, row as f32 - rect.center.y);
            let (along, across) = ((x * cos + y * sin).abs(), (y * cos - x * sin).abs());
            if along <= rect.width / 2.0 + 0.5 && across <= rect.height / 2.0 + 0.5 {
                sum += f64::from(data[row * columns + column]);
                n_cells += 1;
            }
        }
    }
    if n_cells > 0 { (sum / n_cells as f64) as f32 } else { 0.0 }
}

/// Returns the same rectangle with an angle from -45 to 45 degrees. If its height would then be at least 1.5 times its width, the line is
/// read from top to bottom, and the angle is from 45 to 135 degrees.
fn upright(mut rect: RotatedRect) -> RotatedRect {
    rect.angle = rect.angle.rem_euclid(180.0);
    if rect.angle > 135.0 {
        rect.angle -= 180.0;
    } else if rect.angle > 45.0 {
        rect = RotatedRect { angle: rect.angle - 90.0, width: rect.height, height: rect.width, ..rect };
    }
    if rect.height >= 1.5 * rect.width {
        rect = RotatedRect { angle: rect.angle + 90.0, width: rect.height, height: rect.width, ..rect };
    }
    rect
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode::tests::decoder;
    use crate::frame::Geometry;

    #[test]
    fn equal_steps_are_one_character_and_blanks_separate() {
        let read = |keys: &str, labels: &[&str], steps: &[[f32; 4]]| {
            let mut decoder = decoder("ctc", keys);
            decoder.set_labels(&labels.iter().map(|label| Arc::from(*label)).collect::<Vec<_>>());
            let output = Output { name: "y", shape: &[1, steps.len(), 4], data: steps.as_flattened() };
            let mut results = Results::default();
            decoder.decode(&[output], Size::default(), &mut results).map(|()| results.attributes.pop().map(|of| of.outcome))
        };
        let (a, b, space, none) = ([0.1, 0.9, 0.0, 0.0], [0.2, 0.0, 0.8, 0.0], [0.3, 0.0, 0.0, 0.7], [1.0, 0.0, 0.0, 0.0]);
        let text = |text: &str, confidence: f32| Ok(Some(Outcome::Text { text: text.into(), confidence }));
        assert_eq!(read("", &["a", "b"], &[none, a, a, none, a, b, space, none]), text("aab ", 0.825));
        assert_eq!(read("blank = \"last\"", &["a", "b", "c"], &[none, space, none, a]), text("aab", (1.0 + 1.0 + 0.9) / 3.0));
        assert_eq!(read("", &[], &[a, b]), text("1 2", 0.85));
        assert_eq!((read("", &["a", "b"], &[none]), read("threshold = 0.5", &["a", "b"], &[none])), (text("", 0.0), Ok(None)));
        assert_eq!(read("activation = \"softmax\"", &["a", "b"], &[[0.0, 9_f32.ln(), -99.0, -99.0]]), text("a", 0.9));
        let capital_pairs = "uppercase = true\nformats = [{ pattern = \"([A-Z])([A-Z])\", text = \"$1-$2\" }]";
        assert_eq!(read(capital_pairs, &["a", "b"], &[a, b]), text("A-B", 0.85));
        assert_eq!(read(capital_pairs, &["a", "b"], &[a, b, none, b]), Ok(None));
        let message = read("", &["a"], &[none]).unwrap_err().to_string();
        assert!(message.contains("expected 3 characters, or 2 if the last one is the space, got 1"), "{message}");
    }

    /// PyTorch's CRNN has the steps first, LPRNet has the classes before the steps, and OpenCV's recognizers have no batch axis.
    #[test]
    fn steps_and_classes_may_be_in_any_order() {
        let labels: Vec<Arc<str>> = ["a", "b", "c"].map(Arc::from).to_vec();
        let steps = [[0.1, 0.0, 0.9, 0.0], [0.9, 0.0, 0.0, 0.1], [0.9, 0.0, 0.0, 0.1], [0.0, 0.0, 0.1, 0.9], [0.0, 0.8, 0.0, 0.2]];
        let by_step = steps.as_flattened().to_vec();
        let by_class: Vec<f32> = (0..4).flat_map(|class| steps.map(|step| step[class])).collect();
        let read = |keys: &str, labels: &[Arc<str>], shape: &[usize], data: &[f32]| {
            let (mut decoder, mut results) = (decoder("ctc", keys), Results::default());
            decoder.set_labels(labels);
            decoder.decode(&[Output { name: "y", shape, data }], Size::default(), &mut results)?;
            match results.attributes.pop().map(|of| of.outcome) {
                Some(Outcome::Text { text, .. }) => Ok::<_, Error>(text.to_string()),
                other => panic!("{other:?}"),
            }
        };
        for shape in [&[1, 5, 4][..], &[5, 1, 4], &[5, 4], &[1, 1, 5, 4]] {
            assert_eq!(read("blank = \"last\"", &labels, shape, &by_step).as_deref(), Ok("cab"), "{shape:?}");
            assert_eq!(read("blank = \"last\"", &[], shape, &by_step).as_deref(), Ok("2 0 1"), "{shape:?}");
        }
        for shape in [&[1, 4, 5][..], &[4, 5], &[1, 4, 1, 5]] {
            assert_eq!(read("blank = \"last\"", &labels, shape, &by_class).as_deref(), Ok("cab"), "{shape:?}");
            assert_eq!(read("blank = \"last\"\nclasses-axis = \"first\"", &[], shape, &by_class).as_deref(), Ok("2 0 1"), "{shape:?}");
        }
        assert_eq!(read("", &labels, &[1, 1, 4], &steps[0]).as_deref(), Ok("b"), "one step");
        for shape in [&[2, 5, 2][..], &[20], &[1, 2, 2, 5]] {
            assert!(
                read("", &labels, shape, &by_step).unwrap_err().to_string().contains("expected [1, steps, characters + 1]"),
                "{shape:?}"
            );
        }
        let any = usize::MAX;
        decoder("ctc", "").check(&[("y", &[any, any, 6625])], Size::default()).unwrap();
    }

    #[test]
    fn lines_of_text_are_rotated_boxes() {
        let (columns, rows) = (80, 60);
        let bar = |x: f32, y: f32, center: (f32, f32), half: (f32, f32), degrees: f32| {
            let (sin, cos) = degrees.to_radians().sin_cos();
            let (x, y) = (x - center.0, y - center.1);
            (x * cos + y * sin).abs() <= half.0 && (y * cos - x * sin).abs() <= half.1
        };
        let is_text = |x: f32, y: f32| bar(x, y, (25.0, 15.0), (18.0, 4.0), 20.0) || bar(x, y, (65.0, 35.0), (3.0, 16.0), 0.0);
        let mut data: Vec<f32> =
            (0..columns * rows).map(|cell| if is_text((cell % columns) as f32, (cell / columns) as f32) { 0.9 } else { 0.05 }).collect();
        data[59 * columns] = 0.9;
        let output = Output { name: "maps", shape: &[1, 1, rows, columns], data: &data };
        let mut results = Results::default();
        decoder("db-text", "unclip-ratio = 1.5").decode(&[output], Size::new(160, 120), &mut results).unwrap();
        assert_eq!((results.boxes.len(), results.attributes.len()), (2, 2), "the single cell is no line");
        let of = |center: (f32, f32)| {
            let found = results.attributes.iter().filter_map(|attribute| match attribute.outcome {
                Outcome::Geometry(Geometry::RotatedRect(rect)) => Some(rect),
                _ => None,
            });
            found.min_by_key(|rect| (rect.center.x - center.0).hypot(rect.center.y - center.1) as u32).unwrap()
        };
        let (slanted, upward) = (of((50.0, 30.0)), of((130.0, 70.0)));
        // Sides grow by the area times 1.5, divided by the perimeter.
        let distance = 36.0 * 8.0 * 1.5 / 88.0;
        assert!((slanted.angle - 20.0).abs() < 3.0 && (slanted.width - 2.0 * (36.0 + 2.0 * distance)).abs() < 5.0, "{slanted:?}");
        assert!((upward.angle - 90.0).abs() < 1.0 && upward.width > 2.0 * upward.height, "read from top to bottom: {upward:?}");
    }
}
