//! The lines of the log about the steps of a change.

use super::Resizer;
use crate::resize::coverage::{Coverage, Purge};
use crate::resize::status::HistoryState;
use lookaside_routing::Address;
use std::time::Duration;
use tokio::time::Instant;

/// A change that waits for longer is logged.
const WAIT_LOGGED_AFTER: Duration = Duration::from_secs(10);

impl Resizer {
    pub(super) fn log_steps(&mut self, before: &Coverage) {
        let reads = self.coverage.reads();
        for config in self.coverage.covered().filter(|config| !before.covered().any(|known| known.id == config.id)) {
            tracing::info!(configuration = %config.id, "deletes also go to the servers of another configuration");
            let is_remembered = self.store.is_durable() || self.status.history() == HistoryState::Recorded;
            if !is_remembered && !std::mem::replace(&mut self.is_loss_logged, true) {
                tracing::warn!(
                    "without --config-cache a router that restarts during a change of the configuration forgets the \
                     former one, unless a peer of --spool-peers knows it"
                );
            }
        }
        for purge in self.coverage.purges().iter().filter(|purge| !before.purges().contains(purge)) {
            let Purge { config, server, .. } = purge;
            tracing::info!(configuration = %config, %server, "removing copies that a former configuration placed");
        }
        for config in before.covered().filter(|known| !self.coverage.covered().any(|config| config.id == known.id)) {
            tracing::info!(configuration = %config.id, "a former configuration is no longer covered");
        }
        if before.reads() != reads {
            self.status.changes.add(1);
            tracing::info!(configuration = %reads, former = %before.reads(), "new configuration in force");
        }
        let is_waiting = self.coverage.target().is_some();
        self.log_items(before);
        if before.target() != self.coverage.target() || !is_waiting {
            self.waits_since = is_waiting.then(Instant::now);
            self.is_wait_logged = false;
        }
    }

    fn log_items(&self, before: &Coverage) {
        let (known, with_items) = (before.servers_with_items(), self.coverage.servers_with_items());
        if !with_items.is_subset(&known) {
            tracing::warn!(
                servers = names(with_items.difference(&known)),
                "servers of a pool under a new name hold items, which may be old values, so the new configuration waits, and \
                 the former one stays in force: give the pool \"flush_new_servers\": true to flush them, or false if they are \
                 another cluster's"
            );
        }
    }

    pub(super) fn log_long_wait(&mut self) {
        let is_long = self.waits_since.is_some_and(|since| since.elapsed() >= WAIT_LOGGED_AFTER);
        if is_long && !std::mem::replace(&mut self.is_wait_logged, true) {
            let to_empty = self.coverage.servers_to_empty();
            let peers = self.coverage.peers_without_claim().into_iter().map(|peer| self.peers.address(peer));
            tracing::warn!(
                servers_not_empty = names(to_empty.keys()),
                peers_not_covering = names(peers),
                "a new configuration waits, and the former one stays in force: its new servers must answer and be empty or \
                 allow flush_all, and all routers of --spool-peers must cover it; remove those that are gone permanently"
            );
        }
    }
}

fn names<'a>(servers: impl Iterator<Item = &'a Address>) -> String {
    servers.map(|server| &*server.0).collect::<Vec<_>>().join(",")
}
