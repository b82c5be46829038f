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
    /// Whether a broadcast is answered when its first tree has, and the others are asked in the background. Default
    /// false: all are awaited.
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
    /// The settings that decide at which servers a key is, or which value and flags a client gets, as the router's
    /// options that set them, separated by spaces. Settings with their default are left out. A program that reads by
    /// another setting than the routers of its cluster reads other values than they do.
    ///
    /// ```
    /// use lookaside_routing::{BigValueSettings, Defaults};
    /// assert_eq!(Defaults::default().data_options(), "");
    /// let defaults = Defaults { big_values: Some(BigValueSettings::above(1_000)), ..Defaults::default() };
    /// assert_eq!(defaults.data_options(), "--big-value-split-threshold=1000");
    /// ```
    pub fn data_options(&self) -> String {
        // Named, so that the author of a new setting decides whether it belongs here.
        let Defaults {
            prefix,
            sends_unknown_prefix_to_default,
            big_values,
            splits_shards,
            // They decide how long a reply is waited for.
            server_timeout_ms: _,
            connect_timeout_ms: _,
            place_timeouts: _,
            // What a read permit says by itself, since a configuration can have leases, too.
            leases: _,
            logs_requests: _,
            // Reads are the same with and without it.
            allows_only_gets: _,
            // Which servers a request is sent to does not depend on it, only which replies are awaited.
            broadcasts_in_background: _,
        } = self;
        let mut options = Vec::new();
        if *prefix != RoutingPrefix::default() {
            options.push(format!("--route-prefix={prefix}"));
        }
        if *sends_unknown_prefix_to_default {
            options.push("--send-invalid-route-to-default".to_owned());
        }
        if !*splits_shards {
            options.push("--disable-shard-split-route".to_owned());
        }
        // How many chunks are sent together does not show.
        if let Some(BigValueSettings { split_threshold_bytes, hides_flag, batch_size: _ }) = big_values {
            options.push(format!("--big-value-split-threshold={split_threshold_bytes}"));
            if *hides_flag {
                options.push("--big-value-hide-reply-flag".to_owned());
            }
        }
        options.join(" ")
    }

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
