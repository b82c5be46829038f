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
    /// The bytes of the events since then whose end is not known.
    pub bytes_beyond: u64,
    /// Whether the offset is inside of a transaction: then a snapshot must be past it, not just at it.
    pub is_inside: bool,
}

impl LogEnd {
    /// Advances behind an event of `bytes`, to its end, which is given modulo 2^32; 0 means unknown.
    ///
    /// MariaDB from 11.4 on does not say where the events of a transaction end, but for the last one, which may be over
    /// 4 GiB behind the first. So the end is the one nearest to where the events' lengths lead.
    pub fn advance(&mut self, end: u32, bytes: u32) {
        const WRAP: u64 = 1 << 32;
        if end == 0 {
            self.bytes_beyond += u64::from(bytes);
            return;
        }
        let estimate = self.offset + self.bytes_beyond;
        let near = estimate / WRAP * WRAP + u64::from(end);
        let candidates = [near.checked_sub(WRAP), Some(near), Some(near + WRAP)].into_iter().flatten();
        // Offsets only grow within a file.
        let nearest = candidates.filter(|end| *end >= self.offset).min_by_key(|end| end.abs_diff(estimate));
        self.offset = nearest.unwrap_or(near);
        self.bytes_beyond = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::LogEnd;

    #[test]
    fn offsets_grow_over_4_gib() {
        let mut end = LogEnd { offset: 0xffff_fff0, ..LogEnd::default() };
        end.advance(0, 0x10);
        assert_eq!(end.offset, 0xffff_fff0, "an end that is not known");
        end.advance(0x10, 0x10);
        assert_eq!(end.offset, 0x1_0000_0010);
        end.advance(0x20, 0x10);
        assert_eq!(end.offset, 0x1_0000_0020);
        end.advance(0x20, 0x10);
        assert_eq!(end.offset, 0x1_0000_0020, "not before it");
    }

    /// Of a transaction of MariaDB 11.4 only the first and the last event have an end: the offset stayed 4 GiB behind
    /// for each 4 GiB of it, so the gate was open for the rest of the file.
    #[test]
    fn a_transaction_over_4_gib_whose_events_have_no_end_is_passed() {
        const EVENT_BYTES: u32 = 0x4000_0000;
        for events in 0..40_u64 {
            // Some are not counted, such as those of an unknown kind.
            for uncounted in [0, 0x2000] {
                let mut end = LogEnd { offset: 0x5000, ..LogEnd::default() };
                (0..events).for_each(|_| end.advance(0, EVENT_BYTES));
                let expected = 0x5000 + events * u64::from(EVENT_BYTES) + uncounted + 0x20;
                end.advance(expected as u32, 0x20);
                assert_eq!(end.offset, expected, "{events} events");
                end.advance(expected as u32 + 0x10, 0x10);
                assert_eq!(end.offset, expected + 0x10);
            }
        }
    }
}
