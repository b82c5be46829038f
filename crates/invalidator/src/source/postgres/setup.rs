//! The objects that the source needs in the database, as SQL.

/// The SQL that creates, if they are missing, the outbox table, the function `lookaside_invalidate` and the publication.
/// To be run once by the database's owner; running it again changes nothing.
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
CREATE OR REPLACE FUNCTION lookaside_invalidate(VARIADIC keys text[]) RETURNS void
  LANGUAGE sql AS $$ SELECT pg_logical_emit_message(true, 'lookaside', key) FROM unnest(keys) AS key $$;
DO $$ BEGIN
  IF NOT EXISTS (SELECT FROM pg_publication WHERE pubname = {literal}) THEN
    CREATE PUBLICATION {publication_name} FOR TABLE {table}
      WITH (publish = 'insert', publish_via_partition_root = true);
  ELSIF NOT (SELECT pubviaroot FROM pg_publication WHERE pubname = {literal}) THEN
    ALTER PUBLICATION {publication_name} SET (publish_via_partition_root = true);
  END IF;
END $$;
"
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
