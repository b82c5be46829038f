//! A disk without space, and the limit of a spool.

use super::*;
use crate::spool::SPOOL_BYTES_MIN;

#[tokio::test(start_paused = true)]
async fn a_full_disk_stops_reading_until_there_is_space() {
    let fixture = Fixture::new(1 << 30);
    let mut one = fixture.open(0).await;
    fixture.log.commit(5);
    read_to(&mut *one.source, 5).await;
    until("the log is released", || fixture.log.state.lock().released == 5).await;
    fixture.files.0.lock().free_bytes = Some(10);
    fixture.log.commit(5);
    let error = timeout(DEADLINE, one.source.next(10)).await.expect("in time").expect_err("the disk is full");
    assert!(matches!(&error, SourceError::SpoolFailed { why } if why.contains("make room")), "{error}");
    sleep(Duration::from_secs(5)).await;
    let reads = fixture.log.state.lock().reads;
    sleep(Duration::from_secs(60)).await;
    assert_eq!(fixture.log.state.lock().reads, reads);
    assert_eq!(fixture.log.state.lock().released, 5);
    assert!(fixture.spool.statistics.failures.value() > 10);
    assert!(fixture.files.0.lock().files.len() < 4, "attempts leave no files");
    fixture.files.0.lock().free_bytes = None;
    let read = timeout(DEADLINE, async {
        loop {
            match one.source.next(10).await {
                Ok(commits) if !commits.commits.is_empty() => break commits.commits.len(),
                _ => sleep(Duration::from_millis(10)).await,
            }
        }
    });
    assert_eq!(read.await.expect("it goes on"), 5);
    until("the log is released", || fixture.log.state.lock().released == 10).await;
}

#[tokio::test(start_paused = true)]
async fn beyond_its_limit_the_spool_gives_up_the_clusters_that_are_behind() {
    let mut fixture = Fixture::new(SPOOL_BYTES_MIN);
    fixture.log.state.lock().key_bytes = 200;
    let mut one = fixture.open(0).await;
    fixture.saved[1] = Some(fixture.open(1).await.position);
    for round in 1..=10 {
        fixture.log.commit(1_000);
        read_to(&mut *one.source, round * 1_000).await;
        fixture.cluster(0).release(&Position((round * 1_000).to_string()));
    }
    until("all is on disk", || fixture.log.state.lock().released == 10_000).await;
    let bytes: usize = fixture.files.0.lock().files.values().map(|(bytes, _)| bytes.len()).sum();
    assert!(bytes as u64 <= SPOOL_BYTES_MIN + SPOOL_BYTES_MIN / 4, "{bytes}");
    assert!(fixture.spool.statistics.discarded_segments.value() > 0);
    let lost = fixture.open_error(1, Start::At(fixture.saved[1].clone().expect("saved"))).await;
    assert!(matches!(&lost, SourceError::PositionLost { position, .. } if position.0 == "0"), "{lost}");
    // As a pipeline does after it has flushed its cluster.
    let mut two = fixture.cluster(1).open(&Start::Now).await.expect("it begins at the end");
    fixture.log.commit(1);
    assert_eq!(read_to(&mut *two.source, 10_001).await.last(), Some(&10_001));
}

/// A fixture with some segments, of which nothing was read.
async fn with_segments() -> Fixture {
    let mut fixture = Fixture::new(SPOOL_BYTES_MIN);
    fixture.log.state.lock().key_bytes = 200;
    for index in 0..2 {
        fixture.saved[index] = Some(fixture.open(index).await.position);
    }
    fixture.log.commit(2_000);
    until("all is on disk", || fixture.log.state.lock().released == 2_000).await;
    assert!(fixture.files.0.lock().files.len() > 2);
    fixture
}

/// Segments were removed only after a sync, and nothing could be written that would be synced.
#[tokio::test(start_paused = true)]
async fn a_full_disk_loses_the_segments_that_every_cluster_has() {
    let fixture = with_segments().await;
    fixture.files.0.lock().free_bytes = Some(0);
    fixture.log.commit(10);
    until("nothing can be written", || fixture.spool.statistics.failures.value() > 0).await;
    for index in 0..2 {
        read_to(&mut *fixture.open(index).await.source, 2_000).await;
        fixture.cluster(index).release(&Position("2000".into()));
    }
    until("there is space", || fixture.log.state.lock().released == 2_010).await;
    assert_eq!(fixture.spool.statistics.discarded_segments.value(), 0);
}

/// A cluster that had read all of the spool did not begin before the log was read, and so held all of it.
#[tokio::test(start_paused = true)]
async fn a_start_on_a_full_disk_removes_the_segments_that_every_cluster_has() {
    let mut fixture = with_segments().await;
    fixture.writer.abort();
    fixture.saved = vec![Some(Position("2000".into())); 2];
    fixture.files.0.lock().free_bytes = Some(0);
    fixture.restart();
    until("nothing can be written", || fixture.spool.statistics.failures.value() > 0).await;
    fixture.log.commit(1);
    let (mut one, mut two) = tokio::join!(fixture.open(0), fixture.open(1));
    assert_eq!(read_to(&mut *one.source, 2_001).await.last(), Some(&2_001));
    assert_eq!(read_to(&mut *two.source, 2_001).await.last(), Some(&2_001));
}

/// Clusters waited for space on the disk with the deletes that were there.
#[tokio::test(start_paused = true)]
async fn a_start_on_a_full_disk_delivers_what_an_earlier_run_has_left() {
    let mut fixture = Fixture::new(1 << 30);
    for index in 0..2 {
        fixture.saved[index] = Some(fixture.open(index).await.position);
    }
    fixture.log.commit(4);
    until("all is on disk", || fixture.log.state.lock().released == 4).await;
    fixture.writer.abort();
    fixture.files.0.lock().free_bytes = Some(0);
    fixture.log.commit(3);
    fixture.restart();
    until("nothing can be written", || fixture.spool.statistics.failures.value() > 0).await;
    let mut one = fixture.open(0).await;
    assert_eq!(read_to(&mut *one.source, 4).await, [1, 2, 3, 4]);
    let full = timeout(DEADLINE, one.source.next(10)).await.expect("in time").expect_err("there is no more");
    assert!(matches!(full, SourceError::SpoolFailed { .. }), "{full}");
    assert_eq!(fixture.log.state.lock().released, 4, "what is not written again stays in the log");
    let new = timeout(Duration::from_secs(10), fixture.cluster(1).open(&Start::Now)).await;
    assert!(!matches!(&new, Ok(Ok(_))), "a crash may remove what it would be behind");
    // The same source reads on in the copy, from its place.
    fixture.files.0.lock().free_bytes = None;
    let read = timeout(DEADLINE, async {
        let mut read = Vec::new();
        while read.last() != Some(&7) {
            match one.source.next(10).await {
                Ok(commits) => read.extend(commits.commits.iter().map(|commit| number(&commit.position))),
                Err(_) => sleep(Duration::from_millis(10)).await,
            }
        }
        read
    });
    assert_eq!(read.await.expect("it goes on"), [5, 6, 7]);
    until("all is on disk", || fixture.log.state.lock().released == 7).await;
    let files = fixture.files.0.lock().files.len();
    assert_eq!(files, 1, "the copy alone");
}
