//! Reads descriptions and DL Streamer files with random changes. Reading must not panic, and a description that is accepted must be usable.
//! `fuzz/fuzz_targets/descriptions.rs` and `model_proc.rs` run the same test for longer.

use crate::descriptions_cases::try_description;

#[test]
fn randomly_changed_descriptions_are_usable_or_errors() {
    let seed: u64 = std::env::var("ROIFLOW_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(0xde5c);
    eprintln!("seed {seed}");
    const N_CASES: usize = 6_000;
    let mut state = seed | 1;
    let mut byte = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as u8
    };
    let n_understood = (0..N_CASES)
        .filter(|_| {
            let mut bytes = [0; 24].map(|_: u8| byte());
            // This byte makes the text invalid UTF-8.
            bytes[0] |= 0x80;
            try_description(&bytes)
        })
        .count();
    assert!(n_understood > N_CASES / 8, "seed {seed}: only {n_understood} of {N_CASES} were descriptions");
}
