//! The state that meta commands give an item: it is out of date, a client is about to replace it, it has no value yet.
//!
//! | | set by | cleared by | a classic verb |
//! |---|---|---|---|
//! | stale | a delete that invalidates, a store with a CAS unique that is too old | a store | misses |
//! | placeholder | a get that vivifies | a store | misses |
//! | won | the first get after either, or near the item's end | a store, a delete that invalidates | shows the item |
//!
//! These flags are memcached's and are not leases. An item that was deleted is stale in another way
//! (`memory/chunk.rs`): for `stale_ms`, and only a lease-get shows it.

/// A set of flags.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct MetaState(pub u32);

impl MetaState {
    pub const NONE: MetaState = MetaState(0);
    /// The value is out of date.
    pub const STALE: MetaState = MetaState(1);
    /// A client has won, and is to replace the value.
    pub const WON: MetaState = MetaState(2);
    /// The item has no value yet.
    pub const PLACEHOLDER: MetaState = MetaState(4);

    pub fn contains_any(self, flags: MetaState) -> bool {
        self.0 & flags.0 != 0
    }

    pub fn with(self, flags: MetaState) -> MetaState {
        MetaState(self.0 | flags.0)
    }

    pub fn intersect(self, flags: MetaState) -> MetaState {
        MetaState(self.0 & flags.0)
    }

    /// Whether classic verbs miss the item.
    pub fn is_hidden(self) -> bool {
        self.contains_any(MetaState::STALE.with(MetaState::PLACEHOLDER))
    }
}
