//! The fill of a model's input on arbitrary geometry: nothing panics, nothing but the row is written, and every set of instructions writes
//! the same bits.

#![no_main]

#[path = "../../tests/support/fill.rs"]
mod fill;
#[path = "../../tests/support/source.rs"]
mod source;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    fill::try_fill(bytes);
});
