//! Versions of the server, as `server_version_num`, from which on it has what is used here.

/// The first version that is supported.
pub const VERSION_MIN: u32 = 130_000;
/// The first version whose `pgoutput` sends the messages of `pg_logical_emit_message`.
pub const VERSION_WITH_MESSAGES: u32 = 140_000;
/// The first version with standbys that copy slots from their primary.
pub const VERSION_WITH_FAILOVER_SLOTS: u32 = 170_000;
