//! The steps of a change of the configuration ([ADR 012](../../../../docs/adr/012-resize.md)), as a state machine: one
//! for each process, without clock, disk, sockets or threads. [`super::driver`] executes what it asks for.
//!
//! ```text
//!                    all threads cover it        every peer claims it, new servers are empty
//!   new   Adding  ------------------->  Claimed  --------------------------------------> read
//!                                        ^   | no router reads it, or waits for it
//!                                        |   v
//!   old                                 Unclaimed   for RELEASE_AFTER, and fresh reports of all peers
//!                                            |
//!                                            v                        no server has a misplaced copy
//!                                         Purging   -------------------------------------> released
//! ```
//!
//! Deletes go to the places under every configuration in the picture. Under one in `Purging` they leave out the servers
//! that no other configuration names: those have **departed**, and are flushed before they serve again.
//!
//! Invariants:
//! * A router reads by a configuration only while every router of its cluster covers it. It decides to do so by reports
//!   that were requested when it had announced that it waits for the configuration, and that are at most
//!   [`READ_WITHIN`] old. A router that stops to claim a configuration covers it for [`RELEASE_AFTER`] more, and then
//!   needs reports, requested after that time, that no router reads it or waits for it. So it sees the decision of a
//!   router that had its claim, however long that router takes to save and report the decision.
//! * A purge begins when no router can read by the configuration again, so nothing is filled behind it.
//! * After a change a router may go on to read by the former configuration, for keys that it misses: this counts as
//!   reading by it, and ends after a time, or with the next change. Copies found so are stored at the new owner only if
//!   all routers send deletes to the former owner first.
//! * A server holds copies of unknown age if it has departed, or joins a pool: it is emptied before a configuration
//!   that names it is read. If nothing tells whether the pool is this cluster's, it must be empty, and is not flushed.
//! * If the routers share a history ([`recorded`]), what a router that starts must know is there before it is so.

mod recorded;
mod release;
mod tasks;
mod views;

pub(crate) use tasks::{Emptying, Purge};
pub(crate) use views::{SavedConfig, SavedCoverage};

use super::departed::Departed;
use super::pool_servers::ConfigServers;
use super::report::CoverageReport;
use lookaside_client::config::ConfigId;
use lookaside_routing::Address;
use recorded::HistoryView;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// The most configurations that are covered.
pub(crate) const COVERED_MAX: usize = 8;
/// A router changes what it reads by within this time of the start of the polls that allow it.
pub(crate) const READ_WITHIN: Duration = Duration::from_secs(2);
/// How long a router covers a configuration that it no longer claims, at least.
pub(crate) const RELEASE_AFTER: Duration = Duration::from_secs(5);

/// Which rules hold. Tests and simulations break one to see that it is needed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    pub(crate) agree: bool,
    pub(crate) empty: bool,
    /// New servers of a pool that is renamed are emptied, too.
    pub(crate) empty_renamed: bool,
    /// The servers of a pool under a new name are read only if they are empty.
    pub(crate) empty_new: bool,
    pub(crate) drain: bool,
    pub(crate) purge: bool,
    pub(crate) release_in_two_steps: bool,
    pub(crate) remember_departed: bool,
    /// Former owners are read only if all routers send their deletes there first.
    pub(crate) order: bool,
    /// A router reads by reports that were requested after it had announced what it waits for.
    pub(crate) announce: bool,
    /// Steps wait until they are recorded in the shared history.
    pub(crate) record_first: bool,
    /// All servers of a new configuration are emptied while another one is lost.
    pub(crate) empty_lost: bool,
}

impl Rules {
    pub(crate) const ALL: Rules = Rules {
        agree: true,
        empty: true,
        empty_renamed: true,
        empty_new: true,
        drain: true,
        purge: true,
        release_in_two_steps: true,
        remember_departed: true,
        order: true,
        announce: true,
        record_first: true,
        empty_lost: true,
    };
}

/// A configuration, as far as coverage needs it.
#[derive(Clone, Debug)]
pub(crate) struct Candidate {
    pub(crate) id: ConfigId,
    pub(crate) text: Arc<str>,
    pub(crate) servers: Arc<ConfigServers>,
}

#[derive(Clone, Debug)]
pub(crate) struct Covered {
    pub(crate) config: Candidate,
    pub(crate) stage: Stage,
    /// A router has read by it, so its servers were empty or trusted when they joined.
    pub(crate) was_read: bool,
    /// Servers that were emptied for it since it is covered.
    emptied: BTreeSet<Address>,
    /// Servers that must be empty for it and held items, and when that was first known.
    with_items: BTreeMap<Address, Duration>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Not all threads send deletes to its places. They do when they have applied change number `number`.
    Adding {
        number: u64,
    },
    Claimed,
    Unclaimed {
        since: Duration,
    },
    /// `number` tells this purge from an earlier one of the same configuration.
    Purging {
        number: u64,
        pending: BTreeSet<Address>,
        departed: BTreeSet<Address>,
    },
}

impl Covered {
    fn id(&self) -> ConfigId {
        self.config.id
    }

    fn is_active(&self) -> bool {
        !matches!(self.stage, Stage::Purging { .. })
    }
}

/// The last report of a peer.
#[derive(Clone, Debug)]
struct PeerReport {
    /// When it was requested.
    polled_at: Duration,
    report: CoverageReport,
}

#[derive(Clone, Debug, Default)]
struct Peer {
    /// `None` before the first.
    last: Option<PeerReport>,
    /// When the last poll failed; `None` if it did not.
    missing_at: Option<Duration>,
}

/// How a coverage behaves.
#[derive(Clone, Debug)]
pub(crate) struct CoverageSettings {
    /// The number of peers, each known by its index.
    pub(crate) peers: usize,
    /// A peer that does not reply is not waited for, which gives the promise up.
    pub(crate) ignores_missing_peers: bool,
    pub(crate) rules: Rules,
}

/// A configuration that was read before the present one. Its owners of moved keys are read after a miss.
#[derive(Clone, Debug)]
struct Former {
    id: ConfigId,
    until: Duration,
}

/// The configurations of one process.
#[derive(Clone, Debug)]
pub(crate) struct Coverage {
    settings: CoverageSettings,
    reads: ConfigId,
    /// The configuration that is waited for; `None` if the newest is read.
    target: Option<ConfigId>,
    /// The target that peers find in the report, and since when; `None` if it names none.
    announced: Option<(ConfigId, Duration)>,
    /// A newer one that cannot be covered yet, because there are [`COVERED_MAX`].
    next: Option<Candidate>,
    /// In the order in which they were covered, which is the order of the deletes of a key.
    covered: Vec<Covered>,
    /// `None` unless former owners are read.
    former: Option<Former>,
    /// Configurations by which batches may still run, and the change that ends them.
    draining: Vec<(ConfigId, u64)>,
    departed: Departed,
    history: HistoryView,
    /// Configurations that are being purged, or were and are still in the history: those for whose sake copies may
    /// stay.
    kept_by_purge: BTreeMap<ConfigId, BTreeSet<ConfigId>>,
    /// Configurations of the history that are lost ([`recorded`]).
    lost: BTreeSet<ConfigId>,
    peers: Vec<Peer>,
    /// Of the last change for the threads.
    number: u64,
    /// The last change that all threads have applied, with all batches of earlier ones ended.
    applied: u64,
}

impl Coverage {
    /// Continues from a saved state, before any thread serves.
    ///
    /// # Panics
    /// If the configuration that it reads by is not among those that it covers.
    pub(crate) fn restore(saved: SavedCoverage, settings: CoverageSettings, now: Duration) -> Coverage {
        let SavedCoverage { reads, covered, departed } = saved;
        assert!(covered.iter().any(|covered| covered.config.id == reads), "what is read is covered");
        let stage = |is_claimed| if is_claimed { Stage::Claimed } else { Stage::Unclaimed { since: now } };
        let covered = covered.into_iter().map(|SavedConfig { config, is_claimed, was_read }| Covered {
            stage: stage(is_claimed || config.id == reads),
            was_read: was_read || config.id == reads,
            config,
            emptied: BTreeSet::new(),
            with_items: BTreeMap::new(),
        });
        let peers = vec![Peer::default(); settings.peers];
        Coverage {
            reads,
            target: None,
            announced: None,
            next: None,
            covered: covered.collect(),
            former: None,
            draining: Vec::new(),
            departed,
            history: HistoryView::default(),
            kept_by_purge: BTreeMap::new(),
            lost: BTreeSet::new(),
            peers,
            number: 1,
            applied: 0,
            settings,
        }
    }

    /// The newest configuration of the source. It replaces one that is still waited for.
    pub(crate) fn set_target(&mut self, config: Candidate, now: Duration) {
        self.next = None;
        self.target = None;
        self.replace_settings(&config);
        if config.id != self.reads {
            match self.cover(&config) {
                true => self.target = Some(config.id),
                false => self.next = Some(config),
            }
        }
        self.advance(now);
    }

    /// Peers that poll at `now` or later get the present report.
    pub(crate) fn record_announced(&mut self, now: Duration) {
        let since = self.announced.filter(|(id, _)| Some(*id) == self.target).map_or(now, |(_, since)| since);
        self.announced = self.target.map(|target| (target, since));
    }

    /// Covers a configuration that a peer needs ([`Coverage::missing`]). False if too many are covered.
    pub(crate) fn cover_for_peer(&mut self, config: &Candidate, now: Duration) -> bool {
        let is_covered = self.cover(config);
        self.advance(now);
        is_covered
    }

    /// A configuration that is covered has other settings, which move no key: what is done with it from now on is done
    /// by them. Servers that were emptied for it are still empty.
    fn replace_settings(&mut self, config: &Candidate) {
        if let Some(covered) = self.get_mut(config.id) {
            covered.config = config.clone();
        }
    }

    fn cover(&mut self, config: &Candidate) -> bool {
        if self.get(config.id).is_some() {
            return true;
        }
        if !self.has_space() {
            return false;
        }
        self.number += 1;
        self.kept_by_purge.remove(&config.id);
        self.covered.push(Covered {
            config: config.clone(),
            stage: Stage::Adding { number: self.number },
            was_read: self.is_kept_in_history(config.id) && !self.lost.contains(&config.id),
            emptied: BTreeSet::new(),
            with_items: BTreeMap::new(),
        });
        true
    }

    fn has_space(&self) -> bool {
        self.covered.len() < COVERED_MAX
    }

    /// A peer's report, which was requested at `polled_at`.
    pub(crate) fn record_report(&mut self, peer: usize, polled_at: Duration, report: CoverageReport, now: Duration) {
        if self.peers[peer].last.as_ref().is_some_and(|last| last.polled_at > polled_at) {
            return;
        }
        for covered in &mut self.covered {
            covered.was_read |= report.reads.contains(&covered.config.id);
        }
        self.peers[peer] = Peer { last: Some(PeerReport { polled_at, report }), missing_at: None };
        self.advance(now);
    }

    /// A peer has not replied to a poll.
    pub(crate) fn record_missing(&mut self, peer: usize, now: Duration) {
        self.peers[peer].missing_at = Some(now);
        self.advance(now);
    }

    /// All threads have applied change `number`, and all batches of earlier ones have ended.
    pub(crate) fn record_applied(&mut self, number: u64, now: Duration) {
        self.applied = self.applied.max(number);
        self.advance(now);
    }

    /// `server` was emptied for `config`.
    pub(crate) fn record_emptied(&mut self, config: ConfigId, server: &Address, now: Duration) {
        if let Some(covered) = self.get_mut(config)
            && covered.stage == Stage::Claimed
        {
            covered.emptied.insert(server.clone());
            covered.with_items.remove(server);
        }
        self.advance(now);
    }

    /// `server` must be empty for `config` ([`Emptying::Check`]), and holds items.
    pub(crate) fn record_items(&mut self, config: ConfigId, server: &Address, now: Duration) {
        if let Some(covered) = self.get_mut(config)
            && covered.stage == Stage::Claimed
        {
            covered.with_items.entry(server.clone()).or_insert(now);
        }
        self.advance(now);
    }

    /// A purge has removed all misplaced copies.
    pub(crate) fn record_purged(&mut self, purge: &Purge, now: Duration) {
        if let Some(Covered { stage: Stage::Purging { number, pending, .. }, .. }) = self.get_mut(purge.config)
            && *number == purge.number
        {
            pending.remove(&purge.server);
        }
        self.advance(now);
    }

    /// Takes all steps that are possible at `now`.
    pub(crate) fn advance(&mut self, now: Duration) {
        while self.claim_applied()
            || self.cover_next()
            || self.read_target(now)
            || self.end_warm_up(now)
            || self.release_unneeded(now)
        {}
    }

    fn claim_applied(&mut self) -> bool {
        let (applied, rules) = (self.applied, self.settings.rules);
        let draining = self.draining.len();
        self.draining.retain(|(_, number)| *number > applied && rules.drain);
        let mut is_changed = self.draining.len() < draining;
        for covered in &mut self.covered {
            if matches!(covered.stage, Stage::Adding { number } if number <= applied) {
                covered.stage = Stage::Claimed;
                is_changed = true;
            }
        }
        is_changed
    }

    fn cover_next(&mut self) -> bool {
        let Some(next) = self.next.take() else { return false };
        match self.cover(&next) {
            true => self.target = Some(next.id),
            false => self.next = Some(next),
        }
        self.target.is_some()
    }

    /// Reads by the target if that is safe.
    fn read_target(&mut self, now: Duration) -> bool {
        let Some(target) = self.target else { return false };
        if !self.is_safe_to_read(target, now) || !self.is_read_recorded(target) {
            return false;
        }
        let servers = self.get(target).expect("the target is covered").config.servers.clone();
        self.departed.remove(&servers.all);
        self.number += 1;
        self.stop_reading_former();
        self.draining.push((self.reads, self.number));
        if !servers.warm_up.is_zero() && self.is_ordered(self.reads, target) {
            self.former = Some(Former { id: self.reads, until: now + servers.warm_up });
        }
        self.reads = target;
        self.target = None;
        self.get_mut(target).expect("the target is covered").was_read = true;
        true
    }

    /// Whether the target is covered by all, and its servers are empty or trusted.
    fn is_safe_to_read(&self, target: ConfigId, now: Duration) -> bool {
        let announced_at = self.announced.filter(|(id, _)| *id == target).map(|(_, since)| since);
        let is_claimed = |report: &PeerReport| {
            let is_after = !self.settings.rules.announce || announced_at.is_some_and(|at| report.polled_at >= at);
            let is_recent = now.saturating_sub(report.polled_at) <= READ_WITHIN;
            is_after && is_recent && report.report.claims.contains(&target)
        };
        let is_agreed = !self.settings.rules.agree || self.all_peers(is_claimed);
        let covered = self.get(target).expect("the target is covered");
        covered.stage == Stage::Claimed && is_agreed && self.servers_to_empty().is_empty()
    }

    /// Whether every router's deletes of a key go to its places under `first` before those under `second`. It remains
    /// so while this router reads by both, since no router releases them meanwhile.
    fn is_ordered(&self, first: ConfigId, second: ConfigId) -> bool {
        let covers: Vec<ConfigId> = self.covered.iter().map(Covered::id).collect();
        let precedes = |covers: &[ConfigId]| {
            let at = |id| covers.iter().position(|covered| *covered == id);
            at(first).zip(at(second)).is_some_and(|(first, second)| first < second)
        };
        !self.settings.rules.order
            || precedes(&covers) && self.all_peers(|peer| peer.report.is_ordered && precedes(&peer.report.covers))
    }

    fn end_warm_up(&mut self, now: Duration) -> bool {
        let is_over = self.former.as_ref().is_some_and(|former| now >= former.until);
        if is_over {
            self.number += 1;
            self.stop_reading_former();
        }
        is_over
    }

    /// Change number `number` ends the batches that read former owners.
    fn stop_reading_former(&mut self) {
        let former = self.former.take();
        self.draining.extend(former.map(|former| (former.id, self.number)));
    }

    fn all_peers(&self, condition: impl Fn(&PeerReport) -> bool) -> bool {
        self.peers.iter().all(|peer| self.is_ignored(peer) || peer.last.as_ref().is_some_and(&condition))
    }

    fn is_ignored(&self, peer: &Peer) -> bool {
        self.settings.ignores_missing_peers && peer.missing_at.is_some()
    }

    /// The last reports, each with the index of its peer.
    fn reports(&self) -> impl Iterator<Item = (usize, &CoverageReport)> {
        let known = self.peers.iter().enumerate().filter(|(_, peer)| !self.is_ignored(peer));
        known.filter_map(|(at, peer)| Some((at, &peer.last.as_ref()?.report)))
    }

    /// The configurations that are covered and not being purged.
    fn active_covered(&self) -> impl Iterator<Item = &Covered> {
        self.covered.iter().filter(|covered| covered.is_active())
    }

    fn get(&self, id: ConfigId) -> Option<&Covered> {
        self.covered.iter().find(|covered| covered.id() == id)
    }

    fn get_mut(&mut self, id: ConfigId) -> Option<&mut Covered> {
        self.covered.iter_mut().find(|covered| covered.id() == id)
    }
}

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;
