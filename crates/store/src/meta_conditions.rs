//! On which terms a verb of the meta dialect acts, and what came of it. Each is carried out in one step under the lock of
//! the key's stripe. A verb with the default terms is the plain verb, but that it sees items that bear marks (`marks.rs`).

use crate::{ArithmeticOutcome, Expiry, ItemView};
use lookaside_protocol::Cas;

/// How an item is looked at.
#[derive(Clone, Copy, Debug, Default)]
pub struct MetaGet {
    /// The look leaves no trace: not that the item was fetched, not when, and eviction comes as it would have come.
    pub no_bump: bool,
    /// The item's new expiry.
    pub touch: Option<Expiry>,
    /// Where nothing is, an item without a value is made, with this expiry; whoever caused that has won.
    pub vivify: Option<Expiry>,
    /// Whoever first finds the item's end near has won.
    pub recache: Option<Recache>,
    /// The CAS unique of an item that is made.
    pub cas_new: Option<Cas>,
}

/// When an item's end is near.
#[derive(Clone, Copy, Debug)]
pub struct Recache {
    /// When it comes before this.
    pub before: Expiry,
    /// Whether the new expiry counts, if there is one.
    pub is_touched_first: bool,
}

/// An item as a look has found it.
#[derive(Clone, Copy, Debug)]
pub struct MetaGetOutcome<'a> {
    /// The item; its expiry is the new one.
    pub item: ItemView<'a>,
    /// The expiry that it had.
    pub expiry_before: Expiry,
    /// The look has made it.
    pub is_vivified: bool,
    /// Who looks is the one to replace the value.
    pub is_won: bool,
    /// Somebody else was told so before.
    pub win_already_sent: bool,
    /// The value is out of date.
    pub is_stale: bool,
    /// The number of its slab class, from 1 on.
    pub slab_class: usize,
    /// What it takes, header included, in bytes.
    pub item_bytes: usize,
}

/// How a value is stored.
#[derive(Clone, Copy, Debug, Default)]
pub struct MetaSet {
    /// An append or a prepend finds this CAS unique, or does nothing. Other modes bring their own.
    pub cas_compare: Option<Cas>,
    /// The item's new CAS unique.
    pub cas_new: Option<Cas>,
    /// A unique lower than the item's is accepted too; then the item is stale, and keeps its expiry.
    pub invalidates: bool,
    /// An append or a prepend that finds nothing stores its piece, with this expiry.
    pub vivify: Option<Expiry>,
}

/// How an item is deleted.
#[derive(Clone, Copy, Debug, Default)]
pub struct MetaDelete {
    /// The item has this CAS unique, or nothing happens.
    pub cas_compare: Option<Cas>,
    /// The CAS unique of an item that stays.
    pub cas_new: Option<Cas>,
    /// The item stays, marked as stale; whoever looks first has won.
    pub invalidates: bool,
    /// The item stays, without value and flags.
    pub empties: bool,
    /// The expiry of an item that stays.
    pub touch: Option<Expiry>,
}

/// What came of a delete on terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetaDeleteOutcome {
    /// The item is gone, or changed as asked.
    Deleted,
    /// There was none; leases are void all the same.
    NotFound,
    /// It has another CAS unique: nothing has happened.
    Exists,
}

/// How a number is counted.
#[derive(Clone, Copy, Debug, Default)]
pub struct MetaArithmetic {
    /// The item has this CAS unique, or nothing happens.
    pub cas_compare: Option<Cas>,
    /// The item's new CAS unique.
    pub cas_new: Option<Cas>,
    /// The item's new expiry.
    pub touch: Option<Expiry>,
    /// Where nothing is, this number is stored with this expiry, unless a hold-off refuses it.
    pub vivify: Option<(u64, Expiry)>,
}

/// What came of counting on terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetaArithmeticOutcome {
    /// As without terms.
    Counted {
        /// What came of it.
        outcome: ArithmeticOutcome,
        /// The expiry before a new one was given, and after.
        expiry: [Expiry; 2],
    },
    /// There was nothing; the number was stored, with this CAS unique.
    Vivified(Cas),
    /// There was nothing, and a hold-off refused the number.
    NotStored,
    /// The item has another CAS unique.
    Exists,
}
