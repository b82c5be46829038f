//! What a coverage waits for: servers to empty and to purge, and configurations that only a peer has.

use super::{Coverage, Covered, Peer, Stage};
use crate::resize::pool_servers::PoolServers;
use lookaside_client::config::ConfigId;
use lookaside_routing::Address;
use std::collections::BTreeSet;

/// A purge of one server: copies that `config` places there and no active configuration does.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Purge {
    pub(crate) config: ConfigId,
    pub(crate) server: Address,
    pub(crate) number: u64,
}

/// What a pool of the target was before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PoolOrigin {
    /// A configuration that is covered has a pool of this name, or may have had.
    Known,
    /// It has servers of a pool under another name. So it is that pool: servers that it has besides have missed deletes, as
    /// they would have under the former name.
    Renamed,
    New,
}

impl Coverage {
    /// Servers that must be emptied before the target is read.
    pub(crate) fn servers_to_empty(&self) -> BTreeSet<Address> {
        let target = self.target.and_then(|target| self.get(target));
        let Some(target) = target.filter(|target| target.stage == Stage::Claimed) else { return BTreeSet::new() };
        // A peer that reads by it has emptied them, and they have had all deletes since.
        if !self.settings.rules.empty || self.reports().any(|(_, report)| report.reads.contains(&target.id())) {
            return BTreeSet::new();
        }
        let has_departed = |server: &Address| {
            self.settings.rules.remember_departed
                && (self.departed.servers.contains(server)
                    || self.reports().any(|(_, report)| report.departed.contains(server)))
        };
        let mut to_empty = BTreeSet::new();
        for (name, pool) in target.config.servers.pools.iter().filter(|(_, pool)| pool.flush_new) {
            let in_pool = |covered: &Covered, server: &Address| {
                covered.config.servers.pools.get(name).is_some_and(|pool| pool.servers.contains(server))
            };
            let origin = self.origin_of(target, name, pool);
            let is_kept = |server: &Address| match origin {
                PoolOrigin::Known => self.others(target).any(|other| other.was_read && in_pool(other, server)),
                PoolOrigin::Renamed => self.was_owned(target, server),
                PoolOrigin::New => true,
            };
            for server in pool.servers.difference(&target.emptied) {
                let is_trusted = target.was_read || !self.has_lost() && is_kept(server);
                if has_departed(server) || !is_trusted {
                    to_empty.insert(server.clone());
                }
            }
        }
        to_empty
    }

    /// The servers of the target that are trusted although no configuration that is covered has named them: those of a pool
    /// under a new name that shares none with another one. They may be a warm pool of another cluster.
    pub(crate) fn trusted_new_servers(&self) -> BTreeSet<Address> {
        let Some(target) = self.target.and_then(|target| self.get(target)) else { return BTreeSet::new() };
        let is_new = |(name, pool): &(&String, &PoolServers)| {
            pool.flush_new && self.origin_of(target, name, pool) == PoolOrigin::New
        };
        let of_new_pools = target.config.servers.pools.iter().filter(is_new).flat_map(|(_, pool)| &pool.servers);
        let is_trusted = |server: &&Address| !self.departed.servers.contains(server);
        match target.was_read || self.has_lost() {
            true => BTreeSet::new(),
            false => of_new_pools.filter(is_trusted).cloned().collect(),
        }
    }

    fn origin_of(&self, target: &Covered, name: &str, pool: &PoolServers) -> PoolOrigin {
        let is_in = |covered: &Covered| covered.config.servers.pools.contains_key(name);
        if self.departed.is_incomplete || self.others(target).any(is_in) {
            return PoolOrigin::Known;
        }
        let is_renamed = pool.servers.iter().any(|server| self.was_owned(target, server));
        if is_renamed && self.settings.rules.empty_renamed { PoolOrigin::Renamed } else { PoolOrigin::New }
    }

    /// Whether a pool of a configuration that was read has `server`.
    fn was_owned(&self, target: &Covered, server: &Address) -> bool {
        let owns = |pool: &PoolServers| pool.flush_new && pool.servers.contains(server);
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
            !peer.is_missing && self.target.is_some_and(|target| claims.is_some_and(|ids| ids.contains(&target)))
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
