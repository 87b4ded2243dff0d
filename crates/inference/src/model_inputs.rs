//! The inputs of a model: an image, and in some models numbers, by which the model scales its boxes or which it needs for another reason.
//!
//! roiflow sets these numbers so that boxes are in pixels of the image input, as for other models:
//!
//! | input | models | values |
//! |---|---|---|
//! | `[1, 2]`, its name with `size` (`orig_target_sizes`) | RT-DETR, D-FINE, DEIM, RF-DETR | width and height of the image input |
//! | `[1, 2]`, `im_shape` | PaddleDetection | height and width of the image input |
//! | `[1, 2]`, `scale_factor` | PaddleDetection | 1 and 1 |
//! | `[1, 3]`, `image_info`, `im_info` | Faster R-CNN and Mask R-CNN of the Open Model Zoo | height and width of the image input, 1 |
//! | `[n, 1]`, `seq_ind` | recognizers of license plates of the Open Model Zoo | 0, then 1 |

use crate::runtime::{Dim, Error, ErrorKind, Port, Result};
use crate::tensor::{ElementType, Tensor};

/// Indexes of a model's inputs.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct ModelInputs {
    pub(super) image: usize,
    /// Index and content of each input for numbers.
    pub(super) numbers: Vec<(usize, Numbers)>,
}

/// The content of an input for numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Numbers {
    WidthAndHeight,
    HeightAndWidth,
    Ones,
    HeightWidthAndScale,
    /// 0, then 1 for each further element. Contains the number of elements.
    Sequence(usize),
}

impl Numbers {
    /// Recognizes an input by its shape and its name; `None` for other inputs.
    fn of(port: &Port) -> Option<Self> {
        let has = |word: &str| port.names.iter().any(|name| name.to_ascii_lowercase().contains(word));
        match port.shape.dims() {
            [_, Dim::Fixed(2)] if has("scale_factor") => Some(Self::Ones),
            [_, Dim::Fixed(2)] if has("im_shape") => Some(Self::HeightAndWidth),
            [_, Dim::Fixed(2)] if has("size") => Some(Self::WidthAndHeight),
            [_, Dim::Fixed(3)] if has("image_info") || has("im_info") => Some(Self::HeightWidthAndScale),
            [Dim::Fixed(n), Dim::Fixed(1)] if has("seq_ind") => Some(Self::Sequence(*n)),
            _ => None,
        }
    }

    /// Returns shape and values for an image input of this width and height.
    fn values(self, size: impl Fn() -> Result<(usize, usize)>) -> Result<([usize; 2], Vec<usize>)> {
        let values = match self {
            Self::WidthAndHeight => size().map(|(width, height)| vec![width, height])?,
            Self::HeightAndWidth => size().map(|(width, height)| vec![height, width])?,
            Self::HeightWidthAndScale => size().map(|(width, height)| vec![height, width, 1])?,
            Self::Ones => vec![1, 1],
            Self::Sequence(n) => (0..n).map(|idx| usize::from(idx > 0)).collect(),
        };
        let shape = if let Self::Sequence(n) = self { [n, 1] } else { [1, values.len()] };
        Ok((shape, values))
    }
}

impl ModelInputs {
    /// Finds the inputs. `None` if there is no single image input.
    pub(super) fn of(ports: &[Port]) -> Option<Self> {
        let [_] = ports else {
            let numbers: Vec<(usize, Numbers)> = (0..).zip(ports).filter_map(|(idx, port)| Some((idx, Numbers::of(port)?))).collect();
            let mut others = (0..ports.len()).filter(|idx| numbers.iter().all(|(of, _)| of != idx));
            let image = others.next().filter(|_| others.next().is_none())?;
            return Some(Self { image, numbers });
        };
        Some(Self::default())
    }

    /// Returns index and values of each input for numbers.
    ///
    /// # Errors
    /// Returns `Config` if an input gets the size of the image and this size is dynamic, or if its element type is not i64, i32 or f32.
    pub(super) fn number_values(&self, ports: &[Port]) -> Result<Vec<(usize, Tensor)>> {
        let is_channels = |dim: &Dim| matches!(dim, Dim::Fixed(1 | 3));
        let extent = |dim: &Dim| if let Dim::Fixed(extent) = dim { Some(*extent) } else { None };
        let found = match ports[self.image].shape.dims() {
            [_, channels, height, width] if is_channels(channels) => extent(width).zip(extent(height)),
            [_, height, width, _] => extent(width).zip(extent(height)),
            _ => None,
        };
        let values = |&(idx, numbers): &(usize, Numbers)| {
            let port = &ports[idx];
            let wrong = |expected: &str| {
                Error::new(
                    ErrorKind::Config,
                    format!(
                        "the input {port} gets the size or the scale of the image, or other numbers: expected {expected}, got input {}",
                        ports[self.image]
                    ),
                )
            };
            let size = || found.ok_or_else(|| wrong("an image input of a static size; set `size` in [input]"));
            let (shape, values) = numbers.values(size)?;
            let values = match port.element {
                ElementType::I64 => Tensor::from_slice(shape, &values.iter().map(|&value| value as i64).collect::<Vec<_>>()),
                ElementType::I32 => Tensor::from_slice(shape, &values.iter().map(|&value| value as i32).collect::<Vec<_>>()),
                ElementType::F32 => Tensor::from_slice(shape, &values.iter().map(|&value| value as f32).collect::<Vec<_>>()),
                _ => return Err(wrong("numbers of the type i64, i32 or f32")),
            };
            Ok((idx, values?))
        };
        self.numbers.iter().map(values).collect()
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
            let pairs = ModelInputs::of(&ports).unwrap().number_values(&ports)?;
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

    #[test]
    fn further_inputs_of_the_open_model_zoo_have_their_numbers() {
        let port = |name: &str, shape: [usize; 2]| Port::new(name, ElementType::F32, shape);
        for (further, expected) in
            [(port("image_info", [1, 3]), vec![320.0, 640.0, 1.0]), (port("seq_ind", [4, 1]), vec![0.0, 1.0, 1.0, 1.0])]
        {
            let shape = further.shape.to_string();
            let ports = [further, Port::new("data", ElementType::F32, [1, 3, 320, 640])];
            let inputs = ModelInputs::of(&ports).unwrap();
            let [(0, tensor)] = &*inputs.number_values(&ports).unwrap() else { panic!("{inputs:?}") };
            assert_eq!((inputs.image, tensor.shape().to_string(), tensor.view::<f32>().unwrap().to_vec()), (1, shape, expected));
        }
    }
}
