//! Parses the events of a server's commit log.
//!
//! ```text
//! header | time: 4 | type: 1 | server: 4 | length: 4 | end of the event in its file: 4 | flags: 2 |
//! event  | header: 19 | body | checksum: 4, if the log has them |
//! ```
//!
//! Serves the delete path. Event types that carry neither keys nor ends of transactions are [`EventData::Other`].

use super::{
    cursor::{Cursor, Malformed},
    gtid::{self, Origin},
    payload::TransactionPayload,
};
use crate::keys::SqlMode;
use std::io::Read;

const CHECKSUM_BYTES: usize = 4;

/// The largest size of a decompressed event: the longest statement that a server accepts.
const INFLATED_BYTES_MAX: u64 = 1 << 30;

/// The bytes that `LOAD DATA` in the statement format has between a query's header and its body.
const LOAD_BYTES: usize = 13;

/// Flag: the event was generated for this connection and is in no file.
const ARTIFICIAL: u16 = 0x20;

/// Flag: a reader that does not know the event may skip it.
const IGNORABLE: u16 = 0x80;

/// The first byte of a compressed body of MariaDB: this bit, the algorithm (0 is zlib), the length of the length.
const COMPRESSED: u8 = 0x80;

/// One event.
#[derive(Debug)]
pub struct BinlogEvent<'a> {
    /// When its statement began, in seconds since 1970.
    pub time_s: u32,
    /// Which server first wrote it.
    pub server_id: u32,
    /// Its length in the log.
    pub bytes: u32,
    /// Its end in the log file, modulo 2^32; 0 if unknown (MariaDB from 11.4, inside of a transaction) and for events
    /// that are in no file.
    pub end: u32,
    /// Whether the event was generated for this connection and is in no file.
    pub is_artificial: bool,
    /// The payload.
    pub body: EventData<'a>,
}

/// The payload of an event.
#[derive(Debug)]
pub enum EventData<'a> {
    /// A transaction of MariaDB begins.
    MariadbGtid {
        /// The stream that it belongs to.
        domain: u32,
        /// Its number there.
        sequence: u64,
        /// [`STANDALONE`], [`PREPARED_XA`] and others.
        flags: u8,
    },
    /// A transaction of MySQL begins.
    MysqlGtid {
        /// The server, and the tag.
        origin: Origin,
        /// Its number there.
        number: u64,
        /// When it was committed, in microseconds since 1970.
        committed_us: Option<u64>,
    },
    /// A transaction of MySQL without a number.
    Anonymous,
    /// The text of a statement whose rows follow.
    Statement(&'a [u8]),
    /// A statement without row events, including `BEGIN` and `COMMIT`.
    Query {
        /// The schema of unqualified names.
        schema: &'a [u8],
        /// Its text.
        sql: std::borrow::Cow<'a, [u8]>,
        /// The mode of its session; `None` if the log does not have it.
        sql_mode: Option<SqlMode>,
    },
    /// A table's description.
    TableMap(&'a [u8]),
    /// Rows were changed.
    Rows {
        /// How.
        kind: RowsKind,
        /// The event's body.
        body: &'a [u8],
        /// Whether the event has version 2.
        has_extra: bool,
        /// Whether the rows are compressed in MariaDB's format.
        is_compressed: bool,
    },
    /// The transaction is committed.
    Xid,
    /// The transaction is prepared, or committed in one phase.
    XaPrepare {
        /// Its name, as in the later `XA COMMIT`.
        xid: String,
        /// Whether this commits it.
        is_committed: bool,
    },
    /// The log continues in another file.
    Rotate {
        /// Its name.
        file: &'a [u8],
        /// The offset in it.
        offset: u64,
    },
    /// The format of the events that follow.
    Format {
        /// Whether they end with a checksum.
        has_checksum: bool,
    },
    /// A compressed transaction (MySQL).
    Transaction(TransactionPayload),
    /// The server lost part of its log.
    Incident,
    /// Another event, which is not needed here.
    Other,
    /// An event of a kind that is not known, and that a reader may not skip: it may hold changes.
    Unknown(u8),
}

/// How an event changes rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowsKind {
    /// They are inserted.
    Insert,
    /// They are changed: each row has an old and a new image.
    Update,
    /// As an update; JSON columns of the new image may be differences from the old one (MySQL).
    PartialUpdate,
    /// They are deleted.
    Delete,
}

/// MariaDB: the transaction is one event, without an end event.
pub const STANDALONE: u8 = 0x01;
/// MariaDB: the transaction ends with an XA PREPARE.
pub const PREPARED_XA: u8 = 0x40;

impl<'a> BinlogEvent<'a> {
    /// Parses one event. `has_checksum` comes from the last [`EventData::Format`].
    pub fn read(bytes: &'a [u8], has_checksum: bool) -> Result<Self, Malformed> {
        let mut cursor = Cursor::new(bytes, "an event's header");
        let time_s = cursor.u32()?;
        let kind = cursor.u8()?;
        let server_id = cursor.u32()?;
        let (length, end) = (cursor.u32()?, cursor.u32()?);
        let flags = cursor.u16()?;
        let body = match has_checksum && kind != kind::FORMAT {
            true => verify_checksum(bytes, cursor.rest())?,
            false => cursor.rest(),
        };
        Ok(BinlogEvent {
            time_s,
            server_id,
            bytes: length,
            end,
            is_artificial: flags & ARTIFICIAL != 0,
            body: match EventData::read(kind, body)? {
                EventData::Unknown(_) if flags & IGNORABLE != 0 => EventData::Other,
                body => body,
            },
        })
    }
}

/// The type numbers of events.
mod kind {
    pub const QUERY: u8 = 2;
    pub const ROTATE: u8 = 4;
    pub const FORMAT: u8 = 15;
    pub const XID: u8 = 16;
    pub const EXECUTE_LOAD_QUERY: u8 = 18;
    pub const TABLE_MAP: u8 = 19;
    pub const WRITE_ROWS_V1: u8 = 23;
    pub const UPDATE_ROWS_V1: u8 = 24;
    pub const DELETE_ROWS_V1: u8 = 25;
    pub const INCIDENT: u8 = 26;
    pub const ROWS_QUERY: u8 = 29;
    pub const WRITE_ROWS_V2: u8 = 30;
    pub const UPDATE_ROWS_V2: u8 = 31;
    pub const DELETE_ROWS_V2: u8 = 32;
    pub const MYSQL_GTID: u8 = 33;
    pub const MYSQL_ANONYMOUS_GTID: u8 = 34;
    pub const XA_PREPARE: u8 = 38;
    pub const PARTIAL_UPDATE_ROWS: u8 = 39;
    pub const TRANSACTION_PAYLOAD: u8 = 40;
    pub const MYSQL_TAGGED_GTID: u8 = 42;
    pub const MARIADB_ANNOTATE_ROWS: u8 = 160;
    pub const MARIADB_GTID: u8 = 162;
    pub const MARIADB_QUERY_COMPRESSED: u8 = 165;
    pub const MARIADB_WRITE_ROWS_COMPRESSED_V1: u8 = 166;
    pub const MARIADB_UPDATE_ROWS_COMPRESSED_V1: u8 = 167;
    pub const MARIADB_DELETE_ROWS_COMPRESSED_V1: u8 = 168;
    pub const MARIADB_WRITE_ROWS_COMPRESSED_V2: u8 = 169;
    pub const MARIADB_UPDATE_ROWS_COMPRESSED_V2: u8 = 170;
    pub const MARIADB_DELETE_ROWS_COMPRESSED_V2: u8 = 171;

    /// Those without keys and without an end of a transaction.
    pub const NEEDLESS: [u8; 17] = [
        3,   // stop: the server has ended
        5,   // the next automatic number, for a statement
        7,   // slave, which no server writes
        9,   // a part of a file, for LOAD DATA
        11,  // the end of such a file
        13,  // the seed of random numbers, for a statement
        14,  // the value of a variable, for a statement
        17,  // the first part of a file, for LOAD DATA
        27,  // heartbeat
        28,  // ignorable
        35,  // MySQL: the transactions of earlier files
        36,  // MySQL: what a transaction of group replication has read
        37,  // MySQL: a change of the members of group replication
        41,  // MySQL: heartbeat, with larger offsets
        161, // MariaDB: from where a restart must look for prepared transactions
        163, // MariaDB: the transactions of earlier files
        164, // MariaDB: the key of an encrypted file, whose events are sent in the clear
    ];
}

impl<'a> EventData<'a> {
    fn read(kind: u8, body: &'a [u8]) -> Result<Self, Malformed> {
        Ok(match kind {
            kind::MARIADB_GTID => {
                let mut cursor = Cursor::new(body, "a transaction's number");
                EventData::MariadbGtid { sequence: cursor.u64()?, domain: cursor.u32()?, flags: cursor.u8()? }
            }
            kind::MYSQL_GTID => mysql_gtid(body)?,
            kind::MYSQL_TAGGED_GTID => {
                let (origin, number) = gtid::read_tagged(Cursor::new(body, "a tagged transaction number"))?;
                EventData::MysqlGtid { origin, number, committed_us: None }
            }
            kind::MYSQL_ANONYMOUS_GTID => EventData::Anonymous,
            kind::MARIADB_ANNOTATE_ROWS => EventData::Statement(body),
            // The first byte is the low byte of the length, which is meaningless for long texts.
            kind::ROWS_QUERY => EventData::Statement(body.split_first().ok_or(Malformed("a statement"))?.1),
            kind::QUERY => query(body, 0)?,
            kind::MARIADB_QUERY_COMPRESSED => match query(body, 0)? {
                EventData::Query { schema, sql, sql_mode } => {
                    EventData::Query { schema, sql: inflate(&sql)?.into(), sql_mode }
                }
                other => other,
            },
            kind::EXECUTE_LOAD_QUERY => query(body, LOAD_BYTES)?,
            kind::TABLE_MAP => EventData::TableMap(body),
            kind::WRITE_ROWS_V1 => rows(RowsKind::Insert, body, false, false),
            kind::UPDATE_ROWS_V1 => rows(RowsKind::Update, body, false, false),
            kind::DELETE_ROWS_V1 => rows(RowsKind::Delete, body, false, false),
            kind::WRITE_ROWS_V2 => rows(RowsKind::Insert, body, true, false),
            kind::UPDATE_ROWS_V2 => rows(RowsKind::Update, body, true, false),
            kind::DELETE_ROWS_V2 => rows(RowsKind::Delete, body, true, false),
            kind::PARTIAL_UPDATE_ROWS => rows(RowsKind::PartialUpdate, body, true, false),
            kind::MARIADB_WRITE_ROWS_COMPRESSED_V1 => rows(RowsKind::Insert, body, false, true),
            kind::MARIADB_UPDATE_ROWS_COMPRESSED_V1 => rows(RowsKind::Update, body, false, true),
            kind::MARIADB_DELETE_ROWS_COMPRESSED_V1 => rows(RowsKind::Delete, body, false, true),
            kind::MARIADB_WRITE_ROWS_COMPRESSED_V2 => rows(RowsKind::Insert, body, true, true),
            kind::MARIADB_UPDATE_ROWS_COMPRESSED_V2 => rows(RowsKind::Update, body, true, true),
            kind::MARIADB_DELETE_ROWS_COMPRESSED_V2 => rows(RowsKind::Delete, body, true, true),
            kind::XID => EventData::Xid,
            kind::XA_PREPARE => xa_prepare(body)?,
            kind::ROTATE => {
                let mut cursor = Cursor::new(body, "a change of file");
                EventData::Rotate { offset: cursor.u64()?, file: cursor.rest() }
            }
            kind::FORMAT => {
                // | ... | checksum algorithm: 1 | checksum: 4 |; the checksum is present even if it is not used.
                let at = body.len().checked_sub(CHECKSUM_BYTES + 1).ok_or(Malformed("a log's format"))?;
                EventData::Format { has_checksum: body[at] == 1 }
            }
            kind::TRANSACTION_PAYLOAD => EventData::Transaction(TransactionPayload::read(body)?),
            kind::INCIDENT => EventData::Incident,
            needless if kind::NEEDLESS.contains(&needless) => EventData::Other,
            unknown => EventData::Unknown(unknown),
        })
    }
}

fn verify_checksum<'a>(bytes: &[u8], body: &'a [u8]) -> Result<&'a [u8], Malformed> {
    let (_, checksum) = bytes.split_last_chunk::<CHECKSUM_BYTES>().ok_or(Malformed("an event's checksum"))?;
    let body = &body[..body.len().checked_sub(CHECKSUM_BYTES).ok_or(Malformed("an event's checksum"))?];
    match crc32fast::hash(&bytes[..bytes.len() - CHECKSUM_BYTES]) == u32::from_le_bytes(*checksum) {
        true => Ok(body),
        false => Err(Malformed("an event: its checksum is wrong")),
    }
}

fn rows(kind: RowsKind, body: &[u8], has_extra: bool, is_compressed: bool) -> EventData<'_> {
    EventData::Rows { kind, body, has_extra, is_compressed }
}

/// A query. One that loads a file has `extra_bytes` more after its header.
fn query(body: &[u8], extra_bytes: usize) -> Result<EventData<'_>, Malformed> {
    let mut cursor = Cursor::new(body, "a query");
    cursor.read_slice(8)?;
    let schema_bytes = usize::from(cursor.u8()?);
    cursor.read_slice(2)?;
    let variables_bytes = usize::from(cursor.u16()?);
    cursor.read_slice(extra_bytes)?;
    let sql_mode = sql_mode(cursor.read_slice(variables_bytes)?);
    let schema = cursor.read_slice(schema_bytes)?;
    cursor.read_slice(1)?;
    Ok(EventData::Query { schema, sql: cursor.rest().into(), sql_mode })
}

/// The mode among the status variables of a query; `None` if it is not there.
///
/// `| 0 | options: 4 | 1 | sql_mode: 8 | ...`: both kinds of server write these two first.
fn sql_mode(variables: &[u8]) -> Option<SqlMode> {
    const OPTIONS: u8 = 0;
    const SQL_MODE: u8 = 1;
    let rest = match variables {
        [OPTIONS, _, _, _, _, rest @ ..] => rest,
        rest => rest,
    };
    let bits = rest.strip_prefix(&[SQL_MODE])?.first_chunk()?;
    Some(SqlMode::from_bits(u64::from_le_bytes(*bits)))
}

fn mysql_gtid(body: &[u8]) -> Result<EventData<'_>, Malformed> {
    let mut cursor = Cursor::new(body, "a transaction's number");
    cursor.read_slice(1)?;
    let uuid = cursor.array()?;
    let number = cursor.u64()?;
    let committed_us = match cursor.rest() {
        // The logical clock (17 bytes with its type), then 55 bits of the local commit time, and a bit that is set if
        // the commit time at the original server follows.
        [2, rest @ ..] => {
            let mut cursor = Cursor::new(rest, "a transaction's time");
            let time = cursor.read_slice(16).and_then(|_| cursor.uint(7));
            match time {
                Ok(here) if here >> 55 == 1 => Some(cursor.uint(7)?),
                Ok(here) => Some(here),
                Err(_) => None,
            }
        }
        _ => None,
    };
    Ok(EventData::MysqlGtid { origin: (uuid, String::new()), number, committed_us })
}

fn xa_prepare(body: &[u8]) -> Result<EventData<'_>, Malformed> {
    let mut cursor = Cursor::new(body, "an XA PREPARE");
    let is_committed = cursor.u8()? != 0;
    let format = cursor.u32()?;
    let global_bytes = cursor.u32()? as usize;
    let branch_bytes = cursor.u32()? as usize;
    let global = cursor.read_slice(global_bytes)?;
    let branch = cursor.read_slice(branch_bytes)?;
    Ok(EventData::XaPrepare { xid: xid_text(global, branch, format), is_committed })
}

/// The name of a prepared transaction as `XA COMMIT` has it in the log, in lower case.
pub fn xid_text(global: &[u8], branch: &[u8], format: u32) -> String {
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    format!("x'{}',x'{}',{format}", hex(global), hex(branch))
}

/// Decompresses MariaDB's format: `| 0x80, algorithm, n | length: n, big-endian | zlib |`.
pub fn inflate(compressed: &[u8]) -> Result<Vec<u8>, Malformed> {
    const READING: &str = "a compressed event";
    let mut cursor = Cursor::new(compressed, READING);
    let head = cursor.u8()?;
    if head & 0xf0 != COMPRESSED {
        return Err(Malformed("an event with an unsupported compression"));
    }
    let length = cursor.uint_big_endian(usize::from(head & 7))?;
    if length > INFLATED_BYTES_MAX {
        return Err(Malformed(READING));
    }
    read_limited(flate2::read::ZlibDecoder::new(cursor.rest()), length)
}

fn read_limited(decoder: impl Read, length: u64) -> Result<Vec<u8>, Malformed> {
    let mut out = Vec::new();
    decoder.take(length + 1).read_to_end(&mut out).map_err(|_| Malformed("a compressed event"))?;
    match out.len() as u64 == length {
        true => Ok(out),
        false => Err(Malformed("a compressed event: its length is wrong")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Events of newer servers were skipped, also those with rows.
    #[test]
    fn only_events_that_hold_nothing_are_skipped() {
        for (kind, flags, is_skipped) in
            [(27, 0, true), (163, 0, true), (172, 0, false), (172, 0x80, true), (0, 0, false)]
        {
            let mut bytes = vec![0; 21];
            (bytes[4], bytes[17]) = (kind, flags);
            let event = BinlogEvent::read(&bytes, false).expect("a header");
            match event.body {
                EventData::Other => assert!(is_skipped, "{kind}"),
                EventData::Unknown(unknown) => assert!(!is_skipped && unknown == kind, "{kind}"),
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn a_query_has_the_mode_of_its_session() {
        let mode_of = |variables: &[u8]| {
            let mut body = vec![0; 8];
            body.extend_from_slice(&[3, 0, 0, variables.len() as u8, 0]);
            body.extend_from_slice(variables);
            body.extend_from_slice(b"app\0SELECT 1");
            match query(&body, 0).expect("valid") {
                EventData::Query { schema: b"app", sql, sql_mode } if *sql == *b"SELECT 1" => sql_mode,
                other => panic!("{other:?}"),
            }
        };
        let plain = SqlMode { has_ansi_quotes: false, has_backslash_escapes: false };
        assert_eq!(mode_of(b"\0\x01\x02\x03\x04\x01\0\0\x10\0\0\0\0\0\x06\x03std"), Some(plain));
        assert_eq!(mode_of(b"\x01\0\0\0\0\0\0\0\0"), Some(SqlMode::DEFAULT));
        for without in [&b""[..], b"\x06\x03std", b"\0\x01\x02\x03\x04", b"\x01\0\0", b"\0\x01"] {
            assert_eq!(mode_of(without), None, "{without:?}");
        }
    }
}
