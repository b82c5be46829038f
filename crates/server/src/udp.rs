//! UDP: a request is one datagram, its reply one or several (§3.1 of the paper: gets go by UDP).
//!
//! Every worker has its own socket on the shared port, and the kernel spreads clients over them by address; a lost
//! datagram is the client's to notice. All verbs are served, as memcached does.
//!
//! A source address proves nothing, so a reply is bounded ([`crate::reply_limit`]). In place of one that is larger goes
//! an error line, the short `ERROR` if the long one is larger than the bound too, or nothing. Keep the port away from
//! networks that are not yours all the same.

use crate::reply_limit::ReplyLimit;
use crate::{Batch, Progress, Scan, Service, Session, segmentation};
use lookaside_protocol::udp::{DATAGRAM_BYTES_MAX, FrameHeader, compose_datagrams};
use lookaside_store::Now;
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, SocketAddrAny};
use std::net::SocketAddr;
use std::sync::Arc;

/// The largest reply by UDP, in bytes. More would overrun the receiver's socket buffer anyway.
pub const REPLY_BYTES_MAX: usize = 128 << 10;

/// How many datagrams are served before other sockets have their turn.
const DATAGRAMS_PER_ROUND: usize = 64;

/// The largest request, in bytes: no UDP datagram is larger.
const REQUEST_BYTES_MAX: usize = 64 << 10;

/// How many datagrams of a reply are handed to the kernel at once, if it cuts them itself. It takes up to 64, and 64 KiB
/// with all headers.
const SEGMENTS_MAX: usize = 45;

/// What is said in place of a reply that is too large, in the order of preference; the last is no answer at all.
const REFUSALS: [&[u8]; 3] = [b"SERVER_ERROR reply too large for UDP, use TCP\r\n", b"ERROR\r\n", b""];

/// One worker's socket on a UDP port, with its buffers.
pub(crate) struct UdpPort {
    socket: OwnedFd,
    limit: Arc<ReplyLimit>,
    /// Whether the kernel cuts replies into datagrams.
    is_segmented: bool,
    request: Vec<u8>,
    batch: Batch<'static>,
    reply: Vec<u8>,
    datagrams: Vec<u8>,
}

impl UdpPort {
    pub(crate) fn new(socket: OwnedFd, limit: Arc<ReplyLimit>) -> Self {
        let is_segmented = segmentation::cut_every(&socket, DATAGRAM_BYTES_MAX as u16);
        let request = vec![0; REQUEST_BYTES_MAX];
        let (reply, datagrams) = (Vec::new(), Vec::new());
        UdpPort { socket, limit, is_segmented, request, batch: Batch::default(), reply, datagrams }
    }

    pub(crate) fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    /// Answers what has arrived.
    pub(crate) fn serve(&mut self, service: &Service<'_>, now: Now) {
        service.attention.turn_to(None);
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
        let Ok(address) = SocketAddr::try_from(client.clone()) else { return };
        let reply_bytes_max = self.limit.reply_bytes_max(address.ip(), count);
        self.reply.clear();
        let mut batch = std::mem::take(&mut self.batch).recycle();
        let is_whole = execute(commands, service, now, reply_bytes_max, &mut batch, &mut self.reply);
        self.batch = batch.recycle();
        if !is_whole || !self.compose(header.request_id, reply_bytes_max) {
            service.counters.udp_replies_refused.add(1);
            self.refuse(header.request_id, reply_bytes_max);
        }
        self.send(client, service);
    }

    /// Cuts the reply into datagrams; says whether they keep within the bound.
    fn compose(&mut self, request_id: u16, reply_bytes_max: usize) -> bool {
        self.datagrams.clear();
        let has_numbers = compose_datagrams(request_id, &self.reply, &mut self.datagrams);
        debug_assert!(has_numbers, "a bounded reply has numbers for all its datagrams");
        // A proven client's bound is one of the reply alone: headers come on top of it.
        reply_bytes_max == REPLY_BYTES_MAX || self.datagrams.len() <= reply_bytes_max
    }

    /// Puts the longest refusal that may be sent in place of the reply, if any may.
    fn refuse(&mut self, request_id: u16, reply_bytes_max: usize) {
        for refusal in REFUSALS {
            self.reply.clear();
            self.reply.extend_from_slice(refusal);
            if self.compose(request_id, reply_bytes_max) {
                return;
            }
        }
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

/// Executes the commands of one datagram; says whether the whole reply is there. A command that the datagram does not
/// hold as a whole is not answered.
fn execute<'b>(
    commands: &'b [u8],
    service: &Service<'_>,
    now: Now,
    reply_bytes_max: usize,
    batch: &mut Batch<'b>,
    reply: &mut Vec<u8>,
) -> bool {
    let mut session = Session::new();
    let mut from = 0;
    loop {
        batch.clear();
        let scan = session.scan(commands, from, service, now, batch);
        let progress = batch.execute(service, now, batch.steps_count(), reply_bytes_max, reply);
        if matches!(progress, Progress::Full | Progress::Yield) || reply.len() > reply_bytes_max {
            return false;
        }
        match (progress, scan) {
            (Progress::Done, Scan::Full { input_at }) => from = input_at,
            _ => return true,
        }
    }
}
