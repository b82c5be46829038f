//! Executes the steps of a change of the configuration: saves the state of [`Coverage`], sends configurations to the
//! threads, polls peers, empties new servers and purges old ones. It runs on the main thread.
//!
//! Nothing is announced to peers, and nothing is sent to the threads, before it is saved. If it cannot be saved, the
//! step is undone and tried again.
//!
//! Disk, network and time are arguments, so a simulation can run several in one process.

mod initial;
mod step_log;

pub(crate) use initial::{InitialCoverage, UsableConfig};

use super::coverage::{Candidate, Coverage, CoverageSettings, SavedCoverage};
use super::history::HistoryStore;
use super::new_servers::Emptied;
use super::recorder::{HistoryRecorder, KnownHistory};
use super::start::ResizerChannels;
use super::status::ResizeStatus;
use super::store::{CoverageDigest, CoverageStore, StoredCoverage};
use super::work::{Done, Peers, Work, WorkQueue};
use crate::config::router_config::RouterConfig;
use crate::tree::active_configs::{ActiveConfigs, CoveredConfig, FormerConfig};
use initial::candidate_of;
use lookaside_client::Network;
use lookaside_client::config::ConfigId;
use lookaside_routing::Address;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep};

/// The interval of steps and polls during a change, and otherwise.
const CHANGE_INTERVAL: Duration = Duration::from_millis(200);
const STEADY_INTERVAL: Duration = Duration::from_secs(1);
/// When the text of a configuration that could not be used is fetched again: a certificate that it needs may be there.
const UNUSABLE_INTERVAL: Duration = Duration::from_secs(60);

/// What a driver needs of its process.
pub trait ResizeHost {
    /// Where operators and other routers find the state.
    fn status(&self) -> &Arc<ResizeStatus>;
    /// Parses a configuration and adds the options of the command line.
    fn parse(&self, text: &str) -> Result<RouterConfig, String>;
    /// Called before `active` is sent to the threads.
    fn prepare(&self, active: &ActiveConfigs);
    /// Called after the threads were sent another configuration to route requests by: this one.
    fn record_in_force(&self, config: &RouterConfig);
}

/// What a thread has done: its index, and the number of the change that it applied, with all batches of earlier ones
/// ended.
pub type Applied = (usize, u64);

/// Options of a driver.
pub struct ResizerSettings {
    /// The other routers of the cluster.
    pub peers: Vec<Address>,
    /// A peer that does not reply is not waited for, which gives the promise up.
    pub ignores_missing_peers: bool,
    /// The number of threads.
    pub threads: usize,
    /// The state on disk of the process that has just handed over, from which this one continues. `None` at other
    /// starts: then the peers are asked whether the state on disk is outdated.
    pub handed_over: Option<CoverageDigest>,
    /// Where the routers of the cluster share the history of changes; `None` if they do not.
    pub history: Option<Arc<dyn HistoryStore>>,
    /// The operator has asked for the history. A router that may not use it does not start without another memory.
    pub is_history_required: bool,
}

/// The driver of one process.
pub struct Resizer {
    coverage: Coverage,
    /// Every covered configuration.
    configs: BTreeMap<ConfigId, Arc<RouterConfig>>,
    /// Configurations that are to be covered and cannot be used here, and when each is fetched again.
    unusable: BTreeMap<ConfigId, Instant>,
    /// The newest of the source.
    newest: Candidate,
    store: Box<dyn CoverageStore>,
    /// The state on disk; `None` before the first.
    saved: Option<SavedCoverage>,
    /// The last state could not be saved.
    is_unsaved: bool,
    status: Arc<ResizeStatus>,
    publish: watch::Sender<Arc<ActiveConfigs>>,
    applied: mpsc::UnboundedReceiver<Applied>,
    applied_by_thread: Vec<u64>,
    peers: Peers,
    recorder: HistoryRecorder,
    work: WorkQueue,
    started: Instant,
    /// Since when the target is waited for.
    waits_since: Option<Instant>,
    is_wait_logged: bool,
    is_loss_logged: bool,
}

enum ResizeEvent {
    Done(Box<Done>),
    Applied(Applied),
    Tick,
}

impl Resizer {
    /// A driver that continues from `initial`, and publishes it. `applied` receives what threads have applied.
    pub(crate) fn new(
        (initial, history): (InitialCoverage, KnownHistory),
        settings: ResizerSettings,
        store: Box<dyn CoverageStore>,
        (status, recorder): (Arc<ResizeStatus>, HistoryRecorder),
        network: Arc<dyn Network>,
        channels: ResizerChannels,
    ) -> Resizer {
        let ResizerChannels { publish, applied } = channels;
        let InitialCoverage { coverage, configs } = initial;
        let coverage_settings = CoverageSettings {
            peers: settings.peers.len(),
            ignores_missing_peers: settings.ignores_missing_peers,
            rules: super::coverage::Rules::ALL,
        };
        let newest = coverage.covered.iter().find(|covered| covered.config.id == coverage.reads);
        let newest = newest.expect("what is read is covered").config.clone();
        let mut coverage = Coverage::restore(coverage, coverage_settings, Duration::ZERO);
        match history {
            KnownHistory::Unused => {}
            KnownHistory::Unknown => coverage.use_history(),
            KnownHistory::Seen((revision, history)) => {
                coverage.use_history();
                coverage.record_history(revision, history, Duration::ZERO);
            }
        }
        publish.send_replace(Arc::new(active_configs(&coverage, &configs, &status)));
        Resizer {
            coverage,
            configs,
            unusable: BTreeMap::new(),
            newest,
            store,
            saved: None,
            is_unsaved: false,
            publish,
            applied,
            applied_by_thread: vec![0; settings.threads],
            work: WorkQueue::new(network.clone(), status.clone(), settings.peers.len() + 1),
            peers: Peers::new(settings.peers, network),
            recorder,
            status,
            started: Instant::now(),
            waits_since: None,
            is_wait_logged: false,
            is_loss_logged: false,
        }
    }

    /// What the threads are to apply.
    pub fn active(&self) -> Arc<ActiveConfigs> {
        self.publish.borrow().clone()
    }

    /// The newest text of the source.
    pub(crate) fn newest_text(&self) -> &str {
        &self.newest.text
    }

    /// A new configuration of the source. It is read once that is safe.
    pub fn set_newest(&mut self, config: RouterConfig, host: &dyn ResizeHost) -> Result<(), String> {
        let (config, candidate) = candidate_of(config)?;
        let former = self.configs.insert(candidate.id, config.clone());
        self.newest = candidate.clone();
        let id = candidate.id;
        self.change(host, |coverage, now| coverage.set_target(candidate, now));
        // The same places with other timeouts, for example.
        if former.is_some_and(|former| former.text() != config.text()) {
            let is_read = self.coverage.reads() == id;
            self.publish(host, is_read);
            if is_read {
                tracing::info!(configuration = %id, "new configuration in force: it moves no key");
            }
        }
        Ok(())
    }

    /// Sends the configurations again, with what `change` makes of each.
    pub(crate) fn replace_configs(&mut self, change: impl Fn(RouterConfig) -> RouterConfig) {
        for config in self.configs.values_mut() {
            *config = Arc::new(change(RouterConfig::clone(config)));
        }
        let active = active_configs(&self.coverage, &self.configs, &self.status).after(&self.publish.borrow());
        self.publish.send_replace(Arc::new(active));
    }

    /// Ends all work, for a handover. It begins again with the next event.
    pub fn suspend(&mut self) {
        self.work.clear();
        self.peers.disconnect();
    }

    /// The state on disk, for a handover.
    pub fn saved_digest(&self) -> CoverageDigest {
        let text = self.saved.as_ref().map(|saved| StoredCoverage::of(saved).to_json());
        CoverageDigest::of(&text.unwrap_or_default())
    }

    /// Saves the state once more, after a handover that has failed: the other process may have saved its own.
    pub fn save_again(&mut self, host: &dyn ResizeHost) {
        self.saved = None;
        self.change(host, |_, _| ());
    }

    /// Waits for the next event, and takes the steps that it allows. Cancel safe.
    pub async fn step(&mut self, host: &dyn ResizeHost) {
        let event = self.next_event().await;
        self.handle(event, host);
    }

    async fn next_event(&mut self) -> ResizeEvent {
        let interval = if self.coverage.is_changing() { CHANGE_INTERVAL } else { STEADY_INTERVAL };
        tokio::select! {
            biased;
            Some(applied) = self.applied.recv() => ResizeEvent::Applied(applied),
            done = self.work.next() => ResizeEvent::Done(Box::new(done)),
            () = sleep(interval) => ResizeEvent::Tick,
        }
    }

    fn handle(&mut self, event: ResizeEvent, host: &dyn ResizeHost) {
        match event {
            ResizeEvent::Applied((thread, number)) => {
                self.applied_by_thread[thread] = number;
                self.record_applied(host);
            }
            ResizeEvent::Done(done) => self.record_done(*done, host),
            ResizeEvent::Tick => {
                if self.is_unsaved {
                    let newest = self.newest.clone();
                    self.change(host, |coverage, now| coverage.set_target(newest, now));
                }
                self.record_applied(host);
                self.log_long_wait();
            }
        }
    }

    fn record_applied(&mut self, host: &dyn ResizeHost) {
        let applied = self.applied_by_thread.iter().copied().min().unwrap_or_default();
        self.change(host, |coverage, now| coverage.record_applied(applied, now));
    }

    fn record_done(&mut self, done: Done, host: &dyn ResizeHost) {
        match done {
            Done::Polled { peer, polled_at, report } => {
                let polled_at = polled_at.saturating_duration_since(self.started);
                match self.peers.record_poll(peer, *report) {
                    Some(report) => {
                        self.change(host, |coverage, now| coverage.record_report(peer, polled_at, report, now))
                    }
                    None => self.change(host, |coverage, now| coverage.record_missing(peer, now)),
                }
            }
            Done::Fetched { id, text } => {
                let Some(text) = text else { return };
                match UsableConfig::parse_recorded(id, &text, host) {
                    Ok(UsableConfig { config, candidate }) => {
                        self.configs.entry(candidate.id).or_insert(config);
                        self.change(host, |coverage, now| _ = coverage.cover_for_peer(&candidate, now));
                    }
                    Err(why) => self.record_unusable(id, &why, host),
                }
            }
            Done::Emptied { config, server, emptied } => {
                if let Some(emptied) = emptied {
                    self.change(host, |coverage, now| match emptied {
                        Emptied::HoldsItems => coverage.record_items(config, &server, now),
                        _ => coverage.record_emptied(config, &server, now),
                    });
                }
            }
            Done::Purged { purge, is_done } => {
                if is_done {
                    self.change(host, |coverage, now| coverage.record_purged(&purge, now));
                }
            }
            Done::History { change, reply } => {
                let taken = self.recorder.record_reply(change, reply);
                self.change(host, |coverage, now| taken.apply(coverage, now));
                self.recorder.log_outdated(&self.coverage);
            }
        }
    }

    fn record_unusable(&mut self, id: ConfigId, why: &str, host: &dyn ResizeHost) {
        if self.unusable.insert(id, Instant::now() + UNUSABLE_INTERVAL).is_none() {
            tracing::error!(
                configuration = %id, why,
                "a configuration of a peer or of the history cannot be used here, so this router cannot cover it, \
                and peers keep reading the former one; start all routers of a cluster with the same version and options"
            );
        }
        self.change(host, |coverage, now| coverage.record_unusable(id, now));
    }

    /// Changes the coverage, saves it, announces it, and starts what it asks for. Undone if it cannot be saved.
    fn change(&mut self, host: &dyn ResizeHost, change: impl FnOnce(&mut Coverage, Duration)) {
        let before = self.coverage.clone();
        change(&mut self.coverage, self.started.elapsed());
        let saved = self.coverage.saved();
        if self.saved.as_ref().is_none_or(|known| !known.is_same(&saved)) {
            if let Err(error) = self.store.save(&StoredCoverage::of(&saved).to_json()) {
                if !std::mem::replace(&mut self.is_unsaved, true) {
                    tracing::error!(
                        %error, "cannot save which configurations are covered: no new configuration comes into force \
                        until that is possible; make space, or allow writing, beside --config-cache"
                    );
                }
                self.coverage = before;
                return;
            }
            self.is_unsaved = false;
            self.saved = Some(saved);
        }
        self.status.update(&self.coverage);
        self.coverage.record_announced(self.started.elapsed());
        if self.coverage.active().number != before.active().number {
            self.publish(host, self.coverage.reads() != before.reads());
        }
        // Behind the publication, so that it says what is so.
        self.log_steps(&before);
        self.start_work();
    }

    fn publish(&mut self, host: &dyn ResizeHost, is_new: bool) {
        let covered: Vec<ConfigId> = self.coverage.covered().map(|config| config.id).collect();
        self.configs.retain(|id, _| covered.contains(id) || *id == self.newest.id);
        let active = active_configs(&self.coverage, &self.configs, &self.status).after(&self.publish.borrow());
        host.prepare(&active);
        let in_force = active.reads.clone();
        self.publish.send_replace(Arc::new(active));
        if is_new {
            host.record_in_force(&in_force);
        }
    }

    fn start_work(&mut self) {
        let interval = if self.coverage.is_changing() { CHANGE_INTERVAL } else { STEADY_INTERVAL };
        self.peers.start_polls(interval, &mut self.work);
        self.start_fetches();
        let history = self.recorder.next_work(&self.coverage, &self.configs, self.started.elapsed());
        history.into_iter().for_each(|work| self.work.start(work));
        if let Some(config) = self.coverage.target() {
            for (server, emptying) in self.coverage.servers_to_empty() {
                self.work.start(Work::Empty { config, server, emptying });
            }
        }
        let purges = self.coverage.purges();
        if let Some(purge) = self.work.next_purge(&purges) {
            let kept = self.coverage.active_ids();
            let kept = kept.iter().filter_map(|id| self.configs.get(id)).cloned().collect();
            let config = self.configs[&purge.config].clone();
            self.work.start(Work::Purge { purge, config, kept });
        }
        self.work.retain_requested(&purges);
    }

    fn start_fetches(&mut self) {
        let (of_peers, recorded) = (self.coverage.missing(), self.coverage.missing_in_history());
        self.unusable.retain(|id, _| of_peers.iter().any(|(_, missing)| missing == id) || recorded.contains(id));
        let now = Instant::now();
        let is_due = |id: ConfigId| self.unusable.get(&id).is_none_or(|fetch_at| *fetch_at <= now);
        for (peer, id) in of_peers.into_iter().filter(|(_, id)| is_due(*id)) {
            self.work.start(Work::Fetch { peer: self.peers.address(peer).clone(), id });
        }
        let fetches = recorded.into_iter().filter(|id| is_due(*id)).filter_map(|id| self.recorder.fetch(id));
        fetches.for_each(|fetch| self.work.start(fetch));
    }
}

fn active_configs(
    coverage: &Coverage,
    configs: &BTreeMap<ConfigId, Arc<RouterConfig>>,
    status: &ResizeStatus,
) -> ActiveConfigs {
    let active = coverage.active();
    let covered = |(id, departed): &(ConfigId, _)| CoveredConfig {
        id: id.to_string().into(),
        config: configs[id].clone(),
        departed: std::clone::Clone::clone(departed),
        is_released: active.released.contains(id),
    };
    ActiveConfigs {
        number: active.number,
        reads: configs[&active.reads].clone(),
        covered: active.others.iter().map(covered).collect(),
        reads_at: active.reads_at,
        former: active.former.map(|id| FormerConfig {
            id: id.to_string().into(),
            config: configs[&id].clone(),
            counters: status.former_owners.clone(),
        }),
        covering_deletes: status.covering_deletes.clone(),
        lease_version: 0,
    }
}
