//! The simulation itself: it repeats, it exercises what it should, and it finds what is broken on purpose.

use lookaside_simulation::{
    checker::Tally,
    region::{Broken, run},
};

#[test]
fn the_same_seed_gives_the_same_run() {
    for seed in 7..10 {
        assert_eq!(run(seed, Broken::Nothing), run(seed, Broken::Nothing));
    }
    assert_ne!(run(7, Broken::Nothing).tally, run(8, Broken::Nothing).tally);
}

#[test]
fn promises_hold_and_much_is_exercised() {
    let mut sum = Tally::default();
    for seed in 1_000..1_010 {
        let outcome = run(seed, Broken::Nothing);
        assert_eq!(outcome.violation, None, "again: lookaside simulate --seed {seed}");
        sum = sum.plus(outcome.tally);
    }
    assert!(sum.commits > 1_000 && sum.faults > 100, "{sum:?}");
    assert!(sum.cached > sum.reads / 3 && sum.stale > 10, "{sum:?}");
}

/// How many of these seeds show a promise that is broken on purpose.
fn found(broken: Broken) -> usize {
    (1..=10).filter(|&seed| run(seed, broken).violation.is_some()).count()
}

#[test]
fn deleting_before_readers_see_the_commit_is_found() {
    assert!(found(Broken::Gate) > 0);
}

#[test]
fn filling_without_a_lease_is_found() {
    assert!(found(Broken::Leases) > 0);
}

#[test]
fn taking_a_delete_for_applied_that_was_not_is_found() {
    assert!(found(Broken::Acknowledgement) > 0);
}

#[test]
fn reading_a_server_that_owes_deletes_is_found() {
    assert!(found(Broken::Fence) > 0);
}

#[test]
fn losing_deletes_that_were_kept_is_found() {
    assert!(found(Broken::Spool) > 0);
}

#[test]
fn a_spare_that_is_not_told_of_deletes_is_found() {
    assert!(found(Broken::Spares) > 0);
}
