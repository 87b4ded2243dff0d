//! Draws results on a frame: masks, boxes, keypoints, captions.
//!
//! This module selects the captions and their positions. The module `shapes` draws masks, poses and other geometry, and the module `draw`
//! changes pixels.

use std::fmt::Write;

use crate::draw::{Area, Canvas, Font, PALETTE, text_color};
use crate::frame::{Classification, Detection, FrameResults, Geometry, Outcome, Rect, ScoredLabel, Size};
use crate::shapes;

/// Options of drawing: which results are drawn, and in which size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Style {
    /// Whether labels and attributes are written above each box.
    pub labels: bool,
    /// Whether the detector's confidence is written after the label.
    pub confidence: bool,
    /// Line width of boxes in pixels; 0: depends on the frame height, at least 2.
    pub thickness: u32,
    /// Height of the text in pixels, rounded to an available size; 0: depends on the frame size.
    pub font_size: u32,
    /// Opacity of masks and maps in percent, 0 to 100; 0: they are not drawn.
    pub mask_opacity: u32,
}

impl Default for Style {
    fn default() -> Self {
        Self { labels: true, confidence: true, thickness: 0, font_size: 0, mask_opacity: 40 }
    }
}

/// Whether [`draw_results`] changes a pixel.
pub fn has_something_to_draw(results: &FrameResults, style: Style) -> bool {
    !results.detections.is_empty()
        || results.classifications.iter().any(|Classification { outcome, .. }| match outcome {
            Outcome::Geometry(_) => true,
            outcome => style.labels && is_drawable(outcome),
        })
}

/// Draws boxes and keypoints first, then captions, so that no line crosses a text. Results of the whole frame are drawn in its top-left
/// corner.
///
/// `caption` is a buffer that can be reused for all frames.
pub fn draw_results(canvas: &mut Canvas, size: Size, results: &FrameResults, style: Style, caption: &mut String) {
    let thickness = match style.thickness {
        0 => ((size.height + 180) / 360).max(2),
        thickness => thickness,
    };
    let font = match style.font_size {
        0 => Font::for_frame(size),
        height => Font::nearest(height),
    };
    let color = |detection: &Detection| PALETTE[detection.label_id as usize % PALETTE.len()];
    let boxes = || results.detections.iter().filter_map(|detection| Some((detection, Area::of(&detection.rect)?)));
    let opacity = style.mask_opacity.min(100);
    let geometry = |classifications: &[Classification], draw: &mut dyn FnMut(&Geometry)| {
        for Classification { outcome, .. } in classifications {
            if let Outcome::Geometry(geometry) = outcome {
                draw(geometry);
            }
        }
    };
    geometry(&results.classifications, &mut |shape| shapes::fill(canvas, shape, PALETTE[0], opacity));
    for detection in &results.detections {
        geometry(&detection.classifications, &mut |shape| shapes::fill(canvas, shape, color(detection), opacity));
    }
    for (detection, area) in boxes() {
        let ink = canvas.ink(color(detection));
        let is_rotated = |classification: &Classification| matches!(classification.outcome, Outcome::Geometry(Geometry::RotatedRect(_)));
        if !detection.classifications.iter().any(is_rotated) {
            canvas.outline(area, thickness, ink);
        }
        geometry(&detection.classifications, &mut |shape| shapes::outline(canvas, shape, color(detection), thickness));
        // Keypoints are twice as wide as lines.
        let radius = thickness as f32;
        for point in &detection.keypoints {
            let dot = Rect { x: point.x - radius, y: point.y - radius, width: 2.0 * radius, height: 2.0 * radius };
            if let Some(dot) = Area::of(&dot) {
                canvas.fill_rect(dot, ink);
            }
        }
    }
    geometry(&results.classifications, &mut |shape| shapes::outline(canvas, shape, PALETTE[0], thickness));
    if !style.labels {
        return;
    }
    let mut captions: Vec<Area> = Vec::new();
    for (detection, area) in boxes().filter(|(detection, _)| detection.rect.to_pixels(size).is_some()) {
        write_caption(caption, detection, style.confidence);
        let (background, foreground) = (canvas.ink(color(detection)), canvas.ink(text_color(color(detection))));
        let place = free_area(area, size, (font.width(caption), font.height()), &captions);
        if captions.len() < MAX_COMPARED {
            captions.push(place);
        }
        canvas.fill_rect(place, background);
        canvas.text(place.x_min, place.y_min, caption, font, foreground);
    }
    caption.clear();
    write_classifications(caption, "", &results.classifications);
    if !caption.is_empty() {
        let (background, foreground) = (canvas.ink(PALETTE[0]), canvas.ink(text_color(PALETTE[0])));
        canvas.fill_rect(Area::at(0, 0, font.width(caption), font.height()), background);
        canvas.text(0, 0, caption, font, foreground);
    }
}

/// Maximum number of captions that are placed without overlap. The time grows with the square of the number, and a frame with more
/// captions is not readable.
const MAX_COMPARED: usize = 200;

/// Returns an area for a caption near its box. The area covers as few pixels of earlier captions as possible.
fn free_area(area: Area, size: Size, (width, height): (i64, i64), taken: &[Area]) -> Area {
    let first = caption_area(area, size, width, height);
    let in_frame = |x: i64, y: i64| {
        let (x_most, y_most) = (i64::from(size.width) - width, i64::from(size.height) - height);
        Area::at(x.min(x_most).max(0), y.min(y_most).max(0), width, height)
    };
    let right = area.x_max.saturating_sub(width);
    let others = [
        in_frame(right, area.y_min.saturating_sub(height)),
        in_frame(area.x_min, area.y_max),
        in_frame(right, area.y_max),
        in_frame(area.x_min, area.y_min),
        in_frame(area.x_min, area.y_max.saturating_sub(height)),
        in_frame(area.x_min, first.y_min.saturating_sub(height)),
        in_frame(area.x_min, area.y_max.saturating_add(height)),
        in_frame(area.x_max, area.y_min),
        in_frame(area.x_min.saturating_sub(width), area.y_min),
    ];
    let covered = |place: &Area| taken.iter().map(|other| place.overlap(other)).sum::<i64>();
    let mut best = (covered(&first), first);
    for place in others {
        if best.0 == 0 {
            break;
        }
        let n_pixels = covered(&place);
        if n_pixels < best.0 {
            best = (n_pixels, place);
        }
    }
    best.1
}

/// Returns the area above the box, or inside the box at its top if there is no space above. The area is moved left if it would leave the
/// frame.
fn caption_area(area: Area, size: Size, width: i64, height: i64) -> Area {
    let x = area.x_min.min(i64::from(size.width) - width).max(0);
    let y = if area.y_min >= height { area.y_min - height } else { area.y_min.max(0) };
    Area::at(x, y, width, height)
}

/// Writes a caption such as `face #12 0.99 · female 31`; `#12` is the track ID.
fn write_caption(caption: &mut String, detection: &Detection, with_confidence: bool) {
    caption.clear();
    // Writing to a string can't fail.
    let _ = match &detection.label {
        Some(label) => caption.write_str(label),
        None => write!(caption, "class {}", detection.label_id),
    };
    if let Some(track) = detection.track {
        let _ = write!(caption, " #{track}");
    }
    if with_confidence {
        let _ = write!(caption, " {:.2}", detection.confidence);
    }
    write_classifications(caption, " · ", &detection.classifications);
}

/// Appends drawable classifications such as `female 31`, after `separator`.
fn write_classifications(caption: &mut String, mut separator: &'static str, classifications: &[Classification]) {
    for Classification { name, outcome, .. } in classifications.iter().filter(|classification| is_drawable(&classification.outcome)) {
        caption.push_str(std::mem::replace(&mut separator, " "));
        let _ = match outcome {
            Outcome::Label { label: Some(label), .. } => caption.write_str(label),
            Outcome::Label { label_id, .. } => write!(caption, "{name} {label_id}"),
            Outcome::Labels(labels) => labels.iter().enumerate().try_for_each(|(label_idx, ScoredLabel { label, label_id, .. })| {
                caption.push_str(if label_idx == 0 { "" } else { "+" });
                match label {
                    Some(label) => caption.write_str(label),
                    None => write!(caption, "{label_id}"),
                }
            }),
            Outcome::Value(value) if value.abs() < 10.0 => write!(caption, "{value:.1}"),
            Outcome::Value(value) => write!(caption, "{value:.0}"),
            Outcome::Text { text, .. } => caption.write_str(text),
            _ => Ok(()),
        };
    }
}

/// Returns whether the outcome can be written as text. Tensors, geometry and empty label lists cannot.
fn is_drawable(outcome: &Outcome) -> bool {
    !matches!(outcome, Outcome::Tensor { .. } | Outcome::Geometry(_)) && !matches!(outcome, Outcome::Labels(labels) if labels.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::ObjectId;

    #[test]
    fn caption_has_label_confidence_and_classifications() {
        let outcome = |name: &str, outcome| Classification { name: name.into(), model: "m".into(), outcome };
        let label = |label: Option<&str>| Outcome::Label { label_id: 1, label: label.map(Into::into), confidence: 0.9 };
        let mut detection = Detection {
            id: ObjectId(1),
            track: None,
            track_state: None,
            parent: None,
            rect: Rect::default(),
            keypoints: vec![],
            confidence: 0.987,
            label_id: 7,
            label: Some("face".into()),
            classifications: vec![],
        };
        let mut caption = String::new();
        write_caption(&mut caption, &detection, true);
        assert_eq!(caption, "face 0.99");
        detection.classifications = vec![outcome("gender", label(Some("female"))), outcome("age", Outcome::Value(31.4))];
        write_caption(&mut caption, &detection, true);
        assert_eq!(caption, "face 0.99 · female 31");
        detection.classifications = vec![outcome("color", label(None)), outcome("tilt", Outcome::Value(-0.25))];
        detection.label = None;
        write_caption(&mut caption, &detection, false);
        assert_eq!(caption, "class 7 · color 1 -0.2");
        detection.track = Some(ObjectId(12));
        write_caption(&mut caption, &detection, false);
        assert_eq!(caption, "class 7 #12 · color 1 -0.2");
    }

    #[test]
    fn caption_omits_tensors_and_empty_labels() {
        let classification = |name: &str, outcome| Classification { name: name.into(), model: "m".into(), outcome };
        let vector = classification("identity", Outcome::Tensor { shape: vec![1, 2], data: [0.6, 0.8].into() });
        let labels = |labels: &[(u32, Option<&str>)]| {
            let label = |&(label_id, label): &(u32, Option<&str>)| ScoredLabel { label_id, label: label.map(Into::into), confidence: 0.9 };
            classification("wears", Outcome::Labels(labels.iter().map(label).collect()))
        };
        let age = classification("age", Outcome::Value(31.4));
        let caption_of = |classifications: Vec<Classification>| {
            let mut caption = String::new();
            let detection = Detection {
                id: ObjectId(1),
                track: None,
                track_state: None,
                parent: None,
                rect: Rect::default(),
                keypoints: vec![],
                confidence: 0.9,
                label_id: 0,
                label: Some("person".into()),
                classifications,
            };
            write_caption(&mut caption, &detection, false);
            caption
        };
        assert_eq!(caption_of(vec![vector.clone()]), "person");
        assert_eq!(caption_of(vec![labels(&[])]), "person");
        assert_eq!(caption_of(vec![vector, labels(&[(0, Some("hat")), (4, None)]), age]), "person · hat+4 31");
    }

    #[test]
    fn captions_of_a_crowd_keep_off_each_other() {
        let (size, text) = (Size::new(640, 360), (60, 16));
        let place_all = |boxes: &[Area]| {
            boxes.iter().fold(Vec::new(), |mut taken, area| {
                taken.push(free_area(*area, size, text, &taken));
                taken
            })
        };
        let n_covered =
            |places: &[Area]| places.iter().enumerate().map(|(n, a)| places[..n].iter().map(|b| a.overlap(b)).sum::<i64>()).sum::<i64>();
        // Heads in two rows, nearer to each other than a caption is wide.
        let crowd: Vec<Area> = (0..20).map(|n| Area::at(20 + n % 10 * 40, 100 + n / 10 * 90, 34, 60)).collect();
        let before: Vec<Area> = crowd.iter().map(|area| caption_area(*area, size, text.0, text.1)).collect();
        let after = place_all(&crowd);
        assert!(n_covered(&before) > 5000 && n_covered(&after) == 0, "{} and {} pixels", n_covered(&before), n_covered(&after));
        let same = place_all(&[Area::at(100, 100, 80, 80); 5]);
        assert_eq!((n_covered(&same), same[0]), (0, Area::at(100, 84, 60, 16)), "objects at one place");
        assert!(same.iter().all(|place| place.x_min >= 0 && place.y_min >= 0 && place.x_max <= 640 && place.y_max <= 360));
    }

    #[test]
    fn caption_is_above_box_or_inside_at_top() {
        let size = Size::new(100, 60);
        assert_eq!(caption_area(Area::at(10, 30, 20, 20), size, 40, 16), Area::at(10, 14, 40, 16));
        assert_eq!(caption_area(Area::at(10, 5, 20, 20), size, 40, 16), Area::at(10, 5, 40, 16));
        assert_eq!(caption_area(Area::at(90, -50, 20, 80), size, 40, 16), Area::at(60, 0, 40, 16));
        assert_eq!(caption_area(Area::at(90, 30, 20, 20), size, 400, 16), Area::at(0, 14, 400, 16));
    }
}
