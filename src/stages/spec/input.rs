//! The `[input]` of a model description: how a picture becomes the model's input; as written, then as understood and checked against
//! the model's port.

use serde::Deserialize;

use super::config;
use crate::runtime::{Port, Result};
use crate::tensor::Shape;
use crate::vision::{Anchor, ChannelOrder, InputLayout, Preprocess, Resize, Rounding};

#[derive(Debug, Default, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) struct WrittenInput {
    color: Option<WrittenColor>,
    layout: Option<WrittenLayout>,
    resize: Option<WrittenResize>,
    pad: Option<f32>,
    mean: Option<Vec<f32>>,
    scale: Option<Vec<f32>>,
    rounding: Option<WrittenRounding>,
    size: Option<[usize; 2]>,
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
enum WrittenColor {
    Rgb,
    Bgr,
    Gray,
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
enum WrittenLayout {
    Nchw,
    Nhwc,
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
enum WrittenResize {
    Stretch,
    Letterbox,
    LetterboxTopLeft,
    Crop,
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
enum WrittenRounding {
    Exact,
    U8,
}

impl WrittenInput {
    /// How pictures become the input; what is left open is said in `assumed`.
    pub(super) fn preprocess(&self, assumed: &mut Vec<String>) -> Result<Preprocess> {
        let defaults = Preprocess::default();
        let mut open = |key: &str, value: &str| assumed.push(format!("[input] `{key}` is not given: {value}"));
        let color = self.color.unwrap_or_else(|| {
            open("color", "rgb");
            WrittenColor::Rgb
        });
        let layout = self.layout.unwrap_or_else(|| {
            open("layout", "nchw");
            WrittenLayout::Nchw
        });
        let resize = self.resize.unwrap_or_else(|| {
            open("resize", "stretch");
            WrittenResize::Stretch
        });
        let color = match color {
            WrittenColor::Rgb => ChannelOrder::Rgb,
            WrittenColor::Bgr => ChannelOrder::Bgr,
            WrittenColor::Gray => ChannelOrder::Gray,
        };
        let scale = per_channel("scale", self.scale.as_deref(), color, defaults.scale)?;
        if scale.contains(&0.0) {
            return Err(config("[input] `scale`: expected divisors other than 0, got 0".to_owned()));
        }
        Ok(Preprocess {
            color,
            layout: match layout {
                WrittenLayout::Nchw => InputLayout::Nchw,
                WrittenLayout::Nhwc => InputLayout::Nhwc,
            },
            resize: match resize {
                WrittenResize::Stretch => Resize::Stretch,
                WrittenResize::Letterbox => Resize::Letterbox { anchor: Anchor::Center },
                WrittenResize::LetterboxTopLeft => Resize::Letterbox { anchor: Anchor::TopLeft },
                WrittenResize::Crop => Resize::Crop,
            },
            pad: self.pad.unwrap_or(defaults.pad),
            mean: per_channel("mean", self.mean.as_deref(), color, defaults.mean)?,
            scale,
            rounding: match self.rounding {
                Some(WrittenRounding::U8) => Rounding::U8,
                _ => Rounding::Exact,
            },
        })
    }

    /// The input's shape with one picture in it; `size` fills in a width and height that the model leaves open.
    pub(super) fn picture_shape(&self, port: &Port, preprocess: &Preprocess) -> Result<Shape> {
        let size = self.size;
        let (height_axis, width_axis) = match preprocess.layout {
            InputLayout::Nchw => (2, 3),
            InputLayout::Nhwc => (1, 2),
        };
        let shape = port.shape.with_dynamic(|axis| match (axis, size) {
            (0, _) => Some(1),
            (axis, Some([width, _])) if axis == width_axis => Some(width),
            (axis, Some([_, height])) if axis == height_axis => Some(height),
            _ => None,
        });
        let shape = shape
            .ok_or_else(|| config(format!("the model's input {port} leaves its size open: add `size = [width, height]` to [input]")))?;
        if let Some([width, height]) = size
            && shape.len() == 4
            && (shape[width_axis], shape[height_axis]) != (width, height)
        {
            return Err(config(format!("`size = [{width}, {height}]` contradicts the model's input {port}")));
        }
        Ok(shape)
    }
}

/// One number for all channels, or one each.
fn per_channel(key: &str, values: Option<&[f32]>, color: ChannelOrder, default: [f32; 3]) -> Result<[f32; 3]> {
    let n_channels = color.n_channels();
    match values {
        None => Ok(default),
        Some(values) if values.iter().any(|value| !value.is_finite()) => {
            Err(config(format!("[input] `{key}`: expected finite numbers, got {values:?}")))
        }
        Some(&[one]) => Ok([one; 3]),
        Some(&[first, second, third]) if n_channels == 3 => Ok([first, second, third]),
        Some(values) => Err(config(format!("[input] `{key}`: expected 1 or {n_channels} numbers, got {}", values.len()))),
    }
}
