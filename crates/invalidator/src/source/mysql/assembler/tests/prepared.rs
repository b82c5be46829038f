//! Prepared transactions (XA): their keys, and those whose keys are not known.

use super::*;

/// The log does not show how the first of them ended (`sql_log_bin=0`).
#[test]
fn rollback_of_a_reused_name_deletes_what_the_first_transaction_named() {
    let mut reading = assembler(false);
    feed_all(&mut reading, &prepare(7, b'a', "/* lookaside: first */"));
    feed_all(&mut reading, &prepare(8, b'a', "/* lookaside: second */"));
    feed_all(&mut reading, &prepare(9, b'b', "/* lookaside: other */"));
    for (sequence, name) in [(10, b'b'), (11, b'a')] {
        feed_all(&mut reading, &resolve(sequence, "ROLLBACK", name));
    }
    let named = ready(&mut reading).into_iter().find(|(keys, _)| !keys.is_empty());
    assert_eq!(named.map(|(keys, _)| keys).as_deref(), Some("first second"));
    assert_eq!(reading.resume_position().to_string(), "0-1-11");
}

/// The gate waited for the second transaction, and no delete was sent until that ended.
#[test]
fn the_gate_does_not_wait_for_a_name_that_is_prepared_again() {
    let mut reading = assembler(false);
    for (sequence, name) in [(7, b'a'), (8, b'b')] {
        feed_all(&mut reading, &prepare(sequence, name, "/* lookaside: key */"));
    }
    feed_all(&mut reading, &resolve(9, "COMMIT", b'a'));
    feed_all(&mut reading, &resolve(10, "COMMIT", b'b'));
    feed_all(&mut reading, &prepare(11, b'a', "/* lookaside: key */"));
    assert_eq!(reading.visibility_target().xids, ["x'62',x'',1"]);
}

/// A position is held back by the oldest transaction that is prepared. One that was prepared before that and committed
/// after it was once taken for lost deletes by the next source.
#[test]
fn commit_of_a_transaction_that_an_earlier_source_has_read_is_no_loss() {
    let mut before = assembler(false);
    feed_all(&mut before, &prepare(7, b'b', "/* lookaside: earlier */"));
    let (later, commit) = (prepare(8, b'a', "/* lookaside: later */"), resolve(9, "COMMIT", b'b'));
    feed_all(&mut before, &later);
    feed_all(&mut before, &commit);
    assert_eq!(ready(&mut before), pairs(&[("earlier", "0-1-7")]));
    let mut after = assembler(false);
    feed_all(&mut after, &later);
    assert_eq!(after.resume_position().to_string(), "none", "a restart reads it again");
    feed_all(&mut after, &commit);
    feed_all(&mut after, &resolve(10, "COMMIT", b'a'));
    assert_eq!(ready(&mut after), pairs(&[("later", "0-1-10")]));
}

/// Too many keys stopped reading for ever: a restart read them again first, also after the transaction was resolved.
#[test]
fn prepared_transaction_with_too_many_keys_is_lost_by_its_commit_alone() {
    for how in ["ROLLBACK", "COMMIT"] {
        let mut assembler = assembler(false);
        let others = vec![Vec::new(); KEYS_HELD_MAX - 3];
        assembler.prepared.insert("others".into(), Some(others), GtidPosition::Mariadb(GtidList::default()));
        feed_all(&mut assembler, &prepare(7, b'k', "/* lookaside: kept 2 3 */"));
        feed_all(&mut assembler, &prepare(8, b'a', "/* lookaside: too many */"));
        feed_all(&mut assembler, &statement_transaction(9, 0, "/* lookaside: between */"));
        let lost = feed_until_lost(&mut assembler, &resolve(10, how, b'a'));
        assert_eq!(lost.is_some(), how == "COMMIT", "{lost:?}");
        feed_all(&mut assembler, &resolve(11, "COMMIT", b'k'));
        assert_eq!(ready(&mut assembler), pairs(&[("between", "none"), ("kept 2 3", "none")]));
        feed_all(&mut assembler, &prepare(12, b'c', "/* lookaside: 1 2 3 */"));
        feed_all(&mut assembler, &resolve(13, "COMMIT", b'c'));
        assert_eq!(ready(&mut assembler), pairs(&[("1 2 3", "none")]), "there is room again");
    }
}

/// The same for too many transactions.
#[test]
fn prepared_transactions_beyond_the_bound_are_lost_by_their_commit_alone() {
    let mut assembler = assembler(false);
    let xid = |number: usize| format!("{number:04x}").into_bytes();
    for number in 0..=TRANSACTIONS_HELD_MAX {
        let name = xid(number);
        let mut end = vec![0, 1, 0, 0, 0, name.len() as u8, 0, 0, 0, 0, 0, 0, 0];
        end.extend_from_slice(&name);
        feed_all(&mut assembler, &[gtid(8, PREPARED), event(160, b"/* lookaside: key */"), event(38, &end)]);
    }
    let resolve = |number: usize| {
        let hex: String = xid(number).iter().map(|byte| format!("{byte:x}")).collect();
        vec![gtid(9, STANDALONE), query(&format!("XA COMMIT X'{hex}',X'',1"))]
    };
    assert_eq!(feed_until_lost(&mut assembler, &resolve(TRANSACTIONS_HELD_MAX - 1)), None);
    assert_eq!(ready(&mut assembler).len(), 1);
    assert!(feed_until_lost(&mut assembler, &resolve(TRANSACTIONS_HELD_MAX)).is_some(), "it was not held");
}

/// The names of transactions.
fn names(of: &[u8]) -> BTreeSet<String> {
    of.iter().map(|name| format!("x'{name:x}',x'',1")).collect()
}

fn named(of: &[u8]) -> UnresolvedPrepared {
    UnresolvedPrepared::Named(names(of))
}

/// What is unresolved when reading begins; and what the server lists, at which sequence number.
fn unresolved(begin: UnresolvedPrepared, listed: Option<(&[u8], u64)>) -> UnresolvedTransactions {
    let end = |sequence| GtidPosition::Mariadb(GtidList::parse(&format!("0-1-{sequence}")).expect("a position"));
    let listed = listed.map(|(of, sequence)| PreparedList { names: names(of), end: end(sequence) });
    UnresolvedTransactions::new(Arc::default(), begin, listed)
}

/// A transaction that was prepared before reading began, and that has ended without an event: whether it was committed
/// is not known.
#[test]
fn end_that_the_log_does_not_show_is_a_loss() {
    let mut reading = assembler(false);
    reading.set_unresolved(unresolved(named(b"abcd"), Some((b"b", 10))));
    feed_all(&mut reading, &resolve(8, "ROLLBACK", b'a'));
    feed_all(&mut reading, &prepare(9, b'd', "/* lookaside: again */"));
    let lost = feed_until_lost(&mut reading, &statement_transaction(10, 0, "")).expect("c is neither");
    assert!(matches!(&lost, SourceError::PositionLost { why, .. } if why.contains("1 XA") && why.contains("x'63'")));
    let mut reading = assembler(false);
    reading.set_unresolved(unresolved(named(b"ab"), Some((b"b", 10))));
    feed_all(&mut reading, &resolve(9, "ROLLBACK", b'a'));
    assert_eq!(feed_until_lost(&mut reading, &statement_transaction(10, 0, "")), None);
    assert_eq!(reading.prepared_state().unresolved, named(b"b"));
}

/// The server refused to list prepared transactions, which was taken for an empty list.
#[test]
fn each_unread_transaction_may_be_a_loss_while_they_are_unknown() {
    let mut reading = assembler(false);
    reading.set_unresolved(unresolved(UnresolvedPrepared::Unknown, None));
    feed_all(&mut reading, &prepare(7, b'a', "/* lookaside: read */"));
    assert_eq!(feed_until_lost(&mut reading, &resolve(8, "COMMIT", b'a')), None);
    assert_eq!(feed_until_lost(&mut reading, &resolve(9, "ROLLBACK", b'b')), None);
    let lost = feed_until_lost(&mut reading, &resolve(10, "COMMIT", b'c')).expect("it may be older");
    assert!(lost.to_string().contains("XA_RECOVER_ADMIN"), "{lost}");
    // Once they are listed, others are known to have been sent.
    let mut reading = assembler(false);
    reading.set_unresolved(unresolved(UnresolvedPrepared::Unknown, Some((b"c", 7))));
    feed_all(&mut reading, &statement_transaction(7, 0, ""));
    assert_eq!(feed_until_lost(&mut reading, &resolve(8, "COMMIT", b'd')), None);
    assert!(feed_until_lost(&mut reading, &resolve(9, "COMMIT", b'c')).is_some());
}

/// A start from the present waits until prepared transactions are resolved, but not for ever.
#[test]
fn commit_of_what_a_start_from_the_present_has_not_waited_for_is_a_loss() {
    let mut assembler = assembler(false);
    assembler.set_unresolved(unresolved(named(b"b"), None));
    assert_eq!(feed_until_lost(&mut assembler, &resolve(8, "COMMIT", b'a')), None, "it was visible at the end");
    feed_all(&mut assembler, &resolve(9, "ROLLBACK", b'c'));
    let lost = feed_until_lost(&mut assembler, &resolve(10, "COMMIT", b'b'));
    assert!(matches!(lost, Some(SourceError::PositionLost { .. })), "{lost:?}");
}

/// An XA PREPARE that was being executed at the start was in no list, and not read.
#[test]
fn commit_of_a_transaction_of_no_list_is_a_loss_unless_it_was_read_before() {
    let position = |sequence| GtidPosition::Mariadb(GtidList::parse(&format!("0-1-{sequence}")).expect("a position"));
    let mut reading = assembler(false);
    reading.set_unresolved(unresolved(UnresolvedPrepared::none(), None).with_read_until(Some(position(8))));
    assert_eq!(feed_until_lost(&mut reading, &resolve(8, "COMMIT", b'a')), None, "another source had read it");
    feed_all(&mut reading, &prepare(9, b'b', "/* lookaside: read */"));
    feed_all(&mut reading, &resolve(10, "COMMIT", b'b'));
    feed_all(&mut reading, &resolve(11, "ROLLBACK", b'c'));
    assert_eq!(ready(&mut reading), pairs(&[("read", "0-1-10")]));
    let lost = feed_until_lost(&mut reading, &resolve(12, "COMMIT", b'd'));
    assert!(matches!(&lost, Some(SourceError::PositionLost { why, .. }) if why.contains("x'64'")), "{lost:?}");
}

/// It had been ended with `sql_log_bin=0`, and was forgotten when another transaction of its name was prepared.
#[test]
fn name_that_is_prepared_again_shows_an_end_that_is_not_in_the_log() {
    let position = |sequence| GtidPosition::Mariadb(GtidList::parse(&format!("0-1-{sequence}")).expect("a position"));
    let start = |counted: Option<u64>| {
        let counted = counted.map(|end| CountedCommits { end: position(end), incomplete: BTreeSet::new() });
        let known = unresolved(named(b"a"), None).with_read_until(Some(position(8)));
        let mut reading = assembler(false);
        reading.set_unresolved(known.with_counted(counted));
        reading
    };
    let again = |sequence| prepare(sequence, b'a', "/* lookaside: again */");
    for (sequence, counted, is_lost) in [(8, None, false), (9, None, true), (10, Some(10), false), (11, Some(10), true)]
    {
        let mut reading = start(counted);
        feed_all(&mut reading, &prepare(7, b'b', "/* lookaside: other */"));
        let lost = feed_until_lost(&mut reading, &again(sequence));
        let is_named = |why: &String| why.contains("x'61'") && why.contains("another one");
        let is_found = matches!(&lost, Some(SourceError::PositionLost { why, .. }) if is_named(why));
        assert_eq!((lost.is_some(), is_found), (is_lost, is_lost), "{sequence}, {counted:?}: {lost:?}");
        if !is_lost {
            feed_all(&mut reading, &resolve(12, "COMMIT", b'a'));
            assert_eq!(ready(&mut reading).len(), 1, "its keys were read");
        }
    }
    let mut ended = start(None);
    feed_all(&mut ended, &resolve(9, "ROLLBACK", b'a'));
    feed_all(&mut ended, &again(10));
}

/// A replay over an XA PREPARE without an end never came to its own.
#[test]
fn replay_is_not_held_back_by_a_prepared_transaction() {
    let options = MysqlOptions { is_replay: true, ..MysqlOptions::default() };
    let mut assembler = Assembler::new(&options, GtidPosition::Mariadb(GtidList::default()), false);
    feed_all(&mut assembler, &prepare(8, b'a', "/* lookaside: key */"));
    assert_eq!(assembler.resume_position().to_string(), "0-1-8");
    feed_all(&mut assembler, &resolve(9, "COMMIT", b'b'));
    feed_all(&mut assembler, &resolve(10, "COMMIT", b'a'));
    assert_eq!(ready(&mut assembler), pairs(&[("key", "0-1-10")]));
}
