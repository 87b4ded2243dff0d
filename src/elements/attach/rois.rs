//! Boxes as text: the property `rois` of `roiattach`.

use crate::frame::{Detection, ObjectId, Rect, Size};

/// A box in fractions of the frame.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Roi {
    label: Option<String>,
    /// Left, top, right, bottom.
    edges: [f32; 4],
    label_id: u32,
}

/// Reads `[label:]x1,y1,x2,y2;...`.
///
/// # Errors
/// Returns the expected and the actual content.
pub(super) fn read(text: &str) -> Result<Vec<Roi>, String> {
    let mut rois: Vec<Roi> = Vec::new();
    for item in text.split(';').map(str::trim).filter(|item| !item.is_empty()) {
        let failed =
            |found: &str| format!("rois: expected [label:]x1,y1,x2,y2 in fractions of the frame, with x1 < x2 and y1 < y2, got {found:?}");
        let (label, numbers) = item.rsplit_once(':').map_or((None, item), |(label, numbers)| (Some(label.trim()), numbers));
        let numbers: Vec<f32> =
            numbers.split(',').map(|number| number.trim().parse()).collect::<Result<_, _>>().map_err(|_| failed(item))?;
        let edges: [f32; 4] = numbers.try_into().map_err(|_| failed(item))?;
        let [left, top, right, bottom] = edges;
        // A box may extend over the edges, but numbers far outside are probably pixels.
        if !edges.iter().all(|edge| (-1.0..=2.0).contains(edge)) || left >= right || top >= bottom {
            return Err(failed(item));
        }
        let label = label.filter(|label| !label.is_empty()).map(str::to_owned);
        let known = rois.iter().find(|roi| roi.label == label).map(|roi| roi.label_id);
        let label_id = known.unwrap_or_else(|| rois.iter().map(|roi| roi.label_id + 1).max().unwrap_or(0));
        rois.push(Roi { label, edges, label_id });
    }
    Ok(rois)
}

impl Roi {
    /// The box as a detection in a frame.
    pub(super) fn detection(&self, size: Size) -> Detection {
        let [left, top, right, bottom] = self.edges;
        let (width, height) = (size.width as f32, size.height as f32);
        Detection {
            id: ObjectId::next(),
            track: None,
            track_state: None,
            parent: None,
            rect: Rect::from_corners(left * width, top * height, right * width, bottom * height),
            keypoints: vec![],
            confidence: Detection::UNKNOWN_CONFIDENCE,
            label_id: self.label_id,
            label: self.label.as_deref().map(Into::into),
            classifications: vec![],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boxes_have_labels_and_fractions_of_the_frame() {
        let rois = read("door:0.1,0.2,0.5,1; 0,0,1,1;door : 0.5,0,0.75,0.5;").unwrap();
        let found: Vec<_> = rois.iter().map(|roi| roi.detection(Size::new(200, 100))).collect();
        assert_eq!(
            found.iter().map(|roi| (roi.label.as_deref(), roi.label_id)).collect::<Vec<_>>(),
            [(Some("door"), 0), (None, 1), (Some("door"), 0)]
        );
        assert_eq!(found[0].rect, Rect::from_corners(20.0, 20.0, 100.0, 100.0));
        assert!(found[0].id != found[1].id && read("").unwrap().is_empty());
    }

    #[test]
    fn errors_say_what_was_expected() {
        for text in ["door", "0,0,1", "0,0,1,1,1", "a:0,0,b,1", "0,0,0,1", "0.5,0.5,0.2,1", "10,10,200,100", "0,0,nan,1", "x:0,0,inf,1"] {
            let error = read(text).unwrap_err();
            assert!(error.contains("fractions") && error.contains(text), "{text}: {error}");
        }
    }
}
