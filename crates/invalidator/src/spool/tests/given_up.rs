//! A segment that could not be written to is given up: nothing is appended to it, and what it holds beyond its synced
//! part is read from the log again.

use super::{Commit, Commits, LogHandle, MemoryFiles, Position, ScriptedLog, SegmentFiles, Spool, SpoolStatistics};
use crate::spool::SpoolPosition;
use lookaside_sync::Mutex;
use std::{
    io,
    sync::{Arc, Weak},
    time::SystemTime,
};

/// Files whose disk is full for an append during a sync, which itself succeeds.
#[derive(Default)]
struct FullDuringSync {
    files: MemoryFiles,
    /// The spool, and what is appended to it; once.
    appended: Mutex<Option<(Weak<Spool>, Commits)>>,
}

impl SegmentFiles for FullDuringSync {
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
        if let Some((spool, commits)) = self.appended.lock().take() {
            self.files.0.lock().free_bytes = Some(0);
            let spool = spool.upgrade().expect("it is in use");
            spool.append(&commits).expect_err("the disk is full");
            self.files.0.lock().free_bytes = None;
        }
        Ok(())
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

fn commit(number: u64) -> Commits {
    let position = Position(number.to_string());
    let keys = vec![number.to_string().into_bytes()];
    Commits {
        commits: vec![Commit { position: position.clone(), keys, committed_at: SystemTime::UNIX_EPOCH }],
        position,
    }
}

#[test]
fn nothing_is_appended_to_a_segment_that_was_given_up() {
    let spool = spool(Arc::new(MemoryFiles::default()));
    spool.abandon_segment();
    assert!(spool.append(&commit(1)).is_err() && spool.append_gap(&Position("1".into()), "x").is_err());
    assert_eq!(spool.end().position.0, "0");
    spool.prepare().expect("there is a new segment");
    spool.append(&commit(1)).expect("it is open");
}

/// The next segment began where that sync ended, and the end of the one before it was not read: what was between them
/// reached those clusters only that had read it already.
#[test]
fn a_sync_that_ends_after_its_segment_was_given_up_leaves_no_gap_to_the_next_segment() {
    let files = Arc::new(FullDuringSync::default());
    let spool = spool(files.clone());
    spool.append(&commit(1)).expect("it is written");
    *files.appended.lock() = Some((Arc::downgrade(&spool), commit(2)));
    spool.sync().expect("the disk writes");
    let end = spool.end();
    spool.prepare().expect("there is a new segment");
    assert_eq!(spool.newest().base.position, end, "the next segment begins where readers end");
    assert_eq!(spool.state.lock().synced, end);
}
