//! The target of the gate: how far the log was read when keys were emitted.
//!
//! Serves the delete path, between [`super::assembler`], which fills it, and [`super::gate`], which empties it.

use super::gtid::GtidSet;

/// The commits that readers must see before the emitted keys may be deleted. Each kind of server has its own fields;
/// those of the other kind stay empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VisibilityTarget {
    /// MariaDB: the end of the last transaction in the log.
    pub end: Option<LogEnd>,
    /// MySQL: the transactions.
    pub gtids: GtidSet,
    /// MariaDB: prepared transactions that the log shows as committed. The place of a snapshot in the log does not
    /// cover them: they are committed in the log first and in the tables later, outside of the order of snapshots.
    pub xids: Vec<String>,
}

impl VisibilityTarget {
    /// Adds `later` to the target.
    pub fn add(&mut self, later: VisibilityTarget) {
        self.end = later.end.or(self.end.take());
        self.gtids.add_all(&later.gtids);
        self.xids.extend(later.xids);
    }
}

/// A place in the log, by file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogEnd {
    /// The file's name; empty before the first event.
    pub file: String,
    /// An offset in it. Grows over 2^32 although events count modulo that.
    pub offset: u64,
    /// Whether the offset is inside of a transaction: then a snapshot must be past it, not just at it.
    pub is_inside: bool,
}

impl LogEnd {
    /// Advances to the end of an event, given modulo 2^32; 0 means unknown.
    pub fn advance(&mut self, end: u32) {
        if end == 0 {
            return;
        }
        let high = self.offset & !0xffff_ffff;
        let next = high | u64::from(end);
        // Offsets only grow within a file, so a smaller one has wrapped around.
        self.offset = if next < self.offset { next + (1 << 32) } else { next };
    }
}

#[cfg(test)]
mod tests {
    use super::LogEnd;

    #[test]
    fn offsets_grow_over_4_gib() {
        let mut end = LogEnd { offset: 0xffff_fff0, ..LogEnd::default() };
        end.advance(0);
        assert_eq!(end.offset, 0xffff_fff0, "0 is ignored");
        end.advance(0x10);
        assert_eq!(end.offset, 0x1_0000_0010);
        end.advance(0x20);
        assert_eq!(end.offset, 0x1_0000_0020);
    }
}
