//! Events: what a server's commit log is made of. Bytes in, meaning out; no state beyond the checksum's setting.
//!
//! ```text
//! head  | time: 4 | type: 1 | server: 4 | length: 4 | end of the event in its file: 4 | flags: 2 |
//! event | head: 19 | body | checksum: 4, when the log has them |
//! ```
//!
//! Serves the delete path. Types that say nothing of keys or of the ends of transactions are [`Body::Other`].

use super::{
    cursor::{Cursor, Malformed},
    gtid::{self, Origin},
};
use std::io::Read;

const HEAD_BYTES: usize = 19;
const CHECKSUM_BYTES: usize = 4;

/// The most that a compressed event may grow to: the longest statement that a server takes.
const INFLATED_BYTES_MAX: u64 = 1 << 30;

/// What `LOAD DATA` in the statement format puts between a query's head and its body.
const LOAD_BYTES: usize = 13;

/// The event was made up for us and is in no file.
const ARTIFICIAL: u16 = 0x20;

/// What a compressed body of MariaDB is headed by: this bit, the algorithm (0 is zlib), the length of the length.
const COMPRESSED: u8 = 0x80;

/// One event.
#[derive(Debug)]
pub struct Event<'a> {
    /// When it was begun, in seconds since 1970.
    pub time_s: u32,
    /// Which server first wrote it.
    pub server_id: u32,
    /// Where it ends in its file, modulo 2^32; 0 where the server does not say (MariaDB from 11.4, inside of a
    /// transaction) and for events that are in no file.
    pub end: u32,
    /// Whether the event was made up for us and is in no file.
    pub is_artificial: bool,
    /// What it says.
    pub body: Body<'a>,
}

/// What an event says.
#[derive(Debug)]
pub enum Body<'a> {
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
    /// A statement that stands for itself, `BEGIN` and `COMMIT` among them.
    Query(std::borrow::Cow<'a, [u8]>),
    /// A table's description.
    TableMap(&'a [u8]),
    /// Rows were inserted.
    WriteRows {
        /// The event's body.
        body: &'a [u8],
        /// Whether it is of version 2.
        has_extra: bool,
        /// Whether the rows are compressed, MariaDB's way.
        is_compressed: bool,
    },
    /// The transaction is committed.
    Xid,
    /// The transaction is prepared, or committed in the same breath.
    XaPrepare {
        /// Its name as `XA COMMIT` will give it.
        xid: String,
        /// Whether this commits it.
        is_committed: bool,
    },
    /// Another file begins here.
    Rotate {
        /// Its name.
        file: &'a [u8],
        /// Where in it.
        offset: u64,
    },
    /// A file is introduced: whether its events end in a checksum.
    Format {
        /// See above.
        has_checksum: bool,
    },
    /// Events in one compressed piece (MySQL): what is inside, decompressed.
    Transaction(Vec<u8>),
    /// The server lost part of its log.
    Incident,
    /// Nothing that is needed here.
    Other,
}

/// MariaDB: the transaction is one event, without an end of its own.
pub const STANDALONE: u8 = 0x01;
/// MariaDB: the transaction ends in a preparation.
pub const PREPARED_XA: u8 = 0x40;

impl<'a> Event<'a> {
    /// Reads one event. `has_checksum` is what the last [`Body::Format`] said.
    pub fn read(bytes: &'a [u8], has_checksum: bool) -> Result<Self, Malformed> {
        let mut cursor = Cursor::new(bytes, "an event's head");
        let time_s = cursor.u32()?;
        let kind = cursor.u8()?;
        let server_id = cursor.u32()?;
        cursor.take(4)?;
        let end = cursor.u32()?;
        let flags = cursor.u16()?;
        let body = match has_checksum && kind != kind::FORMAT {
            true => checked(bytes, cursor.rest())?,
            false => cursor.rest(),
        };
        Ok(Event { time_s, server_id, end, is_artificial: flags & ARTIFICIAL != 0, body: Body::read(kind, body)? })
    }
}

/// The length of the event that begins here, as its head has it.
pub fn length_of(bytes: &[u8]) -> Result<usize, Malformed> {
    let mut cursor = Cursor::new(bytes, "an event's head");
    cursor.take(9)?;
    let length = cursor.u32()? as usize;
    match (HEAD_BYTES..=bytes.len()).contains(&length) {
        true => Ok(length),
        false => Err(Malformed("an event's length")),
    }
}

/// The numbers of the types, as the servers have them.
mod kind {
    pub const QUERY: u8 = 2;
    pub const ROTATE: u8 = 4;
    pub const FORMAT: u8 = 15;
    pub const XID: u8 = 16;
    pub const EXECUTE_LOAD_QUERY: u8 = 18;
    pub const TABLE_MAP: u8 = 19;
    pub const WRITE_ROWS_V1: u8 = 23;
    pub const INCIDENT: u8 = 26;
    pub const ROWS_QUERY: u8 = 29;
    pub const WRITE_ROWS_V2: u8 = 30;
    pub const MYSQL_GTID: u8 = 33;
    pub const MYSQL_ANONYMOUS_GTID: u8 = 34;
    pub const XA_PREPARE: u8 = 38;
    pub const TRANSACTION_PAYLOAD: u8 = 40;
    pub const MYSQL_TAGGED_GTID: u8 = 42;
    pub const MARIADB_ANNOTATE_ROWS: u8 = 160;
    pub const MARIADB_GTID: u8 = 162;
    pub const MARIADB_QUERY_COMPRESSED: u8 = 165;
    pub const MARIADB_WRITE_ROWS_COMPRESSED_V1: u8 = 166;
    pub const MARIADB_WRITE_ROWS_COMPRESSED_V2: u8 = 169;
}

impl<'a> Body<'a> {
    fn read(kind: u8, body: &'a [u8]) -> Result<Self, Malformed> {
        Ok(match kind {
            kind::MARIADB_GTID => {
                let mut cursor = Cursor::new(body, "a transaction's number");
                Body::MariadbGtid { sequence: cursor.u64()?, domain: cursor.u32()?, flags: cursor.u8()? }
            }
            kind::MYSQL_GTID => mysql_gtid(body)?,
            kind::MYSQL_TAGGED_GTID => {
                let (origin, number) = gtid::read_tagged(Cursor::new(body, "a tagged transaction number"))?;
                Body::MysqlGtid { origin, number, committed_us: None }
            }
            kind::MYSQL_ANONYMOUS_GTID => Body::Anonymous,
            kind::MARIADB_ANNOTATE_ROWS => Body::Statement(body),
            // The length's lowest byte stands first and says nothing about long texts.
            kind::ROWS_QUERY => Body::Statement(body.split_first().ok_or(Malformed("a statement"))?.1),
            kind::QUERY => Body::Query(query(body, 0)?.into()),
            kind::MARIADB_QUERY_COMPRESSED => Body::Query(inflate(query(body, 0)?)?.into()),
            kind::EXECUTE_LOAD_QUERY => Body::Query(query(body, LOAD_BYTES)?.into()),
            kind::TABLE_MAP => Body::TableMap(body),
            kind::WRITE_ROWS_V1 => Body::WriteRows { body, has_extra: false, is_compressed: false },
            kind::WRITE_ROWS_V2 => Body::WriteRows { body, has_extra: true, is_compressed: false },
            kind::MARIADB_WRITE_ROWS_COMPRESSED_V1 => Body::WriteRows { body, has_extra: false, is_compressed: true },
            kind::MARIADB_WRITE_ROWS_COMPRESSED_V2 => Body::WriteRows { body, has_extra: true, is_compressed: true },
            kind::XID => Body::Xid,
            kind::XA_PREPARE => xa_prepare(body)?,
            kind::ROTATE => {
                let mut cursor = Cursor::new(body, "a change of file");
                Body::Rotate { offset: cursor.u64()?, file: cursor.rest() }
            }
            kind::FORMAT => {
                // | ... | algorithm of the checksum: 1 | checksum: 4 |, the last whether or not it is used.
                let at = body.len().checked_sub(CHECKSUM_BYTES + 1).ok_or(Malformed("a log's format"))?;
                Body::Format { has_checksum: body[at] == 1 }
            }
            kind::TRANSACTION_PAYLOAD => Body::Transaction(transaction_payload(body)?),
            kind::INCIDENT => Body::Incident,
            _ => Body::Other,
        })
    }
}

fn checked<'a>(bytes: &[u8], body: &'a [u8]) -> Result<&'a [u8], Malformed> {
    let (_, checksum) = bytes.split_last_chunk::<CHECKSUM_BYTES>().ok_or(Malformed("an event's checksum"))?;
    let body = &body[..body.len().checked_sub(CHECKSUM_BYTES).ok_or(Malformed("an event's checksum"))?];
    match crc32fast::hash(&bytes[..bytes.len() - CHECKSUM_BYTES]) == u32::from_le_bytes(*checksum) {
        true => Ok(body),
        false => Err(Malformed("an event: its checksum is wrong")),
    }
}

/// The text of a query; `extra_bytes` more stand behind the head of one that loads a file.
fn query(body: &[u8], extra_bytes: usize) -> Result<&[u8], Malformed> {
    let mut cursor = Cursor::new(body, "a query");
    cursor.take(8)?;
    let schema_bytes = usize::from(cursor.u8()?);
    cursor.take(2)?;
    let variables_bytes = usize::from(cursor.u16()?);
    cursor.take(extra_bytes + variables_bytes + schema_bytes + 1)?;
    Ok(cursor.rest())
}

fn mysql_gtid(body: &[u8]) -> Result<Body<'_>, Malformed> {
    let mut cursor = Cursor::new(body, "a transaction's number");
    cursor.take(1)?;
    let uuid = cursor.array()?;
    let number = cursor.u64()?;
    let committed_us = match cursor.rest() {
        // The clock of groups (17 bytes with its type), then 55 bits of time here, and a bit that says whether the
        // time at the first server follows.
        [2, rest @ ..] => {
            let mut cursor = Cursor::new(rest, "a transaction's time");
            let time = cursor.take(16).and_then(|_| cursor.uint(7));
            match time {
                Ok(here) if here >> 55 == 1 => Some(cursor.uint(7)?),
                Ok(here) => Some(here),
                Err(_) => None,
            }
        }
        _ => None,
    };
    Ok(Body::MysqlGtid { origin: (uuid, String::new()), number, committed_us })
}

fn xa_prepare(body: &[u8]) -> Result<Body<'_>, Malformed> {
    let mut cursor = Cursor::new(body, "an XA PREPARE");
    let is_committed = cursor.u8()? != 0;
    let format = cursor.u32()?;
    let global_bytes = cursor.u32()? as usize;
    let branch_bytes = cursor.u32()? as usize;
    let global = cursor.take(global_bytes)?;
    let branch = cursor.take(branch_bytes)?;
    Ok(Body::XaPrepare { xid: xid_text(global, branch, format), is_committed })
}

/// A prepared transaction's name as `XA COMMIT` stands in the log, in lower case.
pub fn xid_text(global: &[u8], branch: &[u8], format: u32) -> String {
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    format!("x'{}',x'{}',{format}", hex(global), hex(branch))
}

/// Undoes MariaDB's compression: `| 0x80, algorithm, n | length: n, big end first | zlib |`.
pub fn inflate(compressed: &[u8]) -> Result<Vec<u8>, Malformed> {
    const READING: &str = "a compressed event";
    let mut cursor = Cursor::new(compressed, READING);
    let head = cursor.u8()?;
    if head & 0xf0 != COMPRESSED {
        return Err(Malformed("an event compressed in a way that is not known here"));
    }
    let length = cursor.uint_big_endian(usize::from(head & 7))?;
    if length > INFLATED_BYTES_MAX {
        return Err(Malformed(READING));
    }
    read_limited(flate2::read::ZlibDecoder::new(cursor.rest()), length)
}

/// Undoes MySQL's compression of a whole transaction: fields of type, length, value, and the events behind them.
fn transaction_payload(body: &[u8]) -> Result<Vec<u8>, Malformed> {
    const READING: &str = "a compressed transaction";
    const UNCOMPRESSED: u64 = 255;
    let mut cursor = Cursor::new(body, READING);
    let (mut algorithm, mut length) = (UNCOMPRESSED, INFLATED_BYTES_MAX);
    loop {
        let field = cursor.length()?;
        if field == 0 {
            break;
        }
        let mut value = Cursor::new(cursor.bytes()?, READING);
        match field {
            2 => algorithm = value.length()? as u64,
            3 => length = value.length()? as u64,
            _ => {}
        }
    }
    match algorithm {
        0 if length <= INFLATED_BYTES_MAX => {
            let decoder = zstd::stream::read::Decoder::with_buffer(cursor.rest()).map_err(|_| Malformed(READING))?;
            read_limited(decoder, length)
        }
        UNCOMPRESSED => Ok(cursor.rest().to_vec()),
        _ => Err(Malformed("a transaction compressed in a way that is not known here")),
    }
}

fn read_limited(decoder: impl Read, length: u64) -> Result<Vec<u8>, Malformed> {
    let mut out = Vec::new();
    decoder.take(length + 1).read_to_end(&mut out).map_err(|_| Malformed("a compressed event"))?;
    match out.len() as u64 == length {
        true => Ok(out),
        false => Err(Malformed("a compressed event: its length is wrong")),
    }
}
