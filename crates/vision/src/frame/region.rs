//! Regions of frames.

use super::{Frame, MAX_PLANES, PixelRect};
use crate::tensor::{Error, ErrorKind, Result};

impl Frame {
    /// Creates a region of this frame. The region shares the frame's memory; nothing is copied or allocated.
    ///
    /// The region covers exactly `rect`, even at odd positions of a subsampled format. The chroma planes then contain whole
    /// samples, and [`Frame::chroma_phase`] is the offset of the region in the first sample.
    ///
    /// # Errors
    /// Returns [`ErrorKind::Shape`] if `rect` is empty or not inside the frame.
    pub fn region(&self, rect: PixelRect) -> Result<Frame> {
        let fits = |begin: u32, extent: u32, limit: u32| extent > 0 && begin.checked_add(extent).is_some_and(|end| end <= limit);
        if !fits(rect.x, rect.width, self.size.width) || !fits(rect.y, rect.height, self.size.height) {
            return Err(Error::new(ErrorKind::Shape, format!("region {rect}: expected at least 1x1 inside a frame of {}", self.size)));
        }
        let (x, y) = (rect.x as usize, rect.y as usize);
        let (x_end, y_end) = (x + rect.width as usize, y + rect.height as usize);
        let (phase_x, phase_y) = (self.chroma_phase.0 as usize, self.chroma_phase.1 as usize);
        let mut planes = [const { None }; MAX_PLANES];
        for (plane_idx, plane) in self.planes().enumerate() {
            // Two columns or rows may share the elements of a plane.
            let (of_width, of_height) = match plane_idx {
                0 => (1 + usize::from(self.format.has_pixel_pairs()), 1),
                _ => self.format.chroma_pixels(),
            };
            let channels = plane.shape().get(2).copied().unwrap_or(0);
            let begin = [(y + phase_y) / of_height, (x + phase_x) / of_width, 0];
            let end = [(y_end + phase_y).div_ceil(of_height), (x_end + phase_x).div_ceil(of_width), channels];
            let (begin, end) = if (of_width, of_height) == (1, 1) { ([y, x, 0], [y_end, x_end, channels]) } else { (begin, end) };
            let rank = plane.shape().len();
            planes[plane_idx] = Some(plane.roi(&begin[..rank], &end[..rank])?);
        }
        let (of_width, of_height) = self.format.chroma_pixels();
        let chroma_phase = (((x + phase_x) % of_width) as u32, ((y + phase_y) % of_height) as u32);
        Ok(Frame { size: rect.size(), planes, chroma_phase, ..*self })
    }
}

#[cfg(test)]
mod tests {
    use crate::frame::{Colorimetry, Frame, PixelFormat, PixelRect, PlanePlace, Size};
    use crate::tensor::{Memory, Shape};

    fn nv12(size: Size) -> Frame {
        let (width, height) = (size.width as usize, size.height as usize);
        let row = width.next_multiple_of(16);
        let memory = Memory::zeroed(row * (height + height.div_ceil(2)));
        let places =
            [PlanePlace { offset_bytes: 0, row_stride_bytes: row }, PlanePlace { offset_bytes: row * height, row_stride_bytes: row }];
        Frame::over(&memory, PixelFormat::Nv12, size, &places, Colorimetry::default()).unwrap()
    }

    #[test]
    fn odd_region_keeps_its_rectangle_and_widens_chroma_views() {
        let frame = nv12(Size::new(11, 7));
        let region = frame.region(PixelRect { x: 3, y: 1, width: 4, height: 5 }).unwrap();
        assert_eq!(region.size(), Size::new(4, 5));
        assert_eq!(region.chroma_phase(), (1, 1));
        let shapes: Vec<Shape> = region.planes().map(|plane| plane.shape()).collect();
        assert_eq!(shapes, [Shape::from([5, 4]), Shape::from([3, 3, 2])]);
        let inner = region.region(PixelRect { x: 1, y: 2, width: 3, height: 3 }).unwrap();
        assert_eq!(inner.chroma_phase(), (0, 1));
        let address = |frame: &Frame| frame.planes().map(|plane| plane.address() as usize).collect::<Vec<_>>();
        let direct = frame.region(PixelRect { x: 4, y: 3, width: 3, height: 3 }).unwrap();
        assert_eq!(address(&inner), address(&direct), "both regions start at the same address");
    }

    #[test]
    fn empty_or_outside_region_is_an_error() {
        let frame = nv12(Size::new(11, 7));
        for (x, y, width, height) in [(0, 0, 12, 7), (11, 0, 1, 1), (0, 0, 0, 3), (u32::MAX, 0, 2, 2)] {
            let error = frame.region(PixelRect { x, y, width, height }).unwrap_err();
            assert!(error.to_string().contains("11x7"), "{error}");
        }
    }
}
