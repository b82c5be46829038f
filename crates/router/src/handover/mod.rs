//! An upgrade without downtime: a new router process takes over the listening sockets, the connections and the spool of
//! the running one (§5 of the paper: no delete is lost; §9: one process at a time). The messages between the two, and
//! which of them may serve if either ends at any point, are in [`lookaside_upgrade`]; the reasons are in ADR 011.
//!
//! In addition to its messages, a router does this:
//!
//! * Before `Ready` the threads of the new process connect to the servers: later, clients would wait for a silent one.
//! * After `Ready` the running process accepts and reads nothing more, and every batch in progress is answered.
//! * After the last `Connection` it stops the replay, syncs the spool and releases its lock.
//! * After `Quiesced` the new process locks the spool and raises the fences.
//!
//! Invariants:
//! * Only one of the two has the spool, as its lock shows. Deletes that were acknowledged before `Quiesced` are on disk
//!   by then; a delete that arrives later waits in its connection for the new process.
//! * The new process reads no server before it knows which are fenced, by itself or by peers: the spool stores both. To
//!   peers it is the same router, in its next run.
//! * A start gate that is closed stays closed: `Quiesced` carries its state ([`crate::start_gate`]).
//! * The new process continues a change of the configuration only from the state that the old one has saved last:
//!   `Quiesced` carries its digest ([`crate::resize::start`]).
//! * The new process replays nothing before `TakenOver`. If it ends before that, the old one opens the spool again as
//!   after a restart, rebuilds its trees on it and resumes with the same sockets and connections.
//!
//! | connection | |
//! |---|---|
//! | TCP or Unix: between requests, in the middle of one, or slow to read | handed over |
//! | TLS: its keys are in rustls | closed after its last reply |
//! | with more than 4 MiB that its client has not read; whose batch took more than 5 s | closed |

mod graceful_close;
mod listener;
mod program_state;
mod takeover;
mod workers;

pub(crate) use graceful_close::close_gracefully;
pub(crate) use listener::{BoundUpgradeSocket, UpgradeListener, bind_upgrade_socket};
pub(crate) use program_state::ProgramState;
pub(crate) use takeover::{Takeover, assign_clients, restore_client};
pub(crate) use workers::{WorkerChannels, WorkerCommand, WorkerSet, send_clients};

use lookaside_upgrade::{Program, Successor, UpgradeOutcome};
use std::io::Write as _;
use std::os::unix::net::UnixStream;

/// The programs that can take over from each other. The format also covers the state of connections and the spool's
/// files.
pub(crate) const PROGRAM: Program = Program { name: "lookaside-router", format: 4 };

pub(crate) enum HandoverOutcome {
    /// The other process serves.
    TakenOver(Successor),
    /// The other process has ended without taking over.
    Failed,
    /// This process was signalled to stop meanwhile.
    Stopped,
}

/// Sends `Quiesced`, with the state of this process, and waits until the other process serves, without a timeout, or
/// until `stop_requested` resolves.
pub(crate) async fn complete(
    mut successor: Successor,
    is_kept: bool,
    state: ProgramState,
    stop_requested: impl Future<Output = ()>,
) -> Result<HandoverOutcome, String> {
    let (stop, mut stop_in) = UnixStream::pair().map_err(|error| format!("cannot create a socket pair: {error}"))?;
    let hand_over = move || match successor.hand_over(is_kept, &state.encode(), &stop) {
        UpgradeOutcome::TakenOver => HandoverOutcome::TakenOver(successor),
        UpgradeOutcome::Failed => HandoverOutcome::Failed,
        UpgradeOutcome::Stopped => HandoverOutcome::Stopped,
    };
    let mut handing_over = tokio::task::spawn_blocking(hand_over);
    let outcome = tokio::select! {
        biased;
        outcome = &mut handing_over => outcome,
        () = stop_requested => {
            let _ = stop_in.write_all(b"s");
            handing_over.await
        }
    };
    outcome.map_err(|error| format!("the handover failed; this is a bug of the router: {error}"))
}

/// Waits, with a timeout, until the other process has announced itself: a supervisor must know it before this one
/// exits.
pub(crate) fn wait_announced(successor: Successor) {
    if let Ok((stop, _stop_in)) = UnixStream::pair() {
        successor.wait_until_announced(&stop);
    }
}
