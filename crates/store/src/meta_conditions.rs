//! The conditions of meta verbs, and their outcomes. Each verb is one step under the lock of the key's stripe. With the
//! default conditions it is the classic verb, except that it finds items whatever their meta state (`meta_state.rs`).

use crate::{ArithmeticOutcome, Expiry, ItemView, StoreNumber};
use lookaside_protocol::Cas;

/// The conditions of a meta get.
#[derive(Clone, Copy, Debug, Default)]
pub struct MetaGet {
    /// The get does not update the item's access state.
    pub no_bump: bool,
    /// The item's new expiry.
    pub touch: Option<Expiry>,
    /// On a miss, create a placeholder with this expiry; its creator gets the win.
    pub vivify: Option<Expiry>,
    /// The first get that finds the item near its end wins.
    pub recache: Option<Recache>,
    /// The CAS unique of a placeholder that is created.
    pub cas_new: Option<Cas>,
    /// A get of an item that has expired or was flushed is counted as such.
    pub counts_miss: bool,
}

/// When an item is near its end.
#[derive(Clone, Copy, Debug)]
pub struct Recache {
    /// If it expires before this.
    pub before: Expiry,
    /// Whether the new expiry counts, if one is given.
    pub is_touched_first: bool,
}

/// The item that a meta get found.
#[derive(Clone, Copy, Debug)]
pub struct MetaGetOutcome<'a> {
    /// The item, with the new expiry.
    pub item: ItemView<'a>,
    /// The expiry before this get.
    pub expiry_before: Expiry,
    /// This get created the item.
    pub is_vivified: bool,
    /// This get wins: its client is to replace the value.
    pub is_won: bool,
    /// An earlier get won.
    pub win_already_sent: bool,
    /// The value is out of date.
    pub is_stale: bool,
    /// Classic verbs miss the item: the value is out of date, or there is none yet.
    pub is_hidden: bool,
    /// For [`Store::item_age`](crate::Store::item_age).
    pub number: StoreNumber,
    /// The number of its slab class, from 1 on.
    pub slab_class: usize,
    /// All bytes that it uses, headers included.
    pub item_bytes: usize,
}

/// The conditions of a meta set.
#[derive(Clone, Copy, Debug, Default)]
pub struct MetaSet {
    /// The CAS unique that the item must have for an append or a prepend. Other modes carry their own.
    pub cas_compare: Option<Cas>,
    /// The item's new CAS unique.
    pub cas_new: Option<Cas>,
    /// A unique lower than the item's is accepted too; then the new item is stale, and keeps the expiry.
    pub invalidates: bool,
    /// An append or a prepend that misses stores its piece, with this expiry.
    pub vivify: Option<Expiry>,
}

/// The conditions of a meta delete.
#[derive(Clone, Copy, Debug, Default)]
pub struct MetaDelete {
    /// The CAS unique that the item must have.
    pub cas_compare: Option<Cas>,
    /// The CAS unique of an item that stays.
    pub cas_new: Option<Cas>,
    /// The item stays, marked as stale; the next get wins.
    pub invalidates: bool,
    /// The item stays, without value and flags.
    pub empties: bool,
    /// The expiry of an item that stays.
    pub touch: Option<Expiry>,
}

/// The outcome of a meta delete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetaDeleteOutcome {
    /// The item was removed, or changed as requested.
    Deleted,
    /// The key has no item; its lease is void all the same.
    NotFound,
    /// It has another CAS unique, and was not changed.
    Exists,
}

/// The conditions of a meta arithmetic command.
#[derive(Clone, Copy, Debug, Default)]
pub struct MetaArithmetic {
    /// The CAS unique that the item must have.
    pub cas_compare: Option<Cas>,
    /// The item's new CAS unique.
    pub cas_new: Option<Cas>,
    /// The item's new expiry.
    pub touch: Option<Expiry>,
    /// On a miss, store this number with this expiry, unless a hold-off refuses it.
    pub vivify: Option<(u64, Expiry)>,
}

/// The outcome of a meta arithmetic command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetaArithmeticOutcome {
    /// The outcome of the classic command.
    Counted {
        /// The outcome.
        outcome: ArithmeticOutcome,
        /// The expiry before and after.
        expiry: [Expiry; 2],
    },
    /// The key had no item; the number was stored, with this CAS unique.
    Vivified(Cas),
    /// The key had no item, and a hold-off refused the number.
    NotStored,
    /// The item has another CAS unique.
    Exists,
}
