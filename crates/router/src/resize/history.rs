//! The history of a cluster's configurations, which all of its routers share, in etcd: a router that has no memory of
//! its own, or an outdated one, starts from it. No request passes here.
//!
//! ```text
//!   HISTORY/REGION/CLUSTER      {"version": 1, "configs": [{"id": ID, "is_readable": true, "is_lost": false}],
//!                                "departed": ["10.0.0.7:11211", "10.0.0.8:11211"], "is_departed_incomplete": false,
//!                                "departed_unread": ["10.0.0.8:11211"]}
//!   HISTORY/REGION/CLUSTER/ID   the text of that configuration
//! ```
//!
//! A router computes a new record from the one that it has seen, and it is stored only if that one is still there; else
//! the router begins again with what is there instead. So a record is never merged from two decisions that did not know
//! of each other. [`super::coverage`] decides what is recorded, and waits until it is.

use super::departed::Departed;
use super::report::CoverageReport;
use lookaside_client::config::ConfigId;
use lookaside_routing::{Address, BoxFuture};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

const VERSION: u32 = 1;
/// No record has this revision.
const NO_REVISION: i64 = -1;
/// The most configurations.
pub(crate) const HISTORY_CONFIGS_MAX: usize = 8;
/// The longest record: the servers that have departed are bounded, their names are not.
const BYTES_MAX: usize = 1 << 20;

/// Where a cluster keeps its history: a record that its routers replace by compare-and-swap, and the texts of the
/// configurations that it names.
pub trait HistoryStore: Send + Sync {
    /// The record as it is now.
    fn read(&self) -> BoxFuture<'_, Result<StoredHistory, HistoryError>>;
    /// The text of a configuration; `None` if there is none.
    fn read_text(&self, id: ConfigId) -> BoxFuture<'_, Result<Option<String>, HistoryError>>;
    /// Makes `change` if the record has the expected revision. Returns the record as it is then.
    fn replace(&self, change: HistoryChange) -> BoxFuture<'_, Result<StoredHistory, HistoryError>>;
    /// Where the record is. This is for errors and logs.
    fn location(&self) -> String;
    /// The key of the record in etcd, by which an operator can remove it together with the texts.
    fn key(&self) -> String;
}

/// A record as it is stored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoredHistory {
    /// `None` if there is none.
    pub record: Option<String>,
    /// Of its last change; 0 if there is none.
    pub revision: i64,
}

/// A change of the record and of the texts, made as a whole or not at all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HistoryChange {
    /// The revision that the record must have.
    pub expected: i64,
    /// The new record.
    pub record: String,
    /// Texts to store.
    pub texts: Vec<(ConfigId, Arc<str>)>,
    /// Texts to remove.
    pub removed: Vec<ConfigId>,
}

/// Why the history cannot be read or changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HistoryError {
    /// Not now.
    Unavailable(String),
    /// Not by this router: its account lacks a permission, or the change is too large.
    Refused(String),
    /// There is something, but no record that this router can use: it is malformed, of another version or without a
    /// text that it names; or the reply is not that of the store.
    Unusable(String),
}

impl HistoryChange {
    /// Changes nothing, and fails as a change does.
    pub(crate) fn none() -> HistoryChange {
        HistoryChange { expected: NO_REVISION, record: String::new(), texts: Vec::new(), removed: Vec::new() }
    }

    /// The same for a condition that does not hold.
    pub(crate) fn without_effect(self) -> HistoryChange {
        HistoryChange { expected: NO_REVISION, ..self }
    }
}

impl fmt::Display for HistoryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (HistoryError::Unavailable(why) | HistoryError::Refused(why) | HistoryError::Unusable(why)) = self;
        f.write_str(why)
    }
}

/// What routers of a cluster have done, as far as the next one must know it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct History {
    /// Configurations under which copies may exist, the oldest first.
    pub(crate) configs: Vec<RecordedConfig>,
    /// Servers that get no deletes, or did not for a while, and are emptied before they are read.
    pub(crate) departed: Departed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecordedConfig {
    pub(crate) id: ConfigId,
    /// A router may begin to read by it: all routers cover it, and its servers are trusted.
    pub(crate) is_readable: bool,
    /// Routers that could not use its text have acknowledged deletes: its places have missed them, and which ones these
    /// are is not known to all routers. None covers it any more. No readable one is lost.
    pub(crate) is_lost: bool,
}

#[derive(Serialize, Deserialize)]
struct Record {
    version: u32,
    configs: Vec<RecordConfig>,
    departed: Vec<String>,
    is_departed_incomplete: bool,
    /// Earlier versions write none, and lose those that are there.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    departed_unread: BTreeSet<String>,
}

#[derive(Serialize, Deserialize)]
struct RecordConfig {
    id: String,
    is_readable: bool,
    /// Earlier versions write none.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    is_lost: bool,
}

impl History {
    /// Parses a record. An error says why it cannot be used.
    pub(crate) fn parse(record: &str) -> Result<History, String> {
        if record.len() > BYTES_MAX {
            return Err(format!("the record has {} bytes; the limit is {BYTES_MAX}", record.len()));
        }
        let record: Record = serde_json::from_str(record).map_err(|error| format!("malformed record: {error}"))?;
        if record.version != VERSION {
            return Err(format!("the record has version {}; expected {VERSION}", record.version));
        }
        if record.configs.len() > HISTORY_CONFIGS_MAX {
            return Err(format!("the record has {} configurations", record.configs.len()));
        }
        let config = |config: &RecordConfig| {
            let id = ConfigId::parse(&config.id).ok_or_else(|| format!("{:?} is not an identity", config.id))?;
            Ok(RecordedConfig { id, is_readable: config.is_readable, is_lost: config.is_lost && !config.is_readable })
        };
        let mut departed = Departed { is_incomplete: record.is_departed_incomplete, ..Departed::default() };
        let address = |server: &String| Address(server.as_str().into());
        departed.add_marked(record.departed.iter().map(address), &record.departed_unread.iter().map(address).collect());
        Ok(History { configs: record.configs.iter().map(config).collect::<Result<_, String>>()?, departed })
    }

    pub(crate) fn to_json(&self) -> String {
        let config = |config: &RecordedConfig| RecordConfig {
            id: config.id.to_string(),
            is_readable: config.is_readable,
            is_lost: config.is_lost,
        };
        let record = Record {
            version: VERSION,
            configs: self.configs.iter().map(config).collect(),
            departed: self.departed.servers.iter().map(Address::to_string).collect(),
            is_departed_incomplete: self.departed.is_incomplete,
            departed_unread: self.departed.unread.iter().map(Address::to_string).collect(),
        };
        serde_json::to_string(&record).expect("text and lists are JSON")
    }

    pub(crate) fn get(&self, id: ConfigId) -> Option<&RecordedConfig> {
        self.configs.iter().find(|config| config.id == id)
    }

    pub(crate) fn is_readable(&self, id: ConfigId) -> bool {
        self.get(id).is_some_and(|config| config.is_readable)
    }

    /// Whether all routers cover `id`, and have since copies can be under it.
    pub(crate) fn is_kept(&self, id: ConfigId) -> bool {
        self.get(id).is_some_and(|config| !config.is_lost)
    }

    pub(crate) fn lost(&self) -> impl Iterator<Item = ConfigId> {
        self.configs.iter().filter(|config| config.is_lost).map(|config| config.id)
    }

    /// Records that a router reads by `id`, or will. False if there are too many configurations.
    pub(crate) fn set_readable(&mut self, id: ConfigId) -> bool {
        if let Some(config) = self.configs.iter_mut().find(|config| config.id == id) {
            (config.is_readable, config.is_lost) = (true, false);
            return true;
        }
        self.insert(RecordedConfig { id, is_readable: true, is_lost: false })
    }

    /// Records that routers which cannot use `id` acknowledge deletes, unless a router may read by it.
    pub(crate) fn set_lost(&mut self, id: ConfigId) {
        let lost = self.configs.iter_mut().filter(|config| config.id == id && !config.is_readable);
        lost.for_each(|config| config.is_lost = true);
    }

    /// Whether `id` is there, or may join.
    pub(crate) fn has_space_for(&self, id: ConfigId) -> bool {
        self.get(id).is_some() || self.configs.len() < HISTORY_CONFIGS_MAX
    }

    /// Adds a configuration that is not there. False if there are too many.
    pub(crate) fn insert(&mut self, config: RecordedConfig) -> bool {
        let has_space = self.configs.len() < HISTORY_CONFIGS_MAX;
        if has_space {
            self.configs.push(config);
        }
        has_space
    }

    /// Records that no router may begin to read by `id` any more, unless it is the only one.
    pub(crate) fn set_unreadable(&mut self, id: ConfigId) {
        let is_other = |config: &RecordedConfig| config.id != id && config.is_readable;
        if self.configs.iter().any(is_other) {
            self.configs.iter_mut().filter(|config| config.id == id).for_each(|config| config.is_readable = false);
        }
    }

    /// Removes a configuration under which no copy exists any more, unless a router reads by it again.
    pub(crate) fn remove(&mut self, id: ConfigId) {
        self.configs.retain(|config| config.id != id || config.is_readable);
    }

    /// What it says to a router that starts: as a peer would that has never forgotten anything. `None` if nothing was
    /// recorded. `newest` is read if it may be, since the others probably read it.
    pub(crate) fn to_report(&self, newest: ConfigId) -> Option<CoverageReport> {
        let readable = self.configs.iter().filter(|config| config.is_readable).map(|config| config.id);
        let mut reads: Vec<ConfigId> = readable.rev().collect();
        reads.sort_by_key(|id| *id != newest);
        (!reads.is_empty()).then(|| CoverageReport {
            claims: reads.iter().copied().collect(),
            reads,
            waits_for: None,
            covers: self.configs.iter().filter(|config| !config.is_lost).map(|config| config.id).collect(),
            is_ordered: true,
            departed: self.departed.servers.iter().cloned().collect(),
            departed_unread: self.departed.unread.clone(),
        })
    }
}

/// The change from `before`, of revision `expected`, to `after`. `text` is that of a configuration which joins it.
pub(crate) fn change_of(
    expected: i64,
    before: &History,
    after: &History,
    text: impl Fn(ConfigId) -> Option<Arc<str>>,
) -> HistoryChange {
    let only_in = |one: &History, other: &History| -> Vec<ConfigId> {
        one.configs.iter().map(|config| config.id).filter(|id| other.get(*id).is_none()).collect()
    };
    let texts = only_in(after, before).into_iter().filter_map(|id| Some((id, text(id)?))).collect();
    HistoryChange { expected, record: after.to_json(), texts, removed: only_in(before, after) }
}

#[cfg(test)]
pub(super) mod memory;
#[cfg(test)]
mod tests;
