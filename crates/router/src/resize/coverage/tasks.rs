//! What a coverage waits for: servers to empty and to purge, and configurations that only a peer has.

use super::{Coverage, Covered, Peer, Stage};
use crate::resize::pool_servers::{FlushNew, PoolServers};
use lookaside_client::config::ConfigId;
use lookaside_routing::Address;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// A purge of one server: copies that `config` places there and no active configuration does.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Purge {
    pub(crate) config: ConfigId,
    pub(crate) server: Address,
    pub(crate) number: u64,
}

/// How a server becomes an empty one without leases.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Emptying {
    /// It is only asked whether it is empty, since it may be another cluster's. The operator empties it, or allows
    /// that.
    Check,
    /// It is flushed unless it holds no items.
    Flush,
}

/// What a pool of the target was before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PoolOrigin {
    /// A configuration that was read, and is covered, has a pool of this name.
    Known,
    /// It has servers of a pool under another name. So it is that pool: servers that it has besides have missed
    /// deletes, as they would have under the former name.
    Renamed,
    /// Nothing is known of its servers. They may have old copies of this cluster's keys, from configurations that are
    /// forgotten or routers that are gone, or be another cluster's warm pool.
    New,
}

fn pool_of<'a>(covered: &'a Covered, name: &str) -> Option<&'a PoolServers> {
    covered.config.servers.pools.get(name)
}

impl Coverage {
    /// Servers that must be empty before the target is read.
    pub(crate) fn servers_to_empty(&self) -> BTreeMap<Address, Emptying> {
        let target = self.target.and_then(|target| self.get(target));
        let Some(target) = target.filter(|target| target.stage == Stage::Claimed) else { return BTreeMap::new() };
        // A peer that reads by it has emptied them, and they have had all deletes since.
        if !self.settings.rules.empty || self.reports().any(|(_, report)| report.reads.contains(&target.id())) {
            return BTreeMap::new();
        }
        let mut to_empty = BTreeMap::new();
        for (name, pool) in target.config.servers.pools.iter().filter(|(_, pool)| pool.flush_new != FlushNew::Never) {
            let origin = self.origin_of(target, name, pool);
            let is_own = target.was_read || origin != PoolOrigin::New || pool.flush_new == FlushNew::Always;
            let not_emptied = pool.servers.difference(&target.emptied);
            for server in
                not_emptied.filter(|server| self.has_departed(server) || !self.is_kept(target, name, origin, server))
            {
                let is_own = is_own || self.departed.has_own(server);
                let emptying = if is_own { Emptying::Flush } else { Emptying::Check };
                let of_all_pools = to_empty.entry(server.clone()).or_insert(emptying);
                *of_all_pools = emptying.max(*of_all_pools);
            }
        }
        to_empty
    }

    /// Whether a server of the target's pool `name` has had all deletes of its keys, unless it has departed.
    fn is_kept(&self, target: &Covered, name: &str, origin: PoolOrigin, server: &Address) -> bool {
        let is_in = |other: &Covered| pool_of(other, name).is_some_and(|pool| pool.servers.contains(server));
        let rules = self.settings.rules;
        let is_kept = match origin {
            PoolOrigin::Known => self.others(target).any(|other| other.was_read && is_in(other)),
            PoolOrigin::Renamed if !rules.empty_renamed => true,
            PoolOrigin::Renamed => !self.departed.is_incomplete && self.was_owned(target, server),
            PoolOrigin::New => !rules.empty_new,
        };
        target.was_read || !self.has_lost() && is_kept
    }

    fn has_departed(&self, server: &Address) -> bool {
        self.settings.rules.remember_departed
            && (self.departed.servers.contains(server)
                || self.reports().any(|(_, report)| report.departed.contains(server)))
    }

    /// Servers of the target that must be empty and were not: the operator decides. None of them was filled by a peer
    /// that reads by the target, as far as peers reply.
    pub(crate) fn servers_with_items(&self) -> BTreeSet<Address> {
        let Some(target) = self.target.and_then(|target| self.get(target)) else { return BTreeSet::new() };
        // A peer whose poll failed is asked again after that.
        let has_reported = |peer: &Peer, at| {
            peer.last.as_ref().is_some_and(|last| last.polled_at >= at)
                || peer.missing_at.is_some_and(|missing| missing >= at)
        };
        let has_reported_since = |at: Duration| self.peers.iter().all(|peer| has_reported(peer, at));
        let is_with_items = |server: &Address| target.with_items.get(server).is_some_and(|at| has_reported_since(*at));
        let to_empty = self.servers_to_empty().into_iter();
        to_empty
            .filter(|(_, emptying)| *emptying == Emptying::Check)
            .map(|(server, _)| server)
            .filter(is_with_items)
            .collect()
    }

    fn origin_of(&self, target: &Covered, name: &str, pool: &PoolServers) -> PoolOrigin {
        if self.others(target).any(|other| other.was_read && pool_of(other, name).is_some()) {
            return PoolOrigin::Known;
        }
        let is_renamed = pool.servers.iter().any(|server| self.was_owned(target, server));
        if is_renamed { PoolOrigin::Renamed } else { PoolOrigin::New }
    }

    /// Whether a pool of a configuration that was read has `server`.
    fn was_owned(&self, target: &Covered, server: &Address) -> bool {
        let owns = |pool: &PoolServers| pool.flush_new != FlushNew::Never && pool.servers.contains(server);
        self.others(target).any(|other| other.was_read && other.config.servers.pools.values().any(owns))
    }

    fn others<'a>(&'a self, target: &'a Covered) -> impl Iterator<Item = &'a Covered> {
        self.covered.iter().filter(|covered| covered.id() != target.id())
    }

    /// The purges that are to run.
    pub(crate) fn purges(&self) -> Vec<Purge> {
        let of = |covered: &Covered| match &covered.stage {
            Stage::Purging { number, pending, .. } => {
                let purge = |server: &Address| Purge { config: covered.id(), server: server.clone(), number: *number };
                pending.iter().map(purge).collect()
            }
            _ => Vec::new(),
        };
        self.covered.iter().flat_map(of).collect()
    }

    /// The peers that have not reported, lately, that they cover the target.
    pub(crate) fn peers_without_claim(&self) -> Vec<usize> {
        let has_claimed = |peer: &Peer| {
            let claims = peer.last.as_ref().map(|last| &last.report.claims);
            peer.missing_at.is_none()
                && self.target.is_some_and(|target| claims.is_some_and(|ids| ids.contains(&target)))
        };
        self.peers.iter().enumerate().filter(|(_, peer)| !has_claimed(peer)).map(|(at, _)| at).collect()
    }

    /// Configurations that peers need and that are not covered, each with the peer that has its text.
    pub(crate) fn missing(&self) -> Vec<(usize, ConfigId)> {
        let needed = self
            .reports()
            .flat_map(|(at, report)| report.reads.iter().chain(&report.waits_for).map(move |id| (at, *id)));
        needed.filter(|(_, id)| self.has_space() && self.get(*id).is_none()).collect()
    }
}
