//! A spool that is a cache: another invalidator, without its files, begins at the positions of the clusters.

use super::*;
use crate::spool::{SPOOL_BYTES_MIN, SpoolMarks, SpoolMarksState};

/// Marks that outlive an invalidator.
#[derive(Default)]
struct StoredMarks(Mutex<SpoolMarksState>);

impl SpoolMarks for StoredMarks {
    fn state(&self) -> SpoolMarksState {
        self.0.lock().clone()
    }

    fn save(&self, marks: SpoolMarksState) -> BoxFuture<'_, Result<(), SourceError>> {
        *self.0.lock() = marks;
        Box::pin(async { Ok(()) })
    }
}

/// Invalidators that follow each other, each with files of its own.
struct Invalidators {
    fixture: Fixture,
    marks: Arc<StoredMarks>,
}

impl Invalidators {
    /// The first one.
    fn new(bytes_max: u64) -> Invalidators {
        let fixture = Fixture::new(bytes_max);
        fixture.log.state.lock().is_shared = true;
        let mut invalidators = Invalidators { fixture, marks: Arc::default() };
        invalidators.take_over();
        invalidators
    }

    /// The end of one, and the start of the next.
    fn take_over(&mut self) {
        let fixture = &mut self.fixture;
        fixture.writer.abort();
        fixture.files = Arc::default();
        let statistics = Arc::new(SpoolStatistics::default());
        let (files, log) = (fixture.files.clone(), Arc::new(LogHandle(fixture.log.clone())));
        fixture.spool = Spool::cache(files, log, fixture.bytes_max, CLUSTERS, statistics, self.marks.clone());
        let saved = fixture.saved.iter().flatten();
        let saved = saved.map(|position| SavedStart { log_identity: "log".into(), position: position.clone() });
        let writer = SpoolWriter {
            spool: fixture.spool.clone(),
            start: Start::Now,
            saved: saved.collect(),
            stops_at_loss: false,
            read_keys_max: 4,
        };
        fixture.writer = tokio::spawn(async move { match writer.run().await {} });
    }

    /// A cluster saves a position.
    fn save(&mut self, index: usize, position: &str) {
        let position = Position(position.into());
        self.fixture.cluster(index).release(&position);
        self.fixture.saved[index] = Some(position);
    }

    fn released(&self) -> u64 {
        self.fixture.log.state.lock().released
    }
}

/// A start at which both clusters have a position.
async fn started(bytes_max: u64) -> (Invalidators, OpenedSource, OpenedSource) {
    let mut invalidators = Invalidators::new(bytes_max);
    let (one, two) = (invalidators.fixture.open(0).await, invalidators.fixture.open(1).await);
    invalidators.save(0, "0");
    invalidators.save(1, "0");
    (invalidators, one, two)
}

#[tokio::test(start_paused = true)]
async fn the_log_is_kept_until_every_cluster_has_saved_its_position() {
    let (mut invalidators, mut one, mut two) = started(1 << 30).await;
    invalidators.fixture.log.commit(8);
    assert_eq!(read_to(&mut *one.source, 8).await, (1..=8).collect::<Vec<_>>());
    assert_eq!(read_to(&mut *two.source, 8).await, (1..=8).collect::<Vec<_>>());
    let synced = || invalidators.fixture.spool.state.lock().synced.position.0 == "8";
    until("all is on disk", synced).await;
    invalidators.save(0, "8");
    assert_eq!(invalidators.released(), 0, "what is on disk here is not on the disk of another one");
    invalidators.save(1, "3");
    assert_eq!(invalidators.released(), 3);
    invalidators.take_over();
    let mut one = invalidators.fixture.open(0).await;
    let mut two = invalidators.fixture.open(1).await;
    invalidators.fixture.log.commit(1);
    assert_eq!(read_to(&mut *one.source, 9).await, [8, 9]);
    assert_eq!(read_to(&mut *two.source, 9).await, [3, 4, 5, 6, 7, 8, 9][1..]);
    assert_eq!(invalidators.released(), 3, "the next one has saved nothing yet");
}

/// Its end was where the log had been confirmed when the invalidator got a standby, far behind what was confirmed
/// since: the positions of all clusters were lost.
#[tokio::test(start_paused = true)]
async fn an_invalidator_that_has_a_standby_no_more_begins_at_the_positions_and_not_at_its_old_spool() {
    let mut fixture = Fixture::new(1 << 30);
    let (mut one, two) = (fixture.open(0).await, fixture.open(1).await);
    fixture.log.commit(4);
    assert_eq!(read_to(&mut *one.source, 4).await, [1, 2, 3, 4]);
    drop(two);
    fixture.writer.abort();
    // With a standby the positions were shared, and copied to the files of clusters.
    fixture.log.commit(6);
    fixture.log.state.lock().released = 8;
    (fixture.saved[0], fixture.saved[1]) = (Some(Position("10".into())), Some(Position("8".into())));
    fixture.restart();
    fixture.log.commit(1);
    let (mut one, mut two) = (fixture.open(0).await, fixture.open(1).await);
    assert_eq!(read_to(&mut *one.source, 11).await, [10, 11]);
    assert_eq!(read_to(&mut *two.source, 11).await, [9, 10, 11]);
    assert_eq!(fixture.spool.statistics.gaps.value(), 0);
    // The new spool is kept by the next start.
    fixture.restart();
    let mut two = fixture.open(1).await;
    assert_eq!(read_to(&mut *two.source, 11).await, [9, 10, 11]);
}

#[tokio::test(start_paused = true)]
async fn the_log_learns_what_all_clusters_have_saved_and_what_any_has() {
    let (mut invalidators, mut one, mut two) = started(1 << 30).await;
    invalidators.fixture.log.commit(8);
    read_to(&mut *one.source, 8).await;
    read_to(&mut *two.source, 8).await;
    let acknowledged = |invalidators: &Invalidators| invalidators.fixture.log.state.lock().acknowledged;
    assert_eq!(invalidators.fixture.log.state.lock().delivered, 8, "they may save it at any moment");
    invalidators.save(0, "8");
    assert_eq!(acknowledged(&invalidators), 0);
    invalidators.save(1, "3");
    assert_eq!(acknowledged(&invalidators), 3);
    invalidators.fixture.log.state.lock().delivered = 0;
    invalidators.take_over();
    invalidators.fixture.open(0).await;
    let delivered = || invalidators.fixture.log.state.lock().delivered == 8;
    until("it knows of 8, although the spool begins at 3", delivered).await;
    invalidators.save(0, "8");
    assert_eq!(acknowledged(&invalidators), 3, "the other one has not begun");
}

#[tokio::test(start_paused = true)]
async fn a_loss_that_no_cluster_has_acted_on_is_found_by_the_next_one() {
    let (mut invalidators, mut one, _) = started(1 << 30).await;
    invalidators.fixture.log.commit(4);
    assert_eq!(read_to(&mut *one.source, 4).await, [1, 2, 3, 4]);
    invalidators.save(0, "4");
    // The slot is gone, and is created again; readers do not see the newest commits yet, so no cluster acts on it.
    invalidators.take_over();
    invalidators.fixture.writer.abort();
    {
        let mut state = invalidators.fixture.log.state.lock();
        (state.released, state.is_hidden) = (8, true);
    }
    invalidators.take_over();
    until("it is marked", || invalidators.marks.state().losses == 1).await;
    // Another server, which had less, and now has more: its slot is before the saved positions.
    {
        let mut state = invalidators.fixture.log.state.lock();
        (state.released, state.is_hidden, state.commits) = (0, false, 10);
    }
    invalidators.take_over();
    for index in 0..2 {
        let mut opened = invalidators.fixture.open(index).await;
        let (_, why) = read_loss_and_reason(&mut *opened.source).await;
        assert!(why.starts_with("gone (found by an invalidator that was active before"), "{why}");
    }
    let flushed = invalidators.fixture.cluster(0).open(&Start::Now).await.expect("it goes on").position;
    assert_eq!(flushed.0, "1:10");
    invalidators.save(0, "1:10");
    invalidators.take_over();
    invalidators.fixture.log.commit(1);
    assert_eq!(read_to(&mut *invalidators.fixture.open(0).await.source, 11).await, [11], "once");
    let error = invalidators.fixture.open_error(1, Start::At(Position("0".into()))).await;
    assert!(matches!(error, SourceError::PositionLost { .. }), "the other has not acted on it: {error}");
}

/// What clusters acknowledged of the log before a loss was released from the log after it, which a promoted server
/// numbers again: the slot was then confirmed beyond what is saved.
#[tokio::test(start_paused = true)]
async fn nothing_is_released_while_a_loss_is_being_recorded() {
    let (mut invalidators, _, _) = started(1 << 30).await;
    invalidators.fixture.writer.abort();
    {
        let mut state = invalidators.fixture.log.state.lock();
        (state.commits, state.released, state.is_hidden) = (8, 8, true);
    }
    invalidators.take_over();
    until("it is marked", || invalidators.fixture.spool.is_orphan()).await;
    invalidators.fixture.log.state.lock().released = 0;
    invalidators.save(0, "4");
    invalidators.save(1, "4");
    assert_eq!(invalidators.released(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_cluster_that_lost_its_position_keeps_neither_the_log_nor_the_others() {
    let (mut invalidators, mut one, _two) = started(SPOOL_BYTES_MIN).await;
    invalidators.fixture.log.state.lock().key_bytes = 200;
    let mut read = 0;
    while invalidators.fixture.spool.statistics.discarded_segments.value() == 0 {
        invalidators.fixture.log.commit(200);
        read += 200;
        read_to(&mut *one.source, read).await;
        invalidators.save(0, &read.to_string());
    }
    until("the log is not kept for it", || invalidators.released() > 0).await;
    invalidators.take_over();
    invalidators.fixture.log.commit(1);
    let mut one = invalidators.fixture.open(0).await;
    assert_eq!(read_to(&mut *one.source, read + 1).await, [read + 1], "the other cluster resumes");
    let error = invalidators.fixture.open_error(1, Start::At(Position("0".into()))).await;
    assert!(matches!(error, SourceError::PositionLost { .. }), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_first_start_that_was_interrupted_is_continued_by_the_next_one() {
    let mut invalidators = Invalidators::new(1 << 30);
    until("the slot was created", || invalidators.fixture.log.state.lock().remembers).await;
    assert!(invalidators.marks.state().is_starting);
    invalidators.take_over();
    let mut one = invalidators.fixture.open(0).await;
    invalidators.fixture.log.commit(1);
    assert_eq!(read_to(&mut *one.source, 1).await, [1], "nothing was lost");
    assert_eq!(invalidators.fixture.spool.statistics.gaps.value(), 0);
}
