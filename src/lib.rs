pub mod frame;
pub mod tensor;

#[cfg(feature = "gst")]
pub mod elements;
