//! COCO results format: an array with an entry for each object, as `pycocotools` reads it.
//!
//! Specification: <https://cocodataset.org/#format-results>. Boxes are `[x, y, width, height]` in pixels from the top left corner, clipped to
//! the frame, with three decimals.

use serde::Serialize;

use crate::{FrameResults, Size};

/// Meaning of `category_id`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Categories {
    /// The class index of the model, from 0.
    LabelIds,
    /// The IDs of the COCO data set, 1 to 90, found by label. Objects with other labels are left out.
    Coco,
}

#[derive(Serialize)]
struct Entry {
    image_id: u64,
    category_id: u32,
    bbox: [f64; 4],
    score: f64,
}

/// Appends the entries of a frame, with commas between. Appends nothing if the frame has no objects. Returns the number of objects that are
/// left out because of their label.
pub fn write_entries(text: &mut Vec<u8>, results: &FrameResults, image_id: u64, categories: Categories) -> u64 {
    let (mut n_unknown, begin) = (0, text.len());
    for detection in &results.detections {
        let Some(bbox) = clipped(&detection.rect, results.size) else { continue };
        let category_id = match categories {
            Categories::LabelIds => Some(detection.label_id),
            Categories::Coco => detection.label.as_deref().and_then(coco_id),
        };
        let Some(category_id) = category_id else {
            n_unknown += 1;
            continue;
        };
        if text.len() > begin {
            text.extend_from_slice(b",\n");
        }
        let score = rounded(f64::from(detection.rank()), 1e5);
        serde_json::to_writer(&mut *text, &Entry { image_id, category_id, bbox, score }).expect("every value can be written as JSON");
    }
    n_unknown
}

/// The number in the name of an image, as in the COCO data set: 397133 for `000000397133.jpg`.
pub fn image_id(path: &str) -> Option<u64> {
    std::path::Path::new(path).file_stem()?.to_str()?.parse().ok()
}

/// `None` if no pixel is inside the frame, or a number is not finite.
fn clipped(rect: &crate::Rect, size: Size) -> Option<[f64; 4]> {
    rect.to_pixels(size)?;
    let clip = |value: f32, max: u32| f64::from(value).clamp(0.0, f64::from(max));
    let (x_min, x_max) = (clip(rect.x, size.width), clip(rect.x_max(), size.width));
    let (y_min, y_max) = (clip(rect.y, size.height), clip(rect.y_max(), size.height));
    let bbox = [x_min, y_min, x_max - x_min, y_max - y_min];
    bbox.iter().all(|value| value.is_finite()).then(|| bbox.map(|value| rounded(value, 1e3)))
}

fn rounded(value: f64, digits: f64) -> f64 {
    (value * digits).round() / digits
}

/// Names and IDs of the 80 classes of the COCO data set. The IDs have gaps.
const COCO: [(&str, u32); 80] = [
    ("person", 1),
    ("bicycle", 2),
    ("car", 3),
    ("motorcycle", 4),
    ("airplane", 5),
    ("bus", 6),
    ("train", 7),
    ("truck", 8),
    ("boat", 9),
    ("traffic light", 10),
    ("fire hydrant", 11),
    ("stop sign", 13),
    ("parking meter", 14),
    ("bench", 15),
    ("bird", 16),
    ("cat", 17),
    ("dog", 18),
    ("horse", 19),
    ("sheep", 20),
    ("cow", 21),
    ("elephant", 22),
    ("bear", 23),
    ("zebra", 24),
    ("giraffe", 25),
    ("backpack", 27),
    ("umbrella", 28),
    ("handbag", 31),
    ("tie", 32),
    ("suitcase", 33),
    ("frisbee", 34),
    ("skis", 35),
    ("snowboard", 36),
    ("sports ball", 37),
    ("kite", 38),
    ("baseball bat", 39),
    ("baseball glove", 40),
    ("skateboard", 41),
    ("surfboard", 42),
    ("tennis racket", 43),
    ("bottle", 44),
    ("wine glass", 46),
    ("cup", 47),
    ("fork", 48),
    ("knife", 49),
    ("spoon", 50),
    ("bowl", 51),
    ("banana", 52),
    ("apple", 53),
    ("sandwich", 54),
    ("orange", 55),
    ("broccoli", 56),
    ("carrot", 57),
    ("hot dog", 58),
    ("pizza", 59),
    ("donut", 60),
    ("cake", 61),
    ("chair", 62),
    ("couch", 63),
    ("potted plant", 64),
    ("bed", 65),
    ("dining table", 67),
    ("toilet", 70),
    ("tv", 72),
    ("laptop", 73),
    ("mouse", 74),
    ("remote", 75),
    ("keyboard", 76),
    ("cell phone", 77),
    ("microwave", 78),
    ("oven", 79),
    ("toaster", 80),
    ("sink", 81),
    ("refrigerator", 82),
    ("book", 84),
    ("clock", 85),
    ("vase", 86),
    ("scissors", 87),
    ("teddy bear", 88),
    ("hair drier", 89),
    ("toothbrush", 90),
];

fn coco_id(label: &str) -> Option<u32> {
    COCO.iter().find(|(name, _)| *name == label).map(|(_, id)| *id)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Detection, ObjectId, Rect};

    fn detection(label: &str, rect: Rect) -> Detection {
        let (track, track_state, parent, keypoints, classifications) = Default::default();
        let (id, label_id, label) = (ObjectId(1), 5, Some(label.into()));
        Detection { id, track, track_state, parent, rect, keypoints, confidence: 0.123_456, label_id, label, classifications }
    }

    #[test]
    fn entries_have_clipped_boxes_and_the_ids_of_the_data_set() {
        let inside = Rect { x: 10.125, y: 2.0, width: 5.5, height: 4.0 };
        let outside = Rect { x: 100.0, ..inside };
        let across = Rect { x: -2.0, y: 40.0, width: 10.0, height: 20.0 };
        let detections =
            vec![detection("stop sign", inside), detection("stop sign", outside), detection("helmet", inside), detection("cat", across)];
        let results = FrameResults { size: Size::new(64, 48), detections, ..FrameResults::default() };
        let mut text = Vec::new();
        assert_eq!(write_entries(&mut text, &results, 397_133, Categories::Coco), 1);
        assert_eq!(
            String::from_utf8(text).unwrap(),
            "{\"image_id\":397133,\"category_id\":13,\"bbox\":[10.125,2.0,5.5,4.0],\"score\":0.12346},\n\
             {\"image_id\":397133,\"category_id\":17,\"bbox\":[0.0,40.0,8.0,8.0],\"score\":0.12346}"
        );
        let mut text = Vec::new();
        assert_eq!(write_entries(&mut text, &results, 0, Categories::LabelIds), 0);
        assert_eq!(String::from_utf8(text).unwrap().matches("\"category_id\":5").count(), 3);
    }

    #[test]
    fn image_ids_are_the_numbers_in_file_names() {
        assert_eq!([image_id("val/000000397133.jpg"), image_id("door-7.png"), image_id("7")], [Some(397_133), None, Some(7)]);
    }
}
