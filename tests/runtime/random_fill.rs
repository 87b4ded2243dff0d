//! Inputs filled on arbitrary geometry and options, right and wrong: nothing panics, nothing else is written, and every set of instructions
//! writes the same bits. `fuzz/fuzz_targets/fill.rs` does the same for longer.

use crate::fill::try_fill;

#[test]
fn whatever_is_asked_for_is_filled_alike_or_refused() {
    let seed: u64 = std::env::var("ROIFLOW_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(0xf111);
    eprintln!("seed {seed}");
    const N_CASES: usize = 4_000;
    let mut state = seed | 1;
    let mut byte = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as u8
    };
    let n_filled = (0..N_CASES).filter(|_| try_fill(&[0; 24].map(|_: u8| byte()))).count();
    assert!(n_filled > N_CASES / 4, "seed {seed}: only {n_filled} of {N_CASES} cases were filled");
}
