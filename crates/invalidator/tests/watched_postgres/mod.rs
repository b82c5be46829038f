//! A real PostgreSQL with row rules, and a source that reads it.

use crate::postgres_server::{Client, END, Server, keys_of, read_until};
use crate::row_rules::{flush, sorted_keys};
use lookaside_invalidator::{
    Source as _, Start,
    rules::{RowRules, Rules},
    source::postgres::{PostgresOptions, PostgresSource, rules_setup_sql},
};
use std::{sync::Arc, time::Duration};
use tokio::time::timeout;

/// A database that is set up for these rules.
pub async fn set_up(server: &Server, rules: &str) -> (Client, Arc<RowRules>) {
    let mut client = server.set_up().await;
    let rules = parse(rules);
    client.run(&rules_setup_sql("lookaside", &rules)).await;
    (client, RowRules::new(rules))
}

pub fn parse(rules: &str) -> Rules {
    Rules::parse(rules).expect("a valid rule file")
}

/// A source that looks at the catalogue all the time.
pub fn options(server: &Server, rules: &Arc<RowRules>) -> PostgresOptions {
    let catalogue_interval = Duration::from_millis(20);
    PostgresOptions { row_rules: rules.clone(), catalogue_interval, ..server.options() }
}

/// A source that has looked at the catalogue: later looks are compared with this one.
pub async fn source(server: &Server, rules: &Arc<RowRules>) -> PostgresSource {
    let mut source = server.try_source(options(server, rules), Start::Now).await.expect("a source");
    let mut client = server.client().await;
    client.run("SELECT lookaside_invalidate('begun')").await;
    read_until(&mut source, "begun").await;
    source
}

/// Runs the statements and returns the keys that the log then names, sorted, without repetitions.
pub async fn keys_after(client: &mut Client, source: &mut PostgresSource, statements: &[&str]) -> Vec<String> {
    for statement in statements.iter().chain(&[END]) {
        client.run(statement).await;
    }
    sorted_keys(&read_until(source, "end").await)
}

/// What the commit names that flushes the cluster, once it is read.
pub async fn keys_with_flush(source: &mut PostgresSource) -> Vec<String> {
    keys_of(&read_until(source, &flush()).await)
}

/// Lets the source look at the catalogue some times. The log has nothing new.
pub async fn look(source: &mut PostgresSource) {
    let read = timeout(Duration::from_millis(200), source.next(1_000)).await;
    assert!(read.is_err(), "{read:?}");
}

pub const USERS: &str = "CREATE TABLE users (id int PRIMARY KEY, email text, seen int NOT NULL DEFAULT 0, bio text)";

pub const RULE: &str = "[[rule]]\ntable = 'public.users'\nkeys = ['u:{id}', 'e:{email}', 'all']\nignore_columns = ['seen']\n\
    otherwise = 'flush-cluster'";

/// A server with [`USERS`], the rule, and a source.
pub async fn users(arguments: &[&str]) -> (Server, Client, Arc<RowRules>, PostgresSource) {
    watched(USERS, arguments).await
}

/// A server with these tables, the rule, and a source.
pub async fn watched(tables: &str, arguments: &[&str]) -> (Server, Client, Arc<RowRules>, PostgresSource) {
    let server = Server::start(arguments).await;
    server.client().await.run(tables).await;
    let (client, rules) = set_up(&server, RULE).await;
    let source = source(&server, &rules).await;
    (server, client, rules, source)
}

pub const PARTITIONED: &str = "CREATE TABLE users (id int, email text, seen int, bio text) PARTITION BY RANGE (id); \
    CREATE TABLE users_1 PARTITION OF users FOR VALUES FROM (1) TO (100); \
    CREATE TABLE users_2 (bio text, id int NOT NULL, dropped int, email text, seen int); \
    ALTER TABLE users_2 DROP dropped; \
    ALTER TABLE users ATTACH PARTITION users_2 FOR VALUES FROM (100) TO (200)";
