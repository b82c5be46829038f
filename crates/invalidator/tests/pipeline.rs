//! The pipeline's promises, with fakes, in paused time.

mod fakes;

use fakes::{Region, ms, until};
use lookaside_invalidator::pipeline::{OnPositionLost, Options, pending::Limits};
use proptest::prelude::*;
use std::time::Duration;
use tokio::time::{Instant, sleep};

#[tokio::test(start_paused = true)]
async fn a_commit_is_deleted_and_then_remembered() {
    let region = Region::new(1);
    let run = tokio::spawn(region.pipeline(0).run(region.shutdown.subscribe()));
    region.database.commit(&["a", "b"], ms(0));
    region.database.commit(&[], ms(0));
    let (cluster, disk) = &region.clusters[0];
    until("the position is behind both", || disk.position() == Some(2)).await;
    assert_eq!((cluster.deletes_of("a"), cluster.deletes_of("b")), (1, 1));
    assert_eq!(region.figure("invalidations_total"), "2");
    region.shutdown.send_replace(true);
    run.await.expect("no panic").expect("asked to stop");
    assert_eq!(region.figure("cluster:a:state"), "stopped");
}

#[tokio::test(start_paused = true)]
async fn the_gate_is_passed_before_any_delete_and_once_a_read() {
    let region = Region::new(1);
    for key in ["a", "b", "c"] {
        region.database.commit(&[key], ms(50));
    }
    let begun = Instant::now();
    let _run = tokio::spawn(region.pipeline(0).run(region.shutdown.subscribe()));
    until("all are deleted", || region.clusters[0].0.inside().deleted.len() == 3).await;
    assert!(begun.elapsed() >= ms(50), "it waited until readers see the commits");
    let events = region.database.inside().events.clone();
    let of = |what: &str| events.iter().position(|event| event.starts_with(what));
    assert!(of("visible 3") < of("delete"), "{events:?}");
    assert_eq!(events.iter().filter(|event| event.starts_with("visible")).count(), 1, "{events:?}");
    assert_eq!(events.iter().filter(|event| event.starts_with("delete")).count(), 1, "{events:?}");
}

#[tokio::test(start_paused = true)]
async fn a_refused_key_is_retried_and_holds_up_only_the_position() {
    let region = Region::new(1);
    let (cluster, disk) = &region.clusters[0];
    cluster.inside().refused.push("bad".into());
    let _run = tokio::spawn(region.pipeline(0).run(region.shutdown.subscribe()));
    region.database.commit(&["first"], ms(0));
    region.database.commit(&["bad"], ms(0));
    for number in 0..100 {
        region.database.commit(&[&format!("other{number}")], ms(0));
    }
    until("the others are deleted", || cluster.inside().deleted.len() == 101).await;
    sleep(Duration::from_secs(10)).await;
    assert_eq!(disk.position(), Some(1), "the position stays before the refused key");
    let tries = cluster.inside().batches.iter().filter(|batch| batch.contains(&"bad".to_string())).count();
    assert!((10..30).contains(&tries), "later and later, but at least every second: {tries}");
    assert_eq!(region.figure("invalidations_retried"), tries.to_string());
    cluster.inside().refused.clear();
    until("the position moves on", || disk.position() == Some(102)).await;
    assert_eq!(cluster.deletes_of("bad"), 1);
}

#[tokio::test(start_paused = true)]
async fn a_full_window_waits() {
    let mut region = Region::new(1);
    region.options = Options {
        limits: Limits { keys_max: 10, batch_keys_max: 4, ..region.options.limits },
        read_keys_max: 3,
        batches_in_flight_max: 100,
        ..region.options
    };
    let (cluster, disk) = &region.clusters[0];
    cluster.inside().hangs = true;
    let _run = tokio::spawn(region.pipeline(0).run(region.shutdown.subscribe()));
    for number in 0..1000 {
        region.database.commit(&[&format!("k{number}")], ms(0));
    }
    sleep(Duration::from_secs(60)).await;
    assert!(cluster.inside().under_way_max <= 10, "{}", cluster.inside().under_way_max);
    let last_read = region.database.inside().events.iter().rfind(|event| event.starts_with("next")).cloned();
    assert_eq!(last_read.as_deref(), Some("next 18"), "a window, one read held, one in the channel, one at the gate");
    assert_eq!(disk.position(), Some(0));
    assert!(cluster.inside().batches.iter().all(|batch| batch.len() <= 4));
}

#[tokio::test(start_paused = true)]
async fn a_transaction_larger_than_the_window_goes_alone() {
    let mut region = Region::new(1);
    region.options.limits.keys_max = 10;
    let keys: Vec<String> = (0..50).map(|number| format!("k{number}")).collect();
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    let _run = tokio::spawn(region.pipeline(0).run(region.shutdown.subscribe()));
    region.database.commit(&["small"], ms(0));
    region.database.commit(&keys, ms(0));
    until("both are applied", || region.clusters[0].1.position() == Some(2)).await;
}

#[tokio::test(start_paused = true)]
async fn a_dead_cluster_delays_no_other() {
    let mut region = Region::new(2);
    region.options.limits.keys_max = 16;
    region.clusters[0].0.inside().hangs = true;
    let _dead = tokio::spawn(region.pipeline(0).run(region.shutdown.subscribe()));
    let _alive = tokio::spawn(region.pipeline(1).run(region.shutdown.subscribe()));
    let begun = Instant::now();
    for number in 0..1000 {
        region.database.commit(&[&format!("k{number}")], ms(0));
    }
    until("the living one has all", || region.clusters[1].1.position() == Some(1000)).await;
    assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
    assert_eq!(region.clusters[0].1.position(), Some(0));
    assert_eq!(region.figure("commits_to_last_cluster"), "0");
}

#[tokio::test(start_paused = true)]
async fn repeated_keys_share_a_delete_but_none_that_was_sent_before() {
    let region = Region::new(1);
    let (cluster, disk) = &region.clusters[0];
    cluster.inside().takes = ms(100);
    let _run = tokio::spawn(region.pipeline(0).run(region.shutdown.subscribe()));
    for _ in 0..10 {
        region.database.commit(&["hot"], ms(0));
    }
    until("it is on its way", || cluster.inside().under_way == 1).await;
    region.database.commit(&["hot"], ms(0));
    until("all are applied", || disk.position() == Some(11)).await;
    assert_eq!(cluster.inside().batches, [["hot"], ["hot"]]);
}

#[tokio::test(start_paused = true)]
async fn a_database_that_goes_away_is_waited_for() {
    let region = Region::new(1);
    let _run = tokio::spawn(region.pipeline(0).run(region.shutdown.subscribe()));
    region.database.commit(&["a"], ms(0));
    until("it runs", || region.clusters[0].1.position() == Some(1)).await;
    region.database.inside().failures = 20;
    region.database.commit(&["b"], ms(0));
    until("its state says so", || region.figure("cluster:a:state") == "source_failing").await;
    until("it has gone on", || region.clusters[0].1.position() == Some(2)).await;
    assert_eq!(region.figure("cluster:a:state"), "running");
    assert!(region.figure("source_failures").parse::<u32>().expect("a number") >= 10);
    assert_eq!(region.clusters[0].0.deletes_of("a"), 1, "what was applied is not read again");
}

#[tokio::test(start_paused = true)]
async fn a_lost_position_stops_the_pipeline_with_advice() {
    let region = Region::new(1);
    region.database.commit(&["a"], ms(0));
    region.database.commit(&["b"], ms(0));
    region.database.inside().purged = 2;
    region.clusters[0].1.put("database-1", 1);
    let error = region.pipeline(0).run(region.shutdown.subscribe()).await.expect_err("deletes are lost");
    assert!(error.to_string().contains("flush_all"), "{error}");
    assert_eq!(region.figure("positions_lost"), "1");
    assert_eq!(region.clusters[0].1.position(), Some(1), "the position stays for the operator to see");
}

#[tokio::test(start_paused = true)]
async fn a_lost_position_empties_the_cluster_where_that_is_wanted() {
    let mut region = Region::new(1);
    region.options.on_position_lost = OnPositionLost::Flush;
    region.database.commit(&["a"], ms(0));
    region.database.commit(&["b"], ms(80));
    region.database.inside().purged = 2;
    region.clusters[0].1.put("database-1", 1);
    let _run = tokio::spawn(region.pipeline(0).run(region.shutdown.subscribe()));
    until("the present is reached", || region.clusters[0].1.position() == Some(2)).await;
    region.database.commit(&["c"], ms(0));
    until("it goes on", || region.clusters[0].1.position() == Some(3)).await;
    let events = region.database.inside().events.clone();
    let of =
        |what: &str| events.iter().position(|event| event == what).unwrap_or_else(|| panic!("no {what}: {events:?}"));
    assert!(of("open 2") < of("visible 2") && of("visible 2") < of("flush") && of("flush") < of("delete c"));
    assert_eq!(region.figure("positions_lost"), "1");
}

#[tokio::test(start_paused = true)]
async fn a_position_of_another_database_is_refused() {
    let region = Region::new(1);
    region.clusters[0].1.put("database-2", 1);
    let error = region.pipeline(0).run(region.shutdown.subscribe()).await.expect_err("another database");
    assert!(error.to_string().contains("database-2"), "{error}");
    assert!(!region.database.inside().events.iter().any(|event| event.starts_with("open")));
}

#[tokio::test(start_paused = true)]
async fn the_first_start_remembers_where_now_was() {
    let mut region = Region::new(1);
    region.options.start = lookaside_invalidator::Start::Now;
    region.clusters[0].1 = fakes::Disk::new(&region.database, &region.clusters[0].0, 1);
    region.database.commit(&["old"], ms(0));
    let run = tokio::spawn(region.pipeline(0).run(region.shutdown.subscribe()));
    until("it is saved before anything happens", || region.clusters[0].1.position() == Some(1)).await;
    run.abort();
    let _ = run.await;
    region.database.commit(&["while down"], ms(0));
    let _run = tokio::spawn(region.pipeline(0).run(region.shutdown.subscribe()));
    until("it is caught up", || region.clusters[0].1.position() == Some(2)).await;
    assert_eq!((region.clusters[0].0.deletes_of("old"), region.clusters[0].0.deletes_of("while down")), (0, 1));
}

/// Random commits, slow visibility, failing deletes, dead servers, lost answers, a failing database, and crashes at any moment. The
/// disk of the fakes checks at every save that the position passes no commit that is owed a delete.
async fn live(seed: u64) {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut region = Region::new(1);
    region.options.limits.keys_max = rng.usize(1..40);
    region.options.limits.failing_keys_max = rng.usize(1..12);
    region.options.limits.batch_keys_max = rng.usize(1..8);
    region.options.read_keys_max = rng.usize(1..8);
    region.options.batches_in_flight_max = rng.usize(1..4);
    region.options.save_every = ms(rng.u64(0..50));
    let (cluster, disk) = &region.clusters[0];
    cluster.inside().failing_percent = rng.u32(0..60);
    cluster.inside().rng = rng.fork();
    region.database.inside().failing_percent = rng.u32(0..10);
    region.database.inside().rng = rng.fork();
    let mut run = tokio::spawn(region.pipeline(0).run(region.shutdown.subscribe()));
    for _ in 0..rng.usize(1..150) {
        match rng.u32(0..21) {
            20 => {
                let dead = if rng.bool() { Some(format!("k{}", rng.u32(0..4))) } else { None };
                cluster.inside().dead_prefix = dead;
            }
            0 => {
                run.abort();
                assert!(run.await.is_err_and(|why| why.is_cancelled()), "seed {seed}: it panicked or ended");
                run = tokio::spawn(region.pipeline(0).run(region.shutdown.subscribe()));
            }
            1 => sleep(ms(rng.u64(0..400))).await,
            2..10 => sleep(Duration::from_micros(rng.u64(0..5_000))).await,
            _ => {
                let keys: Vec<String> = (0..rng.usize(0..4)).map(|n| format!("k{n}{}", rng.u32(0..4))).collect();
                let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
                region.database.commit(&keys, Duration::from_micros(rng.u64(0..60_000)));
            }
        }
    }
    cluster.inside().failing_percent = 0;
    cluster.inside().dead_prefix = None;
    region.database.inside().failing_percent = 0;
    let last = region.database.inside().commits.len();
    until(&format!("seed {seed}: all is applied"), || run.is_finished() || disk.position() == Some(last)).await;
    region.shutdown.send_replace(true);
    run.await.expect("the checks at every save hold").expect("asked to stop");
    assert_eq!(disk.position(), Some(last), "seed {seed}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_commit_is_deleted_once_it_is_visible_whatever_happens(seed in any::<u64>()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        runtime.expect("a runtime can be made").block_on(live(seed));
    }
}
