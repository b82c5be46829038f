//! What frees memory when it is short.

pub(crate) mod eviction;
pub(crate) mod rebalance;
