//! Changes of tables that PostgreSQL's log does not have, around the end of a process: a real server, and processes
//! that leave to the next one what is kept of them.

use crate::postgres_server::{Client, END, Server, eventually, keys_of, last_position};
use lookaside_client::TcpNetwork;
use lookaside_invalidator::{
    Commit, CommitLog as _, Position, Source, Start,
    keys::FLUSH_CLUSTER,
    rules::{RowRules, Rules},
    source::postgres::{PostgresLog, PostgresOptions, SeenTables, rules_setup_sql, setup_sql},
};
use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};
use tokio::{sync::watch, time::timeout};

const RULE: &str = "[[rule]]\ntable = 'public.users'\nkeys = ['u:{id}']\notherwise = 'flush-cluster'";

const USERS: &str = "CREATE TABLE users (id int PRIMARY KEY) PARTITION BY LIST (id); \
    CREATE TABLE users_1 PARTITION OF users FOR VALUES IN (1); \
    CREATE TABLE users_2 PARTITION OF users FOR VALUES IN (2)";

/// A database that is set up for the rule.
async fn set_up(server: &Server) -> Client {
    let mut client = server.set_up().await;
    client.run(USERS).await;
    client.run(&rules_setup_sql("lookaside", &Rules::parse(RULE).expect("valid"))).await;
    client
}

/// What one process has in memory.
struct Process {
    log: PostgresLog,
    source: Box<dyn Source>,
    kept: watch::Receiver<SeenTables>,
    rules: Arc<RowRules>,
}

impl Process {
    /// Begins where `kept` and a position of clusters are what an earlier one has left. Some cluster has saved
    /// `delivered`.
    async fn start(server: &Server, kept: SeenTables, start: Start, delivered: Option<&Position>) -> Process {
        let rules = RowRules::new(Rules::parse(RULE).expect("valid"));
        let catalogue_interval = Duration::from_millis(20);
        let options = PostgresOptions { row_rules: rules.clone(), catalogue_interval, ..server.options() };
        let (sender, kept) = watch::channel(kept);
        let log = PostgresLog::new(options, Arc::new(TcpNetwork), Arc::new(SystemTime::now));
        // So that nothing is confirmed which the next one may need.
        let log = log.with_shared_slot("default", Arc::new(|| true)).with_seen_tables(sender);
        if let Some(delivered) = delivered {
            log.note_delivered(delivered);
        }
        let source = log.open(&start).await.expect("a source").source;
        Process { log, source, kept, rules }
    }

    /// Reads until a commit names `end`, which is committed now.
    async fn read_to_end(&mut self, client: &mut Client) -> Vec<Commit> {
        client.run(END).await;
        let mut commits = Vec::new();
        eventually("the log is read", async || {
            // The session of the process before holds the slot for a moment.
            if let Ok(Ok(more)) = timeout(Duration::from_secs(5), self.source.next(1_000)).await {
                commits.extend(more.commits);
            }
            keys_of(&commits).iter().any(|key| key == "end").then_some(())
        })
        .await;
        commits
    }

    /// The end of the process.
    fn kill(self) -> SeenTables {
        self.kept.borrow().clone()
    }
}

fn flushes(commits: &[Commit]) -> usize {
    commits.iter().flat_map(|commit| &commit.keys).filter(|key| *key == FLUSH_CLUSTER).count()
}

#[tokio::test]
async fn ddl_that_no_process_saw_is_found_by_the_next_one() {
    let server = Server::start(&[]).await;
    let mut client = set_up(&server).await;
    let mut first = Process::start(&server, SeenTables::default(), Start::Now, None).await;
    let commits = first.read_to_end(&mut client).await;
    assert_eq!(flushes(&commits), 0, "the first look is what later ones are compared with");
    let mut at = last_position(&commits);
    let mut kept = first.kill();
    for ddl in [
        "TRUNCATE users_1",
        "DROP TABLE users_2",
        "ALTER TABLE users ADD bio text",
        "DROP TABLE users",
        "CREATE TABLE users (id int PRIMARY KEY); ALTER PUBLICATION lookaside ADD TABLE users",
        "DROP TABLE users; CREATE TABLE users (id int PRIMARY KEY); ALTER PUBLICATION lookaside ADD TABLE users",
        // The rows are written again, and the type stays what it was.
        "ALTER TABLE users ALTER id TYPE int USING id + 1",
    ] {
        client.run(ddl).await;
        let mut next = Process::start(&server, kept, Start::At(at.clone()), None).await;
        let commits = next.read_to_end(&mut client).await;
        assert_eq!((flushes(&commits), next.rules.statistics.inexpressible.value()), (1, 1), "{ddl}");
        // No cluster has acknowledged it, so one more finds it, too.
        let mut next = Process::start(&server, next.kill(), Start::At(at), None).await;
        let commits = next.read_to_end(&mut client).await;
        assert_eq!(flushes(&commits), 1, "again: {ddl}");
        at = last_position(&commits);
        next.log.acknowledge(&at);
        let mut next = Process::start(&server, next.kill(), Start::At(at), None).await;
        let commits = next.read_to_end(&mut client).await;
        assert_eq!(flushes(&commits), 0, "acknowledged: {ddl}");
        at = last_position(&commits);
        kept = next.kill();
    }
}

/// A cluster skips what comes before its position. So a flush that was found at the position of the cluster that is
/// down did not reach the other one.
#[tokio::test]
async fn what_a_takeover_finds_comes_after_what_any_cluster_has_saved() {
    let server = Server::start(&[]).await;
    let mut client = set_up(&server).await;
    let mut first = Process::start(&server, SeenTables::default(), Start::Now, None).await;
    let of_the_one_that_is_down = last_position(&first.read_to_end(&mut client).await);
    client.run("INSERT INTO users VALUES (1), (2)").await;
    let of_the_other = last_position(&first.read_to_end(&mut client).await);
    client.run("TRUNCATE users_1").await;
    let start = Start::At(of_the_one_that_is_down);
    let mut next = Process::start(&server, first.kill(), start, Some(&of_the_other)).await;
    let mut commits = Vec::new();
    eventually("the change is found", async || {
        commits.extend(next.read_to_end(&mut client).await);
        (flushes(&commits) > 0).then_some(())
    })
    .await;
    let flush = commits.iter().find(|commit| commit.keys.iter().any(|key| key == FLUSH_CLUSTER)).expect("a flush");
    assert!(next.log.covers(&flush.position, &of_the_other), "{:?} is before {of_the_other:?}", flush.position);
    assert!(keys_of(&commits).contains(&"u:1".to_owned()), "the log was read from the older position");
}

/// Rows of an outbox that is not in the publication are not in the log.
#[tokio::test]
async fn an_outbox_that_is_not_published_is_found_and_setup_adds_it() {
    let server = Server::start(&[]).await;
    let mut client = set_up(&server).await;
    let mut process = Process::start(&server, SeenTables::default(), Start::Now, None).await;
    let publish = "SELECT string_agg(tablename, ' ' ORDER BY tablename) FROM pg_publication_tables";
    for ddl in [
        "ALTER TABLE lookaside_outbox RENAME TO old; CREATE TABLE lookaside_outbox (key text)",
        "DROP TABLE lookaside_outbox; CREATE TABLE lookaside_outbox (key text) PARTITION BY LIST (key); \
         CREATE TABLE rest PARTITION OF lookaside_outbox DEFAULT",
        "ALTER PUBLICATION lookaside DROP TABLE lookaside_outbox",
        "ALTER PUBLICATION lookaside SET (publish = 'update')",
        "ALTER PUBLICATION lookaside SET TABLE users, lookaside_outbox WHERE (key <> '')",
    ] {
        assert_eq!(process.rules.statistics.unpublished_outboxes(), 0, "before {ddl}");
        client.run(ddl).await;
        read_until_outboxes_are(&mut process, &mut client, 1).await;
        if ddl.contains("WHERE") {
            // A condition is an intention: the log has a message, and `setup` leaves it.
            client.run("ALTER PUBLICATION lookaside DROP TABLE lookaside_outbox").await;
        }
        client.run(&setup_sql("lookaside", "lookaside_outbox")).await;
        assert!(client.one(publish).await.contains("lookaside_outbox"), "{ddl}");
        read_until_outboxes_are(&mut process, &mut client, 0).await;
        client.run("INSERT INTO lookaside_outbox (key) VALUES ('user:1'); DELETE FROM lookaside_outbox").await;
        let commits = process.read_to_end(&mut client).await;
        assert!(keys_of(&commits).contains(&"user:1".to_owned()), "{ddl}");
    }
    // `setup` has added inserts, and nothing else.
    assert_eq!(client.one("SELECT concat(pubinsert, pubupdate, pubdelete) FROM pg_publication").await, "ttf");
}

/// `setup` looked up each table of the publication by its name, which fails in a schema that the account may not use.
#[tokio::test]
async fn setup_needs_no_privilege_on_the_other_tables_of_the_publication() {
    let server = Server::start(&[]).await;
    let mut superuser = server.client().await;
    superuser.run("CREATE ROLE owner LOGIN PASSWORD 'secret'").await;
    superuser.run("CREATE DATABASE shop OWNER owner").await;
    let of_superuser = PostgresOptions { database: "shop".into(), ..server.options() };
    let mut superuser = Client::open(&of_superuser).await;
    let of_owner = PostgresOptions { user: "owner".into(), password: "secret".into(), ..of_superuser };
    // Before the outbox, so that it is looked at first.
    superuser.run("CREATE SCHEMA private; CREATE TABLE private.hidden (id int PRIMARY KEY)").await;
    superuser.run("GRANT ALL ON SCHEMA public TO owner").await;
    let mut owner = Client::open(&of_owner).await;
    owner.run(&setup_sql("lookaside", "lookaside_outbox")).await;
    superuser.run("ALTER PUBLICATION lookaside ADD TABLE private.hidden").await;
    owner.run("ALTER PUBLICATION lookaside DROP TABLE lookaside_outbox").await;
    owner.run(&setup_sql("lookaside", "lookaside_outbox")).await;
    let published = "SELECT string_agg(tablename, ' ' ORDER BY tablename) FROM pg_publication_tables";
    assert_eq!(owner.one(published).await, "hidden lookaside_outbox");
    owner.run(&setup_sql("lookaside", "lookaside_outbox")).await;
}

async fn read_until_outboxes_are(process: &mut Process, client: &mut Client, unpublished: u64) {
    eventually("the catalogue was read", async || {
        process.read_to_end(client).await;
        (process.rules.statistics.unpublished_outboxes() == unpublished).then_some(())
    })
    .await;
}
