//! Leases (§3.2.1 of the paper): who may fill a miss.

use crate::ItemView;
use lookaside_protocol::LeaseToken;

/// The answer to a lease-get.
#[derive(Clone, Copy, Debug)]
pub enum LeaseGet<'a> {
    /// A live value.
    Hit(ItemView<'a>),
    /// Nothing live. `token` is held by the caller, or [`LeaseToken::HOT_MISS`] if another client holds it.
    Miss {
        /// The token.
        token: LeaseToken,
        /// The value that was deleted a short while ago.
        stale: Option<ItemView<'a>>,
    },
}
