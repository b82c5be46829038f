//! The processes and ports of a region, and the configuration of its routers.
//!
//! ```text
//! port + i                router of cluster i
//! port + 9                invalidator (statistics)
//! port + 10 (i + 1) + j   server j of cluster i
//! port + 10 (i + 1) + 9   gutter server of cluster i
//! ```

use serde_json::{Value, json};

/// The most clusters: their routers share ten ports with the invalidator.
pub const CLUSTERS_MAX: u16 = 9;
/// The most servers of a cluster, besides its gutter server.
pub const SERVERS_MAX: u16 = 9;
/// The size of the port range of a region.
pub const PORTS_MAX: u16 = 10 * (CLUSTERS_MAX + 1);

/// The expiry of failed-over values, in seconds: long enough to take load off the database, short enough that the
/// gutter needs no invalidation of its own (§3.3).
const GUTTER_EXPTIME_S: u32 = 10;

const CLUSTER_NAMES: [&str; CLUSTERS_MAX as usize] =
    ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine"];

/// A region on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegionPlan {
    /// Its name, the first part of its routing prefixes.
    pub name: &'static str,
    /// The frontend clusters.
    pub clusters: Vec<Cluster>,
    /// The port on which the invalidator serves `stats`.
    pub invalidator_port: u16,
}

/// A frontend cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cluster {
    /// Its name, the second part of its routing prefix.
    pub name: &'static str,
    /// The routing prefix of its keys.
    pub routing_prefix: String,
    /// The port to which applications connect.
    pub router_port: u16,
    /// The servers of the wildcard pool.
    pub server_ports: Vec<u16>,
    /// The gutter server.
    pub gutter_port: u16,
}

impl RegionPlan {
    /// Assigns ports from `port` on to `clusters` clusters of `servers` servers.
    pub fn new(name: &'static str, port: u16, clusters: u16, servers: u16) -> RegionPlan {
        let cluster = |index: u16| {
            let first = port + 10 * (index + 1);
            let cluster = CLUSTER_NAMES[usize::from(index)];
            Cluster {
                name: cluster,
                routing_prefix: format!("/{name}/{cluster}/"),
                router_port: port + index,
                server_ports: (first..first + servers).collect(),
                gutter_port: first + 9,
            }
        };
        RegionPlan { name, clusters: (0..clusters).map(cluster).collect(), invalidator_port: port + 9 }
    }

    /// All ports, each with its purpose.
    pub fn ports(&self) -> Vec<(u16, String)> {
        let mut ports = self.servers();
        ports.push((self.invalidator_port, "the invalidator's statistics".to_owned()));
        for cluster in &self.clusters {
            ports.push((cluster.router_port, format!("the router of cluster {}", cluster.name)));
        }
        ports.sort();
        ports
    }

    /// The ports of the servers only.
    pub fn servers(&self) -> Vec<(u16, String)> {
        let mut ports = Vec::new();
        for cluster in &self.clusters {
            ports.push((cluster.gutter_port, format!("the gutter server of cluster {}", cluster.name)));
            for (index, port) in cluster.server_ports.iter().enumerate() {
                ports.push((*port, format!("server {} of cluster {}", index + 1, cluster.name)));
            }
        }
        ports
    }

    /// The endpoints of the clusters, in their order.
    pub fn endpoints(&self) -> Vec<String> {
        self.clusters.iter().map(|cluster| local(cluster.router_port)).collect()
    }

    /// The configuration of every router: all clusters, each under its routing prefix, so that `/*/*/key` reaches all.
    pub fn router_configuration(&self) -> Value {
        let mut pools = serde_json::Map::new();
        for cluster in &self.clusters {
            let servers: Vec<String> = cluster.server_ports.iter().copied().map(local).collect();
            pools.insert(cluster.pool("wildcard"), json!({ "servers": servers }));
            pools.insert(cluster.pool("gutter"), json!({ "servers": [local(cluster.gutter_port)] }));
        }
        let routes: Vec<Value> = self.clusters.iter().map(Cluster::route).collect();
        json!({ "pools": pools, "routes": routes })
    }
}

impl Cluster {
    fn pool(&self, role: &str) -> String {
        format!("{}.{role}", self.name)
    }

    /// Deletes go to the server and to the gutter that may replace it. Other requests go to the server, or to the
    /// gutter while the server does not reply.
    fn route(&self) -> Value {
        let wildcard = format!("PoolRoute|{}", self.pool("wildcard"));
        let gutter = format!("PoolRoute|{}", self.pool("gutter"));
        json!({
            "aliases": [self.routing_prefix],
            "route": {
                "type": "PrefixSelectorRoute",
                "policies": {},
                "wildcard": {
                    "type": "OperationSelectorRoute",
                    "operation_policies": {
                        "delete": { "type": "AllSyncRoute", "children": [wildcard, gutter] },
                    },
                    "default_policy": {
                        "type": "FailoverWithExptimeRoute",
                        "normal": wildcard,
                        "failover": [gutter],
                        "failover_exptime": GUTTER_EXPTIME_S,
                    },
                },
            },
        })
    }
}

/// `127.0.0.1:port`
pub fn local(port: u16) -> String {
    format!("127.0.0.1:{port}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_distinct_and_within_the_range() {
        let plan = RegionPlan::new("local", 5000, CLUSTERS_MAX, SERVERS_MAX);
        let mut ports: Vec<u16> = plan.ports().into_iter().map(|(port, _)| port).collect();
        assert_eq!(ports.len(), 1 + usize::from(CLUSTERS_MAX * (SERVERS_MAX + 2)));
        ports.dedup();
        assert_eq!(ports.len(), 1 + usize::from(CLUSTERS_MAX * (SERVERS_MAX + 2)));
        assert!(ports.iter().all(|port| (5000..5000 + PORTS_MAX).contains(port)));
    }

    #[test]
    fn every_router_knows_every_cluster() {
        let configuration = RegionPlan::new("local", 5000, 2, 2).router_configuration();
        assert_eq!(configuration["routes"][1]["aliases"], json!(["/local/two/"]));
        assert_eq!(configuration["pools"]["two.wildcard"]["servers"], json!(["127.0.0.1:5020", "127.0.0.1:5021"]));
        assert_eq!(configuration["pools"]["one.gutter"]["servers"], json!(["127.0.0.1:5019"]));
    }
}
