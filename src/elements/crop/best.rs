//! The best image of each track, until the track ends. Uses no GStreamer.

use image::RgbImage;

use crate::frame::{Detection, ObjectId, PixelRect};

/// Maximum size of all stored images. When it is reached, the track that has been absent longest ends early.
const MAX_BYTES: usize = 64 << 20;

/// An image of an object.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Crop {
    pub(super) image: RgbImage,
    pub(super) rect: PixelRect,
    pub(super) track: Option<ObjectId>,
    /// Position of the object in its frame, from 1.
    pub(super) region_id: usize,
    pub(super) confidence: f32,
    pub(super) label: Option<std::sync::Arc<str>>,
    pub(super) label_id: u32,
    /// Number of the frame, its stream time and its presentation timestamp.
    pub(super) frame: u64,
    pub(super) timestamp_ns: Option<u64>,
    pub(super) pts_ns: Option<u64>,
}

/// The best images of the tracks that have not ended, in the order in which the tracks began.
#[derive(Debug, Default)]
pub(super) struct BestCrops {
    tracks: Vec<Track>,
    n_bytes: usize,
}

#[derive(Debug)]
struct Track {
    id: ObjectId,
    score: f64,
    crop: Crop,
    /// Number of the frame in which the object was last seen.
    seen_at: u64,
}

/// Quality of an image: the product of confidence and area.
pub(super) fn score(detection: &Detection, rect: PixelRect) -> f64 {
    f64::from(detection.rank().max(0.0)) * f64::from(rect.width) * f64::from(rect.height)
}

impl BestCrops {
    /// Records that a track is in this frame. Returns whether an image with this score is better than the stored image.
    pub(super) fn see(&mut self, id: ObjectId, score: f64, now: u64) -> bool {
        match self.tracks.iter_mut().find(|track| track.id == id) {
            None => true,
            Some(track) => {
                track.seen_at = now;
                score > track.score
            }
        }
    }

    /// Stores an image for which [`BestCrops::see`] returned true.
    pub(super) fn keep(&mut self, id: ObjectId, score: f64, crop: Crop, now: u64) {
        self.n_bytes += crop.image.len();
        match self.tracks.iter_mut().find(|track| track.id == id) {
            None => self.tracks.push(Track { id, score, crop, seen_at: now }),
            Some(track) => {
                self.n_bytes -= track.crop.image.len();
                (track.score, track.crop, track.seen_at) = (score, crop, now);
            }
        }
    }

    /// Removes and returns the images of the tracks that are absent for more than `max_age` frames. If the remaining images exceed the
    /// maximum size, also removes images of the tracks that have been absent longest.
    pub(super) fn take_ended(&mut self, now: u64, max_age: u64) -> Vec<Crop> {
        let mut ended = self.take(|track| now.saturating_sub(track.seen_at) > max_age);
        while self.n_bytes > MAX_BYTES && self.tracks.len() > 1 {
            let longest = self.tracks.iter().map(|track| track.seen_at).min();
            let id = self.tracks.iter().find(|track| Some(track.seen_at) == longest).map(|track| track.id);
            ended.extend(self.take(|track| Some(track.id) == id));
        }
        ended
    }

    /// Removes and returns all images.
    pub(super) fn take_all(&mut self) -> Vec<Crop> {
        self.take(|_| true)
    }

    fn take(&mut self, is_it: impl Fn(&Track) -> bool) -> Vec<Crop> {
        let taken: Vec<Crop> = self.tracks.extract_if(.., |track| is_it(track)).map(|track| track.crop).collect();
        self.n_bytes -= taken.iter().map(|crop| crop.image.len()).sum::<usize>();
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn crop(frame: u64, side: u32) -> Crop {
        let (rect, label) = (PixelRect { x: 0, y: 0, width: side, height: side }, None);
        let (track, region_id, confidence, label_id) = (None, 1, 1.0, 0);
        Crop {
            image: RgbImage::new(side, side),
            rect,
            track,
            region_id,
            confidence,
            label,
            label_id,
            frame,
            timestamp_ns: None,
            pts_ns: None,
        }
    }

    fn frames(crops: &[Crop]) -> Vec<u64> {
        crops.iter().map(|crop| crop.frame).collect()
    }

    #[test]
    fn track_ends_with_its_best_image() {
        let (mut best, id) = (BestCrops::default(), ObjectId(3));
        for (now, score) in [(0, 2.0), (1, 5.0), (2, 4.0), (3, 5.0)] {
            if best.see(id, score, now) {
                best.keep(id, score, crop(now, 4), now);
            }
        }
        assert!(best.take_ended(5, 2).is_empty());
        assert_eq!(frames(&best.take_ended(6, 2)), [1]);
        assert_eq!((best.take_all().len(), best.n_bytes), (0, 0));
    }

    #[test]
    fn memory_is_bounded_by_ending_the_longest_absent_track() {
        let mut best = BestCrops::default();
        for n in 0..30 {
            best.keep(ObjectId(n), 1.0, crop(n as u64, 1024), n as u64);
            best.see(ObjectId(0), 0.5, n as u64);
            let ended = best.take_ended(n as u64, 1000);
            assert_eq!(frames(&ended), if n < 21 { vec![] } else { vec![n as u64 - 20] });
        }
        assert_eq!(best.take_all().len(), 21);
    }
}
