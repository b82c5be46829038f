//! The routing configuration: where it comes from, and the one that is in force.

pub(crate) mod etcd;
pub(crate) mod file;
pub(crate) mod last_good;
pub(crate) mod router_config;
pub(crate) mod watcher;
