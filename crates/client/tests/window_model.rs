//! Windows over a model of a link with a short queue, as the port of a rack's switch has (§3.1 of the paper, "incast
//! congestion"), with a paused clock. Times are ten times those of a network, since tokio's timers count milliseconds.

use bytes::Bytes;
use lookaside_client::{Window, WindowSettings, WindowedDestination};
use lookaside_protocol::{Operation, Reply, Request};
use lookaside_routing::{Address, Batch, BoxFuture, Destination, Outcomes};
use std::{
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::{
    task::JoinSet,
    time::{Instant, sleep, sleep_until},
};

const SERVERS: usize = 10;
const PAGE_KEYS: usize = 400;
/// After this time TCP sends a lost reply again.
const RETRANSMISSION: Duration = Duration::from_secs(2);

/// One link for the replies of all servers.
struct Link {
    /// Replies that it carries in a second.
    rate: Mutex<f64>,
    /// Replies that it can hold back; more are lost.
    queue_max: f64,
    /// The time of a reply without a queue.
    delay: Duration,
    /// A server is held up by this time before it sends a single reply.
    hold_up: Mutex<Duration>,
    free_at: Mutex<Instant>,
}

impl Link {
    fn new(rate: f64, queue_max: usize, delay_ms: u64) -> Arc<Link> {
        let (rate, queue_max, free_at) = (Mutex::new(rate), queue_max as f64, Mutex::new(Instant::now()));
        let (delay, hold_up) = (Duration::from_millis(delay_ms), Mutex::default());
        Arc::new(Link { rate, queue_max, delay, hold_up, free_at })
    }

    /// When replies that are sent now have arrived; `None` if they are lost.
    fn enqueue(&self, replies: usize) -> Option<Instant> {
        let (rate, mut free_at) = (*self.rate.lock().unwrap(), self.free_at.lock().unwrap());
        let now = Instant::now();
        let queued = free_at.saturating_duration_since(now).as_secs_f64() * rate;
        if queued + replies as f64 > self.queue_max && queued > 0.0 {
            return None;
        }
        *free_at = now.max(*free_at) + Duration::from_secs_f64(replies as f64 / rate);
        Some(*free_at)
    }

    async fn carry(&self, replies: usize) {
        let hold_up = if replies == 1 { *self.hold_up.lock().unwrap() } else { Duration::ZERO };
        sleep(self.delay + hold_up).await;
        let mut wait = RETRANSMISSION;
        loop {
            match self.enqueue(replies) {
                Some(arrives) => return sleep_until(arrives).await,
                None => sleep(wait).await,
            }
            wait *= 2;
        }
    }
}

/// A server behind the link.
struct Server {
    link: Arc<Link>,
    address: Address,
}

impl Destination for Server {
    fn send(&self, batch: Batch) -> BoxFuture<'_, Outcomes> {
        Box::pin(async move {
            self.link.carry(batch.len()).await;
            vec![Ok(Reply::Miss); batch.len()]
        })
    }

    fn address(&self) -> &Address {
        &self.address
    }
}

/// A client with a window over all servers.
#[derive(Clone)]
struct ModelClient {
    window: Arc<Window>,
    servers: Vec<Arc<WindowedDestination>>,
}

impl ModelClient {
    fn new(link: &Arc<Link>, settings: WindowSettings) -> ModelClient {
        let settings = WindowSettings { wait_ms_max: u64::MAX / 4, waiting_requests_max: usize::MAX / 2, ..settings };
        let window = Window::new(settings);
        let server = |_| {
            let server = Arc::new(Server { link: link.clone(), address: Address("server".into()) });
            Arc::new(WindowedDestination::new(server, window.clone()))
        };
        ModelClient { window: window.clone(), servers: (0..SERVERS).map(server).collect() }
    }

    /// Reads a page; returns how long it took, in milliseconds.
    async fn read_page(&self, seed: u64) -> u64 {
        let started = Instant::now();
        let mut random = fastrand::Rng::with_seed(seed);
        let mut batches = vec![Batch::new(); SERVERS];
        for _ in 0..PAGE_KEYS {
            let get = Request { key: Bytes::from_static(b"key"), operation: Operation::Get { cas: false } };
            batches[random.usize(0..SERVERS)].push(get);
        }
        let mut sent = JoinSet::new();
        for (server, batch) in self.servers.iter().zip(batches) {
            let server = server.clone();
            sent.spawn(async move { server.send(batch).await });
        }
        let outcomes = sent.join_all().await;
        assert!(outcomes.iter().flatten().all(Result::is_ok));
        started.elapsed().as_millis() as u64
    }

    /// Reads one key.
    async fn read_key(&self) {
        let get = Request { key: Bytes::from_static(b"key"), operation: Operation::Get { cas: false } };
        assert!(self.servers[0].send(vec![get]).await.iter().all(Result::is_ok));
    }

    /// Reads pages that arrive at random; returns how long each took, in milliseconds, in the order of their ends.
    async fn read_pages(self, pages_per_s: f64, duration: Duration, seed: u64) -> Vec<u64> {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut pages = JoinSet::new();
        let end = Instant::now() + duration;
        while Instant::now() < end {
            sleep(Duration::from_secs_f64(-(1.0 - random.f64()).ln() / pages_per_s)).await;
            let (client, seed) = (self.clone(), random.u64(..));
            pages.spawn(async move { client.read_page(seed).await });
        }
        pages.join_all().await
    }

    /// Reads pages one after the other, some at a time; returns the keys read in a second.
    async fn saturate(self, duration: Duration) -> f64 {
        let mut readers = JoinSet::new();
        let end = Instant::now() + duration;
        for reader in 0..4 {
            let client = self.clone();
            readers.spawn(async move {
                let mut pages = 0;
                while Instant::now() < end {
                    client.read_page(reader * 1_000_000 + pages).await;
                    pages += 1;
                }
                pages
            });
        }
        (readers.join_all().await.iter().sum::<u64>() * PAGE_KEYS as u64) as f64 / duration.as_secs_f64()
    }
}

/// The median and the 95th percentile.
fn quantiles(mut values: Vec<u64>) -> (u64, u64) {
    values.sort_unstable();
    (values[values.len() / 2], values[values.len() * 95 / 100])
}

/// Quantiles of the time of a page with `clients` clients on a link that is used to a third.
async fn page_ms(settings: WindowSettings, rate: f64, queue_max: usize, clients: usize) -> (u64, u64) {
    let link = Link::new(rate, queue_max, 10);
    let pages_per_s = rate / 3.0 / PAGE_KEYS as f64 / clients as f64;
    let mut running = JoinSet::new();
    for seed in 0..clients {
        let client = ModelClient::new(&link, settings);
        running.spawn(async move {
            // The window finds its size.
            client.clone().read_pages(pages_per_s, Duration::from_secs(100), seed as u64).await;
            client.read_pages(pages_per_s, Duration::from_secs(400), 100 + seed as u64).await
        });
    }
    quantiles(running.join_all().await.concat())
}

#[tokio::test(start_paused = true)]
async fn a_window_by_delay_is_nearly_as_good_as_the_best_fixed_one() {
    for (rate, queue_max, clients) in [(2_500.0, 80, 1), (2_500.0, 80, 3), (10_000.0, 300, 1), (1_000.0, 60, 2)] {
        let (mut best, mut best_p95) = (u64::MAX, u64::MAX);
        for size in [45, 60, 80, 100, 200] {
            let (median, p95) = page_ms(WindowSettings::fixed(size), rate, queue_max, clients).await;
            (best, best_p95) = (best.min(median), best_p95.min(p95));
        }
        let (by_delay, p95) = page_ms(WindowSettings::by_delay(), rate, queue_max, clients).await;
        println!(
            "{rate} replies/s, queue {queue_max}, {clients} clients: best {best} and {best_p95} ms, \
             by delay {by_delay} and {p95} ms"
        );
        assert!(by_delay as f64 <= 1.15 * best as f64, "{by_delay} ms; the best fixed window has {best} ms");
        assert!(p95 as f64 <= 1.3 * best_p95 as f64, "95 %: {p95} ms; the best fixed window has {best_p95} ms");
    }
}

/// Once such a reply was taken for one that the network had lost: the window shrank to its minimum, and pages were slow
/// for 25 times as long as the reply had taken.
#[tokio::test(start_paused = true)]
async fn a_server_that_is_held_up_does_not_slow_the_pages_that_follow() {
    let link = Link::new(2_500.0, 80, 10);
    let client = ModelClient::new(&link, WindowSettings::by_delay());
    client.clone().read_pages(2.0, Duration::from_secs(120), 1).await;
    let (mut undisturbed, mut disturbed) = (Vec::new(), Vec::new());
    for seed in 0..200 {
        undisturbed.push(client.read_page(seed).await);
    }
    for seed in 0..200 {
        if seed % 10 == 0 {
            *link.hold_up.lock().unwrap() = Duration::from_millis(500);
            client.read_key().await;
            *link.hold_up.lock().unwrap() = Duration::ZERO;
        }
        disturbed.push(client.read_page(seed).await);
    }
    let (undisturbed, disturbed) = (quantiles(undisturbed), quantiles(disturbed));
    assert!(disturbed.0 as f64 <= 1.2 * undisturbed.0 as f64, "{disturbed:?} after {undisturbed:?}");
    assert!(disturbed.1 as f64 <= 1.2 * undisturbed.1 as f64, "95 %: {disturbed:?} after {undisturbed:?}");
}

#[tokio::test(start_paused = true)]
async fn a_window_by_delay_recovers_after_a_slow_phase() {
    let link = Link::new(2_500.0, 80, 10);
    let client = ModelClient::new(&link, WindowSettings::by_delay());
    client.clone().read_pages(2.0, Duration::from_secs(120), 1).await;
    let before = client.window.statistics().size;
    *link.rate.lock().unwrap() = 250.0;
    client.clone().read_pages(0.2, Duration::from_secs(120), 2).await;
    let slow = client.window.statistics().size;
    *link.rate.lock().unwrap() = 2_500.0;
    client.clone().read_pages(2.0, Duration::from_secs(120), 3).await;
    let after = client.window.statistics().size;
    assert!(slow < before / 2, "{slow} of {before}");
    assert!((before / 2..before * 2).contains(&after), "{after} after {before}");
}

#[tokio::test(start_paused = true)]
async fn two_clients_share_a_link_fairly() {
    for late_s in [0, 7, 60] {
        let link = Link::new(2_500.0, 200, 10);
        let (first, second) =
            (ModelClient::new(&link, WindowSettings::by_delay()), ModelClient::new(&link, WindowSettings::by_delay()));
        let warm_up = tokio::spawn(first.clone().saturate(Duration::from_secs(60 + late_s)));
        sleep(Duration::from_secs(late_s)).await;
        second.clone().saturate(Duration::from_secs(60)).await;
        warm_up.await.expect("no panic");
        let one = tokio::spawn(first.clone().saturate(Duration::from_secs(600)));
        let other = second.clone().saturate(Duration::from_secs(600)).await;
        let one = one.await.expect("no panic");
        assert!((0.6..1.67).contains(&(one / other)), "{one} and {other} keys/s");
        assert!(one + other > 0.8 * 2_500.0, "{one} and {other} keys/s of 2,500");
    }
}
