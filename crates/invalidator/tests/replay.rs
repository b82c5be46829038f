//! Replays of a part of a log, with fakes, in paused time.

use crate::fakes::{Cluster, Database, FakeLog, ms};
use lookaside_invalidator::{
    Position, Start,
    keys::FLUSH_CLUSTER,
    replay::{ATTEMPTS_MAX, Replay, ReplayFilter},
};
use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};
use tokio::time::Instant;

/// A replay of a database with `commits` commits, each of a key `user:N` and a key `page:N`, made N seconds after 1970.
fn replay_of(commits: usize) -> (Replay, Arc<Database>, Arc<Cluster>) {
    let database = Database::new();
    for number in 1..=commits {
        database.commit(&[&format!("user:{number}"), &format!("page:{number}")], ms(0));
    }
    let cluster = Cluster::new(&database);
    let replay = Replay {
        log: Arc::new(FakeLog(database.clone())),
        delivery: Some(cluster.clone()),
        start: Start::Earliest,
        to: None,
        filter: ReplayFilter { since: None, until: None, key_prefix: String::new() },
        deletes_per_s_max: 1_000_000,
    };
    (replay, database, cluster)
}

fn deleted(cluster: &Cluster) -> Vec<String> {
    let mut keys: Vec<String> = cluster.state().deleted.iter().map(|(key, _)| key.clone()).collect();
    keys.sort();
    keys
}

#[tokio::test(start_paused = true)]
async fn only_the_wanted_keys_of_the_wanted_commits_are_deleted() {
    let at = |s| Some(SystemTime::UNIX_EPOCH + Duration::from_secs(s));
    let position = |number: u64| Position(number.to_string());
    for (start, to, since, until) in [
        (Start::At(position(3)), Some(position(5)), None, None),
        (Start::Earliest, None, at(4), at(5)),
        (Start::At(position(2)), None, at(4), at(5)),
    ] {
        let (replay, _, cluster) = replay_of(9);
        let filter = ReplayFilter { since, until, key_prefix: "user:".into() };
        let summary = Replay { start, to, filter, ..replay }.run(|_| {}).await.expect("it ends");
        assert_eq!(deleted(&cluster), ["user:4", "user:5"]);
        assert_eq!((summary.commits, summary.deletes), (2, 2), "{summary:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn replay_ends_at_the_end_that_the_log_had_when_it_began() {
    let (replay, database, cluster) = replay_of(3);
    // The gate holds the replay while more is committed.
    database.commit(&["slow"], ms(100));
    let visible_at = Instant::now() + ms(100);
    let running = tokio::spawn(async move { replay.run(|_| {}).await });
    tokio::time::sleep(ms(50)).await;
    database.commit(&["later"], ms(0));
    let summary = running.await.expect("no panic").expect("it ends");
    assert_eq!((cluster.deletes_of("slow"), cluster.deletes_of("later")), (1, 0));
    assert!(cluster.state().deleted.iter().all(|(key, at)| key != "slow" || *at >= visible_at), "the gate is closed");
    assert_eq!(summary.position, Some(Position("4".into())));
}

/// A replay up to a position that is no longer in the log sent nothing, and succeeded.
#[tokio::test(start_paused = true)]
async fn an_end_before_the_beginning_is_an_error() {
    let (replay, _, cluster) = replay_of(9);
    let (from, to) = (Position("5".into()), Position("3".into()));
    let backwards = Replay { start: Start::At(from.clone()), to: Some(to), ..replay };
    let refused = backwards.run(|_| {}).await.expect_err("there is nothing between").to_string();
    assert_eq!(refused, "the log is read from 5, which is after the position 3");
    let empty = Replay { to: Some(from), ..backwards };
    assert_eq!(empty.run(|_| {}).await.expect("an empty range").commits, 0);
    assert_eq!(deleted(&cluster), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn rate_is_kept() {
    let (replay, _, cluster) = replay_of(500);
    let start = Instant::now();
    let replay = Replay { deletes_per_s_max: 100, ..replay };
    replay.run(|_| {}).await.expect("it ends");
    assert_eq!(deleted(&cluster).len(), 1_000);
    let seconds = start.elapsed().as_secs_f64();
    assert!((9.5..11.0).contains(&seconds), "1,000 deletes at 100 a second took {seconds} s");
    assert!(cluster.state().batches.iter().all(|batch| batch.len() <= 5), "they are spread");
}

#[tokio::test(start_paused = true)]
async fn dry_run_sends_nothing() {
    let (replay, _, cluster) = replay_of(9);
    let summary = Replay { delivery: None, ..replay }.run(|_| {}).await.expect("it ends");
    assert_eq!((deleted(&cluster).len(), summary.commits, summary.deletes), (0, 9, 18));
}

/// A flush is neither limited in rate nor to a prefix, so it is the operator's; as a key the mark would be refused by
/// every server.
#[tokio::test(start_paused = true)]
async fn flushes_are_counted_and_not_sent() {
    let mark = std::str::from_utf8(FLUSH_CLUSTER).expect("text");
    for key_prefix in ["", "user:"] {
        for is_dry_run in [false, true] {
            let (replay, database, cluster) = replay_of(2);
            database.commit(&[mark], ms(0));
            database.commit(&["user:3", mark], ms(0));
            let delivery = replay.delivery.clone().filter(|_| !is_dry_run);
            let filter = ReplayFilter { key_prefix: key_prefix.into(), ..replay.filter.clone() };
            let summary = Replay { delivery, filter, ..replay }.run(|_| {}).await.expect("it ends");
            let deletes = if key_prefix.is_empty() { 5 } else { 3 };
            assert_eq!((summary.deletes, summary.flushes_skipped), (deletes, 2), "{key_prefix:?} {is_dry_run}");
            let sent = deleted(&cluster);
            assert_eq!(sent.len(), if is_dry_run { 0 } else { deletes as usize }, "{sent:?}");
            assert!(!sent.contains(&mark.to_owned()) && cluster.state().flushes == 0, "{sent:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn cluster_that_refuses_is_tried_for_a_while() {
    let (replay, database, cluster) = replay_of(1);
    cluster.state().refused.push("user:1".into());
    let error = replay.run(|_| {}).await.expect_err("it gives up");
    assert!(error.to_string().contains("SERVER_ERROR scripted failure"), "{error}");
    let tries = cluster.state().batches.iter().filter(|batch| batch.contains(&"user:1".into())).count();
    assert_eq!(tries, ATTEMPTS_MAX as usize);
    assert_eq!(cluster.deletes_of("page:1"), 1, "what was acknowledged is not sent again");

    // It can be continued behind the last read.
    cluster.state().unroutable.push("user:1".into());
    let summary = replay.run(|_| {}).await.expect("it ends");
    assert_eq!((summary.deletes, summary.unroutable), (1, 1));
    database.state().outage = Some(lookaside_invalidator::SourceError::Unreachable { why: "scripted".into() });
    assert!(replay.run(|_| {}).await.expect_err("no log").to_string().contains("scripted"));
}

#[tokio::test(start_paused = true)]
async fn position_outside_of_the_log_is_refused() {
    let (replay, database, _) = replay_of(9);
    let replay = Replay { to: Some(Position("10".into())), ..replay };
    let error = replay.run(|_| {}).await.expect_err("there is no tenth commit");
    assert_eq!(error.to_string(), "the log ends at 9, before the position 10");
    database.state().purged = 5;
    let replay = Replay { to: None, start: Start::At(Position("3".into())), ..replay };
    let error = replay.run(|_| {}).await.expect_err("it was purged");
    assert!(error.to_string().contains("no longer reaches back to 3"), "{error}");
}

/// Most of the hour that was to be replayed had been purged, and the replay ended with success.
#[tokio::test(start_paused = true)]
async fn a_log_that_begins_after_the_period_is_reported() {
    let at = |s| SystemTime::UNIX_EPOCH + Duration::from_secs(s);
    for (purged, since, begins_late) in [(5, 3, true), (5, 6, false), (5, 8, false), (0, 0, false), (9, 3, true)] {
        let (replay, database, cluster) = replay_of(9);
        database.state().purged = purged;
        let filter = ReplayFilter { since: Some(at(since)), until: None, key_prefix: "user:".into() };
        let summary = Replay { filter, ..replay }.run(|_| {}).await.expect("it ends");
        assert_eq!(summary.begins_late, begins_late, "{purged} {since}: {summary:?}");
        let oldest = (purged < 9).then(|| at(purged as u64 + 1));
        assert_eq!(summary.log_begins_at, oldest, "{purged} {since}");
        assert_eq!(deleted(&cluster).len() as u64, summary.deletes, "what there is was sent");
    }
}

/// It read nothing, and ended with success.
#[tokio::test(start_paused = true)]
async fn a_replay_from_a_position_beyond_the_end_is_refused() {
    let (replay, ..) = replay_of(9);
    let replay = Replay { start: Start::At(Position("12".into())), ..replay };
    let error = replay.run(|_| {}).await.expect_err("there are nine commits");
    assert_eq!(error.to_string(), "the log ends at 9, before the position 12");
    let replay = Replay { start: Start::At(Position("9".into())), ..replay };
    assert_eq!(replay.run(|_| {}).await.expect("nothing is to be done").commits, 0);
}
