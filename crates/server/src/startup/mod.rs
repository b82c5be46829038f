//! Builds the process, in this order: everything that may fail comes before anything that another process would miss.
//!
//! | step | file |
//! |---|---|
//! | catch signals, find the process to take over from | [`signals`], [`takeover`] |
//! | read certificates and passwords, with the rights of the user that started the process | [`secrets`] |
//! | open all ports | [`listeners`] |
//! | become the user of `-u` | [`privileges`] |
//! | prepare the store, receive the predecessor's connections, attach the region | [`build`], [`warm_restart`] |
//! | lock memory (`-k`), restore connections | [`privileges`], [`takeover`] |

pub(crate) mod announce;
pub(crate) mod daemonize;
pub(crate) mod listeners;
pub(crate) mod privileges;
pub(crate) mod secrets;
pub(crate) mod signals;
pub(crate) mod takeover;
pub(crate) mod warm_restart;

use crate::cli::{Arguments, Port};
use crate::clock::Clock;
use crate::net::buffer_accounting::BufferAccounting;
use crate::net::state::{ConnectionLimits, NetState};
use crate::net::worker_handle::WorkerHandle;
use crate::observe::event_log::{EventSink, kind};
use crate::observe::metrics::Sampler;
use crate::session::context::Protocols;
use crate::session::crawl::expiry::ExpiryCrawl;
use crate::shared::{Secrets, ServerState};
use anyhow::Context;
use listeners::Listeners;
use lookaside_authentication::LoginLog;
use lookaside_sync::Mutex;
use lookaside_telemetry::Log;
use lookaside_upgrade::{Handover, Predecessor};
use rustix::rand::{GetRandomFlags, getrandom};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicU16};
use std::sync::{Arc, OnceLock};

/// File descriptors needed beside those of connections: listeners, epolls, the log.
const DESCRIPTORS_RESERVED: u64 = 64;

/// The parts that are ready before the store is.
pub(crate) struct Parts {
    pub(crate) protocols: Protocols,
    pub(crate) secrets: Secrets,
    pub(crate) log: Log,
    pub(crate) clock: Clock,
    /// See [`ServerState::stop`].
    pub(crate) stop: UnixStream,
}

/// Builds the shared state, and receives what the predecessor hands over. When this returns, no other process serves.
pub(crate) fn build(
    arguments: Arguments,
    parts: Parts,
    listeners: &Listeners,
    stop: &UnixStream,
    mut predecessor: Option<&mut Predecessor>,
) -> anyhow::Result<(ServerState, Handover)> {
    let Parts { protocols, secrets, log, clock, stop: stop_writer } = parts;
    let options = arguments.store_options(random_seed()?, random_seed()?);
    let worker_handles = build_worker_handles(&arguments, clock)?;
    let prepared = warm_restart::prepare(&arguments, options.clone())?;
    // From here until the end no process serves. Attaching the store is the last step that may fail: an attached store
    // must be saved.
    let handover = predecessor.as_mut().map(|predecessor| predecessor.receive(stop)).transpose()?;
    if handover.as_ref().is_some_and(|handover| handover.has_saved_state) && arguments.region_name().is_none() {
        tracing::warn!("predecessor saved its items, but they are ignored (start with --warm-restart)");
    }
    let confirm = || predecessor.map_or(Ok(()), Predecessor::confirm_takeover);
    let (store, warm_start, clock) = warm_restart::open(prepared, clock, confirm)?;
    let connection_limits = ConnectionLimits {
        connections_max: arguments.connections_max as usize,
        idle_timeout_s: arguments.idle_timeout_s(),
        handshake_timeout_s: secrets
            .certificates
            .as_ref()
            .map_or(0, |certificates| certificates.options.handshake_timeout.0),
        login_timeout_s: arguments.login_timeout,
        waits_when_full: arguments.compatible.waits_when_full(),
    };
    let state = ServerState {
        options,
        clock,
        store,
        net: NetState::new(worker_handles, connection_limits, listeners.amplification_limit.clone()),
        warm_start,
        baseline: Mutex::default(),
        tcp_port: AtomicU16::new(0),
        udp_port: listeners.udp_port.unwrap_or(0),
        protocols,
        secrets,
        arguments,
        log,
        login_log: LoginLog::default(),
        evictions: Arc::new(EventSink::new()),
        listening: OnceLock::new(),
        is_crawler_enabled: AtomicBool::new(true),
        expiry_crawl: ExpiryCrawl::default(),
        stop: stop_writer,
    };
    state.record_evictions();
    Ok((state, handover.unwrap_or_default()))
}

fn build_worker_handles(arguments: &Arguments, clock: Clock) -> anyhow::Result<Vec<WorkerHandle>> {
    let workers = arguments.threads_count();
    let sampler = || arguments.metrics_address.as_ref().map(|_| Sampler::new(clock));
    let worker_share = |limit_bytes: u64| (limit_bytes > 0).then(|| limit_bytes / workers as u64);
    let limits = &arguments.compatible;
    let buffers =
        || BufferAccounting::new(worker_share(limits.read_limit_bytes()), worker_share(limits.reply_limit_bytes()));
    let handles = (0..workers).map(|_| WorkerHandle::new(sampler(), buffers())).collect::<Result<Vec<_>, _>>();
    let handles = handles.context("cannot create the workers' eventfds")?;
    if let Some(delimiter) = arguments.prefix_delimiter {
        for handle in &handles {
            handle.events.prefixes.set_delimiter(delimiter);
            handle.events.set_interest(kind::PREFIXES, kind::PREFIXES);
        }
    }
    Ok(handles)
}

pub(crate) fn log_ignored_options(arguments: &Arguments) {
    for option in arguments.compatible.ignored_options() {
        if option.is_unsupported { tracing::warn!("{}", option.text) } else { tracing::info!("{}", option.text) }
    }
    if arguments.compatible.read_limit_bytes() > 0 {
        tracing::info!(
            "-o read_buf_mem_limit bounds partial commands only; unread replies are bounded by -o resp_obj_mem_limit, and \
             of each connection by 256 KB and one item"
        );
    }
    if arguments.tls && arguments.udp_port != Port::Off && !arguments.serves_udp() {
        tracing::warn!("-U has no effect beside -Z: UDP would be plain; -o plain_udp opens it all the same");
    }
    if arguments.unix_path.is_some() && !arguments.listen.is_empty() {
        tracing::warn!("-l has no effect: -s replaces all other ports");
    }
}

/// Each connection needs a file descriptor: raises the limit to what `-c` needs.
pub(crate) fn raise_fd_limit(connections_max: u32) {
    let needed = u64::from(connections_max) + DESCRIPTORS_RESERVED;
    if let Some(allowed) = lookaside_net::raise_fd_limit(Some(needed)).filter(|&allowed| allowed < needed) {
        tracing::warn!("-c {connections_max} needs {needed} file descriptors, the system allows {allowed}");
    }
}

/// The seed of lease tokens, which must not repeat after a restart, or that of the hash of keys. Neither may be
/// predictable; they differ, so that a token says nothing about the hash.
fn random_seed() -> anyhow::Result<u64> {
    let mut seed = [0; 8];
    getrandom(&mut seed, GetRandomFlags::empty()).context("cannot get random bytes from the kernel")?;
    Ok(u64::from_ne_bytes(seed))
}
