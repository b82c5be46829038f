//! The socket where a running process waits for its successor: a Unix socket to which only its own user and root can
//! connect. It costs a running process one more descriptor in the poll of its accepting thread.
//!
//! Input is bounded in bytes and in time, and one candidate is served at a time. So a process that connects here can
//! neither stop this one from serving, nor prevent a later upgrade.

use super::channel::{Channel, ChannelError, Message, MessageKind};
use super::inherited::Inherited;
use super::peer::Peer;
use super::program::{Program, REQUEST_BYTES_MAX};
use super::successor::Successor;
use anyhow::Context;
use lookaside_net::{bind_unix, set_socket_mode};
use rustix::event::{PollFd, PollFlags};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::net::SocketFlags;
use socket2::Socket;
use std::os::unix::net::UnixStream;
use std::path::Path;

/// How long a candidate may take to send `Hello`, in milliseconds.
const HELLO_MS_MAX: u64 = 5_000;

/// How long a candidate may take to prepare, in milliseconds.
const PREPARE_MS_MAX: u64 = 60_000;

/// The most candidates that wait to be refused.
const BACKLOG: i32 = 8;

/// Only the owner may connect.
const MODE: u32 = 0o600;

/// The most descriptors of one message.
const LISTENERS_PER_MESSAGE: usize = 64;

/// The upgrade socket, and the means by which a successor detects that this process has died.
#[derive(Debug)]
pub struct UpgradeSocket {
    program: Program,
    socket: Socket,
    /// Held by this process alone until it exits.
    _own_end: UnixStream,
    /// The successor's end, which becomes readable when this process dies.
    liveness: UnixStream,
}

impl UpgradeSocket {
    /// Opens the socket. The socket file of a dead process is replaced; that of a running process is an error.
    pub fn open(program: Program, path: &Path, inherited: &mut Inherited) -> anyhow::Result<UpgradeSocket> {
        let failed = || format!("cannot listen on {} (--upgrade-socket)", path.display());
        let socket = match inherited.take_unix(path) {
            Some(socket) => set_socket_mode(path, MODE).map(|()| socket).with_context(failed)?,
            None => bind_unix(path, MODE)
                .with_context(|| format!("{}: to replace a process that listens there, use --take-over", failed()))?,
        };
        socket.listen(BACKLOG).with_context(failed)?;
        let (own_end, liveness) = UnixStream::pair().with_context(failed)?;
        Ok(UpgradeSocket { program, socket, _own_end: own_end, liveness })
    }
}

/// Serves candidates at the upgrade socket while this process serves clients.
pub struct UpgradeServer<'s> {
    socket: &'s UpgradeSocket,
    /// All sockets that the process listens on.
    listeners: Vec<BorrowedFd<'s>>,
    candidate: Option<Candidate>,
}

/// A process that may be about to take over.
struct Candidate {
    channel: Channel,
    pid: i32,
    /// `None` if it is in another PID namespace.
    process: Option<OwnedFd>,
    has_sent_hello: bool,
    is_ready: bool,
    deadline_ms: u64,
    /// The next step of this process's own preparation. `None` if it is done.
    next_step: Option<usize>,
}

impl<'s> UpgradeServer<'s> {
    /// `listeners` are all sockets that the process listens on for clients.
    pub fn new(socket: &'s UpgradeSocket, listeners: impl IntoIterator<Item = BorrowedFd<'s>>) -> UpgradeServer<'s> {
        let listeners = [socket.socket.as_fd()].into_iter().chain(listeners).collect();
        UpgradeServer { socket, listeners, candidate: None }
    }

    /// The descriptors to poll.
    pub fn poll_fds(&self) -> impl Iterator<Item = PollFd<'_>> {
        let candidate = self.candidate.iter().map(|candidate| PollFd::new(candidate.channel.socket(), PollFlags::IN));
        candidate.chain([PollFd::new(&self.socket.socket, PollFlags::IN)])
    }

    /// Whether there is work that no descriptor signals: a step of the preparation.
    pub fn has_pending_step(&self) -> bool {
        self.candidate.as_ref().is_some_and(|candidate| candidate.has_sent_hello && candidate.next_step.is_some())
    }

    /// Handles messages of the candidate, and accepts the next one. Returns the successor when both processes are
    /// prepared. `prepare` does one step of this process's preparation while it still serves: it maps the number of
    /// the step, at first 0, to that of the next one, and to `None` after the last.
    pub fn handle_ready(&mut self, now_ms: u64, prepare: impl FnMut(usize) -> Option<usize>) -> Option<Successor> {
        if let Some(mut candidate) = self.candidate.take() {
            match self.handle_messages(&mut candidate, now_ms) {
                Ok(()) if candidate.prepare(prepare) => {
                    return Some(Successor::new(candidate.channel, candidate.pid, candidate.process));
                }
                Ok(()) => self.candidate = Some(candidate),
                Err(error) => {
                    tracing::warn!("process {} does not take over: {error}", candidate.pid);
                    let _ = candidate.channel.send(MessageKind::Refused, error.to_string().as_bytes(), &[]);
                }
            }
        }
        self.accept(now_ms);
        None
    }

    fn accept(&mut self, now_ms: u64) {
        let flags = SocketFlags::CLOEXEC;
        let Ok(socket) = rustix::net::accept_with(&self.socket.socket, flags) else { return };
        let socket = UnixStream::from(socket);
        let Ok(peer) = Peer::of(&socket) else { return };
        let Peer { pid, user } = peer;
        if !peer.is_trusted(None) {
            return tracing::warn!("takeover refused: process {pid} runs as another user ({user})");
        }
        let Ok(channel) = Channel::new(socket, REQUEST_BYTES_MAX) else { return };
        if let Some(other) = &self.candidate {
            let why = format!("process {} is about to take over", other.pid);
            let _ = channel.send(MessageKind::Refused, why.as_bytes(), &[]);
            return;
        }
        let deadline_ms = now_ms + HELLO_MS_MAX;
        let (has_sent_hello, is_ready, next_step) = (false, false, Some(0));
        let process = peer.open_process();
        self.candidate = Some(Candidate { channel, pid, process, has_sent_hello, is_ready, deadline_ms, next_step });
    }

    fn handle_messages(&self, candidate: &mut Candidate, now_ms: u64) -> Result<(), ChannelError> {
        while let Some(Message { kind, payload, .. }) = candidate.channel.try_receive()? {
            match (kind, candidate.has_sent_hello) {
                (MessageKind::Hello, false) => {
                    self.socket.program.check_hello(&payload)?;
                    tracing::info!("process {} prepares to take over", candidate.pid);
                    self.send_listeners(&candidate.channel)?;
                    candidate.has_sent_hello = true;
                    candidate.deadline_ms = now_ms + PREPARE_MS_MAX;
                }
                (MessageKind::Ready, true) if !candidate.is_ready => candidate.is_ready = true,
                _ => return Err(ChannelError::Malformed("message out of order")),
            }
        }
        let is_late = !candidate.is_ready && now_ms > candidate.deadline_ms;
        if is_late { Err(ChannelError::TimedOut) } else { Ok(()) }
    }

    /// Sends all sockets that the process listens on, preceded by the liveness socket. The first byte of each payload
    /// marks the last message.
    fn send_listeners(&self, channel: &Channel) -> Result<(), ChannelError> {
        let all: Vec<BorrowedFd<'_>> =
            [self.socket.liveness.as_fd()].into_iter().chain(self.listeners.iter().copied()).collect();
        let messages = all.len().div_ceil(LISTENERS_PER_MESSAGE);
        let mut batch = channel.batch();
        for (number, listeners) in (1..).zip(all.chunks(LISTENERS_PER_MESSAGE)) {
            let is_last = u8::from(number == messages);
            let mut payload = vec![is_last];
            payload.extend(std::process::id().to_le_bytes());
            batch.push(MessageKind::Listeners, &payload, listeners)?;
        }
        batch.send_rest()
    }
}

impl Candidate {
    /// Does one step of the preparation. True if both processes are prepared.
    fn prepare(&mut self, mut prepare: impl FnMut(usize) -> Option<usize>) -> bool {
        if let Some(step) = self.next_step.filter(|_| self.has_sent_hello) {
            self.next_step = prepare(step);
        }
        self.is_ready && self.next_step.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const PROGRAM: Program = Program { name: "test", format: 1 };
    const TIMEOUT: Duration = Duration::from_secs(10);

    struct Candidates {
        folder: tempfile::TempDir,
        stop: (UnixStream, UnixStream),
    }

    impl Candidates {
        fn new() -> (Candidates, UpgradeSocket) {
            let folder = tempfile::tempdir().expect("a folder");
            let socket = UpgradeSocket::open(PROGRAM, &folder.path().join("upgrade"), &mut Inherited::default());
            let candidates = Candidates { folder, stop: UnixStream::pair().expect("a pair") };
            (candidates, socket.expect("the path is free"))
        }

        /// A process that has sent its Hello.
        fn connect(&self) -> Channel {
            let socket = UnixStream::connect(self.folder.path().join("upgrade")).expect("a process listens there");
            let channel = Channel::new(socket, 1024).expect("a channel");
            channel.send(MessageKind::Hello, &PROGRAM.hello_payload(), &[]).expect("it fits");
            channel
        }

        fn receive(&self, channel: &mut Channel) -> MessageKind {
            channel.receive(&self.stop.0, TIMEOUT).expect("a message").kind
        }
    }

    fn no_step(_: usize) -> Option<usize> {
        None
    }

    /// Whether the process died before or after its Ready was read decides only which step notices it.
    #[test]
    fn a_candidate_that_dies_right_after_ready_takes_over_at_no_step() {
        let (candidates, socket) = Candidates::new();
        let mut server = UpgradeServer::new(&socket, []);
        for is_read_before_it_dies in [false, true] {
            let mut candidate = candidates.connect();
            assert!(server.handle_ready(0, no_step).is_none(), "accepted");
            assert!(server.handle_ready(0, no_step).is_none(), "its Hello");
            assert_eq!(candidates.receive(&mut candidate), MessageKind::Listeners);
            candidate.send(MessageKind::Ready, &[], &[]).expect("it fits");
            let mut candidate = Some(candidate);
            if !is_read_before_it_dies {
                candidate = None;
            }
            match (server.handle_ready(0, no_step), is_read_before_it_dies) {
                (None, false) => {}
                (Some(mut successor), true) => {
                    drop(candidate);
                    assert_eq!(successor.hand_over(false, b"", &candidates.stop.0), crate::UpgradeOutcome::Failed);
                }
                (successor, _) => panic!("{}", successor.is_some()),
            }
        }
    }

    /// One upgrade is in progress when another process asks.
    #[test]
    fn a_second_candidate_is_refused_or_waits_for_the_process_that_serves_next() {
        let (candidates, socket) = Candidates::new();
        let mut old = UpgradeServer::new(&socket, []);
        let mut first = candidates.connect();
        assert!(old.handle_ready(0, no_step).is_none(), "accepted");
        let mut second = candidates.connect();
        assert!(old.handle_ready(0, no_step).is_none(), "the first one prepares");
        assert_eq!(candidates.receive(&mut first), MessageKind::Listeners);
        assert_eq!(candidates.receive(&mut second), MessageKind::Refused);
        first.send(MessageKind::Ready, &[], &[]).expect("it fits");
        let successor = old.handle_ready(0, no_step).expect("both are prepared");

        // During the handover no process accepts; the new one has the socket already.
        let mut third = candidates.connect();
        let inherited = socket.socket.try_clone().expect("a copy");
        drop((old, successor));
        drop(socket);
        let (own_end, liveness) = UnixStream::pair().expect("a pair");
        let socket = UpgradeSocket { program: PROGRAM, socket: inherited, _own_end: own_end, liveness };
        let mut new = UpgradeServer::new(&socket, []);
        assert!(new.handle_ready(0, no_step).is_none(), "accepted");
        assert!(new.handle_ready(0, no_step).is_none(), "its Hello");
        assert_eq!(candidates.receive(&mut third), MessageKind::Listeners);
    }
}
