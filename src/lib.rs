pub mod devices;
pub mod frame;
pub mod runtime;
pub mod tensor;
