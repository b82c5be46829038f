//! The state of a change of the configuration, as `stats`, metrics and other routers see it. The driver writes it; all
//! threads read it.

use super::coverage::{Coverage, Stage};
use super::purge::PurgeCounters;
use lookaside_client::config::ConfigId;
use lookaside_routing::FormerOwnerCounters;
use lookaside_sync::{Mutex, SharedCounter};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// The state of a change, and the counters of all changes.
#[derive(Debug, Default)]
pub struct ResizeStatus {
    view: Mutex<StatusView>,
    history: Mutex<HistoryState>,
    pub(crate) covering_deletes: Arc<SharedCounter>,
    pub(crate) purges: Arc<PurgeCounters>,
    pub(crate) servers_emptied: SharedCounter,
    /// Attempts to void the leases of a server that has leases and does not know `lease-void-all`.
    pub(crate) lease_voids_refused: SharedCounter,
    pub(crate) former_owners: Arc<FormerOwnerCounters>,
    pub(crate) changes: SharedCounter,
}

#[derive(Debug, Default)]
struct StatusView {
    state: ResizeState,
    report: String,
    texts: BTreeMap<ConfigId, Arc<str>>,
}

/// Whether the history of the changes is shared by the routers of the cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum HistoryState {
    /// Each router has a history of its own: the configuration is not in etcd, and there is no `--config-history`.
    #[default]
    Unused,
    /// It is in etcd.
    Recorded,
    /// etcd does not answer, so steps of a change wait.
    Away,
    /// etcd refuses to read or write it: each router has a history of its own.
    Refused,
}

impl HistoryState {
    pub(crate) const ALL: [HistoryState; 4] =
        [HistoryState::Unused, HistoryState::Recorded, HistoryState::Away, HistoryState::Refused];

    pub(crate) fn name(self) -> &'static str {
        match self {
            HistoryState::Unused => "unused",
            HistoryState::Recorded => "recorded",
            HistoryState::Away => "away",
            HistoryState::Refused => "refused",
        }
    }
}

impl fmt::Display for HistoryState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The step that a change waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum ResizeState {
    /// One configuration is covered.
    #[default]
    Steady,
    /// Threads do not cover the new configuration yet.
    Covering,
    /// New servers are not empty yet.
    Emptying,
    /// Servers of a pool under a new name hold items, and nothing tells whether they may be flushed.
    WaitingForOperator,
    /// Not every peer has reported that it covers the new configuration.
    WaitingForPeers,
    /// The shared history does not say yet that the new configuration will be read.
    Recording,
    /// The new configuration is read; keys that it misses are read from their former owners.
    WarmingUp,
    /// The new configuration is read; routers may still read the old one.
    Draining,
    /// Misplaced copies are removed.
    Purging,
}

impl ResizeState {
    pub(crate) const ALL: [ResizeState; 9] = [
        ResizeState::Steady,
        ResizeState::Covering,
        ResizeState::Emptying,
        ResizeState::WaitingForOperator,
        ResizeState::WaitingForPeers,
        ResizeState::Recording,
        ResizeState::WarmingUp,
        ResizeState::Draining,
        ResizeState::Purging,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            ResizeState::Steady => "steady",
            ResizeState::Covering => "covering",
            ResizeState::Emptying => "emptying",
            ResizeState::WaitingForOperator => "waiting_for_operator",
            ResizeState::WaitingForPeers => "waiting_for_peers",
            ResizeState::Recording => "recording",
            ResizeState::WarmingUp => "warming_up",
            ResizeState::Draining => "draining",
            ResizeState::Purging => "purging",
        }
    }

    pub(crate) fn of(coverage: &Coverage) -> ResizeState {
        match coverage.target_stage() {
            Some(Stage::Claimed) if !coverage.servers_with_items().is_empty() => ResizeState::WaitingForOperator,
            Some(Stage::Claimed) if !coverage.servers_to_empty().is_empty() => ResizeState::Emptying,
            Some(Stage::Claimed) if coverage.waits_for_history() => ResizeState::Recording,
            Some(Stage::Claimed) => ResizeState::WaitingForPeers,
            Some(_) => ResizeState::Covering,
            None if !coverage.is_changing() => ResizeState::Steady,
            None if coverage.is_warming_up() => ResizeState::WarmingUp,
            None if coverage.purges().is_empty() => ResizeState::Draining,
            None => ResizeState::Purging,
        }
    }
}

impl fmt::Display for ResizeState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl ResizeStatus {
    /// Replaces the state by one that has been saved: peers that poll from now on get its report.
    pub(crate) fn update(&self, coverage: &Coverage) {
        let texts = coverage.covered().map(|config| (config.id, config.text.clone())).collect();
        *self.view.lock() = StatusView { state: ResizeState::of(coverage), report: coverage.report().to_json(), texts };
    }

    pub(crate) fn history(&self) -> HistoryState {
        *self.history.lock()
    }

    pub(super) fn set_history(&self, state: HistoryState) {
        *self.history.lock() = state;
    }

    pub(crate) fn state(&self) -> ResizeState {
        self.view.lock().state
    }

    /// The counters of reads from former owners.
    pub fn former_owners(&self) -> &FormerOwnerCounters {
        &self.former_owners
    }

    /// The number of configurations that are covered.
    pub(crate) fn covered(&self) -> usize {
        self.view.lock().texts.len()
    }

    /// The report for other routers, as JSON; `None` before the first.
    pub(crate) fn report(&self) -> Option<String> {
        Some(self.view.lock().report.clone()).filter(|report| !report.is_empty())
    }

    /// The text of the covered configuration `id`.
    pub(crate) fn text(&self, id: &[u8]) -> Option<Arc<str>> {
        let id = ConfigId::parse(str::from_utf8(id).ok()?)?;
        self.view.lock().texts.get(&id).cloned()
    }

    /// Every figure with its name in `stats`.
    pub(crate) fn entries(&self) -> [(&'static str, u64); 11] {
        [
            ("configurations_covered", self.covered() as u64),
            ("configuration_changes", self.changes.value()),
            ("covering_deletes", self.covering_deletes.value()),
            ("servers_emptied", self.servers_emptied.value()),
            ("lease_voids_refused", self.lease_voids_refused.value()),
            ("former_owner_hits", self.former_owners.hits.value()),
            ("former_owner_misses", self.former_owners.misses.value()),
            ("former_owner_errors", self.former_owners.errors.value()),
            ("former_owner_fills", self.former_owners.fills.value()),
            ("purge_keys_checked", self.purges.keys_checked.value()),
            ("purge_keys_removed", self.purges.keys_removed.value()),
        ]
    }
}
