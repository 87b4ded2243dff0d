//! The inputs of a model: an image, and in some models the size of the image.
//!
//! Deployed detection transformers (RT-DETR, D-FINE, DEIM) have a second input `orig_target_sizes` and scale their boxes to this size.
//! roiflow sets it to the width and height of the image input. The boxes are then in pixels of the image input, as for other models.

use crate::runtime::{Dim, Error, ErrorKind, Port, Result};
use crate::tensor::{ElementType, Tensor};

/// Indexes of a model's inputs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ModelInputs {
    pub(super) image: usize,
    /// Index of the input for width and height.
    pub(super) size: Option<usize>,
}

impl ModelInputs {
    /// Finds the inputs. `None` if there is no single image input.
    pub(super) fn of(ports: &[Port]) -> Option<Self> {
        match ports {
            [_] => Some(Self { image: 0, size: None }),
            [one, other] => match (is_size(one), is_size(other)) {
                (false, true) => Some(Self { image: 0, size: Some(1) }),
                (true, false) => Some(Self { image: 1, size: Some(0) }),
                _ => None,
            },
            _ => None,
        }
    }

    /// Returns index and values of the input for the size; `None` if there is no such input.
    ///
    /// # Errors
    /// Returns `Config` if the size of the image is dynamic, or the element type is not a number of 32 or 64 bits.
    pub(super) fn size_values(&self, ports: &[Port]) -> Result<Option<(usize, Tensor)>> {
        let Some(size) = self.size else { return Ok(None) };
        let is_channels = |dim: &Dim| matches!(dim, Dim::Fixed(1 | 3));
        let extent = |dim: &Dim| if let Dim::Fixed(extent) = dim { Some(*extent) } else { None };
        let found = match ports[self.image].shape.dims() {
            [_, channels, height, width] if is_channels(channels) => extent(width).zip(extent(height)),
            [_, height, width, _] => extent(width).zip(extent(height)),
            _ => None,
        };
        let port = &ports[size];
        let wrong = |expected: &str| {
            Error::new(
                ErrorKind::Config,
                format!("the input {port} gets the size of the image: expected {expected}, got input {}", ports[self.image]),
            )
        };
        let (width, height) = found.ok_or_else(|| wrong("an image input of a static size; set `size` in [input]"))?;
        let values = match port.element {
            ElementType::I64 => Tensor::from_slice([1, 2], &[width as i64, height as i64]),
            ElementType::I32 => Tensor::from_slice([1, 2], &[width as i32, height as i32]),
            ElementType::F32 => Tensor::from_slice([1, 2], &[width as f32, height as f32]),
            _ => return Err(wrong("numbers of the type i64, i32 or f32")),
        };
        Ok(Some((size, values?)))
    }
}

/// Whether a port has the shape `[N, 2]` and a name that contains `size`, such as `orig_target_sizes`.
fn is_size(port: &Port) -> bool {
    matches!(port.shape.dims(), [_, Dim::Fixed(2)]) && port.names.iter().any(|name| name.to_ascii_lowercase().contains("size"))
}
