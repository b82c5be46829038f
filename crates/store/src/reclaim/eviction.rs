//! Who leaves when memory is short. Serves every store that finds no free chunk in its class.
//!
//! Each class has a hand that goes around its pages, chunk by chunk (CLOCK with two bits): an item that was asked for
//! since is passed over, up to three times; the first that was not goes. Going by address there are no lists to
//! keep, so a get of a hot item changes nothing.
//!
//! The hand belongs to the class, whose lock the evictor holds; the victim belongs to a stripe. That is only tried for:
//! an item whose stripe is busy is passed over, and so is one that is just being built. After [`STEPS_MAX`] steps
//! anything that can be had is taken, so that no store searches for long.
//!
//! A page that is new to a class comes right behind the hand, so that what is stored in it gets a whole round.
//!
//! A stale value is not spared: it has been deleted once already. An item that is chained leaves as a whole, when the
//! hand comes to its head, to its last piece in another class, or to one of those between that count.

use crate::memory::Memory;
use crate::memory::chunk::{Handle, Header, State, Usage};
use crate::memory::slab::Class;
use crate::shard::Stripe;
use crate::{Expiry, HashedKey, Now};

/// An item that has to make room for others.
#[derive(Clone, Copy, Debug)]
pub struct Evicted<'a> {
    /// Its key.
    pub key: &'a [u8],
    /// The number of its slab class, from 1 on.
    pub slab_class: usize,
    /// How long its value is, in bytes.
    pub value_bytes: usize,
    /// Whether anyone asked for it.
    pub was_fetched: bool,
    /// How long ago that was, or it came, in seconds.
    pub idle_s: u32,
    /// When it would have expired.
    pub expiry: Expiry,
}

/// Is told of each eviction by whoever evicts, under locks of the store: it must be quick, and call no store.
pub type EvictionHook = Box<dyn Fn(&Evicted<'_>, Now) + Send + Sync>;

/// So many chunks are looked at for one that nobody has asked for.
const STEPS_MAX: usize = 2048;

impl Memory {
    /// Evicts an item of the class; its chunk is the caller's, and the rest of a chained item goes to `spoils`.
    pub fn sweep(&self, class: &mut Class, own: &mut Stripe, spoils: &mut Vec<Handle>, now: Now) -> Option<Handle> {
        if class.class == self.geometry.timer_class() {
            return None;
        }
        let steps_max = STEPS_MAX + class.pages.len() * self.geometry.chunks_per_page(class.class);
        for step in 0..steps_max {
            let chunk = self.advance_hand(class)?;
            let is_forced = step >= STEPS_MAX;
            let evicted = match self.usage(chunk).state() {
                State::Free | State::Taken => None,
                State::Head => self.try_head(chunk, is_forced, own, spoils, now),
                State::Follower => self.try_follower(chunk, class.class, is_forced, own, spoils, now),
            };
            if let Some(header) = evicted {
                self.note_age(class.class, &header, now);
                return Some(chunk);
            }
        }
        None
    }

    /// The age of an evicted item tells how long items last in its class, unless it was over anyway.
    pub fn note_age(&self, class: usize, header: &Header, now: Now) {
        if !header.is_stale() && !header.is_past(now) {
            self.ages[class].note(header.usage.access_age_s(now), now);
        }
    }

    /// The next chunk that has been carved.
    fn advance_hand(&self, class: &mut Class) -> Option<Handle> {
        for _ in 0..=class.pages.len() {
            let (place, chunk) = class.hand;
            let page = *class.pages.get(place)?;
            if chunk < self.page_records[page as usize].carved() {
                class.hand.1 += 1;
                return Some(crate::memory::handle(page, chunk));
            }
            class.hand = ((place + 1) % class.pages.len(), 0);
        }
        None
    }

    fn try_head(
        &self,
        head: Handle,
        is_forced: bool,
        own: &mut Stripe,
        spoils: &mut Vec<Handle>,
        now: Now,
    ) -> Option<Header> {
        let header = self.header(head);
        if self.is_spared(head, &header, is_forced, now) {
            return None;
        }
        let lane = header.usage.lane();
        let evict = |stripe: &mut Stripe| {
            let header = self.header(head);
            let is_same = header.usage.state() == State::Head && header.usage.lane() == lane;
            if !is_same || !is_forced && header.usage.clock() > 0 && !header.is_past(now) {
                return None;
            }
            self.evict(head, &header, stripe, spoils, now);
            Some(header)
        };
        self.try_stripe(lane, own, evict).flatten()
    }

    /// A further piece of an item whose head lies in this class may be left alone: the hand comes to the head too.
    fn try_follower(
        &self,
        chunk: Handle,
        class: usize,
        is_forced: bool,
        own: &mut Stripe,
        spoils: &mut Vec<Handle>,
        now: Now,
    ) -> Option<Header> {
        let lane = self.usage(chunk).lane();
        let evict = |stripe: &mut Stripe| {
            let usage = self.usage(chunk);
            if usage.state() != State::Follower || usage.lane() != lane {
                return None;
            }
            let head = Handle(self.first_word(chunk));
            let header = self.header(head);
            if !is_forced && self.class_of(head) == class && !self.counts_as_visit(chunk, head, &header) {
                return None;
            }
            if self.is_spared(head, &header, is_forced, now) {
                return None;
            }
            self.evict(head, &header, stripe, spoils, now);
            spoils.push(head);
            spoils.retain(|&piece| piece != chunk);
            Some(header)
        };
        self.try_stripe(lane, own, evict).flatten()
    }

    /// Whether the hand, at a further piece of an item, counts as being at the item.
    ///
    /// An item in k chunks is k times as large as others of its class, so by the rule of ages (`rebalance.rs`) it should
    /// last k^-exponent times as long: so many visits it gets in a round, its head's among them. Which of its pieces
    /// count is left to the number of the chunk.
    fn counts_as_visit(&self, chunk: Handle, head: Handle, header: &Header) -> bool {
        let (_, value_bytes) = self.chain(self.at(head), header);
        let chunks = (value_bytes as f64 / self.geometry.chunk_bytes_max() as f64).max(1.0) + 1.0;
        let share = (chunks.powf(self.age_exponent) - 1.0) / (chunks - 1.0);
        let spread = chunk.0.wrapping_mul(0x9e37_79b1);
        f64::from(spread) < share * f64::from(u32::MAX)
    }

    /// Whether the item gets another round; it has one less from then on.
    fn is_spared(&self, head: Handle, header: &Header, is_forced: bool, now: Now) -> bool {
        let clock = header.usage.clock();
        if clock == 0 || is_forced || header.is_past(now) {
            return false;
        }
        self.exchange_usage(head, header.usage, header.usage.with_clock(clock - 1));
        true
    }

    /// Drops an item whose stripe is locked. Its head is the caller's from then on; its other pieces are `spoils`.
    pub fn evict(&self, head: Handle, header: &Header, stripe: &mut Stripe, spoils: &mut Vec<Handle>, now: Now) {
        let key = self.hashed_key(head);
        let slot = self.index.slot_of(&self.region, key, head);
        self.index.clear(&self.region, slot);
        stripe.item_left(&self.items);
        self.class_counters[self.class_of(head)].note_leaving(header, now);
        match header.is_past(now) {
            true => stripe.counters.expirations += 1,
            false => stripe.counters.evictions += 1,
        }
        if let Some(hook) = self.on_eviction.get().filter(|_| !header.is_past(now)) {
            let value_bytes =
                if header.is_chained() { self.chain(self.at(head), header).1 } else { header.value_bytes_here() };
            let (was_fetched, idle_s) = (header.usage.is_fetched(), header.usage.access_age_s(now));
            let expiry = header.expiry();
            let slab_class = self.class_of(head) + 1;
            hook(&Evicted { key: key.key(), slab_class, value_bytes, was_fetched, idle_s, expiry }, now);
        }
        self.take_apart(head, header, spoils);
    }

    /// Makes the chunks of an item that the index no longer knows the caller's own; all but the head go to `spoils`.
    pub fn take_apart(&self, head: Handle, header: &Header, spoils: &mut Vec<Handle>) {
        if header.is_chained() {
            let (mut next, value_bytes) = self.chain(self.at(head), header);
            let mut bytes_left = value_bytes.saturating_sub(header.value_bytes_here());
            while bytes_left > 0 {
                let (piece, after) = self.follower(next);
                bytes_left = bytes_left.saturating_sub(piece.len());
                self.set_usage(next, Usage::taken());
                spoils.push(next);
                next = after;
            }
        }
        self.set_usage(head, Usage::taken());
    }

    /// The key of an item whose stripe is locked.
    pub fn hashed_key(&self, head: Handle) -> HashedKey<'_> {
        let at = self.at(head);
        HashedKey::new(self.key(at, &self.header_at(at)))
    }
}
