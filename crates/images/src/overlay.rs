//! Draws results on a frame: masks, boxes, keypoints, trails, lines and zones, captions.
//!
//! This module selects the captions and their positions. The module `shapes` draws masks, poses and other geometry, the module `font` makes
//! text into bitmaps, and the module `draw` changes pixels.

use std::fmt::Write;

use crate::draw::{Area, Canvas, PALETTE, Rgb, text_color};
use crate::font::{self, Letters, Typeface};
use crate::frame::{Classification, Detection, FrameResults, Geometry, Outcome, Rect, ScoredLabel, Size};
use crate::scene::Scene;
use crate::shapes;
use crate::trails::Trails;

/// What determines the color of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ColorBy {
    /// The class.
    #[default]
    Class,
    /// The track ID; without track ID, the class.
    Track,
}

/// Options of drawing: which results are drawn, and in which size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Style {
    /// Whether labels and attributes are written above each box.
    pub labels: bool,
    /// Whether the detector's confidence is written after the label.
    pub confidence: bool,
    /// Line width of boxes in pixels; 0: depends on the frame height, at least 2.
    pub thickness: u32,
    /// Height of the text in pixels, 16 to 256; 0: depends on the frame size.
    pub font_size: u32,
    /// Opacity of masks and maps in percent, 0 to 100; 0: they are not drawn.
    pub mask_opacity: u32,
    /// What determines the color of an object.
    pub color_by: ColorBy,
    /// Number of frames that the trail of a tracked object covers; 0: no trails.
    pub trail_length: u32,
}

impl Default for Style {
    fn default() -> Self {
        Self { labels: true, confidence: true, thickness: 0, font_size: 0, mask_opacity: 40, color_by: ColorBy::Class, trail_length: 0 }
    }
}

impl Style {
    /// The color of an object. It does not depend on the other objects of the frame.
    fn color(&self, detection: &Detection) -> Rgb {
        let number = match (self.color_by, detection.track) {
            (ColorBy::Track, Some(track)) => track.0 as u32,
            _ => detection.label_id,
        };
        PALETTE[number as usize % PALETTE.len()]
    }

    /// Line width of boxes in pixels.
    fn line_width(&self, size: Size) -> u32 {
        if self.thickness == 0 { ((size.height + 180) / 360).max(2) } else { self.thickness }
    }
}

/// Things to draw that are not results of the frame.
#[derive(Debug, Clone, Copy, Default)]
pub struct Surroundings<'a> {
    /// Lines and zones with their counts.
    pub scenes: &'a [Scene],
    /// Text in the bottom-left corner; may be empty.
    pub title: &'a str,
}

impl Surroundings<'_> {
    fn is_empty(&self) -> bool {
        self.scenes.iter().all(|scene| scene.places.is_empty()) && self.title.is_empty()
    }
}

/// Draws the frames of one stream. Keeps the trails, and caches text.
#[derive(Debug, Default)]
pub struct Painter {
    letters: Letters,
    trails: Trails,
    /// Buffer reused for all captions.
    caption: String,
}

impl Painter {
    /// Creates a painter that writes with these fonts.
    pub fn new(typeface: Typeface) -> Self {
        Self { letters: Letters::new(typeface), ..Self::default() }
    }

    /// Forgets the trails, for example after a seek.
    pub fn clear(&mut self) {
        self.trails.clear();
    }

    /// Whether something of earlier frames is left to draw.
    pub fn is_pending(&self) -> bool {
        !self.trails.is_empty()
    }

    /// Adds the frame's objects to the trails. Call this once for each frame, before [`draw`](Self::draw).
    pub fn follow(&mut self, results: &FrameResults, style: &Style) {
        self.trails.follow(results, style.trail_length as usize, |detection| style.color(detection));
    }

    /// Whether [`draw`](Self::draw) changes a pixel.
    pub fn has_something_to_draw(&self, results: &FrameResults, style: &Style, surroundings: &Surroundings) -> bool {
        self.is_pending()
            || !surroundings.is_empty()
            || !results.detections.is_empty()
            || results.classifications.iter().any(|Classification { outcome, .. }| match outcome {
                Outcome::Geometry(_) => true,
                outcome => style.labels && is_drawable(outcome),
            })
    }

    /// Draws boxes and keypoints first, then captions, so that no line crosses a text. Results of the whole frame are drawn in its top-left
    /// corner.
    pub fn draw(&mut self, canvas: &mut Canvas, size: Size, results: &FrameResults, style: &Style, surroundings: &Surroundings) {
        let thickness = style.line_width(size);
        draw_areas(canvas, results, style);
        for scene in surroundings.scenes {
            scene.draw_lines(canvas, size, thickness);
        }
        self.trails.draw(canvas, thickness);
        draw_lines(canvas, results, style, thickness);
        let height = if style.font_size == 0 { font::height_for(size) } else { style.font_size };
        self.letters.begin(height, size.width);
        let mut captions: Vec<Area> = Vec::new();
        if !surroundings.title.is_empty() {
            let bitmap = self.letters.line(surroundings.title);
            let area = Area::at(0, i64::from(size.height) - bitmap.height as i64, bitmap.width as i64, bitmap.height as i64);
            let (background, foreground) = (canvas.ink([0; 3]), canvas.ink([255; 3]));
            canvas.stamp(area.x_min, area.y_min, &bitmap, background, foreground);
            captions.push(area);
        }
        if style.labels {
            self.draw_captions(canvas, size, results, style, &mut captions);
        }
        for scene in surroundings.scenes {
            scene.draw_counts(canvas, size, &mut self.letters, |near, extent| take_free(near, size, extent, &mut captions));
        }
    }

    fn draw_captions(&mut self, canvas: &mut Canvas, size: Size, results: &FrameResults, style: &Style, captions: &mut Vec<Area>) {
        let Self { letters, caption, .. } = self;
        let mut write = |canvas: &mut Canvas, caption: &str, color: Rgb, place: &mut dyn FnMut((i64, i64)) -> Area| {
            let bitmap = letters.line(caption);
            let (background, foreground) = (canvas.ink(color), canvas.ink(text_color(color)));
            let area = place((bitmap.width as i64, bitmap.height as i64));
            canvas.stamp(area.x_min, area.y_min, &bitmap, background, foreground);
        };
        for detection in results.detections.iter().filter(|detection| detection.rect.to_pixels(size).is_some()) {
            let Some(area) = Area::of(&detection.rect) else { continue };
            write_caption(caption, detection, style.confidence);
            write(canvas, caption, style.color(detection), &mut |extent| take_free(area, size, extent, captions));
        }
        caption.clear();
        write_classifications(caption, "", &results.classifications);
        if !caption.is_empty() {
            write(canvas, caption, PALETTE[0], &mut |(width, height)| Area::at(0, 0, width, height));
        }
    }
}

/// Calls `draw` with each geometry of these attributes.
fn geometry(classifications: &[Classification], mut draw: impl FnMut(&Geometry)) {
    for Classification { outcome, .. } in classifications {
        if let Outcome::Geometry(geometry) = outcome {
            draw(geometry);
        }
    }
}

/// Draws masks and maps.
fn draw_areas(canvas: &mut Canvas, results: &FrameResults, style: &Style) {
    let opacity = style.mask_opacity.min(100);
    geometry(&results.classifications, |shape| shapes::fill(canvas, shape, PALETTE[0], opacity));
    for detection in &results.detections {
        geometry(&detection.classifications, |shape| shapes::fill(canvas, shape, style.color(detection), opacity));
    }
}

/// Draws boxes, keypoints and outlines.
fn draw_lines(canvas: &mut Canvas, results: &FrameResults, style: &Style, thickness: u32) {
    for detection in &results.detections {
        let Some(area) = Area::of(&detection.rect) else { continue };
        let ink = canvas.ink(style.color(detection));
        let is_rotated = |classification: &Classification| matches!(classification.outcome, Outcome::Geometry(Geometry::RotatedRect(_)));
        if !detection.classifications.iter().any(is_rotated) {
            canvas.outline(area, thickness, ink);
        }
        geometry(&detection.classifications, |shape| shapes::outline(canvas, shape, style.color(detection), thickness));
        // Keypoints are twice as wide as lines.
        let radius = thickness as f32;
        for point in &detection.keypoints {
            let dot = Rect { x: point.x - radius, y: point.y - radius, width: 2.0 * radius, height: 2.0 * radius };
            if let Some(dot) = Area::of(&dot) {
                canvas.fill_rect(dot, ink);
            }
        }
    }
    geometry(&results.classifications, |shape| shapes::outline(canvas, shape, PALETTE[0], thickness));
}

/// Returns a free area for a text near a box, and adds it to the taken areas.
fn take_free(near: Area, size: Size, extent: (i64, i64), taken: &mut Vec<Area>) -> Area {
    let area = free_area(near, size, extent, taken);
    if taken.len() < MAX_COMPARED {
        taken.push(area);
    }
    area
}

/// Maximum number of earlier captions that a new caption avoids. The time grows with the square of this number, and a frame with more
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
    if let Some(confidence) = detection.known_confidence().filter(|_| with_confidence) {
        let _ = write!(caption, " {confidence:.2}");
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
    use crate::draw::Plane;
    use crate::frame::{Colorimetry, ObjectId, PixelFormat, Point};
    use crate::scene::{Counts, Place};

    fn person(track: Option<i32>, rect: Rect) -> Detection {
        Detection {
            id: ObjectId(1),
            track: track.map(ObjectId),
            track_state: None,
            parent: None,
            rect,
            keypoints: vec![],
            confidence: 0.9,
            label_id: 3,
            label: Some("person".into()),
            classifications: vec![],
        }
    }

    /// The pixels of a black RGB image of 320x240 on which these results were drawn.
    fn drawn(painter: &mut Painter, results: &FrameResults, style: Style, surroundings: Surroundings) -> Vec<[u8; 3]> {
        let size = Size::new(320, 240);
        let mut bytes = vec![0; 320 * 240 * 3];
        let planes = [Plane { bytes: &mut bytes, row_stride_bytes: 960 }, Plane::default(), Plane::default()];
        let mut canvas = Canvas::new(PixelFormat::Rgb, size, Colorimetry::default(), planes).unwrap();
        painter.follow(results, &style);
        painter.draw(&mut canvas, size, results, &style, &surroundings);
        bytes.as_chunks().0.to_vec()
    }

    fn frame(detections: Vec<Detection>) -> FrameResults {
        FrameResults { size: Size::new(320, 240), detections, ..FrameResults::default() }
    }

    #[test]
    fn colors_are_those_of_the_class_or_the_track() {
        let rect = Rect { x: 100.0, y: 100.0, width: 50.0, height: 50.0 };
        let color = |track: Option<i32>, color_by| {
            let style = Style { color_by, ..Style::default() };
            drawn(&mut Painter::default(), &frame(vec![person(track, rect)]), style, Surroundings::default())[120 * 320 + 100]
        };
        assert_eq!([color(None, ColorBy::Class), color(Some(7), ColorBy::Class), color(None, ColorBy::Track)], [PALETTE[3]; 3]);
        assert_eq!([color(Some(7), ColorBy::Track), color(Some(8), ColorBy::Track)], [PALETTE[7], PALETTE[8]]);
    }

    #[test]
    fn trails_go_on_for_some_frames_after_the_object() {
        let style = Style { trail_length: 10, labels: false, ..Style::default() };
        let mut painter = Painter::default();
        for n in 0..5 {
            let rect = Rect { x: 20.0 + 30.0 * n as f32, y: 10.0, width: 20.0, height: 30.0 };
            drawn(&mut painter, &frame(vec![person(Some(1), rect)]), style, Surroundings::default());
        }
        let is_drawn = |pixels: &[[u8; 3]], x: usize| (30..50).any(|y| pixels[y * 320 + x] == PALETTE[3]);
        let pixels = drawn(&mut painter, &frame(vec![]), style, Surroundings::default());
        assert!(painter.is_pending() && is_drawn(&pixels, 75) && is_drawn(&pixels, 140) && !is_drawn(&pixels, 200));
        for _ in 0..5 {
            drawn(&mut painter, &frame(vec![]), style, Surroundings::default());
        }
        assert!(!painter.is_pending());
    }

    #[test]
    fn lines_zones_counts_and_title_are_drawn_and_keep_apart() {
        let at = |x: f32, y: f32| Point { x, y };
        let places = vec![
            Place { name: "door".into(), points: vec![at(0.5, 0.0), at(0.5, 1.0)], counts: Counts::Line { n_in: 3, n_out: 2 } },
            Place {
                name: "hall".into(),
                points: vec![at(0.1, 0.2), at(0.4, 0.2), at(0.4, 0.8), at(0.1, 0.8)],
                counts: Counts::Zone { occupancy: 4 },
            },
        ];
        let scene = Scene { places, ..Scene::default() };
        let surroundings = Surroundings { scenes: std::slice::from_ref(&scene), title: "gate 3" };
        let pixels = drawn(&mut Painter::default(), &frame(vec![]), Style::default(), surroundings);
        let line = pixels[10 * 320 + 160];
        assert!(line == PALETTE[5] && pixels[100 * 320 + 32] == PALETTE[2] && pixels[47 * 320 + 60] == PALETTE[2], "{line:?}");
        let n_white = (224 * 320..240 * 320).filter(|idx| pixels[*idx].iter().all(|value| *value > 180)).count();
        assert!(n_white > 10, "the title is white: {n_white} pixels");
        let places = vec![Place { counts: Counts::Line { n_in: 4, n_out: 2 }, ..scene.places[0].clone() }];
        let later = Scene { places, ..Scene::default() };
        let changed = drawn(&mut Painter::default(), &frame(vec![]), Style::default(), Surroundings { scenes: &[later], title: "" });
        assert_ne!(pixels, changed);
        assert!(Surroundings::default().is_empty() && !surroundings.is_empty());
    }

    #[test]
    fn text_of_any_script_is_drawn_and_never_as_a_question_mark() {
        let rect = Rect { x: 100.0, y: 100.0, width: 50.0, height: 50.0 };
        let labeled = |label: &str| {
            let detection = Detection { label: Some(label.into()), ..person(None, rect) };
            let style = Style { confidence: false, ..Style::default() };
            drawn(&mut Painter::default(), &frame(vec![detection]), style, Surroundings::default())
        };
        let question = labeled("?");
        assert!(["Ж", "ł", "Ω", "字", "ế"].into_iter().all(|label| labeled(label) != question));
        assert_ne!(labeled("Ж"), labeled("字"));
    }

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
