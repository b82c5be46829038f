//! The servers' side: what connections need beyond `lookaside_client`.

pub(crate) mod flush;
pub(crate) mod tls_connector;
