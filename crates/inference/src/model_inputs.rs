//! The inputs of a model: an image, and in some models numbers that scale its boxes.
//!
//! roiflow sets these numbers so that boxes are in pixels of the image input, as for other models:
//!
//! | input | models | values |
//! |---|---|---|
//! | `[1, 2]`, its name with `size` (`orig_target_sizes`) | RT-DETR, D-FINE, DEIM, RF-DETR | width and height of the image input |
//! | `[1, 2]`, `im_shape` | PaddleDetection | height and width of the image input |
//! | `[1, 2]`, `scale_factor` | PaddleDetection | 1 and 1 |

use crate::runtime::{Dim, Error, ErrorKind, Port, Result};
use crate::tensor::{ElementType, Tensor};

/// Indexes of a model's inputs.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct ModelInputs {
    pub(super) image: usize,
    /// Index and content of each input for two numbers.
    pub(super) pairs: Vec<(usize, Pair)>,
}

/// The content of an input for two numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pair {
    WidthAndHeight,
    HeightAndWidth,
    Ones,
}

impl Pair {
    /// Recognizes an input by its shape `[N, 2]` and its name; `None` for other inputs.
    fn of(port: &Port) -> Option<Self> {
        let has = |word: &str| port.names.iter().any(|name| name.to_ascii_lowercase().contains(word));
        match port.shape.dims() {
            [_, Dim::Fixed(2)] if has("scale_factor") => Some(Self::Ones),
            [_, Dim::Fixed(2)] if has("im_shape") => Some(Self::HeightAndWidth),
            [_, Dim::Fixed(2)] if has("size") => Some(Self::WidthAndHeight),
            _ => None,
        }
    }
}

impl ModelInputs {
    /// Finds the inputs. `None` if there is no single image input.
    pub(super) fn of(ports: &[Port]) -> Option<Self> {
        let [_] = ports else {
            let pairs: Vec<(usize, Pair)> = (0..).zip(ports).filter_map(|(idx, port)| Some((idx, Pair::of(port)?))).collect();
            let mut others = (0..ports.len()).filter(|idx| pairs.iter().all(|(of, _)| of != idx));
            let image = others.next().filter(|_| others.next().is_none())?;
            return Some(Self { image, pairs });
        };
        Some(Self::default())
    }

    /// Returns index and values of each input for two numbers.
    ///
    /// # Errors
    /// Returns `Config` if the size of the image is dynamic, or the element type is not a number of 32 or 64 bits.
    pub(super) fn pair_values(&self, ports: &[Port]) -> Result<Vec<(usize, Tensor)>> {
        let is_channels = |dim: &Dim| matches!(dim, Dim::Fixed(1 | 3));
        let extent = |dim: &Dim| if let Dim::Fixed(extent) = dim { Some(*extent) } else { None };
        let found = match ports[self.image].shape.dims() {
            [_, channels, height, width] if is_channels(channels) => extent(width).zip(extent(height)),
            [_, height, width, _] => extent(width).zip(extent(height)),
            _ => None,
        };
        let values = |&(idx, pair): &(usize, Pair)| {
            let port = &ports[idx];
            let wrong = |expected: &str| {
                Error::new(
                    ErrorKind::Config,
                    format!("the input {port} gets the size of the image: expected {expected}, got input {}", ports[self.image]),
                )
            };
            let (width, height) = found.ok_or_else(|| wrong("an image input of a static size; set `size` in [input]"))?;
            let [first, second] = match pair {
                Pair::WidthAndHeight => [width, height],
                Pair::HeightAndWidth => [height, width],
                Pair::Ones => [1, 1],
            };
            let values = match port.element {
                ElementType::I64 => Tensor::from_slice([1, 2], &[first as i64, second as i64]),
                ElementType::I32 => Tensor::from_slice([1, 2], &[first as i32, second as i32]),
                ElementType::F32 => Tensor::from_slice([1, 2], &[first as f32, second as f32]),
                _ => return Err(wrong("numbers of the type i64, i32 or f32")),
            };
            Ok((idx, values?))
        };
        self.pairs.iter().map(values).collect()
    }
}
