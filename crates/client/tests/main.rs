//! The tests of this crate in one program, but for those that have one of their own in Cargo.toml.

mod fake;

mod batching;
mod command_connection;
mod config_file;
mod connect_and_resolve;
mod destination;
mod destination_limits;
mod destination_outages;
mod direct;
mod direct_configurations;
mod direct_faults;
mod direct_fills;
mod direct_leases;
mod direct_named_routers;
mod direct_replicas;
mod direct_udp;
mod late_lookups;
mod network;
mod read_through;
mod remote_markers;
mod store_cas;
mod stream_sync;
mod tko;
mod typed_values;
mod updates;
mod window_model;
