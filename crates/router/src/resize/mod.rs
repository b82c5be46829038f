//! A change of the configuration that moves keys between servers
//! ([ADR 012](../../../../docs/adr/012-resize.md)): its steps, and the work that they need at the servers.

pub(crate) mod coverage;
pub(crate) mod identity;
pub(crate) mod new_servers;
pub(crate) mod pool_servers;
pub(crate) mod purge;
pub(crate) mod report;
