//! The daemon put together: store, ports, workers, signals.

pub(crate) mod daemonize;
pub(crate) mod listeners;
pub(crate) mod privileges;
pub(crate) mod secrets;
pub(crate) mod warm_restart;

use crate::cli::Arguments;
use crate::cli::IgnoredOption;
use crate::clock::Clock;
use crate::lifecycle::takeover::PROGRAM;
use crate::lifecycle::threads;
use crate::net::accept_pause::AcceptPause;
use crate::net::acceptor;
use crate::net::acceptor::{Listener, Signals, local_address};
use crate::net::buffer_accounting::BufferAccounting;
use crate::net::connection::Connection;
use crate::net::connection_table::ConnectionTable;
use crate::net::udp::amplification::AmplificationLimit;
use crate::net::worker::{Dispatched, WorkerHandle};
use crate::observe::event_log::EventSink;
use crate::observe::event_log::{Escaped, kind};
use crate::observe::metrics::Sampler;
use crate::observe::stats::Baseline;
use crate::observe::watchers::Watchers;
use crate::session::auth::login_log::LoginLog;
use crate::session::context::Protocols;
use crate::startup::daemonize::PidFile;
use crate::startup::listeners::Listeners;
use crate::startup::privileges::TargetUser;
use crate::startup::secrets::Secrets;
use crate::startup::warm_restart::WarmStart;
use anyhow::Context;
use lookaside_store::{Evicted, Expiry, Now, Options, Store};
use lookaside_telemetry::Log;
use lookaside_upgrade::{Handover, Inherited, Predecessor, notify_ready};
use rustix::process::{Resource, getrlimit, setrlimit};
use rustix::rand::{GetRandomFlags, getrandom};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use socket2::SockRef;
use std::io::Write;
use std::os::fd::RawFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

/// Descriptors beside the connections': listeners, epolls, the log.
const DESCRIPTORS_RESERVED: u64 = 64;

/// Where memcached writes the ports it has opened, if this is set.
const PORT_FILE_VARIABLE: &str = "MEMCACHED_PORT_FILENAME";

/// What all threads of the process share.
pub(crate) struct ServerState {
    pub(crate) arguments: Arguments,
    pub(crate) options: Options,
    pub(crate) clock: Clock,
    pub(crate) store: Store,
    /// There if the store outlives the process.
    pub(crate) warm_start: Option<WarmStart>,
    pub(crate) worker_handles: Vec<WorkerHandle>,
    pub(crate) connections_total: AtomicU64,
    pub(crate) connections_rejected: AtomicU64,
    pub(crate) accept_pause: AcceptPause,
    pub(crate) baseline: Mutex<Baseline>,
    pub(crate) tcp_port: AtomicU16,
    pub(crate) protocols: Protocols,
    pub(crate) secrets: Secrets,
    /// There if UDP is served.
    pub(crate) udp_reply_limit: Option<Arc<AmplificationLimit>>,
    pub(crate) log: Log,
    pub(crate) login_log: LoginLog,
    pub(crate) connection_table: ConnectionTable,
    pub(crate) watchers: Watchers,
    /// Whoever evicts notes it here.
    pub(crate) evictions: Arc<EventSink>,
    /// What listens: descriptor and address, as memcached writes it.
    pub(crate) listening: OnceLock<Vec<(RawFd, String)>>,
    /// What `lru_crawler` has been told; there is no crawler.
    pub(crate) is_crawler_enabled: AtomicBool,
    /// Ends the loop that accepts connections, as a signal does.
    stop: UnixStream,
}

impl ServerState {
    /// Ends the process, as SIGTERM does.
    pub(crate) fn stop(&self) {
        if let Err(error) = (&self.stop).write_all(b"s") {
            tracing::error!("cannot stop as asked: {error}");
        }
    }

    /// Hands a connection to the worker that has the fewest.
    pub(crate) fn dispatch(&self, dispatched: Dispatched) {
        let by_connections =
            self.worker_handles.iter().min_by_key(|handle| handle.connections_open.load(Ordering::Relaxed));
        by_connections.expect("there is at least one worker").dispatch([dispatched]);
    }

    /// Lets the store tell whoever watches what it evicts.
    pub(crate) fn record_evictions(&self) {
        let sink = Arc::clone(&self.evictions);
        self.store.on_eviction(Box::new(move |evicted, now| {
            if sink.is_enabled(kind::EVICTIONS) {
                sink.push(kind::EVICTIONS, eviction_line(evicted, now), now);
            }
        }));
    }

    /// Whether there are as many connections as may be.
    pub(crate) fn is_full(&self) -> bool {
        self.connections_open() >= self.arguments.connections_max as usize
    }

    /// Connections that clients hold at present.
    pub(crate) fn connections_open(&self) -> usize {
        let served: usize =
            self.worker_handles.iter().map(|handle| handle.connections_open.load(Ordering::Relaxed)).sum();
        served + self.watchers.count.load(Ordering::Relaxed)
    }
}

/// Runs the server until SIGINT, SIGTERM or SIGUSR1; with `-d` in another process. An error means that it could not start, or not keep its items.
pub fn run(arguments: Arguments) -> anyhow::Result<ExitCode> {
    if let Some(name) = &arguments.remove_region {
        println!("{}", warm_restart::remove(name)?);
        return Ok(ExitCode::SUCCESS);
    }
    arguments.check()?;
    if arguments.daemon
        && let Some(ended) = daemonize::spawn_background()?
    {
        return Ok(ended);
    }
    start(arguments).map(|()| ExitCode::SUCCESS)
}

fn start(arguments: Arguments) -> anyhow::Result<()> {
    let (signals, stop) = catch_signals().context("cannot make a pipe for signals")?;
    let log = Log::start(arguments.log_format, u32::from(arguments.verbosity));
    log_ignored_options(&arguments);
    raise_descriptor_limit(arguments.connections_max);
    let clock = Clock::start();
    let protocols = arguments.protocols()?;
    let target_user = privileges::find_target_user(arguments.user.as_deref())?;
    let mut inherited = Inherited::from_supervisor();
    let mut predecessor = find_predecessor(&arguments, target_user.as_ref(), &mut inherited, &signals)?;
    let secrets = Secrets::read(&arguments, clock)?;
    let doors = Listeners::open(&arguments, &mut inherited)?;
    inherited.close_rest();
    let pid_file = arguments.pid_path.as_deref().map(PidFile::open).transpose()?;
    change_user(&arguments, target_user)?;
    let (state, handover) =
        build(arguments, protocols, secrets, &doors, log, clock, stop, &signals, predecessor.as_mut())?;
    if state.arguments.lock_memory {
        privileges::lock_memory();
    }
    let connections = restore_connections(&state, &doors.listeners, handover);
    let outcome = threads::run(state, doors, &signals, connections, |state, listeners| {
        let announced = announce(state, listeners).and_then(|()| pid_file.as_ref().map_or(Ok(()), PidFile::write));
        match announced {
            // Who served before has gone: better to serve unannounced than not at all.
            Err(error) if predecessor.is_some() => tracing::error!("{error:#}"),
            announced => announced?,
        }
        notify_ready();
        if state.arguments.daemon {
            daemonize::notify_ready()?;
        }
        if let Some(predecessor) = predecessor.take() {
            predecessor.log_pause();
        }
        Ok(())
    });
    // Whoever waits for the file to go may start the next server.
    drop(pid_file);
    outcome?;
    tracing::info!("stopped");
    Ok(())
}

/// The server that is to be taken over from, if there is one.
fn find_predecessor(
    arguments: &Arguments,
    target_user: Option<&TargetUser>,
    inherited: &mut Inherited,
    signals: &Signals,
) -> anyhow::Result<Option<Predecessor>> {
    match &arguments.upgrade_socket {
        Some(path) if arguments.take_over => {
            Predecessor::find(PROGRAM, path, target_user.map(TargetUser::user), inherited, &signals.stop)
        }
        _ => Ok(None),
    }
}

/// The connections of an earlier process that may go on here: as if each had come in by the same address now.
fn restore_connections(state: &ServerState, listeners: &[Listener], handover: Handover) -> Vec<Connection> {
    let certificates = state.secrets.certificates.as_ref();
    let handed_over = handover.connections.len();
    let doors: Vec<_> =
        listeners.iter().filter_map(|listener| Some((listener.socket.local_addr().ok()?, listener))).collect();
    let restored = handover.connections.into_iter().filter_map(|(socket, connection_state)| {
        let local = SockRef::from(&socket).local_addr().ok()?;
        let (_, door) = doors.iter().find(|(address, _)| acceptor::matches_listener(&local, address))?;
        let is_plain = certificates.and_then(|all| all.server_config(door.tls_mode)).is_none();
        if is_plain {
            Connection::from_handover(socket, connection_state, door.protocols, state.protocols)
        } else {
            None
        }
    });
    let connections: Vec<Connection> = restored.take(state.arguments.connections_max as usize).collect();
    if connections.len() < handed_over {
        let closed = handed_over - connections.len();
        tracing::warn!("{closed} connections are closed that could not be made as they are here (see -l, -c, -B, -Z)");
    }
    state.connections_total.fetch_add(connections.len() as u64, Ordering::Relaxed);
    for connection in connections.iter().filter(|_| state.udp_reply_limit.is_some()) {
        acceptor::mark_validated(state, rustix::net::getpeername(&connection.socket).ok().flatten());
    }
    connections
}

/// Says which options change nothing.
fn log_ignored_options(arguments: &Arguments) {
    for IgnoredOption { is_unsupported, text } in arguments.compatible.ignored_options() {
        if is_unsupported { tracing::warn!("{text}") } else { tracing::info!("{text}") }
    }
    if arguments.unix_path.is_some() && !arguments.listen.is_empty() {
        tracing::warn!("-l changes nothing here: -s takes the place of every other port");
    }
}

/// Becomes whom `-u` names, with what `-r` and `-k` ask for.
fn change_user(arguments: &Arguments, target_user: Option<TargetUser>) -> anyhow::Result<()> {
    if arguments.lock_memory {
        privileges::allow_locking();
    }
    if let Some(target_user) = target_user {
        let mut files = arguments.unix_path.iter().chain(&arguments.pid_path).chain(&arguments.upgrade_socket);
        files.try_for_each(|path| target_user.chown(path))?;
        target_user.drop_privileges()?;
    }
    if arguments.enable_core_files { privileges::allow_core_files() } else { Ok(()) }
}

/// The signals, and the end of the pipe that stops the process.
fn catch_signals() -> std::io::Result<(Signals, UnixStream)> {
    let ((stop, stop_in), (reload, reload_in)) = (UnixStream::pair()?, UnixStream::pair()?);
    reload.set_nonblocking(true)?;
    for signal in [SIGINT, SIGTERM, SIGUSR1] {
        signal_hook::low_level::pipe::register(signal, stop_in.try_clone()?)?;
    }
    signal_hook::low_level::pipe::register(SIGHUP, reload_in)?;
    Ok((Signals { stop, reload }, stop_in))
}

/// The process put together, and what an earlier one leaves it. When this returns no other process serves.
#[expect(clippy::too_many_arguments, reason = "they are the parts, each there once")]
fn build(
    arguments: Arguments,
    protocols: Protocols,
    secrets: Secrets,
    doors: &Listeners,
    log: Log,
    clock: Clock,
    stop: UnixStream,
    signals: &Signals,
    mut predecessor: Option<&mut Predecessor>,
) -> anyhow::Result<(ServerState, Handover)> {
    let options = arguments.store_options(random_seed()?);
    let sampler = || arguments.metrics_address.as_ref().map(|_| Sampler::new(clock));
    let limits = &arguments.compatible;
    let worker_share = |limit_bytes: u64| (limit_bytes > 0).then(|| limit_bytes / arguments.threads_count() as u64);
    let buffers =
        || BufferAccounting::new(worker_share(limits.read_limit_bytes()), worker_share(limits.reply_limit_bytes()));
    let worker_handles =
        (0..arguments.threads_count()).map(|_| WorkerHandle::new(sampler(), buffers())).collect::<Result<Vec<_>, _>>();
    let worker_handles = worker_handles.context("cannot make the workers' eventfds")?;
    for handle in &worker_handles {
        let Some(delimiter) = arguments.prefix_delimiter else { continue };
        handle.events.set_delimiter(delimiter);
        handle.events.set_interest(kind::PREFIXES, kind::PREFIXES);
    }
    let connection_table = ConnectionTable::new(arguments.connections_max);
    let prepared = warm_restart::prepare(&arguments, options.clone())?;
    // Nobody serves from here until all is done. Last of all that can fail: a store that was taken up must be saved.
    let handover = predecessor.as_mut().map(|predecessor| predecessor.receive(&signals.stop)).transpose()?;
    if handover.as_ref().is_some_and(|handover| handover.is_kept) && arguments.region_name().is_none() {
        tracing::warn!("the items that were kept are not taken up: that asks for --warm-restart");
    }
    let confirm = || predecessor.map_or(Ok(()), Predecessor::confirm_takeover);
    let (store, warm_start, clock) = warm_restart::open(prepared, clock, confirm)?;
    let state = ServerState {
        options,
        clock,
        store,
        warm_start,
        worker_handles,
        connections_total: AtomicU64::new(0),
        connection_table,
        watchers: Watchers::default(),
        evictions: Arc::new(EventSink::new()),
        listening: OnceLock::new(),
        connections_rejected: AtomicU64::new(0),
        accept_pause: AcceptPause::default(),
        baseline: Mutex::default(),
        tcp_port: AtomicU16::new(arguments.port),
        protocols,
        secrets,
        udp_reply_limit: doors.udp_reply_limit.clone(),
        arguments,
        log,
        login_log: LoginLog::default(),
        is_crawler_enabled: AtomicBool::new(true),
        stop,
    };
    state.record_evictions();
    Ok((state, handover.unwrap_or_default()))
}

/// As memcached tells of it. A `ttl` of -1 is an item that would not have expired.
fn eviction_line(evicted: &Evicted<'_>, now: Now) -> String {
    let (key, fetched) = (Escaped(evicted.key), if evicted.was_fetched { "yes" } else { "no" });
    let ttl = match evicted.expiry {
        Expiry::At { unix_s } => i64::from(unix_s) - (now.unix_ms / 1000) as i64,
        _ => -1,
    };
    let Evicted { idle_s, slab_class, value_bytes, .. } = evicted;
    format!("type=eviction key={key} fetch={fetched} ttl={ttl} la={idle_s} clsid={slab_class} size={value_bytes}")
}

/// Says where the server listens: in the log, and in the file that memcached's users know.
fn announce(state: &ServerState, listeners: &[Listener]) -> anyhow::Result<()> {
    let mut ports = String::new();
    for listener in listeners {
        let Some(address) = local_address(&listener.socket) else { continue };
        state.tcp_port.store(address.port(), Ordering::Relaxed);
        ports += &format!("TCP {}: {}\n", if address.is_ipv6() { "INET6" } else { "INET" }, address.port());
        let protocol = match listener.protocols {
            Some(Protocols::Text) => ", for the text protocol",
            Some(Protocols::Binary) => ", for the binary protocol",
            Some(Protocols::Both) | None => "",
        };
        tracing::info!("listening on {address}{}{protocol}", listener.tls_mode.remark());
    }
    if let Some(path) = &state.arguments.unix_path {
        tracing::info!("listening on {}", path.display());
    } else if state.arguments.udp_port != 0 {
        ports += &format!("UDP INET: {}\n", state.arguments.udp_port);
        tracing::info!("listening on UDP port {}", state.arguments.udp_port);
        if let Some(port_numbers) = state.arguments.udp_worker_ports() {
            let (first, last) = (port_numbers.start(), port_numbers.end());
            tracing::info!("listening on UDP ports {first} to {last}, one for each worker thread");
        }
    }
    if state.arguments.listen.is_empty() && state.arguments.unix_path.is_none() {
        tracing::info!("only this machine can connect; choose addresses with -l (memcached would listen on all)");
    }
    let Some(path) = std::env::var_os(PORT_FILE_VARIABLE).map(PathBuf::from) else { return Ok(()) };
    // Written aside and renamed, so that whoever waits for the file never reads half of it.
    let temporary_path = path.with_extension("lookaside");
    std::fs::write(&temporary_path, ports)
        .and_then(|()| std::fs::rename(&temporary_path, &path))
        .with_context(|| format!("cannot write the ports to {} ({PORT_FILE_VARIABLE})", path.display()))
}

/// Every connection is a descriptor: asks for as many as `-c` allows.
fn raise_descriptor_limit(connections_max: u32) {
    let wanted = u64::from(connections_max) + DESCRIPTORS_RESERVED;
    let mut limit = getrlimit(Resource::Nofile);
    if limit.current.is_none_or(|current| current >= wanted) {
        return;
    }
    let allowed = limit.maximum.map_or(wanted, |maximum| maximum.min(wanted));
    limit.current = Some(allowed);
    if setrlimit(Resource::Nofile, limit).is_err() || allowed < wanted {
        tracing::warn!("-c {connections_max} needs {wanted} file descriptors, the system allows {allowed}");
    }
}

/// Lease tokens must not be guessable, nor repeat in another life of this server.
fn random_seed() -> anyhow::Result<u64> {
    let mut seed = [0; 8];
    getrandom(&mut seed, GetRandomFlags::empty()).context("cannot get random bytes from the kernel")?;
    Ok(u64::from_ne_bytes(seed))
}
