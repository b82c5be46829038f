//! The new process's side of an upgrade without downtime: it takes over the running process's listening sockets,
//! connections and region. [`lookaside_upgrade`] has the messages between the two, and their guarantees;
//! `lifecycle::handover` is the running process's side.
//!
//! The region is the server's exclusive resource. The running process drops its mapping piece by piece before `Ready`,
//! which takes long (`Store::drop_page_tables`), and before `Quiesced` it saves the region and releases it.
//!
//! The new process writes nothing to the region before `TakenOver`: if it is killed until then, the region is as clean
//! as it was saved. (If it cannot attach the region, it has replaced it, and no items are kept.) The saved region
//! includes every delete that the old process has acknowledged, because its workers have ended by then.
//!
//! | connection | is |
//! |---|---|
//! | TCP or Unix, between requests, in the middle of one, or slow to read | handed over |
//! | TLS: its keys are in rustls | closed after its last reply |
//! | in the middle of a crawl; with more than 4 MiB that its client does not read | closed |
//! | watching; at the metrics' port | closed |

use crate::cli::Arguments;
use crate::net::acceptor::{Listener, mark_validated};
use crate::net::connection::Connection;
use crate::shared::{PROGRAM, ServerState};
use crate::startup::privileges::TargetUser;
use lookaside_net::is_accepted_at;
use lookaside_upgrade::{Handover, Inherited, Predecessor};
use socket2::SockRef;
use std::os::unix::net::UnixStream;

/// Finds the process to take over from; `None` if there is none, or if `--take-over` is not given.
pub(crate) fn find_predecessor(
    arguments: &Arguments,
    target_user: Option<&TargetUser>,
    inherited: &mut Inherited,
    stop: &UnixStream,
) -> anyhow::Result<Option<Predecessor>> {
    match &arguments.upgrade_socket {
        Some(path) if arguments.take_over => {
            Predecessor::find(PROGRAM, path, target_user.map(TargetUser::uid), inherited, stop)
        }
        _ => Ok(None),
    }
}

/// Restores the inherited connections that this process's options can serve: each as if its listener had accepted it
/// now.
pub(crate) fn restore_connections(state: &ServerState, listeners: &[Listener], handover: Handover) -> Vec<Connection> {
    let certificates = state.secrets.certificates.as_ref();
    let inherited_count = handover.connections.len();
    let listeners: Vec<_> =
        listeners.iter().filter_map(|listener| Some((listener.socket.local_addr().ok()?, listener))).collect();
    let restored = handover.connections.into_iter().filter_map(|(socket, connection_state)| {
        let local = SockRef::from(&socket).local_addr().ok()?;
        let (_, listener) = listeners.iter().find(|(address, _)| is_accepted_at(&local, address))?;
        let is_plain = certificates.and_then(|all| all.server_config(listener.tls)).is_none();
        if !is_plain {
            return None;
        }
        Connection::from_handover(socket, connection_state, listener.protocols, state.protocols)
    });
    let connections: Vec<Connection> = restored.take(state.net.limits.connections_max).collect();
    if connections.len() < inherited_count {
        let closed = inherited_count - connections.len();
        tracing::warn!(
            "closing {closed} inherited connections that this process's options cannot serve (check -l, -c, -B, -Z)"
        );
    }
    state.net.connections_total.add(connections.len() as u64);
    for connection in connections.iter().filter(|_| state.net.amplification_limit.is_some()) {
        mark_validated(&state.net, rustix::net::getpeername(&connection.socket).ok().flatten());
    }
    connections
}
