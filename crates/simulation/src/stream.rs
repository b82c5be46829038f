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
    /// Wakes the reader when the first of the bytes in flight arrive.
    arrival: Pin<Box<Sleep>>,
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
            arrival: Box::pin(tokio::time::sleep(Duration::ZERO)),
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
        if self.in_flight.len() == 1 && !self.is_cut {
            self.wake_on_arrival(self.arrives_last);
        }
    }

    /// Has a reader that waits woken at this time, and not before: polling its task only to start a timer would cost as
    /// much as reading.
    fn wake_on_arrival(&mut self, arrives: Instant) {
        let Some(reader) = self.reader.take() else { return };
        self.arrival.as_mut().reset(arrives);
        match self.arrival.as_mut().poll(&mut Context::from_waker(&reader)) {
            Poll::Ready(()) => reader.wake(),
            Poll::Pending => self.reader = Some(reader),
        }
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
}

impl SimulatedStream {
    pub(crate) fn new(delays: LinkDelays, incoming: Arc<Mutex<Pipe>>, outgoing: Arc<Mutex<Pipe>>) -> Self {
        SimulatedStream { delays, incoming, outgoing }
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
        let mut pipe = lock(&self.incoming);
        pipe.reader = Some(cx.waker().clone());
        loop {
            match pipe.in_flight.front().map(|(arrives, _)| *arrives) {
                Some(arrives) if !pipe.is_cut && arrives <= Instant::now() => {
                    pipe.copy_arrived(buffer);
                    return Poll::Ready(Ok(()));
                }
                Some(arrives) if !pipe.is_cut => {
                    pipe.arrival.as_mut().reset(arrives);
                    ready!(pipe.arrival.as_mut().poll(cx));
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
