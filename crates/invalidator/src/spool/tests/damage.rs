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
