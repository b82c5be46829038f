//! The identity of a router towards its peers.

/// A router with a spool, over its restarts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Owner(pub(super) u64);
