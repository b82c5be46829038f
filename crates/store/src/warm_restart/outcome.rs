//! How a store in a named region starts and ends, with texts for the log.

use crate::Now;

/// The contents with which a store in a named region starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Start {
    /// The items that an earlier process saved.
    Warm {
        /// The number of items.
        items: u64,
        /// When they were saved, by that process's clock. The next one's must not be behind it.
        saved_at: Now,
    },
    /// No items.
    Empty(ColdStartReason),
}

/// Why a store in a named region starts empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ColdStartReason {
    /// The region did not exist.
    New,
    /// Its process was killed, or crashed.
    NotShutDownCleanly,
    /// It was made for another amount of memory (`-m`).
    OtherMemory {
        /// The memory that it was made for.
        was_bytes: u64,
        /// The memory of the options.
        now_bytes: u64,
    },
    /// It was made by a build with another format.
    OtherFormat {
        /// Its format.
        was: u64,
        /// This build's.
        now: u64,
    },
    /// It was made with other options for slab classes, or by a build with another layout.
    OtherLayout,
    /// A checksum is wrong.
    Damaged,
    /// It was saved in the future: the clock was set back.
    ClockSetBack {
        /// How far in the future, in milliseconds.
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
            ColdStartReason::OtherLayout => f.write_str("it was made with other slab options or by another build"),
            ColdStartReason::Damaged => f.write_str("it is damaged"),
            ColdStartReason::ClockSetBack { ahead_ms } => write!(f, "the clock was set back, by {ahead_ms} ms or more"),
        }
    }
}

/// The outcome of a save.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Saved {
    /// The number of items.
    pub items: u64,
    /// The size of the state that was written beside them, in bytes.
    pub state_bytes: u64,
}

/// A region that was removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemovedRegion {
    /// The size of the segment.
    pub region_bytes: u64,
    /// The items that were saved in it; `None` if it was not shut down cleanly.
    pub items: Option<u64>,
}
