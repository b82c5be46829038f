//! One thread's loop over its sockets, and what the threads hand to each other.

pub(crate) mod accept_pause;
pub(crate) mod acceptor;
pub(crate) mod buffer_accounting;
pub(crate) mod connection;
pub(crate) mod connection_table;
pub(crate) mod malloc_trim;
pub(crate) mod peer_address;
pub(crate) mod round;
pub(crate) mod tls;
pub(crate) mod udp;
pub(crate) mod worker;
