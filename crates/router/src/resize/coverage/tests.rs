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
