//! Commits whose deletes are not all acknowledged, in log order, and the safe position that follows from them.

use crate::{
    Position,
    source::packed_position::{PackedPosition, PositionPacker},
};
use std::{
    collections::{BTreeMap, btree_map::Entry},
    sync::Arc,
    time::SystemTime,
};

/// A commit whose deletes have all been acknowledged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AckedCommit {
    /// Its own position.
    pub position: Position,
    /// When it was committed, as the source reported it.
    pub committed_at: SystemTime,
}

/// The commits with pending deletes. Commits are numbered from 1 on, in log order.
#[derive(Debug)]
pub(super) struct PendingCommits {
    commits: BTreeMap<u64, PendingCommit>,
    newest: u64,
    merged: u64,
    /// All commits up to here have been admitted.
    admitted: Arc<PackedPosition>,
    packer: PositionPacker,
    /// All deletes up to here have been acknowledged.
    safe: Position,
}

/// As many of them wait as keys, so their positions are packed, and shared with the next one.
#[derive(Debug)]
struct PendingCommit {
    /// The admitted position when this commit was admitted.
    position_before: Arc<PackedPosition>,
    position: Arc<PackedPosition>,
    committed_at: SystemTime,
    /// How many pending keys are tracked for this commit.
    keys: usize,
    /// Whether another commit tracks one of its keys. Then the moment of its last acknowledgement is unknown.
    is_merged: bool,
}

impl PendingCommits {
    pub fn new(admitted: Position) -> PendingCommits {
        let mut packer = PositionPacker::default();
        let packed = Arc::new(packer.pack(&admitted));
        PendingCommits { commits: BTreeMap::new(), newest: 0, merged: 0, admitted: packed, packer, safe: admitted }
    }

    /// How many commits have pending deletes.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.commits.len()
    }

    /// The number of the newest commit.
    pub fn newest(&self) -> u64 {
        self.newest
    }

    /// How many commits were not tracked until their last acknowledgement.
    pub fn merged(&self) -> u64 {
        self.merged
    }

    /// Adds a commit that is newer than all others and names `keys` keys. Returns its number.
    pub fn insert(&mut self, position: &Position, committed_at: SystemTime, keys: usize) -> u64 {
        self.newest += 1;
        let position = Arc::new(self.packer.pack(position));
        let position_before = std::mem::replace(&mut self.admitted, position.clone());
        let commit = PendingCommit { position_before, position, committed_at, keys, is_merged: false };
        self.commits.insert(self.newest, commit);
        self.newest
    }

    /// Sets the position up to which commits have been admitted.
    pub fn advance(&mut self, position: Position) {
        self.admitted = Arc::new(self.packer.pack(&position));
        if self.commits.is_empty() {
            self.safe = position;
        }
    }

    /// Stops tracking a key for commit `number`: the key was acknowledged or, if `is_merged`, an older commit tracks
    /// it. Adds the commit to `acked` when it tracks no more keys.
    pub fn release_key(&mut self, number: u64, is_merged: bool, acked: &mut Vec<AckedCommit>) {
        let Entry::Occupied(mut entry) = self.commits.entry(number) else {
            unreachable!("a commit stays while it tracks a key");
        };
        let commit = entry.get_mut();
        commit.keys -= 1;
        commit.is_merged |= is_merged;
        if commit.keys == 0 {
            let commit = entry.remove();
            match commit.is_merged {
                true => self.merged += 1,
                false => {
                    acked.push(AckedCommit { position: commit.position.unpack(), committed_at: commit.committed_at })
                }
            }
            let oldest = self.commits.first_key_value().map(|(oldest, commit)| (*oldest, &commit.position_before));
            if oldest.is_none_or(|(oldest, _)| oldest > number) {
                self.safe = oldest.map_or(&self.admitted, |(_, before)| before).unpack();
            }
        }
    }

    /// When the oldest pending commit was committed; `None` if there is none.
    pub fn oldest_committed_at(&self) -> Option<SystemTime> {
        self.commits.first_key_value().map(|(_, oldest)| oldest.committed_at)
    }

    /// All deletes up to here have been acknowledged: the position before the oldest pending commit.
    pub fn safe_position(&self) -> &Position {
        &self.safe
    }
}
