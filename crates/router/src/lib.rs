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
//! * [`Proxy`] is one thread's share of the daemon: a tree with destinations of its own, and the sessions of the
//!   clients that this thread accepted. Nothing of a request crosses threads.
//! * [`SharedState`] is what the threads of one process share: the count of connections, the state of the configuration,
//!   and the list of routers that `stats` adds up.
//! * [`daemon`] puts them on threads and sockets; a simulation puts one [`Proxy`] on a network of its own.
//!
//! Absent on purpose: how a key is routed (`routing`), how a server is reached (`client`), and a store: the router
//! keeps no value longer than its reply takes.
#![forbid(unsafe_code)]

mod admin;
mod admin_key;
mod backend;
mod cli;
mod config;
pub mod daemon;
mod frontend;
mod proxy;
mod shared;
mod spares;
mod spool;
mod stats;
mod timeouts;
mod tls;
mod tree;
mod upgrade;
mod worker;

pub use cli::{ListenOptions, Options, TlsOptions};
pub use config::etcd::{EtcdLocation, EtcdUser};
pub use config::file::{FileWatcher, POLL_INTERVAL};
pub use config::host::{HostInfo, HostInfo as Host};
pub use config::router_config::{RouterConfig, RouterConfig as Plan};
pub use config::source::Source;
pub use frontend::flow_control::{REPLY_BYTES_MAX, TOTAL_REPLY_BYTES_MAX};
pub use frontend::limits::{CONNECTIONS_MAX, LINE_BYTES_MAX, Settings, VALUE_BYTES_MAX};
pub use frontend::parse::BATCH_REQUESTS_MAX;
pub use frontend::session::WRITE_STALL_MAX;
pub use proxy::{Proxy, Proxy as Router};
pub use shared::{Identity, SharedState, SharedState as Fleet};
pub use spares::{Spares, SparesStatistics};
pub use spool::{Disk, FileDisk, Fsync, MemoryDisk, Owed, PeerMissing, Spool, SpoolSettings, SpoolStatistics};
pub use stats::counters::CounterDelta;
pub use timeouts::DRAIN_MAX;
pub use tree::Tree;
pub use tree::explain::{Explanation, Explanation as Trace, Outages, Step, explain, explain as trace};
