//! The outcomes of verbs, an enum each.

use crate::ItemView;
use lookaside_protocol::{Cas, LeaseToken};

/// The reply to a lease-get.
#[derive(Clone, Copy, Debug)]
pub enum LeaseGet<'a> {
    /// A live value.
    Hit(ItemView<'a>),
    /// No live value. `token` is held by the caller, or is [`LeaseToken::HOT_MISS`] if another client holds one.
    Miss {
        /// The token.
        token: LeaseToken,
        /// A value that was deleted or marked as stale a short time ago.
        stale: Option<ItemView<'a>>,
    },
}

/// The outcome of a set, add, replace, append, prepend or cas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreOutcome {
    /// Stored, with this CAS unique.
    Stored(Cas),
    /// The mode's condition did not hold, or a hold-off refused an `add`.
    NotStored,
    /// `cas`: the item has changed since.
    Exists,
    /// `cas`: the key has no item.
    NotFound,
    /// Larger than the largest item.
    TooLarge,
    /// No memory could be freed for it.
    OutOfMemory,
}

/// The outcome of a lease-set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseSetOutcome {
    /// The token held: stored, with this CAS unique.
    Stored(Cas),
    /// The token was void: only the stale value was refreshed.
    StaleStored,
    /// The token was void.
    NotStored,
    /// Larger than the largest item.
    TooLarge,
    /// No memory could be freed for it.
    OutOfMemory,
}

/// The outcome of a delete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeleteOutcome {
    /// A live value was deleted.
    Deleted,
    /// The key had none; the lease is void and the hold-off has started all the same.
    NotFound,
}

/// The outcome of an incr or decr.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArithmeticOutcome {
    /// The new number, with the item's new CAS unique.
    Number(u64, Cas),
    /// The key has no item.
    NotFound,
    /// The value is not a decimal number that fits 64 bits.
    NotANumber,
    /// No memory could be freed for a longer number.
    OutOfMemory,
}

/// The outcome of a page move on request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageMove {
    /// The page has moved.
    Moved,
    /// Another page is moving, or other threads use this one's items.
    Busy,
    /// The class has no page to spare: it keeps its last one.
    NoSpare,
    /// No class has this number.
    BadClass,
}
