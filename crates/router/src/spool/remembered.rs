//! The deletes of a segment that a repeat need not append again. A delete that was stored and refused, because a peer
//! is away, is repeated by its sender every second; if each repeat were stored, a few thousand keys would fill a
//! backlog in minutes.
//!
//! A repeat is only skipped while its segment is not being replayed. So the server receives the stored delete after the
//! repeat has arrived, which is all that the repeat asks for. The whole deletes are compared, not their hashes: two
//! keys that are taken for one would lose a delete.

use super::record::Deletion;
use std::collections::BTreeSet;

/// What a server's remembered deletes may occupy. Beyond it repeats are appended.
pub(super) const REMEMBERED_BYTES_MAX: u64 = 8 << 20;
/// What a delete occupies beside its key, roughly: so the limit is one of 80,000 deletes, too.
const OVERHEAD_BYTES: u64 = 100;

#[derive(Clone, Debug, Default)]
pub(super) struct RememberedDeletes {
    deletes: BTreeSet<Deletion>,
    bytes: u64,
}

impl RememberedDeletes {
    pub(super) fn contains(&self, deletion: &Deletion) -> bool {
        self.deletes.contains(deletion)
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Adds as many as fit into `bytes_left`.
    pub(super) fn extend<'a>(&mut self, deletions: impl Iterator<Item = &'a Deletion>, bytes_left: u64) {
        let bytes_max = self.bytes + bytes_left;
        for deletion in deletions {
            let bytes = OVERHEAD_BYTES + deletion.key.len() as u64;
            if self.bytes + bytes > bytes_max {
                return;
            }
            if self.deletes.insert(deletion.clone()) {
                self.bytes += bytes;
            }
        }
    }
}
