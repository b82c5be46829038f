//! Several regions: users read their own writes, monitors count what is so, and what is broken on purpose is found.

use lookaside_simulation::{
    checker::{Tally, Violation},
    region::{DisabledGuarantee, RunOutcome},
    regions::{run, run_long},
};
use std::time::Duration;

#[test]
fn same_seed_gives_the_same_run() {
    let run_all = || -> Vec<RunOutcome> { (3..5).map(|seed| run(seed, DisabledGuarantee::Nothing)).collect() };
    let other_thread = std::thread::spawn(run_all);
    let outcomes = run_all();
    assert_eq!(outcomes, other_thread.join().expect("runs do not panic"));
    assert_ne!(outcomes[0].tally, outcomes[1].tally);
}

#[test]
fn users_read_their_own_writes_and_monitors_count_what_is_so() {
    let mut sum = Tally::default();
    for seed in 101..109 {
        let outcome = run(seed, DisabledGuarantee::Nothing);
        assert_eq!(outcome.violation, None, "to repeat: lookaside simulate --regions --seed {seed}");
        sum = sum.plus(outcome.tally);
    }
    assert!(sum.remote_writes > 150 && sum.unknown_writes > 20 && sum.master_reads > 300, "{sum:?}");
    assert!(sum.replication_stops > 40 && sum.promotions > 0 && sum.faults > 100, "{sum:?}");
    assert!(sum.cached > sum.reads / 3, "{sum:?}");
    let found = sum.monitored;
    assert!(found.absent > 100 && found.new > 100 && found.old > 0 && found.undecided > 0, "{sum:?}");
    assert!(found.undecided < found.answered() / 4, "{sum:?}");
    assert_eq!(sum.own_writes_not_read, 0);
}

/// A thin load of some minutes, after which the deletes grow an hour old.
#[test]
fn monitors_ask_about_each_delete_until_it_is_an_hour_old() {
    let outcome = run_long(1, DisabledGuarantee::Nothing, Duration::from_secs(240));
    assert_eq!(outcome.violation, None);
    let deletes = &outcome.deletes;
    assert_eq!(deletes.by_age_s.keys().copied().collect::<Vec<_>>(), [1, 10, 60, 600, 3_600]);
    assert!(deletes.samples > 100, "{outcome:?}");
    for found in deletes.by_age_s.values() {
        // Both clusters of a region are asked about each delete, by routers and server by server.
        assert_eq!(found.values().iter().sum::<u64>(), deletes.samples * 4, "{outcome:?}");
    }
    let (first, last) = (&deletes.by_age_s[&1], &deletes.by_age_s[&3_600]);
    assert!(first.answered() > deletes.samples * 3 && last.answered() > deletes.samples * 3, "{outcome:?}");
    assert!(first.new > 0 && last.old == 0, "{outcome:?}");
    assert!(outcome.tally.faults > 10 && outcome.tally.replication_stops > 5, "{outcome:?}");
    assert!(outcome.tally.cached > outcome.tally.reads / 3, "{outcome:?}");
}

/// The values that deletes should have removed are there a minute later. Some servers restart later, and are empty
/// then.
#[test]
fn monitors_find_old_values_of_lost_deletes() {
    let outcome = run_long(1, DisabledGuarantee::Acknowledgement, Duration::from_secs(240));
    assert!(outcome.violation.as_ref().is_some_and(is_staleness), "{outcome:?}");
    assert!(outcome.deletes.by_age_s[&10].old > 0 && outcome.deletes.by_age_s[&60].old > 0, "{outcome:?}");
}

/// Whether one of ten seeds shows a violation that `is_expected` while a guarantee is disabled.
fn is_found(disabled: DisabledGuarantee, is_expected: fn(&Violation) -> bool) -> bool {
    (1..=10).any(|seed| run(seed, disabled).violation.as_ref().is_some_and(is_expected))
}

fn is_own_write(violation: &Violation) -> bool {
    matches!(violation, Violation::OwnWriteNotRead { .. })
}

fn is_staleness(violation: &Violation) -> bool {
    matches!(violation, Violation::StaleRead { .. } | Violation::LostDelete { .. })
}

#[test]
fn writes_from_a_replica_region_without_markers_are_found() {
    assert!(is_found(DisabledGuarantee::Markers, is_own_write));
}

/// The form of the paper, which it accepts: one of two concurrent writes deletes the marker of the other.
#[test]
fn markers_that_are_deleted_by_another_write_are_found() {
    assert!(is_found(DisabledGuarantee::MarkerTokens, is_own_write));
}

#[test]
fn deletes_that_arrive_before_the_replica_has_the_commit_are_found() {
    assert!(is_found(DisabledGuarantee::ReplicaLog, |violation| is_own_write(violation) || is_staleness(violation)));
}

/// A miss with a marker is read from the former master, which does not have the new row yet.
#[test]
fn applications_that_are_directed_to_the_new_master_too_late_are_found() {
    assert!(is_found(DisabledGuarantee::Promotion, |violation| is_own_write(violation) || is_staleness(violation)));
}

#[test]
fn a_monitor_with_a_slow_clock_is_found() {
    assert!(is_found(DisabledGuarantee::MonitorClock, |violation| matches!(violation, Violation::WrongMonitor { .. })));
}
