//! Another server behind the address of the source, with the same log or a part of it. Each test runs on MariaDB and on
//! MySQL.

use crate::{
    fakes::{Fixture, UncheckedDisk, until},
    moving_address::MovingAddress,
    mysql_server::{Client, DEADLINE, END, Kind, Server, TABLES, fetched, keys_of, kinds, last_position, read_until},
    routers::{Behavior::Answers, FakeRouter, build_delivery},
};
use lookaside_client::TcpNetwork;
use lookaside_invalidator::{
    CommitLog, Commits, OpenedSource, Position, Source, SourceError, Start,
    pipeline::{Options, Pipeline, PipelineError},
    source::mysql::MysqlLog,
};
use lookaside_routing::BoxFuture;
use std::{
    sync::{Arc, atomic::Ordering::SeqCst},
    time::{Duration, SystemTime},
};
use tokio::{
    task::JoinHandle,
    time::{Instant, sleep, timeout},
};

/// Makes `replica` follow `primary`.
async fn replicate(kind: Kind, primary: &Server, replica: &mut Client) {
    let port = primary.port;
    let follow = match kind {
        Kind::Mariadb => format!(
            "CHANGE MASTER TO master_host = '127.0.0.1', master_port = {port}, master_user = 'root', \
             master_use_gtid = slave_pos; START SLAVE"
        ),
        Kind::Mysql => format!(
            "CHANGE REPLICATION SOURCE TO SOURCE_HOST = '127.0.0.1', SOURCE_PORT = {port}, SOURCE_USER = 'root', \
             SOURCE_AUTO_POSITION = 1, GET_SOURCE_PUBLIC_KEY = 1; START REPLICA"
        ),
    };
    replica.run(&follow).await;
}

async fn promote(kind: Kind, replica: &mut Client) {
    replica.run(kind.of("STOP SLAVE; RESET SLAVE ALL", "STOP REPLICA; RESET REPLICA ALL")).await;
}

async fn wait_for_row(client: &mut Client, id: u32) {
    let until = Instant::now() + DEADLINE;
    // Before the schema is replicated a query of the table would fail.
    while client.one("SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = 'app'").await == "0"
        || client.one(&format!("SELECT COUNT(*) FROM app.user WHERE id = {id}")).await == "0"
    {
        assert!(Instant::now() < until, "row {id} is not replicated");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn log_of(server: &Server) -> MysqlLog {
    MysqlLog::new(server.options(), Arc::new(TcpNetwork), Arc::new(SystemTime::now))
}

/// Behind one address a replica takes the place of its primary. Its identity is another, and the reader stopped.
#[tokio::test]
async fn promoted_replica_continues_the_log() {
    for kind in kinds() {
        let mut primary = kind.start(&[]).await;
        let replica = kind.start(&["--server-id=2", "--log-slave-updates=ON"]).await;
        let stranger = kind.start(&["--server-id=3"]).await;
        let mut client = primary.client().await;
        let mut promoted = replica.client().await;
        if kind == Kind::Mysql {
            // Transactions of its own set-up, which would be errant.
            promoted.run("RESET BINARY LOGS AND GTIDS").await;
        }
        replicate(kind, &primary, &mut promoted).await;
        client.run(TABLES).await;
        let mut source = primary.source(Start::Now).await;
        client.run("INSERT INTO app.user VALUES (1, '') /* lookaside: first */").await;
        let read = last_position(&read_until(&mut source, "first").await);
        client.run("INSERT INTO app.user VALUES (2, '') /* lookaside: unread */").await;
        wait_for_row(&mut promoted, 2).await;
        promote(kind, &mut promoted).await;
        client.run("INSERT INTO app.user VALUES (3, '') /* lookaside: not replicated */").await;
        let ahead = last_position(&read_until(&mut source, "not").await);
        let former = source.identity().to_owned();
        primary.kill();

        let log = log_of(&replica);
        assert_ne!(log.identity().await.expect("an identity"), former);
        assert_eq!(log.continues(&former, &read).await, Ok(true), "{kind:?}");
        promoted.run("INSERT INTO app.user VALUES (4, '') /* lookaside: later */").await;
        promoted.run(END).await;
        let mut opened = replica.source(Start::At(read.clone())).await;
        assert_eq!(keys_of(&read_until(&mut opened, "end").await), ["unread", "later", "end"], "{kind:?}");

        // A replica that lacks what was read: caches may hold what its database never had.
        assert_eq!(log.continues(&former, &ahead).await, Ok(true), "{kind:?}: the same history");
        let error = replica.try_source(replica.options(), Start::At(ahead)).await.err().expect("it is not there");
        assert!(matches!(error, SourceError::PositionLost { .. }), "{kind:?}: {error}");

        stranger.client().await.run(TABLES).await;
        let other = log_of(&stranger);
        assert_eq!(other.continues(&former, &read).await, Ok(false), "{kind:?}: another history");
        assert_eq!(other.continues(&former, &Position("none".into())).await, Ok(false), "{kind:?}");
        assert_eq!(log.continues("postgres:1", &read).await, Ok(false), "{kind:?}");
    }
}

/// A copied data directory, or a removed `auto.cnf`, gives a server another `server_uuid`; its log is the same.
#[tokio::test]
async fn server_with_a_new_uuid_continues_its_log() {
    let Some(mysqld) = fetched::mysqld() else { return };
    let mut server = Server::start_mysql(&mysqld, &["--binlog-rows-query-log-events=ON"]).await;
    let mut client = server.client().await;
    client.run(TABLES).await;
    let mut source = server.source(Start::Now).await;
    client.run("INSERT INTO app.user VALUES (1, '') /* lookaside: first */").await;
    let read = last_position(&read_until(&mut source, "first").await);
    client.run("INSERT INTO app.user VALUES (2, '') /* lookaside: unread */").await;
    let former = source.identity().to_owned();
    server.kill();
    std::fs::remove_file(server.path("data/auto.cnf")).expect("the file of the UUID");
    server.restart().await;
    let log = log_of(&server);
    assert_ne!(log.identity().await.expect("an identity"), former);
    assert_eq!(log.continues(&former, &read).await, Ok(true));
    let mut client = server.client().await;
    client.run(END).await;
    let mut source = server.source(Start::At(read)).await;
    assert_eq!(keys_of(&read_until(&mut source, "end").await), ["unread", "end"]);
    client.run("INSERT INTO app.user VALUES (3, '') /* lookaside: more */").await;
    let commits = read_until(&mut source, "more").await;
    assert!(last_position(&commits).0.contains(','), "transactions of both: {commits:?}");
}

/// A log whose sources read nothing for a while after the address was moved, unless the router is notified meanwhile.
struct SlowLog {
    log: MysqlLog,
    router: Arc<FakeRouter>,
}

struct SlowSource {
    source: Box<dyn Source>,
    router: Arc<FakeRouter>,
}

/// How long [`SlowSource`] waits for a notification that must not come.
const SLOWNESS: Duration = Duration::from_secs(5);

impl CommitLog for SlowLog {
    fn identity(&self) -> BoxFuture<'_, Result<String, SourceError>> {
        self.log.identity()
    }

    fn open<'a>(&'a self, start: &'a Start) -> BoxFuture<'a, Result<OpenedSource, SourceError>> {
        Box::pin(async move {
            let OpenedSource { source, position } = self.log.open(start).await?;
            let router = self.router.clone();
            Ok(OpenedSource { source: Box::new(SlowSource { source, router }), position })
        })
    }

    fn newest_position(&self) -> BoxFuture<'_, Result<Position, SourceError>> {
        self.log.newest_position()
    }

    fn continues<'a>(&'a self, former: &'a str, position: &'a Position) -> BoxFuture<'a, Result<bool, SourceError>> {
        self.log.continues(former, position)
    }

    fn covers(&self, position: &Position, other: &Position) -> bool {
        self.log.covers(position, other)
    }
}

impl Source for SlowSource {
    fn next(&mut self, keys_max: usize) -> BoxFuture<'_, Result<Commits, SourceError>> {
        Box::pin(async move {
            let until = Instant::now() + SLOWNESS;
            while self.router.is_waiting(RUN) && !self.router.is_notified(RUN) && Instant::now() < until {
                sleep(Duration::from_millis(5)).await;
            }
            self.source.next(keys_max).await
        })
    }

    fn wait_until_visible<'a>(&'a mut self, position: &'a Position) -> BoxFuture<'a, Result<(), SourceError>> {
        self.source.wait_until_visible(position)
    }
}

/// The run of the router that waits.
const RUN: &str = "run1";

/// A pipeline that has read a commit from a primary which its promoted replica does not have.
struct PartialFailover {
    primary: Server,
    replica: Server,
    address: Arc<MovingAddress>,
    router: Arc<FakeRouter>,
    fixture: Fixture,
    run: JoinHandle<Result<(), PipelineError>>,
}

impl PartialFailover {
    async fn start(kind: Kind) -> PartialFailover {
        let primary = kind.start(&[]).await;
        let replica = kind.start(&["--server-id=2", "--log-slave-updates=ON"]).await;
        let (mut client, mut promoted) = (primary.client().await, replica.client().await);
        if kind == Kind::Mysql {
            // Transactions of its own set-up, which would be errant.
            promoted.run("RESET BINARY LOGS AND GTIDS").await;
        }
        replicate(kind, &primary, &mut promoted).await;
        client.run(TABLES).await;
        let (address, router) = (Arc::<MovingAddress>::default(), FakeRouter::new("router:1", Answers));
        address.move_to(primary.port);
        let log = MysqlLog::new(primary.options(), address.clone(), Arc::new(SystemTime::now));
        let fixture = Fixture::new(1);
        let pipeline = Pipeline {
            log: Arc::new(SlowLog { log, router: router.clone() }),
            delivery: Arc::new(build_delivery(&[&router], &fixture.statistics.clusters()[0])),
            positions: UncheckedDisk::new(),
            options: Options { start: Start::Now, ..Options::default() },
            ..fixture.pipeline(0)
        };
        let run = tokio::spawn(pipeline.run(fixture.shutdown.subscribe()));
        until("it runs", || fixture.stat("cluster:a:state") == "running").await;
        client.run("INSERT INTO app.user VALUES (1, '') /* lookaside: replicated */").await;
        wait_for_row(&mut promoted, 1).await;
        promote(kind, &mut promoted).await;
        client.run("INSERT INTO app.user VALUES (2, '') /* lookaside: ahead */").await;
        until("it is deleted", || fixture.stat("cluster:a:commits") == "2").await;
        PartialFailover { primary, replica, address, router, fixture, run }
    }

    /// Returns when the pipeline has stopped, and fails if the router was notified.
    async fn check_loss(self) {
        let ended = timeout(DEADLINE, self.run).await.expect("in time").expect("no panic");
        assert!(matches!(ended, Err(PipelineError::PositionLost(_))), "{ended:?}");
        assert!(!self.router.is_notified(RUN), "the caches have what the database lacks");
    }
}

/// The position of the promoted replica was behind what had been read from its primary, so a router was notified that
/// all was deleted, before the replica refused to send its log from there.
#[tokio::test]
async fn router_is_not_notified_by_a_server_that_lacks_the_position() {
    for kind in kinds() {
        let mut failover = PartialFailover::start(kind).await;
        // Nothing listens there.
        failover.address.move_to(1);
        failover.primary.kill();
        until("reading stops", || failover.fixture.stat("cluster:a:state") == "source_failing").await;
        failover.router.close_gate(RUN);
        until("that is probed", || failover.router.is_waiting(RUN)).await;
        failover.address.move_to(failover.replica.port);
        failover.check_loss().await;
    }
}

/// The same, while the log of the primary was still read: it was alive, and the address led to the replica already.
#[tokio::test]
async fn router_is_not_notified_by_another_server_than_the_one_that_is_read() {
    for kind in kinds() {
        let mut failover = PartialFailover::start(kind).await;
        failover.address.move_to(failover.replica.port);
        failover.router.close_gate(RUN);
        until("its position is looked up", || {
            failover.router.is_notified(RUN) || failover.address.connections.load(SeqCst) >= 3
        })
        .await;
        assert!(!failover.router.is_notified(RUN), "{kind:?}");
        assert_eq!(failover.fixture.stat("cluster:a:state"), "running", "{kind:?}: it reads from the primary");
        failover.primary.kill();
        failover.check_loss().await;
    }
}
