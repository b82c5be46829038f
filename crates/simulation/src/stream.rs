//! One end of a simulated connection, and the pipe between two ends.

use crate::link::LinkDelays;
use lookaside_client::Stream;
use std::{
    collections::VecDeque,
    future::Future,
    io,
    net::IpAddr,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard},
    task::{Context, Poll, Waker, ready},
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Instant, Sleep},
};

/// A writer waits while this many bytes are in flight in its direction.
const IN_FLIGHT_BYTES_MAX: usize = 256 << 10;

/// One direction of a connection.
pub(crate) struct Pipe {
    in_flight: VecDeque<(Instant, Vec<u8>)>,
    in_flight_bytes: usize,
    arrives_last: Instant,
    /// While true, nothing arrives.
    pub(crate) is_cut: bool,
    /// Added to the delay of every write.
    pub(crate) extra_delay: Duration,
    /// The reader sees an error once it has read what arrived.
    pub(crate) reader_is_reset: bool,
    /// The writer sees an error.
    pub(crate) writer_is_reset: bool,
    /// One of the ends is closed: the reader sees EOF after the bytes in flight, the writer an error.
    is_ended: bool,
    reader: Option<Waker>,
    writer: Option<Waker>,
}

impl Pipe {
    pub(crate) fn new(extra_delay: Duration) -> Self {
        Pipe {
            in_flight: VecDeque::new(),
            in_flight_bytes: 0,
            arrives_last: Instant::now(),
            is_cut: false,
            extra_delay,
            reader_is_reset: false,
            writer_is_reset: false,
            is_ended: false,
            reader: None,
            writer: None,
        }
    }

    /// Delays the bytes in flight until `earliest`.
    pub(crate) fn delay_all(&mut self, earliest: Instant) {
        self.in_flight.iter_mut().for_each(|(arrives, _)| *arrives = earliest.max(*arrives));
        self.arrives_last = self.arrives_last.max(earliest);
    }

    pub(crate) fn wake(&mut self) {
        self.reader.take().into_iter().chain(self.writer.take()).for_each(Waker::wake);
    }

    /// One of the ends closes it.
    fn end(&mut self) {
        self.is_ended = true;
        self.wake();
    }

    fn push(&mut self, arrives: Instant, bytes: &[u8]) {
        self.arrives_last = self.arrives_last.max(arrives + self.extra_delay);
        self.in_flight.push_back((self.arrives_last, bytes.to_vec()));
        self.in_flight_bytes += bytes.len();
        self.reader.take().into_iter().for_each(Waker::wake);
    }

    fn copy_arrived(&mut self, buffer: &mut ReadBuf<'_>) {
        let (_, bytes) = self.in_flight.front_mut().expect("only called when something has arrived");
        let copied = bytes.len().min(buffer.remaining());
        buffer.put_slice(&bytes[..copied]);
        bytes.drain(..copied);
        if bytes.is_empty() {
            self.in_flight.pop_front();
        }
        self.in_flight_bytes -= copied;
        self.writer.take().into_iter().for_each(Waker::wake);
    }
}

pub(crate) struct SimulatedStream {
    delays: LinkDelays,
    incoming: Arc<Mutex<Pipe>>,
    outgoing: Arc<Mutex<Pipe>>,
    arrival: Pin<Box<Sleep>>,
}

impl SimulatedStream {
    pub(crate) fn new(delays: LinkDelays, incoming: Arc<Mutex<Pipe>>, outgoing: Arc<Mutex<Pipe>>) -> Self {
        let arrival = Box::pin(tokio::time::sleep(Duration::ZERO));
        SimulatedStream { delays, incoming, outgoing, arrival }
    }
}

impl Stream for SimulatedStream {
    fn peer(&self) -> Option<IpAddr> {
        None
    }
}

impl Drop for SimulatedStream {
    fn drop(&mut self) {
        lock(&self.outgoing).end();
        lock(&self.incoming).end();
    }
}

impl AsyncRead for SimulatedStream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        loop {
            let mut pipe = lock(&this.incoming);
            pipe.reader = Some(cx.waker().clone());
            match pipe.in_flight.front().map(|(arrives, _)| *arrives) {
                Some(arrives) if !pipe.is_cut && arrives <= Instant::now() => {
                    pipe.copy_arrived(buffer);
                    return Poll::Ready(Ok(()));
                }
                Some(arrives) if !pipe.is_cut => {
                    drop(pipe);
                    this.arrival.as_mut().reset(arrives);
                    ready!(this.arrival.as_mut().poll(cx));
                }
                _ if pipe.reader_is_reset => return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into())),
                None if pipe.is_ended => return Poll::Ready(Ok(())),
                _ => return Poll::Pending,
            }
        }
    }
}

impl AsyncWrite for SimulatedStream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let arrives = Instant::now() + self.delays.draw();
        let mut pipe = lock(&self.outgoing);
        if pipe.writer_is_reset || pipe.is_ended {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        if pipe.in_flight_bytes >= IN_FLIGHT_BYTES_MAX {
            pipe.writer = Some(cx.waker().clone());
            return Poll::Pending;
        }
        pipe.push(arrives, bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        lock(&self.outgoing).end();
        Poll::Ready(Ok(()))
    }
}

fn lock(pipe: &Mutex<Pipe>) -> MutexGuard<'_, Pipe> {
    pipe.lock().expect("one thread runs a simulation")
}
