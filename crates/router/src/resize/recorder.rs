//! Reads and replaces the history that the routers share, when a coverage has something to record, and at intervals.
//!
//! | the store | the coverage | `resize_history` |
//! |---|---|---|
//! | replies | waits with each step until that is recorded | `recorded` |
//! | does not reply | waits; the store is asked again every second | `away` |
//! | refuses, or has no record that can be used | does not wait; the store is asked again after a minute | `refused` |
//!
//! A change may be refused that is larger than another one. So after a refusal the store is asked about that change,
//! under a condition that no record fulfils, until it accepts it or a configuration of the change is no longer covered.

use super::coverage::Coverage;
use super::history::{self, History, HistoryChange, HistoryError, HistoryStore, StoredHistory};
use super::status::{HistoryState, ResizeStatus};
use super::work::Work;
use crate::config::router_config::RouterConfig;
use lookaside_client::config::ConfigId;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout_at};

/// How often the history is read.
const READ_INTERVAL: Duration = Duration::from_secs(5);
/// How long after a refusal.
const REFUSED_INTERVAL: Duration = Duration::from_secs(60);
/// The limit on reading it when a router starts, when it is tried again, and how often if it changes meanwhile.
const START_MAX: Duration = Duration::from_secs(4);
const START_RETRY: Duration = Duration::from_millis(100);
const START_ATTEMPTS_MAX: usize = 8;

/// A record with its revision.
pub(crate) type SeenRecord = (i64, History);

/// What a driver knows of the shared history when it begins.
pub(crate) enum KnownHistory {
    /// None is used.
    Unused,
    /// The store has not replied yet.
    Unknown,
    Seen(SeenRecord),
}

/// What a router knows of the history when it starts.
pub(super) struct HistoryAtStart {
    pub(super) record: SeenRecord,
    /// Of its configurations, but for those that are lost.
    pub(super) texts: Vec<(ConfigId, String)>,
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
    /// `None` if none is shared.
    store: Option<Arc<dyn HistoryStore>>,
    status: Arc<ResizeStatus>,
    /// When the store is asked although there is nothing to record.
    read_at: Instant,
    /// The store has replied to a change, and not refused since: the account may write.
    is_writable: bool,
    /// A change without an effect that is refused like those that are to be made.
    probe: HistoryChange,
    is_outdated_logged: bool,
}

impl HistoryRecorder {
    pub(super) fn new(store: Option<Arc<dyn HistoryStore>>, status: Arc<ResizeStatus>) -> HistoryRecorder {
        let (read_at, probe) = (Instant::now(), HistoryChange::none());
        HistoryRecorder { store, status, read_at, is_writable: false, probe, is_outdated_logged: false }
    }

    /// Reads the history before any thread serves; `None` if none is shared. A configuration whose text `is_usable`
    /// does not accept is recorded as lost, unless routers may begin to read by it.
    pub(super) async fn read_first(
        &mut self,
        is_usable: &dyn Fn(ConfigId, &str) -> bool,
    ) -> Option<Result<HistoryAtStart, HistoryError>> {
        let read = read_until(Instant::now() + START_MAX, &**self.store.as_ref()?, is_usable).await;
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
        &mut self,
        coverage: &Coverage,
        configs: &BTreeMap<ConfigId, Arc<RouterConfig>>,
        now: Duration,
    ) -> Option<Work> {
        let store = self.store.clone()?;
        if self.probe.texts.iter().any(|(id, _)| !configs.contains_key(id)) {
            (self.probe, self.read_at) = (HistoryChange::none(), Instant::now());
        }
        let change = self.next_change(coverage, configs, now);
        let is_due = self.read_at <= Instant::now();
        match change {
            Some(change) => Some(Work::History { store, change: Some(change) }),
            None if !is_due => None,
            // A read shows no missing permission.
            None => Some(Work::History { store, change: (!self.is_writable).then(|| self.probe.clone()) }),
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

    /// Fetches the text of a configuration that only the history has.
    pub(super) fn fetch(&self, id: ConfigId) -> Option<Work> {
        Some(Work::FetchRecorded { store: self.store.clone()?, id })
    }

    /// What a reply of the store to `change`, or to a read, means for the coverage.
    pub(super) fn record_reply(
        &mut self,
        change: Option<HistoryChange>,
        reply: Result<SeenRecord, HistoryError>,
    ) -> HistoryReply {
        match reply {
            Ok((revision, history)) => {
                (self.is_writable, self.probe) = (true, HistoryChange::none());
                self.read_at = Instant::now() + READ_INTERVAL;
                if self.status.history() != HistoryState::Recorded {
                    tracing::info!("the history of the configuration's changes is in etcd");
                    self.status.set_history(HistoryState::Recorded);
                }
                HistoryReply::Seen(revision, history)
            }
            Err(error) => {
                self.record_error(&error);
                match (error, change) {
                    (HistoryError::Unavailable(_), _) => HistoryReply::Nothing,
                    (HistoryError::Refused(_) | HistoryError::Unusable(_), None) => HistoryReply::Refused,
                    (HistoryError::Refused(_) | HistoryError::Unusable(_), Some(change)) => {
                        self.probe = change.without_effect();
                        HistoryReply::Refused
                    }
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
            HistoryError::Unavailable(_) => (HistoryState::Away, Duration::ZERO),
            HistoryError::Refused(_) | HistoryError::Unusable(_) => (HistoryState::Refused, REFUSED_INTERVAL),
        };
        self.read_at = Instant::now() + interval;
        self.is_writable = false;
        if self.status.history() == state {
            return;
        }
        self.status.set_history(state);
        let key = self.store.as_ref().map(|store| store.key()).unwrap_or_default();
        match error {
            HistoryError::Unavailable(why) => tracing::warn!(
                why,
                "the history of the configuration's changes in etcd cannot be read or written: a change waits until it can"
            ),
            HistoryError::Refused(why) => tracing::error!(
                why,
                "etcd refuses to read or write the history of the configuration's changes, so this router has one of its \
                 own, in --config-cache: old values may come back if all routers restart during a change without it; grant \
                 the user of --config or --config-history the permission (etcdctl role grant-permission ROLE readwrite \
                 --prefix {key}), or, if the request is too large, raise etcd's --max-request-bytes"
            ),
            HistoryError::Unusable(why) => tracing::error!(
                why,
                "the history of the configuration's changes in etcd cannot be used, so this router has one of its own, in \
                 --config-cache: old values may come back if all routers restart during a change without it; run the \
                 version that wrote the history, or let the endpoints of --config or --config-history be etcd's own; \
                 or stop all routers, remove the history (etcdctl del {key}, and etcdctl del --prefix {key}/) and flush all \
                 servers"
            ),
        }
    }
}

/// The record as `stored`.
pub(super) fn parse(stored: &StoredHistory) -> Result<SeenRecord, HistoryError> {
    let history = stored.record.as_deref().map(History::parse).transpose().map_err(HistoryError::Unusable)?;
    Ok((stored.revision, history.unwrap_or_default()))
}

/// Reads the history, again and again while the store does not answer: an election in etcd takes some seconds at most.
async fn read_until(
    end: Instant,
    store: &dyn HistoryStore,
    is_usable: &dyn Fn(ConfigId, &str) -> bool,
) -> Result<HistoryAtStart, HistoryError> {
    let mut failure = format!("no reply within {START_MAX:?}");
    loop {
        match timeout_at(end, read_with_texts(store, is_usable)).await {
            Err(_) => return Err(HistoryError::Unavailable(failure)),
            Ok(Err(HistoryError::Unavailable(why))) => failure = why,
            Ok(read) => return read,
        }
        // A failure that takes no time ends no timeout.
        if Instant::now() >= end {
            return Err(HistoryError::Unavailable(failure));
        }
        sleep(START_RETRY).await;
    }
}

/// A history that this router may not write is not used: the others may not have written it either, so it may be old.
async fn read_with_texts(
    store: &dyn HistoryStore,
    is_usable: &dyn Fn(ConfigId, &str) -> bool,
) -> Result<HistoryAtStart, HistoryError> {
    let mut change = HistoryChange::none();
    let mut is_complete = false;
    for _ in 0..START_ATTEMPTS_MAX {
        let record = parse(&store.replace(change).await?)?;
        change = HistoryChange::none();
        let kept: Vec<ConfigId> =
            record.1.configs.iter().filter(|config| !config.is_lost).map(|config| config.id).collect();
        let mut texts = Vec::new();
        for id in &kept {
            texts.extend(store.read_text(*id).await?.map(|text| (*id, text)));
        }
        // One that was forgotten meanwhile has no text.
        is_complete = texts.len() == kept.len();
        if !is_complete {
            continue;
        }
        let mut next = record.1.clone();
        let unusable = texts.iter().filter(|(id, text)| !is_usable(*id, text)).map(|(id, _)| *id);
        let unusable: Vec<ConfigId> = unusable.collect();
        unusable.iter().for_each(|id| next.set_lost(*id));
        // With a readable one among them it does not start.
        if next == record.1 || unusable.iter().any(|id| record.1.is_readable(*id)) {
            return Ok(HistoryAtStart { record, texts });
        }
        // Before any delete is acknowledged that does not reach their places.
        change = history::change_of(record.0, &record.1, &next, |_| None);
    }
    Err(match is_complete {
        true => HistoryError::Unavailable("other routers change it all the time".to_owned()),
        false => HistoryError::Unusable("a configuration that it names has no text".to_owned()),
    })
}
