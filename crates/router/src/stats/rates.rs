//! Rates of counters, for `stats`: the increase per second over the time between two readings. Nothing runs between
//! readings, so counting costs what it did without.
//!
//! ```text
//!   readings      a ------ b --- c - d ------------------ e
//!   rate at d     since b: c is too recent
//!   rate at e     since d
//! ```

use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::Instant;

/// A rate is over at least this time, unless the process is younger.
pub const RATE_INTERVAL_MIN: Duration = Duration::from_secs(10);

/// A count with its name.
pub(crate) type Count = (String, u64);

/// The last two readings that are far enough apart.
#[derive(Debug)]
pub(crate) struct Rates {
    older: Reading,
    newer: Reading,
}

#[derive(Clone, Debug)]
struct Reading {
    at: Instant,
    counts: BTreeMap<String, u64>,
}

impl Rates {
    /// Rates since `started`, when all counts were 0.
    pub(crate) fn new(started: Instant) -> Rates {
        let start = Reading { at: started, counts: BTreeMap::new() };
        Rates { older: start.clone(), newer: start }
    }

    /// Reads `counts`. Returns the increase of each, per second.
    pub(crate) fn read(&mut self, now: Instant, counts: &[Count]) -> Vec<f64> {
        if now.duration_since(self.newer.at) >= RATE_INTERVAL_MIN {
            let newer = Reading { at: now, counts: counts.iter().cloned().collect() };
            self.older = std::mem::replace(&mut self.newer, newer);
        }
        let seconds = now.duration_since(self.older.at).as_secs_f64().max(1.0);
        let increase = |(name, count): &Count| count.saturating_sub(self.older.counts.get(name).copied().unwrap_or(0));
        counts.iter().map(|count| increase(count) as f64 / seconds).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_since_a_reading_that_is_old_enough() {
        let started = Instant::now();
        let mut rates = Rates::new(started);
        let mut read = |after_s: u64, count: u64| {
            rates.read(started + Duration::from_secs(after_s), &[("requests".to_owned(), count)])[0]
        };
        assert_eq!(read(0, 3), 3.0, "less than a second counts as one");
        assert_eq!(read(5, 10), 2.0, "since the start");
        assert_eq!(read(20, 40), 2.0);
        assert_eq!(read(25, 140), 5.6, "since the start: the reading of a moment ago is too recent");
        assert_eq!(read(40, 240), 10.0, "since the reading at 20");
        assert_eq!(read(100, 240), 0.0, "since the reading at 40");
        assert_eq!(read(160, 200), 0.0, "sums may fall for a moment");
    }
}
