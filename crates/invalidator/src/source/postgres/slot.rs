//! Checks the server's settings, and finds, creates and replaces the replication slot.
//!
//! A slot makes the server keep its log from the slot's confirmed position on, and cannot go back behind it. So the
//! position confirmed is never ahead of the position on disk, and reading resumes from the latter.
//!
//! | slot | a saved position | start at the present | start at the earliest |
//! |---|---|---|---|
//! | read by another process ([`slot_reader`]) | nothing is decided or changed | the same | the same |
//! | as we left it | resume | the end of the log | the confirmed position |
//! | missing | the position is lost, unless an earlier version left a slot ([`legacy_slots`]) | created | created |
//! | invalidated: the log it needs was removed | the position is lost | replaced | replaced |
//! | unreadable: a promoted standby never had the log it needs | the position is lost, when reading it has failed | replaced after that | the same |
//! | confirmed beyond the saved position | the position is lost | the end of the log | the confirmed position |
//! | of a log that ends before the saved position, or whose [timeline](timeline) left the position's before it: a promoted standby | the position is lost | | |

use super::{
    connection::{PostgresConnection, QueryError, Row, protocol_error},
    failover_slot, legacy_slots,
    lsn::{LogPosition, Lsn},
    options::PostgresOptions,
    setup,
    slot_reader::{self, SharedSlot},
    standby,
    timeline::{SharedLogId, Timelines},
    transactions::{self, LOG_EVERY},
    version::{VERSION_MIN, VERSION_WITH_MESSAGES, omits_added_tables},
};
use crate::{SourceError, Start};
use tokio::time::timeout;

/// The result of the checks.
#[derive(Clone, Debug)]
pub(super) struct Server {
    version: u32,
    /// Identifies the server's data and the database, on a promoted standby too.
    pub identity: String,
    /// Problems that are no reason to stop.
    pub warnings: Vec<String>,
    /// The timeline of its log.
    timeline: Option<u32>,
    /// The log that was found to lack what the slot needs, although its server does not report the slot as lost. `None`
    /// once the slot was replaced.
    pub unreadable: SharedLogId,
}

impl Server {
    /// Checks the server of `connection`, which is one for replication. `unreadable` is what was found of the log before.
    pub async fn inspect(
        connection: &mut PostgresConnection,
        options: &PostgresOptions,
        unreadable: &SharedLogId,
    ) -> Result<Server, SourceError> {
        let row = first_row(connection, "IDENTIFY_SYSTEM").await?;
        let (system, database) = (column(&row, 0)?, column(&row, 3)?);
        let timeline = column(&row, 1)?.parse().ok();
        let version = connection.query_one("SHOW server_version_num").await?;
        let version =
            version.and_then(|text| text.parse().ok()).ok_or_else(|| protocol_error("a malformed version"))?;
        let unusable = |why: String| Err(SourceError::Unusable { why });
        if version < VERSION_MIN {
            return unusable(format!("PostgreSQL {} is too old: 13 is needed", version / 10_000));
        }
        standby::check_is_primary(connection).await?;
        if connection.query_one("SHOW wal_level").await?.as_deref() != Some("logical") {
            return unusable(
                "the log has no rows: ALTER SYSTEM SET wal_level = logical, and restart the server".into(),
            );
        }
        standby::check_application_name(connection).await?;
        let publication = setup::quote_literal(&options.publication);
        let sql = format!("SELECT 1 FROM pg_publication WHERE pubname = {publication}");
        if connection.query_one(&sql).await?.is_none() {
            return unusable(format!(
                "the publication {publication} does not exist in the database {}: the database's owner creates it and the \
                 outbox with `lookaside invalidator setup --database postgres://...` (--print shows the SQL)",
                options.database
            ));
        }
        let mut warnings = Vec::new();
        if version < VERSION_WITH_MESSAGES {
            check_function(connection).await?;
            warnings.push(
                "PostgreSQL 13 does not send messages to subscribers: pg_logical_emit_message names no keys, and \
                 lookaside_invalidate writes to the outbox"
                    .into(),
            );
        }
        if omits_added_tables(version) && !options.row_rules.current().is_empty() {
            warnings.push(
                "this release of PostgreSQL may leave a table out of the log that is added to the publication while a \
                 transaction is open that has changed it: update it to 13.21, 14.18, 15.13, 16.9, 17.5 or later, or \
                 restart the invalidator after that"
                    .into(),
            );
        }
        Ok(Server {
            version,
            identity: format!("postgres:{system}/{database}"),
            warnings,
            timeline,
            unreadable: unreadable.clone(),
        })
    }

    /// Where reading from `start` begins, and the timelines from there on. A cluster may have got all up to
    /// `delivered`. Creates or replaces the slot if it may.
    pub async fn start_position(
        &self,
        connection: &mut PostgresConnection,
        queries: &mut PostgresConnection,
        options: &PostgresOptions,
        shared: Option<&SharedSlot>,
        start: &Start,
        delivered: LogPosition,
    ) -> Result<(Lsn, Timelines), SourceError> {
        slot_reader::check(connection, options, shared).await?;
        let lsn = self.start_lsn(connection, queries, options, start, delivered.lsn).await?;
        let (timeline, delivered) = match start {
            Start::At(position) => (LogPosition::of_position(position)?.timeline, delivered),
            Start::Now | Start::Earliest => (None, LogPosition::default()),
        };
        let timelines = Timelines::read(connection, LogPosition { lsn, timeline }, delivered).await?;
        Ok((lsn, timelines))
    }

    async fn start_lsn(
        &self,
        connection: &mut PostgresConnection,
        queries: &mut PostgresConnection,
        options: &PostgresOptions,
        start: &Start,
        delivered: Lsn,
    ) -> Result<Lsn, SourceError> {
        let mut slot = Slot::find(connection, options).await?;
        if let Start::At(position) = start {
            let from = LogPosition::of_position(position)?.lsn;
            if slot.is_none() && legacy_slots::copy(queries, options, from).await? {
                slot = Slot::find(connection, options).await?;
            }
            legacy_slots::log_unused(queries, options).await?;
            let lost = |why: String| Err(SourceError::PositionLost { position: position.clone(), why });
            let name = &options.slot;
            let end = end_of_log(connection).await?;
            if end < from.max(delivered) {
                return lost(format!("the server's log ends at {end}: it is a standby that had received less"));
            }
            return match slot {
                None => lost(format!("the replication slot {name} does not exist")),
                Some(_) if self.has_unreadable_slot() => {
                    lost(format!("the server lacks the log that the replication slot {name} needs"))
                }
                Some(Slot { is_lost: true, .. }) => {
                    lost(format!("the server has removed the log that the replication slot {name} needs"))
                }
                Some(slot) => {
                    check_not_confirmed_beyond(Some(slot.confirmed), from, name)?;
                    failover_slot::enable(connection, options, self.version).await?;
                    Ok(from)
                }
            };
        }
        match slot {
            Some(Slot { is_lost: false, confirmed }) if !self.has_unreadable_slot() => {
                failover_slot::enable(connection, options, self.version).await?;
                match start {
                    Start::Earliest => Ok(confirmed),
                    _ => Ok(end_of_log(connection).await?.max(confirmed)),
                }
            }
            Some(_) => {
                connection.query(&format!("DROP_REPLICATION_SLOT {}", setup::quote_name(&options.slot))).await?;
                *self.unreadable.lock() = None;
                create_slot(connection, queries, options, self.version).await
            }
            None => create_slot(connection, queries, options, self.version).await,
        }
    }

    /// Whether this server's log was found to lack what the slot needs.
    fn has_unreadable_slot(&self) -> bool {
        let unreadable = self.unreadable.lock();
        unreadable.as_ref().is_some_and(|(identity, timeline)| *identity == self.identity && *timeline == self.timeline)
    }

    /// The command that starts the stream.
    pub fn start_command(&self, options: &PostgresOptions, from: Lsn) -> String {
        let publications = setup::quote_literal(&setup::quote_name(&options.publication));
        let messages = if self.version >= VERSION_WITH_MESSAGES { ", messages 'true'" } else { "" };
        format!(
            "START_REPLICATION SLOT {} LOGICAL {from} (proto_version '1', publication_names {publications}{messages})",
            setup::quote_name(&options.slot)
        )
    }
}

/// The slot, as the server reports it.
struct Slot {
    confirmed: Lsn,
    /// The server has removed log that the slot needs.
    is_lost: bool,
}

impl Slot {
    async fn find(connection: &mut PostgresConnection, options: &PostgresOptions) -> Result<Option<Slot>, SourceError> {
        let name = setup::quote_literal(&options.slot);
        let sql = format!(
            "SELECT plugin, database = current_database(), confirmed_flush_lsn, wal_status \
             FROM pg_replication_slots WHERE slot_name = {name}"
        );
        let Some(row) = connection.query(&sql).await?.into_iter().next() else { return Ok(None) };
        if column(&row, 0).ok() != Some("pgoutput") || column(&row, 1).ok() != Some("t") {
            let why = format!("the replication slot {name} is not one of pgoutput in this database; drop it");
            return Err(SourceError::Unusable { why });
        }
        let confirmed = row.get(2).and_then(Option::as_deref).and_then(Lsn::parse);
        let is_lost = confirmed.is_none() || row.get(3).and_then(Option::as_deref) == Some("lost");
        Ok(Some(Slot { confirmed: confirmed.unwrap_or_default(), is_lost }))
    }
}

/// Where the last reader of the slot left off, at 0/0 if the slot is lost; `None` if there is no slot.
pub(super) async fn remembered_position(
    connection: &mut PostgresConnection,
    options: &PostgresOptions,
    shared: Option<&SharedSlot>,
) -> Result<Option<Lsn>, SourceError> {
    slot_reader::check(connection, options, shared).await?;
    let Some(slot) = Slot::find(connection, options).await? else { return Ok(None) };
    slot_reader::check_not_shared(connection, options, shared).await?;
    Ok(Some(slot.confirmed))
}

/// The position up to which the slot is confirmed; `None` if there is no slot, or if it is lost.
pub(super) async fn confirmed_position(
    connection: &mut PostgresConnection,
    options: &PostgresOptions,
) -> Result<Option<Lsn>, SourceError> {
    let slot = Slot::find(connection, options).await?;
    Ok(slot.filter(|slot| !slot.is_lost).map(|slot| slot.confirmed))
}

/// Fails if the slot is confirmed beyond `from`: the server would skip what is between.
pub(super) fn check_not_confirmed_beyond(confirmed: Option<Lsn>, from: Lsn, slot: &str) -> Result<(), SourceError> {
    match confirmed.filter(|&confirmed| confirmed > from) {
        None => Ok(()),
        Some(confirmed) => {
            let why = format!("another reader has confirmed the replication slot {slot} up to {confirmed}");
            Err(SourceError::PositionLost { position: from.position(), why })
        }
    }
}

/// A position that covers all commits that readers see now, on the timeline that the server writes, and the identity of
/// its log ([`Server::identity`]). It may not be flushed yet: readers see a commit with `synchronous_commit=off` before
/// that, and the stream has it afterwards.
pub(super) async fn newest_position(connection: &mut PostgresConnection) -> Result<(LogPosition, String), SourceError> {
    let (lsn, _) = look_up(connection).await?;
    // All of one server, which cannot change its timeline while it accepts writes.
    let sql = "SELECT substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8), system_identifier, current_database() \
               FROM pg_control_system()";
    let row = first_row(connection, sql).await?;
    let timeline = u32::from_str_radix(column(&row, 0)?, 16).map_err(|_| protocol_error("a malformed timeline"))?;
    let identity = format!("postgres:{}/{}", column(&row, 1)?, column(&row, 2)?);
    Ok((LogPosition { lsn, timeline: Some(timeline) }, identity))
}

/// The newest position as [`newest_position`] has it, without its timeline, and the id that the next transaction gets.
pub(super) async fn look_up(connection: &mut PostgresConnection) -> Result<(Lsn, u64), SourceError> {
    // txid_... are the names that every version has.
    let sql = "SELECT pg_current_wal_insert_lsn(), current_setting('wal_block_size'), \
               pg_size_bytes(current_setting('wal_segment_size')), txid_snapshot_xmax(txid_current_snapshot())";
    let row = first_row(connection, sql).await?;
    let number = |index| column(&row, index)?.parse().map_err(|_| protocol_error("a malformed number"));
    let next = Lsn::parse(column(&row, 0)?).ok_or_else(|| protocol_error("a malformed position"))?;
    Ok((next.end_before(number(1)?, number(2)?), number(3)?))
}

/// The end of what the server has flushed to its log. Commits that readers see already may lie behind it; they are
/// read.
async fn end_of_log(connection: &mut PostgresConnection) -> Result<Lsn, SourceError> {
    let end = connection.query_one("SELECT pg_current_wal_flush_lsn()").await?;
    end.as_deref().and_then(Lsn::parse).ok_or_else(|| protocol_error("a malformed position"))
}

/// Fails if a `lookaside_invalidate` is one of a later version of the server, or of an earlier one of this program,
/// which writes messages. It may be in a schema that `setup` does not look at: the reason names it.
async fn check_function(connection: &mut PostgresConnection) -> Result<(), SourceError> {
    let sql = "SELECT string_agg(format('%I.%I(%s)', n.nspname, p.proname, pg_get_function_identity_arguments(p.oid)), ', ') \
               FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace \
               WHERE p.proname = 'lookaside_invalidate' AND p.prosrc LIKE '%pg_logical_emit_message%'";
    match connection.query_one(sql).await? {
        None => Ok(()),
        Some(functions) => Err(SourceError::Unusable {
            why: format!(
                "{functions} writes messages, which PostgreSQL 13 does not send to subscribers, so its keys would be \
                 missed: run `lookaside invalidator setup` again, so that it writes to the outbox, or, if it is in another \
                 schema than setup creates it in, DROP FUNCTION {functions}"
            ),
        }),
    }
}

/// Waits until all transactions that are open now have ended, and logs the oldest, by `queries`.
async fn create_slot(
    connection: &mut PostgresConnection,
    queries: &mut PostgresConnection,
    options: &PostgresOptions,
    version: u32,
) -> Result<Lsn, SourceError> {
    let slot = &options.slot;
    tracing::info!(slot, "creating the replication slot; this waits for all open transactions to end");
    let temporary = if options.is_slot_temporary { " TEMPORARY" } else { "" };
    let name = setup::quote_name(slot);
    let creation_options = failover_slot::creation_options(options, version);
    let sql = format!("CREATE_REPLICATION_SLOT {name}{temporary} LOGICAL pgoutput {creation_options}");
    let creating = connection.query_unlimited(&sql);
    tokio::pin!(creating);
    let created = loop {
        match timeout(LOG_EVERY, &mut creating).await {
            Ok(created) => break created,
            // Fails when the server is gone, which `creating` might not notice.
            Err(_) => transactions::log_oldest(queries, "creating the replication slot").await?,
        }
    };
    let rows = created.map_err(|error| match error {
        QueryError::Server(error) => {
            SourceError::Unusable { why: format!("cannot create the replication slot {slot}: {error}") }
        }
        QueryError::Source(error) => error,
    })?;
    let row = rows.into_iter().next().unwrap_or_default();
    Lsn::parse(column(&row, 1)?).ok_or_else(|| protocol_error("a malformed position of a new slot"))
}

pub(super) async fn first_row(connection: &mut PostgresConnection, sql: &str) -> Result<Row, SourceError> {
    Ok(connection.query(sql).await?.into_iter().next().unwrap_or_default())
}

pub(super) fn column(row: &Row, index: usize) -> Result<&str, SourceError> {
    row.get(index).and_then(Option::as_deref).ok_or_else(|| protocol_error("a column is missing"))
}
