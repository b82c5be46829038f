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
//! Which process may serve, if either ends at any point:
//!
//! * Until it has read `TakenOver` the old process owns everything. If the channel ends in any other way, it acquires
//!   its resources again and resumes with the same sockets and connections.
//! * From the moment that it sends `TakenOver` the new process owns everything.
//! * So the two never serve at the same time: after `Quiesced` the old process waits for `TakenOver` or for the end of
//!   the channel, nothing else, and the new process closes the channel only by exiting.
//! * If the old process dies, the new one detects it reliably (a socket that only that process held is closed) and
//!   starts as after any exit. If the old one only refuses, the new one exits.
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
