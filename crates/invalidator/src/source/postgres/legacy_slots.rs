//! The slots of versions that had one for each cluster, `lookaside_CLUSTER`. They keep the server's log until they are
//! dropped.

use super::{connection::PostgresConnection, lsn::Lsn, options::PostgresOptions, setup};
use crate::SourceError;

/// Names that such a version gave to its slots, in the database of the connection.
const IS_LEGACY: &str =
    "slot_name LIKE 'lookaside\\_%' AND plugin = 'pgoutput' AND database = current_database() AND NOT temporary";

/// Makes the slot a copy of an earlier version's that still has everything after `from`. Returns whether there was one.
pub(super) async fn copy(
    connection: &mut PostgresConnection,
    options: &PostgresOptions,
    from: Lsn,
) -> Result<bool, SourceError> {
    let own = setup::quote_literal(&options.slot);
    let sql = format!(
        "SELECT slot_name FROM pg_replication_slots WHERE {IS_LEGACY} AND slot_name <> {own} \
         AND coalesce(wal_status, '') <> 'lost' AND confirmed_flush_lsn <= '{from}' \
         ORDER BY confirmed_flush_lsn DESC LIMIT 1"
    );
    let Some(legacy) = connection.query_one(&sql).await? else { return Ok(false) };
    let sql = format!("SELECT pg_copy_logical_replication_slot({}, {own})", setup::quote_literal(&legacy));
    connection.query(&sql).await?;
    tracing::info!(slot = options.slot, legacy, "one replication slot replaces those of the clusters; nothing is lost");
    Ok(true)
}

/// Logs the slots without a reader, with the SQL that drops them.
pub(super) async fn log_unused(
    connection: &mut PostgresConnection,
    options: &PostgresOptions,
) -> Result<(), SourceError> {
    let own = setup::quote_literal(&options.slot);
    let sql = format!(
        "SELECT string_agg(format('SELECT pg_drop_replication_slot(%L);', slot_name), ' ' ORDER BY slot_name) \
         FROM pg_replication_slots WHERE {IS_LEGACY} AND NOT active AND slot_name <> {own}"
    );
    if let Some(drop_by) = connection.query_one(&sql).await? {
        tracing::warn!(
            drop_by,
            "replication slots of an earlier version, with one for each cluster, keep the server's log; drop them unless \
             another invalidator uses them"
        );
    }
    Ok(())
}
