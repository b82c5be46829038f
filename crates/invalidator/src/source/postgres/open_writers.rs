//! Which open transactions may have changed tables with a rule: of those that are open while a table is added to the
//! publication, the log does not have what they changed before ([`super::coverage`]).
//!
//! A transaction that changes rows holds a lock on their table until it has ended and others see what it did, also if it
//! is prepared. A snapshot would not do: it does not name transactions that are newer than the last one that ended.

use super::{
    catalogue::{Catalogue, DeclaredTable},
    connection::{PostgresConnection, QueryError},
};
use crate::rules::TableName;
use std::collections::{BTreeMap, BTreeSet};

/// Transactions by the name of a table, each by its virtual id, as in `pg_locks`. A table without any is missing.
pub(super) type OpenWriters = BTreeMap<TableName, BTreeSet<String>>;

/// Reads the transactions that may have changed rows of the tables of `catalogue`, or of their partitions.
pub(super) async fn load(
    connection: &mut PostgresConnection,
    catalogue: &Catalogue,
) -> Result<OpenWriters, QueryError> {
    if catalogue.is_empty() {
        return Ok(OpenWriters::new());
    }
    let ids_of = |(number, table): (usize, &DeclaredTable)| {
        table.ids().map(|id| format!("({id}::oid, {number})")).collect::<Vec<_>>().join(", ")
    };
    let ids: Vec<String> = catalogue.values().enumerate().map(ids_of).collect();
    // A row for each table, however many partitions a transaction has locked.
    let sql = format!(
        "SELECT ids.number, string_agg(DISTINCT virtualtransaction, ' ') FROM pg_locks \
         JOIN (VALUES {}) AS ids(id, number) ON ids.id = relation WHERE locktype = 'relation' \
         AND database = (SELECT oid FROM pg_database WHERE datname = current_database()) \
         AND mode IN ('RowExclusiveLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock') \
         GROUP BY ids.number",
        ids.join(", ")
    );
    let names: Vec<&TableName> = catalogue.keys().collect();
    let mut writers = OpenWriters::new();
    for row in connection.query(&sql).await? {
        let text = |at: usize| row.get(at).and_then(Option::as_deref).unwrap_or_default();
        if let Some(name) = text(0).parse().ok().and_then(|number: usize| names.get(number)) {
            writers.insert((*name).clone(), text(1).split(' ').map(str::to_owned).collect());
        }
    }
    Ok(writers)
}
