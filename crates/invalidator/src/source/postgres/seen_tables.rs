//! What was seen of tables with a rule, as it is kept beyond the end of a process: digests, which are enough to notice
//! that something has changed since.
//!
//! ```text
//! {"format":3,"tables":[["app","users","9f86d081884c7d65","e3b0c44298fc1c14",false], ...]}
//!           schema, name,   table, columns and publication,  partitions,      whether a change is pending
//! ```

use crate::rules::{TableChange, TableName};
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;
use sha2::{Digest as _, Sha256};
use std::collections::BTreeMap;

/// The version of the format, and of what the digests are of.
const FORMAT: u64 = 3;
/// The most tables; a rule file has no more.
const TABLES_MAX: usize = 1_000;
/// How much of a digest is kept.
const DIGEST_BYTES: usize = 8;

/// What was seen of tables, by name. One that is missing was not looked at.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SeenTables(BTreeMap<TableName, SeenTable>);

/// What was seen of a table when all changes up to then had been acknowledged by every cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SeenTable {
    /// A digest of its id, its columns and its publication, if its changes are in the log; `None` if they are not.
    pub schema: Option<String>,
    /// A digest of its partitions.
    pub partitions: String,
    /// Whether a change was found since that some cluster has not acknowledged. The table may have become again what it
    /// was, so the digests do not show it.
    pub is_pending: bool,
}

#[derive(Serialize, Deserialize)]
struct TableText(String, String, Option<String>, String, bool);

impl SeenTable {
    /// What may not be in the log if this was seen first and now `present`.
    pub fn change_to(&self, present: &SeenTable) -> Option<TableChange> {
        match (&self.schema, &present.schema) {
            (None, None) => None,
            (Some(before), Some(now)) if before != now => Some(TableChange::SchemaChange),
            (Some(_), Some(_)) => (self.partitions != present.partitions).then_some(TableChange::Truncate),
            _ => Some(TableChange::Unpublished),
        }
        .or(self.is_pending.then_some(TableChange::SchemaChange))
    }
}

impl SeenTables {
    pub(super) fn get(&self, table: &TableName) -> Option<&SeenTable> {
        self.0.get(table)
    }

    /// Whether nothing was seen.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// As it is stored.
    pub fn to_json(&self) -> Json {
        let tables = self.0.iter().map(|(table, SeenTable { schema, partitions, is_pending })| {
            TableText(table.schema.clone(), table.name.clone(), schema.clone(), partitions.clone(), *is_pending)
        });
        serde_json::json!({ "format": FORMAT, "tables": tables.collect::<Vec<_>>() })
    }

    /// Parses what is stored. `None` if another version has stored it, whose digests mean something else.
    pub fn parse(stored: &Json) -> Result<Option<SeenTables>, String> {
        match stored.get("format").and_then(Json::as_u64) {
            Some(FORMAT) => {}
            Some(_) => return Ok(None),
            None => return Err("it has no format".into()),
        }
        let tables = stored.get("tables").cloned().unwrap_or_default();
        let tables: Vec<TableText> = serde_json::from_value(tables).map_err(|why| why.to_string())?;
        if tables.len() > TABLES_MAX {
            return Err(format!("it has over {TABLES_MAX} tables"));
        }
        let tables = tables.into_iter().map(|TableText(schema_name, name, schema, partitions, is_pending)| {
            (TableName { schema: schema_name, name }, SeenTable { schema, partitions, is_pending })
        });
        Ok(Some(SeenTables(tables.collect())))
    }
}

impl FromIterator<(TableName, SeenTable)> for SeenTables {
    fn from_iter<T: IntoIterator<Item = (TableName, SeenTable)>>(tables: T) -> SeenTables {
        SeenTables(tables.into_iter().collect())
    }
}

/// A digest of these texts.
pub(super) fn digest<'a>(texts: impl IntoIterator<Item = &'a str>) -> String {
    let mut digest = Sha256::new();
    for text in texts {
        digest.update((text.len() as u64).to_le_bytes());
        digest.update(text);
    }
    digest.finalize()[..DIGEST_BYTES].iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(schema: &str, name: &str) -> TableName {
        TableName { schema: schema.into(), name: name.into() }
    }

    fn seen(schema: Option<&str>, partitions: &str, is_pending: bool) -> SeenTable {
        SeenTable { schema: schema.map(Into::into), partitions: partitions.into(), is_pending }
    }

    #[test]
    fn tables_are_read_as_they_are_written() {
        let tables = [
            (name("a.b", "c"), seen(None, "p", false)),
            (name("a", "b.c"), seen(Some("s"), "q", true)),
            (name("a\"", "\\"), seen(Some("s"), "", false)),
        ];
        let tables = SeenTables::from_iter(tables);
        assert_eq!(SeenTables::parse(&tables.to_json()), Ok(Some(tables)));
        assert_eq!(SeenTables::parse(&SeenTables::default().to_json()), Ok(Some(SeenTables::default())));
    }

    #[test]
    fn malformed_tables_are_refused_and_those_of_another_version_are_unknown() {
        let rows = vec![serde_json::json!(["a", "b", null, "c", false]); TABLES_MAX + 1];
        for malformed in [
            serde_json::json!(null),
            serde_json::json!({}),
            serde_json::json!({ "format": FORMAT }),
            serde_json::json!({ "format": FORMAT, "tables": [["a", "b"]] }),
            serde_json::json!({ "format": FORMAT, "tables": rows }),
        ] {
            assert!(SeenTables::parse(&malformed).is_err(), "{:.60}", malformed.to_string());
        }
        assert_eq!(SeenTables::parse(&serde_json::json!({ "format": FORMAT + 1, "tables": 7 })), Ok(None));
    }

    #[test]
    fn a_change_is_seen_in_the_digests_or_pending() {
        use TableChange::{SchemaChange, Truncate, Unpublished};
        let before = seen(Some("s"), "p", false);
        for (present, change) in [
            (before.clone(), None),
            (seen(Some("t"), "p", false), Some(SchemaChange)),
            (seen(Some("s"), "q", false), Some(Truncate)),
            (seen(None, "p", false), Some(Unpublished)),
        ] {
            assert_eq!(before.change_to(&present), change);
        }
        assert_eq!(seen(None, "p", false).change_to(&seen(None, "q", false)), None);
        assert_eq!(seen(None, "p", false).change_to(&before), Some(Unpublished));
        assert_eq!(seen(Some("s"), "p", true).change_to(&before), Some(SchemaChange));
    }

    #[test]
    fn digests_of_different_lists_differ() {
        assert_eq!(digest(["1:2", "3:4"]), digest(["1:2", "3:4"]));
        assert_ne!(digest(["1:2", "3:4"]), digest(["1:23:4"]));
        assert_ne!(digest([]), digest([""]));
    }
}
