//! A change of the configuration that moves keys between servers
//! ([ADR 012](../../../../docs/adr/012-resize.md)): its steps, and the work that they need at the servers.

pub(crate) mod new_servers;
pub(crate) mod purge;
