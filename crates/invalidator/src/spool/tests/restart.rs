//! What a restart finds on a disk that could not write, and what it may trust: reads show what the page cache has.

use super::{
    super::{
        SpoolPosition,
        record::{Base, HEADER, Record, encode, encode_commit},
    },
    *,
};
use crate::spool::{SegmentFolder, SpoolArchive};
use std::{fs, io};

/// Files of a process that ends after some changes of them.
struct Interrupted {
    files: Arc<MemoryFiles>,
    remaining: Mutex<u32>,
}

impl Interrupted {
    fn run<T>(&self, change: impl FnOnce(&MemoryFiles) -> io::Result<T>) -> io::Result<T> {
        let mut remaining = self.remaining.lock();
        *remaining = remaining.checked_sub(1).ok_or_else(|| io::Error::other("the process has ended"))?;
        change(&self.files)
    }
}

impl SegmentFiles for Interrupted {
    fn numbers(&self) -> io::Result<Vec<u64>> {
        self.files.numbers()
    }

    fn create(&self, number: u64, bytes: &[u8]) -> io::Result<()> {
        self.run(|files| files.create(number, bytes))
    }

    fn append(&self, number: u64, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.run(|files| files.append(number, at, bytes))
    }

    fn sync(&self, number: u64) -> io::Result<()> {
        self.run(|files| files.sync(number))
    }

    fn truncate(&self, number: u64, bytes: u64) -> io::Result<()> {
        self.run(|files| files.truncate(number, bytes))
    }

    fn read(&self, number: u64, at: u64, bytes_max: usize) -> io::Result<Vec<u8>> {
        self.files.read(number, at, bytes_max)
    }

    fn remove(&self, number: u64) -> io::Result<()> {
        self.run(|files| files.remove(number))
    }
}

fn recover(files: Arc<dyn SegmentFiles>) -> Arc<Spool> {
    let log = Arc::new(LogHandle(Arc::new(ScriptedLog::default())));
    Spool::recover(files, log, 1 << 30, CLUSTERS, Arc::new(SpoolStatistics::default())).expect("it is read")
}

/// A fixture that has released three commits, and whose sync of three more has failed.
async fn with_failed_sync() -> Fixture {
    let mut fixture = Fixture::new(1 << 30);
    fixture.saved[0] = Some(fixture.open(0).await.position);
    fixture.log.commit(3);
    until("all is on disk", || fixture.log.state.lock().released == 3).await;
    fixture.files.0.lock().fails_to_sync = true;
    fixture.log.commit(3);
    until("a sync fails", || fixture.spool.statistics.failures.value() > 0).await;
    fixture.writer.abort();
    fixture
}

/// Syncs succeed again, and the page cache has it all, so it was taken for durable, and the log was released.
#[tokio::test(start_paused = true)]
async fn what_a_failed_sync_has_not_written_is_written_again_by_the_next_process() {
    let mut fixture = with_failed_sync().await;
    fixture.files.0.lock().fails_to_sync = false;
    fixture.restart();
    fixture.log.commit(1);
    until("all is on disk", || fixture.log.state.lock().released == 7).await;
    fixture.writer.abort();
    fixture.files.crash(|_| 0);
    fixture.restart();
    let read = read_to(&mut *fixture.open(0).await.source, 7).await;
    assert_eq!(read, [1, 2, 3, 4, 5, 6, 7]);
}

/// A cluster that has acted on a loss must not find another one of the same epoch later.
#[tokio::test(start_paused = true)]
async fn what_a_failed_sync_has_not_written_is_not_read_before_it_is_written_again() {
    let mut fixture = Fixture::new(1 << 30);
    fixture.saved[0] = Some(fixture.open(0).await.position);
    fixture.writer.abort();
    fixture.spool.prepare().expect("it is written");
    fixture.files.0.lock().fails_to_sync = true;
    fixture.log.state.lock().released = 5;
    fixture.log.commit(5);
    fixture.spool.append_gap(1, &Position("5".into()), "gone").expect_err("it is not synced");
    fixture.restart();
    let mut one = fixture.open(0).await;
    while let Ok(read) = timeout(Duration::from_secs(10), one.source.next(10)).await {
        let error = read.expect_err("nothing can be read");
        assert!(matches!(error, SourceError::SpoolFailed { .. }), "{error}");
    }
    let new = timeout(Duration::from_secs(10), fixture.cluster(1).open(&Start::Now)).await;
    assert!(!matches!(&new, Ok(Ok(_))), "it would begin behind the loss");
    fixture.files.0.lock().fails_to_sync = false;
    assert_eq!(read_loss(&mut *one.source).await, "0");
}

/// Wherever the machine ends while the newest segment is written again: what was released is there.
#[tokio::test(start_paused = true)]
async fn a_start_may_be_interrupted_anywhere() {
    for changes in 0.. {
        let fixture = with_failed_sync().await;
        fixture.files.0.lock().fails_to_sync = false;
        let interrupted = Interrupted { files: fixture.files.clone(), remaining: Mutex::new(changes) };
        let spool = recover(Arc::new(interrupted));
        let prepared = spool.prepare();
        let is_whole = changes >= 2;
        assert_eq!(prepared.is_ok(), changes >= 1, "{prepared:?}");
        assert_eq!(fixture.files.0.lock().files.len(), if changes == 1 { 2 } else { 1 }, "before a crash");
        fixture.files.crash(|_| 0);
        for _ in 0..2 {
            let again = recover(fixture.files.clone());
            again.prepare().expect("it is written");
            let expected = if prepared.is_ok() { "6" } else { "3" };
            assert_eq!(again.end().position.0, expected, "after {changes} changes");
            let one = SpooledLog::new(again, "one");
            let mut opened = one.open(&Start::At(Position("0".into()))).await.expect("it begins");
            let last = number(&Position(expected.into()));
            assert_eq!(read_to(&mut *opened.source, last).await, (1..=last).collect::<Vec<_>>());
        }
        if is_whole {
            break;
        }
    }
}

#[test]
fn a_part_of_a_segment_that_was_being_created_is_none() {
    let directory = tempfile::tempdir().expect("a directory");
    let folder = Arc::new(SegmentFolder::open(directory.path()).expect("it is created"));
    let bytes = segment("0", false, &[1, 2]);
    folder.create(1, &bytes).expect("it is written");
    let new = directory.path().join("0000000000000002.new");
    fs::write(&new, &bytes[..bytes.len() - 3]).expect("it is written");
    let spool = recover(folder.clone());
    assert_eq!(spool.end().position.0, "2");
    spool.prepare().expect("it is written");
    assert_eq!((folder.numbers().expect("it lists"), new.exists()), (vec![2], false));
    assert_eq!(folder.read(2, 0, 1 << 20).expect("it exists"), bytes);
}

/// The bytes of a segment at `base` with these commits. Keys are numbers, and 100 more in `another_log`.
fn segment(base: &str, another_log: bool, commits: &[u64]) -> Vec<u8> {
    let mut bytes = HEADER.to_vec();
    let position = SpoolPosition::new(0, &Position(base.into()));
    let base = Base { position, log_identity: "log".into(), is_origin: base == "0", loss: None };
    encode(&Record::Base(base), &mut bytes);
    for commit in commits {
        let key = commit + if another_log { 100 } else { 0 };
        let keys = vec![key.to_string().into_bytes()];
        let position = Position(commit.to_string());
        encode_commit(&Commit { position, keys, committed_at: SystemTime::UNIX_EPOCH }, &mut bytes);
    }
    bytes
}

/// A segment that was given up behind commit 2, and had 3 to 5 of a server that failed; the next one has what was
/// committed by the promoted one.
fn given_up_before_a_failover() -> [Vec<u8>; 2] {
    [segment("0", false, &[1, 2, 3, 4, 5]), segment("2", true, &[3, 4, 6])]
}

/// It was read up to its end after a restart, and what the promoted server had committed up to there was skipped.
#[tokio::test(start_paused = true)]
async fn a_segment_that_was_given_up_ends_where_the_next_one_begins() {
    let files = Arc::new(MemoryFiles::default());
    for (number, bytes) in (1..).zip(given_up_before_a_failover()) {
        files.create(number, &bytes).expect("it is written");
    }
    let spool = recover(files.clone());
    spool.prepare().expect("it is written");
    assert_eq!(files.0.lock().files[&1].0, segment("0", false, &[1, 2]), "the rest takes no space");
    let mut opened = SpooledLog::new(spool, "one").open(&Start::At(Position("0".into()))).await.expect("it begins");
    assert_eq!(read_to(&mut *opened.source, 106).await, [1, 2, 103, 104, 106]);
}

#[tokio::test]
async fn a_replay_reads_a_segment_that_was_given_up_as_the_clusters_do() {
    let state = tempfile::tempdir().expect("a directory");
    let folder = SegmentFolder::open(&state.path().join("spool")).expect("it is created");
    for (number, bytes) in (1..).zip(given_up_before_a_failover()) {
        folder.create(number, &bytes).expect("it is written");
    }
    let log = Arc::new(LogHandle(Arc::new(ScriptedLog::default())));
    let archive = SpoolArchive::open(state.path(), log).expect("a spool");
    let mut opened = archive.open(&Start::Earliest).await.expect("it begins");
    assert_eq!(read_to(&mut *opened.source, 106).await, [1, 2, 103, 104, 106]);
}

/// The last file was read to its end while the invalidator was about to give it up. What the promoted server had
/// committed up to that end was skipped.
#[tokio::test]
async fn a_replay_reads_on_behind_a_segment_that_is_given_up_after_it_was_read() {
    let state = tempfile::tempdir().expect("a directory");
    let folder = SegmentFolder::open(&state.path().join("spool")).expect("it is created");
    let [given_up, next] = given_up_before_a_failover();
    folder.create(1, &given_up).expect("it is written");
    let log = Arc::new(LogHandle(Arc::new(ScriptedLog::default())));
    let archive = SpoolArchive::open(state.path(), log).expect("a spool");
    for (from, expected) in [("0", [103, 104, 106].as_slice()), ("4", &[104, 106])] {
        let _ = folder.remove(2);
        let mut opened = archive.open(&Start::At(Position(from.into()))).await.expect("it begins");
        read_to(&mut *opened.source, 5).await;
        folder.create(2, &next).expect("it is written");
        assert_eq!(read_to(&mut *opened.source, 106).await, expected, "from {from}");
    }
}
