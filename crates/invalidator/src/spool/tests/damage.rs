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

/// The kernel could not write what clusters had not read yet, and dropped it: that was a loss, although it is read again.
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
