//! UDP: a request is one datagram, its reply one or several (§3.1 of the paper: gets go by UDP).
//!
//! ```text
//!   0        2          4       6          8
//!   | request | sequence | count | reserved | commands or a part of the reply ...
//! ```
//!
//! Every worker has its own socket on the shared port, and the kernel spreads clients over them by address; a lost
//! datagram is the client's to notice. All verbs are served, as memcached does.
//!
//! A source address proves nothing, so a reply is bounded: at most [`REPLY_BYTES_MAX`] bytes per request, and what does
//! not fit is answered with an error line. Keep the port away from networks that are not yours all the same.

use crate::{Batch, Progress, Scan, Service, Session};
use lookaside_store::Now;
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, SocketAddrAny};

/// The size of a datagram with its header, in bytes: fits an Ethernet frame, as memcached's.
pub const DATAGRAM_BYTES_MAX: usize = 1400;

/// The largest reply by UDP, in bytes. More would overrun the receiver's socket buffer anyway.
pub const REPLY_BYTES_MAX: usize = 128 << 10;

/// How many datagrams are served before other sockets have their turn.
const DATAGRAMS_PER_ROUND: usize = 64;

/// The largest request, in bytes: no UDP datagram is larger.
const REQUEST_BYTES_MAX: usize = 64 << 10;

const HEADER_BYTES: usize = 8;
const PAYLOAD_BYTES_MAX: usize = DATAGRAM_BYTES_MAX - HEADER_BYTES;

/// One worker's socket on a UDP port, with its buffers.
pub(crate) struct UdpPort {
    socket: OwnedFd,
    request: Vec<u8>,
    reply: Vec<u8>,
    datagram: Vec<u8>,
}

impl UdpPort {
    pub(crate) fn new(socket: OwnedFd) -> Self {
        UdpPort { socket, request: vec![0; REQUEST_BYTES_MAX], reply: Vec::new(), datagram: Vec::new() }
    }

    pub(crate) fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    /// Answers what has arrived.
    pub(crate) fn serve(&mut self, service: &Service<'_>, now: Now) {
        for _ in 0..DATAGRAMS_PER_ROUND {
            let received = rustix::net::recvfrom(&self.socket, &mut self.request[..], RecvFlags::DONTWAIT);
            match received {
                Ok((count, _, Some(client))) => {
                    service.counters.bytes_read.add(count as u64);
                    self.answer(count, &client, service, now);
                }
                Ok((_, _, None)) | Err(Errno::INTR) => {}
                // A refusal that an earlier reply met is reported here; the next read goes on.
                Err(Errno::CONNREFUSED) => {}
                Err(_) => return,
            }
        }
    }

    fn answer(&mut self, count: usize, client: &SocketAddrAny, service: &Service<'_>, now: Now) {
        let Some((header, commands)) = self.request[..count].split_at_checked(HEADER_BYTES) else { return };
        let request_id = [header[0], header[1]];
        self.reply.clear();
        if header[4..6] != [0, 1] {
            self.reply.extend_from_slice(b"SERVER_ERROR multi-packet request not supported\r\n");
        } else {
            execute(commands, service, now, &mut self.reply);
        }
        self.send(request_id, client, service);
    }

    /// Sends the reply in numbered datagrams. What the socket does not take is lost, as datagrams may be.
    fn send(&mut self, request_id: [u8; 2], client: &SocketAddrAny, service: &Service<'_>) {
        let datagrams = self.reply.len().div_ceil(PAYLOAD_BYTES_MAX) as u16;
        for (sequence, payload) in (0u16..).zip(self.reply.chunks(PAYLOAD_BYTES_MAX)) {
            self.datagram.clear();
            self.datagram.extend_from_slice(&request_id);
            self.datagram.extend_from_slice(&sequence.to_be_bytes());
            self.datagram.extend_from_slice(&datagrams.to_be_bytes());
            self.datagram.extend_from_slice(&[0, 0]);
            self.datagram.extend_from_slice(payload);
            match rustix::net::sendto(&self.socket, &self.datagram, SendFlags::DONTWAIT, client) {
                Ok(count) => service.counters.bytes_written.add(count as u64),
                Err(_) => return,
            }
        }
    }
}

/// Executes the commands of one datagram. A command that the datagram does not hold as a whole is not answered.
fn execute(commands: &[u8], service: &Service<'_>, now: Now, reply: &mut Vec<u8>) {
    let mut session = Session::new();
    let mut batch = Batch::default();
    let mut from = 0;
    loop {
        batch.clear();
        let scan = session.scan(commands, from, &service.limits, &mut batch);
        let progress = batch.execute(service, now, batch.steps_count(), REPLY_BYTES_MAX, reply);
        if progress == Progress::Full || reply.len() > REPLY_BYTES_MAX {
            reply.clear();
            reply.extend_from_slice(b"SERVER_ERROR reply too large for UDP, use TCP\r\n");
            return;
        }
        match (progress, scan) {
            (Progress::Done, Scan::Full { input_at }) => from = input_at,
            _ => return,
        }
    }
}
