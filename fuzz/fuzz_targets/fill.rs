//! Preprocessing with arbitrary geometry: nothing panics, only the batch item is written, and all SIMD backends give the same bits.

#![no_main]

#[path = "../../tests/support/fill.rs"]
mod fill;
#[path = "../../tests/support/source.rs"]
mod source;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    fill::try_fill(bytes);
});
