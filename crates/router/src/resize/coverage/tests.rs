//! Single steps. [`super::model`] has all of them together.

use super::*;
use crate::resize::pool_servers::PoolServers;

fn candidate(id: u128, server: &str) -> Candidate {
    let all: BTreeSet<Address> = [Address(server.into())].into();
    let pool = PoolServers { servers: all.clone(), flush_new: true };
    let servers = ConfigServers { pools: [("p".to_owned(), pool)].into(), all, warm_up: Duration::ZERO };
    Candidate { id: ConfigId(id), text: "".into(), servers: Arc::new(servers) }
}

/// A router without peers saved that it read by a new configuration, and was replaced before the permits for the former one
/// had ended: its successor forgot the former one at once, and acknowledged deletes that did not reach its server, which
/// clients went on to read by these permits.
#[test]
fn a_process_that_starts_covers_what_permits_of_the_one_before_may_be_for() {
    let (former, read) = (candidate(1, "old:1"), candidate(2, "new:1"));
    let saved = |config: &Candidate| SavedConfig { config: config.clone(), is_claimed: true, was_read: true };
    let covered = [&former, &read].map(saved).into();
    let saved = SavedCoverage { reads: read.id, covered, departed: Departed::default() };
    let settings = CoverageSettings { peers: 0, ignores_missing_peers: false, rules: Rules::ALL };
    let mut coverage = Coverage::restore(saved, settings, Duration::ZERO);
    coverage.set_target(read.clone(), Duration::ZERO);
    coverage.advance(RELEASE_AFTER * 2);
    assert_eq!(coverage.active().others, [(former.id, [].into())], "deletes go to all of its servers");
    assert_eq!(coverage.report().reads, [read.id]);
    // Threads report when the permits have ended.
    coverage.record_applied(1, Duration::from_millis(250));
    assert_eq!(coverage.active().others, []);
    assert!(coverage.saved().departed.servers.contains(&Address("old:1".into())));
}

/// The router covered a configuration because a peer waited for it. The peer went back, and the file reached the router,
/// which decided to read by it at once: the claim of the peer was a moment old. It had not announced that, and its next
/// report came when the disk had saved the decision, seconds later. Meanwhile the peer had forgotten the configuration.
#[test]
fn a_configuration_is_read_only_after_it_was_announced_that_it_is_waited_for() {
    let ms = Duration::from_millis;
    let (read, other) = (candidate(1, "one:1"), candidate(2, "two:1"));
    let saved = |config: &Candidate| SavedConfig { config: config.clone(), is_claimed: true, was_read: true };
    let covered = || [&read, &other].map(saved).into();
    let saved = || SavedCoverage { reads: read.id, covered: covered(), departed: Departed::default() };
    for announce in [false, true] {
        let rules = Rules { announce, ..Rules::ALL };
        let settings = CoverageSettings { peers: 1, ignores_missing_peers: false, rules };
        let [mut router, mut peer] = [(); 2].map(|()| Coverage::restore(saved(), settings.clone(), Duration::ZERO));
        let (claim, announced) = (peer.report(), router.report());
        assert!(claim.claims.contains(&other.id) && announced.waits_for.is_none());
        router.record_report(0, ms(0), claim.clone(), ms(1));
        router.record_announced(ms(1));
        peer.record_applied(1, ms(1));
        peer.record_report(0, ms(1), announced.clone(), ms(2));

        router.set_target(other.clone(), ms(3));
        let polled_at = ms(2) + RELEASE_AFTER;
        peer.record_report(0, polled_at, announced, polled_at);
        assert!(!peer.active_ids().contains(&other.id), "the peer has forgotten it");
        assert_eq!(router.reads() == other.id, !announce, "and the router reads by it without the rule");
        if !announce {
            continue;
        }

        // The report names it from now on.
        let announced_at = polled_at + ms(1_000);
        router.record_announced(announced_at);
        router.record_report(0, announced_at - ms(1), claim.clone(), announced_at + ms(1));
        assert_eq!(router.reads(), read.id, "the peer may have replied before");
        router.record_report(0, announced_at, claim, announced_at + ms(1));
        assert_eq!(router.reads(), other.id);
    }
}
