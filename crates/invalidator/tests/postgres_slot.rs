//! The replication slot of a real PostgreSQL: confirmed, lost, copied, in use; and where a start begins.

use crate::postgres_server::{DEADLINE, END, Server, eventually, keys_of, last_position, read_until};
use lookaside_client::TcpNetwork;
use lookaside_invalidator::source::postgres::{PostgresLog, PostgresOptions};
use lookaside_invalidator::{CommitLog as _, Position, Source as _, SourceError, Start};
use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};
use tokio::time::timeout;

#[tokio::test]
async fn a_slot_that_is_missing_or_confirmed_by_another_loses_the_position() {
    let server = Server::start(&[]).await;
    let mut client = server.set_up().await;
    let source = server.source(Start::Now).await;
    let before = source.position();
    drop(source);
    client.run("SELECT lookaside_invalidate('skipped')").await;
    let end = client.one("SELECT pg_current_wal_flush_lsn()::text").await;
    client.run(&format!("SELECT pg_replication_slot_advance('lookaside', '{end}')")).await;
    let lost = |error: Option<SourceError>| match error {
        Some(SourceError::PositionLost { why, .. }) => why,
        other => panic!("{other:?}"),
    };
    let error = server.try_source(server.options(), Start::At(before.clone())).await.err();
    assert!(lost(error).contains("another reader"));
    client.run("SELECT pg_drop_replication_slot('lookaside')").await;
    let error = server.try_source(server.options(), Start::At(before)).await.err();
    assert!(lost(error).contains("does not exist"));
    let mut source = server.source(Start::Now).await;
    client.run(END).await;
    assert_eq!(keys_of(&read_until(&mut source, "end").await), ["end"], "a new slot reads on");
}

#[tokio::test]
async fn a_slot_whose_log_was_removed_loses_the_position_and_is_replaced() {
    let server = Server::start(&["max_slot_wal_keep_size=1MB", "min_wal_size=32MB", "max_wal_size=32MB"]).await;
    let mut client = server.set_up().await;
    client.run("CREATE TABLE app (text text)").await;
    let source = server.source(Start::Now).await;
    let before = source.position();
    drop(source);
    for _ in 0..4 {
        client.run("INSERT INTO app SELECT repeat(md5(i::text), 100) FROM generate_series(1, 5000) i").await;
        client.run("SELECT pg_switch_wal()").await;
        client.run("CHECKPOINT").await;
    }
    assert_eq!(client.one("SELECT wal_status FROM pg_replication_slots").await, "lost");
    let error = server.try_source(server.options(), Start::At(before)).await.err();
    assert!(matches!(error, Some(SourceError::PositionLost { .. })), "{error:?}");
    let remembered = server.commit_log().remembered_position().await.expect("the slot is found");
    assert!(remembered.is_some(), "a start without any state is no first start");
    let mut source = server.source(Start::Now).await;
    client.run(END).await;
    assert_eq!(keys_of(&read_until(&mut source, "end").await), ["end"]);
}

/// Deletes were lost, and the cluster was to be flushed: each attempt waited 60 s for the transactions that were open
/// at its beginning, and the next one for others. While transactions of over a minute overlapped no attempt succeeded.
#[tokio::test]
async fn a_start_after_a_loss_waits_for_each_open_transaction_once_and_for_as_long_as_it_takes() {
    let server = Server::start(&[]).await;
    let (mut first, mut second) = (server.set_up().await, server.client().await);
    first.run("CREATE TABLE app (id int)").await;
    drop(server.source(Start::Now).await);
    let begin = "BEGIN; INSERT INTO app VALUES (1)";
    first.run(begin).await;
    let options = PostgresOptions { visible_wait_max: Duration::from_millis(100), ..server.options() };
    let mut source = server.try_source(options, Start::Now).await.expect("a source");
    let position = source.position();
    let gate = source.wait_until_visible(&position);
    tokio::pin!(gate);
    assert!(timeout(Duration::from_secs(1), &mut gate).await.is_err(), "the first transaction is open");
    second.run(begin).await;
    first.run("COMMIT").await;
    timeout(DEADLINE, gate).await.expect("in time").expect("the gate opens, though another transaction is open");
    second.run("COMMIT").await;
}

/// A promoted standby that had received less than we have read: its log begins again with positions that were used.
#[tokio::test]
async fn a_log_that_ends_before_the_position_loses_it() {
    let server = Server::start(&[]).await;
    let mut client = server.set_up().await;
    drop(server.source(Start::Now).await);
    let ahead = client.one("SELECT (pg_current_wal_flush_lsn() + 100000000)::text").await;
    let error = server.try_source(server.options(), Start::At(Position(ahead))).await.err();
    assert!(matches!(&error, Some(SourceError::PositionLost { why, .. }) if why.contains("ends at")), "{error:?}");
}

#[tokio::test]
async fn a_slot_of_an_earlier_version_is_copied() {
    let server = Server::start(&[]).await;
    let mut client = server.set_up().await;
    for slot in ["lookaside_one", "lookaside_two"] {
        let options = PostgresOptions { slot: slot.into(), ..server.options() };
        drop(server.try_source(options, Start::Now).await.expect("a source"));
    }
    let slot = "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = 'lookaside_two'";
    let position = Position(client.one(slot).await);
    client.run("SELECT lookaside_invalidate('user:1')").await;
    let mut source = server.source(Start::At(position)).await;
    client.run(END).await;
    assert_eq!(keys_of(&read_until(&mut source, "end").await), ["user:1", "end"]);
    let slots = client.one("SELECT string_agg(slot_name, ' ' ORDER BY slot_name) FROM pg_replication_slots").await;
    assert_eq!(slots, "lookaside lookaside_one lookaside_two", "an operator drops the others");
}

/// After a partition the server holds the slot for the lost connection: for a minute no reader could begin.
#[tokio::test]
async fn a_lost_session_of_the_same_process_is_ended_and_one_of_another_is_not() {
    let server = Server::start(&[]).await;
    let mut client = server.set_up().await;
    let options = PostgresOptions { heartbeat: Duration::from_secs(60), ..server.options() };
    let log = PostgresLog::new(options, Arc::new(TcpNetwork), Arc::new(SystemTime::now));
    let mut lost = log.open(&Start::Now).await.expect("a source");
    client.run("SELECT lookaside_invalidate('first')").await;
    let first = last_position(&read_until(&mut *lost.source, "first").await);
    client.run(END).await;

    let error = server.try_source(server.options(), Start::At(first.clone())).await.err();
    assert!(matches!(&error, Some(SourceError::InUse { .. })), "{error:?}");
    assert_eq!(keys_of(&read_until(&mut *lost.source, "end").await), ["end"], "it was not ended");

    let mut resumed = log.open(&Start::At(first)).await.expect("a source");
    let next = eventually("the slot is free", async || resumed.source.next(10).await.ok());
    let read = timeout(DEADLINE / 2, next).await.expect("before the server's own timeout of a minute");
    assert_eq!(keys_of(&read.commits), ["end"]);
}

/// A second invalidator with the same slot and a folder of its own declared a loss, and advised to drop the slot that
/// the first one was reading.
#[tokio::test]
async fn a_slot_that_another_process_reads_is_neither_lost_nor_changed() {
    let server = Server::start(&[]).await;
    let mut client = server.set_up().await;
    let begun = server.source(Start::Now).await.position();
    client.run("SELECT lookaside_invalidate('first')").await;
    let log = server.commit_log();
    let mut reading = log.open(&Start::At(begun.clone())).await.expect("a source").source;
    let first = last_position(&read_until(&mut *reading, "first").await);
    log.release(&first);
    let state = "SELECT active_pid::text || ' ' || (confirmed_flush_lsn > restart_lsn) FROM pg_replication_slots";
    let reader = tokio::spawn(async move { while reading.next(10).await.is_ok() {} });
    let confirmed = "SELECT confirmed_flush_lsn::text FROM pg_replication_slots";
    let wanted = first.0.split('@').next().expect("a part").to_owned();
    eventually("the slot is confirmed", async || (client.one(confirmed).await == wanted).then_some(())).await;
    let pid = client.one("SELECT active_pid::text FROM pg_replication_slots").await;
    let before = client.one(state).await;
    // The first position is behind what is confirmed, which would be a loss if no process read the slot.
    for start in [Start::At(begun), Start::At(first), Start::Now, Start::Earliest] {
        let error = server.try_source(server.options(), start.clone()).await.err();
        let Some(SourceError::InUse { why }) = error else { panic!("{start:?}: {error:?}") };
        for fact in [&format!("pid {pid}"), "lookaside-invalidator", "account postgres", "--shared-state", "--slot"] {
            assert!(why.contains(fact), "{fact}: {why}");
        }
    }
    let remembered = server.commit_log().remembered_position().await;
    assert!(matches!(remembered, Err(SourceError::InUse { .. })), "{remembered:?}");
    // The invalidators of a pair have other names: one that is by itself, and reads the slot, is not of the pair.
    let pair = || server.commit_log().with_shared_slot("pair", Arc::new(|| true));
    let refused = pair().remembered_position().await;
    assert!(matches!(refused, Err(SourceError::InUse { .. })), "{refused:?}");
    assert_eq!((client.one(state).await, reader.is_finished()), (before, false));
    reader.abort();
}

/// An invalidator without a folder of before, and without --shared-state, took the slot while those that share it
/// changed.
#[tokio::test]
async fn a_slot_whose_positions_are_shared_is_not_taken_while_none_of_its_readers_runs() {
    let server = Server::start(&[]).await;
    let mut client = server.set_up().await;
    drop(server.source(Start::Now).await);
    assert!(server.commit_log().remembered_position().await.expect("the slot is found").is_some());
    client.run("CREATE TABLE lookaside_invalidator (name text PRIMARY KEY, state text NOT NULL)").await;
    client.run(r#"INSERT INTO lookaside_invalidator VALUES ('pair', '{"slot":"lookaside","clusters":{}}')"#).await;
    let error = server.commit_log().remembered_position().await.err();
    let Some(SourceError::InUse { why }) = error else { panic!("{error:?}") };
    assert!(why.contains("--shared-state-name pair") && why.contains("DELETE FROM lookaside_invalidator"), "{why}");
    let pair = server.commit_log().with_shared_slot("pair", Arc::new(|| true));
    assert!(pair.remembered_position().await.expect("it is theirs").is_some());
    let other_pair = server.commit_log().with_shared_slot("other", Arc::new(|| true));
    let refused = other_pair.remembered_position().await;
    assert!(matches!(refused, Err(SourceError::InUse { .. })), "{refused:?}");
    client.run(r#"UPDATE lookaside_invalidator SET state = '{"slot":"other","clusters":{}}'"#).await;
    assert!(server.commit_log().remembered_position().await.expect("of other ones").is_some());
}

#[tokio::test]
async fn the_slot_is_confirmed_up_to_what_was_released_and_no_further() {
    let server = Server::start(&[]).await;
    let mut client = server.set_up().await;
    let log = server.commit_log();
    let mut opened = log.open(&Start::Now).await.expect("a source");
    client.run("SELECT lookaside_invalidate('first')").await;
    let first = last_position(&read_until(&mut *opened.source, "first").await);
    client.run("SELECT lookaside_invalidate('second')").await;
    read_until(&mut *opened.source, "second").await;
    log.release(&first);
    let reader = tokio::spawn(async move { while opened.source.next(10).await.is_ok() {} });
    let confirmed = "SELECT confirmed_flush_lsn::text FROM pg_replication_slots";
    let mut watcher = server.client().await;
    // The server knows nothing of the timeline that positions name.
    let wanted = first.0.split('@').next().expect("a part").to_owned();
    eventually("the slot is confirmed", async || (watcher.one(confirmed).await == wanted).then_some(())).await;
    let end = client.one("SELECT pg_switch_wal()::text").await;
    let reported = format!("SELECT coalesce(bool_and(write_lsn >= '{end}'), false)::text FROM pg_stat_replication");
    eventually("the reader reports", async || (watcher.one(&reported).await == "true").then_some(())).await;
    assert_eq!(client.one(confirmed).await, wanted, "the second commit was read but is not safe");
    reader.abort();
    let mut resumed = server.source(Start::At(first)).await;
    assert_eq!(keys_of(&read_until(&mut resumed, "second").await), ["second"]);
}
