//! Events as a server sends them, valid and damaged, and the commits that result.

use super::Assembler;
use crate::{
    rules::{RowRules, Rules, TableName},
    source::{
        Anomalies,
        mysql::{
            catalogue::{Declared, tests::declared},
            gtid::{GtidList, GtidPosition},
            options::MysqlOptions,
        },
    },
};
use proptest::prelude::*;
use std::time::UNIX_EPOCH;

fn assembler(has_checksum: bool) -> Assembler {
    Assembler::new(&MysqlOptions::default(), GtidPosition::Mariadb(GtidList::default()), has_checksum)
}

fn event(kind: u8, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(19 + body.len()).expect("a short event");
    let mut bytes = vec![1, 0, 0, 0, kind, 1, 0, 0, 0];
    bytes.extend_from_slice(&length.to_le_bytes());
    bytes.extend_from_slice(&[100, 0, 0, 0, 0, 0]);
    bytes.extend_from_slice(body);
    bytes
}

/// A transaction of MariaDB that inserts one row into the outbox.
fn outbox_transaction() -> Vec<Vec<u8>> {
    let mut table = vec![7, 0, 0, 0, 0, 0, 0, 0, 3];
    table.extend_from_slice(b"app\0\x10lookaside_outbox\0\x02\x0f\x03\x02\xfa\0\x03");
    vec![
        event(162, &[9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 12, 0, 0, 0, 0, 0, 0]),
        event(160, b"INSERT INTO lookaside_outbox VALUES ('out', 1) /* lookaside: comment */"),
        event(19, &table),
        event(23, b"\x07\0\0\0\0\0\x01\0\x02\x03\0\x03out\x01\0\0\0"),
        event(16, &[0; 8]),
    ]
}

/// A transaction that updates a row of app.users.
fn row_transaction() -> Vec<Vec<u8>> {
    let map = b"\x07\0\0\0\0\0\0\0\x03app\0\x05users\0\x02\x03\x0f\x02\x90\x01\x03\x04\x08\x02id\x04name";
    let rows = b"\x07\0\0\0\0\0\x01\0\x02\0\x02\x03\x03\0\x2a\0\0\0\x03\0Ada\0\x2b\0\0\0\x05\0Grace";
    vec![
        event(162, &[9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 12, 0, 0, 0, 0, 0, 0]),
        event(19, map),
        event(31, rows),
        event(16, &[0; 8]),
    ]
}

/// An assembler with a rule for app.users, and its columns.
fn assembler_with_rule() -> Assembler {
    let rules = Rules::parse("[[rule]]\ntable = 'app.users'\nkeys = ['u:{id}', 'n:{name}']").expect("valid");
    let options = MysqlOptions { row_rules: RowRules::new(rules), ..MysqlOptions::default() };
    let mut assembler = Assembler::new(&options, GtidPosition::Mariadb(GtidList::default()), false);
    let name = Declared { octets: 400, ..declared("name", "varchar", "varchar(100)") };
    let table = TableName { schema: "app".into(), name: "users".into() };
    assembler.row_tables().needed_catalogue().expect("the columns are not known yet");
    assembler.row_tables().set_catalogue([(table, vec![declared("id", "int", "int"), name])].into());
    assembler
}

#[test]
fn rows_of_a_table_with_a_rule_give_keys() {
    let mut assembler = assembler_with_rule();
    feed_all(&mut assembler, &row_transaction());
    assert_eq!(ready(&mut assembler), pairs(&[("u:42 n:Ada u:43 n:Grace", "0-1-9")]));
    assert!(assembler.row_tables().needed_catalogue().is_none(), "the columns fit");
}

/// The options only left out checks of the server's settings: keys were taken from both.
#[test]
fn keys_are_taken_from_comments_or_the_outbox_alone() {
    let outbox_only = MysqlOptions { outbox_only: true, ..MysqlOptions::default() };
    let comments_only = MysqlOptions { comments_only: true, ..MysqlOptions::default() };
    for (options, keys) in [(outbox_only, "out"), (comments_only, "comment")] {
        let mut assembler = Assembler::new(&options, GtidPosition::Mariadb(GtidList::default()), false);
        feed_all(&mut assembler, &outbox_transaction());
        assert_eq!(ready(&mut assembler), pairs(&[(keys, "0-1-9")]));
    }
}

#[test]
fn transaction_is_assembled() {
    let mut assembler = assembler(false);
    for bytes in outbox_transaction() {
        assert!(assembler.ready().is_empty(), "nothing before the end");
        assembler.feed(&bytes, UNIX_EPOCH).expect("valid events");
    }
    let commit = assembler.ready().pop_front().expect("a commit");
    assert_eq!(commit.keys, [b"comment".to_vec(), b"out".to_vec()]);
    assert_eq!(commit.position.0, "0-1-9");
}

/// A transaction of MariaDB that inserts a row; `text` is its statement.
fn statement_transaction(sequence: u8, flags: u8, text: &str) -> Vec<Vec<u8>> {
    vec![
        event(162, &[sequence, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, flags, 0, 0, 0, 0, 0, 0]),
        event(160, text.as_bytes()),
        event(16, &[0; 8]),
    ]
}

fn feed_all(assembler: &mut Assembler, events: &[Vec<u8>]) {
    for bytes in events {
        assembler.feed(bytes, UNIX_EPOCH).expect("valid events");
    }
}

/// Keys and position of each commit that is ready.
fn ready(assembler: &mut Assembler) -> Vec<(String, String)> {
    let commits: Vec<_> = assembler.ready().drain(..).collect();
    commits
        .into_iter()
        .map(|commit| (String::from_utf8_lossy(&commit.keys.join(&b' ')).into(), commit.position.0))
        .collect()
}

fn pairs(expected: &[(&str, &str)]) -> Vec<(String, String)> {
    expected.iter().map(|(keys, position)| (keys.to_string(), position.to_string())).collect()
}

/// When another transaction began before the end of one, its keys were silently dropped.
#[test]
fn transaction_cut_short_by_another_is_emitted() {
    let mut assembler = assembler(false);
    let first = statement_transaction(8, 0, "/* lookaside: cut */");
    feed_all(&mut assembler, &first[..2]);
    feed_all(&mut assembler, &statement_transaction(9, 0, "/* lookaside: whole */"));
    assert_eq!(ready(&mut assembler), pairs(&[("cut", "none"), ("whole", "0-1-9")]), "it does not count as read");
    assert_eq!(assembler.anomalies(), Anomalies { unfinished: 1, ..Anomalies::default() });
}

/// A server that is killed may leave a file that ends inside of a transaction. That is no anomaly.
#[test]
fn transaction_cut_short_by_the_end_of_a_file_is_emitted() {
    let mut assembler = assembler(false);
    feed_all(&mut assembler, &statement_transaction(8, 0, "/* lookaside: cut */")[..2]);
    feed_all(&mut assembler, &[event(4, b"\x04\0\0\0\0\0\0\0binlog.000002")]);
    assert_eq!(ready(&mut assembler), pairs(&[("cut", "none")]));
    assert_eq!(assembler.anomalies(), Anomalies::default());
}

/// Statements and rows that belong to no transaction were ignored.
#[test]
fn keys_outside_of_transactions_are_emitted() {
    let mut assembler = assembler(false);
    feed_all(&mut assembler, &outbox_transaction()[1..]);
    assert_eq!(ready(&mut assembler), pairs(&[("comment", "none"), ("out", "none")]));
    assert_eq!(assembler.anomalies(), Anomalies { without_gtid: 2, ..Anomalies::default() });
    feed_all(&mut assembler, &outbox_transaction());
    assert_eq!(ready(&mut assembler), pairs(&[("comment out", "0-1-9")]));
    assert_eq!(assembler.anomalies().without_gtid, 2);
}

/// An XA COMMIT of a transaction that was prepared before reading began was treated as one that names no key.
#[test]
fn commit_of_an_unknown_prepared_transaction_is_counted() {
    let query = |sql: &str| event(2, &[&[0; 8][..], &[0, 0, 0, 0, 0, 0], sql.as_bytes()].concat()[..]);
    let gtid = |sequence, flags| statement_transaction(sequence, flags, "").remove(0);
    let prepare = |name: u8| event(38, &[&[0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, name][..]].concat());
    let mut assembler = assembler(false);
    feed_all(&mut assembler, &[gtid(8, 0x40), prepare(b'a')]);
    feed_all(&mut assembler, &[gtid(9, 1), query("XA COMMIT X'61',X'',1")]);
    assert_eq!(assembler.anomalies(), Anomalies::default(), "the transaction is known to name no key");
    feed_all(&mut assembler, &[gtid(10, 1), query("XA COMMIT X'62',X'',1")]);
    assert_eq!(assembler.anomalies(), Anomalies { unknown_xids: 1, ..Anomalies::default() });
    assert_eq!(assembler.resume_position().to_string(), "0-1-10");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    /// No input of a server causes a panic.
    #[test]
    fn random_bytes_never_panic(
        events in prop::collection::vec((any::<u8>(), prop::collection::vec(any::<u8>(), 0..80)), 0..8),
        has_checksum: bool,
    ) {
        let mut assembler = assembler(has_checksum);
        for (kind, body) in events {
            let _ = assembler.feed(&event(kind, &body), UNIX_EPOCH);
            let _ = assembler.feed(&body, UNIX_EPOCH);
        }
    }

    /// Valid events with some bytes changed or cut off reach more code than random bytes.
    #[test]
    fn damaged_events_never_panic(
        changes in prop::collection::vec((0_usize..5, any::<prop::sample::Index>(), any::<u8>()), 1..4),
        cut in (0_usize..5, any::<prop::sample::Index>()),
    ) {
        let mut events = outbox_transaction();
        for (which, at, byte) in changes {
            let at = at.index(events[which].len());
            events[which][at] = byte;
        }
        let length = cut.1.index(events[cut.0].len()) + 1;
        events[cut.0].truncate(length);
        let mut assembler = assembler(false);
        for bytes in events {
            let _ = assembler.feed(&bytes, UNIX_EPOCH);
        }
    }

    /// The same for rows of a table with a rule.
    #[test]
    fn damaged_rows_never_panic(
        changes in prop::collection::vec((0_usize..4, any::<prop::sample::Index>(), any::<u8>()), 1..4),
        cut in (0_usize..4, any::<prop::sample::Index>()),
        kind in 0_usize..8,
    ) {
        let mut events = row_transaction();
        for (which, at, byte) in changes {
            let at = at.index(events[which].len());
            events[which][at] = byte;
        }
        events[2][4] = [23, 24, 25, 30, 31, 32, 39, 170][kind];
        let length = cut.1.index(events[cut.0].len()) + 1;
        events[cut.0].truncate(length);
        let mut assembler = assembler_with_rule();
        for bytes in events {
            let _ = assembler.feed(&bytes, UNIX_EPOCH);
        }
    }
}
