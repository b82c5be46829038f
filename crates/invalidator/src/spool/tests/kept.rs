//! What is kept of a spool, and what a replay reads beside its writer.

use super::*;
use crate::{
    source::WallClock,
    spool::{ArchiveBeginning, KeepLimits, KeepingFolder, SegmentFolder, SpoolArchive},
};
use std::{fs, io, path::Path, time::UNIX_EPOCH};

const DAY: Duration = Duration::from_secs(86_400);
const BYTES_MAX: u64 = 1 << 20;

fn keeping(state_dir: &Path, bytes_max: u64, now: SystemTime) -> (Arc<KeepingFolder>, Arc<SpoolStatistics>) {
    let statistics = Arc::new(SpoolStatistics::default());
    let folder = SegmentFolder::open(&state_dir.join("spool")).expect("a folder");
    let (limits, clock): (_, WallClock) = (KeepLimits { age_max: DAY, bytes_max }, Arc::new(move || now));
    let kept = KeepingFolder::new(folder, limits, clock, statistics.clone()).expect("it is read");
    (Arc::new(kept), statistics)
}

fn names(state_dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(state_dir.join("spool")).expect("a folder");
    let mut names: Vec<_> =
        entries.map(|entry| entry.expect("an entry").file_name().into_string().expect("text")).collect();
    names.sort();
    names.iter().map(|name| name.trim_start_matches('0').to_owned()).collect()
}

#[test]
fn what_is_kept_is_bounded_by_size_and_age() {
    let state = tempfile::tempdir().expect("a directory");
    let now = SystemTime::now();
    let (folder, statistics) = keeping(state.path(), 250, now);
    for number in 1..=5 {
        folder.create(number, &[0; 100]).expect("it is created");
    }
    for number in 1..=4 {
        folder.retire(number).expect("it is kept");
    }
    assert_eq!(names(state.path()), ["3.kept", "4.kept", "5.commits"], "the oldest went first");
    assert_eq!(statistics.kept_bytes(), 200);
    assert_eq!(folder.numbers().expect("it lists"), [5], "the spool does not see them");
    // Another run finds them.
    let (_, statistics) = keeping(state.path(), 250, now);
    assert_eq!(statistics.kept_bytes(), 200);
    let (_, statistics) = keeping(state.path(), 250, now + DAY * 2);
    assert_eq!((names(state.path()), statistics.kept_bytes()), (vec!["5.commits".into()], 0), "they are too old");
    let (folder, _) = keeping(state.path(), 250, now);
    folder.create(6, &[0; 100]).expect("it is created");
    folder.retire(5).expect("it is kept");
    // A clock that goes back makes it a file of the future.
    let (_, statistics) = keeping(state.path(), 250, now - DAY * 2);
    assert_eq!((names(state.path()), statistics.kept_bytes()), (vec!["5.kept".into(), "6.commits".into()], 100));
    let (none, _) = keeping(state.path(), 0, now);
    none.create(7, &[0; 100]).expect("it is created");
    none.retire(6).expect("it is removed");
    assert_eq!(names(state.path()), ["7.commits"]);
}

/// The append that closed the next segment failed, and all clusters paused.
#[test]
fn a_segment_that_an_operator_has_removed_is_not_kept() {
    let state = tempfile::tempdir().expect("a directory");
    let (folder, statistics) = keeping(state.path(), BYTES_MAX, SystemTime::now());
    (1..=3).for_each(|number| folder.create(number, &[0; 100]).expect("it is created"));
    fs::remove_file(state.path().join("spool/0000000000000001.commits")).expect("it is removed");
    (1..=2).for_each(|number| folder.retire(number).expect("a missing file is no error"));
    assert_eq!((names(state.path()), statistics.kept_bytes()), (vec!["2.kept".into(), "3.commits".into()], 100));
}

#[test]
fn a_full_disk_costs_what_is_kept_first() {
    let state = tempfile::tempdir().expect("a directory");
    let (folder, statistics) = keeping(state.path(), 1_000, SystemTime::now());
    for number in 1..=4 {
        folder.create(number, &[0; 100]).expect("it is created");
    }
    (1..=3).for_each(|number| folder.retire(number).expect("it is kept"));
    let full = || Err(io::ErrorKind::StorageFull.into());
    folder.with_space(|| if names(state.path()).len() > 1 { full() } else { Ok(()) }).expect("there is space now");
    assert_eq!((names(state.path()), statistics.kept_discarded.value()), (vec!["4.commits".to_owned()], 3));
    let failed = folder.with_space(full).expect_err("nothing more can be removed");
    assert_eq!((failed.kind(), names(state.path())), (io::ErrorKind::StorageFull, vec!["4.commits".to_owned()]));
}

/// A spool that has passed `commits` commits, of some 250 bytes each, to its clusters.
async fn write_spool(
    state_dir: &Path,
    commits: u64,
    keep_bytes: u64,
) -> (Arc<ScriptedLog>, Arc<Spool>, JoinHandle<()>) {
    let log = Arc::new(ScriptedLog::default());
    log.state.lock().key_bytes = 200;
    let (files, statistics) = keeping(state_dir, keep_bytes, SystemTime::now());
    let spool = Spool::recover(files, Arc::new(LogHandle(log.clone())), BYTES_MAX, CLUSTERS, statistics).expect("new");
    let writer = SpoolWriter {
        spool: spool.clone(),
        start: Start::Now,
        saved: Vec::new(),
        stops_at_loss: false,
        read_keys_max: 10,
    };
    let writer = tokio::spawn(async move { match writer.run().await {} });
    let mut sources = Vec::new();
    for cluster in CLUSTERS {
        let spooled = SpooledLog::new(spool.clone(), cluster);
        sources.push((until_ok("it begins", async || spooled.open(&Start::Now).await).await.source, spooled));
    }
    log.commit(commits);
    for (source, spooled) in &mut sources {
        read_to(&mut **source, commits).await;
        spooled.release(&Position(commits.to_string()));
    }
    // One more sync removes what every cluster has passed: all but the newest segment.
    log.commit(1);
    read_to(&mut *sources[0].0, commits + 1).await;
    until("segments are retired", || names(state_dir).iter().filter(|name| name.ends_with(".commits")).count() == 1)
        .await;
    (log, spool, writer)
}

fn archive(state_dir: &Path, log: &Arc<ScriptedLog>) -> SpoolArchive {
    SpoolArchive::open(state_dir, Arc::new(LogHandle(log.clone()))).expect("there is a spool")
}

async fn read_archive(archive: &SpoolArchive, start: Start, last: u64) -> Vec<u64> {
    let mut opened = archive.open(&start).await.expect("it reaches back");
    read_to(&mut *opened.source, last).await
}

#[tokio::test]
async fn a_replay_reads_what_every_cluster_has_passed() {
    let state = tempfile::tempdir().expect("a directory");
    let (log, _spool, writer) = write_spool(state.path(), 3_000, 16 << 20).await;
    until("segments are kept", || names(state.path()).iter().filter(|name| name.ends_with(".kept")).count() > 3).await;
    let archive = archive(state.path(), &log);
    assert_eq!(archive.beginning().expect("it is read").committed_at, Some(UNIX_EPOCH));
    assert_eq!(archive.newest_position().await.expect("it is read"), Position("3001".into()));
    assert_eq!(read_archive(&archive, Start::Earliest, 3_001).await, Vec::from_iter(1..=3_001));
    let later = read_archive(&archive, Start::At(Position("2000".into())), 3_001).await;
    assert_eq!(later, Vec::from_iter(2_000..=3_001), "what is at the position may be a part of it");
    // A part of a record, which is being written, ends the log.
    writer.abort();
    let newest =
        names(state.path()).iter().map(|name| name.split('.').next().unwrap_or("0").parse().unwrap_or(0)).max();
    let newest: u64 = newest.expect("a segment");
    let path = state.path().join(format!("spool/{newest:016}.commits"));
    let mut bytes = fs::read(&path).expect("it is there");
    bytes.extend_from_slice(&[9, 0, 0, 0, 1]);
    fs::write(&path, bytes).expect("written");
    assert_eq!(archive.newest_position().await.expect("it is read"), Position("3001".into()));
    assert_eq!(read_archive(&archive, Start::Earliest, 3_001).await.len(), 3_001);
}

/// A run with a standby has read on without the spool. What was kept of before ended at a gap, and a replay that wanted
/// only what is behind it began there, and failed.
#[tokio::test]
async fn nothing_is_kept_of_a_spool_that_is_not_continued() {
    let state = tempfile::tempdir().expect("a directory");
    let (log, _spool, writer) = write_spool(state.path(), 3_000, 16 << 20).await;
    until("segments are kept", || names(state.path()).iter().filter(|name| name.ends_with(".kept")).count() > 3).await;
    writer.abort();
    let (files, statistics) = keeping(state.path(), 16 << 20, SystemTime::now());
    let handle = Arc::new(LogHandle(log.clone()));
    let spool = Spool::recover(files, handle, BYTES_MAX, CLUSTERS, statistics.clone()).expect("it is read");
    let later = SavedStart { log_identity: "log".into(), position: Position("4000".into()) };
    spool.discard_if_passed(&vec![later; CLUSTERS.len()]).expect("files are removed");
    assert_eq!((names(state.path()), statistics.kept_bytes()), (vec![], 0));
}

#[tokio::test]
async fn a_replay_of_what_is_not_kept_fails_with_the_beginning_of_the_log() {
    let state = tempfile::tempdir().expect("a directory");
    let (log, _spool, _writer) = write_spool(state.path(), 3_000, 300_000).await;
    let archive = archive(state.path(), &log);
    until("segments are removed", || archive.beginning().is_ok_and(|begins| number(&begins.position) > 0)).await;
    let ArchiveBeginning { position, .. } = archive.beginning().expect("it is read");
    assert!(number(&position) > 0);
    let refused = archive.open(&Start::At(Position("0".into()))).await.err().expect("it is gone").to_string();
    assert!(refused.contains(&format!("the log begins at {}", position.0)), "{refused}");
    let first = number(&position) + 1;
    let read = read_archive(&archive, Start::At(position.clone()), 3_001).await;
    assert!(read.ends_with(&Vec::from_iter(first..=3_001)) && read.len() < 3_001, "{first}");
    // Segments are removed while they are read: the invalidator does not wait for a replay.
    let mut slow = archive.open(&Start::Earliest).await.expect("it is read").source;
    slow.next(1).await.expect("the first segment is read");
    let kept: Vec<_> = names(state.path()).into_iter().filter(|name| name.ends_with(".kept")).collect();
    assert!(kept.len() > 1, "{kept:?}");
    for name in &kept {
        fs::remove_file(state.path().join(format!("spool/{name:0>21}"))).expect("it is there");
    }
    let lost = loop {
        if let Err(error) = slow.next(100).await {
            break error.to_string();
        }
    };
    assert!(lost.contains("the log begins at"), "{lost}");
}

#[tokio::test]
async fn a_replay_beside_the_writer_finds_every_commit() {
    let state = tempfile::tempdir().expect("a directory");
    let (log, spool, _writer) = write_spool(state.path(), 1_000, 16 << 20).await;
    let spooled = SpooledLog::new(spool.clone(), CLUSTERS[0]);
    let other = SpooledLog::new(spool, CLUSTERS[1]);
    let archive = archive(state.path(), &log);
    for _ in 0..4 {
        log.commit(1_000);
        let newest = log.state.lock().commits;
        until_ok("it is written", async || match archive.newest_position().await? {
            at if number(&at) >= newest => Ok(()),
            _ => Err(SourceError::Unreachable { why: "not yet".into() }),
        })
        .await;
        [&spooled, &other].iter().for_each(|log| log.release(&Position(newest.to_string())));
        let read = read_archive(&archive, Start::Earliest, newest).await;
        assert_eq!(read, Vec::from_iter(1..=newest));
    }
}

/// A position as the database shows it may be before a loss or after it.
#[tokio::test]
async fn a_replay_counts_the_losses_that_it_reads_and_asks_on_which_side_of_them_a_position_is() {
    let state = tempfile::tempdir().expect("a directory");
    let (log, spool, writer) = write_spool(state.path(), 10, 16 << 20).await;
    let before = archive(state.path(), &log);
    before.check_position(&Position("9".into())).expect("there was no loss");
    let wrong = before.check_position(&Position("nothing".into())).expect_err("no position").to_string();
    assert!(wrong.contains("is no position of this log"), "{wrong}");
    writer.abort();
    spool.append_gap(1, &Position("5".into()), "the slot was dropped").expect("written");

    let archive = archive(state.path(), &log);
    for start in [Start::Earliest, Start::At(Position("0:3".into()))] {
        let mut source = archive.open(&start).await.expect("it reaches back").source;
        read_to(&mut *source, 11).await;
        assert_eq!(archive.losses(), 0, "the read ends before the loss");
    }
    let mut source = archive.open(&Start::Earliest).await.expect("it reaches back").source;
    read_to(&mut *source, 11).await;
    assert_eq!(source.next(1).await.expect("the loss").position, Position("1:5".into()));
    assert_eq!(archive.losses(), 1);
    let unclear = archive.open(&Start::At(Position("7".into()))).await.err().expect("it is refused").to_string();
    assert!(unclear.contains("give 1:7") && unclear.contains("or 0:7"), "{unclear}");
    archive.open(&Start::At(Position("1:5".into()))).await.expect("after the loss");
}
