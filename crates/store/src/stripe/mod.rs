//! One stripe: a share of the keys behind its own lock.
//!
//! ```text
//! hash of a key:  [ tag | .. set of leases, of hold-offs .. | bucket .. stripe ]
//!
//! stripe, under its lock:  leases; hold-offs; scheduled flushes; timers; counters; the right to change its buckets
//! memory, shared:          index buckets --> chunks in slab pages
//! ```
//! `memory/mod.rs` has the order of locks.

pub(crate) mod flush;
pub(crate) mod hold_off;
pub(crate) mod lease;
pub(crate) mod timer_wheel;

use crate::snapshot_codec::{SnapshotReader, SnapshotWriter};
use crate::sync::Mutex;
use crate::{Now, Options, Statistics};
use flush::FlushSchedule;
use hold_off::HoldOffTable;
use lease::{LeaseTable, TokenSource};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use timer_wheel::TimerWheel;

/// Of the memory, one part in this many holds leases: about one per 6 KiB.
const LEASE_SHARE: usize = 256;
/// Of the memory, one part in this many holds hold-offs: about one per 9 KiB.
const HOLD_OFF_SHARE: usize = 512;

/// The state of one stripe. A get touches the first cache line.
#[repr(C)]
pub(crate) struct Stripe {
    /// No flush and no timer is due before this time, in Unix milliseconds.
    pub due_ms: u64,
    pub number: usize,
    items: usize,
    /// How many of them the count of all items includes.
    items_published: usize,
    pub leases: LeaseTable,
    pub hold_offs: HoldOffTable,
    pub flushes: FlushSchedule,
    pub wheel: TimerWheel,
    pub counters: Statistics,
    sequence: u32,
    /// Whether a slot of the index may know why its last item left (`RemovalReason`).
    pub has_removal_reasons: bool,
    /// The bytes that the items use for header, key and value.
    items_bytes: u64,
}

/// A stripe behind its lock, on cache lines of its own: the lock and what a get reads share the first.
#[repr(align(64))]
pub(crate) struct StripeLock(pub Mutex<Stripe>);

/// All stripes of a store, before its first item.
pub(crate) fn create_all(options: &Options, stripe_bits: u32) -> Box<[StripeLock]> {
    let stripes = 1 << stripe_bits;
    (0..stripes).map(|number| StripeLock(Mutex::new(Stripe::new(options, number, stripes)))).collect()
}

impl Stripe {
    /// Stripe number `number` of `stripes`.
    pub fn new(options: &Options, number: usize, stripes: usize) -> Stripe {
        let share_bytes = options.memory_bytes_max / stripes;
        let tokens = TokenSource::new(options.seed, number, stripes);
        let interval_outlasts_token = options.lease_interval_outlasts_delete;
        let lease_bytes = share_bytes / LEASE_SHARE;
        Stripe {
            due_ms: 0,
            number,
            items: 0,
            items_published: 0,
            leases: LeaseTable::new(lease_bytes, tokens, options.lease_interval_ms, interval_outlasts_token),
            hold_offs: HoldOffTable::new(share_bytes / HOLD_OFF_SHARE),
            flushes: FlushSchedule::default(),
            wheel: TimerWheel::default(),
            counters: Statistics::default(),
            sequence: 0,
            has_removal_reasons: false,
            items_bytes: 0,
        }
    }

    /// The memory that the stripe uses beside its items.
    pub fn bytes(&self) -> usize {
        size_of::<StripeLock>() + self.leases.bytes() + self.hold_offs.bytes()
    }

    /// A copy of the counters, with the gauges filled in.
    pub fn statistics(&self) -> Statistics {
        Statistics {
            items: self.items as u64,
            items_bytes: self.items_bytes,
            leases_displaced: self.leases.displaced,
            hold_offs_merged: self.hold_offs.merged,
            ..self.counters
        }
    }

    /// The words that it is saved in, at most, when its share of the memory is `share_bytes`.
    pub fn snapshot_words_max(share_bytes: usize) -> usize {
        /// Items, their bytes and sequence; eight flushes; a wheel of 64 seconds; and the counts.
        const FIXED_WORDS: usize = 96;
        FIXED_WORDS + HoldOffTable::snapshot_words_max(share_bytes / HOLD_OFF_SHARE)
    }

    /// Saves all but leases and counters, which end with the process.
    pub fn save(&self, now: Now, snapshot: &mut SnapshotWriter) {
        snapshot.put_count(self.items);
        snapshot.put_u64(self.items_bytes);
        snapshot.put_u32(self.sequence);
        self.flushes.save(snapshot);
        self.hold_offs.save(now, snapshot);
        self.wheel.save(snapshot);
    }

    /// Restores what [`Stripe::save`] saved.
    pub fn restore(&mut self, snapshot: &mut SnapshotReader<'_>) -> Option<()> {
        self.items = snapshot.get_u32()? as usize;
        self.items_bytes = snapshot.get_u64()?;
        self.sequence = snapshot.get_u32()?;
        self.flushes.restore(snapshot)?;
        self.hold_offs.restore(snapshot)?;
        self.wheel.restore(snapshot)
    }

    /// The number of items in the stripe.
    pub fn items(&self) -> usize {
        self.items
    }

    /// Counts an item that was inserted.
    pub fn add_item(&mut self, all: &AtomicUsize, bytes: usize) {
        self.items += 1;
        self.items_bytes += bytes as u64;
        self.publish_count(all);
    }

    /// Counts an item that was removed.
    pub fn remove_item(&mut self, all: &AtomicUsize, bytes: usize) {
        self.items -= 1;
        self.items_bytes = self.items_bytes.saturating_sub(bytes as u64);
        self.publish_count(all);
    }

    /// Counts an item that took the place of another.
    pub fn replace_item(&mut self, old_bytes: usize, new_bytes: usize) {
        self.items_bytes = (self.items_bytes + new_bytes as u64).saturating_sub(old_bytes as u64);
    }

    /// The bytes that the items of the stripe use for header, key and value.
    pub fn items_bytes(&self) -> u64 {
        self.items_bytes
    }

    /// Updates the count of all items, but not for every item: all stripes share its cache line.
    fn publish_count(&mut self, all: &AtomicUsize) {
        /// One part in this many may be unpublished.
        const UNPUBLISHED_SHARE: usize = 8;
        if self.items.abs_diff(self.items_published) * UNPUBLISHED_SHARE > self.items {
            all.fetch_add(self.items.wrapping_sub(self.items_published), Relaxed);
            self.items_published = self.items;
        }
    }

    /// The last sequence number that it gave.
    pub fn sequence(&self) -> u32 {
        self.sequence
    }

    /// A sequence number that comes again only after 2^32 stores to the stripe.
    pub fn next_sequence(&mut self) -> u32 {
        self.sequence = self.sequence.wrapping_add(1);
        self.sequence
    }
}
