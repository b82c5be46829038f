//! The simulation itself: it is deterministic, exercises enough, and finds guarantees that are disabled on purpose.

use lookaside_simulation::{
    checker::{OUTDATED_MAX, Tally, Violation},
    region::{DisabledGuarantee, RunOutcome, run},
};

/// Also on another thread, whose thread-local random numbers and memory are others.
#[test]
fn same_seed_gives_the_same_run() {
    const SEEDS: std::ops::Range<u64> = 7..13;
    let run_all = || -> Vec<RunOutcome> { SEEDS.map(|seed| run(seed, DisabledGuarantee::Nothing)).collect() };
    let other_thread = std::thread::spawn(run_all);
    let outcomes = run_all();
    assert_eq!(outcomes, other_thread.join().expect("runs do not panic"));
    assert_ne!(outcomes[0].tally, outcomes[1].tally);
    let spooled: u64 = outcomes.iter().map(|outcome| outcome.tally.spooled).sum();
    assert!(spooled > 0, "peers are the part of the router in which most tasks wait for each other");
}

#[test]
fn guarantees_hold_under_load_and_faults() {
    let mut sum = Tally::default();
    for seed in 1_024..1_048 {
        let outcome = run(seed, DisabledGuarantee::Nothing);
        assert_eq!(outcome.violation, None, "to repeat: lookaside simulate --seed {seed}");
        sum = sum.plus(outcome.tally);
    }
    assert!(sum.commits > 1_000 && sum.faults > 100, "{sum:?}");
    assert!(sum.cached > sum.reads / 3 && sum.stale > 10, "{sum:?}");
    assert!(sum.hangs > 10 && sum.upgrades > 5 && sum.upgrades_in_changes > 0, "{sum:?}");
    assert!(sum.warm_restarts > 10 && sum.server_upgrades > 10, "{sum:?}");
    assert!(sum.spooled > 100 && sum.flushes > 0 && sum.spare_takeovers > 5 && sum.spare_departures > 3, "{sum:?}");
    assert!(sum.config_changes > 50 && sum.lost_coverages > 0, "{sum:?}");
    assert!(sum.former_owner_fills > 30 && sum.direct_reads > 1_000, "{sum:?}");
    assert!(sum.plain_sets_stored > 300 && sum.plain_sets_refused > 30, "{sum:?}");
    assert!(sum.stalled_fills_stored > 10 && sum.stalled_fills_refused > 50, "{sum:?}");
    assert!(sum.outdated.calm_ms > 0 && sum.outdated.any_ms > OUTDATED_MAX.as_millis() as u64, "{sum:?}");
}

/// Its only router hangs, and then the link to it is cut twice. Deletes must not wait for long after that.
#[test]
fn a_router_that_was_out_of_reach_is_used_soon() {
    let outcome = run(21_768, DisabledGuarantee::Nothing);
    assert_eq!(outcome.violation, None);
    assert!(outcome.tally.outdated.calm_ms <= OUTDATED_MAX.as_millis() as u64, "{:?}", outcome.tally);
}

/// Whether one of ten seeds shows a violation that `is_expected` while a guarantee is disabled.
fn is_found(disabled: DisabledGuarantee, is_expected: fn(&Violation) -> bool) -> bool {
    (1..=10).any(|seed| run(seed, disabled).violation.as_ref().is_some_and(is_expected))
}

fn is_staleness(violation: &Violation) -> bool {
    matches!(violation, Violation::StaleRead { .. } | Violation::LostDelete { .. })
}

#[test]
fn delete_before_visibility_is_found() {
    assert!(is_found(DisabledGuarantee::Gate, is_staleness));
}

#[test]
fn fill_without_a_lease_is_found() {
    assert!(is_found(DisabledGuarantee::Leases, is_staleness));
}

#[test]
fn fills_of_plain_clients_without_leases_are_found() {
    assert!(is_found(DisabledGuarantee::PlainLeases, is_staleness));
}

#[test]
fn acknowledging_unapplied_deletes_is_found() {
    assert!(is_found(DisabledGuarantee::Acknowledgement, is_staleness));
}

#[test]
fn reading_a_server_with_a_backlog_is_found() {
    assert!(is_found(DisabledGuarantee::Fence, is_staleness));
}

#[test]
fn routers_that_do_not_fence_for_each_other_are_found() {
    assert!(is_found(DisabledGuarantee::Peers, is_staleness));
}

#[test]
fn losing_spooled_deletes_is_found() {
    assert!(is_found(DisabledGuarantee::Spool, is_staleness));
}

#[test]
fn spare_without_deletes_is_found() {
    assert!(is_found(DisabledGuarantee::Spares, is_staleness));
}

#[test]
fn reading_by_a_new_configuration_at_once_is_found() {
    assert!(is_found(DisabledGuarantee::Resize, is_staleness));
}

/// The gutter is read only while a server is down, and its values expire after seconds.
#[test]
fn reading_by_another_gutter_at_once_is_found() {
    assert!(is_found(DisabledGuarantee::Gutter, is_staleness));
}

#[test]
fn losing_covered_configurations_without_asking_a_peer_is_found() {
    assert!(is_found(DisabledGuarantee::Coverage, is_staleness));
}

/// All routers lose them at once, and none finds a peer that remembers.
#[test]
fn losing_all_covered_configurations_without_a_shared_history_is_found() {
    assert!(is_found(DisabledGuarantee::History, is_staleness));
}

#[test]
fn copies_of_moved_keys_without_leases_are_found() {
    assert!(is_found(DisabledGuarantee::CopyLeases, is_staleness));
}

/// A client stalls between a miss and its fill. Its key moves away, is deleted where it is then, and moves back.
#[test]
fn leases_that_outlast_a_move_of_their_keys_are_found() {
    assert!(is_found(DisabledGuarantee::LeaseVoids, is_staleness));
}

#[test]
fn continuing_an_upgrade_from_older_configurations_is_found() {
    assert!(is_found(DisabledGuarantee::Takeover, is_staleness));
}

#[test]
fn losing_a_spool_in_an_upgrade_is_found() {
    assert!(is_found(DisabledGuarantee::TakeoverSpool, is_staleness));
}

#[test]
fn acknowledging_deletes_while_permits_are_in_use_is_found() {
    assert!(is_found(DisabledGuarantee::Permits, is_staleness));
}

#[test]
fn late_deletes_are_found() {
    assert!(is_found(DisabledGuarantee::Promptness, |violation| matches!(violation, Violation::OldRead { .. })));
}
