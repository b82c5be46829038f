//! All ports, opened before the process takes a user's identity and before there is a store: what cannot be had is found
//! out while nothing can be lost. A port that was open before the process is taken over ([`Inherited`]).

use crate::cli::Arguments;
use crate::lifecycle::takeover::PROGRAM;
use crate::net::acceptor::{Listener, open_tcp, open_udp, open_udp_of_workers, open_unix};
use crate::net::udp::UdpPort;
use crate::net::udp::amplification::AmplificationLimit;
use anyhow::Context;
use lookaside_telemetry::{Endpoint, full_address};
use lookaside_upgrade::{Inherited, UpgradeSocket};
use std::net::{TcpListener, ToSocketAddrs};
use std::sync::Arc;

/// What has been opened.
pub(crate) struct Listeners {
    pub(crate) listeners: Vec<Listener>,
    /// A list for each worker.
    pub(crate) udp_ports: Vec<Vec<UdpPort>>,
    /// There if UDP is served.
    pub(crate) udp_reply_limit: Option<Arc<AmplificationLimit>>,
    pub(crate) metrics: Option<Endpoint>,
    /// There if another process may take over.
    pub(crate) upgrade: Option<UpgradeSocket>,
}

impl Listeners {
    pub(crate) fn open(arguments: &Arguments, inherited: &mut Inherited) -> anyhow::Result<Listeners> {
        let listeners = open_listeners(arguments, inherited)?;
        let workers = arguments.threads_count();
        let udp_reply_limit =
            serves_udp(arguments).then(|| Arc::new(AmplificationLimit::new(arguments.udp_reply_limit)));
        let mut udp_ports = match &udp_reply_limit {
            Some(limit) => open_udp(&arguments.addresses(arguments.udp_port)?, workers, limit, inherited)?,
            None => (0..workers).map(|_| Vec::new()).collect(),
        };
        if let (Some(limit), Some(numbers)) = (&udp_reply_limit, arguments.udp_worker_ports()) {
            let addresses = arguments.addresses(arguments.udp_port)?;
            open_udp_of_workers(&addresses, numbers, limit, &mut udp_ports, inherited)?;
        }
        let metrics = open_metrics(arguments, inherited)?;
        let upgrade = arguments
            .upgrade_socket
            .as_deref()
            .map(|path| UpgradeSocket::open(PROGRAM, path, inherited))
            .transpose()?;
        Ok(Listeners { listeners, udp_ports, udp_reply_limit, metrics, upgrade })
    }
}

/// Whether there is a UDP port.
pub(crate) fn serves_udp(arguments: &Arguments) -> bool {
    arguments.udp_port != 0 && arguments.unix_path.is_none()
}

fn open_listeners(arguments: &Arguments, inherited: &mut Inherited) -> anyhow::Result<Vec<Listener>> {
    if let Some(path) = &arguments.unix_path {
        return Ok(vec![open_unix(path, arguments.unix_mode, arguments.backlog, inherited)?]);
    }
    let addresses = arguments.addresses(arguments.port)?;
    open_tcp(&addresses, arguments.backlog, inherited)
}

/// The port of `--metrics-address`; a port alone is this machine's.
fn open_metrics(arguments: &Arguments, inherited: &mut Inherited) -> anyhow::Result<Option<Endpoint>> {
    let Some(text) = &arguments.metrics_address else { return Ok(None) };
    let address = full_address(text);
    let inherited_socket =
        address.to_socket_addrs().ok().and_then(|mut places| places.find_map(|at| inherited.take_tcp(at)));
    let listener = inherited_socket.map_or_else(|| TcpListener::bind(&address), |socket| Ok(socket.into()));
    let endpoint = listener.and_then(|listener| {
        tracing::info!("metrics are at http://{}/metrics", listener.local_addr()?);
        Endpoint::new(listener)
    });
    endpoint.map(Some).with_context(|| format!("cannot listen on {address} (choose another with --metrics-address)"))
}
