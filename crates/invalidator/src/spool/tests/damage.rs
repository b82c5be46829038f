//! Segments whose bytes have changed on disk while the spool is open.

use super::{super::record, *};

/// Makes the last record of the segment at `index` seem longer than it is.
fn lengthen_last_record(fixture: &Fixture, index: usize) {
    let mut state = fixture.files.0.lock();
    let (bytes, _) = state.files.values_mut().nth(index).expect("there is a segment");
    let mut last = record::HEADER.len();
    while let record::Decoded::Record(_, length) = record::decode(&bytes[last..])
        && last + length < bytes.len()
    {
        last += length;
    }
    bytes[last + 1] ^= 0x10;
}

/// Reads until a loss is reported, and returns the last commit before it and the cause.
async fn read_up_to_loss(source: &mut dyn Source) -> (u64, String) {
    let mut last = 0;
    let reading = async {
        loop {
            match source.next(10).await {
                Ok(commits) => commits.commits.iter().for_each(|commit| {
                    assert_eq!(number(&commit.position), last + 1, "no commit is skipped");
                    last += 1;
                }),
                Err(SourceError::PositionLost { why, .. }) => return why,
                Err(error) => panic!("{error}"),
            }
        }
    };
    let why = timeout(DEADLINE, reading).await.expect("the loss is reported");
    (last, why)
}

/// A record that was not complete at the end of a closed segment was taken for the rest of a write that had failed, and
/// the next segment was read.
#[tokio::test(start_paused = true)]
async fn what_cannot_be_read_at_the_end_of_a_segment_is_a_loss() {
    let mut fixture = Fixture::new(super::super::SPOOL_BYTES_MIN);
    fixture.log.state.lock().key_bytes = 200;
    fixture.saved[0] = Some(fixture.open(0).await.position);
    fixture.log.commit(2_000);
    until("all is on disk", || fixture.log.state.lock().released == 2_000).await;
    assert!(fixture.files.0.lock().files.len() > 2);
    lengthen_last_record(&fixture, 0);
    let (last, why) = read_up_to_loss(&mut *fixture.open(0).await.source).await;
    assert!(why.contains("damaged") && (100..1_000).contains(&last), "{last}: {why}");
}

/// It was waited for, while later commits seemed to be its rest.
#[tokio::test(start_paused = true)]
async fn what_cannot_be_read_at_the_end_of_the_spool_is_a_loss() {
    let mut fixture = Fixture::new(1 << 30);
    fixture.saved[0] = Some(fixture.open(0).await.position);
    fixture.log.commit(4);
    until("all is on disk", || fixture.log.state.lock().released == 4).await;
    lengthen_last_record(&fixture, 0);
    let (last, why) = read_up_to_loss(&mut *fixture.open(0).await.source).await;
    assert!(why.contains("damaged") && last == 3, "{last}: {why}");
}

/// The commits from `first` to `last`.
fn commits(first: u64, last: u64) -> Commits {
    let commit = |number: u64| Commit {
        position: Position(number.to_string()),
        keys: vec![number.to_string().into_bytes()],
        committed_at: SystemTime::UNIX_EPOCH,
    };
    Commits { commits: (first..=last).map(commit).collect(), position: Position(last.to_string()) }
}

/// The kernel could not write what clusters had not read yet, and dropped it: that was a loss, although it is read
/// again.
#[tokio::test(start_paused = true)]
async fn what_cannot_be_read_and_was_never_synced_is_waited_for() {
    for is_cut_off in [false, true] {
        let mut fixture = Fixture::new(1 << 30);
        fixture.saved[0] = Some(fixture.open(0).await.position);
        fixture.log.commit(3);
        until("all is on disk", || fixture.log.state.lock().released == 3).await;
        fixture.writer.abort();
        fixture.spool.append(&commits(4, 6)).expect("it is written");
        fixture.files.drop_unsynced(is_cut_off);
        let mut one = fixture.open(0).await;
        assert_eq!(read_to(&mut *one.source, 3).await, [1, 2, 3]);
        let unreadable = one.source.next(10).await;
        assert!(matches!(&unreadable, Err(SourceError::SpoolFailed { .. })), "{unreadable:?}");
        fixture.spool.sync().expect_err("the sync reports it");
        let given_up = timeout(Duration::from_secs(1), one.source.next(10)).await;
        assert!(matches!(&given_up, Err(_) | Ok(Err(SourceError::SpoolFailed { .. }))), "{given_up:?}");
        fixture.spool.prepare().expect("there is a new segment");
        fixture.spool.append(&commits(4, 6)).expect("it is written again");
        assert_eq!(read_to(&mut *one.source, 6).await, [4, 5, 6]);
    }
}

/// The error of a read of which the disk has no bytes.
const EIO: i32 = 5;

/// Makes reads of the segment at `index` fail, and starts again.
fn restart_with_unreadable(fixture: &mut Fixture, index: usize) {
    fixture.writer.abort();
    {
        let mut state = fixture.files.0.lock();
        let number = *state.files.keys().nth(index).expect("there is a segment");
        state.unreadable.insert(number, EIO);
    }
    fixture.restart();
}

/// Every start failed, and none of the clusters had deletes, until an operator removed the file.
#[tokio::test(start_paused = true)]
async fn a_segment_that_the_disk_cannot_read_is_a_loss_for_the_clusters_that_need_it() {
    let mut fixture = Fixture::new(super::super::SPOOL_BYTES_MIN);
    fixture.log.state.lock().key_bytes = 200;
    for index in 0..2 {
        fixture.saved[index] = Some(fixture.open(index).await.position);
    }
    fixture.log.commit(2_000);
    until("all is on disk", || fixture.log.state.lock().released == 2_000).await;
    assert!(fixture.files.0.lock().files.len() > 2);
    fixture.saved[1] = Some(Position("1900".into()));
    restart_with_unreadable(&mut fixture, 1);
    let mut two = fixture.open(1).await;
    assert_eq!(read_to(&mut *two.source, 2_000).await.len(), 101, "a cluster that does not need it reads on");
    let lost = fixture.open_error(0, Start::At(Position("0".into()))).await;
    assert!(matches!(&lost, SourceError::PositionLost { position, .. } if position.0 == "0"), "{lost}");
    assert!(fixture.files.0.lock().unreadable.is_empty(), "it is removed");
}

/// Of the newest one the database has what was not synced, and no more.
#[tokio::test(start_paused = true)]
async fn a_newest_segment_that_the_disk_cannot_read_is_a_loss_unless_the_database_has_it() {
    for is_released in [false, true] {
        let mut fixture = Fixture::new(super::super::SPOOL_BYTES_MIN);
        fixture.log.state.lock().key_bytes = 200;
        fixture.saved[0] = Some(fixture.open(0).await.position);
        fixture.log.commit(2_000);
        until("all is on disk", || fixture.log.state.lock().released == 2_000).await;
        if !is_released {
            fixture.log.state.lock().released = 0;
        }
        // It acted on a loss that was in the segment.
        fixture.saved[1] = Some(Position("1:2000".into()));
        let newest = fixture.files.0.lock().files.len() - 1;
        restart_with_unreadable(&mut fixture, newest);
        let mut one = fixture.open(0).await;
        if !is_released {
            assert_eq!(read_to(&mut *one.source, 2_000).await.len(), 2_000);
            continue;
        }
        let mut last = 0;
        loop {
            match timeout(DEADLINE, one.source.next(10)).await.expect("the loss is reported") {
                Ok(commits) => last = commits.commits.last().map_or(last, |commit| number(&commit.position)),
                Err(SourceError::PositionLost { .. }) => break,
                // While the writer looks for a new position.
                Err(_) => {}
            }
        }
        assert!((100..2_000).contains(&last), "{last}");
        until("the loss is recorded", || fixture.spool.end().epoch == 2).await;
        assert_eq!(read_loss(&mut *fixture.open(1).await.source).await, "1:2000");
    }
}

/// Such errors are the operator's to mend, and nothing is lost.
#[test]
fn a_segment_that_may_not_be_read_stops_the_start() {
    let files = Arc::new(MemoryFiles::default());
    files.create(1, &record::HEADER).expect("it is written");
    const EACCES: i32 = 13;
    files.0.lock().unreadable.insert(1, EACCES);
    let log = Arc::new(LogHandle(Arc::new(ScriptedLog::default())));
    let statistics = Arc::new(SpoolStatistics::default());
    let error = Spool::recover(files.clone(), log, 1 << 30, CLUSTERS, statistics).err().expect("it is refused");
    assert!(error.contains("cannot read the spool"), "{error}");
    assert_eq!(files.0.lock().files.len(), 1);
}
