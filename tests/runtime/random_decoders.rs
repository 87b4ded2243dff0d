//! Runs decoders on random outputs, valid and invalid. Decoders must not panic, and boxes, points and scores must always be valid.
//! `fuzz/fuzz_targets/decoders.rs` runs the same test for longer.

use crate::decoders::try_decoder;

#[test]
fn random_outputs_give_valid_boxes_and_scores() {
    let seed: u64 = std::env::var("ROIFLOW_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(0xdec0de);
    eprintln!("seed {seed}");
    const N_CASES: usize = 20_000;
    let mut state = seed | 1;
    let mut byte = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as u8
    };
    let n_taken = (0..N_CASES).filter(|_| try_decoder(&[0; 16].map(|_: u8| byte()))).count();
    assert!(n_taken > N_CASES / 4, "seed {seed}: only {n_taken} of {N_CASES} cases were taken by their decoders");
}
