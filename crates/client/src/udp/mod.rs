//! Gets over UDP (§3.1 of the paper): a request is one datagram, its reply is one or several. Nothing is sent twice,
//! and no datagram waits for another: a lost, late or reordered one makes its gets errors ([`Failure::DatagramLost`],
//! after which no failover asks another server). Such errors are misses, which are not filled. An error of the server,
//! which comes by TCP, is not such a one.
//!
//! | request | |
//! |---|---|
//! | `get`, `lease-get` | by UDP, as many keys in a datagram as fit |
//! | the same, answered with an error line, because the reply is too large for UDP, say | again, by TCP; later ones with fewer keys in a datagram ([`keys_max`]) |
//! | the same, after three requests to the server in a row had no reply | by TCP for a second, then for twice as long after each probe by UDP that has no reply either ([`health`]) |
//! | all others | by TCP |
//!
//! The server's health and its fence are those of its TCP destination. A lease whose reply is lost is held by no client
//! until the server grants the next one.
//!
//! Servers must have their UDP port open (`-U`). They bound replies until the client's address has connected by TCP,
//! which its destination has.

mod health;
mod keys_max;
mod message;
mod sockets;

pub use sockets::UdpSockets;

use crate::{TcpDestination, Window, spawn};
use bytes::Bytes;
use health::{Path, UdpHealth};
use keys_max::KeysMax;
use lookaside_protocol::udp::{DATAGRAM_BYTES_MAX, FRAME_HEADER_BYTES};
use lookaside_protocol::{Operation, Request};
use lookaside_routing::{Address, Batch, BoxFuture, DatagramLoss, Destination, Failure, Outcomes};
use lookaside_sync::{SharedCounter, counters};
use message::{MessageError, compose, parse};
use sockets::SocketError;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// The longest get line.
const LINE_BYTES_MAX: usize = DATAGRAM_BYTES_MAX - FRAME_HEADER_BYTES;
/// `lease-get`, and the end of the line.
const LINE_OVERHEAD_BYTES: usize = 11;

/// How gets are sent by UDP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdpOptions {
    /// The UDP port of all servers; `None`, the default, if it is that of TCP.
    pub port: Option<u16>,
    /// How long a reply may take, in milliseconds. Default 100. If it is too short, slow replies are counted as lost;
    /// if it is too long, a lost datagram delays its caller.
    pub timeout_ms: u64,
}

impl Default for UdpOptions {
    fn default() -> UdpOptions {
        UdpOptions { port: None, timeout_ms: 100 }
    }
}

counters! {
    /// The counters of the gets that a client sends by UDP.
    pub(crate) struct UdpCounters(SharedCounter);

    /// A snapshot of the counters of gets by UDP.
    pub struct UdpStatistics;

    /// Keys sent by UDP.
    keys,
    /// Requests sent, each of one or more keys.
    requests,
    /// Requests without a whole reply in time: a datagram was lost, or the server was slow.
    lost,
    /// Requests of whose reply a datagram was missing in the middle, came twice, or overtook another.
    reordered,
    /// Datagrams that came when their request had ended.
    late,
    /// Requests whose reply could not be parsed.
    malformed,
    /// Requests that were repeated by TCP, because the server refused the reply as too large, or for another reason.
    refused,
    /// Keys sent by TCP because the server had not answered by UDP.
    distrusted_keys,
    /// Datagrams sent to find out whether such a server answers by UDP again. They are not among the requests.
    probes,
    /// Requests that could not be sent.
    unsent,
}

/// A server whose gets are sent by UDP.
pub(crate) struct UdpDestination {
    tcp: Arc<TcpDestination>,
    /// `None` if the server's address is no IPv4 address: then all goes by TCP.
    peer: Option<SocketAddr>,
    sockets: Arc<UdpSockets>,
    timeout: Duration,
    /// Learns of lost datagrams. `None` if there is none.
    window: Option<Arc<Window>>,
    health: Arc<UdpHealth>,
    keys_max: KeysMax,
}

impl UdpDestination {
    /// Gets for the server of `tcp` over `sockets`. Lost datagrams halve `window`, in which its gets are to be sent.
    pub(crate) fn new(
        tcp: Arc<TcpDestination>,
        sockets: Arc<UdpSockets>,
        options: UdpOptions,
        window: Option<Arc<Window>>,
    ) -> UdpDestination {
        let peer = tcp.address().0.parse::<SocketAddr>().ok().filter(SocketAddr::is_ipv4);
        let peer = peer.map(|peer| SocketAddr::new(peer.ip(), options.port.unwrap_or(peer.port())));
        let timeout = Duration::from_millis(options.timeout_ms);
        let (health, keys_max) = (Arc::<UdpHealth>::default(), KeysMax::default());
        UdpDestination { tcp, peer, sockets, timeout, window, health, keys_max }
    }

    async fn send_by_udp(&self, batch: Batch, peer: SocketAddr) -> Outcomes {
        if self.tcp.is_tko() || self.tcp.is_fenced() {
            return self.tcp.send(batch).await;
        }
        let path = self.health.path(Instant::now());
        if path == Path::TcpAndProbe {
            self.probe(batch[0].key.clone(), peer);
        }
        if path != Path::Udp {
            self.counters().distrusted_keys.add(batch.len() as u64);
            return self.tcp.send(batch).await;
        }
        let parts = split(&batch, self.keys_max.get());
        if let [_] = parts[..] {
            return self.send_part(&batch, peer).await;
        }
        let parts = parts.into_iter().map(|part| self.send_part(part, peer));
        futures_util::future::join_all(parts).await.concat()
    }

    /// Asks by UDP for a key that is also read by TCP. No caller waits for the reply, and it takes no lease.
    fn probe(&self, key: Bytes, peer: SocketAddr) {
        self.counters().probes.add(1);
        let (sockets, health, timeout) = (self.sockets.clone(), self.health.clone(), self.timeout);
        spawn(async move {
            let get = [Request { key, operation: Operation::Get { cas: false } }];
            match sockets.request(peer, |out| compose(&get, out), timeout).await {
                // A part of a reply is an answer, too.
                Ok(_) | Err(SocketError::Reordered) => health.record_reply(),
                Err(SocketError::TimedOut) => health.record_lost_probe(Instant::now()),
                // Nothing was sent.
                Err(_) => health.repeat_probe(Instant::now()),
            }
        });
    }

    /// Sends one datagram.
    async fn send_part(&self, requests: &[Request<Bytes>], peer: SocketAddr) -> Outcomes {
        let counters = self.counters();
        counters.requests.add(1);
        counters.keys.add(requests.len() as u64);
        let last_permit = self.window.as_ref().map_or(0, |window| window.last_permit());
        let received = self.sockets.request(peer, |out| compose(requests, out), self.timeout).await;
        let failure = match received {
            Ok(message) => {
                self.health.record_reply();
                match parse(requests, &message.into()) {
                    Ok(outcomes) => {
                        self.keys_max.raise(requests.len());
                        return outcomes;
                    }
                    Err(MessageError::Refused) => {
                        counters.refused.add(1);
                        self.keys_max.halve(requests.len());
                        return self.tcp.send(requests.to_vec()).await;
                    }
                    Err(MessageError::Malformed) => {
                        counters.malformed.add(1);
                        self.tcp.name_failure(Failure::Malformed)
                    }
                }
            }
            Err(SocketError::TimedOut) => {
                counters.lost.add(1);
                if self.health.record_loss(Instant::now()) {
                    self.shrink_window(last_permit);
                }
                self.loss(DatagramLoss::LostOrLate)
            }
            Err(SocketError::Reordered) => {
                counters.reordered.add(1);
                self.health.record_reply();
                self.shrink_window(last_permit);
                self.loss(DatagramLoss::OutOfOrder)
            }
            Err(SocketError::Busy) => {
                counters.unsent.add(1);
                self.tcp.name_failure(Failure::Busy)
            }
            Err(SocketError::Io(error)) => {
                tracing::debug!(server = %self.tcp.address(), %error, "cannot send by UDP");
                counters.unsent.add(1);
                self.tcp.name_failure(Failure::ConnectFailed)
            }
        };
        vec![Err(failure); requests.len()]
    }

    fn loss(&self, loss: DatagramLoss) -> Failure {
        Failure::DatagramLost { server: self.tcp.address().clone(), loss }
    }

    fn shrink_window(&self, last_permit: u64) {
        if let Some(window) = &self.window {
            window.record_loss(last_permit);
        }
    }

    fn counters(&self) -> &UdpCounters {
        &self.sockets.counters
    }
}

/// The parts of a batch that fit into a datagram each, of at most `keys_max` keys.
fn split(batch: &[Request<Bytes>], keys_max: usize) -> Vec<&[Request<Bytes>]> {
    let (mut parts, mut from, mut bytes) = (Vec::new(), 0, LINE_OVERHEAD_BYTES);
    for (at, request) in batch.iter().enumerate() {
        let key_bytes = request.key.len() + 1;
        if bytes + key_bytes > LINE_BYTES_MAX || at - from == keys_max {
            parts.push(&batch[from..at]);
            (from, bytes) = (at, LINE_OVERHEAD_BYTES);
        }
        bytes += key_bytes;
    }
    parts.push(&batch[from..]);
    parts
}

/// Whether all of them are the same kind of get, which one line can have.
fn is_one_get(batch: &[Request<Bytes>]) -> bool {
    let first = batch.first().map(|request| &request.operation);
    matches!(first, Some(Operation::Get { .. } | Operation::LeaseGet))
        && batch.iter().all(|request| Some(&request.operation) == first)
}

impl Destination for UdpDestination {
    fn send(&self, batch: Batch) -> BoxFuture<'_, Outcomes> {
        match self.peer.filter(|_| is_one_get(&batch)) {
            Some(peer) => Box::pin(self.send_by_udp(batch, peer)),
            None => self.tcp.send(batch),
        }
    }

    fn address(&self) -> &Address {
        self.tcp.address()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_is_split_where_a_datagram_is_full() {
        let key = |at: usize| Bytes::from(format!("{at:0100}"));
        let batch: Batch = (0..30).map(|at| Request { key: key(at), operation: Operation::LeaseGet }).collect();
        let lengths = |keys_max| split(&batch, keys_max).iter().map(|part| part.len()).collect::<Vec<_>>();
        assert_eq!((lengths(usize::MAX), lengths(13)), (vec![13, 13, 4], vec![13, 13, 4]));
        assert_eq!((lengths(12), lengths(1)), (vec![12, 12, 6], vec![1; 30]));
        assert_eq!(split(&batch, 7).concat(), batch);
        for part in split(&batch, usize::MAX) {
            let mut line = Vec::new();
            compose(part, &mut line);
            assert!(line.len() <= LINE_BYTES_MAX);
        }
        let mixed = [&batch[..1], &[Request { key: key(0), operation: Operation::Get { cas: false } }]].concat();
        assert!(is_one_get(&batch) && !is_one_get(&mixed) && !is_one_get(&[]));
    }
}
