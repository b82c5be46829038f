//! The saved positions, from which pipelines resume after a restart: one small JSON file per cluster.
//!
//! ```text
//! STATE_DIR/<cluster>.position.json   {"format":1,"log":"sqlite:/srv/app.db","cluster":"front-1","position":"4711"}
//!                                     {...,"position":"0-1-5","unresolved_xa":{"named":["x'6f6c64',x'',1"]},
//!                                      "read_until":"0-1-9"}
//! ```
//!
//! A file without `unresolved_xa` and `read_until` is one of another database or of an earlier version. An earlier
//! version ignores them, and saves positions without them.
//!
//! After a crash the file holds the old position or the new one ([`crate::state_file`]).
//!
//! A position means something only in the log that it came from. In another log it could skip commits silently, so it
//! is refused there.

use crate::{
    Position,
    source::{PreparedState, UnresolvedPrepared},
    state_file::{self, run_blocking},
};
use lookaside_routing::BoxFuture;
use serde::{Deserialize, Serialize};
use std::{
    io,
    path::{Path, PathBuf},
};

/// The version of the file format.
const FORMAT: u32 = 1;

/// The saved position of one pipeline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SavedPosition {
    /// The identity of the log.
    pub log_identity: String,
    /// All deletes up to here have been acknowledged.
    pub position: Position,
    /// What the next reader must know of prepared transactions; `None` if that is not known, or if the log has none.
    pub prepared: Option<PreparedState>,
}

/// Stores the position of one pipeline durably.
pub trait PositionStore: Send + Sync {
    /// The position that an earlier run saved; `None` on the first start.
    fn load(&self) -> BoxFuture<'_, Result<Option<SavedPosition>, PositionError>>;

    /// Why deletes after the position that an earlier run saved are lost, though the log may have all that follows it;
    /// `None` if they are not. So it stays until a position is saved. `None` by default.
    fn loss(&self) -> Option<String> {
        None
    }

    /// Replaces the saved position. Once this returns, a crash cannot bring the old one back.
    fn save(&self, position: SavedPosition) -> BoxFuture<'_, Result<(), PositionError>>;
}

/// Why the position to resume from is unknown.
#[derive(Debug, thiserror::Error)]
pub enum PositionError {
    /// The file cannot be read or written.
    #[error("the position file {path}: {why}")]
    Io {
        /// Which file.
        path: PathBuf,
        /// The error of the operating system.
        why: io::Error,
    },
    /// The content of the file is not a position.
    #[error("the position file {path} is malformed ({why}); move it away to start again with --from")]
    Malformed {
        /// Which file.
        path: PathBuf,
        /// The problem.
        why: String,
    },
    /// The position could not be saved where invalidators share it.
    #[error("the shared state: {why}")]
    NotShared {
        /// The cause.
        why: String,
    },
    /// The saved position belongs to another log.
    #[error(
        "the saved position belongs to the log {saved}, but the source is {actual}: resuming from it could skip \
         commits. Use the right --source, another --state-dir, or move the position file away and use --from"
    )]
    OtherLog {
        /// The identity that was saved.
        saved: String,
        /// The identity of the log that is read now.
        actual: String,
    },
}

impl SavedPosition {
    /// The position, if it belongs to the log `identity`.
    pub fn position_in(self, identity: &str) -> Result<Position, PositionError> {
        if self.log_identity == identity {
            Ok(self.position)
        } else {
            Err(PositionError::OtherLog { saved: self.log_identity, actual: identity.to_string() })
        }
    }
}

/// The position file of one cluster.
#[derive(Clone, Debug)]
pub struct PositionFile {
    cluster: String,
    path: PathBuf,
}

#[derive(Serialize, Deserialize)]
struct FileContent {
    format: u32,
    #[serde(rename = "log")]
    log_identity: String,
    cluster: String,
    position: String,
    #[serde(flatten)]
    prepared: PreparedText,
}

/// What is known of prepared transactions, as it is saved beside a position.
#[derive(Serialize, Deserialize)]
pub(crate) struct PreparedText {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    unresolved_xa: Option<UnresolvedPrepared>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    read_until: Option<String>,
}

impl PreparedText {
    pub(crate) fn of(state: Option<PreparedState>) -> PreparedText {
        let (unresolved_xa, read_until) = state.map(|state| (state.unresolved, state.read_until)).unzip();
        PreparedText { unresolved_xa, read_until: read_until.flatten().map(|position| position.0) }
    }

    pub(crate) fn state(self) -> Option<PreparedState> {
        let read_until = self.read_until.map(Position);
        Some(PreparedState { unresolved: self.unresolved_xa?, read_until })
    }
}

impl PositionFile {
    /// The file of `cluster` in `directory`, which exists. The cluster's name must be valid in a file name.
    pub fn new(directory: &Path, cluster: &str) -> PositionFile {
        PositionFile { path: directory.join(format!("{cluster}.position.json")), cluster: cluster.to_string() }
    }

    /// Reads the position; blocks.
    pub fn read(&self) -> Result<Option<SavedPosition>, PositionError> {
        let bytes = match state_file::read(&self.path, state_file::FILE_BYTES_MAX) {
            Ok(Some(bytes)) => bytes,
            Ok(None) => return Ok(None),
            Err(why) if why.kind() == io::ErrorKind::FileTooLarge => return Err(self.malformed(why.to_string())),
            Err(why) => return Err(self.io(why)),
        };
        let content: FileContent = serde_json::from_slice(&bytes).map_err(|why| self.malformed(why.to_string()))?;
        if content.format != FORMAT {
            return Err(self.malformed(format!("format {} is not {FORMAT}", content.format)));
        }
        if content.cluster != self.cluster {
            return Err(self.malformed(format!("it is the file of cluster {}", content.cluster)));
        }
        let FileContent { log_identity, position, prepared, .. } = content;
        Ok(Some(SavedPosition { log_identity, position: Position(position), prepared: prepared.state() }))
    }

    /// Writes the position; blocks until it is on disk.
    pub fn write(&self, saved: &SavedPosition) -> Result<(), PositionError> {
        let content = FileContent {
            format: FORMAT,
            log_identity: saved.log_identity.clone(),
            cluster: self.cluster.clone(),
            position: saved.position.0.clone(),
            prepared: PreparedText::of(saved.prepared.clone()),
        };
        let bytes = serde_json::to_vec(&content).expect("text and numbers can be written as JSON");
        state_file::replace(&self.path, &bytes).map_err(|why| self.io(why))
    }

    fn io(&self, why: io::Error) -> PositionError {
        PositionError::Io { path: self.path.clone(), why }
    }

    fn malformed(&self, why: String) -> PositionError {
        PositionError::Malformed { path: self.path.clone(), why }
    }
}

impl PositionStore for PositionFile {
    fn load(&self) -> BoxFuture<'_, Result<Option<SavedPosition>, PositionError>> {
        let file = self.clone();
        Box::pin(async move { run_blocking(move || file.read()).await })
    }

    fn save(&self, position: SavedPosition) -> BoxFuture<'_, Result<(), PositionError>> {
        let file = self.clone();
        Box::pin(async move { run_blocking(move || file.write(&position)).await })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state_file::FILE_BYTES_MAX;
    use std::fs;

    fn saved(position: &str) -> SavedPosition {
        SavedPosition { log_identity: "log-1".into(), position: Position(position.into()), prepared: None }
    }

    #[test]
    fn what_is_known_of_prepared_transactions_is_read_back_and_may_be_missing() {
        let directory = tempfile::tempdir().expect("a directory");
        let (file, path) = (PositionFile::new(directory.path(), "a"), directory.path().join("a.position.json"));
        let named = UnresolvedPrepared::from_names(["x'61',x'',1".to_owned()].into());
        let state = |unresolved, until: Option<&str>| {
            Some(PreparedState { unresolved, read_until: until.map(|until| Position(until.into())) })
        };
        let none = UnresolvedPrepared::none();
        for prepared in
            [None, state(none, Some("1")), state(named, Some("2")), state(UnresolvedPrepared::Unknown, None)]
        {
            let saved = SavedPosition { prepared, ..saved("1") };
            file.write(&saved).expect("the file is written");
            assert_eq!(file.read().expect("the file is read"), Some(saved));
        }
        // Of a version without them; and what such a version ignores.
        fs::write(&path, r#"{"format":1,"log":"log-1","cluster":"a","position":"1"}"#).expect("the file is written");
        assert_eq!(file.read().expect("it is not refused"), Some(saved("1")));
        fs::write(&path, r#"{"format":1,"log":"log-1","cluster":"a","position":"1","later":[]}"#).expect("written");
        assert_eq!(file.read().expect("it is not refused"), Some(saved("1")));
    }

    #[test]
    fn written_position_is_read_back() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = PositionFile::new(directory.path(), "a");
        assert_eq!(file.read().expect("a missing file is no error"), None);
        file.write(&saved("1")).expect("the file is written");
        file.write(&saved("2")).expect("the file is written");
        assert_eq!(file.read().expect("the file is read"), Some(saved("2")));
        assert_eq!(PositionFile::new(directory.path(), "b").read().expect("another cluster has none"), None);
        let names: Vec<_> =
            fs::read_dir(directory.path()).expect("it lists").map(|e| e.expect("an entry").file_name()).collect();
        assert_eq!(names, ["a.position.json"], "no temporary file stays");
    }

    #[test]
    fn torn_temporary_file_is_ignored() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = PositionFile::new(directory.path(), "a");
        fs::write(directory.path().join("a.position.json.new"), b"{\"format\":1,\"log\":\"lo").expect("a torn file");
        assert_eq!(file.read().expect("a missing file is no error"), None);
        file.write(&saved("7")).expect("it is overwritten");
        fs::write(directory.path().join("a.position.json.new"), b"").expect("another torn file");
        assert_eq!(file.read().expect("the file is read"), Some(saved("7")));
    }

    #[test]
    fn file_behind_a_link_is_not_overwritten() {
        let directory = tempfile::tempdir().expect("a directory");
        let (file, other) = (PositionFile::new(directory.path(), "a"), directory.path().join("other"));
        fs::write(&other, "another's").expect("the file is written");
        for name in ["a.position.json", "a.position.json.new"] {
            std::os::unix::fs::symlink(&other, directory.path().join(name)).expect("a link");
            file.write(&saved("1")).expect("links are replaced");
            assert_eq!(file.read().expect("the file is read"), Some(saved("1")));
            assert_eq!(fs::read_to_string(&other).expect("it is read"), "another's");
        }
    }

    #[test]
    fn malformed_files_are_refused() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = PositionFile::new(directory.path(), "a");
        let path = directory.path().join("a.position.json");
        let other = r#"{"format":1,"log":"l","cluster":"b","position":"1"}"#;
        let newer = r#"{"format":2,"log":"l","cluster":"a","position":"1"}"#;
        for text in ["", "{", "null", "{\"format\":1}", other, newer, &" ".repeat(FILE_BYTES_MAX as usize + 1)] {
            fs::write(&path, text).expect("the file is written");
            assert!(matches!(file.read(), Err(PositionError::Malformed { .. })), "{:.60}", text);
        }
    }

    #[test]
    fn position_of_another_log_is_refused() {
        assert_eq!(saved("1").position_in("log-1").expect("the same log"), Position("1".into()));
        let error = saved("1").position_in("log-2").expect_err("another log");
        assert!(error.to_string().contains("log-1") && error.to_string().contains("log-2"), "{error}");
    }
}
