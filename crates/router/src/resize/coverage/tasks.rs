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
            let others = || self.covered.iter().filter(|covered| covered.id() != target.id());
            let in_pool = |covered: &Covered, server| {
                covered.config.servers.pools.get(name).is_some_and(|pool| pool.servers.contains(server))
            };
            let is_known =
                self.departed.is_incomplete || others().any(|covered| covered.config.servers.pools.contains_key(name));
            // A pool under a new name that has servers of another one is that pool, renamed: servers that it has besides
            // have missed deletes, as they would have under the former name.
            let was_owned = |server: &Address| {
                let owns = |pool: &PoolServers| pool.flush_new && pool.servers.contains(server);
                others().any(|other| other.was_read && other.config.servers.pools.values().any(owns))
            };
            let is_renamed = !is_known && self.settings.rules.empty_renamed && pool.servers.iter().any(was_owned);
            for server in pool.servers.difference(&target.emptied) {
                let was_in_pool = || others().any(|other| other.was_read && in_pool(other, server));
                let is_trusted = target.was_read || if is_renamed { was_owned(server) } else { was_in_pool() };
                if has_departed(server) || (is_known || is_renamed) && !is_trusted {
                    to_empty.insert(server.clone());
                }
            }
        }
        to_empty
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
