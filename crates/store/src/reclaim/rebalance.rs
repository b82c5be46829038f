//! Memory moves to the slab class that makes more of it (§6.2 of the paper). Serves stores, a bounded step at a time.
//!
//! A class's age is how long ago its next victim was last asked for. It is estimated from the ages of those evicted
//! last (an exponential mean), and grows with the clock while the class evicts nobody. A class that evicts gets a page
//! when its age is at least 20 % below the mean of the others, and the class with the greatest age gives one.
//!
//! Ages are weighted by (chunk size)^exponent. At 0 this is the paper's rule, which treats a hit in a large item like
//! one in a small item, though it costs many times the memory. Measured, 0.5 gains more than anything else here.
//!
//! The page that is given is the one that the hand comes to next: nobody has asked for its coldest items for the longest
//! time. Its items that were asked for lately are carried over into other chunks of their class, the others go. One page
//! moves at a time, by [`STEP_CHUNKS`] chunks with each store that evicts, so that no single one pays for it; only a class
//! that has no page at all waits for one.

use crate::memory::chunk::{Handle, Header, State, Usage};
use crate::memory::geometry::Geometry;
use crate::memory::slab::Class;
use crate::memory::{Memory, handle};
use crate::shard::{NoRoom, Stripe};
use crate::sync::{give_way, lock, try_lock};
use crate::warm_restart::snapshot::{StateReader, StateWriter};
use crate::{Now, PageMove};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// A class gets memory if what it evicts is younger by this part than what the others would (§6.2).
const YOUNGER_BY: f64 = 0.2;
/// A class asks for more this often while it evicts as many items as fill a page.
const LOOKS_PER_PAGE: usize = 4;
/// One evicted item counts this much in the mean age.
const AGE_SHARE: f64 = 1.0 / 64.0;
/// So many chunks of a page that moves are cleared at a time.
const STEP_CHUNKS: usize = 64;
/// A page that cannot be cleared in so many rounds stays where it is: somebody is at work on its items.
const ROUNDS_MAX: usize = 4;
/// So many rounds through pages are made for a class that has none: enough for sixteen pages that stay where they are.
const SEIZURE_ROUNDS_MAX: usize = 80;

/// What a class publishes about itself.
pub(crate) struct Age {
    weight: f64,
    pages: AtomicU32,
    /// `f64` bits: the mean age of what was evicted last, in seconds; negative: nothing yet.
    mean_s: AtomicU64,
    /// `f64` bits: the moment in which the next victim was last asked for, in Unix seconds.
    tail_s: AtomicU64,
}

impl Age {
    pub fn new(chunk_bytes: usize, exponent: f64) -> Age {
        let weight = (chunk_bytes as f64).powf(exponent);
        Age { weight, pages: AtomicU32::new(0), mean_s: AtomicU64::new(0), tail_s: AtomicU64::new(0) }
    }

    /// The class has its first page.
    pub fn begin(&self, now: Now) {
        self.mean_s.store((-1.0f64).to_bits(), Relaxed);
        self.tail_s.store(unix_s(now).to_bits(), Relaxed);
    }

    pub fn set_pages(&self, pages: usize) {
        self.pages.store(pages as u32, Relaxed);
    }

    /// How many pages the class holds.
    pub fn pages(&self) -> usize {
        self.pages.load(Relaxed) as usize
    }

    /// An item of this age was evicted.
    pub fn note(&self, age_s: u32, now: Now) {
        let (mean_s, age_s) = (f64::from_bits(self.mean_s.load(Relaxed)), f64::from(age_s));
        let mean_s = if mean_s < 0.0 { age_s } else { mean_s + (age_s - mean_s) * AGE_SHARE };
        self.mean_s.store(mean_s.to_bits(), Relaxed);
        self.tail_s.store((unix_s(now) - mean_s).to_bits(), Relaxed);
    }

    /// Writes down the class's ages.
    pub fn save(&self, state: &mut StateWriter) {
        state.long(self.mean_s.load(Relaxed));
        state.long(self.tail_s.load(Relaxed));
    }

    /// Takes up what was written down.
    pub fn restore(&self, state: &mut StateReader<'_>) -> Option<()> {
        self.mean_s.store(state.long()?, Relaxed);
        self.tail_s.store(state.long()?, Relaxed);
        Some(())
    }

    /// The age of the next victim, in whole seconds.
    pub fn age_s(&self, now: Now) -> u64 {
        (unix_s(now) - f64::from_bits(self.tail_s.load(Relaxed))).max(0.0) as u64
    }

    /// The mean age of those evicted last, in whole seconds.
    pub fn evicted_age_s(&self) -> Option<u64> {
        let mean_s = f64::from_bits(self.mean_s.load(Relaxed));
        (self.pages.load(Relaxed) > 0 && mean_s >= 0.0).then_some(mean_s as u64)
    }

    /// The weighted age of the next victim; `None` for a class without pages.
    fn weighted(&self, now: Now) -> Option<f64> {
        let age_s = unix_s(now) - f64::from_bits(self.tail_s.load(Relaxed));
        (self.pages.load(Relaxed) > 0).then_some(age_s * self.weight)
    }
}

fn unix_s(now: Now) -> f64 {
    now.unix_ms as f64 / 1000.0
}

/// Who moves a page, and how far it has come. Its lock also guards the growth of the index.
#[derive(Default)]
pub(crate) struct Mover {
    current: Option<Move>,
    /// A page that has moved to the index and waits to be used.
    index_spare: Option<u32>,
    is_index_page_added: bool,
}

/// Who gets a page.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Target {
    Class(usize),
    Index,
    /// Nobody: the memory limit was lowered.
    Pool,
}

struct Move {
    from: usize,
    to: Target,
    page: u32,
    chunk_next: usize,
    rounds: usize,
}

#[derive(PartialEq, Eq)]
enum Progress {
    Unfinished,
    Moved,
    GivenUp,
}

/// Whether the class, having evicted, should ask whether it deserves more.
pub(crate) fn is_time_to_look(class: &mut Class, geometry: &Geometry) -> bool {
    class.evictions_until_look = class.evictions_until_look.saturating_sub(1);
    let is_time = class.evictions_until_look == 0;
    if is_time {
        class.evictions_until_look = (geometry.chunks_per_page(class.class) / LOOKS_PER_PAGE).max(1);
    }
    is_time
}

impl Memory {
    /// Moves the page under way on a bit, or sees whether `class` deserves one.
    pub fn rebalance(&self, class: usize, is_time_to_look: bool, own: &mut Stripe, now: Now) {
        let Some(mut mover) = try_lock(&self.mover) else {
            return;
        };
        if mover.current.is_some() {
            self.step(&mut mover, STEP_CHUNKS, own, now);
        } else if self.pages_over() > 0 {
            self.start_shrinking(&mut mover, 0, now);
        } else if is_time_to_look
            && self.is_rebalanced.load(Relaxed)
            && let Some(from) = self.donor_for(class, now)
        {
            self.start(&mut mover, from, Target::Class(class), 0);
        }
    }

    /// Clears a page if more are used than the limit allows; says whether there may be more to do.
    pub fn shrink(&self, attempt: usize, own: &mut Stripe, now: Now) -> bool {
        let mut mover = lock(&self.mover);
        if mover.current.is_none() && !self.start_shrinking(&mut mover, attempt, now) {
            return false;
        }
        self.step(&mut mover, usize::MAX, own, now);
        true
    }

    fn start_shrinking(&self, mover: &mut Mover, attempt: usize, now: Now) -> bool {
        let from = (self.pages_over() > 0).then(|| self.oldest(None, attempt / 4, now)).flatten();
        from.is_some_and(|from| self.start(mover, from, Target::Pool, attempt))
    }

    /// Moves a page because somebody asked for it, whatever the ages are. A class keeps its last page.
    pub fn move_page(&self, from: usize, to: usize, own: &mut Stripe, now: Now) -> PageMove {
        let Some(mut mover) = try_lock(&self.mover) else {
            return PageMove::Busy;
        };
        if mover.current.is_some() {
            return PageMove::Busy;
        }
        let has_spare = lock(&self.classes[from]).pages.len() > 1;
        if !has_spare || !self.start(&mut mover, from, Target::Class(to), 0) {
            return PageMove::NoSpare;
        }
        match self.step(&mut mover, usize::MAX, own, now) {
            Progress::Moved => PageMove::Moved,
            Progress::Unfinished | Progress::GivenUp => PageMove::Busy,
        }
    }

    /// Brings a page to a class that cannot go on without one, or to the index.
    ///
    /// Several threads may be here, each with a stripe whose items the others cannot touch. So each goes through the page
    /// under way once, whoever needs it, and lets the others do so before it looks again.
    pub fn seize_page(&self, to: Option<usize>, own: &mut Stripe, now: Now) -> Result<(), NoRoom> {
        let (target, mut choice) = (to.map_or(Target::Index, Target::Class), 0);
        for round in 0..SEIZURE_ROUNDS_MAX {
            if round > 0 {
                give_way();
            }
            let mut mover = lock(&self.mover);
            if mover.current.is_none() {
                let from = self.oldest(to, choice / 4, now).ok_or(NoRoom)?;
                let has_begun = self.start(&mut mover, from, target, choice);
                choice += 1;
                if !has_begun {
                    continue;
                }
            }
            let Some(current) = &mover.current else { continue };
            let (is_ours, chunks) = (current.to == target, self.geometry.chunks_per_page(current.from));
            if self.step(&mut mover, chunks, own, now) == Progress::Moved && is_ours {
                return Ok(());
            }
        }
        Err(NoRoom)
    }

    /// Gives up a page that is on its way, so that each page is somebody's. Says whether the index has a page already for
    /// its next bucket.
    pub fn settle(&self) -> bool {
        let mut mover = lock(&self.mover);
        if let Some(current) = mover.current.take() {
            let mut class = lock(&self.classes[current.from]);
            class.draining = None;
            self.keep(&mut class, current.page);
        }
        if let Some(page) = mover.index_spare.take() {
            self.return_page(page);
        }
        mover.is_index_page_added
    }

    /// What [`Memory::settle`] has said in an earlier life.
    pub fn set_index_page_added(&self, is_added: bool) {
        lock(&self.mover).is_index_page_added = is_added;
    }

    /// Adds buckets to the index if a stripe with so many items asks for them.
    pub fn grow_index(&self, own: &mut Stripe, now: Now) {
        /// More than one, so that the index can catch up.
        const BUCKETS_PER_STORE_MAX: usize = 2;
        for _ in 0..BUCKETS_PER_STORE_MAX {
            if !self.index.wants_growth(own.items(), self.items.load(Relaxed)) || !self.grow_index_by_one(own, now) {
                return;
            }
        }
    }

    /// Adds as many buckets as it takes for each stripe to get one, or as many as there may be; says whether it is any.
    pub fn grow_index_in_all_stripes(&self, own: &mut Stripe, now: Now) -> bool {
        let grow = |_| self.index.may_grow(self.items.load(Relaxed)) && self.grow_index_by_one(own, now);
        (0..self.stripes.len()).map(grow).take_while(|&has_grown| has_grown).count() > 0
    }

    /// Adds a bucket, unless others are in the way or there is no room.
    fn grow_index_by_one(&self, own: &mut Stripe, now: Now) -> bool {
        let Some(mut mover) = try_lock(&self.mover) else {
            return false;
        };
        if self.index.wants_page() && !mover.is_index_page_added {
            let Some(page) = mover.index_spare.take().or_else(|| self.take_page()) else {
                self.bring_page_to_index(&mut mover, own, now);
                return false;
            };
            self.index.add_page(page);
            mover.is_index_page_added = true;
        }
        let grow = |_: &mut Stripe| self.index.grow(&self.region, |item| self.hashed_key(item));
        let has_grown = self.try_stripe(self.index.growing_lane(), own, grow).is_some();
        mover.is_index_page_added &= !has_grown;
        has_grown
    }

    /// Brings a page to timers that found none, a step with each call: like any page that moves, from the oldest class.
    pub fn supply_timers(&self, own: &mut Stripe, now: Now) {
        if !self.do_timers_want_page() {
            return;
        }
        let Some(mut mover) = try_lock(&self.mover) else {
            return;
        };
        if mover.current.is_none()
            && let Some(from) = self.oldest(None, 0, now)
        {
            self.start(&mut mover, from, Target::Class(self.geometry.timer_class()), 0);
        }
        self.step(&mut mover, STEP_CHUNKS, own, now);
    }

    fn bring_page_to_index(&self, mover: &mut Mover, own: &mut Stripe, now: Now) {
        if mover.current.is_none()
            && let Some(from) = self.oldest(None, 0, now)
        {
            self.start(mover, from, Target::Index, 0);
        }
        self.step(mover, STEP_CHUNKS, own, now);
    }

    /// The class that should give `class` a page, if it deserves one.
    fn donor_for(&self, class: usize, now: Now) -> Option<usize> {
        let own = self.ages[class].weighted(now)?;
        let (mut sum, mut count, mut oldest) = (0.0, 0, None);
        for (other, age) in self.item_ages().filter(|&(other, _)| other != class) {
            let Some(age) = age.weighted(now) else {
                continue;
            };
            (sum, count) = (sum + age, count + 1);
            if oldest.is_none_or(|(_, oldest)| age > oldest) {
                oldest = Some((other, age));
            }
        }
        let (oldest, _) = oldest?;
        (own < (1.0 - YOUNGER_BY) * sum / f64::from(count)).then_some(oldest)
    }

    /// The class with the greatest age, without the given one and `skip` that are older still. Among equals, as in a store that
    /// was filled within a second, the one with most pages: else they would take the same page from each other.
    fn oldest(&self, without: Option<usize>, skip: usize, now: Now) -> Option<usize> {
        let ages = self.item_ages().filter(|&(class, _)| Some(class) != without);
        let ages = ages.filter_map(|(class, age)| Some((age.weighted(now)?, age.pages.load(Relaxed), class)));
        let mut ages: Vec<_> = ages.collect();
        ages.sort_by(|one, other| other.0.total_cmp(&one.0).then(other.1.cmp(&one.1)));
        ages.get(skip % ages.len().max(1)).map(|&(_, _, class)| class)
    }

    /// The ages of the classes that hold items.
    fn item_ages(&self) -> impl Iterator<Item = (usize, &Age)> {
        self.ages[..self.geometry.timer_class()].iter().enumerate()
    }

    /// Begins to clear a page: the one that the hand comes to next, or one of those after it.
    fn start(&self, mover: &mut Mover, from: usize, to: Target, choice: usize) -> bool {
        let mut class = lock(&self.classes[from]);
        if class.pages.is_empty() {
            return false;
        }
        let page = class.pages[(class.hand.0 + 1 + choice) % class.pages.len()];
        self.detach(&mut class, page);
        class.draining = Some(page);
        mover.current = Some(Move { from, to, page, chunk_next: 0, rounds: 0 });
        true
    }

    /// Clears so many chunks of the page under way; the last step hands it over.
    fn step(&self, mover: &mut Mover, chunks: usize, own: &mut Stripe, now: Now) -> Progress {
        let Some(current) = &mut mover.current else {
            return Progress::Unfinished;
        };
        let record = &self.page_records[current.page as usize];
        let mut spoils = Vec::new();
        let mut class = lock(&self.classes[current.from]);
        let mut spare = None;
        for _ in 0..chunks {
            if current.chunk_next >= record.carved() {
                current.chunk_next = 0;
                current.rounds += 1;
            }
            if record.taken() == 0 || current.rounds > ROUNDS_MAX {
                break;
            }
            let chunk = handle(current.page, current.chunk_next);
            current.chunk_next += 1;
            self.clear(chunk, &mut class, &mut spare, own, &mut spoils, now);
            // Further pieces of an evicted item may lie in this page too, and belong to this class.
            self.free_those_of(&mut class, &mut spoils);
        }
        if let Some(spare) = spare {
            self.free_in(&mut class, spare);
        }
        let progress = match record.taken() {
            0 => Progress::Moved,
            _ if current.rounds > ROUNDS_MAX => Progress::GivenUp,
            _ => Progress::Unfinished,
        };
        let (page, from, to) = (current.page, current.from, current.to);
        if progress != Progress::Unfinished {
            class.draining = None;
            mover.current = None;
        }
        match progress {
            Progress::GivenUp => self.keep(&mut class, page),
            Progress::Moved => self.unset_page_class(page),
            Progress::Unfinished => {}
        }
        drop(class);
        self.free_all(&spoils);
        if progress == Progress::Moved {
            self.page_moves.fetch_add(1, Relaxed);
            self.class_counters[from].pages_given.fetch_add(1, Relaxed);
            match to {
                Target::Class(to) => {
                    self.class_counters[to].pages_gained.fetch_add(1, Relaxed);
                    self.attach(&mut lock(&self.classes[to]), page, now);
                    if to == self.geometry.timer_class() {
                        self.timers_want_page.store(false, Relaxed);
                    }
                }
                Target::Index => mover.index_spare = Some(page),
                Target::Pool => self.return_page(page),
            }
        }
        progress
    }

    fn free_those_of(&self, class: &mut Class, spoils: &mut Vec<Handle>) {
        spoils.retain(|&chunk| {
            let is_other = self.class_of(chunk) != class.class;
            if !is_other {
                self.free_in(class, chunk);
            }
            is_other
        });
    }

    /// Frees one chunk of a page that moves away, if it can be had.
    fn clear(
        &self,
        chunk: Handle,
        class: &mut Class,
        spare: &mut Option<Handle>,
        own: &mut Stripe,
        spoils: &mut Vec<Handle>,
        now: Now,
    ) {
        let usage = self.usage(chunk);
        let is_head = match usage.state() {
            State::Free | State::Taken => return,
            State::Head => true,
            State::Follower => false,
        };
        if is_head && spare.is_none() && self.is_worth_moving(&self.header(chunk), now) {
            *spare = self.take_free_here(class).or_else(|| self.sweep(class, own, spoils, now));
        }
        let lane = usage.lane();
        let clear = |stripe: &mut Stripe| {
            let usage = self.usage(chunk);
            if usage.lane() != lane || usage.state() != if is_head { State::Head } else { State::Follower } {
                return false;
            }
            let head = if is_head { chunk } else { Handle(self.first_word(chunk)) };
            let header = self.header(head);
            match spare.take_if(|_| is_head && self.is_worth_moving(&header, now)) {
                Some(spare) => self.carry_over(head, spare, &header, stripe, now),
                None => {
                    self.evict(head, &header, stripe, spoils, now);
                    self.note_age(class.class, &header, now);
                    spoils.push(head);
                    spoils.retain(|&piece| piece != chunk);
                }
            }
            true
        };
        if self.try_stripe(lane, own, clear) == Some(true) {
            self.free_in(class, chunk);
        }
    }

    fn is_worth_moving(&self, header: &Header, now: Now) -> bool {
        header.usage.clock() > 0 && !header.is_chained() && !header.is_stale() && !header.is_past(now)
    }

    /// Puts an item into another chunk of its class, as it is.
    fn carry_over(&self, from: Handle, to: Handle, header: &Header, stripe: &mut Stripe, now: Now) {
        let key = self.hashed_key(from);
        let slot = self.index.slot_of(&self.region, key, from);
        self.copy_payload(from, to, header);
        self.set_header(to, header);
        self.index.put(&self.region, slot, key, to);
        self.set_usage(from, Usage::taken());
        self.items_moved.fetch_add(1, Relaxed);
        self.begin_timer(stripe, to, now);
    }
}

#[cfg(test)]
mod tests;
