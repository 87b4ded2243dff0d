//! Detections, their attributes, and all results of a frame.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::{Geometry, PixelRect, Point, Rect, Size};

/// Number of ids that [`ObjectId::next`] has returned, plus the offset of this copy of the library.
static NEXT_ID: AtomicU32 = AtomicU32::new(0);

/// Identifies one object within the process. Positive, so that it fits GStreamer's ROI meta (`gint`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectId(pub i32);

impl ObjectId {
    /// The first id of [`ObjectId::next`]. Other detectors number the regions of a frame from 0 or 1, and trackers number their tracks from
    /// 1, so lower ids would collide with theirs.
    const FIRST: u32 = 1 << 16;

    /// Returns a new id. Wraps after about 2^31 objects.
    pub fn next() -> Self {
        Self::nth(NEXT_ID.fetch_add(1, Ordering::Relaxed))
    }

    /// Reserves a separate range of ids for one of several copies of this library in a process, counted from 0. Each range has 2^27 ids.
    pub fn begin_at_copy(copy_idx: usize) {
        NEXT_ID.fetch_add((copy_idx as u32) << 27, Ordering::Relaxed);
    }

    fn nth(n: u32) -> Self {
        Self((Self::FIRST + n % (i32::MAX as u32 - Self::FIRST + 1)) as i32)
    }
}

impl fmt::Display for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// One object in a frame.
#[derive(Debug, Clone, PartialEq)]
pub struct Detection {
    /// The id that classifications and ROI metas refer to.
    pub id: ObjectId,
    /// The track ID: the same in every frame, given by a tracker.
    pub track: Option<ObjectId>,
    /// The state of the track in this frame; `None` without a tracker.
    pub track_state: Option<TrackState>,
    /// The object in whose region this one was detected.
    pub parent: Option<ObjectId>,
    /// The box in pixels of the frame; real-valued, may reach outside the frame.
    pub rect: Rect,
    /// Keypoints in pixels of the frame, in the model's order. Faces: left eye, right eye, nose, left and right corner of the mouth, as seen in
    /// the image. Empty if the model has none. May lie outside the box.
    pub keypoints: Vec<Point>,
    /// Confidence of the detector, in 0..=1.
    pub confidence: f32,
    /// Class index of the model.
    pub label_id: u32,
    /// Name of the class, if the model has labels.
    pub label: Option<Arc<str>>,
    /// Attributes, in the order in which classifiers ran.
    pub classifications: Vec<Classification>,
}

impl Detection {
    /// Sets the track ID of another tracker, if the object has none.
    pub fn adopt_track(&mut self, track: ObjectId) {
        if self.track.is_none() {
            (self.track, self.track_state) = (Some(track), Some(TrackState::Confirmed));
        }
    }

    /// Moves the box, and with it the keypoints and the geometry of the attributes.
    pub fn move_to(&mut self, rect: Rect) {
        let was = std::mem::replace(&mut self.rect, rect);
        self.keypoints.iter_mut().for_each(|point| *point = point.moved_with(was, rect));
        self.classifications.iter_mut().for_each(|said| said.outcome.map(|point| point.moved_with(was, rect)));
    }

    /// Whether this is the same object as `earlier`: equal id, or equal track ID.
    pub fn is_same_object(&self, earlier: &Self) -> bool {
        self.id == earlier.id || (self.track.is_some() && self.track == earlier.track)
    }
}

/// State of a track in one frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TrackState {
    /// Tracked, but not seen in enough frames to have a track ID.
    Tentative,
    /// Has a track ID and was detected in this frame.
    Confirmed,
    /// Has a track ID; this frame was not inferred, and the object is carried over from an earlier frame.
    Held,
}

/// An attribute of one object or of the whole frame, from one head of a model.
#[derive(Debug, Clone, PartialEq)]
pub struct Classification {
    /// Name of the attribute, such as "gender"; the key in the JSON.
    pub name: Arc<str>,
    /// Name of the model.
    pub model: Arc<str>,
    /// Value of the attribute.
    pub outcome: Outcome,
}

/// The value of an attribute.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// One class.
    Label {
        label_id: u32,
        label: Option<Arc<str>>,
        /// In 0..=1.
        confidence: f32,
    },
    /// Several classes, by descending confidence.
    Labels(Vec<ScoredLabel>),
    /// A number, such as an age in years.
    Value(f32),
    /// Recognized text.
    Text {
        text: Arc<str>,
        /// 0..=1.
        confidence: f32,
    },
    /// A shape in the frame, or a map of values over it.
    Geometry(Geometry),
    /// An embedding, or raw outputs.
    Tensor {
        /// Extent of each axis.
        shape: Vec<usize>,
        /// Values in row-major order.
        data: Arc<[f32]>,
    },
}

impl Outcome {
    /// Maps the coordinates of a geometry to another space, see [`Geometry::map`]. Other values have no coordinates and stay as they are.
    pub fn map(&mut self, to: impl Fn(Point) -> Point) {
        if let Self::Geometry(geometry) = self {
            geometry.map(to);
        }
    }
}

/// One class of a multi-label result.
#[derive(Debug, Clone, PartialEq)]
pub struct ScoredLabel {
    pub label_id: u32,
    pub label: Option<Arc<str>>,
    /// 0..=1.
    pub confidence: f32,
}

/// Whether a frame was inferred.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum InferenceStatus {
    /// Inferred.
    #[default]
    Inferred,
    /// Passed without inference, for this reason.
    Skipped(Arc<str>),
    /// Inference failed with this error.
    Failed(Arc<str>),
}

/// All results of one frame.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct FrameResults {
    /// Size of the frame that the boxes refer to.
    pub size: Size,
    /// Number of the frame in its stream, from 0.
    pub frame_number: u64,
    /// The worst status of all inference stages.
    pub status: InferenceStatus,
    /// The objects, by descending confidence.
    pub detections: Vec<Detection>,
    /// Attributes of the whole frame.
    pub classifications: Vec<Classification>,
}

impl FrameResults {
    /// Sets the size of the frame, and scales the geometry of its attributes to it. Detections are not changed.
    pub fn set_size(&mut self, size: Size) {
        let was = std::mem::replace(&mut self.size, size);
        if was != size && was.width > 0 && was.height > 0 {
            let (was, is) = (PixelRect::whole(was).to_rect(), PixelRect::whole(size).to_rect());
            self.classifications.iter_mut().for_each(|said| said.outcome.map(|point| point.moved_with(was, is)));
        }
    }

    /// The detection with this id.
    pub fn detection_mut(&mut self, id: ObjectId) -> Option<&mut Detection> {
        self.detections.iter_mut().find(|detection| detection.id == id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn geometry_of_attributes_moves_with_the_detection() {
        let polygon = |points: [(f32, f32); 2]| Outcome::Geometry(Geometry::Polygons(vec![points.map(|(x, y)| Point { x, y }).to_vec()]));
        let said = |outcome| Classification { name: "outline".into(), model: "m".into(), outcome };
        let mut found = Detection {
            id: ObjectId(1),
            track: None,
            track_state: None,
            parent: None,
            rect: Rect::from_corners(10.0, 10.0, 20.0, 30.0),
            keypoints: vec![],
            confidence: 0.9,
            label_id: 0,
            label: None,
            classifications: vec![said(polygon([(10.0, 10.0), (15.0, 30.0)])), said(Outcome::Value(10.0))],
        };
        found.move_to(Rect::from_corners(0.0, 0.0, 20.0, 40.0));
        assert_eq!(found.classifications, [said(polygon([(0.0, 0.0), (10.0, 40.0)])), said(Outcome::Value(10.0))]);
        let mut frame = FrameResults { size: Size::new(20, 40), classifications: found.classifications.clone(), ..FrameResults::default() };
        frame.set_size(Size::new(10, 80));
        assert_eq!((frame.size, &frame.classifications[0]), (Size::new(10, 80), &said(polygon([(0.0, 0.0), (5.0, 80.0)]))));
    }

    #[test]
    fn ids_begin_above_those_of_others_and_neighbors_differ_also_where_they_wrap() {
        let first = ObjectId::FIRST as i32;
        assert_eq!([0, 1, 2].map(|n| ObjectId::nth(n).0), [first, first + 1, first + 2]);
        let wrap = i32::MAX as u32 - ObjectId::FIRST + 1;
        assert_eq!([wrap - 1, wrap, wrap + 1].map(|n| ObjectId::nth(n).0), [i32::MAX, first, first + 1]);
        assert!(ObjectId::nth(u32::MAX).0 > 0);
    }
}
