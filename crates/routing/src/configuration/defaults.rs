//! What the command line adds to a configuration: defaults of settings, and routes above every tree.

use super::big_values::BigValueSettings;
use super::leases::LeaseSettings;
use crate::RoutingPrefix;

/// Defaults of settings that a configuration may leave out, and routes above every tree.
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
    /// Timeouts by the place of a pool, which replace those of pools that name their region and cluster.
    pub place_timeouts: PlaceTimeouts,
    /// Whether a key whose prefix names no tree goes to the tree of `prefix`. Default false: it is an error.
    pub sends_unknown_prefix_to_default: bool,
    /// Whether a broadcast is answered when its first tree has, and the others are asked in the background. Default false:
    /// all are awaited.
    pub broadcasts_in_background: bool,
    /// How a `BigValueRoute` above every tree splits large values. Default `None`: none are split.
    pub big_values: Option<BigValueSettings>,
    /// Whether each request is logged by a `LoggingRoute` above every tree. Default false.
    pub logs_requests: bool,
    /// Whether clients may only read. Default false.
    pub allows_only_gets: bool,
    /// Whether `shard_splits` has an effect. Default true.
    pub splits_shards: bool,
}

/// Timeouts of servers by their pool's place (`region` and `cluster`), seen from the default prefix, in milliseconds.
/// `None`: those of the pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PlaceTimeouts {
    /// Of pools in another region.
    pub cross_region_ms: Option<u64>,
    /// Of pools in another cluster of the region.
    pub cross_cluster_ms: Option<u64>,
    /// Of pools in the same cluster.
    pub within_cluster_ms: Option<u64>,
}

impl Defaults {
    /// The timeout of the servers of a pool at `region` and `cluster`; `None` if the pool's own is not replaced.
    pub(super) fn timeout_at_ms(&self, region: &str, cluster: &str) -> Option<u64> {
        let PlaceTimeouts { cross_region_ms, cross_cluster_ms, within_cluster_ms } = self.place_timeouts;
        match (self.prefix.region() == region, self.prefix.cluster() == cluster) {
            (false, _) => cross_region_ms,
            (true, false) => cross_cluster_ms,
            (true, true) => within_cluster_ms,
        }
    }
}

impl Default for Defaults {
    fn default() -> Self {
        Defaults {
            prefix: RoutingPrefix::default(),
            server_timeout_ms: 1_000,
            connect_timeout_ms: None,
            leases: None,
            place_timeouts: PlaceTimeouts::default(),
            sends_unknown_prefix_to_default: false,
            broadcasts_in_background: false,
            big_values: None,
            logs_requests: false,
            allows_only_gets: false,
            splits_shards: true,
        }
    }
}
