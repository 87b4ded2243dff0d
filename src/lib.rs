pub mod devices;
pub mod frame;
pub mod runtime;
pub mod stages;
pub mod tensor;
pub mod vision;
