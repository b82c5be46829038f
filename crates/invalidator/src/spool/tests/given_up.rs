//! A segment that could not be written to is given up: nothing is appended to it, and what it holds beyond its synced
//! part is read from the log again.

use super::{Commit, Commits, LogHandle, MemoryFiles, Position, ScriptedLog, SegmentFiles, Spool, SpoolStatistics};
use crate::spool::{SpoolPosition, SpoolSegment};
use lookaside_sync::Mutex;
use std::{
    io,
    sync::{Arc, Weak},
    time::SystemTime,
};

/// Files that do something else during a sync, which itself succeeds.
#[derive(Default)]
struct BusyDuringSync {
    files: MemoryFiles,
    /// The spool, and what is done; once.
    work: Mutex<Option<Work>>,
}

type Work = (Weak<Spool>, fn(&Spool, &MemoryFiles));

impl SegmentFiles for BusyDuringSync {
    fn numbers(&self) -> io::Result<Vec<u64>> {
        self.files.numbers()
    }

    fn create(&self, number: u64, bytes: &[u8]) -> io::Result<()> {
        self.files.create(number, bytes)
    }

    fn append(&self, number: u64, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.files.append(number, at, bytes)
    }

    fn sync(&self, number: u64) -> io::Result<()> {
        self.files.sync(number)?;
        let work = self.work.lock().take();
        if let Some((spool, work)) = work {
            work(&spool.upgrade().expect("it is in use"), &self.files);
        }
        Ok(())
    }

    fn truncate(&self, number: u64, bytes: u64) -> io::Result<()> {
        self.files.truncate(number, bytes)
    }

    fn read(&self, number: u64, at: u64, bytes_max: usize) -> io::Result<Vec<u8>> {
        self.files.read(number, at, bytes_max)
    }

    fn remove(&self, number: u64) -> io::Result<()> {
        self.files.remove(number)
    }
}

/// A spool that begins at 0, without a writer.
fn spool(files: Arc<dyn SegmentFiles>) -> Arc<Spool> {
    let log = Arc::new(LogHandle(Arc::new(ScriptedLog::default())));
    let spool = Spool::recover(files, log, 1 << 30, ["one"], Arc::new(SpoolStatistics::default())).expect("it is read");
    spool.create("log", SpoolPosition::new(0, &Position("0".into())), None).expect("it is written");
    spool
}

fn newest(spool: &Spool) -> SpoolSegment {
    let state = spool.state.lock();
    state.segments.as_ref().and_then(|segments| segments.list.back()).expect("there is a segment").clone()
}

fn commit(number: u64) -> Commits {
    let position = Position(number.to_string());
    let keys = vec![number.to_string().into_bytes()];
    Commits {
        commits: vec![Commit { position: position.clone(), keys, committed_at: SystemTime::UNIX_EPOCH }],
        position,
    }
}

fn fail_to_append(spool: &Spool, files: &MemoryFiles) {
    files.0.lock().free_bytes = Some(0);
    spool.append(&commit(2)).expect_err("the disk is full");
    files.0.lock().free_bytes = None;
}

#[test]
fn nothing_is_appended_to_a_segment_that_was_given_up() {
    let spool = spool(Arc::new(MemoryFiles::default()));
    spool.abandon_segment();
    assert!(spool.append(&commit(1)).is_err() && spool.append_gap(1, &Position("1".into()), "x").is_err());
    assert_eq!(spool.end().position.0, "0");
    spool.prepare().expect("there is a new segment");
    spool.append(&commit(1)).expect("it is open");
}

/// The next segment began where that sync ended, and the end of the one before it was not read: what was between them
/// reached those clusters only that had read it already.
#[test]
fn a_sync_that_ends_after_its_segment_was_given_up_leaves_no_gap_to_the_next_segment() {
    let files = Arc::new(BusyDuringSync::default());
    let spool = spool(files.clone());
    spool.append(&commit(1)).expect("it is written");
    *files.work.lock() = Some((Arc::downgrade(&spool), fail_to_append));
    spool.sync().expect("the disk writes");
    let end = spool.end();
    spool.prepare().expect("there is a new segment");
    assert_eq!(newest(&spool).base.position, end, "the next segment begins where readers end");
    assert_eq!(spool.state.lock().synced, end);
}

/// The size of the former segment was taken for that of the new one, whose end was then sought behind its last byte
/// once it was given up: a loss, for every cluster.
#[test]
fn a_sync_that_ends_after_its_segment_was_replaced_is_none_of_the_next_one() {
    let files = Arc::new(BusyDuringSync::default());
    let spool = spool(files.clone());
    spool.append(&commit(1)).expect("it is written");
    spool.sync().expect("the disk writes");
    let replace = |spool: &Spool, _: &MemoryFiles| spool.add_segment(spool.next_base(None)).expect("it is written");
    *files.work.lock() = Some((Arc::downgrade(&spool), replace));
    spool.sync().expect("the disk writes");
    let newest = newest(&spool);
    assert_eq!((newest.number, spool.state.lock().synced_bytes), (2, newest.bytes));
}

/// It was neither removed nor counted: a disk that failed to sync was filled with more than the limit of the spool.
#[test]
fn what_is_not_read_of_a_segment_that_was_given_up_takes_no_space() {
    let files = Arc::new(MemoryFiles::default());
    let spool = spool(files.clone());
    spool.append(&commit(1)).expect("it is written");
    spool.sync().expect("the disk writes");
    spool.append(&commit(2)).expect("it is written");
    files.0.lock().fails_to_sync = true;
    spool.sync().expect_err("the disk fails");
    files.0.lock().fails_to_sync = false;
    spool.prepare().expect("there is a new segment");
    let bytes = || files.0.lock().files.values().map(|(bytes, _)| bytes.len() as u64).sum::<u64>();
    let counted = |spool: &Spool| spool.state.lock().segments.as_ref().expect("it has begun").bytes();
    assert_eq!(bytes(), counted(&spool));
    assert_eq!(spool.end().position.0, "1");
}
