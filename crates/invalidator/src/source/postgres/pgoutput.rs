//! Messages of the output plugin `pgoutput`, protocol version 1 (PostgreSQL's manual, "Logical Replication Message
//! Formats").
//!
//! ```text
//! B | final position: 8 | commit time: 8 | xid: 4                         begin
//! C | flags: 1 | position: 8 | end: 8 | commit time: 8                    commit
//! R | id: 4 | schema, 0 | name, 0 | identity: 1 | columns: 2 | columns    a table's description
//! I | id: 4 | N | row                                                     an inserted row
//! U | id: 4 | (K or O | row) | N | row                                    an updated row, perhaps with the old one
//! D | id: 4 | K or O | row                                                a deleted row
//! T | tables: 4 | flags: 1 | ids: 4 each                                  truncated tables
//! M | flags: 1 | position: 8 | prefix, 0 | bytes: 4 | content             pg_logical_emit_message
//!
//! column | flags: 1 (1: in the old row) | name, 0 | type: 4 | modifier: 4
//! row    | columns: 2 | n (NULL), u (unchanged, not in the log), or t | bytes: 4 | text, for each column
//! ```
//!
//! Whether an old row is the identity alone (K) or whole (O) is not used: the flags of the columns tell which of its
//! values are real. The others are NULL in it. Sans-I/O. Types and origins carry nothing that is needed here.

use bytes::{Buf, Bytes};

/// A malformed message; the field says where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Malformed(pub(super) &'static str);

/// One message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Change {
    Begin {
        committed_us: i64,
        xid: u32,
    },
    Commit {
        end: u64,
    },
    Relation(Relation),
    Insert {
        relation: u32,
        new: Row,
    },
    /// `old` is `None` if the row has kept the values of its identity.
    Update {
        relation: u32,
        old: Option<Row>,
        new: Row,
    },
    Delete {
        relation: u32,
        old: Row,
    },
    Truncate {
        relations: Vec<u32>,
    },
    Message {
        is_transactional: bool,
        prefix: Bytes,
        content: Bytes,
    },
    Other,
}

/// The values of a row, in the order of the table's columns.
pub(super) type Row = Vec<ColumnValue>;

/// A table's description. It comes before the first change of the table, and again when the table was altered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Relation {
    pub id: u32,
    pub schema: String,
    pub name: String,
    pub columns: Vec<RelationColumn>,
}

/// A column of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RelationColumn {
    pub name: String,
    /// Whether old rows have its value: it belongs to the table's replica identity.
    pub is_in_old_row: bool,
    pub type_id: u32,
    /// What the type has in parentheses, in the type's own encoding; -1 if nothing.
    pub modifier: i32,
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
                    b'N' => Change::Insert { relation, new: read_row(&mut bytes)? },
                    _ => return Err(Malformed("an inserted row without new values")),
                }
            }
            b'U' => read_update(bytes)?,
            b'D' => {
                let relation = bytes.try_get_u32().map_err(short)?;
                match bytes.try_get_u8().map_err(short)? {
                    b'K' | b'O' => Change::Delete { relation, old: read_row(&mut bytes)? },
                    _ => return Err(Malformed("a deleted row without old values")),
                }
            }
            b'T' => read_truncate(bytes)?,
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
            b'Y' | b'O' => Change::Other,
            _ => return Err(Malformed("an unknown kind of message")),
        })
    }
}

impl Relation {
    fn parse(mut bytes: Bytes) -> Result<Relation, Malformed> {
        let short = |_| Malformed("a table's description");
        let id = bytes.try_get_u32().map_err(short)?;
        let (schema, name) = (read_name(&mut bytes)?, read_name(&mut bytes)?);
        bytes.try_get_u8().map_err(short)?;
        let count = bytes.try_get_u16().map_err(short)?;
        let mut columns = Vec::new();
        for _ in 0..count {
            columns.push(RelationColumn {
                is_in_old_row: bytes.try_get_u8().map_err(short)? & 1 == 1,
                name: read_name(&mut bytes)?,
                type_id: bytes.try_get_u32().map_err(short)?,
                modifier: bytes.try_get_i32().map_err(short)?,
            });
        }
        Ok(Relation { id, schema, name, columns })
    }
}

fn read_update(mut bytes: Bytes) -> Result<Change, Malformed> {
    let short = |_| Malformed("an updated row");
    let relation = bytes.try_get_u32().map_err(short)?;
    let mut kind = bytes.try_get_u8().map_err(short)?;
    let mut old = None;
    if matches!(kind, b'K' | b'O') {
        old = Some(read_row(&mut bytes)?);
        kind = bytes.try_get_u8().map_err(short)?;
    }
    match kind {
        b'N' => Ok(Change::Update { relation, old, new: read_row(&mut bytes)? }),
        _ => Err(Malformed("an updated row without new values")),
    }
}

fn read_truncate(mut bytes: Bytes) -> Result<Change, Malformed> {
    let short = |_| Malformed("truncated tables");
    let count = bytes.try_get_u32().map_err(short)?;
    bytes.try_get_u8().map_err(short)?;
    let mut relations = Vec::new();
    for _ in 0..count {
        relations.push(bytes.try_get_u32().map_err(short)?);
    }
    Ok(Change::Truncate { relations })
}

fn read_row(bytes: &mut Bytes) -> Result<Row, Malformed> {
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

/// A name, copied: it is held for longer than the message.
fn read_name(bytes: &mut Bytes) -> Result<String, Malformed> {
    Ok(String::from_utf8_lossy(&read_text(bytes)?).into_owned())
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

    /// A table whose columns are all text and in old rows.
    pub fn relation(id: u32, name: &str, columns: &[&str]) -> Bytes {
        const TEXT: i32 = 25;
        let columns: Vec<_> = columns.iter().map(|column| (*column, true, TEXT)).collect();
        typed_relation(id, name, &columns)
    }

    /// A table, with the name, the membership of the replica identity and the type of each column.
    pub fn typed_relation(id: u32, name: &str, columns: &[(&str, bool, i32)]) -> Bytes {
        let count = (columns.len() as u16).to_be_bytes();
        let head = [b"R", &id.to_be_bytes()[..], b"public\0", name.as_bytes(), b"\0d", &count].concat();
        let column = |(name, is_in_old_row, type_id): &(&str, bool, i32)| {
            let (flags, type_id) = ([u8::from(*is_in_old_row)], type_id.to_be_bytes());
            [&flags[..], name.as_bytes(), b"\0", &type_id, &(-1_i32).to_be_bytes()].concat()
        };
        [head, columns.iter().map(column).collect::<Vec<_>>().concat()].concat().into()
    }

    /// A row: `-` is NULL, and `?` an unchanged value.
    fn row(values: &[&str]) -> Vec<u8> {
        let value = |value: &&str| match *value {
            "-" => b"n".to_vec(),
            "?" => b"u".to_vec(),
            text => [b"t", &(text.len() as u32).to_be_bytes()[..], text.as_bytes()].concat(),
        };
        let values = values.iter().map(value).collect::<Vec<_>>();
        [&(values.len() as u16).to_be_bytes()[..], &values.concat()].concat()
    }

    pub fn insert(relation: u32, new: &[&str]) -> Bytes {
        [b"I", &relation.to_be_bytes()[..], b"N", &row(new)].concat().into()
    }

    pub fn update(relation: u32, old: Option<&[&str]>, new: &[&str]) -> Bytes {
        let old = old.map(|old| [b"O", &row(old)[..]].concat()).unwrap_or_default();
        [b"U", &relation.to_be_bytes()[..], &old, b"N", &row(new)].concat().into()
    }

    pub fn delete(relation: u32, old: &[&str]) -> Bytes {
        [b"D", &relation.to_be_bytes()[..], b"K", &row(old)].concat().into()
    }

    pub fn truncate(relations: &[u32]) -> Bytes {
        let ids = relations.iter().flat_map(|id| id.to_be_bytes()).collect::<Vec<_>>();
        [b"T", &(relations.len() as u32).to_be_bytes()[..], b"\0", &ids].concat().into()
    }

    #[test]
    fn messages_are_parsed() {
        assert_eq!(Change::parse(begin(7)), Ok(Change::Begin { committed_us: 1_000_000, xid: 7 }));
        assert_eq!(Change::parse(commit(9)), Ok(Change::Commit { end: 9 }));
        let parsed = Change::parse(message(true, "lookaside", "user:1"));
        let expected = Change::Message { is_transactional: true, prefix: "lookaside".into(), content: "user:1".into() };
        assert_eq!(parsed, Ok(expected));
        let column =
            |name: &str| RelationColumn { name: name.into(), is_in_old_row: name == "id", type_id: 23, modifier: -1 };
        let relation =
            Relation { id: 3, schema: "public".into(), name: "t".into(), columns: vec![column("id"), column("key")] };
        let described = Change::parse(typed_relation(3, "t", &[("id", true, 23), ("key", false, 23)]));
        assert_eq!(described, Ok(Change::Relation(relation)));
        let one: ColumnValue = ColumnValue::Text("1".into());
        let new = vec![one.clone(), ColumnValue::Null];
        assert_eq!(Change::parse(insert(3, &["1", "-"])), Ok(Change::Insert { relation: 3, new }));
        let (old, new) = (Some(vec![one.clone()]), vec![ColumnValue::Unchanged]);
        assert_eq!(
            Change::parse(update(3, Some(&["1"]), &["?"])),
            Ok(Change::Update { relation: 3, old, new: new.clone() })
        );
        assert_eq!(Change::parse(update(3, None, &["?"])), Ok(Change::Update { relation: 3, old: None, new }));
        assert_eq!(Change::parse(delete(3, &["1"])), Ok(Change::Delete { relation: 3, old: vec![one] }));
        assert_eq!(Change::parse(truncate(&[3, 4])), Ok(Change::Truncate { relations: vec![3, 4] }));
        assert_eq!(Change::parse(Bytes::from_static(b"Y\0")), Ok(Change::Other));
    }

    proptest! {
        #[test]
        fn any_bytes_are_parsed_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = Change::parse(bytes.into());
        }

        #[test]
        fn a_message_that_is_cut_is_refused(cut in 0..40_usize) {
            for whole in [message(true, "lookaside", "user:1"), update(3, Some(&["a"]), &["b"]), truncate(&[3, 4])] {
                if cut < whole.len() {
                    prop_assert!(Change::parse(whole.slice(..cut)).is_err());
                }
            }
        }
    }
}
