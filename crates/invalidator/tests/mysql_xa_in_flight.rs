//! Transactions that were being prepared when an invalidator began to read: in the log, and in no list. Each test holds
//! them there by a semi-synchronous server without a replica.

use crate::{
    fakes::until,
    mysql_server::{Client, DEADLINE, Kind, Server, TABLES, kinds},
    mysql_xa::{StateDirectory, commit},
};
use lookaside_client::TcpNetwork;
use lookaside_invalidator::{CommitLog as _, SourceError, Start, pipeline::OnPositionLost, source::mysql::MysqlLog};
use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};
use tokio::{
    task::JoinHandle,
    time::{sleep, timeout},
};

/// An XA PREPARE that waits for a replica, and how to end that.
struct InFlight {
    kind: Kind,
    client: Client,
    role: &'static str,
    writer_id: String,
    preparing: JoinHandle<()>,
}

impl InFlight {
    /// Returns when it is in the log. No other session knows of the transaction yet.
    async fn prepare(server: &Server, kind: Kind, xid: &'static str) -> InFlight {
        let (mut client, mut writer) = (server.client().await, server.client().await);
        let role = client.wait_for_replicas(kind, DEADLINE).await;
        let writer_id = writer.one("SELECT CONNECTION_ID()").await;
        let preparing = tokio::spawn(async move {
            let insert = format!("INSERT INTO app.lookaside_outbox (item) VALUES ('{xid}')");
            writer.run(&format!("XA START '{xid}'; {insert}; XA END '{xid}'; XA PREPARE '{xid}'")).await;
        });
        let waiting = async {
            let sessions = format!("SHOW GLOBAL STATUS LIKE 'Rpl_semi_sync_{role}_wait_sessions'");
            while client.run(&sessions).await[0][1].as_deref() != Some(&b"1"[..]) {
                sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(DEADLINE, waiting).await.expect("it waits");
        assert!(client.run("XA RECOVER").await.is_empty(), "{kind:?}: it is not listed yet");
        InFlight { kind, client, role, writer_id, preparing }
    }

    /// Returns when it is prepared, and its session has ended: before, no other one can commit it.
    async fn complete(mut self) -> Client {
        self.client.run(&format!("SET GLOBAL rpl_semi_sync_{}_enabled = OFF", self.role)).await;
        timeout(DEADLINE, self.preparing).await.expect("in time").expect("it is prepared");
        assert_eq!(self.client.run("XA RECOVER").await.len(), 1, "{:?}: it is listed", self.kind);
        let session = format!("SELECT COUNT(*) FROM information_schema.processlist WHERE id = {}", self.writer_id);
        let ending = async {
            while self.client.one(&session).await != "0" {
                sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(DEADLINE, ending).await.expect("the session ends");
        self.client
    }
}

/// Its GTID is in MariaDB's position before the transaction is listed: its commit was taken for one whose deletes had
/// been sent. MySQL's position has it later, so it is read there.
#[tokio::test]
async fn commit_of_what_was_being_prepared_at_the_start_is_a_loss_if_it_is_not_read() {
    for kind in kinds() {
        for is_gate_off in [false, true] {
            let server = kind.start(&[]).await;
            server.client().await.run(TABLES).await;
            let mut state = StateDirectory::new(&server);
            state.options.is_gate_off = is_gate_off;
            let in_flight = InFlight::prepare(&server, kind, "late").await;
            let log = MysqlLog::new(state.options.clone(), Arc::new(TcpNetwork), Arc::new(SystemTime::now));
            let opening = tokio::spawn(async move { log.open(&Start::Now).await });
            // With the gate it may wait for that.
            let opened = until("it is open", || opening.is_finished());
            let _ = timeout(Duration::from_secs(1), opened).await;
            let mut client = in_flight.complete().await;
            let opened = timeout(DEADLINE, opening).await.expect("in time").expect("no panic");
            let mut source = opened.expect("it is open").source;
            client.run("XA COMMIT 'late'").await;
            commit(&mut client, "end").await;
            let reading = async {
                let mut keys = Vec::new();
                while !keys.contains(&b"end".to_vec()) {
                    let commits = source.next(100).await?.commits;
                    keys.extend(commits.into_iter().flat_map(|commit| commit.keys));
                }
                Ok::<_, SourceError>(keys)
            };
            match (kind, timeout(DEADLINE, reading).await.expect("in time")) {
                (Kind::Mariadb, Err(SourceError::PositionLost { why, .. })) => {
                    assert!(why.contains("6c617465"), "{why}");
                }
                (Kind::Mysql, Ok(keys)) => assert_eq!(keys, [b"late".to_vec(), b"end".to_vec()]),
                (_, read) => panic!("{kind:?}, without the gate: {is_gate_off}: {read:?}"),
            }
        }
    }
}

/// No name is saved for it.
#[tokio::test]
async fn commit_between_two_processes_of_what_was_being_prepared_at_the_start_is_a_loss() {
    let server = Kind::Mariadb.start(&[]).await;
    server.client().await.run(TABLES).await;
    let mut state = StateDirectory::new(&server);
    state.options.is_gate_off = true;
    let in_flight = InFlight::prepare(&server, Kind::Mariadb, "late").await;
    let first = state.start(OnPositionLost::Stop);
    first.wait_running().await;
    let mut client = in_flight.complete().await;
    commit(&mut client, "first").await;
    first.wait_deleted("first").await;
    first.stop().await;
    client.run("XA COMMIT 'late'").await;
    for _ in 0..2 {
        let why = state.start(OnPositionLost::Stop).wait_lost().await;
        assert!(why.contains("6c617465"), "{why}");
    }
    state.run_until_flushed().await;
    let last = state.start(OnPositionLost::Stop);
    commit(&mut client, "last").await;
    last.wait_deleted("last").await;
    last.stop().await;
}
