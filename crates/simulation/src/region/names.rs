//! The names of clusters, hosts and addresses.

pub(super) const CLUSTERS: usize = 2;
/// Servers of a cluster, besides its gutter server and its spare.
pub(super) const SERVERS: usize = 2;

/// The servers of a cluster, followed by its gutter server and its spare.
pub(super) fn server_names(cluster: usize) -> impl Iterator<Item = String> {
    let others = [format!("gutter-{cluster}"), format!("spare-{cluster}")];
    (0..SERVERS).map(move |server| format!("server-{cluster}-{server}")).chain(others)
}

pub(super) fn address(host: &str) -> lookaside_routing::Address {
    lookaside_routing::Address(format!("{host}:11211").into())
}

pub(super) fn cluster_name(cluster: usize) -> String {
    format!("cluster-{cluster}")
}

pub(super) fn application_host(cluster: usize) -> String {
    format!("app-{cluster}")
}

pub(super) fn router_host(cluster: usize) -> String {
    format!("router-{cluster}")
}
