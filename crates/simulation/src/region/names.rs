//! The names of clusters, hosts and addresses.

use lookaside_routing::Address;
use std::ops::Range;

/// Of each region.
pub(crate) const CLUSTERS: usize = 2;
pub(super) const SPARES: usize = 2;
/// The most routers of a cluster.
pub(super) const ROUTERS_MAX: usize = 3;

/// The clusters of a region. Those of all regions are numbered through.
pub(crate) fn clusters(region: usize) -> Range<usize> {
    region * CLUSTERS..(region + 1) * CLUSTERS
}

/// A router of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RouterName {
    pub(crate) cluster: usize,
    pub(crate) index: usize,
}

impl RouterName {
    pub(crate) fn host(self) -> String {
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

pub(crate) fn address(host: &str) -> Address {
    Address(format!("{host}:11211").into())
}

pub(crate) fn cluster_name(cluster: usize) -> String {
    format!("cluster-{cluster}")
}

pub(crate) fn application_host(cluster: usize) -> String {
    format!("app-{cluster}")
}

pub(crate) fn invalidator_host(region: usize) -> String {
    format!("invalidator-{region}")
}

/// The server of a region's pool of remote markers.
pub(crate) fn markers_host(region: usize) -> String {
    format!("markers-{region}")
}
