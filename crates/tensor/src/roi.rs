//! Regions of interest. A region is a tensor that uses a part of another tensor's memory, with the same strides. Creating a region copies
//! and allocates nothing.

use std::sync::Arc;

use super::tensor::{Body, Placed};
use super::{Result, Tensor};

impl Tensor {
    /// Returns the region from `begin` to `end` (exclusive), with one coordinate per axis, like OpenVINO's ROI tensor.
    ///
    /// The region shares the memory of the tensor: values that are written through the region are visible through the tensor, and the
    /// reverse. A guard of a region leases only the elements of the region, so regions without a common element can be written at the same
    /// time. The region keeps the memory alive.
    ///
    /// # Errors
    /// Returns [`ErrorKind::Shape`](super::ErrorKind::Shape) unless `begin <= end <= shape` on every axis.
    pub fn roi(&self, begin: &[usize], end: &[usize]) -> Result<Tensor> {
        match &self.body {
            Body::Whole(placed) => placed.read().unwrap().window(begin, end),
            Body::Part { placed, .. } => placed.window(begin, end),
        }
    }
}

impl Placed {
    #[inline(always)]
    fn window(&self, begin: &[usize], end: &[usize]) -> Result<Tensor> {
        let offset_bytes = self.offset_bytes + self.layout.window_offset(begin, end)?;
        let layout = self.layout.with_window(begin, end);
        Ok(Tensor::from_placed(Placed { memory: Arc::clone(&self.memory), layout, offset_bytes }))
    }
}

#[cfg(test)]
mod tests {
    use crate::{ElementType, ErrorKind, Shape, Tensor};

    #[test]
    fn a_region_has_the_offset_strides_and_shape_of_its_window() {
        let tensor = Tensor::from_slice([1, 3, 4, 5], &(0..60).collect::<Vec<i32>>()).unwrap();
        let region = tensor.roi(&[0, 1, 1, 2], &[1, 3, 3, 5]).unwrap();
        assert_eq!(region.shape(), Shape::from([1, 2, 2, 3]));
        assert_eq!(region.layout().stride_bytes(), tensor.layout().stride_bytes());
        assert_eq!(region.address() as usize - tensor.address() as usize, (20 + 5 + 2) * 4);
        assert_eq!(region.view::<i32>().unwrap().to_vec(), [27, 28, 29, 32, 33, 34, 47, 48, 49, 52, 53, 54]);
        let inner = region.roi(&[0, 1, 0, 1], &[1, 2, 1, 3]).unwrap();
        assert_eq!(inner.view::<i32>().unwrap().to_vec(), [48, 49]);
    }

    #[test]
    fn a_region_out_of_range_or_of_another_rank_is_refused() {
        let tensor = Tensor::new(ElementType::U8, [4, 4]).unwrap();
        for (begin, end) in [(&[0, 0][..], &[5, 4][..]), (&[2, 0], &[1, 4]), (&[0], &[4]), (&[0, 0, 0], &[4, 4, 1])] {
            assert_eq!(tensor.roi(begin, end).unwrap_err().kind(), ErrorKind::Shape, "{begin:?}..{end:?}");
        }
        assert_eq!(tensor.roi(&[4, 4], &[4, 4]).unwrap().view::<u8>().unwrap().len(), 0);
    }

    #[test]
    fn a_region_can_shrink_and_grow_back_but_not_outgrow_itself() {
        let mut region = Tensor::new(ElementType::U8, [4, 4]).unwrap().roi(&[1, 1], &[3, 4]).unwrap();
        region.set_shape([1, 2]).unwrap();
        region.set_shape([2, 3]).unwrap();
        assert!(region.set_shape([2, 4]).is_err());
        assert!(region.set_shape([6]).is_err());
    }

    #[test]
    fn a_region_outlives_its_tensor() {
        let region = Tensor::from_slice([3], &[1_u8, 2, 3]).unwrap().roi(&[1], &[3]).unwrap();
        assert_eq!(region.view::<u8>().unwrap().to_vec(), [2, 3]);
    }
}
