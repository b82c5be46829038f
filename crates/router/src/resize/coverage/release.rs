//! The end of a configuration: it is unclaimed when no router needs it, purged when none can read by it again, and then
//! forgotten. A configuration that is needed again goes back.

use super::{Coverage, PeerReport, RELEASE_AFTER, Stage};
use lookaside_client::config::ConfigId;
use lookaside_routing::Address;
use std::collections::BTreeSet;
use std::time::Duration;

impl Coverage {
    /// Moves configurations that no router needs towards their end, and others back. True if one has moved.
    pub(super) fn release_unneeded(&mut self, now: Duration) -> bool {
        for at in 0..self.covered.len() {
            let (id, is_needed) = (self.covered[at].id(), self.is_needed(self.covered[at].id()));
            match (&self.covered[at].stage, is_needed) {
                (Stage::Claimed, false) if self.is_unclaim_recorded(id) => {
                    self.covered[at].stage = Stage::Unclaimed { since: now };
                }
                (Stage::Unclaimed { .. }, true) => self.covered[at].stage = Stage::Claimed,
                (Stage::Unclaimed { since }, false)
                    if self.is_releasable(*since, now) && self.is_departure_recorded(at) =>
                {
                    self.begin_purge(at);
                }
                (Stage::Purging { .. }, true) => self.cover_again(at),
                (Stage::Purging { .. }, false) => match self.drop_departed_from_purge(at) {
                    0 => {
                        self.number += 1;
                        self.covered.retain(|covered| covered.id() != id);
                        self.record_released(id);
                    }
                    _ => continue,
                },
                _ => continue,
            }
            return true;
        }
        false
    }

    /// Whether this router or a peer reads by `id`, or will.
    pub(super) fn is_needed(&self, id: ConfigId) -> bool {
        let is_read = self.reads == id
            || self.former.as_ref().is_some_and(|former| former.id == id)
            || self.draining.iter().any(|(draining, _)| *draining == id);
        let is_needed_here = is_read || self.target == Some(id);
        is_needed_here || self.reports().any(|(_, report)| report.needs(id))
    }

    /// Whether no router can read by a configuration that is unclaimed since `since`, and not needed.
    pub(super) fn is_releasable(&self, since: Duration, now: Duration) -> bool {
        let unclaimed_for = match self.settings.rules.release_in_two_steps {
            true => RELEASE_AFTER,
            false => Duration::ZERO,
        };
        let is_fresh = |last: &PeerReport| last.polled_at >= since + unclaimed_for;
        let is_alone = self.settings.peers == 0;
        let is_agreed = is_alone
            || !self.settings.rules.release_in_two_steps
            || now >= since + unclaimed_for && self.all_peers(is_fresh);
        is_agreed && (self.has_outlived_predecessor() || !self.settings.rules.drain)
    }

    /// Whether the permits that the process before this one has given have ended, by whatever configuration. Until then
    /// any of those that it covered may be read by them. It does not say so to its peers, which wait for longer
    /// ([`RELEASE_AFTER`]): a configuration that it reports as read counts as one that it has read all the time.
    fn has_outlived_predecessor(&self) -> bool {
        self.applied > 0
    }

    /// The servers of the configuration at `at` that no other active one names.
    pub(super) fn departing(&self, at: usize) -> BTreeSet<Address> {
        let others = self.active_covered().filter(|covered| covered.id() != self.covered[at].id());
        let kept: BTreeSet<&Address> = others.flat_map(|covered| &covered.config.servers.all).collect();
        let servers = &self.covered[at].config.servers.all;
        servers.iter().filter(|server| !kept.contains(server)).cloned().collect()
    }

    fn begin_purge(&mut self, at: usize) {
        let departed = self.departing(at);
        let pending = self.covered[at].config.servers.all.difference(&departed).cloned().collect();
        self.add_departed_of(at, departed.clone());
        self.number += 1;
        self.record_purge(at);
        let pending = if self.settings.rules.purge { pending } else { BTreeSet::new() };
        self.covered[at].stage = Stage::Purging { number: self.number, pending, departed };
    }

    /// Servers that have departed since the purge began need none. Returns how many still do.
    fn drop_departed_from_purge(&mut self, at: usize) -> usize {
        let active = self.covered.iter().filter(|covered| covered.is_active());
        let kept: BTreeSet<Address> = active.flat_map(|covered| covered.config.servers.all.clone()).collect();
        let Stage::Purging { pending, departed, .. } = &mut self.covered[at].stage else { return 0 };
        let gone: Vec<Address> = pending.difference(&kept).cloned().collect();
        pending.retain(|server| kept.contains(server));
        departed.extend(gone.iter().cloned());
        let pending = pending.len();
        self.add_departed_of(at, gone);
        pending
    }

    /// Servers of the configuration at `at` have departed.
    fn add_departed_of(&mut self, at: usize, servers: impl IntoIterator<Item = Address>) {
        match self.covered[at].was_read {
            true => self.departed.add(servers),
            false => self.departed.add_unread(servers),
        }
    }

    fn cover_again(&mut self, at: usize) {
        self.number += 1;
        self.covered[at].stage = Stage::Adding { number: self.number };
        self.covered[at].emptied.clear();
        self.covered[at].with_items.clear();
    }
}
