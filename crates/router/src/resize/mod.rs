//! A change of the configuration that moves keys between servers
//! ([ADR 012](../../../../docs/adr/012-resize.md)): no server holds a copy of a key whose deletes do not reach it.
//!
//! | module | contents |
//! |---|---|
//! | `coverage/` | the steps, as a state machine, and a model that checks them |
//! | `pool_servers`, `departed` | what it knows of a configuration, and of servers that left |
//! | `start`, `driver`, `work` | execute the steps: `driver/initial` is the state at the start, `driver/step_log` the log |
//! | `store`, `report`, `peer_poll` | the state on disk, and as other routers see it |
//! | `history`, `recorder` | what all routers of the cluster share, in etcd |
//! | `new_servers`, `purge`, `leases` | flush a server that joins a pool; remove misplaced copies; void leases |
//! | `status` | what operators see |

pub(crate) mod coverage;
mod departed;
pub(crate) mod driver;
pub(crate) mod history;
mod leases;
pub(crate) mod new_servers;
mod peer_poll;
pub(crate) mod pool_servers;
pub(crate) mod purge;
mod recorder;
pub(crate) mod report;
pub(crate) mod start;
pub(crate) mod status;
pub(crate) mod store;
pub(crate) mod work;

#[cfg(test)]
mod tests;
