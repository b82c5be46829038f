//! The routing daemon: a memcached server towards clients, a client towards servers (mcrouter's role, §3.1).
//!
//! ```text
//!   clients           session            tree of routes                destinations
//!   -------->  bytes -> one batch  ->  pools, hashing, gutter  ->  one connection per server
//!   <--------  bytes <- replies in order  <-  one outcome per request  <-  pipelined replies
//! ```
//!
//! All requests of applications pass here. (In the paper gets go to servers directly by UDP.) The deletes of an
//! invalidator (§4.1) arrive as a long pipeline and leave as one batch per server.
//!
//! | module | contents |
//! |---|---|
//! | `daemon/` | the main thread: startup, reload, signals, handover; `worker`: one thread and its runtime |
//! | `proxy` | [`Proxy`]: one thread's listener, sessions and tree. No request crosses threads |
//! | `frontend/` | the clients' side: listeners, sessions, parsers, replies |
//! | `tree/` | a configuration bound to live connections: routes, destinations, their decorators |
//! | `spool/`, `spares/` | deletes that servers did not answer, and their replay (§5); replacements of unreadable servers (§3.3) |
//! | `read_permits` | which permits of clients that read servers directly may be in use |
//! | `start_gate` | keeps gets from being served before the invalidator has caught up |
//! | `resize/` | changes of the configuration that move keys between servers |
//! | `backend/` | the servers' side: TLS, `flush_all` |
//! | `config/` | the validated configuration, and the last good one |
//! | `shared` | [`SharedState`]: the number of connections, the state of the configuration, the threads to add up |
//! | `stats/`, `admin/` | the counts of one thread; `stats`, Prometheus metrics and admin keys |
//! | `tls/`, `cli/` | certificates; the command line |
//! | `handover/` | the handover to the next process |
//!
//! A request flows `frontend -> tree -> (routing) -> spool -> backend -> (client)`. Modules on the right know nothing
//! of those on the left. A simulation puts one [`Proxy`] on its own network.
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
mod handover;
mod proxy;
mod read_permits;
mod resize;
mod shared;
mod spares;
mod spool;
mod start_gate;
mod stats;
mod timeouts;
mod tls;
mod tree;
mod worker;

pub use cli::{
    AuthOptions, ConfigurationOptions, LeaseOptions, ListenOptions, Options, RouteOptions, ServerOptions, TlsOptions,
    Validation,
};
pub use config::inputs::ConfigInputs;
pub use config::router_config::{FAILOVER_TIMEOUT, RouterConfig};
pub use daemon::read_source;
pub use frontend::flow_control::{REPLY_BYTES_MAX, TOTAL_REPLY_BYTES_MAX};
pub use frontend::limits::{
    CLIENT_REQUESTS_MAX, CONNECTIONS_MAX, LINE_BYTES_MAX, Settings, VALUE_BYTES_MAX, WRITE_STALL_MAX,
};
pub use frontend::parse::BATCH_REQUESTS_MAX;
pub use frontend::session::{DELETES_BYTES_MAX, TOTAL_DELETES_BYTES_MAX};
pub use frontend::users::Users;
pub use proxy::{ConfigUpdates, Proxy};
pub use read_permits::ReadPermits;
pub use resize::driver::{Applied, ResizeHost, Resizer, ResizerSettings};
pub use resize::history::{HistoryChange, HistoryError, HistoryStore, StoredHistory};
pub use resize::start::ResizerChannels;
pub use resize::status::ResizeStatus;
pub use resize::store::{CoverageDigest, CoverageStore};
pub use shared::{Identity, SharedState};
pub use spares::{Spares, SparesStats};
pub use spool::{
    Backlog, Disk, FileDisk, Fsync, MemoryDisk, PeerMissing, Spool, SpoolCounts, SpoolSettings, SpoolStats,
};
pub use start_gate::StartGate;
pub use stats::counters::CounterDelta;
pub use timeouts::DRAIN_MAX;
pub use tls::CertificatePaths;
pub use tree::Tree;
pub use tree::active_configs::ActiveConfigs;
pub use tree::explain::{Explanation, Outages, Step, explain};
