//! From messages of the log to commits with keys.
//!
//! ```text
//! begin  ->  table, row of the outbox, message 'lookaside' ...  ->  commit
//! ```
//!
//! Keys are the contents of transactional messages with the prefix `lookaside`, a column of each row that is inserted
//! into the outbox table (the one named `key`, or else the first), and those of changed rows of tables with a rule. A
//! message that is not transactional is in the log although its transaction may be rolled back, or has not been
//! committed yet; its key is ignored and counted.
//!
//! The server sends a transaction only when it is committed, whole, and in the order of commits; a prepared transaction
//! when it is committed. So keys of a long transaction are emitted in parts, all but the last at the position before
//! it. Sans-I/O.

use super::{
    lsn::{Lsn, time_of},
    pgoutput::{Change, ColumnValue, Malformed, Relation, Row},
    row_tables::{LoggedRows, RowTables},
    timeline::Timelines,
};
use crate::{
    Commit, keys,
    rules::{RowRules, Rule, TableChange},
};
use bytes::Bytes;
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
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
    /// Messages or rows of over 16 MiB: no keys, so ignored; a row of a table with a rule is inexpressible.
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
    outbox_table: String,
    /// By the id of each outbox table, the index of its key column.
    outbox: BTreeMap<u32, usize>,
    row_tables: RowTables,
    open: Option<OpenTransaction>,
    /// All transactions that were committed before this have been read.
    read: Lsn,
    timelines: Timelines,
    ready: VecDeque<Commit>,
    /// The transactions with keys that were read since [`Assembler::take_xids`].
    xids: BTreeSet<u32>,
    rejected: u64,
    anomalies: Anomalies,
}

struct OpenTransaction {
    xid: u32,
    committed_at: SystemTime,
    keys: BTreeSet<Vec<u8>>,
}

impl Assembler {
    pub fn new(outbox_table: &str, row_rules: Arc<RowRules>, from: Lsn, timelines: Timelines) -> Assembler {
        Assembler {
            outbox_table: outbox_table.to_owned(),
            outbox: BTreeMap::new(),
            row_tables: RowTables::new(row_rules),
            open: None,
            read: from,
            timelines,
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

    /// The timelines of the log that is read from now on.
    pub fn set_timelines(&mut self, timelines: Timelines) {
        self.timelines = timelines;
    }

    pub fn timelines(&self) -> &Timelines {
        &self.timelines
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

    /// The tables with a rule. The caller gives them the types that they need before it feeds the next message.
    pub fn row_tables(&mut self) -> &mut RowTables {
        &mut self.row_tables
    }

    /// Counts a message that was too long to be read, a row of the table `relation` if it is one.
    pub fn record_oversized(&mut self, relation: Option<u32>) -> Result<(), Malformed> {
        self.anomalies.oversized += 1;
        tracing::warn!("ignoring a message of the log of over 16 MiB: it cannot be a key");
        match relation {
            Some(relation) => self.add_keys(|tables, keys| {
                tables.add_table_change(relation, TableChange::Oversized, keys);
                Ok(())
            }),
            None => Ok(()),
        }
    }

    /// Emits the keys of a change that is not in the log, and that was found at `found_at`.
    pub fn add_unlogged_change(&mut self, rule: Arc<Rule>, change: TableChange, found_at: SystemTime) {
        let mut keys = Vec::new();
        self.row_tables.add_unlogged_change(rule, change, &mut keys);
        if !keys.is_empty() {
            keys::sort_and_dedup(&mut keys);
            self.ready.push_back(Commit {
                position: self.timelines.position(self.read).position(),
                keys,
                committed_at: found_at,
            });
        }
    }

    pub fn feed(&mut self, message: Bytes) -> Result<(), Malformed> {
        let change = Change::parse(message)?;
        if !matches!(change, Change::Relation(_) | Change::Other) {
            self.row_tables.end_description();
        }
        match change {
            Change::Begin { xid, committed_us } => {
                if self.open.is_some() {
                    return Err(Malformed("a begin inside a transaction"));
                }
                let committed_at = time_of(committed_us);
                self.open = Some(OpenTransaction { xid, committed_at, keys: BTreeSet::new() });
            }
            Change::Commit { end } => {
                let open = self.open.take().ok_or(Malformed("a commit without a begin"))?;
                self.read = self.read.max(Lsn(end));
                self.emit(open.xid, open.committed_at, open.keys);
            }
            Change::Relation(relation) => {
                self.set_outbox(&relation)?;
                self.row_tables.describe(relation)?;
            }
            Change::Insert { relation, new } => {
                if let Some(&column) = self.outbox.get(&relation) {
                    self.add_outbox_row(&new, column)?;
                }
                self.add_row(relation, LoggedRows::Insert(&new))?;
            }
            Change::Update { relation, old, new } => {
                self.add_row(relation, LoggedRows::Update(old.as_ref(), &new))?;
            }
            Change::Delete { relation, old } => self.add_row(relation, LoggedRows::Delete(&old))?,
            Change::Truncate { relations } => self.add_keys(|tables, keys| {
                relations.iter().for_each(|table| tables.add_table_change(*table, TableChange::Truncate, keys));
                Ok(())
            })?,
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

    fn set_outbox(&mut self, relation: &Relation) -> Result<(), Malformed> {
        self.outbox.remove(&relation.id);
        if relation.name == self.outbox_table {
            if self.outbox.len() == TABLES_MAX {
                return Err(Malformed("too many outbox tables"));
            }
            let key = relation.columns.iter().position(|column| column.name == "key").unwrap_or(0);
            self.outbox.insert(relation.id, key);
        }
        Ok(())
    }

    fn add_outbox_row(&mut self, row: &Row, column: usize) -> Result<(), Malformed> {
        match row.get(column) {
            Some(ColumnValue::Text(key)) => self.add_key(key),
            _ => self.add_key(b""),
        }
    }

    fn add_row(&mut self, relation: u32, rows: LoggedRows<'_>) -> Result<(), Malformed> {
        self.add_keys(|tables, keys| tables.add_row(relation, rows, keys))
    }

    /// Adds the keys that `write` appends, which need no further check.
    fn add_keys(
        &mut self,
        write: impl FnOnce(&mut RowTables, &mut Vec<Vec<u8>>) -> Result<(), Malformed>,
    ) -> Result<(), Malformed> {
        let mut found = Vec::new();
        write(&mut self.row_tables, &mut found)?;
        if found.is_empty() {
            return Ok(());
        }
        let open = self.open.as_mut().ok_or(Malformed("a change outside of any transaction"))?;
        open.keys.extend(found);
        self.emit_full_part();
        Ok(())
    }

    fn add_key(&mut self, key: &[u8]) -> Result<(), Malformed> {
        let open = self.open.as_mut().ok_or(Malformed("a change outside of any transaction"))?;
        let mut found = Vec::new();
        keys::push_valid_key(key, &mut found, &mut self.rejected);
        open.keys.extend(found);
        self.emit_full_part();
        Ok(())
    }

    /// Emits the keys of the open transaction if they are many.
    fn emit_full_part(&mut self) {
        if let Some(open) = self.open.as_mut().filter(|open| open.keys.len() >= KEYS_OF_COMMIT_MAX) {
            let (xid, committed_at, part) = (open.xid, open.committed_at, std::mem::take(&mut open.keys));
            self.emit(xid, committed_at, part);
        }
    }

    fn emit(&mut self, xid: u32, committed_at: SystemTime, keys: BTreeSet<Vec<u8>>) {
        if keys.is_empty() {
            return;
        }
        self.xids.insert(xid);
        let keys = keys.into_iter().collect();
        self.ready.push_back(Commit { position: self.timelines.position(self.read).position(), keys, committed_at });
    }
}

#[cfg(test)]
mod tests {
    use super::super::pgoutput::tests::{
        begin, commit, delete, insert, message, relation, truncate, typed_relation, update,
    };
    use super::*;
    use crate::{keys::FLUSH_CLUSTER, rules::Rules};

    fn fed(messages: &[Bytes]) -> Assembler {
        fed_with_rules("", messages)
    }

    fn fed_with_rules(rules: &str, messages: &[Bytes]) -> Assembler {
        let rules = if rules.is_empty() { Rules::default() } else { Rules::parse(rules).expect("valid") };
        let mut assembler = Assembler::new("lookaside_outbox", RowRules::new(rules), Lsn(1), Timelines::default());
        for message in messages {
            assert!(assembler.row_tables().needed_types().is_empty(), "built-in types are known");
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
            insert(3, &["1", "user:1"]),
            insert(3, &["2", "-"]),
            relation(4, "users", &["key"]),
            insert(4, &["not:a:key"]),
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
        let mut assembler = fed(&[begin(7), relation(3, "lookaside_outbox", &["item"]), insert(3, &["a"]), commit(9)]);
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
            let mut assembler = Assembler::new("t", Arc::default(), Lsn(1), Timelines::default());
            assert!(messages.into_iter().any(|message| assembler.feed(message).is_err()));
        }
    }

    const RULE: &str = "[[rule]]\ntable = 'public.users'\nkeys = ['u:{id}', 'e:{email}']\notherwise = 'flush-cluster'";
    const INT: i32 = 23;
    const TEXT: i32 = 25;

    /// The keys of a transaction with these changes of `users`, whose description it follows.
    fn keys_of_users(is_email_in_old_row: bool, changes: &[Bytes]) -> Vec<String> {
        let users = typed_relation(5, "users", &[("id", true, INT), ("email", is_email_in_old_row, TEXT)]);
        let messages = [&[begin(7), users], changes, &[commit(9)]].concat();
        let mut assembler = fed_with_rules(RULE, &messages);
        assembler.ready().pop_front().map(|commit| texts(&commit)).unwrap_or_default()
    }

    fn flush() -> String {
        String::from_utf8_lossy(FLUSH_CLUSTER).into_owned()
    }

    #[test]
    fn rows_name_the_keys_of_both_images() {
        let changed = update(5, Some(&["1", "a"]), &["1", "b"]);
        assert_eq!(keys_of_users(true, &[changed]), ["e:a", "e:b", "u:1"]);
        assert_eq!(keys_of_users(true, &[delete(5, &["1", "a"])]), ["e:a", "u:1"]);
        assert_eq!(keys_of_users(true, &[insert(5, &["1", "-"])]), ["u:1"]);
        let moved = update(5, Some(&["1", "a"]), &["2", "?"]);
        assert_eq!(keys_of_users(true, &[moved]), ["e:a", "u:1", "u:2"], "a value that is stored apart");
        for unchanged in [["1", "a"], ["1", "?"]] {
            assert_eq!(keys_of_users(true, &[update(5, Some(&["1", "a"]), &unchanged)]), [""; 0]);
        }
    }

    #[test]
    fn values_beyond_the_identity_are_unknown_and_not_null() {
        let moved = update(5, Some(&["1", "-"]), &["2", "b"]);
        assert_eq!(keys_of_users(false, &[moved]), [&flush(), "e:b", "u:1", "u:2"]);
        assert_eq!(keys_of_users(false, &[update(5, None, &["1", "b"])]), [&flush(), "e:b", "u:1"]);
        assert_eq!(keys_of_users(false, &[delete(5, &["1", "-"])]), [&flush(), "u:1"]);
        assert_eq!(keys_of_users(false, &[insert(5, &["1", "a"])]), ["e:a", "u:1"]);
    }

    /// The server sends rows of a partition as rows of the table, with the table's identity in the description: what
    /// the partition's own identity lacks was taken for NULL, which names no key.
    #[test]
    fn the_identity_of_a_partition_counts_too() {
        let partition = typed_relation(6, "users_1", &[("email", false, TEXT), ("id", true, INT)]);
        let deleted = delete(5, &["1", "-"]);
        assert_eq!(keys_of_users(true, &[partition.clone(), deleted.clone()]), [&flush(), "u:1"]);
        let other = typed_relation(6, "posts", &[("id", true, INT)]);
        assert_eq!(keys_of_users(true, &[other, delete(5, &["1", "a"])]), ["e:a", "u:1"]);
        let whole = typed_relation(6, "users_1", &[("email", true, TEXT), ("id", true, INT)]);
        assert_eq!(keys_of_users(true, &[partition, whole, delete(5, &["1", "a"])]), ["e:a", "u:1"], "it was mended");
    }

    #[test]
    fn truncated_tables_and_rows_that_were_not_read_are_inexpressible() {
        assert_eq!(keys_of_users(true, &[truncate(&[4, 5])]), [flush()]);
        let users = relation(5, "users", &["id", "email"]);
        let mut assembler = fed_with_rules(RULE, &[begin(7), users]);
        assembler.record_oversized(Some(4)).expect("another table");
        assembler.record_oversized(Some(5)).expect("in a transaction");
        assembler.feed(commit(9)).expect("good");
        assert_eq!(texts(&assembler.ready()[0]), [flush()]);
        assert_eq!((assembler.ready().len(), assembler.anomalies().oversized), (1, 2));
    }

    #[test]
    fn a_row_with_other_columns_than_its_table_is_refused() {
        let users = relation(5, "users", &["id", "email"]);
        let mut assembler = fed_with_rules(RULE, &[begin(7), users]);
        assert!(assembler.feed(insert(5, &["1"])).is_err());
    }

    #[test]
    fn rules_that_are_loaded_later_know_the_tables_that_were_described() {
        let rules = RowRules::new(Rules::default());
        let mut assembler = Assembler::new("t", rules.clone(), Lsn(1), Timelines::default());
        for message in [begin(7), relation(5, "users", &["id", "email"]), insert(5, &["1", "a"]), commit(9)] {
            assembler.feed(message).expect("good");
        }
        rules.replace(Rules::parse(RULE).expect("valid"));
        assert!(assembler.row_tables().needed_types().is_empty());
        for message in [begin(8), insert(5, &["2", "b"]), commit(10)] {
            assembler.feed(message).expect("good");
        }
        assert_eq!(assembler.ready().iter().flat_map(texts).collect::<Vec<_>>(), ["e:b", "u:2"]);
    }
}
