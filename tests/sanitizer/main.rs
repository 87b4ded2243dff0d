//! The tests that need no engine, under a sanitizer.

#[path = "../support/decoders.rs"]
mod decoders;
#[path = "../support/fill.rs"]
mod fill;
#[path = "../runtime/golden_align.rs"]
mod golden_align;
#[path = "../runtime/golden_antialias.rs"]
mod golden_antialias;
#[path = "../runtime/golden_decoders.rs"]
mod golden_decoders;
#[path = "../runtime/golden_fill.rs"]
mod golden_fill;
#[path = "../runtime/random_decoders.rs"]
mod random_decoders;
#[path = "../runtime/random_fill.rs"]
mod random_fill;
#[path = "../runtime/request/mod.rs"]
mod request;
#[path = "../runtime/simd.rs"]
mod simd;
#[path = "../support/source.rs"]
mod source;
#[path = "../runtime/support.rs"]
#[allow(dead_code, unused_imports, reason = "some of it is for the tests with engines")]
mod support;
#[path = "../runtime/tensors.rs"]
mod tensors;
