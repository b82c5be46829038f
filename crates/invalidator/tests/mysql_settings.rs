//! Settings of real servers by which deletes can be lost: each is refused with the statement that corrects it, at the
//! start and by the look-ups while the log is read, unless the operator has accepted it.

use crate::mysql_server::{Kind, Server, kinds};
use lookaside_client::TcpNetwork;
use lookaside_invalidator::{
    CommitLog as _, SourceError, Start,
    rules::{ProblemKind, RowRules, Rules},
    source::mysql::{MysqlLog, MysqlOptions, UnsafeSetting, check_rules},
};
use std::{sync::Arc, time::SystemTime};

/// Why a start is refused.
async fn refusal(server: &Server, options: &MysqlOptions) -> String {
    match server.try_source(options.clone(), Start::Now).await.err() {
        Some(SourceError::UnsafeSettings { why }) => why,
        other => panic!("{other:?}"),
    }
}

/// Why a look-up finds the settings unsafe; `None` if they are safe.
async fn look_up(options: &MysqlOptions) -> Option<String> {
    let log = MysqlLog::new(options.clone(), Arc::new(TcpNetwork), Arc::new(SystemTime::now));
    match log.look_up().await {
        Ok(_) => None,
        Err(SourceError::UnsafeSettings { why }) => Some(why),
        Err(other) => panic!("{other:?}"),
    }
}

fn accepting(server: &Server, setting: UnsafeSetting) -> MysqlOptions {
    MysqlOptions { accepted: [setting].into(), ..server.options() }
}

/// Of a server whose options make `setting` unsafe: refused, by start and look-up, with `correction`, unless it is
/// accepted; to accept all others does not help.
async fn check_refused(server: &Server, setting: UnsafeSetting, correction: &str) {
    let others = UnsafeSetting::ALL.into_iter().filter(|other| *other != setting).collect();
    let of_others = MysqlOptions { accepted: others, ..server.options() };
    for options in [server.options(), of_others] {
        let why = refusal(server, &options).await;
        assert!(why.contains(correction), "{setting:?}: {why}");
        assert!(why.contains(&format!("accept-unsafe={}", setting.name())), "{why}");
        assert_eq!(look_up(&options).await, Some(why));
    }
    let source = server.try_source(accepting(server, setting), Start::Now).await.expect("it is accepted");
    let warnings = source.warnings().join(" ");
    assert!(warnings.contains(correction) && source.warnings().len() == 1, "{setting:?}: {warnings}");
    assert_eq!(look_up(&accepting(server, setting)).await, None);
}

async fn check_dynamic(kind: Kind, server: &Server, setting: UnsafeSetting, unsafe_value: &str, safe_value: &str) {
    let mut client = server.client().await;
    assert_eq!(look_up(&server.options()).await, None, "{kind:?}");
    client.run(&format!("SET GLOBAL {} = {unsafe_value}", setting.name())).await;
    let correction = format!("SET GLOBAL {} = {safe_value}", setting.name());
    check_refused(server, setting, &correction).await;
    client.run(&correction).await;
    assert_eq!(look_up(&server.options()).await, None, "{kind:?}: the statement corrects it");
    server.try_source(server.options(), Start::Now).await.expect("it is safe again");
}

#[tokio::test]
async fn a_log_that_is_not_synced_is_refused() {
    for kind in kinds() {
        let server = kind.start(&[]).await;
        for value in ["0", "1000"] {
            check_dynamic(kind, &server, UnsafeSetting::SyncBinlog, value, "1").await;
        }
    }
}

#[tokio::test]
async fn a_log_out_of_order_is_refused() {
    let server = Server::start(&[]).await;
    check_dynamic(Kind::Mariadb, &server, UnsafeSetting::GtidStrictMode, "OFF", "ON").await;
}

#[tokio::test]
async fn commits_without_a_log_are_refused() {
    if !kinds().contains(&Kind::Mysql) {
        return;
    }
    let server = Kind::Mysql.start(&[]).await;
    check_dynamic(Kind::Mysql, &server, UnsafeSetting::BinlogErrorAction, "IGNORE_ERROR", "ABORT_SERVER").await;
}

/// A DBA relaxed `sync_binlog` while the log was read, and the next lost connection stopped all deletes.
#[tokio::test]
async fn what_loses_nothing_before_a_crash_does_not_stop_a_reader_that_reconnects() {
    for kind in kinds() {
        let server = kind.start(&[]).await;
        let mut client = server.client().await;
        let log = |options| MysqlLog::new(options, Arc::new(TcpNetwork), Arc::new(SystemTime::now));
        let options = server.options();
        // As the pipelines of two clusters do.
        let (first, second) = (log(options.clone()), log(options.clone()));
        first.open(&Start::Now).await.expect("the settings are safe");
        client.run("SET GLOBAL sync_binlog = 0").await;
        let newest = first.newest_position().await.expect("it is no start");
        for log in [&first, &second] {
            log.open(&Start::At(newest.clone())).await.expect("it was read before");
            assert!(log.identity().await.is_ok() && log.continues("other", &newest).await.is_ok());
        }
        let source = server.try_source(options.clone(), Start::Now).await.expect("as above");
        let [warning] = source.warnings() else { panic!("{:?}", source.warnings()) };
        assert!(
            warning.contains("SET GLOBAL sync_binlog = 1") && warning.contains("the next start is refused"),
            "{warning}"
        );
        assert!(look_up(&options).await.is_some_and(|why| why.contains("sync_binlog")), "it is reported as unsafe");
        assert!(refusal(&server, &server.options()).await.contains("sync_binlog"), "another process does not start");
        client.run("SET GLOBAL sync_binlog = 1").await;
        // What loses keys now is refused as ever.
        let annotations =
            if kind == Kind::Mariadb { "binlog_annotate_row_events" } else { "binlog_rows_query_log_events" };
        client.run(&format!("SET GLOBAL {annotations} = OFF")).await;
        assert!(refusal(&server, &options).await.contains(annotations), "{kind:?}");
    }
}

/// They were warned of once, at the start.
#[tokio::test]
async fn filters_of_the_log_are_refused() {
    for kind in kinds() {
        for (setting, argument, correction) in [
            (UnsafeSetting::BinlogDoDb, "--binlog-do-db=app", "binlog_do_db=app: "),
            (UnsafeSetting::BinlogIgnoreDb, "--binlog-ignore-db=other", "binlog_ignore_db=other: "),
        ] {
            let server = kind.start(&[argument]).await;
            check_refused(&server, setting, correction).await;
            let removal = format!("remove {} from the server's options", setting.name());
            assert!(refusal(&server, &server.options()).await.contains(&removal), "{kind:?}");
        }
    }
}

#[tokio::test]
async fn all_unsafe_settings_are_named_at_once() {
    let server = Server::start(&["--sync-binlog=0", "--gtid-strict-mode=OFF", "--binlog-ignore-db=other"]).await;
    let why = refusal(&server, &server.options()).await;
    for name in ["sync_binlog", "gtid_strict_mode", "binlog_ignore_db"] {
        assert!(why.contains(&format!("accept-unsafe={name} in the URL")), "{why}");
    }
    let url =
        format!("mariadb://root@127.0.0.1:{}?accept-unsafe=sync_binlog,gtid_strict_mode,binlog_ignore_db", server.port);
    let options = MysqlOptions::from_url(&url).expect("a valid URL");
    server.try_source(options, Start::Now).await.expect("all are accepted");
}

/// A database that forgets commits after a crash costs no delete: they were sent.
#[tokio::test]
async fn a_database_that_is_not_synced_is_warned_of() {
    for kind in kinds() {
        let server = kind.start(&["--innodb-flush-log-at-trx-commit=2"]).await;
        let source = server.try_source(server.options(), Start::Now).await.expect("a source");
        let [warning] = source.warnings() else { panic!("{:?}", source.warnings()) };
        assert!(warning.contains("SET GLOBAL innodb_flush_log_at_trx_commit = 1"), "{kind:?}: {warning}");
        assert_eq!(look_up(&server.options()).await, None);
    }
}

/// Rules are refused, and not the start: comments and outbox need neither names nor old values.
#[tokio::test]
async fn what_rules_need_of_the_log_is_refused_with_the_rules() {
    for kind in kinds() {
        let server = kind.start(&[]).await;
        let mut client = server.client().await;
        client.run("CREATE DATABASE app; CREATE TABLE app.t (id INT PRIMARY KEY, name VARCHAR(9), note TEXT)").await;
        let rules_of = |keys: &str| {
            Rules::parse(&format!("[[rule]]\ntable = 'app.t'\nkeys = [{keys}]")).expect("a valid rule file")
        };
        for (setting, value, keys) in [
            (UnsafeSetting::BinlogRowMetadata, "MINIMAL", "'t:{id}'"),
            (UnsafeSetting::BinlogRowImage, "MINIMAL", "'t:{name}'"),
            (UnsafeSetting::BinlogRowImage, "NOBLOB", "'t:{note}'"),
        ] {
            let rules = rules_of(keys);
            let with_rules = |options| MysqlOptions { row_rules: RowRules::new(rules.clone()), ..options };
            let [refusing, accepting] = [server.options(), accepting(&server, setting)].map(with_rules);
            let kinds_of = async |options: &MysqlOptions| -> Vec<ProblemKind> {
                let problems = check_rules(&TcpNetwork, options, &rules).await.expect("the server is there");
                problems.iter().map(|problem| problem.kind).collect()
            };
            assert_eq!((kinds_of(&refusing).await, look_up(&refusing).await), (vec![], None), "{kind:?} {setting:?}");
            client.run(&format!("SET GLOBAL {} = {value}", setting.name())).await;
            assert_eq!(kinds_of(&refusing).await, [ProblemKind::LogLacks], "{kind:?} {setting:?}");
            let why = look_up(&refusing).await.expect("it is shown while the log is read");
            let correction = format!("SET GLOBAL {} = 'FULL'", setting.name());
            assert!(why.contains(&correction) && why.contains(&format!("accept-unsafe={}", setting.name())), "{why}");
            assert_eq!(kinds_of(&accepting).await, [ProblemKind::Warning], "{kind:?} {setting:?}");
            assert_eq!(look_up(&accepting).await, None);
            assert_eq!(look_up(&server.options()).await, None, "without rules nothing is lacking");
            server.try_source(refusing.clone(), Start::Now).await.expect("other keys are read");
            client.run(&correction).await;
        }
        // Old images have the primary key, and all that is no blob.
        for (value, keys) in [("MINIMAL", "'t:{id}'"), ("NOBLOB", "'t:{id}:{name}'")] {
            client.run(&format!("SET GLOBAL binlog_row_image = {value}")).await;
            let options = MysqlOptions { row_rules: RowRules::new(rules_of(keys)), ..server.options() };
            assert_eq!(look_up(&options).await, None, "{kind:?} {value}");
        }
    }
}
