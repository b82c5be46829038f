//! The new server's part of an upgrade (`--take-over`): it finds the running one, gets its ports, and, once it has prepared
//! itself, its connections and the word that the region is free.

use super::channel::{Channel, ChannelError, Kind, Message};
use super::peer::Peer;
use super::{CONNECTION_STATE_BYTES_MAX, ConnectionState, Inherited, Program, connection_state, is_trusted};
use anyhow::Context;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use std::io::ErrorKind;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

/// How long a running server may take to answer: it does so between two rounds of accepting.
const ANSWER_PATIENCE: Duration = Duration::from_secs(10);

/// How long a process that has hung up may take to be gone, before it is taken for one that lives.
const DEATH_PATIENCE: Timespec = Timespec { tv_sec: 5, tv_nsec: 0 };

/// The longest message of a running server: a connection's.
const PAYLOAD_BYTES_MAX: usize = CONNECTION_STATE_BYTES_MAX + connection_state::HEAD_BYTES;

/// The server that runs.
pub struct Predecessor {
    channel: Channel,
    /// Its end of the conversation closes when the process dies, and not before.
    life_sign: OwnedFd,
    pid: u32,
    /// Since when it has been known not to serve, and for how long it had not served then.
    silence: Option<(Instant, Duration)>,
}

/// What it leaves.
#[derive(Default)]
pub struct Handover {
    /// Its clients.
    pub connections: Vec<(OwnedFd, ConnectionState)>,
    /// Whether what it had besides is there to be taken up: items in a region, deletes in a spool.
    pub is_kept: bool,
}

impl Predecessor {
    /// The server that listens at `path` for who takes over, and its ports; `None`: nobody does. `becoming`: the user that
    /// this process will be.
    pub fn find(
        program: Program,
        path: &Path,
        becoming: Option<u32>,
        inherited: &mut Inherited,
        stop: &UnixStream,
    ) -> anyhow::Result<Option<Predecessor>> {
        let failed = || format!("cannot take over from the server at {} (--upgrade-socket)", path.display());
        let nobody = || tracing::info!("no server to take over from at {}", path.display());
        let Some((mut channel, peer)) = knock(path, becoming).with_context(failed)? else {
            nobody();
            return Ok(None);
        };
        let doors =
            channel.send(Kind::Hello, &program.greeting(), &[]).and_then(|()| receive_doors(&mut channel, stop));
        let (pid, doors) = match doors {
            // It has hung up without a word: unless it has ended, it should not have.
            Err(ChannelError::Ended) if connect(path).with_context(failed)?.is_none() => {
                peer.wait_for_end(&DEATH_PATIENCE);
                nobody();
                return Ok(None);
            }
            doors => doors.map_err(refused).with_context(failed)?,
        };
        let mut doors = doors.into_iter();
        let life_sign = doors.next().context("it sends nothing").with_context(failed)?;
        tracing::info!("taking over from process {pid}: it listens on {} sockets", doors.len());
        inherited.extend(doors);
        Ok(Some(Predecessor { channel, life_sign, pid, silence: None }))
    }

    /// Asks it to stop serving, and waits until it has. An error: it lives, and goes on.
    pub fn receive(&mut self, stop: &UnixStream) -> anyhow::Result<Handover> {
        let mut estate = Handover::default();
        let outcome = self.receive_messages(&mut estate, stop);
        self.judge(outcome)?;
        Ok(estate)
    }

    /// Says that this process serves. An error: the other goes on. From here on this process owns all that it was given.
    pub fn confirm_takeover(&mut self) -> anyhow::Result<()> {
        let outcome = self.channel.send(Kind::TakenOver, &[], &[]);
        self.judge(outcome)
    }

    /// This process serves, and everybody has been told. The other one ends.
    pub fn log_pause(self) {
        let pid = self.pid;
        let Some((since, before)) = self.silence else { return tracing::info!("has taken over from process {pid}") };
        let pause_ms = (since.elapsed() + before).as_millis();
        tracing::info!("has taken over from process {pid}: no request was answered for {pause_ms} ms");
    }

    fn receive_messages(&mut self, estate: &mut Handover, stop: &UnixStream) -> Result<(), ChannelError> {
        self.channel.send(Kind::Ready, &[], &[])?;
        loop {
            let Message { kind, payload, mut descriptors } = expect(self.channel.wait(stop, None)?)?;
            match (kind, descriptors.pop(), &payload[..]) {
                (Kind::Connection, Some(socket), packed) => {
                    let connection_state =
                        ConnectionState::unpack(packed).ok_or(ChannelError::Malformed("no connection's state"))?;
                    estate.connections.push((socket, connection_state));
                }
                (Kind::Quiesced, None, &[is_kept, a, b, c, d]) => {
                    estate.is_kept = is_kept != 0;
                    let silent_us = u32::from_le_bytes([a, b, c, d]);
                    self.silence = Some((Instant::now(), Duration::from_micros(silent_us.into())));
                    return Ok(());
                }
                _ => return Err(ChannelError::Malformed("what it says is out of turn")),
            }
        }
    }

    /// Whoever has hung up may have died: then this process goes on as after any end of the other.
    fn judge(&self, outcome: Result<(), ChannelError>) -> anyhow::Result<()> {
        let Err(error) = outcome else { return Ok(()) };
        let pid = self.pid;
        let has_hung_up = error == ChannelError::Ended;
        if !(has_hung_up && self.has_died()) {
            return Err(refused(error)).with_context(|| format!("process {pid} goes on serving"));
        }
        tracing::warn!("process {pid} has ended before it could hand over");
        Ok(())
    }

    fn has_died(&self) -> bool {
        let mut watched = [PollFd::new(&self.life_sign, PollFlags::IN)];
        poll(&mut watched, Some(&DEATH_PATIENCE)).is_ok_and(|ready| ready > 0)
    }
}

/// A connection to whoever listens there; `None`: nobody does.
fn connect(path: &Path) -> std::io::Result<Option<UnixStream>> {
    match UnixStream::connect(path) {
        Ok(socket) => Ok(Some(socket)),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The same, if it can be trusted.
fn knock(path: &Path, becoming: Option<u32>) -> anyhow::Result<Option<(Channel, Peer)>> {
    let Some(socket) = connect(path)? else { return Ok(None) };
    let peer = Peer::of(&socket)?;
    anyhow::ensure!(is_trusted(peer.user, becoming), "it belongs to another user, {}", peer.user);
    Ok(Some((Channel::new(socket, PAYLOAD_BYTES_MAX)?, peer)))
}

fn receive_doors(channel: &mut Channel, stop: &UnixStream) -> Result<(u32, Vec<OwnedFd>), ChannelError> {
    let mut doors = Vec::new();
    loop {
        let message = channel.wait(stop, Some(ANSWER_PATIENCE)).and_then(expect)?;
        let (Kind::Listeners, &[is_last, a, b, c, d]) = (message.kind, &message.payload[..]) else {
            return Err(ChannelError::Malformed("it does not tell what it listens on"));
        };
        doors.extend(message.descriptors);
        if is_last != 0 {
            return Ok((u32::from_le_bytes([a, b, c, d]), doors));
        }
    }
}

/// A refusal is an error.
fn expect(message: Message) -> Result<Message, ChannelError> {
    match message.kind {
        Kind::Refused => Err(ChannelError::Refused(String::from_utf8_lossy(&message.payload).into_owned())),
        _ => Ok(message),
    }
}

fn refused(error: ChannelError) -> anyhow::Error {
    anyhow::Error::msg(error.to_string())
}
