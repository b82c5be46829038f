//! Failures of one server or key: other keys proceed, and the state and statistics show the failure.

use crate::fakes::{self, Fixture, ms, until};
use lookaside_invalidator::SourceError;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// The keys of a dead server once used up the limit of pending keys of the whole cluster. Reading stopped, and keys on
/// healthy servers stayed stale until the server was back.
#[tokio::test(start_paused = true)]
async fn dead_server_delays_no_key_of_another() {
    let mut fixture = Fixture::new(1);
    fixture.options.limits.keys_max = 10;
    fixture.options.read_keys_max = 3;
    let (cluster, disk) = &fixture.clusters[0];
    cluster.state().dead_prefix = Some("dead".into());
    let _run = tokio::spawn(fixture.pipeline(0).run(fixture.shutdown.subscribe()));
    for number in 0..100 {
        fixture.database.commit(&[&format!("dead{number}")], ms(0));
        fixture.database.commit(&[&format!("alive{number}"), "alive and hot", "dead and hot"], ms(0));
    }
    until("keys of living servers are deleted", || cluster.deletes_of("alive99") == 1).await;
    assert_eq!(disk.position(), Some(0), "the position stays before the pending deletes");
    assert_eq!(fixture.stat("cluster:a:retry_queue_keys"), "101", "each once");
    assert_eq!(fixture.stat("cluster:a:pending_keys"), "101");
    cluster.state().dead_prefix = None;
    until("the server is back, and all is applied", || disk.position() == Some(200)).await;
    assert_eq!(fixture.stat("cluster:a:retry_queue_keys"), "0");
}

/// A delete is refused if it fails anywhere, also at a gutter that is down while the key's own server is healthy.
/// Commits that named such a key were not sent before its next retry, up to a second later, and not while one was in
/// flight.
#[tokio::test(start_paused = true)]
async fn commits_of_a_refused_key_are_sent_at_once() {
    for is_hung in [false, true] {
        let fixture = Fixture::new(1);
        let cluster = &fixture.clusters[0].0;
        match is_hung {
            true => cluster.state().hung_prefix = Some("key".into()),
            false => cluster.state().refused.push("key".into()),
        }
        let _run = tokio::spawn(fixture.pipeline(0).run(fixture.shutdown.subscribe()));
        until("it runs", || fixture.stat("cluster:a:state") == "running").await;
        fixture.database.commit(&["key"], ms(0));
        sleep(Duration::from_secs(20)).await;
        let mut latest = Duration::ZERO;
        for _ in 0..20 {
            sleep(ms(330)).await;
            let (before, committed) = (cluster.state().batches.len(), Instant::now());
            fixture.database.commit(&["key"], ms(0));
            until("it is sent", || cluster.state().batches.len() > before).await;
            latest = latest.max(committed.elapsed());
        }
        assert!(latest <= ms(15), "hung: {is_hung}: {latest:?}");
        assert_eq!(fixture.clusters[0].1.position(), Some(0), "nothing is acknowledged");
    }
}

/// The state was `running` even if all deletes failed.
#[tokio::test(start_paused = true)]
async fn state_shows_that_deletes_fail_and_why() {
    let fixture = Fixture::new(1);
    let (cluster, disk) = &fixture.clusters[0];
    let _run = tokio::spawn(fixture.pipeline(0).run(fixture.shutdown.subscribe()));
    until("it runs", || fixture.stat("cluster:a:state") == "running").await;
    cluster.state().dead_prefix = Some("dead".into());
    fixture.database.commit(&["dead"], ms(0));
    until("it is retrying", || fixture.stat("cluster:a:state") == "retrying").await;
    assert_eq!(fixture.stat("cluster:a:why"), "SERVER_ERROR scripted failure");
    fixture.database.commit(&["alive"], ms(0));
    until("another key is deleted", || cluster.deletes_of("alive") == 1).await;
    sleep(Duration::from_secs(10)).await;
    assert_eq!(fixture.stat("cluster:a:state"), "retrying", "the success of another key is no recovery");
    cluster.state().dead_prefix = None;
    until("it has recovered", || disk.position() == Some(2)).await;
    assert_eq!(fixture.stat("cluster:a:state"), "running");
}

/// The state was `running`, and commits were accepted, before the first position was on disk. A daemon that was killed
/// then started again at a later present, and the deletes of those commits were lost.
#[tokio::test(start_paused = true)]
async fn no_commit_is_accepted_before_the_first_position_is_on_disk() {
    let fixture = Fixture::new(1);
    let (cluster, disk) = &fixture.clusters[0];
    disk.hangs.store(true, std::sync::atomic::Ordering::Relaxed);
    let _run = tokio::spawn(fixture.pipeline(0).run(fixture.shutdown.subscribe()));
    fixture.database.commit(&["a"], ms(0));
    sleep(Duration::from_secs(10)).await;
    assert_eq!(fixture.stat("cluster:a:state"), "starting");
    assert!(cluster.state().batches.is_empty(), "nothing is sent");
    disk.hangs.store(false, std::sync::atomic::Ordering::Relaxed);
    until("it runs", || fixture.stat("cluster:a:state") == "running").await;
    until("and accepts commits", || disk.position() == Some(1)).await;
}

/// After an outage of the database its return was noticed up to five seconds late.
#[tokio::test(start_paused = true)]
async fn return_of_the_database_is_noticed_soon() {
    let why = || "scripted".to_string();
    let cases = [
        (SourceError::NotConnected { why: why() }, ms(200), 50..400),
        (SourceError::Unreachable { why: why() }, ms(1_000), 20..80),
        (SourceError::Unusable { why: why() }, ms(5_000), 5..30),
    ];
    for (outage, delay_max, attempts) in cases {
        let fixture = Fixture::new(1);
        let _run = tokio::spawn(fixture.pipeline(0).run(fixture.shutdown.subscribe()));
        fixture.database.commit(&["before"], ms(0));
        until("it runs", || fixture.clusters[0].1.position() == Some(1)).await;
        fixture.database.state().outage = Some(outage.clone());
        fixture.database.commit(&["during"], ms(0));
        sleep(Duration::from_secs(60)).await;
        let tried = fixture.database.state().events.iter().filter(|event| *event == "outage").count();
        assert!(attempts.contains(&tried), "{outage}: {tried} attempts in a minute");
        fixture.database.state().outage = None;
        let back = Instant::now();
        until("it is deleted", || fixture.clusters[0].0.deletes_of("during") == 1).await;
        assert!(back.elapsed() <= delay_max + ms(10), "{outage}: {:?}", back.elapsed());
    }
}

/// A key without a route was retried forever, and held back the position permanently.
#[tokio::test(start_paused = true)]
async fn key_without_a_route_is_counted_and_not_retried() {
    let mut fixture = Fixture::new(1);
    // The fake disk would expect its delete.
    fixture.clusters[0].1 = fakes::Disk::new(&fixture.database, &fixture.clusters[0].0, 1);
    let (cluster, disk) = &fixture.clusters[0];
    cluster.state().unroutable.push("/api/v1/users".into());
    let _run = tokio::spawn(fixture.pipeline(0).run(fixture.shutdown.subscribe()));
    fixture.database.commit(&["/api/v1/users"], ms(0));
    fixture.database.commit(&["a"], ms(0));
    until("the position is behind both", || disk.position() == Some(2)).await;
    assert_eq!((fixture.stat("unroutable"), fixture.stat("invalidations_total")), ("1".into(), "1".into()));
    assert_eq!(fixture.stat("cluster:a:state"), "running");
}

#[tokio::test(start_paused = true)]
async fn full_retry_queue_blocks_reading_and_the_state_shows_it() {
    let mut fixture = Fixture::new(1);
    fixture.options.limits.keys_max = 10;
    fixture.options.limits.retry_queue_keys_max = 20;
    fixture.options.read_keys_max = 3;
    let (cluster, disk) = &fixture.clusters[0];
    cluster.state().dead_prefix = Some("dead".into());
    let _run = tokio::spawn(fixture.pipeline(0).run(fixture.shutdown.subscribe()));
    for number in 0..100 {
        fixture.database.commit(&[&format!("dead{number}")], ms(0));
    }
    until("it is blocked", || fixture.stat("cluster:a:state") == "blocked").await;
    sleep(Duration::from_secs(60)).await;
    let queued: usize = fixture.stat("cluster:a:retry_queue_keys").parse().expect("a number");
    assert!((20..=30).contains(&queued), "the bound, and at most the limit of pending keys more: {queued}");
    let why = fixture.stat("cluster:a:why");
    assert!(why.contains(&queued.to_string()) && why.ends_with("SERVER_ERROR scripted failure"), "{why}");
    cluster.state().dead_prefix = None;
    until("all is applied", || disk.position() == Some(100)).await;
    assert_eq!(fixture.stat("cluster:a:state"), "running");
}
