//! The daemon `lookaside-server`: one process's memory behind memcached's protocol (§2, §3.2.1, §6.1 of the paper).
//!
//! A get arrives on a connection that belongs to one [`worker`] thread. The worker reads all its ready connections,
//! scans their commands into a [`Batch`] (every key hashed once), prefetches, executes against the store, and sends one
//! contiguous reply per connection ([`round`]). A delete travels the same way.
//!
//! * [`Session`], [`Batch`], [`SessionContext`]: sans-I/O; bytes in, bytes out. A simulation drives these.
//! * `worker`, `round`, `connection`, `udp`, `segmentation`: one thread's loop over sockets.
//! * `tls`: certificates, and a connection's stream between its socket and its session.
//! * [`binary`]: the requests of the binary dialect, which are steps of the same batch.
//! * [`credentials`]: users and passwords from a file, for whatever asks for them; `login_log` tells the log.
//! * `narration`: what clients say and are told, in the log.
//! * `events`, `watch`: what somebody looks at while requests run.
//! * `administration`, `crawl`: what an operator orders; listings of keys and the working set, a step at a time.
//! * `metrics`: what Prometheus reads.
//! * `connection_table`, `addresses`: who is connected, and since when idle.
//! * `buffers`, `give_back`: what slow clients make a worker keep, its limits, and how it goes back.
//! * `secrets`, `doors`, `target_user`: what is read and opened before the process serves, and as whom it does.
//! * `accepting`, `listener`, `reply_limit`, `daemon`, `options`, `statistics`, `log`, `clock`: the process.
//!
//! Invariants: workers share the store and nothing else. An idle connection owns no buffer. No request allocates, but
//! where a client is slow, a command incomplete, or an argument asks for the process's own word (`stats`).
//! Absent on purpose: an async runtime; a loop of one thread needs none.
#![deny(unsafe_code)]
#![allow(rustdoc::private_intra_doc_links)]

mod cli;
mod clock;
mod lifecycle;
mod net;
mod observe;
mod session;
mod startup;

pub use cli::{Arguments, CompatibleOptions, Listen, ProtocolName, TlsMode, UsageError};
pub use clock::Clock;
pub use net::round::{ARENA_BYTES, READ_BYTES_MAX, REPLY_BYTES_MAX, ROUND_CONNECTIONS_MAX, ROUND_REPLY_BYTES_MAX};
pub use net::udp::REPLY_BYTES_MAX as UDP_REPLY_BYTES_MAX;
pub use observe::counters::{CounterSnapshot, Counters};
pub use observe::event_log::EventSink;
pub use observe::metrics::Sampler;
pub use session::auth::credentials;
pub use session::batch::{Batch, PREFETCH_KEYS, Progress, Unexecuted};
pub use session::context::SessionContext as Service;
pub use session::context::{LINE_BYTES_MAX, NoControl, Protocols, ServerControl, SessionContext, limits};
pub use session::execute::VERSION;
pub use session::{Scan, Session, SessionState};
pub use startup::run;
