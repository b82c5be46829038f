//! Eviction: which item leaves when no chunk of a class is free.
//!
//! Each class has a hand that goes around its pages, chunk by chunk (CLOCK with two bits): an item that was accessed
//! since the last visit is passed over, up to three times; the first that was not is evicted. The hand goes by address,
//! so there are no lists to maintain, and a get of a hot item changes nothing.
//!
//! The hand belongs to the class, whose lock the evictor holds; the victim belongs to a stripe, whose lock is only
//! tried: an item whose stripe is busy is passed over, and so is one that is not published yet. After [`STEPS_MAX`]
//! steps any item is taken, so that no store searches for long.
//!
//! A page that is new to a class comes right behind the hand, so that its items get a whole round. An item that was
//! stored in a chunk right in front of the hand, which a delete had freed, has none: it is passed over if it is much
//! younger than items elsewhere in the class ([`Samples`]), unless the hand finds nothing else ([`YOUNG_MAX`]).
//!
//! A stale value gets no second chance: it has been deleted already. A chained item leaves as a whole, when the hand
//! comes to its head, to its last piece in another class, or to one of those between that count as a visit.
//!
//! Without evictions ([`crate::Options::evictions`]) the hand takes only items that have expired or are stale, and
//! gives up after [`STEPS_MAX`] steps: the next store continues from there, so each such item is found in the end.

use crate::memory::Memory;
use crate::memory::chunk::{ChunkKind, Header};
use crate::memory::handle::Handle;
use crate::memory::index::RemovalReason;
use crate::memory::slab::Class;
use crate::stripe::Stripe;
use crate::{Expiry, Now, Options};
use std::sync::OnceLock;

/// An item that is evicted.
#[derive(Clone, Copy, Debug)]
pub struct Evicted<'a> {
    /// Its key.
    pub key: &'a [u8],
    /// The number of its slab class, from 1 on.
    pub slab_class: usize,
    /// The length of its value, in bytes.
    pub value_bytes: usize,
    /// Whether it was ever fetched.
    pub was_fetched: bool,
    /// Seconds since its last access, or since it was stored.
    pub idle_s: u32,
    /// Its expiry.
    pub expiry: Expiry,
}

/// Called for each eviction, under locks of the store: it must be quick, and must not call the store.
pub type EvictionHook = Box<dyn Fn(&Evicted<'_>, Now) + Send + Sync>;

const STEPS_MAX: usize = 2048;

/// An item is young if its age is less than one part in this many of that of a sampled item.
const YOUNG_SHARE: u32 = 8;

/// An item of this age is not young, whatever the samples are: few evictions need samples.
const YOUNG_S_MAX: u32 = 60;

/// The number of samples, evenly spaced over the class.
const SAMPLES: usize = 2;

/// The most young items that one eviction passes over.
const YOUNG_MAX: usize = 64;

pub(crate) struct Evictor {
    age_exponent: f64,
    pub evicts_live_items: bool,
    pub hook: OnceLock<EvictionHook>,
}

impl Evictor {
    pub fn new(options: &Options) -> Evictor {
        let (age_exponent, evicts_live_items) = (options.age_exponent, options.evictions);
        Evictor { age_exponent, evicts_live_items, hook: OnceLock::new() }
    }

    /// Whether the item may leave to make room for others.
    pub fn may_remove(&self, header: &Header, now: Now) -> bool {
        self.evicts_live_items || header.is_stale() || header.is_expired(now)
    }

    /// Evicts an item of the class; its chunk is the caller's, and the other chunks of a chained item go to `freed`.
    pub fn sweep(
        &self,
        memory: &Memory,
        class: &mut Class,
        own: &mut Stripe,
        freed: &mut Vec<Handle>,
        now: Now,
    ) -> Option<Handle> {
        let geometry = &memory.pages.geometry;
        if class.number == geometry.timer_class() {
            return None;
        }
        let forced_steps =
            if self.evicts_live_items { class.pages.len() * geometry.chunks_per_page(class.number) } else { 0 };
        let mut samples = Samples { age_s: None, young_left: YOUNG_MAX };
        for step in 0..STEPS_MAX + forced_steps {
            let chunk = advance_hand(memory, class)?;
            // Items that may leave although live ones may not have no second chance.
            let is_forced = step >= STEPS_MAX || !self.evicts_live_items;
            if self.evicts_live_items && samples.pass_over(memory, class, chunk, now) {
                continue;
            }
            let evicted = match memory.pages.usage(chunk).kind() {
                ChunkKind::Free | ChunkKind::Allocated => None,
                ChunkKind::Head => self.try_head(memory, chunk, is_forced, own, freed, now),
                ChunkKind::Continuation => {
                    self.try_continuation(memory, chunk, class.number, is_forced, own, freed, now)
                }
            };
            if let Some(header) = evicted {
                memory.slabs.record_evicted_age(class.number, &header, now);
                return Some(chunk);
            }
        }
        None
    }

    fn try_head(
        &self,
        memory: &Memory,
        head: Handle,
        is_forced: bool,
        own: &mut Stripe,
        freed: &mut Vec<Handle>,
        now: Now,
    ) -> Option<Header> {
        let header = memory.pages.header(head);
        if !self.may_remove(&header, now) || give_second_chance(memory, head, &header, is_forced, now) {
            return None;
        }
        let stripe = header.usage.stripe();
        let evict = |locked: &mut Stripe| {
            let header = memory.pages.header(head);
            let is_same = header.usage.kind() == ChunkKind::Head && header.usage.stripe() == stripe;
            let is_accessed = !is_forced && header.usage.clock() > 0 && !header.is_expired(now);
            if !is_same || is_accessed || !self.may_remove(&header, now) {
                return None;
            }
            self.evict(memory, head, &header, locked, freed, now);
            Some(header)
        };
        memory.try_stripe(stripe, own, evict).flatten()
    }

    /// A further piece of an item whose head lies in this class may be skipped: the hand comes to the head too.
    #[expect(clippy::too_many_arguments, reason = "the parts of the store come as arguments")]
    fn try_continuation(
        &self,
        memory: &Memory,
        chunk: Handle,
        class: usize,
        is_forced: bool,
        own: &mut Stripe,
        freed: &mut Vec<Handle>,
        now: Now,
    ) -> Option<Header> {
        let pages = &memory.pages;
        let stripe = pages.usage(chunk).stripe();
        let evict = |locked: &mut Stripe| {
            let usage = pages.usage(chunk);
            if usage.kind() != ChunkKind::Continuation || usage.stripe() != stripe {
                return None;
            }
            let head = Handle(pages.first_word(chunk));
            let header = pages.header(head);
            if !is_forced && pages.class_of(head) == class && !self.counts_as_clock_visit(memory, chunk, head, &header)
            {
                return None;
            }
            if !self.may_remove(&header, now) || give_second_chance(memory, head, &header, is_forced, now) {
                return None;
            }
            self.evict(memory, head, &header, locked, freed, now);
            freed.push(head);
            freed.retain(|&piece| piece != chunk);
            Some(header)
        };
        memory.try_stripe(stripe, own, evict).flatten()
    }

    /// Whether the hand, at a further piece of an item, counts as visiting the item.
    ///
    /// An item in k chunks is k times as large as others of its class, so by the weighting of ages (`memory/age.rs`)
    /// it should last k^-exponent times as long: it gets k^exponent visits in a round, that of its head among them.
    /// The number of the chunk decides which of its pieces count.
    fn counts_as_clock_visit(&self, memory: &Memory, chunk: Handle, head: Handle, header: &Header) -> bool {
        let (_, value_bytes) = memory.pages.chain(memory.pages.offset_of(head), header);
        let chunks = (value_bytes as f64 / memory.pages.geometry.chunk_bytes_max() as f64).max(1.0) + 1.0;
        let share = (chunks.powf(self.age_exponent) - 1.0) / (chunks - 1.0);
        let spread = chunk.0.wrapping_mul(0x9e37_79b1);
        f64::from(spread) < share * f64::from(u32::MAX)
    }

    /// Removes an item whose stripe is locked. Its head is the caller's from then on; its other pieces go to `freed`.
    pub fn evict(
        &self,
        memory: &Memory,
        head: Handle,
        header: &Header,
        stripe: &mut Stripe,
        freed: &mut Vec<Handle>,
        now: Now,
    ) {
        let (pages, index) = (&memory.pages, &memory.index);
        let key = pages.hashed_key(head);
        let slot = index.slot_of(&pages.region, key, head);
        match !header.is_stale() && header.is_expired(now) {
            true => {
                index.vacate_slot(&pages.region, slot, RemovalReason::Expired);
                stripe.has_removal_reasons = true;
            }
            false => index.clear_slot(&pages.region, slot),
        }
        stripe.remove_item(&memory.items, pages.item_bytes(pages.offset_of(head), header));
        // Without evictions only items leave that have expired or were deleted (and kept as stale values).
        let is_eviction = self.evicts_live_items && !header.is_expired(now);
        memory.slabs.counters[pages.class_of(head)].record_removal(header, is_eviction);
        match is_eviction {
            true => stripe.counters.evictions += 1,
            false => stripe.counters.expirations += 1,
        }
        if let Some(hook) = self.hook.get().filter(|_| is_eviction) {
            let value_bytes = if header.is_chained() {
                pages.chain(pages.offset_of(head), header).1
            } else {
                header.inline_value_bytes()
            };
            let (was_fetched, idle_s) = (header.usage.is_fetched(), header.usage.access_age_s(now));
            let expiry = header.expiry();
            let slab_class = pages.class_of(head) + 1;
            hook(&Evicted { key: key.key(), slab_class, value_bytes, was_fetched, idle_s, expiry }, now);
        }
        pages.unlink_chunks(head, header, freed);
    }
}

/// Decides which items are too young to be evicted, for one search.
struct Samples {
    /// The greatest age of the sampled items. `None` if none was needed yet.
    age_s: Option<u32>,
    young_left: usize,
}

impl Samples {
    /// Whether the chunk is the head of an item that would be evicted, although it is much younger than others.
    fn pass_over(&mut self, memory: &Memory, class: &Class, chunk: Handle, now: Now) -> bool {
        if self.young_left == 0 {
            return false;
        }
        let header = memory.pages.header(chunk);
        let is_candidate = header.usage.kind() == ChunkKind::Head && header.usage.clock() == 0;
        if !is_candidate || header.is_stale() || header.is_expired(now) {
            return false;
        }
        let age_s = header.usage.access_age_s(now);
        if age_s >= YOUNG_S_MAX {
            return false;
        }
        let is_young = age_s * YOUNG_SHARE < *self.age_s.get_or_insert_with(|| sample_age_s(memory, class, now));
        self.young_left -= usize::from(is_young);
        is_young
    }
}

/// The greatest age of some items far from the hand.
fn sample_age_s(memory: &Memory, class: &Class, now: Now) -> u32 {
    let chunks = memory.pages.geometry.chunks_per_page(class.number);
    let (place, chunk) = class.hand;
    let age_of_sample = |number: usize| {
        let distance = class.pages.len() * chunks * number / (SAMPLES + 1);
        let at = (place * chunks + chunk + distance) % (class.pages.len() * chunks);
        let sample = Handle::new(class.pages[at / chunks], at % chunks);
        let header = memory.slabs.is_carved(sample).then(|| memory.pages.header(sample))?;
        let is_item = header.usage.kind() == ChunkKind::Head && !header.is_stale();
        is_item.then(|| header.usage.access_age_s(now))
    };
    (1..=SAMPLES).filter_map(age_of_sample).max().unwrap_or(0)
}

/// The next chunk that has been carved.
fn advance_hand(memory: &Memory, class: &mut Class) -> Option<Handle> {
    for _ in 0..=class.pages.len() {
        let (place, chunk) = class.hand;
        let page = *class.pages.get(place)?;
        if chunk < memory.slabs.record(page).chunks_carved() {
            class.hand.1 += 1;
            return Some(Handle::new(page, chunk));
        }
        class.hand = ((place + 1) % class.pages.len(), 0);
    }
    None
}

/// Takes one of the rounds that the item has left; returns whether it had one and stays.
fn give_second_chance(memory: &Memory, head: Handle, header: &Header, is_forced: bool, now: Now) -> bool {
    let clock = header.usage.clock();
    if clock == 0 || is_forced || header.is_expired(now) {
        return false;
    }
    memory.pages.exchange_usage(head, header.usage, header.usage.with_clock(clock - 1));
    true
}
