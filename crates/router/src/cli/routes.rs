//! The options of routing: prefixes, and routes above every tree.

use clap::Args;
use lookaside_routing::{BigValueSettings, PlaceTimeouts, RoutingPrefix};

/// Options of routing that a configuration does not have.
#[derive(Args, Clone, Debug)]
pub struct RouteOptions {
    /// The routing prefix of keys without one, `/region/cluster/`
    #[arg(short = 'R', long, value_name = "PREFIX", default_value = "/././")]
    pub route_prefix: String,
    /// Route keys whose prefix names no tree as keys without a prefix; otherwise they are errors
    #[arg(long)]
    pub send_invalid_route_to_default: bool,
    /// Answer a request for several clusters (`/*/*/key`) when the first of them has, that of --route-prefix if it is
    /// one of them, as mcrouter does; the others get it in the background. A delete that fails there is not reported,
    /// so not for routers that an invalidator uses
    #[arg(long)]
    pub broadcast_in_background: bool,
    /// Let clients read only: set, add, replace, append, prepend, cas and lease-set are NOT_STORED, delete, touch, incr
    /// and decr NOT_FOUND, and flush_all is refused
    #[arg(long)]
    pub allow_only_gets: bool,
    /// Log each request with its outcome: keys, not values
    #[arg(long)]
    pub enable_logging_route: bool,
    /// Split values above this size into chunks, in bytes, as a BigValueRoute above every tree does; 0 for never
    #[arg(long, value_name = "BYTES", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=1 << 30))]
    pub big_value_split_threshold: u32,
    /// The chunks of one value that are sent together; 0 for all
    #[arg(long, value_name = "CHUNKS", default_value_t = BigValueSettings::BATCH_SIZE as u32)]
    pub big_value_batch_size: u32,
    /// Hide the flag 0x8000, by which the head of a split value is known, from clients that get the value
    #[arg(long)]
    pub big_value_hide_reply_flag: bool,
    /// Take shards that the configuration splits (shard_splits) for whole ones
    #[arg(long)]
    pub disable_shard_split_route: bool,
    /// Timeout of servers in pools with another "region" than --route-prefix, in milliseconds; 0 for that of the pool
    #[arg(long, value_name = "MS", default_value_t = 0)]
    pub cross_region_timeout_ms: u32,
    /// The same for pools with this "region" and another "cluster"
    #[arg(long, value_name = "MS", default_value_t = 0)]
    pub cross_cluster_timeout_ms: u32,
    /// The same for pools with this "region" and "cluster"
    #[arg(long, value_name = "MS", default_value_t = 0)]
    pub within_cluster_timeout_ms: u32,
}

impl RouteOptions {
    pub(super) fn prefix(&self) -> Result<RoutingPrefix, String> {
        RoutingPrefix::parse(&self.route_prefix).map_err(|error| format!("--route-prefix: {error}"))
    }

    pub(super) fn big_values(&self) -> Option<BigValueSettings> {
        let batch_size = self.big_value_batch_size as usize;
        let settings = BigValueSettings::above(self.big_value_split_threshold as usize);
        let hides_flag = self.big_value_hide_reply_flag;
        (self.big_value_split_threshold > 0).then_some(BigValueSettings { batch_size, hides_flag, ..settings })
    }

    pub(super) fn place_timeouts(&self) -> PlaceTimeouts {
        let timeout = |ms: u32| (ms > 0).then_some(u64::from(ms));
        PlaceTimeouts {
            cross_region_ms: timeout(self.cross_region_timeout_ms),
            cross_cluster_ms: timeout(self.cross_cluster_timeout_ms),
            within_cluster_ms: timeout(self.within_cluster_timeout_ms),
        }
    }
}
