//! Starts the threads, ends them, and starts them again if a handover fails.
//!
//! | thread | runs |
//! |---|---|
//! | `worker-N` | [`Worker`]: serves its connections |
//! | `watchers` | [`Watchers`](crate::net::watchers::Watchers): sends events to clients that `watch` |
//! | `metrics` | answers Prometheus, with `--metrics-address` |
//! | main | [`run_until_exit`]: accepts connections, handles signals |
//!
//! All threads that use the store have ended before it is saved or handed over. If a handover fails, the same threads
//! start again with the same sockets.

use super::graceful_close::close_gracefully;
use super::handover::{HandoverOutcome, hand_over};
use super::main_loop::{Exit, run_until_exit};
use crate::net::acceptor::Listener;
use crate::net::connection::Connection;
use crate::net::peer_address;
use crate::net::udp::UdpPort;
use crate::net::worker::{Worker, WorkerExit};
use crate::net::worker_handle::{AssignedConnection, WorkerHandle};
use crate::session::context::{SessionContext, limits};
use crate::shared::ServerState;
use crate::startup::listeners::Listeners;
use crate::startup::signals::Signals;
use crate::startup::warm_restart;
use crate::stats::prometheus;
use anyhow::Context;
use lookaside_upgrade::UpgradeServer;
use rustix::fd::{AsFd, OwnedFd};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::thread::{Builder, Scope, ScopedJoinHandle};

/// Serves until the process stops or a new process has taken over. `connections` are served from the start;
/// `on_serving` is called once all threads run.
pub(super) fn run(
    mut state: ServerState,
    mut listeners: Listeners,
    signals: &Signals,
    mut connections: Vec<Connection>,
    on_serving: impl FnOnce(&ServerState, &[Listener]) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let mut on_serving = Some(on_serving);
    loop {
        let announce =
            |listeners: &[Listener]| on_serving.take().map_or(Ok(()), |on_serving| on_serving(&state, listeners));
        let (successor, open_connections) = match serve(&state, &mut listeners, signals, connections, announce) {
            Ok((Exit::Upgrade(successor), open_connections)) => (successor, open_connections),
            // Also if a thread could not be started: the items are saved all the same.
            outcome => return outcome.map(drop).and(warm_restart::save(state.store, state.clock)),
        };
        match hand_over(state, successor, open_connections, &signals.stop)? {
            HandoverOutcome::Failed(same_state, same_connections) => {
                (state, connections) = (*same_state, same_connections);
            }
            HandoverOutcome::Stopped => return Ok(()),
            HandoverOutcome::TakenOver(successor, unsent, clock) => {
                // First, so that clients that connect from now on do not wait for this process.
                drop(listeners);
                close_gracefully(unsent, clock);
                successor.wait_until_announced(&signals.stop);
                return Ok(());
            }
        }
        tracing::info!("takeover failed; continuing to serve");
    }
}

/// Runs the threads until the main loop ends; returns the connections that are open then.
fn serve(
    state: &ServerState,
    sockets: &mut Listeners,
    signals: &Signals,
    connections: Vec<Connection>,
    on_serving: impl FnOnce(&[Listener]) -> anyhow::Result<()>,
) -> anyhow::Result<(Exit, Vec<Connection>)> {
    let udp_sockets = clone_sockets(&sockets.udp_ports).context("cannot copy the descriptors of UDP ports")?;
    let udp_ports = std::mem::take(&mut sockets.udp_ports);
    let Listeners { stream: listeners, metrics, upgrade, .. } = &*sockets;
    let upgrade = upgrade.as_ref().map(|upgrade| {
        let stream_sockets = listeners.iter().map(|listener| listener.socket.as_fd());
        let metrics_socket = metrics.iter().map(|endpoint| endpoint.listener().as_fd());
        let udp_sockets = udp_sockets.iter().map(AsFd::as_fd);
        UpgradeServer::new(upgrade, stream_sockets.chain(metrics_socket).chain(udp_sockets))
    });
    let (stop_metrics, metrics_stop) = UnixStream::pair().context("cannot create a pipe for the metrics' thread")?;
    state.net.worker_handles.iter().for_each(WorkerHandle::reset);
    let watch_sources = state.watch_sources();
    state.net.watchers.reset(&watch_sources);
    let workers = build_workers(state, udp_ports)?;
    state.listening.get_or_init(|| describe_listening_sockets(listeners, &workers));
    distribute(state, connections);
    let (outcome, exits) = std::thread::scope(|scope| {
        let mut threads = Vec::new();
        let outcome = start_workers(scope, workers, &mut threads).and_then(|()| {
            spawn(scope, "watchers".to_string(), || state.net.watchers.run(&watch_sources))?;
            if let Some(endpoint) = metrics {
                spawn(scope, "metrics".to_string(), || {
                    endpoint.run(|| prometheus::render(state, state.clock.now()), &metrics_stop)
                })?;
            }
            on_serving(listeners)?;
            run_until_exit(state, listeners, signals, upgrade).context("cannot accept connections")
        });
        state.net.worker_handles.iter().for_each(WorkerHandle::stop);
        state.net.watchers.stop();
        drop(stop_metrics);
        let exits = threads.into_iter().map(|thread| thread.join().expect("a worker does not panic"));
        (outcome, exits.collect::<Vec<WorkerExit>>())
    });
    let mut connections = Vec::new();
    for WorkerExit { connections: worker_connections, udp_ports } in exits {
        connections.extend(worker_connections);
        sockets.udp_ports.push(udp_ports);
    }
    Ok((outcome?, connections))
}

/// Spreads connections evenly over the workers, waking each worker once.
fn distribute(state: &ServerState, connections: Vec<Connection>) {
    let each = connections.len().div_ceil(state.net.worker_handles.len()).max(1);
    let mut connections = connections.into_iter().map(AssignedConnection::Restored);
    for handle in &state.net.worker_handles {
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
    let message = format!("cannot start the thread {name}");
    Builder::new().name(name).spawn_scoped(scope, run).context(message)
}

/// Clones the sockets of the UDP ports for the handover: the ports themselves belong to the workers.
fn clone_sockets(udp_ports: &[Vec<UdpPort>]) -> std::io::Result<Vec<OwnedFd>> {
    udp_ports.iter().flatten().map(|port| port.socket().try_clone()).collect()
}

fn build_workers(state: &ServerState, udp_ports: Vec<Vec<UdpPort>>) -> anyhow::Result<Vec<Worker<'_>>> {
    let workers = state.net.worker_handles.iter().zip(udp_ports).map(|(handle, ports)| {
        let context = SessionContext {
            store: &state.store,
            counters: &handle.counters,
            events: &handle.events,
            sampler: handle.sampler.as_ref(),
            limits: limits(&state.options),
            protocols: state.protocols,
            sasl_users: state.secrets.sasl_users.as_ref().filter(|_| state.arguments.enable_sasl),
            text_users: state.secrets.text_users.as_ref(),
            control: state,
        };
        Worker::new(&state.net, context, handle, state.clock, ports)
    });
    workers.collect::<Result<_, _>>().context("cannot create the workers' epolls")
}

/// `stats conns` shows them.
fn describe_listening_sockets(listeners: &[Listener], workers: &[Worker<'_>]) -> Vec<(RawFd, String)> {
    let tcp = listeners.iter().filter_map(|listener| {
        let descriptor = listener.socket.as_raw_fd();
        Some((descriptor, peer_address::listening_address(descriptor, "tcp")?))
    });
    let udp = workers.iter().flat_map(Worker::udp_descriptors);
    let udp = udp.filter_map(|descriptor| Some((descriptor, peer_address::listening_address(descriptor, "udp")?)));
    tcp.chain(udp).collect()
}
