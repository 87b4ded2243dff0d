//! Tiles: overlapping parts of a frame, on which a detector runs in addition to the whole frame. It then finds objects that would be too
//! small in the whole frame after resizing to the input of the model. This module contains only geometry, no pixels.
//!
//! # Merging
//!
//! The tiles overlap, and the whole frame overlaps all of them, so an object can be detected several times. A tile can also cut an object:
//! its box then ends at the border of the tile.
//!
//! Two detections from different tiles show the same object if they have the same class (or if the decoder is class-agnostic), and if the parts of their boxes inside the area
//! that both tiles see have an IoU (intersection over union) above [`SAME_OBJECT_IOU`]. For a cut box and the box of the whole object, this
//! compares the same part of the object. Detections of one tile are never merged, because the decoder has already suppressed overlapping
//! boxes: an object has at most one detection of each tile, the one with the largest IoU.
//!
//! Of the detections of an object, the one with the highest confidence remains, and boxes that no tile cuts come first. If all boxes of an
//! object are cut, the box becomes the rectangle around all of them; keypoints and attributes are those of the detection with the highest
//! confidence. The confidence is the highest of all detections of the object.

use std::fmt;
use std::str::FromStr;

use roiflow_results::polygon;

use crate::frame::{Detection, PixelRect, Point, Rect, Size};

/// IoU above which two detections from different tiles show the same object; see the module.
pub const SAME_OBJECT_IOU: f32 = 0.5;
/// Maximum number of detections that are merged. The time of merging grows with the square of this number.
const MAX_MERGED: usize = 4096;
/// A box counts as cut by a tile if it ends at most this far from a border of the tile, as a fraction of the tile's width or height.
const CUT_MARGIN: f32 = 0.01;
/// Maximum number of columns, and maximum number of rows.
const MAX_PER_SIDE: u32 = 16;
/// Maximum number of tiles that [`TileCount::Auto`] selects. Together with the whole frame, they fit into a batch of 32.
const MAX_AUTO_TILES: u32 = 31;
/// Largest overlap of neighboring tiles, as a fraction of the width or height of a tile.
pub const MAX_OVERLAP: f32 = 0.9;
/// [`TileCount::Auto`] selects tiles whose sides are at most this many times the sides of the model's input.
const AUTO_SCALE: f64 = 2.0;

/// The number of tiles.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TileCount {
    /// Selected by the sizes of the frame and of the model's input: the smallest number of tiles whose width and height are at most twice
    /// those of the input.
    Auto,
    /// This number of columns and rows, 1 to 16 each.
    Fixed { columns: u32, rows: u32 },
}

impl FromStr for TileCount {
    type Err = String;

    /// Parses `auto`, or columns and rows such as `3x2`.
    fn from_str(text: &str) -> Result<Self, String> {
        let side = |text: &str| text.parse().ok().filter(|n| (1..=MAX_PER_SIDE).contains(n));
        match text.split_once('x') {
            None if text == "auto" => Ok(Self::Auto),
            Some((columns, rows)) if side(columns).is_some() && side(rows).is_some() => {
                Ok(Self::Fixed { columns: side(columns).unwrap_or(1), rows: side(rows).unwrap_or(1) })
            }
            _ => Err(format!("expected auto, or columns x rows from 1x1 to {MAX_PER_SIDE}x{MAX_PER_SIDE}, such as 3x2, got {text:?}")),
        }
    }
}

impl fmt::Display for TileCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Fixed { columns, rows } => write!(f, "{columns}x{rows}"),
        }
    }
}

/// How a frame is divided into tiles.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Tiles {
    pub count: TileCount,
    /// Overlap of neighboring tiles, as a fraction of the width or height of a tile, 0 to [`MAX_OVERLAP`]. Other values count as 0. An
    /// object that is smaller than the overlap is completely inside at least one tile.
    pub overlap: f32,
}

impl Tiles {
    /// Returns the areas on which the model runs: the whole frame first, then the tiles, row by row. Tiles outside the search area are left
    /// out. `input` is the size of the model's input.
    pub fn areas(&self, frame: Size, input: Size, search_area: &SearchArea) -> Vec<PixelRect> {
        let whole = PixelRect::whole(frame);
        let (columns, rows) = self.columns_and_rows(frame, input);
        let mut areas = vec![whole];
        if columns * rows > 1 {
            let columns = spans(frame.width, columns, self.overlap());
            for (y, height) in spans(frame.height, rows, self.overlap()) {
                let tiles = columns.iter().map(|&(x, width)| PixelRect { x, y, width, height });
                areas.extend(tiles.filter(|tile| search_area.touches(tile, frame)));
            }
        }
        areas
    }

    /// Returns the number of areas of [`Tiles::areas`] if all tiles are needed. For [`TileCount::Auto`], which depends on the frame: a
    /// typical number.
    pub fn n_areas(&self) -> usize {
        match self.count {
            TileCount::Auto => 5,
            TileCount::Fixed { columns: 1, rows: 1 } => 1,
            TileCount::Fixed { columns, rows } => (columns * rows + 1) as usize,
        }
    }

    fn columns_and_rows(&self, frame: Size, input: Size) -> (u32, u32) {
        if let TileCount::Fixed { columns, rows } = self.count {
            return (columns, rows);
        }
        let side = |frame: u32, input: u32, scale: f64| {
            let largest = f64::from(input.max(1)) * scale;
            (1..=MAX_PER_SIDE).find(|&n| f64::from(frame) / share_of_tiles(n, self.overlap()) <= largest).unwrap_or(MAX_PER_SIDE)
        };
        // If there are too many tiles, try larger tiles. A frame has less than 2^32 pixels per side, so at the last scale, one tile is
        // enough.
        let scales = std::iter::successors(Some(AUTO_SCALE), |scale| Some(scale * 1.25)).take(100);
        scales
            .map(|scale| (side(frame.width, input.width, scale), side(frame.height, input.height, scale)))
            .find(|(columns, rows)| columns * rows <= MAX_AUTO_TILES)
            .unwrap_or((1, 1))
    }

    /// The overlap, or 0 if it is invalid.
    fn overlap(&self) -> f32 {
        if (0.0..=MAX_OVERLAP).contains(&self.overlap) { self.overlap } else { 0.0 }
    }
}

/// Width of the frame divided by the width of a tile, if `n` overlapping tiles side by side cover the frame. The same holds for heights.
fn share_of_tiles(n: u32, overlap: f32) -> f64 {
    f64::from(n) - f64::from(n - 1) * f64::from(overlap)
}

/// Divides a width or height into `n` overlapping parts. Returns the first pixel and the number of pixels of each part.
fn spans(extent: u32, n: u32, overlap: f32) -> Vec<(u32, u32)> {
    // Subtract the rounding error of the overlap first, so that the extent is not rounded up by a whole pixel.
    let of_tile = ((f64::from(extent) / share_of_tiles(n, overlap) - 1e-3).ceil() as u32).clamp(1, extent.max(1));
    let begin = |idx: u32| if n == 1 { 0 } else { (u64::from(extent - of_tile) * u64::from(idx) / u64::from(n - 1)) as u32 };
    (0..n).map(|idx| (begin(idx), of_tile)).collect()
}

/// Polygons in which objects are searched. Without polygons: the whole frame.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct SearchArea {
    /// Corners in fractions of the frame's width and height.
    polygons: Vec<Vec<Point>>,
}

impl SearchArea {
    /// Whether the whole frame is searched.
    pub fn is_whole_frame(&self) -> bool {
        self.polygons.is_empty()
    }

    /// Whether the center of a box is inside one of the polygons.
    pub fn contains(&self, rect: &Rect, frame: Size) -> bool {
        let center = Point {
            x: (rect.x + rect.width / 2.0) / frame.width.max(1) as f32,
            y: (rect.y + rect.height / 2.0) / frame.height.max(1) as f32,
        };
        self.is_whole_frame() || self.polygons.iter().any(|corners| polygon::contains(corners, center))
    }

    /// Whether one of the polygons has a common point with this part of the frame.
    pub fn touches(&self, part: &PixelRect, frame: Size) -> bool {
        let part = part.to_rect().rescaled(frame, Size::new(1, 1));
        self.is_whole_frame() || self.polygons.iter().any(|corners| polygon::touches(corners, &part))
    }
}

impl FromStr for SearchArea {
    type Err = String;

    /// Parses polygons separated by semicolons. A polygon has the coordinates x and y of each corner, separated by commas, for example
    /// `0,0.5,1,0.5,1,1,0,1; 0.4,0.2,0.6,0.2,0.5,0.4`. Coordinates are -1 to 2, because corners may be outside the frame.
    fn from_str(text: &str) -> Result<Self, String> {
        let number = |text: &str| {
            let number = text.trim().parse::<f32>().ok().filter(|number| (-1.0..=2.0).contains(number));
            number.ok_or_else(|| format!("expected fractions of the frame, -1 to 2, separated by commas, got {:?}", text.trim()))
        };
        let polygon = |text: &str| {
            let numbers: Vec<f32> = text.split(',').map(number).collect::<Result<_, _>>()?;
            let (corners, rest) = numbers.as_chunks::<2>();
            if corners.len() < 3 || !rest.is_empty() {
                return Err(format!("expected x and y of at least three corners per polygon, got {} numbers", numbers.len()));
            }
            Ok(corners.iter().map(|&[x, y]| Point { x, y }).collect())
        };
        let polygons = text.split(';').filter(|polygon| !polygon.trim().is_empty()).map(polygon).collect::<Result<_, _>>()?;
        Ok(Self { polygons })
    }
}

/// A detection, and the index of its area in the list of [`Tiles::areas`].
#[derive(Debug, Clone, PartialEq)]
pub struct TileDetection {
    pub area_idx: usize,
    pub detection: Detection,
}

/// Merges the detections of the areas of a frame; see the module. If `class_agnostic` is true, detections of different classes can show the
/// same object. Returns the objects in descending order of confidence.
///
/// Merges only the best 4096 detections, because the time grows with the square of their number. Other detections are dropped.
///
/// # Panics
/// Panics if `area_idx` of a detection is not an index of `areas`.
pub fn merge(mut found: Vec<TileDetection>, areas: &[PixelRect], frame: Size, class_agnostic: bool) -> Vec<Detection> {
    let is_cut = |found: &TileDetection| is_cut(&found.detection.rect, &areas[found.area_idx], frame);
    // At equal confidence, a later area comes first: boxes in tiles are more precise than boxes in the whole frame, which is the first
    // area.
    found.sort_by(|a, b| b.detection.confidence.total_cmp(&a.detection.confidence).then(b.area_idx.cmp(&a.area_idx)));
    found.truncate(MAX_MERGED);
    // Boxes that are not cut come first, so each of them collects its cut parts.
    found.sort_by_cached_key(is_cut);
    let (mut is_used, mut is_object) = (vec![false; found.len()], vec![false; found.len()]);
    let mut members = Vec::new();
    // For each area: whether it has a member, and the detection that has the largest IoU with a member.
    let (mut has_member, mut nearest) = (vec![false; areas.len()], vec![None; areas.len()]);
    for first in 0..found.len() {
        if std::mem::replace(&mut is_used[first], true) {
            continue;
        }
        is_object[first] = true;
        members.clear();
        members.push(first);
        has_member.fill(false);
        has_member[found[first].area_idx] = true;
        let is_part = is_cut(&found[first]);
        // A cut part can be connected with the first part by further parts, so all parts are compared. A whole box needs no further parts.
        let mut n_compared = 0;
        while n_compared < members.len() && (is_part || n_compared == 0) {
            let member = &found[members[n_compared]];
            for other in first + 1..found.len() {
                let area_idx = found[other].area_idx;
                if !is_used[other] && !has_member[area_idx] {
                    let (iou, best) = (common_iou(member, &found[other], areas, class_agnostic), &mut nearest[area_idx]);
                    if iou > best.map_or(SAME_OBJECT_IOU, |(largest, _)| largest) {
                        *best = Some((iou, other));
                    }
                }
            }
            for (area_idx, nearest) in nearest.iter_mut().enumerate() {
                if let Some((_, idx)) = nearest.take() {
                    (is_used[idx], has_member[area_idx]) = (true, true);
                    members.push(idx);
                }
            }
            n_compared += 1;
        }
        let of_members = || members.iter().map(|&idx| &found[idx].detection);
        let confidence = of_members().map(|member| member.confidence).fold(f32::NEG_INFINITY, f32::max);
        let rect = of_members().map(|member| member.rect).reduce(|rect, other| around(&rect, &other)).filter(|_| is_part);
        let object = &mut found[first].detection;
        object.confidence = confidence;
        object.rect = rect.unwrap_or(object.rect);
    }
    let mut objects: Vec<Detection> =
        found.into_iter().zip(is_object).filter(|(_, is_object)| *is_object).map(|(found, _)| found.detection).collect();
    objects.sort_by(|a, b| b.confidence.total_cmp(&a.confidence));
    objects
}

/// Whether a box ends at a border of its tile that is not a border of the frame.
fn is_cut(rect: &Rect, tile: &PixelRect, frame: Size) -> bool {
    let ends_at = |begin: f32, end: f32, tile_begin: u32, of_tile: u32, of_frame: u32| {
        let margin = of_tile as f32 * CUT_MARGIN;
        let tile_end = tile_begin + of_tile;
        (tile_begin > 0 && begin < tile_begin as f32 + margin) || (tile_end < of_frame && end > tile_end as f32 - margin)
    };
    ends_at(rect.x, rect.x_max(), tile.x, tile.width, frame.width) || ends_at(rect.y, rect.y_max(), tile.y, tile.height, frame.height)
}

/// Returns the IoU of two boxes inside the area that both tiles see; see the module. Returns 0 for different classes unless `class_agnostic`
/// is true.
fn common_iou(a: &TileDetection, b: &TileDetection, areas: &[PixelRect], class_agnostic: bool) -> f32 {
    let (of_a, of_b) = (&a.detection, &b.detection);
    let boxes = common(&of_a.rect, &of_b.rect);
    // Most pairs are apart. This check is faster than the IoU.
    if (of_a.label_id != of_b.label_id && !class_agnostic) || boxes.width <= 0.0 || boxes.height <= 0.0 {
        return 0.0;
    }
    let common = common(&areas[a.area_idx].to_rect(), &areas[b.area_idx].to_rect());
    let [part_of_a, part_of_b] = [of_a, of_b].map(|of| self::common(&of.rect, &common));
    part_of_a.iou(&part_of_b)
}

/// The area that two rectangles have in common. Its width or height is not positive if there is none.
fn common(a: &Rect, b: &Rect) -> Rect {
    Rect::from_corners(a.x.max(b.x), a.y.max(b.y), a.x_max().min(b.x_max()), a.y_max().min(b.y_max()))
}

/// The smallest rectangle around two rectangles.
fn around(a: &Rect, b: &Rect) -> Rect {
    Rect::from_corners(a.x.min(b.x), a.y.min(b.y), a.x_max().max(b.x_max()), a.y_max().max(b.y_max()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::ObjectId;

    const FRAME: Size = Size { width: 1000, height: 500 };

    fn tiles(columns: u32, rows: u32, overlap: f32) -> Tiles {
        Tiles { count: TileCount::Fixed { columns, rows }, overlap }
    }

    fn found(area_idx: usize, corners: [f32; 4], confidence: f32) -> TileDetection {
        let [x_min, y_min, x_max, y_max] = corners;
        let detection = Detection {
            id: ObjectId(1),
            track: None,
            track_state: None,
            parent: None,
            rect: Rect::from_corners(x_min, y_min, x_max, y_max),
            keypoints: Vec::new(),
            confidence,
            label_id: 0,
            label: None,
            classifications: Vec::new(),
        };
        TileDetection { area_idx, detection }
    }

    /// Merges detections of two columns that overlap by 200 pixels: 0 to 600 and 400 to 1000. Area 0 is the whole frame.
    fn merged(found: Vec<TileDetection>) -> Vec<([f32; 4], f32)> {
        let areas = tiles(2, 1, 1.0 / 3.0).areas(FRAME, FRAME, &SearchArea::default());
        assert_eq!(areas[1..], [0, 400].map(|x| PixelRect { x, y: 0, width: 600, height: 500 }));
        let objects = merge(found, &areas, FRAME, false);
        objects.iter().map(|found| ([found.rect.x, found.rect.y, found.rect.x_max(), found.rect.y_max()], found.confidence)).collect()
    }

    #[test]
    fn tiles_cover_the_frame_and_overlap_at_least_as_requested() {
        for (columns, rows, overlap) in [(2, 2, 0.2), (3, 1, 0.0), (1, 4, 0.5), (16, 16, 0.33), (7, 3, 0.9), (1, 1, 0.2)] {
            for frame in [FRAME, Size::new(3840, 2160), Size::new(97, 31), Size::new(1, 1)] {
                let areas = tiles(columns, rows, overlap).areas(frame, FRAME, &SearchArea::default());
                assert_eq!(areas[0], PixelRect::whole(frame));
                if columns * rows == 1 {
                    assert_eq!(areas.len(), 1, "the tile would be the whole frame");
                    continue;
                }
                let of_tiles = &areas[1..];
                assert_eq!(of_tiles.len(), (columns * rows) as usize);
                assert_eq!((of_tiles[0].x, of_tiles[0].y), (0, 0));
                let last = of_tiles.last().unwrap();
                assert_eq!((last.x + last.width, last.y + last.height), (frame.width, frame.height));
                for pair in of_tiles.windows(2).filter(|pair| pair[0].y == pair[1].y && pair[0].x != pair[1].x) {
                    let common = (pair[0].x + pair[0].width).saturating_sub(pair[1].x);
                    assert!(
                        common as f32 >= (pair[0].width as f32 * overlap).floor() - 1.0,
                        "{columns}x{rows} {overlap} {frame}: {pair:?}"
                    );
                }
            }
        }
    }

    #[test]
    fn auto_limits_the_scale_and_the_number_of_tiles() {
        let auto = Tiles { count: TileCount::Auto, overlap: 0.2 };
        let n_tiles = |width: u32, height: u32, input: u32| {
            let frame = Size::new(width, height);
            let areas = auto.areas(frame, Size::new(input, input), &SearchArea::default());
            areas.len() - 1
        };
        assert_eq!([n_tiles(640, 360, 640), n_tiles(1280, 720, 640)], [0, 0], "one pass is enough");
        assert_eq!([n_tiles(1920, 1080, 640), n_tiles(3840, 2160, 640)], [2, 8]);
        let many = n_tiles(7680, 4320, 256);
        assert!((20..=MAX_AUTO_TILES as usize).contains(&many), "{many}");
    }

    #[test]
    fn search_area_leaves_out_tiles_and_objects() {
        let upper_left: SearchArea = "0,0,0.4,0,0.4,0.4,0,0.4".parse().unwrap();
        let areas = tiles(2, 2, 0.1).areas(FRAME, FRAME, &upper_left);
        assert_eq!(areas.len(), 2, "the whole frame and the first tile: {areas:?}");
        let centered_at = |x, y| Rect::from_center(x, y, 90.0, 90.0);
        assert!(upper_left.contains(&centered_at(390.0, 190.0), FRAME));
        assert!(!upper_left.contains(&centered_at(410.0, 190.0), FRAME) && !upper_left.contains(&centered_at(390.0, 210.0), FRAME));
        let two: SearchArea = "0,0,0.1,0,0,0.1; 0.9,0.9,1,0.9,1,1".parse().unwrap();
        assert!(two.contains(&centered_at(20.0, 10.0), FRAME) && two.contains(&centered_at(980.0, 470.0), FRAME));
        assert!(!two.contains(&centered_at(500.0, 250.0), FRAME));
    }

    #[test]
    fn invalid_texts_are_explained() {
        for (text, reason) in [("2", "got \"2\""), ("0x2", "1x1"), ("17x1", "16x16"), ("2x2x2", "such as 3x2"), ("", "expected auto")] {
            let error = text.parse::<TileCount>().unwrap_err();
            assert!(error.contains(reason), "{error}");
        }
        for (text, reason) in [
            ("0,0,1,1", "three corners per polygon, got 4 numbers"),
            ("0,0,1,1,5,0", "-1 to 2, separated by commas, got \"5\""),
            ("0,0,1,1,-1.5,0", "got \"-1.5\""),
            ("0,0,1,1,1,0,1", "got 7"),
            ("0 0", "commas"),
        ] {
            let error = text.parse::<SearchArea>().unwrap_err();
            assert!(error.contains(reason), "{error}");
        }
        assert!(" ".parse::<SearchArea>().unwrap().is_whole_frame());
        assert!("-1,0,2,0,0.5,2".parse::<SearchArea>().is_ok(), "corners may be outside the frame");
        assert_eq!("3x2".parse::<TileCount>().unwrap().to_string(), "3x2");
    }

    #[test]
    fn object_that_two_tiles_cut_becomes_one_box() {
        let left = found(1, [300.0, 100.0, 599.0, 200.0], 0.7);
        let right = found(2, [401.0, 98.0, 800.0, 205.0], 0.9);
        assert_eq!(merged(vec![left.clone(), right.clone()]), [([300.0, 98.0, 800.0, 205.0], 0.9)]);
        // The whole box replaces both parts, even with a lower confidence.
        let whole = found(0, [295.0, 99.0, 810.0, 203.0], 0.6);
        assert_eq!(merged(vec![whole, left, right]), [([295.0, 99.0, 810.0, 203.0], 0.9)]);
    }

    #[test]
    fn object_that_several_tiles_see_is_reported_once() {
        let (left, right) = (found(1, [450.0, 10.0, 500.0, 60.0], 0.8), found(2, [452.0, 8.0, 503.0, 61.0], 0.85));
        let whole = found(0, [444.0, 5.0, 500.0, 66.0], 0.4);
        assert_eq!(merged(vec![whole, left, right]), [([452.0, 8.0, 503.0, 61.0], 0.85)]);
    }

    #[test]
    fn detections_of_different_classes_are_merged_if_asked() {
        let areas = tiles(2, 1, 1.0 / 3.0).areas(FRAME, FRAME, &SearchArea::default());
        let merged = |class_agnostic: bool| {
            let (mut one, other) = (found(1, [450.0, 100.0, 490.0, 150.0], 0.9), found(2, [450.0, 100.0, 490.0, 150.0], 0.8));
            one.detection.label_id = 1;
            merge(vec![one, other], &areas, FRAME, class_agnostic).len()
        };
        assert_eq!((merged(false), merged(true)), (2, 1));
    }

    #[test]
    fn neighbors_remain_separate() {
        // The first object is completely inside the left tile, and reaches one pixel into the right tile, where another object begins.
        let (first, second) = (found(1, [300.0, 100.0, 401.0, 200.0], 0.8), found(2, [400.0, 100.0, 500.0, 200.0], 0.9));
        assert_eq!(merged(vec![first, second]).len(), 2);
        // Two overlapping boxes of one tile were not suppressed by the decoder.
        let (near, far) = (found(1, [100.0, 100.0, 200.0, 300.0], 0.8), found(1, [110.0, 100.0, 210.0, 300.0], 0.7));
        assert_eq!(merged(vec![near, far]).len(), 2);
        let (mut person, bicycle) = (found(1, [450.0, 10.0, 500.0, 60.0], 0.8), found(2, [450.0, 10.0, 500.0, 60.0], 0.8));
        person.detection.label_id = 1;
        assert_eq!(merged(vec![person, bicycle]).len(), 2, "different classes");
    }

    #[test]
    fn whole_frame_box_does_not_connect_boxes_of_one_tile() {
        let (near, far) = (found(1, [100.0, 100.0, 160.0, 200.0], 0.8), found(1, [140.0, 100.0, 200.0, 200.0], 0.7));
        for confidence in [0.9, 0.75, 0.4] {
            let whole = found(0, [100.0, 100.0, 200.0, 200.0], confidence);
            assert_eq!(merged(vec![whole, near.clone(), far.clone()]).len(), 2, "{confidence}");
        }
        // Of the boxes of a tile, the one with the largest overlap belongs to the object.
        let whole = found(0, [100.0, 100.0, 200.0, 200.0], 0.9);
        let (part, same) = (found(1, [100.0, 100.0, 160.0, 200.0], 0.8), found(1, [102.0, 100.0, 200.0, 200.0], 0.7));
        let (all, of_part) = (merged(vec![whole, part.clone(), same]), merged(vec![part]));
        assert_eq!((all.len(), all[1]), (2, of_part[0]));
        // Parts of an object that two tiles cut connect at most one box of each tile.
        let left = [found(1, [300.0, 100.0, 599.0, 200.0], 0.7), found(1, [300.0, 104.0, 599.0, 240.0], 0.6)];
        let right = found(2, [401.0, 98.0, 800.0, 205.0], 0.9);
        assert_eq!(merged(vec![left[0].clone(), left[1].clone(), right]).len(), 2);
    }

    #[test]
    fn merged_detections_are_limited_to_the_best() {
        let at = |idx: usize| {
            let (x, y) = ((idx % 100) as f32 * 6.0, (idx / 100) as f32 * 6.0);
            found(1, [x, y, x + 5.0, y + 5.0], (idx + 1) as f32 / 10_000.0)
        };
        let objects = merged((0..MAX_MERGED + 500).map(at).collect());
        assert_eq!(objects.len(), MAX_MERGED);
        assert!(objects.iter().all(|(_, confidence)| *confidence > 500.0 / 10_000.0));
    }

    #[test]
    fn invalid_overlap_counts_as_none() {
        for overlap in [f32::NAN, -1.0, f32::NEG_INFINITY, 1.5, f32::INFINITY] {
            for count in [TileCount::Auto, TileCount::Fixed { columns: 3, rows: 2 }] {
                let areas =
                    |overlap: f32| Tiles { count, overlap }.areas(Size::new(3840, 2160), Size::new(640, 640), &SearchArea::default());
                assert_eq!(areas(overlap), areas(0.0), "{overlap}");
            }
        }
        let auto = Tiles { count: TileCount::Auto, overlap: 0.9 };
        let largest = Size::new(u32::MAX, u32::MAX);
        assert!(auto.areas(largest, Size::new(1, 1), &SearchArea::default()).len() <= 1 + MAX_AUTO_TILES as usize);
    }

    #[test]
    fn result_does_not_depend_on_the_order_of_detections() {
        let all = [
            found(0, [295.0, 99.0, 810.0, 203.0], 0.6),
            found(1, [300.0, 100.0, 599.0, 200.0], 0.7),
            found(2, [401.0, 98.0, 800.0, 205.0], 0.9),
            found(1, [450.0, 300.0, 599.0, 400.0], 0.5),
            found(2, [452.0, 301.0, 700.0, 402.0], 0.55),
        ];
        let expected = merged(all.to_vec());
        assert_eq!(expected.len(), 2);
        let mut reversed = all.to_vec();
        reversed.reverse();
        assert_eq!(merged(reversed), expected);
    }
}
