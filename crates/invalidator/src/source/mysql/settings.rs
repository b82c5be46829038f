//! The settings of a server by which a delete can be lost or mistaken: commits or rows that are not in the log,
//! positions that skip commits, rows without the names of their columns.
//!
//! Serves the start of the delete path, and the look-ups while the log is read. Such a setting is refused, with the
//! statement that corrects it. Those of [`UnsafeSetting`] an operator may accept. docs/operating/invalidation.md has a
//! table of all.
//!
//! A setting that loses nothing before something fails is refused at the start of the process alone. When the log is
//! opened again, after a lost connection for example, it is warned of, and the look-ups report it as an error: without
//! deletes caches would be stale at once.
//!
//! What only row rules need is found here, too, but does not refuse the start: [`rule_check`](super::rule_check)
//! refuses the rules, and rows that lack it are inexpressible.

use super::{log_coverage::LogFilters, options::MysqlOptions, unsafe_setting::UnsafeSetting};
use crate::SourceError;
use std::collections::BTreeMap;

/// The kind of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerKind {
    /// MariaDB.
    Mariadb,
    /// MySQL and compatible servers.
    Mysql,
}

/// Which unsafe settings are refused, unless they are accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strictness {
    /// Each.
    All,
    /// Those by which deletes can be lost although nothing else fails.
    LosingNow,
}

/// Fails if a setting is unsafe, is not accepted, and is one that `strictness` refuses, with the statements that
/// correct them all. Returns warnings of the others, and of those by which no delete is lost. `filters` is `None` if
/// the account may not query them.
pub fn check(
    kind: ServerKind,
    variables: &BTreeMap<String, String>,
    filters: Option<&LogFilters>,
    options: &MysqlOptions,
    strictness: Strictness,
) -> Result<Vec<String>, SourceError> {
    let value = |name: &str| variables.get(name).map_or("", String::as_str);
    check_log(kind, &value, options)?;
    let found = find_unsafe(kind, &value, filters.unwrap_or(&LogFilters::default()));
    let (accepted, others): (Vec<_>, Vec<_>) =
        found.into_iter().partition(|(setting, _)| options.accepted.contains(setting));
    let (tolerated, refused): (Vec<_>, Vec<_>) = others
        .into_iter()
        .partition(|(setting, _)| strictness == Strictness::LosingNow && setting.is_harmless_until_a_failure());
    if !refused.is_empty() {
        let each = refused.iter().map(|(setting, why)| format!("{why}; {}", setting.acceptance()));
        return Err(SourceError::UnsafeSettings { why: each.collect::<Vec<_>>().join(". ") });
    }
    let mut warnings: Vec<String> =
        accepted.into_iter().map(|(setting, why)| format!("accept-unsafe={}: {why}", setting.name())).collect();
    let each = tolerated.into_iter().map(|(setting, why)| {
        format!("{why}; {}; the next start is refused unless this is corrected", setting.acceptance())
    });
    warnings.extend(each);
    if filters.is_none() {
        warnings.push(
            "there is no privilege to query the binlog filters: GRANT BINLOG MONITOR (MySQL: REPLICATION CLIENT); \
             changes in schemas that binlog_do_db or binlog_ignore_db exclude delete nothing"
                .into(),
        );
    }
    if !matches!(value("innodb_flush_log_at_trx_commit"), "1" | "") {
        warnings.push(format!(
            "innodb_flush_log_at_trx_commit is {}: after a crash of its machine the database may lack commits that readers \
             have cached; flush the clusters then, or SET GLOBAL innodb_flush_log_at_trx_commit = 1",
            value("innodb_flush_log_at_trx_commit")
        ));
    }
    Ok(warnings)
}

/// Fails if the log cannot be read, or has no keys of the kinds that `options` demand.
fn check_log<'a>(
    kind: ServerKind,
    value: &impl Fn(&str) -> &'a str,
    options: &MysqlOptions,
) -> Result<(), SourceError> {
    let refuse = |why: String| Err(SourceError::UnsafeSettings { why });
    if value("log_bin") != "ON" {
        return refuse("the server has no commit log: start it with log_bin (and binlog_format=ROW)".into());
    }
    // Comments are found in statements of any format, but outbox rows only in rows.
    let format = value("binlog_format");
    if !matches!(format, "ROW" | "") && !options.comments_only {
        return refuse(format!(
            "binlog_format is {format}, so inserts into the outbox table would be missed: SET GLOBAL binlog_format = \
             ROW (sessions that are open keep theirs), or name all keys in comments and use --comments-only"
        ));
    }
    if kind == ServerKind::Mysql && value("gtid_mode") != "ON" {
        return Err(SourceError::Unusable {
            why: "transactions have no GTIDs: SET GLOBAL enforce_gtid_consistency = ON, then SET GLOBAL gtid_mode = \
                  OFF_PERMISSIVE, = ON_PERMISSIVE and = ON, one after the other"
                .into(),
        });
    }
    let statements =
        if kind == ServerKind::Mysql { "binlog_rows_query_log_events" } else { "binlog_annotate_row_events" };
    if value(statements) != "ON" && !options.outbox_only {
        return refuse(format!(
            "statements are not in the log, so keys in comments would be missed: SET GLOBAL {statements} = ON, or use \
             --outbox-only"
        ));
    }
    Ok(())
}

/// The unsafe settings, each with the reason and the statement that corrects it.
fn find_unsafe<'a>(
    kind: ServerKind,
    value: &impl Fn(&str) -> &'a str,
    filters: &LogFilters,
) -> Vec<(UnsafeSetting, String)> {
    let mut found = Vec::new();
    if !matches!(value("sync_binlog"), "1" | "") {
        found.push((
            UnsafeSetting::SyncBinlog,
            format!(
                "sync_binlog is {}: after a crash of its machine the log may lack commits that the database has, or the \
                 server gives their GTIDs to others, which a position then skips: SET GLOBAL sync_binlog = 1",
                value("sync_binlog")
            ),
        ));
    }
    if kind == ServerKind::Mariadb && value("gtid_strict_mode") == "OFF" {
        found.push((
            UnsafeSetting::GtidStrictMode,
            "gtid_strict_mode is OFF, so a replica may log transactions out of order, which a position then skips: SET \
             GLOBAL gtid_strict_mode = ON"
                .into(),
        ));
    }
    let filtered = [
        (UnsafeSetting::BinlogDoDb, &filters.included_schemas),
        (UnsafeSetting::BinlogIgnoreDb, &filters.excluded_schemas),
    ];
    for (setting, schemas) in filtered.into_iter().filter(|(_, schemas)| !schemas.is_empty()) {
        let name = setting.name();
        found.push((
            setting,
            format!(
                "{name}={schemas}: changes in the schemas that it excludes from the log delete nothing; remove {name} from \
                 the server's options, and restart it"
            ),
        ));
    }
    if value("binlog_error_action") == "IGNORE_ERROR" {
        found.push((
            UnsafeSetting::BinlogErrorAction,
            "binlog_error_action is IGNORE_ERROR: when the log cannot be written, as when the disk is full, commits go on \
             without it: SET GLOBAL binlog_error_action = ABORT_SERVER"
                .into(),
        ));
    }
    found
}
