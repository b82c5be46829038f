//! The configuration of a cluster's routers: as `lookaside up` writes it, with spares.

use super::guarantee::DisabledGuarantee;
use super::names::{CLUSTERS, address, markers_host, spares};
use super::plan::{PlainConnections, RunPlan};
use lookaside_routing::KeyHash;

/// How long a server is down before a spare serves. Some outages are longer.
const SPARE_AFTER_MS: u64 = 600;
/// The expiry of failed-over values, in seconds.
const GUTTER_EXPTIME_S: u32 = 4;
/// How long keys that have moved are read from their former owners, in seconds. Some changes follow sooner.
const RESIZE_WARM_UP_S: u32 = 3;
/// How long misses of plain clients are remembered, in seconds. Applications hang for less.
const MISS_AGE_S: u32 = 7;
pub(super) const SERVER_TIMEOUT_MS: u64 = 200;
/// The beginning of the route of a region with a pool of remote markers.
const MARKERS_START: &str =
    r#"{ "type": "PrefixSelectorRoute", "policies": { "marker:": "PoolRoute|markers" }, "wildcard": "#;

/// What a configuration says that may change during a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ClusterConfiguration {
    /// The hosts of the pool's servers, in the order that the hash uses.
    pub(super) servers: Vec<String>,
    /// For each of them, in tenths; `None` for a hash without weights.
    pub(super) weights: Option<Vec<u8>>,
    pub(super) spares: Vec<String>,
    pub(super) gutters: Vec<String>,
    pub(super) server_timeout_ms: u64,
    pub(super) spare_after_ms: u64,
    pub(super) gutter_exptime_s: u32,
    /// `None` if the clients of applications know leases.
    pub(super) plain_connections: Option<PlainConnections>,
    /// The server of the region's pool of remote markers; `None` if it has none.
    pub(super) markers: Option<String>,
    pub(super) stored_keys: StoredKeys,
    /// Whether few deletes are allowed at once (`RateLimitRoute`): the invalidator sends the others again.
    pub(super) limits_deletes: bool,
}

/// What stands before the route to servers and gutter if deletes are limited. There are fewer deletes than the rate
/// allows, but more at once than the burst: those that are refused pass when the invalidator sends them again.
const LIMIT_START: &str =
    r#"{ "type": "RateLimitRoute", "rates": { "deletes_rate": 100, "deletes_burst": 10 }, "target": "#;

/// Under which names servers and the gutter store keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StoredKeys {
    /// Their own.
    Unchanged,
    /// `row:1:x` (`ModifyKeyRoute`).
    Suffixed,
    /// `row:1`, `row:1::1` and `row:1::2`; each router reads one of them (`KeySplitRoute`).
    Split,
}

impl StoredKeys {
    /// What stands before and behind the route to servers and gutter.
    fn around(self) -> (&'static str, &'static str) {
        match self {
            StoredKeys::Unchanged => ("", ""),
            StoredKeys::Suffixed => (r#"{ "type": "ModifyKeyRoute", "set_key_suffix": ":x", "target": "#, "}"),
            StoredKeys::Split => (r#"{ "type": "KeySplitRoute", "replicas": 3, "destination": "#, "}"),
        }
    }
}

impl ClusterConfiguration {
    pub(super) fn of(plan: RunPlan, cluster: usize) -> ClusterConfiguration {
        ClusterConfiguration {
            servers: plan.pool_servers(cluster),
            weights: None,
            // The others are added later.
            spares: spares(cluster)[..1].to_vec(),
            gutters: plan.gutters(cluster),
            server_timeout_ms: SERVER_TIMEOUT_MS,
            spare_after_ms: SPARE_AFTER_MS,
            gutter_exptime_s: GUTTER_EXPTIME_S,
            plain_connections: plan.plain_connections,
            markers: plan.has_marker_pool.then(|| markers_host(cluster / CLUSTERS)),
            stored_keys: StoredKeys::Unchanged,
            limits_deletes: false,
        }
    }

    /// The server that `key` is read from, unless a spare or the gutter has its place; `None` with weights, or if keys are
    /// stored under other names.
    pub(super) fn owner(&self, key: &str) -> Option<&String> {
        let picker = KeyHash::default().picker_for(self.servers.len()).expect("any number of servers is valid");
        let is_known = self.weights.is_none() && self.stored_keys == StoredKeys::Unchanged;
        is_known.then(|| &self.servers[picker.pick(key.as_bytes())])
    }

    /// The text of the file. Deletes reach spares unless `disabled` is [`DisabledGuarantee::Spares`], and clients get
    /// leases unless it is [`DisabledGuarantee::PlainLeases`].
    pub(super) fn text(&self, disabled: DisabledGuarantee) -> String {
        let list = |hosts: &[String]| {
            let addresses: Vec<String> = hosts.iter().map(|host| format!("{:?}", address(host).0)).collect();
            addresses.join(", ")
        };
        let weighted = self.weights.as_ref().map(|tenths| {
            let weights: Vec<String> =
                tenths.iter().map(|tenths| format!("{:.1}", f64::from(*tenths) / 10.0)).collect();
            format!(r#""weights": [{}],"#, weights.join(", "))
        });
        let (weights, hash) =
            (weighted.as_deref().unwrap_or_default(), if weighted.is_some() { "WeightedCh3" } else { "Ch3" });
        let delete_pool = if disabled == DisabledGuarantee::Spares { "servers" } else { "wildcard" };
        let leases = self.plain_connections.filter(|_| disabled != DisabledGuarantee::PlainLeases);
        // The applications of a run with leases wait for as long.
        let lease_start = leases.map_or_else(String::new, |connections| {
            let (scope, wait_ms) = match connections {
                PlainConnections::Own => ("connection", 50),
                PlainConnections::Shared => ("address", 0),
                PlainConnections::Pool => ("address", 50),
            };
            format!(
                r#"{{ "type": "LeaseRoute", "scope": "{scope}", "hot_miss_wait_ms": {wait_ms},
                     "miss_age_s": {MISS_AGE_S}, "target": "#
            )
        });
        let lease_end = if leases.is_some() { "}" } else { "" };
        let marker_pool = self.markers.as_ref().map_or_else(String::new, |host| {
            let servers = list(std::slice::from_ref(host));
            format!(r#""markers": {{ "servers": [{servers}], "server_timeout": {SERVER_TIMEOUT_MS} }},"#)
        });
        let (markers_start, markers_end) = match self.markers {
            Some(_) => (MARKERS_START, "}"),
            None => ("", ""),
        };
        let (keys_start, keys_end) = self.stored_keys.around();
        let (limit_start, limit_end) = if self.limits_deletes { (LIMIT_START, "}") } else { ("", "") };
        let ClusterConfiguration { server_timeout_ms, spare_after_ms, gutter_exptime_s, .. } = self;
        let spares = match list(&self.spares) {
            none if none.is_empty() => none,
            spares => format!(r#", "spares": [{spares}], "spare_after_ms": {spare_after_ms}"#),
        };
        format!(
            r#"{{
                "pools": {{
                    {marker_pool}
                    "servers": {{
                        {weights} "servers": [{servers}], "server_timeout": {server_timeout_ms},
                        "resize_warm_up_s": {RESIZE_WARM_UP_S}
                    }},
                    "wildcard": {{ "inherit": "servers" {spares} }},
                    "gutter": {{ "servers": [{gutters}], "server_timeout": {server_timeout_ms} }}
                }},
                "route": {markers_start} {lease_start} {keys_start} {limit_start} {{
                    "type": "OperationSelectorRoute",
                    "operation_policies": {{
                        "delete": {{
                            "type": "AllSyncRoute",
                            "children": [
                                {{ "type": "PoolRoute", "pool": "{delete_pool}", "hash": "{hash}" }},
                                "PoolRoute|gutter"
                            ]
                        }}
                    }},
                    "default_policy": {{
                        "type": "FailoverWithExptimeRoute",
                        "normal": {{ "type": "PoolRoute", "pool": "wildcard", "hash": "{hash}" }},
                        "failover": ["PoolRoute|gutter"],
                        "failover_exptime": {gutter_exptime_s}
                    }}
                }} {limit_end} {keys_end} {lease_end} {markers_end}
            }}"#,
            servers = list(&self.servers),
            gutters = list(&self.gutters),
        )
    }
}
