//! Parses the section `[clip]` of a model description, for models whose input is a clip: several frames in the order of time.

use serde::Deserialize;

use super::config;
use super::input::WrittenInput;
use crate::runtime::{Dim, PartialShape, Port, Result};
use crate::tensor::{ElementType, MAX_RANK, Shape};
use crate::vision::InputLayout;

/// Minimum and maximum number of frames of a clip.
const N_FRAMES: std::ops::RangeInclusive<usize> = 2..=256;
/// Maximum of `stride` and `step`.
const MAX_FRAMES: u32 = 1000;
/// Maximum size of a clip, and of all stored frames of a stream.
pub const MAX_CLIP_BYTES: usize = 1 << 30;

/// How a model's input consists of frames.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Clip {
    /// Number of frames of a clip, T.
    pub n_frames: usize,
    /// Frames of the stream from one frame of a clip to the next; at least 1.
    pub stride: u32,
    /// Frames of the clip that are new since the last run of an object; 1 to `n_frames`.
    pub step: usize,
    /// Order of the axes.
    pub layout: ClipLayout,
    /// Shape of one frame of the clip as an image input, with batch size 1.
    pub frame_shape: Shape,
}

impl Clip {
    /// Size of a clip with values of this type.
    pub(crate) fn n_bytes(&self, element: ElementType) -> usize {
        self.frame_shape.iter().fold(self.n_frames * element.size(), |n_bytes, extent| n_bytes.saturating_mul(*extent))
    }
}

/// The order of a clip's axes: batch, channels, time, height, width.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum ClipLayout {
    #[default]
    Ncthw,
    Ntchw,
    Nthwc,
}

impl ClipLayout {
    /// Index of the time axis, if the batch axis has the index 0.
    const fn time_axis(self) -> usize {
        match self {
            Self::Ncthw => 2,
            Self::Ntchw | Self::Nthwc => 1,
        }
    }

    /// Returns the order of the axes of one frame.
    pub(super) const fn of_frame(self) -> InputLayout {
        match self {
            Self::Ncthw | Self::Ntchw => InputLayout::Nchw,
            Self::Nthwc => InputLayout::Nhwc,
        }
    }
}

/// Classifiers whose input is a clip: several frames of an object, or of the whole frame, in the order of time.
#[derive(Debug, Default, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) struct WrittenClip {
    /// Number of frames of a clip, 2 to 256. Default: the extent of the model's time axis.
    frames: Option<usize>,
    /// Frames of the stream from one frame of a clip to the next, 1 to 1000. Default: 1.
    stride: Option<u32>,
    /// Number of new frames of the clip from one run of an object to the next. Default: half of `frames`.
    step: Option<u32>,
    /// Order of the axes. Default: ncthw.
    #[serde(default)]
    pub(super) layout: ClipLayout,
}

/// The port of a clip, without its time axis.
pub(super) struct ClipPort {
    /// The port of one frame.
    pub(super) frame: Port,
    /// Extent of the time axis.
    time: Dim,
    /// Index of the time axis in the model's input.
    time_axis: usize,
    /// Whether the input has a further axis of one item after the batch axis, as exports of MMAction2 have.
    has_one: bool,
}

impl WrittenClip {
    fn port(&self, port: &Port) -> Option<ClipPort> {
        let mut dims = port.shape.dims().to_vec();
        let has_one = dims.len() == 6 && dims[1].admits(1);
        if has_one {
            dims.remove(1);
        }
        if dims.len() != 5 {
            return None;
        }
        let time = dims.remove(self.layout.time_axis());
        let frame = Port { shape: PartialShape::new(dims).ok()?, ..port.clone() };
        Some(ClipPort { frame, time, time_axis: self.layout.time_axis() + usize::from(has_one), has_one })
    }

    fn n_frames(&self, time: &Dim) -> Option<usize> {
        let fixed = if let Dim::Fixed(extent) = time { Some(*extent) } else { None };
        self.frames.or(fixed).filter(|n_frames| time.admits(*n_frames) && N_FRAMES.contains(n_frames))
    }

    /// Returns the shape of the input with the dynamic axes replaced by the values of the description. `None` if nothing changes, or if the
    /// description contradicts the port (an error of [`WrittenClip::read`]).
    pub(super) fn sized(&self, port: &Port, input: &WrittenInput) -> Option<PartialShape> {
        let ClipPort { frame, time, time_axis, has_one } = self.port(port)?;
        let mut dims = input.sized(&frame).unwrap_or(frame.shape).dims().to_vec();
        if has_one {
            dims.insert(1, Dim::Fixed(1));
        }
        dims.insert(time_axis, Dim::Fixed(self.n_frames(&time)?));
        let shape = PartialShape::new(dims).ok()?;
        (shape != port.shape).then_some(shape)
    }

    /// Returns the port of a clip, with the port of one frame.
    pub(super) fn clip_port(&self, port: &Port) -> Result<ClipPort> {
        self.port(port).ok_or_else(|| {
            let axes = match self.layout {
                ClipLayout::Ncthw => "[N, C, T, H, W]",
                ClipLayout::Ntchw => "[N, T, C, H, W]",
                ClipLayout::Nthwc => "[N, T, H, W, C]",
            };
            config(format!(
                "[clip]: expected an input with the axes {axes}, got the model's input {port}. Correct `layout` in [clip], or remove [clip]"
            ))
        })
    }

    /// Returns the clip, and the shape of the model's input with batch size 1. `clip_port` is what [`WrittenClip::clip_port`] returns for
    /// `port`, and `frame_shape` is the shape of one frame.
    pub(super) fn read(&self, port: &Port, clip_port: &ClipPort, frame_shape: Shape) -> Result<(Clip, Shape)> {
        let &ClipPort { time, time_axis, has_one, .. } = clip_port;
        let (min, max) = (N_FRAMES.start(), N_FRAMES.end());
        let n_frames = self.n_frames(&time).ok_or_else(|| match self.frames {
            None if time.is_open() => {
                config(format!("the model's input {port} has a dynamic number of frames: add `frames` to [clip], {min} to {max}"))
            }
            None => config(format!("[clip]: expected {min} to {max} frames, got the model's input {port}")),
            Some(frames) => {
                config(format!("[clip] `frames`: expected {min} to {max} frames, and the number of the model's input {port}, got {frames}"))
            }
        })?;
        let (stride, step) = (self.stride.unwrap_or(1), self.step.map_or(n_frames.div_ceil(2), |step| step as usize));
        if !(1..=MAX_FRAMES).contains(&stride) {
            return Err(config(format!("[clip] `stride`: expected 1 to {MAX_FRAMES} frames, got {stride}")));
        }
        if !(1..=n_frames).contains(&step) {
            return Err(config(format!("[clip] `step`: expected 1 to {n_frames} frames, the number of frames of a clip, got {step}")));
        }
        let mut extents = [0; MAX_RANK];
        let mut rest = frame_shape.iter().copied();
        let rank = port.shape.dims().len().min(MAX_RANK);
        for (axis, extent) in extents.iter_mut().enumerate().take(rank) {
            *extent = match axis {
                1 if has_one => 1,
                axis if axis == time_axis => n_frames,
                _ => rest.next().unwrap_or(1),
            };
        }
        let clip = Clip { n_frames, stride, step, layout: self.layout, frame_shape };
        let n_bytes = clip.n_bytes(port.element);
        if n_bytes > MAX_CLIP_BYTES {
            return Err(config(format!(
                "[clip]: expected a clip of at most {MAX_CLIP_BYTES} bytes, got {n_frames} frames of {frame_shape} {}, which are {n_bytes} bytes. Reduce the number of frames or their size",
                port.element
            )));
        }
        Ok((clip, Shape::new(&extents[..rank])))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_large_clip_is_refused_with_its_size() {
        let read = |n_frames: usize, extent: usize| {
            let written = WrittenClip { frames: None, stride: None, step: None, layout: ClipLayout::Ncthw };
            let dims = [1, 3, n_frames, extent, extent].map(Dim::Fixed);
            let port = Port::new("clip", ElementType::F32, PartialShape::new(dims.to_vec()).unwrap());
            let clip_port = written.clip_port(&port).unwrap();
            written.read(&port, &clip_port, Shape::new(&[1, 3, extent, extent]))
        };
        let (clip, shape) = read(64, 1024).unwrap();
        assert_eq!((clip.n_bytes(ElementType::F32), &shape[..]), (805_306_368, &[1, 3, 64, 1024, 1024][..]));
        let error = read(128, 1024).unwrap_err().to_string();
        assert!(
            ["1073741824 bytes", "128 frames of [1, 3, 1024, 1024] f32", "1610612736 bytes"].iter().all(|part| error.contains(part)),
            "{error}"
        );
        assert!(read(2, 1 << 31).is_err());
    }
}
