//! Positions that are lost, and starts that are none.

use super::{super::record::HEADER, *};

/// A fixture whose first process has read four commits, and whose files are gone.
async fn without_files() -> Fixture {
    let fixture = Fixture::new(1 << 30);
    fixture.open(0).await;
    fixture.log.commit(4);
    until("all is on disk", || fixture.log.state.lock().released == 4).await;
    fixture.writer.abort();
    fixture.files.0.lock().files.clear();
    fixture
}

#[tokio::test(start_paused = true)]
async fn a_loss_is_found_by_every_cluster_after_the_commits_before_it_and_once() {
    let mut fixture = Fixture::new(1 << 30);
    for index in 0..2 {
        fixture.saved[index] = Some(fixture.open(index).await.position);
    }
    fixture.log.commit(4);
    until("all is on disk", || fixture.log.state.lock().released == 4).await;
    fixture.writer.abort();
    fixture.log.commit(4);
    fixture.log.state.lock().released = 8;
    fixture.restart();
    let mut one = fixture.open(0).await;
    assert_eq!(read_to(&mut *one.source, 4).await, [1, 2, 3, 4]);
    assert_eq!(read_loss(&mut *one.source).await, "4");
    let flushed = fixture.cluster(0).open(&Start::Now).await.expect("it begins at the end").position;
    assert_eq!(flushed.0, "1:8");
    fixture.saved[0] = Some(flushed);
    fixture.restart();
    fixture.log.commit(2);
    let mut one = fixture.open(0).await;
    assert_eq!(read_to(&mut *one.source, 10).await, [9, 10], "the loss is not found again");
    let mut two = fixture.open(1).await;
    assert_eq!(read_to(&mut *two.source, 4).await, [1, 2, 3, 4]);
    assert_eq!(read_loss(&mut *two.source).await, "4", "this cluster finds it later");
    let newest = fixture.cluster(0).newest_position().await.expect("a position");
    assert!(!fixture.cluster(1).covers(&Position("4".into()), &newest), "a router is not told that all is deleted");
}

/// The end of the log of a server that had less, after a failover, was taken for a position of the former one's log: a
/// router that waited was notified that its cluster is up to date, before the clusters were flushed.
#[tokio::test(start_paused = true)]
async fn a_newest_position_is_not_known_before_a_loss_is_recorded() {
    let mut fixture = Fixture::new(1 << 30);
    let start = fixture.open(0).await.position;
    fixture.saved[0] = Some(start.clone());
    fixture.log.commit(4);
    until("all is on disk", || fixture.log.state.lock().released == 4).await;
    assert_eq!(fixture.cluster(0).newest_position().await.expect("it is read").0, "4");
    fixture.writer.abort();
    fixture.log.commit(4);
    fixture.log.state.lock().released = 8;
    fixture.log.state.lock().is_hidden = true;
    fixture.restart();
    until("the loss is noticed", || fixture.spool.statistics.gaps.value() == 1).await;
    until("it is marked", || fixture.spool.is_orphan()).await;
    let newest = timeout(DEADLINE, fixture.cluster(0).newest_position()).await.expect("in time");
    newest.expect_err("the loss is not recorded");
    fixture.log.state.lock().is_hidden = false;
    let newest = until_ok("it is known", async || fixture.cluster(0).newest_position().await).await;
    assert_eq!(newest.0, "1:8");
    assert!(!fixture.cluster(0).covers(&Position("4".into()), &newest));
}

/// Clusters are flushed when they find a loss: a client that fills a key after that must see the commits before the new
/// position, whose deletes are never sent.
#[tokio::test(start_paused = true)]
async fn a_loss_is_not_found_before_readers_see_what_the_new_position_covers() {
    let mut fixture = Fixture::new(1 << 30);
    fixture.saved[0] = Some(fixture.open(0).await.position);
    fixture.writer.abort();
    fixture.log.commit(4);
    fixture.log.state.lock().released = 4;
    fixture.log.state.lock().is_hidden = true;
    fixture.restart();
    let reading = async { read_loss(&mut *fixture.open(0).await.source).await };
    tokio::pin!(reading);
    assert!(timeout(Duration::from_secs(30), &mut reading).await.is_err(), "readers do not see it yet");
    fixture.log.state.lock().is_hidden = false;
    assert_eq!(reading.await, "0");
}

#[tokio::test(start_paused = true)]
async fn a_state_directory_that_is_gone_is_a_loss() {
    let mut fixture = without_files().await;
    fixture.restart();
    let mut one = fixture.open(0).await;
    fixture.saved[0] = Some(one.position.clone());
    assert_eq!(read_loss(&mut *one.source).await, "4");
    fixture.restart();
    assert_eq!(read_loss(&mut *fixture.open(0).await.source).await, "4", "until the cluster has been flushed");
    let mut flushed = fixture.cluster(0).open(&Start::Now).await.expect("it goes on");
    fixture.log.commit(1);
    assert_eq!(read_to(&mut *flushed.source, 5).await, [5], "the loss is not found again");
}

/// The look-up of a waiting router, of the same pipeline, was given the one report of a failure: the reader of the
/// cluster never stopped and never flushed.
#[tokio::test(start_paused = true)]
async fn a_look_up_leaves_the_report_of_a_failure_to_the_reader() {
    let mut fixture = without_files().await;
    let handle = Arc::new(LogHandle(fixture.log.clone()));
    let files: Arc<dyn SegmentFiles> = Arc::new(fixture.files.next_process());
    fixture.spool =
        Spool::recover(files, handle, fixture.bytes_max, CLUSTERS, Arc::default()).expect("there is nothing to read");
    let writer = SpoolWriter {
        spool: fixture.spool.clone(),
        start: Start::Now,
        saved: Vec::new(),
        // The loss is not recorded: every look at the spool finds the failure of its writer.
        stops_at_loss: true,
        read_keys_max: 10,
    };
    fixture.writer = tokio::spawn(async move { match writer.run().await {} });
    let cluster = fixture.cluster(0);
    let is_lost = |error: &SourceError| matches!(error, SourceError::PositionLost { .. });
    for _ in 0..2 {
        let newest = timeout(DEADLINE, cluster.newest_position()).await.expect("in time");
        assert!(is_lost(&newest.expect_err("nothing is read")), "each look-up fails");
        let lookup = timeout(DEADLINE, cluster.look_up()).await.expect("in time");
        assert!(is_lost(&lookup.expect_err("nothing is read")));
    }
    let error = timeout(DEADLINE, cluster.identity()).await.expect("the reader gets it, too").expect_err("it is lost");
    assert!(is_lost(&error), "{error}");
    assert!(cluster.is_logged(&error));
    assert!(timeout(DEADLINE, cluster.identity()).await.is_err(), "once");
}

#[tokio::test(start_paused = true)]
async fn a_loss_is_found_although_the_log_has_grown_before_it_was_recorded() {
    let mut fixture = Fixture::new(1 << 30);
    fixture.saved[0] = Some(fixture.open(0).await.position);
    fixture.log.commit(4);
    until("all is on disk", || fixture.log.state.lock().released == 4).await;
    fixture.writer.abort();
    fixture.log.state.lock().released = 8;
    fixture.log.state.lock().is_hidden = true;
    fixture.restart();
    until("the loss is noticed", || fixture.spool.statistics.gaps.value() == 1).await;
    until("it is marked", || fixture.spool.is_orphan()).await;
    fixture.writer.abort();
    // Another server, which had less, and now has more: its slot is before the end of the spool.
    let reader = &fixture.log.state;
    (reader.lock().released, reader.lock().is_hidden) = (0, false);
    fixture.log.commit(6);
    fixture.restart();
    let mut one = fixture.open(0).await;
    assert_eq!(read_to(&mut *one.source, 4).await, [1, 2, 3, 4]);
    // The reason of then, which was replaced by another one.
    assert_eq!(read_loss_and_reason(&mut *one.source).await, ("4".into(), "gone".into()));
}

#[tokio::test(start_paused = true)]
async fn a_spool_that_is_gone_is_begun_at_the_oldest_position() {
    let mut fixture = without_files().await;
    fixture.saved = vec![Some(Position("4".into())), Some(Position("6".into()))];
    fixture.log.commit(4);
    fixture.restart();
    assert_eq!(read_to(&mut *fixture.open(0).await.source, 8).await, [5, 6, 7, 8]);
    assert_eq!(read_to(&mut *fixture.open(1).await.source, 8).await, [6, 7, 8]);
}

#[tokio::test(start_paused = true)]
async fn a_first_start_that_was_interrupted_is_no_loss() {
    let mut fixture = Fixture::new(1 << 30);
    fixture.writer.abort();
    fixture.spool.begin_start().expect("it is marked");
    fixture.log.state.lock().remembers = true;
    fixture.restart();
    let mut one = fixture.open(0).await;
    fixture.log.commit(1);
    assert_eq!(read_to(&mut *one.source, 1).await, [1]);
}

/// The mark was removed when it was read. A start that was interrupted a second time was then taken for a loss.
#[tokio::test(start_paused = true)]
async fn a_first_start_that_is_interrupted_again_is_no_loss() {
    let mut fixture = Fixture::new(1 << 30);
    fixture.writer.abort();
    fixture.spool.begin_start().expect("it is marked");
    (fixture.log.state.lock().remembers, fixture.log.state.lock().is_down) = (true, true);
    for _ in 0..3 {
        fixture.restart();
        sleep(Duration::from_secs(1)).await;
    }
    fixture.log.state.lock().is_down = false;
    fixture.restart();
    let mut one = fixture.open(0).await;
    fixture.log.commit(1);
    assert_eq!(read_to(&mut *one.source, 1).await, [1]);
}

/// The mark stayed beside the segments. When all of these were damaged, it said that nothing had been delivered.
#[tokio::test(start_paused = true)]
async fn a_damaged_spool_is_not_taken_for_a_first_start() {
    let mut fixture = Fixture::new(1 << 30);
    fixture.open(0).await;
    fixture.log.commit(4);
    until("all is on disk", || fixture.log.state.lock().released == 4).await;
    fixture.writer.abort();
    for (bytes, _) in fixture.files.0.lock().files.values_mut().filter(|(bytes, _)| bytes.len() > HEADER.len()) {
        bytes[HEADER.len()] ^= 1;
    }
    fixture.restart();
    assert_eq!(read_loss(&mut *fixture.open(0).await.source).await, "4");
}

/// A cluster that has acted on a loss must not find another one of the same epoch later, as it would if a crash removed
/// the first one.
#[tokio::test(start_paused = true)]
async fn a_loss_is_not_read_before_it_is_durable() {
    let fixture = Fixture::new(1 << 30);
    let mut one = fixture.open(0).await;
    fixture.writer.abort();
    fixture.spool.prepare().expect("it is written");
    fixture.files.0.lock().fails_to_sync = true;
    assert!(fixture.spool.append_gap(1, &Position("5".into()), "gone").is_err());
    let read = timeout(Duration::from_secs(10), one.source.next(10)).await;
    assert!(read.is_err(), "{read:?}");
    assert_eq!(fixture.cluster(0).newest_position().await.expect("a position").0, "0", "the epoch is the same");
    fixture.files.0.lock().fails_to_sync = false;
    fixture.spool.prepare().expect("there is a new segment");
    fixture.spool.append_gap(1, &Position("5".into()), "gone").expect("it is synced");
    assert_eq!(read_loss(&mut *one.source).await, "0");
}
