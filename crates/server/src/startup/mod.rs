//! The daemon put together: store, ports, workers, signals.

pub(crate) mod daemonize;
pub(crate) mod listeners;
pub(crate) mod privileges;
pub(crate) mod secrets;
pub(crate) mod warm_restart;

use crate::cli::Arguments;
use crate::cli::Remark;
use crate::clock::Clock;
use crate::lifecycle::takeover::PROGRAM;
use crate::lifecycle::threads;
use crate::net::accept_pause::Accepting;
use crate::net::acceptor;
use crate::net::acceptor::{Listener, Signals, local_address};
use crate::net::buffer_accounting::Holdings;
use crate::net::connection::Connection;
use crate::net::connection_table::Roster;
use crate::net::udp::amplification::ReplyLimit;
use crate::net::worker::{Arrival, Desk};
use crate::observe::event_log::Attention;
use crate::observe::event_log::{Escaped, kind};
use crate::observe::metrics::Measure;
use crate::observe::stats::Baseline;
use crate::observe::watchers::Watchers;
use crate::session::auth::login_log::RefusedLogins;
use crate::session::context::Dialects;
use crate::startup::daemonize::PidFile;
use crate::startup::listeners::Doors;
use crate::startup::privileges::Identity;
use crate::startup::secrets::Guard;
use crate::startup::warm_restart::Warmth;
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
pub(crate) struct Daemon {
    pub(crate) arguments: Arguments,
    pub(crate) options: Options,
    pub(crate) clock: Clock,
    pub(crate) store: Store,
    /// There if the store outlives the process.
    pub(crate) warmth: Option<Warmth>,
    pub(crate) desks: Vec<Desk>,
    pub(crate) connections_total: AtomicU64,
    pub(crate) connections_rejected: AtomicU64,
    pub(crate) accepting: Accepting,
    pub(crate) baseline: Mutex<Baseline>,
    pub(crate) tcp_port: AtomicU16,
    pub(crate) dialects: Dialects,
    pub(crate) guard: Guard,
    /// There if UDP is served.
    pub(crate) udp_reply_limit: Option<Arc<ReplyLimit>>,
    pub(crate) log: Log,
    pub(crate) refused_logins: RefusedLogins,
    pub(crate) roster: Roster,
    pub(crate) watchers: Watchers,
    /// Whoever evicts notes it here.
    pub(crate) evictions: Arc<Attention>,
    /// What listens: descriptor and address, as memcached writes it.
    pub(crate) listening: OnceLock<Vec<(RawFd, String)>>,
    /// What `lru_crawler` has been told; there is no crawler.
    pub(crate) crawls: AtomicBool,
    /// Ends the loop that accepts connections, as a signal does.
    stop: UnixStream,
}

impl Daemon {
    /// Ends the process, as SIGTERM does.
    pub(crate) fn stop(&self) {
        if let Err(error) = (&self.stop).write_all(b"s") {
            tracing::error!("cannot stop as asked: {error}");
        }
    }

    /// Hands a connection to the worker that has the fewest.
    pub(crate) fn hand_out(&self, arrival: Arrival) {
        let by_connections = self.desks.iter().min_by_key(|desk| desk.connections_open.load(Ordering::Relaxed));
        by_connections.expect("there is at least one worker").hand_over([arrival]);
    }

    /// Lets the store tell whoever watches what it evicts.
    pub(crate) fn note_evictions(&self) {
        let noted = Arc::clone(&self.evictions);
        self.store.on_eviction(Box::new(move |evicted, now| {
            if noted.is_given_to(kind::EVICTIONS) {
                noted.push(kind::EVICTIONS, eviction_line(evicted, now), now);
            }
        }));
    }

    /// Whether there are as many connections as may be.
    pub(crate) fn is_full(&self) -> bool {
        self.connections_open() >= self.arguments.connections_max as usize
    }

    /// Connections that clients hold at present.
    pub(crate) fn connections_open(&self) -> usize {
        let served: usize = self.desks.iter().map(|desk| desk.connections_open.load(Ordering::Relaxed)).sum();
        served + self.watchers.count.load(Ordering::Relaxed)
    }
}

/// Runs the server until SIGINT, SIGTERM or SIGUSR1; with `-d` in another process. An error means that it could not start, or not keep its items.
pub fn run(arguments: Arguments) -> anyhow::Result<ExitCode> {
    if let Some(name) = &arguments.remove_region {
        println!("{}", warm_restart::forget(name)?);
        return Ok(ExitCode::SUCCESS);
    }
    arguments.check()?;
    if arguments.daemon
        && let Some(ended) = daemonize::enter()?
    {
        return Ok(ended);
    }
    start(arguments).map(|()| ExitCode::SUCCESS)
}

fn start(arguments: Arguments) -> anyhow::Result<()> {
    let (signals, stop) = catch_signals().context("cannot make a pipe for signals")?;
    let log = Log::start(arguments.log_format, u32::from(arguments.verbosity));
    tell_remarks(&arguments);
    raise_descriptor_limit(arguments.connections_max);
    let clock = Clock::start();
    let dialects = arguments.dialects()?;
    let identity = privileges::wanted(arguments.user.as_deref())?;
    let mut inherited = Inherited::from_supervisor();
    let mut predecessor = find_predecessor(&arguments, identity.as_ref(), &mut inherited, &signals)?;
    let guard = Guard::read(&arguments, clock)?;
    let doors = Doors::open(&arguments, &mut inherited)?;
    inherited.close_rest();
    let pid_file = arguments.pid_path.as_deref().map(PidFile::open).transpose()?;
    take_identity(&arguments, identity)?;
    let (daemon, estate) = build(arguments, dialects, guard, &doors, log, clock, stop, &signals, predecessor.as_mut())?;
    if daemon.arguments.lock_memory {
        privileges::lock_memory();
    }
    let connections = adopt(&daemon, &doors.listeners, estate);
    let outcome = threads::run(daemon, doors, &signals, connections, |daemon, listeners| {
        let announced = announce(daemon, listeners).and_then(|()| pid_file.as_ref().map_or(Ok(()), PidFile::write));
        match announced {
            // Who served before has gone: better to serve unannounced than not at all.
            Err(error) if predecessor.is_some() => tracing::error!("{error:#}"),
            announced => announced?,
        }
        notify_ready();
        if daemon.arguments.daemon {
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
    identity: Option<&Identity>,
    inherited: &mut Inherited,
    signals: &Signals,
) -> anyhow::Result<Option<Predecessor>> {
    match &arguments.upgrade_socket {
        Some(path) if arguments.take_over => {
            Predecessor::find(PROGRAM, path, identity.map(Identity::user), inherited, &signals.stop)
        }
        _ => Ok(None),
    }
}

/// The connections of an earlier process that may go on here: as if each had come in by the same address now.
fn adopt(daemon: &Daemon, listeners: &[Listener], estate: Handover) -> Vec<Connection> {
    let certificates = daemon.guard.certificates.as_ref();
    let count = estate.connections.len();
    let doors: Vec<_> =
        listeners.iter().filter_map(|listener| Some((listener.socket.local_addr().ok()?, listener))).collect();
    let resumed = estate.connections.into_iter().filter_map(|(socket, connection_state)| {
        let end = SockRef::from(&socket).local_addr().ok()?;
        let (_, door) = doors.iter().find(|(address, _)| acceptor::is_end_of(&end, address))?;
        let is_plain = certificates.and_then(|all| all.configuration(door.security)).is_none();
        if is_plain { Connection::resume(socket, connection_state, door.dialects, daemon.dialects) } else { None }
    });
    let connections: Vec<Connection> = resumed.take(daemon.arguments.connections_max as usize).collect();
    if connections.len() < count {
        let closed = count - connections.len();
        tracing::warn!("{closed} connections are closed that could not be made as they are here (see -l, -c, -B, -Z)");
    }
    daemon.connections_total.fetch_add(connections.len() as u64, Ordering::Relaxed);
    for connection in connections.iter().filter(|_| daemon.udp_reply_limit.is_some()) {
        acceptor::prove_address(daemon, rustix::net::getpeername(&connection.socket).ok().flatten());
    }
    connections
}

/// Says which options change nothing.
fn tell_remarks(arguments: &Arguments) {
    for Remark { is_loss, text } in arguments.compatible.remarks() {
        if is_loss { tracing::warn!("{text}") } else { tracing::info!("{text}") }
    }
    if arguments.unix_path.is_some() && !arguments.listen.is_empty() {
        tracing::warn!("-l changes nothing here: -s takes the place of every other port");
    }
}

/// Becomes whom `-u` names, with what `-r` and `-k` ask for.
fn take_identity(arguments: &Arguments, identity: Option<Identity>) -> anyhow::Result<()> {
    if arguments.lock_memory {
        privileges::allow_locking();
    }
    if let Some(identity) = identity {
        let mut files = arguments.unix_path.iter().chain(&arguments.pid_path).chain(&arguments.upgrade_socket);
        files.try_for_each(|path| identity.hand_over(path))?;
        identity.take()?;
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
    dialects: Dialects,
    guard: Guard,
    doors: &Doors,
    log: Log,
    clock: Clock,
    stop: UnixStream,
    signals: &Signals,
    mut predecessor: Option<&mut Predecessor>,
) -> anyhow::Result<(Daemon, Handover)> {
    let options = arguments.store_options(random_seed()?);
    let measure = || arguments.metrics_address.as_ref().map(|_| Measure::new(clock));
    let limits = &arguments.compatible;
    let of_each = |limit_bytes: u64| (limit_bytes > 0).then(|| limit_bytes / arguments.threads_count() as u64);
    let holdings = || Holdings::new(of_each(limits.read_limit_bytes()), of_each(limits.reply_limit_bytes()));
    let desks = (0..arguments.threads_count()).map(|_| Desk::new(measure(), holdings())).collect::<Result<Vec<_>, _>>();
    let desks = desks.context("cannot make the workers' eventfds")?;
    for desk in &desks {
        let Some(delimiter) = arguments.prefix_delimiter else { continue };
        desk.attention.set_delimiter(delimiter);
        desk.attention.give(kind::PREFIXES, kind::PREFIXES);
    }
    let roster = Roster::new(arguments.connections_max);
    let prepared = warm_restart::prepare(&arguments, options.clone())?;
    // Nobody serves from here until all is done. Last of all that can fail: a store that was taken up must be saved.
    let estate = predecessor.as_mut().map(|predecessor| predecessor.receive(&signals.stop)).transpose()?;
    if estate.as_ref().is_some_and(|estate| estate.is_kept) && arguments.region_name().is_none() {
        tracing::warn!("the items that were kept are not taken up: that asks for --warm-restart");
    }
    let take = || predecessor.map_or(Ok(()), Predecessor::confirm_takeover);
    let (store, warmth, clock) = warm_restart::open(prepared, clock, take)?;
    let daemon = Daemon {
        options,
        clock,
        store,
        warmth,
        desks,
        connections_total: AtomicU64::new(0),
        roster,
        watchers: Watchers::default(),
        evictions: Arc::new(Attention::new()),
        listening: OnceLock::new(),
        connections_rejected: AtomicU64::new(0),
        accepting: Accepting::default(),
        baseline: Mutex::default(),
        tcp_port: AtomicU16::new(arguments.port),
        dialects,
        guard,
        udp_reply_limit: doors.udp_reply_limit.clone(),
        arguments,
        log,
        refused_logins: RefusedLogins::default(),
        crawls: AtomicBool::new(true),
        stop,
    };
    daemon.note_evictions();
    Ok((daemon, estate.unwrap_or_default()))
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
fn announce(daemon: &Daemon, listeners: &[Listener]) -> anyhow::Result<()> {
    let mut ports = String::new();
    for listener in listeners {
        let Some(address) = local_address(&listener.socket) else { continue };
        daemon.tcp_port.store(address.port(), Ordering::Relaxed);
        ports += &format!("TCP {}: {}\n", if address.is_ipv6() { "INET6" } else { "INET" }, address.port());
        let spoken = match listener.dialects {
            Some(Dialects::Text) => ", for the text protocol",
            Some(Dialects::Binary) => ", for the binary protocol",
            Some(Dialects::Both) | None => "",
        };
        tracing::info!("listening on {address}{}{spoken}", listener.security.remark());
    }
    if let Some(path) = &daemon.arguments.unix_path {
        tracing::info!("listening on {}", path.display());
    } else if daemon.arguments.udp_port != 0 {
        ports += &format!("UDP INET: {}\n", daemon.arguments.udp_port);
        tracing::info!("listening on UDP port {}", daemon.arguments.udp_port);
        if let Some(numbers) = daemon.arguments.udp_worker_ports() {
            let (first, last) = (numbers.start(), numbers.end());
            tracing::info!("listening on UDP ports {first} to {last}, one for each worker thread");
        }
    }
    if daemon.arguments.listen.is_empty() && daemon.arguments.unix_path.is_none() {
        tracing::info!("only this machine can connect; choose addresses with -l (memcached would listen on all)");
    }
    let Some(path) = std::env::var_os(PORT_FILE_VARIABLE).map(PathBuf::from) else { return Ok(()) };
    // Written aside and renamed, so that whoever waits for the file never reads half of it.
    let aside = path.with_extension("lookaside");
    std::fs::write(&aside, ports)
        .and_then(|()| std::fs::rename(&aside, &path))
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
