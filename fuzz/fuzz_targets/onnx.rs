//! ONNX files with arbitrary bytes: nothing panics, and a second parser reads the same values, also after input shapes are changed.

#![no_main]

#[path = "../../tests/support/model_files.rs"]
#[allow(dead_code, reason = "some of it is for the other target")]
mod model_files;
#[path = "../../tests/support/source.rs"]
#[allow(dead_code, reason = "some of it is for other targets")]
mod source;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    model_files::try_onnx(bytes);
});
