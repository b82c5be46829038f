//! The rules of [`PendingDeletes`], one by one.

use super::*;

const LIMITS: Limits = Limits {
    keys_max: 8,
    retry_queue_keys_max: 1_000,
    retry_queue_bytes_max: 10_000,
    batch_keys_max: 4,
    batch_bytes_max: 10,
    retry_delay_min: Duration::from_millis(10),
    retry_delay_max: Duration::from_millis(70),
};

fn pending() -> PendingDeletes {
    PendingDeletes::new(LIMITS, Position("0".into()))
}

fn admit(pending: &mut PendingDeletes, position: u32, keys: &[&str]) {
    pending.admit(Commit {
        position: Position(position.to_string()),
        keys: keys.iter().map(|key| key.as_bytes().to_vec()).collect(),
        committed_at: SystemTime::UNIX_EPOCH,
    });
}

#[test]
fn batches_are_bounded_by_keys_and_by_bytes() {
    let mut pending = pending();
    admit(&mut pending, 1, &["a", "b", "c", "d", "e", "four", "four4", "f", "more than ten bytes", "g"]);
    let mut batches = Vec::new();
    while let Some(batch) = pending.next_batch(Instant::now(), true) {
        batches.push(batch.keys());
    }
    let expected: [&[&str]; 4] = [&["a", "b", "c", "d"], &["e", "four", "four4"], &["f"], &["more than ten bytes"]];
    assert_eq!(batches[..4], expected);
    assert_eq!(batches[4..], [["g"]]);
}

#[test]
fn retry_delay_doubles_up_to_its_maximum() {
    let mut pending = pending();
    admit(&mut pending, 1, &["a"]);
    let mut now = Instant::now();
    for delay_ms in [10, 20, 40, 70, 70] {
        let batch = pending.next_batch(now, true).expect("the key is due");
        assert_eq!(pending.complete(batch, &[false], now), []);
        let due = now + Duration::from_millis(delay_ms);
        assert_eq!(pending.next_retry_at(now), Some(due));
        assert!(pending.next_batch(due - Duration::from_millis(1), true).is_none(), "the key is not due");
        now = due;
    }
    assert_eq!(pending.safe_position(), &Position("0".into()));
}

#[test]
fn released_keys_are_due_at_once_before_fresh_ones_and_fail_with_the_shortest_delay() {
    let (mut pending, mut now) = (pending(), Instant::now());
    admit(&mut pending, 1, &["a", "b"]);
    for _ in 0..5 {
        let batch = pending.next_batch(now, true).expect("both are due");
        pending.complete(batch, &[false, false], now);
        now = pending.next_retry_at(now).expect("both wait");
    }
    let failed_at = now - LIMITS.retry_delay_max;
    admit(&mut pending, 2, &["fresh"]);
    assert_eq!(pending.release_retries(failed_at), 2);
    assert_eq!(pending.next_retry_at(failed_at), Some(failed_at));
    let batch = pending.next_batch(failed_at, true).expect("the released keys");
    assert_eq!(batch.keys(), ["a", "b"]);
    assert_eq!(pending.next_batch(failed_at, true).expect("then fresh ones").keys(), ["fresh"]);
    pending.complete(batch, &[true, false], failed_at);
    assert_eq!(pending.next_retry_at(failed_at), Some(failed_at + LIMITS.retry_delay_min));
}

#[test]
fn delete_covers_only_commits_admitted_before_it_was_sent() {
    let (mut pending, now) = (pending(), Instant::now());
    admit(&mut pending, 1, &["a"]);
    admit(&mut pending, 2, &["a", "b"]);
    let first = pending.next_batch(now, true).expect("two keys");
    admit(&mut pending, 3, &["a"]);
    let second = pending.next_batch(now, true).expect("a was named again while it was in flight");
    assert_eq!(pending.complete(second, &[true], now).len(), 1, "commit 3 is acknowledged");
    assert_eq!(pending.safe_position(), &Position("0".into()), "two older commits are pending");
    assert_eq!(pending.complete(first, &[true, false], now).len(), 1, "commit 1 is acknowledged");
    assert_eq!((pending.safe_position(), pending.keys()), (&Position("1".into()), 1));
    let retry = pending.next_batch(pending.next_retry_at(now).expect("b is retried"), true).expect("b");
    pending.advance(Position("9".into()));
    pending.complete(retry, &[true], now);
    assert_eq!((pending.safe_position(), pending.keys()), (&Position("9".into()), 0));
}

#[test]
fn failed_key_that_was_named_again_is_sent_once() {
    let (mut pending, now) = (pending(), Instant::now());
    admit(&mut pending, 1, &["a"]);
    let first = pending.next_batch(now, true).expect("a");
    admit(&mut pending, 2, &["a"]);
    pending.complete(first, &[false], now);
    let second = pending.next_batch(now, true).expect("a again, without a delay");
    assert_eq!(pending.complete(second, &[true], now).len(), 2, "both commits are acknowledged");
    assert_eq!((pending.next_batch(now, true).is_none(), pending.next_retry_at(now)), (true, None));
}

/// Acknowledged commits behind a single stuck key used 250 bytes each.
#[test]
fn stuck_key_uses_constant_memory() {
    let (mut pending, now) = (pending(), Instant::now());
    admit(&mut pending, 1, &["stuck"]);
    let batch = pending.next_batch(now, true).expect("stuck");
    pending.complete(batch, &[false], now);
    for number in 2..1_000_000 {
        let keys: &[&str] = if number % 3 == 0 { &["a", "stuck"] } else { &["a"] };
        admit(&mut pending, number, keys);
        let batch = pending.next_batch(now, true).expect("a, and stuck if it is named");
        assert_eq!(batch.keys(), keys);
        let is_final: Vec<bool> = keys.iter().map(|key| *key != "stuck").collect();
        pending.complete(batch, &is_final, now);
        let sizes = (pending.commits.len(), pending.unsent.len(), pending.send_queue.len(), pending.retries.len());
        assert_eq!(sizes, (1, 0, 0, 1));
    }
    assert!(pending.send_queue.capacity() < 100);
    assert_eq!(
        (pending.safe_position(), pending.keys(), pending.commits_merged()),
        (&Position("0".into()), 1, 333_333)
    );
    let batch = pending.next_batch(pending.next_retry_at(now).expect("stuck"), true).expect("stuck");
    pending.complete(batch, &[true], now);
    assert_eq!((pending.safe_position(), pending.keys()), (&Position("999999".into()), 0));
}

/// A delete that fails at the gutter alone waited up to a second for its retry, and so did the deletes of all commits
/// that named the key meanwhile: the key's own server, which was healthy, served values that were older and older.
#[test]
fn commit_that_names_a_waiting_key_is_sent_at_once() {
    let (mut pending, now) = (pending(), Instant::now());
    admit(&mut pending, 1, &["a"]);
    let batch = pending.next_batch(now, true).expect("a");
    pending.complete(batch, &[false], now);
    let due = pending.next_retry_at(now);
    admit(&mut pending, 2, &["a"]);
    let batch = pending.next_batch(now, true).expect("a again, before its retry is due");
    assert_eq!(pending.complete(batch, &[false], now), [], "it is refused, too");
    assert_eq!((pending.keys(), pending.next_retry_at(now)), (1, due), "its commits share one entry, due as before");
    admit(&mut pending, 3, &["a"]);
    let batch = pending.next_batch(now, true).expect("a once more");
    assert_eq!(pending.complete(batch, &[true], now).len(), 2, "commits 1 and 3; 2 was merged with 1");
    assert_eq!((pending.safe_position(), pending.keys()), (&Position("3".into()), 0));
    assert_eq!(pending.next_retry_at(now), None, "the last delete covers all");
}

#[test]
fn commit_that_names_a_key_whose_retry_is_in_flight_is_sent_at_once() {
    let (mut pending, now) = (pending(), Instant::now());
    admit(&mut pending, 1, &["a"]);
    let batch = pending.next_batch(now, true).expect("a");
    pending.complete(batch, &[false], now);
    let later = pending.next_retry_at(now).expect("a waits");
    let retry = pending.next_batch(later, true).expect("a is due");
    admit(&mut pending, 2, &["a"]);
    let second = pending.next_batch(later, true).expect("a, although its retry is in flight");
    admit(&mut pending, 3, &["a"]);
    let third = pending.next_batch(later, true).expect("a, although two deletes are in flight");
    pending.complete(third, &[false], later);
    pending.complete(second, &[false], later);
    assert_eq!(pending.keys(), 1, "all share one entry");
    assert_eq!(pending.complete(retry, &[true], later).len(), 1, "commit 1; 2 and 3 are not covered");
    assert_eq!((pending.safe_position(), pending.keys()), (&Position("1".into()), 1));
    let due = pending.next_retry_at(later).expect("a waits for them");
    assert_eq!(due, later + LIMITS.retry_delay_min);
    let batch = pending.next_batch(due, true).expect("a");
    pending.complete(batch, &[true], due);
    assert_eq!((pending.safe_position(), pending.keys()), (&Position("3".into()), 0));
}

#[test]
fn retry_queue_has_its_own_bound() {
    let (now, mut number) = (Instant::now(), 0);
    let cases = [(3, 10_000), (1_000, 9)];
    for (retry_queue_keys_max, retry_queue_bytes_max) in cases {
        let mut pending =
            PendingDeletes::new(Limits { retry_queue_keys_max, retry_queue_bytes_max, ..LIMITS }, Position("0".into()));
        for _ in 0..3 {
            assert!(pending.has_capacity(8) && !pending.is_blocked());
            number += 1;
            admit(&mut pending, number, &[&format!("k{number:02}")]);
            let batch = pending.next_batch(now, false).expect("a fresh key");
            pending.complete(batch, &[false], now);
        }
        assert!(!pending.has_capacity(1) && pending.is_blocked() && pending.has_capacity(0));
        assert_eq!((pending.retry_queue_size(), pending.keys()), ((3, 9), 3));
        let batch = pending.next_batch(now + LIMITS.retry_delay_max, true).expect("all three");
        pending.complete(batch, &[true, false, false], now);
        assert!(pending.has_capacity(8) && !pending.is_blocked());
    }
}

/// After an outage the keys that had failed and as many new ones were in memory together.
#[test]
fn released_keys_count_for_half_of_the_capacity_until_they_are_sent() {
    let (mut pending, now) = (pending(), Instant::now());
    for (position, keys) in [(1, ["a", "b", "c", "d"]), (2, ["e", "f", "g", "h"])] {
        admit(&mut pending, position, &keys);
        let batch = pending.next_batch(now, true).expect("keys are unsent");
        pending.complete(batch, &[false; 4], now);
    }
    assert_eq!(pending.release_retries(now), 8);
    admit(&mut pending, 3, &["i"]);
    assert!(pending.has_capacity(3) && !pending.has_capacity(4), "4 of 8 count as released");
    for _ in 0..2 {
        let batch = pending.next_batch(now, true).expect("released keys are due");
        pending.complete(batch, &[true; 4], now);
    }
    assert!(pending.has_capacity(7) && !pending.has_capacity(8));
}

#[test]
fn fresh_keys_go_first_but_for_every_eighth_batch() {
    let (mut pending, now) = (pending(), Instant::now());
    admit(&mut pending, 1, &["stuck"]);
    let batch = pending.next_batch(now, true).expect("stuck");
    pending.complete(batch, &[false], now);
    let now = now + LIMITS.retry_delay_max;
    let mut retries = Vec::new();
    for number in 2..32 {
        admit(&mut pending, number, &["a", "b", "c", "d"]);
        let batch = pending.next_batch(now, true).expect("a fresh key is unsent");
        if batch.is_retry() {
            retries.push(number);
        }
        let is_final = vec![!batch.is_retry(); batch.keys().len()];
        pending.complete(batch, &is_final, now - LIMITS.retry_delay_max);
    }
    assert_eq!(retries, [8, 16, 24]);
}
