//! Where an image is written to: an input in memory of the host, or in that of a device, which fills it itself.

use std::fmt;

use crate::frame::{Frame, Transform};
use crate::letterbox::Placement;
use crate::preprocess::{Preprocess, Scratch};
use crate::tensor::{BytesMut, Error, ErrorKind, Result, Tensor};

/// An input of a model, to be filled with an image.
pub enum Target<'a> {
    /// In memory of the host: [`Preprocess::fill`] writes it.
    Host(&'a mut BytesMut),
    /// In the memory of a device ([`Tensor::is_remote`]), and what fills it there, if there is anything.
    Device(&'a Tensor, Option<&'a dyn DeviceFill>),
}

/// Fills inputs in the memory of a device, from frames in memory of the host or of the device ([`Frame::memory_kind`]).
pub trait DeviceFill: Send + Sync {
    /// Fills row `row` of `input` as [`Preprocess`] defines it; other rows are not touched. The caller has checked shape, element type and
    /// row. `frame_from_input` maps pixels of the input to those of the frame; where that is outside of the frame is the border.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] for an image format or an option that the device can't do; what the device says if it fails.
    fn fill(&self, preprocess: &Preprocess, frame: &Frame, frame_from_input: &Transform, input: &Tensor, row: usize) -> Result<()>;
}

impl Preprocess {
    /// As [`Preprocess::fill`], into an input that lies anywhere.
    ///
    /// # Errors
    /// As there; [`ErrorKind::Unsupported`] if the input lies in the memory of a device and nothing fills it there; those of
    /// [`DeviceFill::fill`].
    pub fn fill_into(&self, frame: &Frame, target: Target<'_>, row: usize, scratch: &mut Scratch) -> Result<Transform> {
        let (input, device) = match target {
            Target::Host(input) => return self.fill(frame, input, row, scratch),
            Target::Device(input, device) => (input, device),
        };
        let input_size = self.check_row(&input.layout(), row)?;
        let Some(device) = device else {
            let place = input.remote_place().unwrap_or_else(|| "memory of the host".to_owned());
            let message = format!(
                "image input in {place}: expected a device that fills it, got none; fill an input in memory of the host, and copy it there"
            );
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

    /// Memory that pretends to be out of the host's reach.
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

    /// A device that fills, by way of the host. It notes what it was told.
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
    fn a_device_fills_the_input_that_lies_in_its_memory() {
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
    fn an_input_that_nothing_fills_on_its_device_is_an_error_that_says_what_to_do() {
        let input = far(ElementType::F32, [1, 3, 6, 6]);
        let error = Preprocess::default().fill_into(&frame(), Target::Device(&input, None), 0, &mut Scratch::default()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert_eq!(
            error.to_string(),
            "image input in the memory of FAR: expected a device that fills it, got none; fill an input in memory of the host, and copy it there"
        );
    }

    /// A device is asked for what it can do only: shape, type and row are checked before.
    #[test]
    fn a_device_is_not_asked_for_inputs_that_take_no_picture() {
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
    fn a_frame_tells_what_memory_it_lies_in_and_the_host_reads_no_device_memory() {
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
