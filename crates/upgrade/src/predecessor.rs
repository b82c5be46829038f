//! The new process's side of an upgrade (`--take-over`): it finds the running process, receives its listening sockets
//! and, when it is prepared, its connections and the right to serve.

use super::channel::{Channel, ChannelError, Message, MessageKind};
use super::connection_state::{self, CONNECTION_STATE_BYTES_MAX, ConnectionState};
use super::inherited::Inherited;
use super::peer::Peer;
use super::program::Program;
use anyhow::Context;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use socket2::{Domain, SockAddr, Socket, Type};
use std::io::ErrorKind;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

/// How long a running process may take to reply. It replies between two rounds of accepting, and not while it hands
/// over to another process: then that one replies once it serves.
const REPLY_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a running process may take for the next step of a handover. A router answers the last batches meanwhile,
/// which takes up to 15 s; a server drops its mapping, which takes about 3 ms per 64 MiB.
const HANDOVER_TIMEOUT: Duration = Duration::from_secs(20);

/// How long a process that has closed the channel may take to exit before it counts as alive.
const EXIT_TIMEOUT: Timespec = Timespec { tv_sec: 5, tv_nsec: 0 };

/// The longest message of a running process: a connection's.
const PAYLOAD_BYTES_MAX: usize = CONNECTION_STATE_BYTES_MAX + connection_state::HEAD_BYTES;

/// The running process.
pub struct Predecessor {
    channel: Channel,
    /// Reaches its end when the process dies, and not before.
    liveness: OwnedFd,
    pid: u32,
    /// When it reported that it no longer serves, and for how long it had not served by then.
    silence: Option<(Instant, Duration)>,
    handover_timeout: Duration,
}

/// The connections and the state that a running process hands over.
#[derive(Default)]
pub struct Handover {
    /// Its clients.
    pub connections: Vec<(OwnedFd, ConnectionState)>,
    /// Whether its exclusive resources have their content: items in a region, deletes in a spool.
    pub has_saved_state: bool,
    /// The state that its program hands over; `None` if it has ended before it could.
    pub program_state: Option<Vec<u8>>,
}

impl Predecessor {
    /// Connects to the process that listens at `path` and adds its listening sockets to `inherited`. `None` if no
    /// process listens there. `target_user` is the user that this process will switch to.
    pub fn find(
        program: Program,
        path: &Path,
        target_user: Option<u32>,
        inherited: &mut Inherited,
        stop: &UnixStream,
    ) -> anyhow::Result<Option<Predecessor>> {
        let failed = || format!("cannot take over from the process at {} (--upgrade-socket)", path.display());
        let log_absence = || tracing::info!("no process to take over from at {}", path.display());
        let Some((mut channel, peer)) = connect_verified(path, target_user).with_context(failed)? else {
            log_absence();
            return Ok(None);
        };
        let sent = channel.send(MessageKind::Hello, &program.hello_payload(), &[]);
        // A process that refuses closes the channel; its reason can still be read.
        let sent = sent.or_else(|error| if error == ChannelError::Ended { Ok(()) } else { Err(error) });
        let (pid, listeners) = match sent.and_then(|()| receive_listeners(&mut channel, stop)) {
            // It has closed the channel without a message. That is an error unless it has exited.
            Err(ChannelError::Ended) if connect(path).with_context(failed)?.is_none() => {
                peer.wait_for_exit(&EXIT_TIMEOUT);
                log_absence();
                return Ok(None);
            }
            received => received.map_err(to_anyhow).with_context(failed)?,
        };
        let mut listeners = listeners.into_iter();
        let liveness = listeners.next().context("it has sent no descriptors").with_context(failed)?;
        tracing::info!("taking over from process {pid}: it listens on {} sockets", listeners.len());
        inherited.extend(listeners);
        Ok(Some(Predecessor { channel, liveness, pid, silence: None, handover_timeout: HANDOVER_TIMEOUT }))
    }

    /// Asks the process to stop serving, and waits until it has. On error it is alive and keeps serving, at the latest
    /// when it goes on after it was stopped: this process exits then, and has not changed anything.
    pub fn receive(&mut self, stop: &UnixStream) -> anyhow::Result<Handover> {
        let mut handover = Handover::default();
        let result = self.receive_messages(&mut handover, stop);
        self.check_result(result)?;
        Ok(handover)
    }

    /// Sends `TakenOver`: from here on this process owns everything that it was given. On error the other one keeps
    /// serving.
    pub fn confirm_takeover(&mut self) -> anyhow::Result<()> {
        let result = self.channel.send(MessageKind::TakenOver, &[], &[]);
        self.check_result(result)
    }

    /// Logs how long no process served. This process must serve by now; the other one exits.
    pub fn log_pause(self) {
        let pid = self.pid;
        let Some((since, before)) = self.silence else {
            return tracing::info!("this process has taken over from process {pid}");
        };
        let pause_ms = (since.elapsed() + before).as_millis();
        tracing::info!("this process has taken over from process {pid}: no request was answered for {pause_ms} ms");
    }

    fn receive_messages(&mut self, handover: &mut Handover, stop: &UnixStream) -> Result<(), ChannelError> {
        self.channel.send(MessageKind::Ready, &[], &[])?;
        loop {
            let Message { kind, payload, mut descriptors } =
                check_refusal(self.channel.receive(stop, self.handover_timeout)?)?;
            match (kind, descriptors.pop(), &payload[..]) {
                (MessageKind::Connection, Some(socket), encoded) => {
                    let connection_state = ConnectionState::decode(encoded);
                    let connection_state =
                        connection_state.ok_or(ChannelError::Malformed("invalid state of a connection"))?;
                    handover.connections.push((socket, connection_state));
                }
                (MessageKind::Quiesced, None, &[is_kept, a, b, c, d, ref program_state @ ..]) => {
                    handover.has_saved_state = is_kept != 0;
                    handover.program_state = Some(program_state.to_vec());
                    let silent_us = u32::from_le_bytes([a, b, c, d]);
                    self.silence = Some((Instant::now(), Duration::from_micros(silent_us.into())));
                    return Ok(());
                }
                _ => return Err(ChannelError::Malformed("message out of order")),
            }
        }
    }

    /// If the process has died, this one goes on as after any exit of the other. Any other failure is an error.
    fn check_result(&self, result: Result<(), ChannelError>) -> anyhow::Result<()> {
        let Err(error) = result else { return Ok(()) };
        let pid = self.pid;
        let has_closed = error == ChannelError::Ended;
        if !(has_closed && self.has_died()) {
            let advice = match error {
                ChannelError::TimedOut => ", once it goes on (is it stopped? see State in /proc/PID/status)",
                _ => "",
            };
            return Err(to_anyhow(error)).with_context(|| format!("process {pid} continues to serve{advice}"));
        }
        tracing::warn!("process {pid} has ended before it could hand over");
        Ok(())
    }

    fn has_died(&self) -> bool {
        let mut watched = [PollFd::new(&self.liveness, PollFlags::IN)];
        poll(&mut watched, Some(&EXIT_TIMEOUT)).is_ok_and(|ready| ready > 0)
    }
}

/// Connects to `path`. `None` if no process listens there.
fn connect(path: &Path) -> std::io::Result<Option<UnixStream>> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    // It waits while too many others wait there already.
    socket.set_write_timeout(Some(REPLY_TIMEOUT))?;
    match socket.connect(&SockAddr::unix(path)?) {
        Ok(()) => Ok(Some(socket.into())),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused) => Ok(None),
        Err(error) if error.kind() == ErrorKind::WouldBlock => Err(ErrorKind::TimedOut.into()),
        Err(error) => Err(error),
    }
}

/// As [`connect`], with a check of the other process's user.
fn connect_verified(path: &Path, target_user: Option<u32>) -> anyhow::Result<Option<(Channel, Peer)>> {
    let Some(socket) = connect(path)? else { return Ok(None) };
    let peer = Peer::of(&socket)?;
    anyhow::ensure!(peer.is_trusted(target_user), "the process runs as another user ({})", peer.user);
    Ok(Some((Channel::new(socket, PAYLOAD_BYTES_MAX)?, peer)))
}

/// The process id and the descriptors in `Listeners`, the socket of the liveness check first.
fn receive_listeners(channel: &mut Channel, stop: &UnixStream) -> Result<(u32, Vec<OwnedFd>), ChannelError> {
    let mut listeners = Vec::new();
    loop {
        let message = channel.receive(stop, REPLY_TIMEOUT).and_then(check_refusal)?;
        let (MessageKind::Listeners, &[is_last, a, b, c, d]) = (message.kind, &message.payload[..]) else {
            return Err(ChannelError::Malformed("expected its listening sockets"));
        };
        listeners.extend(message.descriptors);
        if is_last != 0 {
            return Ok((u32::from_le_bytes([a, b, c, d]), listeners));
        }
    }
}

fn check_refusal(message: Message) -> Result<Message, ChannelError> {
    match message.kind {
        MessageKind::Refused => Err(ChannelError::Refused(String::from_utf8_lossy(&message.payload).into_owned())),
        _ => Ok(message),
    }
}

fn to_anyhow(error: ChannelError) -> anyhow::Error {
    anyhow::Error::msg(error.to_string())
}
