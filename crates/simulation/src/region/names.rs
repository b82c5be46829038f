//! The names of clusters, hosts and addresses.

use lookaside_routing::{Address, KeyHash};

pub(super) const CLUSTERS: usize = 2;
/// Servers of a cluster, besides its gutter server and its spares.
pub(super) const SERVERS: usize = 2;
pub(super) const SPARES: usize = 2;
/// The most routers of a cluster.
pub(super) const ROUTERS_MAX: usize = 3;

/// A router of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct RouterName {
    pub(super) cluster: usize,
    pub(super) index: usize,
}

impl RouterName {
    pub(super) fn host(self) -> String {
        format!("router-{}-{}", self.cluster, self.index)
    }
}

/// The servers of a cluster's pool.
pub(super) fn pool_servers(cluster: usize) -> Vec<String> {
    (0..SERVERS).map(|server| format!("server-{cluster}-{server}")).collect()
}

/// The server that has `key`.
pub(super) fn owner(cluster: usize, key: &str) -> String {
    let picker = KeyHash::default().picker_for(SERVERS).expect("any number of servers is valid");
    pool_servers(cluster).swap_remove(picker.pick(key.as_bytes()))
}

pub(super) fn gutter(cluster: usize) -> String {
    format!("gutter-{cluster}")
}

pub(super) fn spares(cluster: usize) -> Vec<String> {
    (0..SPARES).map(|spare| format!("spare-{cluster}-{spare}")).collect()
}

/// All servers of a cluster.
pub(super) fn server_names(cluster: usize) -> Vec<String> {
    [pool_servers(cluster), vec![gutter(cluster)], spares(cluster)].concat()
}

pub(super) fn address(host: &str) -> Address {
    Address(format!("{host}:11211").into())
}

pub(super) fn cluster_name(cluster: usize) -> String {
    format!("cluster-{cluster}")
}

pub(super) fn application_host(cluster: usize) -> String {
    format!("app-{cluster}")
}
