//! Parses the section `[input]` of a model description, which defines the preprocessing, and checks it against the model's port.

use serde::Deserialize;

use super::config;
use crate::frame::Point;
use crate::runtime::{Dim, PartialShape, Port, Result};
use crate::tensor::Shape;
use crate::vision::{Anchor, ChannelOrder, Crop, InputLayout, Preprocess, Resize, Rotation, Rounding};

/// Maximum width and height of an input.
const MAX_EXTENT: usize = 16384;
/// Maximum magnitude of `mean` and `scale`.
const MAX_NUMBER: f32 = 1e6;
/// Minimum magnitude of `scale`, which is a divisor.
const MIN_DIVISOR: f32 = 1e-6;

#[derive(Debug, Default, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) struct WrittenInput {
    /// Colors of the channels. Default: rgb.
    color: Option<WrittenColor>,
    /// Order of the axes. Default: nchw.
    layout: Option<WrittenLayout>,
    /// How an image is resized to the input. Default: stretch.
    resize: Option<WrittenResize>,
    /// Pixel value of borders, 0 to 255. Default: 114.
    pad: Option<f32>,
    /// Mean, subtracted from pixel values (0 to 255): one number, or one per channel. Default: 0.
    mean: Option<Numbers>,
    /// Divisor after the mean is subtracted: one number, or one per channel. Default: 1.
    scale: Option<Numbers>,
    /// Whether values are rounded to integers after color conversion and resizing. Default: exact.
    rounding: Option<WrittenRounding>,
    /// Whether downscaling uses all pixels. Default: false.
    antialias: Option<bool>,
    /// Clockwise rotation of the image in degrees: 0, 90, 180 or 270. Default: 0.
    rotate: Option<i64>,
    /// Classifiers: margin added on each side of a box, as a fraction of its size. Default: 0.
    margin: Option<f32>,
    /// Classifiers: whether a box is extended to a square. Default: false.
    square: Option<bool>,
    /// Classifiers: target positions of a detection's keypoints, in fractions of the input's width and height.
    align: Option<Vec<[f32; 2]>>,
    /// Classifiers: whether the rotated box of a detection is turned upright, if it has one. Default: false.
    rotated: Option<bool>,
    /// Width and height of the input, for models with dynamic size.
    size: Option<[usize; 2]>,
    /// Classifiers of models with a dynamic width: larger widths of the input. A region that is too wide for `size` runs with the first width into which it fits.
    widths: Option<Vec<usize>>,
    /// Classifiers: the name of an attribute whose label is an angle. The image is turned back by these degrees: 180 turns it upside down.
    turned_by: Option<String>,
    /// For models with a quantized input: the input has `value / scale + zero-point`, where `value` is the result of `mean` and `scale`.
    quantization: Option<Quantization>,
}

/// How a tensor stores numbers as integers: `number = (integer - zero-point) * scale`.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) struct Quantization {
    /// Difference of the numbers of two adjacent integers.
    scale: f32,
    /// The integer of the number 0. Default: 0.
    #[serde(default)]
    zero_point: i32,
}

impl Quantization {
    /// Checks the values. `key` names the key in messages.
    pub(super) fn checked(self, key: &str) -> Result<Self> {
        if !(1e-9..=1e6).contains(&self.scale) || self.zero_point.abs() > 65_536 {
            return Err(config(format!(
                "{key}: expected a scale from 1e-9 to 1000000 and a zero point from -65536 to 65536, got {:e} and {}",
                self.scale, self.zero_point
            )));
        }
        Ok(self)
    }

    /// Converts integers of an output to the numbers that they represent. Replaces the values of `numbers`.
    pub(super) fn convert(self, integers: &[f32], numbers: &mut Vec<f32>) {
        numbers.clear();
        numbers.extend(integers.iter().map(|integer| (integer - self.zero_point as f32) * self.scale));
    }
}

#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(untagged, expecting = "expected a number, or a list of one per channel")]
enum Numbers {
    One(f32),
    Each(Vec<f32>),
}

impl Numbers {
    fn as_slice(&self) -> &[f32] {
        match self {
            Self::One(value) => std::slice::from_ref(value),
            Self::Each(values) => values,
        }
    }
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
    /// Returns the preprocessing options. Adds a sentence to `assumed` for each default that is used.
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
        let pad = self.pad.unwrap_or(defaults.pad);
        if !(0.0..=255.0).contains(&pad) {
            return Err(config(format!("[input] `pad`: expected a pixel value from 0 to 255, got {pad}")));
        }
        if let Some([width, height]) = self.size
            && ![width, height].iter().all(|extent| (1..=MAX_EXTENT).contains(extent))
        {
            return Err(config(format!(
                "[input] `size`: expected width and height from 1 to {MAX_EXTENT} pixels each, got [{width}, {height}]"
            )));
        }
        let color = match color {
            WrittenColor::Rgb => ChannelOrder::Rgb,
            WrittenColor::Bgr => ChannelOrder::Bgr,
            WrittenColor::Gray => ChannelOrder::Gray,
        };
        let scale = per_channel("scale", self.scale.as_ref().map(Numbers::as_slice), color, defaults.scale)?;
        if scale.contains(&0.0) {
            return Err(config("[input] `scale`: expected divisors other than 0, got 0".to_owned()));
        }
        if let Some(divisor) = scale.iter().find(|divisor| !(MIN_DIVISOR..=MAX_NUMBER).contains(&divisor.abs())) {
            return Err(config(format!(
                "[input] `scale`: expected divisors from {MIN_DIVISOR} to {MAX_NUMBER} or the same below 0, got {divisor:e}"
            )));
        }
        let rotation = match self.rotate {
            None | Some(0) => Rotation::None,
            Some(90) => Rotation::Clockwise,
            Some(180) => Rotation::Half,
            Some(270) => Rotation::Counterclockwise,
            Some(other) => return Err(config(format!("[input] `rotate`: expected 0, 90, 180 or 270 degrees clockwise, got {other}"))),
        };
        let mut mean = per_channel("mean", self.mean.as_ref().map(Numbers::as_slice), color, defaults.mean)?;
        let mut scale = scale;
        if let Some(quantization) = self.quantization {
            // `(pixel - mean) / divisor / scale + zero_point` is again a difference divided by a number.
            let Quantization { scale: step, zero_point } = quantization.checked("[input] `quantization`")?;
            for (mean, divisor) in mean.iter_mut().zip(&mut scale) {
                *divisor *= step;
                *mean -= zero_point as f32 * *divisor;
            }
        }
        Ok(Preprocess {
            color,
            rotation,
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
            pad,
            mean,
            scale,
            rounding: match self.rounding {
                Some(WrittenRounding::U8) => Rounding::U8,
                _ => Rounding::Exact,
            },
            antialias: self.antialias.unwrap_or(defaults.antialias),
        })
    }

    /// Sets the order of the axes of one frame of a clip, which `[clip]` defines.
    pub(super) fn set_layout(&mut self, layout: InputLayout) -> std::result::Result<(), toml::de::Error> {
        if self.layout.is_some() {
            let message = "[input] `layout` and [clip]: expected only `layout` in [clip]. Remove `layout` from [input]";
            return Err(<toml::de::Error as serde::de::Error>::custom(message));
        }
        self.layout = Some(match layout {
            InputLayout::Nchw => WrittenLayout::Nchw,
            InputLayout::Nhwc => WrittenLayout::Nhwc,
        });
        Ok(())
    }

    /// Replaces the width in `size`.
    pub(super) fn set_width(&mut self, width: Option<usize>) {
        if let (Some(width), Some([of_size, _])) = (width, &mut self.size) {
            *of_size = width;
        }
    }

    /// Returns the larger widths of the input. `is_classifier` is false for detectors and clips.
    pub(super) fn widths(&self, is_classifier: bool, preprocess: &Preprocess) -> Result<Vec<usize>> {
        const MAX_WIDTHS: usize = 8;
        let Some(widths) = &self.widths else { return Ok(Vec::new()) };
        let is_letterbox = matches!(preprocess.resize, Resize::Letterbox { .. });
        let (Some([_, _]), true, true) = (self.size, is_classifier, is_letterbox) else {
            return Err(config(
                "[input] `widths`: expected a classifier of images with `size` and `resize = \"letterbox\"` or `\"letterbox-top-left\"`. Remove the key"
                    .to_owned(),
            ));
        };
        if widths.len() > MAX_WIDTHS
            || !widths.is_sorted_by(|one, next| one < next)
            || widths.iter().any(|width| !(1..=MAX_EXTENT).contains(width))
        {
            return Err(config(format!(
                "[input] `widths`: expected at most {MAX_WIDTHS} widths in ascending order, 1 to {MAX_EXTENT} each, got {widths:?}"
            )));
        }
        Ok(widths.clone())
    }

    /// Returns the options that define how a region is derived from a detection.
    pub(super) fn crop(&self, is_classifier: bool) -> Result<Crop> {
        let keys = [
            ("margin", self.margin.is_some()),
            ("square", self.square.is_some()),
            ("align", self.align.is_some()),
            ("rotated", self.rotated.is_some()),
            ("turned-by", self.turned_by.is_some()),
        ];
        if let Some((key, _)) = keys.iter().find(|(_, is_given)| *is_given && !is_classifier) {
            return Err(config(format!("[input] `{key}`: expected a classifier, got a detector. Remove the key")));
        }
        let margin = self.margin.unwrap_or_default();
        if !(0.0..=10.0).contains(&margin) {
            return Err(config(format!("[input] `margin`: expected a fraction of the box from 0 to 10, got {margin}")));
        }
        let align: Vec<Point> = self.align.iter().flatten().map(|&[x, y]| Point { x, y }).collect();
        if self.align.is_some() {
            let is_near = |value: f32| (-10.0..=10.0).contains(&value);
            let is_usable = (2..=100).contains(&align.len()) && align.iter().all(|point| is_near(point.x) && is_near(point.y));
            if !is_usable || align.iter().all(|point| *point == align[0]) {
                return Err(config(format!(
                    "[input] `align`: expected 2 to 100 points `[x, y]` in fractions of the input, not all equal, got {:?}",
                    self.align.as_deref().unwrap_or_default()
                )));
            }
            for (key, is_given) in [("antialias", self.antialias == Some(true)), ("rotate", self.rotate.is_some_and(|angle| angle != 0))] {
                if is_given {
                    return Err(config(format!(
                        "[input] `align` and `{key}`: expected one of them, because alignment already rotates and samples the image. Remove one"
                    )));
                }
            }
        }
        let rotated = self.rotated.unwrap_or_default();
        for (key, is_given) in [
            ("align", !align.is_empty()),
            ("antialias", self.antialias == Some(true)),
            ("rotate", self.rotate.is_some_and(|angle| angle != 0)),
        ] {
            if rotated && is_given {
                return Err(config(format!(
                    "[input] `rotated` and `{key}`: expected one of them, because turning a box upright already samples the image. Remove one"
                )));
            }
        }
        if let Some(attribute) = &self.turned_by
            && (attribute.is_empty() || !align.is_empty() || self.antialias == Some(true))
        {
            return Err(config(format!(
                "[input] `turned-by`: expected the name of an attribute, without `align` and `antialias`, got `{attribute}`"
            )));
        }
        Ok(Crop { margin, square: self.square.unwrap_or_default(), align, rotated, turned_by: self.turned_by.as_deref().map(Into::into) })
    }

    /// Returns the input shape with dynamic width, height and channels replaced by the values of `size` and `color`. `None` if nothing
    /// changes, or if `size` contradicts the port (an error of [`WrittenInput::image_shape`]).
    pub(super) fn sized(&self, port: &Port) -> Option<PartialShape> {
        let [width, height] = self.size.filter(|size| size.iter().all(|extent| (1..=MAX_EXTENT).contains(extent)))?;
        let n_channels = match self.color {
            Some(WrittenColor::Gray) => 1,
            _ => 3,
        };
        let wanted = match self.layout.unwrap_or(WrittenLayout::Nchw) {
            WrittenLayout::Nchw => [n_channels, height, width],
            WrittenLayout::Nhwc => [height, width, n_channels],
        };
        let (batch, dims) = port.shape.dims().split_first().filter(|(_, dims)| dims.len() == wanted.len())?;
        if dims.iter().zip(&wanted).any(|(dim, extent)| !dim.admits(*extent)) || dims.iter().all(|dim| !dim.is_open()) {
            return None;
        }
        PartialShape::new([*batch].into_iter().chain(wanted.map(Dim::Fixed)).collect()).ok()
    }

    /// Returns the input shape with batch size 1. `size` replaces dynamic width and height.
    pub(super) fn image_shape(&self, port: &Port, preprocess: &Preprocess) -> Result<Shape> {
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
        let shape =
            shape.ok_or_else(|| config(format!("the model's input {port} has a dynamic size: add `size = [width, height]` to [input]")))?;
        if let Some([width, height]) = size
            && shape.len() == 4
            && (shape[width_axis], shape[height_axis]) != (width, height)
        {
            return Err(config(format!("`size = [{width}, {height}]` contradicts the model's input {port}")));
        }
        Ok(shape)
    }
}

/// Returns one number per channel. The key has one number for all channels, or one per channel. Checks the range of the numbers.
fn per_channel(key: &str, values: Option<&[f32]>, color: ChannelOrder, default: [f32; 3]) -> Result<[f32; 3]> {
    let n_channels = color.n_channels();
    match values {
        None => Ok(default),
        Some(values) if values.iter().any(|value| !(-MAX_NUMBER..=MAX_NUMBER).contains(value)) => {
            Err(config(format!("[input] `{key}`: expected finite numbers from -{MAX_NUMBER} to {MAX_NUMBER}, got {values:?}")))
        }
        Some(&[one]) => Ok([one; 3]),
        Some(&[first, second, third]) if n_channels == 3 => Ok([first, second, third]),
        Some(values) => Err(config(format!("[input] `{key}`: expected 1 or {n_channels} numbers, got {}", values.len()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = include_str!("../../docs/model-descriptions.md");

    #[derive(Deserialize)]
    struct Example {
        input: Option<WrittenInput>,
    }

    #[test]
    fn documented_keys_and_examples_are_valid() {
        let (_, section) = PAGE.split_once("## Keys of `[input]`").expect("a section of these keys");
        let rows: Vec<&str> =
            section.lines().skip(2).skip_while(|line| !line.starts_with("| `")).take_while(|line| line.starts_with('|')).collect();
        assert!(rows.len() >= 13, "{rows:?}");
        for row in rows {
            let key = row.split('`').nth(1).unwrap();
            let example = row.trim_end_matches(" |").rsplit_once("| ").unwrap().1.trim_matches('`');
            // For longer examples, the table has the words `see below`, and the example is below the table.
            if example != "see below" {
                assert!(example.starts_with(&format!("{key} = ")), "{row}");
                let input: WrittenInput = toml::from_str(example).unwrap_or_else(|error| panic!("{example}: {error}"));
                input.preprocess(&mut Vec::new()).unwrap();
                input.crop(true).unwrap();
            }
        }
        let examples = section.split("```toml\n").skip(1).filter_map(|rest| rest.split_once("```")).map(|(example, _)| example);
        let inputs: Vec<WrittenInput> = examples.filter_map(|example| toml::from_str::<Example>(example).unwrap().input).collect();
        assert!(inputs.iter().any(|input| input.crop(true).unwrap().align.len() == 5));
        assert!(inputs.iter().all(|input| input.preprocess(&mut Vec::new()).is_ok()));
    }

    /// The first example of the page must be a complete description, because readers copy it.
    #[test]
    fn first_documented_example_is_a_detector() {
        let examples = PAGE.split("```toml\n").skip(1).filter_map(|rest| rest.split_once("```")).map(|(example, _)| example);
        let example = examples.into_iter().find(|example| example.starts_with("version = 1")).expect("a whole description");
        assert!(example.contains("\ntask = \"detection\""), "{example}");
        let Example { input } = toml::from_str(example).unwrap_or_else(|error| panic!("{error}\n{example}"));
        let input = input.expect("it has an [input]");
        input.preprocess(&mut Vec::new()).unwrap();
        input.crop(false).unwrap();
    }
}
