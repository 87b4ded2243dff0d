//! The inputs of a model: an image, and in some models pairs of numbers, by which the model scales its boxes.
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
    /// Returns `Config` if an input gets the size of the image and this size is dynamic, or if its element type is not i64, i32 or f32.
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
                    format!(
                        "the input {port} gets the size or the scale of the image: expected {expected}, got input {}",
                        ports[self.image]
                    ),
                )
            };
            let size = || found.ok_or_else(|| wrong("an image input of a static size; set `size` in [input]"));
            let (first, second) = match pair {
                Pair::WidthAndHeight => size()?,
                Pair::HeightAndWidth => size().map(|(width, height)| (height, width))?,
                Pair::Ones => (1, 1),
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::PartialShape;

    #[test]
    fn only_the_size_of_the_image_needs_a_static_size() {
        let port = |name: &str, element: ElementType, dims: &[Dim]| Port::new(name, element, PartialShape::new(dims.to_vec()).unwrap());
        let values = |image: &[Dim], name: &str, element: ElementType| {
            let ports = [port("image", ElementType::F32, image), port(name, element, &[Dim::Dynamic, 2.into()])];
            let pairs = ModelInputs::of(&ports).unwrap().pair_values(&ports)?;
            let [(1, tensor)] = &*pairs else { panic!("{pairs:?}") };
            Ok::<_, Error>(tensor.view::<f32>()?.to_vec())
        };
        let (known, dynamic) = ([1, 3, 320, 640].map(Dim::from), [1.into(), 3.into(), Dim::Dynamic, Dim::Dynamic]);
        assert_eq!(values(&known, "im_shape", ElementType::F32).unwrap(), [320.0, 640.0]);
        assert_eq!(values(&known, "orig_target_sizes", ElementType::F32).unwrap(), [640.0, 320.0]);
        for image in [&known, &dynamic] {
            assert_eq!(values(image, "scale_factor", ElementType::F32).unwrap(), [1.0, 1.0]);
        }
        for (name, element, part) in
            [("im_shape", ElementType::F32, "a static size"), ("scale_factor", ElementType::F64, "i64, i32 or f32")]
        {
            let message = values(&dynamic, name, element).unwrap_err().to_string();
            assert!(message.contains("the size or the scale of the image") && message.contains(part), "{message}");
        }
    }
}
