//! One stripe: a share of the keys behind its own lock. Its items lie in the memory that all stripes share.
//!
//! ```text
//! hash of a key:  [ tag | .. set of leases, of hold-offs .. | bucket .. stripe ]
//!
//! stripe, under its lock:  leases;  hold-offs;  flushes ahead;  timers;  counters;  the right to change its buckets
//! memory, shared:          index buckets --> chunks in slab pages
//! ```
//! The verbs are beside this file: `read.rs`, `write.rs`. Here is what they share: finding an item, placing one,
//! dropping one. A stripe's lock is held for the whole of a verb; which further locks may be taken under it is said in
//! `memory.rs`.
//!
//! An item never changes once it can be found, but for its expiry, its usage and its becoming stale: whoever changes a
//! value writes another item and puts it in the old one's place.

pub(crate) mod flush;
pub(crate) mod hold_off;
pub(crate) mod lease;

use crate::memory::Memory;
use crate::memory::chunk::{
    self, CHAIN_BYTES, EXTENSION_BYTES, FLAGS_BYTES, HEADER_BYTES, Handle, Header, Parts, State, Usage,
};
use crate::memory::index::SlotAt;
use crate::memory::transient::Wheel;
use crate::meta_state::Marks;
use crate::shard::flush::FlushSchedule;
use crate::shard::hold_off::HoldOffTable;
use crate::shard::lease::{LeaseTable, TokenSource};
use crate::sync::{Mutex, MutexGuard, lock};
use crate::warm_restart::snapshot::{StateReader, StateWriter};
use crate::{Expiry, HashedKey, Now, Options, Statistics};
use lookaside_protocol::Cas;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Of the memory, one part in this many holds leases: about one per 6 KiB.
const LEASE_SHARE: usize = 256;
/// Of the memory, one part in this many holds hold-offs: about one per 9 KiB.
const HOLD_OFF_SHARE: usize = 512;

/// So often each stripe gets another bucket before an item leaves for want of a slot.
const GROWTHS_MAX: usize = 4;

/// No memory could be freed.
pub(crate) struct NoRoom;

/// An item that was looked up.
#[derive(Clone, Copy)]
pub(crate) struct Found {
    pub slot: SlotAt,
    pub handle: Handle,
    /// Where in the region it begins.
    pub at: usize,
    pub header: Header,
}

/// What an item is made of, beside its key.
pub(crate) struct Content<'a> {
    pub flags: u32,
    pub expiry: Expiry,
    /// `None`: a live value.
    pub stale_until_ms: Option<u64>,
    pub value: &'a [u8],
    /// Marks, and a CAS unique of somebody's choice.
    pub extension: Option<Extension>,
    /// How the item that it replaces was used, if that is to stay so.
    pub usage: Option<Usage>,
}

impl<'a> Content<'a> {
    /// A live value.
    pub fn live(flags: u32, expiry: Expiry, value: &'a [u8]) -> Content<'a> {
        Content { flags, expiry, stale_until_ms: None, value, extension: None, usage: None }
    }
}

/// What few items have.
#[derive(Clone, Copy)]
pub(crate) struct Extension {
    pub marks: Marks,
    /// `None`: the next that is due.
    pub cas: Option<Cas>,
}

/// What belongs to one stripe alone. A get touches the first cache line.
#[repr(C)]
pub(crate) struct Stripe {
    /// Nothing is to be done before: no flush, no turn of the wheel. In Unix milliseconds.
    pub due_ms: u64,
    pub lane: usize,
    items: usize,
    /// How many of them the count of all items knows.
    items_told: usize,
    pub leases: LeaseTable,
    pub hold_offs: HoldOffTable,
    pub flushes: FlushSchedule,
    pub wheel: Wheel,
    pub counters: Statistics,
    sequence: u32,
}

impl Stripe {
    /// The stripe number `lane` of `lanes`.
    pub fn new(options: &Options, lane: usize, lanes: usize) -> Stripe {
        let share_bytes = options.memory_bytes_max / lanes;
        let tokens = TokenSource::new(options.seed, lane, lanes);
        let interval_outlasts_token = options.lease_interval_outlasts_delete;
        let lease_bytes = share_bytes / LEASE_SHARE;
        Stripe {
            due_ms: 0,
            lane,
            items: 0,
            items_told: 0,
            leases: LeaseTable::new(lease_bytes, tokens, options.lease_interval_ms, interval_outlasts_token),
            hold_offs: HoldOffTable::new(share_bytes / HOLD_OFF_SHARE),
            flushes: FlushSchedule::default(),
            wheel: Wheel::default(),
            counters: Statistics::default(),
            sequence: 0,
        }
    }

    /// What the stripe takes beside its items.
    pub fn bytes(&self) -> usize {
        size_of::<Lane>() + self.leases.bytes() + self.hold_offs.bytes()
    }

    /// A copy of the counters, with the gauges filled in.
    pub fn statistics(&self) -> Statistics {
        Statistics {
            items: self.items as u64,
            leases_forgotten: self.leases.forgotten,
            hold_offs_merged: self.hold_offs.merged,
            ..self.counters
        }
    }

    /// The words that it is written down in, at most, when it has so many bytes of the memory as its share.
    pub fn state_words_max(share_bytes: usize) -> usize {
        /// Items and sequence; eight flushes; a wheel of 64 seconds; and the counts.
        const FIXED_WORDS: usize = 96;
        FIXED_WORDS + HoldOffTable::state_words_max(share_bytes / HOLD_OFF_SHARE)
    }

    /// Writes down all but leases and counters, which end with the process.
    pub fn save(&self, now: Now, state: &mut StateWriter) {
        state.count(self.items);
        state.word(self.sequence);
        self.flushes.save(state);
        self.hold_offs.save(now, state);
        self.wheel.save(state);
    }

    /// Takes up what was written down.
    pub fn restore(&mut self, state: &mut StateReader<'_>) -> Option<()> {
        self.items = state.word()? as usize;
        self.sequence = state.word()?;
        self.flushes.restore(state)?;
        self.hold_offs.restore(state)?;
        self.wheel.restore(state)
    }

    /// How many items the stripe has.
    pub fn items(&self) -> usize {
        self.items
    }

    /// The stripe has an item more.
    pub fn item_came(&mut self, all: &AtomicUsize) {
        self.items += 1;
        self.tell(all);
    }

    /// The stripe has an item less.
    pub fn item_left(&mut self, all: &AtomicUsize) {
        self.items -= 1;
        self.tell(all);
    }

    /// Brings the count of all items up to date, but not for every item: all stripes share its cache line.
    fn tell(&mut self, all: &AtomicUsize) {
        /// One part in so many may be untold.
        const TOLD_SHARE: usize = 8;
        if self.items.abs_diff(self.items_told) * TOLD_SHARE > self.items {
            all.fetch_add(self.items.wrapping_sub(self.items_told), Relaxed);
            self.items_told = self.items;
        }
    }

    /// Never the same twice before 2^32 stores have come to the stripe.
    fn next_sequence(&mut self) -> u32 {
        self.sequence = self.sequence.wrapping_add(1);
        self.sequence
    }
}

/// A stripe behind its lock, on cache lines of its own: the lock and what a get looks at share the first.
#[repr(align(64))]
pub(crate) struct Lane(pub Mutex<Stripe>);

/// A stripe under its lock, and the memory.
pub(crate) struct Locked<'s> {
    pub memory: &'s Memory,
    pub stripe: MutexGuard<'s, Stripe>,
}

impl<'s> Locked<'s> {
    /// Waits for the stripe; then carries out a flush and timers that are due. Every verb begins with it.
    #[inline]
    pub fn new(memory: &'s Memory, lane: usize, now: Now) -> Locked<'s> {
        let mut stripe = lock(&memory.stripes[lane].0);
        if now.unix_ms >= stripe.due_ms {
            stripe = Locked::with_all_done(memory, stripe, now);
        }
        Locked { memory, stripe }
    }

    /// The guard comes and goes by value: one whose address is taken is copied through memory by every verb, which waits for
    /// it for longer than for the lock.
    #[cold]
    #[inline(never)]
    fn with_all_done(memory: &'s Memory, stripe: MutexGuard<'s, Stripe>, now: Now) -> MutexGuard<'s, Stripe> {
        let mut locked = Locked { memory, stripe };
        locked.do_what_is_due(now);
        locked.stripe
    }

    fn do_what_is_due(&mut self, now: Now) {
        if self.stripe.flushes.take_due(now) {
            self.flush();
        }
        let is_done = self.turn_wheel(now);
        let next_second_ms = (now.unix_ms / 1000 + 1) * 1000;
        let next_flush_ms = self.stripe.flushes.next_ms();
        self.stripe.due_ms = if is_done { next_flush_ms.min(next_second_ms) } else { now.unix_ms };
    }

    /// The item of `key`, live or stale. One whose time has come is dropped.
    #[inline(always)]
    pub fn find(&mut self, key: HashedKey<'_>, now: Now) -> Option<Found> {
        let found = self.look_up(key)?;
        if found.header.is_past(now) {
            self.note_leaving(&found, now);
            self.drop_item(found);
            self.stripe.counters.expirations += 1;
            return None;
        }
        Some(found)
    }

    /// The live item of `key`, for verbs that know no marks.
    #[inline(always)]
    pub fn find_live(&mut self, key: HashedKey<'_>, now: Now) -> Option<Found> {
        self.find(key, now).filter(|found| self.is_live(found))
    }

    /// The item of `key` that was not deleted, whatever its marks.
    pub fn find_marked(&mut self, key: HashedKey<'_>, now: Now) -> Option<Found> {
        self.find(key, now).filter(|found| !found.header.is_stale())
    }

    /// Whether a get may see it.
    #[inline(always)]
    pub fn is_live(&self, found: &Found) -> bool {
        !found.header.is_stale() && !self.memory.marks(found.at, &found.header).hide()
    }

    /// The item of `key`, whatever its time.
    #[inline(always)]
    pub fn look_up(&self, key: HashedKey<'_>) -> Option<Found> {
        let (memory, index, region) = (self.memory, &self.memory.index, &self.memory.region);
        if let Some((slot, handle)) = index.at_guess(region, key) {
            let at = memory.at(handle);
            if let Some(header) = memory.header_if(at, key.key()) {
                return Some(Found { slot, handle, at, header });
            }
        }
        let is_it = |handle| {
            let at = memory.at(handle);
            Some((handle, at, memory.header_if(at, key.key())?))
        };
        let (slot, (handle, at, header)) = index.find(region, key, is_it)?;
        Some(Found { slot, handle, at, header })
    }

    /// The item that a slot of this stripe names.
    pub fn found_in(&self, slot: SlotAt, handle: Handle) -> Found {
        Found { slot, handle, at: self.memory.at(handle), header: self.memory.header(handle) }
    }

    fn note_leaving(&self, found: &Found, now: Now) {
        self.memory.class_counters[self.memory.class_of(found.handle)].note_leaving(&found.header, now);
    }

    /// Takes an item out.
    pub fn drop_item(&mut self, found: Found) {
        self.memory.index.clear(&self.memory.region, found.slot);
        self.stripe.item_left(&self.memory.items);
        self.free_item(found);
    }

    fn free_item(&mut self, found: Found) {
        let mut spoils = Vec::new();
        self.memory.take_apart(found.handle, &found.header, &mut spoils);
        self.memory.free(found.handle);
        self.memory.free_all(&spoils);
    }

    /// Puts `content` under `key`, in place of whatever was there. Without room, the old item stays.
    pub fn place(&mut self, key: HashedKey<'_>, content: &Content<'_>, now: Now) -> Result<Cas, NoRoom> {
        let (handle, header) = self.build(key, content, now)?;
        let cas = self.cas(self.memory.at(handle), &header);
        // Looked up only now: the old item may have been evicted to make room for the new one.
        match self.look_up(key) {
            Some(old) => {
                let clock = (old.header.usage.clock() + 1).min(chunk::CLOCK_MAX);
                let usage = match content.usage {
                    Some(usage) => usage,
                    None => header.usage.with_clock(if content.stale_until_ms.is_none() { clock } else { 0 }),
                };
                self.memory.publish_followers(handle, &header, self.stripe.lane, now);
                self.memory.set_header(handle, &Header { usage, ..header });
                self.memory.index.put(&self.memory.region, old.slot, key, handle);
                self.free_item(old);
            }
            None => {
                let slot = self.make_vacancy(key, now);
                self.memory.publish_followers(handle, &header, self.stripe.lane, now);
                self.memory.set_header(handle, &header);
                self.memory.index.put(&self.memory.region, slot, key, handle);
                self.stripe.item_came(&self.memory.items);
            }
        }
        self.memory.begin_timer(&mut self.stripe, handle, now);
        // Last, since these may evict anybody.
        self.memory.supply_timers(&mut self.stripe, now);
        self.memory.grow_index(&mut self.stripe, now);
        Ok(cas)
    }

    /// The CAS unique of a live item. It grows with each store, and stripes never share one; unless a client chose it.
    pub fn cas(&self, at: usize, header: &Header) -> Cas {
        match self.memory.given_cas(at, header) {
            Some(given) => Cas(given),
            None => self.own_cas(header),
        }
    }

    fn own_cas(&self, header: &Header) -> Cas {
        Cas(u64::from(header.sequence) << 8 | self.stripe.lane as u64)
    }

    /// Makes a live item stale.
    pub fn make_stale(&mut self, found: Found, until_ms: u64, now: Now) {
        self.memory.set_header(found.handle, &found.header.stale(until_ms));
        self.memory.begin_timer(&mut self.stripe, found.handle, now);
    }

    /// Fills chunks with an item, all but its header; they are nobody's business yet.
    fn build(&mut self, key: HashedKey<'_>, content: &Content<'_>, now: Now) -> Result<(Handle, Header), NoRoom> {
        let (memory, lane) = (self.memory, self.stripe.lane);
        let extension_bytes = if content.extension.is_some() { EXTENSION_BYTES } else { 0 };
        let flags_bytes = if content.flags == 0 { 0 } else { FLAGS_BYTES };
        let front_bytes = HEADER_BYTES + flags_bytes + extension_bytes + key.key().len();
        let class = memory.geometry.class_for(front_bytes + content.value.len());
        let (class, here) = match class {
            Some(class) => (class, content.value.len()),
            None => (memory.geometry.timer_class() - 1, memory.geometry.chunk_bytes_max() - front_bytes - CHAIN_BYTES),
        };
        let is_chained = here < content.value.len();
        let parts = Parts { has_flags: content.flags != 0, is_extended: content.extension.is_some(), is_chained };
        let shape = chunk::shape(key.key().len(), here, parts);
        let expiry_s = chunk::expiry_s(content.expiry);
        let usage = Usage::new(lane, State::Head, 0, now);
        let header = Header { sequence: self.stripe.next_sequence(), expiry_s, shape, usage };
        let header = content.stale_until_ms.map_or(header, |until_ms| header.stale(until_ms));

        let head = memory.allocate(class, &mut self.stripe, now)?;
        if is_chained {
            match self.build_chain(&content.value[here..], now) {
                Ok(followers) => {
                    memory.set_chain(head, &header, followers[0], content.value.len());
                }
                Err(NoRoom) => {
                    memory.free(head);
                    return Err(NoRoom);
                }
            }
        }
        memory.write_head(head, &header, content.flags, key.key(), content.value);
        if let Some(extension) = content.extension {
            let at = memory.at(head);
            memory.set_marks(at, &header, extension.marks);
            memory.set_given_cas(at, &header, extension.cas.unwrap_or(self.own_cas(&header)).0);
        }
        Ok((head, header))
    }

    fn build_chain(&mut self, value: &[u8], now: Now) -> Result<Vec<Handle>, NoRoom> {
        let memory = self.memory;
        let piece_bytes_max = memory.geometry.chunk_bytes_max() - HEADER_BYTES;
        let mut followers = Vec::with_capacity(value.len().div_ceil(piece_bytes_max));
        for piece in value.chunks(piece_bytes_max) {
            let class = memory.geometry.class_for(HEADER_BYTES + piece.len()).expect("pieces fit the largest chunk");
            match memory.allocate(class, &mut self.stripe, now) {
                Ok(follower) => followers.push(follower),
                Err(NoRoom) => {
                    memory.free_all(&followers);
                    return Err(NoRoom);
                }
            }
        }
        for (place, piece) in value.chunks(piece_bytes_max).enumerate() {
            let next = followers.get(place + 1).map_or(0, |next| next.0);
            memory.write_follower(followers[place], next, piece);
        }
        Ok(followers)
    }

    /// An empty slot for a key that has none. When both of its buckets are full somebody moves, or leaves.
    fn make_vacancy(&mut self, key: HashedKey<'_>, now: Now) -> SlotAt {
        let (memory, index, region) = (self.memory, &self.memory.index, &self.memory.region);
        if let Some(slot) = index.vacancy(region, key) {
            return slot;
        }
        if let Some(slot) = index.make_vacancy(region, key, &|item| memory.hashed_key(item)) {
            return slot;
        }
        // While there are few buckets, one stripe may have far more items than its share.
        for _ in 0..GROWTHS_MAX {
            if !memory.grow_index_in_all_stripes(&mut self.stripe, now) {
                break;
            }
            let vacancy = index.vacancy(region, key);
            if let Some(slot) = vacancy.or_else(|| index.make_vacancy(region, key, &|item| memory.hashed_key(item))) {
                return slot;
            }
        }
        let coldness = |handle| {
            let header = memory.header(handle);
            let is_over = header.is_stale() || header.is_past(now);
            (is_over, std::cmp::Reverse(header.usage.clock()), header.usage.access_age_s(now))
        };
        let coldest = index.candidates(region, key).max_by_key(|&(_, handle)| coldness(handle));
        let (slot, handle) = coldest.expect("full buckets have items");
        let mut chunks = vec![handle];
        memory.evict(handle, &memory.header(handle), &mut self.stripe, &mut chunks, now);
        memory.free_all(&chunks);
        slot
    }

    /// Forgets all items and leases. Hold-offs stay: what they keep out is older still.
    pub fn flush(&mut self) {
        let memory = self.memory;
        for (slot, handle) in memory.index.items_of(&memory.region, self.stripe.lane) {
            self.drop_item(self.found_in(slot, handle));
        }
        self.clear_wheel();
        self.stripe.leases.clear();
    }
}
