//! Moves pages to the slab class with the highest marginal benefit (§6.2 of the paper; memcached: slab automove), in
//! bounded steps with each store.
//!
//! A class that evicts gets a page when its age (`memory/age.rs`) is at least 20 % below the mean of the others, and
//! the class with the greatest age gives one.
//!
//! ```text
//! none --start--> clearing --step--> cleared --> a class | the index | free
//!                    |    \--step-/
//!                    +--ROUNDS_MAX rounds, or abort--> back to its class
//! ```
//! The page that is given is the one that the hand comes to next, whose items have gone without access for the longest
//! time. Those of its items that were accessed lately are relocated to other chunks of their class, the others are
//! evicted. One page moves at a time, by [`STEP_CHUNKS`] chunks with each store that evicts, so that no single store
//! bears the cost; only a class without any page waits for one.
//!
//! Without evictions all live items of the page are relocated. If one cannot be, since its class has no free chunk or
//! it lies in several, the page stays where it is.

use super::eviction::Evictor;
use crate::memory::age::Age;
use crate::memory::chunk::{ChunkKind, Header, Usage};
use crate::memory::geometry::Geometry;
use crate::memory::handle::Handle;
use crate::memory::slab::Class;
use crate::memory::{Memory, OutOfMemory};
use crate::stripe::Stripe;
use crate::sync::{Mutex, lock, try_lock, yield_now};
use crate::{Now, PageMove};
use lookaside_sync::SharedCounter;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// A class gets a page if its age is lower by this part than the mean of the others (§6.2).
const AGE_GAP_MIN: f64 = 0.2;
/// How often a class is considered for a page while it evicts as many items as fill one.
const CHECKS_PER_PAGE: usize = 4;
pub(super) const STEP_CHUNKS: usize = 64;
/// A page that cannot be cleared in this many rounds stays in its class: other threads use its items.
const ROUNDS_MAX: usize = 4;
/// How many rounds through pages are made for a class that has none: enough for sixteen pages that cannot be cleared.
const STEAL_ROUNDS_MAX: usize = 80;
/// The same without evictions, where most pages cannot be cleared, and a store that is refused should cost little. A
/// page that stays comes behind the others, so that the next store tries other pages.
const STEAL_ROUNDS_MAX_WITHOUT_EVICTIONS: usize = 16;

/// The page that moves, and its progress. Its lock also guards the growth of the index.
#[derive(Default)]
pub(super) struct Mover {
    pub current: Option<Move>,
    /// A page that has moved to the index and is not used yet.
    pub index_spare: Option<u32>,
    /// The next run of buckets has its page already.
    pub is_index_page_added: bool,
}

/// The receiver of a page.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Target {
    Class(usize),
    Index,
    /// The page becomes free: the memory limit was lowered.
    Free,
}

pub(super) struct Move {
    from: usize,
    to: Target,
    page: u32,
    chunk_next: usize,
    rounds: usize,
}

#[derive(PartialEq, Eq)]
pub(super) enum MoveProgress {
    Unfinished,
    Moved,
    GivenUp,
}

#[derive(PartialEq, Eq)]
enum ClearedChunk {
    /// It is the caller's now.
    Cleared,
    /// Another thread has changed it meanwhile.
    Changed,
    /// Its item is live, can go nowhere, and must not be evicted.
    MustStay,
}

pub(crate) struct Rebalancer {
    pub(super) mover: Mutex<Mover>,
    pub is_enabled: AtomicBool,
    pub page_moves: SharedCounter,
    pub items_moved: SharedCounter,
}

/// Counts an eviction of a class; returns whether the class should be considered for another page.
pub(super) fn count_eviction(class: &mut Class, geometry: &Geometry) -> bool {
    class.evictions_until_rebalance = class.evictions_until_rebalance.saturating_sub(1);
    let is_due = class.evictions_until_rebalance == 0;
    if is_due {
        class.evictions_until_rebalance = (geometry.chunks_per_page(class.number) / CHECKS_PER_PAGE).max(1);
    }
    is_due
}

impl Rebalancer {
    pub fn new(is_enabled: bool) -> Rebalancer {
        Rebalancer {
            mover: Mutex::default(),
            is_enabled: AtomicBool::new(is_enabled),
            page_moves: SharedCounter::default(),
            items_moved: SharedCounter::default(),
        }
    }

    /// Takes a step of the move under way; else starts one if the limit was lowered, or if `class` is due for a page
    /// and deserves one.
    pub fn rebalance(
        &self,
        memory: &Memory,
        evictor: &Evictor,
        class: usize,
        is_due: bool,
        own: &mut Stripe,
        now: Now,
    ) {
        let Some(mut mover) = try_lock(&self.mover) else {
            return;
        };
        if mover.current.is_some() {
            self.step(memory, evictor, &mut mover, STEP_CHUNKS, own, now);
        } else if memory.pages.pages_over_limit() > 0 {
            mover.start_shrinking(memory, 0, now);
        } else if is_due
            && self.is_enabled.load(Relaxed)
            && let Some(from) = donor_for(memory, class, now)
        {
            mover.start(memory, from, Target::Class(class), 0);
        }
    }

    /// Clears a page if more are used than the limit allows; `false` if there is nothing more to do.
    pub fn shrink(&self, memory: &Memory, evictor: &Evictor, attempt: usize, own: &mut Stripe, now: Now) -> bool {
        let mut mover = lock(&self.mover);
        if mover.current.is_none() && !mover.start_shrinking(memory, attempt, now) {
            return false;
        }
        self.step(memory, evictor, &mut mover, usize::MAX, own, now);
        true
    }

    /// Moves a page on request, whatever the ages are. A class keeps its last page.
    pub fn move_page(
        &self,
        memory: &Memory,
        evictor: &Evictor,
        from: usize,
        to: usize,
        own: &mut Stripe,
        now: Now,
    ) -> PageMove {
        let Some(mut mover) = try_lock(&self.mover) else {
            return PageMove::Busy;
        };
        if mover.current.is_some() {
            return PageMove::Busy;
        }
        let has_spare = lock(&memory.slabs.classes[from]).pages.len() > 1;
        if !has_spare || !mover.start(memory, from, Target::Class(to), 0) {
            return PageMove::NoSpare;
        }
        match self.step(memory, evictor, &mut mover, usize::MAX, own, now) {
            MoveProgress::Moved => PageMove::Moved,
            MoveProgress::Unfinished | MoveProgress::GivenUp => PageMove::Busy,
        }
    }

    /// Takes a page from another class, for a class that has none or for the index.
    ///
    /// Several threads may do this at once, each holding a stripe whose items the others cannot clear. So each goes
    /// through the page under way once, whatever its target, and lets the others do so before it tries again.
    pub fn steal_page(
        &self,
        memory: &Memory,
        evictor: &Evictor,
        to: Option<usize>,
        own: &mut Stripe,
        now: Now,
    ) -> Result<(), OutOfMemory> {
        let (target, mut choice) = (to.map_or(Target::Index, Target::Class), 0);
        let rounds = match evictor.evicts_live_items {
            true => STEAL_ROUNDS_MAX,
            false => STEAL_ROUNDS_MAX_WITHOUT_EVICTIONS,
        };
        for round in 0..rounds {
            if round > 0 {
                yield_now();
            }
            let mut mover = lock(&self.mover);
            if mover.current.is_none() {
                let from = oldest_class(memory, to, choice / 4, now).ok_or(OutOfMemory)?;
                let has_started = mover.start(memory, from, target, choice);
                choice += 1;
                if !has_started {
                    continue;
                }
            }
            let Some(current) = &mover.current else { continue };
            let (is_ours, chunks) = (current.to == target, memory.pages.geometry.chunks_per_page(current.from));
            if self.step(memory, evictor, &mut mover, chunks, own, now) == MoveProgress::Moved && is_ours {
                return Ok(());
            }
        }
        Err(OutOfMemory)
    }

    /// Aborts the move under way, so that each page has an owner. Returns whether the index has a page already for its
    /// next bucket.
    pub fn abort_move(&self, memory: &Memory) -> bool {
        let mut mover = lock(&self.mover);
        if let Some(current) = mover.current.take() {
            let mut class = lock(&memory.slabs.classes[current.from]);
            class.draining = None;
            memory.slabs.reattach_page(&memory.pages, &mut class, current.page);
        }
        if let Some(page) = mover.index_spare.take() {
            memory.pages.free_page(page);
        }
        mover.is_index_page_added
    }

    /// Restores what [`Rebalancer::abort_move`] returned to an earlier process.
    pub fn set_index_page_added(&self, is_added: bool) {
        lock(&self.mover).is_index_page_added = is_added;
    }

    /// Moves a page to the timers if they need one, a step with each call: from the class with the greatest age.
    #[inline]
    pub fn move_page_to_timers_if_needed(&self, memory: &Memory, evictor: &Evictor, own: &mut Stripe, now: Now) {
        if memory.timers.needs_page(&memory.pages, &memory.slabs) {
            self.move_page_to_timers(memory, evictor, own, now);
        }
    }

    fn move_page_to_timers(&self, memory: &Memory, evictor: &Evictor, own: &mut Stripe, now: Now) {
        let Some(mut mover) = try_lock(&self.mover) else {
            return;
        };
        if mover.current.is_none()
            && let Some(from) = oldest_class(memory, None, 0, now)
        {
            mover.start(memory, from, Target::Class(memory.pages.geometry.timer_class()), 0);
        }
        self.step(memory, evictor, &mut mover, STEP_CHUNKS, own, now);
    }

    /// Clears up to `chunks` chunks of the page under way; the last step hands the page over.
    pub(super) fn step(
        &self,
        memory: &Memory,
        evictor: &Evictor,
        mover: &mut Mover,
        chunks: usize,
        own: &mut Stripe,
        now: Now,
    ) -> MoveProgress {
        let Some(current) = &mut mover.current else {
            return MoveProgress::Unfinished;
        };
        let (from, to, page) = (current.from, current.to, current.page);
        let mut freed = Vec::new();
        let mut class = lock(&memory.slabs.classes[from]);
        let progress = self.clear_chunks(memory, evictor, current, &mut class, chunks, own, &mut freed, now);
        if progress != MoveProgress::Unfinished {
            class.draining = None;
            mover.current = None;
        }
        match progress {
            MoveProgress::GivenUp => memory.slabs.reattach_page(&memory.pages, &mut class, page),
            MoveProgress::Moved => memory.pages.unset_class(page),
            MoveProgress::Unfinished => {}
        }
        drop(class);
        memory.slabs.free_all(&memory.pages, &freed);
        if progress == MoveProgress::Moved {
            self.page_moves.add(1);
            memory.slabs.counters[from].pages_given.add(1);
            mover.assign_page(memory, page, to, now);
        }
        progress
    }

    #[expect(clippy::too_many_arguments, reason = "the parts of the store come as arguments")]
    fn clear_chunks(
        &self,
        memory: &Memory,
        evictor: &Evictor,
        current: &mut Move,
        class: &mut Class,
        chunks: usize,
        own: &mut Stripe,
        freed: &mut Vec<Handle>,
        now: Now,
    ) -> MoveProgress {
        let record = memory.slabs.record(current.page);
        let mut spare = None;
        for _ in 0..chunks {
            if current.chunk_next >= record.chunks_carved() {
                current.chunk_next = 0;
                current.rounds += 1;
            }
            if record.chunks_used() == 0 || current.rounds > ROUNDS_MAX {
                break;
            }
            let chunk = Handle::new(current.page, current.chunk_next);
            current.chunk_next += 1;
            if !self.clear_chunk(memory, evictor, chunk, class, &mut spare, own, freed, now) {
                current.rounds = ROUNDS_MAX + 1;
            }
            // Further pieces of an evicted item may lie in this page too, and belong to this class.
            free_chunks_of_class(memory, class, freed);
        }
        if let Some(spare) = spare {
            memory.slabs.free_locked(&memory.pages, class, spare);
        }
        match record.chunks_used() {
            0 => MoveProgress::Moved,
            _ if current.rounds > ROUNDS_MAX => MoveProgress::GivenUp,
            _ => MoveProgress::Unfinished,
        }
    }

    /// Frees one chunk of a page that moves away, if its stripe's lock can be taken. `false` if it has an item that
    /// must stay.
    #[expect(clippy::too_many_arguments, reason = "the parts of the store come as arguments")]
    fn clear_chunk(
        &self,
        memory: &Memory,
        evictor: &Evictor,
        chunk: Handle,
        class: &mut Class,
        spare: &mut Option<Handle>,
        own: &mut Stripe,
        freed: &mut Vec<Handle>,
        now: Now,
    ) -> bool {
        let (pages, slabs) = (&memory.pages, &memory.slabs);
        let usage = pages.usage(chunk);
        let kind = usage.kind();
        let is_head = match kind {
            ChunkKind::Free | ChunkKind::Allocated => return true,
            ChunkKind::Head => true,
            ChunkKind::Continuation => false,
        };
        if is_head && spare.is_none() && is_worth_moving(evictor, &pages.header(chunk), now) {
            *spare = slabs.allocate_in_class(pages, class).or_else(|| evictor.sweep(memory, class, own, freed, now));
        }
        let stripe = usage.stripe();
        let clear = |locked: &mut Stripe| {
            let usage = pages.usage(chunk);
            if usage.stripe() != stripe || usage.kind() != kind {
                return ClearedChunk::Changed;
            }
            let head = if is_head { chunk } else { Handle(pages.first_word(chunk)) };
            let header = pages.header(head);
            match spare.take_if(|_| is_head && is_worth_moving(evictor, &header, now)) {
                Some(spare) => self.relocate(memory, head, spare, &header, locked, now),
                None if !evictor.may_remove(&header, now) => return ClearedChunk::MustStay,
                None => {
                    evictor.evict(memory, head, &header, locked, freed, now);
                    slabs.record_evicted_age(class.number, &header, now);
                    freed.push(head);
                    freed.retain(|&piece| piece != chunk);
                }
            }
            ClearedChunk::Cleared
        };
        let cleared = memory.try_stripe(stripe, own, clear);
        if cleared == Some(ClearedChunk::Cleared) {
            slabs.free_locked(pages, class, chunk);
        }
        cleared != Some(ClearedChunk::MustStay)
    }

    /// Moves an item to another chunk of its class, unchanged.
    fn relocate(&self, memory: &Memory, from: Handle, to: Handle, header: &Header, stripe: &mut Stripe, now: Now) {
        let (pages, index) = (&memory.pages, &memory.index);
        let key = pages.hashed_key(from);
        let slot = index.slot_of(&pages.region, key, from);
        pages.copy_payload(from, to, header);
        pages.set_header(to, header);
        index.set_slot(&pages.region, slot, key, to);
        pages.set_usage(from, Usage::allocated());
        self.items_moved.add(1);
        memory.timers.start(pages, &memory.slabs, stripe, (to, header), now);
    }
}

impl Mover {
    /// Starts to clear a page: the one that the hand comes to next, or one of those after it.
    pub fn start(&mut self, memory: &Memory, from: usize, to: Target, choice: usize) -> bool {
        let mut class = lock(&memory.slabs.classes[from]);
        if class.pages.is_empty() {
            return false;
        }
        let page = class.pages[(class.hand.0 + 1 + choice) % class.pages.len()];
        memory.slabs.detach_page(&mut class, page);
        class.draining = Some(page);
        self.current = Some(Move { from, to, page, chunk_next: 0, rounds: 0 });
        true
    }

    fn start_shrinking(&mut self, memory: &Memory, attempt: usize, now: Now) -> bool {
        let is_over = memory.pages.pages_over_limit() > 0;
        let from = is_over.then(|| oldest_class(memory, None, attempt / 4, now)).flatten();
        from.is_some_and(|from| self.start(memory, from, Target::Free, attempt))
    }

    /// Gives a page that was cleared to its target.
    fn assign_page(&mut self, memory: &Memory, page: u32, to: Target, now: Now) {
        match to {
            Target::Class(to) => {
                memory.slabs.counters[to].pages_gained.add(1);
                let mut class = lock(&memory.slabs.classes[to]);
                memory.slabs.attach_page(&memory.pages, &mut class, page, now);
                if to == memory.pages.geometry.timer_class() {
                    memory.timers.record_page();
                }
            }
            Target::Index => self.index_spare = Some(page),
            Target::Free => memory.pages.free_page(page),
        }
    }
}

/// The class that should give `class` a page, if it deserves one.
fn donor_for(memory: &Memory, class: usize, now: Now) -> Option<usize> {
    let own = memory.slabs.ages[class].weighted(now)?;
    let (mut sum, mut count, mut oldest) = (0.0, 0, None);
    for (other, age) in item_ages(memory).filter(|&(other, _)| other != class) {
        let Some(age) = age.weighted(now) else {
            continue;
        };
        (sum, count) = (sum + age, count + 1);
        if oldest.is_none_or(|(_, oldest)| age > oldest) {
            oldest = Some((other, age));
        }
    }
    let (oldest, _) = oldest?;
    (own < (1.0 - AGE_GAP_MIN) * sum / f64::from(count)).then_some(oldest)
}

/// The class with the greatest age, without the given one, after skipping `skip` older ones. Among equals, as in a
/// store that was filled within a second, the one with most pages: else they would take the same page from each other.
pub(super) fn oldest_class(memory: &Memory, without: Option<usize>, skip: usize, now: Now) -> Option<usize> {
    let ages = item_ages(memory).filter(|&(class, _)| Some(class) != without);
    let ages = ages.filter_map(|(class, age)| Some((age.weighted(now)?, age.pages(), class)));
    let mut ages: Vec<_> = ages.collect();
    ages.sort_by(|one, other| other.0.total_cmp(&one.0).then(other.1.cmp(&one.1)));
    ages.get(skip % ages.len().max(1)).map(|&(_, _, class)| class)
}

/// The ages of the classes that hold items.
fn item_ages(memory: &Memory) -> impl Iterator<Item = (usize, &Age)> {
    memory.slabs.ages[..memory.pages.geometry.timer_class()].iter().enumerate()
}

fn free_chunks_of_class(memory: &Memory, class: &mut Class, freed: &mut Vec<Handle>) {
    freed.retain(|&chunk| {
        let is_other = memory.pages.class_of(chunk) != class.number;
        if !is_other {
            memory.slabs.free_locked(&memory.pages, class, chunk);
        }
        is_other
    });
}

fn is_worth_moving(evictor: &Evictor, header: &Header, now: Now) -> bool {
    let is_wanted = header.usage.clock() > 0 || !evictor.evicts_live_items;
    is_wanted && !header.is_chained() && !header.is_stale() && !header.is_expired(now)
}

#[cfg(test)]
mod tests;
