//! Slope of a noisy line: the growth of memory, robust against outliers.
//!
//! Theil-Sen estimator: the median of the slopes between all pairs of points, robust against up to 29 % outliers. The interval is that of
//! Sen (1968), from the variance of Kendall's statistic.

/// A slope and its 95 % interval, in units of y per unit of x.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Trend {
    pub slope: f64,
    pub low: f64,
    pub high: f64,
}

/// Maximum number of points that are used. The number of pairs grows quadratically, and their memory would affect the measurement.
const MAX_POINTS: usize = 200;

/// Returns the trend of points (x, y). `None` for fewer than five points.
pub fn trend(points: &[(f64, f64)]) -> Option<Trend> {
    let step = points.len().div_ceil(MAX_POINTS).max(1);
    let points: Vec<(f64, f64)> = points.iter().copied().step_by(step).collect();
    if points.len() < 5 {
        return None;
    }
    let mut slopes = Vec::with_capacity(points.len() * (points.len() - 1) / 2);
    for (idx, (x1, y1)) in points.iter().enumerate() {
        slopes.extend(points[idx + 1..].iter().filter(|(x2, _)| x2 != x1).map(|(x2, y2)| (y2 - y1) / (x2 - x1)));
    }
    slopes.sort_by(f64::total_cmp);
    let (n, n_slopes) = (points.len() as f64, slopes.len() as f64);
    let off = 1.96 * (n * (n - 1.0) * (2.0 * n + 5.0) / 18.0).sqrt();
    let at = |rank: f64| slopes.get(rank.clamp(0.0, n_slopes - 1.0) as usize).copied();
    Some(Trend { slope: at((n_slopes - 1.0) / 2.0)?, low: at((n_slopes - off) / 2.0 - 1.0)?, high: at((n_slopes + off) / 2.0)? })
}
