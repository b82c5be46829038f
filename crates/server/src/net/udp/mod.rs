//! UDP: a request is one datagram, its reply is one or several (§3.1 of the paper: gets by UDP).
//!
//! Every worker has its own socket on the shared port, and the kernel spreads clients over the workers by address.
//! Clients have to detect lost datagrams. All verbs are served, as in memcached. With `--udp-worker-ports` each worker
//! also has a port of its own (§6.1), so that a client can choose the thread that serves it.
//!
//! Waiting datagrams are served together, as connections are ([`crate::net::round`]): one call receives them, their
//! commands share batches, so that their keys are prefetched together, and one call sends many replies.
//!
//! A reply is bounded, because source addresses can be forged ([`amplification`]). Instead of a larger reply an error
//! line is sent, the short `ERROR` if the long one exceeds the bound too, or nothing; leases in the larger reply are
//! released ([`unsent_leases`]). Protect the port from untrusted
//! networks all the same.

pub(crate) mod amplification;
mod gso;
mod mmsg;
mod send_batch;
mod unsent_leases;

use crate::session::batch::{Batch, BatchProgress};
use crate::session::context::{Protocols, SessionContext};
use crate::session::{Scan, Session};
use amplification::{AmplificationLimit, UDP_REPLY_BYTES_MAX};
use lookaside_protocol::udp::{FRAME_HEADER_BYTES, FrameHeader};
use lookaside_store::Now;
use mmsg::{DATAGRAMS_PER_CALL, RecvBatch};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use send_batch::SendBatch;
use std::sync::Arc;
use unsent_leases::release_leases;

/// At most this many calls receive datagrams before other sockets are served.
const CALLS_PER_ROUND: usize = 2;

/// Replaces a reply that is too large, in the order of preference. The last one is no reply.
const REFUSALS: [&[u8]; 3] = [b"SERVER_ERROR reply too large for UDP, use TCP\r\n", b"ERROR\r\n", b""];

/// One worker's socket on a UDP port, with its buffers.
pub(crate) struct UdpPort {
    socket: OwnedFd,
    limit: Arc<AmplificationLimit>,
    /// `None` if its address has the server's protocols.
    protocols: Option<Protocols>,
    received: RecvBatch,
    requests: Vec<Request>,
    batch: Batch<'static>,
    reply: Vec<u8>,
    send_batch: SendBatch,
}

/// A datagram to be answered.
struct Request {
    /// Its index among those received.
    datagram: usize,
    id: u16,
    reply_bytes_max: usize,
    session: Session,
    /// Where its steps end in the current batch.
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

    /// Answers the datagrams that have arrived.
    pub(crate) fn serve(&mut self, context: &SessionContext<'_>, now: Now) {
        context.events.connection.set(None);
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
                // Reports that the receiver of an earlier reply refused it; the next call receives.
                Err(Errno::CONNREFUSED) => {}
                Err(_) => return,
            }
        }
    }

    /// Collects the datagrams to be answered. One without a header, or one of several of a request, is ignored.
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

    /// Executes the requests in the order of their arrival, batch by batch. A request may take several batches.
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

/// Fills the batch with the commands of the first requests; returns how many requests were scanned. Only the last of
/// them may have commands left. A command that is incomplete in its datagram is not answered.
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
    /// Executes its steps and queues the reply; returns false if more of the request has to be scanned first.
    fn execute(
        &self,
        batch: &mut Batch<'_>,
        context: &SessionContext<'_>,
        now: Now,
        reply: &mut Vec<u8>,
        send_batch: &mut SendBatch,
    ) -> bool {
        let progress = batch.execute(context, now, self.steps_end, self.reply_bytes_max, reply);
        let is_whole =
            !matches!(progress, BatchProgress::Full | BatchProgress::Yield) && reply.len() <= self.reply_bytes_max;
        if let (true, BatchProgress::Done, Scan::Full { .. }) = (is_whole, progress, self.scan) {
            return false;
        }
        batch.skip(self.steps_end);
        if !is_whole || !self.queue_reply(reply, send_batch) {
            context.counters.udp_replies_refused.add(1);
            release_leases(reply, context, now);
            // The longest refusal within the bound, if there is one.
            let _ = REFUSALS.iter().any(|refusal| self.queue_reply(refusal, send_batch));
        }
        reply.clear();
        if reply.capacity() > 4 * UDP_REPLY_BYTES_MAX {
            reply.shrink_to(UDP_REPLY_BYTES_MAX);
        }
        true
    }

    /// Queues a reply if its datagrams are within the bound.
    fn queue_reply(&self, reply: &[u8], send_batch: &mut SendBatch) -> bool {
        // The bound of a validated client counts the reply without headers.
        let is_validated = self.reply_bytes_max == UDP_REPLY_BYTES_MAX;
        send_batch.add(self.datagram, self.id, reply, if is_validated { usize::MAX } else { self.reply_bytes_max })
    }
}
