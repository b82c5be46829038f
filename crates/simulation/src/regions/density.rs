//! How dense a run is: some seconds full of reads, writes and faults; or an hour and more with few of them, in which
//! deletes grow as old as the paper's monitor asks about (§7.3).

use std::{ops::Range, time::Duration};

/// How long applications run and faults are injected in a dense run, in simulated time.
const LOAD_DURATION: Duration = Duration::from_secs(8);
/// Few keys, so that the writes of users in all regions collide.
const KEYS: u64 = 6;
/// Keys of a thin run that are used for a minute, about as many as are written in it, and then never again: a later
/// delete would remove an old value that an earlier one has missed.
const KEYS_OF_MINUTE: u64 = 20;

/// How dense a run is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Density {
    Dense,
    /// For that long.
    Thin(Duration),
}

impl Density {
    /// How long applications run and faults are injected.
    pub(super) fn load_duration(self) -> Duration {
        match self {
            Density::Dense => LOAD_DURATION,
            Density::Thin(load) => load,
        }
    }

    /// The number of a key that is used `elapsed` after the beginning.
    pub(super) fn key(self, elapsed: Duration, rng: &mut fastrand::Rng) -> u64 {
        match self {
            Density::Dense => rng.u64(0..KEYS),
            Density::Thin(_) => elapsed.as_secs() / 60 * KEYS_OF_MINUTE + rng.u64(0..KEYS_OF_MINUTE),
        }
    }

    /// The longest time between two writes of a user.
    pub(super) fn write_interval_max(self) -> Duration {
        match self {
            Density::Dense => Duration::from_millis(150),
            Density::Thin(_) => Duration::from_secs(48),
        }
    }

    /// The longest time between two reads of a reader.
    pub(super) fn read_interval_max(self) -> Duration {
        match self {
            Density::Dense => Duration::from_millis(20),
            Density::Thin(_) => Duration::from_secs(2),
        }
    }

    /// The time between two faults of one kind, in milliseconds.
    pub(super) fn fault_interval_ms(self) -> Range<u64> {
        match self {
            Density::Dense => 300..3_000,
            Density::Thin(_) => 5_000..60_000,
        }
    }

    /// The longest time for which replication to a region stands still, in milliseconds.
    pub(super) fn replication_stop_ms_max(self) -> u64 {
        match self {
            Density::Dense => 3_000,
            Density::Thin(_) => 30_000,
        }
    }

    /// When a promotion begins, in milliseconds.
    pub(super) fn promotion_at_ms(self) -> Range<u64> {
        let load_ms = self.load_duration().as_millis() as u64;
        load_ms / 4..load_ms * 9 / 16
    }

    /// One delete in this many is sampled.
    pub(super) fn sample(self) -> u32 {
        match self {
            Density::Dense => 3,
            Density::Thin(_) => 1,
        }
    }

    /// The ages at which clusters are asked about a delete, in seconds.
    pub(super) fn ages_s(self) -> &'static [u32] {
        match self {
            Density::Dense => &[1, 3],
            Density::Thin(_) => &[1, 10, 60, 600, 3_600],
        }
    }
}
