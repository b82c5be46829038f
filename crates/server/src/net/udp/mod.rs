//! UDP: a request is one datagram, its reply one or several (§3.1 of the paper: gets go by UDP).
//!
//! Every worker has its own socket on the shared port, and the kernel spreads clients over them by address; a lost
//! datagram is the client's to notice. All verbs are served, as memcached does.
//!
//! With `--udp-worker-ports` each has a port that no other shares, too (§6.1): which thread serves it is the client's choice.
//!
//! Datagrams that wait are served together, as connections are ([`crate::net::round`]): one call receives them, their commands
//! share batches, so that the keys of all of them are prefetched together, and one call sends many replies.
//!
//! A source address proves nothing, so a reply is bounded ([`crate::net::udp::amplification`]). In place of one that is larger goes
//! an error line, the short `ERROR` if the long one is larger than the bound too, or nothing. Keep the port away from
//! networks that are not yours all the same.

pub(crate) mod amplification;
mod gso;
mod mmsg;
mod send_batch;

use crate::net::udp::amplification::AmplificationLimit;
use crate::session::batch::{Batch, Progress};
use crate::session::context::{Protocols, SessionContext};
use crate::session::{Scan, Session};
use lookaside_protocol::udp::{FRAME_HEADER_BYTES, FrameHeader};
use lookaside_store::Now;
use mmsg::{DATAGRAMS_PER_CALL, RecvBatch};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use send_batch::SendBatch;
use std::sync::Arc;

/// The largest reply by UDP, in bytes. More would overrun the receiver's socket buffer anyway.
pub const REPLY_BYTES_MAX: usize = 128 << 10;

/// How many calls receive datagrams before other sockets have their turn.
const CALLS_PER_ROUND: usize = 2;

/// What is said in place of a reply that is too large, in the order of preference; the last is no answer at all.
const REFUSALS: [&[u8]; 3] = [b"SERVER_ERROR reply too large for UDP, use TCP\r\n", b"ERROR\r\n", b""];

/// One worker's socket on a UDP port, with its buffers.
pub(crate) struct UdpPort {
    socket: OwnedFd,
    limit: Arc<AmplificationLimit>,
    /// There if its address has a protocol of its own.
    protocols: Option<Protocols>,
    received: RecvBatch,
    requests: Vec<Request>,
    batch: Batch<'static>,
    reply: Vec<u8>,
    send_batch: SendBatch,
}

/// A datagram that is to be answered.
struct Request {
    /// Its number among those received.
    datagram: usize,
    id: u16,
    reply_bytes_max: usize,
    session: Session,
    /// Where its steps end in the present batch.
    steps_end: usize,
    scan: Scan,
}

impl UdpPort {
    pub(crate) fn new(socket: OwnedFd, limit: Arc<AmplificationLimit>, protocols: Option<Protocols>) -> Self {
        let send_batch = SendBatch::new(&socket);
        let (requests, batch, reply) = (Vec::new(), Batch::default(), Vec::new());
        UdpPort { socket, limit, protocols, received: RecvBatch::new(), requests, batch, reply, send_batch }
    }

    pub(crate) fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    /// Answers what has arrived.
    pub(crate) fn serve(&mut self, context: &SessionContext<'_>, now: Now) {
        context.events.set_current_connection(None);
        for _ in 0..CALLS_PER_ROUND {
            match self.received.receive(&self.socket) {
                Ok(()) => {
                    self.read_requests(context);
                    self.scan_and_execute(context, now);
                    if self.received.len() < DATAGRAMS_PER_CALL {
                        return;
                    }
                }
                Err(Errno::INTR) => {}
                // A refusal that an earlier reply met is reported here; the next read goes on.
                Err(Errno::CONNREFUSED) => {}
                Err(_) => return,
            }
        }
    }

    /// Notes which datagrams are to be answered. One without a header, or that claims to be a part of more, is not.
    fn read_requests(&mut self, context: &SessionContext<'_>) {
        self.requests.clear();
        for datagram in 0..self.received.len() {
            let bytes = self.received.datagram(datagram);
            context.counters.bytes_read.add(bytes.len() as u64);
            let Ok((FrameHeader { request_id: id, count: 1, .. }, _)) = FrameHeader::parse(bytes) else { continue };
            let Some(client) = self.received.client(datagram).as_socket() else { continue };
            let reply_bytes_max = self.limit.reply_bytes_max(client.ip(), bytes.len());
            let (session, scan) = (Session::with_protocols(self.protocols), Scan::Full { input_at: 0 });
            self.requests.push(Request { datagram, id, reply_bytes_max, session, steps_end: 0, scan });
        }
    }

    /// Executes the requests in the order they came, batch by batch; one may take several batches.
    fn scan_and_execute(&mut self, context: &SessionContext<'_>, now: Now) {
        let UdpPort { socket, received, requests, batch: idle_batch, reply, send_batch, .. } = self;
        let received = &*received;
        let mut batch = std::mem::take(idle_batch).recycle();
        let mut from = 0;
        while from < requests.len() {
            batch.clear();
            let scanned = scan(&mut requests[from..], received, context, now, &mut batch);
            for request in &requests[from..from + scanned] {
                if request.execute(&mut batch, context, now, reply, send_batch) {
                    from += 1;
                }
                if send_batch.is_full() {
                    send_batch.send(socket, received, context.counters);
                }
            }
        }
        send_batch.send(socket, received, context.counters);
        *idle_batch = batch.recycle();
    }
}

/// Fills the batch with the commands of the first requests; says how many of these have had their turn. Only the last of
/// them may have commands left. A command that its datagram does not hold as a whole is not answered.
fn scan<'b>(
    requests: &mut [Request],
    received: &'b RecvBatch,
    context: &SessionContext<'_>,
    now: Now,
    batch: &mut Batch<'b>,
) -> usize {
    let mut scanned = 0;
    for request in requests {
        if batch.is_full() {
            break;
        }
        let commands = &received.datagram(request.datagram)[FRAME_HEADER_BYTES..];
        let Scan::Full { input_at } = request.scan else { unreachable!("an answered request is not scanned again") };
        request.scan = request.session.scan(commands, input_at, context, now, batch);
        request.steps_end = batch.steps_count();
        scanned += 1;
        if let Scan::Full { .. } = request.scan {
            break;
        }
    }
    scanned
}

impl Request {
    /// Executes its steps and puts the reply into the outbox; says whether that is all, or more of it has to be scanned.
    fn execute(
        &self,
        batch: &mut Batch<'_>,
        context: &SessionContext<'_>,
        now: Now,
        reply: &mut Vec<u8>,
        send_batch: &mut SendBatch,
    ) -> bool {
        let progress = batch.execute(context, now, self.steps_end, self.reply_bytes_max, reply);
        let is_whole = !matches!(progress, Progress::Full | Progress::Yield) && reply.len() <= self.reply_bytes_max;
        if let (true, Progress::Done, Scan::Full { .. }) = (is_whole, progress, self.scan) {
            return false;
        }
        batch.skip(self.steps_end);
        if !is_whole || !self.queue_reply(reply, send_batch) {
            context.counters.udp_replies_refused.add(1);
            // The longest refusal that may be sent, if any may.
            let _ = REFUSALS.iter().any(|refusal| self.queue_reply(refusal, send_batch));
        }
        reply.clear();
        if reply.capacity() > 4 * REPLY_BYTES_MAX {
            reply.shrink_to(REPLY_BYTES_MAX);
        }
        true
    }

    /// Puts a reply into the outbox, if its datagrams keep within the bound.
    fn queue_reply(&self, reply: &[u8], send_batch: &mut SendBatch) -> bool {
        // A proven client's bound is one of the reply alone: headers come on top of it.
        let is_validated = self.reply_bytes_max == REPLY_BYTES_MAX;
        send_batch.add(self.datagram, self.id, reply, if is_validated { usize::MAX } else { self.reply_bytes_max })
    }
}
