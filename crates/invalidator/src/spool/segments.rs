//! The segments of a spool: where a cluster's reading begins, and which segments are no longer needed. Sans-I/O.
//!
//! A position does not tell apart the parts of a large transaction, which share the position before it. So whatever is
//! *at* a cluster's position is delivered to it again, and a segment is needed by a cluster whose position is the base
//! of the next one.

use super::{position::SpoolPosition, record::Base};
use crate::CommitLog;
use std::collections::{BTreeMap, VecDeque};

#[derive(Clone, Debug)]
pub(super) struct SpoolSegment {
    pub number: u64,
    pub base: Base,
    /// How many bytes can be read.
    pub bytes: u64,
}

/// The segments, the oldest first; at least one.
#[derive(Clone, Debug)]
pub(super) struct Segments {
    pub log_identity: String,
    pub list: VecDeque<SpoolSegment>,
    /// Everything up to here can be read.
    pub end: SpoolPosition,
}

/// What a reader finds at a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// This many bytes.
    Bytes(u64),
    /// The end of the segment, and the next one.
    Next(u64),
    /// The end of the spool.
    End,
    /// The segment was removed.
    Removed,
}

impl Segments {
    /// The segment where reading from `from` begins; `None` if something after `from` was removed.
    pub fn locate(&self, from: &SpoolPosition, log: &dyn CommitLog) -> Option<&SpoolSegment> {
        if from.epoch > self.end.epoch {
            return None;
        }
        let oldest = self.list.front()?;
        let from_origin = (oldest.base.is_origin && from.covers(&oldest.base.position, log)).then_some(oldest);
        self.list.iter().rev().find(|segment| segment.base.position.is_before(from, log)).or(from_origin)
    }

    pub fn look(&self, number: u64, at: u64) -> Place {
        let Some(index) = self.list.iter().position(|segment| segment.number == number) else { return Place::Removed };
        match (self.list[index].bytes.saturating_sub(at), self.list.get(index + 1)) {
            (0, None) => Place::End,
            (0, Some(next)) => Place::Next(next.number),
            (bytes, _) => Place::Bytes(bytes),
        }
    }

    /// The length of the newest segment.
    pub fn newest_bytes(&self) -> u64 {
        self.list.back().map_or(0, |newest| newest.bytes)
    }

    /// What every cluster has acknowledged, of those that have not lost their position; `None` if a cluster has not yet
    /// acted on the last loss.
    pub fn acknowledged(
        &self,
        held: &BTreeMap<String, Option<SpoolPosition>>,
        log: &dyn CommitLog,
    ) -> Option<SpoolPosition> {
        let begin = &self.list.front()?.base.position;
        // A cluster that needs what was removed has lost its position.
        let kept = held.values().map(|held| held.as_ref().filter(|held| held.covers(begin, log)).unwrap_or(begin));
        let oldest = kept.reduce(|oldest, held| if held.is_before(oldest, log) { held } else { oldest })?;
        (oldest.epoch == self.end.epoch).then(|| oldest.clone())
    }

    pub fn bytes(&self) -> u64 {
        self.list.iter().map(|segment| segment.bytes).sum()
    }

    /// Whether a cluster that holds `held` still needs the oldest segment. `None`: it needs all.
    pub fn needs_oldest(&self, held: Option<&SpoolPosition>, log: &dyn CommitLog) -> bool {
        let next = self.list.get(1).map(|next| &next.base.position);
        next.is_none_or(|next| held.is_none_or(|held| !next.is_before(held, log)))
    }
}
