//! What the catalogue shows of tables with a rule, and of types.
//!
//! It shows the present, and the log the past. So the columns of rows are those that the log describes; the catalogue
//! explains the ids of types, which never change their meaning, and shows what the log cannot: tables whose changes are
//! not in it.

use super::{
    column_type::{DeclaredType, DeclaredTypes},
    connection::{PostgresConnection, QueryError, Row, protocol_error},
    setup::quote_literal,
};
use crate::{
    SourceError,
    rules::{Rule, Rules, TableName, Template},
};
use serde_json::Value as Json;
use std::collections::{BTreeMap, BTreeSet};

/// The first version with row filters, column lists and schemas in publications.
const VERSION_WITH_FILTERS: u32 = 150_000;

/// Tables with a rule, by name. One that is missing does not exist.
pub(super) type Catalogue = BTreeMap<TableName, DeclaredTable>;

/// The transactions that have an id and have not ended, prepared ones included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RunningTransactions {
    /// The id of the oldest; [`RunningTransactions::next`] if there are none.
    pub oldest: u64,
    /// The id of the next one.
    pub next: u64,
}

/// A table, and what of it the log has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct DeclaredTable {
    /// Its id: another table of the same name has another.
    pub id: String,
    /// As in `relkind`: `r` for a table, `p` for a partitioned one.
    pub kind: String,
    /// As in `relpersistence`: `p` for permanent.
    pub persistence: String,
    /// Whether the publication has its changes, under its own name.
    pub is_published: bool,
    /// Whether the publication has all kinds of changes.
    pub has_all_changes: bool,
    /// The condition that rows must fulfil to be published; `None` if all are.
    pub filter: Option<String>,
    /// The columns that the publication leaves out; `None` if it has all.
    pub hidden_columns: Option<String>,
    /// The table, if it has too small a replica identity for its rule, and the partitions that have.
    pub without_identity: Vec<String>,
    /// Each partition and its file: another file is one after TRUNCATE.
    pub partitions: BTreeSet<String>,
    /// Those of the partitions that have rows and were tables of their own before.
    pub attached: BTreeSet<String>,
    /// A digest of how the table came into the publication, and of the publication's options: another one if the table
    /// left it meanwhile.
    pub membership_digest: String,
    /// Whether tables inherit from it that are no partitions.
    pub is_inherited: bool,
    /// Whether old rows, of all its partitions too, have all values.
    pub has_old_rows: bool,
    /// A digest of the names and types of its columns, and of the transactions that declared them last: ALTER COLUMN
    /// TYPE rewrites all values also if the type stays the same, and the log has nothing of that.
    pub columns_digest: String,
    /// Its columns, if they were read.
    pub columns: Vec<DeclaredColumn>,
}

/// A column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DeclaredColumn {
    pub name: String,
    pub type_id: u32,
    pub modifier: i32,
    /// Whether it is computed, and so not in the log.
    pub is_generated: bool,
}

/// The names of the columns that the keys of a rule have, in lower case.
pub(super) fn columns_of_keys(rule: &Rule) -> BTreeSet<String> {
    rule.templates.iter().flat_map(Template::columns).map(str::to_ascii_lowercase).collect()
}

/// The rules' tables and the columns of their keys, as rows of a VALUES list.
pub(super) fn rules_as_values(rules: &Rules) -> String {
    let row = |rule: &std::sync::Arc<Rule>| {
        let columns: Vec<String> = columns_of_keys(rule).iter().map(|column| quote_literal(column)).collect();
        let (schema, name) = (quote_literal(&rule.table.schema), quote_literal(&rule.table.name));
        format!("({schema}, {name}, ARRAY[{}]::text[])", columns.join(", "))
    };
    rules.iter().map(row).collect::<Vec<_>>().join(", ")
}

/// The condition that the table `id` has a replica identity with all of `columns`: expressions of SQL.
pub(super) fn has_identity(id: &str, columns: &str) -> String {
    format!(
        "(SELECT relreplident = 'f' FROM pg_class WHERE oid = {id}) OR coalesce((\
         SELECT {columns} <@ array_agg(lower(a.attname)) FROM pg_class t JOIN pg_index i ON i.indrelid = t.oid \
         JOIN pg_attribute a ON a.attrelid = t.oid \
         AND a.attnum = ANY ((i.indkey::int2[])[0:i.indnkeyatts - 1]) \
         WHERE t.oid = {id} AND i.indimmediate \
         AND CASE t.relreplident WHEN 'd' THEN i.indisprimary WHEN 'i' THEN i.indisreplident ELSE false END), false)"
    )
}

/// The condition that the partition `id` was created as one, and was no table of its own before: an expression of SQL.
/// CREATE TABLE makes the row type and the columns by one command, of which a default may update some; ATTACH PARTITION
/// updates all columns.
fn is_born_as_partition(id: &str) -> String {
    format!(
        "EXISTS (SELECT FROM pg_type y JOIN pg_attribute c ON c.attrelid = y.typrelid AND c.attnum > 0 \
         AND c.xmin = y.xmin AND c.cmin = y.cmin WHERE y.typrelid = {id})"
    )
}

/// Reads what the log has of the tables of `rules`. Waits while a partition, or a published table, is locked by DDL.
pub(super) async fn load(
    connection: &mut PostgresConnection,
    publication: &str,
    rules: &Rules,
) -> Result<Catalogue, QueryError> {
    let mut catalogue = Catalogue::new();
    if rules.is_empty() {
        return Ok(catalogue);
    }
    let version = server_version(connection).await?;
    for row in connection.query(&tables_sql(publication, rules, version)).await? {
        let text = |at: usize| row.get(at).cloned().flatten().unwrap_or_default();
        catalogue.insert(TableName { schema: text(0), name: text(1) }, DeclaredTable::read(&row)?);
    }
    Ok(catalogue)
}

/// The transactions that run now.
pub(super) async fn load_running(connection: &mut PostgresConnection) -> Result<RunningTransactions, QueryError> {
    let sql = "SELECT txid_snapshot_xmin(now), txid_snapshot_xmax(now) FROM txid_current_snapshot() AS now";
    let rows = connection.query(sql).await?;
    let number = |at: usize| rows.first()?.get(at)?.as_deref()?.parse().ok();
    match (number(0), number(1)) {
        (Some(oldest), Some(next)) => Ok(RunningTransactions { oldest, next }),
        _ => Err(protocol_error("a malformed snapshot").into()),
    }
}

async fn server_version(connection: &mut PostgresConnection) -> Result<u32, QueryError> {
    let version = connection.query_one("SHOW server_version_num").await?;
    Ok(version.and_then(|text| text.parse().ok()).unwrap_or_default())
}

/// The tables with the outbox's name of which the publication does not have all inserted rows: their keys are lost.
pub(super) async fn load_unpublished_outboxes(
    connection: &mut PostgresConnection,
    publication: &str,
    outbox_table: &str,
) -> Result<BTreeSet<String>, QueryError> {
    let has_filters = server_version(connection).await? >= VERSION_WITH_FILTERS;
    let is_whole = if has_filters { "p.rowfilter IS NULL" } else { "true" };
    let sql = format!(
        "SELECT format('%I.%I', n.nspname, c.relname) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace \
         LEFT JOIN (pg_publication_tables p JOIN pg_publication b ON b.pubname = p.pubname) \
           ON p.pubname = {publication} AND p.schemaname = n.nspname AND p.tablename = c.relname \
         WHERE c.relname = {outbox_table} AND c.relkind IN ('r', 'p') AND NOT c.relispartition \
           AND c.relpersistence <> 't' AND (p.tablename IS NOT NULL AND b.pubinsert AND {is_whole}) IS NOT TRUE",
        publication = quote_literal(publication),
        outbox_table = quote_literal(outbox_table),
    );
    Ok(connection.query(&sql).await?.into_iter().filter_map(|row| row.into_iter().next().flatten()).collect())
}

impl DeclaredTable {
    /// Reads a row of [`tables_sql`].
    fn read(row: &Row) -> Result<DeclaredTable, SourceError> {
        let text = |at: usize| row.get(at).cloned().flatten();
        let is_true = |at: usize| text(at).as_deref() == Some("t");
        Ok(DeclaredTable {
            id: text(2).unwrap_or_default(),
            kind: text(3).unwrap_or_default(),
            persistence: text(4).unwrap_or_default(),
            is_published: is_true(5),
            filter: text(6),
            hidden_columns: text(7),
            without_identity: texts(row, 8)?,
            partitions: texts(row, 9)?.into_iter().collect(),
            is_inherited: is_true(10),
            columns_digest: text(11).unwrap_or_default(),
            has_old_rows: is_true(12),
            has_all_changes: is_true(13),
            attached: texts(row, 14)?.into_iter().collect(),
            membership_digest: text(15).unwrap_or_default(),
            columns: Vec::new(),
        })
    }
}

/// The query of the tables of `rules`.
fn tables_sql(publication: &str, rules: &Rules, version: u32) -> String {
    let (filter, hidden, schema_membership) = match version >= VERSION_WITH_FILTERS {
        true => (
            "p.rowfilter",
            "(SELECT string_agg(attname, ', ' ORDER BY attnum) FROM pg_attribute WHERE attrelid = found.oid \
             AND attnum > 0 AND NOT attisdropped AND attgenerated = '' AND NOT attname = ANY (p.attnames))",
            "(SELECT m.oid FROM pg_publication_namespace m JOIN pg_namespace n ON n.oid = m.pnnspid \
             WHERE m.pnpubid = b.oid AND n.nspname = found.schema)",
        ),
        false => ("NULL", "NULL", "NULL"),
    };
    format!(
        "WITH rule(schema, name, columns) AS (VALUES {rules}), \
         found AS (SELECT rule.*, c.oid, c.relkind, c.relpersistence FROM rule \
           JOIN pg_namespace n ON n.nspname = rule.schema \
           JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = rule.name AND c.relkind IN ('r', 'p', 'v', 'm', 'f')), \
         member AS (SELECT found.oid AS root, found.columns, m.oid, format('%I.%I', n.nspname, m.relname) AS shown \
           FROM found \
           CROSS JOIN LATERAL (SELECT found.oid AS id UNION SELECT relid FROM pg_partition_tree(found.oid)) tree \
           JOIN pg_class m ON m.oid = tree.id JOIN pg_namespace n ON n.oid = m.relnamespace \
           WHERE m.oid = found.oid OR m.relkind IN ('r', 'f')) \
         SELECT found.schema, found.name, found.oid, found.relkind, found.relpersistence, p.tablename IS NOT NULL, \
           {filter}, {hidden}, \
           (SELECT json_agg(shown ORDER BY shown) FROM member WHERE root = found.oid AND NOT ({identity})), \
           (SELECT json_agg(oid || ':' || coalesce(pg_relation_filenode(oid), 0)) FROM member \
             WHERE root = found.oid AND oid <> root), \
           EXISTS (SELECT FROM pg_inherits h JOIN pg_class c ON c.oid = h.inhrelid \
             WHERE h.inhparent = found.oid AND NOT c.relispartition), \
           (SELECT md5(string_agg(concat_ws(' ', quote_ident(attname), atttypid, atttypmod, xmin), ',' ORDER BY attnum)) \
             FROM pg_attribute WHERE attrelid = found.oid AND attnum > 0 AND NOT attisdropped), \
           (SELECT bool_and(relreplident = 'f') FROM member JOIN pg_class USING (oid) WHERE root = found.oid), \
           (SELECT pubinsert AND pubupdate AND pubdelete AND pubtruncate FROM pg_publication WHERE pubname = {publication}), \
           (SELECT json_agg(member.oid || ':' || coalesce(pg_relation_filenode(member.oid), 0)) \
             FROM member JOIN pg_class c USING (oid) WHERE root = found.oid AND member.oid <> root AND c.relkind = 'r' \
             AND pg_relation_size(member.oid) > 0 \
             AND EXISTS (SELECT FROM pg_partition_ancestors(member.oid) a JOIN pg_partition_tree(root) t USING (relid) \
               WHERE a.relid <> root AND NOT ({born_as_partition}))), \
           (SELECT md5(concat_ws(' ', b.oid, b.xmin, \
               (SELECT string_agg(m.oid::text, ' ' ORDER BY m.oid) FROM pg_publication_rel m WHERE m.prpubid = b.oid \
                 AND (m.prrelid = found.oid OR m.prrelid IN (SELECT relid FROM pg_partition_ancestors(found.oid)))), \
               {schema_membership})) FROM pg_publication b WHERE b.pubname = {publication}) \
         FROM found LEFT JOIN pg_publication_tables p \
           ON p.pubname = {publication} AND p.schemaname = found.schema AND p.tablename = found.name",
        rules = rules_as_values(rules),
        identity = has_identity("member.oid", "member.columns"),
        born_as_partition = is_born_as_partition("a.relid"),
        publication = quote_literal(publication),
    )
}

/// Reads the columns of the tables of `catalogue`.
pub(super) async fn load_columns(
    connection: &mut PostgresConnection,
    catalogue: &mut Catalogue,
) -> Result<(), SourceError> {
    let ids: Vec<&str> = catalogue.values().map(|table| table.id.as_str()).collect();
    if ids.is_empty() {
        return Ok(());
    }
    let sql = format!(
        "SELECT attrelid, json_agg(json_build_array(attname, atttypid::bigint, atttypmod, attgenerated <> '') \
         ORDER BY attnum) FROM pg_attribute WHERE attrelid IN ({}) AND attnum > 0 AND NOT attisdropped GROUP BY attrelid",
        ids.join(", ")
    );
    for row in connection.query(&sql).await? {
        let columns = json(&row, 1)?.iter().map(DeclaredColumn::read).collect::<Option<Vec<_>>>();
        let columns = columns.ok_or_else(|| protocol_error("a malformed column"))?;
        let id = row.first().and_then(Option::as_deref).unwrap_or_default();
        if let Some(table) = catalogue.values_mut().find(|table| table.id == id) {
            table.columns = columns;
        }
    }
    Ok(())
}

impl DeclaredColumn {
    fn read(value: &Json) -> Option<DeclaredColumn> {
        Some(DeclaredColumn {
            name: value.get(0)?.as_str()?.into(),
            type_id: value.get(1)?.as_u64()?.try_into().ok()?,
            modifier: value.get(2)?.as_i64()?.try_into().ok()?,
            is_generated: value.get(3)?.as_bool()?,
        })
    }
}

/// Reads what the types with these ids are.
pub(super) async fn load_types(
    connection: &mut PostgresConnection,
    ids: &BTreeSet<u32>,
) -> Result<DeclaredTypes, SourceError> {
    let dropped =
        |id: &u32| (*id, DeclaredType { name: "that does not exist any more".into(), is_text: false, base: None });
    let mut types: DeclaredTypes = ids.iter().map(dropped).collect();
    if ids.is_empty() {
        return Ok(types);
    }
    let list: Vec<String> = ids.iter().map(u32::to_string).collect();
    // Follows each domain to its base type. What a domain says of the type's modifier holds, not what the column says.
    let sql = format!(
        "WITH RECURSIVE chain AS (SELECT oid AS id, oid, typtype, typname, typbasetype, -1 AS modifier, typtypmod \
           FROM pg_type WHERE oid IN ({}) \
         UNION ALL SELECT chain.id, t.oid, t.typtype, t.typname, t.typbasetype, chain.typtypmod, t.typtypmod \
           FROM chain JOIN pg_type t ON t.oid = chain.typbasetype WHERE chain.typtype = 'd') \
         SELECT id, oid, modifier, typtype = 'e' OR typname = 'citext', format_type(oid, NULL) FROM chain \
         WHERE typtype <> 'd'",
        list.join(", ")
    );
    for row in connection.query(&sql).await? {
        let text = |at: usize| row.get(at).and_then(Option::as_deref).unwrap_or_default();
        let malformed = || protocol_error("a malformed type");
        let id: u32 = text(0).parse().map_err(|_| malformed())?;
        let base = (text(1).parse().map_err(|_| malformed())?, text(2).parse().map_err(|_| malformed())?);
        let declared = DeclaredType {
            name: text(4).to_owned(),
            is_text: text(3) == "t",
            base: Some(base).filter(|(base, _)| *base != id),
        };
        types.insert(id, declared);
    }
    Ok(types)
}

/// The texts of a JSON array; empty if it is NULL.
fn texts(row: &Row, at: usize) -> Result<Vec<String>, SourceError> {
    Ok(json(row, at)?.iter().filter_map(|text| text.as_str().map(str::to_owned)).collect())
}

fn json(row: &Row, at: usize) -> Result<Vec<Json>, SourceError> {
    match row.get(at).and_then(Option::as_deref) {
        None => Ok(Vec::new()),
        Some(text) => serde_json::from_str(text).map_err(|_| protocol_error("malformed JSON of the catalogue")),
    }
}
