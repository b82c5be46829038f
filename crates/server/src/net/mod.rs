//! One thread's loop over its sockets, and what threads pass to each other.
//!
//! | file | |
//! |---|---|
//! | [`acceptor`], [`accept_pause`] | the main thread accepts, and gives each connection to a worker |
//! | [`worker_handle`], [`worker`] | a worker's mailbox; its event loop |
//! | [`round`] | one pass over all ready connections: read, scan, prefetch, execute, send |
//! | [`connection`], [`socket`], [`tls`] | one client's bytes |
//! | [`udp`] | the same for datagrams |
//! | [`watchers`] | the thread that sends events to clients that `watch` |
//! | [`state`] | what all threads share of connections |
//! | [`deadlines`] | until when clients must have finished their handshakes and logins |
//! | [`connection_table`], [`peer_address`], [`buffer_accounting`], [`malloc_trim`] | what is known of all connections |

pub(crate) mod accept_pause;
pub(crate) mod acceptor;
pub(crate) mod buffer_accounting;
pub(crate) mod connection;
pub(crate) mod connection_table;
pub(crate) mod deadlines;
pub(crate) mod malloc_trim;
pub(crate) mod peer_address;
pub(crate) mod round;
pub(crate) mod socket;
pub(crate) mod state;
pub(crate) mod tls;
pub(crate) mod udp;
pub(crate) mod watchers;
pub(crate) mod worker;
pub(crate) mod worker_handle;
