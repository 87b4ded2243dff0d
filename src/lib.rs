pub mod frame;
pub mod tensor;
pub mod vision;
