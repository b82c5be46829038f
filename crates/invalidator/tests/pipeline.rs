//! The guarantees of a pipeline, with fakes, in paused time.

use crate::fakes::{self, Fixture, ms, until};
use lookaside_invalidator::{
    Start,
    keys::FLUSH_CLUSTER,
    pipeline::{Options, Pipeline, pending::Limits},
    source::Anomalies,
};
use proptest::prelude::*;
use std::{sync::atomic::Ordering::SeqCst, time::Duration};
use tokio::time::{Instant, sleep};

#[tokio::test(start_paused = true)]
async fn commit_is_deleted_and_its_position_saved() {
    let fixture = Fixture::new(1);
    let run = tokio::spawn(fixture.pipeline(0).run(fixture.shutdown.subscribe()));
    fixture.database.commit(&["a", "b"], ms(0));
    fixture.database.commit(&[], ms(0));
    let (cluster, disk) = &fixture.clusters[0];
    until("the position is behind both", || disk.position() == Some(2)).await;
    assert_eq!((cluster.deletes_of("a"), cluster.deletes_of("b")), (1, 1));
    assert_eq!(fixture.stat("invalidations_total"), "2");
    fixture.shutdown.send_replace(true);
    run.await.expect("no panic").expect("asked to stop");
    assert_eq!(fixture.stat("cluster:a:state"), "stopped");
}

#[tokio::test(start_paused = true)]
async fn gate_runs_once_per_read_before_any_delete() {
    let fixture = Fixture::new(1);
    for key in ["a", "b", "c"] {
        fixture.database.commit(&[key], ms(50));
    }
    let start = Instant::now();
    let _run = tokio::spawn(fixture.pipeline(0).run(fixture.shutdown.subscribe()));
    until("all are deleted", || fixture.clusters[0].0.state().deleted.len() == 3).await;
    assert!(start.elapsed() >= ms(50), "it waited until readers see the commits");
    let events = fixture.database.state().events.clone();
    let of = |what: &str| events.iter().position(|event| event.starts_with(what));
    assert!(of("visible 3") < of("delete"), "{events:?}");
    assert_eq!(events.iter().filter(|event| event.starts_with("visible")).count(), 1, "{events:?}");
    assert_eq!(events.iter().filter(|event| event.starts_with("delete")).count(), 1, "{events:?}");
}

/// A commit in the log that readers did not see at the first start was never deleted: a value that was filled then
/// stayed.
#[tokio::test(start_paused = true)]
async fn start_from_the_present_passes_the_gate() {
    let mut fixture = Fixture::new(1);
    fixture.options.start = Start::Now;
    fixture.database.commit(&["a"], ms(80));
    let start = Instant::now();
    // Whose disk does not know of the commit.
    let pipeline = Pipeline { positions: fakes::UncheckedDisk::new(), ..fixture.pipeline(0) };
    let _run = tokio::spawn(pipeline.run(fixture.shutdown.subscribe()));
    until("it runs", || fixture.stat("cluster:a:state") == "running").await;
    assert!(start.elapsed() >= ms(80), "it runs after {:?}", start.elapsed());
    let events = fixture.database.state().events.clone();
    assert!(events.iter().any(|event| event == "visible 1"), "{events:?}");
}

#[tokio::test(start_paused = true)]
async fn refused_key_is_retried_and_holds_back_only_the_position() {
    let fixture = Fixture::new(1);
    let (cluster, disk) = &fixture.clusters[0];
    cluster.state().refused.push("bad".into());
    let _run = tokio::spawn(fixture.pipeline(0).run(fixture.shutdown.subscribe()));
    fixture.database.commit(&["first"], ms(0));
    fixture.database.commit(&["bad"], ms(0));
    for number in 0..100 {
        fixture.database.commit(&[&format!("other{number}")], ms(0));
    }
    until("the others are deleted", || cluster.state().deleted.len() == 101).await;
    sleep(Duration::from_secs(10)).await;
    assert_eq!(disk.position(), Some(1), "the position stays before the refused key");
    let tries = cluster.state().batches.iter().filter(|batch| batch.contains(&"bad".to_string())).count();
    assert!((10..30).contains(&tries), "with growing delays, but at least every second: {tries}");
    assert_eq!(fixture.stat("invalidations_retried"), tries.to_string());
    cluster.state().refused.clear();
    until("the position moves on", || disk.position() == Some(102)).await;
    assert_eq!(cluster.deletes_of("bad"), 1);
}

/// A flush that a rule demands is as durable as a delete: it is retried, and holds back the position.
#[tokio::test(start_paused = true)]
async fn flush_among_the_keys_is_retried_and_counted_apart() {
    let fixture = Fixture::new(1);
    let (cluster, disk) = &fixture.clusters[0];
    let mark = std::str::from_utf8(FLUSH_CLUSTER).expect("text");
    cluster.state().refused.push(mark.into());
    let _run = tokio::spawn(fixture.pipeline(0).run(fixture.shutdown.subscribe()));
    fixture.database.commit(&["a", mark], ms(0));
    fixture.database.commit(&[mark], ms(0));
    until("it is retried", || fixture.stat("invalidations_retried") != "0").await;
    sleep(Duration::from_secs(10)).await;
    assert_eq!((fixture.stat("invalidations_total"), fixture.stat("flushes")), ("1".into(), "0".into()));
    assert_eq!((disk.position(), fixture.stat("cluster:a:retry_queue_keys")), (Some(0), "1".into()));
    cluster.state().refused.clear();
    until("the position moves on", || disk.position() == Some(2)).await;
    assert_eq!((fixture.stat("invalidations_total"), fixture.stat("cluster:a:flushes")), ("1".into(), "1".into()));
    assert_eq!(cluster.deletes_of(mark), 1, "one flush covers both commits");
}

/// A flush of pools is retried and held back as well, and counted by itself.
#[tokio::test(start_paused = true)]
async fn flush_of_pools_is_counted_apart() {
    let fixture = Fixture::new(1);
    let (cluster, disk) = &fixture.clusters[0];
    let mark = "\0flush-prefix:user:";
    cluster.state().refused.push(mark.into());
    let _run = tokio::spawn(fixture.pipeline(0).run(fixture.shutdown.subscribe()));
    fixture.database.commit(&["a", mark], ms(0));
    until("it is retried", || fixture.stat("invalidations_retried") != "0").await;
    assert_eq!((disk.position(), fixture.stat("pool_flushes")), (Some(0), "0".into()));
    cluster.state().refused.clear();
    until("the position moves on", || disk.position() == Some(1)).await;
    let counted = ["cluster:a:pool_flushes", "pool_flushes", "flushes", "invalidations_total"];
    assert_eq!(counted.map(|name| fixture.stat(name)), ["1", "1", "0", "1"].map(String::from));
}

/// The position passed commits without keys that readers did not see, and that the replica that is promoted may lack:
/// after a failover it was lost.
#[tokio::test(start_paused = true)]
async fn position_does_not_pass_a_commit_that_readers_do_not_see() {
    for gates_every_position in [false, true] {
        let fixture = Fixture::new(1);
        let (_, disk) = &fixture.clusters[0];
        fixture.database.state().gates_every_position = gates_every_position;
        let _run = tokio::spawn(fixture.pipeline(0).run(fixture.shutdown.subscribe()));
        fixture.database.commit(&["a"], ms(0));
        until("the first commit is saved", || disk.position() == Some(1)).await;
        let visible_at = Instant::now() + Duration::from_secs(20);
        fixture.database.commit(&[], Duration::from_secs(20));
        until("the commit without keys is saved", || disk.position() == Some(2)).await;
        assert_eq!(Instant::now() >= visible_at, gates_every_position);
    }
}

/// Positions kept the name of the former server for as long as the process ran: each later start found that another
/// server continues the log.
#[tokio::test(start_paused = true)]
async fn position_after_a_failover_has_the_name_of_the_new_server() {
    let fixture = Fixture::new(1);
    let (_, disk) = &fixture.clusters[0];
    let _run = tokio::spawn(fixture.pipeline(0).run(fixture.shutdown.subscribe()));
    fixture.database.commit(&["a"], ms(0));
    until("the first commit is saved", || disk.position() == Some(1)).await;
    fixture.database.state().identity = "database-2".into();
    fixture.database.state().former = Some("database-1".into());
    fixture.database.state().failures = 1;
    fixture.database.commit(&["b"], ms(0));
    until("the second commit is saved", || disk.position() == Some(2)).await;
    let saved = disk.saved.lock().expect("no panic while it is held").clone().expect("a position");
    assert_eq!(saved.log_identity, "database-2");
}

/// All but the statements without rows were only in the log of the invalidator.
#[tokio::test(start_paused = true)]
async fn anomalies_are_counted_over_all_sources() {
    let fixture = Fixture::new(1);
    let _run = tokio::spawn(fixture.pipeline(0).run(fixture.shutdown.subscribe()));
    fixture.database.state().anomalies = Anomalies { unfinished: 3, without_gtid: 4, without_rows: 2 };
    fixture.database.commit(&["a"], ms(0));
    until("they are counted", || fixture.stat("statements_without_rows") == "2").await;
    fixture.database.state().failures = 1;
    fixture.database.commit(&["b"], ms(0));
    until("another source has read", || fixture.stat("invalidations_total") == "2").await;
    for (name, counted) in
        [("statements_without_rows", "4"), ("transactions_unfinished", "6"), ("changes_without_gtid", "8")]
    {
        assert_eq!(fixture.stat(&format!("cluster:a:{name}")), counted, "{name}: that source begins at zero");
        assert_eq!(fixture.stat(name), counted);
    }
}

#[tokio::test(start_paused = true)]
async fn reading_waits_at_the_limit_of_pending_keys() {
    let mut fixture = Fixture::new(1);
    fixture.options = Options {
        limits: Limits { keys_max: 10, batch_keys_max: 4, ..fixture.options.limits },
        read_keys_max: 3,
        batches_in_flight_max: 100,
        ..fixture.options
    };
    let (cluster, disk) = &fixture.clusters[0];
    cluster.state().hangs = true;
    let _run = tokio::spawn(fixture.pipeline(0).run(fixture.shutdown.subscribe()));
    for number in 0..1000 {
        fixture.database.commit(&[&format!("k{number}")], ms(0));
    }
    sleep(Duration::from_secs(60)).await;
    assert!(cluster.state().in_flight_max <= 10, "{}", cluster.state().in_flight_max);
    let last_read = fixture.database.state().events.iter().rfind(|event| event.starts_with("next")).cloned();
    assert_eq!(
        last_read.as_deref(),
        Some("next 18"),
        "the pending keys, one read buffered, one in the channel, one at the gate"
    );
    assert_eq!(disk.position(), Some(0));
    assert!(cluster.state().batches.iter().all(|batch| batch.len() <= 4));
}

#[tokio::test(start_paused = true)]
async fn transaction_over_the_limit_of_pending_keys_is_admitted_alone() {
    let mut fixture = Fixture::new(1);
    fixture.options.limits.keys_max = 10;
    let keys: Vec<String> = (0..50).map(|number| format!("k{number}")).collect();
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    let _run = tokio::spawn(fixture.pipeline(0).run(fixture.shutdown.subscribe()));
    fixture.database.commit(&["small"], ms(0));
    fixture.database.commit(&keys, ms(0));
    until("both are applied", || fixture.clusters[0].1.position() == Some(2)).await;
}

#[tokio::test(start_paused = true)]
async fn dead_cluster_delays_no_other() {
    let mut fixture = Fixture::new(2);
    fixture.options.limits.keys_max = 16;
    fixture.clusters[0].0.state().hangs = true;
    let _dead = tokio::spawn(fixture.pipeline(0).run(fixture.shutdown.subscribe()));
    let _alive = tokio::spawn(fixture.pipeline(1).run(fixture.shutdown.subscribe()));
    let start = Instant::now();
    for number in 0..1000 {
        fixture.database.commit(&[&format!("k{number}")], ms(0));
    }
    until("the healthy cluster has all", || fixture.clusters[1].1.position() == Some(1000)).await;
    assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
    assert_eq!(fixture.clusters[0].1.position(), Some(0));
    assert_eq!(fixture.stat("commits_in_all_clusters"), "0");
}

#[tokio::test(start_paused = true)]
async fn repeated_keys_share_a_delete_that_is_unsent() {
    let fixture = Fixture::new(1);
    let (cluster, disk) = &fixture.clusters[0];
    cluster.state().delay = ms(100);
    let _run = tokio::spawn(fixture.pipeline(0).run(fixture.shutdown.subscribe()));
    for _ in 0..10 {
        fixture.database.commit(&["hot"], ms(0));
    }
    until("it is in flight", || cluster.state().in_flight == 1).await;
    fixture.database.commit(&["hot"], ms(0));
    until("all are applied", || disk.position() == Some(11)).await;
    assert_eq!(cluster.state().batches, [["hot"], ["hot"]]);
}

#[tokio::test(start_paused = true)]
async fn failing_database_is_retried() {
    let fixture = Fixture::new(1);
    let _run = tokio::spawn(fixture.pipeline(0).run(fixture.shutdown.subscribe()));
    fixture.database.commit(&["a"], ms(0));
    until("it runs", || fixture.clusters[0].1.position() == Some(1)).await;
    fixture.database.state().failures = 20;
    fixture.database.commit(&["b"], ms(0));
    until("the state is source_failing", || fixture.stat("cluster:a:state") == "source_failing").await;
    until("it has resumed", || fixture.clusters[0].1.position() == Some(2)).await;
    assert_eq!(fixture.stat("cluster:a:state"), "running");
    assert!(fixture.stat("source_failures").parse::<u32>().expect("a number") >= 10);
    assert_eq!(fixture.clusters[0].0.deletes_of("a"), 1, "acknowledged commits are not read again");
}

#[tokio::test(start_paused = true)]
async fn position_of_another_database_is_refused() {
    let fixture = Fixture::new(1);
    fixture.clusters[0].1.put("database-2", 1);
    let error = fixture.pipeline(0).run(fixture.shutdown.subscribe()).await.expect_err("another database");
    assert!(error.to_string().contains("database-2"), "{error}");
    assert!(!fixture.database.state().events.iter().any(|event| event.starts_with("open")));
}

#[tokio::test(start_paused = true)]
async fn first_start_saves_its_position_at_once() {
    let mut fixture = Fixture::new(1);
    fixture.options.start = lookaside_invalidator::Start::Now;
    fixture.clusters[0].1 = fakes::Disk::new(&fixture.database, &fixture.clusters[0].0, 1);
    fixture.database.commit(&["old"], ms(0));
    let run = tokio::spawn(fixture.pipeline(0).run(fixture.shutdown.subscribe()));
    until("it is saved before anything happens", || fixture.clusters[0].1.position() == Some(1)).await;
    run.abort();
    let _ = run.await;
    fixture.database.commit(&["while down"], ms(0));
    let _run = tokio::spawn(fixture.pipeline(0).run(fixture.shutdown.subscribe()));
    until("it has caught up", || fixture.clusters[0].1.position() == Some(2)).await;
    assert_eq!((fixture.clusters[0].0.deletes_of("old"), fixture.clusters[0].0.deletes_of("while down")), (0, 1));
}

/// A save into the shared record may take a second, in which a standby that has become active sent nothing.
#[tokio::test(start_paused = true)]
async fn only_the_first_deletes_of_a_new_position_wait_until_it_is_saved() {
    let fixture = Fixture::new(1);
    let (cluster, disk) = &fixture.clusters[0];
    disk.hangs.store(true, SeqCst);
    fixture.database.commit(&["a"], ms(0));
    let run = tokio::spawn(fixture.pipeline(0).run(fixture.shutdown.subscribe()));
    sleep(ms(500)).await;
    assert_eq!(cluster.deletes_of("a"), 0, "a restart could begin later than here");
    run.abort();
    let _ = run.await;
    disk.put("database-1", 0);
    let _run = tokio::spawn(fixture.pipeline(0).run(fixture.shutdown.subscribe()));
    until("it is deleted", || cluster.deletes_of("a") == 1).await;
    assert_eq!(disk.position(), Some(0), "nothing was saved");
}

/// Random commits, slow visibility, failing deletes, dead servers, lost replies, a failing database, and crashes at any
/// moment. The fake disk checks at every save that the position passes no commit with a pending delete.
async fn run_scenario(seed: u64) {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut fixture = Fixture::new(1);
    fixture.options.limits.keys_max = rng.usize(1..40);
    fixture.options.limits.retry_queue_keys_max = rng.usize(1..12);
    fixture.options.limits.batch_keys_max = rng.usize(1..8);
    fixture.options.read_keys_max = rng.usize(1..8);
    fixture.options.batches_in_flight_max = rng.usize(1..4);
    fixture.options.save_every = ms(rng.u64(0..50));
    let (cluster, disk) = &fixture.clusters[0];
    cluster.state().failing_percent = rng.u32(0..60);
    cluster.state().rng = rng.fork();
    fixture.database.state().failing_percent = rng.u32(0..10);
    fixture.database.state().rng = rng.fork();
    let mut run = tokio::spawn(fixture.pipeline(0).run(fixture.shutdown.subscribe()));
    for _ in 0..rng.usize(1..150) {
        match rng.u32(0..21) {
            20 => {
                let dead = if rng.bool() { Some(format!("k{}", rng.u32(0..4))) } else { None };
                cluster.state().dead_prefix = dead;
            }
            0 => {
                run.abort();
                assert!(run.await.is_err_and(|why| why.is_cancelled()), "seed {seed}: it panicked or ended");
                run = tokio::spawn(fixture.pipeline(0).run(fixture.shutdown.subscribe()));
            }
            1 => sleep(ms(rng.u64(0..400))).await,
            2..10 => sleep(Duration::from_micros(rng.u64(0..5_000))).await,
            _ => {
                let keys: Vec<String> = (0..rng.usize(0..4)).map(|n| format!("k{n}{}", rng.u32(0..4))).collect();
                let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
                fixture.database.commit(&keys, Duration::from_micros(rng.u64(0..60_000)));
            }
        }
    }
    cluster.state().failing_percent = 0;
    cluster.state().dead_prefix = None;
    fixture.database.state().failing_percent = 0;
    let last = fixture.database.state().commits.len();
    until(&format!("seed {seed}: all is applied"), || run.is_finished() || disk.position() == Some(last)).await;
    fixture.shutdown.send_replace(true);
    run.await.expect("the checks at every save hold").expect("asked to stop");
    assert_eq!(disk.position(), Some(last), "seed {seed}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_commit_is_deleted_after_it_is_visible(seed in any::<u64>()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        runtime.expect("a runtime can be made").block_on(run_scenario(seed));
    }
}
