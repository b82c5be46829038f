//! What a store in a named region begins and ends with, in words that a log can carry.

use crate::Now;

/// What a store in a named region begins with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Start {
    /// With what an earlier process has saved.
    Warm {
        /// How many items there are.
        items: u64,
        /// When they were saved, by the clock of the process that did. The next one's must not be behind it.
        saved_at: Now,
    },
    /// With nothing.
    Empty(ColdStartReason),
}

/// Why a store in a named region begins with nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ColdStartReason {
    /// There was no region.
    New,
    /// Its process was killed, or has crashed.
    NotShutDownCleanly,
    /// It was made for another amount of memory (`-m`).
    OtherMemory {
        /// For how much it was made.
        was_bytes: u64,
        /// How much is asked for.
        now_bytes: u64,
    },
    /// A build has made it that writes another format.
    OtherFormat {
        /// Its format.
        was: u64,
        /// This build's.
        now: u64,
    },
    /// Other options for slab classes, or a build that lays memory out in another way.
    OtherLayout,
    /// What it says about itself is not what was written.
    Damaged,
    /// It was saved at a moment that has not come yet: the clock has been set back.
    ClockSetBack {
        /// How far ahead that moment is, in milliseconds.
        ahead_ms: u64,
    },
}

impl std::fmt::Display for ColdStartReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match *self {
            ColdStartReason::New => f.write_str("it is new"),
            ColdStartReason::NotShutDownCleanly => f.write_str("it was not shut down cleanly"),
            ColdStartReason::OtherMemory { was_bytes, now_bytes } => {
                let mebibytes = |bytes: u64| bytes as f64 / f64::from(1 << 20);
                write!(f, "it was made with -m {}, now -m {}", mebibytes(was_bytes), mebibytes(now_bytes))
            }
            ColdStartReason::OtherFormat { was, now } => {
                write!(f, "it has format {was}, this program has format {now}")
            }
            ColdStartReason::OtherLayout => f.write_str("it was laid out by other slab options or by another build"),
            ColdStartReason::Damaged => f.write_str("it is damaged"),
            ColdStartReason::ClockSetBack { ahead_ms } => write!(f, "the clock was set back, by {ahead_ms} ms or more"),
        }
    }
}

/// What was saved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Saved {
    /// How many items.
    pub items: u64,
    /// What was written beside them, in bytes.
    pub state_bytes: u64,
}

/// What a region was that has been removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemovedRegion {
    /// The size of the segment.
    pub region_bytes: u64,
    /// The items that were saved in it; `None` if it was not shut down cleanly.
    pub items: Option<u64>,
}
