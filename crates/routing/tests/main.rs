//! The tests of this crate in one program, but for those that have one of their own in Cargo.toml.

#[path = "fakes/environment.rs"]
mod environment;
mod fakes;
#[path = "fakes/lease_world.rs"]
mod lease_world;
mod parsing;

mod big_values;
mod changed_keys;
mod cluster;
mod configuration;
mod configuration_errors;
mod configuration_properties;
mod configuration_route_errors;
mod every_verb;
mod failover;
mod failover_counts;
mod fan_out;
mod filled_by_router;
mod former_owners;
mod lease_pairing;
mod leases_for_plain_clients;
mod limits;
mod macros;
mod migrate;
mod named_routers;
mod near_cache;
mod odd_configurations;
mod other_clients;
mod pool_entries;
mod region;
mod servers_of_keys;
mod shadows;
mod shard_splits;
mod size_split;
mod spares;
mod tree_properties;
mod warm_up;
