//! Guarantees that are disabled on purpose, to test that the checker finds it.

use std::{fmt, str::FromStr};

/// A guarantee that is disabled on purpose, to test that the checker finds it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DisabledGuarantee {
    /// None.
    #[default]
    Nothing,
    /// The invalidator deletes as soon as the log shows a commit, before readers see it.
    Gate,
    /// Applications fill by plain sets instead of under a lease.
    Leases,
    /// Routers take no leases for applications whose clients know none.
    PlainLeases,
    /// The invalidator treats deletes as applied that no router has acknowledged.
    Acknowledgement,
    /// Routers read a server that misses deletes which they have acknowledged.
    Fence,
    /// The routers of a cluster have spools and are not each other's peers: one reads a server that misses deletes
    /// which another has acknowledged.
    Peers,
    /// A router that is killed loses the deletes in its spool.
    Spool,
    /// The invalidator waits before it sends deletes.
    Promptness,
    /// Deletes do not reach the spares, only the servers that they replace.
    Spares,
    /// Routers read by a new configuration at once, and send deletes only to the servers that it names.
    Resize,
    /// As [`DisabledGuarantee::Resize`], where only the servers of the gutter pool change.
    Gutter,
    /// A router that has lost the file of the configurations that it covers reaches no peer when it starts, and reads
    /// by the newest configuration.
    Coverage,
    /// The routers of a cluster share no history of changes, and lose their files of covered configurations all at
    /// once.
    History,
    /// Routers do not wait for the permits of clients that read servers directly.
    Permits,
    /// Values of former owners are copied to new ones without a lease, after a change of a pool's servers.
    CopyLeases,
    /// Servers keep their leases when keys move away, and when they return to a pool.
    LeaseVoids,
    /// The next process of a router's upgrade continues from the covered configurations with which its predecessor had
    /// started.
    Takeover,
    /// The next process of a router's upgrade gets neither the deletes in the spool of its predecessor nor its fences.
    TakeoverSpool,
    /// Applications of replica regions set no remote markers, and look for none.
    Markers,
    /// All writes of a key share one remote marker, as in the paper, so that the replication of one deletes the marker
    /// of another.
    MarkerTokens,
    /// Invalidators of replica regions read the log of the master's database.
    ReplicaLog,
    /// A replica that is promoted accepts writes before all applications use it as the master.
    Promotion,
    /// The monitor's clock goes at half of the speed of the servers' clocks.
    MonitorClock,
}

impl DisabledGuarantee {
    /// Whether it is one of several regions.
    pub fn needs_regions(self) -> bool {
        use DisabledGuarantee::{MarkerTokens, Markers, MonitorClock, Promotion, ReplicaLog};
        matches!(self, Markers | MarkerTokens | ReplicaLog | Promotion | MonitorClock)
    }
}

const NAMES: [(DisabledGuarantee, &str); 23] = [
    (DisabledGuarantee::Gate, "gate"),
    (DisabledGuarantee::Leases, "leases"),
    (DisabledGuarantee::PlainLeases, "plain-leases"),
    (DisabledGuarantee::Acknowledgement, "acknowledgement"),
    (DisabledGuarantee::Fence, "fence"),
    (DisabledGuarantee::Peers, "peers"),
    (DisabledGuarantee::Spool, "spool"),
    (DisabledGuarantee::Promptness, "promptness"),
    (DisabledGuarantee::Spares, "spares"),
    (DisabledGuarantee::Resize, "resize"),
    (DisabledGuarantee::Gutter, "gutter"),
    (DisabledGuarantee::Coverage, "coverage"),
    (DisabledGuarantee::History, "history"),
    (DisabledGuarantee::Permits, "permits"),
    (DisabledGuarantee::CopyLeases, "copy-leases"),
    (DisabledGuarantee::LeaseVoids, "lease-voids"),
    (DisabledGuarantee::Takeover, "takeover"),
    (DisabledGuarantee::TakeoverSpool, "takeover-spool"),
    (DisabledGuarantee::Markers, "markers"),
    (DisabledGuarantee::MarkerTokens, "marker-tokens"),
    (DisabledGuarantee::ReplicaLog, "replica-log"),
    (DisabledGuarantee::Promotion, "promotion"),
    (DisabledGuarantee::MonitorClock, "monitor-clock"),
];

impl FromStr for DisabledGuarantee {
    type Err = String;

    fn from_str(word: &str) -> Result<DisabledGuarantee, String> {
        let named = NAMES.iter().find(|(_, name)| *name == word);
        named.map(|(guarantee, _)| *guarantee).ok_or_else(|| {
            let names: Vec<&str> = NAMES.iter().map(|(_, name)| *name).collect();
            format!("{word} is none of: {}", names.join(", "))
        })
    }
}

impl fmt::Display for DisabledGuarantee {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = NAMES.iter().find(|(guarantee, _)| guarantee == self);
        f.write_str(named.map_or("nothing", |(_, name)| name))
    }
}
