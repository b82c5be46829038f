//! UDP: a request is one datagram, its reply one or several (§3.1 of the paper: gets go by UDP).
//!
//! Every worker has its own socket on the shared port, and the kernel spreads clients over them by address; a lost
//! datagram is the client's to notice. All verbs are served, as memcached does.
//!
//! A source address proves nothing, so a reply is bounded: at most [`REPLY_BYTES_MAX`] bytes per request, and what does
//! not fit is answered with an error line. Keep the port away from networks that are not yours all the same.

use crate::{Batch, Progress, Scan, Service, Session, segmentation};
use lookaside_protocol::udp::{DATAGRAM_BYTES_MAX, FrameHeader, compose_datagrams};
use lookaside_store::Now;
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, SocketAddrAny};

/// The largest reply by UDP, in bytes. More would overrun the receiver's socket buffer anyway.
pub const REPLY_BYTES_MAX: usize = 128 << 10;

/// How many datagrams are served before other sockets have their turn.
const DATAGRAMS_PER_ROUND: usize = 64;

/// The largest request, in bytes: no UDP datagram is larger.
const REQUEST_BYTES_MAX: usize = 64 << 10;

/// How many datagrams of a reply are handed to the kernel at once, if it cuts them itself. It takes up to 64, and 64 KiB
/// with all headers.
const SEGMENTS_MAX: usize = 45;

/// One worker's socket on a UDP port, with its buffers.
pub(crate) struct UdpPort {
    socket: OwnedFd,
    /// Whether the kernel cuts replies into datagrams.
    is_segmented: bool,
    request: Vec<u8>,
    batch: Batch<'static>,
    reply: Vec<u8>,
    datagrams: Vec<u8>,
}

impl UdpPort {
    pub(crate) fn new(socket: OwnedFd) -> Self {
        let is_segmented = segmentation::cut_every(&socket, DATAGRAM_BYTES_MAX as u16);
        let request = vec![0; REQUEST_BYTES_MAX];
        UdpPort { socket, is_segmented, request, batch: Batch::default(), reply: Vec::new(), datagrams: Vec::new() }
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

    /// Answers one datagram. One without a header, or that claims to be a part of more, is left unanswered.
    fn answer(&mut self, count: usize, client: &SocketAddrAny, service: &Service<'_>, now: Now) {
        let Ok((header, commands)) = FrameHeader::parse(&self.request[..count]) else { return };
        if header.count != 1 {
            return;
        }
        self.reply.clear();
        let mut batch = std::mem::take(&mut self.batch).recycle();
        execute(commands, service, now, &mut batch, &mut self.reply);
        self.batch = batch.recycle();
        self.datagrams.clear();
        let fits = compose_datagrams(header.request_id, &self.reply, &mut self.datagrams);
        debug_assert!(fits, "a bounded reply has numbers for all its datagrams");
        self.send(client, service);
    }

    /// Sends the composed datagrams, many at once where the kernel cuts them.
    fn send(&mut self, client: &SocketAddrAny, service: &Service<'_>) {
        let mut unsent = &self.datagrams[..];
        while !unsent.is_empty() {
            let datagrams = if self.is_segmented { SEGMENTS_MAX } else { 1 };
            let (burst, rest) = unsent.split_at(unsent.len().min(datagrams * DATAGRAM_BYTES_MAX));
            match rustix::net::sendto(&self.socket, burst, SendFlags::DONTWAIT, client) {
                Ok(count) => {
                    service.counters.bytes_written.add(count as u64);
                    unsent = rest;
                }
                // No room, or nobody listens any more: the rest is lost, as datagrams may be.
                Err(Errno::AGAIN | Errno::CONNREFUSED) => return,
                // A path whose frames are too small, or a device that cannot: this burst again, one by one.
                Err(_) if self.is_segmented && burst.len() > DATAGRAM_BYTES_MAX => {
                    self.is_segmented = false;
                    segmentation::cut_every(&self.socket, 0);
                }
                Err(_) => return,
            }
        }
    }
}

/// Executes the commands of one datagram. A command that the datagram does not hold as a whole is not answered.
fn execute<'b>(commands: &'b [u8], service: &Service<'_>, now: Now, batch: &mut Batch<'b>, reply: &mut Vec<u8>) {
    let mut session = Session::new();
    let mut from = 0;
    loop {
        batch.clear();
        let scan = session.scan(commands, from, &service.limits, batch);
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
