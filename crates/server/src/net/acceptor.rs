//! Open ports, and the loop that accepts connections and hands each to the worker that has the fewest.
//!
//! One listening socket per address rather than one per worker: a taken port is an error for whoever comes second (with
//! SO_REUSEPORT two servers would silently share it), and a handful of connections spreads evenly. UDP has no
//! connections to hand out, so there each worker has its own socket in an SO_REUSEPORT group, after a plain one has
//! shown that the port was free; with `--udp-worker-ports` each has one at a port of its own besides.

use crate::cli::{Listen, TlsMode};
use crate::net::malloc_trim::TrimOnPeak;
use crate::net::udp::UdpPort;
use crate::net::udp::amplification::AmplificationLimit;
use crate::net::worker::Dispatched;
use crate::session::context::Protocols;
use crate::startup::ServerState;
use anyhow::Context;
use lookaside_upgrade::{Inherited, Successor, UpgradeServer};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{SendFlags, SocketAddrAny, SocketFlags};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use std::collections::BTreeSet;
use std::fs::Permissions;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// How many connections are accepted before other listeners and signals have their turn.
const ACCEPTS_PER_ROUND: usize = 64;

/// How long to leave new connections waiting when the process has no file descriptor for them.
const EXHAUSTED_PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// How often that is told in the log at most.
const EXHAUSTED_WARNING_EVERY_MS: u64 = 60_000;

/// How long to leave new connections waiting when there are as many as may be.
const FULL_PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };

/// How often the store is told the time, so that short-lived items leave in the second they expire (§6.3).
const TICK_MS: u64 = 1_000;
const TICK: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

const NO_PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

/// An open port.
pub(crate) struct Listener {
    pub(crate) socket: Socket,
    pub(crate) tls_mode: TlsMode,
    /// There if it has a protocol of its own.
    pub(crate) protocols: Option<Protocols>,
}

/// Whether a connection with this own end came in by a port with that address.
pub(crate) fn matches_listener(local: &SockAddr, port: &SockAddr) -> bool {
    match (port.as_socket(), local.as_socket()) {
        (Some(port), Some(local)) => {
            let is_any = port.ip().is_unspecified() && port.is_ipv4() == local.is_ipv4();
            port.port() == local.port() && (port.ip() == local.ip() || is_any)
        }
        (None, None) => port.as_pathname().is_some() && port.as_pathname() == local.as_pathname(),
        _ => false,
    }
}

const REFUSAL: &[u8] = b"ERROR Too many open connections\r\n";

/// Opens the TCP port on every address; `backlog` connections may wait on each. With port 0 the first address picks a free one and the others follow.
pub(crate) fn open_tcp(addresses: &[Listen], backlog: i32, inherited: &mut Inherited) -> anyhow::Result<Vec<Listener>> {
    let mut listeners: Vec<Listener> = Vec::new();
    let mut picked_port = None;
    for &Listen { address, tls_mode, protocols, .. } in addresses {
        let port = if address.port() == 0 { picked_port.unwrap_or(0) } else { address.port() };
        let address = SocketAddr::new(address.ip(), port);
        let socket = inherited
            .take_tcp(address)
            .map_or_else(|| bind(address, Type::STREAM, false), Ok)
            .and_then(|socket| socket.listen(backlog).map(|()| socket))
            .with_context(|| {
                format!("cannot listen on {address} (choose another port with -p, another address with -l)")
            })?;
        picked_port = picked_port.or(local_address(&socket).map(|address| address.port()));
        listeners.push(Listener { socket, tls_mode, protocols });
    }
    Ok(listeners)
}

/// Opens a Unix socket with this access mode. A file that a dead server left is taken over; one that answers is not.
pub(crate) fn open_unix(path: &Path, mode: u32, backlog: i32, inherited: &mut Inherited) -> anyhow::Result<Listener> {
    let message = || format!("cannot listen on {} (choose another file with -s)", path.display());
    let socket = inherited.take_unix(path).map_or_else(|| bind_unix(path), Ok).with_context(message)?;
    std::fs::set_permissions(path, Permissions::from_mode(mode)).with_context(message)?;
    socket.listen(backlog).with_context(message)?;
    // Its mode says who may connect; nobody can listen in.
    Ok(Listener { socket, tls_mode: TlsMode::Plain, protocols: None })
}

/// A Unix socket that nobody can connect to yet.
pub(crate) fn bind_unix(path: &Path) -> std::io::Result<Socket> {
    if UnixStream::connect(path).is_ok() {
        return Err(std::io::ErrorKind::AddrInUse.into());
    }
    let is_socket = std::fs::symlink_metadata(path).is_ok_and(|file| file.file_type().is_socket());
    if is_socket {
        std::fs::remove_file(path)?;
    }
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    socket.bind(&SockAddr::unix(path)?)?;
    Ok(socket)
}

/// Opens the UDP port on every address, once for each of `workers`. The result has a list per worker. Of a server that had
/// more workers, some get several sockets: none of them may be closed, the kernel has chosen clients for each.
pub(crate) fn open_udp(
    addresses: &[Listen],
    workers: usize,
    limit: &Arc<AmplificationLimit>,
    inherited: &mut Inherited,
) -> anyhow::Result<Vec<Vec<UdpPort>>> {
    let mut ports: Vec<Vec<UdpPort>> = (0..workers).map(|_| Vec::new()).collect();
    for &Listen { address, protocols, .. } in addresses {
        let message =
            || format!("cannot open UDP port {address} (choose another port with -U, another address with -l)");
        let mut sockets: Vec<Socket> = std::iter::from_fn(|| inherited.take_udp(address)).collect();
        if sockets.is_empty() {
            drop(bind(address, Type::DGRAM, false).with_context(message)?);
        }
        while sockets.len() < workers {
            sockets.push(bind(address, Type::DGRAM, true).with_context(message)?);
        }
        for (number, socket) in sockets.into_iter().enumerate() {
            ports[number % workers].push(UdpPort::new(socket.into(), Arc::clone(limit), protocols));
        }
    }
    Ok(ports)
}

/// Opens a UDP port on every host for each worker alone (§6.1 of the paper): `port_numbers` has one for each list of `ports`.
/// Nobody shares it, so a reply meets no other thread in the kernel, and a client chooses who serves it.
pub(crate) fn open_udp_of_workers(
    addresses: &[Listen],
    port_numbers: RangeInclusive<u16>,
    limit: &Arc<AmplificationLimit>,
    ports: &mut [Vec<UdpPort>],
    inherited: &mut Inherited,
) -> anyhow::Result<()> {
    let mut hosts = BTreeSet::new();
    for &Listen { mut address, protocols, .. } in addresses {
        // Of addresses that differ by their port alone each worker needs one.
        address.set_port(0);
        if !hosts.insert(address) {
            continue;
        }
        for (worker_ports, number) in ports.iter_mut().zip(port_numbers.clone()) {
            address.set_port(number);
            let socket = inherited
                .take_udp(address)
                .map_or_else(|| bind(address, Type::DGRAM, false), Ok)
                .with_context(|| format!("cannot open UDP port {address} (choose others with --udp-worker-ports)"))?;
            worker_ports.push(UdpPort::new(socket.into(), Arc::clone(limit), protocols));
        }
    }
    Ok(())
}

/// Where a socket is bound.
pub(crate) fn local_address(socket: &Socket) -> Option<SocketAddr> {
    socket.local_addr().ok()?.as_socket()
}

fn bind(address: SocketAddr, kind: Type, is_shared: bool) -> std::io::Result<Socket> {
    let protocol = if kind == Type::STREAM { Protocol::TCP } else { Protocol::UDP };
    let socket = Socket::new(Domain::for_address(address), kind, Some(protocol))?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    if kind == Type::STREAM {
        socket.set_reuse_address(true)?;
        // Connections inherit it: a client whose machine is gone does not hold a place for ever.
        socket.set_keepalive(true)?;
    }
    socket.set_reuse_port(is_shared)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    Ok(socket)
}

/// Where signals arrive, as bytes.
pub(crate) struct Signals {
    /// SIGINT, SIGTERM, or the command `shutdown`.
    pub(crate) stop: UnixStream,
    /// SIGHUP. Never blocks.
    pub(crate) reload: UnixStream,
}

/// Forgets the bytes that have arrived.
fn drain(mut pipe: &UnixStream) {
    let mut bytes = [0; 64];
    while std::io::Read::read(&mut pipe, &mut bytes).is_ok_and(|count| count == bytes.len()) {}
}

/// Why connections are not accepted any more.
pub(crate) enum Exit {
    /// The process is to end.
    Stopped,
    /// This one is to go on in its place.
    Upgrade(Successor),
}

/// Accepts and hands out connections until `signals` has something to read, or another process is ready to go on.
pub(crate) fn run_until_exit(
    state: &ServerState,
    listeners: &[Listener],
    signals: &Signals,
    mut upgrade: Option<UpgradeServer<'_>>,
) -> std::io::Result<Exit> {
    let (mut is_exhausted, mut warning_due_ms) = (false, 0);
    let mut last_tick = state.clock.now();
    let mut trim = TrimOnPeak::default();
    loop {
        let mut polled = vec![PollFd::new(&signals.stop, PollFlags::IN), PollFd::new(&signals.reload, PollFlags::IN)];
        let is_full = state.arguments.compatible.waits_when_full() && state.is_full();
        let is_new = state.accept_pause.set_paused(is_exhausted || is_full, state.clock.now());
        if is_new && is_exhausted && warning_due_ms <= last_tick.unix_ms {
            tracing::warn!("no file descriptor for a new connection, it waits: raise `ulimit -n` or lower -c");
            warning_due_ms = last_tick.unix_ms + EXHAUSTED_WARNING_EVERY_MS;
        }
        if !is_exhausted && !is_full {
            polled.extend(listeners.iter().map(|listener| PollFd::new(&listener.socket, PollFlags::IN)));
        }
        polled.extend(upgrade.iter().flat_map(UpgradeServer::watched));
        let timeout = match (is_exhausted, is_full) {
            _ if upgrade.as_ref().is_some_and(UpgradeServer::is_busy) => &NO_PAUSE,
            (true, _) => &EXHAUSTED_PAUSE,
            (_, true) => &FULL_PAUSE,
            _ => &TICK,
        };
        match poll(&mut polled, Some(timeout)) {
            Ok(_) => {}
            Err(Errno::INTR) => continue,
            Err(error) => return Err(error.into()),
        }
        if !polled[0].revents().is_empty() {
            return Ok(Exit::Stopped);
        }
        if !polled[1].revents().is_empty() {
            drain(&signals.reload);
            state.secrets.reload(state.clock);
        }
        let now = state.clock.now();
        if now.unix_ms - last_tick.unix_ms >= TICK_MS {
            state.store.tick(now);
            let usage = state.worker_handles.iter().map(|handle| handle.buffers.take_peak_bytes());
            let (peak_bytes, now_bytes) = usage.fold((0, 0), |sum, usage| (sum.0 + usage.0, sum.1 + usage.1));
            trim.tick(peak_bytes, now_bytes);
            last_tick = now;
        }
        if let Some(successor) =
            upgrade.as_mut().and_then(|upgrade| upgrade.attend(now.unix_ms, |at| state.store.loosen(at)))
        {
            return Ok(Exit::Upgrade(successor));
        }
        is_exhausted = false;
        for listener in listeners {
            is_exhausted |= !accept_some(state, listener);
        }
    }
}

/// Accepts what is waiting; false means that the process has run out of descriptors or memory.
fn accept_some(state: &ServerState, listener: &Listener) -> bool {
    for _ in 0..ACCEPTS_PER_ROUND {
        if state.arguments.compatible.waits_when_full() && state.is_full() {
            return true;
        }
        match rustix::net::acceptfrom_with(listener.socket.as_fd(), SocketFlags::NONBLOCK | SocketFlags::CLOEXEC) {
            Ok((socket, address)) => admit(state, listener, socket, address),
            Err(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => return false,
            // Nobody is waiting, or whoever was has gone.
            Err(_) => return true,
        }
    }
    true
}

fn admit(
    state: &ServerState,
    &Listener { tls_mode, protocols, .. }: &Listener,
    socket: OwnedFd,
    address: Option<SocketAddrAny>,
) {
    mark_validated(state, address);
    let tls = state.secrets.certificates.as_ref().and_then(|certificates| certificates.server_config(tls_mode));
    if state.is_full() {
        state.connections_rejected.fetch_add(1, Ordering::Relaxed);
        if tls.is_none() {
            let _ = rustix::net::send(&socket, REFUSAL, SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
        }
        return;
    }
    state.connections_total.fetch_add(1, Ordering::Relaxed);
    let _ = rustix::net::sockopt::set_tcp_nodelay(&socket, true);
    state.dispatch(Dispatched::Accepted { socket, tls, protocols });
}

/// Whoever has connected from an address is there, so UDP may answer it at length.
pub(crate) fn mark_validated(state: &ServerState, address: Option<SocketAddrAny>) {
    let address = address.and_then(|address| SocketAddr::try_from(address).ok());
    if let (Some(limit), Some(address)) = (&state.udp_reply_limit, address) {
        limit.mark_validated(address.ip());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_came_in_by_its_own_address_or_by_any_of_its_family() {
        let address = |text: &str| SockAddr::from(text.parse::<SocketAddr>().expect("an address"));
        let local = address("10.0.0.1:7");
        for (port, matches) in [
            ("10.0.0.1:7", true),
            ("0.0.0.0:7", true),
            ("10.0.0.2:7", false),
            ("10.0.0.1:8", false),
            ("0.0.0.0:8", false),
            ("[::]:7", false),
        ] {
            assert_eq!(matches_listener(&local, &address(port)), matches, "{port}");
        }
        let file = |path| SockAddr::unix(path).expect("a path");
        assert!(matches_listener(&file("/a"), &file("/a")) && !matches_listener(&file("/a"), &file("/b")));
        assert!(!matches_listener(&file("/a"), &local) && !matches_listener(&local, &file("/a")));
    }
}
