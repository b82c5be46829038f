//! The daemon from the moment that it serves until its end: its threads, and what becomes of them when another process takes
//! over ([`crate::lifecycle::takeover`]).
//!
//! All threads that use the store have ended before it is saved or handed over: no write can follow. If the other process
//! does not take over after all, the same threads begin again with the same sockets.

use crate::clock::Clock;
use crate::lifecycle::graceful_close;
use crate::net::acceptor::{Exit, Listener, Signals, run_until_exit};
use crate::net::connection::Connection;
use crate::net::peer_address;
use crate::net::udp::UdpPort;
use crate::net::worker::{Dispatched, Worker, WorkerExit, WorkerHandle};
use crate::observe::metrics::prometheus;
use crate::session::context::{SessionContext, limits};
use crate::startup::ServerState;
use crate::startup::listeners::Listeners;
use crate::startup::warm_restart;
use anyhow::Context;
use lookaside_upgrade::{Outcome, Successor, UpgradeServer};
use rustix::fd::{AsFd, OwnedFd};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::thread::{Builder, Scope, ScopedJoinHandle};

/// Serves until the process is to end, or another one serves in its place. `connections` are served from the start;
/// `on_serving` is called once all threads run.
pub(crate) fn run(
    mut state: ServerState,
    mut doors: Listeners,
    signals: &Signals,
    mut connections: Vec<Connection>,
    on_serving: impl FnOnce(&ServerState, &[Listener]) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let mut on_serving = Some(on_serving);
    loop {
        let announce =
            |listeners: &[Listener]| on_serving.take().map_or(Ok(()), |on_serving| on_serving(&state, listeners));
        let (successor, exits) = match serve(&state, &mut doors, signals, connections, announce) {
            Ok((Exit::Upgrade(successor), exits)) => (successor, exits),
            // Also when a thread could not be started: the items are not to be lost for that.
            outcome => return outcome.map(drop).and(warm_restart::save(state.store, state.clock)),
        };
        match hand_over(state, successor, exits, signals)? {
            HandoverOutcome::Failed(returned, its_connections) => (state, connections) = (*returned, its_connections),
            HandoverOutcome::Stopped => return Ok(()),
            HandoverOutcome::TakenOver(successor, unsent, clock) => {
                // Whoever connects from here on must not wait for this process.
                drop(doors);
                graceful_close::close_gracefully(unsent, clock);
                successor.settle(&signals.stop);
                return Ok(());
            }
        }
        tracing::info!("goes on serving");
    }
}

/// What came of it.
enum HandoverOutcome {
    /// The other process serves; these are the connections that it cannot go on with.
    TakenOver(Successor, Vec<Connection>, Clock),
    /// It does not: here is everything again.
    Failed(Box<ServerState>, Vec<Connection>),
    /// This process was told to stop meanwhile.
    Stopped,
}

/// Leaves everything to another process.
fn hand_over(
    mut state: ServerState,
    mut successor: Successor,
    connections: Vec<Connection>,
    signals: &Signals,
) -> anyhow::Result<HandoverOutcome> {
    let pid = successor.pid();
    tracing::info!("hands over to process {pid}, with {} connections", connections.len());
    let Some(is_sent) =
        successor.send(connections.iter().map(|connection| (connection.handover_state(), connection.socket.as_fd())))
    else {
        return Ok(HandoverOutcome::Failed(Box::new(state), connections));
    };
    let store = state.store;
    let store = match &state.warm_start {
        Some(_) => {
            // Nothing would be gained by going on with what cannot be kept: the next process begins empty in any case.
            warm_restart::save(store, state.clock).unwrap_or_else(|error| tracing::error!("{error:#}"));
            None
        }
        None => {
            let items = store.statistics().items;
            tracing::warn!("{items} items are lost with this process: only --warm-restart keeps them");
            Some(store)
        }
    };
    match successor.hand_over(store.is_none(), &signals.stop) {
        Outcome::TakenOver => {
            tracing::info!("process {pid} has taken over");
            let remaining = connections.into_iter().zip(is_sent).filter(|(_, is_sent)| !is_sent);
            let remaining = remaining.map(|(connection, _)| connection).collect();
            Ok(HandoverOutcome::TakenOver(successor, remaining, state.clock))
        }
        Outcome::Stopped => Ok(HandoverOutcome::Stopped),
        Outcome::Failed => {
            state.store = match store {
                Some(store) => store,
                None => warm_restart::reopen(&state.arguments, state.options.clone(), state.clock)?,
            };
            state.record_evictions();
            Ok(HandoverOutcome::Failed(Box::new(state), connections))
        }
    }
}

/// Runs the threads until somebody ends them; what is left then.
fn serve(
    state: &ServerState,
    doors: &mut Listeners,
    signals: &Signals,
    connections: Vec<Connection>,
    on_serving: impl FnOnce(&[Listener]) -> anyhow::Result<()>,
) -> anyhow::Result<(Exit, Vec<Connection>)> {
    let udp_sockets = clone_sockets(&doors.udp_ports).context("cannot copy the descriptors of UDP ports")?;
    let udp_ports = std::mem::take(&mut doors.udp_ports);
    let Listeners { listeners, metrics, upgrade, .. } = &*doors;
    let upgrade = upgrade.as_ref().map(|upgrade| {
        let listening_sockets = listeners.iter().map(|listener| listener.socket.as_fd());
        let metrics = metrics.iter().map(|endpoint| endpoint.listener().as_fd());
        UpgradeServer::new(upgrade, listening_sockets.chain(metrics).chain(udp_sockets.iter().map(AsFd::as_fd)))
    });
    let (stop_metrics, metrics_stop) = UnixStream::pair().context("cannot make a pipe for the metrics' thread")?;
    state.worker_handles.iter().for_each(WorkerHandle::reset);
    state.watchers.reset(state);
    let workers = build_workers(state, udp_ports)?;
    state.listening.get_or_init(|| listening_sockets(listeners, &workers));
    distribute(state, connections);
    let (outcome, exits) = std::thread::scope(|scope| {
        let mut threads = Vec::new();
        let outcome = start_workers(scope, workers, &mut threads).and_then(|()| {
            spawn(scope, "watchers".to_string(), || state.watchers.run(state))?;
            if let Some(endpoint) = metrics {
                spawn(scope, "metrics".to_string(), || {
                    endpoint.run(|| prometheus::render(state, state.clock.now()), &metrics_stop)
                })?;
            }
            on_serving(listeners)?;
            run_until_exit(state, listeners, signals, upgrade).context("cannot accept connections")
        });
        state.worker_handles.iter().for_each(WorkerHandle::stop);
        state.watchers.stop();
        drop(stop_metrics);
        let exits = threads.into_iter().map(|thread| thread.join().expect("a worker does not panic"));
        (outcome, exits.collect::<Vec<WorkerExit>>())
    });
    let mut connections = Vec::new();
    for WorkerExit { connections: worker_connections, udp_ports } in exits {
        connections.extend(worker_connections);
        doors.udp_ports.push(udp_ports);
    }
    Ok((outcome?, connections))
}

/// Spreads connections over the workers, each of which is woken once.
fn distribute(state: &ServerState, connections: Vec<Connection>) {
    let each = connections.len().div_ceil(state.worker_handles.len()).max(1);
    let mut connections = connections.into_iter().map(Dispatched::Restored);
    for handle in &state.worker_handles {
        handle.dispatch(connections.by_ref().take(each));
    }
}

fn start_workers<'scope, 'w: 'scope>(
    scope: &'scope Scope<'scope, '_>,
    workers: Vec<Worker<'w>>,
    threads: &mut Vec<ScopedJoinHandle<'scope, WorkerExit>>,
) -> anyhow::Result<()> {
    for (number, worker) in workers.into_iter().enumerate() {
        threads.push(spawn(scope, format!("worker-{number}"), || worker.run())?);
    }
    Ok(())
}

fn spawn<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    name: String,
    run: impl FnOnce() -> T + Send + 'scope,
) -> anyhow::Result<ScopedJoinHandle<'scope, T>> {
    let failed = format!("cannot start the thread {name}");
    Builder::new().name(name).spawn_scoped(scope, run).context(failed)
}

/// The sockets of UDP ports once more: the ports themselves go to the workers.
fn clone_sockets(udp_ports: &[Vec<UdpPort>]) -> std::io::Result<Vec<OwnedFd>> {
    udp_ports.iter().flatten().map(|port| port.socket().try_clone()).collect()
}

fn build_workers(state: &ServerState, udp_ports: Vec<Vec<UdpPort>>) -> anyhow::Result<Vec<Worker<'_>>> {
    let workers = state.worker_handles.iter().zip(udp_ports).map(|(handle, ports)| {
        let limits = limits(&state.options);
        let context = SessionContext {
            store: &state.store,
            counters: &handle.counters,
            events: &handle.events,
            sampler: handle.sampler.as_ref(),
            limits,
            protocols: state.protocols,
            sasl: state.secrets.users.as_ref().filter(|_| state.arguments.enable_sasl),
            text_users: state.secrets.text_users.as_ref(),
            control: state,
        };
        Worker::new(state, context, handle, state.clock, ports)
    });
    workers.collect::<Result<_, _>>().context("cannot make the workers' epolls")
}

/// What `stats conns` shows of the ports.
fn listening_sockets(listeners: &[Listener], workers: &[Worker<'_>]) -> Vec<(RawFd, String)> {
    let tcp = listeners.iter().filter_map(|listener| {
        let descriptor = listener.socket.as_raw_fd();
        Some((descriptor, peer_address::listening_address(descriptor, "tcp")?))
    });
    let udp = workers.iter().flat_map(Worker::udp_descriptors);
    let udp = udp.filter_map(|descriptor| Some((descriptor, peer_address::listening_address(descriptor, "udp")?)));
    tcp.chain(udp).collect()
}
