//! From the command line to running threads, in this order:
//!
//! 1. check that no other process has the addresses; take the sockets of the running process, if there is one;
//! 2. start the threads, which connect to the servers;
//! 3. ask that process to stop serving, and receive its clients;
//! 4. open the spool, which fences the servers that have a backlog;
//! 5. ask the peers which configurations they cover;
//! 6. bind all sockets;
//! 7. confirm the takeover: the other process ends, this one serves;
//! 8. start serving: clients, metrics and the upgrade listener.
//!
//! A failure before step 7 leaves the running process serving. So everything that may fail for a reason outside comes
//! first. The sockets come after the peers: two routers that start together and listen already would both wait for
//! the other's answer until they give up, and so would their clients.

use super::Daemon;
use super::reload::{ConfigLoader, InitialConfig, ReloadHost, unix_s};
use super::signals::Signals;
use crate::admin::metrics_endpoint::BoundEndpoint;
use crate::cli::{FDS_RESERVED, Options};
use crate::config::router_config::RouterConfig;
use crate::frontend::limits::Settings;
use crate::frontend::listen::{self, AcceptorSockets, BoundListener, ListenAddress, SocketFile};
use crate::frontend::users::Users;
use crate::handover::{self, BoundUpgradeSocket, ProgramState, Takeover, WorkerSet};
use crate::proxy::ConfigUpdates;
use crate::resize::driver::{Applied, Resizer, ResizerSettings};
use crate::resize::start::ResizerChannels;
use crate::resize::store::{CoverageDigest, CoverageFile, CoverageStore, NoStore};
use crate::shared::{Identity, SharedState};
use crate::spool::{FileDisk, PeerMissing, Spool, SpoolSettings};
use crate::start_gate::StartGate;
use crate::tree::active_configs::ActiveConfigs;
use crate::worker::{Worker, new_runtime};
use lookaside_client::config::Source;
use lookaside_net::raise_fd_limit;
use lookaside_telemetry::{Log, MetricsThread};
use lookaside_upgrade::{Handover, Inherited, notify_ready};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::runtime::Runtime;
use tokio::sync::mpsc::{self, UnboundedSender};
use tokio::sync::watch;

pub(super) fn start<'a>(
    options: &'a Options,
    addresses: &[ListenAddress],
    mut inherited: Inherited,
    mut loader: ConfigLoader,
    initial: InitialConfig,
    log: Log,
) -> Result<Daemon<'a>, String> {
    let InitialConfig { config, seen, refusal } = initial;
    let users = options.auth.open_users()?.map(Arc::new);
    raise_open_files(options.connections_max());
    let mut predecessor = match &options.upgrade_socket {
        Some(path) if options.take_over => Takeover::find(path, &mut inherited)?,
        _ => None,
    };
    listen::check_free(addresses, &inherited)?;
    let runtime = new_runtime()?;
    let shared = shared_state(&loader, refusal, log);
    let publish = watch::Sender::new(Arc::new(ActiveConfigs::single(Arc::new(config.clone()))));
    loader.prepare(&publish.borrow());
    let (applied, applied_by_threads) = mpsc::unbounded_channel();
    let (mut workers, threads, thread_ends) =
        spawn_workers(options, users.as_ref(), &loader, &shared, (&publish, &applied))?;
    let handover = receive_handover(predecessor.as_mut(), &runtime, &mut workers)?;
    // Before any client is served: servers with a backlog of an earlier run, or process, must not be read.
    // The predecessor, or an earlier run that has just crashed, may have given permits.
    shared.read_permits().record();
    loader.spool = open_spool(options, &config, &shared)?;
    warn_of_missing_spool(handover.has_saved_state, loader.spool.as_deref());
    let handed_over = handover.program_state.as_deref().map(decode_program_state).transpose()?;
    loader.start_gate = start_gate(options, handed_over.as_ref().map(|state| &*state.start_gate))?;
    let config = config.with_spool(loader.spool.clone()).with_start_gate(loader.start_gate.clone());
    let host = ReloadHost { loader: &loader, shared: &shared };
    let channels = ResizerChannels { publish, applied: applied_by_threads };
    // After the other process has stopped to change the state on disk.
    let coverage = handed_over.map(|state| state.coverage);
    let resizer = runtime.block_on(start_resizer(options, &host, config, channels, coverage))?;
    let mut sockets = Sockets::bind(options, addresses, &mut inherited)?;
    inherited.close_unused();
    let clients = handover::assign_clients(handover.connections, &sockets.listeners, options);
    predecessor.as_mut().map_or(Ok(()), Takeover::confirm)?;
    sockets.take_ownership(options.listen.tcp_listen_backlog)?;
    let active = resizer.active();
    // Only now: had the takeover failed, the other router might use these servers.
    loader.spool.iter().for_each(|spool| spool.mark_unconfigured_for_flush(&active.servers()));
    // Before the port is logged: a reader of the log may stop the daemon at once.
    let signals = runtime.block_on(async { Signals::receive() })?;
    loader.prepare(&active);
    let (names, acceptors, socket_files) = distribute(sockets.listeners, options.threads(), &loader)?;
    workers.start(acceptors, clients);
    let metrics = serve_metrics(sockets.metrics, &shared, options)?;
    announce(threads.len(), &loader, names);
    if let Some(predecessor) = predecessor {
        predecessor.log_pause();
    }
    let upgrade_listener = sockets.upgrade.map(BoundUpgradeSocket::serve).transpose()?;
    Ok(Daemon {
        options,
        users,
        loader,
        seen,
        shared,
        resizer,
        signals,
        workers,
        threads,
        thread_ends,
        upgrade_listener,
        socket_files,
        _metrics: metrics,
        runtime,
    })
}

fn decode_program_state(bytes: &[u8]) -> Result<ProgramState, String> {
    ProgramState::decode(bytes).ok_or_else(|| "the predecessor has handed over an unknown state".to_owned())
}

/// The gate that a predecessor hands over, or else the one of `--wait-for-invalidator`, if that is set.
fn start_gate(options: &Options, handed_over: Option<&[u8]>) -> Result<Option<Arc<StartGate>>, String> {
    let gate = match (handed_over, options.wait_for_invalidator) {
        (Some(saved), wait_s) if !saved.is_empty() || wait_s > 0 => {
            StartGate::from_saved(saved).ok_or("the predecessor has handed over an unknown state of its start gate")?
        }
        (_, 0) => return Ok(None),
        (_, wait_s) => {
            let wait_max = Duration::from_secs(wait_s.into());
            StartGate::new(wait_max, fastrand::u64(..), options.wait_for_sources.into())
        }
    };
    if !gate.is_open() {
        let wait_s = gate.wait_left().as_secs();
        tracing::info!(wait_s, "refusing all requests but deletes until the invalidator has caught up");
    }
    Ok(Some(gate))
}

fn receive_handover(
    predecessor: Option<&mut Takeover>,
    runtime: &Runtime,
    workers: &mut WorkerSet,
) -> Result<Handover, String> {
    let Some(predecessor) = predecessor else { return Ok(Handover::default()) };
    // While the other process serves. A silent server takes seconds.
    runtime.block_on(workers.wait_until_connected());
    predecessor.receive()
}

fn warn_of_missing_spool(is_saved: bool, spool: Option<&Spool>) {
    if is_saved && spool.is_none() {
        tracing::error!(
            "predecessor had a spool but this router has none: its undelivered deletes may be lost (start with --spool)"
        );
    }
}

struct Sockets {
    listeners: Vec<BoundListener>,
    metrics: Option<BoundEndpoint>,
    upgrade: Option<BoundUpgradeSocket>,
}

impl Sockets {
    fn bind(options: &Options, addresses: &[ListenAddress], inherited: &mut Inherited) -> Result<Sockets, String> {
        let backlog = options.listen.tcp_listen_backlog;
        let listeners = listen::bind_all(addresses, options.threads(), backlog, inherited)?;
        let metrics = options.metrics_address.as_deref().map(|at| BoundEndpoint::bind(at, inherited)).transpose()?;
        let upgrade = handover::bind_upgrade_socket(options, &listeners, metrics.as_ref(), inherited)?;
        Ok(Sockets { listeners, metrics, upgrade })
    }

    /// Takes ownership of inherited sockets when this process alone serves. One may have to be bound again.
    fn take_ownership(&mut self, backlog: i32) -> Result<(), String> {
        let mut is_new = false;
        for listener in &mut self.listeners {
            is_new |= listener.take_ownership(backlog)?;
        }
        if let Some(upgrade) = self.upgrade.as_mut().filter(|_| is_new) {
            upgrade.set_listeners(&self.listeners, self.metrics.as_ref())?;
        }
        Ok(())
    }
}

fn shared_state(loader: &ConfigLoader, refusal: Option<String>, log: Log) -> Arc<SharedState> {
    let identity = Identity { pid: std::process::id(), started_unix_s: unix_s() };
    let shared = SharedState::new(identity, loader.source().to_string());
    shared.set_certificates(loader.certificates().clone());
    shared.set_log(log);
    if let Some(why) = refusal {
        shared.record_config_refused(why);
        shared.record_config_from_disk();
    }
    shared
}

/// The listeners' names, each thread's acceptor, and the files to remove at the end.
type Distributed = (Vec<String>, Vec<AcceptorSockets>, Vec<SocketFile>);

fn distribute(listeners: Vec<BoundListener>, threads: usize, loader: &ConfigLoader) -> Result<Distributed, String> {
    let mut acceptors: Vec<AcceptorSockets> = (0..threads).map(|_| AcceptorSockets::new()).collect();
    let (mut names, mut files) = (Vec::new(), Vec::new());
    for listener in listeners {
        names.push(listener.name.clone());
        files.extend(listener.distribute(&mut acceptors, loader.certificates())?);
    }
    Ok((names, acceptors, files))
}

/// The workers, their threads, and a channel that closes when all threads have ended.
type Workers = (WorkerSet, Vec<JoinHandle<()>>, mpsc::Receiver<()>);

fn spawn_workers(
    options: &Options,
    users: Option<&Arc<Users>>,
    loader: &ConfigLoader,
    shared: &Arc<SharedState>,
    (configs, applied): (&watch::Sender<Arc<ActiveConfigs>>, &UnboundedSender<Applied>),
) -> Result<Workers, String> {
    let (stop, shutdown) = watch::channel(false);
    let (alive, thread_ends) = mpsc::channel::<()>(1);
    let mut workers = WorkerSet::new(shared.clone(), stop);
    let mut threads = Vec::new();
    for index in 0..options.threads() {
        let network = loader.network();
        let updates = ConfigUpdates::new(index, configs.subscribe(), applied.clone(), network, fastrand::u64(..));
        let worker = Worker {
            settings: Settings { users: users.cloned(), ..options.settings() },
            shared: shared.clone(),
            updates,
            shutdown: shutdown.clone(),
            _alive: alive.clone(),
        };
        threads.push(worker.spawn(workers.add())?);
    }
    Ok((workers, threads, thread_ends))
}

async fn start_resizer(
    options: &Options,
    host: &ReloadHost<'_>,
    config: RouterConfig,
    channels: ResizerChannels,
    handed_over: Option<CoverageDigest>,
) -> Result<Resizer, String> {
    let store: Box<dyn CoverageStore> = match &options.configuration.config_cache {
        Some(path) => Box::new(CoverageFile::beside(path)),
        None => Box::new(NoStore),
    };
    let spool = options.spool_settings();
    let settings = ResizerSettings {
        peers: if host.loader.spool.is_some() { spool.peers } else { Vec::new() },
        ignores_missing_peers: spool.peer_missing == PeerMissing::Ignore,
        threads: options.threads(),
        handed_over,
        history: host.loader.history(),
        is_history_required: options.configuration.config_history.is_some(),
    };
    let is_remembered = options.configuration.config_cache.is_some() || settings.history.is_some();
    if matches!(host.loader.source(), Source::File(_)) && !settings.peers.is_empty() && !is_remembered {
        tracing::warn!(
            "several routers share servers (--spool-peers), and this one has no --config-cache: if all of them restart, none \
             knows the configuration of before, and old values may come back after a change of servers; give each a \
             --config-cache on a disk, or all the same --config-history in etcd, or put the configuration into etcd"
        );
    }
    Resizer::start(config, settings, store, host, host.loader.spool_network(), channels).await
}

fn serve_metrics(
    endpoint: Option<BoundEndpoint>,
    shared: &Arc<SharedState>,
    options: &Options,
) -> Result<Option<MetricsThread>, String> {
    let version = options.settings().version;
    endpoint.map(|endpoint| endpoint.serve(shared.clone(), version)).transpose()
}

/// Logs that this process serves, and notifies the supervisor.
fn announce(threads: usize, loader: &ConfigLoader, names: Vec<String>) {
    tracing::info!(threads, source = %loader.source(), "serving");
    for name in names {
        tracing::info!("listening on {name}");
    }
    notify_ready();
}

pub(super) fn open_spool(
    options: &Options,
    config: &RouterConfig,
    shared: &SharedState,
) -> Result<Option<Arc<Spool>>, String> {
    let Some(directory) = options.spool.directory() else { return Ok(None) };
    let tko_trackers =
        config.destination_options().tko_trackers.clone().expect("the options give all destinations one");
    let disk = Arc::new(FileDisk::open(directory)?);
    let settings = SpoolSettings { read_permits: shared.read_permits().clone(), ..options.spool_settings() };
    let spool = Spool::open_threaded(disk, tko_trackers, settings)?;
    tracing::info!(spool = %directory.display(), "spooling deletes that servers do not answer");
    Ok(Some(spool))
}

/// Raises the limit on open files to the maximum: each client is one.
fn raise_open_files(connections_max: usize) {
    let Some(files) = raise_fd_limit(None) else { return };
    if connections_max != usize::MAX && files < connections_max as u64 + FDS_RESERVED {
        tracing::warn!("the system allows {files} open files: fewer than --max-conns {connections_max} clients need");
    }
}
