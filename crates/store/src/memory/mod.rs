//! Where items live. All stripes share it.
//!
//! [`Pages`] cuts the region into pages, [`Slabs`] cuts pages into the chunks of slab classes, [`Index`] finds the
//! chunk of a key, [`Timers`] lists the items that expire soon. Nothing here evicts: that is `reclaim`.
//!
//! Lock order, for the whole crate:
//!
//! | lock | may be taken while holding | never while holding |
//! |---|---|---|
//! | a stripe (`stripe/mod.rs`) | none of these | any of these |
//! | a second stripe, only tried | a stripe, the page mover, a class | the free pages |
//! | the page mover (`reclaim/rebalance.rs`) | a stripe | a class, the free pages |
//! | a class of items (`slab.rs`) | a stripe, the page mover | another class, the free pages |
//! | the class of timer blocks (`transient.rs`) | a stripe, the page mover, a class of items | the free pages |
//! | the free pages (`pages.rs`) | all of these | – |
//!
//! An item that is relocated gets a new timer, so the class of timer blocks comes after that of its item.
//!
//! A second stripe is never waited for: a thread that evicts holds a class, and skips victims whose stripe is busy. The
//! locks of crawls (`crawl_registry.rs`) are taken last.

pub(crate) mod age;
pub(crate) mod audit;
pub(crate) mod chunk;
pub(crate) mod class_counters;
pub(crate) mod crawl_registry;
pub(crate) mod geometry;
pub(crate) mod handle;
pub(crate) mod index;
pub(crate) mod key;
pub(crate) mod pages;
pub(crate) mod region;
pub(crate) mod slab;
pub(crate) mod slab_stats;
pub(crate) mod sysv_shm;
pub(crate) mod transient;

use crate::options::Options;
use crate::stripe::{Stripe, StripeLock};
use crate::sync::try_lock;
use crawl_registry::CrawlRegistry;
use geometry::Geometry;
use index::Index;
use pages::Pages;
use region::Region;
use slab::Slabs;
use std::sync::atomic::AtomicUsize;
use transient::Timers;

pub(crate) struct OutOfMemory;

/// The memory of a store, and the locks around its parts.
pub(crate) struct Memory {
    pub pages: Pages,
    pub index: Index,
    pub slabs: Slabs,
    pub timers: Timers,
    pub crawls: CrawlRegistry,
    pub stripes: Box<[StripeLock]>,
    /// The number of all items, up to an eighth out of date.
    pub items: AtomicUsize,
}

impl Memory {
    /// An empty memory in a region that has the geometry's size.
    pub fn new(options: &Options, geometry: Geometry, stripes: Box<[StripeLock]>, region: Region) -> Memory {
        Memory {
            index: Index::new(&geometry),
            slabs: Slabs::new(&geometry, options.age_exponent),
            timers: Timers::new(options.transient_s),
            pages: Pages::new(options, geometry, region),
            crawls: CrawlRegistry::default(),
            stripes,
            items: AtomicUsize::new(0),
        }
    }

    /// Runs `act` on stripe number `stripe` if it is `own`, or if its lock is free.
    pub fn try_stripe<R>(&self, stripe: usize, own: &mut Stripe, act: impl FnOnce(&mut Stripe) -> R) -> Option<R> {
        if stripe == own.number {
            return Some(act(own));
        }
        try_lock(&self.stripes[stripe].0).map(|mut stripe| act(&mut stripe))
    }
}
