//! Defaults of settings that a configuration may leave out.

use super::leases::LeaseSettings;
use crate::RoutingPrefix;

/// Defaults of settings that a configuration may leave out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Defaults {
    /// The routing prefix of the tree for keys without one, and of the only tree of a `route`. Default `/././`.
    pub prefix: RoutingPrefix,
    /// How long to wait for a reply, in milliseconds. Default 1000, as in mcrouter.
    pub server_timeout_ms: u64,
    /// How long to wait for a connection, in milliseconds. Default `None`: as long as for a reply.
    pub connect_timeout_ms: Option<u64>,
    /// Leases for clients that know none, taken for every tree. Default `None`: only where the configuration says so.
    pub leases: Option<LeaseSettings>,
}

impl Default for Defaults {
    fn default() -> Self {
        let prefix = RoutingPrefix::default();
        Defaults { prefix, server_timeout_ms: 1_000, connect_timeout_ms: None, leases: None }
    }
}
