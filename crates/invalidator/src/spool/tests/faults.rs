//! Random sequences of commits, reads, crashes and faults of the disk.

use super::{DEADLINE, Fixture, number};
use crate::{CommitLog as _, SourceError, Start};
use proptest::prelude::*;
use std::{collections::BTreeSet, time::Duration};
use tokio::time::{sleep, timeout};

#[derive(Clone, Debug)]
enum Event {
    Commit(u64),
    /// A cluster reads what there is and saves its position.
    Deliver(usize),
    /// The writer runs for a while.
    Wait(u64),
    /// The database is down, or back.
    Outage(bool),
    /// The process ends.
    Kill,
    /// The machine ends: of unsynced bytes this part of 255 stays.
    Crash(u8),
    Fail {
        fails_to_sync: bool,
        free_bytes: Option<usize>,
    },
    /// The kernel cannot write what is not synced, and drops it. The next sync reports that.
    DropUnsynced {
        is_cut_off: bool,
    },
}

fn any_event() -> impl Strategy<Value = Event> {
    prop_oneof![
        4 => (1..30_u64).prop_map(Event::Commit),
        4 => (0..2_usize).prop_map(Event::Deliver),
        3 => (0..300_u64).prop_map(Event::Wait),
        2 => any::<bool>().prop_map(Event::Outage),
        1 => Just(Event::Kill),
        1 => any::<u8>().prop_map(Event::Crash),
        1 => (any::<bool>(), proptest::option::of(0..5_000_usize))
            .prop_map(|(fails_to_sync, free_bytes)| Event::Fail { fails_to_sync, free_bytes }),
        1 => Just(Event::Fail { fails_to_sync: false, free_bytes: None }),
        1 => any::<bool>().prop_map(|is_cut_off| Event::DropUnsynced { is_cut_off }),
    ]
}

/// Reads for a moment, and saves the position. Both may fail.
async fn deliver(fixture: &mut Fixture, index: usize, delivered: &mut [BTreeSet<u64>; 2]) {
    let start = fixture.saved[index].clone().map_or(Start::Now, Start::At);
    let log = fixture.cluster(index);
    let Ok(Ok(mut opened)) = timeout(Duration::from_millis(50), log.open(&start)).await else { return };
    fixture.saved[index] = Some(opened.position.clone());
    while let Ok(read) = timeout(Duration::from_millis(20), opened.source.next(7)).await {
        match read {
            Ok(commits) => {
                delivered[index].extend(commits.commits.iter().map(|commit| number(&commit.position)));
                log.release(&commits.position);
                fixture.saved[index] = Some(commits.position);
            }
            Err(error @ SourceError::PositionLost { .. }) => panic!("{error}"),
            Err(_) => return,
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]
    /// Whatever fails, and whenever the process or the machine ends: every cluster gets every commit after its first
    /// position, and the log is not released beyond what a crash leaves.
    #[test]
    fn no_commit_is_lost(events in proptest::collection::vec(any_event(), 1..40)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().expect("a runtime");
        runtime.block_on(async {
            let mut fixture = Fixture::new(1 << 30);
            let mut delivered = [BTreeSet::new(), BTreeSet::new()];
            for index in 0..2 {
                fixture.saved[index] = Some(fixture.open(index).await.position);
            }
            for event in events {
                match event {
                    Event::Commit(count) => fixture.log.commit(count),
                    Event::Deliver(index) => deliver(&mut fixture, index, &mut delivered).await,
                    Event::Wait(ms) => sleep(Duration::from_millis(ms)).await,
                    Event::Outage(is_down) => fixture.log.state.lock().is_down = is_down,
                    Event::Kill => fixture.restart(),
                    Event::Crash(kept) => {
                        fixture.writer.abort();
                        let _ = (&mut fixture.writer).await;
                        fixture.files.crash(|unsynced| unsynced * usize::from(kept) / 255);
                        fixture.restart();
                    }
                    Event::Fail { fails_to_sync, free_bytes } => {
                        let mut state = fixture.files.0.lock();
                        (state.fails_to_sync, state.free_bytes) = (fails_to_sync, free_bytes);
                    }
                    Event::DropUnsynced { is_cut_off } => fixture.files.drop_unsynced(is_cut_off),
                }
            }
            {
                let mut state = fixture.files.0.lock();
                (state.fails_to_sync, state.free_bytes) = (false, None);
            }
            fixture.log.state.lock().is_down = false;
            fixture.log.commit(1);
            let all: BTreeSet<u64> = (1..=fixture.log.state.lock().commits).collect();
            let complete = async {
                while delivered.iter().any(|delivered| *delivered != all) {
                    for index in 0..2 {
                        deliver(&mut fixture, index, &mut delivered).await;
                    }
                    sleep(Duration::from_millis(10)).await;
                }
            };
            assert!(timeout(DEADLINE, complete).await.is_ok(), "commits are lost: {delivered:?}");
        });
    }
}
