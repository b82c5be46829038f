//! The covered configurations on disk: `FILE.coverage` beside the last good configuration `FILE` (`--config-cache`).
//! No request passes here.
//!
//! ```text
//!   {"version": 1, "reads": ID, "covered": [{"text": "...", "is_claimed": true, "was_read": true}],
//!    "departed": ["10.0.0.7:11211", "10.0.0.8:11211"], "is_departed_incomplete": false,
//!    "departed_unread": ["10.0.0.8:11211"]}
//! ```
//!
//! The file is replaced by a rename: after a crash it is the old or the new one.

use super::coverage::{COVERED_MAX, SavedCoverage};
use super::departed::Departed;
use crate::config::last_good::{MODE, replace_file};
use lookaside_client::config::ConfigId;
use lookaside_client::config::FILE_BYTES_MAX;
use lookaside_routing::Address;
use md5::{Digest as _, Md5};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

const VERSION: u32 = 1;
/// Texts are escaped in JSON.
const BYTES_MAX: u64 = 2 * COVERED_MAX as u64 * FILE_BYTES_MAX;

/// Where a process keeps its coverage: a text that is replaced as a whole.
pub trait CoverageStore: Send {
    /// The text; `None` if there is none. The error says why it cannot be read.
    fn load(&self) -> io::Result<Option<String>>;
    /// Replaces the text. It is durable when this returns; after an error or a crash it is the old or the new one.
    fn save(&self, text: &str) -> io::Result<()>;
    /// Whether the text outlives the process.
    fn is_durable(&self) -> bool;
}

/// Identifies the text that a process has saved last. It hands this over to the next process, which must not continue
/// from another text: that would be an older one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CoverageDigest(pub(crate) [u8; CoverageDigest::BYTES]);

impl CoverageDigest {
    pub(crate) const BYTES: usize = 16;

    /// That of `text`. The empty text is none that a process saves.
    pub fn of(text: &str) -> CoverageDigest {
        CoverageDigest(Md5::digest(text).into())
    }
}

/// A state that was saved. Its texts are not parsed yet.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct StoredCoverage {
    version: u32,
    reads: String,
    pub(crate) covered: Vec<StoredConfig>,
    departed: Vec<String>,
    is_departed_incomplete: bool,
    /// Earlier versions write none.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    departed_unread: BTreeSet<String>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct StoredConfig {
    pub(crate) text: String,
    pub(crate) is_claimed: bool,
    pub(crate) was_read: bool,
}

impl StoredCoverage {
    pub(super) fn parse(text: &str) -> Result<StoredCoverage, String> {
        let stored: StoredCoverage = serde_json::from_str(text).map_err(|error| error.to_string())?;
        match stored.version {
            VERSION => Ok(stored),
            other => Err(format!("version {other}, expected {VERSION}")),
        }
    }

    pub(super) fn to_json(&self) -> String {
        serde_json::to_string(self).expect("text and lists are JSON")
    }

    pub(super) fn of(saved: &SavedCoverage) -> StoredCoverage {
        let covered = saved.covered.iter().map(|covered| StoredConfig {
            text: covered.config.text.to_string(),
            is_claimed: covered.is_claimed,
            was_read: covered.was_read,
        });
        StoredCoverage {
            version: VERSION,
            reads: saved.reads.to_string(),
            covered: covered.collect(),
            departed: saved.departed.servers.iter().map(Address::to_string).collect(),
            is_departed_incomplete: saved.departed.is_incomplete,
            departed_unread: saved.departed.unread.iter().map(Address::to_string).collect(),
        }
    }

    pub(crate) fn reads(&self) -> Option<ConfigId> {
        ConfigId::parse(&self.reads)
    }

    pub(crate) fn departed(&self) -> Departed {
        let mut departed = Departed { is_incomplete: self.is_departed_incomplete, ..Departed::default() };
        let address = |server: &String| Address(server.as_str().into());
        departed.add_marked(self.departed.iter().map(address), &self.departed_unread.iter().map(address).collect());
        departed
    }
}

/// A file.
pub(crate) struct CoverageFile(PathBuf);

impl CoverageFile {
    /// The file beside the last good configuration at `config_cache`.
    pub(crate) fn beside(config_cache: &Path) -> CoverageFile {
        let mut path = config_cache.as_os_str().to_owned();
        path.push(".coverage");
        CoverageFile(path.into())
    }

    fn read(&self) -> io::Result<String> {
        if fs::metadata(&self.0)?.len() > BYTES_MAX {
            return Err(io::Error::other(format!("it is larger than {BYTES_MAX} bytes")));
        }
        fs::read_to_string(&self.0)
    }
}

impl CoverageStore for CoverageFile {
    fn load(&self) -> io::Result<Option<String>> {
        match self.read() {
            Ok(text) => Ok(Some(text)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(io::Error::other(format!("{}: {error}", self.0.display()))),
        }
    }

    fn save(&self, text: &str) -> io::Result<()> {
        replace_file(&self.0, text, MODE)
    }

    fn is_durable(&self) -> bool {
        true
    }
}

/// Nothing is kept.
pub(crate) struct NoStore;

impl CoverageStore for NoStore {
    fn load(&self) -> io::Result<Option<String>> {
        Ok(None)
    }

    fn save(&self, _: &str) -> io::Result<()> {
        Ok(())
    }

    fn is_durable(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resize::coverage::{Candidate, SavedConfig};
    use std::sync::Arc;

    #[test]
    fn state_is_read_as_it_was_saved_and_a_damaged_one_is_an_error() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = CoverageFile::beside(&folder.path().join("last.json"));
        assert!(matches!(file.load(), Ok(None)));
        let config = Candidate { id: ConfigId(7), text: "{\"a\": 1}".into(), servers: Arc::default() };
        let covered = vec![SavedConfig { config, is_claimed: true, was_read: false }];
        let mut departed = Departed { is_incomplete: true, ..Departed::default() };
        departed.add([Address("a:1".into())]);
        departed.add_unread([Address("b:1".into())]);
        departed.add([Address("c:1".into())]);
        let saved = SavedCoverage { reads: ConfigId(7), covered, departed: departed.clone() };
        file.save(&StoredCoverage::of(&saved).to_json()).expect("saved");
        let text = file.load().expect("readable").expect("there");
        let stored = StoredCoverage::parse(&text).expect("valid");
        assert_eq!((stored.reads(), stored.departed()), (Some(ConfigId(7)), departed));
        let [StoredConfig { text, is_claimed: true, was_read: false }] = &stored.covered[..] else {
            panic!("{stored:?}")
        };
        assert_eq!(text, "{\"a\": 1}");
        assert!(StoredCoverage::parse("{\"version\": 1, \"rea").is_err());
        fs::write(folder.path().join("last.json.coverage"), [0xff]).expect("written");
        assert!(file.load().is_err_and(|why| why.to_string().contains("last.json.coverage")));
    }
}
