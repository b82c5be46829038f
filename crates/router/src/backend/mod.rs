//! The servers' side, as far as `lookaside_client` does not provide it.

pub(crate) mod flush;
pub(crate) mod keepalive;
pub(crate) mod tls_connector;
