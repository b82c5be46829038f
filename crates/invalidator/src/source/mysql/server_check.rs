//! The server: which kind it is, whether it is set up for us, and how its log is asked for.
//!
//! Serves the beginning of the delete path. Everything that is wrong with a set-up is found here, before the first
//! event, and said with the setting that cures it.

use super::{
    connection::{Connection, ServerError, text},
    gtid::{GtidList, GtidSet, Progress},
    log_coverage,
    options::MysqlOptions,
    packet::PacketStream,
};
use crate::{Position, SourceError, Start};
use lookaside_client::Network;
use std::collections::BTreeMap;

const COMMAND_REGISTER: u8 = 0x15;
const COMMAND_DUMP: u8 = 0x12;
const COMMAND_DUMP_GTID: u8 = 0x1e;

/// MariaDB: send the texts of statements too. Without it there are rows and no comments.
const DUMP_ANNOTATIONS: u16 = 0x02;
/// MySQL: the command names a GTID set.
const DUMP_THROUGH_GTID: u16 = 0x04;

/// Our own replica numbers begin here, far above those that people give to servers.
const SERVER_ID_FIRST: u32 = 1 << 31;

/// How long MySQL may take to have committed what we already read of its log.
const EXECUTED_WAIT_S: u32 = 5;

/// The two kinds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// MariaDB.
    Mariadb,
    /// MySQL, and what speaks like it.
    Mysql,
}

/// What the checks found out.
#[derive(Clone, Debug)]
pub struct Server {
    /// Which of the two.
    pub kind: Kind,
    /// Which server it is, as far as it can be told from another.
    pub identity: String,
    /// Whether the log's events end in a checksum.
    pub has_checksum: bool,
    /// What an operator should know, and what is no reason to stop.
    pub warnings: Vec<String>,
}

impl Server {
    /// Looks at the server behind `connection`.
    pub async fn survey(connection: &mut Connection, options: &MysqlOptions) -> Result<Server, SourceError> {
        let kind = match connection.version.contains("MariaDB") {
            true => Kind::Mariadb,
            false => Kind::Mysql,
        };
        let variables = variables(connection).await?;
        let value = |name: &str| variables.get(name).map_or("", String::as_str);
        let unusable = |why: &str| Err(SourceError::Unusable { why: why.into() });
        if value("log_bin") != "ON" {
            return unusable("the server keeps no commit log: start it with log_bin (and binlog_format=ROW)");
        }
        // Comments are found in statements of any format, but outbox rows only in rows.
        if !matches!(value("binlog_format"), "ROW" | "") {
            return unusable(
                "binlog_format is not ROW, so inserts into the outbox table would go unseen: set binlog_format=ROW",
            );
        }
        if kind == Kind::Mysql && value("gtid_mode") != "ON" {
            return unusable("transactions have no GTIDs: set gtid_mode=ON and enforce_gtid_consistency=ON");
        }
        let texts = if kind == Kind::Mysql { "binlog_rows_query_log_events" } else { "binlog_annotate_row_events" };
        if value(texts) != "ON" && !options.outbox_only {
            return unusable(&format!(
                "statements are not in the log, so keys in comments would go unseen: set {texts}=ON, or say that only \
                 the outbox table is used"
            ));
        }
        let identity = match kind {
            Kind::Mysql => format!("mysql:{}", value("server_uuid")),
            Kind::Mariadb => format!("mariadb:{}-{}", value("gtid_domain_id"), value("server_id")),
        };
        let warnings = log_coverage::check(connection, &variables, !options.outbox_only).await?;
        Ok(Server { kind, identity, has_checksum: value("binlog_checksum") == "CRC32", warnings })
    }

    /// What `start` is here.
    pub async fn progress(&self, connection: &mut Connection, start: &Start) -> Result<Progress, SourceError> {
        let sql = match (start, self.kind) {
            (Start::At(position), _) => return self.parse(&position.0),
            (Start::Now, Kind::Mariadb) => "SELECT @@global.gtid_binlog_pos".into(),
            (Start::Now, Kind::Mysql) => "SELECT @@global.gtid_executed".into(),
            (Start::Earliest, Kind::Mysql) => "SELECT @@global.gtid_purged".into(),
            (Start::Earliest, Kind::Mariadb) => {
                let oldest = connection.query_one("SHOW BINARY LOGS").await?.unwrap_or_default();
                format!("SELECT BINLOG_GTID_POS('{}', 4)", oldest.replace(['\'', '\\'], ""))
            }
        };
        self.parse(&connection.query_one(&sql).await?.unwrap_or_default())
    }

    /// Reads a position of this kind of server.
    pub fn parse(&self, text: &str) -> Result<Progress, SourceError> {
        let (progress, form) = match self.kind {
            Kind::Mariadb => (GtidList::parse(text).map(Progress::Mariadb), "domain-server-sequence, such as 0-1-5"),
            Kind::Mysql => (GtidSet::parse(text).map(Progress::Mysql), "a GTID set, such as UUID:1-5"),
        };
        progress
            .ok_or_else(|| SourceError::Unusable { why: format!("'{text}' is no position here: it must be {form}") })
    }

    /// Opens a connection on which the log after `from` arrives, event by event.
    pub async fn dump(
        &self,
        network: &dyn Network,
        options: &MysqlOptions,
        from: &Progress,
    ) -> Result<PacketStream, SourceError> {
        let mut connection = Connection::open(network, options).await?;
        let server_id = options.server_id.unwrap_or(SERVER_ID_FIRST | connection.id);
        self.check_reach(&mut connection, from).await?;
        let period_ns = options.heartbeat.as_nanos();
        connection
            .query(&format!(
                "SET @master_heartbeat_period = {period_ns}, @source_heartbeat_period = {period_ns}, \
                 @master_binlog_checksum = @@global.binlog_checksum, @source_binlog_checksum = @@global.binlog_checksum"
            ))
            .await?;
        if let Progress::Mariadb(list) = from {
            connection.query(&format!("SET @mariadb_slave_capability = 4, @slave_connect_state = '{list}'")).await?;
        }
        let answer = connection.command(&register(server_id)).await?;
        if answer.first() == Some(&0xff) {
            return Err(super::connection::error_of(&answer)?.into_source_error(&options.user));
        }
        connection.into_stream(&dump_command(from, server_id)).await
    }

    /// Says whether the server knows all of `from`, where the dump itself would begin anew in silence.
    async fn check_reach(&self, connection: &mut Connection, from: &Progress) -> Result<(), SourceError> {
        let why = match from {
            Progress::Mariadb(list) => {
                let known = connection.query_one("SELECT @@global.gtid_binlog_pos").await?.unwrap_or_default();
                let known = GtidList::parse(&known).unwrap_or_default();
                let unknown = list.domains().find(|domain| known.domains().all(|other| other != *domain));
                unknown.map(|domain| {
                    format!("its log has nothing of GTID domain {domain}: it was reset, or this is another server")
                })
            }
            Progress::Mysql(set) => {
                // Not GTID_SUBSET: what we read last may be in the log and not yet committed.
                let sql = format!("SELECT WAIT_FOR_EXECUTED_GTID_SET('{set}', {EXECUTED_WAIT_S})");
                let late = connection.query_one(&sql).await?.is_none_or(|answer| answer != "0");
                late.then(|| "it has not executed all of it: it was reset, or this is another server".into())
            }
        };
        match why {
            Some(why) => Err(SourceError::PositionLost { position: Position(from.to_string()), why }),
            None => Ok(()),
        }
    }
}

/// What an error in the middle of a dump means.
pub fn dump_error(error: ServerError, position: &Progress, user: &str) -> SourceError {
    let ServerError { code, message } = error;
    if code != 1236 {
        return ServerError { code, message }.into_source_error(user);
    }
    let says = |words: &str| message.contains(words);
    if says("same server_") {
        let why = format!("another reader has our server id: give each its own ({message})");
        return SourceError::Unusable { why };
    }
    if says("not open") || says("max_allowed_packet") || says("checksum") || says("server id") {
        return SourceError::Unusable { why: format!("the server does not send its log: {message} (error 1236)") };
    }
    let why = format!("{message} (error 1236)");
    match LOST_TEXTS.into_iter().any(says) {
        true => SourceError::PositionLost { position: Position(position.to_string()), why },
        // A file that could not be read now, memory that ran out, a text that a later release says: to end the
        // pipeline or to empty the cluster is no answer to what may be over at the next attempt.
        false => SourceError::Unreachable { why: format!("the server stopped sending its log: {why}") },
    }
}

/// What either kind of server says, among much else under the number 1236, when it no longer has what we ask for.
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

async fn variables(connection: &mut Connection) -> Result<BTreeMap<String, String>, SourceError> {
    let rows = connection
        .query(
            "SHOW GLOBAL VARIABLES WHERE Variable_name IN ('log_bin', 'binlog_format', 'gtid_mode', \
             'binlog_rows_query_log_events', 'binlog_annotate_row_events', 'server_uuid', 'server_id', \
             'gtid_domain_id', 'binlog_checksum', 'log_slave_updates', 'log_replica_updates', \
             'replicate_annotate_row_events')",
        )
        .await?;
    Ok(rows.iter().filter_map(|row| Some((text(row, 0)?, text(row, 1)?))).collect())
}

/// `| 0x15 | server: 4 | host, user, password: length, text | port: 2 | rank: 4 | source: 4 |`
fn register(server_id: u32) -> Vec<u8> {
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
fn dump_command(from: &Progress, server_id: u32) -> Vec<u8> {
    const OFFSET_FIRST: u8 = 4;
    match from {
        Progress::Mariadb(_) => {
            let mut payload = vec![COMMAND_DUMP, OFFSET_FIRST, 0, 0, 0];
            payload.extend_from_slice(&DUMP_ANNOTATIONS.to_le_bytes());
            payload.extend_from_slice(&server_id.to_le_bytes());
            payload
        }
        Progress::Mysql(set) => {
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

    fn meaning(message: &str) -> SourceError {
        let error = ServerError { code: 1236, message: message.into() };
        dump_error(error, &Progress::Mariadb(GtidList::default()), "reader")
    }

    /// Every error of this number was once a lost position: a read error that had passed a second later ended the
    /// pipeline, or emptied the cluster.
    #[test]
    fn only_what_says_so_is_a_lost_position() {
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
            assert!(matches!(meaning(message), SourceError::PositionLost { .. }), "{message}");
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
            assert!(matches!(meaning(message), SourceError::Unreachable { .. }), "{message}");
        }
        assert!(matches!(meaning("Binary log is not open"), SourceError::Unusable { .. }));
    }
}
