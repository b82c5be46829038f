//! The UDP sockets of a client: one for each thread, and a task for each that receives. A reply has the id of its
//! request among all that its socket has outstanding.
//!
//! An id is used again only after all 65,536 have been. A reply that is so late that its id is in use again is taken
//! for the newer request's if it comes from the same server; its keys would have to be the same, too.

use super::{UdpCounters, UdpStatistics};
use crate::spawn_in;
use lookaside_protocol::udp::{DATAGRAM_BYTES_MAX, FrameError, FrameHeader, Reassembled, Reassembly};
use lookaside_sync::Mutex;
use std::cell::RefCell;
use std::collections::HashMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;
use tokio::net::UdpSocket;
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::timeout;

/// Requests that one socket may have outstanding; one more is refused.
const OUTSTANDING_MAX: usize = 16_384;
/// The longest reply, in bytes: memcached's default limit on values, and a page of keys.
const REPLY_BYTES_MAX: usize = 2 << 20;

/// Why a request has no reply.
#[derive(Debug)]
pub(super) enum SocketError {
    /// No whole reply in time.
    TimedOut,
    /// A datagram of the reply was missing, or came out of order.
    Reordered,
    /// Too many requests are outstanding.
    Busy,
    /// The system did not send it.
    Io(io::Error),
}

/// The sockets of one client. They are closed when it is dropped.
#[derive(Debug)]
pub struct UdpSockets {
    threads: ThreadNumbers,
    sockets: Vec<Arc<Socket>>,
    pub(super) counters: Arc<UdpCounters>,
    _receivers: JoinSet<()>,
}

#[derive(Debug)]
struct Socket {
    socket: UdpSocket,
    outstanding: Mutex<Outstanding>,
}

#[derive(Debug, Default)]
struct Outstanding {
    next_id: u16,
    requests: HashMap<u16, Pending>,
}

#[derive(Debug)]
struct Pending {
    peer: SocketAddr,
    reassembly: Reassembly,
    message: Vec<u8>,
    reply: oneshot::Sender<Result<Vec<u8>, SocketError>>,
}

impl UdpSockets {
    /// A socket for each thread of the current tokio runtime.
    pub async fn bind() -> io::Result<UdpSockets> {
        let (mut sockets, mut receivers) = (Vec::new(), JoinSet::new());
        let counters = Arc::<UdpCounters>::default();
        for _ in 0..tokio::runtime::Handle::current().metrics().num_workers() {
            let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).await?;
            let socket = Arc::new(Socket { socket, outstanding: Mutex::default() });
            spawn_in(&mut receivers, receive(socket.clone(), counters.clone()));
            sockets.push(socket);
        }
        Ok(UdpSockets { threads: ThreadNumbers::default(), sockets, counters, _receivers: receivers })
    }

    /// The counters of all gets over these sockets.
    pub fn statistics(&self) -> UdpStatistics {
        self.counters.snapshot()
    }

    /// Sends the text that `compose` appends, and waits for the text of the reply.
    pub(super) async fn request(
        &self,
        peer: SocketAddr,
        compose: impl FnOnce(&mut Vec<u8>),
        limit: Duration,
    ) -> Result<Vec<u8>, SocketError> {
        let socket = &self.sockets[self.threads.current() % self.sockets.len()];
        let (request, reply) = socket.begin(peer).ok_or(SocketError::Busy)?;
        let mut datagram = Vec::with_capacity(DATAGRAM_BYTES_MAX);
        datagram.extend_from_slice(&FrameHeader::of_request(request.id).to_bytes());
        compose(&mut datagram);
        let exchange = async {
            // Waits while the socket's buffer is full.
            socket.socket.send_to(&datagram, peer).await.map_err(SocketError::Io)?;
            reply.await.unwrap_or(Err(SocketError::TimedOut))
        };
        timeout(limit, exchange).await.unwrap_or(Err(SocketError::TimedOut))
    }
}

/// Numbers the threads that ask for it, from 0 on: the threads of a runtime share no socket unless there are more of them
/// than sockets. Numbers of threads that have ended are not given again.
#[derive(Debug)]
struct ThreadNumbers {
    /// Its own number among all in the process.
    id: usize,
    next: AtomicUsize,
}

/// The clients whose number a thread remembers. A thread that uses more gets new numbers from time to time.
const REMEMBERED_MAX: usize = 8;

thread_local! {
    /// The number of this thread for each [`ThreadNumbers::id`].
    static REMEMBERED: RefCell<Vec<(usize, usize)>> = const { RefCell::new(Vec::new()) };
}

impl Default for ThreadNumbers {
    fn default() -> Self {
        static NEXT_ID: AtomicUsize = AtomicUsize::new(0);
        ThreadNumbers { id: NEXT_ID.fetch_add(1, Relaxed), next: AtomicUsize::new(0) }
    }
}

impl ThreadNumbers {
    /// The number of the current thread.
    fn current(&self) -> usize {
        REMEMBERED.with_borrow_mut(|remembered| {
            if let Some((_, number)) = remembered.iter().find(|(id, _)| *id == self.id) {
                return *number;
            }
            let number = self.next.fetch_add(1, Relaxed);
            if remembered.len() == REMEMBERED_MAX {
                remembered.remove(0);
            }
            remembered.push((self.id, number));
            number
        })
    }
}

/// A request that is outstanding until this is dropped.
struct OutstandingRequest<'a> {
    socket: &'a Socket,
    id: u16,
}

impl Drop for OutstandingRequest<'_> {
    fn drop(&mut self) {
        self.socket.outstanding.lock().requests.remove(&self.id);
    }
}

type ReplyReceiver = oneshot::Receiver<Result<Vec<u8>, SocketError>>;

impl Socket {
    /// Begins a request; `None` if too many are outstanding.
    fn begin(&self, peer: SocketAddr) -> Option<(OutstandingRequest<'_>, ReplyReceiver)> {
        let mut outstanding = self.outstanding.lock();
        if outstanding.requests.len() >= OUTSTANDING_MAX {
            return None;
        }
        let mut id = outstanding.next_id;
        while outstanding.requests.contains_key(&id) {
            id = id.wrapping_add(1);
        }
        outstanding.next_id = id.wrapping_add(1);
        let (reply, received) = oneshot::channel();
        let reassembly = Reassembly::new(id, REPLY_BYTES_MAX);
        outstanding.requests.insert(id, Pending { peer, reassembly, message: Vec::new(), reply });
        Some((OutstandingRequest { socket: self, id }, received))
    }

    /// Adds a datagram to the reply that it is of. False if no request waits for it.
    fn accept(&self, datagram: &[u8], from: SocketAddr) -> bool {
        let Ok((header, _)) = FrameHeader::parse(datagram) else { return false };
        let mut outstanding = self.outstanding.lock();
        let Some(pending) = outstanding.requests.get_mut(&header.request_id).filter(|pending| pending.peer == from)
        else {
            return false;
        };
        let ended = match pending.reassembly.push(datagram, &mut pending.message) {
            Ok(Reassembled::Part | Reassembled::OtherRequest) => return true,
            Ok(Reassembled::Whole) => Ok(std::mem::take(&mut pending.message)),
            Err(FrameError::OutOfOrder { .. }) => Err(SocketError::Reordered),
            // Nothing sensible: as if it had not come.
            Err(_) => Err(SocketError::TimedOut),
        };
        if let Some(pending) = outstanding.requests.remove(&header.request_id) {
            let _ = pending.reply.send(ended);
        }
        true
    }
}

/// Receives datagrams. Never returns.
async fn receive(socket: Arc<Socket>, counters: Arc<UdpCounters>) {
    let mut datagram = vec![0; 1 << 16];
    loop {
        match socket.socket.recv_from(&mut datagram).await {
            Ok((bytes, from)) => {
                if !socket.accept(&datagram[..bytes], from) {
                    counters.late.add(1);
                }
            }
            // The system reports the refusal of an earlier datagram.
            Err(error) => tracing::trace!(%error, "cannot receive by UDP"),
        }
        // Datagrams can arrive faster than a task may run without a break.
        tokio::task::consume_budget().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    /// Once each thread of the process had a number: threads of one client, whose numbers were not consecutive, shared
    /// a socket.
    #[test]
    fn threads_of_a_client_are_numbered_without_gaps() {
        let (client, other) = (ThreadNumbers::default(), ThreadNumbers::default());
        let mut numbers: Vec<(usize, usize)> = thread::scope(|scope| {
            let threads = (0..4).map(|at| {
                let (client, other) = (&client, &other);
                // Threads of the other client are between those of this one.
                scope.spawn(move || if at % 2 == 0 { other.current() } else { 0 }).join().expect("it does not panic");
                scope.spawn(move || (client.current(), client.current()))
            });
            let threads: Vec<_> = threads.collect();
            threads.into_iter().map(|thread| thread.join().expect("it does not panic")).collect()
        });
        numbers.sort_unstable();
        assert_eq!(numbers, [(0, 0), (1, 1), (2, 2), (3, 3)]);
    }

    #[test]
    fn a_thread_that_uses_many_clients_remembers_the_last_ones() {
        let clients: Vec<_> = (0..2 * REMEMBERED_MAX).map(|_| ThreadNumbers::default()).collect();
        for client in &clients {
            assert_eq!((client.current(), client.current()), (0, 0));
        }
        assert_eq!((clients[0].current(), clients[clients.len() - 1].current()), (1, 0));
        REMEMBERED.with_borrow(|remembered| assert_eq!(remembered.len(), REMEMBERED_MAX));
    }
}
