//! The daemon from the moment that it serves until its end: its threads, and what becomes of them when another process takes
//! over ([`crate::lifecycle::takeover`]).
//!
//! All threads that use the store have ended before it is saved or handed over: no write can follow. If the other process
//! does not take over after all, the same threads begin again with the same sockets.

use crate::clock::Clock;
use crate::lifecycle::graceful_close;
use crate::net::acceptor::{Ending, Listener, Signals, accept_until_signal};
use crate::net::connection::Connection;
use crate::net::peer_address;
use crate::net::udp::UdpPort;
use crate::net::worker::{Arrival, Desk, Remains, Worker};
use crate::observe::metrics::prometheus;
use crate::session::context::{Service, limits};
use crate::startup::Daemon;
use crate::startup::listeners::Doors;
use crate::startup::warm_restart;
use anyhow::Context;
use lookaside_upgrade::{Outcome, Successor, UpgradeServer};
use rustix::fd::{AsFd, OwnedFd};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::thread::{Builder, Scope, ScopedJoinHandle};

/// Serves until the process is to end, or another one serves in its place. `connections` are served from the start;
/// `begun` is called once all threads run.
pub(crate) fn run(
    mut daemon: Daemon,
    mut doors: Doors,
    signals: &Signals,
    mut connections: Vec<Connection>,
    begun: impl FnOnce(&Daemon, &[Listener]) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let mut begun = Some(begun);
    loop {
        let tell = |listeners: &[Listener]| begun.take().map_or(Ok(()), |begun| begun(&daemon, listeners));
        let (successor, remains) = match serve(&daemon, &mut doors, signals, connections, tell) {
            Ok((Ending::Upgrade(successor), remains)) => (successor, remains),
            // Also when a thread could not be started: the items are not to be lost for that.
            outcome => return outcome.map(drop).and(warm_restart::save(daemon.store, daemon.clock)),
        };
        match hand_over(daemon, successor, remains, signals)? {
            HandedOver::Not(same, its_connections) => (daemon, connections) = (*same, its_connections),
            HandedOver::Stopped => return Ok(()),
            HandedOver::Taken(successor, left, clock) => {
                // Whoever connects from here on must not wait for this process.
                drop(doors);
                graceful_close::farewell(left, clock);
                successor.settle(&signals.stop);
                return Ok(());
            }
        }
        tracing::info!("goes on serving");
    }
}

/// What came of it.
enum HandedOver {
    /// The other process serves; these are the connections that it cannot go on with.
    Taken(Successor, Vec<Connection>, Clock),
    /// It does not: here is everything again.
    Not(Box<Daemon>, Vec<Connection>),
    /// This process was told to stop meanwhile.
    Stopped,
}

/// Leaves everything to another process.
fn hand_over(
    mut daemon: Daemon,
    mut successor: Successor,
    connections: Vec<Connection>,
    signals: &Signals,
) -> anyhow::Result<HandedOver> {
    let pid = successor.pid();
    tracing::info!("hands over to process {pid}, with {} connections", connections.len());
    let Some(is_sent) =
        successor.send(connections.iter().map(|connection| (connection.connection_state(), connection.socket.as_fd())))
    else {
        return Ok(HandedOver::Not(Box::new(daemon), connections));
    };
    let store = daemon.store;
    let store = match &daemon.warmth {
        Some(_) => {
            // Nothing would be gained by going on with what cannot be kept: the next process begins empty in any case.
            warm_restart::save(store, daemon.clock).unwrap_or_else(|error| tracing::error!("{error:#}"));
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
            let is_left = connections.into_iter().zip(is_sent).filter(|(_, is_sent)| !is_sent);
            let is_left = is_left.map(|(connection, _)| connection).collect();
            Ok(HandedOver::Taken(successor, is_left, daemon.clock))
        }
        Outcome::Stopped => Ok(HandedOver::Stopped),
        Outcome::Failed => {
            daemon.store = match store {
                Some(store) => store,
                None => warm_restart::reopen(&daemon.arguments, daemon.options.clone(), daemon.clock)?,
            };
            daemon.note_evictions();
            Ok(HandedOver::Not(Box::new(daemon), connections))
        }
    }
}

/// Runs the threads until somebody ends them; what is left then.
fn serve(
    daemon: &Daemon,
    doors: &mut Doors,
    signals: &Signals,
    connections: Vec<Connection>,
    begun: impl FnOnce(&[Listener]) -> anyhow::Result<()>,
) -> anyhow::Result<(Ending, Vec<Connection>)> {
    let udp_sockets = copies(&doors.udp_ports).context("cannot copy the descriptors of UDP ports")?;
    let udp_ports = std::mem::take(&mut doors.udp_ports);
    let Doors { listeners, metrics, gate, .. } = &*doors;
    let gate = gate.as_ref().map(|gate| {
        let listening = listeners.iter().map(|listener| listener.socket.as_fd());
        let metrics = metrics.iter().map(|endpoint| endpoint.listener().as_fd());
        UpgradeServer::new(gate, listening.chain(metrics).chain(udp_sockets.iter().map(AsFd::as_fd)))
    });
    let (stop_metrics, metrics_stop) = UnixStream::pair().context("cannot make a pipe for the metrics' thread")?;
    daemon.desks.iter().for_each(Desk::open_again);
    daemon.watchers.open_again(daemon);
    let workers = build_workers(daemon, udp_ports)?;
    daemon.listening.get_or_init(|| listening(listeners, &workers));
    hand_out(daemon, connections);
    let (outcome, remains) = std::thread::scope(|scope| {
        let mut threads = Vec::new();
        let outcome = start_all(scope, workers, &mut threads).and_then(|()| {
            start(scope, "watchers".to_string(), || daemon.watchers.run(daemon))?;
            if let Some(endpoint) = metrics {
                start(scope, "metrics".to_string(), || {
                    endpoint.run(|| prometheus::render(daemon, daemon.clock.now()), &metrics_stop)
                })?;
            }
            begun(listeners)?;
            accept_until_signal(daemon, listeners, signals, gate).context("cannot accept connections")
        });
        daemon.desks.iter().for_each(Desk::stop);
        daemon.watchers.stop();
        drop(stop_metrics);
        let remains = threads.into_iter().map(|thread| thread.join().expect("a worker does not panic"));
        (outcome, remains.collect::<Vec<Remains>>())
    });
    let mut connections = Vec::new();
    for Remains { connections: its_connections, udp_ports } in remains {
        connections.extend(its_connections);
        doors.udp_ports.push(udp_ports);
    }
    Ok((outcome?, connections))
}

/// Spreads connections over the workers, each of which is woken once.
fn hand_out(daemon: &Daemon, connections: Vec<Connection>) {
    let each = connections.len().div_ceil(daemon.desks.len()).max(1);
    let mut connections = connections.into_iter().map(Arrival::Known);
    for desk in &daemon.desks {
        desk.hand_over(connections.by_ref().take(each));
    }
}

fn start_all<'scope, 'w: 'scope>(
    scope: &'scope Scope<'scope, '_>,
    workers: Vec<Worker<'w>>,
    threads: &mut Vec<ScopedJoinHandle<'scope, Remains>>,
) -> anyhow::Result<()> {
    for (number, worker) in workers.into_iter().enumerate() {
        threads.push(start(scope, format!("worker-{number}"), || worker.run())?);
    }
    Ok(())
}

fn start<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    name: String,
    run: impl FnOnce() -> T + Send + 'scope,
) -> anyhow::Result<ScopedJoinHandle<'scope, T>> {
    let failed = format!("cannot start the thread {name}");
    Builder::new().name(name).spawn_scoped(scope, run).context(failed)
}

/// The sockets of UDP ports once more: the ports themselves go to the workers.
fn copies(udp_ports: &[Vec<UdpPort>]) -> std::io::Result<Vec<OwnedFd>> {
    udp_ports.iter().flatten().map(|port| port.socket().try_clone()).collect()
}

fn build_workers(daemon: &Daemon, udp_ports: Vec<Vec<UdpPort>>) -> anyhow::Result<Vec<Worker<'_>>> {
    let workers = daemon.desks.iter().zip(udp_ports).map(|(desk, ports)| {
        let limits = limits(&daemon.options);
        let service = Service {
            store: &daemon.store,
            counters: &desk.counters,
            attention: &desk.attention,
            measure: desk.measure.as_ref(),
            limits,
            dialects: daemon.dialects,
            sasl: daemon.guard.users.as_ref().filter(|_| daemon.arguments.enable_sasl),
            text_users: daemon.guard.text_users.as_ref(),
            process: daemon,
        };
        Worker::new(daemon, service, desk, daemon.clock, ports)
    });
    workers.collect::<Result<_, _>>().context("cannot make the workers' epolls")
}

/// What `stats conns` shows of the ports.
fn listening(listeners: &[Listener], workers: &[Worker<'_>]) -> Vec<(RawFd, String)> {
    let tcp = listeners.iter().filter_map(|listener| {
        let descriptor = listener.socket.as_raw_fd();
        Some((descriptor, peer_address::of_local(descriptor, "tcp")?))
    });
    let udp = workers.iter().flat_map(Worker::udp_descriptors);
    let udp = udp.filter_map(|descriptor| Some((descriptor, peer_address::of_local(descriptor, "udp")?)));
    tcp.chain(udp).collect()
}
