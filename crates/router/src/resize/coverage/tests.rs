//! Single steps. [`super::model`] has all of them together.

use super::*;
use crate::resize::history::{History, RecordedConfig};
use crate::resize::pool_servers::{FlushNew, PoolServers};

fn candidate(id: u128, server: &str) -> Candidate {
    candidate_of(id, "p", &[server])
}

fn addresses(servers: &[&str]) -> BTreeSet<Address> {
    servers.iter().map(|server| Address((*server).into())).collect()
}

fn candidate_of(id: u128, pool: &str, servers: &[&str]) -> Candidate {
    let all = addresses(servers);
    let of_pool = PoolServers { servers: all.clone(), flush_new: FlushNew::OfKnownPools };
    let servers = ConfigServers { pools: [(pool.to_owned(), of_pool)].into(), all, warm_up: Duration::ZERO };
    Candidate { id: ConfigId(id), text: "".into(), servers: Arc::new(servers) }
}

/// A router without peers, in whose threads changes take no time.
struct Alone {
    coverage: Coverage,
    now: Duration,
}

impl Alone {
    fn reading(config: &Candidate) -> Alone {
        let covered = vec![SavedConfig { config: config.clone(), is_claimed: true, was_read: true }];
        Alone::starting(SavedCoverage { reads: config.id, covered, departed: Departed::default() })
    }

    fn starting(saved: SavedCoverage) -> Alone {
        let settings = CoverageSettings { peers: 0, ignores_missing_peers: false, rules: Rules::ALL };
        Alone { coverage: Coverage::restore(saved, settings, Duration::ZERO), now: Duration::ZERO }
    }

    /// Servers that are flushed before the target is read.
    fn to_flush(&self) -> BTreeSet<Address> {
        self.to_empty(Emptying::Flush)
    }

    fn to_empty(&self, emptying: Emptying) -> BTreeSet<Address> {
        let to_empty = self.coverage.servers_to_empty().into_iter();
        to_empty.filter(|(_, how)| *how == emptying).map(|(server, _)| server).collect()
    }

    /// Has a new configuration, which it covers from now on.
    fn set_target(&mut self, config: &Candidate) {
        self.coverage.set_target(config.clone(), self.now);
        self.coverage.record_announced(self.now);
        self.coverage.record_applied(self.coverage.active().number, self.now);
    }

    /// Empties and purges servers until there is nothing to do, and writes what there is to record into `history`.
    fn run(&mut self, history: &mut History) {
        for _ in 0..20 {
            self.now += Duration::from_secs(1);
            let target = self.coverage.target();
            for server in self.coverage.servers_to_empty().into_keys() {
                self.coverage.record_emptied(target.expect("it empties for a target"), &server, self.now);
            }
            self.coverage.record_applied(self.coverage.active().number, self.now);
            self.coverage.purges().iter().for_each(|purge| self.coverage.record_purged(purge, self.now));
            if let Some(next) = self.coverage.history_to_record(self.now) {
                *history = next;
                let (revision, _) = self.coverage.seen_history().expect("it has seen one");
                self.coverage.record_history(revision + 1, history.clone(), self.now);
            }
        }
    }
}

/// The same servers with other settings: they have the same identity.
fn with_settings(config: &Candidate, flush_new: FlushNew, warm_up: Duration) -> Candidate {
    let mut servers = ConfigServers { warm_up, ..(*config.servers).clone() };
    servers.pools.values_mut().for_each(|pool| pool.flush_new = flush_new);
    Candidate { text: format!("{flush_new:?} {warm_up:?}").into(), servers: Arc::new(servers), id: config.id }
}

/// A wrong `"flush_new_servers": false` was corrected while the configuration was waited for. It had the same identity,
/// so nothing was emptied, and old values of the new server were read.
#[test]
fn a_corrected_setting_counts_for_a_configuration_that_is_covered() {
    let (read, next) = (candidate_of(1, "p", &["a:1"]), candidate_of(2, "p", &["a:1", "b:1"]));
    let mut router = Alone::reading(&read);
    router.coverage.set_target(with_settings(&next, FlushNew::Never, Duration::ZERO), router.now);
    let saved = router.coverage.saved();
    let corrected = with_settings(&next, FlushNew::OfKnownPools, Duration::from_secs(9));
    router.set_target(&corrected);
    assert_eq!(router.to_flush(), addresses(&["b:1"]));
    assert_eq!(router.coverage.reads(), read.id);
    assert!(!router.coverage.saved().is_same(&saved), "it is to be saved");
    router.coverage.record_emptied(next.id, &Address("b:1".into()), router.now);
    assert_eq!((router.coverage.reads(), router.coverage.is_warming_up()), (next.id, true));
    // Also of the one that is read.
    let saved = router.coverage.saved();
    router.set_target(&with_settings(&next, FlushNew::OfKnownPools, Duration::from_secs(5)));
    assert!(!router.coverage.saved().is_same(&saved));
}

/// An old copy may be at a server that the former configuration has named, too, so all are emptied, but for those of a
/// configuration that all routers have covered since before. Then the next change is as usual.
#[test]
fn after_a_configuration_was_lost_all_servers_of_the_next_are_emptied() {
    let [read, next, last] = [(1, ["a:1", "b:1"]), (2, ["b:1", "a:1"]), (3, ["b:1", "c:1"])]
        .map(|(id, servers)| candidate_of(id, "p", &servers));
    let config = |id, is_readable| RecordedConfig { id: ConfigId(id), is_readable, is_lost: !is_readable };
    let mut history = History { configs: vec![config(9, false), config(1, true)], ..History::default() };
    let mut router = Alone::reading(&read);
    router.coverage.use_history();
    router.coverage.record_history(1, history.clone(), Duration::ZERO);
    assert!(router.coverage.missing_in_history().is_empty(), "its text cannot be used");
    router.run(&mut history);
    assert_eq!((router.coverage.reads(), history.lost().count()), (read.id, 1), "nothing has changed");
    router.set_target(&next);
    assert_eq!(router.to_flush(), addresses(&["a:1", "b:1"]));
    // It is marked again, by a router that starts: copies that were placed until then may be at emptied servers.
    router.coverage.record_emptied(next.id, &Address("a:1".into()), router.now);
    router.coverage.record_history(
        2,
        History { configs: history.configs[1..].to_vec(), ..History::default() },
        router.now,
    );
    router.coverage.record_history(3, history.clone(), router.now);
    assert_eq!(router.to_flush(), addresses(&["a:1", "b:1"]));
    router.run(&mut history);
    assert_eq!(router.coverage.reads(), next.id);
    assert_eq!(history.configs, [config(2, true)], "the lost one is gone");
    assert!(history.departed.is_incomplete, "it may have named other servers");
    router.set_target(&last);
    assert_eq!(router.to_flush(), addresses(&["c:1"]));
}

/// They were trusted, with a warning: an old copy of a server that had been used before was read.
#[test]
fn servers_of_a_pool_under_a_new_name_must_be_empty() {
    let read = candidate_of(1, "p", &["a:1", "b:1"]);
    let new = candidate_of(2, "q", &["c:1", "d:1"]);
    for (target, to_check, to_flush) in [
        (new.clone(), &["c:1", "d:1"][..], &[][..]),
        (with_settings(&new, FlushNew::Always, Duration::ZERO), &[], &["c:1", "d:1"]),
        (with_settings(&new, FlushNew::Never, Duration::ZERO), &[], &[]),
        // It was renamed.
        (candidate_of(3, "q", &["b:1", "c:1"]), &[], &["c:1"]),
        (candidate_of(4, "p", &["c:1"]), &[], &["c:1"]),
    ] {
        let mut router = Alone::reading(&read);
        router.set_target(&target);
        let known = (router.to_empty(Emptying::Check), router.to_flush());
        assert_eq!(known, (addresses(to_check), addresses(to_flush)), "{target:?}");
        let is_trusted = to_check.is_empty() && to_flush.is_empty();
        assert_eq!(router.coverage.reads() == target.id, is_trusted, "{target:?}");
    }
}

/// A server of the pool holds items: the new configuration waits until it has been emptied, or the operator says what
/// is done. Other servers of the pool are empty and are not touched.
#[test]
fn a_configuration_waits_for_a_pool_under_a_new_name_with_items() {
    let (read, new) = (candidate_of(1, "p", &["a:1"]), candidate_of(2, "q", &["c:1", "d:1"]));
    let [server, empty] = ["c:1", "d:1"].map(|name| Address(name.into()));
    let waiting = || {
        let mut router = Alone::reading(&read);
        router.set_target(&new);
        router.coverage.record_emptied(new.id, &empty, router.now);
        assert_eq!(router.coverage.servers_with_items(), addresses(&[]), "it was not asked yet");
        router.coverage.record_items(new.id, &server, router.now);
        assert_eq!(router.coverage.servers_with_items(), addresses(&["c:1"]));
        assert_eq!(router.coverage.reads(), read.id);
        router
    };
    let mut flushed_by_hand = waiting();
    flushed_by_hand.coverage.record_emptied(new.id, &server, flushed_by_hand.now);
    assert_eq!(flushed_by_hand.coverage.reads(), new.id);

    let mut trusted = waiting();
    trusted.set_target(&with_settings(&new, FlushNew::Never, Duration::ZERO));
    assert_eq!(trusted.coverage.reads(), new.id);

    let mut flushed = waiting();
    flushed.set_target(&with_settings(&new, FlushNew::Always, Duration::ZERO));
    assert_eq!((flushed.to_flush(), flushed.coverage.servers_with_items()), (addresses(&["c:1"]), addresses(&[])));
    assert_eq!(flushed.coverage.reads(), read.id, "not before it is done");
    flushed.coverage.record_emptied(new.id, &server, flushed.now);
    assert_eq!(flushed.coverage.reads(), new.id);
}

/// A reply from before the configuration was given up and covered again came late. The operator was asked at once, by
/// an old answer.
#[test]
fn items_that_were_found_before_a_configuration_is_claimed_count_for_nothing() {
    let (read, new) = (candidate_of(1, "p", &["a:1"]), candidate_of(2, "q", &["c:1"]));
    let mut router = Alone::reading(&read);
    router.coverage.set_target(new.clone(), router.now);
    router.coverage.record_items(new.id, &Address("c:1".into()), router.now);
    router.set_target(&new);
    assert_eq!(router.coverage.servers_with_items(), addresses(&[]), "it was not asked since");
    router.coverage.record_items(new.id, &Address("c:1".into()), router.now);
    assert_eq!(router.coverage.servers_with_items(), addresses(&["c:1"]));
}

/// The pool was taken out of the file and put back: its servers counted as departed, and would have been flushed
/// although they were another cluster's.
#[test]
fn servers_of_a_configuration_that_was_never_read_are_not_flushed() {
    let (read, new) = (candidate_of(1, "p", &["a:1"]), candidate_of(2, "q", &["c:1"]));
    let other = candidate_of(3, "q", &["c:1", "d:1"]);
    let mut router = Alone::reading(&read);
    router.set_target(&new);
    router.set_target(&other);
    let to_check = (addresses(&["c:1", "d:1"]), addresses(&[]));
    assert_eq!((router.to_empty(Emptying::Check), router.to_flush()), to_check, "the name is not known");
    router.set_target(&read);
    router.run(&mut History::default());
    assert_eq!(router.coverage.covered().count(), 1);
    assert!(router.coverage.saved().departed.servers.contains(&Address("c:1".into())));
    router.set_target(&other);
    assert_eq!((router.to_empty(Emptying::Check), router.to_flush()), to_check);
    // Those of one that was read are this cluster's, whatever its pools are called when they return.
    router.run(&mut History::default());
    assert_eq!(router.coverage.reads(), other.id);
    router.set_target(&read);
    router.run(&mut History::default());
    router.set_target(&candidate_of(4, "r", &["c:1", "e:1"]));
    assert_eq!((router.to_empty(Emptying::Check), router.to_flush()), (addresses(&["e:1"]), addresses(&["c:1"])));
}

/// Reports and the history named them without a mark: a router that had lost its memory would have flushed another
/// cluster's servers.
#[test]
fn a_router_without_memory_does_not_flush_servers_that_were_never_read() {
    let [former, read] = [(1, &["a:1", "b:1"][..]), (2, &["a:1"])].map(|(id, servers)| candidate_of(id, "p", servers));
    let (unread, next) = (candidate_of(3, "q", &["c:1"]), candidate_of(4, "r", &["b:1", "c:1"]));
    let mut history = History::default();
    let mut router = Alone::reading(&former);
    router.coverage.use_history();
    router.coverage.record_history(1, history.clone(), router.now);
    router.set_target(&unread);
    router.set_target(&read);
    router.run(&mut history);
    assert_eq!((router.coverage.reads(), router.coverage.covered().count()), (read.id, 1));
    let recorded = History::parse(&history.to_json()).expect("a record");
    assert_eq!(recorded, history);

    let report = CoverageReport::parse(router.coverage.report().to_json().as_bytes()).expect("a report");
    let of_history = recorded.to_report(read.id).expect("one is readable");
    // Of a router of an earlier version.
    let unmarked = CoverageReport { departed_unread: BTreeSet::new(), ..report.clone() };
    let reads_all = CoverageReport { reads: vec![read.id, unread.id], ..report.clone() };
    let (to_check, to_flush) =
        ((addresses(&["c:1"]), addresses(&["b:1"])), (addresses(&[]), addresses(&["b:1", "c:1"])));
    for (reports, expected) in [
        (vec![report.clone()], &to_check),
        (vec![of_history.clone()], &to_check),
        (vec![report.clone(), of_history], &to_check),
        (vec![unmarked.clone()], &to_flush),
        (vec![report.clone(), unmarked], &to_flush),
        (vec![report, reads_all], &to_flush),
    ] {
        let configs = vec![read.clone(), unread.clone()];
        let saved = SavedCoverage::from_peers(&reports, configs).expect("one reads by a configuration");
        let mut started = Alone::starting(saved);
        started.set_target(&next);
        assert_eq!(&(started.to_empty(Emptying::Check), started.to_flush()), expected, "{reports:?}");
    }
    // It has a memory, and missed the changes.
    let mut outdated = Alone::reading(&read);
    outdated.coverage.use_history();
    outdated.coverage.record_history(1, recorded, outdated.now);
    outdated.set_target(&next);
    assert_eq!((outdated.to_empty(Emptying::Check), outdated.to_flush()), to_check);
}

/// Another router has found the servers empty, reads by the new configuration and has filled them.
#[test]
fn items_of_a_peer_that_reads_by_the_new_configuration_count_for_nothing() {
    let (read, new) = (candidate_of(1, "p", &["a:1"]), candidate_of(2, "q", &["c:1"]));
    let saved = |config: &Candidate| SavedConfig { config: config.clone(), is_claimed: true, was_read: true };
    let saved = SavedCoverage { reads: read.id, covered: vec![saved(&read)], departed: Departed::default() };
    let settings = CoverageSettings { peers: 1, ignores_missing_peers: false, rules: Rules::ALL };
    let ms = Duration::from_millis;
    let mut coverage = Coverage::restore(saved, settings, Duration::ZERO);
    coverage.set_target(new.clone(), ms(0));
    coverage.record_announced(ms(0));
    coverage.record_applied(coverage.active().number, ms(0));
    let report = |reads: &Candidate| CoverageReport {
        reads: vec![reads.id],
        claims: [read.id, new.id].into(),
        covers: vec![read.id, new.id],
        is_ordered: true,
        ..CoverageReport::default()
    };
    coverage.record_report(0, ms(1), report(&read), ms(2));
    let server = Address("c:1".into());
    coverage.record_items(new.id, &server, ms(10));
    assert_eq!(coverage.servers_with_items(), addresses(&[]), "the peer may have begun to read since");
    let reads_on = {
        let mut coverage = coverage.clone();
        coverage.record_report(0, ms(11), report(&read), ms(12));
        coverage.servers_with_items()
    };
    assert_eq!(reads_on, addresses(&["c:1"]));
    let mut missing = coverage.clone();
    missing.record_missing(0, ms(12));
    assert_eq!(missing.servers_with_items(), addresses(&["c:1"]), "nothing shows that it reads");
    // This was said, and taken back with the report of an earlier poll.
    let mut missing_before = Coverage::clone(&coverage);
    missing_before.record_missing(0, ms(9));
    assert_eq!(missing_before.servers_with_items(), addresses(&[]));
    coverage.record_report(0, ms(11), report(&new), ms(12));
    assert_eq!((coverage.reads(), coverage.servers_with_items()), (new.id, addresses(&[])));
}

/// A router without peers saved that it read by a new configuration, and was replaced before the permits for the former
/// one had ended: its successor forgot the former one at once, and acknowledged deletes that did not reach its server,
/// which clients went on to read by these permits.
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

/// The router covered a configuration because a peer waited for it. The peer went back, and the file reached the
/// router, which decided to read by it at once: the claim of the peer was a moment old. It had not announced that, and
/// its next report came when the disk had saved the decision, seconds later. Meanwhile the peer had forgotten the
/// configuration.
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

/// A router that was replaced by an earlier version again and again lost one configuration each time. With seven, the
/// record had no space for the next one, which was the only way to get rid of them.
#[test]
fn lost_configurations_make_space_for_the_next_one() {
    let [read, next, last] =
        [(1, ["a:1"]), (2, ["b:1"]), (3, ["c:1"])].map(|(id, servers)| candidate_of(id, "p", &servers));
    let lost = (11..18).map(|id| RecordedConfig { id: ConfigId(id), is_readable: false, is_lost: true });
    let present = RecordedConfig { id: read.id, is_readable: true, is_lost: false };
    let mut history = History { configs: lost.chain([present]).collect(), ..History::default() };
    let mut router = Alone::reading(&read);
    router.coverage.use_history();
    router.coverage.record_history(1, history.clone(), Duration::ZERO);
    router.set_target(&next);
    let change = router.coverage.history_to_record(router.now);
    assert_eq!(change, None, "its server is not empty");
    assert_eq!(router.to_flush(), addresses(&["b:1"]));
    router.coverage.record_emptied(next.id, &Address("b:1".into()), router.now);
    let change = router.coverage.history_to_record(router.now).expect("it can be read");
    assert_eq!((change.lost().count(), change.is_readable(next.id)), (6, true));
    assert!(change.departed.is_incomplete, "servers that only the one that left has named may have copies");
    router.run(&mut history);
    assert_eq!((router.coverage.reads(), history.configs.len(), history.lost().count()), (next.id, 1, 0));
    assert!(history.departed.is_incomplete);
    router.set_target(&last);
    assert_eq!(router.to_flush(), addresses(&["c:1"]));
}
