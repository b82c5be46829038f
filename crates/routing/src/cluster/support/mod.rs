//! Code that several routes share.

pub(crate) mod failover_errors;
pub(crate) mod failover_limit;
pub(crate) mod failover_options;
pub(crate) mod failover_policy;
pub(crate) mod fan_out;
pub(crate) mod filled_by_router;
pub(crate) mod lease_pairing;
pub(crate) mod shard_splits;
pub(crate) mod token_bucket;
pub(crate) mod warm_up_progress;
