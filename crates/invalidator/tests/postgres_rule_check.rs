//! Rules that a real PostgreSQL does not fit, and what mends it.

use crate::postgres_server::Server;
use lookaside_client::TcpNetwork;
use lookaside_invalidator::{
    rules::{ProblemKind, RowSelection, RuleProblem, Rules},
    source::postgres::{PostgresOptions, check_rules, read_rows, rules_setup_sql},
};

const USERS: &str = "CREATE TABLE users (id int PRIMARY KEY, email text, seen int NOT NULL DEFAULT 0, bio text)";

fn parse(rules: &str) -> Rules {
    Rules::parse(rules).expect("a valid rule file")
}

#[tokio::test]
async fn every_problem_of_rules_is_reported_with_what_mends_it() {
    let server = Server::start(&[]).await;
    let mut client = server.set_up().await;
    client.run(USERS).await;
    client.run("ALTER TABLE users ADD score float8, ADD doc json, ADD n numeric, ADD joined text GENERATED ALWAYS AS (email || bio) STORED").await;
    client.run("CREATE VIEW shown AS SELECT * FROM users; CREATE UNLOGGED TABLE fast (id int PRIMARY KEY)").await;
    client.run("CREATE TABLE old (id int PRIMARY KEY, seen int); CREATE TABLE older () INHERITS (old)").await;
    client.run("CREATE TABLE parted (id int) PARTITION BY RANGE (id)").await;
    client.run("CREATE TABLE part PARTITION OF parted FOR VALUES FROM (1) TO (2)").await;
    let rule = |table: &str, keys: &str| format!("[[rule]]\ntable = 'public.{table}'\nkeys = [{keys}]\n");
    let all = [
        rule("users", "'u:{id}', 'e:{email}', '{score}', '{doc}', '{n}', '{joined}', '{gone}'"),
        rule("shown", "'a'"),
        rule("fast", "'f:{id}'"),
        rule("old", "'o:{id}'") + "ignore_columns = ['seen']\n",
        rule("none", "'x'"),
        rule("parted", "'p:{id}'"),
    ];
    let rules = parse(&all.concat());
    let problems = async |rules: &Rules| {
        let problems = check_rules(&TcpNetwork, &server.options(), rules).await.expect("the database answers");
        let shown = |problem: &RuleProblem| (problem.kind, problem.to_string());
        problems.iter().map(shown).collect::<Vec<_>>()
    };
    let found = problems(&rules).await;
    use ProblemKind::{LogLacks, RuleRefused, TableMissing, Warning};
    for (kind, parts) in [
        (LogLacks, &["SET (publish = 'insert, update, delete, truncate')"][..]),
        (RuleRefused, &["public.users has column score", "double precision"]),
        (RuleRefused, &["has column doc", "of type json"]),
        (RuleRefused, &["has column n,", "numeric(PRECISION, SCALE)"]),
        (RuleRefused, &["has column joined", "generated"]),
        (RuleRefused, &["has no column gone"]),
        (
            LogLacks,
            &["users has no replica identity with doc, email", "ALTER TABLE public.users REPLICA IDENTITY FULL"],
        ),
        (LogLacks, &["ALTER PUBLICATION \"lookaside\" ADD TABLE \"public\".\"users\""]),
        (RuleRefused, &["public.shown is not a permanent table"]),
        (RuleRefused, &["public.fast is not a permanent table"]),
        (Warning, &["public.old has tables that inherit"]),
        (Warning, &["public.old has ignore_columns without an effect", "REPLICA IDENTITY FULL"]),
        (TableMissing, &["public.none does not exist"]),
        (
            LogLacks,
            &["ALTER TABLE public.parted REPLICA IDENTITY FULL", "ALTER TABLE public.part REPLICA IDENTITY FULL"],
        ),
    ] {
        let is_it =
            |(other, text): &&(ProblemKind, String)| *other == kind && parts.iter().all(|part| text.contains(part));
        assert!(found.iter().any(|problem| is_it(&problem)), "{kind:?} {parts:?} is missing: {found:#?}");
    }
    let good = parse(&[rule("users", "'u:{id}', 'e:{email}'"), rule("parted", "'p:{id}'")].concat());
    client.run(&rules_setup_sql("lookaside", &good)).await;
    client.run(&rules_setup_sql("lookaside", &good)).await;
    assert_eq!(problems(&good).await, []);
    client.run("CREATE UNLOGGED TABLE part_2 PARTITION OF parted FOR VALUES FROM (2) TO (3)").await;
    let found = problems(&good).await;
    let is_unlogged =
        |(kind, text): &(ProblemKind, String)| *kind == Warning && text.ends_with("tables: public.part_2");
    assert!(found.iter().any(is_unlogged), "{found:?}");
    client.run("DROP TABLE part_2").await;
    client.run("ALTER PUBLICATION lookaside SET TABLE users (id, email) WHERE (id > 3), parted").await;
    let texts: Vec<String> = problems(&good).await.into_iter().map(|(_, text)| text).collect();
    assert!(texts.iter().any(|text| text.contains("row filter (id > 3)")), "{texts:?}");
    assert!(texts.iter().any(|text| text.contains("hides seen, bio, score")), "{texts:?}");
    client.run("ALTER PUBLICATION lookaside SET (publish_via_partition_root = false)").await;
    let texts: Vec<String> = problems(&good).await.into_iter().map(|(_, text)| text).collect();
    assert!(texts.iter().any(|text| text.contains("parted is not in the publication")), "{texts:?}");
    client.run("DROP PUBLICATION lookaside").await;
    assert!(problems(&good).await[0].1.contains("does not exist"));
}

/// The first one alone was named, and not the statement.
#[tokio::test]
async fn both_privileges_of_a_reader_of_rows_are_named() {
    let server = Server::start(&[]).await;
    let mut client = server.set_up().await;
    client.run("CREATE SCHEMA app; CREATE TABLE app.users (id int PRIMARY KEY); CREATE ROLE reader LOGIN PASSWORD 'secret'").await;
    let rules = parse("[[rule]]\ntable = 'app.users'\nkeys = ['u:{id}']\n");
    let rule = rules.rule(b"app", b"users").expect("it is there");
    let reader = PostgresOptions { user: "reader".into(), password: "secret".into(), ..server.options() };
    let all = RowSelection { alias: None, condition: String::new(), rows_max: 1 };
    let why = read_rows(&TcpNetwork, &reader, (&rules, rule), Some(&all)).await.expect_err("no privilege").to_string();
    let grants = "GRANT USAGE ON SCHEMA \"app\" TO \"reader\"; GRANT SELECT ON \"app\".\"users\" TO \"reader\"";
    assert!(why.contains("permission denied for schema app") && why.contains(grants), "{why}");
    client.run(grants).await;
    read_rows(&TcpNetwork, &reader, (&rules, rule), Some(&all)).await.expect("they are read");
}
