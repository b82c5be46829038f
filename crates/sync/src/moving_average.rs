//! An average of the last few samples.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The weight of a sample is one in this many.
const WEIGHT: f64 = 16.0;

/// A moving average that one thread updates and any thread may read: a load and a store, no locked instruction. Zero
/// before the first sample.
#[derive(Debug, Default)]
pub struct MovingAverage(AtomicU64);

impl MovingAverage {
    /// Adds a sample. Only the owning thread may call this; a second writer would lose samples, nothing worse.
    pub fn record(&self, sample: f64) {
        let before = self.value();
        let after = if before == 0.0 { sample } else { before + (sample - before) / WEIGHT };
        self.0.store(after.to_bits(), Relaxed);
    }

    /// The average.
    pub fn value(&self) -> f64 {
        f64::from_bits(self.0.load(Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_sample_is_the_average_and_later_ones_move_it() {
        let average = MovingAverage::default();
        assert_eq!(average.value(), 0.0);
        average.record(100.0);
        assert_eq!(average.value(), 100.0);
        average.record(116.0);
        assert_eq!(average.value(), 101.0);
        (0..1_000).for_each(|_| average.record(10.0));
        assert!((average.value() - 10.0).abs() < 0.01);
    }
}
