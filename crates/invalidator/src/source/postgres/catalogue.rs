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
    /// Each partition, of all levels: `ID:FILE: LINK ...`. Another file is one after TRUNCATE; a link is the transaction
    /// that made a partition, or the one above it, a partition of its parent.
    pub partitions: BTreeSet<String>,
    /// Those of the partitions that may have been tables of their own before.
    pub attached: BTreeSet<String>,
    /// A digest of how the table came into the publication, and of the publication's options: another one if the table
    /// left it meanwhile.
    pub membership_digest: String,
    /// The partitions that are in no log: `UNLOGGED` ones and foreign tables.
    pub unlogged: Vec<String>,
    /// Whether tables inherit from it that are no partitions.
    pub is_inherited: bool,
    /// Whether old rows, of all its partitions too, have all values.
    pub has_old_rows: bool,
    /// A digest of the names and types of its columns, of the transactions that declared them last, and of the labels of
    /// enums: ALTER COLUMN TYPE rewrites all values also if the type stays the same, and ALTER TYPE RENAME VALUE changes
    /// them. The log has nothing of either.
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

/// Those of `partitions`, as in [`DeclaredTable::partitions`], that have rows, or partitions with rows.
pub(super) async fn load_filled(
    connection: &mut PostgresConnection,
    partitions: &BTreeSet<String>,
) -> Result<BTreeSet<String>, QueryError> {
    if partitions.is_empty() {
        return Ok(BTreeSet::new());
    }
    let oids: Vec<&str> = partitions.iter().map(|partition| id_of(partition)).collect();
    let sql = format!(
        "SELECT id FROM unnest(ARRAY[{}]::oid[]) AS id WHERE EXISTS (SELECT FROM pg_partition_tree(id) \
         WHERE isleaf AND pg_relation_size(relid) > 0)",
        oids.join(", ")
    );
    let rows = connection.query(&sql).await?;
    let filled: BTreeSet<String> = rows.into_iter().filter_map(|row| row.into_iter().next().flatten()).collect();
    let is_filled = |partition: &&String| filled.contains(id_of(partition));
    Ok(partitions.iter().filter(is_filled).cloned().collect())
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

/// The id of one of [`DeclaredTable::partitions`].
fn id_of(partition: &str) -> &str {
    partition.split(':').next().unwrap_or_default()
}

impl DeclaredTable {
    /// The ids of the table and of all its partitions.
    pub fn ids(&self) -> impl Iterator<Item = &str> {
        [self.id.as_str()].into_iter().chain(self.partitions.iter().map(|partition| id_of(partition)))
    }

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
            unlogged: texts(row, 16)?,
            columns: Vec::new(),
        })
    }
}

/// Whether the partition `c`, which the transaction `node.link` has made one, was created as one. CREATE TABLE makes the
/// row type, the columns and the link in one transaction, the first two by one command. ATTACH PARTITION changes each of
/// these columns, as a default does. What is not sure to be born may have had rows before.
const BORN_AS_PARTITION: &str = "EXISTS (SELECT FROM pg_type y JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 \
     WHERE y.oid = c.reltype AND y.xmin = node.link AND a.xmin = y.xmin AND a.cmin = y.cmin)";

/// The query of the tables of `rules`. What is of partitions is computed once for all rules: looks are frequent, and tables may
/// have thousands.
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
        "WITH RECURSIVE rule(schema, name, columns) AS (VALUES {rules}), \
         found AS (SELECT rule.*, c.oid, c.relkind, c.relpersistence FROM rule \
           JOIN pg_namespace n ON n.nspname = rule.schema \
           JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = rule.name AND c.relkind IN ('r', 'p', 'v', 'm', 'f')), \
         node(root, columns, oid, links, link) AS ( \
           SELECT found.oid, found.columns, found.oid, '', '0'::xid FROM found \
           UNION ALL SELECT node.root, node.columns, h.inhrelid, node.links || ' ' || h.xmin::text, h.xmin \
           FROM node JOIN pg_inherits h ON h.inhparent = node.oid \
           JOIN pg_class c ON c.oid = h.inhrelid AND c.relispartition), \
         member AS (SELECT node.root, node.columns, m.oid, format('%I.%I', n.nspname, m.relname) AS shown FROM node \
           JOIN pg_class m ON m.oid = node.oid JOIN pg_namespace n ON n.oid = m.relnamespace \
           WHERE m.oid = node.root OR m.relkind IN ('r', 'f')), \
         members AS MATERIALIZED (SELECT root, bool_and(relreplident = 'f') AS have_old_rows, \
             json_agg(shown ORDER BY shown) FILTER (WHERE NOT ({identity})) AS without_identity, \
             json_agg(shown ORDER BY shown) FILTER (WHERE relpersistence <> 'p' OR relkind = 'f') AS unlogged \
           FROM member JOIN pg_class USING (oid) GROUP BY root), \
         parts AS MATERIALIZED (SELECT root, json_agg(shown) AS shown, \
             json_agg(shown) FILTER (WHERE NOT is_born) AS attached \
           FROM (SELECT node.root, c.oid || ':' || c.relfilenode || ':' || node.links AS shown, {is_born} AS is_born \
             FROM node JOIN pg_class c ON c.oid = node.oid WHERE node.oid <> node.root) AS part GROUP BY root) \
         SELECT found.schema, found.name, found.oid, found.relkind, found.relpersistence, p.tablename IS NOT NULL, \
           {filter}, {hidden}, \
           members.without_identity, parts.shown, \
           EXISTS (SELECT FROM pg_inherits h JOIN pg_class c ON c.oid = h.inhrelid \
             WHERE h.inhparent = found.oid AND NOT c.relispartition), \
           md5(concat((SELECT string_agg(concat_ws(' ', quote_ident(attname), atttypid, atttypmod, xmin), ',' ORDER BY attnum) \
               FROM pg_attribute WHERE attrelid = found.oid AND attnum > 0 AND NOT attisdropped), \
             (WITH RECURSIVE used(id) AS (SELECT atttypid FROM pg_attribute \
                 WHERE attrelid = found.oid AND attnum > 0 AND NOT attisdropped \
               UNION SELECT t.typbasetype FROM used JOIN pg_type t ON t.oid = used.id WHERE t.typtype = 'd') \
               SELECT string_agg(concat_ws(' ', e.oid, quote_literal(e.enumlabel)), ',' ORDER BY e.oid) \
               FROM pg_enum e JOIN used ON used.id = e.enumtypid))), \
           members.have_old_rows, \
           (SELECT pubinsert AND pubupdate AND pubdelete AND pubtruncate FROM pg_publication WHERE pubname = {publication}), \
           parts.attached, \
           (SELECT md5(concat_ws(' ', b.oid, b.xmin, \
               (SELECT string_agg(m.oid::text, ' ' ORDER BY m.oid) FROM pg_publication_rel m WHERE m.prpubid = b.oid \
                 AND (m.prrelid = found.oid OR m.prrelid IN (SELECT relid FROM pg_partition_ancestors(found.oid)))), \
               {schema_membership})) FROM pg_publication b WHERE b.pubname = {publication}), \
           members.unlogged \
         FROM found LEFT JOIN members ON members.root = found.oid LEFT JOIN parts ON parts.root = found.oid \
         LEFT JOIN pg_publication_tables p \
           ON p.pubname = {publication} AND p.schemaname = found.schema AND p.tablename = found.name",
        rules = rules_as_values(rules),
        identity = has_identity("member.oid", "member.columns"),
        is_born = BORN_AS_PARTITION,
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
