//! From messages of the log to commits with keys.
//!
//! ```text
//! begin  ->  table, row of the outbox, message 'lookaside' ...  ->  commit
//! ```
//!
//! Keys are the contents of transactional messages with the prefix `lookaside`, and a column of each row that is
//! inserted into the outbox table: the one named `key`, or else the first. A message that is not transactional is in the
//! log although its transaction may be rolled back, or has not been committed yet; its key is ignored and counted.
//!
//! The server sends a transaction only when it is committed, whole, and in the order of commits; a prepared transaction
//! when it is committed. So keys of a long transaction are emitted in parts, all but the last at the position before it.
//! Sans-I/O.

use super::{
    lsn::{Lsn, time_of},
    pgoutput::{Change, ColumnValue, Malformed, Relation},
};
use crate::{Commit, keys};
use bytes::Bytes;
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::SystemTime,
};

/// The prefix of messages that name a key.
pub const MESSAGE_PREFIX: &str = "lookaside";

/// The most keys of one [`Commit`]; a larger transaction is split.
const KEYS_OF_COMMIT_MAX: usize = 10_000;
/// The most outbox tables, in different schemas.
const TABLES_MAX: usize = 1_000;

/// Irregularities of the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Anomalies {
    /// Messages with the prefix that are not transactional: ignored.
    pub untransactional: u64,
    /// Messages or rows of over 16 MiB: no keys, so ignored.
    pub oversized: u64,
}

impl std::ops::Add for Anomalies {
    type Output = Anomalies;

    fn add(self, other: Anomalies) -> Anomalies {
        Anomalies {
            untransactional: self.untransactional + other.untransactional,
            oversized: self.oversized + other.oversized,
        }
    }
}

/// Assembles messages to commits.
pub(super) struct Assembler {
    outbox_table: Bytes,
    /// By the id of each outbox table, the index of its key column.
    outbox: BTreeMap<u32, usize>,
    open: Option<OpenTransaction>,
    /// All transactions that were committed before this have been read.
    read: Lsn,
    ready: VecDeque<Commit>,
    /// The transactions with keys that were read since [`Assembler::take_xids`].
    xids: BTreeSet<u32>,
    rejected: u64,
    anomalies: Anomalies,
}

struct OpenTransaction {
    xid: u32,
    committed_at: SystemTime,
    keys: Vec<Vec<u8>>,
}

impl Assembler {
    pub fn new(outbox_table: &str, from: Lsn) -> Assembler {
        Assembler {
            outbox_table: Bytes::copy_from_slice(outbox_table.as_bytes()),
            outbox: BTreeMap::new(),
            open: None,
            read: from,
            ready: VecDeque::new(),
            xids: BTreeSet::new(),
            rejected: 0,
            anomalies: Anomalies::default(),
        }
    }

    /// All transactions that were committed before this have been read.
    pub fn read(&self) -> Lsn {
        self.read
    }

    pub fn ready(&mut self) -> &mut VecDeque<Commit> {
        &mut self.ready
    }

    pub fn rejected(&self) -> u64 {
        self.rejected
    }

    pub fn anomalies(&self) -> Anomalies {
        self.anomalies
    }

    /// The transactions for which the gate must wait.
    pub fn take_xids(&mut self) -> BTreeSet<u32> {
        std::mem::take(&mut self.xids)
    }

    /// Everything that was committed before `end` has been sent.
    pub fn advance(&mut self, end: Lsn) {
        if self.open.is_none() {
            self.read = self.read.max(end);
        }
    }

    /// Counts a message that was too long to be read.
    pub fn record_oversized(&mut self) {
        self.anomalies.oversized += 1;
        tracing::warn!("ignoring a message of the log of over 16 MiB: it cannot be a key");
    }

    pub fn feed(&mut self, message: Bytes) -> Result<(), Malformed> {
        match Change::parse(message)? {
            Change::Begin { xid, committed_us } => {
                if self.open.is_some() {
                    return Err(Malformed("a begin inside a transaction"));
                }
                self.open = Some(OpenTransaction { xid, committed_at: time_of(committed_us), keys: Vec::new() });
            }
            Change::Commit { end } => {
                let open = self.open.take().ok_or(Malformed("a commit without a begin"))?;
                self.read = self.read.max(Lsn(end));
                self.emit(open.xid, open.committed_at, open.keys);
            }
            Change::Relation(relation) => self.set_relation(&relation)?,
            Change::Insert { relation, row } => {
                if let Some(&column) = self.outbox.get(&relation) {
                    match row.get(column) {
                        Some(ColumnValue::Text(key)) => self.add_key(key)?,
                        _ => self.add_key(b"")?,
                    }
                }
            }
            Change::Message { prefix, .. } if prefix != MESSAGE_PREFIX => {}
            Change::Message { is_transactional: true, content, .. } => self.add_key(&content)?,
            Change::Message { content, .. } => {
                self.anomalies.untransactional += 1;
                tracing::warn!(
                    key = %content.escape_ascii(),
                    "ignoring a message that is not transactional; use pg_logical_emit_message(true, ...)"
                );
            }
            Change::Other => {}
        }
        Ok(())
    }

    fn set_relation(&mut self, relation: &Relation) -> Result<(), Malformed> {
        self.outbox.remove(&relation.id);
        if relation.name == self.outbox_table {
            if self.outbox.len() == TABLES_MAX {
                return Err(Malformed("too many outbox tables"));
            }
            let key = relation.columns.iter().position(|name| name == "key").unwrap_or(0);
            self.outbox.insert(relation.id, key);
        }
        Ok(())
    }

    fn add_key(&mut self, key: &[u8]) -> Result<(), Malformed> {
        let open = self.open.as_mut().ok_or(Malformed("a change outside of any transaction"))?;
        keys::push_valid_key(key, &mut open.keys, &mut self.rejected);
        if open.keys.len() >= KEYS_OF_COMMIT_MAX {
            let (xid, committed_at, part) = (open.xid, open.committed_at, std::mem::take(&mut open.keys));
            self.emit(xid, committed_at, part);
        }
        Ok(())
    }

    fn emit(&mut self, xid: u32, committed_at: SystemTime, mut keys: Vec<Vec<u8>>) {
        if keys.is_empty() {
            return;
        }
        keys::sort_and_dedup(&mut keys);
        self.xids.insert(xid);
        self.ready.push_back(Commit { position: self.read.position(), keys, committed_at });
    }
}

#[cfg(test)]
mod tests {
    use super::super::pgoutput::tests::{begin, commit, insert, message, relation};
    use super::*;

    fn fed(messages: &[Bytes]) -> Assembler {
        let mut assembler = Assembler::new("lookaside_outbox", Lsn(1));
        for message in messages {
            assembler.feed(message.clone()).expect("a good message");
        }
        assembler
    }

    fn texts(commit: &Commit) -> Vec<String> {
        commit.keys.iter().map(|key| String::from_utf8(key.clone()).expect("text")).collect()
    }

    #[test]
    fn a_transaction_names_keys_by_messages_and_by_the_outbox() {
        let mut assembler = fed(&[
            begin(7),
            message(true, "lookaside", "user:2"),
            message(true, "other", "not:a:key"),
            relation(3, "lookaside_outbox", &["id", "key"]),
            insert(3, &[Some("1"), Some("user:1")]),
            insert(3, &[Some("2"), None]),
            relation(4, "users", &["key"]),
            insert(4, &[Some("not:a:key")]),
            message(true, "lookaside", "user:2"),
            commit(100),
        ]);
        assert_eq!((assembler.ready().len(), assembler.rejected()), (1, 1));
        let commit = assembler.ready().pop_front().expect("one commit");
        assert_eq!((texts(&commit), commit.position.0.as_str()), (vec!["user:1".into(), "user:2".into()], "0/64"));
        assert_eq!(assembler.take_xids(), BTreeSet::from([7]));
        assert!(assembler.take_xids().is_empty());
    }

    #[test]
    fn an_outbox_without_a_column_named_key_uses_its_first() {
        let mut assembler =
            fed(&[begin(7), relation(3, "lookaside_outbox", &["item"]), insert(3, &[Some("a")]), commit(9)]);
        assert_eq!(texts(&assembler.ready()[0]), ["a"]);
    }

    #[test]
    fn a_message_that_is_not_transactional_is_ignored() {
        let mut assembler = fed(&[message(false, "lookaside", "rolled:back"), begin(7), commit(9)]);
        assert!(assembler.ready().is_empty());
        assert_eq!((assembler.anomalies().untransactional, assembler.read()), (1, Lsn(9)));
    }

    #[test]
    fn a_large_transaction_is_emitted_in_parts_before_its_position() {
        let mut messages = vec![begin(7)];
        messages.extend((0..KEYS_OF_COMMIT_MAX + 1).map(|key| message(true, "lookaside", &format!("k{key}"))));
        let mut assembler = fed(&messages);
        assert_eq!(assembler.ready().len(), 1, "memory is bounded before the end of the transaction is read");
        assembler.advance(Lsn(50));
        assembler.feed(commit(100)).expect("good");
        let parts: Vec<_> = assembler.ready().iter().map(|part| (part.keys.len(), part.position.0.clone())).collect();
        assert_eq!(parts, [(KEYS_OF_COMMIT_MAX, "0/1".into()), (1, "0/64".into())]);
    }

    #[test]
    fn changes_outside_of_a_transaction_are_refused() {
        for messages in [vec![commit(1)], vec![begin(1), begin(2)], vec![message(true, "lookaside", "k")]] {
            let mut assembler = Assembler::new("t", Lsn(1));
            assert!(messages.into_iter().any(|message| assembler.feed(message).is_err()));
        }
    }
}
