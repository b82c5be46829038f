//! Refuses to be a synchronous standby, and to read a physical one.
//!
//! A server counts every reader of its log as a standby if `synchronous_standby_names` matches its `application_name`,
//! as `*` does. Commits then wait until the reader confirms them. This one confirms what is on disk, which is after the
//! gate, and the gate waits for the commits: all commits of the server would stop.
//!
//! From version 16 on a server in recovery decodes its log, too. It is not read: its snapshots show what readers of the
//! standby see, and a primary may show a commit later, as it waits for a synchronous standby. Until then a reader of
//! the primary fills a cache with the old row, which the delete would come too early for. An address may lead to one
//! server now and to another one later, so each connection is checked.

use super::{connection::PostgresConnection, options::APPLICATION_NAME};
use crate::SourceError;

/// Fails if the server would wait for a reader of our name.
pub(super) async fn check_application_name(connection: &mut PostgresConnection) -> Result<(), SourceError> {
    let names = connection.query_one("SHOW synchronous_standby_names").await?.unwrap_or_default();
    let Some(name) = parse_names(&names).into_iter().find(|name| name == "*" || is_ours(name)) else { return Ok(()) };
    let why = format!(
        "synchronous_standby_names has {name}, which makes this reader a synchronous standby: every commit would wait \
         for it. Name the standbys instead: ALTER SYSTEM SET synchronous_standby_names = '...'; SELECT pg_reload_conf()"
    );
    Err(SourceError::Unusable { why })
}

/// Fails while the server is in recovery: until it is promoted.
pub(super) async fn check_is_primary(connection: &mut PostgresConnection) -> Result<(), SourceError> {
    match connection.query_one("SELECT pg_is_in_recovery()").await?.as_deref() {
        Some("f") => Ok(()),
        _ => Err(SourceError::Unreachable {
            why: "the server is a physical standby, whose log is not read, as readers of its primary may see a commit later. \
                  --source must lead to the primary; this server is read once it is promoted"
                .into(),
        }),
    }
}

fn is_ours(name: &str) -> bool {
    name.to_ascii_lowercase().starts_with(APPLICATION_NAME)
}

/// The names in `a, b`, `2 (a, b)`, `FIRST 2 (a, "B b")` or `ANY 1 (*)`, with some of the words around them.
fn parse_names(text: &str) -> Vec<String> {
    let mut names = Vec::new();
    for (index, part) in text.split('"').enumerate() {
        match index % 2 {
            1 => names.push(part.to_owned()),
            _ => names.extend(part.split([',', '(', ')', ' ']).filter(|word| !word.is_empty()).map(str::to_owned)),
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_of_the_setting_is_understood() {
        assert_eq!(parse_names(""), Vec::<String>::new());
        assert_eq!(parse_names("a, b"), ["a", "b"]);
        assert_eq!(parse_names("FIRST 2 (a,\"B b\")"), ["FIRST", "2", "a", "B b"]);
        assert!(parse_names("ANY 1 (*)").contains(&"*".to_owned()));
        assert!(is_ours("Lookaside-Invalidator 0123") && !is_ours("standby"));
    }
}
