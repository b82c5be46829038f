//! A physical standby of a real PostgreSQL takes the place of its primary, with a replication slot of the same name.

use crate::{
    moving_address::MovingAddress,
    postgres_server::{Client, END, Server, eventually, keys_of, last_position, own_by_server, read_until},
};
use lookaside_invalidator::{
    CommitLog as _, Position, SourceError, Start,
    source::postgres::{PostgresLog, PostgresSource},
};
use std::{fs, sync::Arc, time::SystemTime};

/// Writes two megabytes of log.
const FILL: &str = "INSERT INTO app SELECT repeat(md5(i::text), 30) FROM generate_series(1, 2000) i";

/// A primary with a table to fill, and its standby.
async fn pair() -> (Server, Client, Server) {
    let primary = Server::start(&[]).await;
    let mut client = primary.set_up().await;
    client.run("CREATE TABLE app (text text)").await;
    let standby = Server::start_standby_of(&primary).await;
    (primary, client, standby)
}

/// Waits until the standby has replayed all that the primary has flushed.
async fn wait_replayed(primary: &mut Client, standby: &mut Client) {
    let end = primary.one("SELECT pg_current_wal_flush_lsn()::text").await;
    let replayed = format!("SELECT (pg_last_wal_replay_lsn() >= '{end}')::text");
    eventually("the standby replays it", async || (standby.one(&replayed).await == "true").then_some(())).await;
}

async fn promote(standby: &Server, client: &mut Client) {
    standby.promote();
    let promoted = "SELECT (NOT pg_is_in_recovery())::text";
    eventually("it is promoted", async || (client.one(promoted).await == "true").then_some(())).await;
}

/// Gives the standby, which has stopped, the slot as the primary has it on disk. From version 17 on the server does so
/// by itself, for slots that were created for it.
fn copy_slot(primary: &Server, standby: &Server) {
    let slot = "data/pg_replslot/lookaside";
    fs::create_dir(standby.path(slot)).expect("a directory");
    own_by_server(&standby.path(slot));
    let state = format!("{slot}/state");
    fs::copy(primary.path(&state), standby.path(&state)).expect("the slot is copied");
    own_by_server(&standby.path(&state));
}

/// The standby had received less than was read from the primary, and its log had grown beyond the position before the
/// invalidator was back: reading went on there, and the deletes of the commits in between were lost in silence.
#[tokio::test]
async fn a_standby_that_had_received_less_loses_the_position_however_much_it_has_written_since() {
    let (primary, mut on_primary, standby) = pair().await;
    let mut on_standby = standby.client().await;
    let mut source = primary.source(Start::Now).await;
    wait_replayed(&mut on_primary, &mut on_standby).await;
    on_standby.run("ALTER SYSTEM SET primary_conninfo = ''").await;
    on_standby.run("SELECT pg_reload_conf()").await;
    let receivers = "SELECT count(*) FROM pg_stat_wal_receiver";
    eventually("it receives no more", async || (on_standby.one(receivers).await == "0").then_some(())).await;
    on_primary.run(FILL).await;
    on_primary.run(END).await;
    let position = last_position(&read_until(&mut source, "end").await);
    drop((source, on_primary, primary));

    promote(&standby, &mut on_standby).await;
    on_standby.run("SELECT pg_create_logical_replication_slot('lookaside', 'pgoutput')").await;
    on_standby.run("SELECT lookaside_invalidate('skipped')").await;
    for _ in 0..2 {
        on_standby.run(FILL).await;
    }
    let error = standby.try_source(standby.options(), Start::At(position.clone())).await.err();
    assert!(matches!(&error, Some(SourceError::PositionLost { why, .. }) if why.contains("timeline")), "{error:?}");

    let mut source = standby.source(Start::Now).await;
    on_standby.run(END).await;
    let later = last_position(&read_until(&mut source, "end").await);
    drop(source);
    standby.source(Start::At(later)).await;
}

/// It was said that the slot cannot be created; from version 16 on it was, and the log could not be read all the same.
#[tokio::test]
async fn a_standby_is_not_read_before_it_is_promoted() {
    let (_primary, mut on_primary, standby) = pair().await;
    let mut on_standby = standby.client().await;
    wait_replayed(&mut on_primary, &mut on_standby).await;
    for start in [Start::Now, Start::Earliest, Start::At(Position("0/1".into()))] {
        let error = standby.try_source(standby.options(), start).await.err();
        let is_named = matches!(&error, Some(SourceError::Unreachable { why }) if why.contains("a physical standby"));
        assert!(is_named, "{error:?}");
    }
    promote(&standby, &mut on_standby).await;
    let mut source = standby.source(Start::Now).await;
    on_standby.run(END).await;
    assert_eq!(keys_of(&read_until(&mut source, "end").await), ["end"]);
}

#[tokio::test]
async fn a_standby_that_had_received_all_that_was_read_is_read_on() {
    let (primary, mut on_primary, mut standby) = pair().await;
    let mut source = primary.source(Start::Now).await;
    on_primary.run("SELECT lookaside_invalidate('first')").await;
    let first = last_position(&read_until(&mut source, "first").await);
    on_primary.run("SELECT lookaside_invalidate('second')").await;
    wait_replayed(&mut on_primary, &mut standby.client().await).await;
    drop(source);
    on_primary.run("CHECKPOINT").await;
    standby.stop();
    copy_slot(&primary, &standby);
    drop((on_primary, primary));
    standby.restart().await;
    let mut on_standby = standby.client().await;
    promote(&standby, &mut on_standby).await;
    on_standby.run(END).await;

    let mut source = standby.source(Start::At(first.clone())).await;
    let read = read_until(&mut source, "end").await;
    assert_eq!(keys_of(&read), ["second", "end"]);
    drop(source);
    let (before, after) = (&read[0].position.0, &read[1].position.0);
    assert!(before.ends_with("@1") && after.ends_with("@2"), "{before} is before the promotion, {after} after it");
    // What a version saved that did not write down the timeline.
    let unknown = Position(first.0.split('@').next().expect("a part").into());
    let mut source = standby.source(Start::At(unknown)).await;
    assert_eq!(keys_of(&read_until(&mut source, "end").await), ["second", "end"]);
}

/// The log is read from before the fork, as a cluster that was down needs it, or a spool of which a crash has cut off
/// the end. Another cluster has more than that, and the standby had received less: it skipped what the standby has
/// committed at the positions before its own, in silence.
#[tokio::test]
async fn what_a_cluster_has_got_beyond_the_position_counts_too() {
    let (primary, mut on_primary, mut standby) = pair().await;
    let mut source = primary.source(Start::Now).await;
    on_primary.run("SELECT lookaside_invalidate('first')").await;
    let first = last_position(&read_until(&mut source, "first").await);
    wait_replayed(&mut on_primary, &mut standby.client().await).await;
    on_primary.run("CHECKPOINT").await;
    standby.stop();
    copy_slot(&primary, &standby);
    on_primary.run("SELECT lookaside_invalidate('second')").await;
    let second = last_position(&read_until(&mut source, "second").await);
    drop((source, on_primary, primary));
    standby.restart().await;
    let mut on_standby = standby.client().await;
    promote(&standby, &mut on_standby).await;
    on_standby.run("SELECT lookaside_invalidate('skipped')").await;
    on_standby.run(FILL).await;

    let from_first = Start::At(first.clone());
    let log = standby.commit_log();
    log.note_delivered(&first);
    drop(log.open(&from_first).await.expect("no cluster has more"));
    log.note_delivered(&second);
    let error = log.open(&from_first).await.err();
    assert!(matches!(&error, Some(SourceError::PositionLost { why, .. }) if why.contains("timeline")), "{error:?}");
    let mut source = log.open(&Start::Now).await.expect("what is read after a loss").source;
    on_standby.run(END).await;
    assert_eq!(keys_of(&read_until(&mut *source, "end").await), ["end"]);
}

/// While the log of the primary was still read, the address led to its promoted standby, which had received less. The
/// end of that one's log was before what was read, so a router was notified that its cluster is up to date.
#[tokio::test]
async fn the_newest_position_is_that_of_the_server_that_is_read() {
    let (primary, mut on_primary, standby) = pair().await;
    let address = Arc::new(MovingAddress::default());
    address.move_to(primary.options().port);
    let log = PostgresLog::new(primary.options(), address.clone(), Arc::new(SystemTime::now));
    let mut source = PostgresSource::open(&log, &Start::Now).await.expect("a source");
    on_primary.run(END).await;
    let read = last_position(&read_until(&mut source, "end").await);
    let newest = log.newest_position().await.expect("the primary's");
    assert!(log.covers(&newest, &read));
    let mut on_standby = standby.client().await;
    wait_replayed(&mut on_primary, &mut on_standby).await;
    promote(&standby, &mut on_standby).await;
    address.move_to(standby.options().port);
    let refused = log.newest_position().await;
    let is_named = |why: &str| why.contains("on timeline 2 now") && why.contains("on timeline 1 is read");
    assert!(matches!(&refused, Err(SourceError::Unreachable { why }) if is_named(why)), "{refused:?}");

    // When its log is read, its newest position counts.
    on_standby.run("SELECT pg_create_logical_replication_slot('lookaside', 'pgoutput')").await;
    drop(source);
    let _source = PostgresSource::open(&log, &Start::Now).await.expect("a source");
    log.newest_position().await.expect("the standby's");
}
