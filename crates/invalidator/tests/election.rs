//! Several invalidators of one database, with faults by a seed: processes hang and are killed at any moment, the
//! database goes away, its sessions end while their processes live, replies are lost, and statements of connections
//! that are given up are executed seconds later.
//!
//! At each record that is stored:
//! * its holder has not been replaced before: never do two renew;
//! * no position passes a commit with a delete that no cluster has acknowledged;
//! * no position is before the one that it replaces.
//!
//! While the database answers, two are active at once for 8 s at most: one that was replaced finds that out by its next
//! renewal, which is due within a second, and fails here now and then. Within 5 s after the last fault one is active,
//! and no other any more. In the end every commit is deleted and the position is at the end.

use crate::fakes::{self, ms};
use crate::invalidators::{Ignored, Link, Locks, Node, Table};
use lookaside_invalidator::{
    election::{MemberOptions, SharedMarks, Standby},
    observe::stats::Statistics,
    pipeline::OnPositionLost,
    spool::{SpoolMarks, SpoolMarksState},
};
use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::time::{Instant, sleep};

const FAULTS_FOR: Duration = Duration::from_secs(60);
const ACTIVE_WITHIN: Duration = Duration::from_secs(5);
/// How long two may be active while the database answers some of their requests: the time between two renewals, and
/// three requests that fail after up to two seconds each.
const BOTH_ACTIVE_MAX: Duration = Duration::from_secs(8);
/// The same while it answers all of them: the time between two renewals, and that of two requests.
const BOTH_ACTIVE_WITHOUT_FAULTS: Duration = Duration::from_millis(1_100);

/// What can fail, and until when it does.
struct Faults {
    table: Arc<Table>,
    nodes: Vec<Node>,
    rng: fastrand::Rng,
    /// When each node resumes or is started again; `None` while it runs.
    node_back: Vec<Option<Instant>>,
    /// `None` while the database runs.
    database_back: Option<Instant>,
}

impl Faults {
    fn new(seed: u64, ignored: Ignored) -> Faults {
        let mut rng = fastrand::Rng::with_seed(seed);
        let table = Table::new(rng.fork(), ignored);
        let names = &["one", "two", "three"][..rng.usize(2..=3)];
        let mut nodes: Vec<Node> = names.iter().map(|name| Node::new(name)).collect();
        nodes.iter_mut().for_each(|node| node.start(&table));
        Faults { table, node_back: vec![None; nodes.len()], nodes, rng, database_back: None }
    }

    /// Lets something fail, or ends that.
    async fn step(&mut self) {
        let (rng, now) = (&mut self.rng, Instant::now());
        for (node, back) in self.nodes.iter_mut().zip(&mut self.node_back) {
            match back {
                None if rng.u32(0..100) == 0 => {
                    *back = Some(now + ms(rng.u64(0..8_000)));
                    if rng.bool() { node.kill().await } else { node.gate.set_hung(true) }
                }
                Some(at) if *at <= now => {
                    *back = None;
                    node.resume(&self.table);
                }
                _ => {}
            }
        }
        match self.database_back {
            None if rng.u32(0..200) == 0 => {
                self.database_back = Some(now + ms(rng.u64(0..6_000)));
                if rng.bool() {
                    self.table.state().end_sessions();
                }
            }
            Some(at) if at <= now => self.database_back = None,
            _ => {}
        }
        if rng.u32(0..200) == 0 {
            self.table.state().end_session_of_active();
        }
        let failing_percent = if rng.u32(0..4) == 0 { rng.u32(0..60) } else { 0 };
        let cluster_percent = rng.u32(0..20);
        self.set(self.database_back.is_some(), failing_percent, cluster_percent);
    }

    fn set(&self, is_away: bool, failing_percent: u32, cluster_percent: u32) {
        let mut state = self.table.state();
        (state.is_away, state.failing_percent) = (is_away, failing_percent);
        self.table.database.state().failing_percent = if is_away { 100 } else { 0 };
        self.table.cluster.state().failing_percent = cluster_percent;
    }

    /// Ends all of them.
    async fn end(&mut self) {
        self.set(false, 0, 0);
        while self.table.state().delayed > 0 {
            sleep(ms(1)).await;
        }
        self.nodes.iter_mut().for_each(|node| node.resume(&self.table));
    }

    fn active(&self) -> usize {
        self.nodes.iter().filter(|node| node.is_active()).count()
    }

    /// Whether two are active, neither of which hangs, and the database is there: they can notice it.
    fn is_overlap(&self) -> bool {
        let running = self.nodes.iter().zip(&self.node_back).filter(|(node, back)| node.is_active() && back.is_none());
        self.database_back.is_none() && running.count() > 1
    }
}

/// One run. Returns how many takeovers there were, or what was found wrong.
async fn run(seed: u64, ignored: Ignored) -> Result<usize, String> {
    let mut faults = Faults::new(seed, ignored);
    let (table, faults_end) = (faults.table.clone(), Instant::now() + FAULTS_FOR);
    let (mut commits, mut overlap_since) = (0, None);
    while Instant::now() < faults_end {
        let (pause, hidden_for) = (ms(faults.rng.u64(1..100)), ms(faults.rng.u64(0..5)));
        sleep(pause).await;
        table.database.commit(&[&format!("key:{commits}")], hidden_for);
        commits += 1;
        faults.step().await;
        overlap_since = faults.is_overlap().then(|| overlap_since.unwrap_or_else(Instant::now));
        if let Some(took) = overlap_since.map(|since| since.elapsed()).filter(|took| *took > BOTH_ACTIVE_MAX) {
            return Err(format!("two were active for {took:?}"));
        }
    }
    faults.end().await;
    let faults_ended = Instant::now();
    while faults.active() == 0 {
        if faults_ended.elapsed() > ACTIVE_WITHIN {
            return Err("none is active".into());
        }
        sleep(ms(10)).await;
    }
    table.database.commit(&["last"], ms(1));
    let end = table.database.state().commits.len();
    while table.position() != end {
        if faults_ended.elapsed() > ACTIVE_WITHIN * 4 {
            return Err(format!("the position stays at {} of {end}", table.position()));
        }
        sleep(ms(10)).await;
    }
    // One that was replaced while it hung steps down at its next renewal.
    sleep(ACTIVE_WITHIN.saturating_sub(faults_ended.elapsed())).await;
    if faults.active() != 1 {
        return Err("two stay active".into());
    }
    let mut state = table.state();
    match state.violation.take() {
        Some(violation) => Err(violation),
        None => Ok(state.former_holders.len()),
    }
}

fn run_seed(seed: u64, ignored: Ignored) -> Result<usize, String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
    runtime.expect("a runtime").block_on(run(seed, ignored))
}

fn seeds() -> u64 {
    std::env::var("LOOKASIDE_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(40)
}

#[test]
fn one_renews_and_no_delete_is_lost_whatever_fails() {
    let mut takeovers = 0;
    for seed in 0..seeds() {
        takeovers += run_seed(seed, Ignored::Nothing).unwrap_or_else(|why| panic!("seed {seed}: {why}"));
    }
    assert!(takeovers as u64 > 2 * seeds(), "{takeovers} takeovers");
}

/// The checks find what goes wrong when a statement replaces a record that it does not know, or is taken for executed
/// because another one has stored the same version.
#[test]
fn statements_that_demand_less_are_found() {
    for (ignored, expected) in [
        (Ignored::Counter, "moved the position back"),
        (Ignored::Holder, "was replaced"),
        (Ignored::State, "for stored"),
    ] {
        let mut found = (0..100).filter_map(|seed| run_seed(seed, ignored).err());
        assert!(found.any(|found| found.contains(expected)), "{ignored:?}: not found");
    }
}

/// Two invalidators of a database with such locks, of which the first is active.
async fn pair(locks: Locks) -> (Arc<Table>, [Node; 2]) {
    let table = Table::new(fastrand::Rng::with_seed(1), Ignored::Nothing);
    table.state().locks = locks;
    let [mut one, mut two] = [Node::new("one"), Node::new("two")];
    one.start(&table);
    fakes::until("it is active", || one.is_active()).await;
    two.start(&table);
    (table, [one, two])
}

fn takeovers_at_session_end(node: &Node) -> u64 {
    node.statistics.election.takeovers_at_session_end.value()
}

/// The time that a standby needs, by the moment of the death.
#[tokio::test(start_paused = true)]
async fn a_standby_is_active_soon_after_a_death() {
    for (locks, expected, at_session_end) in
        [(Locks::EndWithSession, ms(0)..=ms(300), 1), (Locks::Missing, ms(1_900)..=ms(3_500), 0)]
    {
        for killed_after in [0, 300, 600, 900] {
            let (_, [mut one, two]) = pair(locks).await;
            sleep(Duration::from_secs(2) + ms(killed_after)).await;
            assert!(!two.is_active());
            assert_eq!(two.statistics.election.has_session_lock(), locks == Locks::EndWithSession);
            one.kill().await;
            let killed_at = Instant::now();
            fakes::until("the standby is active", || two.is_active()).await;
            let took = killed_at.elapsed();
            assert!(expected.contains(&took), "{locks:?}: {took:?}");
            assert_eq!(takeovers_at_session_end(&two), at_session_end, "{locks:?}");
        }
    }
}

/// A session stays open while its process hangs, and that of a host that died does until the database notices. But no
/// beat comes from it; without locks the standby has to wait until the record expires.
#[tokio::test(start_paused = true)]
async fn a_standby_of_one_that_hangs_is_active_within_a_second() {
    for (locks, expected, at_hang) in
        [(Locks::EndWithSession, ms(350)..=ms(900), 1), (Locks::Missing, ms(1_900)..=ms(3_500), 0)]
    {
        for hung_after in [0, 300, 600, 900] {
            let (_, [one, two]) = pair(locks).await;
            sleep(Duration::from_secs(2) + ms(hung_after)).await;
            one.gate.set_hung(true);
            let hung_at = Instant::now();
            fakes::until("the standby is active", || two.is_active()).await;
            assert!(expected.contains(&hung_at.elapsed()), "{locks:?}: {:?}", hung_at.elapsed());
            assert_eq!(takeovers_at_session_end(&two), 0);
            assert_eq!(two.statistics.election.takeovers_at_hang.value(), at_hang, "{locks:?}");
            // It did hang: its lock did not mislead, and serves the next time.
            one.gate.set_hung(false);
            fakes::until("it steps down", || !one.is_active()).await;
            // It has to see that the other one beats.
            sleep(Duration::from_secs(1)).await;
            two.gate.set_hung(true);
            let hung_at = Instant::now();
            fakes::until("it is active again", || one.is_active()).await;
            assert!(expected.contains(&hung_at.elapsed()), "{locks:?}: {:?}", hung_at.elapsed());
        }
    }
}

/// The beat that waited in vain was not counted as a pause, so the takeover looked as if the session had ended: the
/// process used no lock any more, and each later takeover from it took three seconds.
#[tokio::test(start_paused = true)]
async fn one_that_was_cut_off_for_a_moment_uses_its_lock_again() {
    for cut_after in [0, 200, 400, 600, 800] {
        let (_, [one, two]) = pair(Locks::EndWithSession).await;
        sleep(Duration::from_secs(2) + ms(cut_after)).await;
        one.set_link(Link::Swallows);
        fakes::until("the standby is active", || two.is_active()).await;
        assert_eq!(two.statistics.election.takeovers_at_hang.value(), 1);
        one.set_link(Link::Open);
        fakes::until("it steps down", || !one.is_active()).await;
        sleep(Duration::from_secs(1)).await;
        two.gate.set_hung(true);
        fakes::until("it is active again", || one.is_active()).await;
        assert!(one.statistics.election.has_session_lock(), "cut after {cut_after} ms");
    }
}

/// It was certain for two seconds after its last renewal, beside the one that had taken over.
#[tokio::test(start_paused = true)]
async fn one_that_is_cut_off_is_not_certain_once_another_one_is_active() {
    for (link, cut_after) in [Link::Swallows, Link::Refuses].into_iter().flat_map(|link| [(link, 0), (link, 500)]) {
        let table = Table::new(fastrand::Rng::with_seed(5), Ignored::Nothing);
        let (statistics, path) = (Statistics::new(["a"]), Arc::default());
        let store = table.store_over(&path);
        let standby = Standby::new(store, "one".into(), statistics.election.clone(), || fastrand::u64(..));
        let term = standby.wait_until_active().await;
        let held = term.clone();
        let holding = tokio::spawn(async move { held.hold().await });
        let mut two = Node::new("two");
        two.start(&table);
        sleep(Duration::from_secs(2) + ms(cut_after)).await;
        assert!(term.is_certain());
        *path.lock().expect("no panic while it is held") = link;
        fakes::until("the other one is active", || {
            let (is_certain, is_replaced) = (term.is_certain(), two.is_active());
            assert!(!(is_certain && is_replaced), "{link:?} after {cut_after} ms");
            is_replaced
        })
        .await;
        assert_eq!(two.statistics.election.takeovers_at_hang.value(), 1);
        holding.abort();
    }
}

/// Two deliver for as long as the replaced one does not know that it was replaced.
#[tokio::test(start_paused = true)]
async fn one_that_was_replaced_steps_down_within_a_second_once_it_can_know() {
    type Cause = (&'static str, fn(&Table, &Node), Duration);
    let causes: [Cause; 4] = [
        ("its session ends", |table, _| table.state().end_session_of_active(), ms(0)),
        ("it hangs", |_, one| one.gate.set_hung(true), ms(0)),
        ("its link refuses", |_, one| one.set_link(Link::Refuses), ms(0)),
        // A request that was swallowed fails only then.
        ("its link swallows", |_, one| one.set_link(Link::Swallows), ms(2_000)),
    ];
    for (cause, replace, request_max) in causes {
        for replaced_after in [0, 250, 500, 750] {
            let (table, [one, two]) = pair(Locks::EndWithSession).await;
            sleep(Duration::from_secs(2) + ms(replaced_after)).await;
            replace(&table, &one);
            fakes::until("the standby is active", || two.is_active()).await;
            one.gate.set_hung(false);
            one.set_link(Link::Open);
            let both_since = Instant::now();
            fakes::until("it steps down", || !one.is_active()).await;
            let took = both_since.elapsed();
            assert!(took <= BOTH_ACTIVE_WITHOUT_FAULTS + request_max, "{cause} after {replaced_after} ms: {took:?}");
        }
    }
}

/// Lets both invalidators stall in turn, every other second, and returns how many takeovers followed.
async fn takeovers_by_stalls(stall: Duration) -> u64 {
    let (table, nodes) = pair(Locks::EndWithSession).await;
    for turn in 0..200 {
        let node = &nodes[turn % 2];
        sleep(Duration::from_secs(2)).await;
        node.gate.set_hung(true);
        sleep(stall).await;
        node.gate.set_hung(false);
    }
    assert_eq!(table.state().violation.take(), None);
    nodes.iter().map(|node| node.statistics.election.takeovers.value()).sum::<u64>() - 1
}

/// An invalidator on a loaded machine lives, but is late now and then: the two replaced each other for as long as that
/// lasted.
#[tokio::test(start_paused = true)]
async fn one_that_is_late_again_and_again_keeps_its_role() {
    assert_eq!(takeovers_by_stalls(ms(200)).await, 0);
    let late = takeovers_by_stalls(ms(800)).await;
    assert!((1..=2).contains(&late), "{late} takeovers");
    let later = takeovers_by_stalls(ms(1_800)).await;
    assert!((1..=2).contains(&later), "{later} takeovers");
}

/// What delays the one delays the other on the same machine: a standby that could not look takes no other for hung.
#[tokio::test(start_paused = true)]
async fn a_machine_that_stands_still_is_no_reason_for_a_takeover() {
    let (_, nodes) = pair(Locks::EndWithSession).await;
    for stall in [600, 1_000, 1_800, 2_500] {
        sleep(Duration::from_secs(3)).await;
        nodes.iter().for_each(|node| node.gate.set_hung(true));
        sleep(ms(stall)).await;
        nodes.iter().for_each(|node| node.gate.set_hung(false));
    }
    sleep(Duration::from_secs(3)).await;
    assert_eq!(nodes.iter().map(|node| node.statistics.election.takeovers.value()).sum::<u64>(), 1);
}

/// A restarted database has no locks, and so has one that was promoted: nothing shows there that the active one is
/// gone.
#[tokio::test(start_paused = true)]
async fn a_lock_that_a_restart_of_the_database_freed_is_no_sign() {
    let (table, [one, two]) = pair(Locks::EndWithSession).await;
    for _ in 0..20 {
        sleep(ms(2_100)).await;
        assert!(one.statistics.election.has_session_lock() && two.statistics.election.has_session_lock());
        table.state().end_sessions();
    }
    sleep(ms(2_100)).await;
    assert!(one.is_active() && one.statistics.election.has_session_lock());
    assert_eq!(two.statistics.election.takeovers.value(), 0);
}

/// Lets locks be lost in the way of `lose`, again and again, while their holders live, and returns how many takeovers
/// followed.
async fn needless_takeovers(locks: Locks, lose: impl Fn(&Table)) -> u64 {
    let (table, nodes) = pair(locks).await;
    let takeovers = || nodes.iter().map(|node| node.statistics.election.takeovers.value()).sum::<u64>();
    for _ in 0..60 {
        sleep(ms(2_100)).await;
        lose(&table);
    }
    assert!(nodes.iter().all(|node| !node.statistics.election.has_session_lock()));
    assert_eq!(nodes.iter().map(takeovers_at_session_end).sum::<u64>(), takeovers() - 1);
    assert_eq!(table.state().violation.take(), None);
    takeovers() - 1
}

/// A proxy that closes shared sessions, or a firewall that ends connections, would make the two replace each other for
/// ever.
#[tokio::test(start_paused = true)]
async fn locks_that_are_lost_cost_each_process_one_needless_takeover_at_most() {
    for (locks, ends_sessions) in [(Locks::Vanish, false), (Locks::EndWithSession, true)] {
        let needless = needless_takeovers(locks, |table| {
            if ends_sessions {
                table.state().end_session_of_active();
            }
        });
        assert!((1..=2).contains(&needless.await), "{locks:?}");
    }
}

/// Whether the database loses its newest commits in [`fail_over`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Promoted {
    WithAll,
    WithOlderRecord,
    WithoutRecord,
}

/// The database and the active invalidator die together, and a replica is promoted. Returns the table, and the standby
/// that has seen the newest record.
async fn fail_over(promoted: Promoted, first_failing_percent: u32) -> (Arc<Table>, Node) {
    let table = Table::new(fastrand::Rng::with_seed(7), Ignored::Nothing);
    let [mut one, mut two] = [Node::new("one"), Node::new("two")];
    two.on_position_lost = OnPositionLost::Flush;
    one.start(&table);
    fakes::until("it is active", || one.is_active()).await;
    two.start(&table);
    table.database.commit(&["before"], ms(0));
    fakes::until("the position is saved", || table.position() == 1).await;
    let older = table.record();
    table.database.commit(&["k"], ms(0));
    fakes::until("it is saved", || table.position() == 2).await;
    // The standby looks at the record.
    sleep(ms(300)).await;
    one.kill().await;
    match promoted {
        Promoted::WithAll => {}
        Promoted::WithOlderRecord => table.go_back(older, 1),
        Promoted::WithoutRecord => table.go_back(None, 1),
    }
    table.database.state().failing_percent = first_failing_percent;
    fakes::until("the standby is active", || two.is_active()).await;
    (table, two)
}

/// A read the commit that changes `k`, deleted it, and a reader filled it again. The promoted replica has neither that
/// commit nor the last renewals: the standby went on from an older position, saw no loss, and `k` kept a value that the
/// database no longer has.
#[tokio::test(start_paused = true)]
async fn a_record_that_goes_back_is_a_loss_of_every_position() {
    for (promoted, flushes) in [(Promoted::WithAll, 0), (Promoted::WithOlderRecord, 1), (Promoted::WithoutRecord, 1)] {
        let (table, _two) = fail_over(promoted, 0).await;
        fakes::until("the cluster is flushed", || table.cluster.state().flushes == flushes).await;
        table.database.commit(&["after"], ms(0));
        fakes::until("it goes on", || table.cluster.deletes_of("after") == 1).await;
        let end = table.database.state().commits.len();
        fakes::until("the position is saved", || table.position() == end).await;
        assert_eq!(table.cluster.state().flushes, flushes, "{promoted:?}: once");
    }
}

#[tokio::test(start_paused = true)]
async fn a_loss_that_was_not_acted_on_is_found_by_the_next_one_and_once() {
    let (table, mut two) = fail_over(Promoted::WithOlderRecord, 100).await;
    two.kill().await;
    assert_eq!(table.cluster.state().flushes, 0);
    table.database.state().failing_percent = 0;
    for _ in 0..2 {
        // It has seen nothing of what was before.
        let mut next = Node::new("next");
        next.on_position_lost = OnPositionLost::Flush;
        next.start(&table);
        let key = format!("after:{}", table.database.state().commits.len());
        table.database.commit(&[&key], ms(0));
        fakes::until("it is active", || next.is_active()).await;
        let end = table.database.state().commits.len();
        fakes::until("the position is saved", || table.position() == end).await;
        next.kill().await;
        assert_eq!(table.cluster.state().flushes, 1);
    }
}

/// An invalidator that hung meets a loss that is marked already: it took the mark for its own, and went on to create
/// the slot again beside the active one.
#[tokio::test(start_paused = true)]
async fn a_mark_that_is_stored_already_is_not_confirmed_to_one_that_was_replaced() {
    let table = Table::new(fastrand::Rng::with_seed(3), Ignored::Nothing);
    let (statistics, random) = (Statistics::new(["a"]), || 1);
    let standby = |name: &str| Standby::new(table.store(), name.into(), statistics.election.clone(), random);
    let one = standby("one").wait_until_active().await;
    let marks = SharedMarks(one.clone());
    let loss = SpoolMarksState { losses: 1, loss_reason: "scripted".into(), is_starting: false };
    tokio::select! {
        () = one.hold() => panic!("it is active"),
        saved = marks.save(loss.clone()) => saved.expect("it is stored"),
    }
    let _two = standby("two").wait_until_active().await;
    let ((), saved) = tokio::join!(one.hold(), marks.save(loss));
    assert!(saved.is_err(), "another one is active");
}

/// Both ran with what their own command line said, and after a takeover a cluster or a table went without deletes.
#[tokio::test(start_paused = true)]
async fn a_standby_reports_that_the_active_one_has_other_options() {
    let table = Table::new(fastrand::Rng::with_seed(3), Ignored::Nothing);
    let rules = Arc::new(Mutex::new("0a1b2c3d"));
    let standby = |name: &str, clusters: &[&str], rules: &Arc<Mutex<&'static str>>| {
        let (statistics, rules) = (Statistics::new(["a"]), rules.clone());
        statistics.election.enable();
        let clusters: BTreeSet<String> = clusters.iter().map(ToString::to_string).collect();
        let options = move || {
            let rules = rules.lock().expect("no panic while it is held").to_string();
            MemberOptions { clusters: clusters.clone(), rules, slot: None }
        };
        let standby = Standby::new(table.store(), name.into(), statistics.election.clone(), || fastrand::u64(..));
        (standby.with_options(Arc::new(options)), statistics)
    };
    let (one, of_one) = standby("one", &["a", "b"], &rules);
    let term = one.wait_until_active().await;
    let stated = table.record().and_then(|record| record.state.options).expect("they are in the record");
    assert_eq!(stated.clusters.len(), 2);
    let holding = tokio::spawn(async move { term.hold().await });
    let (other, of_other) = standby("other", &["a"], &rules);
    let _other = tokio::spawn(async move { other.wait_until_active().await });
    // It has its own rule file, which is the same until that of the active one is changed.
    let own_rules = Arc::new(Mutex::new("0a1b2c3d"));
    let (same, of_same) = standby("same", &["b", "a"], &own_rules);
    let waiting = tokio::spawn(async move { same.wait_until_active().await });
    fakes::until("the other clusters are noticed", || of_other.election.options_differ()).await;
    sleep(ms(2_000)).await;
    assert!(!of_same.election.options_differ() && !of_one.election.options_differ());
    *rules.lock().expect("no panic while it is held") = "4e5f6071";
    fakes::until("the other rules are noticed", || of_same.election.options_differ()).await;
    *own_rules.lock().expect("no panic while it is held") = "4e5f6071";
    fakes::until("they are the same again", || !of_same.election.options_differ()).await;
    holding.abort();
    waiting.abort();
}
