//! The reader of the slot. There is one at most, so while another process reads it nothing is lost and nothing may be
//! changed: that process confirms what it has read, and its position is none of ours.
//!
//! | the reader | treated as |
//! |---|---|
//! | an earlier session of this process, whose connection was lost before the server noticed | ended |
//! | an invalidator with the same shared state, which hangs or is about to end | ended by the active one |
//! | any other | left alone: [`SourceError::InUse`] names it, until it has gone |

use super::{
    connection::{PostgresConnection, Row},
    options::{APPLICATION_NAME, PostgresOptions},
    setup::quote_literal,
};
use crate::{SourceError, source::SHARED_STATE_TABLE as TABLE};
use std::sync::Arc;

/// How many bytes of the shared state's name are shown, before a checksum of all of it: the server cuts a name of over
/// 63 bytes off.
const NAME_BYTES_SHOWN_MAX: usize = 11;

/// Whether this invalidator is certain to be the active one of those that share the slot.
pub type IsActive = Arc<dyn Fn() -> bool + Send + Sync>;

/// What the invalidators have in common that use a slot in turn.
#[derive(Clone)]
pub(super) struct SharedSlot {
    /// The name of the shared state.
    name: String,
    /// The beginning of the name that the server shows for the sessions of each of them.
    sessions: String,
    pub is_active: IsActive,
}

impl SharedSlot {
    /// That of the shared state `name`.
    pub fn new(name: &str, is_active: IsActive) -> SharedSlot {
        let shown = &name[..name.floor_char_boundary(NAME_BYTES_SHOWN_MAX)];
        let checksum = crc32fast::hash(name.as_bytes());
        SharedSlot { name: name.to_owned(), sessions: format!("{APPLICATION_NAME} {shown}-{checksum:08x} "), is_active }
    }

    /// A name for the sessions of one of them, by which it knows its own.
    pub fn application_name(&self, number: u64) -> String {
        format!("{}{number:016x}", self.sessions)
    }
}

/// The SQL condition that a session `a` is ours, or that of an invalidator which shares the slot.
fn is_ours(options: &PostgresOptions, shared: Option<&SharedSlot>) -> String {
    let own = format!("coalesce(a.application_name = {}, false)", quote_literal(&options.application_name));
    match shared {
        None => own,
        Some(shared) => {
            let sessions = quote_literal(&shared.sessions);
            format!("({own} OR coalesce(starts_with(a.application_name, {sessions}), false))")
        }
    }
}

/// Fails with the name of the process that reads the slot, if that is another one.
pub(super) async fn check(
    connection: &mut PostgresConnection,
    options: &PostgresOptions,
    shared: Option<&SharedSlot>,
) -> Result<(), SourceError> {
    let sql = format!(
        "SELECT s.active_pid, a.application_name, a.usename, host(a.client_addr) FROM pg_replication_slots s \
         LEFT JOIN pg_stat_activity a ON a.pid = s.active_pid \
         WHERE s.slot_name = {} AND s.active_pid IS NOT NULL AND NOT {}",
        quote_literal(&options.slot),
        is_ours(options, shared)
    );
    match connection.query(&sql).await?.into_iter().next() {
        None => Ok(()),
        Some(row) => Err(in_use(&options.slot, &row)),
    }
}

fn in_use(slot: &str, row: &Row) -> SourceError {
    let column = |index: usize| row.get(index).and_then(Option::as_deref).filter(|text| !text.is_empty());
    let mut reader = format!("pid {}", column(0).unwrap_or("unknown"));
    // Sessions of other accounts hide some of these.
    for (name, index) in [("application_name", 1), ("account", 2), ("address", 3)] {
        if let Some(value) = column(index) {
            reader.push_str(&format!(", {name} {value}"));
        }
    }
    let why = format!(
        "another process reads the replication slot {slot} ({reader}). Nothing was changed, and it is tried again. Two \
         invalidators that stand by for each other need --shared-state, both; one that is independent needs a --slot of \
         its own. The session of a process that has died ends within 15 s"
    );
    SourceError::InUse { why }
}

/// Ends the session that reads the slot if it is an earlier one of this process, or if this is the active one of the
/// invalidators that share the slot and it is that of another. Returns whether there was one.
pub(super) async fn end_earlier_session(
    connection: &mut PostgresConnection,
    options: &PostgresOptions,
    shared: Option<&SharedSlot>,
) -> Result<bool, SourceError> {
    let shared = shared.filter(|shared| (shared.is_active)());
    let sql = format!(
        "SELECT pg_terminate_backend(a.pid) FROM pg_stat_activity a JOIN pg_replication_slots s ON a.pid = s.active_pid \
         WHERE s.slot_name = {} AND {}",
        quote_literal(&options.slot),
        is_ours(options, shared)
    );
    Ok(connection.query_one(&sql).await?.as_deref() == Some("t"))
}

/// Fails if the positions of the slot's readers are shared in the table of this database, by others than those of
/// `shared`: an invalidator that knows nothing of them must not take the slot while none of those reads it.
pub(super) async fn check_not_shared(
    connection: &mut PostgresConnection,
    options: &PostgresOptions,
    shared: Option<&SharedSlot>,
) -> Result<(), SourceError> {
    let visible = format!("SELECT coalesce(has_table_privilege(to_regclass('{TABLE}'), 'SELECT'), false)");
    if connection.query_one(&visible).await?.as_deref() != Some("t") {
        return Ok(());
    }
    let slot = serde_json::to_string(&options.slot).expect("text can be written as JSON");
    let slot = quote_literal(&format!("\"slot\":{slot}"));
    let own = shared.map_or_else(String::new, |shared| format!(" AND name <> {}", quote_literal(&shared.name)));
    let sql = format!("SELECT name FROM {TABLE} WHERE strpos(state, {slot}) > 0{own}");
    match connection.query_one(&sql).await? {
        None => Ok(()),
        Some(name) => {
            let slot = &options.slot;
            let why = format!(
                "the positions of the replication slot {slot} are shared by other invalidators (row {name} of {TABLE}), and \
                 this one has none. Nothing was changed. Start with --shared-state and --shared-state-name {name}, or \
                 with a --slot of its own; if those invalidators are gone permanently: DELETE FROM {TABLE} WHERE name = {}",
                quote_literal(&name)
            );
            Err(SourceError::InUse { why })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_of_a_shared_slot_are_not_those_of_an_invalidator_by_itself() {
        let shared = SharedSlot::new("0123456789abcdef0123456789", Arc::new(|| true));
        let name = shared.application_name(7);
        assert!(
            name.starts_with("lookaside-invalidator 0123456789a-") && name.ends_with(" 0000000000000007"),
            "{name}"
        );
        assert!(name.len() <= 63, "the server cuts a longer one off");
        // Each of two pairs once took the sessions of the other for its own, and ended them.
        let east = SharedSlot::new("invalidator-production-east", Arc::new(|| true));
        let west = SharedSlot::new("invalidator-production-west", Arc::new(|| true));
        assert!(!west.application_name(7).starts_with(&east.sessions));
        assert!(!format!("{APPLICATION_NAME} {:016x}", 0x0123_4567_89ab_cdef_u64).starts_with(&shared.sessions));
    }
}
