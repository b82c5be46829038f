//! An upgrade without a pause that clients would notice: a new process takes over what the running one listens on, its
//! connections and its region (§6.4 of the paper keeps the items; the rest is what nobody has to reconnect for).
//!
//! ```text
//!   new process (--take-over)               running process, at --upgrade-socket
//!     Hello: its format              ->
//!                                    <-     Doors: all that it listens on
//!     opens what is new, reads keys,        serves; lets its mapping of the region go, which
//!     makes what threads need               takes long, bit by bit (Store::loosen)
//!     Ready                          ->
//!                                           accepts nothing more; every worker answers what it has read, and ends
//!                                    <-     Connection, Connection, ...
//!                                           saves the region and lets it go
//!                                    <-     Quiet
//!     takes the region up, reads only
//!     Taken                          ->
//!     serves                                closes what could not be handed over, ends
//! ```
//!
//! Who may serve, whatever dies in between:
//!
//! * Until it has read `Taken` the old process owns everything. Any other end of the conversation, and it takes its region
//!   up again and goes on with the same sockets, connections and items.
//! * Once it has sent `Taken` the new process owns everything. It has written nothing to the region before: a region that
//!   it was killed over is as clean as it was saved. (One that it cannot take up it has replaced; nothing is kept then.)
//! * So both never serve at once: after `Quiet` the old process waits for `Taken` or for the end of the conversation, and
//!   there is no third. The new process never ends the conversation but by ending itself.
//! * If the old process dies, the new one learns it for certain (a socket that only that process held closes), and starts
//!   as after any end: with what was saved, or empty. If the old one merely refuses, the new one ends.
//!
//! Every delete that the old process has acknowledged is in what it saves: its workers have ended by then.
//!
//! | connection | is |
//! |---|---|
//! | TCP or Unix, between requests, in the middle of one, or slow to read | handed over |
//! | TLS: its keys are in rustls | closed after its last reply |
//! | in the middle of a walk over all keys; with more than 4 MiB that its client does not read | closed |
//! | watching; at the metrics' port | closed |
//!
//! Here are: [`gate`] and [`successor`], the running process's part; [`predecessor`], the new one's; [`luggage`], what is
//! told of a connection; [`inherited`], the ports; [`farewell`], the end of the others; [`channel`], messages; [`peer`],
//! who sends them.

mod channel;
mod farewell;
mod gate;
mod inherited;
mod luggage;
mod peer;
mod predecessor;
mod successor;

pub(crate) use farewell::farewell;
pub(crate) use gate::{Gate, GateKeeper};
pub(crate) use inherited::Inherited;
pub(crate) use luggage::{LUGGAGE_BYTES_MAX, Luggage, Remembered};
pub(crate) use predecessor::{Estate, Predecessor};
pub(crate) use successor::{Outcome, Successor};

/// What a new process says first. Behind it comes the number of its format.
const GREETING: &[u8] = b"lookaside-server upgrade ";

/// To be raised when the messages, or the order they come in, change. Processes of different formats refuse each other.
const FORMAT: u32 = 1;

/// The longest message to the running process, in bytes.
const REQUEST_BYTES_MAX: usize = 64;

/// Whether a process of that user may hand over to this one, or take over from it: root, this process's own user, or one
/// that it is about to become.
fn is_trusted(user: u32, becoming: Option<u32>) -> bool {
    user == 0 || user == rustix::process::geteuid().as_raw() || Some(user) == becoming
}
