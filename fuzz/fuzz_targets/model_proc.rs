//! DL Streamer files with arbitrary text: nothing panics, and accepted descriptions can be used.

#![no_main]

#[path = "../../tests/support/descriptions.rs"]
mod descriptions;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let mut bytes = bytes.to_vec();
    if !bytes.is_empty() {
        bytes[0] |= 1;
        descriptions::try_description(&bytes);
    }
});
