//! The misses of all clients of a process: found by connection or address, counted, and bounded together.

use super::{Age, Blind, ClientMisses, Keys, LeaseScope, Leasing};
use lookaside_sync::{Mutex, SharedCounter};
use std::{
    collections::BTreeMap,
    net::IpAddr,
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
};

/// Above this number of addresses those without connections are removed.
pub(super) const IDLE_ADDRESSES_MAX: usize = 4_096;
/// The most keys whose misses all clients' states remember together: about 64 MB.
pub const TOTAL_MISSES_MAX: usize = 1 << 20;

/// What routers count of leases that they take for clients, over all threads.
#[derive(Debug, Default)]
pub struct LeaseCounters {
    /// Gets that were sent as `lease-get`.
    pub lease_gets: SharedCounter,
    /// Tokens that were remembered.
    pub tokens: SharedCounter,
    /// Misses that were returned while another client held the token.
    pub hot_misses: SharedCounter,
    /// Hot misses that found a value while they were held back.
    pub hot_hits: SharedCounter,
    /// Hot misses that were answered by a stale value.
    pub stale_hits: SharedCounter,
    /// Stores under a token that were stored.
    pub stored: SharedCounter,
    /// Stores for a miss that were refused: a delete or another store came between.
    pub refused: SharedCounter,
    /// Stores without a miss that were passed on.
    pub unleased_passed: SharedCounter,
    /// Stores without a miss that were refused.
    pub unleased_refused: SharedCounter,
    /// Stores without a miss that were passed on as `add`.
    pub unleased_added: SharedCounter,
    /// Misses that were removed because they were too old.
    pub misses_expired: SharedCounter,
    /// Misses that there was no space for.
    pub misses_dropped: SharedCounter,
    /// The keys whose misses are remembered.
    remembered: AtomicUsize,
}

impl LeaseCounters {
    /// Counts one more key, unless there are too many.
    pub(super) fn try_remember(&self) -> bool {
        let has_space = self.remembered.fetch_add(1, Relaxed) < TOTAL_MISSES_MAX;
        if !has_space {
            self.remembered.fetch_sub(1, Relaxed);
        }
        has_space
    }

    /// Counts keys whose misses are no longer remembered.
    pub(super) fn count_removed(&self, keys: usize) {
        self.remembered.fetch_sub(keys, Relaxed);
    }

    /// Removes the misses of a client that are too old.
    pub(super) fn remove_expired(&self, keys: &mut Keys, age: Age) {
        let before = keys.by_hash.len();
        keys.by_hash.retain(|_, misses| !age.is_over(misses.newest_s));
        let expired = before - keys.by_hash.len();
        self.misses_expired.add(expired as u64);
        self.count_removed(expired);
    }
}

/// The clients of one process whose misses are remembered.
#[derive(Debug, Default)]
pub struct LeaseClients {
    /// The counters.
    pub counters: Arc<LeaseCounters>,
    pub(super) clients: Mutex<Clients>,
    /// When all clients were last searched for misses that are too old.
    swept_s: AtomicU64,
}

#[derive(Debug, Default)]
pub(super) struct Clients {
    next_id: u64,
    pub(super) by_id: BTreeMap<u64, Weak<ClientMisses>>,
    /// Those with [`LeaseScope::Address`]; the address is `None` for Unix sockets. They outlive their connections: sets
    /// for their misses may come over new ones.
    pub(super) by_address: BTreeMap<Option<IpAddr>, Arc<ClientMisses>>,
}

impl Clients {
    /// Removes addresses without connections if there are too many. Their next connections are blind at first.
    fn remove_idle(&mut self) -> Vec<Arc<ClientMisses>> {
        if self.by_address.len() <= IDLE_ADDRESSES_MAX {
            return Vec::new();
        }
        let idle: Vec<Option<IpAddr>> =
            self.by_address.iter().filter(|(_, misses)| Arc::strong_count(misses) == 1).map(|(at, _)| *at).collect();
        idle.iter().filter_map(|address| self.by_address.remove(address)).collect()
    }
}

impl LeaseClients {
    /// The keys whose misses are remembered.
    pub fn remembered(&self) -> usize {
        self.counters.remembered.load(Relaxed)
    }

    /// The state for a connection from `address` that has missed nothing. With [`LeaseScope::Address`] a new address is
    /// blind at first.
    pub fn add(self: &Arc<Self>, leasing: Leasing, address: Option<IpAddr>) -> Arc<ClientMisses> {
        let blind = match leasing.scope {
            LeaseScope::Connection | LeaseScope::Process => Blind::No,
            // Its clients may have missed keys at the process before this one.
            LeaseScope::Address => Blind::at_first_use(leasing),
        };
        self.find_or_add(leasing, address, blind)
    }

    /// The state for a connection that may have missed keys that are not known: another process has served it, or a
    /// tree that leased other keys. An address that is known is not made blind again: it was when this process began,
    /// or the tree.
    pub fn add_blind(self: &Arc<Self>, leasing: Leasing, address: Option<IpAddr>) -> Arc<ClientMisses> {
        self.find_or_add(leasing, address, Blind::at_first_use(leasing))
    }

    fn find_or_add(self: &Arc<Self>, leasing: Leasing, address: Option<IpAddr>, blind: Blind) -> Arc<ClientMisses> {
        let mut clients = self.clients.lock();
        if leasing.scope == LeaseScope::Address
            && let Some(misses) = clients.by_address.get(&address).cloned()
        {
            drop(clients);
            misses.advance_to(leasing.version);
            return misses;
        }
        clients.next_id += 1;
        let misses = Arc::new(ClientMisses {
            id: clients.next_id,
            scope: leasing.scope,
            version: AtomicU64::new(leasing.version),
            keys: Mutex::new(Keys { by_hash: BTreeMap::new(), blind }),
            counters: self.counters.clone(),
            all: Arc::downgrade(self),
        });
        clients.by_id.insert(misses.id, Arc::downgrade(&misses));
        if leasing.scope == LeaseScope::Address {
            clients.by_address.insert(address, misses.clone());
        }
        let removed = clients.remove_idle();
        drop(clients);
        // They lock `clients`.
        drop(removed);
        misses
    }

    /// Removes a client that has ended.
    pub(super) fn remove(&self, id: u64) {
        self.clients.lock().by_id.remove(&id);
    }

    /// Removes the misses that are too old of all clients that are not being served, at most once a second.
    pub(super) fn sweep(&self, age: Age) {
        if self.swept_s.swap(age.now_s, Relaxed) == age.now_s {
            return;
        }
        // A client that ends meanwhile locks `clients`.
        let clients: Vec<Arc<ClientMisses>> = self.clients.lock().by_id.values().filter_map(Weak::upgrade).collect();
        for client in &clients {
            if let Some(mut keys) = client.keys.try_lock() {
                self.counters.remove_expired(&mut keys, age);
            }
        }
    }
}
