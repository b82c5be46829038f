//! Trouble in one place and the rest of the cluster: what goes on, what waits, and what the daemon says meanwhile.

mod fakes;

use fakes::{Region, ms, until};
use std::time::Duration;
use tokio::time::sleep;

/// A server died. Its keys filled the window of the whole cluster, reading stopped, and keys on healthy servers stayed
/// stale for as long as the server was away.
#[tokio::test(start_paused = true)]
async fn a_dead_server_holds_up_no_key_of_another() {
    let mut region = Region::new(1);
    region.options.limits.keys_max = 10;
    region.options.read_keys_max = 3;
    let (cluster, disk) = &region.clusters[0];
    cluster.inside().dead_prefix = Some("dead".into());
    let _run = tokio::spawn(region.pipeline(0).run(region.shutdown.subscribe()));
    for number in 0..100 {
        region.database.commit(&[&format!("dead{number}")], ms(0));
        region.database.commit(&[&format!("alive{number}"), "alive and hot", "dead and hot"], ms(0));
    }
    until("keys of living servers are deleted", || cluster.deletes_of("alive99") == 1).await;
    assert_eq!(disk.position(), Some(0), "the position stays before what is owed");
    assert_eq!(region.figure("cluster:a:failing_keys"), "101", "each once");
    assert_eq!(region.figure("cluster:a:lag_keys"), "101");
    cluster.inside().dead_prefix = None;
    until("the server is back, and all is applied", || disk.position() == Some(200)).await;
    assert_eq!(region.figure("cluster:a:failing_keys"), "0");
}

/// With everything failing the state still said `running`.
#[tokio::test(start_paused = true)]
async fn the_state_says_that_deletes_fail_and_why() {
    let region = Region::new(1);
    let (cluster, disk) = &region.clusters[0];
    let _run = tokio::spawn(region.pipeline(0).run(region.shutdown.subscribe()));
    until("it runs", || region.figure("cluster:a:state") == "running").await;
    cluster.inside().dead_prefix = Some("dead".into());
    region.database.commit(&["dead"], ms(0));
    until("it says so", || region.figure("cluster:a:state") == "retrying").await;
    assert_eq!(region.figure("cluster:a:why"), "SERVER_ERROR the test says so");
    region.database.commit(&["alive"], ms(0));
    until("another key is deleted", || cluster.deletes_of("alive") == 1).await;
    sleep(Duration::from_secs(10)).await;
    assert_eq!(region.figure("cluster:a:state"), "retrying", "a success of another key is no recovery");
    cluster.inside().dead_prefix = None;
    until("it has recovered", || disk.position() == Some(2)).await;
    assert_eq!(region.figure("cluster:a:state"), "running");
}

/// `running` was said, and commits were taken, before the first position was on disk: who was killed then began at a
/// later present, and the deletes of those commits were lost.
#[tokio::test(start_paused = true)]
async fn nothing_runs_before_the_first_position_is_on_disk() {
    let region = Region::new(1);
    let (cluster, disk) = &region.clusters[0];
    disk.hangs.store(true, std::sync::atomic::Ordering::Relaxed);
    let _run = tokio::spawn(region.pipeline(0).run(region.shutdown.subscribe()));
    region.database.commit(&["a"], ms(0));
    sleep(Duration::from_secs(10)).await;
    assert_eq!(region.figure("cluster:a:state"), "starting");
    assert!(cluster.inside().batches.is_empty(), "nothing is sent");
    disk.hangs.store(false, std::sync::atomic::Ordering::Relaxed);
    until("it runs", || region.figure("cluster:a:state") == "running").await;
    until("and takes commits", || disk.position() == Some(1)).await;
}

/// A key that no router has a route for was sent again for ever, and held the position for good.
#[tokio::test(start_paused = true)]
async fn a_key_without_a_route_is_counted_and_done_with() {
    let mut region = Region::new(1);
    // The disk of the fakes would look for its delete.
    region.clusters[0].1 = fakes::Disk::new(&region.database, &region.clusters[0].0, 1);
    let (cluster, disk) = &region.clusters[0];
    cluster.inside().unroutable.push("/api/v1/users".into());
    let _run = tokio::spawn(region.pipeline(0).run(region.shutdown.subscribe()));
    region.database.commit(&["/api/v1/users"], ms(0));
    region.database.commit(&["a"], ms(0));
    until("the position is behind both", || disk.position() == Some(2)).await;
    assert_eq!((region.figure("unroutable"), region.figure("invalidations_total")), ("1".into(), "1".into()));
    assert_eq!(region.figure("cluster:a:state"), "running");
}

#[tokio::test(start_paused = true)]
async fn too_many_failing_keys_block_and_the_state_says_so() {
    let mut region = Region::new(1);
    region.options.limits.keys_max = 10;
    region.options.limits.failing_keys_max = 20;
    region.options.read_keys_max = 3;
    let (cluster, disk) = &region.clusters[0];
    cluster.inside().dead_prefix = Some("dead".into());
    let _run = tokio::spawn(region.pipeline(0).run(region.shutdown.subscribe()));
    for number in 0..100 {
        region.database.commit(&[&format!("dead{number}")], ms(0));
    }
    until("it is blocked", || region.figure("cluster:a:state") == "blocked").await;
    sleep(Duration::from_secs(60)).await;
    let failing: usize = region.figure("cluster:a:failing_keys").parse().expect("a number");
    assert!((20..=30).contains(&failing), "the bound and a window at most: {failing}");
    let why = region.figure("cluster:a:why");
    assert!(why.contains(&failing.to_string()) && why.ends_with("SERVER_ERROR the test says so"), "{why}");
    cluster.inside().dead_prefix = None;
    until("all is applied", || disk.position() == Some(100)).await;
    assert_eq!(region.figure("cluster:a:state"), "running");
}
