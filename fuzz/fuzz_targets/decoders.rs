//! Decoders with arbitrary outputs: nothing panics, and boxes, points and scores are always valid.

#![no_main]

#[path = "../../tests/support/decoders.rs"]
mod decoders;
#[path = "../../tests/support/source.rs"]
mod source;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    decoders::try_decoder(bytes);
});
