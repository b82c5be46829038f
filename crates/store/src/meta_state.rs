//! Marks that the meta dialect puts on an item: it is out of date, somebody is about to replace it, it has no value yet.
//!
//! | | put by | taken away by | a verb without marks |
//! |---|---|---|---|
//! | stale | a delete that invalidates, a store with a unique that is too old | a store | finds nothing |
//! | stub | a look that vivifies | a store | finds nothing |
//! | won | the first look after either, or near the item's end | a store, a delete that invalidates | sees the item |
//!
//! They are memcached's, and none of a lease's business: an item that was deleted is stale in another way
//! (`record.rs`), for a time that the store sets, and only a lease-get is shown it.

/// A set of marks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Marks(pub u32);

impl Marks {
    pub const NONE: Marks = Marks(0);
    /// The value is out of date.
    pub const STALE: Marks = Marks(1);
    /// A client has been told that it is the one to replace the value.
    pub const WON: Marks = Marks(2);
    /// There is no value yet.
    pub const STUB: Marks = Marks(4);

    pub fn has(self, mark: Marks) -> bool {
        self.0 & mark.0 != 0
    }

    pub fn with(self, mark: Marks) -> Marks {
        Marks(self.0 | mark.0)
    }

    /// Those of these that are among `others` too.
    pub fn only(self, others: Marks) -> Marks {
        Marks(self.0 & others.0)
    }

    /// Whether verbs that know no marks find nothing.
    pub fn hide(self) -> bool {
        self.has(Marks::STALE.with(Marks::STUB))
    }
}
