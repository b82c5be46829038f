//! How a new process takes over from a running one without downtime: listening sockets, connections, and the right to
//! serve. The server and the router both use it (§6.4 of the paper preserves the items; the rest spares clients a
//! reconnect). No request passes here.
//!
//! ```text
//!   new process (--take-over)               running process, at --upgrade-socket
//!     Hello: program and format      ->
//!                                    <-     Listeners: all sockets that it listens on
//!     opens new sockets, reads keys,        serves, and prepares to release
//!     prepares its threads                  its exclusive resources
//!     Ready                          ->
//!                                           accepts nothing more, answers what it has read
//!                                    <-     Connection, Connection, ...
//!                                           releases its exclusive resources: a region, a spool
//!                                    <-     Quiesced
//!     acquires them, does not serve
//!     TakenOver                      ->
//!     serves                                closes what could not be handed over, exits
//! ```
//!
//! Which process may serve, if either ends or is stopped (SIGSTOP) at any point:
//!
//! * Until it has read `TakenOver` the old process owns everything. It waits 10 s for it, and then closes
//!   its end for reading. The kernel decides under one lock whether `TakenOver` was sent before: then the old process
//!   finds it. If not, the new one can never send it, and the old one kills it, which releases what it held, acquires
//!   its resources again and resumes with the same sockets and connections.
//! * From the moment that it has sent `TakenOver` the new process owns everything.
//! * So the two never serve at the same time.
//! * If the old process dies, the new one detects it reliably (a socket that only that process held is closed) and
//!   starts as after any exit. If the old one refuses, or sends nothing for 20 s, the new one exits.
//! * A third process that asks before `Ready` is refused. One that asks later waits, for up to 10 s, and is served by
//!   the process that serves then: the listening socket at `--upgrade-socket` is handed over like the others.
//!
//! Deliberately absent: the exclusive resources. Each daemon releases and acquires its own.

mod channel;
mod connection_state;
mod graceful_close;
mod inherited;
mod listener;
mod peer;
mod predecessor;
mod program;
mod successor;
mod systemd;

pub use connection_state::{CONNECTION_STATE_BYTES_MAX, ConnectionState, SavedSession};
pub use graceful_close::{GRACE_PERIOD, log_unclosed};
pub use inherited::Inherited;
pub use listener::{UpgradeServer, UpgradeSocket};
pub use predecessor::{Handover, Predecessor};
pub use program::Program;
pub use successor::{Successor, UpgradeOutcome};
pub use systemd::notify_ready;
