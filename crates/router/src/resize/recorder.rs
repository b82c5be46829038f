//! Reads and replaces the history that the routers share, when a coverage has something to record, and at intervals.
//!
//! | the store | the coverage | `resize_history` |
//! |---|---|---|
//! | replies | waits with each step until that is recorded | `recorded` |
//! | does not reply | waits; the store is asked again every second | `away` |
//! | refuses, or has a record that is not of this version | does not wait; the store is asked again after a minute | `refused` |

use super::coverage::Coverage;
use super::history::{self, History, HistoryChange, HistoryError, HistoryStore, StoredHistory};
use super::status::{HistoryState, ResizeStatus};
use super::work::Work;
use crate::config::router_config::RouterConfig;
use lookaside_client::config::ConfigId;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, timeout};

/// How often the history is read.
const READ_INTERVAL: Duration = Duration::from_secs(5);
/// How long after a refusal.
const REFUSED_INTERVAL: Duration = Duration::from_secs(60);
/// The limit on reading it when a router starts, and how often it is tried if it changes meanwhile.
const START_MAX: Duration = Duration::from_secs(4);
const START_ATTEMPTS_MAX: usize = 3;

/// A record with its revision.
pub(crate) type SeenRecord = (i64, History);

/// What a router knows of the history when it starts.
pub(super) struct HistoryAtStart {
    pub(super) record: SeenRecord,
    /// Of its configurations.
    pub(super) texts: Vec<String>,
}

/// What a coverage learns from a reply of the store.
pub(super) enum HistoryReply {
    Seen(i64, History),
    Refused,
    Nothing,
}

impl HistoryReply {
    pub(super) fn apply(self, coverage: &mut Coverage, now: Duration) {
        match self {
            HistoryReply::Seen(revision, history) => coverage.record_history(revision, history, now),
            HistoryReply::Refused => coverage.ignore_history(now),
            HistoryReply::Nothing => coverage.advance(now),
        }
    }
}

/// Connects a coverage with the store of the history.
pub(crate) struct HistoryRecorder {
    /// `None` if the configuration is not from etcd.
    store: Option<Arc<dyn HistoryStore>>,
    status: Arc<ResizeStatus>,
    /// When the store is asked although there is nothing to record.
    read_at: Instant,
    /// The store has replied to a change, and not refused since: the account may write.
    is_writable: bool,
    is_outdated_logged: bool,
}

impl HistoryRecorder {
    pub(super) fn new(store: Option<Arc<dyn HistoryStore>>, status: Arc<ResizeStatus>) -> HistoryRecorder {
        HistoryRecorder { store, status, read_at: Instant::now(), is_writable: false, is_outdated_logged: false }
    }

    /// Reads the history before any thread serves; `None` if none is shared.
    pub(super) async fn read_first(&mut self) -> Option<Result<HistoryAtStart, HistoryError>> {
        let read = timeout(START_MAX, read_with_texts(&**self.store.as_ref()?)).await;
        let read = read.unwrap_or_else(|_| Err(HistoryError::Away(format!("no reply within {START_MAX:?}"))));
        match &read {
            Ok(_) => {
                self.is_writable = true;
                self.status.set_history(HistoryState::Recorded);
            }
            Err(error) => self.record_error(error),
        }
        Some(read)
    }

    /// What to ask the store for now; `None` if nothing.
    pub(super) fn next_work(
        &self,
        coverage: &Coverage,
        configs: &BTreeMap<ConfigId, Arc<RouterConfig>>,
        now: Duration,
    ) -> Option<Work> {
        let store = self.store.clone()?;
        let change = self.next_change(coverage, configs, now);
        let is_due = self.read_at <= Instant::now();
        match change {
            Some(change) => Some(Work::History { store, change: Some(change) }),
            None if !is_due => None,
            // A read shows no missing permission.
            None => Some(Work::History { store, change: (!self.is_writable).then(HistoryChange::none) }),
        }
    }

    fn next_change(
        &self,
        coverage: &Coverage,
        configs: &BTreeMap<ConfigId, Arc<RouterConfig>>,
        now: Duration,
    ) -> Option<HistoryChange> {
        let (revision, seen) = coverage.seen_history()?;
        let next = coverage.history_to_record(now)?;
        let text = |id: ConfigId| configs.get(&id).map(|config| config.text().into());
        Some(history::change_of(revision, seen, &next, text))
    }

    /// Texts of configurations that only the history has.
    pub(super) fn next_fetches(&self, coverage: &Coverage) -> Vec<Work> {
        let fetch = |id, store: &Arc<dyn HistoryStore>| Work::FetchRecorded { store: store.clone(), id };
        let missing = coverage.missing_in_history();
        missing.into_iter().filter_map(|id| Some(fetch(id, self.store.as_ref()?))).collect()
    }

    /// What a reply of the store means for the coverage.
    pub(super) fn record_reply(&mut self, reply: Result<SeenRecord, HistoryError>) -> HistoryReply {
        match reply {
            Ok((revision, history)) => {
                self.is_writable = true;
                self.read_at = Instant::now() + READ_INTERVAL;
                if self.status.history() != HistoryState::Recorded {
                    tracing::info!("the history of the configuration's changes is in etcd");
                    self.status.set_history(HistoryState::Recorded);
                }
                HistoryReply::Seen(revision, history)
            }
            Err(error) => {
                self.record_error(&error);
                match error {
                    HistoryError::Away(_) => HistoryReply::Nothing,
                    HistoryError::Refused(_) => HistoryReply::Refused,
                }
            }
        }
    }

    pub(super) fn log_outdated(&mut self, coverage: &Coverage) {
        if coverage.is_outdated() && !std::mem::replace(&mut self.is_outdated_logged, true) {
            tracing::error!(
                "this router started while etcd was away, and reads servers that have missed deletes meanwhile, by the \
                 history in etcd: restart it now"
            );
        }
    }

    fn record_error(&mut self, error: &HistoryError) {
        let (state, interval) = match error {
            HistoryError::Away(_) => (HistoryState::Away, Duration::ZERO),
            HistoryError::Refused(_) => (HistoryState::Refused, REFUSED_INTERVAL),
        };
        self.read_at = Instant::now() + interval;
        self.is_writable = false;
        if self.status.history() == state {
            return;
        }
        self.status.set_history(state);
        match error {
            HistoryError::Away(why) => tracing::warn!(
                why,
                "the history of the configuration's changes in etcd cannot be read or written: a change waits until it can"
            ),
            HistoryError::Refused(why) => tracing::error!(
                why,
                "etcd refuses to read or write the history of the configuration's changes, so this router has one of its \
                 own, in --config-cache: old values may come back if all routers restart during a change without it; grant \
                 the user of --config the permission readwrite with --prefix for the configuration's key and .history"
            ),
        }
    }
}

/// The record as `stored`.
pub(super) fn parse(stored: &StoredHistory) -> Result<SeenRecord, HistoryError> {
    let history = stored.record.as_deref().map(History::parse).transpose().map_err(HistoryError::Refused)?;
    Ok((stored.revision, history.unwrap_or_default()))
}

/// A history that this router may not write is not used: the others may not have written it either, so it may be old.
async fn read_with_texts(store: &dyn HistoryStore) -> Result<HistoryAtStart, HistoryError> {
    for _ in 0..START_ATTEMPTS_MAX {
        let record = parse(&store.replace(HistoryChange::none()).await?)?;
        let mut texts = Vec::new();
        for config in &record.1.configs {
            texts.extend(store.read_text(config.id).await?);
        }
        // One that was forgotten meanwhile has no text.
        if texts.len() == record.1.configs.len() {
            return Ok(HistoryAtStart { record, texts });
        }
    }
    Err(HistoryError::Refused("a configuration that it names has no text".to_owned()))
}
