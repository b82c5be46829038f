//! The tests of this crate in one program, but for those that have one of their own in Cargo.toml.

mod fakes;
mod invalidators;
mod mysql_server;
mod postgres_server;
mod routers;
mod row_rules;

mod daemon;
mod delivery;
mod election;
mod hung_routers;
mod linger;
mod lost_positions;
mod mysql_election;
mod mysql_formats;
mod mysql_gate;
mod mysql_login;
mod mysql_mysql;
mod mysql_positions;
mod mysql_row_rules;
mod mysql_source;
mod pending_deletes;
mod pipeline;
mod postgres_coverage;
mod postgres_failover;
mod postgres_row_rules;
mod postgres_rule_check;
mod postgres_slot;
mod postgres_source;
mod refusing_routers;
mod replay;
mod retries_and_blocking;
mod routers_side_by_side;
mod session_lock;
mod source_lookups;
mod sqlite;
