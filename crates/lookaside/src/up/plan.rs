//! The processes and ports of a region, and the configuration of its routers.
//!
//! ```text
//! port + i                router of cluster i
//! port + 9                invalidator (statistics)
//! port + 10 (i + 1) + j   server j of cluster i
//! port + 10 (i + 1) + 9   gutter server of cluster i
//! port + 100              server of the regional pool, if there are several regions
//! port + 109              gutter server of the regional pool
//! port + 110              database, if it is started with the region and has a port
//! port + 111              the link to the master database, in a replica region
//! port + 112              server of remote markers, if there are several regions
//! ```
//!
//! Of several regions each begins [`REGION_PORTS`] after the one before.

use serde_json::{Value, json};

/// The most clusters: their routers share ten ports with the invalidator.
pub const CLUSTERS_MAX: u16 = 9;
/// The most servers of a cluster, besides its gutter server.
pub const SERVERS_MAX: u16 = 9;
/// The most regions.
pub const REGIONS_MAX: u16 = 3;
/// The size of the port range of all regions.
pub const PORTS_MAX: u16 = REGION_PORTS * REGIONS_MAX;
/// The first ports of two regions differ by this.
const REGION_PORTS: u16 = 200;
/// The first port of what the clusters of a region share, from the region's first on.
const SHARED_PORTS: u16 = 100;

/// Keys with this prefix are in the regional pool, if there are several regions (§4.2).
const REGIONAL_PREFIX: &str = "regional:";

/// Keys with this prefix are remote markers, if there are several regions (§5). That of the client library's default.
const MARKER_PREFIX: &str = "marker:";
const MARKER_POOL: &str = "markers";

/// The expiry of failed-over values, in seconds: long enough to take load off the database, short enough that the
/// gutter needs no invalidation of its own (§3.3).
const GUTTER_EXPTIME_S: u32 = 10;

/// The region that has no others beside it.
const ONLY_REGION: &str = "local";
/// The first is the master at the start.
const REGION_NAMES: [&str; REGIONS_MAX as usize] = ["east", "west", "north"];
const CLUSTER_NAMES: [&str; CLUSTERS_MAX as usize] =
    ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine"];

/// A region on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegionPlan {
    /// Its name, the first part of its routing prefixes.
    pub name: &'static str,
    /// The frontend clusters.
    pub clusters: Vec<Cluster>,
    /// The servers that its clusters share; `None` if there is only one region.
    pub regional: Option<ServerGroup>,
    /// The port of the server that has the remote markers of all clusters, and evicts none; `None` if there is only one
    /// region.
    pub marker_port: Option<u16>,
    /// The port on which the invalidator serves `stats`.
    pub invalidator_port: u16,
    /// The port of its database.
    pub database_port: u16,
    /// The port by which its database reaches the master.
    pub link_port: u16,
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
    /// The wildcard pool.
    pub servers: ServerGroup,
}

/// The servers of a pool, and the gutter server that replaces one that does not reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerGroup {
    /// The first part of the names of its pools and processes.
    pub name: &'static str,
    /// The servers.
    pub server_ports: Vec<u16>,
    /// The gutter server.
    pub gutter_port: u16,
}

/// Assigns ports from `port` on to `regions` regions of `clusters` clusters of `servers` servers. The first is the
/// master.
pub fn plan_regions(port: u16, regions: u16, clusters: u16, servers: u16) -> Vec<RegionPlan> {
    if regions == 1 {
        return vec![RegionPlan::new(ONLY_REGION, port, clusters, servers)];
    }
    let region = |index: u16| {
        let port = port + REGION_PORTS * index;
        let plan = RegionPlan::new(REGION_NAMES[usize::from(index)], port, clusters, servers);
        let first = port + SHARED_PORTS;
        let regional = ServerGroup { name: "regional", server_ports: vec![first], gutter_port: first + 9 };
        RegionPlan { regional: Some(regional), marker_port: Some(first + 12), ..plan }
    };
    (0..regions).map(region).collect()
}

impl RegionPlan {
    fn new(name: &'static str, port: u16, clusters: u16, servers: u16) -> RegionPlan {
        let cluster = |index: u16| {
            let first = port + 10 * (index + 1);
            let cluster = CLUSTER_NAMES[usize::from(index)];
            Cluster {
                name: cluster,
                routing_prefix: format!("/{name}/{cluster}/"),
                router_port: port + index,
                servers: ServerGroup {
                    name: cluster,
                    server_ports: (first..first + servers).collect(),
                    gutter_port: first + 9,
                },
            }
        };
        RegionPlan {
            name,
            clusters: (0..clusters).map(cluster).collect(),
            regional: None,
            marker_port: None,
            invalidator_port: port + 9,
            database_port: port + SHARED_PORTS + 10,
            link_port: port + SHARED_PORTS + 11,
        }
    }

    /// The servers of its clusters and of the regional pool.
    pub fn server_groups(&self) -> impl Iterator<Item = &ServerGroup> {
        self.clusters.iter().map(|cluster| &cluster.servers).chain(&self.regional)
    }

    /// The ports of its database, each with its purpose.
    pub fn database_ports(&self) -> Vec<(u16, String)> {
        vec![
            (self.database_port, format!("the database of region {}", self.name)),
            (self.link_port, format!("the link to the master database in region {}", self.name)),
        ]
    }

    /// The ports of servers, routers and the invalidator, each with its purpose.
    pub fn daemons(&self) -> Vec<(u16, String)> {
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
        for group in self.server_groups() {
            let owner = match self.regional.as_ref() == Some(group) {
                true => "the regional pool".to_owned(),
                false => format!("cluster {}", group.name),
            };
            ports.push((group.gutter_port, format!("the gutter server of {owner}")));
            for (index, port) in group.server_ports.iter().enumerate() {
                ports.push((*port, format!("server {} of {owner}", index + 1)));
            }
        }
        ports.extend(self.marker_port.map(|port| (port, "the server of remote markers".to_owned())));
        ports
    }

    /// The endpoints of the clusters, in their order.
    pub fn endpoints(&self) -> Vec<String> {
        self.clusters.iter().map(|cluster| local(cluster.router_port)).collect()
    }

    /// The configuration of every router: all clusters of the region, each under its routing prefix, so that `/*/*/key`
    /// reaches all. Clusters of other regions get their deletes with the replication of their databases.
    pub fn router_configuration(&self) -> Value {
        let mut pools = serde_json::Map::new();
        for group in self.server_groups() {
            let servers: Vec<String> = group.server_ports.iter().copied().map(local).collect();
            pools.insert(group.pool("wildcard"), json!({ "servers": servers }));
            pools.insert(group.pool("gutter"), json!({ "servers": [local(group.gutter_port)] }));
        }
        let mut policies = serde_json::Map::new();
        if let Some(regional) = &self.regional {
            policies.insert(REGIONAL_PREFIX.to_owned(), regional.route());
        }
        if let Some(port) = self.marker_port {
            // No gutter: it would not have the markers, and say so as if there were none.
            pools.insert(MARKER_POOL.to_owned(), json!({ "servers": [local(port)] }));
            policies.insert(MARKER_PREFIX.to_owned(), format!("PoolRoute|{MARKER_POOL}").into());
        }
        let route = |cluster: &Cluster| {
            json!({
                "aliases": [cluster.routing_prefix],
                "route": {
                    "type": "PrefixSelectorRoute",
                    "policies": policies,
                    "wildcard": cluster.servers.route(),
                },
            })
        };
        // For clients that read servers directly.
        let routers = |cluster: &Cluster| (cluster.routing_prefix.clone(), json!([local(cluster.router_port)]));
        let routers: serde_json::Map<String, Value> = self.clusters.iter().map(routers).collect();
        let routes: Vec<Value> = self.clusters.iter().map(route).collect();
        json!({ "pools": pools, "routes": routes, "routers": routers })
    }
}

impl ServerGroup {
    fn pool(&self, role: &str) -> String {
        format!("{}.{role}", self.name)
    }

    /// Deletes go to the server and to the gutter that may replace it. Other requests go to the server, or to the
    /// gutter while the server does not reply.
    fn route(&self) -> Value {
        let wildcard = format!("PoolRoute|{}", self.pool("wildcard"));
        let gutter = format!("PoolRoute|{}", self.pool("gutter"));
        json!({
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
        for (regions, per_region) in [(1, 3), (REGIONS_MAX, 6)] {
            let plans = plan_regions(5000, regions, CLUSTERS_MAX, SERVERS_MAX);
            let ports_of = |plan: &RegionPlan| [plan.daemons(), plan.database_ports()].concat();
            let mut ports: Vec<u16> = plans.iter().flat_map(ports_of).map(|(port, _)| port).collect();
            let expected = usize::from(regions * (per_region + CLUSTERS_MAX * (SERVERS_MAX + 2)));
            ports.sort_unstable();
            assert_eq!(ports.len(), expected);
            ports.dedup();
            assert_eq!(ports.len(), expected);
            assert!(ports.iter().all(|port| (5000..5000 + PORTS_MAX).contains(port)));
        }
    }

    #[test]
    fn every_router_knows_every_cluster_of_its_region() {
        let configuration = plan_regions(5000, 1, 2, 2)[0].router_configuration();
        assert_eq!(configuration["routes"][1]["aliases"], json!(["/local/two/"]));
        let routers = json!({ "/local/one/": ["127.0.0.1:5000"], "/local/two/": ["127.0.0.1:5001"] });
        assert_eq!(configuration["routers"], routers);
        assert_eq!(configuration["pools"]["two.wildcard"]["servers"], json!(["127.0.0.1:5020", "127.0.0.1:5021"]));
        assert_eq!(configuration["pools"]["one.gutter"]["servers"], json!(["127.0.0.1:5019"]));
        assert_eq!(configuration["routes"][0]["route"]["policies"], json!({}));
    }

    #[test]
    fn of_several_regions_each_has_its_own_clusters_and_regional_pool() {
        let configuration = plan_regions(5000, 2, 1, 1)[1].router_configuration();
        assert_eq!(configuration["routes"].as_array().unwrap().len(), 1);
        assert_eq!(configuration["routes"][0]["aliases"], json!(["/west/one/"]));
        assert_eq!(configuration["pools"]["one.wildcard"]["servers"], json!(["127.0.0.1:5210"]));
        assert_eq!(configuration["pools"]["regional.wildcard"]["servers"], json!(["127.0.0.1:5300"]));
        let policies = &configuration["routes"][0]["route"]["policies"];
        assert_eq!(policies[REGIONAL_PREFIX]["default_policy"]["normal"], "PoolRoute|regional.wildcard");
        let is_of_markers = |prefix: &str| policies[prefix] == "PoolRoute|markers";
        assert!(is_of_markers(&lookaside_client::MarkerSettings::default().key_prefix));
        assert_eq!(configuration["pools"]["markers"]["servers"], json!(["127.0.0.1:5312"]));
    }
}
