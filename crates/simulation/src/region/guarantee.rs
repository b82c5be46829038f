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
    /// Routers do not wait for the permits of clients that read servers directly.
    Permits,
    /// Values of former owners are copied to new ones without a lease, after a change of a pool's servers.
    CopyLeases,
    /// Servers keep their leases when keys move away, and when they return to a pool.
    LeaseVoids,
}

const NAMES: [(DisabledGuarantee, &str); 15] = [
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
    (DisabledGuarantee::Permits, "permits"),
    (DisabledGuarantee::CopyLeases, "copy-leases"),
    (DisabledGuarantee::LeaseVoids, "lease-voids"),
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
