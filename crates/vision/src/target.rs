//! Destination of preprocessing: an input in host memory, or in device memory. Device memory is filled by a function of the
//! device.

use std::fmt;

use crate::frame::{Frame, Transform};
use crate::letterbox::Placement;
use crate::preprocess::{Preprocess, Scratch};
use crate::tensor::{BytesMut, Error, ErrorKind, Result, Tensor};

/// Destination of a preprocessed image.
pub enum Target<'a> {
    /// Host memory, written by [`Preprocess::fill`].
    Host(&'a mut BytesMut),
    /// Device memory ([`Tensor::is_remote`]), with the function that fills this memory, if the device has one.
    Device(&'a Tensor, Option<&'a dyn DeviceFill>),
}

/// A device's function that preprocesses frames into device memory. The frames can be in host or device memory
/// ([`Frame::memory_kind`]).
pub trait DeviceFill: Send + Sync {
    /// Writes batch item `row` of `input` as [`Preprocess`] defines it. Other batch items are not changed.
    ///
    /// The caller has checked shape, element type and `row`. `frame_from_input` maps input pixels to frame pixels; input pixels that are
    /// mapped outside the frame are border.
    ///
    /// # Errors
    /// Returns [`ErrorKind::Unsupported`] for a pixel format or an option that the device does not support. Returns other kinds for errors
    /// of the device.
    fn fill(&self, preprocess: &Preprocess, frame: &Frame, frame_from_input: &Transform, input: &Tensor, row: usize) -> Result<()>;
}

impl Preprocess {
    /// Like [`Preprocess::fill`], but the input can be in host or device memory.
    ///
    /// # Errors
    /// Returns the errors of [`Preprocess::fill`] and [`DeviceFill::fill`]. Returns [`ErrorKind::Unsupported`] if the input is in device
    /// memory and the device has no function that fills it.
    pub fn fill_into(&self, frame: &Frame, target: Target<'_>, row: usize, scratch: &mut Scratch) -> Result<Transform> {
        let (input, device) = match target {
            Target::Host(input) => return self.fill(frame, input, row, scratch),
            Target::Device(input, device) => (input, device),
        };
        let input_size = self.check_row(&input.layout(), row)?;
        let Some(device) = device else {
            let place = input.remote_place().unwrap_or_else(|| "host memory".to_owned());
            let message =
                format!("image input in {place}: expected a device that can fill it, got none. Fill an input in host memory and copy it");
            return Err(Error::new(ErrorKind::Unsupported, message));
        };
        let frame_from_input = Placement::of_turned(self.resize, self.rotation, frame.size(), input_size).frame_from_input;
        device.fill(self, frame, &frame_from_input, input, row)?;
        Ok(frame_from_input)
    }
}

impl fmt::Debug for Target<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host(input) => write!(f, "Host({})", input.layout().shape()),
            Self::Device(input, device) => {
                write!(f, "Device({}, {})", input.shape(), if device.is_some() { "filled there" } else { "not filled" })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::frame::{Colorimetry, MemoryKind, PixelFormat, Size};
    use crate::preprocess::{Anchor, Resize};
    use crate::tensor::{ElementType, Layout, RemoteMemory, Shape};

    /// Memory that the host cannot access.
    #[derive(Debug)]
    struct Far(Mutex<Vec<u8>>);

    impl RemoteMemory for Far {
        fn place(&self) -> &str {
            "the memory of FAR"
        }

        fn len(&self) -> usize {
            self.0.lock().unwrap().len()
        }

        fn read(&self, layout: &Layout, offset_bytes: usize, target: &mut [u8]) -> Result<()> {
            assert!(layout.is_dense());
            target.copy_from_slice(&self.0.lock().unwrap()[offset_bytes..][..target.len()]);
            Ok(())
        }

        fn write(&self, layout: &Layout, offset_bytes: usize, source: &[u8]) -> Result<()> {
            assert!(layout.is_dense());
            self.0.lock().unwrap()[offset_bytes..][..source.len()].copy_from_slice(source);
            Ok(())
        }
    }

    fn far(element: ElementType, shape: impl Into<Shape>) -> Tensor {
        let layout = Layout::dense(element, shape.into()).unwrap();
        Tensor::remote_whole(Box::new(Far(Mutex::new(vec![0; layout.dense_bytes()]))), layout).unwrap()
    }

    /// A device that fills through host memory and records its calls.
    #[derive(Default)]
    struct Fills(Mutex<Vec<(Transform, usize, MemoryKind)>>);

    impl DeviceFill for Fills {
        fn fill(&self, preprocess: &Preprocess, frame: &Frame, frame_from_input: &Transform, input: &Tensor, row: usize) -> Result<()> {
            self.0.lock().unwrap().push((*frame_from_input, row, frame.memory_kind()));
            let here = Tensor::new(input.element(), input.shape())?;
            input.copy_to(&here)?;
            preprocess.fill(frame, &mut here.bytes_mut()?, row, &mut Scratch::default())?;
            here.copy_to(input)
        }
    }

    fn frame() -> Frame {
        let bytes: Vec<u8> = (0..12 * 8 * 3).map(|value| value as u8).collect();
        Frame::from_packed(PixelFormat::Rgb, Size::new(12, 8), &bytes).unwrap()
    }

    #[test]
    fn device_fills_inputs_in_its_memory() {
        let preprocess = Preprocess { resize: Resize::Letterbox { anchor: Anchor::Center }, ..Preprocess::default() };
        let (on_host, on_device) = (Tensor::new(ElementType::F32, [2, 3, 6, 6]).unwrap(), far(ElementType::F32, [2, 3, 6, 6]));
        let (device, mut scratch) = (Fills::default(), Scratch::default());
        for row in 0..2 {
            let expected = preprocess.fill_into(&frame(), Target::Host(&mut on_host.bytes_mut().unwrap()), row, &mut scratch).unwrap();
            let got = preprocess.fill_into(&frame(), Target::Device(&on_device, Some(&device)), row, &mut scratch).unwrap();
            assert_eq!(expected, got);
            assert_eq!(device.0.lock().unwrap()[row], (expected, row, MemoryKind::Host));
        }
        let copy = Tensor::new(ElementType::F32, [2, 3, 6, 6]).unwrap();
        on_device.copy_to(&copy).unwrap();
        assert_eq!(*copy.view::<f32>().unwrap(), *on_host.view::<f32>().unwrap());
    }

    #[test]
    fn device_memory_without_a_fill_function_is_an_error() {
        let input = far(ElementType::F32, [1, 3, 6, 6]);
        let error = Preprocess::default().fill_into(&frame(), Target::Device(&input, None), 0, &mut Scratch::default()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert_eq!(
            error.to_string(),
            "image input in the memory of FAR: expected a device that can fill it, got none. Fill an input in host memory and copy it"
        );
    }

    /// Shape, element type and batch item are checked before the device is called.
    #[test]
    fn device_is_not_called_for_invalid_inputs() {
        let (device, mut scratch) = (Fills::default(), Scratch::default());
        let cases = [
            (far(ElementType::F32, [1, 4, 6, 6]), 0, ErrorKind::Shape),
            (far(ElementType::F32, [1, 3, 6, 6]), 1, ErrorKind::Shape),
            (far(ElementType::I64, [1, 3, 6, 6]), 0, ErrorKind::ElementType),
        ];
        for (input, row, expected) in cases {
            let error = Preprocess::default().fill_into(&frame(), Target::Device(&input, Some(&device)), row, &mut scratch).unwrap_err();
            assert_eq!(error.kind(), expected, "{error}");
        }
        assert!(device.0.lock().unwrap().is_empty());
    }

    #[test]
    fn frame_reports_its_memory_and_host_cannot_read_device_memory() {
        let size = Size::new(12, 8);
        let on_device = Frame::from_planes(PixelFormat::Rgb, size, &[far(ElementType::U8, [8, 12, 3])], Colorimetry::default()).unwrap();
        assert_eq!((frame().memory_kind(), on_device.memory_kind()), (MemoryKind::Host, MemoryKind::Device));
        #[cfg(target_os = "linux")]
        {
            let shared = Tensor::shared(ElementType::U8, [8, 12, 3]).unwrap();
            let shared = Frame::from_planes(PixelFormat::Rgb, size, &[shared], Colorimetry::default()).unwrap();
            assert_eq!(shared.memory_kind(), MemoryKind::Shared);
        }
        let input = Tensor::new(ElementType::F32, [1, 3, 6, 6]).unwrap();
        let mut bytes = input.bytes_mut().unwrap();
        let filled = Preprocess::default().fill_into(&on_device, Target::Host(&mut bytes), 0, &mut Scratch::default());
        let error = filled.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Remote);
        assert!(error.to_string().contains("the memory of FAR"), "{error}");
    }
}
