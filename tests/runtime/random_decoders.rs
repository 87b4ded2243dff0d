//! Output decoders on random outputs, right and wrong: nothing panics, and boxes, points and scores are good whatever comes in.
//! `fuzz/fuzz_targets/decoders.rs` does the same for longer.

use crate::decoders::try_decoder;

#[test]
fn whatever_a_model_writes_boxes_touch_the_input_and_scores_are_fractions() {
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
