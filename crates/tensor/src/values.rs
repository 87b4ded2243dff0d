//! Values that can be copied into a tensor: an `ndarray` with any strides, or flat values without a shape. If the element types differ, the
//! copy casts the values.

use ndarray::{ArrayBase, ArrayRef, ArrayView, ArrayViewMut, Data, Dimension, IxDyn, LayoutRef, Zip};

use super::element::cast;
use super::{BytesMut, Element, ElementType, Error, ErrorKind, Result};

/// Values that `Input::Copy` of the runtime accepts. Every `ndarray`, every view of one, and all flat values implement this trait. Flat
/// values are `Vec`, slices, arrays and scalars. They are in row-major order and take the shape of the input.
pub trait Values {
    /// Returns the element type of the values.
    fn element(&self) -> ElementType;

    /// Returns the extent of each axis; empty for flat values.
    fn shape(&self) -> &[usize];

    /// Returns the number of values, if they are flat. The default, `None`, means that the values have a shape.
    fn flat_len(&self) -> Option<usize> {
        None
    }

    /// Writes all values to `target`, which must have no gaps. `target` must have the shape of the values; for flat values, it must have as
    /// many elements as there are values. Values of a different type are cast like Rust's `as`. A cast from a float to an integer rounds
    /// toward zero, saturates, and turns NaN into 0. A cast between integers wraps. A cast to `bool` is true if the value is not 0.
    ///
    /// # Errors
    /// Returns [`ErrorKind::Shape`] if `target` has a different shape or has gaps.
    fn copy_to(&self, target: &mut BytesMut) -> Result<()>;

    /// Returns whether [`Values::copy_to`] always succeeds for a target without gaps that has the shape of the values. If the method may
    /// fail, the runtime first copies the values into new memory, so that a failure leaves the input unchanged.
    fn copies_always(&self) -> bool {
        false
    }
}

impl<T: Element, S: Data<Elem = T>, D: Dimension> Values for ArrayBase<S, D> {
    fn element(&self) -> ElementType {
        T::TYPE
    }

    fn shape(&self) -> &[usize] {
        <Self as AsRef<LayoutRef<T, D>>>::as_ref(self).shape()
    }

    fn copy_to(&self, target: &mut BytesMut) -> Result<()> {
        copy(self, target)
    }

    fn copies_always(&self) -> bool {
        true
    }
}

impl<T: Element, D: Dimension> Values for ArrayRef<T, D> {
    fn element(&self) -> ElementType {
        T::TYPE
    }

    fn shape(&self) -> &[usize] {
        <Self as AsRef<LayoutRef<T, D>>>::as_ref(self).shape()
    }

    fn copy_to(&self, target: &mut BytesMut) -> Result<()> {
        copy(self, target)
    }

    fn copies_always(&self) -> bool {
        true
    }
}

macro_rules! flat {
    ($(impl<$element:ident $(, const $n:ident: usize)?> $kind:ty => |$values:ident| $slice:expr;)+) => {$(
        impl<$element: Element $(, const $n: usize)?> Values for $kind {
            fn element(&self) -> ElementType {
                $element::TYPE
            }

            fn shape(&self) -> &[usize] {
                &[]
            }

            fn flat_len(&self) -> Option<usize> {
                Some(self.len())
            }

            fn copy_to(&self, target: &mut BytesMut) -> Result<()> {
                let $values = self;
                copy_flat($slice, target)
            }

            fn copies_always(&self) -> bool {
                true
            }
        }
    )+};
}

flat! {
    impl<T> Vec<T> => |values| values.as_slice();
    impl<T> &[T] => |values| values;
    impl<T, const N: usize> [T; N] => |values| values.as_slice();
}

macro_rules! scalars {
    ($($scalar:ty),+) => {$(
        impl Values for $scalar {
            fn element(&self) -> ElementType {
                <$scalar as Element>::TYPE
            }

            fn shape(&self) -> &[usize] {
                &[]
            }

            fn flat_len(&self) -> Option<usize> {
                Some(1)
            }

            fn copy_to(&self, target: &mut BytesMut) -> Result<()> {
                copy_flat(std::slice::from_ref(self), target)
            }

            fn copies_always(&self) -> bool {
                true
            }
        }
    )+};
}

scalars!(bool, u8, i8, u16, i16, u32, i32, u64, i64, super::f16, super::bf16, f32, f64);

fn copy_flat<T: Element>(values: &[T], target: &mut BytesMut) -> Result<()> {
    let (shape, n_elements) = (*target.layout().shape(), target.layout().n_elements());
    if values.len() != n_elements {
        let message = format!("copy: expected {n_elements} values for the shape {shape}, got {}", values.len());
        return Err(Error::new(ErrorKind::Shape, message));
    }
    let values = ArrayView::from_shape(IxDyn(&shape), values).expect("as many elements as the shape has, checked above");
    copy(&values, target)
}

fn copy<T: Element, D: Dimension>(values: &ArrayRef<T, D>, target: &mut BytesMut) -> Result<()> {
    if **target.layout().shape() != *values.shape() {
        let message = format!("copy: expected {}, as in the target, got {:?}", target.layout().shape(), values.shape());
        return Err(Error::new(ErrorKind::Shape, message));
    }
    macro_rules! each {
        ($($element:ident => $rust:ty),+ $(,)?) => {
            match target.layout().element() {
                $(ElementType::$element => cast_into(values, target.dense_mut::<$rust>()?),)+
            }
        };
    }
    each! {
        U8 => u8, I8 => i8, U16 => u16, I16 => i16, U32 => u32, I32 => i32, U64 => u64, I64 => i64,
        F16 => super::f16, Bf16 => super::bf16, F32 => f32, F64 => f64, Bool => bool,
    }
    Ok(())
}

fn cast_into<T: Element, U: Element, D: Dimension>(values: &ArrayRef<T, D>, target: &mut [U]) {
    let target = ArrayViewMut::from_shape(values.raw_dim(), target).expect("as many elements as the shape has, checked above");
    Zip::from(target).and(values).for_each(|to, &from| *to = cast(from));
}

#[cfg(test)]
mod tests {
    use ndarray::{Array2, ArrayD, array, aview1, s};

    use super::*;
    use crate::{Tensor, bf16, f16};

    fn copied<T: Element>(values: &dyn Values) -> Vec<T> {
        let tensor = Tensor::new(T::TYPE, values.shape()).unwrap();
        values.copy_to(&mut tensor.bytes_mut().unwrap()).unwrap();
        tensor.view::<T>().unwrap().to_vec()
    }

    #[test]
    fn equal_types_are_copied_whatever_the_strides() {
        let wide = Array2::from_shape_fn((3, 4), |(row, column)| (10 * row + column) as i32);
        let window = wide.slice(s![1.., ..;2]);
        assert_eq!(copied::<i32>(&window), [10, 12, 20, 22]);
        assert_eq!(copied::<i32>(&window.t()), [10, 20, 12, 22]);
        assert_eq!(copied::<u8>(&ArrayD::from_elem(IxDyn(&[]), 7_u8)), [7]);
    }

    #[test]
    fn other_types_are_cast_as_rust_does() {
        assert_eq!(copied::<u8>(&array![-1.5_f32, 2.9, 300.0, f32::NAN]), [0, 2, 255, 0]);
        assert_eq!(copied::<i8>(&array![200_u8, 3]), [-56, 3]);
        assert_eq!(copied::<i64>(&array![u64::MAX, 1 << 60]), [-1, 1 << 60], "the cast must not go through a float");
        assert_eq!(copied::<f32>(&array![true, false]), [1.0, 0.0]);
        assert_eq!(copied::<bool>(&array![0.0_f64, -0.5]), [false, true]);
        assert_eq!(copied::<f16>(&aview1(&[0.5_f32])), [f16::from_f32(0.5)]);
        assert_eq!(copied::<f64>(&array![bf16::from_f32(-2.0)]), [-2.0]);
    }

    #[test]
    fn flat_values_take_the_shape_of_the_target() {
        let target = Tensor::new(ElementType::F32, [2, 3]).unwrap();
        let write = |values: &dyn Values| values.copy_to(&mut target.bytes_mut().unwrap()).map_err(|error| error.kind());
        let slice: &[u8] = &[1, 2, 3, 4, 5, 6];
        for values in [&slice as &dyn Values, &vec![1_i64, 2, 3, 4, 5, 6], &[1.0_f64, 2.0, 3.0, 4.0, 5.0, 6.0]] {
            assert_eq!((values.shape(), values.flat_len()), (&[][..], Some(6)));
            write(values).unwrap();
            assert_eq!(*target.view::<f32>().unwrap(), array![[1.0_f32, 2.0, 3.0], [4.0, 5.0, 6.0]].into_dyn());
        }
        assert_eq!(write(&vec![1.0_f32; 5]), Err(ErrorKind::Shape));
        assert_eq!(write(&1.0_f32), Err(ErrorKind::Shape));
        assert_eq!((true.flat_len(), 1_u8.element()), (Some(1), ElementType::U8));
    }

    #[test]
    fn another_shape_or_a_target_with_gaps_is_refused() {
        let target = Tensor::new(ElementType::F32, [2, 4]).unwrap();
        let values = array![[1.0_f32, 2.0], [3.0, 4.0]];
        assert_eq!(values.copy_to(&mut target.bytes_mut().unwrap()).unwrap_err().kind(), ErrorKind::Shape);
        let window = target.roi(&[0, 1], &[2, 3]).unwrap();
        assert_eq!(values.copy_to(&mut window.bytes_mut().unwrap()).unwrap_err().kind(), ErrorKind::Shape);
    }
}
