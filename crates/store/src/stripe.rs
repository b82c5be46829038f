//! One stripe: a share of the keys with its own share of the memory, behind its own lock, owing nothing to the others.
//!
//! ```text
//! hash of a key:  [ stripe | .. set of leases, of hold-offs .. | home in the index, tag ]
//!                      |
//!      stripe:  index --> log of records;  leases;  hold-offs;  flushes ahead;  counters
//! ```
//! The verbs are beside this file: `read.rs`, `write.rs`; who leaves when memory is short: `eviction.rs`. Here is what
//! they share: finding a record, placing one, dropping one.
//!
//! Memory is counted in full: pages with what the allocator adds to them, the index, the tables. The sum never
//! exceeds the stripe's share, but for the old half of an index while it is doubled.

use crate::flush::FlushSchedule;
use crate::hold_off::HoldOffTable;
use crate::index::Index;
use crate::lease::{LeaseTable, TokenSource};
use crate::log::{Handle, Log};
use crate::record::{self, Header, State, UNIT_BYTES};
use crate::{Expiry, HashedKey, Now, Options, Statistics};
use lookaside_protocol::Cas;

/// Of a stripe's memory, one part in this many holds leases: about one per 1.5 KiB.
const LEASE_SHARE: usize = 64;
/// Of a stripe's memory, one part in this many holds hold-offs: about one per 2 KiB.
const HOLD_OFF_SHARE: usize = 128;

/// No memory could be freed.
pub(crate) struct NoRoom;

/// A record that was looked up.
#[derive(Clone, Copy)]
pub(crate) struct Found {
    pub position: usize,
    pub handle: Handle,
    pub header: Header,
}

impl Found {
    /// Whether a get may see it.
    pub fn is_live(&self) -> bool {
        matches!(self.header.state, State::Live { .. })
    }
}

/// What a record is made of, beside its key.
pub(crate) struct Content<'a> {
    pub flags: u32,
    pub expiry: Expiry,
    pub state: State,
    pub value: &'a [u8],
}

/// One stripe of a store.
pub(crate) struct Stripe {
    pub(crate) index: Index,
    pub(crate) log: Log,
    pub(crate) leases: LeaseTable,
    pub(crate) hold_offs: HoldOffTable,
    pub(crate) flushes: FlushSchedule,
    pub(crate) counters: Statistics,
    pub(crate) bytes_max: usize,
    pub(crate) item_bytes_max: usize,
    pub(crate) stale_ms: u64,
    cas_last: u64,
    cas_step: u64,
}

impl Stripe {
    /// The stripe number `lane` of `lanes`.
    pub fn new(options: &Options, lane: usize, lanes: usize) -> Stripe {
        let bytes_max = options.memory_bytes_max / lanes;
        let tokens = TokenSource::new(options.seed, lane, lanes);
        let interval_outlasts_token = options.lease_interval_outlasts_delete;
        let lease_bytes = bytes_max / LEASE_SHARE;
        Stripe {
            index: Index::new(),
            log: Log::new(bytes_max),
            leases: LeaseTable::new(lease_bytes, tokens, options.lease_interval_ms, interval_outlasts_token),
            hold_offs: HoldOffTable::new(bytes_max / HOLD_OFF_SHARE),
            flushes: FlushSchedule::default(),
            counters: Statistics::default(),
            bytes_max,
            item_bytes_max: options.item_bytes_max,
            stale_ms: options.stale_ms.into(),
            cas_last: lane as u64 + 1,
            cas_step: lanes as u64,
        }
    }

    /// All that the stripe takes.
    pub fn memory_bytes(&self) -> usize {
        let tables = self.index.bytes() + self.leases.bytes() + self.hold_offs.bytes();
        size_of::<Stripe>() + tables + self.log.bytes()
    }

    /// A copy of the counters, with the gauges filled in.
    pub fn statistics(&self) -> Statistics {
        Statistics {
            items: self.index.items() as u64,
            memory_bytes: self.memory_bytes() as u64,
            leases_forgotten: self.leases.forgotten,
            hold_offs_merged: self.hold_offs.merged,
            ..self.counters
        }
    }

    /// Carries out a flush that is due: every verb begins with it. Hold-offs stay: what they keep out is older still.
    pub fn flush_if_due(&mut self, now: Now) {
        if self.flushes.take_due(now) {
            self.index = Index::new();
            self.log = Log::new(self.bytes_max);
            self.leases.clear();
        }
    }

    /// The record of `key`, live or stale. One whose time has come is dropped.
    pub fn find(&mut self, key: HashedKey<'_>, now: Now) -> Option<Found> {
        let (position, handle) = self.index.find(key.tag(), |handle| self.log.key(handle) == key.key())?;
        let found = Found { position, handle, header: self.log.header(handle) };
        if found.header.is_past(now) {
            self.drop_record(found);
            self.counters.expirations += 1;
            return None;
        }
        Some(found)
    }

    /// Asks the processor for the record that `key` probably has: the tag is trusted, the key not compared.
    pub fn prefetch_record(&self, key: HashedKey<'_>) {
        if let Some((_, handle)) = self.index.find(key.tag(), |_| true) {
            self.log.prefetch(handle);
        }
    }

    /// The live record of `key`.
    pub fn find_live(&mut self, key: HashedKey<'_>, now: Now) -> Option<Found> {
        self.find(key, now).filter(Found::is_live)
    }

    /// Takes a record out.
    pub fn drop_record(&mut self, found: Found) {
        self.index.remove(found.position);
        self.log.bury(found.handle);
    }

    /// Puts `content` under `key`, in place of whatever was there.
    pub fn place(&mut self, key: HashedKey<'_>, content: &Content<'_>, now: Now) -> Result<Cas, NoRoom> {
        let bytes = record::record_bytes(key.key().len(), content.value.len());
        let mut header = self.header_for(key, content);
        if let Some(found) = self.find(key, now) {
            if let Some(spare_units) = spare_units_if_fitting(found.header.record_bytes(), bytes) {
                header.spare_units = spare_units;
                header.referenced = true;
                self.log.write(found.handle, &header, key.key(), content.value);
                return Ok(Cas(header.cas));
            }
            self.drop_record(found);
        }
        self.make_index_room(now)?;
        let handle = self.allocate(key.key().len(), bytes, now)?;
        self.log.write(handle, &header, key.key(), content.value);
        self.index.insert(key.tag(), handle);
        Ok(Cas(header.cas))
    }

    /// The next CAS unique. Lanes never share one, and each only grows.
    pub fn next_cas(&mut self) -> u64 {
        self.cas_last += self.cas_step;
        self.cas_last
    }

    fn header_for(&mut self, key: HashedKey<'_>, content: &Content<'_>) -> Header {
        Header {
            cas: self.next_cas(),
            expiry: content.expiry,
            flags: content.flags,
            value_bytes: content.value.len() as u32,
            key_bytes: key.key().len() as u8,
            spare_units: 0,
            state: content.state,
            referenced: false,
            fetched: false,
        }
    }
}

/// The spare room that is left when `bytes_new` are written over a record of `bytes_old`; `None` when they do not fit
/// or would waste more than half of it.
fn spare_units_if_fitting(bytes_old: usize, bytes_new: usize) -> Option<u16> {
    let spare = bytes_old.checked_sub(bytes_new).filter(|&spare| spare <= bytes_new)?;
    u16::try_from(spare / UNIT_BYTES).ok()
}
