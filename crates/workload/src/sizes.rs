//! The sizes of a pool's values, from the percentiles that the paper gives (Table 3).
//!
//! Between two percentiles the logarithm of the size is distributed evenly. The paper does not give the largest size:
//! the top percent extends far enough to give the mean, within [`VALUE_BYTES_MAX`].

/// No value is larger, in bytes: servers accept items of up to 1 MiB by default.
pub const VALUE_BYTES_MAX: f64 = 1_000_000.0;

/// The smallest value as a share of the 5th percentile.
const SMALLEST_SHARE: f64 = 0.8;

/// Mean and percentiles of a pool's values, in bytes.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// The mean.
    pub mean: f64,
    /// The 5th, 25th, 50th, 75th, 95th and 99th percentiles.
    pub percentiles: [f64; 6],
}

const SHARES: [f64; 8] = [0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99, 1.0];

impl Sizes {
    /// The sizes at [`SHARES`], between which is interpolated.
    pub(crate) fn points(&self) -> [f64; 8] {
        let [p5, p25, p50, p75, p95, p99] = self.percentiles;
        let mut points = [SMALLEST_SHARE * p5, p5, p25, p50, p75, p95, p99, p99];
        let (mut low, mut high) = (p99, VALUE_BYTES_MAX);
        for _ in 0..60 {
            points[7] = (low + high) / 2.0;
            let is_too_large = mean(&points) > self.mean;
            (low, high) = if is_too_large { (low, points[7]) } else { (points[7], high) };
        }
        points
    }
}

/// The size below which the share `at` of all sizes lies.
pub(crate) fn quantile(points: &[f64; 8], at: f64) -> f64 {
    let part = SHARES.windows(2).position(|pair| at < pair[1]).unwrap_or(SHARES.len() - 2);
    let along = (at - SHARES[part]) / (SHARES[part + 1] - SHARES[part]);
    points[part] * (points[part + 1] / points[part]).powf(along)
}

/// The mean of the sizes between the points.
pub(crate) fn mean(points: &[f64; 8]) -> f64 {
    let parts = points.windows(2).zip(SHARES.windows(2));
    parts.map(|(sizes, shares)| (shares[1] - shares[0]) * mean_between(sizes[0], sizes[1])).sum()
}

fn mean_between(low: f64, high: f64) -> f64 {
    if high / low < 1.000_001 { low } else { (high - low) / (high / low).ln() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::POOLS;

    #[test]
    fn percentiles_are_exact_and_the_mean_is_close() {
        for pool in POOLS {
            let points = pool.sizes.points();
            for (share, wanted) in SHARES[1..7].iter().zip(pool.sizes.percentiles) {
                let found = quantile(&points, *share);
                assert!((found / wanted - 1.0).abs() < 1e-9, "{}: {share} is {found}, not {wanted}", pool.name);
            }
            let ratio = mean(&points) / pool.sizes.mean;
            assert!((0.97..1.03).contains(&ratio), "{}: the mean is {ratio} of the paper's", pool.name);
            assert!(points.windows(2).all(|pair| pair[0] <= pair[1]), "{points:?}");
        }
    }
}
