//! Batches through a window to servers that reply when the test lets them.

use super::*;
use lookaside_protocol::{Operation, Reply, Request};
use lookaside_routing::{Address, Batch, BoxFuture, DatagramLoss, Destination, Outcome, Outcomes, TkoReason};
use tokio::sync::{mpsc, watch};

fn gets(count: usize) -> Batch {
    let request = |number| Request { key: format!("key:{number}").into(), operation: Operation::Get { cas: false } };
    (0..count).map(request).collect()
}

/// A server that reports the size of each batch, and replies when the test lets it.
struct ControlledServer {
    address: Address,
    batches: mpsc::UnboundedSender<usize>,
    reply: watch::Receiver<Option<Outcome>>,
}

impl Destination for ControlledServer {
    fn send(&self, batch: Batch) -> BoxFuture<'_, Outcomes> {
        Box::pin(async move {
            self.batches.send(batch.len()).expect("the test listens");
            let mut reply = self.reply.clone();
            let outcome = reply.wait_for(Option::is_some).await.expect("the test answers").clone();
            vec![outcome.expect("some"); batch.len()]
        })
    }

    fn address(&self) -> &Address {
        &self.address
    }
}

/// Replies after 20 ms.
struct SlowServer(Address);

impl Destination for SlowServer {
    fn send(&self, batch: Batch) -> BoxFuture<'_, Outcomes> {
        Box::pin(async move {
            tokio::time::sleep(Duration::from_millis(20)).await;
            vec![Ok(Reply::Miss); batch.len()]
        })
    }

    fn address(&self) -> &Address {
        &self.0
    }
}

struct Fixture {
    window: Arc<Window>,
    server: Arc<WindowedDestination>,
    batches: mpsc::UnboundedReceiver<usize>,
    reply: watch::Sender<Option<Outcome>>,
}

fn fixture(settings: WindowSettings) -> Fixture {
    let window = Window::new(settings);
    let (sender, batches) = mpsc::unbounded_channel();
    let (reply, replies) = watch::channel(None);
    let inner = ControlledServer { address: Address("a:1".into()), batches: sender, reply: replies };
    let server = Arc::new(WindowedDestination::new(Arc::new(inner), window.clone()));
    Fixture { window, server, batches, reply }
}

impl Fixture {
    fn send(&self, count: usize) -> tokio::task::JoinHandle<Outcomes> {
        let server = self.server.clone();
        tokio::spawn(async move { server.send(gets(count)).await })
    }

    /// The sizes of the batches that the server has got since the last call, once all tasks wait.
    async fn received(&mut self) -> Vec<usize> {
        tokio::time::sleep(Duration::from_millis(1)).await;
        std::iter::from_fn(|| self.batches.try_recv().ok()).collect()
    }
}

const MISS: Option<Outcome> = Some(Ok(Reply::Miss));

#[tokio::test(start_paused = true)]
async fn outstanding_requests_fit_the_window_and_the_rest_follows_in_order() {
    let mut fixture = fixture(WindowSettings::fixed(10));
    let sent = [fixture.send(6), fixture.send(4), fixture.send(3), fixture.send(1)];
    assert_eq!(fixture.received().await, [6, 4], "the window is full, and no batch overtakes");
    assert_eq!(fixture.window.statistics(), WindowStatistics { size: 10, outstanding: 10, waiting: 4 });
    fixture.reply.send_replace(MISS);
    assert_eq!(fixture.received().await, [3, 1]);
    for (sent, count) in sent.into_iter().zip([6, 4, 3, 1]) {
        assert_eq!(sent.await.unwrap().len(), count);
    }
    assert_eq!(fixture.window.statistics(), WindowStatistics { size: 10, outstanding: 0, waiting: 0 });
}

#[tokio::test(start_paused = true)]
async fn batch_larger_than_the_window_is_split() {
    let mut fixture = fixture(WindowSettings::fixed(10));
    fixture.reply.send_replace(MISS);
    assert_eq!(fixture.send(24).await.unwrap(), vec![Ok(Reply::Miss); 24]);
    assert_eq!(fixture.received().await, [10, 10, 4]);
}

#[tokio::test(start_paused = true)]
async fn empty_batch_does_not_wait() {
    let mut fixture = fixture(WindowSettings::fixed(4));
    let _sent = [fixture.send(4), fixture.send(1)];
    assert_eq!(fixture.received().await, [4]);
    let now = tokio::time::Instant::now();
    assert_eq!(fixture.send(0).await.unwrap(), Outcomes::new());
    assert_eq!(now.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn window_grows_by_one_for_each_window_that_is_answered() {
    let fixture = fixture(WindowSettings { initial: 10, min: 2, max: 12, ..WindowSettings::default() });
    fixture.reply.send_replace(MISS);
    let sent = [fixture.send(5), fixture.send(5)];
    for sent in sent {
        sent.await.unwrap();
    }
    fixture.send(10).await.unwrap();
    assert_eq!(fixture.window.statistics().size, 11);
    for _ in 0..100 {
        fixture.send(10).await.unwrap();
    }
    assert_eq!(fixture.window.statistics().size, 12, "the maximum");
    let idle = self::fixture(WindowSettings { initial: 10, min: 2, max: 100, ..WindowSettings::default() });
    idle.reply.send_replace(MISS);
    for _ in 0..100 {
        idle.send(1).await.unwrap();
    }
    assert_eq!(idle.window.statistics().size, 10, "an unused window does not grow");
}

#[tokio::test(start_paused = true)]
async fn one_loss_halves_the_window_once_and_not_below_the_minimum() {
    let mut fixture = fixture(WindowSettings { initial: 16, min: 3, max: 100, ..WindowSettings::default() });
    let sent: Vec<_> = (0..4).map(|_| fixture.send(4)).collect();
    assert_eq!(fixture.received().await, [4; 4]);
    fixture.reply.send_replace(Some(Err(Failure::TimedOut)));
    for sent in sent {
        sent.await.unwrap();
    }
    assert_eq!(fixture.window.statistics().size, 8, "all four were sent before it was halved");
    for expected in [4, 3, 3] {
        fixture.send(1).await.unwrap();
        assert_eq!(fixture.window.statistics().size, expected);
    }
    fixture.reply.send_replace(Some(Err(Failure::Tko(TkoReason::ConnectFailed))));
    fixture.send(3).await.unwrap();
    assert_eq!(fixture.window.statistics().size, 3, "requests that were not sent do not count");
}

#[tokio::test(start_paused = true)]
async fn waiting_too_long_or_behind_too_many_requests_is_busy() {
    let settings = WindowSettings { waiting_requests_max: 5, wait_ms_max: 50, ..WindowSettings::fixed(4) };
    let mut fixture = fixture(settings);
    let first = fixture.send(4);
    assert_eq!(fixture.received().await, [4]);
    let (second, third) = (fixture.send(3), fixture.send(3));
    assert_eq!(
        third.await.unwrap(),
        vec![Err(Failure::Busy); 3],
        "three requests wait already, and six would be too many"
    );
    assert_eq!(second.await.unwrap(), vec![Err(Failure::Busy); 3], "50 ms have passed");
    fixture.reply.send_replace(MISS);
    first.await.unwrap();
    assert_eq!(fixture.send(2).await.unwrap(), vec![Ok(Reply::Miss); 2], "abandoned requests hold no permits");
    assert_eq!(fixture.window.statistics(), WindowStatistics { size: 4, outstanding: 0, waiting: 0 });
}

/// Once each part of a batch could wait as long, and a batch of a hundred requests for minutes.
#[tokio::test(start_paused = true)]
async fn no_part_of_a_batch_is_sent_late() {
    let window = Window::new(WindowSettings { wait_ms_max: 50, ..WindowSettings::fixed(2) });
    let server = WindowedDestination::new(Arc::new(SlowServer(Address("a:1".into()))), window);
    let outcomes = server.send(gets(8)).await;
    let expected = [vec![Ok(Reply::Miss); 6], vec![Err(Failure::Busy); 2]].concat();
    assert_eq!(outcomes, expected, "after 60 ms nothing more is sent");
}

/// Once their outcomes were replies, which let the window grow.
#[tokio::test(start_paused = true)]
async fn one_burst_of_lost_datagrams_halves_the_window_once() {
    let fixture = fixture(WindowSettings { initial: 16, min: 2, max: 100, ..WindowSettings::default() });
    let sent: Vec<_> = (0..4).map(|_| fixture.send(4)).collect();
    tokio::time::sleep(Duration::from_millis(1)).await;
    let last_permit = fixture.window.last_permit();
    (0..4).for_each(|_| fixture.window.record_loss(last_permit));
    assert_eq!(fixture.window.statistics().size, 8);
    let lost = Failure::DatagramLost { server: Address("a:1".into()), loss: DatagramLoss::LostOrLate };
    fixture.reply.send_replace(Some(Err(lost)));
    for sent in sent {
        sent.await.unwrap();
    }
    assert_eq!(fixture.window.statistics().size, 8, "the outcomes say the same again");
    fixture.send(1);
    tokio::time::sleep(Duration::from_millis(1)).await;
    fixture.window.record_loss(last_permit);
    assert_eq!(fixture.window.statistics().size, 8, "sent before it was halved");
    fixture.window.record_loss(fixture.window.last_permit());
    assert_eq!(fixture.window.statistics().size, 4);
}

/// Once those that had gone counted as waiting until they came first, and kept the living from waiting.
#[tokio::test(start_paused = true)]
async fn callers_that_have_gone_do_not_wait() {
    let mut fixture = fixture(WindowSettings { waiting_requests_max: 4, ..WindowSettings::fixed(4) });
    let first = fixture.send(4);
    assert_eq!(fixture.received().await, [4]);
    let dropped = fixture.send(4);
    fixture.received().await;
    dropped.abort();
    fixture.received().await;
    assert_eq!(fixture.window.statistics().waiting, 0);
    let caller = Caller::default();
    let left = tokio::spawn({
        let (server, caller) = (fixture.server.clone(), caller.clone());
        async move { caller.scope(server.send(gets(4))).await }
    });
    fixture.received().await;
    caller.leave();
    assert_eq!(left.await.unwrap(), vec![Err(Failure::Busy); 4], "at once");
    assert_eq!(fixture.window.statistics().waiting, 0);
    let living = fixture.send(4);
    fixture.reply.send_replace(MISS);
    assert_eq!(living.await.unwrap(), vec![Ok(Reply::Miss); 4]);
    first.await.unwrap();
    let gone = caller.scope(fixture.server.send(gets(1))).await;
    assert_eq!(gone, vec![Err(Failure::Busy)], "although the window is free");
    assert_eq!(fixture.received().await, [4]);
}

/// A smaller waiter fits when the one before it leaves.
#[tokio::test(start_paused = true)]
async fn the_next_waiter_is_admitted_when_the_first_one_leaves() {
    let mut fixture = fixture(WindowSettings::fixed(4));
    let _first = fixture.send(2);
    fixture.received().await;
    let (large, _small) = (fixture.send(4), fixture.send(2));
    assert_eq!(fixture.received().await, [] as [usize; 0]);
    large.abort();
    assert_eq!(fixture.received().await, [2]);
}

/// Once the requests of callers that had gone left the window at once. Their replies still arrived, beside those of as
/// many further requests.
#[tokio::test(start_paused = true)]
async fn what_was_sent_is_outstanding_until_it_is_answered_although_its_caller_has_gone() {
    let settings = WindowSettings { initial: 4, min: 2, max: 4, ..WindowSettings::default() };
    for (outcome, size) in [(Ok(Reply::Miss), 4), (Err(Failure::TimedOut), 2)] {
        let mut fixture = fixture(settings);
        let sent: Vec<_> = (0..4).map(|_| fixture.send(2)).collect();
        assert_eq!(fixture.received().await, [2, 2]);
        for sent in &sent[..3] {
            sent.abort();
        }
        assert_eq!(fixture.received().await, [] as [usize; 0], "the replies are still to come");
        assert_eq!(fixture.window.statistics(), WindowStatistics { size: 4, outstanding: 4, waiting: 2 });
        fixture.reply.send_replace(Some(outcome.clone()));
        assert_eq!(fixture.received().await, [2], "the last one is admitted");
        assert_eq!(fixture.window.statistics(), WindowStatistics { size, outstanding: 0, waiting: 0 }, "{outcome:?}");
    }
}
