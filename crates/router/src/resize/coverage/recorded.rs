//! The history that the routers of a cluster share ([`super::super::history`]): what a coverage records there, and the
//! steps that wait until it is recorded.
//!
//! | step | recorded before it |
//! |---|---|
//! | a configuration is read | it is readable, and none of its servers has departed |
//! | a configuration is unclaimed | it is not readable: no router that starts reads by it |
//! | its purge begins, so that deletes leave out servers | those servers have departed |
//!
//! A configuration is removed from the history when one router has forgotten it: its purge has removed all misplaced
//! copies, and none is filled behind it.
//!
//! A **lost** configuration is one that no router may begin to read by, and whose text a router could not use when it
//! started: deletes do not reach its places, so any server may hold an old copy that it placed. While there is one, all
//! servers of the next configuration are emptied. Once that is read, and no other one is covered, it leaves the
//! history. A purge by a router that can use it does not remove it: copies stay for the sake of others, and may be old.
//!
//! Each record is computed from the one that was seen last, and stored only if that one is still there. It says that a
//! configuration is not needed only by reports that were requested after the record had changed: a router that recorded
//! that it will read had announced it before.

use super::{COVERED_MAX, Coverage, Covered, Stage};
use crate::resize::history::{HISTORY_CONFIGS_MAX, History, RecordedConfig};
use crate::resize::pool_servers::FlushNew;
use lookaside_client::config::ConfigId;
use lookaside_routing::Address;
use std::collections::BTreeSet;
use std::time::Duration;

const _: () = assert!(HISTORY_CONFIGS_MAX <= COVERED_MAX, "each router covers all that the history has");

/// What a coverage knows of the history.
#[derive(Clone, Debug, Default)]
pub(super) enum HistoryView {
    /// No history is shared.
    #[default]
    Unused,
    /// It could not be read yet.
    Unread,
    Read(SeenHistory),
}

/// The history as it was seen last.
#[derive(Clone, Debug)]
pub(super) struct SeenHistory {
    revision: i64,
    history: History,
    /// When it was first seen so.
    changed_at: Duration,
}

impl Coverage {
    /// From now on steps wait until they are recorded.
    pub(crate) fn use_history(&mut self) {
        self.history = HistoryView::Unread;
    }

    /// From now on no history is shared.
    pub(crate) fn ignore_history(&mut self, now: Duration) {
        self.history = HistoryView::Unused;
        self.kept_by_purge.clear();
        self.advance(now);
    }

    /// The history is this one, at `revision`.
    pub(crate) fn record_history(&mut self, revision: i64, history: History, now: Duration) {
        if matches!(&self.history, HistoryView::Read(seen) if seen.revision == revision) {
            return self.advance(now);
        }
        let is_new = |server: &&Address| !self.departed.servers.contains(server) && !self.reads_from(server);
        let departed = history.departed.servers.iter().filter(is_new).cloned();
        let is_unread = |server: &Address| self.is_unread(server, history.departed.unread.contains(server));
        let (unread, own): (Vec<_>, Vec<_>) = departed.partition(is_unread);
        self.departed.add_unread(unread);
        self.departed.add(own);
        self.departed.is_incomplete |= history.departed.is_incomplete;
        // One that has left the history has no copies that the departed servers do not stand for, and one that is
        // readable had all deletes.
        self.lost.retain(|id| history.get(*id).is_some_and(|config| !config.is_readable));
        history.lost().for_each(|id| self.add_lost(id));
        for covered in &mut self.covered {
            covered.was_read |= history.is_kept(covered.config.id);
            covered.was_read &= !self.lost.contains(&covered.config.id) || covered.config.id == self.reads;
        }
        self.kept_by_purge.retain(|id, _| history.get(*id).is_some() || self.covered.iter().any(|one| one.id() == *id));
        self.history = HistoryView::Read(SeenHistory { revision, history, changed_at: now });
        self.advance(now);
    }

    /// Whether the configurations that are covered and name `server` were not read, as far as is known. If none names
    /// it, the history tells, by `is_recorded_unread`.
    fn is_unread(&self, server: &Address, is_recorded_unread: bool) -> bool {
        let mut naming = self.covered.iter().filter(|covered| covered.config.servers.all.contains(server)).peekable();
        match naming.peek() {
            Some(_) => naming.all(|covered| !covered.was_read),
            None => is_recorded_unread,
        }
    }

    fn reads_from(&self, server: &Address) -> bool {
        self.get(self.reads).is_some_and(|reads| reads.config.servers.all.contains(server))
    }

    /// A router may not begin to read by `id`, and its text cannot be used here.
    pub(crate) fn record_unusable(&mut self, id: ConfigId, now: Duration) {
        if self.is_in_history(id) && !self.is_recorded(|history| history.is_readable(id)) {
            self.add_lost(id);
        }
        self.advance(now);
    }

    /// Servers that were emptied before may have copies that it placed.
    fn add_lost(&mut self, id: ConfigId) {
        if self.lost.insert(id) {
            self.covered.iter_mut().for_each(|covered| covered.emptied.clear());
        }
    }

    /// Whether any server may hold old copies, of a configuration that is lost.
    pub(super) fn has_lost(&self) -> bool {
        self.settings.rules.empty_lost && !self.lost.is_empty()
    }

    /// Whether the only configuration that is covered is read, and all of its servers were emptied for it: then no copy
    /// of a lost one is at any of them.
    fn is_emptied(&self) -> bool {
        let [only] = &self.covered[..] else { return false };
        let mut pools = only.config.servers.pools.values().filter(|pool| pool.flush_new != FlushNew::Never);
        let is_emptied = !only.emptied.is_empty() && pools.all(|pool| pool.servers.is_subset(&only.emptied));
        self.next.is_none() && is_emptied
    }

    /// Whether the history has `id`, and not as lost, as far as is known.
    pub(super) fn is_kept_in_history(&self, id: ConfigId) -> bool {
        matches!(&self.history, HistoryView::Read(seen) if seen.history.is_kept(id))
    }

    /// Whether the history has `id`, as far as is known.
    fn is_in_history(&self, id: ConfigId) -> bool {
        matches!(&self.history, HistoryView::Read(seen) if seen.history.get(id).is_some())
    }

    /// Whether `condition` holds of the history, if one is shared.
    fn is_recorded(&self, condition: impl FnOnce(&History) -> bool) -> bool {
        match &self.history {
            _ if !self.settings.rules.record_first => true,
            HistoryView::Unused => true,
            HistoryView::Unread => false,
            HistoryView::Read(seen) => condition(&seen.history),
        }
    }

    /// Whether the history allows to read by `target`.
    pub(super) fn is_read_recorded(&self, target: ConfigId) -> bool {
        let servers = &self.get(target).expect("the target is covered").config.servers.all;
        self.is_recorded(|history| {
            history.is_readable(target) && !history.departed.servers.iter().any(|server| servers.contains(server))
        })
    }

    /// Whether the target is read as soon as that is recorded, by what is known of the peers.
    pub(crate) fn waits_for_history(&self) -> bool {
        self.target.is_some_and(|target| !self.is_read_recorded(target)) && self.peers_without_claim().is_empty()
    }

    pub(super) fn is_unclaim_recorded(&self, id: ConfigId) -> bool {
        self.is_recorded(|history| !history.is_readable(id))
    }

    /// Whether the history has the servers that a purge of the configuration at `at` leaves out.
    pub(super) fn is_departure_recorded(&self, at: usize) -> bool {
        let id = self.covered[at].id();
        self.is_recorded(|history| {
            let known: BTreeSet<&Address> = history.departed.servers.iter().collect();
            !history.is_readable(id) && self.departing(at).iter().all(|server| known.contains(server))
        })
    }

    /// The purge of the configuration at `at` begins. Copies may stay for the sake of those that are active meanwhile.
    pub(super) fn record_purge(&mut self, at: usize) {
        let id = self.covered[at].id();
        self.kept_by_purge.values_mut().for_each(|kept| _ = kept.insert(id));
        let others = self.active_ids().into_iter().filter(|other| *other != id).collect();
        self.kept_by_purge.insert(id, others);
    }

    /// A configuration is no longer covered, since no copy is misplaced under it.
    pub(super) fn record_released(&mut self, id: ConfigId) {
        let (active, is_in_history) = (self.active_ids(), self.is_in_history(id));
        match self.kept_by_purge.get_mut(&id) {
            Some(kept) if is_in_history => kept.extend(active),
            _ => _ = self.kept_by_purge.remove(&id),
        }
    }

    /// Whether a purge of `id` has ended, so that the history need not have it. If another router has removed one for
    /// whose sake a copy was kept, that copy may be misplaced: another purge is needed when that one is released here.
    fn is_purged(&self, id: ConfigId) -> bool {
        let is_known = |kept: &ConfigId| self.is_in_history(*kept) || self.get(*kept).is_some();
        self.get(id).is_none() && self.kept_by_purge.get(&id).is_some_and(|kept| kept.iter().all(is_known))
    }

    /// Configurations of the history that are not covered.
    pub(crate) fn missing_in_history(&self) -> Vec<ConfigId> {
        let HistoryView::Read(SeenHistory { history, .. }) = &self.history else { return Vec::new() };
        let is_missing = |config: &&RecordedConfig| {
            let is_unneeded = self.is_purged(config.id) || self.lost.contains(&config.id);
            self.get(config.id).is_none() && (config.is_readable || !is_unneeded)
        };
        match self.has_space() {
            true => history.configs.iter().filter(is_missing).map(|config| config.id).collect(),
            false => Vec::new(),
        }
    }

    /// The history as it was seen last, with its revision.
    pub(crate) fn seen_history(&self) -> Option<(i64, &History)> {
        match &self.history {
            HistoryView::Read(seen) => Some((seen.revision, &seen.history)),
            _ => None,
        }
    }

    /// Whether the history says that a server has departed which this router reads: it started from an outdated memory
    /// while the history could not be read.
    pub(crate) fn is_outdated(&self) -> bool {
        let HistoryView::Read(SeenHistory { history, .. }) = &self.history else { return false };
        history.departed.servers.iter().any(|server| self.reads_from(server))
    }

    /// The history to store instead of the one that was seen last; `None` if nothing is to be recorded.
    pub(crate) fn history_to_record(&self, now: Duration) -> Option<History> {
        let HistoryView::Read(seen) = &self.history else { return None };
        let mut next = seen.history.clone();
        if next.configs.is_empty() {
            let known = self.covered.iter().filter(|covered| covered.was_read);
            let config = |id| RecordedConfig { id, is_readable: false, is_lost: false };
            known.for_each(|covered| _ = next.insert(config(covered.id())));
        }
        self.lost.iter().for_each(|id| next.set_lost(*id));
        if !self.is_outdated() {
            next.set_readable(self.reads);
        }
        let is_fresh = self.all_peers(|peer| peer.polled_at >= seen.changed_at);
        if let Some(target) = self.target.filter(|target| self.is_safe_to_read(*target, now)) {
            if !next.has_space_for(target) && is_fresh {
                self.make_space(&mut next, target);
            }
            if next.set_readable(target) {
                next.departed.remove(&self.get(target).expect("the target is covered").config.servers.all);
            }
        }
        self.add_departed(&mut next, is_fresh, now);
        if is_fresh {
            let is_claimed = |covered: &&Covered| matches!(covered.stage, Stage::Claimed | Stage::Unclaimed { .. });
            let claimed = self.covered.iter().filter(is_claimed).map(Covered::id);
            for id in claimed.filter(|id| !self.is_needed(*id)) {
                next.set_unreadable(id);
            }
            for (id, kept) in self.kept_by_purge.iter().filter(|(id, _)| self.is_purged(**id)) {
                // One that is removed in the same step does not count.
                if next.is_kept(*id) && kept.iter().all(|kept| next.get(*kept).is_some()) {
                    next.remove(*id);
                }
            }
            for id in self.lost.iter().filter(|id| self.is_emptied() && !self.is_covered_by_peer(**id)) {
                next.remove(*id);
                // It may have placed copies at servers that no other one has named.
                next.departed.is_incomplete = true;
            }
        }
        (next != seen.history).then_some(next)
    }

    /// Removes a configuration from a full record for `target`, which joins it in the same step: so it counts as one
    /// that is there. Otherwise each of those that were purged would wait for the target, and the target for space. If
    /// none can be removed so, a lost one leaves that no router covers, but not the last: all servers are emptied while
    /// there is any.
    fn make_space(&self, next: &mut History, target: ConfigId) {
        let is_there = |kept: &ConfigId| *kept == target || next.get(*kept).is_some();
        let is_removable = |id: &ConfigId| !next.is_readable(*id) && next.is_kept(*id);
        let mut purged = self.kept_by_purge.iter().filter(|(id, _)| self.is_purged(**id) && is_removable(id));
        if let Some(id) = purged.find(|(_, kept)| kept.iter().all(is_there)).map(|(id, _)| *id) {
            next.remove(id);
            return;
        }
        let is_uncovered = |id: &ConfigId| self.get(*id).is_none() && !self.is_covered_by_peer(*id);
        let (count, uncovered) = (next.lost().count(), next.lost().find(is_uncovered));
        if let Some(id) = uncovered.filter(|_| count > 1) {
            next.remove(id);
            // The last one may become usable again: nothing tells then that servers which only this one named have
            // copies.
            next.departed.is_incomplete = true;
        }
    }

    fn is_covered_by_peer(&self, id: ConfigId) -> bool {
        self.reports().any(|(_, report)| report.covers.contains(&id))
    }

    /// Adds the servers that get no deletes, and those that will get none when the purges that are possible have begun.
    fn add_departed(&self, next: &mut History, is_fresh: bool, now: Duration) {
        let known: BTreeSet<&Address> = self.active_covered().flat_map(|covered| &covered.config.servers.all).collect();
        let departed = self.departed.servers.iter().filter(|server| !known.contains(server));
        let (mut added, mut unread): (Vec<Address>, _) = (departed.cloned().collect(), self.departed.unread.clone());
        let released = (0..self.covered.len()).filter(|at| {
            let covered = &self.covered[*at];
            let Stage::Unclaimed { since } = covered.stage else { return false };
            is_fresh && !self.is_needed(covered.id()) && self.is_releasable(since, now)
        });
        for at in released {
            for server in self.departing(at) {
                match self.covered[at].was_read {
                    true => _ = unread.remove(&server),
                    false if self.departed.has_own(&server) => {}
                    false => _ = unread.insert(server.clone()),
                }
                added.push(server);
            }
        }
        let recorded: BTreeSet<Address> = next.departed.servers.iter().cloned().collect();
        next.departed.add_marked(added.into_iter().filter(|server| !recorded.contains(server)), &unread);
        next.departed.is_incomplete |= self.departed.is_incomplete;
    }
}
