//! What the gate must wait for: how far the log was read when keys were handed out.
//!
//! Serves the delete path, between [`super::assembler`], which fills it, and [`super::gate`], which empties it.

use super::gtid::GtidSet;

/// What readers must see before the keys that were handed out may be deleted. Each kind of server has its own way to
/// say it; the other one's stays empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Awaited {
    /// MariaDB: the end of the last transaction in the log.
    pub end: Option<LogEnd>,
    /// MySQL: the transactions.
    pub gtids: GtidSet,
    /// MariaDB: prepared transactions that the log shows committed. A snapshot's place in the log says nothing of
    /// them: they are committed in the log first and in the tables after, outside of the order that snapshots keep.
    pub xids: Vec<String>,
}

impl Awaited {
    /// Waits for `later` too.
    pub fn add(&mut self, later: Awaited) {
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
    /// Whether the offset is before the end of the transaction: it must be passed, not just reached.
    pub is_inside: bool,
}

impl LogEnd {
    /// Takes in the end of an event, which counts modulo 2^32; 0 says nothing.
    pub fn advance(&mut self, end: u32) {
        if end == 0 {
            return;
        }
        let high = self.offset & !0xffff_ffff;
        let next = high | u64::from(end);
        // Offsets only grow within a file: a smaller one has passed 2^32.
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
        assert_eq!(end.offset, 0xffff_fff0, "not said is not changed");
        end.advance(0x10);
        assert_eq!(end.offset, 0x1_0000_0010);
        end.advance(0x20);
        assert_eq!(end.offset, 0x1_0000_0020);
    }
}
