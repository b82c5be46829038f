//! Tables with a rule, as the log describes them: changes of rows go in, keys come out. Part of the
//! [`assembler`](super::assembler).
//!
//! The log names columns and types itself, at each change of the table's description, so rows never get the names of
//! another time. Which values an old row has depends on the table's replica identity, which the description shows too:
//!
//! | change | old row in the log | values that are known of it |
//! |---|---|---|
//! | UPDATE | none: the identity has not changed | those of the identity, from the new row |
//! | UPDATE, DELETE | one | those of the identity; all with REPLICA IDENTITY FULL |
//!
//! A value that is stored apart and was not changed is missing in the new row; it is the old row's. An UPDATE that
//! leaves a row as it was is in the log, unlike in those of other databases; with REPLICA IDENTITY FULL it names no
//! keys here either.
//!
//! Rows of a partition arrive as rows of the whole table, with its description, but what is in them depends on the
//! partition's identity. The server describes the partition right behind the table, so a table that is described next
//! and has the same columns is taken for a partition: a value counts as known only if it is in the identity of all of
//! them.
//!
//! TRUNCATE is in the log, other changes of whole tables are not (`coverage.rs`).

use super::{
    column_type::{ColumnType, DeclaredTypes},
    pgoutput::{ColumnValue, Malformed, Relation, Row},
};
use crate::rules::{RowChange, RowRules, RowValue, Rule, Rules, TableChange, WatchedTable};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

/// The most tables that a stream describes. All are held, as rules that are loaded later may name them.
const TABLES_MAX: usize = 10_000;

/// The rows of a change, as the log has them.
#[derive(Clone, Copy, Debug)]
pub(super) enum LoggedRows<'a> {
    Insert(&'a Row),
    Update(Option<&'a Row>, &'a Row),
    Delete(&'a Row),
}

/// The tables that the log has described.
pub(super) struct RowTables {
    row_rules: Arc<RowRules>,
    /// The version of `rules`.
    version: u64,
    rules: Arc<Rules>,
    types: DeclaredTypes,
    tables: BTreeMap<u32, Relation>,
    /// Those with a rule.
    watched: BTreeMap<u32, Table>,
    /// Those of them that have types which are not known yet.
    unbound: BTreeSet<u32>,
    /// By table with a rule, its partitions.
    partitions: BTreeMap<u32, BTreeSet<u32>>,
    /// The table with a rule that was described last, until a change follows.
    described_last: Option<u32>,
}

/// A table with a rule.
struct Table {
    rule: Arc<Rule>,
    /// For each column, whether old rows have its value.
    is_in_old_row: Vec<bool>,
    /// `None` until the types of its columns are known.
    bound: Option<BoundTable>,
}

struct BoundTable {
    types: Vec<ColumnType>,
    watched: WatchedTable,
}

impl RowTables {
    pub fn new(row_rules: Arc<RowRules>) -> RowTables {
        RowTables {
            version: row_rules.version(),
            rules: row_rules.current(),
            row_rules,
            types: DeclaredTypes::new(),
            tables: BTreeMap::new(),
            watched: BTreeMap::new(),
            unbound: BTreeSet::new(),
            partitions: BTreeMap::new(),
            described_last: None,
        }
    }

    /// The ids of types that the catalogue must explain before the next message; empty if none.
    pub fn needed_types(&mut self) -> BTreeSet<u32> {
        if self.version != self.row_rules.version() {
            self.version = self.row_rules.version();
            self.rules = self.row_rules.current();
            self.watched.clear();
            self.unbound.clear();
            for id in self.tables.keys().copied().collect::<Vec<_>>() {
                self.watch(id);
            }
        }
        let columns = self.unbound.iter().flat_map(|id| &self.tables[id].columns);
        let unknown = columns.filter(|column| ColumnType::new(column.type_id, column.modifier, &self.types).is_none());
        unknown.map(|column| column.type_id).collect()
    }

    /// Uses what the catalogue says of types from now on.
    pub fn add_types(&mut self, types: DeclaredTypes) {
        self.types.extend(types);
        std::mem::take(&mut self.unbound).into_iter().for_each(|id| self.bind(id));
    }

    /// The log describes a table.
    pub fn describe(&mut self, relation: Relation) -> Result<(), Malformed> {
        let id = relation.id;
        if self.tables.len() == TABLES_MAX && !self.tables.contains_key(&id) {
            return Err(Malformed("the publication has too many tables: publish those with a rule only"));
        }
        let follows = self.described_last.take().filter(|last| *last != id);
        self.tables.insert(id, relation);
        self.watched.remove(&id);
        self.unbound.remove(&id);
        self.watch(id);
        match (self.watched.contains_key(&id), follows) {
            (true, _) => self.described_last = Some(id),
            (false, Some(last)) if has_same_columns(&self.tables[&last], &self.tables[&id]) => {
                self.partitions.entry(last).or_default().insert(id);
            }
            _ => {}
        }
        let of_partition = self.partitions.iter().filter(|(_, parts)| parts.contains(&id)).map(|(whole, _)| *whole);
        for whole in of_partition.collect::<Vec<_>>() {
            self.find_old_values(whole);
        }
        Ok(())
    }

    /// A change follows, so that no description of a partition does.
    pub fn end_description(&mut self) {
        self.described_last = None;
    }

    /// Appends the keys of a change of a row. Does nothing unless its table has a rule.
    pub fn add_row(&mut self, id: u32, rows: LoggedRows<'_>, keys: &mut Vec<Vec<u8>>) -> Result<(), Malformed> {
        let Some(table) = self.watched.get_mut(&id) else { return Ok(()) };
        let Some(bound) = &mut table.bound else {
            // Not reached: types are read before the next message.
            return Err(Malformed("a row of a table whose types are not known"));
        };
        let decoder = Decoder { types: &bound.types, watched: &bound.watched, is_in_old_row: &table.is_in_old_row };
        let (before, after);
        let change = match rows {
            LoggedRows::Update(Some(old), new) if decoder.is_unchanged(old, new) => return Ok(()),
            LoggedRows::Insert(new) => {
                after = decoder.read_new(new)?;
                RowChange::Insert { after: &after }
            }
            LoggedRows::Update(old, new) => {
                after = decoder.read_new(new)?;
                before = decoder.read_old(old.unwrap_or(new))?;
                RowChange::Update { before: &before, after: &after }
            }
            LoggedRows::Delete(old) => {
                before = decoder.read_old(old)?;
                RowChange::Delete { before: &before }
            }
        };
        bound.watched.add_row(change, keys);
        Ok(())
    }

    /// Appends the keys of a change of the whole table `id`. Does nothing unless it has a rule.
    pub fn add_table_change(&mut self, id: u32, change: TableChange, keys: &mut Vec<Vec<u8>>) {
        if let Some(bound) = self.watched.get_mut(&id).and_then(|table| table.bound.as_mut()) {
            bound.watched.add_table_change(change, keys);
        }
    }

    /// Appends the keys of a change of the whole table of `rule`, which the log does not have.
    pub fn add_unlogged_change(&self, rule: Arc<Rule>, change: TableChange, keys: &mut Vec<Vec<u8>>) {
        WatchedTable::new(self.row_rules.clone(), rule, None).add_table_change(change, keys);
    }

    /// Watches the table `id` if it has a rule.
    fn watch(&mut self, id: u32) {
        let relation = &self.tables[&id];
        let Some(rule) = self.rules.rule(relation.schema.as_bytes(), relation.name.as_bytes()) else { return };
        self.watched.insert(id, Table { rule: rule.clone(), is_in_old_row: Vec::new(), bound: None });
        self.find_old_values(id);
        self.bind(id);
    }

    fn bind(&mut self, id: u32) {
        let (Some(table), Some(relation)) = (self.watched.get_mut(&id), self.tables.get(&id)) else { return };
        let types = relation.columns.iter().map(|column| ColumnType::new(column.type_id, column.modifier, &self.types));
        let Some(types) = types.collect::<Option<Vec<_>>>() else {
            self.unbound.insert(id);
            return;
        };
        let columns: Vec<_> =
            types.iter().zip(&relation.columns).map(|(known, column)| known.column(&column.name)).collect();
        let watched = WatchedTable::new(self.row_rules.clone(), table.rule.clone(), Some(&columns));
        table.bound = Some(BoundTable { types, watched });
    }

    /// Which values old rows of the table `id` have: those in its identity, and in that of all its partitions.
    fn find_old_values(&mut self, id: u32) {
        let Some(table) = self.watched.get_mut(&id) else { return };
        let partitions = self.partitions.get(&id).into_iter().flatten().filter_map(|id| self.tables.get(id));
        let partitions: Vec<&Relation> = partitions.collect();
        let is_known = |name: &str| {
            let has = |part: &&Relation| part.columns.iter().any(|column| column.name == name && column.is_in_old_row);
            partitions.iter().all(has)
        };
        let columns = self.tables[&id].columns.iter();
        table.is_in_old_row = columns.map(|column| column.is_in_old_row && is_known(&column.name)).collect();
    }
}

fn has_same_columns(table: &Relation, other: &Relation) -> bool {
    let names = |table: &Relation| table.columns.iter().map(|column| column.name.clone()).collect::<BTreeSet<_>>();
    names(table) == names(other)
}

struct Decoder<'a> {
    types: &'a [ColumnType],
    watched: &'a WatchedTable,
    is_in_old_row: &'a [bool],
}

impl Decoder<'_> {
    fn read_new<'r>(&self, row: &'r Row) -> Result<Vec<RowValue<'r>>, Malformed> {
        self.read(row, |_| true)
    }

    fn read_old<'r>(&self, row: &'r Row) -> Result<Vec<RowValue<'r>>, Malformed> {
        self.read(row, |at| self.is_in_old_row[at])
    }

    /// Whether all values of both rows are known, and are the same.
    fn is_unchanged(&self, old: &Row, new: &Row) -> bool {
        let is_same = |(old, new): (&ColumnValue, &ColumnValue)| *new == ColumnValue::Unchanged || old == new;
        self.is_in_old_row.iter().all(|is_known| *is_known)
            && old.len() == new.len()
            && old.iter().zip(new).all(is_same)
    }

    fn read<'r>(&self, row: &'r Row, is_known: impl Fn(usize) -> bool) -> Result<Vec<RowValue<'r>>, Malformed> {
        if row.len() != self.types.len() {
            return Err(Malformed("a row with other columns than its table"));
        }
        let value = |(at, value): (usize, &'r ColumnValue)| match value {
            _ if !is_known(at) || !self.watched.needs_column(at) => RowValue::NotInLog,
            ColumnValue::Null => RowValue::Null,
            ColumnValue::Unchanged => RowValue::NotInLog,
            ColumnValue::Text(text) => self.types[at].decode(text),
        };
        Ok(row.iter().enumerate().map(value).collect())
    }
}
