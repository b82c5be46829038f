//! The names of clusters, hosts and addresses.

use lookaside_routing::Address;

pub(super) const CLUSTERS: usize = 2;
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

/// The first `count` servers of a cluster, besides its gutter servers and its spares.
pub(super) fn servers(cluster: usize, count: usize) -> Vec<String> {
    (0..count).map(|server| format!("server-{cluster}-{server}")).collect()
}

/// The first `count` gutter servers of a cluster.
pub(super) fn gutters(cluster: usize, count: usize) -> Vec<String> {
    (0..count).map(|gutter| format!("gutter-{cluster}-{gutter}")).collect()
}

pub(super) fn spares(cluster: usize) -> Vec<String> {
    (0..SPARES).map(|spare| format!("spare-{cluster}-{spare}")).collect()
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
