//! The latest crops of a stream: small pictures of the objects in its frames.
//!
//! Crops are cut only while clients ask for them. Each request for the list keeps the cutting on for [`ASKED_TIME`]. Afterwards the crops are
//! dropped. While they are cut, the list has the newest crop of each object with a track ID, and the objects without a track ID of the newest
//! frame that was cut. A crop that is no longer in the list can be fetched for up to [`REPLACED_TIME`], while there is space, because clients
//! fetch crops after the list.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use tokio::sync::watch;

/// How long crops are cut after a request.
pub const ASKED_TIME: Duration = Duration::from_secs(10);
/// How long a crop can be fetched after it has left the list, while there is space.
pub const REPLACED_TIME: Duration = Duration::from_secs(5);
/// Maximum number of crops in the list.
pub const MAX_CROPS: usize = 64;
/// Maximum size of the crops that a stream keeps, in bytes: those of the list, and those that have left it.
const MAX_BYTES: usize = 2 << 20;
/// Maximum number of objects that are cut out of one frame: those with the highest confidence.
pub const MAX_PER_FRAME: usize = 16;
/// Maximum length of the longer side of a crop in pixels.
pub const MAX_SIDE: u32 = 256;

/// An object that was cut out of a frame.
#[derive(Debug, Clone, PartialEq)]
pub struct Cut {
    /// Label of the class, or its number if the model has no labels.
    pub label: String,
    /// Confidence of the detector, 0 to 1.
    pub confidence: Option<f32>,
    /// Track ID; `None` without a tracker.
    pub track: Option<i64>,
    /// Left, top, right and bottom edge of the object, as fractions of the frame size.
    pub rect: [f32; 4],
    /// The object as JPEG.
    pub jpeg: Vec<u8>,
}

/// A crop that is kept.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Crop {
    /// Number of the crop since the stream was added or the server was started, from 1.
    pub(crate) id: u64,
    /// Number of the frame in its stream.
    pub(crate) frame: u64,
    /// Capture time of the frame.
    pub(crate) time: SystemTime,
    pub(crate) label: String,
    pub(crate) confidence: Option<f32>,
    pub(crate) track: Option<i64>,
    pub(crate) rect: [f32; 4],
    pub(crate) jpeg: Bytes,
}

/// The crops of one stream.
#[derive(Debug)]
pub(crate) struct Crops {
    state: Mutex<State>,
    /// Number of frames out of which crops were cut since the cutting has begun.
    n_frames: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct State {
    /// Until when crops are cut; `None`: no crops are cut.
    until: Option<Instant>,
    n_crops: u64,
    /// The crops of the list, oldest first.
    listed: VecDeque<Arc<Crop>>,
    /// Crops that have left the list, and when, oldest first.
    replaced: VecDeque<(Instant, Arc<Crop>)>,
}

impl State {
    /// Drops the oldest crops until the others are within the limits, first those that have left the list.
    fn shrink(&mut self, now: Instant) {
        self.replaced.retain(|(since, _)| now.duration_since(*since) < REPLACED_TIME);
        let of = |crop: &Arc<Crop>| crop.jpeg.len();
        let mut n_bytes: usize = self.listed.iter().map(of).sum::<usize>() + self.replaced.iter().map(|(_, crop)| of(crop)).sum::<usize>();
        while n_bytes > MAX_BYTES {
            let oldest = self.replaced.pop_front().map(|(_, crop)| crop).or_else(|| self.listed.pop_front());
            let Some(oldest) = oldest else { break };
            n_bytes -= of(&oldest);
        }
    }
}

impl Default for Crops {
    fn default() -> Self {
        Self { state: Mutex::default(), n_frames: watch::channel(0).0 }
    }
}

impl Crops {
    /// Notes that a client asks. Returns true if the cutting begins with this request, so that the caller must start it.
    pub(crate) fn ask(&self, now: Instant) -> bool {
        self.lock().until.replace(now + ASKED_TIME).is_none()
    }

    /// Whether crops are still wanted. If not, the cutting ends, and the crops are dropped.
    pub(crate) fn is_wanted(&self, now: Instant) -> bool {
        let mut state = self.lock();
        let is_wanted = state.until.is_some_and(|until| now < until);
        if !is_wanted {
            *state = State { n_crops: state.n_crops, ..State::default() };
            self.n_frames.send_replace(0);
        }
        is_wanted
    }

    /// Adds the objects of a frame.
    pub(crate) fn add(&self, frame: u64, time: SystemTime, cuts: Vec<Cut>, now: Instant) {
        let mut state = self.lock();
        let stays = |crop: &Crop| crop.track.is_some() && !cuts.iter().any(|cut| cut.track == crop.track);
        let (mut listed, mut left): (VecDeque<_>, VecDeque<_>) = state.listed.drain(..).partition(|crop| stays(crop));
        for Cut { label, confidence, track, rect, jpeg } in cuts {
            state.n_crops += 1;
            let (id, jpeg) = (state.n_crops, jpeg.into());
            listed.push_back(Arc::new(Crop { id, frame, time, label, confidence, track, rect, jpeg }));
        }
        let n_surplus = listed.len().saturating_sub(MAX_CROPS);
        left.extend(listed.drain(..n_surplus));
        state.replaced.extend(left.into_iter().map(|crop| (now, crop)));
        state.listed = listed;
        state.shrink(now);
        drop(state);
        self.n_frames.send_modify(|n_frames| *n_frames += 1);
    }

    /// Waits until crops were cut out of a frame since the cutting has begun.
    pub(crate) async fn first(&self) {
        let mut n_frames = self.n_frames.subscribe();
        // The sender lives as long as `self`.
        let _found = n_frames.wait_for(|n_frames| *n_frames > 0).await;
    }

    /// Returns the newest crops, newest first.
    pub(crate) fn newest(&self, limit: usize) -> Vec<Arc<Crop>> {
        self.lock().listed.iter().rev().take(limit).cloned().collect()
    }

    /// Returns a crop that is in the list, or was until recently.
    pub(crate) fn get(&self, id: u64) -> Option<Arc<Crop>> {
        let state = self.lock();
        state.listed.iter().chain(state.replaced.iter().map(|(_, crop)| crop)).find(|crop| crop.id == id).cloned()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(track: Option<i64>, n_bytes: usize) -> Cut {
        Cut { label: "person".into(), confidence: Some(0.5), track, rect: [0.0, 0.0, 0.5, 0.5], jpeg: vec![1; n_bytes] }
    }

    fn add(crops: &Crops, frame: u64, cuts: Vec<Cut>) {
        crops.add(frame, SystemTime::UNIX_EPOCH, cuts, Instant::now());
    }

    fn kept(crops: &Crops) -> Vec<(u64, Option<i64>)> {
        crops.newest(usize::MAX).iter().map(|crop| (crop.frame, crop.track)).collect()
    }

    #[test]
    fn track_has_its_newest_crop_and_other_objects_those_of_one_frame() {
        let crops = Crops::default();
        add(&crops, 1, vec![cut(Some(1), 9), cut(Some(2), 9), cut(None, 9)]);
        add(&crops, 2, vec![cut(Some(1), 9), cut(None, 9)]);
        assert_eq!(kept(&crops), [(2, None), (2, Some(1)), (1, Some(2))]);
        let newest = crops.newest(1)[0].clone();
        assert_eq!(crops.get(newest.id), Some(newest));
        assert!(crops.get(1).is_some(), "a client that has just seen it in the list can fetch it");
        crops.add(3, SystemTime::UNIX_EPOCH, Vec::new(), Instant::now() + REPLACED_TIME);
        assert_eq!((kept(&crops), crops.get(1)), (vec![(2, Some(1)), (1, Some(2))], None));
    }

    #[test]
    fn number_and_bytes_of_crops_are_bounded() {
        let crops = Crops::default();
        (0..100).for_each(|frame| add(&crops, frame, vec![cut(Some(frame as i64), 9)]));
        assert_eq!((kept(&crops).len(), kept(&crops)[0].0), (MAX_CROPS, 99));
        assert!(crops.get(1).is_some(), "a client that has just seen it in the list can fetch it");
        crops.add(100, SystemTime::UNIX_EPOCH, Vec::new(), Instant::now() + REPLACED_TIME);
        assert!(crops.get(1).is_none() && crops.get(100).is_some(), "only crops of the list are kept longer");
        (100..105).for_each(|frame| add(&crops, frame, vec![cut(Some(frame as i64), MAX_BYTES / 3)]));
        assert_eq!(kept(&crops).iter().map(|crop| crop.0).collect::<Vec<_>>(), [104, 103, 102]);
        add(&crops, 104, vec![cut(Some(104), MAX_BYTES / 3)]);
        assert_eq!(kept(&crops).len(), 3, "the replaced crop is dropped first");
        assert!(crops.get(105).is_none(), "there is no space for it");
        add(&crops, 105, vec![cut(None, MAX_BYTES + 1)]);
        assert!(kept(&crops).is_empty());
    }

    #[test]
    fn crops_are_dropped_when_no_client_asks() {
        let (crops, begin) = (Crops::default(), Instant::now());
        assert!(!crops.is_wanted(begin));
        assert!(crops.ask(begin), "the first request starts the cutting");
        assert!(!crops.ask(begin + ASKED_TIME / 2), "a further one extends it");
        add(&crops, 1, vec![cut(Some(1), 9)]);
        assert!(crops.is_wanted(begin + ASKED_TIME) && kept(&crops).len() == 1);
        assert!(!crops.is_wanted(begin + ASKED_TIME * 2) && kept(&crops).is_empty());
        assert!(crops.ask(begin + ASKED_TIME * 3));
        add(&crops, 2, vec![cut(Some(1), 9)]);
        assert_eq!(crops.newest(1)[0].id, 2, "numbers are not used again");
    }
}
