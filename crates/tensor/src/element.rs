//! The element types of tensors, and the Rust types that match them.

use std::fmt;
use std::str::FromStr;

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

/// The type of one tensor element.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ElementType {
    Bool,
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    U64,
    I64,
    F16,
    Bf16,
    F32,
    F64,
}

impl ElementType {
    /// All element types, in the order of declaration.
    pub const ALL: [ElementType; 13] = [
        Self::Bool,
        Self::U8,
        Self::I8,
        Self::U16,
        Self::I16,
        Self::U32,
        Self::I32,
        Self::U64,
        Self::I64,
        Self::F16,
        Self::Bf16,
        Self::F32,
        Self::F64,
    ];

    /// Returns the size of an element in bytes.
    pub const fn size(self) -> usize {
        match self {
            Self::Bool | Self::U8 | Self::I8 => 1,
            Self::U16 | Self::I16 | Self::F16 | Self::Bf16 => 2,
            Self::U32 | Self::I32 | Self::F32 => 4,
            Self::U64 | Self::I64 | Self::F64 => 8,
        }
    }

    /// Returns the short name: `f32`, `u8`, `bool`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bool => "bool",
            Self::U8 => "u8",
            Self::I8 => "i8",
            Self::U16 => "u16",
            Self::I16 => "i16",
            Self::U32 => "u32",
            Self::I32 => "i32",
            Self::U64 => "u64",
            Self::I64 => "i64",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::F32 => "f32",
            Self::F64 => "f64",
        }
    }
}

impl fmt::Display for ElementType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for ElementType {
    type Err = super::Error;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL.into_iter().find(|element| element.name() == text).ok_or_else(|| {
            super::Error::new(
                super::ErrorKind::ElementType,
                format!("unknown element type `{text}`: expected one of {}", Self::ALL.map(Self::name).join(", ")),
            )
        })
    }
}

/// Serializes the element type as its name: `"f32"`.
#[cfg(feature = "serde")]
impl serde::Serialize for ElementType {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

#[cfg(feature = "serde")]
impl<'de> serde::Deserialize<'de> for ElementType {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
        name.parse().map_err(serde::de::Error::custom)
    }
}

mod sealed {
    /// Conversions for casts between element types. If one of the two types is a float, a cast goes through `f64`, otherwise through
    /// `i128`.
    pub trait Sealed: Sized {
        const IS_FLOAT: bool;
        fn to_f64(self) -> f64;
        fn from_f64(value: f64) -> Self;
        fn to_i128(self) -> i128;
        fn from_i128(value: i128) -> Self;

        /// Appends the values as `f32` to `numbers`.
        fn append_f32(values: &[Self], numbers: &mut Vec<f32>)
        where
            Self: Copy,
        {
            numbers.extend(values.iter().map(|value| value.to_f64() as f32));
        }
    }
}

/// Appends values to `numbers`, cast to `f32`: the nearest number, and 0 or 1 for `bool`. Values of 16-bit floats are exact.
pub fn append_f32<T: Element>(values: &[T], numbers: &mut Vec<f32>) {
    T::append_f32(values, numbers);
}

/// Casts a value like Rust's `as`. A cast from a float to an integer rounds toward zero, saturates, and turns NaN into 0. A cast between
/// integers wraps. A cast to `bool` is true if the value is not 0.
pub(super) fn cast<T: Element, U: Element>(value: T) -> U {
    if T::IS_FLOAT || U::IS_FLOAT { U::from_f64(value.to_f64()) } else { U::from_i128(value.to_i128()) }
}

/// A Rust type that can be the type of tensor elements.
///
/// # Safety
/// `TYPE.size()` must be the size of `Self`. Every bit pattern for which [`Element::is_valid`] returns true must be a value of `Self`.
pub unsafe trait Element: Copy + Send + Sync + PartialEq + fmt::Debug + sealed::Sealed + 'static {
    /// The element type that matches this Rust type.
    const TYPE: ElementType;

    /// Returns whether `bytes`, which must have a whole number of elements, consists of valid values. Always true, except for `bool`.
    fn is_valid(_bytes: &[u8]) -> bool {
        true
    }
}

macro_rules! integers {
    ($($rust:ty => $variant:ident),+ $(,)?) => {$(
        impl sealed::Sealed for $rust {
            const IS_FLOAT: bool = false;

            fn to_f64(self) -> f64 {
                self as f64
            }

            fn from_f64(value: f64) -> Self {
                value as Self
            }

            fn to_i128(self) -> i128 {
                i128::from(self)
            }

            fn from_i128(value: i128) -> Self {
                value as Self
            }
        }
        // SAFETY: `ElementType::size` returns the size of this integer type, and every bit pattern is a value of it.
        unsafe impl Element for $rust {
            const TYPE: ElementType = ElementType::$variant;
        }
    )+};
}

macro_rules! floats {
    ($($rust:ty => $variant:ident, $from_f64:expr, $append_f32:expr);+ $(;)?) => {$(
        impl sealed::Sealed for $rust {
            const IS_FLOAT: bool = true;

            fn to_f64(self) -> f64 {
                f64::from(self)
            }

            fn from_f64(value: f64) -> Self {
                $from_f64(value)
            }

            fn to_i128(self) -> i128 {
                f64::from(self) as i128
            }

            fn from_i128(value: i128) -> Self {
                $from_f64(value as f64)
            }

            fn append_f32(values: &[Self], numbers: &mut Vec<f32>) {
                $append_f32(values, numbers)
            }
        }
        // SAFETY: `ElementType::size` returns the size of this float type, and every bit pattern is a value of it.
        unsafe impl Element for $rust {
            const TYPE: ElementType = ElementType::$variant;
        }
    )+};
}

integers! { u8 => U8, i8 => I8, u16 => U16, i16 => I16, u32 => U32, i32 => I32, u64 => U64, i64 => I64 }
floats! {
    f16 => F16, f16::from_f64, append_half;
    bf16 => Bf16, bf16::from_f64, append_half;
    f32 => F32, |value: f64| value as f32, |values: &[f32], numbers: &mut Vec<f32>| numbers.extend_from_slice(values);
    f64 => F64, |value: f64| value, |values: &[f64], numbers: &mut Vec<f32>| numbers.extend(values.iter().map(|value| *value as f32));
}

/// Converts 16-bit floats with the instructions of the processor, if it has any for them.
fn append_half<T>(values: &[T], numbers: &mut Vec<f32>)
where
    [T]: HalfFloatSliceExt,
{
    let n_before = numbers.len();
    numbers.resize(n_before + values.len(), 0.0);
    values.convert_to_f32_slice(&mut numbers[n_before..]);
}

impl sealed::Sealed for bool {
    const IS_FLOAT: bool = false;

    fn to_f64(self) -> f64 {
        f64::from(u8::from(self))
    }

    fn from_f64(value: f64) -> Self {
        value != 0.0
    }

    fn to_i128(self) -> i128 {
        i128::from(self)
    }

    fn from_i128(value: i128) -> Self {
        value != 0
    }
}
// SAFETY: `bool` has one byte, and `is_valid` accepts only 0 and 1, its two values.
unsafe impl Element for bool {
    const TYPE: ElementType = ElementType::Bool;

    fn is_valid(bytes: &[u8]) -> bool {
        bytes.iter().all(|&byte| byte <= 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_read_back_and_sizes_match_the_rust_types() {
        fn check<T: Element>() {
            assert_eq!(T::TYPE.size(), size_of::<T>(), "{}", T::TYPE);
            assert_eq!(T::TYPE.name().parse::<ElementType>(), Ok(T::TYPE));
        }
        check::<bool>();
        check::<u8>();
        check::<i8>();
        check::<u16>();
        check::<i16>();
        check::<u32>();
        check::<i32>();
        check::<u64>();
        check::<i64>();
        check::<f16>();
        check::<bf16>();
        check::<f32>();
        check::<f64>();
        assert!("f31".parse::<ElementType>().unwrap_err().to_string().contains("bf16"));
    }
}
