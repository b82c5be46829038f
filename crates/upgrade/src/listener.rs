//! Where a running server waits for its successor: a Unix socket that only its own user and root may connect to. Costs a
//! running server one more descriptor in the poll of whoever accepts connections.
//!
//! What can be sent here is bounded in bytes and in time, and one successor is heard at a time: nobody who gets here can
//! keep a process from serving, or from being upgraded by the next one.

use super::channel::{Channel, ChannelError, Kind, Message};
use super::peer::Peer;
use super::{Inherited, Program, REQUEST_BYTES_MAX, Successor, is_trusted};
use anyhow::Context;
use rustix::event::{PollFd, PollFlags};
use rustix::fd::{AsFd, BorrowedFd};
use rustix::net::SocketFlags;
use socket2::{Domain, SockAddr, Socket, Type};
use std::fs::Permissions;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::Path;

/// How long a successor may take to say that it is one, in milliseconds.
const HELLO_MS_MAX: u64 = 5_000;

/// How long it may take to prepare itself, in milliseconds.
const PREPARE_MS_MAX: u64 = 60_000;

/// How many successors may wait to be refused.
const BACKLOG: i32 = 8;

/// Only its owner may connect.
const MODE: u32 = 0o600;

/// How many descriptors go into one message.
const DOORS_PER_MESSAGE: usize = 64;

/// The socket, and what tells a successor that this process has died.
#[derive(Debug)]
pub struct UpgradeSocket {
    program: Program,
    socket: Socket,
    /// Held until this process ends, and by no other.
    _life: UnixStream,
    /// The successor's end of it.
    life_sign: UnixStream,
}

impl UpgradeSocket {
    /// Opens the socket. One that a dead server left is taken over; one that answers is not.
    pub fn open(program: Program, path: &Path, inherited: &mut Inherited) -> anyhow::Result<UpgradeSocket> {
        let message = || format!("cannot listen on {} (--upgrade-socket)", path.display());
        let socket = match inherited.take_unix(path) {
            Some(socket) => socket,
            None => bind(path)
                .with_context(|| format!("{}: a server that answers there is replaced with --take-over", message()))?,
        };
        std::fs::set_permissions(path, Permissions::from_mode(MODE)).with_context(message)?;
        socket.listen(BACKLOG).with_context(message)?;
        let (life, life_sign) = UnixStream::pair().with_context(message)?;
        Ok(UpgradeSocket { program, socket, _life: life, life_sign })
    }
}

/// A socket at `path`, in the place of one that nobody answers at.
fn bind(path: &Path) -> std::io::Result<Socket> {
    if UnixStream::connect(path).is_ok() {
        return Err(std::io::ErrorKind::AddrInUse.into());
    }
    let is_socket = std::fs::symlink_metadata(path).is_ok_and(|file| file.file_type().is_socket());
    if is_socket {
        std::fs::remove_file(path)?;
    }
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    socket.bind(&SockAddr::unix(path)?)?;
    Ok(socket)
}

/// Listens at the gate while this process serves.
pub struct UpgradeServer<'g> {
    listener: &'g UpgradeSocket,
    /// All that the server listens on.
    doors: Vec<BorrowedFd<'g>>,
    candidate: Option<Candidate>,
}

/// Somebody who may want to take over.
struct Candidate {
    channel: Channel,
    pid: i32,
    has_said_hello: bool,
    is_ready: bool,
    deadline_ms: u64,
    /// How far this process has prepared itself, if that is not done.
    prepared_to: Option<usize>,
}

impl<'g> UpgradeServer<'g> {
    /// `doors` are all that the process listens on, for clients.
    pub fn new(listener: &'g UpgradeSocket, doors: impl IntoIterator<Item = BorrowedFd<'g>>) -> UpgradeServer<'g> {
        let doors = [listener.socket.as_fd()].into_iter().chain(doors).collect();
        UpgradeServer { listener, doors, candidate: None }
    }

    /// What to wait on.
    pub fn watched(&self) -> impl Iterator<Item = PollFd<'_>> {
        let candidate = self.candidate.iter().map(|candidate| PollFd::new(candidate.channel.socket(), PollFlags::IN));
        candidate.chain([PollFd::new(&self.listener.socket, PollFlags::IN)])
    }

    /// Whether there is something to do that nobody waits for.
    pub fn is_busy(&self) -> bool {
        self.candidate.as_ref().is_some_and(|candidate| candidate.has_said_hello && candidate.prepared_to.is_some())
    }

    /// Hears who is there, and returns a successor if all is ready. `prepare` is what this process does before that while it
    /// still serves, in steps: from one number to the next, the first of them 0, until there is none.
    pub fn attend(&mut self, now_ms: u64, prepare: impl FnMut(usize) -> Option<usize>) -> Option<Successor> {
        if let Some(mut candidate) = self.candidate.take() {
            match self.hear(&mut candidate, now_ms) {
                Ok(()) if candidate.prepare(prepare) => return Some(Successor::new(candidate.channel, candidate.pid)),
                Ok(()) => self.candidate = Some(candidate),
                Err(error) => {
                    tracing::warn!("process {} does not take over: {error}", candidate.pid);
                    let _ = candidate.channel.send(Kind::Refused, error.to_string().as_bytes(), &[]);
                }
            }
        }
        self.admit(now_ms);
        None
    }

    /// Lets the next one in.
    fn admit(&mut self, now_ms: u64) {
        let flags = SocketFlags::CLOEXEC;
        let Ok(socket) = rustix::net::accept_with(&self.listener.socket, flags) else { return };
        let socket = UnixStream::from(socket);
        let Ok(Peer { pid, user }) = Peer::of(&socket) else { return };
        if !is_trusted(user, None) {
            return tracing::warn!("process {pid} of user {user} may not take over: it is another user's");
        }
        let Ok(channel) = Channel::new(socket, REQUEST_BYTES_MAX) else { return };
        if let Some(other) = &self.candidate {
            let why = format!("process {} is about to take over", other.pid);
            let _ = channel.send(Kind::Refused, why.as_bytes(), &[]);
            return;
        }
        let deadline_ms = now_ms + HELLO_MS_MAX;
        let (has_said_hello, is_ready, prepared_to) = (false, false, Some(0));
        self.candidate = Some(Candidate { channel, pid, has_said_hello, is_ready, deadline_ms, prepared_to });
    }

    fn hear(&self, candidate: &mut Candidate, now_ms: u64) -> Result<(), ChannelError> {
        while let Some(Message { kind, payload, .. }) = candidate.channel.next()? {
            match (kind, candidate.has_said_hello) {
                (Kind::Hello, false) => {
                    self.listener.program.check(&payload)?;
                    tracing::info!("process {} prepares to take over", candidate.pid);
                    self.show_doors(&candidate.channel)?;
                    candidate.has_said_hello = true;
                    candidate.deadline_ms = now_ms + PREPARE_MS_MAX;
                }
                (Kind::Ready, true) if !candidate.is_ready => candidate.is_ready = true,
                _ => return Err(ChannelError::Malformed("what it says is out of turn")),
            }
        }
        let is_late = !candidate.is_ready && now_ms > candidate.deadline_ms;
        if is_late { Err(ChannelError::TimedOut) } else { Ok(()) }
    }

    /// Sends all that the server listens on, the sign of its life first. The last message says that it is.
    fn show_doors(&self, channel: &Channel) -> Result<(), ChannelError> {
        let all: Vec<BorrowedFd<'_>> =
            [self.listener.life_sign.as_fd()].into_iter().chain(self.doors.iter().copied()).collect();
        let messages = all.len().div_ceil(DOORS_PER_MESSAGE);
        let mut sending = channel.sending();
        for (number, doors) in (1..).zip(all.chunks(DOORS_PER_MESSAGE)) {
            let is_last = u8::from(number == messages);
            let mut payload = vec![is_last];
            payload.extend(std::process::id().to_le_bytes());
            sending.push(Kind::Listeners, &payload, doors)?;
        }
        sending.finish()
    }
}

impl Candidate {
    /// One step towards the moment at which nothing is left but to stop; whether it has come.
    fn prepare(&mut self, mut prepare: impl FnMut(usize) -> Option<usize>) -> bool {
        if let Some(at) = self.prepared_to.filter(|_| self.has_said_hello) {
            self.prepared_to = prepare(at);
        }
        self.is_ready && self.prepared_to.is_none()
    }
}
