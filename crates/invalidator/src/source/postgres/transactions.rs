//! The transactions that a start waits for: creating a slot does, and so does the gate at a start from the present, the
//! first one or after lost deletes. Neither has a limit, because each attempt would begin with other transactions. So
//! it is logged which ones are open.

use super::connection::PostgresConnection;
use crate::SourceError;
use std::time::Duration;

/// How often the open transactions are logged.
pub(super) const LOG_EVERY: Duration = Duration::from_secs(10);

/// Logs the oldest transaction that is open, and how to end it.
pub(super) async fn log_oldest(connection: &mut PostgresConnection, reason: &str) -> Result<(), SourceError> {
    // Numbers are compared by age, as they wrap around.
    let sql = "SELECT count(*) OVER (), pid, NULL, extract(epoch FROM now() - xact_start)::int, \
                      coalesce(state, '') || ' ' || coalesce(wait_event, ''), age(backend_xid) \
               FROM pg_stat_activity WHERE backend_xid IS NOT NULL AND pid <> pg_backend_pid() \
               UNION ALL \
               SELECT count(*) OVER (), NULL, gid, extract(epoch FROM now() - prepared)::int, 'prepared', \
                      age(transaction) FROM pg_prepared_xacts \
               ORDER BY 6 DESC LIMIT 1";
    let Some(row) = connection.query(sql).await?.into_iter().next() else {
        // Sessions of other accounts hide their transactions.
        tracing::warn!("{reason} waits for open transactions; GRANT pg_read_all_stats to this account to see which");
        return Ok(());
    };
    let column = |index: usize| row.get(index).and_then(Option::as_deref).unwrap_or_default();
    let (open, age_s, state) = (column(0), column(3), column(4));
    // Those of other accounts show no more than that they are open.
    let state = match state.trim() {
        "" => "unknown: GRANT pg_read_all_stats to this account to see it",
        known => known,
    };
    let age_s = if age_s.is_empty() { "unknown" } else { age_s };
    let end_by = match column(1) {
        "" => format!("COMMIT PREPARED or ROLLBACK PREPARED '{}'", column(2)),
        pid => format!("SELECT pg_terminate_backend({pid})"),
    };
    tracing::warn!(open, age_s, state, end_by, "{reason} waits for open transactions; this is the oldest");
    Ok(())
}
