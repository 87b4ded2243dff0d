//! Parses the section `[clip]` of a model description, for models whose input is a clip: several frames in the order of time.

use serde::Deserialize;

use super::config;
use super::input::WrittenInput;
use crate::runtime::{Dim, PartialShape, Port, Result};
use crate::tensor::{MAX_RANK, Shape};
use crate::vision::InputLayout;

/// Minimum and maximum number of frames of a clip.
const N_FRAMES: std::ops::RangeInclusive<usize> = 2..=256;
/// Maximum of `stride` and `step`.
const MAX_FRAMES: u32 = 1000;

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
struct ClipPort {
    /// The port of one frame.
    frame: Port,
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

    /// Returns the port of one frame.
    pub(super) fn frame_port(&self, port: &Port) -> Result<Port> {
        self.port(port).map(|port| port.frame).ok_or_else(|| {
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

    /// Returns the clip, and the shape of the model's input with batch size 1. `frame_shape` is the shape of one frame.
    pub(super) fn read(&self, port: &Port, frame_shape: Shape) -> Result<(Clip, Shape)> {
        let clip_port = self.port(port);
        let time = clip_port.as_ref().map_or(Dim::Dynamic, |port| port.time);
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
        let (time_axis, has_one) = clip_port.map_or((usize::MAX, false), |port| (port.time_axis, port.has_one));
        for (axis, extent) in extents.iter_mut().enumerate().take(rank) {
            *extent = match axis {
                1 if has_one => 1,
                axis if axis == time_axis => n_frames,
                _ => rest.next().unwrap_or(1),
            };
        }
        let clip = Clip { n_frames, stride, step, layout: self.layout, frame_shape };
        Ok((clip, Shape::new(&extents[..rank])))
    }
}
