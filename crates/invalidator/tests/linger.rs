//! How many batches keys share that arrive one after the other, in paused time.

use crate::fakes::{Fixture, ms, until};
use tokio::time::{Instant, sleep};

/// Commits a key of its own name every millisecond, and returns the batches in which they were sent, and how long the
/// last one took.
async fn batches_of(linger_ms: u64, reply_ms: u64, batch_keys_max: usize) -> (Vec<Vec<String>>, u128, String) {
    let mut fixture = Fixture::new(1);
    fixture.options.linger_max = ms(linger_ms);
    fixture.options.limits.batch_keys_max = batch_keys_max;
    let cluster = &fixture.clusters[0].0;
    cluster.state().delay = ms(reply_ms);
    let _run = tokio::spawn(fixture.pipeline(0).run(fixture.shutdown.subscribe()));
    until("it runs", || fixture.stat("cluster:a:state") == "running").await;
    let mut committed = Instant::now();
    for key in ["a", "b", "c", "d", "e"] {
        committed = Instant::now();
        fixture.database.commit(&[key], ms(0));
        sleep(ms(1)).await;
    }
    until("the last is sent", || cluster.state().batches.iter().flatten().any(|key| key == "e")).await;
    let sent_after = committed.elapsed().as_millis();
    until("all are acknowledged", || fixture.stat("cluster:a:pending_keys") == "0").await;
    let batches = cluster.state().batches.clone();
    (batches, sent_after, fixture.stat("cluster:a:lingered_batches"))
}

#[tokio::test(start_paused = true)]
async fn keys_leave_at_once_while_no_batch_is_unanswered() {
    let (batches, sent_after, lingered) = batches_of(5, 0, 1_000).await;
    assert_eq!((batches.len(), lingered.as_str()), (5, "0"), "{batches:?}");
    assert!(sent_after <= 1, "{sent_after} ms");
}

#[tokio::test(start_paused = true)]
async fn keys_that_arrive_while_a_batch_is_unanswered_share_the_next_one() {
    let (batches, sent_after, lingered) = batches_of(5, 4, 1_000).await;
    assert_eq!(batches[0], ["a"], "nothing was in flight");
    assert!(batches.len() <= 3 && lingered != "0", "{batches:?}, {lingered}");
    assert!(sent_after <= 5, "{sent_after} ms");
}

#[tokio::test(start_paused = true)]
async fn linger_ends_after_its_time() {
    let (batches, _, _) = batches_of(2, 9, 1_000).await;
    assert_eq!((&batches[0][..], &batches[1][..]), (&["a".to_string()][..], &["b".to_string(), "c".to_string()][..]));
}

#[tokio::test(start_paused = true)]
async fn full_batch_does_not_wait() {
    let (batches, _, _) = batches_of(5, 9, 2).await;
    assert_eq!(batches, [vec!["a"], vec!["b", "c"], vec!["d", "e"]]);
}

#[tokio::test(start_paused = true)]
async fn without_linger_every_key_leaves_at_once() {
    let (batches, sent_after, lingered) = batches_of(0, 4, 1_000).await;
    assert!(batches.len() >= 4 && lingered == "0", "{batches:?}");
    assert!(sent_after <= 1, "{sent_after} ms");
}
