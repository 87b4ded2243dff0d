//! Clips: the last frames of each tracked object, or of the whole frame, at the size of the model's input.
//!
//! A frame cannot be kept until its clip is complete, because its buffer belongs to the stream. So the region of an object is preprocessed
//! when its frame arrives, and the result is stored. This module uses no threads and no clocks.
//!
//! | an object | consequence |
//! |---|---|
//! | is missing for as many frames as a clip spans | its frames are released |
//! | is one more than [`MAX_OBJECTS`], or would exceed [`MAX_CLIP_BYTES`] | is not stored until the frames of another object are released |

use std::collections::VecDeque;

use super::spec::{Clip, ClipLayout, MAX_CLIP_BYTES};
use super::stage::Stage;
use crate::frame::{Frame, ObjectId};
use crate::runtime::{Error, ErrorKind, Result};
use crate::tensor::{ElementType, Shape, Tensor};
use crate::vision::{Region, Scratch};

/// Maximum number of objects whose frames are stored.
const MAX_OBJECTS: usize = 256;

/// The stored frames of a stream, for a classifier whose input is a clip.
#[derive(Debug)]
pub struct Clips {
    clip: Clip,
    input_shape: Shape,
    element: ElementType,
    max_objects: usize,
    objects: Vec<ClipFrames>,
    /// Memory for the next frame.
    spare: Option<Tensor>,
    scratch: Scratch,
}

/// The stored frames of one object.
#[derive(Debug)]
struct ClipFrames {
    /// Track ID; `None` for the whole frame.
    track: Option<ObjectId>,
    /// Number of the latest frame that contains the object.
    seen_in: u64,
    /// Number of the latest stored frame.
    stored_in: u64,
    /// Number of frames that were stored since the last complete clip.
    n_new: usize,
    /// Oldest first.
    frames: VecDeque<Tensor>,
}

impl Clips {
    /// Creates the store of a stream. `None` if the input of the stage's model is not a clip.
    pub fn new(stage: &Stage) -> Option<Self> {
        let (spec, element) = (stage.spec(), stage.image_port().element);
        let clip = spec.clip.clone()?;
        // At least one object: `ModelSpec::load` has refused larger clips.
        let max_objects = (MAX_CLIP_BYTES / clip.n_bytes(element).max(1)).min(MAX_OBJECTS);
        let (objects, spare, scratch) = (Vec::new(), None, Scratch::default());
        Some(Self { clip, input_shape: spec.input_shape, element, max_objects, objects, spare, scratch })
    }

    /// Stores the region of an object, or the whole frame, if it is time for the next frame of its clip. Frames must arrive in the order of
    /// their numbers. Returns whether a clip is complete, and has [`Clip::step`] new frames since the last complete clip. A new object is not
    /// stored while the store is full. A region outside the frame is not stored.
    ///
    /// # Errors
    /// Returns the errors of preprocessing. The stored frames are then unchanged.
    pub fn add(&mut self, stage: &Stage, frame: &Frame, frame_number: u64, of: Option<(ObjectId, &Region)>) -> Result<bool> {
        let (stride, n_frames) = (u64::from(self.clip.stride), self.clip.n_frames);
        self.release_missing(frame_number);
        let (track, region) = of.unzip();
        let known = self.objects.iter().position(|object| object.track == track);
        if let Some(object_idx) = known {
            let object = &mut self.objects[object_idx];
            object.seen_in = frame_number;
            if frame_number - object.stored_in < stride {
                return Ok(false);
            }
        } else if self.objects.len() >= self.max_objects {
            return Ok(false);
        }
        let tensor = match self.spare.take() {
            Some(tensor) => tensor,
            None => Tensor::new(self.element, self.clip.frame_shape)?,
        };
        // The oldest frame is removed only after this succeeds, because a clip must not lose a frame.
        let written = stage.preprocess_region(frame, region, &tensor, &mut self.scratch);
        if !matches!(written, Ok(true)) {
            self.spare = Some(tensor);
            return written;
        }
        let object_idx = known.unwrap_or_else(|| {
            self.objects.push(ClipFrames { track, seen_in: frame_number, stored_in: 0, n_new: 0, frames: VecDeque::new() });
            self.objects.len() - 1
        });
        let object = &mut self.objects[object_idx];
        if object.frames.len() == n_frames {
            self.spare = object.frames.pop_front();
        }
        object.frames.push_back(tensor);
        object.stored_in = frame_number;
        object.n_new += 1;
        let is_complete = object.frames.len() == n_frames && object.n_new >= self.clip.step;
        if is_complete {
            object.n_new = 0;
        }
        Ok(is_complete)
    }

    /// Whether frames of this object, or of the whole frame, are stored.
    pub fn has(&self, track: Option<ObjectId>) -> bool {
        self.objects.iter().any(|object| object.track == track)
    }

    /// Releases the frames of objects that are missing for as many frames as a clip spans. [`Clips::add`] does this too. Call this for frames
    /// without objects.
    pub fn release_missing(&mut self, frame_number: u64) {
        let span = u64::from(self.clip.stride) * self.clip.n_frames as u64;
        self.objects.retain(|object| frame_number.checked_sub(object.seen_in).is_some_and(|n_missing| n_missing < span));
    }

    /// Returns the frames of an object as the input of the model, the newest frame last.
    ///
    /// # Errors
    /// Returns `Tensor` if fewer frames are stored than a clip has.
    pub fn input(&self, track: Option<ObjectId>) -> Result<Tensor> {
        let n_frames = self.clip.n_frames;
        let object = self.objects.iter().find(|object| object.track == track && object.frames.len() == n_frames).ok_or_else(|| {
            Error::new(ErrorKind::Tensor, format!("input of a clip: expected an object with {n_frames} stored frames, got fewer frames"))
        })?;
        let input = Tensor::new(self.element, self.input_shape)?;
        {
            let mut bytes = input.bytes_mut()?;
            let target = bytes.extent_mut();
            for (time, frame) in object.frames.iter().enumerate() {
                let frame = frame.bytes()?;
                let frame = frame.extent();
                match self.clip.layout {
                    ClipLayout::Ncthw => {
                        let n_plane_bytes = frame.len() / self.clip.frame_shape[1];
                        for (channel, plane) in frame.chunks_exact(n_plane_bytes).enumerate() {
                            target[(channel * n_frames + time) * n_plane_bytes..][..n_plane_bytes].copy_from_slice(plane);
                        }
                    }
                    ClipLayout::Ntchw | ClipLayout::Nthwc => target[time * frame.len()..][..frame.len()].copy_from_slice(frame),
                }
            }
        }
        Ok(input)
    }

    /// Number of objects whose frames are stored.
    pub fn len(&self) -> usize {
        self.objects.len()
    }

    /// Whether no frames are stored.
    pub fn is_empty(&self) -> bool {
        self.objects.is_empty()
    }

    /// Releases all frames.
    pub fn clear(&mut self) {
        self.objects.clear();
    }
}
