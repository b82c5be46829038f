//! The tests of this crate in one program, but for those that have one of their own in Cargo.toml.

#[path = "support/fake_network.rs"]
mod fake_network;
#[path = "support/fake_server.rs"]
mod fake_server;
#[path = "support/peer_cluster.rs"]
mod peer_cluster;
#[path = "support/session_over_network.rs"]
mod session_over_network;
#[path = "support/spool_router.rs"]
mod spool_router;
mod support;
#[path = "support/tree_requests.rs"]
mod tree_requests;

mod binary;
mod daemon;
mod hung_servers;
mod login;
mod plain_leases;
mod read_permits;
mod session;
mod session_deletes;
mod session_limits;
mod spares;
mod spool;
mod spool_configurations;
mod spool_damage;
mod spool_fences;
mod spool_flushes;
mod spool_forwarding;
mod spool_hung;
mod spool_limits;
mod spool_peer_versions;
mod spool_peers;
mod start_gate;
