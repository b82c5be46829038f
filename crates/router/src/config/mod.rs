//! The routing configuration: the one that is in force, and the last good one on disk. `client` reads and watches it.

pub(crate) mod dump;
pub(crate) mod inputs;
pub(crate) mod last_good;
pub(crate) mod router_config;
