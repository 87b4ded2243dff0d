//! What decoders produce and metas carry.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::{Geometry, PixelRect, Point, Rect, Size};

/// How many ids [`ObjectId::next`] has given; of a copy of the library that is not the first one, from a later number on.
static NEXT_ID: AtomicU32 = AtomicU32::new(0);

/// Names one object for the life of the process. Positive, so that it fits GStreamer's ROI meta (`gint`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectId(pub i32);

impl ObjectId {
    /// The first of the ids that [`ObjectId::next`] gives. Lower ones are left to others: other detectors number the regions of a frame
    /// from 0 or 1, and trackers number their tracks from 1.
    const FIRST: u32 = 1 << 16;

    /// A new one. Wraps after two thousand million objects, long after the first ones left the stream.
    pub fn next() -> Self {
        Self::nth(NEXT_ID.fetch_add(1, Ordering::Relaxed))
    }

    /// Makes [`ObjectId::next`] go on with ids of its own in the copy of this library of this number in the process, from 0: each has a
    /// hundred million before it meets those of the next copy.
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
    /// Its name; classifications and ROI metas refer to it.
    pub id: ObjectId,
    /// The name under which a tracker knows the object in every frame.
    pub track: Option<ObjectId>,
    /// What a tracker knows of the object in this frame; `None` if no tracker follows it.
    pub track_state: Option<TrackState>,
    /// The object in whose region it was found.
    pub parent: Option<ObjectId>,
    /// Where, in frame space; real-valued, may reach outside the frame.
    pub rect: Rect,
    /// Points of the object in frame space, in the order of the model that found it: of a face the eyes, the nose and the corners of
    /// the mouth, each first on the left of the picture. Empty if the model has none. May lie outside the rectangle.
    pub keypoints: Vec<Point>,
    /// 0..=1.
    pub confidence: f32,
    /// The class index that the model gave.
    pub label_id: u32,
    /// The class's name, if the model has labels.
    pub label: Option<Arc<str>>,
    /// What classifiers said of it, in the order in which they ran.
    pub classifications: Vec<Classification>,
}

impl Detection {
    /// Takes over the track ID that another tracker gave, if the object has none yet.
    pub fn adopt_track(&mut self, track: ObjectId) {
        if self.track.is_none() {
            (self.track, self.track_state) = (Some(track), Some(TrackState::Confirmed));
        }
    }

    /// Moves it to another place, and its keypoints and the geometry of its attributes with it.
    pub fn move_to(&mut self, rect: Rect) {
        let was = std::mem::replace(&mut self.rect, rect);
        self.keypoints.iter_mut().for_each(|point| *point = point.moved_with(was, rect));
        self.classifications.iter_mut().for_each(|said| said.outcome.map(|point| point.moved_with(was, rect)));
    }

    /// Whether this is the same object as `earlier`: by its name, or by that of its track.
    pub fn is_same_object(&self, earlier: &Self) -> bool {
        self.id == earlier.id || (self.track.is_some() && self.track == earlier.track)
    }
}

/// What a tracker knows of an object in a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TrackState {
    /// Followed, but not found often enough yet to have a track ID.
    Tentative,
    /// It has a track ID and was found in this frame.
    Confirmed,
    /// It has a track ID; this frame was not inferred, and the object is carried over from an earlier frame.
    Held,
}

/// An attribute of one object, or of the whole frame: what one model said of it.
#[derive(Debug, Clone, PartialEq)]
pub struct Classification {
    /// The attribute: "gender", "color"; the key in the JSON.
    pub name: Arc<str>,
    /// The model that said it.
    pub model: Arc<str>,
    /// What it said.
    pub outcome: Outcome,
}

/// The value of an attribute.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// One of several classes.
    Label {
        label_id: u32,
        label: Option<Arc<str>>,
        /// 0..=1.
        confidence: f32,
    },
    /// Any number of several classes, the surest first.
    Labels(Vec<ScoredLabel>),
    /// A number, such as an age in years.
    Value(f32),
    /// Text that was read.
    Text {
        text: Arc<str>,
        /// 0..=1.
        confidence: f32,
    },
    /// Where something is in the frame, or what is at each place.
    Geometry(Geometry),
    /// Numbers to be used elsewhere: an embedding, or what a model gives, as it is.
    Tensor {
        /// The extent of each axis.
        shape: Vec<usize>,
        /// The values, last axis fastest.
        data: Arc<[f32]>,
    },
}

impl Outcome {
    /// Brings geometry to another space, see [`Geometry::map`]; everything else is the same in all of them.
    pub fn map(&mut self, to: impl Fn(Point) -> Point) {
        if let Self::Geometry(geometry) = self {
            geometry.map(to);
        }
    }
}

/// One of several classes that a classifier saw at once.
#[derive(Debug, Clone, PartialEq)]
pub struct ScoredLabel {
    pub label_id: u32,
    pub label: Option<Arc<str>>,
    /// 0..=1.
    pub confidence: f32,
}

/// Whether inference took place on a frame.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum InferenceStatus {
    /// Yes.
    #[default]
    Inferred,
    /// No, on purpose, for this reason.
    Skipped(Arc<str>),
    /// No, because of this error.
    Failed(Arc<str>),
}

/// All results of one frame.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct FrameResults {
    /// The size of the frame that the rectangles refer to.
    pub size: Size,
    /// The frame's number in its stream, from 0.
    pub frame_number: u64,
    /// What happened to it; the worst of all stages.
    pub status: InferenceStatus,
    /// The objects, best first.
    pub detections: Vec<Detection>,
    /// What was said of the whole frame: what models give whose outputs are passed on as they are.
    pub classifications: Vec<Classification>,
}

impl FrameResults {
    /// Sets the size of the frame, and brings the geometry of what was said of the whole frame to it. Detections stay where they are.
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
