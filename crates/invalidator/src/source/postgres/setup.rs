//! The objects that the source needs in the database, as SQL.

use super::{
    catalogue::{has_identity, rules_as_values},
    version::VERSION_WITH_MESSAGES,
};
use crate::rules::Rules;

/// The SQL that creates, if they are missing, the outbox table, the function `lookaside_invalidate` and the
/// publication, and adds the outbox to a publication that lacks it. To be run by the database's owner; running it again
/// changes nothing.
///
/// The publication may have tables of schemas on which the owner has no privilege: no table but the outbox is looked up
/// by its name.
///
/// The function writes keys in UTF-8, as clients send them: a message is not converted from the database's encoding.
/// PostgreSQL 13 does not send messages to subscribers, so there it inserts into the outbox, with the rights of its
/// owner: every account may call it, as on later versions.
///
/// ```
/// use lookaside_invalidator::source::postgres::setup_sql;
/// assert!(setup_sql("lookaside", "lookaside_outbox").contains("CREATE PUBLICATION \"lookaside\""));
/// ```
pub fn setup_sql(publication: &str, outbox_table: &str) -> String {
    let (publication_name, table) = (quote_name(publication), quote_name(outbox_table));
    let literal = quote_literal(publication);
    format!(
        "CREATE TABLE IF NOT EXISTS {table} (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  key text NOT NULL
);
DO $lookaside$ BEGIN
  IF current_setting('server_version_num')::int >= {VERSION_WITH_MESSAGES} THEN
    CREATE OR REPLACE FUNCTION lookaside_invalidate(VARIADIC keys text[]) RETURNS void
      LANGUAGE sql AS $$ SELECT pg_logical_emit_message(true, 'lookaside', convert_to(key,
        CASE getdatabaseencoding() WHEN 'SQL_ASCII' THEN 'SQL_ASCII' ELSE 'UTF8' END)) FROM unnest(keys) AS key $$;
  ELSE
    EXECUTE (SELECT format('CREATE OR REPLACE FUNCTION lookaside_invalidate(VARIADIC keys text[]) RETURNS void
      LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
      AS $$ INSERT INTO %I.%I (key) SELECT key FROM unnest(keys) AS key WHERE key IS NOT NULL $$', n.nspname, c.relname)
      FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = {table_literal}::regclass);
  END IF;
END $lookaside$;
DO $lookaside$ DECLARE member record; root regclass := {table_literal}; BEGIN
  IF NOT EXISTS (SELECT FROM pg_publication WHERE pubname = {literal}) THEN
    CREATE PUBLICATION {publication_name} FOR TABLE {table}
      WITH (publish = 'insert', publish_via_partition_root = true);
    RETURN;
  END IF;
  IF NOT (SELECT pubviaroot FROM pg_publication WHERE pubname = {literal}) THEN
    ALTER PUBLICATION {publication_name} SET (publish_via_partition_root = true);
  END IF;
  IF NOT (SELECT pubinsert FROM pg_publication WHERE pubname = {literal}) THEN
    EXECUTE (SELECT format('ALTER PUBLICATION %I SET (publish = %L)', pubname, concat_ws(', ', 'insert',
      CASE WHEN pubupdate THEN 'update' END, CASE WHEN pubdelete THEN 'delete' END,
      CASE WHEN pubtruncate THEN 'truncate' END)) FROM pg_publication WHERE pubname = {literal});
  END IF;
  IF NOT EXISTS (SELECT FROM pg_publication_tables p JOIN pg_namespace n ON n.nspname = p.schemaname
    JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = p.tablename WHERE p.pubname = {literal} AND c.oid = root)
  THEN
    {identities}
    ALTER PUBLICATION {publication_name} ADD TABLE {table};
  END IF;
END $lookaside$;
",
        table_literal = quote_literal(&table),
        identities = set_identities("root", "'{}'::text[]"),
    )
}

/// The statements that give the table `root` and its partitions a replica identity with `columns`, where they have
/// none. They need a variable `member`, a record. UPDATE and DELETE of a published table without a replica identity
/// fail.
fn set_identities(root: &str, columns: &str) -> String {
    format!(
        "FOR member IN SELECT format('%I.%I', n.nspname, c.relname) AS shown
      FROM (SELECT {root} AS id UNION SELECT relid FROM pg_partition_tree({root})) tree
      JOIN pg_class c ON c.oid = tree.id JOIN pg_namespace n ON n.oid = c.relnamespace
      WHERE NOT ({identity})
    LOOP
      EXECUTE 'ALTER TABLE ' || member.shown || ' REPLICA IDENTITY FULL';
    END LOOP;",
        identity = has_identity("c.oid", columns)
    )
}

/// The SQL that prepares the tables of `rules`: adds them to the publication, which has all changes of its tables then,
/// and gives a table and its partitions a replica identity with the columns of the rule's keys. To be run after
/// [`setup_sql`]; running it again changes nothing. The other tables of the publication get a replica identity too, if
/// they have none.
pub fn rules_setup_sql(publication: &str, rules: &Rules) -> String {
    let (name, literal) = (quote_name(publication), quote_literal(publication));
    format!(
        "DO $lookaside$ DECLARE rule record; member record; root oid; BEGIN
  FOR rule IN SELECT * FROM (VALUES {values}) AS rule(schema, name, columns)
  LOOP
    SELECT c.oid INTO root FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
      WHERE n.nspname = rule.schema AND c.relname = rule.name AND c.relkind IN ('r', 'p');
    IF root IS NULL THEN
      RAISE EXCEPTION 'the table %.% of a rule does not exist', rule.schema, rule.name;
    END IF;
    {identities_of_rule}
    IF NOT EXISTS (SELECT FROM pg_publication_tables
      WHERE pubname = {literal} AND schemaname = rule.schema AND tablename = rule.name)
    THEN
      EXECUTE format('ALTER PUBLICATION {format_name} ADD TABLE %I.%I', rule.schema, rule.name);
    END IF;
  END LOOP;
  FOR root IN SELECT c.oid FROM pg_publication_tables p JOIN pg_namespace n ON n.nspname = p.schemaname
    JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = p.tablename WHERE p.pubname = {literal}
  LOOP
    {identities_of_others}
  END LOOP;
  IF NOT EXISTS (SELECT FROM pg_publication
    WHERE pubname = {literal} AND pubinsert AND pubupdate AND pubdelete AND pubtruncate)
  THEN
    ALTER PUBLICATION {name} SET (publish = 'insert, update, delete, truncate');
  END IF;
END $lookaside$;
",
        values = rules_as_values(rules),
        identities_of_rule = set_identities("root", "rule.columns"),
        identities_of_others = set_identities("root", "'{}'::text[]"),
        format_name = name.replace('%', "%%").replace('\'', "''"),
    )
}

/// `name` as an identifier in SQL.
pub fn quote_name(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// `text` as a literal in SQL, whatever `standard_conforming_strings` is.
pub fn quote_literal(text: &str) -> String {
    let quoted = text.replace('\'', "''");
    match text.contains('\\') {
        true => format!("E'{}'", quoted.replace('\\', "\\\\")),
        false => format!("'{quoted}'"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_end_their_quotes() {
        assert_eq!((quote_name("a\"b"), quote_literal("a'b\\")), ("\"a\"\"b\"".into(), "E'a''b\\\\'".into()));
    }
}
