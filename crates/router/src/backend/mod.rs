//! The side of the servers: what a connection needs beyond `lookaside_client`.

pub(crate) mod flush;
pub(crate) mod tls_connector;
