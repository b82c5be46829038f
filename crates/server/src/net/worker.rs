//! A worker: one thread, one level-triggered epoll, its own connections, its own buffers.
//!
//! On each wake-up it reads all ready connections into the [`Round`], which scans, prefetches, executes and sends; then
//! it handles the connections that paused or closed. Input that does not fit into one round is served in the next round
//! of the same wake-up. New connections arrive in the worker's mailbox ([`WorkerHandle`]).

use crate::clock::Clock;
use crate::net::buffer_accounting::{BufferUsage, LimitExceeded};
use crate::net::connection::Connection;
use crate::net::deadlines::ConnectionDeadlines;
use crate::net::round::Round;
use crate::net::socket::{self, READ_BYTES_MAX, Received, Sent};
use crate::net::state::NetState;
use crate::net::tls::stream::{TlsEvents, TlsStream};
use crate::net::udp::UdpPort;
use crate::net::worker_handle::{AssignedConnection, NextStep, WorkerHandle};
use crate::observe::event_log::{EventSink, kind};
use crate::session::context::SessionContext;
use lookaside_store::Now;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::fd::OwnedFd;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::Ordering;

/// One wake-up takes at most this many events from the kernel.
const EVENTS_MAX: usize = 512;

/// At most this many bytes are read at once behind a partial command: a large value arrives in few reads.
const READ_MORE_BYTES_MAX: usize = 256 << 10;

/// Idle connections are searched for once a second, a part of all connections each time: all within
/// [`IDLE_CHECK_ROUNDS`] seconds. Unfinished TLS handshakes and missing logins are checked in the same interval.
const IDLE_CHECK_INTERVAL: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };
const IDLE_CHECK_ROUNDS: u32 = 10;

/// The sockets that a worker leaves when it ends.
pub(crate) struct WorkerExit {
    pub(crate) connections: Vec<Connection>,
    pub(crate) udp_ports: Vec<UdpPort>,
}

const WAKE_TOKEN: u64 = u64::MAX;
const UDP_TOKEN: u64 = 1 << 32;

pub(crate) struct Worker<'s> {
    net: &'s NetState,
    context: SessionContext<'s>,
    handle: &'s WorkerHandle,
    clock: Clock,
    epoll: OwnedFd,
    connections: Connections,
    udp_ports: Vec<UdpPort>,
    round: Round,
    /// The time of this wake-up.
    now: Now,
    /// The same, in seconds since the start.
    uptime_s: u32,
    /// Where the search for idle connections continues.
    idle_cursor: usize,
    handshakes: ConnectionDeadlines,
    /// Empty if clients need not log in, or have no deadline for it.
    logins: ConnectionDeadlines,
}

/// Connections, by the index that epoll has for them.
#[derive(Default)]
struct Connections {
    slots: Vec<Option<Connection>>,
    free: Vec<usize>,
}

impl<'s> Worker<'s> {
    pub(crate) fn new(
        net: &'s NetState,
        context: SessionContext<'s>,
        handle: &'s WorkerHandle,
        clock: Clock,
        udp_ports: Vec<UdpPort>,
    ) -> io::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &handle.wake_fd, EventData::new_u64(WAKE_TOKEN), EventFlags::IN)?;
        for (port, token) in udp_ports.iter().zip(UDP_TOKEN..) {
            epoll::add(&epoll, port.socket(), EventData::new_u64(token), EventFlags::IN)?;
        }
        let connections = Connections::default();
        let (now, round, idle_cursor) = (clock.now(), Round::new(), 0);
        let uptime_s = clock.uptime_s(now);
        let (handshakes, logins) = (ConnectionDeadlines::default(), ConnectionDeadlines::default());
        Ok(Worker {
            net,
            context,
            handle,
            clock,
            epoll,
            connections,
            udp_ports,
            round,
            now,
            uptime_s,
            idle_cursor,
            handshakes,
            logins,
        })
    }

    pub(crate) fn udp_descriptors(&self) -> impl Iterator<Item = RawFd> {
        self.udp_ports.iter().map(|port| port.socket().as_raw_fd())
    }

    /// Serves until the handle is stopped. By then every request that was read has been answered, as far as the sockets
    /// take the replies.
    pub(crate) fn run(mut self) -> WorkerExit {
        let mut events: Vec<Event> = Vec::with_capacity(EVENTS_MAX);
        let idle_timeout_s = self.net.limits.idle_timeout_s;
        loop {
            let has_deadlines = !self.handshakes.is_empty() || !self.logins.is_empty();
            let timeout = (idle_timeout_s > 0 || has_deadlines).then_some(IDLE_CHECK_INTERVAL);
            events.clear();
            match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), timeout.as_ref()) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => panic!("cannot wait for the epoll of a running worker: {error}"),
            }
            if let Some(sampler) = &self.handle.sampler {
                sampler.record_wakeup();
            }
            let now = self.clock.now();
            self.now = now;
            let uptime_s = self.clock.uptime_s(now);
            let is_new_second = std::mem::replace(&mut self.uptime_s, uptime_s) != uptime_s;
            let mut is_woken = false;
            for event in &events {
                match event.data.u64() {
                    WAKE_TOKEN => is_woken = true,
                    token if token >= UDP_TOKEN => {
                        self.udp_ports[(token - UDP_TOKEN) as usize].serve(&self.context, now);
                    }
                    index => self.handle_ready(index as usize, event.flags, now),
                }
            }
            self.serve_round(now);
            if is_new_second && idle_timeout_s > 0 {
                self.close_idle(idle_timeout_s);
            }
            if is_new_second && has_deadlines {
                self.close_overdue_handshakes();
                self.close_overdue_logins();
            }
            // New connections come last, so that no index is reused while events fetched before are handled.
            if is_woken && self.take_assigned() == NextStep::Stop {
                return self.exit();
            }
        }
    }

    fn exit(self) -> WorkerExit {
        let mut connections: Vec<Connection> = self.connections.slots.into_iter().flatten().collect();
        for connection in &mut connections {
            self.handle.buffers.update(connection.reset_buffer_usage(), BufferUsage::default());
        }
        WorkerExit { connections, udp_ports: self.udp_ports }
    }

    /// Reads from a ready connection into the round, or resumes sending to it.
    fn handle_ready(&mut self, index: usize, flags: EventFlags, now: Now) {
        if !self.round.has_space() {
            self.serve_round(now);
        }
        let Some(connection) = self.connections.slots[index].as_mut() else { return };
        let is_alive = if connection.is_paused() {
            resume_sending(connection, flags, &self.context)
        } else {
            read_ready(connection, index, &mut self.round, &self.context)
        };
        if !is_alive {
            let reason = connection.session.close_reason();
            return self.close(index, reason);
        }
        let connection = self.connections.slots[index].as_mut().expect("it has just been read from");
        if connection.is_paused() {
            return self.update_interest(index);
        }
        match connection.take_input() {
            Some(input) => self.round.add_partial(index, input),
            None => self.update_interest(index),
        }
    }

    fn serve_round(&mut self, now: Now) {
        if self.round.is_empty() {
            return;
        }
        self.round.serve(&mut self.connections.slots, &self.context, now);
        while let Some(finished) = self.round.pop_finished() {
            if let Some(kinds) = finished.watches {
                self.move_to_watchers(finished.connection, kinds);
            } else if finished.is_closed {
                let connection = self.connections.slots[finished.connection].as_ref();
                let reason = connection.map_or("normal", |connection| connection.session.close_reason());
                self.close(finished.connection, reason);
            } else {
                self.update_interest(finished.connection);
            }
        }
    }

    fn update_interest(&mut self, index: usize) {
        let Some(connection) = self.connections.slots[index].as_mut() else { return };
        self.net.connection_table.set(connection.socket.as_raw_fd(), self.uptime_s, connection.phase());
        if let Some(exceeded) = account_buffers(connection, self.handle) {
            let counters = self.context.counters;
            let counter =
                if exceeded == LimitExceeded::Input { &counters.read_buf_oom } else { &counters.response_obj_oom };
            counter.add(1);
            return self.close(index, "error");
        }
        let Some(interest) = connection.take_interest_change() else { return };
        if epoll::modify(&self.epoll, &connection.socket, EventData::new_u64(index as u64), interest).is_err() {
            self.close(index, "error");
        }
    }

    fn move_to_watchers(&mut self, index: usize, kinds: u8) {
        let Some(mut connection) = self.connections.remove(index) else { return };
        account_buffers(&mut connection, self.handle);
        let _ = epoll::delete(&self.epoll, &connection.socket);
        self.net.watchers.add(connection, kinds);
        self.handle.connections_open.fetch_sub(1, Ordering::Relaxed);
    }

    /// `reason` is one of memcached's words.
    fn close(&mut self, index: usize, reason: &str) {
        if let Some(connection) = self.connections.slots[index].as_mut() {
            tracing::debug!(descriptor = connection.socket.as_raw_fd(), "connection closed: {reason}");
            if self.handle.events.is_enabled(kind::CONNECTIONS) {
                record_connection(self.context.events, connection, "conn_close", reason, self.now);
            }
            connection.send_close_notify();
            self.handle.buffers.update(connection.take_buffer_usage().0, BufferUsage::default());
            self.net.connection_table.remove(connection.socket.as_raw_fd());
        }
        if self.connections.remove(index).is_some() {
            self.handle.connections_open.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Checks a part of the connections, so that all are checked within [`IDLE_CHECK_ROUNDS`] seconds, or within the
    /// timeout if that is shorter.
    fn close_idle(&mut self, idle_timeout_s: u32) {
        let slots = self.connections.slots.len();
        let slots_to_check = slots.div_ceil(idle_timeout_s.min(IDLE_CHECK_ROUNDS) as usize);
        for _ in 0..slots_to_check {
            self.idle_cursor = if self.idle_cursor + 1 < slots { self.idle_cursor + 1 } else { 0 };
            let Some(connection) = &self.connections.slots[self.idle_cursor] else { continue };
            let active_s = self.net.connection_table.active_s(connection.socket.as_raw_fd());
            if active_s.is_some_and(|active_s| self.uptime_s.saturating_sub(active_s) > idle_timeout_s) {
                self.context.counters.idle_kicks.add(1);
                self.close(self.idle_cursor, "idle_timeout");
            }
        }
    }

    fn close_overdue_handshakes(&mut self) {
        let before_s = self.uptime_s.saturating_sub(self.net.limits.handshake_timeout_s);
        while let Some(index) = self.handshakes.pop_overdue(before_s) {
            let connection = self.connections.slots[index].as_ref();
            if connection.is_some_and(|connection| connection.is_handshake_overdue(before_s)) {
                self.context.counters.ssl_handshake_errors.add(1);
                self.close(index, "error");
            }
        }
    }

    fn close_overdue_logins(&mut self) {
        let before_s = self.uptime_s.saturating_sub(self.net.limits.login_timeout_s);
        while let Some(index) = self.logins.pop_overdue(before_s) {
            let connection = self.connections.slots[index].as_ref();
            if connection.is_some_and(|connection| connection.session.is_login_overdue(before_s)) {
                self.context.counters.login_timeouts.add(1);
                self.close(index, "error");
            }
        }
    }

    fn take_assigned(&mut self) -> NextStep {
        let (assigned, next_step) = self.handle.take_mailbox();
        let limits_login = self.context.requires_auth() && self.net.limits.login_timeout_s > 0;
        for assigned_connection in assigned {
            let connection = match assigned_connection {
                AssignedConnection::Restored(connection) => connection,
                AssignedConnection::Accepted { socket, tls, protocols } => {
                    match tls.map(|tls| TlsStream::new(tls, self.uptime_s)).transpose() {
                        Ok(tls) => Connection::new(socket, tls, protocols),
                        Err(error) => {
                            tracing::warn!("closing a new connection: cannot start TLS: {error}");
                            self.handle.connections_open.fetch_sub(1, Ordering::Relaxed);
                            continue;
                        }
                    }
                }
            };
            let index = self.connections.insert(connection);
            let slots = self.connections.slots.len();
            let connection = self.connections.slots[index].as_mut().expect("it has just been inserted");
            let interest = connection.initial_interest();
            if connection.is_tls() {
                self.handshakes.push(index, self.uptime_s, slots);
            }
            if limits_login && connection.session.begin_login_time(self.uptime_s) {
                self.logins.push(index, self.uptime_s, slots);
            }
            tracing::debug!(descriptor = connection.socket.as_raw_fd(), "connection accepted");
            if self.handle.events.is_enabled(kind::CONNECTIONS) {
                record_connection(&self.handle.events, connection, "conn_new", "", self.now);
            }
            if let Err(error) = epoll::add(&self.epoll, &connection.socket, EventData::new_u64(index as u64), interest)
            {
                tracing::warn!("closing a new connection: cannot add it to epoll: {error}");
                self.close(index, "error");
            }
            self.update_interest(index);
        }
        next_step
    }
}

/// Accounts for what a connection buffers; returns the limit that it exceeds.
fn account_buffers(connection: &mut Connection, handle: &WorkerHandle) -> Option<LimitExceeded> {
    let (before, now) = connection.take_buffer_usage();
    if before == now { None } else { handle.buffers.update(before, now) }
}

/// Reads what has arrived; returns whether the connection is still open.
fn read_ready(connection: &mut Connection, index: usize, round: &mut Round, context: &SessionContext<'_>) -> bool {
    if connection.is_tls() {
        return read_ready_tls(connection, context);
    }
    let is_partial = connection.has_input();
    let received = if is_partial {
        connection.receive_more(round.free_space(), READ_MORE_BYTES_MAX)
    } else {
        socket::receive(&connection.socket, round.free_space())
    };
    let Received::Bytes(count) = received else { return received == Received::Nothing };
    context.counters.bytes_read.add(count as u64);
    if !is_partial {
        // A full buffer: what is left in the socket waits until the other connections have had their turn.
        if count == READ_BYTES_MAX {
            context.counters.conn_yields.add(1);
        }
        round.add_received(index, count);
    }
    true
}

/// The same through TLS. The decrypted bytes are stored in the connection.
fn read_ready_tls(connection: &mut Connection, context: &SessionContext<'_>) -> bool {
    let mut tls_events = TlsEvents::default();
    let received = connection.receive_tls(READ_MORE_BYTES_MAX, &mut tls_events);
    if tls_events != TlsEvents::default() {
        context.counters.ssl_new_sessions.add(tls_events.new_sessions);
        context.counters.ssl_handshake_errors.add(tls_events.handshake_errors);
        context.counters.ssl_proto_errors.add(tls_events.protocol_errors);
    }
    if let Received::Bytes(count) = received {
        context.counters.bytes_read.add(count as u64);
    }
    received != Received::Gone
}

/// Records for watchers that a connection was opened or closed.
fn record_connection(events: &EventSink, connection: &Connection, event: &str, reason: &str, now: Now) {
    let peer =
        rustix::net::getpeername(&connection.socket).ok().flatten().and_then(|peer| SocketAddr::try_from(peer).ok());
    let (host, port, transport) = match peer {
        Some(peer) => (peer.ip().to_string(), peer.port(), "tcp"),
        None => ("unix".to_string(), 0, "local"),
    };
    let reason = if reason.is_empty() { String::new() } else { format!(" reason={reason}") };
    let descriptor = connection.socket.as_raw_fd();
    let text = format!("type={event} rip={host} rport={port} transport={transport}{reason} cfd={descriptor}");
    events.push(kind::CONNECTIONS, text, now);
}

/// Sends what a slow client has not read yet; returns whether the connection is still open.
fn resume_sending(connection: &mut Connection, flags: EventFlags, context: &SessionContext<'_>) -> bool {
    if flags.intersects(EventFlags::ERR | EventFlags::HUP) {
        return false;
    }
    let (sent, sent_bytes) = connection.send_unsent();
    context.counters.bytes_written.add(sent_bytes as u64);
    sent != Sent::Gone
}

impl Connections {
    fn insert(&mut self, connection: Connection) -> usize {
        match self.free.pop() {
            Some(index) => {
                self.slots[index] = Some(connection);
                index
            }
            None => {
                self.slots.push(Some(connection));
                self.slots.len() - 1
            }
        }
    }

    /// Dropping the result closes the socket, which also removes it from epoll.
    fn remove(&mut self, index: usize) -> Option<Connection> {
        let connection = self.slots[index].take()?;
        self.free.push(index);
        Some(connection)
    }
}
