//! Samples for Prometheus (`--metrics-address`): latencies and hot keys. The workers take them ([`Sampler`]), so that
//! no request waits. `crate::stats::prometheus` shows them. Without the option nothing is sampled.

pub(crate) mod hot_keys;
pub(crate) mod latency;

use crate::clock::Clock;
use hot_keys::HotKeys;
use latency::{CommandClass, Latencies};
use lookaside_store::HashedKey;
use lookaside_sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// On average, one of this many replies is timed.
pub(crate) const REPLIES_PER_SAMPLE: u32 = 16;

/// On average, one of this many keys is sampled.
pub(crate) const KEYS_PER_SAMPLE: u32 = 128;

/// One thread's samples. Only that thread writes; the metrics' thread reads.
pub struct Sampler {
    clock: Clock,
    /// The time of the last wake-up, in microseconds since the start.
    woken_us: AtomicU64,
    replies_left: AtomicU32,
    keys_left: AtomicU32,
    /// A random number generator: irregular distances between samples, so that no pattern of requests is missed.
    rng: AtomicU32,
    pub(crate) latencies: Latencies,
    hot_keys: Mutex<HotKeys>,
}

impl Sampler {
    pub(crate) fn new(clock: Clock) -> Sampler {
        Sampler {
            clock,
            woken_us: AtomicU64::new(0),
            replies_left: AtomicU32::new(1),
            keys_left: AtomicU32::new(1),
            rng: AtomicU32::new(0x9e37_79b9),
            latencies: Latencies::default(),
            hot_keys: Mutex::default(),
        }
    }

    pub(crate) fn record_wakeup(&self) {
        self.woken_us.store(self.clock.elapsed_us(), Relaxed);
    }

    pub(crate) fn should_time_reply(&self) -> bool {
        let left = self.replies_left.load(Relaxed) - 1;
        self.replies_left.store(if left == 0 { self.next_distance(REPLIES_PER_SAMPLE) } else { left }, Relaxed);
        left == 0
    }

    /// Records the latency of a reply that has been passed to the kernel.
    pub(crate) fn record_reply(&self, class: CommandClass) {
        self.latencies.record(class, self.clock.elapsed_us().saturating_sub(self.woken_us.load(Relaxed)));
    }

    /// Samples keys that are about to be looked up.
    pub(crate) fn sample_keys(&self, keys: &[HashedKey<'_>]) {
        let left = self.keys_left.load(Relaxed) as usize;
        if keys.len() < left {
            self.keys_left.store((left - keys.len()) as u32, Relaxed);
            return;
        }
        self.keys_left.store(self.next_distance(KEYS_PER_SAMPLE), Relaxed);
        self.hot_keys.lock().count(keys[left - 1].key());
    }

    pub(crate) fn hot_keys(&self) -> HotKeys {
        self.hot_keys.lock().clone()
    }

    /// A random distance to the next sample, from 0.5 to 1.5 times `mean`.
    fn next_distance(&self, mean: u32) -> u32 {
        let mut rng = self.rng.load(Relaxed);
        rng ^= rng << 13;
        rng ^= rng >> 17;
        rng ^= rng << 5;
        self.rng.store(rng, Relaxed);
        mean / 2 + rng % mean + 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lookaside_store::KeyHasher;

    #[test]
    fn samples_are_as_frequent_as_declared() {
        let sampler = Sampler::new(Clock::start());
        let samples = (0..100_000).filter(|_| sampler.should_time_reply()).count();
        assert!((100_000 / 18..100_000 / 14).contains(&samples), "{samples}");
        for _ in 0..10_000 {
            sampler.sample_keys(&[
                KeyHasher::new(0).hash(b"hot"),
                KeyHasher::new(0).hash(b"cold"),
                KeyHasher::new(0).hash(b"hot"),
                KeyHasher::new(0).hash(b"hot"),
            ]);
        }
        let top = sampler.hot_keys().top(2);
        assert_eq!((&top[0].0[..], &top[1].0[..]), (&b"hot"[..], &b"cold"[..]));
        let share = top[0].1 as f64 / (top[0].1 + top[1].1) as f64;
        assert!((0.65..0.85).contains(&share), "three of four, not {share}");
    }
}
