//! The load: one thread, one level-triggered epoll, all connections.
//!
//! In **closed loop** each connection has `depth` requests on their way; for each reply the next request is sent, those
//! of one read in one write. In **open loop** requests are due at random times (a Poisson process), whatever the server
//! does. Each goes to the next connection in turn that takes it, and its latency counts from when it was due. The
//! thread then polls without sleeping while a request is due soon.

use crate::datagrams::DatagramConnection;
use crate::error::LoadError;
use crate::items::Items;
use crate::outstanding::{Answered, ItemLines, Outstanding};
use crate::process::MeasuredProcess;
use crate::report::Report;
use crate::requests::{Mix, Requests};
use crate::server_address::ServerAddress;
use crate::stream::{READ_BYTES, StreamConnection};
use crate::tally::Tally;
use fastrand::Rng;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Errno;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// How often lost datagrams and silent connections are looked for.
const CHECK_EVERY: Duration = Duration::from_millis(20);
/// Events of one wait.
const EVENTS_MAX: usize = 1_024;
/// In open loop a connection takes no more requests than this at a time.
const OUTSTANDING_MAX: usize = 16_384;
/// Nor does one with more unsent bytes.
const UNSENT_BYTES_MAX: usize = 256 << 10;
/// In open loop the thread does not sleep if a request is due within this time.
const POLL_NS: u64 = 200_000;

/// When requests are sent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pace {
    /// Closed loop: this number of requests is on its way by each connection.
    Closed {
        /// Requests of a connection.
        depth: usize,
    },
    /// Open loop.
    Open {
        /// Requests per second, of all connections together.
        rate: f64,
    },
}

/// How long a load lasts. It ends earlier if there are no more requests.
#[derive(Clone, Copy, Debug)]
pub struct LoadLimits {
    /// Not measured, at the start.
    pub warmup: Duration,
    /// The measured time.
    pub duration: Duration,
    /// The measured requests at which the load ends; `None` if only time ends it.
    pub requests_max: Option<u64>,
    /// A stream without the reply to a request for this long ends the load.
    pub timeout: Duration,
    /// A request by UDP without a whole reply for this long is lost.
    pub udp_timeout: Duration,
}

/// A load.
#[derive(Clone, Debug)]
pub struct LoadOptions {
    /// Where the server is.
    pub endpoint: ServerAddress,
    /// The number of connections.
    pub connections: u32,
    /// When requests are sent.
    pub pace: Pace,
    /// What is asked for.
    pub mix: Mix,
    /// How long it lasts.
    pub limits: LoadLimits,
    /// The server's process; `None` if its processor time is not measured.
    pub server: Option<MeasuredProcess>,
    /// Seed of keys and times.
    pub seed: u64,
}

/// Connects, runs the load, and reports on the measured time.
pub fn run(options: &LoadOptions, items: &Items) -> Result<Report, LoadError> {
    let mut load = Load::connect(options, items)?;
    match options.pace {
        Pace::Closed { depth } => load.run_closed(depth)?,
        Pace::Open { rate } => load.run_open(rate)?,
    }
    load.report()
}

#[derive(Debug)]
enum SocketKind {
    Stream(StreamConnection),
    Datagrams(DatagramConnection),
}

#[derive(Debug)]
struct LoadConnection {
    socket: SocketKind,
    /// The last time it received, or sent with nothing outstanding.
    active_ns: u64,
    awaits_writable: bool,
}

impl LoadConnection {
    fn outstanding(&mut self) -> &mut Outstanding {
        match &mut self.socket {
            SocketKind::Stream(stream) => &mut stream.outstanding,
            SocketKind::Datagrams(datagrams) => &mut datagrams.outstanding,
        }
    }

    fn takes_more(&mut self) -> bool {
        match &mut self.socket {
            SocketKind::Stream(stream) => {
                stream.outstanding.len() < OUTSTANDING_MAX && stream.unsent().len() < UNSENT_BYTES_MAX
            }
            SocketKind::Datagrams(datagrams) => datagrams.outstanding.is_empty(),
        }
    }
}

impl AsFd for LoadConnection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.socket {
            SocketKind::Stream(stream) => stream.as_fd(),
            SocketKind::Datagrams(datagrams) => datagrams.as_fd(),
        }
    }
}

/// The measured time, once it has begun.
#[derive(Debug)]
struct MeasuredTime {
    since_ns: u64,
    server_cpu_ns: Option<u64>,
    load_cpu_ns: u64,
}

struct Load<'a> {
    options: &'a LoadOptions,
    items: &'a Items,
    lines: ItemLines,
    requests: Requests,
    has_more: bool,
    epoll: OwnedFd,
    events: Vec<Event>,
    connections: Vec<LoadConnection>,
    buffer: Vec<u8>,
    keys: Vec<u32>,
    line: Vec<u8>,
    datagram: Vec<u8>,
    tally: Tally,
    clock: Instant,
    this: MeasuredProcess,
    window: Option<MeasuredTime>,
    next_check_ns: u64,
}

impl<'a> Load<'a> {
    fn connect(options: &'a LoadOptions, items: &'a Items) -> Result<Load<'a>, LoadError> {
        let requests = Requests::new(items, &options.mix, options.seed);
        let epoll = epoll::create(CreateFlags::CLOEXEC).map_err(|error| LoadError::Wait(error.into()))?;
        let mut connections = Vec::new();
        for number in 1..=options.connections {
            let socket = options.endpoint.connect().map_err(|source| LoadError::Connect { number, source })?;
            let socket = match options.endpoint {
                ServerAddress::Udp(_) => SocketKind::Datagrams(DatagramConnection::new(socket)),
                ServerAddress::Tcp(_) | ServerAddress::Unix(_) => SocketKind::Stream(StreamConnection::new(socket)),
            };
            let connection = LoadConnection { socket, active_ns: 0, awaits_writable: false };
            let token = EventData::new_u64(connections.len() as u64);
            epoll::add(&epoll, &connection, token, EventFlags::IN).map_err(|error| LoadError::Wait(error.into()))?;
            connections.push(connection);
        }
        Ok(Load {
            options,
            items,
            lines: ItemLines::new(items),
            requests,
            has_more: true,
            epoll,
            events: Vec::with_capacity(EVENTS_MAX),
            connections,
            buffer: vec![0; READ_BYTES],
            keys: Vec::new(),
            line: Vec::new(),
            datagram: Vec::new(),
            tally: Tally::default(),
            clock: Instant::now(),
            this: MeasuredProcess::this()?,
            window: None,
            next_check_ns: 0,
        })
    }

    fn run_closed(&mut self, depth: usize) -> Result<(), LoadError> {
        let mut now_ns = self.now_ns();
        for index in 0..self.connections.len() {
            self.top_up(index, depth, now_ns)?;
        }
        let timeout = Timespec { tv_sec: 0, tv_nsec: CHECK_EVERY.as_nanos() as i64 };
        while self.continues(now_ns)? {
            self.wait(&timeout)?;
            for event in 0..self.events.len() {
                let (index, answered_ns) = self.receive(event)?;
                if let Some(answered_ns) = answered_ns {
                    self.top_up(index, depth, answered_ns)?;
                }
            }
            now_ns = self.now_ns();
            if now_ns >= self.next_check_ns {
                for index in self.check_connections(now_ns)? {
                    self.top_up(index, depth, now_ns)?;
                }
            }
        }
        Ok(())
    }

    fn run_open(&mut self, rate: f64) -> Result<(), LoadError> {
        let mut rng = Rng::with_seed(self.options.seed.wrapping_add(1));
        let mut gap_ns = move || -(1.0 - rng.f64()).ln() * 1e9 / rate;
        let mut now_ns = self.now_ns();
        let mut due_ns = now_ns as f64 + gap_ns();
        let mut next = 0;
        let mut to_send = Vec::new();
        while self.continues(now_ns)? {
            let sleep_ns = (due_ns as u64).saturating_sub(now_ns + POLL_NS).min(CHECK_EVERY.as_nanos() as u64);
            self.wait(&Timespec { tv_sec: 0, tv_nsec: sleep_ns as i64 })?;
            for event in 0..self.events.len() {
                self.receive(event)?;
            }
            now_ns = self.now_ns();
            while due_ns <= now_ns as f64 {
                let Some(index) = self.next_that_takes_more(&mut next) else { break };
                let has_unsent = match &self.connections[index].socket {
                    SocketKind::Stream(stream) => stream.has_unsent(),
                    SocketKind::Datagrams(_) => true,
                };
                self.write_request(index, due_ns as u64, now_ns)?;
                if !has_unsent {
                    to_send.push(index);
                }
                due_ns += gap_ns();
            }
            for index in to_send.drain(..) {
                self.send(index)?;
            }
            if now_ns >= self.next_check_ns {
                self.check_connections(now_ns)?;
            }
        }
        Ok(())
    }

    /// The next connection in turn that takes a request; `None` if none does.
    fn next_that_takes_more(&mut self, next: &mut usize) -> Option<usize> {
        for _ in 0..self.connections.len() {
            let index = *next;
            *next = if index + 1 == self.connections.len() { 0 } else { index + 1 };
            if self.connections[index].takes_more() {
                return Some(index);
            }
        }
        None
    }

    /// Sends requests until `depth` are outstanding.
    fn top_up(&mut self, index: usize, depth: usize, now_ns: u64) -> Result<(), LoadError> {
        let missing = depth.saturating_sub(self.connections[index].outstanding().len());
        for _ in 0..missing {
            self.write_request(index, now_ns, now_ns)?;
        }
        if missing > 0 { self.send(index) } else { Ok(()) }
    }

    /// Appends the next request, if there is one, to what a stream is to send; a datagram is sent.
    fn write_request(&mut self, index: usize, since_ns: u64, now_ns: u64) -> Result<(), LoadError> {
        let connection = &mut self.connections[index];
        self.keys.clear();
        let out = match &mut connection.socket {
            SocketKind::Stream(stream) => stream.unsent(),
            SocketKind::Datagrams(_) => {
                self.line.clear();
                &mut self.line
            }
        };
        let Some(is_set) = self.requests.write_next(self.items, &mut self.keys, out) else {
            self.has_more = false;
            return Ok(());
        };
        if let SocketKind::Datagrams(datagrams) = &mut connection.socket {
            datagrams.send(&mut self.datagram, &self.line)?;
        }
        let outstanding = connection.outstanding();
        let was_idle = outstanding.is_empty();
        outstanding.push(&self.keys, is_set, since_ns);
        if was_idle {
            connection.active_ns = now_ns;
        }
        Ok(())
    }

    fn send(&mut self, index: usize) -> Result<(), LoadError> {
        let connection = &mut self.connections[index];
        let SocketKind::Stream(stream) = &mut connection.socket else { return Ok(()) };
        if stream.has_unsent() {
            stream.send()?;
        }
        let has_unsent = stream.has_unsent();
        if has_unsent != connection.awaits_writable {
            connection.awaits_writable = has_unsent;
            let interest = if has_unsent { EventFlags::IN | EventFlags::OUT } else { EventFlags::IN };
            epoll::modify(&self.epoll, &*connection, EventData::new_u64(index as u64), interest)
                .map_err(|error| LoadError::Wait(error.into()))?;
        }
        Ok(())
    }

    fn wait(&mut self, timeout: &Timespec) -> Result<(), LoadError> {
        self.events.clear();
        match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut self.events), Some(timeout)) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(LoadError::Wait(error.into())),
        }
    }

    /// Receives what an event announces. Returns the connection and when replies were complete; `None` if none was.
    fn receive(&mut self, event: usize) -> Result<(usize, Option<u64>), LoadError> {
        let Event { data, flags } = self.events[event];
        let index = data.u64() as usize;
        let Load { clock, connections, buffer, items, lines, tally, .. } = self;
        let connection = &mut connections[index];
        let mut answered_ns = None;
        let on_answer = |answered: Answered| {
            let now_ns = *answered_ns.get_or_insert_with(|| elapsed_ns(clock));
            tally.record(answered, now_ns);
        };
        match &mut connection.socket {
            SocketKind::Stream(stream) => stream.receive(buffer, items, lines, on_answer)?,
            SocketKind::Datagrams(datagrams) => datagrams.receive(buffer, items, lines, on_answer)?,
        }
        if let Some(now_ns) = answered_ns {
            connection.active_ns = now_ns;
        }
        if flags.contains(EventFlags::OUT) {
            self.send(index)?;
        }
        Ok((index, answered_ns))
    }

    /// Gives up lost datagrams, whose connections it returns. Fails for a stream that is silent for too long.
    fn check_connections(&mut self, now_ns: u64) -> Result<Vec<usize>, LoadError> {
        self.next_check_ns = now_ns + CHECK_EVERY.as_nanos() as u64;
        let mut free = Vec::new();
        for (index, connection) in self.connections.iter_mut().enumerate() {
            let silent = Duration::from_nanos(now_ns.saturating_sub(connection.active_ns));
            let outstanding = connection.outstanding().len();
            if outstanding == 0 {
                continue;
            }
            match &mut connection.socket {
                SocketKind::Datagrams(datagrams) if silent >= self.options.limits.udp_timeout => {
                    self.tally.lost += datagrams.abandon() as u64;
                    free.push(index);
                }
                SocketKind::Stream(_) if silent >= self.options.limits.timeout => {
                    return Err(LoadError::Silent { seconds: silent.as_secs_f64(), outstanding });
                }
                _ => {}
            }
        }
        Ok(free)
    }

    /// Begins the measured time when the warm-up is over; whether the load goes on.
    fn continues(&mut self, now_ns: u64) -> Result<bool, LoadError> {
        let LoadLimits { warmup, duration, requests_max, .. } = self.options.limits;
        let Some(window) = &self.window else {
            if now_ns >= warmup.as_nanos() as u64 {
                self.tally = Tally::default();
                self.window = Some(self.begin_window()?);
            }
            return Ok(true);
        };
        let is_over = now_ns - window.since_ns >= duration.as_nanos() as u64
            || requests_max.is_some_and(|most| self.tally.requests >= most)
            || !self.has_more && self.connections.iter_mut().all(|connection| connection.outstanding().is_empty());
        Ok(!is_over)
    }

    fn begin_window(&self) -> Result<MeasuredTime, LoadError> {
        let server_cpu_ns = self.options.server.map(|server| server.cpu_ns()).transpose()?;
        Ok(MeasuredTime { since_ns: self.now_ns(), server_cpu_ns, load_cpu_ns: self.this.cpu_ns()? })
    }

    fn report(self) -> Result<Report, LoadError> {
        let end = self.begin_window()?;
        let begin = self.window.ok_or(LoadError::Nothing)?;
        if self.tally.requests == 0 && self.tally.lost == 0 {
            return Err(LoadError::Nothing);
        }
        Ok(Report {
            took: Duration::from_nanos(end.since_ns - begin.since_ns),
            server_cpu: end
                .server_cpu_ns
                .zip(begin.server_cpu_ns)
                .map(|(end, begin)| Duration::from_nanos(end - begin)),
            server_resident_bytes: self.options.server.and_then(|server| server.resident_bytes()),
            load_cpu: Duration::from_nanos(end.load_cpu_ns - begin.load_cpu_ns),
            tally: self.tally,
        })
    }

    fn now_ns(&self) -> u64 {
        elapsed_ns(&self.clock)
    }
}

fn elapsed_ns(clock: &Instant) -> u64 {
    clock.elapsed().as_nanos() as u64
}
