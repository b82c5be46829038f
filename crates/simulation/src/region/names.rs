//! The names of clusters, hosts and addresses.

/// Frontend clusters.
pub(super) const CLUSTERS: usize = 2;
/// Servers of a cluster, besides its gutter server and its spare.
pub(super) const SERVERS: usize = 2;

/// The servers of a cluster, followed by its gutter server and its spare.
pub(super) fn server_names(cluster: usize) -> impl Iterator<Item = String> {
    let others = [format!("gutter-{cluster}"), format!("spare-{cluster}")];
    (0..SERVERS).map(move |server| format!("server-{cluster}-{server}")).chain(others)
}

/// The address on which the program of `host` listens.
pub(super) fn address(host: &str) -> lookaside_routing::Address {
    lookaside_routing::Address(format!("{host}:11211").into())
}

pub(super) fn cluster_name(cluster: usize) -> String {
    format!("cluster-{cluster}")
}

/// The host of a cluster's application.
pub(super) fn application_host(cluster: usize) -> String {
    format!("app-{cluster}")
}

/// The host of a cluster's router.
pub(super) fn router_host(cluster: usize) -> String {
    format!("router-{cluster}")
}
