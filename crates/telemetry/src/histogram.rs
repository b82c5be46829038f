//! How long something takes: buckets that double, from a microsecond to half a second.

use crate::Counter;

/// A bucket holds what took up to 2^its number microseconds; the last holds the rest, beyond half a second.
pub const BUCKETS: usize = 21;

/// One thread's durations; only that thread notes.
#[derive(Debug, Default)]
pub struct Histogram {
    buckets: [Counter; BUCKETS],
    sum_us: Counter,
}

/// Histograms added up, over threads for example.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HistogramSum {
    /// How many fell into each bucket.
    pub buckets: [u64; BUCKETS],
    /// What all of them took together, in microseconds.
    pub sum_us: u64,
}

impl Histogram {
    /// Takes note of one that took `took_us` microseconds.
    pub fn record(&self, took_us: u64) {
        self.buckets[bucket_of(took_us)].add(1);
        self.sum_us.add(took_us);
    }
}

impl HistogramSum {
    /// Adds a histogram as it stands.
    pub fn add(&mut self, histogram: &Histogram) {
        for (sum, own) in self.buckets.iter_mut().zip(&histogram.buckets) {
            *sum += own.value();
        }
        self.sum_us += histogram.sum_us.value();
    }

    /// How many were noted.
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }
}

fn bucket_of(took_us: u64) -> usize {
    let doublings = u64::BITS - took_us.saturating_sub(1).leading_zeros();
    (doublings as usize).min(BUCKETS - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_holds_what_took_up_to_its_bound() {
        for (took_us, bucket) in [(0, 0), (1, 0), (2, 1), (3, 2), (4, 2), (5, 3), (524_288, 19), (524_289, 20)] {
            assert_eq!(bucket_of(took_us), bucket, "{took_us} us");
        }
        assert_eq!(bucket_of(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn histograms_add_up() {
        let (one, other) = (Histogram::default(), Histogram::default());
        one.record(3);
        one.record(1_000_000);
        other.record(3);
        let mut sum = HistogramSum::default();
        sum.add(&one);
        sum.add(&other);
        assert_eq!((sum.count(), sum.buckets[2], sum.buckets[BUCKETS - 1], sum.sum_us), (3, 2, 1, 1_000_006));
    }
}
