//! What came of a mutation: one narrow enum each.

use lookaside_protocol::Cas;

/// What came of a set, add, replace, append, prepend or cas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreOutcome {
    /// Stored, with this CAS unique.
    Stored(Cas),
    /// The mode's condition did not hold, or a hold-off refused an `add`.
    NotStored,
    /// `cas`: the item has changed since.
    Exists,
    /// `cas`: there is no item.
    NotFound,
    /// Larger than the largest item.
    TooLarge,
    /// No memory could be freed for it.
    OutOfMemory,
}

/// What came of a lease-set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseSetOutcome {
    /// The token held: stored, with this CAS unique.
    Stored(Cas),
    /// The token was void: only the stale value has been refreshed.
    StaleStored,
    /// The token was void.
    NotStored,
    /// Larger than the largest item.
    TooLarge,
    /// No memory could be freed for it.
    OutOfMemory,
}

/// What came of a delete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeleteOutcome {
    /// A live value is gone.
    Deleted,
    /// There was none; leases are void and the hold-off has begun all the same.
    NotFound,
}

/// What came of an incr or decr.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArithmeticOutcome {
    /// The new number, with the item's new CAS unique.
    Number(u64, Cas),
    /// There is no item.
    NotFound,
    /// The value is not a decimal number that fits 64 bits.
    NotANumber,
    /// No memory could be freed for a longer number.
    OutOfMemory,
}

/// What came of moving a page because somebody asked for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageMove {
    /// It has moved.
    Moved,
    /// Another page is on its way, or somebody is at work on this one's items.
    Busy,
    /// The class that was to give it has no page beside its last.
    NoSpare,
    /// There is no such class.
    BadClass,
}
