//! Tests of the soak test's memory evaluation, because the soak test has no harness.

#[path = "../support/trend.rs"]
mod trend;

use trend::{Trend, trend};

/// Noise like that of a heap: jumps, with outliers.
fn noise(n: usize) -> f64 {
    let scattered = (n as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40;
    let jump = if n % 7 == 3 { 4_000_000.0 } else { 0.0 };
    (scattered % 400_000) as f64 + jump
}

#[test]
fn leak_is_detected_in_noise_and_noise_is_not_a_leak() {
    // The samples are 1000 frames apart.
    for n_points in [30, 100, 1000] {
        let flat: Vec<(f64, f64)> = (0..n_points).map(|n| (n as f64 * 1000.0, 9e7 + noise(n))).collect();
        let leaking: Vec<(f64, f64)> = flat.iter().map(|(x, y)| (*x, y + x * 1024.0)).collect();
        let (flat, leaking) = (trend(&flat).unwrap(), trend(&leaking).unwrap());
        assert!(flat.low < 50.0 && flat.high > -50.0, "{n_points}: {flat:?}");
        assert!(leaking.low > 500.0 && leaking.low < 1024.0 && leaking.high > 1024.0, "{n_points}: {leaking:?}");
        assert!((leaking.slope - 1024.0).abs() < 150.0, "{n_points}: {leaking:?}");
    }
}

#[test]
fn line_has_slope_and_few_points_have_none() {
    let line: Vec<(f64, f64)> = (0..8).map(|n| (f64::from(n), 3.0 * f64::from(n) + 1.0)).collect();
    assert_eq!(trend(&line), Some(Trend { slope: 3.0, low: 3.0, high: 3.0 }));
    assert_eq!(trend(&line[..4]), None);
}
