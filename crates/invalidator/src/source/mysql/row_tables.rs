//! Tables with a rule, as the log describes them: row events go in, keys come out. Part of the
//! [`assembler`](super::assembler).
//!
//! The columns of a table come from its table map and from the catalogue:
//!
//! | | from |
//! |---|---|
//! | name | the log (`binlog_row_metadata=FULL`) |
//! | sign, labels | the log, else the catalogue |
//! | type, character set | the catalogue's column of that name, if the log's column fits it, also by its character set |
//!
//! The log is older than the catalogue. If a column does not fit, rows were written before an ALTER TABLE, or the
//! catalogue is: it is read again, and until both agree, changes are inexpressible.
//!
//! Rows without names are inexpressible, too: an ALTER TABLE that leaves all types as they are and exchanges two names
//! cannot be noticed at the rows before it. An operator may accept that (`accept-unsafe=binlog_row_metadata`). Names
//! are those of the catalogue's columns at the same places then. Every ALTER TABLE in the log counts as inexpressible,
//! but comes after the rows that it makes the catalogue misname.
//!
//! A table without a rule costs a look-up of its name for each table map, and one of a number for each rows event;
//! without rules, neither.

use super::{
    catalogue::{Catalogue, Declared},
    column_type::ColumnType,
    cursor::{Cursor, Malformed},
    event::RowsKind,
    rows::{Columns, LogColumn, PresentColumns, TableMap},
    settings::ServerKind,
    table_metadata::TableMetadata,
    table_statement::find_changed_tables,
};
use crate::{
    keys::SqlMode,
    rules::{Column, RowChange, RowRules, RowValue, Rules, TableChange, TableName, WatchedTable},
};
use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, SystemTime},
};

/// The catalogue is read again after this time for a table that it does not show: a GRANT is no DDL. The look-ups are
/// as rare as that.
const CATALOGUE_RETRY: Duration = Duration::from_secs(5);

/// The tables with a rule.
pub struct RowTables {
    row_rules: Arc<RowRules>,
    server: ServerKind,
    /// Whether rows without names have those of the catalogue.
    accepts_unnamed: bool,
    /// The version of `rules`.
    version: u64,
    rules: Arc<Rules>,
    catalogue: Catalogue,
    /// Whether the catalogue must be read before the next event.
    needs_catalogue: bool,
    /// When a table last did not fit it; `None` before the first.
    misfit_at: Option<SystemTime>,
    tables: BTreeMap<TableName, Table>,
    /// Those that statements have changed; their columns do not matter.
    by_statement: BTreeMap<TableName, WatchedTable>,
    /// The tables that rows of the open transaction refer to, by number.
    ids: BTreeMap<u64, TableName>,
}

/// A table as the log described it last.
struct Table {
    description: Vec<u8>,
    columns: Columns,
    metadata: TableMetadata,
    /// How each column is decoded; `None` if that is not known.
    types: Option<Vec<ColumnType>>,
    watched: WatchedTable,
}

impl Table {
    /// Why the types are not known.
    fn unknown_columns(&self, accepts_unnamed: bool) -> TableChange {
        match is_named(&self.metadata, accepts_unnamed) {
            true => TableChange::UnknownColumns,
            false => TableChange::UnnamedColumns,
        }
    }
}

impl RowTables {
    /// The tables with one of `row_rules`. With `accepts_unnamed`, rows without names have those of the catalogue.
    pub fn new(server: ServerKind, row_rules: Arc<RowRules>, accepts_unnamed: bool) -> RowTables {
        let rules = row_rules.current();
        RowTables {
            server,
            accepts_unnamed,
            version: row_rules.version(),
            needs_catalogue: !rules.is_empty(),
            misfit_at: None,
            row_rules,
            rules,
            catalogue: Catalogue::new(),
            tables: BTreeMap::new(),
            by_statement: BTreeMap::new(),
            ids: BTreeMap::new(),
        }
    }

    /// The rules whose tables must be read from the catalogue before the next event; `None` if the present one will do.
    pub fn needed_catalogue(&mut self) -> Option<Arc<Rules>> {
        if self.version != self.row_rules.version() {
            self.version = self.row_rules.version();
            self.rules = self.row_rules.current();
            // Rows of the open statement may follow: the tables stay, and are bound to the new rules with the
            // catalogue.
            let rules = &self.rules;
            self.tables.retain(|name, _| rules.rule(name.schema.as_bytes(), name.name.as_bytes()).is_some());
            self.by_statement.clear();
            self.needs_catalogue = true;
        }
        (self.needs_catalogue && !self.rules.is_empty()).then(|| self.rules.clone())
    }

    /// Uses `catalogue` from now on.
    pub fn set_catalogue(&mut self, catalogue: Catalogue) {
        self.catalogue = catalogue;
        self.needs_catalogue = false;
        for rule in self.rules.iter() {
            if !self.row_rules.record_seen(&rule.table, self.catalogue.contains_key(&rule.table)) {
                continue;
            }
            tracing::warn!(
                table = %rule.table,
                "a rule names a table that the catalogue does not show: it does not exist, or the invalidator's account \
                 lacks a privilege on it (GRANT SELECT)"
            );
        }
        for (name, table) in &mut self.tables {
            if let Some(rule) = self.rules.rule(name.schema.as_bytes(), name.name.as_bytes()) {
                table.types = types_of(
                    &table.columns,
                    &table.metadata,
                    self.catalogue.get(name),
                    self.server,
                    self.accepts_unnamed,
                );
                let columns =
                    table.types.as_ref().map(|types| columns_of(types, &table.metadata, &self.catalogue[name]));
                table.watched = WatchedTable::new(self.row_rules.clone(), rule.clone(), columns.as_deref());
            }
        }
    }

    /// A transaction begins: numbers of tables have new meanings.
    pub fn begin_transaction(&mut self) {
        self.ids.clear();
    }

    /// The log describes a table, at `now`.
    pub fn describe(&mut self, map: TableMap<'_>, now: SystemTime) -> Result<(), Malformed> {
        if self.rules.is_empty() {
            return Ok(());
        }
        let Some(rule) = self.rules.rule(map.schema, map.name) else {
            self.ids.remove(&map.table_id);
            return Ok(());
        };
        let name = rule.table.clone();
        self.ids.insert(map.table_id, name.clone());
        if let Some(table) = self.tables.get(&name).filter(|table| table.description == map.description()) {
            let may_fit_later = table.types.is_none() && is_named(&table.metadata, self.accepts_unnamed);
            if may_fit_later && self.may_look_up(now) {
                (self.needs_catalogue, self.misfit_at) = (true, Some(now));
            }
            return Ok(());
        }
        let description = map.description().to_vec();
        let (columns, fields) = map.into_columns_and_fields()?;
        let metadata = TableMetadata::read(fields)?;
        let declared = self.catalogue.get(&name);
        let types = types_of(&columns, &metadata, declared, self.server, self.accepts_unnamed);
        let known = types.as_ref().zip(declared).map(|(types, declared)| columns_of(types, &metadata, declared));
        // If it does not fit then either, it is older than the catalogue, or the catalogue does not show the table.
        if types.is_none() && is_named(&metadata, self.accepts_unnamed) {
            (self.needs_catalogue, self.misfit_at) = (true, Some(now));
        }
        let watched = WatchedTable::new(self.row_rules.clone(), rule.clone(), known.as_deref());
        self.tables.insert(name, Table { description, columns, metadata, types, watched });
        Ok(())
    }

    fn may_look_up(&self, now: SystemTime) -> bool {
        let since = self.misfit_at.and_then(|at| now.duration_since(at).ok());
        // A clock that was set back counts as late.
        since.is_none_or(|since| since >= CATALOGUE_RETRY)
    }

    /// Whether rows of this table have keys. Others need not be read.
    pub fn has(&self, table_id: u64) -> bool {
        !self.ids.is_empty() && self.ids.contains_key(&table_id)
    }

    /// Appends the keys of the rows of an event. `cursor` is behind which columns are present in the only or old image,
    /// and, in an update, in the new one.
    pub fn add_rows(
        &mut self,
        table_id: u64,
        kind: RowsKind,
        present: (&PresentColumns<'_>, &PresentColumns<'_>),
        rows: &[u8],
        keys: &mut Vec<Vec<u8>>,
    ) -> Result<(), Malformed> {
        let Some(table) = self.ids.get(&table_id).and_then(|name| self.tables.get_mut(name)) else { return Ok(()) };
        let Some(types) = table.types.as_ref().filter(|_| table.watched.is_bound()) else {
            match table.types {
                None => {
                    let change = table.unknown_columns(self.accepts_unnamed);
                    table.watched.add_table_change(change, keys);
                }
                Some(_) => table.watched.add_row(RowChange::Insert { after: &[] }, keys),
            }
            return Ok(());
        };
        let decoder = Decoder { columns: &table.columns, types };
        let needs: Vec<bool> = (0..types.len()).map(|at| table.watched.needs_column(at)).collect();
        let mut cursor = Cursor::new(rows, "a row");
        let (mut before, mut after) = (Vec::new(), Vec::new());
        while !cursor.rest().is_empty() {
            decoder.read_image(present.0, &needs, &mut cursor, &mut before)?;
            let change = match kind {
                RowsKind::Insert => RowChange::Insert { after: &before },
                RowsKind::Delete => RowChange::Delete { before: &before },
                RowsKind::Update | RowsKind::PartialUpdate => {
                    if kind == RowsKind::PartialUpdate {
                        table.columns.skip_partial_options(&mut cursor)?;
                    }
                    decoder.read_image(present.1, &needs, &mut cursor, &mut after)?;
                    RowChange::Update { before: &before, after: &after }
                }
            };
            table.watched.add_row(change, keys);
        }
        Ok(())
    }

    /// Appends the keys that a statement without rows makes stale. It was read in one of `modes`.
    pub fn add_statement(&mut self, schema: &[u8], sql: &[u8], modes: &[SqlMode], keys: &mut Vec<Vec<u8>>) {
        if self.rules.is_empty() {
            return;
        }
        let rules = self.rules.clone();
        for (rule, change) in find_changed_tables(schema, sql, modes, &rules) {
            if !matches!(change, Some(TableChange::Truncate | TableChange::Statement)) {
                self.needs_catalogue = true;
            }
            let Some(change) = change else { continue };
            let watched = self
                .by_statement
                .entry(rule.table.clone())
                .or_insert_with(|| WatchedTable::new(self.row_rules.clone(), rule.clone(), None));
            watched.add_table_change(change, keys);
        }
    }
}

/// Whether the columns of a table map have names that can be used.
fn is_named(metadata: &TableMetadata, accepts_unnamed: bool) -> bool {
    metadata.names.is_some() || accepts_unnamed
}

/// How the columns of a table map are decoded; `None` if they have no names, or do not fit the declared ones.
fn types_of(
    columns: &Columns,
    metadata: &TableMetadata,
    declared: Option<&Vec<Declared>>,
    server: ServerKind,
    accepts_unnamed: bool,
) -> Option<Vec<ColumnType>> {
    let declared = declared.filter(|_| is_named(metadata, accepts_unnamed))?;
    let columns = columns.0.as_slice();
    match &metadata.names {
        Some(names) if names.len() == columns.len() => {}
        None if declared.len() == columns.len() => {}
        _ => return None,
    }
    let type_of = |(at, column): (usize, &LogColumn)| {
        let declaration = match &metadata.names {
            Some(names) => declared.iter().find(|declared| declared.name == names[at]),
            None => declared.get(at),
        };
        let declaration = declaration.filter(|declared| {
            let collation = metadata.collation(columns, at, server);
            declared.fits(column.kind, column.metadata) && declared.fits_collation(collation)
        });
        match declaration {
            Some(declared) => {
                let (is_unsigned, labels) = (metadata.is_unsigned(columns, at), metadata.labels(columns, at));
                Some(ColumnType::new(declared, *column, is_unsigned, labels))
            }
            // The log names it, so the other columns are known nevertheless.
            None if metadata.names.is_some() => {
                Some(ColumnType::Refused("unlike the catalogue's column of this name, or not in it".into()))
            }
            None => None,
        }
    };
    columns.iter().enumerate().map(type_of).collect()
}

fn columns_of(types: &[ColumnType], metadata: &TableMetadata, declared: &[Declared]) -> Vec<Column> {
    let name = |at: usize| match &metadata.names {
        Some(names) => names[at].as_str(),
        None => declared[at].name.as_str(),
    };
    types.iter().enumerate().map(|(at, column_type)| column_type.column(name(at))).collect()
}

struct Decoder<'a> {
    columns: &'a Columns,
    types: &'a [ColumnType],
}

impl Decoder<'_> {
    fn read_image<'r>(
        &self,
        present: &PresentColumns<'_>,
        needs: &[bool],
        cursor: &mut Cursor<'r>,
        image: &mut Vec<RowValue<'r>>,
    ) -> Result<(), Malformed> {
        image.clear();
        image.resize(self.types.len(), RowValue::NotInLog);
        self.columns.read_image(present, cursor, |at, bytes| {
            if needs[at] {
                image[at] = match bytes {
                    None => RowValue::Null,
                    Some(bytes) => self.types[at].decode(self.columns.0[at], bytes),
                };
            }
        })
    }
}
