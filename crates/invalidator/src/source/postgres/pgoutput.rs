//! Messages of the output plugin `pgoutput`, protocol version 1 (PostgreSQL's manual, "Logical Replication Message
//! Formats").
//!
//! ```text
//! B | final position: 8 | commit time: 8 | xid: 4                         begin
//! C | flags: 1 | position: 8 | end: 8 | commit time: 8                    commit
//! R | id: 4 | schema, 0 | name, 0 | identity: 1 | columns: 2 | columns    a table's description
//! I | id: 4 | N | columns: 2 | values                                     an inserted row
//! M | flags: 1 | position: 8 | prefix, 0 | bytes: 4 | content             pg_logical_emit_message
//! ```
//!
//! Sans-I/O. Updates, deletes, truncations, types and origins are recognized and carry nothing that is needed here.

use bytes::{Buf, Bytes};

/// A malformed message; the field says where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Malformed(pub(super) &'static str);

/// One message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Change {
    Begin { committed_us: i64, xid: u32 },
    Commit { end: u64 },
    Relation(Relation),
    Insert { relation: u32, row: Vec<ColumnValue> },
    Message { is_transactional: bool, prefix: Bytes, content: Bytes },
    Other,
}

/// A table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Relation {
    pub id: u32,
    pub name: Bytes,
    pub columns: Vec<Bytes>,
}

/// A column's value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ColumnValue {
    Null,
    /// Stored apart and not changed, so not in the log.
    Unchanged,
    Text(Bytes),
}

impl Change {
    pub fn parse(mut bytes: Bytes) -> Result<Change, Malformed> {
        let short = |_| Malformed("too short");
        let kind = bytes.try_get_u8().map_err(short)?;
        Ok(match kind {
            b'B' => {
                bytes.try_get_u64().map_err(short)?;
                let committed_us = bytes.try_get_i64().map_err(short)?;
                Change::Begin { committed_us, xid: bytes.try_get_u32().map_err(short)? }
            }
            b'C' => {
                bytes.try_get_u8().map_err(short)?;
                bytes.try_get_u64().map_err(short)?;
                Change::Commit { end: bytes.try_get_u64().map_err(short)? }
            }
            b'R' => Change::Relation(Relation::parse(bytes)?),
            b'I' => {
                let relation = bytes.try_get_u32().map_err(short)?;
                match bytes.try_get_u8().map_err(short)? {
                    b'N' => Change::Insert { relation, row: parse_row(bytes)? },
                    _ => return Err(Malformed("an inserted row without new values")),
                }
            }
            b'M' => {
                let flags = bytes.try_get_u8().map_err(short)?;
                bytes.try_get_u64().map_err(short)?;
                let prefix = read_text(&mut bytes)?;
                let content_bytes = bytes.try_get_u32().map_err(short)? as usize;
                if bytes.len() != content_bytes {
                    return Err(Malformed("a message's length"));
                }
                Change::Message { is_transactional: flags & 1 == 1, prefix, content: bytes }
            }
            b'U' | b'D' | b'T' | b'Y' | b'O' => Change::Other,
            _ => return Err(Malformed("an unknown kind of message")),
        })
    }
}

impl Relation {
    fn parse(mut bytes: Bytes) -> Result<Relation, Malformed> {
        let short = |_| Malformed("a table's description");
        let id = bytes.try_get_u32().map_err(short)?;
        read_text(&mut bytes)?;
        let name = read_text(&mut bytes)?;
        bytes.try_get_u8().map_err(short)?;
        let count = bytes.try_get_u16().map_err(short)?;
        let mut columns = Vec::new();
        for _ in 0..count {
            bytes.try_get_u8().map_err(short)?;
            columns.push(read_text(&mut bytes)?);
            bytes.try_get_u64().map_err(short)?;
        }
        Ok(Relation { id, name, columns })
    }
}

fn parse_row(mut bytes: Bytes) -> Result<Vec<ColumnValue>, Malformed> {
    let short = |_| Malformed("a row");
    let count = bytes.try_get_u16().map_err(short)?;
    let mut row = Vec::new();
    for _ in 0..count {
        row.push(match bytes.try_get_u8().map_err(short)? {
            b'n' => ColumnValue::Null,
            b'u' => ColumnValue::Unchanged,
            b't' => {
                let value_bytes = bytes.try_get_u32().map_err(short)? as usize;
                if bytes.len() < value_bytes {
                    return Err(Malformed("a value's length"));
                }
                ColumnValue::Text(bytes.split_to(value_bytes))
            }
            _ => return Err(Malformed("an unknown kind of value")),
        });
    }
    Ok(row)
}

/// Text up to a zero byte.
fn read_text(bytes: &mut Bytes) -> Result<Bytes, Malformed> {
    let end = memchr::memchr(0, bytes).ok_or(Malformed("a text without an end"))?;
    let text = bytes.split_to(end);
    bytes.advance(1);
    Ok(text)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use proptest::prelude::*;

    pub fn begin(xid: u32) -> Bytes {
        [b"B".as_slice(), &[0; 8], &1_000_000_i64.to_be_bytes(), &xid.to_be_bytes()].concat().into()
    }

    pub fn commit(end: u64) -> Bytes {
        [b"C\0".as_slice(), &[0; 8], &end.to_be_bytes(), &[0; 8]].concat().into()
    }

    pub fn message(is_transactional: bool, prefix: &str, content: &str) -> Bytes {
        let flags = [u8::from(is_transactional)];
        let content_bytes = (content.len() as u32).to_be_bytes();
        [b"M", &flags[..], &[0; 8], prefix.as_bytes(), b"\0", &content_bytes, content.as_bytes()].concat().into()
    }

    pub fn relation(id: u32, name: &str, columns: &[&str]) -> Bytes {
        let count = (columns.len() as u16).to_be_bytes();
        let head = [b"R", &id.to_be_bytes()[..], b"public\0", name.as_bytes(), b"\0d", &count].concat();
        let column = |name: &&str| [b"\0", name.as_bytes(), b"\0", &[0; 8]].concat();
        [head, columns.iter().map(column).collect::<Vec<_>>().concat()].concat().into()
    }

    pub fn insert(relation: u32, row: &[Option<&str>]) -> Bytes {
        let value = |value: &Option<&str>| match value {
            None => b"n".to_vec(),
            Some(text) => [b"t", &(text.len() as u32).to_be_bytes()[..], text.as_bytes()].concat(),
        };
        let values = row.iter().map(value).collect::<Vec<_>>().concat();
        [b"I", &relation.to_be_bytes()[..], b"N", &(row.len() as u16).to_be_bytes(), &values].concat().into()
    }

    #[test]
    fn messages_are_parsed() {
        assert_eq!(Change::parse(begin(7)), Ok(Change::Begin { committed_us: 1_000_000, xid: 7 }));
        assert_eq!(Change::parse(commit(9)), Ok(Change::Commit { end: 9 }));
        let parsed = Change::parse(message(true, "lookaside", "user:1"));
        let expected = Change::Message { is_transactional: true, prefix: "lookaside".into(), content: "user:1".into() };
        assert_eq!(parsed, Ok(expected));
        let columns = vec!["id".into(), "key".into()];
        assert_eq!(
            Change::parse(relation(3, "t", &["id", "key"])),
            Ok(Change::Relation(Relation { id: 3, name: "t".into(), columns }))
        );
        let row = vec![ColumnValue::Text("1".into()), ColumnValue::Null];
        assert_eq!(Change::parse(insert(3, &[Some("1"), None])), Ok(Change::Insert { relation: 3, row }));
        assert_eq!(Change::parse(Bytes::from_static(b"T\0")), Ok(Change::Other));
    }

    proptest! {
        #[test]
        fn any_bytes_are_parsed_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = Change::parse(bytes.into());
        }

        #[test]
        fn a_message_that_is_cut_is_refused(cut in 0..40_usize) {
            let whole = message(true, "lookaside", "user:1");
            prop_assume!(cut < whole.len());
            prop_assert!(Change::parse(whole.slice(..cut)).is_err());
        }
    }
}
