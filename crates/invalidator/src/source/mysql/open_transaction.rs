//! Part of the [`assembler`](super::assembler): the open transaction.

use super::{
    event,
    gtid::{GtidList, GtidPosition, GtidSet, Origin},
    outbox::OutboxTable,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

/// A transaction whose end has not been read yet.
pub struct OpenTransaction {
    pub gtid: Gtid,
    /// Whether it is one event, without an end event.
    pub is_standalone: bool,
    /// Whether a BEGIN, explicit or implied, was read: then only an end event ends it.
    pub has_begin: bool,
    /// When it was committed, in microseconds since 1970; `None` if the log has only the second.
    pub committed_us: Option<u64>,
    /// Its keys so far, each once.
    pub keys: Vec<Vec<u8>>,
    /// The keys that were added since the last part was emitted.
    pub seen: BTreeSet<Vec<u8>>,
    /// The outbox tables that its rows refer to, by table id.
    pub outbox: BTreeMap<u64, OutboxTable>,
    /// Whether it is an XA transaction. Its keys are not emitted in parts before its end.
    pub is_xa: bool,
    /// Whether it named more keys than can be held: they are not known any more.
    pub is_given_up: bool,
}

/// The GTID of a transaction.
pub enum Gtid {
    Mariadb {
        domain: u32,
        server: u32,
        sequence: u64,
    },
    Mysql {
        origin: Origin,
        number: u64,
    },
    /// The log has no GTID event for it.
    Missing,
}

impl OpenTransaction {
    pub fn new(gtid: Gtid, committed_us: Option<u64>) -> Self {
        OpenTransaction {
            gtid,
            is_standalone: false,
            has_begin: false,
            committed_us,
            keys: Vec::new(),
            seen: BTreeSet::new(),
            outbox: BTreeMap::new(),
            is_xa: false,
            is_given_up: false,
        }
    }

    /// Forgets the keys.
    pub fn give_up(&mut self) {
        self.is_given_up = true;
        self.keys = Vec::new();
        self.seen = BTreeSet::new();
    }

    /// A transaction of MariaDB, with the flags of its GTID event.
    pub fn mariadb(domain: u32, server: u32, sequence: u64, flags: u8) -> Self {
        let is_standalone = flags & event::STANDALONE != 0;
        OpenTransaction {
            is_standalone,
            has_begin: !is_standalone,
            is_xa: flags & event::PREPARED_XA != 0,
            ..OpenTransaction::new(Gtid::Mariadb { domain, server, sequence }, None)
        }
    }

    /// When it was committed. If the log has no time in microseconds, it has only the second `time_s`: the result is
    /// then the time at which the event was received, but no later than the end of that second. A latency measured from
    /// it may be too short by up to a second if the log is read late; rounding never makes it too long.
    pub fn committed_at(&self, time_s: u32, received_at: SystemTime) -> SystemTime {
        match self.committed_us {
            Some(us) => UNIX_EPOCH + Duration::from_micros(us),
            None => received_at.min(UNIX_EPOCH + Duration::from_micros(u64::from(time_s) * 1_000_000 + 999_999)),
        }
    }

    /// Whether it names keys but the log has no GTID for it.
    pub fn has_no_gtid(&self) -> bool {
        matches!(self.gtid, Gtid::Missing) && !self.keys.is_empty()
    }
}

impl Gtid {
    /// Adds the transaction to what MySQL readers must see.
    pub fn add_to_target(&self, target: &mut GtidSet) {
        if let Gtid::Mysql { origin, number } = self {
            target.add(origin.clone(), *number);
        }
    }

    /// Adds the transaction to a position.
    pub fn add_to(&self, position: &mut GtidPosition) {
        match (self, position) {
            (&Gtid::Mariadb { domain, server, sequence }, GtidPosition::Mariadb(list)) => {
                list.add(domain, server, sequence);
            }
            (Gtid::Mysql { origin, number }, GtidPosition::Mysql(set)) => set.add(origin.clone(), *number),
            // A replica of the other kind of server does not keep its GTIDs.
            _ => {}
        }
    }

    /// Whether the transaction comes before `end`, as far as that is not `read` yet. False if its GTID is not known.
    pub fn is_between(&self, read: &GtidPosition, end: &GtidPosition) -> bool {
        !read.covers(end) && self.is_in(end)
    }

    fn is_in(&self, position: &GtidPosition) -> bool {
        let mut own = match self {
            Gtid::Mariadb { .. } => GtidPosition::Mariadb(GtidList::default()),
            Gtid::Mysql { .. } => GtidPosition::Mysql(GtidSet::default()),
            Gtid::Missing => return false,
        };
        self.add_to(&mut own);
        position.covers(&own)
    }
}
