//! The statistics of the spool. All are 0 if the source needs none.

use crate::Position;
use lookaside_sync::{Mutex, SharedCounter};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The statistics of the spool.
#[derive(Debug, Default)]
pub struct SpoolStatistics {
    /// Commits that were written.
    pub commits: SharedCounter,
    /// How often the spool could not be written or synced.
    pub failures: SharedCounter,
    /// How often the log no longer reached back to the end of the spool.
    pub gaps: SharedCounter,
    /// Segments that were removed because the spool was full, although clusters needed them.
    pub discarded_segments: SharedCounter,
    /// Keys of commits that no server accepts, found while the log was read into the spool.
    pub keys_rejected: SharedCounter,
    /// Messages that were ignored because they are not part of a transaction.
    pub messages_untransactional: SharedCounter,
    /// Messages and rows that were ignored because they are too long to be read.
    pub messages_oversized: SharedCounter,
    /// Kept segments that were removed because the disk was full.
    pub kept_discarded: SharedCounter,
    kept_segments: AtomicU64,
    kept_bytes: AtomicU64,
    segments: AtomicU64,
    bytes: AtomicU64,
    positions: Mutex<SpoolPositions>,
}

/// What was read, and what of it is safe on disk.
#[derive(Clone, Debug, Default)]
struct SpoolPositions {
    written: Option<Position>,
    synced: Option<Position>,
}

impl SpoolStatistics {
    /// Sets what the spool holds.
    pub(crate) fn set(&self, segments: u64, bytes: u64, written: &Position, synced: &Position) {
        self.segments.store(segments, Relaxed);
        self.bytes.store(bytes, Relaxed);
        *self.positions.lock() = SpoolPositions { written: Some(written.clone()), synced: Some(synced.clone()) };
    }

    /// Sets what is kept for a replay.
    pub(crate) fn set_kept(&self, segments: u64, bytes: u64) {
        self.kept_segments.store(segments, Relaxed);
        self.kept_bytes.store(bytes, Relaxed);
    }

    /// The bytes that are kept for a replay.
    pub(crate) fn kept_bytes(&self) -> u64 {
        self.kept_bytes.load(Relaxed)
    }

    /// How many segments the spool has, and their bytes.
    pub(super) fn size(&self) -> (u64, u64) {
        (self.segments.load(Relaxed), self.bytes.load(Relaxed))
    }

    /// Every statistic by name.
    pub(super) fn report(&self) -> Vec<(&'static str, String)> {
        let positions = self.positions.lock().clone();
        let shown = |position: Option<Position>| position.map_or_else(|| "-".into(), |position| position.0);
        vec![
            ("spool_segments", self.segments.load(Relaxed).to_string()),
            ("spool_bytes", self.bytes.load(Relaxed).to_string()),
            ("spool_commits", self.commits.value().to_string()),
            ("spool_failures", self.failures.value().to_string()),
            ("spool_gaps", self.gaps.value().to_string()),
            ("spool_discarded_segments", self.discarded_segments.value().to_string()),
            ("spool_kept_segments", self.kept_segments.load(Relaxed).to_string()),
            ("spool_kept_bytes", self.kept_bytes().to_string()),
            ("spool_kept_discarded", self.kept_discarded.value().to_string()),
            ("spool_keys_rejected", self.keys_rejected.value().to_string()),
            ("spool_messages_untransactional", self.messages_untransactional.value().to_string()),
            ("spool_messages_oversized", self.messages_oversized.value().to_string()),
            ("spool_position", shown(positions.written)),
            ("spool_synced_position", shown(positions.synced)),
        ]
    }
}
