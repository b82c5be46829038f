//! The routing daemon: a memcached server towards clients, a client towards servers (mcrouter's role, §3.1).
//!
//! ```text
//!   clients           session            tree of routes                destinations
//!   -------->  bytes -> one batch  ->  pools, hashing, gutter  ->  one connection a server
//!   <--------  bytes <- replies in order  <-  one outcome a request  <-  pipelined replies
//! ```
//!
//! A get comes in here when a client does not speak to servers itself; a set and a delete do always. The deletes of an
//! invalidator (§4.1) come in as a long pipeline and leave as one batch a server.
//!
//! * [`Router`] is one thread's share of the daemon: a tree with destinations of its own, and the sessions of the
//!   clients that this thread accepted. Nothing of a request crosses threads.
//! * [`Fleet`] is what the threads of one process share: the count of connections, the state of the configuration,
//!   and the list of routers that `stats` adds up.
//! * [`daemon`] puts them on threads and sockets; a simulation puts one [`Router`] on a network of its own.
//!
//! Absent on purpose: how a key is routed (`routing`), how a server is reached (`client`), and a store: the router
//! keeps no value longer than its reply takes.
#![forbid(unsafe_code)]

mod admin;
mod answer;
mod budget;
mod cache;
mod configuration;
pub mod daemon;
mod environment;
mod etcd;
mod feed;
mod fleet;
mod flush;
mod handover;
mod ignored;
mod intake;
mod listen;
mod metrics;
mod options;
mod rooms;
mod router;
mod session;
mod settings;
mod spares;
mod spool;
mod statistics;
mod stats;
mod tls;
mod trace;
mod tree;
mod watch;
mod worker;

pub use budget::{FLEET_REPLY_BYTES_MAX, REPLY_BYTES_MAX};
pub use configuration::{Plan, Source};
pub use environment::Host;
pub use etcd::{EtcdLocation, EtcdUser};
pub use fleet::{Fleet, Identity};
pub use intake::BATCH_REQUESTS_MAX;
pub use listen::ListenOptions;
pub use options::Options;
pub use router::{DRAIN_MAX, Router};
pub use session::WRITE_STALL_MAX;
pub use settings::{CONNECTIONS_MAX, LINE_BYTES_MAX, Settings, VALUE_BYTES_MAX};
pub use spares::{Spares, SparesStatistics};
pub use spool::{
    Backlog, Disk, FileDisk, Fsync, MemoryDisk, PeerMissing, Spool, SpoolCounts, SpoolSettings, SpoolStatistics,
};
pub use statistics::Tally;
pub use tls::TlsOptions;
pub use trace::{Outages, Step, Trace, trace};
pub use tree::Tree;
pub use watch::{FileWatch, POLL_INTERVAL};
