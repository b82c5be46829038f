//! A walk over all items in bounded steps: for listing keys (`lru_crawler metadump`) and for sampling the working set
//! (§3.2.2 of the paper). Serves no request.
//!
//! The walk goes along the index, one bucket under one stripe's lock at a time; whatever else happens meanwhile goes on.
//! When a bucket is split behind the walk, part of its items move to the end and are seen again. Every item that stays
//! for the whole walk is seen, with one accepted exception: an item that a full index moves from one of its two
//! buckets, not yet walked, to the other, walked already.

use crate::memory::Memory;
use crate::stripe::Locked;
use crate::{ItemView, Now};

/// How far a walk has come. The default is the beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Crawl {
    bucket: usize,
}

impl Memory {
    /// Shows the live items of the next buckets, at most so many; says whether the walk goes on.
    pub fn crawl(&self, crawl: &mut Crawl, buckets_max: usize, now: Now, mut show: impl FnMut(ItemView<'_>)) -> bool {
        for _ in 0..buckets_max {
            if crawl.bucket >= self.index.buckets() {
                return false;
            }
            let lane = crawl.bucket & (self.stripes.len() - 1);
            let locked = Locked::new(self, lane, now);
            for (slot, head) in self.index.items_in(&self.region, crawl.bucket) {
                let found = locked.found_in(slot, head);
                if !found.header.is_stale() && !found.header.is_past(now) {
                    show(locked.view(&found, now));
                }
            }
            crawl.bucket += 1;
        }
        crawl.bucket < self.index.buckets()
    }
}
