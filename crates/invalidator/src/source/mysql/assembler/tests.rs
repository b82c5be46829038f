//! Events as a server sends them, valid and damaged, and the commits that result.

mod prepared;

use super::{Assembler, KEYS_OF_COMMIT_MAX};
use crate::{
    SourceError,
    rules::{RowRules, Rules, TableName},
    source::{
        Anomalies, UnresolvedPrepared,
        mysql::{
            catalogue::{Declared, tests::declared},
            counted_commits::CountedCommits,
            gtid::{GtidList, GtidPosition},
            options::MysqlOptions,
            unresolved::{PreparedList, UnresolvedTransactions},
            unsafe_setting::UnsafeSetting,
            xa::{KEYS_HELD_MAX, TRANSACTIONS_HELD_MAX},
        },
    },
};
use proptest::prelude::*;
use std::{
    collections::BTreeSet,
    sync::Arc,
    time::{Duration, UNIX_EPOCH},
};

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
    // The map of the table has no names.
    let accepted = [UnsafeSetting::BinlogRowMetadata].into();
    let options = MysqlOptions { row_rules: RowRules::new(rules), accepted, ..MysqlOptions::default() };
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

fn query(sql: &str) -> Vec<u8> {
    event(2, &[&[0; 8][..], &[0, 0, 0, 0, 0, 0], sql.as_bytes()].concat())
}

fn gtid(sequence: u8, flags: u8) -> Vec<u8> {
    statement_transaction(sequence, flags, "").remove(0)
}

/// The flags of transactions of MariaDB.
const STANDALONE: u8 = 0x01;
const PREPARED: u8 = 0x40;

/// A transaction that is prepared under a name; `text` is its statement.
fn prepare(sequence: u8, name: u8, text: &str) -> Vec<Vec<u8>> {
    let end = event(38, &[&[0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, name][..]].concat());
    vec![gtid(sequence, PREPARED), event(160, text.as_bytes()), end]
}

/// The end of a prepared transaction, by COMMIT or ROLLBACK.
fn resolve(sequence: u8, how: &str, name: u8) -> Vec<Vec<u8>> {
    vec![gtid(sequence, STANDALONE), query(&format!("XA {how} X'{name:x}',X'',1"))]
}

/// Feeds events that end in an error, and returns it.
fn feed_until_lost(assembler: &mut Assembler, events: &[Vec<u8>]) -> Option<SourceError> {
    events.iter().find_map(|bytes| assembler.feed(bytes, UNIX_EPOCH).err())
}

/// The rows of an event that a newer server writes were skipped in silence.
#[test]
fn event_of_an_unknown_kind_stops_reading() {
    let mut assembler = assembler(false);
    feed_all(&mut assembler, &[gtid(8, 0), event(163, b""), event(28, b"")]);
    let error = feed_until_lost(&mut assembler, &[event(172, b"rows")]).expect("it may hold rows");
    assert!(
        matches!(&error, SourceError::Unusable { why } if why.contains("172") && why.contains("update")),
        "{error}"
    );
}

/// The gate waited for commits with keys alone, and positions passed others that no replica had.
#[test]
fn commits_without_keys_are_waited_for() {
    let mut assembler = assembler(false);
    let mut events = statement_transaction(8, 0, "");
    events[2][13] = 200;
    feed_all(&mut assembler, &events);
    assert_eq!(assembler.visibility_target().end.as_ref().map(|end| end.offset), Some(200));
}

/// All keys of a compressed transaction were held in memory: its events were processed before any key was taken.
#[test]
fn compressed_transaction_is_emitted_in_parts() {
    const STATEMENTS: usize = 100;
    let statement = |number: usize| {
        let keys: Vec<String> = (0..1_000).map(|key| format!("{number}:{key}")).collect();
        event(29, format!("\0/* lookaside: {} */", keys.join(" ")).as_bytes())
    };
    let inner: Vec<u8> = (0..STATEMENTS).flat_map(statement).collect();
    let mut payload = vec![2, 1, 0, 3, 9, 0xfe];
    payload.extend_from_slice(&(inner.len() as u64).to_le_bytes());
    payload.push(0);
    payload.extend(zstd::bulk::compress(&inner, 3).expect("compressed"));
    let mut assembler = assembler(false);
    feed_all(&mut assembler, &[gtid(8, 0), event(40, &payload)]);
    let (mut keys, mut held) = (0, 0);
    while assembler.has_compressed() {
        assembler.feed_compressed(UNIX_EPOCH).expect("valid events");
        let taken = assembler.ready().drain(..).map(|commit| commit.keys.len()).sum::<usize>();
        (keys, held) = (keys + taken, held.max(taken));
    }
    feed_all(&mut assembler, &[event(16, &[0; 8])]);
    keys += assembler.ready().drain(..).map(|commit| commit.keys.len()).sum::<usize>();
    assert_eq!((keys, held), (STATEMENTS * 1_000, KEYS_OF_COMMIT_MAX));
}

/// A table that the catalogue did not show stayed inexpressible after a GRANT, which is no change that the log has.
#[test]
fn catalogue_is_read_again_for_a_table_that_it_did_not_show() {
    let mut assembler = assembler_with_rule();
    assembler.row_tables().set_catalogue([].into());
    let mut needs_at = |at_s: u64| {
        for bytes in row_transaction() {
            assembler.feed(&bytes, UNIX_EPOCH + Duration::from_secs(at_s)).expect("valid events");
        }
        assembler.ready().clear();
        let is_needed = assembler.row_tables().needed_catalogue().is_some();
        assembler.row_tables().set_catalogue([].into());
        is_needed
    };
    assert_eq!([10, 11, 14, 15, 16, 21, 3].map(&mut needs_at), [true, false, false, true, false, true, true]);
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
