//! The memory of one server.
//!
//! A get looks its keys up in a batch under a [`Reader`]: index lines are prefetched, then items, then each item is
//! shown to a closure that renders the reply straight from it.
//!
//! | | live item | stale value | lease | hold-off |
//! |---|---|---|---|---|
//! | get | shown | never shown | – | – |
//! | lease-get | shown | shown as such | acquired on a miss, one per interval | – |
//! | set | replaced | dropped | voided | ended |
//! | add | refused | dropped | voided | refused while it lasts |
//! | replace, cas, append, prepend, incr, decr | changed | treated as absent | voided | – |
//! | lease-set | refused | refreshed if the token is void, replaced if it holds | used up | – |
//! | delete | becomes stale, or is removed | kept | voided | started |
//! | flush | removed | removed | voided | – |
//!
//! A lease-set may fill during a hold-off: a token that holds was issued after the delete, so its reader has read the
//! database since.
//!
//! The meta verbs also see an item that a get created without a value (a placeholder), and one that was marked as out
//! of date (`meta_state.rs`): memcached's answer to the thundering herds that leases hold back.
//!
//! | | placeholder | marked as stale |
//! |---|---|---|
//! | meta get ([`Reader::meta_get`]) | shown, without a value | shown as such; the first one wins |
//! | get, touch, replace, cas, append, incr | treated as absent | treated as absent |
//! | lease-get | treated as absent: a token | shown as stale, with a token |
//! | set, add, lease-set with a token that holds | replaced | replaced |
//! | lease-set with a void token | refused | refused |
//! | delete | removed | becomes a stale value as a live one does, or is removed |
//!
//! Creating a placeholder voids no lease; marking an item as stale does. A win is not a lease: it refuses no store.
//!
//! Keys are spread over stripes, each with its own lock (`stripe`). Items lie in memory that all stripes share
//! (`memory`). When no chunk is free, `reclaim` evicts an item, or the store is refused ([`Options::evictions`]). No
//! lock is shared by all verbs; `memory/mod.rs` has the order of locks.
//!
//! A store can outlive its process: [`Store::attach`] and [`Store::save`] (`warm_restart`).
//!
//! Nothing here knows the network or reads a clock: `now` comes in with every call, and never goes back.

mod ages;
mod crawl;
mod item;
mod memory;
mod meta_conditions;
mod meta_state;
mod options;
mod outcome;
mod reclaim;
mod shared;
mod snapshot_codec;
mod stats;
mod store;
mod stripe;
mod sync;
mod time;
mod verbs;
mod warm_restart;

pub use ages::{ItemAge, StoreNumber};
pub use crawl::{Crawl, CrawlItem, Reclaimed};
pub use item::{ItemView, NewItem, Value};
pub use memory::key::{HashedKey, KeyHasher};
pub use memory::slab_stats::ClassStatistics;
pub use meta_conditions::{
    MetaArithmetic, MetaArithmeticOutcome, MetaDelete, MetaDeleteOutcome, MetaGet, MetaGetOutcome, MetaSet, Recache,
};
pub use options::{Options, OptionsError};
pub use outcome::{ArithmeticOutcome, DeleteOutcome, LeaseGet, LeaseSetOutcome, PageMove, StoreOutcome};
pub use reclaim::eviction::{Evicted, EvictionHook};
pub use stats::Statistics;
pub use store::{Reader, Store};
pub use time::{Expiry, Now};
pub use warm_restart::{
    ColdStartReason, Preparation, RegionError, RegionName, RemovedRegion, Saved, Start, remove_region,
};
