//! How a new process takes over from a running one, so that no client notices: the ports, the connections, and the word by which
//! one of the two may serve. The server and the router both upgrade by it (§6.4 of the paper keeps the items; the rest is what
//! nobody has to reconnect for). No request passes here.
//!
//! ```text
//!   new process (--take-over)               running process, at --upgrade-socket
//!     Hello: its format              ->
//!                                    <-     Doors: all that it listens on
//!     opens what is new, reads keys,        serves; prepares to let go of what it has
//!     makes what threads need
//!     Ready                          ->
//!                                           accepts nothing more, answers what it has read
//!                                    <-     Connection, Connection, ...
//!                                           lets go of what only one of them may have: a region, a spool
//!                                    <-     Quiet
//!     takes that up, reads only
//!     Taken                          ->
//!     serves                                closes what could not be handed over, ends
//! ```
//!
//! Who may serve, whatever dies in between:
//!
//! * Until it has read `TakenOver` the old process owns everything. Any other end of the conversation, and it takes up again what
//!   it has let go and goes on with the same sockets and connections.
//! * Once it has sent `TakenOver` the new process owns everything.
//! * So both never serve at once: after `Quiesced` the old process waits for `TakenOver` or for the end of the conversation, and
//!   there is no third. The new process never ends the conversation but by ending itself.
//! * If the old process dies, the new one learns it for certain (a socket that only that process held closes), and starts
//!   as after any end. If the old one merely refuses, the new one ends.
//!
//! Here are: [`UpgradeSocket`] and [`Successor`], the running process's part; [`Predecessor`], the new one's; [`ConnectionState`], what is told
//! of a connection; [`Inherited`], the ports; `channel`, messages; `peer`, who sends them; [`notify_ready`], for a supervisor.
//!
//! Absent on purpose: what only one process may have, and how it is let go and taken up. That is each daemon's own.

mod channel;
mod connection_state;
mod inherited;
mod listener;
mod peer;
mod predecessor;
mod successor;
mod systemd;

use channel::ChannelError;
pub use connection_state::{CONNECTION_STATE_BYTES_MAX, ConnectionState, SavedSession};
pub use inherited::Inherited;
pub use listener::{UpgradeServer, UpgradeSocket};
pub use predecessor::{Handover, Predecessor};
pub use successor::{Outcome, Successor};
pub use systemd::notify_ready;

/// Which processes can take over from each other.
#[derive(Clone, Copy, Debug)]
pub struct Program {
    /// Its name; a new process says it first.
    pub name: &'static str,
    /// To be raised when the messages, what they mean, or the order they come in, change. Processes of different formats
    /// refuse each other.
    pub format: u32,
}

impl Program {
    fn greeting(&self) -> Vec<u8> {
        [self.name.as_bytes(), b" upgrade ", &self.format.to_le_bytes()].concat()
    }

    fn check(&self, greeting: &[u8]) -> Result<(), ChannelError> {
        let whole = self.greeting();
        let (words, format) = whole.split_at(whole.len() - size_of::<u32>());
        match greeting.strip_prefix(words) {
            None => Err(ChannelError::Malformed("it does not greet")),
            Some(theirs) if theirs == format => Ok(()),
            Some(_) => Err(ChannelError::Malformed("builds that hand over in different ways: restart it instead")),
        }
    }
}

/// The longest message to the running process, in bytes.
const REQUEST_BYTES_MAX: usize = 64;

/// Whether a process of that user may hand over to this one, or take over from it: root, this process's own user, or one
/// that it is about to become.
fn is_trusted(user: u32, becoming: Option<u32>) -> bool {
    user == 0 || user == rustix::process::geteuid().as_raw() || Some(user) == becoming
}
