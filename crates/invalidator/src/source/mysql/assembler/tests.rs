//! Events as a server sends them, good and bad, and the commits that come of them.

use super::{Anomalies, Assembler};
use crate::source::mysql::gtid::{GtidList, Progress};
use proptest::prelude::*;
use std::time::UNIX_EPOCH;

fn assembler(has_checksum: bool) -> Assembler {
    Assembler::new("lookaside_outbox", Progress::Mariadb(GtidList::default()), has_checksum)
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
        event(160, b"INSERT INTO lookaside_outbox VALUES ('out', 1) /* lookaside: said */"),
        event(19, &table),
        event(23, b"\x07\0\0\0\0\0\x01\0\x02\x03\0\x03out\x01\0\0\0"),
        event(16, &[0; 8]),
    ]
}

#[test]
fn a_transaction_is_put_together() {
    let mut assembler = assembler(false);
    for bytes in outbox_transaction() {
        assert!(assembler.ready().is_empty(), "nothing before the end");
        assembler.take(&bytes, UNIX_EPOCH).expect("good events");
    }
    let commit = assembler.ready().pop_front().expect("a commit");
    assert_eq!(commit.keys, [b"said".to_vec(), b"out".to_vec()]);
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

fn take_all(assembler: &mut Assembler, events: &[Vec<u8>]) {
    for bytes in events {
        assembler.take(bytes, UNIX_EPOCH).expect("good events");
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

/// The keys of a transaction whose end did not come were dropped when the next one began, without a word.
#[test]
fn a_transaction_that_another_cuts_short_is_handed_out() {
    let mut assembler = assembler(false);
    let first = statement_transaction(8, 0, "/* lookaside: cut */");
    take_all(&mut assembler, &first[..2]);
    take_all(&mut assembler, &statement_transaction(9, 0, "/* lookaside: whole */"));
    assert_eq!(ready(&mut assembler), pairs(&[("cut", "none"), ("whole", "0-1-9")]), "it does not count as read");
    assert_eq!(assembler.anomalies(), Anomalies { unfinished: 1, ..Anomalies::default() });
}

/// A server that is killed may leave a file that ends inside of a transaction. That is nothing to be alarmed at.
#[test]
fn a_transaction_that_the_file_s_end_cuts_short_is_handed_out_without_alarm() {
    let mut assembler = assembler(false);
    take_all(&mut assembler, &statement_transaction(8, 0, "/* lookaside: cut */")[..2]);
    take_all(&mut assembler, &[event(4, b"\x04\0\0\0\0\0\0\0binlog.000002")]);
    assert_eq!(ready(&mut assembler), pairs(&[("cut", "none")]));
    assert_eq!(assembler.anomalies(), Anomalies::default());
}

/// Statements and rows that belong to no transaction were passed over.
#[test]
fn what_stands_outside_of_a_transaction_is_handed_out() {
    let mut assembler = assembler(false);
    take_all(&mut assembler, &outbox_transaction()[1..]);
    assert_eq!(ready(&mut assembler), pairs(&[("said", "none"), ("out", "none")]));
    assert_eq!(assembler.anomalies(), Anomalies { unnumbered: 2, ..Anomalies::default() });
    take_all(&mut assembler, &outbox_transaction());
    assert_eq!(ready(&mut assembler), pairs(&[("said out", "0-1-9")]));
    assert_eq!(assembler.anomalies().unnumbered, 2);
}

/// An XA COMMIT of a transaction that was prepared before reading began was taken for one that names no key.
#[test]
fn the_commit_of_an_unknown_prepared_transaction_is_counted() {
    let query = |sql: &str| event(2, &[&[0; 8][..], &[0, 0, 0, 0, 0, 0], sql.as_bytes()].concat()[..]);
    let gtid = |sequence, flags| statement_transaction(sequence, flags, "").remove(0);
    let prepare = |name: u8| event(38, &[&[0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, name][..]].concat());
    let mut assembler = assembler(false);
    take_all(&mut assembler, &[gtid(8, 0x40), prepare(b'a')]);
    take_all(&mut assembler, &[gtid(9, 1), query("XA COMMIT X'61',X'',1")]);
    assert_eq!(assembler.anomalies(), Anomalies::default(), "that one is known to name nothing");
    take_all(&mut assembler, &[gtid(10, 1), query("XA COMMIT X'62',X'',1")]);
    assert_eq!(assembler.anomalies(), Anomalies { unknown_xids: 1, ..Anomalies::default() });
    assert_eq!(assembler.resume().to_string(), "0-1-10");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    /// Whatever a server sends, there is an answer and not a panic.
    #[test]
    fn no_bytes_make_it_panic(
        events in prop::collection::vec((any::<u8>(), prop::collection::vec(any::<u8>(), 0..80)), 0..8),
        has_checksum: bool,
    ) {
        let mut assembler = assembler(has_checksum);
        for (kind, body) in events {
            let _ = assembler.take(&event(kind, &body), UNIX_EPOCH);
            let _ = assembler.take(&body, UNIX_EPOCH);
        }
    }

    /// Good events with some bytes changed or cut off get further in than noise does.
    #[test]
    fn no_damage_makes_it_panic(
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
            let _ = assembler.take(&bytes, UNIX_EPOCH);
        }
    }
}
