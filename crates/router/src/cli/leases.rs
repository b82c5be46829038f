//! The options of leases for clients that know none.

use clap::Args;
use lookaside_routing::{HotMisses, LeaseScope, LeaseSettings, UnleasedSet};
use std::time::Duration;

/// Leases for clients that know none.
#[derive(Clone, Debug, Args)]
pub struct LeaseOptions {
    /// Take leases at the servers for clients that know none, for all keys: a client's miss becomes a lease, and its
    /// later set is stored under it, so that no value from before a delete is stored after it. A LeaseRoute of the
    /// configuration does the same for some keys. The servers must know lease-get
    #[arg(long)]
    pub leases: bool,
    /// With --leases, over which connections a client may store what it has missed: the one of its miss, or all from
    /// its address, for clients with pools of connections
    #[arg(long, value_name = "connection|address", default_value = "connection", requires = "leases")]
    pub lease_scope: LeaseScope,
    /// With --leases, what a set, add or replace does whose client has not missed its key: it is refused (NOT_STORED),
    /// stored, or stored only if there is no value
    #[arg(long, value_name = "refuse|pass|only-if-absent", default_value = "refuse", requires = "leases")]
    pub lease_set_without_miss: UnleasedSet,
    /// With --lease-set-without-miss only-if-absent, how long after a delete of a key such a set is refused, in
    /// milliseconds
    #[arg(long, value_name = "MS", default_value_t = 2_000, requires = "leases", value_parser = clap::value_parser!(u32).range(0..=60_000))]
    pub lease_hold_off: u32,
    /// With --leases, how long a miss is held back while another client fills the key, in milliseconds; then its client
    /// reads the database, too. Less than clients wait for a reply
    #[arg(long, value_name = "MS", default_value_t = 100, requires = "leases", value_parser = clap::value_parser!(u32).range(0..=1_000))]
    pub lease_hot_miss_wait: u32,
    /// With --leases, return the value from before the delete, if the server still has it, to a miss that would be held
    /// back
    #[arg(long, requires = "leases")]
    pub lease_return_stale: bool,
    /// With --leases, how long a miss is remembered, in seconds: longer than any client reads the database
    #[arg(long, value_name = "SECONDS", default_value_t = 10, requires = "leases", value_parser = clap::value_parser!(u32).range(1..=3_600))]
    pub lease_miss_age: u32,
}

impl LeaseOptions {
    /// The settings for every tree; `None` without `--leases`.
    pub(super) fn settings(&self) -> Option<LeaseSettings> {
        let wait = Duration::from_millis(self.lease_hot_miss_wait.into());
        let unleased_set = match self.lease_set_without_miss {
            UnleasedSet::OnlyIfAbsent { .. } => UnleasedSet::OnlyIfAbsent { hold_off_ms: self.lease_hold_off },
            other => other,
        };
        self.leases.then_some(LeaseSettings {
            scope: self.lease_scope,
            unleased_set,
            hot_misses: HotMisses { wait, return_stale: self.lease_return_stale },
            miss_age_s: self.lease_miss_age,
        })
    }
}
