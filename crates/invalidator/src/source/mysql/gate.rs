//! The gate: waits until readers that begin now see what the log has shown.
//!
//! The log runs ahead of visibility: a transaction is written there first and shown to readers after. A delete sent in
//! between is undone by a reader that misses, still reads the old row, and fills the cache with it.
//!
//! | kind | how it is asked |
//! |---|---|
//! | MySQL | `WAIT_FOR_EXECUTED_GTID_SET`: the server waits |
//! | MariaDB | a consistent snapshot says up to which place of the log it shows; asked again until it is far enough |
//! | MariaDB, after XA PREPARE | besides, `XA RECOVER` lists the transaction no more |
//!
//! One call a batch: what was handed out since the last call is waited for at once.

use super::{
    connection::{Connection, text},
    gtid::{GtidList, GtidSet, Progress},
    options::MysqlOptions,
    visibility_target::{Awaited, LogEnd},
    xa,
};
use crate::SourceError;
use std::time::Duration;
use tokio::time::Instant;

/// The pauses between two snapshots grow from the first to the second. Most commits are visible at the first look.
const PAUSE_FIRST: Duration = Duration::from_micros(200);
const PAUSE_LAST: Duration = Duration::from_millis(10);

/// One round trip: the snapshot is taken, says what it shows, and is given back.
const SNAPSHOT: &str = "START TRANSACTION WITH CONSISTENT SNAPSHOT; \
     SHOW STATUS WHERE Variable_name IN ('binlog_snapshot_file', 'binlog_snapshot_position'); COMMIT";

/// Waits for what was handed out in this process (`awaited`) or, where there is nothing of that, for `position`: one
/// that was kept from an earlier run.
pub async fn wait(
    connection: &mut Connection,
    options: &MysqlOptions,
    awaited: &Awaited,
    position: &Progress,
) -> Result<(), SourceError> {
    match position {
        Progress::Mysql(set) => {
            let fresh = awaited.gtids != GtidSet::default();
            wait_for_gtids(connection, options, if fresh { &awaited.gtids } else { set }).await
        }
        Progress::Mariadb(list) => wait_for_snapshot(connection, options, awaited, list).await,
    }
}

async fn wait_for_gtids(
    connection: &mut Connection,
    options: &MysqlOptions,
    gtids: &GtidSet,
) -> Result<(), SourceError> {
    let limit = options.visible_wait_max;
    let sql = format!("SELECT WAIT_FOR_EXECUTED_GTID_SET('{gtids}', {})", limit.as_secs_f64());
    let rows = connection.query_within(&sql, limit + options.answer_wait_max).await?;
    match rows.first().and_then(|row| text(row, 0)).as_deref() {
        Some("0") => Ok(()),
        _ => Err(not_visible(options)),
    }
}

async fn wait_for_snapshot(
    connection: &mut Connection,
    options: &MysqlOptions,
    awaited: &Awaited,
    list: &GtidList,
) -> Result<(), SourceError> {
    let deadline = Instant::now() + options.visible_wait_max;
    let mut pause = PAUSE_FIRST;
    loop {
        let shown = snapshot(connection).await?;
        let is_visible = match &awaited.end {
            Some(end) => end.is_shown_by(&shown),
            None => list_of(connection, &shown).await?.covers(list),
        };
        if is_visible && (awaited.xids.is_empty() || xa::are_ended(connection, &awaited.xids).await?) {
            return Ok(());
        }
        if Instant::now() >= deadline {
            return Err(not_visible(options));
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(PAUSE_LAST);
    }
}

async fn snapshot(connection: &mut Connection) -> Result<LogEnd, SourceError> {
    let mut shown = LogEnd::default();
    for row in connection.query(SNAPSHOT).await? {
        let value = text(&row, 1).unwrap_or_default();
        match text(&row, 0).unwrap_or_default().to_ascii_lowercase().as_str() {
            "binlog_snapshot_file" => shown.file = value,
            "binlog_snapshot_position" => shown.offset = value.parse().unwrap_or(0),
            _ => {}
        }
    }
    match shown.file.is_empty() {
        true => Err(SourceError::Unusable {
            why: "the server does not say what a snapshot shows (status binlog_snapshot_file): is its log off?".into(),
        }),
        false => Ok(shown),
    }
}

/// The transactions before a place. The server reads the log's file from its beginning for this: dear, but only for
/// positions of an earlier run.
async fn list_of(connection: &mut Connection, shown: &LogEnd) -> Result<GtidList, SourceError> {
    let sql = format!("SELECT BINLOG_GTID_POS('{}', {})", shown.file.replace(['\'', '\\'], ""), shown.offset);
    let list = connection.query_one(&sql).await?.unwrap_or_default();
    Ok(GtidList::parse(&list).unwrap_or_default())
}

impl LogEnd {
    /// Says whether a snapshot that shows the log up to `shown` shows this too.
    fn is_shown_by(&self, shown: &LogEnd) -> bool {
        let (ours, theirs) = (file_number(&self.file), file_number(&shown.file));
        theirs > ours
            || theirs == ours && (shown.offset > self.offset || shown.offset == self.offset && !self.is_inside)
    }
}

/// `binlog.000012` is 12.
fn file_number(file: &str) -> u64 {
    file.rsplit('.').next().and_then(|digits| digits.parse().ok()).unwrap_or(0)
}

fn not_visible(options: &MysqlOptions) -> SourceError {
    SourceError::Unreachable {
        why: format!("what the log shows is not visible to readers after {} s", options.visible_wait_max.as_secs_f64()),
    }
}
