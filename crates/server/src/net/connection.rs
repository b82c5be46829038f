//! One TCP connection of a worker.
//!
//! An idle connection owns no buffer: bytes are read into the worker's arena and replies rendered into the worker's
//! reply buffer. Only a partial command, or a reply that the socket did not take, is kept with the connection:
//!
//! | state | owns | waits for |
//! |---|---|---|
//! | idle | nothing | bytes |
//! | partial command | those bytes | more bytes |
//! | paused: the client does not read its replies | the rest of the reply, and commands not executed yet | room in the socket |
//!
//! With TLS there is a [`TlsStream`] between the socket and these bytes; a plain connection has a null pointer there.
//!
//! A paused connection is not read from, so what it can make the server keep is bounded by
//! [`crate::net::round::REPLY_BYTES_MAX`] and one item for its reply, and one read for its commands. A partial command is kept in no
//! more than twice the memory of what has come of it: announcing a large value takes none. [`crate::net::buffer_accounting`] sums it up.

use crate::net::buffer_accounting::Holding;
use crate::net::connection_table::State;
use crate::net::round::READ_BYTES_MAX;
use crate::net::tls::stream::{Happened, TlsStream};
use crate::session::Session;
use crate::session::context::Dialects;
use lookaside_upgrade::{CONNECTION_STATE_BYTES_MAX, ConnectionState};
use rustix::event::epoll::EventFlags;
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};

/// A client's socket and what is to be remembered about it between rounds.
pub(crate) struct Connection {
    pub(crate) socket: OwnedFd,
    pub(crate) session: Session,
    registered: EventFlags,
    kept: Option<Box<Kept>>,
    tls: Option<Box<TlsStream>>,
    /// What [`crate::net::buffer_accounting`] knows of.
    told: Holding,
}

/// What only busy or slow connections own.
#[derive(Default)]
struct Kept {
    input: Vec<u8>,
    input_needed_bytes: usize,
    output: Vec<u8>,
    output_sent_bytes: usize,
    /// Executing stopped early: go on when the socket has room.
    is_paused: bool,
    /// Disconnect once the output is sent.
    is_closing: bool,
}

/// What came of a send.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Sent {
    /// The socket took everything.
    All,
    /// It took this many bytes.
    Part(usize),
    /// The connection is gone.
    Gone,
}

/// What came of a read.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Received {
    /// This many bytes.
    Bytes(usize),
    /// None at present.
    Nothing,
    /// The connection is at its end.
    Gone,
}

impl Connection {
    /// A connection whose worker is woken when bytes arrive; its client speaks in these dialects, if not as all others.
    pub(crate) fn new(socket: OwnedFd, tls: Option<TlsStream>, dialects: Option<Dialects>) -> Self {
        let tls = tls.map(Box::new);
        Connection {
            socket,
            session: Session::speaking(dialects),
            registered: EventFlags::IN,
            kept: None,
            tls,
            told: Holding::default(),
        }
    }

    /// What it keeps now, and what it kept when this was last asked.
    pub(crate) fn take_holding(&mut self) -> (Holding, Holding) {
        let now = self.kept.as_ref().map_or_else(Holding::default, |kept| kept.holding());
        (std::mem::replace(&mut self.told, now), now)
    }

    /// What it kept when this was last asked; nothing from now on, for a worker that does not know it yet.
    pub(crate) fn forget_holding(&mut self) -> Holding {
        std::mem::take(&mut self.told)
    }

    /// What another process must know to go on with it; `None` if none can.
    pub(crate) fn connection_state(&self) -> Option<ConnectionState> {
        let session = self.session.state().filter(|_| self.tls.is_none())?;
        let connection_state = ConnectionState { session, ..ConnectionState::default() };
        let Some(kept) = &self.kept else { return Some(connection_state) };
        let Kept { input, input_needed_bytes, output, output_sent_bytes, is_paused, is_closing } = &**kept;
        let output = &output[*output_sent_bytes..];
        (input.len() + output.len() <= CONNECTION_STATE_BYTES_MAX).then(|| ConnectionState {
            input: input.clone(),
            input_needed_bytes: *input_needed_bytes,
            output: output.to_vec(),
            is_paused: *is_paused,
            is_closing: *is_closing,
            ..connection_state
        })
    }

    /// The connection that another process had; `None` if its client has spoken as it may not: in other dialects than its
    /// address has, or all others if it has none of its own.
    pub(crate) fn resume(
        socket: OwnedFd,
        connection_state: ConnectionState,
        own: Option<Dialects>,
        others: Dialects,
    ) -> Option<Connection> {
        let ConnectionState { session, input, input_needed_bytes, output, is_paused, is_closing } = connection_state;
        let session = Session::resume(session, own, others)?;
        let mut connection = Connection { session, ..Connection::new(socket, None, own) };
        if is_paused || !input.is_empty() {
            let output_sent_bytes = 0;
            let kept = Kept { input, input_needed_bytes, output, output_sent_bytes, is_paused, is_closing };
            connection.kept = Some(Box::new(kept));
        }
        Some(connection)
    }

    /// What epoll is to wake a worker for that has had nothing to do with it yet.
    pub(crate) fn first_interest(&mut self) -> EventFlags {
        let _ = self.interest_change();
        self.registered
    }

    /// What the worker's epoll should wake it for from now on, if that has changed since it was last asked.
    pub(crate) fn interest_change(&mut self) -> Option<EventFlags> {
        let interest = match &self.tls {
            _ if self.is_paused() => EventFlags::OUT,
            // Nothing more need come by the socket: let there be an event to end the connection at.
            Some(tls) if tls.is_ended() => EventFlags::OUT,
            _ => EventFlags::IN,
        };
        let has_changed = std::mem::replace(&mut self.registered, interest) != interest;
        has_changed.then_some(interest)
    }

    pub(crate) fn is_paused(&self) -> bool {
        self.kept.as_ref().is_some_and(|kept| kept.is_paused)
    }

    /// Whether a partial command lies here.
    pub(crate) fn has_input(&self) -> bool {
        self.kept.as_ref().is_some_and(|kept| !kept.input.is_empty())
    }

    /// Takes the kept bytes, if they may hold a whole command now.
    pub(crate) fn take_input(&mut self) -> Option<Vec<u8>> {
        let kept = self.kept.as_mut()?;
        if kept.input.is_empty() || kept.input.len() < kept.input_needed_bytes {
            return None;
        }
        let input = std::mem::take(&mut kept.input);
        self.forget_if_idle();
        Some(input)
    }

    /// Keeps a partial command; it needs `needed_bytes` in all before it is looked at again.
    pub(crate) fn keep_input(&mut self, input: Vec<u8>, needed_bytes: usize) {
        if !input.is_empty() {
            let kept = self.kept.get_or_insert_default();
            kept.input = input;
            kept.input_needed_bytes = needed_bytes;
        }
    }

    /// Keeps the part of a reply that the socket did not take, and stops reading until it has.
    pub(crate) fn pause(&mut self, unsent: &[u8], is_closing: bool) {
        let kept = self.kept.get_or_insert_default();
        kept.output = unsent.to_vec();
        kept.output_sent_bytes = 0;
        kept.is_paused = true;
        kept.is_closing = is_closing;
    }

    /// Reads behind the partial command: what may be small into the space `lent` and from there, what is large at its
    /// place, as many bytes as there are already and at most `bytes_max`.
    pub(crate) fn receive_more(&mut self, lent: &mut [u8], bytes_max: usize) -> Received {
        let kept = self.kept.get_or_insert_default();
        let missing = kept.input_needed_bytes.saturating_sub(kept.input.len());
        if missing.min(kept.input.len()) <= lent.len() {
            let received = receive(&self.socket, &mut *lent);
            if let Received::Bytes(count) = received {
                kept.input.extend_from_slice(&lent[..count]);
            }
            return received;
        }
        kept.input.reserve_exact(missing.min(kept.input.len()).min(bytes_max));
        receive(&self.socket, rustix::buffer::spare_capacity(&mut kept.input))
    }

    /// What it is at.
    pub(crate) fn state(&self) -> State {
        match &self.kept {
            None => State::Read,
            Some(kept) if kept.is_paused => State::Mwrite,
            Some(_) => State::Nread,
        }
    }

    /// Whether TLS lies between this and the socket.
    pub(crate) fn is_secured(&self) -> bool {
        self.tls.is_some()
    }

    /// Reads and decrypts, behind the partial command if there is one, about `bytes_max` bytes. Pauses the connection if
    /// it has something to say first that the socket does not take.
    pub(crate) fn receive_secured(&mut self, bytes_max: usize, happened: &mut Happened) -> Received {
        let Some(tls) = &mut self.tls else { return Received::Gone };
        let kept = self.kept.get_or_insert_default();
        let missing = kept.input_needed_bytes.saturating_sub(kept.input.len());
        let bytes_max = missing.clamp(READ_BYTES_MAX, bytes_max);
        let received = tls.receive(&self.socket, &mut kept.input, bytes_max, happened);
        if tls.has_unsent() {
            self.pause(&[], false);
        }
        self.forget_if_idle();
        received
    }

    /// Sends as much of `bytes` as the connection takes at once.
    pub(crate) fn send(&mut self, bytes: &[u8]) -> Sent {
        match &mut self.tls {
            None => send(&self.socket, bytes),
            Some(tls) => tls.send(&self.socket, bytes),
        }
    }

    /// Passes over what has come; false at the connection's end.
    pub(crate) fn is_listening(&mut self) -> bool {
        let received = match &mut self.tls {
            None => receive(&self.socket, &mut [0; 4096]),
            Some(tls) => tls.receive(&self.socket, &mut Vec::new(), READ_BYTES_MAX, &mut Happened::default()),
        };
        received != Received::Gone
    }

    /// Says that nothing more will come, where the protocol below has a word for that.
    pub(crate) fn farewell(&mut self) {
        if let Some(tls) = &mut self.tls {
            tls.farewell(&self.socket);
        }
    }

    /// Reads into `buffer`.
    pub(crate) fn receive_into(&self, buffer: &mut [u8]) -> Received {
        receive(&self.socket, buffer)
    }

    /// Sends what was kept. `All` means that the connection goes on, `Gone` that it is over.
    pub(crate) fn send_kept(&mut self) -> (Sent, usize) {
        let Some(kept) = self.kept.as_mut() else { return (Sent::All, 0) };
        let unsent = &kept.output[kept.output_sent_bytes..];
        let unsent_bytes = unsent.len();
        let sent = match &mut self.tls {
            None => send(&self.socket, unsent),
            Some(tls) => tls.send(&self.socket, unsent),
        };
        match sent {
            Sent::Part(bytes) => {
                kept.output_sent_bytes += bytes;
                (Sent::Part(bytes), bytes)
            }
            Sent::All if !kept.is_closing => {
                kept.output = Vec::new();
                kept.output_sent_bytes = 0;
                kept.is_paused = false;
                self.forget_if_idle();
                (Sent::All, unsent_bytes)
            }
            Sent::All => (Sent::Gone, unsent_bytes),
            Sent::Gone => (Sent::Gone, 0),
        }
    }

    fn forget_if_idle(&mut self) {
        if self.kept.as_ref().is_some_and(|kept| kept.input.is_empty() && !kept.is_paused) {
            self.kept = None;
        }
    }
}

impl Kept {
    fn holding(&self) -> Holding {
        let bytes = |buffer: &Vec<u8>| u32::try_from(buffer.capacity()).unwrap_or(u32::MAX);
        Holding { input_bytes: bytes(&self.input), output_bytes: bytes(&self.output) }
    }
}

/// Sends as much of `bytes` as the socket takes at once.
pub(crate) fn send(socket: &OwnedFd, bytes: &[u8]) -> Sent {
    if bytes.is_empty() {
        return Sent::All;
    }
    match rustix::net::send(socket, bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
        Ok(count) if count == bytes.len() => Sent::All,
        Ok(count) => Sent::Part(count),
        Err(Errno::AGAIN | Errno::INTR) => Sent::Part(0),
        Err(_) => Sent::Gone,
    }
}

pub(crate) fn receive<B: rustix::buffer::Buffer<u8>>(socket: impl AsFd, buffer: B) -> Received {
    match rustix::net::recv(socket, buffer, RecvFlags::DONTWAIT) {
        Ok((_, 0)) => Received::Gone,
        Ok((_, count)) => Received::Bytes(count),
        Err(Errno::AGAIN | Errno::INTR) => Received::Nothing,
        Err(_) => Received::Gone,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    /// A set of a large value was announced, and a part of it has come: that took 256 KiB at once for each such client.
    #[test]
    fn a_partial_command_takes_no_more_than_twice_what_has_come() {
        let (mut client, server) = UnixStream::pair().expect("a pair of sockets");
        let mut connection = Connection::new(server.into(), None, None);
        let (needed_bytes, mut lent, mut sent_bytes) = (1_000_000, vec![0; READ_BYTES_MAX], 30);
        connection.keep_input(vec![b'x'; sent_bytes], needed_bytes);
        while sent_bytes < needed_bytes {
            let piece = vec![b'x'; (sent_bytes / 3).clamp(1, 100_000)];
            client.write_all(&piece).expect("the pair's buffer has room for it");
            let mut received_bytes = 0;
            while received_bytes < piece.len() {
                let Received::Bytes(count) = connection.receive_more(&mut lent, 256 << 10) else {
                    panic!("it has been sent")
                };
                received_bytes += count;
            }
            sent_bytes += piece.len();
            let (_, now) = connection.take_holding();
            assert!(now.input_bytes as usize <= 2 * sent_bytes, "{now:?} for {sent_bytes} bytes");
        }
        assert_eq!(connection.take_input().map(|input| input.len()), Some(sent_bytes));
        assert_eq!(connection.take_holding().1, Holding::default());
    }
}
