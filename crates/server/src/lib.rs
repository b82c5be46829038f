//! The daemon `lookaside-server`: one process's memory behind memcached's protocol (§2, §3.2.1, §6.1 of the paper).
//!
//! A get arrives on a connection that belongs to one worker thread. The worker reads all its ready connections, scans
//! their commands into a [`Batch`] (every key hashed once), prefetches, executes against the store, and sends one
//! contiguous reply per connection. A delete takes the same path.
//!
//! Each folder uses only those below it:
//!
//! | folder | |
//! |---|---|
//! | [`lifecycle`] | runs the process: threads, main loop, handover |
//! | [`startup`] | builds the process |
//! | [`stats`] | statistics for operators: `stats`, Prometheus |
//! | [`shared`] | the state that all threads share |
//! | [`cli`] | the command line |
//! | [`net`] | one thread's loop over its sockets: accept, read, send |
//! | [`session`] | sans-I/O: bytes in, bytes out; a simulation drives it |
//! | [`observe`] | counters and events of the threads that serve |
//!
//! Invariants: workers share nothing but the store. An idle connection owns no buffer. No request allocates, except
//! where a client is slow, a command incomplete, or a command asks about the process (`stats`).
//!
//! Deliberately absent: an async runtime. A loop of one thread needs none.
#![deny(unsafe_code)]
#![expect(rustdoc::private_intra_doc_links, reason = "the map of the crate links its private modules")]

mod cli;
mod clock;
mod lifecycle;
mod net;
mod observe;
mod session;
mod shared;
mod startup;
mod stats;

pub use cli::{Arguments, CompatibleOptions, ListenAddress, ProtocolName, UsageError};
pub use clock::Clock;
pub use lifecycle::run;
pub use lookaside_authentication::credentials;
pub use lookaside_net::TlsMode;
pub use net::round::{ARENA_BYTES, REPLY_BYTES_MAX, ROUND_CONNECTIONS_MAX, ROUND_REPLY_BYTES_MAX};
pub use net::socket::READ_BYTES_MAX;
pub use net::udp::amplification::UDP_REPLY_BYTES_MAX;
pub use observe::counters::{CounterSnapshot, Counters};
pub use observe::event_log::EventSink;
pub use observe::metrics::Sampler;
pub use session::batch::{Batch, BatchProgress, PREFETCH_KEYS, Unexecuted};
pub use session::context::{LINE_BYTES_MAX, NoControl, Protocols, ServerControl, SessionContext, limits};
pub use session::execute::VERSION;
pub use session::{Scan, Session, SessionState};
