//! Opens all sockets before the process changes its user and before there is a store: a port that is taken is found out
//! while nothing can be lost. Sockets that a predecessor or a supervisor has open are used as they are ([`Inherited`]).
//!
//! There is one TCP socket per address, not one per worker: with SO_REUSEPORT two servers would silently share a port.
//! UDP has no connections to distribute, so each worker has a socket of its own in an SO_REUSEPORT group, opened after
//! a plain socket has shown that the port was free; with `--udp-worker-ports` also one at a port that it shares with no
//! other.

use crate::cli::{Arguments, ListenAddress};
use crate::net::acceptor::Listener;
use crate::net::udp::UdpPort;
use crate::net::udp::amplification::AmplificationLimit;
use crate::shared::PROGRAM;
use anyhow::Context;
use lookaside_net::{TlsMode, bind_unix, set_socket_mode};
use lookaside_telemetry::{Endpoint, full_address};
use lookaside_upgrade::{Inherited, UpgradeSocket};
use socket2::{Domain, Protocol, Socket, Type};
use std::collections::BTreeSet;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::ops::RangeInclusive;
use std::path::Path;
use std::sync::Arc;

pub(crate) struct Listeners {
    /// TCP and Unix sockets.
    pub(crate) stream: Vec<Listener>,
    /// A list for each worker.
    pub(crate) udp_ports: Vec<Vec<UdpPort>>,
    /// `None` if UDP is off.
    pub(crate) udp_port: Option<u16>,
    /// `None` if UDP is off.
    pub(crate) amplification_limit: Option<Arc<AmplificationLimit>>,
    /// `None` without `--metrics-address`.
    pub(crate) metrics: Option<Endpoint>,
    /// `None` without `--upgrade-socket`.
    pub(crate) upgrade: Option<UpgradeSocket>,
}

impl Listeners {
    pub(crate) fn open(arguments: &Arguments, inherited: &mut Inherited) -> anyhow::Result<Listeners> {
        let stream = open_stream_listeners(arguments, inherited)?;
        let workers = arguments.threads_count();
        let amplification_limit =
            arguments.serves_udp().then(|| Arc::new(AmplificationLimit::new(arguments.udp_reply_limit)));
        let mut udp_ports: Vec<Vec<UdpPort>> = (0..workers).map(|_| Vec::new()).collect();
        let mut udp_port = None;
        if let (Some(limit), Some(port)) = (&amplification_limit, arguments.served_udp_port().to_bind()) {
            let addresses = arguments.addresses(port)?;
            udp_port = open_udp(&addresses, limit, &mut udp_ports, inherited)?;
            if let Some(numbers) = arguments.udp_worker_ports() {
                open_udp_worker_ports(&addresses, numbers, limit, &mut udp_ports, inherited)?;
            }
        }
        let metrics = open_metrics(arguments, inherited)?;
        let upgrade = arguments.upgrade_socket.as_deref();
        let upgrade = upgrade.map(|path| UpgradeSocket::open(PROGRAM, path, inherited)).transpose()?;
        Ok(Listeners { stream, udp_ports, udp_port, amplification_limit, metrics, upgrade })
    }
}

fn open_stream_listeners(arguments: &Arguments, inherited: &mut Inherited) -> anyhow::Result<Vec<Listener>> {
    if let Some(path) = &arguments.unix_path {
        return Ok(vec![open_unix(path, arguments.unix_mode, arguments.backlog, inherited)?]);
    }
    match arguments.tcp_port().to_bind() {
        Some(port) => open_tcp(&arguments.addresses(port)?, arguments.backlog, inherited),
        None => Ok(Vec::new()),
    }
}

/// Opens the TCP port on every address; up to `backlog` connections may wait on each. With port 0 the first address
/// picks a free port and the others use the same.
fn open_tcp(addresses: &[ListenAddress], backlog: i32, inherited: &mut Inherited) -> anyhow::Result<Vec<Listener>> {
    let mut listeners: Vec<Listener> = Vec::new();
    let mut picked_port = None;
    for &ListenAddress { address, tls, protocols } in addresses {
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
        listeners.push(Listener { socket, tls, protocols });
    }
    Ok(listeners)
}

/// Opens a Unix socket with this access mode. The socket file of a process that has died is replaced.
fn open_unix(path: &Path, mode: u32, backlog: i32, inherited: &mut Inherited) -> anyhow::Result<Listener> {
    let message = || format!("cannot listen on {} (choose another file with -s)", path.display());
    let socket = match inherited.take_unix(path) {
        Some(socket) => set_socket_mode(path, mode).map(|()| socket),
        None => bind_unix(path, mode),
    };
    let socket = socket.with_context(message)?;
    socket.listen(backlog).with_context(message)?;
    // The file's mode restricts who may connect, and the bytes cannot be intercepted: no TLS.
    Ok(Listener { socket, tls: Some(TlsMode::Plain), protocols: None })
}

/// Opens the UDP port on every address, once for each list of `ports`; returns that of the first address. With port 0
/// the first address picks a free port and the others use the same. A predecessor with more workers leaves more sockets
/// than workers; none of them is closed, because the kernel has assigned clients to each.
fn open_udp(
    addresses: &[ListenAddress],
    limit: &Arc<AmplificationLimit>,
    ports: &mut [Vec<UdpPort>],
    inherited: &mut Inherited,
) -> anyhow::Result<Option<u16>> {
    let (workers, mut first_port) = (ports.len(), None);
    for &ListenAddress { mut address, protocols, .. } in addresses {
        if let (0, Some(port)) = (address.port(), first_port) {
            address.set_port(port);
        }
        let message = format!("cannot open UDP port {address} (choose another port with -U, another address with -l)");
        let mut sockets: Vec<Socket> = std::iter::from_fn(|| inherited.take_udp(address)).collect();
        if sockets.is_empty() {
            let probe = bind(address, Type::DGRAM, false).with_context(|| message.clone())?;
            address = local_address(&probe).unwrap_or(address);
        }
        while sockets.len() < workers {
            sockets.push(bind(address, Type::DGRAM, true).with_context(|| message.clone())?);
        }
        for (number, socket) in sockets.into_iter().enumerate() {
            ports[number % workers].push(UdpPort::new(socket.into(), Arc::clone(limit), protocols));
        }
        first_port = first_port.or(Some(address.port()));
    }
    Ok(first_port)
}

/// Opens on every host a UDP port for each worker alone (§6.1 of the paper): `numbers` has one for each list of
/// `ports`. A reply then contends with no other thread in the kernel, and a client chooses the thread that serves it.
fn open_udp_worker_ports(
    addresses: &[ListenAddress],
    numbers: RangeInclusive<u16>,
    limit: &Arc<AmplificationLimit>,
    ports: &mut [Vec<UdpPort>],
    inherited: &mut Inherited,
) -> anyhow::Result<()> {
    let mut hosts = BTreeSet::new();
    for &ListenAddress { mut address, protocols, .. } in addresses {
        // Each host once, even if -l names it with several ports.
        address.set_port(0);
        if !hosts.insert(address) {
            continue;
        }
        for (worker_ports, number) in ports.iter_mut().zip(numbers.clone()) {
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

/// Opens the port of `--metrics-address`; a port without a host is on loopback.
fn open_metrics(arguments: &Arguments, inherited: &mut Inherited) -> anyhow::Result<Option<Endpoint>> {
    let Some(text) = &arguments.metrics_address else { return Ok(None) };
    let address = full_address(text);
    let inherited_socket =
        address.to_socket_addrs().ok().and_then(|mut addresses| addresses.find_map(|one| inherited.take_tcp(one)));
    let listener = inherited_socket.map_or_else(|| TcpListener::bind(&address), |socket| Ok(socket.into()));
    let endpoint = listener.and_then(|listener| {
        tracing::info!("metrics are at http://{}/metrics", listener.local_addr()?);
        Endpoint::new(listener)
    });
    endpoint.map(Some).with_context(|| format!("cannot listen on {address} (choose another with --metrics-address)"))
}

/// The address that a socket is bound to; `None` for a Unix socket.
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
        // Accepted connections inherit it: the connection of a client whose machine is gone does not stay open for
        // ever.
        socket.set_keepalive(true)?;
    }
    socket.set_reuse_port(is_shared)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    Ok(socket)
}
