//! The simulation itself: it is deterministic, exercises enough, and finds guarantees that are disabled on purpose.

use lookaside_simulation::{
    checker::Tally,
    region::{DisabledGuarantee, run},
};

#[test]
fn same_seed_gives_the_same_run() {
    for seed in 7..10 {
        assert_eq!(run(seed, DisabledGuarantee::Nothing), run(seed, DisabledGuarantee::Nothing));
    }
    assert_ne!(run(7, DisabledGuarantee::Nothing).tally, run(8, DisabledGuarantee::Nothing).tally);
}

#[test]
fn guarantees_hold_under_load_and_faults() {
    let mut sum = Tally::default();
    for seed in 1_000..1_010 {
        let outcome = run(seed, DisabledGuarantee::Nothing);
        assert_eq!(outcome.violation, None, "to repeat: lookaside simulate --seed {seed}");
        sum = sum.plus(outcome.tally);
    }
    assert!(sum.commits > 1_000 && sum.faults > 100, "{sum:?}");
    assert!(sum.cached > sum.reads / 3 && sum.stale > 10, "{sum:?}");
}

/// The number of seeds that show a violation while a guarantee is disabled.
fn violations(disabled: DisabledGuarantee) -> usize {
    (1..=10).filter(|&seed| run(seed, disabled).violation.is_some()).count()
}

#[test]
fn delete_before_visibility_is_found() {
    assert!(violations(DisabledGuarantee::Gate) > 0);
}

#[test]
fn fill_without_a_lease_is_found() {
    assert!(violations(DisabledGuarantee::Leases) > 0);
}

#[test]
fn acknowledging_unapplied_deletes_is_found() {
    assert!(violations(DisabledGuarantee::Acknowledgement) > 0);
}

#[test]
fn reading_a_server_with_a_backlog_is_found() {
    assert!(violations(DisabledGuarantee::Fence) > 0);
}

#[test]
fn losing_spooled_deletes_is_found() {
    assert!(violations(DisabledGuarantee::Spool) > 0);
}

#[test]
fn spare_without_deletes_is_found() {
    assert!(violations(DisabledGuarantee::Spares) > 0);
}
