//! Detections, their attributes, and all results of a frame.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::{Geometry, PixelRect, Point, Rect, SceneEvent, Size};

/// Number of IDs that were created so far, plus the offset of the ID range of this copy of the library.
static NEXT_ID: AtomicU32 = AtomicU32::new(0);

/// Identifies an object within the process. The number is positive and fits the ID of GStreamer's ROI meta (`gint`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectId(pub i32);

impl ObjectId {
    /// Smallest ID that [`ObjectId::next`] returns. Smaller IDs would collide with the IDs that other elements use: detectors number the
    /// regions of a frame from 0 or 1, and trackers number tracks from 1.
    const FIRST: u32 = 1 << 16;

    /// Returns a new ID. After about 2^31 objects, the IDs start again from the smallest.
    pub fn next() -> Self {
        Self::nth(NEXT_ID.fetch_add(1, Ordering::Relaxed))
    }

    /// Lets this copy of the library begin at its own range of 2^27 IDs, if a process contains several copies. `copy_idx` is the
    /// number of this copy, from 0.
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
    /// ID of the detection, to which classifications and ROI metas refer.
    pub id: ObjectId,
    /// The track ID, which a tracker assigns. The same object has the same track ID in every frame.
    pub track: Option<ObjectId>,
    /// State of the track in this frame; `None` if there is no tracker.
    pub track_state: Option<TrackState>,
    /// ID of the object in whose region this object was detected; `None` if it was detected in the whole frame.
    pub parent: Option<ObjectId>,
    /// The box in frame pixels. Its edges are real numbers and may be outside the frame.
    pub rect: Rect,
    /// Keypoints in frame pixels, in the order of the model. Faces: left eye, right eye, nose, left and right mouth corner, as seen in the
    /// image. Empty if the model has no keypoints. Keypoints may be outside the box.
    pub keypoints: Vec<Point>,
    /// Confidence of the detector, 0..=1; NaN if it is unknown: see [`Detection::UNKNOWN_CONFIDENCE`].
    pub confidence: f32,
    /// Class index.
    pub label_id: u32,
    /// Label of the class, if the model has labels.
    pub label: Option<Arc<str>>,
    /// Attributes, in the order of the classifiers.
    pub classifications: Vec<Classification>,
}

impl Detection {
    /// The confidence of an object that was attached without a confidence. Thresholds let such an object pass, and formats leave its
    /// confidence out.
    pub const UNKNOWN_CONFIDENCE: f32 = f32::NAN;

    /// Returns the confidence; `None` if it is unknown.
    pub fn known_confidence(&self) -> Option<f32> {
        Some(self.confidence).filter(|confidence| !confidence.is_nan())
    }

    /// Returns the confidence for thresholds and for the order of objects: 1 if it is unknown.
    pub fn rank(&self) -> f32 {
        self.known_confidence().unwrap_or(1.0)
    }

    /// Sets the track ID that another tracker has assigned, unless the object already has a track ID.
    pub fn adopt_track(&mut self, track: ObjectId) {
        if self.track.is_none() {
            (self.track, self.track_state) = (Some(track), Some(TrackState::Confirmed));
        }
    }

    /// The state of the track, if a tracker has set it.
    pub(crate) fn stated(&self) -> Option<TrackState> {
        self.track_state.filter(|state| *state != TrackState::Predicted || self.track.is_some())
    }

    /// Moves the box to `rect`. Moves and scales the keypoints and the geometry of the attributes with the box.
    pub fn move_to(&mut self, rect: Rect) {
        let was = std::mem::replace(&mut self.rect, rect);
        self.keypoints.iter_mut().for_each(|point| *point = point.moved_with(was, rect));
        self.classifications.iter_mut().for_each(|classification| classification.outcome.map(|point| point.moved_with(was, rect)));
    }

    /// Whether this detection and `earlier` are the same object: they have the same ID or the same track ID.
    pub fn is_same_object(&self, earlier: &Self) -> bool {
        self.id == earlier.id || (self.track.is_some() && self.track == earlier.track)
    }
}

/// State of a track in one frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TrackState {
    /// The object is tracked, but was not detected in enough frames to get a track ID.
    Tentative,
    /// The object has a track ID and was detected in this frame.
    Confirmed,
    /// The object has a track ID. It was taken over from an earlier frame, because this frame was not inferred.
    Held,
    /// The object has a track ID. This frame was not inferred, and the tracker predicted the box. Without a track ID: the tracker is to
    /// predict it.
    Predicted,
}

/// A track whose object was not detected in the last inferred frame. The track continues if the object is found again.
#[derive(Debug, Clone, PartialEq)]
pub struct LostTrack {
    /// The track ID.
    pub track: ObjectId,
    /// The predicted box, in pixels of the frame.
    pub rect: Rect,
    /// Class of the object.
    pub label_id: u32,
    /// Name of the class.
    pub label: Option<Arc<str>>,
    /// Inferred frames in a row without the object.
    pub n_missed: u32,
}

/// An attribute of one object or of the whole frame, from one head of a model.
#[derive(Debug, Clone, PartialEq)]
pub struct Classification {
    /// Name of the attribute, such as "gender". The name is the key in the JSON.
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
        /// Confidence, 0..=1.
        confidence: f32,
    },
    /// Several classes, in descending order of confidence.
    Labels(Vec<ScoredLabel>),
    /// A number, such as an age in years.
    Value(f32),
    /// Recognized text.
    Text {
        text: Arc<str>,
        /// Confidence, 0..=1.
        confidence: f32,
    },
    /// A shape in the frame, or a map of values.
    Geometry(Geometry),
    /// An embedding or raw outputs.
    Tensor {
        /// Extents of the axes.
        shape: Vec<usize>,
        /// Values in row-major order.
        data: Arc<[f32]>,
    },
}

impl Outcome {
    /// Maps the coordinates of a geometry to another coordinate space, see [`Geometry::map`]. Values of other kinds are not changed.
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
    /// Confidence, 0..=1.
    pub confidence: f32,
}

/// Inference status of a frame.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum InferenceStatus {
    /// The frame was inferred.
    #[default]
    Inferred,
    /// The frame was skipped. Contains the skip reason.
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
    /// The worst status among the inference stages of the frame.
    pub status: InferenceStatus,
    /// Detected objects, in descending order of confidence.
    pub detections: Vec<Detection>,
    /// Attributes of the whole frame.
    pub classifications: Vec<Classification>,
    /// What happened at lines and in zones in this frame.
    pub events: Vec<SceneEvent>,
    /// Tracks whose objects were not detected, if the tracker reports them.
    pub lost_tracks: Vec<LostTrack>,
}

impl FrameResults {
    /// Sets the frame size, and scales the geometry of the frame's attributes and the boxes of lost tracks. Detections are not changed.
    pub fn set_size(&mut self, size: Size) {
        let was = std::mem::replace(&mut self.size, size);
        if was != size && was.width > 0 && was.height > 0 {
            self.lost_tracks.iter_mut().for_each(|track| track.rect = track.rect.rescaled(was, size));
            let (was, is) = (PixelRect::whole(was).to_rect(), PixelRect::whole(size).to_rect());
            self.classifications.iter_mut().for_each(|classification| classification.outcome.map(|point| point.moved_with(was, is)));
        }
    }

    /// Scales all results to a frame of another size.
    pub fn rescale(&mut self, size: Size) {
        let was = self.size;
        if was != size && was.width > 0 && was.height > 0 {
            self.detections.iter_mut().for_each(|detection| detection.move_to(detection.rect.rescaled(was, size)));
        }
        self.set_size(size);
    }

    /// Returns the detection with this ID; `None` if there is none.
    pub fn detection_mut(&mut self, id: ObjectId) -> Option<&mut Detection> {
        self.detections.iter_mut().find(|detection| detection.id == id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attribute_geometry_moves_with_the_detection() {
        let polygon = |points: [(f32, f32); 2]| Outcome::Geometry(Geometry::Polygons(vec![points.map(|(x, y)| Point { x, y }).to_vec()]));
        let classification = |outcome| Classification { name: "outline".into(), model: "m".into(), outcome };
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
            classifications: vec![classification(polygon([(10.0, 10.0), (15.0, 30.0)])), classification(Outcome::Value(10.0))],
        };
        found.move_to(Rect::from_corners(0.0, 0.0, 20.0, 40.0));
        assert_eq!(found.classifications, [classification(polygon([(0.0, 0.0), (10.0, 40.0)])), classification(Outcome::Value(10.0))]);
        let mut frame = FrameResults { size: Size::new(20, 40), classifications: found.classifications.clone(), ..FrameResults::default() };
        frame.set_size(Size::new(10, 80));
        assert_eq!((frame.size, &frame.classifications[0]), (Size::new(10, 80), &classification(polygon([(0.0, 0.0), (5.0, 80.0)]))));
    }

    #[test]
    fn ids_start_above_other_numbers_and_wrap_around() {
        let first = ObjectId::FIRST as i32;
        assert_eq!([0, 1, 2].map(|n| ObjectId::nth(n).0), [first, first + 1, first + 2]);
        let wrap = i32::MAX as u32 - ObjectId::FIRST + 1;
        assert_eq!([wrap - 1, wrap, wrap + 1].map(|n| ObjectId::nth(n).0), [i32::MAX, first, first + 1]);
        assert!(ObjectId::nth(u32::MAX).0 > 0);
    }
}
