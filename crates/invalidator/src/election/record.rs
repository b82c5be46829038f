//! The record that the invalidators of a database share, and the interface of what stores it.

use super::{
    member_options::MemberOptions,
    session_lock::{LockAttempt, LockSighting, SessionLock},
};
use crate::{
    Position,
    pipeline::positions::{PreparedText, SavedPosition},
    source::{SHARED_STATE_TABLE, postgres::SeenTables},
};
use lookaside_routing::BoxFuture;
use serde::{Deserialize, Serialize};
use std::{
    collections::{BTreeMap, BTreeSet},
    future::ready,
    time::Duration,
};

/// The table that has the record.
pub const TABLE: &str = SHARED_STATE_TABLE;
/// How long one access to the record may take.
pub(super) const ACCESS_WAIT_MAX: Duration = Duration::from_secs(2);
/// A standby becomes active when the record has not changed for this long. Long enough for two failed renewals.
pub(super) const EXPIRES_AFTER: Duration = Duration::from_secs(3);
/// The version of the state's format.
const FORMAT: u32 = 1;

/// Tells records apart: no two have the same.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecordVersion {
    /// The invalidator that is active, and which of the times that it was; empty if it has resigned.
    pub holder: String,
    /// Grows with every record.
    pub counter: u64,
}

/// What is stored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ElectionRecord {
    /// Which record this is.
    pub version: RecordVersion,
    /// The lock that the session of its holder held when it was stored; `None` if it held none.
    pub lock: Option<SessionLock>,
    /// After which time without a beat of that session its holder counts as hung; `None` if it sends none.
    pub hung_after: Option<Duration>,
    /// What the invalidators share.
    pub state: SharedState,
}

/// What one invalidator leaves to the next.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SharedState {
    /// By cluster: all deletes up to here have been acknowledged.
    pub positions: BTreeMap<String, SavedPosition>,
    /// Clusters with a position that says too little: an active invalidator had read more, and the database has lost
    /// what it saved then. Each is one until it has a new position.
    pub lost: BTreeSet<String>,
    /// PostgreSQL: how many losses of the slot's position were met.
    pub losses: u64,
    /// PostgreSQL: why the last of them happened; empty if none has.
    pub loss_reason: String,
    /// PostgreSQL: whether an invalidator was about to create the slot. Means nothing once there is a position.
    pub is_starting: bool,
    /// PostgreSQL: what was seen of tables with a rule; `None` if that is unknown.
    pub tables: Option<SeenTables>,
    /// The options of the invalidator that wrote it; `None` if it was of a version without them.
    pub options: Option<MemberOptions>,
}

/// Why the record could not be read or replaced. Whether it was replaced is unknown.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct RecordError(pub String);

/// Stores the record.
pub trait RecordStore: Send + Sync {
    /// The record; `None` if there is none.
    fn read(&self) -> BoxFuture<'_, Result<Option<ElectionRecord>, RecordError>>;

    /// Stores `record` if the stored one has the version `expected`, or if there is none and `expected` is `None`.
    /// Returns whether it did.
    fn replace<'a>(
        &'a self,
        expected: Option<&'a RecordVersion>,
        record: &'a ElectionRecord,
    ) -> BoxFuture<'a, Result<bool, RecordError>>;

    /// Takes a lock with the session that the next [`RecordStore::replace`] uses, the lock `number` if it has none yet,
    /// and checks that it holds it. A store without locks refuses; so does one that cannot know which session it uses.
    fn hold_lock(&self, number: u64) -> BoxFuture<'_, Result<LockAttempt, RecordError>> {
        let _ = number;
        Box::pin(ready(Ok(LockAttempt::Refused("the shared state has no locks".into()))))
    }

    /// Shows that this process lives: the session that holds a lock takes the next of the locks beside it. Returns
    /// whether it did; it does not if it has no lock. By default it never does.
    fn beat(&self) -> BoxFuture<'_, Result<bool, RecordError>> {
        Box::pin(ready(Ok(false)))
    }

    /// Looks whether a session holds `lock`; `None` if that cannot be known. Unknown by default.
    fn look_up_lock(&self, lock: SessionLock) -> BoxFuture<'_, Result<Option<LockSighting>, RecordError>> {
        let _ = lock;
        Box::pin(ready(Ok(None)))
    }
}

#[derive(Serialize, Deserialize)]
struct StateText {
    format: u32,
    #[serde(default)]
    losses: u64,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    loss_reason: String,
    #[serde(default)]
    starting: bool,
    clusters: BTreeMap<String, PositionText>,
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    lost: BTreeSet<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tables: Option<serde_json::Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    options: Option<MemberOptions>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    lock: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    hung_after_ms: Option<u64>,
}

#[derive(Serialize, Deserialize)]
struct PositionText {
    log: String,
    position: String,
    #[serde(flatten)]
    prepared: PreparedText,
}

impl ElectionRecord {
    /// All but the version, as it is stored.
    pub fn to_text(&self) -> String {
        let ElectionRecord { lock, hung_after, state, .. } = self;
        let clusters = state.positions.iter().map(|(cluster, saved)| {
            let SavedPosition { log_identity, position, prepared } = saved.clone();
            let prepared = PreparedText::of(prepared);
            (cluster.clone(), PositionText { log: log_identity, position: position.0, prepared })
        });
        let text = StateText {
            format: FORMAT,
            losses: state.losses,
            loss_reason: state.loss_reason.clone(),
            starting: state.is_starting,
            clusters: clusters.collect(),
            lost: state.lost.clone(),
            tables: state.tables.as_ref().map(SeenTables::to_json),
            options: state.options.clone(),
            lock: lock.map(SessionLock::text),
            hung_after_ms: hung_after.map(|time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX)),
        };
        serde_json::to_string(&text).expect("text and numbers can be written as JSON")
    }

    /// Parses what is stored with `version`.
    pub fn parse(version: RecordVersion, text: &str) -> Result<ElectionRecord, RecordError> {
        let malformed = |why: String| {
            RecordError(format!(
                "the state in the table {} is malformed ({why}); delete the row to start again with --from, after \
                 emptying the clusters",
                TABLE
            ))
        };
        let text: StateText = serde_json::from_str(text).map_err(|why| malformed(why.to_string()))?;
        if text.format != FORMAT {
            let format = text.format;
            return Err(RecordError(format!("the state in the table {TABLE} has format {format}, of a newer version")));
        }
        let positions = text.clusters.into_iter().map(|(cluster, text)| {
            let PositionText { log, position, prepared } = text;
            (cluster, SavedPosition { log_identity: log, position: Position(position), prepared: prepared.state() })
        });
        let tables = text.tables.as_ref().map(SeenTables::parse).transpose().map_err(malformed)?.flatten();
        let state = SharedState {
            positions: positions.collect(),
            lost: text.lost,
            losses: text.losses,
            loss_reason: text.loss_reason,
            is_starting: text.starting,
            tables,
            options: text.options,
        };
        let lock = text.lock.as_deref().and_then(SessionLock::parse);
        Ok(ElectionRecord { version, lock, hung_after: text.hung_after_ms.map(Duration::from_millis), state })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::{PreparedState, UnresolvedPrepared};

    fn parse(text: &str) -> Result<ElectionRecord, RecordError> {
        ElectionRecord::parse(RecordVersion::default(), text)
    }

    #[test]
    fn state_is_read_as_it_is_written() {
        let unresolved = UnresolvedPrepared::from_names(["x'61',x'',1".to_owned()].into());
        let prepared = PreparedState { unresolved, read_until: Some(Position("a:1-7".into())) };
        let saved = |prepared| SavedPosition {
            log_identity: "mysql:1\"'\\".into(),
            position: Position("a:1-5".into()),
            prepared,
        };
        let positions = [("one".to_owned(), saved(Some(prepared))), ("two".to_owned(), saved(None))].into();
        let stored = serde_json::json!({ "format": 3, "tables": [["app", "users", "s", "p", true]] });
        let tables = SeenTables::parse(&stored).expect("well-formed");
        let options = MemberOptions { clusters: ["one".to_owned()].into(), ..MemberOptions::default() };
        let (lost, options) = (["one".to_owned()].into(), Some(options));
        let loss_reason = "why".into();
        let state = SharedState { positions, lost, losses: 2, loss_reason, is_starting: true, tables, options };
        for lock in [None, Some(SessionLock(u64::MAX))] {
            let hung_after = lock.map(|_| Duration::from_millis(500));
            let record = ElectionRecord { lock, hung_after, state: state.clone(), ..ElectionRecord::default() };
            assert_eq!(parse(&record.to_text()), Ok(record));
        }
    }

    #[test]
    fn a_position_of_a_version_without_unresolved_transactions_is_read() {
        let text = r#"{"format":1,"clusters":{"one":{"log":"mariadb:0-1","position":"0-1-5"}}}"#;
        let position = parse(text).expect("well-formed").state.positions["one"].clone();
        assert_eq!((position.position.0.as_str(), position.prepared), ("0-1-5", None));
    }

    #[test]
    fn tables_of_another_version_are_unknown() {
        for text in [r#"{"format":1,"clusters":{}}"#, r#"{"format":1,"clusters":{},"tables":{"format":4}}"#] {
            assert_eq!(parse(text), Ok(ElectionRecord::default()), "{text}");
        }
    }

    #[test]
    fn malformed_states_are_refused() {
        for text in ["", "{}", "null", r#"{"format":1}"#, r#"{"format":1,"clusters":{},"tables":{"format":3}}"#] {
            assert!(parse(text).expect_err(text).0.contains("malformed"), "{text}");
        }
        let newer = parse(r#"{"format":2,"clusters":{}}"#).expect_err("a newer format");
        assert!(newer.0.contains("newer version") && !newer.0.contains("delete"), "{newer}");
    }
}
