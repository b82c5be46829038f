//! The routing configuration: where it comes from, how it is watched, and the one that is in force.

pub(crate) mod etcd;
pub(crate) mod file;
pub(crate) mod host;
pub(crate) mod last_good;
pub(crate) mod router_config;
pub(crate) mod source;
pub(crate) mod watcher;
