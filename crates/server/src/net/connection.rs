//! One connection of a worker.
//!
//! An idle connection owns no buffer: input is read into the worker's arena, and replies are rendered into the worker's
//! reply buffer. Only a partial command, or a reply that the socket did not take, is stored in the connection:
//!
//! | state | owns | waits for |
//! |---|---|---|
//! | idle | nothing | input |
//! | partial command | its bytes | more input |
//! | paused: the client does not read its replies | the rest of the reply, and commands not executed yet | space in the socket |
//!
//! With TLS there is a [`TlsStream`] between the socket and these bytes; a plain connection has a null pointer there.
//!
//! A paused connection is not read from. So a client can make the server buffer at most [`crate::REPLY_BYTES_MAX`] and
//! one item for its reply, and one read for its commands. A partial command takes at most twice the memory of what has
//! arrived of it: announcing a large value costs nothing. [`crate::net::buffer_accounting`] adds it up.

use crate::net::buffer_accounting::BufferUsage;
use crate::net::connection_table::ConnectionPhase;
use crate::net::socket::{READ_BYTES_MAX, Received, Sent, receive, send};
use crate::net::tls::stream::{TlsEvents, TlsStream};
use crate::session::Session;
use crate::session::context::Protocols;
use lookaside_upgrade::{CONNECTION_STATE_BYTES_MAX, ConnectionState};
use rustix::event::epoll::EventFlags;
use rustix::fd::OwnedFd;

/// A client's socket and its state between rounds.
pub(crate) struct Connection {
    pub(crate) socket: OwnedFd,
    pub(crate) session: Session,
    registered: EventFlags,
    active: Option<Box<ActiveState>>,
    tls: Option<Box<TlsStream>>,
    /// The usage that was last accounted for.
    accounted: BufferUsage,
}

/// The state that idle connections do not have.
#[derive(Default)]
struct ActiveState {
    input: Vec<u8>,
    input_needed_bytes: usize,
    output: Vec<u8>,
    output_sent_bytes: usize,
    /// Execution stopped early and resumes when the socket has space.
    is_paused: bool,
    /// Disconnect once the output is sent.
    is_closing: bool,
}

impl Connection {
    /// A new connection. `protocols` is `None` if its listener has the server's.
    pub(crate) fn new(socket: OwnedFd, tls: Option<TlsStream>, protocols: Option<Protocols>) -> Self {
        let tls = tls.map(Box::new);
        Connection {
            socket,
            session: Session::with_protocols(protocols),
            registered: EventFlags::IN,
            active: None,
            tls,
            accounted: BufferUsage::default(),
        }
    }

    /// The usage at the last call, and the present usage.
    pub(crate) fn take_buffer_usage(&mut self) -> (BufferUsage, BufferUsage) {
        let now = self.active.as_ref().map_or_else(BufferUsage::default, |active| active.buffer_usage());
        (std::mem::replace(&mut self.accounted, now), now)
    }

    /// The usage at the last call of [`Connection::take_buffer_usage`]; the next worker starts from 0.
    pub(crate) fn reset_buffer_usage(&mut self) -> BufferUsage {
        std::mem::take(&mut self.accounted)
    }

    /// The state to hand over to another process; `None` if no other process can serve this connection.
    pub(crate) fn handover_state(&self) -> Option<ConnectionState> {
        let session = self.session.handover_state().filter(|_| self.tls.is_none())?;
        let handover_state = ConnectionState { session, ..ConnectionState::default() };
        let Some(active) = &self.active else { return Some(handover_state) };
        let ActiveState { input, input_needed_bytes, output, output_sent_bytes, is_paused, is_closing } = &**active;
        let output = &output[*output_sent_bytes..];
        (input.len() + output.len() <= CONNECTION_STATE_BYTES_MAX).then(|| ConnectionState {
            input: input.clone(),
            input_needed_bytes: *input_needed_bytes,
            output: output.to_vec(),
            is_paused: *is_paused,
            is_closing: *is_closing,
            ..handover_state
        })
    }

    /// Restores a connection that another process handed over; `None` if its client speaks a protocol that is not
    /// accepted at its listener, or by default.
    pub(crate) fn from_handover(
        socket: OwnedFd,
        handover_state: ConnectionState,
        listener_protocols: Option<Protocols>,
        default_protocols: Protocols,
    ) -> Option<Connection> {
        let ConnectionState { session, input, input_needed_bytes, output, is_paused, is_closing } = handover_state;
        let session = Session::from_handover(session, listener_protocols, default_protocols)?;
        let mut connection = Connection { session, ..Connection::new(socket, None, listener_protocols) };
        if is_paused || !input.is_empty() {
            let output_sent_bytes = 0;
            let active = ActiveState { input, input_needed_bytes, output, output_sent_bytes, is_paused, is_closing };
            connection.active = Some(Box::new(active));
        }
        Some(connection)
    }

    /// The events that a worker that has just got this connection waits for.
    pub(crate) fn initial_interest(&mut self) -> EventFlags {
        let _ = self.take_interest_change();
        self.registered
    }

    /// The events that the worker waits for from now on; `None` if they have not changed since the last call.
    pub(crate) fn take_interest_change(&mut self) -> Option<EventFlags> {
        let interest = match &self.tls {
            _ if self.is_paused() => EventFlags::OUT,
            // No more input will come by the socket: writability is the event at which the connection is closed.
            Some(tls) if tls.is_ended() => EventFlags::OUT,
            _ => EventFlags::IN,
        };
        let has_changed = std::mem::replace(&mut self.registered, interest) != interest;
        has_changed.then_some(interest)
    }

    pub(crate) fn is_paused(&self) -> bool {
        self.active.as_ref().is_some_and(|active| active.is_paused)
    }

    /// Whether a partial command is stored.
    pub(crate) fn has_input(&self) -> bool {
        self.active.as_ref().is_some_and(|active| !active.input.is_empty())
    }

    /// Takes the stored input, if it may contain a whole command by now.
    pub(crate) fn take_input(&mut self) -> Option<Vec<u8>> {
        let active = self.active.as_mut()?;
        if active.input.is_empty() || active.input.len() < active.input_needed_bytes {
            return None;
        }
        let input = std::mem::take(&mut active.input);
        self.drop_state_if_idle();
        Some(input)
    }

    /// Stores a partial command. It needs `needed_bytes` in all before it is scanned again.
    pub(crate) fn keep_input(&mut self, input: Vec<u8>, needed_bytes: usize) {
        if !input.is_empty() {
            let active = self.active.get_or_insert_default();
            active.input = input;
            active.input_needed_bytes = needed_bytes;
        }
    }

    /// Stores the part of a reply that the socket did not take, and stops reading until it is sent.
    pub(crate) fn pause(&mut self, unsent: &[u8], is_closing: bool) {
        let active = self.active.get_or_insert_default();
        active.output = unsent.to_vec();
        active.output_sent_bytes = 0;
        active.is_paused = true;
        active.is_closing = is_closing;
    }

    /// Reads behind the partial command: a small rest through `shared_buffer`, a large one directly, as many bytes as
    /// there are already and at most `bytes_max`.
    pub(crate) fn receive_more(&mut self, shared_buffer: &mut [u8], bytes_max: usize) -> Received {
        let active = self.active.get_or_insert_default();
        let missing = active.input_needed_bytes.saturating_sub(active.input.len());
        if missing.min(active.input.len()) <= shared_buffer.len() {
            let received = receive(&self.socket, &mut *shared_buffer);
            if let Received::Bytes(count) = received {
                active.input.extend_from_slice(&shared_buffer[..count]);
            }
            return received;
        }
        active.input.reserve_exact(missing.min(active.input.len()).min(bytes_max));
        receive(&self.socket, rustix::buffer::spare_capacity(&mut active.input))
    }

    pub(crate) fn phase(&self) -> ConnectionPhase {
        match &self.active {
            None => ConnectionPhase::Read,
            Some(active) if active.is_paused => ConnectionPhase::Mwrite,
            Some(_) => ConnectionPhase::Nread,
        }
    }

    pub(crate) fn is_tls(&self) -> bool {
        self.tls.is_some()
    }

    /// Whether its TLS handshake began before `before_s` and is not finished.
    pub(crate) fn is_handshake_overdue(&self, before_s: u32) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.is_overdue(before_s))
    }

    /// Reads and decrypts about `bytes_max` bytes, behind the partial command if there is one. Pauses the connection if
    /// TLS has to send something first that the socket does not take.
    pub(crate) fn receive_tls(&mut self, bytes_max: usize, tls_events: &mut TlsEvents) -> Received {
        let Some(tls) = &mut self.tls else { return Received::Gone };
        let active = self.active.get_or_insert_default();
        let missing = active.input_needed_bytes.saturating_sub(active.input.len());
        let bytes_max = missing.clamp(READ_BYTES_MAX, bytes_max);
        let received = tls.receive(&self.socket, &mut active.input, bytes_max, tls_events);
        if tls.has_unsent() {
            self.pause(&[], false);
        }
        self.drop_state_if_idle();
        received
    }

    /// Sends as much of `bytes` as the connection takes at once.
    pub(crate) fn send(&mut self, bytes: &[u8]) -> Sent {
        match &mut self.tls {
            None => send(&self.socket, bytes),
            Some(tls) => tls.send(&self.socket, bytes),
        }
    }

    /// Discards input; false once the connection is closed.
    pub(crate) fn drain_input(&mut self) -> bool {
        let received = match &mut self.tls {
            None => receive(&self.socket, &mut [0; 4096]),
            Some(tls) => tls.receive(&self.socket, &mut Vec::new(), READ_BYTES_MAX, &mut TlsEvents::default()),
        };
        received != Received::Gone
    }

    /// Sends close_notify if the connection uses TLS.
    pub(crate) fn send_close_notify(&mut self) {
        if let Some(tls) = &mut self.tls {
            tls.send_close_notify(&self.socket);
        }
    }

    /// Sends the stored reply. `All`: the connection is served again; `Gone`: it is to be closed.
    pub(crate) fn send_unsent(&mut self) -> (Sent, usize) {
        let Some(active) = self.active.as_mut() else { return (Sent::All, 0) };
        let unsent = &active.output[active.output_sent_bytes..];
        let unsent_bytes = unsent.len();
        let sent = match &mut self.tls {
            None => send(&self.socket, unsent),
            Some(tls) => tls.send(&self.socket, unsent),
        };
        match sent {
            Sent::Part(bytes) => {
                active.output_sent_bytes += bytes;
                (Sent::Part(bytes), bytes)
            }
            Sent::All if !active.is_closing => {
                active.output = Vec::new();
                active.output_sent_bytes = 0;
                active.is_paused = false;
                self.drop_state_if_idle();
                (Sent::All, unsent_bytes)
            }
            Sent::All => (Sent::Gone, unsent_bytes),
            Sent::Gone => (Sent::Gone, 0),
        }
    }

    fn drop_state_if_idle(&mut self) {
        if self.active.as_ref().is_some_and(|active| active.input.is_empty() && !active.is_paused) {
            self.active = None;
        }
    }
}

impl ActiveState {
    fn buffer_usage(&self) -> BufferUsage {
        let bytes = |buffer: &Vec<u8>| u32::try_from(buffer.capacity()).unwrap_or(u32::MAX);
        BufferUsage { input_bytes: bytes(&self.input), output_bytes: bytes(&self.output) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    /// A client announced a large value and sent a part of it: each such client took 256 KiB at once.
    #[test]
    fn a_partial_command_takes_at_most_twice_what_has_arrived() {
        let (mut client, server) = UnixStream::pair().expect("a pair of sockets");
        let mut connection = Connection::new(server.into(), None, None);
        let (needed_bytes, mut shared_buffer, mut sent_bytes) = (1_000_000, vec![0; READ_BYTES_MAX], 30);
        connection.keep_input(vec![b'x'; sent_bytes], needed_bytes);
        while sent_bytes < needed_bytes {
            let piece = vec![b'x'; (sent_bytes / 3).clamp(1, 100_000)];
            client.write_all(&piece).expect("the pair has space for it");
            let mut received_bytes = 0;
            while received_bytes < piece.len() {
                let Received::Bytes(count) = connection.receive_more(&mut shared_buffer, 256 << 10) else {
                    panic!("it has been sent")
                };
                received_bytes += count;
            }
            sent_bytes += piece.len();
            let (_, now) = connection.take_buffer_usage();
            assert!(now.input_bytes as usize <= 2 * sent_bytes, "{now:?} for {sent_bytes} bytes");
        }
        assert_eq!(connection.take_input().map(|input| input.len()), Some(sent_bytes));
        assert_eq!(connection.take_buffer_usage().1, BufferUsage::default());
    }
}
