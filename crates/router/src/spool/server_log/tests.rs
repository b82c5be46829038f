use super::*;
use lookaside_client::TkoTrackers;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

fn server_log() -> Arc<ServerLog> {
    let address = Address("here:1".into());
    let fence = TkoTrackers::new().fence(&address);
    ServerLog::new(address, "here".into(), fence)
}

/// Three appends and their replay, step by step, in the order that a schedule gives. Every order is tried.
struct Interleaving {
    server: Arc<ServerLog>,
    total: TotalBytes,
    bytes_max: u64,
    /// The numbers of the appends in each segment's file.
    files: BTreeMap<u64, Vec<usize>>,
    writing: Option<(usize, AppendTarget)>,
    next_append: usize,
    /// By append.
    is_acknowledged: [bool; APPENDS],
    is_applied: [bool; APPENDS],
    is_replaying: bool,
    sending: Option<ReplayAction>,
}

const APPENDS: usize = 3;
const APPEND_BYTES: u64 = 100;

impl Interleaving {
    fn new(bytes_max: u64) -> Interleaving {
        let server = server_log();
        assert!(!server.add_tree(), "there is no backlog yet");
        Interleaving {
            server,
            total: TotalBytes::new(0),
            bytes_max,
            files: BTreeMap::new(),
            writing: None,
            next_append: 0,
            is_acknowledged: [false; APPENDS],
            is_applied: [false; APPENDS],
            is_replaying: false,
            sending: None,
        }
    }

    /// False when the writer has nothing left to do.
    fn step_writer(&mut self) -> bool {
        match self.writing.take() {
            None if self.next_append == APPENDS => return false,
            None => {
                let target = self.server.begin_append(APPEND_BYTES, self.bytes_max, &self.total, u64::MAX);
                if let AppendTarget::Segment { number, .. } = target {
                    self.files.entry(number).or_default().push(self.next_append);
                }
                self.writing = Some((self.next_append, target));
                self.next_append += 1;
            }
            Some((append, target)) => {
                let mut replaced = Vec::new();
                self.is_replaying |=
                    self.server.end_append_and_fence(target, Ok((1, APPEND_BYTES)), &self.total, &mut replaced);
                replaced.iter().for_each(|number| drop(self.files.remove(number)));
                self.is_acknowledged[append] = true;
            }
        }
        true
    }

    /// False when the replayer has nothing to do.
    fn step_replayer(&mut self) -> bool {
        if !self.is_replaying {
            return false;
        }
        match self.sending.take() {
            None => match self.server.next_replay_or_unfence() {
                None => self.is_replaying = false,
                Some(ReplayAction::Wait) => return false,
                Some(action) => self.sending = Some(action),
            },
            Some(ReplayAction::SendDeletes { number, .. }) => {
                let in_file = self.files.remove(&number).unwrap_or_default();
                in_file.into_iter().for_each(|append| self.is_applied[append] = true);
                self.server.mark_replayed(number, &self.total);
            }
            Some(ReplayAction::Flush { number, .. }) => {
                // All that was acknowledged before the flush was sent has no file of its own any more.
                let in_files: Vec<usize> = self.files.values().flatten().copied().collect();
                for append in (0..APPENDS).filter(|append| !in_files.contains(append)) {
                    self.is_applied[append] |= self.is_acknowledged[append] || self.is_covered(append);
                }
                self.server.mark_replayed(number, &self.total);
            }
            Some(ReplayAction::Wait) => unreachable!("there is nothing to send"),
        }
        true
    }

    fn is_covered(&self, append: usize) -> bool {
        matches!(self.writing, Some((writing, AppendTarget::Covered)) if writing == append)
    }

    fn check(&self, schedule: u32) {
        for append in 0..APPENDS {
            let is_undelivered = self.is_acknowledged[append] && !self.is_applied[append];
            assert!(
                !is_undelivered || self.server.is_fenced(),
                "append {append} is undelivered and unfenced: {schedule:b}"
            );
        }
    }
}

#[test]
fn in_every_interleaving_a_server_is_fenced_exactly_while_it_has_a_backlog() {
    for bytes_max in [u64::MAX, 2 * APPEND_BYTES, 1] {
        for schedule in 0..1_u32 << 16 {
            let mut run = Interleaving::new(bytes_max);
            for step in 0..16 {
                let moved = if schedule & 1 << step == 0 { run.step_writer() } else { run.step_replayer() };
                run.check(schedule);
                if !moved && run.next_append == APPENDS && !run.is_replaying {
                    break;
                }
            }
            while run.step_writer() || run.step_replayer() {
                run.check(schedule);
            }
            assert_eq!(run.is_applied, [true; APPENDS], "{bytes_max} {schedule:b}");
            assert!(!run.server.is_fenced(), "the backlog is empty: {bytes_max} {schedule:b}");
            assert_eq!((run.server.backlog(), run.total.load(Relaxed)), (Backlog::default(), 0));
        }
    }
}

#[test]
fn a_segment_is_not_extended_after_a_failed_write() {
    let run = Interleaving::new(u64::MAX);
    let (server, total) = (&run.server, &run.total);
    let (mut replaced, full) = (Vec::new(), io::Error::from(io::ErrorKind::StorageFull));
    let first = server.begin_append(100, u64::MAX, total, u64::MAX);
    assert!(!server.end_append_and_fence(first, Err(&full), total, &mut replaced), "there is no backlog");
    assert!(!server.is_fenced());
    let second = server.begin_append(100, u64::MAX, total, u64::MAX);
    assert_eq!(second, AppendTarget::Segment { number: 1, at: 0 });
    assert!(server.end_append_and_fence(second, Ok((1, 100)), total, &mut replaced));
    let third = server.begin_append(100, u64::MAX, total, u64::MAX);
    assert_eq!(third, AppendTarget::Segment { number: 1, at: 108 });
    assert_eq!(server.next_replay_or_unfence(), Some(ReplayAction::Wait));
    server.end_append_and_fence(third, Err(&full), total, &mut replaced);
    assert_eq!(server.begin_append(100, u64::MAX, total, u64::MAX), AppendTarget::Segment { number: 2, at: 0 });
    assert_eq!(server.next_replay_or_unfence(), Some(ReplayAction::SendDeletes { number: 1, bytes: 108 }));
    assert_eq!(server.backlog(), Backlog { deletes: 1, bytes: 108, flush_pending: false });
}

#[test]
fn a_flush_covers_only_deletes_that_are_appended_before_it_is_sent() {
    let run = Interleaving::new(u64::MAX);
    let (server, total, mut replaced) = (&run.server, &run.total, Vec::new());
    let target = server.begin_append(100, 1, total, u64::MAX);
    assert_eq!(target, AppendTarget::Flush { number: 0 });
    server.end_append_and_fence(target, Ok((1, 9)), total, &mut replaced);
    assert_eq!(server.begin_append(100, 1_000, total, u64::MAX), AppendTarget::Covered);
    assert_eq!(server.next_replay_or_unfence(), Some(ReplayAction::Flush { number: 0, is_durable: true }));
    assert_eq!(server.begin_append(100, 1_000, total, u64::MAX), AppendTarget::Segment { number: 1, at: 0 });
    server.flush_failed(0);
    assert_eq!(server.begin_append(100, 1_000, total, u64::MAX), AppendTarget::Covered);
}

/// A replayer that waits for an append lowers the fence once the append has failed. An upgrade stops it before. If
/// the upgrade fails, nothing on disk shows the fence.
#[test]
fn a_fence_of_a_closed_spool_is_adopted_only_with_a_reason() {
    let trackers = TkoTrackers::new();
    let address = Address("here:1".into());
    let log = || ServerLog::new(address.clone(), "here".into(), trackers.fence(&address));
    let (closed, total, mut replaced) = (log(), TotalBytes::new(0), Vec::new());
    let first = closed.begin_append(100, u64::MAX, &total, u64::MAX);
    closed.end_append_and_fence(first, Ok((1, 100)), &total, &mut replaced);
    let AppendTarget::Segment { number, .. } = first else { panic!("the backlog was empty") };
    assert!(log().adopt_fence(&closed) && closed.is_fenced(), "a file was removed, and its deletes with it");
    let reopened = log();
    reopened.add_recovered(1, RecoveredSegment::Deletes { deletes: 1, bytes: 100 }, &total);
    assert!(!reopened.adopt_fence(&closed) && reopened.is_fenced(), "it has the backlog");
    closed.mark_replayed(number, &total);
    assert!(closed.is_idle() && closed.is_fenced(), "no replayer has lowered the fence");
    assert!(!log().adopt_fence(&closed) && !closed.is_fenced());
}

#[test]
fn the_newest_message_of_a_peer_decides_in_whichever_order_they_arrive() {
    let server = server_log();
    let (router, until) = (RouterId(7), Instant::now() + Duration::from_secs(1));
    server.fence_for_peer(router, 3, until, FenceFile::default());
    assert!(!server.release_peer_fence(router, 2), "delayed on an old connection");
    assert!(server.is_fenced());
    assert!(server.release_peer_fence(router, 4) && !server.is_fenced());
    assert!(server.is_outdated(router, 3) && !server.is_outdated(router, 5));
    server.fence_for_peer(router, 5, until, FenceFile::default());
    assert!(!server.expire_peer_fence(router, Instant::now()) && server.is_fenced(), "it was renewed in time");
    assert!(server.expire_peer_fence(router, until) && !server.is_fenced());
}

/// A delete that arrives while the stored one may already be on its way to the server must be sent after it: in
/// between, the server may have been filled.
#[test]
fn a_repeat_is_appended_once_the_replay_of_the_first_has_begun() {
    let run = Interleaving::new(u64::MAX);
    let (server, total, mut replaced) = (&run.server, &run.total, Vec::new());
    let deletion = |key: &'static str, hold_off_ms| Deletion { key: key.into(), is_base64: false, hold_off_ms };
    let (k, l, held) = (deletion("k", 0), deletion("l", 0), deletion("k", 5));
    let mut append = |deletion: &Deletion, is_remembered_late: bool| {
        let target = server.begin_append(100, u64::MAX, total, u64::MAX);
        let AppendTarget::Segment { number, .. } = target else { panic!("the backlog is small") };
        assert_eq!(server.without_repeats([deletion].into_iter()).len(), 1, "it is not on disk yet");
        server.end_append_and_fence(target, Ok((1, 100)), total, &mut replaced);
        if is_remembered_late {
            server.next_replay_or_unfence();
        }
        server.remember(number, [deletion].into_iter());
        number
    };
    assert_eq!(append(&k, false), 0);
    let arrived = [&k, &l, &held, &l];
    assert_eq!(server.without_repeats(arrived.into_iter()), [l.clone(), held], "k is stored; one l will be");
    assert!(matches!(server.next_replay_or_unfence(), Some(ReplayAction::SendDeletes { number: 0, .. })));
    assert_eq!(server.without_repeats([&k].into_iter()).len(), 1, "it may have been sent before the server was filled");
    assert_eq!(append(&k, false), 1);
    assert_eq!(server.without_repeats([&k].into_iter()), [], "the second is not being replayed");
    server.mark_replayed(0, total);
    assert_eq!(server.without_repeats([&k].into_iter()), [], "nor now");
    assert_eq!(append(&l, true), 1);
    assert_eq!(server.without_repeats([&k, &l].into_iter()), [k, l], "the replay began before they were remembered");
}
