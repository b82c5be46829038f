//! Transactions that were prepared before an invalidator first began to read, over several processes with saved
//! positions. Each test runs on MariaDB and on MySQL.

use crate::{
    fakes::{Cluster, Fixture, until},
    mysql_server::{Client, DEADLINE, Kind, Server, TABLES, kinds},
};
use lookaside_client::TcpNetwork;
use lookaside_invalidator::{
    Start,
    pipeline::{
        OnPositionLost, Options, Pipeline, PipelineError,
        positions::{PositionFile, SavedPosition},
    },
    source::{
        UnresolvedPrepared,
        mysql::{MysqlLog, MysqlOptions},
    },
};
use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};
use tempfile::TempDir;
use tokio::{
    task::{JoinHandle, JoinSet},
    time::{sleep, timeout},
};

/// Prepares a transaction that names `xid` as its key, and leaves its session.
async fn prepare(server: &Server, xid: &str) {
    let mut client = server.client().await;
    let insert = format!("INSERT INTO app.lookaside_outbox (item) VALUES ('{xid}')");
    client.run(&format!("XA START '{xid}'; {insert}; XA END '{xid}'; XA PREPARE '{xid}'")).await;
}

/// Prepares a transaction, and commits it 200 ms later, again and again.
async fn commit_prepared_for_ever(mut client: Client, name: &str) {
    for number in 0.. {
        let xid = format!("{name}{number}");
        let insert = format!("INSERT INTO app.lookaside_outbox (item) VALUES ('{xid}')");
        client.run(&format!("XA START '{xid}'; {insert}; XA END '{xid}'; XA PREPARE '{xid}'")).await;
        sleep(Duration::from_millis(200)).await;
        client.run(&format!("XA COMMIT '{xid}'")).await;
    }
}

/// A server, and a process that begins to read while these are prepared, by an account that may read the log, and may
/// not list prepared transactions.
async fn start_unprivileged(kind: Kind, xids: &[&str]) -> (Server, Client, StateDirectory, InvalidatorRun) {
    let server = kind.start(&[]).await;
    let mut client = server.client().await;
    client.run(TABLES).await;
    client.run("CREATE USER reader@'%'; GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO reader@'%'").await;
    client.run("GRANT SELECT ON app.* TO reader@'%'").await;
    for xid in xids {
        prepare(&server, xid).await;
    }
    let mut state = StateDirectory::new(&server);
    state.options.user = "reader".into();
    let first = state.start(OnPositionLost::Stop);
    first.wait_running().await;
    (server, client, state, first)
}

pub async fn commit(client: &mut Client, key: &str) {
    client.run(&format!("INSERT INTO app.lookaside_outbox (item) VALUES ('{key}')")).await;
}

/// The names as the log has them.
fn names(xids: &[&str]) -> UnresolvedPrepared {
    let hex = |xid: &str| xid.bytes().map(|byte| format!("{byte:02x}")).collect::<String>();
    UnresolvedPrepared::from_names(xids.iter().map(|xid| format!("x'{}',x'',1", hex(xid))).collect())
}

/// Where invalidators of one database keep the position of their cluster.
pub struct StateDirectory {
    directory: TempDir,
    pub options: MysqlOptions,
}

impl StateDirectory {
    pub fn new(server: &Server) -> StateDirectory {
        // No test resolves in time what is prepared at the start.
        let options = MysqlOptions { prepared_wait_max: Duration::from_millis(100), ..server.options() };
        StateDirectory { directory: TempDir::new().expect("a directory"), options }
    }

    fn file(&self) -> PositionFile {
        PositionFile::new(self.directory.path(), "a")
    }

    fn saved(&self) -> SavedPosition {
        self.file().read().expect("it is read").expect("a position")
    }

    fn unresolved(&self) -> Option<UnresolvedPrepared> {
        self.saved().prepared.map(|prepared| prepared.unresolved)
    }

    /// Runs a process until it has flushed its cluster after a loss, and reads on.
    pub async fn run_until_flushed(&self) {
        let saved = || (self.saved().position, self.unresolved());
        let before = saved();
        let flushing = self.start(OnPositionLost::Flush);
        until("the cluster is flushed", || flushing.cluster().state().flushes == 1 && saved() != before).await;
        flushing.wait_running().await;
        assert_eq!(flushing.cluster().state().flushes, 1);
        flushing.stop().await;
    }

    /// Starts a process.
    pub fn start(&self, on_position_lost: OnPositionLost) -> InvalidatorRun {
        let fixture = Fixture::new(1);
        let log = MysqlLog::new(self.options.clone(), Arc::new(TcpNetwork), Arc::new(SystemTime::now));
        let pipeline = Pipeline {
            log: Arc::new(log),
            positions: Arc::new(self.file()),
            options: Options { start: Start::Now, on_position_lost, ..Options::default() },
            ..fixture.pipeline(0)
        };
        let run = tokio::spawn(pipeline.run(fixture.shutdown.subscribe()));
        InvalidatorRun { fixture, run }
    }
}

/// A process of an invalidator.
pub struct InvalidatorRun {
    fixture: Fixture,
    run: JoinHandle<Result<(), PipelineError>>,
}

impl InvalidatorRun {
    fn cluster(&self) -> &Cluster {
        &self.fixture.clusters[0].0
    }

    /// Returns when it reads, and has saved its position.
    pub async fn wait_running(&self) {
        let saves = || self.fixture.statistics.clusters()[0].saved_position().is_some();
        until("it runs", || self.fixture.stat("cluster:a:state") == "running" && saves()).await;
    }

    pub async fn wait_deleted(&self, key: &str) {
        until("it is deleted", || self.cluster().deletes_of(key) == 1).await;
    }

    /// Ends it. Its position is saved.
    pub async fn stop(self) {
        self.fixture.shutdown.send_replace(true);
        timeout(DEADLINE, self.run).await.expect("in time").expect("no panic").expect("asked to stop");
    }

    /// Returns why it stopped by itself: a loss.
    pub async fn wait_lost(self) -> String {
        let ended = timeout(DEADLINE, self.run).await.expect("in time").expect("no panic");
        assert_eq!(self.fixture.stat("positions_lost"), "1");
        match ended {
            Err(error @ PipelineError::PositionLost(_)) => error.to_string(),
            other => panic!("{other:?}"),
        }
    }
}

/// The server does not list what is resolved, and the XA PREPARE is in a part of the log that was never read: the
/// commit was taken for one whose deletes had been sent.
#[tokio::test]
async fn commit_between_two_processes_of_what_was_prepared_before_the_first_is_a_loss() {
    for kind in kinds() {
        let server = kind.start(&[]).await;
        let mut client = server.client().await;
        client.run(TABLES).await;
        for xid in ["committed", "undone", "early"] {
            prepare(&server, xid).await;
        }
        let state = StateDirectory::new(&server);
        let first = state.start(OnPositionLost::Stop);
        first.wait_running().await;
        assert_eq!(state.unresolved(), Some(names(&["committed", "undone", "early"])), "{kind:?}");
        client.run("XA ROLLBACK 'early'").await;
        commit(&mut client, "first").await;
        first.wait_deleted("first").await;
        first.stop().await;
        assert_eq!(state.unresolved(), Some(names(&["committed", "undone"])), "{kind:?}");

        client.run("XA ROLLBACK 'undone'").await;
        commit(&mut client, "second").await;
        let second = state.start(OnPositionLost::Stop);
        second.wait_deleted("second").await;
        second.stop().await;
        assert_eq!(state.unresolved(), Some(names(&["committed"])), "{kind:?}");

        client.run("XA COMMIT 'committed'").await;
        for _ in 0..2 {
            let why = state.start(OnPositionLost::Stop).wait_lost().await;
            assert!(why.contains("XA transaction"), "{kind:?}: {why}");
        }
        state.run_until_flushed().await;
        assert_eq!(state.unresolved(), Some(UnresolvedPrepared::none()), "{kind:?}");
        let last = state.start(OnPositionLost::Stop);
        commit(&mut client, "last").await;
        last.wait_deleted("last").await;
        last.stop().await;
    }
}

/// A session without the log committed it. Nothing but the name that was saved shows that it ever was.
#[tokio::test]
async fn end_outside_of_the_log_of_what_was_prepared_before_the_first_process_is_a_loss() {
    for kind in kinds() {
        let server = kind.start(&[]).await;
        let mut client = server.client().await;
        client.run(TABLES).await;
        prepare(&server, "unlogged").await;
        let state = StateDirectory::new(&server);
        let first = state.start(OnPositionLost::Stop);
        first.wait_running().await;
        first.stop().await;
        // It is still prepared: no loss.
        let second = state.start(OnPositionLost::Stop);
        second.wait_running().await;
        second.stop().await;
        server.client().await.run("SET sql_log_bin = 0; XA COMMIT 'unlogged'").await;
        // The position is saved nevertheless, so the next one must find the same.
        for _ in 0..2 {
            let why = state.start(OnPositionLost::Stop).wait_lost().await;
            assert!(why.contains("the log does not show how"), "{kind:?}: {why}");
        }
        state.run_until_flushed().await;
        let last = state.start(OnPositionLost::Stop);
        last.wait_running().await;
        last.stop().await;
    }
}

/// The server lists the name again, so that the list does not show the end.
#[tokio::test]
async fn end_outside_of_the_log_is_a_loss_if_another_transaction_of_the_name_is_prepared() {
    for kind in kinds() {
        for is_read_meanwhile in [false, true] {
            let server = kind.start(&[]).await;
            server.client().await.run(TABLES).await;
            prepare(&server, "name").await;
            let state = StateDirectory::new(&server);
            let first = state.start(OnPositionLost::Stop);
            first.wait_running().await;
            let reading = match is_read_meanwhile {
                true => Some(first),
                false => {
                    first.stop().await;
                    None
                }
            };
            server.client().await.run("SET sql_log_bin = 0; XA COMMIT 'name'").await;
            prepare(&server, "name").await;
            let reading = reading.unwrap_or_else(|| state.start(OnPositionLost::Stop));
            let why = reading.wait_lost().await;
            assert!(why.contains("another one of this name"), "{kind:?}, {is_read_meanwhile}: {why}");
        }
    }
}

/// As an earlier version has saved it: the server's list counts, as it did there.
#[tokio::test]
async fn position_without_names_is_read_from() {
    for kind in kinds() {
        let server = kind.start(&[]).await;
        let mut client = server.client().await;
        client.run(TABLES).await;
        for xid in ["listed", "unlisted"] {
            prepare(&server, xid).await;
        }
        let state = StateDirectory::new(&server);
        let first = state.start(OnPositionLost::Stop);
        first.wait_running().await;
        first.stop().await;
        state.file().write(&SavedPosition { prepared: None, ..state.saved() }).expect("it is written");
        client.run("XA COMMIT 'unlisted'").await;
        commit(&mut client, "key").await;
        let second = state.start(OnPositionLost::Stop);
        second.wait_deleted("key").await;
        second.stop().await;
        assert_eq!(state.unresolved(), Some(names(&["listed"])), "{kind:?}: from now on they are saved");
        client.run("XA COMMIT 'listed'").await;
        state.start(OnPositionLost::Stop).wait_lost().await;
    }
}

/// The server does not list them for an account without a privilege, which was taken for an empty list.
#[tokio::test]
async fn commit_of_what_the_server_does_not_list_is_a_loss() {
    let Some(kind) = kinds().into_iter().find(|kind| *kind == Kind::Mysql) else { return };
    let (_server, mut client, state, first) = start_unprivileged(kind, &["old", "older"]).await;
    assert_eq!(state.unresolved(), Some(UnresolvedPrepared::Unknown));
    client.run("XA START 'read'; INSERT INTO app.lookaside_outbox (item) VALUES ('read'); XA END 'read'").await;
    client.run("XA PREPARE 'read'; XA COMMIT 'read'").await;
    first.wait_deleted("read").await;
    first.stop().await;

    client.run("XA COMMIT 'old'").await;
    let why = state.start(OnPositionLost::Stop).wait_lost().await;
    assert!(why.contains("XA_RECOVER_ADMIN"), "{why}");
    state.run_until_flushed().await;
    assert_eq!(state.unresolved(), Some(UnresolvedPrepared::Unknown));

    // With the privilege they are known, as soon as the log is read up to then.
    client.run("GRANT XA_RECOVER_ADMIN ON *.* TO reader@'%'").await;
    let privileged = state.start(OnPositionLost::Stop);
    commit(&mut client, "key").await;
    privileged.wait_deleted("key").await;
    privileged.stop().await;
    assert_eq!(state.unresolved(), Some(names(&["older"])));
    client.run("XA COMMIT 'older'").await;
    state.start(OnPositionLost::Stop).wait_lost().await;
}

/// The source that reads after a flush is not the one that has waited. The commit of each transaction that was prepared
/// where it begins was a loss, so one flush followed the other for as long as there were such transactions.
#[tokio::test]
async fn unlisted_transactions_that_end_before_the_flush_are_no_further_loss() {
    let Some(kind) = kinds().into_iter().find(|kind| *kind == Kind::Mysql) else { return };
    let (server, mut client, mut state, first) = start_unprivileged(kind, &["old"]).await;
    first.stop().await;
    client.run("XA COMMIT 'old'").await;

    // Two, so that one is prepared at any time.
    let mut load = JoinSet::new();
    for name in ["a", "b"] {
        load.spawn(commit_prepared_for_ever(server.client().await, name));
    }
    // The start waits for as long as it does by default.
    state.options.prepared_wait_max = MysqlOptions::default().prepared_wait_max;
    let flushing = state.start(OnPositionLost::Flush);
    let flushes = || flushing.cluster().state().flushes;
    until("the cluster is flushed", || flushes() > 0).await;
    commit(&mut client, "after").await;
    until("the commit after the flush is read", || flushing.cluster().deletes_of("after") > 0 || flushes() > 1).await;
    assert_eq!((flushes(), flushing.fixture.stat("positions_lost")), (1, "1".into()));
    assert!(load.try_join_next().is_none(), "the load goes on");
    flushing.stop().await;
}

/// Prepares a transaction and commits it at once, again and again. One in ten stays prepared for some time, so that
/// positions are held back and others end meanwhile.
async fn commit_soon_for_ever(server: Arc<Server>, name: String) {
    let mut client = server.client().await;
    for number in 0.. {
        let xid = format!("{name}{number}");
        let insert = format!("INSERT INTO app.lookaside_outbox (item) VALUES ('{xid}')");
        client.run(&format!("XA START '{xid}'; {insert}; XA END '{xid}'; XA PREPARE '{xid}'")).await;
        if number % 10 == 9 {
            sleep(Duration::from_millis(50)).await;
        }
        client.run(&format!("XA COMMIT '{xid}'")).await;
    }
}

/// Each start from the present meets transactions that were prepared before it, are being prepared and are committed;
/// each restart reads commits whose XA PREPARE is before its position.
#[tokio::test]
async fn starts_under_a_load_of_xa_transactions_are_no_loss() {
    for kind in kinds() {
        let server = Arc::new(kind.start(&[]).await);
        let mut client = server.client().await;
        client.run(TABLES).await;
        let mut load = JoinSet::new();
        for name in ["a", "b", "c", "d"] {
            load.spawn(commit_soon_for_ever(server.clone(), name.into()));
        }
        for start in 0..5 {
            let mut state = StateDirectory::new(&server);
            state.options.prepared_wait_max = MysqlOptions::default().prepared_wait_max;
            // It holds back the position of all restarts.
            let held = format!("held:{start}");
            for restart in 0..4 {
                let key = format!("end:{start}:{restart}");
                let run = state.start(OnPositionLost::Stop);
                run.wait_running().await;
                match restart {
                    0 => prepare(&server, &held).await,
                    3 => drop(client.run(&format!("XA COMMIT '{held}'")).await),
                    _ => {}
                }
                commit(&mut client, &key).await;
                until("it is read", || run.cluster().deletes_of(&key) == 1 || run.run.is_finished()).await;
                assert_eq!(run.fixture.stat("positions_lost"), "0", "{kind:?}");
                assert_eq!(run.cluster().deletes_of(&held), usize::from(restart == 3), "{kind:?}");
                run.stop().await;
            }
        }
        assert!(load.try_join_next().is_none(), "the load goes on");
    }
}
