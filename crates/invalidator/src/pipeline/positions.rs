//! Where each cluster's pipeline goes on after a restart: one small JSON file a cluster.
//!
//! ```text
//! STATE_DIR/<cluster>.position.json   {"format":1,"log":"sqlite:/srv/app.db","cluster":"front-1","position":"4711"}
//! ```
//!
//! Written as a temporary file, synced, renamed over the old one, and the directory synced: after a crash there is the
//! old position or the new one, never half of one. The temporary file of a crash is ignored and overwritten.
//!
//! A position is only worth something in the log that it came from. Taking it for another would skip commits in
//! silence, so a record of another log is refused.

use crate::Position;
use lookaside_routing::BoxFuture;
use serde::{Deserialize, Serialize};
use std::{
    fs::{self, File},
    io::{self, Write},
    path::{Path, PathBuf},
};

/// The layout of the file.
const FORMAT: u32 = 1;
/// No position is this long; a file that is longer is not ours.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// What is kept of one pipeline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The identity of the log.
    pub log: String,
    /// All up to here has been applied.
    pub position: Position,
}

/// Keeps the record of one pipeline.
pub trait PositionStore: Send + Sync {
    /// The record of an earlier run, or none on the first start.
    fn load(&self) -> BoxFuture<'_, Result<Option<Record>, PositionError>>;

    /// Replaces the record. When this returns, a crash no longer brings the old one back.
    fn save(&self, record: Record) -> BoxFuture<'_, Result<(), PositionError>>;
}

/// Why there is no telling where to go on.
#[derive(Debug, thiserror::Error)]
pub enum PositionError {
    /// The file system refuses.
    #[error("the position file {path}: {why}")]
    Io {
        /// Which file.
        path: PathBuf,
        /// What the system said.
        why: io::Error,
    },
    /// The file holds something else.
    #[error("the position file {path} cannot be understood ({why}); move it away to begin anew with --from")]
    Malformed {
        /// Which file.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// The record belongs to another log.
    #[error(
        "the saved position belongs to the log {saved}, but the source is {actual}: going on from it could skip \
         commits. Use the right --source, another --state-dir, or move the position file away and say --from"
    )]
    OtherLog {
        /// The identity that was saved.
        saved: String,
        /// The identity of the log that is read now.
        actual: String,
    },
}

impl Record {
    /// The position, if the record is of the log `identity`.
    pub fn position_in(self, identity: &str) -> Result<Position, PositionError> {
        if self.log == identity {
            Ok(self.position)
        } else {
            Err(PositionError::OtherLog { saved: self.log, actual: identity.to_string() })
        }
    }
}

/// The file of one cluster.
#[derive(Clone, Debug)]
pub struct PositionFile {
    cluster: String,
    path: PathBuf,
}

#[derive(Serialize, Deserialize)]
struct Layout {
    format: u32,
    log: String,
    cluster: String,
    position: String,
}

impl PositionFile {
    /// The file of `cluster` in `directory`, which exists. The name has been checked to be one of a file.
    pub fn new(directory: &Path, cluster: &str) -> PositionFile {
        PositionFile { path: directory.join(format!("{cluster}.position.json")), cluster: cluster.to_string() }
    }

    /// Reads the record; blocks.
    pub fn read(&self) -> Result<Option<Record>, PositionError> {
        let bytes = match fs::metadata(&self.path) {
            Ok(metadata) if metadata.len() > FILE_BYTES_MAX => {
                return Err(self.malformed(format!("{} bytes is too long", metadata.len())));
            }
            Ok(_) => fs::read(&self.path).map_err(|why| self.io(why))?,
            Err(why) if why.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(why) => return Err(self.io(why)),
        };
        let layout: Layout = serde_json::from_slice(&bytes).map_err(|why| self.malformed(why.to_string()))?;
        if layout.format != FORMAT {
            return Err(self.malformed(format!("format {} is not {FORMAT}", layout.format)));
        }
        if layout.cluster != self.cluster {
            return Err(self.malformed(format!("it is the file of cluster {}", layout.cluster)));
        }
        Ok(Some(Record { log: layout.log, position: Position(layout.position) }))
    }

    /// Writes the record; blocks until it is on disk.
    pub fn write(&self, record: &Record) -> Result<(), PositionError> {
        let layout = Layout {
            format: FORMAT,
            log: record.log.clone(),
            cluster: self.cluster.clone(),
            position: record.position.0.clone(),
        };
        let bytes = serde_json::to_vec(&layout).expect("text and numbers can be written as JSON");
        self.replace(&bytes).map_err(|why| self.io(why))
    }

    fn replace(&self, bytes: &[u8]) -> io::Result<()> {
        let temporary = self.path.with_extension("json.new");
        let mut file = File::create(&temporary)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&temporary, &self.path)?;
        File::open(self.path.parent().unwrap_or(Path::new(".")))?.sync_all()
    }

    fn io(&self, why: io::Error) -> PositionError {
        PositionError::Io { path: self.path.clone(), why }
    }

    fn malformed(&self, why: String) -> PositionError {
        PositionError::Malformed { path: self.path.clone(), why }
    }
}

impl PositionStore for PositionFile {
    fn load(&self) -> BoxFuture<'_, Result<Option<Record>, PositionError>> {
        let file = self.clone();
        Box::pin(async move { blocking(move || file.read()).await })
    }

    fn save(&self, record: Record) -> BoxFuture<'_, Result<(), PositionError>> {
        let file = self.clone();
        Box::pin(async move { blocking(move || file.write(&record)).await })
    }
}

/// A sync takes milliseconds, for which no other cluster should wait.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(work).await.expect("reading and writing a file does not panic")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(position: &str) -> Record {
        Record { log: "log-1".into(), position: Position(position.into()) }
    }

    #[test]
    fn what_was_written_is_read() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = PositionFile::new(directory.path(), "a");
        assert_eq!(file.read().expect("no file is no error"), None);
        file.write(&record("1")).expect("it can be written");
        file.write(&record("2")).expect("it can be written");
        assert_eq!(file.read().expect("it is there"), Some(record("2")));
        assert_eq!(PositionFile::new(directory.path(), "b").read().expect("another cluster has none"), None);
        let names: Vec<_> =
            fs::read_dir(directory.path()).expect("it lists").map(|e| e.expect("an entry").file_name()).collect();
        assert_eq!(names, ["a.position.json"], "no temporary file stays");
    }

    #[test]
    fn a_torn_temporary_file_changes_nothing() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = PositionFile::new(directory.path(), "a");
        fs::write(directory.path().join("a.position.json.new"), b"{\"format\":1,\"log\":\"lo").expect("a torn file");
        assert_eq!(file.read().expect("no file is no error"), None);
        file.write(&record("7")).expect("it is overwritten");
        fs::write(directory.path().join("a.position.json.new"), b"").expect("another torn file");
        assert_eq!(file.read().expect("it is there"), Some(record("7")));
    }

    #[test]
    fn what_is_not_ours_is_refused() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = PositionFile::new(directory.path(), "a");
        let path = directory.path().join("a.position.json");
        let other = r#"{"format":1,"log":"l","cluster":"b","position":"1"}"#;
        let newer = r#"{"format":2,"log":"l","cluster":"a","position":"1"}"#;
        for text in ["", "{", "null", "{\"format\":1}", other, newer, &" ".repeat(FILE_BYTES_MAX as usize + 1)] {
            fs::write(&path, text).expect("it can be written");
            assert!(matches!(file.read(), Err(PositionError::Malformed { .. })), "{:.60}", text);
        }
    }

    #[test]
    fn a_position_of_another_log_is_refused() {
        assert_eq!(record("1").position_in("log-1").expect("the same log"), Position("1".into()));
        let error = record("1").position_in("log-2").expect_err("another log");
        assert!(error.to_string().contains("log-1") && error.to_string().contains("log-2"), "{error}");
    }
}
