//! OpenVINO IRs with arbitrary text: nothing panics, and names and metadata are read correctly.

#![no_main]

#[path = "../../tests/support/model_files.rs"]
#[allow(dead_code, reason = "some of it is for the other target")]
mod model_files;
#[path = "../../tests/support/source.rs"]
#[allow(dead_code, reason = "some of it is for other targets")]
mod source;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    model_files::try_ir(bytes);
});
