//! The side of the clients: their connections, and bytes to batches to bytes.

pub(crate) mod buffer_pool;
pub(crate) mod flow_control;
pub(crate) mod limits;
pub(crate) mod listen;
pub(crate) mod parse;
pub(crate) mod reply;
pub(crate) mod session;
pub(crate) mod tls_accept;
