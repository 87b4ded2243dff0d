pub mod frame;
pub mod tensor;
