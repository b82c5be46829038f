//! Accepts connections and gives each to the worker that has the fewest.
//!
//! Accepting may pause ([`AcceptPause`](crate::net::accept_pause::AcceptPause)).

use crate::clock::Clock;
use crate::net::state::NetState;
use crate::net::tls::certificates::Certificates;
use crate::net::worker_handle::AssignedConnection;
use crate::session::context::Protocols;
use lookaside_net::TlsMode;
use lookaside_telemetry::LogThrottle;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{SendFlags, SocketAddrAny, SocketFlags};
use socket2::Socket;
use std::net::SocketAddr;
use std::time::Duration;

/// How many connections are accepted from one listener before the other listeners and signals are served.
const ACCEPTS_PER_ROUND: usize = 64;

/// How long new connections wait when the process has no file descriptor for them.
const EXHAUSTED_PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// How long new connections wait when the maximum number of connections is reached.
const FULL_PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };

/// At most one warning about missing file descriptors in this time.
const EXHAUSTED_WARNING_INTERVAL: Duration = Duration::from_secs(60);

const TOO_MANY_CONNECTIONS: &[u8] = b"ERROR Too many open connections\r\n";

/// A listening TCP or Unix socket.
pub(crate) struct Listener {
    pub(crate) socket: Socket,
    /// `None`: as `-Z` and `ssl_verify_mode` say.
    pub(crate) tls: Option<TlsMode>,
    /// `None`: the server's protocols.
    pub(crate) protocols: Option<Protocols>,
}

pub(crate) struct Acceptor<'a> {
    net: &'a NetState,
    /// `None` if TLS is off.
    certificates: Option<&'a Certificates>,
    clock: Clock,
    listeners: &'a [Listener],
    /// The last attempt found no file descriptor.
    is_exhausted: bool,
    /// The maximum number of connections is reached, and further ones wait.
    is_full: bool,
    warnings: LogThrottle<Duration>,
}

impl<'a> Acceptor<'a> {
    pub(crate) fn new(
        net: &'a NetState,
        certificates: Option<&'a Certificates>,
        clock: Clock,
        listeners: &'a [Listener],
    ) -> Acceptor<'a> {
        let warnings = LogThrottle::new(1, EXHAUSTED_WARNING_INTERVAL);
        Acceptor { net, certificates, clock, listeners, is_exhausted: false, is_full: false, warnings }
    }

    /// Decides whether to accept connections in this pass of the main loop.
    pub(crate) fn update_pause(&mut self) {
        self.is_full = waits_for_space(self.net);
        let now = self.clock.now();
        let has_begun = self.net.accept_pause.set_paused(self.is_exhausted || self.is_full, now);
        if has_begun && self.is_exhausted && self.warnings.allow(Duration::from_millis(now.unix_ms)).is_some() {
            tracing::warn!("out of file descriptors: new connections wait; raise `ulimit -n` or lower -c");
        }
    }

    /// The sockets to poll: none during a pause.
    pub(crate) fn poll_fds(&self) -> impl Iterator<Item = PollFd<'a>> {
        let listeners = if self.is_exhausted || self.is_full { &[] } else { self.listeners };
        listeners.iter().map(|listener| PollFd::new(&listener.socket, PollFlags::IN))
    }

    /// The length of the present pause; `None` if there is none.
    pub(crate) fn pause(&self) -> Option<&'static Timespec> {
        match (self.is_exhausted, self.is_full) {
            (true, _) => Some(&EXHAUSTED_PAUSE),
            (_, true) => Some(&FULL_PAUSE),
            _ => None,
        }
    }

    pub(crate) fn accept_waiting(&mut self) {
        self.is_exhausted = false;
        for listener in self.listeners {
            self.is_exhausted |= !self.accept_from(listener);
        }
    }

    /// Accepts the connections that wait at one listener; false if the process has run out of descriptors or memory.
    fn accept_from(&self, listener: &Listener) -> bool {
        for _ in 0..ACCEPTS_PER_ROUND {
            if waits_for_space(self.net) {
                return true;
            }
            match rustix::net::acceptfrom_with(listener.socket.as_fd(), SocketFlags::NONBLOCK | SocketFlags::CLOEXEC) {
                Ok((socket, address)) => self.admit(listener, socket, address),
                Err(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => return false,
                // No connection waits, or the client has closed it.
                Err(_) => return true,
            }
        }
        true
    }

    /// Gives an accepted connection to a worker, or refuses it.
    fn admit(&self, listener: &Listener, socket: OwnedFd, address: Option<SocketAddrAny>) {
        mark_validated(self.net, address);
        let tls = self.certificates.and_then(|certificates| certificates.server_config(listener.tls));
        if self.net.is_full() {
            self.net.connections_rejected.add(1);
            if tls.is_none() {
                let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
                let _ = rustix::net::send(&socket, TOO_MANY_CONNECTIONS, flags);
            }
            return;
        }
        self.net.connections_total.add(1);
        let _ = rustix::net::sockopt::set_tcp_nodelay(&socket, true);
        let accepted = AssignedConnection::Accepted { socket, tls, protocols: listener.protocols };
        self.net.least_loaded_worker().dispatch([accepted]);
    }
}

fn waits_for_space(net: &NetState) -> bool {
    net.limits.waits_when_full && net.is_full()
}

/// Allows long UDP replies to an address from which a client has connected by TCP: the address is not forged.
pub(crate) fn mark_validated(net: &NetState, address: Option<SocketAddrAny>) {
    let address = address.and_then(|address| SocketAddr::try_from(address).ok());
    if let (Some(limit), Some(address)) = (&net.amplification_limit, address) {
        limit.mark_validated(address.ip());
    }
}
