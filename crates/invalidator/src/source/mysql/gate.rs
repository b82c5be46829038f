//! The gate: waits until readers that begin now see the commits that were read from the log (ADR 001).
//!
//! The log runs ahead of visibility: a transaction is written there first and becomes visible to readers later. A
//! delete that is sent in between is undone by a reader that misses, still reads the old row, and fills the cache with
//! it.
//!
//! | server | method |
//! |---|---|
//! | MySQL | `WAIT_FOR_EXECUTED_GTID_SET`: the server waits |
//! | MariaDB | a consistent snapshot reports its place in the log; repeated until that is far enough |
//! | MariaDB, after XA PREPARE | in addition, `XA RECOVER` no longer lists the transaction |
//!
//! One call per read waits for all commits that were read since the last call.

use super::{
    connection::{MysqlConnection, text},
    gtid::{GtidList, GtidPosition, GtidSet},
    options::MysqlOptions,
    visibility_target::{LogEnd, VisibilityTarget},
    xa,
};
use crate::SourceError;
use std::time::Duration;
use tokio::time::Instant;

/// The first and the longest pause between two snapshots; pauses double. Most commits are visible in the first
/// snapshot.
const PAUSE_MIN: Duration = Duration::from_micros(200);
const PAUSE_MAX: Duration = Duration::from_millis(10);

/// Takes a snapshot, reports its place in the log, and releases it, in one round trip.
const SNAPSHOT: &str = "START TRANSACTION WITH CONSISTENT SNAPSHOT; \
     SHOW STATUS WHERE Variable_name IN ('binlog_snapshot_file', 'binlog_snapshot_position'); COMMIT";

/// Waits for `target`, the commits that this process has read; if there are none, for `position`, which an earlier run
/// saved.
pub async fn wait_until_visible(
    connection: &mut MysqlConnection,
    options: &MysqlOptions,
    target: &VisibilityTarget,
    position: &GtidPosition,
) -> Result<(), SourceError> {
    match position {
        GtidPosition::Mysql(set) => {
            let has_target = target.gtids != GtidSet::default();
            wait_for_gtids(connection, options, if has_target { &target.gtids } else { set }).await
        }
        GtidPosition::Mariadb(list) => wait_for_snapshot(connection, options, target, list).await,
    }
}

async fn wait_for_gtids(
    connection: &mut MysqlConnection,
    options: &MysqlOptions,
    gtids: &GtidSet,
) -> Result<(), SourceError> {
    let limit = options.visible_wait_max;
    let sql = format!("SELECT WAIT_FOR_EXECUTED_GTID_SET('{gtids}', {})", limit.as_secs_f64());
    let rows = connection.query_within(&sql, limit + options.reply_wait_max).await?;
    match rows.first().and_then(|row| text(row, 0)).as_deref() {
        Some("0") => Ok(()),
        _ => Err(not_visible(options)),
    }
}

async fn wait_for_snapshot(
    connection: &mut MysqlConnection,
    options: &MysqlOptions,
    target: &VisibilityTarget,
    list: &GtidList,
) -> Result<(), SourceError> {
    let deadline = Instant::now() + options.visible_wait_max;
    let mut pause = PAUSE_MIN;
    loop {
        let snapshot = take_snapshot(connection).await?;
        let is_visible = match &target.end {
            Some(end) => end.is_included_in(&snapshot),
            None => gtids_before(connection, &snapshot).await?.covers(list),
        };
        if is_visible && (target.xids.is_empty() || xa::are_resolved(connection, &target.xids).await?) {
            return Ok(());
        }
        if Instant::now() >= deadline {
            return Err(not_visible(options));
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

async fn take_snapshot(connection: &mut MysqlConnection) -> Result<LogEnd, SourceError> {
    let mut place = LogEnd::default();
    for row in connection.query(SNAPSHOT).await? {
        let value = text(&row, 1).unwrap_or_default();
        match text(&row, 0).unwrap_or_default().to_ascii_lowercase().as_str() {
            "binlog_snapshot_file" => place.file = value,
            "binlog_snapshot_position" => place.offset = value.parse().unwrap_or(0),
            _ => {}
        }
    }
    match place.file.is_empty() {
        true => Err(SourceError::Unusable {
            why: "the server does not report the place of a snapshot (status binlog_snapshot_file): is its log off?"
                .into(),
        }),
        false => Ok(place),
    }
}

/// The transactions before a place in the log. The server reads the log's file from its beginning for this. That is
/// slow, but needed only for positions of an earlier run.
async fn gtids_before(connection: &mut MysqlConnection, place: &LogEnd) -> Result<GtidList, SourceError> {
    let sql = format!("SELECT BINLOG_GTID_POS('{}', {})", place.file.replace(['\'', '\\'], ""), place.offset);
    let list = connection.query_one(&sql).await?.unwrap_or_default();
    Ok(GtidList::parse(&list).unwrap_or_default())
}

impl LogEnd {
    /// Whether a snapshot at place `snapshot` of the log includes this.
    fn is_included_in(&self, snapshot: &LogEnd) -> bool {
        let (ours, theirs) = (file_number(&self.file), file_number(&snapshot.file));
        theirs > ours
            || theirs == ours && (snapshot.offset > self.offset || snapshot.offset == self.offset && !self.is_inside)
    }
}

/// The number of a log file: 12 for `binlog.000012`.
fn file_number(file: &str) -> u64 {
    file.rsplit('.').next().and_then(|digits| digits.parse().ok()).unwrap_or(0)
}

fn not_visible(options: &MysqlOptions) -> SourceError {
    SourceError::Unreachable {
        why: format!(
            "commits in the log are not visible to readers after {} s",
            options.visible_wait_max.as_secs_f64()
        ),
    }
}
