//! The running process's side of an upgrade ([`crate::startup::takeover`] has the sequence): it gives connections and
//! the region to the new process. All its threads have ended before, so no write can follow.

use crate::cli::Arguments;
use crate::clock::Clock;
use crate::net::connection::Connection;
use crate::shared::{ServerState, WarmStart};
use crate::startup::warm_restart;
use lookaside_store::{Options, Store};
use lookaside_upgrade::{Successor, UpgradeOutcome};
use rustix::fd::AsFd;
use std::os::unix::net::UnixStream;

pub(super) enum HandoverOutcome {
    /// The new process serves; it cannot serve these connections.
    TakenOver(Successor, Vec<Connection>, Clock),
    /// The new process has failed; this one has everything back.
    Failed(Box<ServerState>, Vec<Connection>),
    /// This process was stopped meanwhile.
    Stopped,
}

pub(super) fn hand_over(
    mut state: ServerState,
    mut successor: Successor,
    connections: Vec<Connection>,
    stop: &UnixStream,
) -> anyhow::Result<HandoverOutcome> {
    let pid = successor.pid();
    tracing::info!("handing over to process {pid}, with {} connections", connections.len());
    let Some(is_sent) =
        successor.send(connections.iter().map(|connection| (connection.handover_state(), connection.socket.as_fd())))
    else {
        return Ok(HandoverOutcome::Failed(Box::new(state), connections));
    };
    let store = state.store;
    let store = match &state.warm_start {
        Some(_) => {
            // If saving fails, keeping the store would help nothing: the new process starts empty in any case.
            warm_restart::save(store, state.clock).unwrap_or_else(|error| tracing::error!("{error:#}"));
            None
        }
        None => {
            let items = store.statistics().items;
            tracing::warn!("{items} items are lost with this process; start with --warm-restart to keep them");
            Some(store)
        }
    };
    match successor.hand_over(store.is_none(), &[], stop) {
        UpgradeOutcome::TakenOver => {
            tracing::info!("process {pid} has taken over");
            let unsent = connections.into_iter().zip(is_sent).filter(|(_, is_sent)| !is_sent);
            let unsent = unsent.map(|(connection, _)| connection).collect();
            Ok(HandoverOutcome::TakenOver(successor, unsent, state.clock))
        }
        UpgradeOutcome::Stopped => Ok(HandoverOutcome::Stopped),
        UpgradeOutcome::Failed => {
            state.store = match store {
                Some(store) => store,
                None => reopen_store(&state.arguments, &state.options, &mut state.warm_start, state.clock)?,
            };
            state.record_evictions();
            state.expiry_crawl.reset();
            Ok(HandoverOutcome::Failed(Box::new(state), connections))
        }
    }
}

/// The store that was saved. If its region cannot be had, because a third process has attached it meanwhile, an empty
/// one without a region: the ports and connections are still this process's.
fn reopen_store(
    arguments: &Arguments,
    options: &Options,
    warm_start: &mut Option<WarmStart>,
    clock: Clock,
) -> anyhow::Result<Store> {
    match warm_restart::reopen(arguments, options.clone(), clock) {
        Ok(store) => Ok(store),
        Err(error) => {
            tracing::error!("this process continues empty, and saves nothing at its end: {error:#}");
            *warm_start = None;
            Ok(Store::new(options.clone())?)
        }
    }
}
