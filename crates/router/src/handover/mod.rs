//! An upgrade that no client notices: a new router takes over what the running one listens on, its connections, and its
//! spool (§5 of the paper: no delete is lost; §9: one process at a time). What the two say to each other, and who may serve
//! whatever dies in between: `lookaside_upgrade`; why so: ADR 011.
//!
//! ```text
//!   new process                             running process
//!     Hello                          ->
//!     reads its configuration,              serves
//!     opens what is new
//!     Ready                          ->     accepts and reads nothing more; every batch that was begun is answered
//!                                    <-     Connection, Connection, ...
//!                                           replays no more, syncs the spool, lets go of its lock
//!     locks the spool, FENCES UP     <-     Quiet
//!     Taken                          ->     ends the connections that could not be handed over, and itself
//!     serves
//! ```
//!
//! Invariants:
//! * One of the two has the spool: its lock says so. What is acknowledged before `Quiet` is on disk by then; a delete that
//!   comes later waits in its connection for the new process.
//! * The new process reads no server before it knows which are fenced off, for itself or for other routers: the spool says
//!   so, holds included. To peers it is the same router, of the next run.
//! * The new process replays nothing before `Taken`. If it ends before that, the old one opens the spool again, as after a
//!   restart, builds its trees over it and goes on with the same sockets and connections.
//!
//! | connection | is |
//! |---|---|
//! | TCP or Unix, between requests, in the middle of one, or slow to read | handed over |
//! | TLS: its keys are in rustls | closed after its last reply |
//! | with more than 4 MiB that its client does not read; whose batch took more than 5 s | closed |
//!
//! Here are [`Gatehouse`] (the running process waits for the next), [`Crew`] (its threads let go, and take up again),
//! [`Heir`] (the new process); `farewell`, the end of what is not handed over.

mod graceful_close;
mod listener;
mod takeover;
mod workers;

pub(crate) use graceful_close::farewell;
pub(crate) use listener::{Closed, Gatehouse, open_gate};
pub(crate) use takeover::{Client, Heir, adopt, parked};
pub(crate) use workers::{Crew, Verdict, send};

use lookaside_upgrade::{Outcome, Program, Successor};
use std::io::Write as _;
use std::os::unix::net::UnixStream;

/// Who can take over from each other. The format also counts what is said of connections, and the spool's layout.
pub(crate) const PROGRAM: Program = Program { name: "lookaside-router", format: 1 };

/// What came of an upgrade, when everything had been let go.
pub(crate) enum Left {
    /// The other process serves.
    Taken(Successor),
    /// It does not, and has gone.
    Back,
    /// This process was told to stop meanwhile.
    Stopped,
}

/// Says that this process writes to nothing any more, and waits for the other to serve, however long that takes, or until
/// `told_to_stop` resolves.
pub(crate) async fn leave_to(
    mut successor: Successor,
    is_kept: bool,
    told_to_stop: impl Future<Output = ()>,
) -> Result<Left, String> {
    let (stop, mut stop_in) = UnixStream::pair().map_err(|error| format!("the system gives no sockets: {error}"))?;
    let leave = move || match successor.hand_over(is_kept, &stop) {
        Outcome::TakenOver => Left::Taken(successor),
        Outcome::Failed => Left::Back,
        Outcome::Stopped => Left::Stopped,
    };
    let mut left = tokio::task::spawn_blocking(leave);
    let left = tokio::select! {
        biased;
        left = &mut left => left,
        () = told_to_stop => {
            let _ = stop_in.write_all(b"s");
            left.await
        }
    };
    left.map_err(|error| format!("the upgrade failed; this is a bug of the router: {error}"))
}

/// Waits until the other process has announced itself, but not for ever: a supervisor is to know it before it sees this one go.
pub(crate) fn settle(successor: Successor) {
    if let Ok((stop, _stop_in)) = UnixStream::pair() {
        successor.settle(&stop);
    }
}
