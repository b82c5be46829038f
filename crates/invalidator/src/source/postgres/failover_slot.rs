//! Replication slots that a physical standby copies from its primary, so that reading goes on after a failover.
//!
//! From version 17 on a standby with `sync_replication_slots` copies the slots that have the property `failover`. A
//! slot that an earlier version of this program has created gets it when it is next read.

use super::{
    connection::{PostgresConnection, QueryError},
    options::PostgresOptions,
    setup::{quote_literal, quote_name},
    version::VERSION_WITH_FAILOVER_SLOTS,
};
use crate::SourceError;

/// Whether standbys of this server can copy slots.
pub async fn has_failover_slots(connection: &mut PostgresConnection) -> Result<bool, SourceError> {
    let version = connection.query_one("SHOW server_version_num").await?;
    Ok(version
        .and_then(|version| version.parse().ok())
        .is_some_and(|version: u32| version >= VERSION_WITH_FAILOVER_SLOTS))
}

/// Whether a slot can have the property on a server of `version`.
fn is_supported(options: &PostgresOptions, version: u32) -> bool {
    version >= VERSION_WITH_FAILOVER_SLOTS && !options.is_slot_temporary
}

/// The options of the command that creates the slot.
pub(super) fn creation_options(options: &PostgresOptions, version: u32) -> &'static str {
    match is_supported(options, version) {
        true => "(SNAPSHOT 'nothing', FAILOVER true)",
        false => "NOEXPORT_SNAPSHOT",
    }
}

/// Gives the slot, which nothing reads, the property if it lacks it. A server that refuses it is logged.
pub(super) async fn enable(
    connection: &mut PostgresConnection,
    options: &PostgresOptions,
    version: u32,
) -> Result<(), SourceError> {
    let slot = &options.slot;
    let query = format!("SELECT failover FROM pg_replication_slots WHERE slot_name = {}", quote_literal(slot));
    if !is_supported(options, version) || connection.query_one(&query).await?.as_deref() != Some("f") {
        return Ok(());
    }
    match connection.query(&format!("ALTER_REPLICATION_SLOT {} (FAILOVER true)", quote_name(slot))).await {
        Ok(_) => tracing::info!(slot, "standbys with sync_replication_slots copy the replication slot from now on"),
        Err(QueryError::Server(error)) => {
            tracing::warn!(slot, %error, "standbys cannot copy the replication slot: a failover loses the position");
        }
        Err(QueryError::Source(error)) => return Err(error),
    }
    Ok(())
}
