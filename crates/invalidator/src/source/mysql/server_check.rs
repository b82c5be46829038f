//! Checks the kind and the settings of a server, and starts the dump of its log.
//!
//! Serves the start of the delete path. Wrong settings are found here, before the first event; the error names the
//! setting that corrects them.

use super::{
    connection::{MysqlConnection, Row, ServerError, text},
    gtid::{GtidList, GtidPosition, GtidSet},
    log_coverage,
    options::MysqlOptions,
    packet::PacketStream,
    settings::{self, ServerKind, Strictness},
};
use crate::{LogFile, Position, SourceError, Start};
use lookaside_client::Network;
use std::{collections::BTreeMap, sync::atomic::Ordering::Relaxed, time::Duration};

const COMMAND_REGISTER: u8 = 0x15;
const COMMAND_DUMP: u8 = 0x12;
const COMMAND_DUMP_GTID: u8 = 0x1e;

/// MariaDB: send the text of statements too. Without it the log has rows and no comments.
const DUMP_ANNOTATIONS: u16 = 0x02;
/// MySQL: the command names a GTID set.
const DUMP_THROUGH_GTID: u16 = 0x04;

/// Our server ids start here, far above those that operators assign.
const SERVER_ID_FIRST: u32 = 1 << 31;

/// How long the server may take to look at its files.
const LOG_FILES_WAIT_MAX: Duration = Duration::from_secs(10);

/// How long MySQL may take to commit what was already read from its log.
const EXECUTED_WAIT_S: u32 = 5;

/// The result of the checks.
#[derive(Clone, Debug)]
pub struct Server {
    /// The kind of the server.
    pub kind: ServerKind,
    /// Identifies the server.
    pub identity: String,
    /// Whether the log's events end in a checksum.
    pub has_checksum: bool,
    /// Problems that are no reason to stop.
    pub warnings: Vec<String>,
}

impl Server {
    /// Checks the server of `connection`. What loses nothing before something fails is no error once its log has been
    /// read.
    pub async fn inspect(connection: &mut MysqlConnection, options: &MysqlOptions) -> Result<Server, SourceError> {
        let strictness = match options.has_been_read.load(Relaxed) {
            true => Strictness::LosingNow,
            false => Strictness::All,
        };
        Server::inspect_as(connection, options, strictness).await
    }

    /// Checks the server of `connection`, with all of its settings.
    pub async fn inspect_all(connection: &mut MysqlConnection, options: &MysqlOptions) -> Result<Server, SourceError> {
        Server::inspect_as(connection, options, Strictness::All).await
    }

    async fn inspect_as(
        connection: &mut MysqlConnection,
        options: &MysqlOptions,
        strictness: Strictness,
    ) -> Result<Server, SourceError> {
        let kind = match connection.version.contains("MariaDB") {
            true => ServerKind::Mariadb,
            false => ServerKind::Mysql,
        };
        let variables = variables(connection).await?;
        let value = |name: &str| variables.get(name).map_or("", String::as_str);
        let identity = match kind {
            ServerKind::Mysql => format!("mysql:{}", value("server_uuid")),
            ServerKind::Mariadb => format!("mariadb:{}-{}", value("gtid_domain_id"), value("server_id")),
        };
        let filters = log_coverage::read_filters(connection).await?;
        let mut warnings = settings::check(kind, &variables, filters.as_ref(), options, strictness)?;
        warnings.extend(log_coverage::check_replica(connection, &variables, !options.outbox_only).await?);
        Ok(Server { kind, identity, has_checksum: value("binlog_checksum") == "CRC32", warnings })
    }

    /// The position of `start` on this server.
    pub async fn start_position(
        &self,
        connection: &mut MysqlConnection,
        start: &Start,
    ) -> Result<GtidPosition, SourceError> {
        let sql = match (start, self.kind) {
            (Start::At(position), _) => return self.parse(&position.0),
            (Start::Now, ServerKind::Mariadb) => "SELECT @@global.gtid_binlog_pos".into(),
            (Start::Now, ServerKind::Mysql) => "SELECT @@global.gtid_executed".into(),
            (Start::Earliest, ServerKind::Mysql) => "SELECT @@global.gtid_purged".into(),
            (Start::Earliest, ServerKind::Mariadb) => {
                let oldest = connection.query_one("SHOW BINARY LOGS").await?.unwrap_or_default();
                format!("SELECT BINLOG_GTID_POS('{}', 4)", oldest.replace(['\'', '\\'], ""))
            }
        };
        self.parse(&connection.query_one(&sql).await?.unwrap_or_default())
    }

    /// Parses a position of this kind of server.
    pub fn parse(&self, text: &str) -> Result<GtidPosition, SourceError> {
        let (position, form) = match self.kind {
            ServerKind::Mariadb => {
                (GtidList::parse(text).map(GtidPosition::Mariadb), "domain-server-sequence, such as 0-1-5")
            }
            ServerKind::Mysql => (GtidSet::parse(text).map(GtidPosition::Mysql), "a GTID set, such as UUID:1-5"),
        };
        position.ok_or_else(|| SourceError::Unusable {
            why: format!("'{text}' is not a position of this server; expected {form}"),
        })
    }

    /// The part of `position`, up to which another server may have been read, that this one has too.
    pub async fn known_part(
        &self,
        connection: &mut MysqlConnection,
        position: GtidPosition,
    ) -> Result<GtidPosition, SourceError> {
        let GtidPosition::Mariadb(list) = &position else { return Ok(position) };
        let state = connection.query_one("SELECT @@global.gtid_binlog_state").await?.unwrap_or_default();
        Ok(GtidPosition::Mariadb(list.known_part(&state)))
    }

    /// Opens a connection on which the server sends its log after `from`, event by event.
    pub async fn open_dump(
        &self,
        network: &dyn Network,
        options: &MysqlOptions,
        from: &GtidPosition,
    ) -> Result<PacketStream, SourceError> {
        let mut connection = MysqlConnection::open(network, options).await?;
        let server_id = options.server_id.unwrap_or(SERVER_ID_FIRST | connection.id);
        self.check_is_same(&mut connection).await?;
        self.check_position_available(&mut connection, from).await?;
        let period_ns = options.heartbeat.as_nanos();
        connection
            .query(&format!(
                "SET @master_heartbeat_period = {period_ns}, @source_heartbeat_period = {period_ns}, \
                 @master_binlog_checksum = @@global.binlog_checksum, @source_binlog_checksum = @@global.binlog_checksum"
            ))
            .await?;
        if let GtidPosition::Mariadb(list) = from {
            connection.query(&format!("SET @mariadb_slave_capability = 4, @slave_connect_state = '{list}'")).await?;
        }
        let reply = connection.command(&register_command(server_id)).await?;
        if reply.first() == Some(&0xff) {
            return Err(super::connection::error_of(&reply)?.into_source_error(&options.user));
        }
        connection.into_stream(&dump_command(from, server_id)).await
    }

    /// Fails if `connection` leads to another server: the address has been moved in between.
    async fn check_is_same(&self, connection: &mut MysqlConnection) -> Result<(), SourceError> {
        let sql = match self.kind {
            ServerKind::Mysql => "SELECT CONCAT('mysql:', @@global.server_uuid)",
            ServerKind::Mariadb => "SELECT CONCAT('mariadb:', @@global.gtid_domain_id, '-', @@global.server_id)",
        };
        let found = connection.query_one(sql).await?.unwrap_or_default();
        if found != self.identity {
            let why = format!("the address led to {} first, and to {found} then", self.identity);
            return Err(SourceError::Unreachable { why });
        }
        Ok(())
    }

    /// Fails if the server does not know all of `from`. The dump itself would silently start from the beginning.
    async fn check_position_available(
        &self,
        connection: &mut MysqlConnection,
        from: &GtidPosition,
    ) -> Result<(), SourceError> {
        let why = match from {
            GtidPosition::Mariadb(list) => {
                let known = connection.query_one("SELECT @@global.gtid_binlog_pos").await?.unwrap_or_default();
                let known = GtidList::parse(&known).unwrap_or_default();
                let unknown = list.domains().find(|domain| known.domains().all(|other| other != *domain));
                unknown.map(|domain| {
                    format!("its log has no GTID domain {domain}: it was reset, or this is another server")
                })
            }
            GtidPosition::Mysql(set) => {
                // Not GTID_SUBSET: a transaction that was read last may be in the log and not committed yet.
                let sql = format!("SELECT WAIT_FOR_EXECUTED_GTID_SET('{set}', {EXECUTED_WAIT_S})");
                let is_late = connection.query_one(&sql).await?.is_none_or(|result| result != "0");
                is_late.then(|| "it has not executed all of it: it was reset, or this is another server".into())
            }
        };
        match why {
            Some(why) => Err(SourceError::PositionLost { position: Position(from.to_string()), why }),
            None => Ok(()),
        }
    }
}

/// Converts an error during a dump.
pub fn dump_error(error: ServerError, position: &GtidPosition, user: &str) -> SourceError {
    let ServerError { code, message } = error;
    if code != 1236 {
        return ServerError { code, message }.into_source_error(user);
    }
    let mentions = |words: &str| message.contains(words);
    if mentions("same server_") {
        let why = format!("another reader has our server id: give each its own ({message})");
        return SourceError::Unusable { why };
    }
    if mentions("not open") || mentions("max_allowed_packet") || mentions("checksum") || mentions("server id") {
        return SourceError::Unusable { why: format!("the server refuses to send its log: {message} (error 1236)") };
    }
    let why = format!("{message} (error 1236)");
    match LOST_TEXTS.into_iter().any(mentions) {
        true => SourceError::PositionLost { position: Position(position.to_string()), why },
        // A read error, a lack of memory, or an unknown message may not recur at the next attempt, so it must not stop
        // the pipeline or flush the cluster.
        false => SourceError::Unreachable { why: format!("the server stopped sending its log: {why}") },
    }
}

/// The files of the log, the oldest first. The server looks at the size of each.
pub async fn log_files(connection: &mut MysqlConnection) -> Result<Result<Vec<LogFile>, ServerError>, SourceError> {
    let rows = connection.try_query("SHOW BINARY LOGS", LOG_FILES_WAIT_MAX).await?;
    let file = |row: &Row| Some(LogFile { name: text(row, 0)?, bytes: text(row, 1)?.parse().ok()? });
    Ok(rows.map(|rows| rows.iter().filter_map(file).collect()))
}

/// Parts of the messages, among the many with number 1236, by which a server reports that it no longer has a position.
const LOST_TEXTS: [&str; 8] = [
    "purged",
    "Could not find first log",
    "Could not find GTID state",
    "not in the master's binlog",
    "not in the source's binlog",
    "is missing the GTID",
    "too old",
    "has more GTIDs than",
];

/// The global settings that are checked.
pub async fn variables(connection: &mut MysqlConnection) -> Result<BTreeMap<String, String>, SourceError> {
    let rows = connection
        .query(
            "SHOW GLOBAL VARIABLES WHERE Variable_name IN ('log_bin', 'binlog_format', 'gtid_mode', \
             'binlog_rows_query_log_events', 'binlog_annotate_row_events', 'server_uuid', 'server_id', \
             'gtid_domain_id', 'binlog_checksum', 'log_slave_updates', 'log_replica_updates', \
             'replicate_annotate_row_events', 'binlog_row_image', 'binlog_row_metadata', 'gtid_strict_mode', 'sync_binlog', \
             'binlog_error_action', 'innodb_flush_log_at_trx_commit')",
        )
        .await?;
    Ok(rows.iter().filter_map(|row| Some((text(row, 0)?, text(row, 1)?))).collect())
}

/// `| 0x15 | server: 4 | host, user, password: length, text | port: 2 | rank: 4 | source: 4 |`
fn register_command(server_id: u32) -> Vec<u8> {
    const NAME: &[u8] = b"lookaside";
    let mut payload = vec![COMMAND_REGISTER];
    payload.extend_from_slice(&server_id.to_le_bytes());
    payload.push(NAME.len() as u8);
    payload.extend_from_slice(NAME);
    payload.extend_from_slice(&[0; 2 + 2 + 4 + 4]);
    payload
}

/// ```text
/// MariaDB  | 0x12 | offset: 4 | flags: 2 | server: 4 | file |              the position is in @slave_connect_state
/// MySQL    | 0x1e | flags: 2 | server: 4 | length: 4, file | offset: 8 | length: 4, GTID set |
/// ```
fn dump_command(from: &GtidPosition, server_id: u32) -> Vec<u8> {
    const OFFSET_FIRST: u8 = 4;
    match from {
        GtidPosition::Mariadb(_) => {
            let mut payload = vec![COMMAND_DUMP, OFFSET_FIRST, 0, 0, 0];
            payload.extend_from_slice(&DUMP_ANNOTATIONS.to_le_bytes());
            payload.extend_from_slice(&server_id.to_le_bytes());
            payload
        }
        GtidPosition::Mysql(set) => {
            let mut payload = vec![COMMAND_DUMP_GTID];
            payload.extend_from_slice(&DUMP_THROUGH_GTID.to_le_bytes());
            payload.extend_from_slice(&server_id.to_le_bytes());
            payload.extend_from_slice(&[0; 4]);
            payload.extend_from_slice(&u64::from(OFFSET_FIRST).to_le_bytes());
            let set = set.encode();
            payload.extend_from_slice(&(set.len() as u32).to_le_bytes());
            payload.extend_from_slice(&set);
            payload
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn converted(message: &str) -> SourceError {
        let error = ServerError { code: 1236, message: message.into() };
        dump_error(error, &GtidPosition::Mariadb(GtidList::default()), "reader")
    }

    /// Every error with this number was once treated as a lost position: a transient read error stopped the pipeline or
    /// flushed the cluster.
    #[test]
    fn only_known_messages_mean_a_lost_position() {
        for message in [
            "Could not find first log file name in binary log index file",
            "Could not find GTID state requested by slave in any binlog files. Probably the slave state is too old and \
             required binlog files have been purged.",
            "Error: connecting slave requested to start from GTID 0-1-4000, which is not in the master's binlog",
            "The binlog on the master is missing the GTID 0-1-7 requested by the slave (even though both a prior and a \
             subsequent sequence number does exist), and GTID strict mode is enabled",
            "Cannot replicate because the source purged required binary logs. Replicate the missing transactions from \
             elsewhere",
            "The slave is connecting using CHANGE MASTER TO MASTER_AUTO_POSITION = 1, but the master has purged binary \
             logs containing GTIDs that the slave requires.",
            "Slave has more GTIDs than the master has, using the master's SERVER_UUID.",
        ] {
            assert!(matches!(converted(message), SourceError::PositionLost { .. }), "{message}");
        }
        for message in [
            "I/O error reading log event",
            "error reading log event",
            "memory allocation failed reading log event",
            "could not find next log",
            "Failed to open binlog",
            "bogus data in log event",
            "binlog truncated in the middle of event; consider out of disk space on master",
        ] {
            assert!(matches!(converted(message), SourceError::Unreachable { .. }), "{message}");
        }
        assert!(matches!(converted("Binary log is not open"), SourceError::Unusable { .. }));
    }
}
