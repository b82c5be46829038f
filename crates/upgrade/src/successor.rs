//! The running process's side of an upgrade, from the moment at which it stops serving.

use super::channel::{Channel, ChannelError, Message, MessageKind};
use super::connection_state::ConnectionState;
use super::peer;
use rustix::event::Timespec;
use rustix::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// How long a successor may take between `Quiesced` and `TakenOver`. No process serves meanwhile. Attaching a region
/// takes milliseconds, loading a spool of a GiB less than that.
const TAKE_OVER_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a successor that was killed may take to release what it held.
const KILL_TIMEOUT: Timespec = Timespec { tv_sec: 5, tv_nsec: 0 };

/// How long a successor may take to announce itself before this process exits all the same. systemd must know the new
/// process before the old one exits.
const ANNOUNCE_TIMEOUT: Duration = Duration::from_secs(5);

/// The process that is about to take over.
pub struct Successor {
    channel: Channel,
    pid: i32,
    /// `None` if it is in another PID namespace.
    process: Option<OwnedFd>,
    /// When it was ready. No process serves from then on.
    ready_at: Instant,
}

/// The result of a handover.
#[derive(Debug, PartialEq, Eq)]
pub enum UpgradeOutcome {
    /// The other process serves. This one must not serve any more.
    TakenOver,
    /// The other process cannot take over any more: this one resumes.
    Failed,
    /// This process was signalled to stop meanwhile.
    Stopped,
}

impl Successor {
    pub(crate) fn new(channel: Channel, pid: i32, process: Option<OwnedFd>) -> Successor {
        Successor { channel, pid, process, ready_at: Instant::now() }
    }

    /// Its process id.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Sends the connections that have a state, and returns for each whether it was sent. They stay open here too.
    /// `None` if the other process has ended, or does not read: it cannot take over any more.
    pub fn send<'f>(
        &self,
        connections: impl Iterator<Item = (Option<ConnectionState>, BorrowedFd<'f>)>,
    ) -> Option<Vec<bool>> {
        let send_all = || {
            let mut batch = self.channel.batch();
            let mut is_sent = Vec::new();
            for (connection_state, socket) in connections {
                is_sent.push(connection_state.is_some());
                let Some(encoded) = connection_state.as_ref().map(ConnectionState::encode) else { continue };
                batch.push(MessageKind::Connection, &encoded, &[socket])?;
            }
            batch.send_rest()?;
            Ok(is_sent)
        };
        send_all().map_err(|error| self.reject(&error)).ok()
    }

    /// Sends `Quiesced` and waits for the other process to serve, for at most `TAKE_OVER_TIMEOUT`. This process must
    /// have released its exclusive resources; `is_kept`: the other one can acquire them with their content.
    /// `program_state` is for the program: what it may not lose besides, of at most a few bytes.
    pub fn hand_over(&mut self, is_kept: bool, program_state: &[u8], stop: &UnixStream) -> UpgradeOutcome {
        self.hand_over_within(TAKE_OVER_TIMEOUT, is_kept, program_state, stop)
    }

    fn hand_over_within(
        &mut self,
        timeout: Duration,
        is_kept: bool,
        program_state: &[u8],
        stop: &UnixStream,
    ) -> UpgradeOutcome {
        let silent_us = u32::try_from(self.ready_at.elapsed().as_micros()).unwrap_or(u32::MAX);
        let payload = [&[u8::from(is_kept)], &silent_us.to_le_bytes()[..], program_state].concat();
        let sent = self.channel.send(MessageKind::Quiesced, &payload, &[]);
        let error = match sent.and_then(|()| self.channel.receive(stop, timeout)) {
            Ok(Message { kind: MessageKind::TakenOver, .. }) => return UpgradeOutcome::TakenOver,
            Ok(_) => ChannelError::Malformed("message out of order"),
            Err(ChannelError::Interrupted) => return UpgradeOutcome::Stopped,
            Err(error) => error,
        };
        // From here on the other process cannot take over, unless it did so a moment ago.
        self.channel.refuse_messages();
        if self.has_sent_taken_over() {
            return UpgradeOutcome::TakenOver;
        }
        self.reject(&error);
        UpgradeOutcome::Failed
    }

    /// Whether `TakenOver` is among the messages that have arrived.
    fn has_sent_taken_over(&mut self) -> bool {
        std::iter::from_fn(|| self.channel.try_receive().ok().flatten())
            .any(|message| message.kind == MessageKind::TakenOver)
    }

    /// Gives the other process up. Unless it has closed the channel, which it does only by exiting, it is killed: it
    /// may hold the region or the spool, and it has copies of all sockets.
    fn reject(&self, error: &ChannelError) {
        let pid = self.pid;
        if *error == ChannelError::Ended {
            return tracing::warn!("process {pid} has not taken over: {error}");
        }
        match self.process.as_ref().is_some_and(|process| peer::kill(process, &KILL_TIMEOUT)) {
            true => tracing::error!(
                "process {pid} has not taken over and was killed: {error} (its log may say why; then try again)"
            ),
            false => tracing::error!(
                "process {pid} has not taken over and cannot be killed: {error} (end it with kill -9 {pid}: it has \
                 copies of the sockets)"
            ),
        }
    }

    /// Waits, with a timeout, until the other process has announced itself.
    pub fn wait_until_announced(mut self, stop: &UnixStream) {
        let _ = self.channel.receive(stop, ANNOUNCE_TIMEOUT);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;

    /// A successor as its predecessor sees it, and the successor's end of the channel.
    fn pair() -> (Successor, Channel) {
        let (one, other) = UnixStream::pair().expect("a pair");
        let end = |socket| Channel::new(socket, 64).expect("an end");
        // Without a descriptor of the process, which is this one: the test would kill itself.
        (Successor::new(end(one), 0, None), end(other))
    }

    fn socket_pair() -> (UnixStream, UnixStream) {
        UnixStream::pair().expect("a pair")
    }

    fn connections(socket: &UnixStream) -> impl Iterator<Item = (Option<ConnectionState>, BorrowedFd<'_>)> {
        use rustix::fd::AsFd as _;
        [(Some(ConnectionState::default()), socket.as_fd())].into_iter()
    }

    /// A process that died right after its Ready was noticed at whatever came next. It must not matter which step that
    /// is.
    #[test]
    fn a_successor_that_dies_after_ready_is_noticed_at_the_next_step() {
        let (stop, _stop_in) = socket_pair();
        let (client, _end) = socket_pair();
        let (successor, theirs) = pair();
        drop(theirs);
        assert_eq!(successor.send(connections(&client)), None, "before the connections");

        let (mut successor, theirs) = pair();
        assert_eq!(successor.send(connections(&client)), Some(vec![true]));
        drop(theirs);
        assert_eq!(
            successor.hand_over(true, b"", &stop),
            UpgradeOutcome::Failed,
            "before Quiesced, with unread messages"
        );

        let (mut successor, theirs) = pair();
        let dies = std::thread::spawn(move || {
            let mut theirs = theirs;
            let (stop, _stop_in) = socket_pair();
            theirs.receive(&stop, Duration::from_secs(10)).expect("Quiesced");
        });
        assert_eq!(successor.hand_over(true, b"", &stop), UpgradeOutcome::Failed, "after Quiesced");
        dies.join().expect("it got Quiesced");
    }

    #[test]
    fn a_successor_that_dies_after_taken_over_has_taken_over() {
        let (stop, _stop_in) = socket_pair();
        let (mut successor, theirs) = pair();
        theirs.send(MessageKind::TakenOver, &[], &[]).expect("it fits");
        drop(theirs);
        assert_eq!(successor.hand_over(true, b"", &stop), UpgradeOutcome::TakenOver);
    }

    #[test]
    fn a_message_out_of_order_is_no_takeover() {
        let (stop, _stop_in) = socket_pair();
        let (mut successor, theirs) = pair();
        theirs.send(MessageKind::Ready, &[], &[]).expect("it fits");
        assert_eq!(successor.hand_over(true, b"", &stop), UpgradeOutcome::Failed);
        assert_eq!(theirs.send(MessageKind::TakenOver, &[], &[]), Err(ChannelError::Ended));
    }

    /// A stopped successor made the old process wait without end, because it could not tell whether both would serve.
    #[test]
    fn at_the_timeout_exactly_one_process_serves() {
        let (stop, _stop_in) = socket_pair();
        let mut outcomes = [0, 0];
        for round in 0..400 {
            let (mut successor, theirs) = pair();
            let start = Barrier::new(2);
            let (outcome, confirmed) = std::thread::scope(|scope| {
                let theirs = scope.spawn(|| {
                    start.wait();
                    (0..round % 20 * 50).for_each(|_| std::hint::spin_loop());
                    theirs.send(MessageKind::TakenOver, &[], &[])
                });
                start.wait();
                let outcome = successor.hand_over_within(Duration::ZERO, true, b"", &stop);
                (outcome, theirs.join().expect("it does not panic"))
            });
            match &confirmed {
                Ok(()) => assert_eq!(outcome, UpgradeOutcome::TakenOver),
                Err(error) => assert_eq!((outcome, error), (UpgradeOutcome::Failed, &ChannelError::Ended)),
            }
            outcomes[usize::from(confirmed.is_ok())] += 1;
        }
        assert!(outcomes.iter().all(|&times| times > 0), "both ways to end occur: {outcomes:?}");
    }
}
