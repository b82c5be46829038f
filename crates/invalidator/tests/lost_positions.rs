//! A log that no longer reaches back to the position, with fakes, in paused time: what the operator has chosen.

use crate::fakes::{self, Fixture, ms, until};
use lookaside_invalidator::pipeline::OnPositionLost;
use std::time::Duration;
use tokio::time::{Instant, sleep};

#[tokio::test(start_paused = true)]
async fn lost_position_stops_the_pipeline_with_advice() {
    let fixture = Fixture::new(1);
    fixture.database.commit(&["a"], ms(0));
    fixture.database.commit(&["b"], ms(0));
    fixture.database.state().purged = 2;
    fixture.clusters[0].1.put("database-1", 1);
    let error = fixture.pipeline(0).run(fixture.shutdown.subscribe()).await.expect_err("deletes are lost");
    for choice in ["--on-position-lost flush", "--on-position-lost continue", "flush_all"] {
        assert!(error.to_string().contains(choice), "{error}");
    }
    assert_eq!(fixture.stat("positions_lost"), "1");
    assert_eq!(fixture.clusters[0].1.position(), Some(1), "the position stays for the operator to see");
}

#[tokio::test(start_paused = true)]
async fn lost_position_flushes_the_cluster_with_that_option() {
    let mut fixture = Fixture::new(1);
    fixture.options.on_position_lost = OnPositionLost::Flush;
    fixture.database.commit(&["a"], ms(0));
    fixture.database.commit(&["b"], ms(80));
    fixture.database.state().purged = 2;
    fixture.clusters[0].1.put("database-1", 1);
    let _run = tokio::spawn(fixture.pipeline(0).run(fixture.shutdown.subscribe()));
    until("the present is reached", || fixture.clusters[0].1.position() == Some(2)).await;
    fixture.database.commit(&["c"], ms(0));
    until("it continues", || fixture.clusters[0].1.position() == Some(3)).await;
    let events = fixture.database.state().events.clone();
    let of =
        |what: &str| events.iter().position(|event| event == what).unwrap_or_else(|| panic!("no {what}: {events:?}"));
    assert!(of("open 2") < of("visible 2") && of("visible 2") < of("flush") && of("flush") < of("delete c"));
    assert_eq!(fixture.stat("positions_lost"), "1");
}

#[tokio::test(start_paused = true)]
async fn lost_position_is_passed_without_a_flush_with_that_option() {
    let mut fixture = Fixture::new(1);
    fixture.options.on_position_lost = OnPositionLost::Continue;
    fixture.database.commit(&["a"], ms(0));
    fixture.database.commit(&["b"], ms(80));
    fixture.database.state().purged = 2;
    // The deletes of the second commit are lost, too.
    fixture.clusters[0].1 = fakes::Disk::new(&fixture.database, &fixture.clusters[0].0, 2);
    fixture.clusters[0].1.put("database-1", 1);
    let _run = tokio::spawn(fixture.pipeline(0).run(fixture.shutdown.subscribe()));
    until("the present is reached", || fixture.clusters[0].1.position() == Some(2)).await;
    fixture.database.commit(&["c"], ms(0));
    until("it continues", || fixture.clusters[0].1.position() == Some(3)).await;
    assert_eq!((fixture.stat("positions_lost"), fixture.stat("flushes")), ("1".into(), "0".into()));
    assert!(fixture.database.state().events.contains(&"visible 2".into()), "a flush by hand must come after that");
}

/// Routers without --enable-flush-cmd: each attempt counted as one more loss, and the database was named as the cause.
#[tokio::test(start_paused = true)]
async fn flush_that_the_routers_refuse_is_retried_and_one_loss() {
    let mut fixture = Fixture::new(1);
    fixture.options.on_position_lost = OnPositionLost::Flush;
    fixture.database.commit(&["a"], ms(0));
    fixture.database.commit(&["b"], ms(0));
    fixture.database.state().purged = 2;
    fixture.clusters[0].1.put("database-1", 1);
    fixture.clusters[0].0.state().flush_refusal = Some("scripted refusal".into());
    let _run = tokio::spawn(fixture.pipeline(0).run(fixture.shutdown.subscribe()));
    until("the flush is refused", || fixture.stat("cluster:a:state") == "flush_failing").await;
    assert_eq!(fixture.stat("cluster:a:why"), "scripted refusal");
    let failures = || fixture.stat("flush_failures").parse::<u64>().expect("a number");
    until("it is retried", || failures() > 5).await;
    assert_eq!((fixture.stat("positions_lost"), fixture.stat("source_failures")), ("1".into(), "0".into()));
    fixture.clusters[0].0.state().flush_refusal = None;
    until("the present is reached", || fixture.clusters[0].1.position() == Some(2)).await;
    until("it runs", || fixture.stat("cluster:a:state") == "running").await;
    assert_eq!((fixture.stat("positions_lost"), fixture.stat("flushes")), ("1".into(), "1".into()));
}

/// While a flush was refused the position was tried again. If it could be read from by then, nothing was flushed.
#[tokio::test(start_paused = true)]
async fn flush_is_retried_though_the_lost_position_is_back() {
    let mut fixture = Fixture::new(1);
    fixture.options.on_position_lost = OnPositionLost::Flush;
    fixture.database.commit(&["a"], ms(0));
    fixture.database.state().is_always_lost = true;
    fixture.clusters[0].1.put("database-1", 1);
    fixture.clusters[0].0.state().flush_refusal = Some("scripted refusal".into());
    let _run = tokio::spawn(fixture.pipeline(0).run(fixture.shutdown.subscribe()));
    until("the flush is refused", || fixture.stat("cluster:a:state") == "flush_failing").await;
    fixture.database.state().is_always_lost = false;
    let failures = || fixture.stat("flush_failures").parse::<u64>().expect("a number");
    until("it is retried", || failures() > 5).await;
    assert_eq!(fixture.stat("cluster:a:state"), "flush_failing");
    fixture.clusters[0].0.state().flush_refusal = None;
    until("it runs", || fixture.stat("cluster:a:state") == "running").await;
    assert_eq!((fixture.stat("positions_lost"), fixture.stat("flushes")), ("1".into(), "1".into()));
}

/// A log that was lost whenever it was read had the cluster flushed as fast as its routers could.
#[tokio::test(start_paused = true)]
async fn log_that_is_lost_again_and_again_is_read_at_growing_intervals() {
    let mut fixture = Fixture::new(1);
    fixture.options.on_position_lost = OnPositionLost::Flush;
    fixture.clusters[0].1.put("database-1", 0);
    fixture.database.state().is_always_lost = true;
    let _run = tokio::spawn(fixture.pipeline(0).run(fixture.shutdown.subscribe()));
    sleep(Duration::from_secs(60)).await;
    let flushes = fixture.clusters[0].0.state().flushes;
    assert!((10..20).contains(&flushes), "{flushes} flushes in a minute");
    assert_eq!(fixture.stat("cluster:a:state"), "source_failing");
    fixture.database.state().is_always_lost = false;
    let back = Instant::now();
    fixture.database.commit(&["a"], ms(0));
    until("it is deleted", || fixture.clusters[0].0.deletes_of("a") == 1).await;
    assert!(back.elapsed() <= Duration::from_secs(6), "{:?}", back.elapsed());
    // After a while without a loss it begins at the shortest delay again.
    sleep(Duration::from_secs(120)).await;
    fixture.database.state().is_always_lost = true;
    fixture.database.state().failures = 1;
    let flushes = fixture.clusters[0].0.state().flushes;
    fixture.database.commit(&["b"], ms(0));
    until("it is lost", || fixture.clusters[0].0.state().flushes > flushes).await;
    fixture.database.state().is_always_lost = false;
    let back = Instant::now();
    fixture.database.commit(&["c"], ms(0));
    until("it is deleted", || fixture.clusters[0].0.deletes_of("c") == 1).await;
    assert!(back.elapsed() <= ms(100), "{:?}", back.elapsed());
}
