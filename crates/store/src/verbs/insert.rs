//! Storing an item: its chunks, its slot in the index, its timer. Every verb that stores uses it.

use super::{ItemRef, StripeGuard};
use crate::memory::OutOfMemory;
use crate::memory::chunk::{
    self, CHAIN_BYTES, CLOCK_MAX, ChunkKind, EXTENSION_BYTES, FLAGS_BYTES, HEADER_BYTES, Header, Parts, Usage,
};
use crate::memory::handle::{Handle, SlotAt};
use crate::meta_state::MetaState;
use crate::{Expiry, HashedKey, Now};
use lookaside_protocol::Cas;

/// How often each stripe gets another bucket before an item is evicted for its slot.
const GROWTHS_MAX: usize = 4;

/// The parts of an item, beside its key.
pub(super) struct NewContent<'a> {
    pub flags: u32,
    pub expiry: Expiry,
    /// `None`: a live value.
    pub stale_until_ms: Option<u64>,
    pub value: &'a [u8],
    /// A meta state, and a CAS unique that a client chose.
    pub extension: Option<Extension>,
    /// The usage of the item that it replaces, if it keeps that.
    pub usage: Option<Usage>,
}

impl<'a> NewContent<'a> {
    /// A live value.
    pub fn live(flags: u32, expiry: Expiry, value: &'a [u8]) -> NewContent<'a> {
        NewContent { flags, expiry, stale_until_ms: None, value, extension: None, usage: None }
    }
}

/// The parts that few items have.
#[derive(Clone, Copy)]
pub(super) struct Extension {
    pub meta_state: MetaState,
    /// `None`: the next unique of the stripe.
    pub cas: Option<Cas>,
}

impl Extension {
    /// An extension for a CAS unique that a client chose.
    pub fn with_client_cas(cas: Option<Cas>) -> Option<Extension> {
        cas.map(|cas| Extension { meta_state: MetaState::NONE, cas: Some(cas) })
    }
}

impl StripeGuard<'_> {
    /// Stores `content` under `key`, in place of an older item. If no memory can be freed, the older item stays, unless
    /// it was evicted on the way.
    pub(super) fn insert(
        &mut self,
        key: HashedKey<'_>,
        content: &NewContent<'_>,
        now: Now,
    ) -> Result<Cas, OutOfMemory> {
        let (handle, header) = self.build(key, content, now)?;
        let (memory, reclaimer) = (&self.shared.memory, &self.shared.reclaimer);
        let (pages, index) = (&memory.pages, &memory.index);
        let cas = self.cas(pages.offset_of(handle), &header);
        // Only now, because the older item may have been evicted for the new one.
        let header = match self.find(key) {
            Some(old) => {
                let clock = (old.header.usage.clock() + 1).min(CLOCK_MAX);
                let usage = match content.usage {
                    Some(usage) => usage,
                    None => header.usage.with_clock(if content.stale_until_ms.is_none() { clock } else { 0 }),
                };
                pages.publish_continuations(handle, &header, self.stripe.number, now);
                let header = Header { usage, ..header };
                pages.set_header(handle, &header);
                index.set_slot(&pages.region, old.slot, key, handle);
                let new_bytes = pages.item_bytes(pages.offset_of(handle), &header);
                self.stripe.replace_item(pages.item_bytes(old.at, &old.header), new_bytes);
                self.free_item(old);
                header
            }
            None => {
                // Else a get that misses this item later would be taken for one of an earlier item.
                self.take_removal_reason(key);
                let slot = match self.find_slot(key, now) {
                    Ok(slot) => slot,
                    Err(OutOfMemory) => {
                        let mut freed = vec![handle];
                        pages.unlink_chunks(handle, &header, &mut freed);
                        memory.slabs.free_all(pages, &freed);
                        return Err(OutOfMemory);
                    }
                };
                pages.publish_continuations(handle, &header, self.stripe.number, now);
                pages.set_header(handle, &header);
                index.set_slot(&pages.region, slot, key, handle);
                self.stripe.add_item(&memory.items, pages.item_bytes(pages.offset_of(handle), &header));
                header
            }
        };
        memory.timers.start(pages, &memory.slabs, &mut self.stripe, (handle, &header), now);
        // Last, since these may evict any item.
        reclaimer.rebalancer.move_page_to_timers_if_needed(memory, &reclaimer.evictor, &mut self.stripe, now);
        reclaimer.rebalancer.grow_index(memory, &reclaimer.evictor, &mut self.stripe, now);
        Ok(cas)
    }

    pub(super) fn make_stale(&mut self, found: ItemRef, until_ms: u64, now: Now) {
        let memory = &self.shared.memory;
        let header = found.header.into_stale(until_ms);
        memory.pages.set_header(found.handle, &header);
        memory.timers.start(&memory.pages, &memory.slabs, &mut self.stripe, (found.handle, &header), now);
    }

    /// Fills chunks with an item, all but its header, which publishes it.
    fn build(
        &mut self,
        key: HashedKey<'_>,
        content: &NewContent<'_>,
        now: Now,
    ) -> Result<(Handle, Header), OutOfMemory> {
        let (memory, stripe) = (&self.shared.memory, self.stripe.number);
        let (pages, geometry) = (&memory.pages, &memory.pages.geometry);
        let extension_bytes = if content.extension.is_some() { EXTENSION_BYTES } else { 0 };
        let flags_bytes = if content.flags == 0 { 0 } else { FLAGS_BYTES };
        let front_bytes = HEADER_BYTES + flags_bytes + extension_bytes + key.key().len();
        let (class, inline_bytes) = match geometry.class_for(front_bytes + content.value.len()) {
            Some(class) => (class, content.value.len()),
            None => (geometry.timer_class() - 1, geometry.chunk_bytes_max() - front_bytes - CHAIN_BYTES),
        };
        let is_chained = inline_bytes < content.value.len();
        let parts = Parts { has_flags: content.flags != 0, is_extended: content.extension.is_some(), is_chained };
        let shape = chunk::shape(key.key().len(), inline_bytes, parts);
        let expiry_s = chunk::expiry_s(content.expiry);
        let usage = Usage::new(stripe, ChunkKind::Head, 0, now);
        let header = Header { sequence: self.stripe.next_sequence(), expiry_s, shape, usage };
        let header = content.stale_until_ms.map_or(header, |until_ms| header.into_stale(until_ms));

        let head = self.shared.reclaimer.allocate(memory, class, &mut self.stripe, now)?;
        if is_chained {
            match self.build_chain(&content.value[inline_bytes..], now) {
                Ok(first) => pages.set_chain(head, &header, first, content.value.len()),
                Err(OutOfMemory) => {
                    memory.slabs.free(pages, head);
                    return Err(OutOfMemory);
                }
            }
        }
        pages.write_head(head, &header, content.flags, key.key(), content.value);
        if let Some(extension) = content.extension {
            let at = pages.offset_of(head);
            pages.set_meta_state(at, &header, extension.meta_state);
            pages.set_explicit_cas(at, &header, extension.cas.unwrap_or(self.implicit_cas(&header)).0);
        }
        Ok((head, header))
    }

    /// Fills chunks with the rest of a value; returns the first.
    fn build_chain(&mut self, value: &[u8], now: Now) -> Result<Handle, OutOfMemory> {
        let memory = &self.shared.memory;
        let geometry = &memory.pages.geometry;
        let piece_bytes_max = geometry.chunk_bytes_max() - HEADER_BYTES;
        let mut chain = Vec::with_capacity(value.len().div_ceil(piece_bytes_max));
        for piece in value.chunks(piece_bytes_max) {
            let class = geometry.class_for(HEADER_BYTES + piece.len()).expect("pieces fit the largest chunk");
            match self.shared.reclaimer.allocate(memory, class, &mut self.stripe, now) {
                Ok(chunk) => chain.push(chunk),
                Err(OutOfMemory) => {
                    memory.slabs.free_all(&memory.pages, &chain);
                    return Err(OutOfMemory);
                }
            }
        }
        for (place, piece) in value.chunks(piece_bytes_max).enumerate() {
            let next = chain.get(place + 1).map_or(0, |next| next.0);
            memory.pages.write_continuation(chain[place], next, piece);
        }
        Ok(chain[0])
    }

    /// An empty slot for a key that has none; an item may move or be evicted for it. Without evictions there may be
    /// none.
    fn find_slot(&mut self, key: HashedKey<'_>, now: Now) -> Result<SlotAt, OutOfMemory> {
        let (memory, reclaimer) = (&self.shared.memory, &self.shared.reclaimer);
        let (pages, index, region) = (&memory.pages, &memory.index, &memory.pages.region);
        let displace = || index.displace(region, &memory.crawls, key, &|item| pages.hashed_key(item));
        if let Some(slot) = index.find_empty_slot(region, key) {
            return Ok(slot);
        }
        if let Some(slot) = displace() {
            return Ok(slot);
        }
        // While there are few buckets, one stripe may have far more items than its share.
        for _ in 0..GROWTHS_MAX {
            let (rebalancer, evictor) = (&reclaimer.rebalancer, &reclaimer.evictor);
            if !rebalancer.grow_index_in_all_stripes(memory, evictor, &mut self.stripe, now) {
                break;
            }
            if let Some(slot) = index.find_empty_slot(region, key).or_else(displace) {
                return Ok(slot);
            }
        }
        let coldness = |handle| {
            let header = pages.header(handle);
            let is_over = header.is_stale() || header.is_expired(now);
            (is_over, std::cmp::Reverse(header.usage.clock()), header.usage.access_age_s(now))
        };
        let may_remove = |handle| reclaimer.evictor.may_remove(&pages.header(handle), now);
        let candidates = index.candidates(region, key).filter(|&(_, handle)| may_remove(handle));
        let Some((slot, handle)) = candidates.max_by_key(|&(_, handle)| coldness(handle)) else {
            return Err(OutOfMemory);
        };
        let mut freed = vec![handle];
        reclaimer.evictor.evict(memory, handle, &pages.header(handle), &mut self.stripe, &mut freed, now);
        memory.slabs.free_all(pages, &freed);
        Ok(slot)
    }
}
