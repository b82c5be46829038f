//! UDP replies, cut into datagrams and sent many at a time (§3.1 of the paper).
//!
//! ```text
//!   composed   | hdr part hdr part | hdr part | hdr part hdr part hdr part | ...
//!   replies      end, request's      end, ..    end, ..
//! ```
//!
//! Where the kernel cuts ([`gso`]), a burst is as many of a reply's datagrams as it takes at once; elsewhere it is one
//! datagram.

use super::gso;
use super::mmsg::{self, RecvBatch};
use crate::observe::counters::Counters;
use lookaside_protocol::udp::{DATAGRAM_BYTES_MAX, compose_datagrams};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use socket2::SockAddr;

/// Replies are sent once they have this many bytes: small enough to be still in the L2 cache.
const PENDING_BYTES_MAX: usize = 64 << 10;

/// Datagrams of a reply passed to the kernel at once, if it cuts. It takes up to 64, and 64 KiB with all headers.
const SEGMENTS_PER_BURST_MAX: usize = 45;

/// Replies that wait to be sent.
pub(super) struct SendBatch {
    /// Whether the kernel cuts replies into datagrams.
    uses_gso: bool,
    composed: Vec<u8>,
    replies: Vec<Reply>,
}

/// One reply. It begins where the previous one ends.
struct Reply {
    end: usize,
    /// The index of the datagram that it answers.
    datagram: usize,
}

impl SendBatch {
    pub(super) fn new(socket: &OwnedFd) -> SendBatch {
        let uses_gso = gso::set_segment_size(socket, DATAGRAM_BYTES_MAX as u16);
        SendBatch { uses_gso, composed: Vec::new(), replies: Vec::new() }
    }

    /// Cuts a reply into datagrams; returns whether they are within the bound. If not, nothing is added.
    pub(super) fn add(&mut self, datagram: usize, request_id: u16, reply: &[u8], bytes_max: usize) -> bool {
        let start = self.composed.len();
        let has_numbers = compose_datagrams(request_id, reply, &mut self.composed);
        debug_assert!(has_numbers, "a bounded reply has numbers for all its datagrams");
        let end = self.composed.len();
        if end - start > bytes_max {
            self.composed.truncate(start);
            return false;
        }
        self.replies.push(Reply { end, datagram });
        true
    }

    /// Whether the batch should be sent before more is added.
    pub(super) fn is_full(&self) -> bool {
        self.composed.len() >= PENDING_BYTES_MAX
    }

    /// Sends all replies. A reply that finds no space in the socket is lost, as datagrams may be.
    pub(super) fn send(&mut self, socket: &OwnedFd, received: &RecvBatch, counters: &Counters) {
        let mut at = 0;
        while at < self.composed.len() {
            match mmsg::send(socket, self.bursts(at, received)) {
                Ok(bytes) => {
                    counters.bytes_written.add(bytes as u64);
                    at += bytes;
                }
                // No space, or the client has closed its socket: the rest of this reply is lost.
                Err(Errno::AGAIN | Errno::CONNREFUSED) => at = self.end_of_reply(at),
                // The path's MTU is too small, or the device does not support GSO: send this burst again, one datagram
                // at a time. Any other error with one client's address must not affect the others.
                Err(error)
                    if self.uses_gso && is_gso_error(error) && self.end_of_reply(at) - at > DATAGRAM_BYTES_MAX =>
                {
                    self.uses_gso = false;
                    gso::set_segment_size(socket, 0);
                }
                Err(_) => at = self.end_of_reply(at),
            }
        }
        self.composed.clear();
        self.replies.clear();
    }

    /// The bursts from `at` on.
    fn bursts<'a>(&'a self, at: usize, received: &'a RecvBatch) -> impl Iterator<Item = (&'a [u8], &'a SockAddr)> {
        let burst_bytes = if self.uses_gso { SEGMENTS_PER_BURST_MAX * DATAGRAM_BYTES_MAX } else { DATAGRAM_BYTES_MAX };
        let first = self.replies.partition_point(|reply| reply.end <= at);
        let starts = std::iter::once(at).chain(self.replies[first..].iter().map(|reply| reply.end));
        self.replies[first..].iter().zip(starts).flat_map(move |(reply, start)| {
            let bursts = self.composed[start..reply.end].chunks(burst_bytes);
            bursts.map(|burst| (burst, received.client(reply.datagram)))
        })
    }

    /// The end of the reply that contains the byte at `at`.
    fn end_of_reply(&self, at: usize) -> usize {
        let reply = self.replies.partition_point(|reply| reply.end <= at);
        self.replies.get(reply).map_or(self.composed.len(), |reply| reply.end)
    }
}

/// Whether an error means that the kernel cannot cut, rather than that it cannot send.
fn is_gso_error(error: Errno) -> bool {
    matches!(error, Errno::INVAL | Errno::IO | Errno::MSGSIZE | Errno::OPNOTSUPP)
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use std::net::UdpSocket;
    use std::time::Duration;

    /// The kernel cuts every burst of a call separately, where its datagrams end.
    #[test]
    fn the_kernel_cuts_several_large_replies_of_one_call() {
        let socket = OwnedFd::from(UdpSocket::bind("127.0.0.1:0").expect("a port"));
        let address = rustix::net::getsockname(&socket).expect("it is bound");
        let address = std::net::SocketAddr::try_from(address).expect("an address");
        let mut send_batch = SendBatch::new(&socket);
        assert!(send_batch.uses_gso, "Linux has segmentation since 4.18");
        let clients = [0, 1].map(|_| {
            let client = UdpSocket::bind("127.0.0.1:0").expect("a port");
            client.set_read_timeout(Some(Duration::from_secs(20))).expect("a timeout can be set");
            client.send_to(b"request", address).expect("sent");
            client
        });
        let mut received = RecvBatch::new();
        received.receive(&socket).expect("loopback has delivered");
        assert_eq!(received.len(), 2);
        let replies = [vec![b'a'; 10_000], vec![b'b'; 3_000]];
        for (number, reply) in replies.iter().enumerate() {
            assert!(send_batch.add(number, number as u16, reply, usize::MAX));
        }
        let sent = mmsg::send(&socket, send_batch.bursts(0, &received)).expect("there is room");
        assert_eq!(sent, send_batch.composed.len(), "two bursts, one call");
        for (client, reply) in clients.iter().zip(&replies) {
            let (mut got, mut datagram) = (Vec::new(), [0; 65_536]);
            while got.len() < reply.len() {
                let count = client.recv(&mut datagram).expect("a datagram");
                assert!((9..=DATAGRAM_BYTES_MAX).contains(&count), "{count} bytes");
                got.extend_from_slice(&datagram[8..count]);
            }
            assert_eq!(&got, reply);
        }
    }
}
