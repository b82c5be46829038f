//! Round trips and time of web pages whose data depend on each other, read in three ways (§3.1 of the paper). It prints
//! a line of JSON for each kind of page and way. `experiments/cluster/round_trips.py` starts the servers.
//!
//!     pages HOST:PORT HOST:PORT ...
//!
//! From the paper: the number of keys of a page, and the median and mean size of a value. Assumed: a page consists of
//! components of one to eight keys; each needs the values of one component before it, and none is more than four
//! components away from those that need none.

use bytes::Bytes;
use hdrhistogram::Histogram;
use lookaside_client::{Client, DestinationOptions, Encoded, NodeId, Plan, ReadOptions, TcpDestination, TcpNetwork};
use lookaside_routing::{Address, Destination, KeyHash, PoolRoute};
use std::{convert::Infallible, sync::Arc, time::Instant};

const KEYS: usize = 20_000;
const COMPONENT_KEYS_MAX: usize = 8;
const DEPTH_MAX: usize = 4;
/// Logarithms of bytes that have the paper's median of 135 and mean of 954 (Figure 10).
const VALUE_BYTES: LogNormal = LogNormal { mean: 4.905, deviation: 1.978, max: 100_000.0 };

/// A kind of page, by its number of keys. `deviation` and `mean` have the paper's mean and 95th percentile.
struct Kind {
    name: &'static str,
    keys: LogNormal,
    pages: usize,
}

const KINDS: [Kind; 2] = [
    // 24 on average, 93 at the 95th percentile: no such distribution has the paper's 95.
    Kind { name: "request", keys: LogNormal { mean: 1.825, deviation: 1.645, max: 2_000.0 }, pages: 400 },
    // 521 on average, 1,740 at the 95th percentile.
    Kind { name: "popular page", keys: LogNormal { mean: 5.649, deviation: 1.102, max: 8_000.0 }, pages: 100 },
];

struct LogNormal {
    mean: f64,
    deviation: f64,
    max: f64,
}

impl LogNormal {
    fn sample(&self, random: &mut fastrand::Rng) -> usize {
        let radius = (-2.0 * (1.0 - random.f64()).ln()).sqrt();
        let normal = radius * (std::f64::consts::TAU * random.f64()).cos();
        (self.mean + self.deviation * normal).exp().clamp(1.0, self.max).round() as usize
    }
}

/// Samples taken for each page: every such one of them in order of size is used, so that few pages have the
/// distribution.
const SAMPLES_PER_PAGE: usize = 1_000;

/// The numbers of keys of some pages.
fn page_keys(keys: &LogNormal, pages: usize, random: &mut fastrand::Rng) -> Vec<usize> {
    let mut samples: Vec<usize> = (0..pages * SAMPLES_PER_PAGE).map(|_| keys.sample(random)).collect();
    samples.sort_unstable();
    samples.into_iter().skip(SAMPLES_PER_PAGE / 2).step_by(SAMPLES_PER_PAGE).collect()
}

struct Component {
    /// `None` if it needs no other.
    parent: Option<usize>,
    depth: usize,
    keys: Vec<Bytes>,
}

fn page(keys: usize, random: &mut fastrand::Rng) -> Vec<Component> {
    let mut components: Vec<Component> = Vec::new();
    let mut left = keys;
    while left > 0 {
        let count = random.usize(1..=COMPONENT_KEYS_MAX).min(left);
        left -= count;
        let candidates: Vec<usize> = (0..components.len()).filter(|&at| components[at].depth < DEPTH_MAX).collect();
        let parent = random.choice(candidates);
        let depth = parent.map_or(0, |parent| components[parent].depth + 1);
        let keys = (0..count).map(|_| key(random.usize(0..KEYS))).collect();
        components.push(Component { parent, depth, keys });
    }
    components
}

fn key(number: usize) -> Bytes {
    format!("page:item:{number:014}").into()
}

#[derive(Clone, Copy, Debug)]
enum Way {
    KeyByKey,
    ComponentByComponent,
    Plan,
}

async fn no_loads(keys: Vec<Bytes>) -> Result<Vec<Encoded>, Infallible> {
    unreachable!("all keys are in the cache, {} are not", keys.len())
}

async fn read(client: &Client, page: &[Component], way: Way) {
    let options = ReadOptions::default();
    let load = async |keys: Vec<Bytes>| -> Result<Vec<Bytes>, Infallible> { unreachable!("{} misses", keys.len()) };
    match way {
        Way::KeyByKey => {
            for key in page.iter().flat_map(|component| &component.keys) {
                client.read_many(&[key], &options, load).await.expect("a hit");
            }
        }
        Way::ComponentByComponent => {
            for component in page {
                client.read_many(&component.keys, &options, load).await.expect("hits");
            }
        }
        Way::Plan => {
            let mut plan = Plan::new(options);
            let mut nodes: Vec<NodeId> = Vec::with_capacity(page.len());
            for component in page {
                let parent = component.parent.map(|parent| nodes[parent]);
                nodes.push(plan.node(parent, |_| Ok(component.keys.clone()), no_loads));
            }
            client.run_plan(plan).await.expect("no cycle");
        }
    }
}

async fn fill(client: &Client, random: &mut fastrand::Rng) {
    for number in 0..KEYS {
        let value = vec![b'v'; VALUE_BYTES.sample(random)];
        client.set(key(number), value, 0, 0).await.expect("stored");
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let server = |(seed, address): (usize, String)| {
        let options = DestinationOptions { seed: seed as u64, ..DestinationOptions::default() };
        Arc::new(TcpDestination::new(Address(address.into()), Arc::new(TcpNetwork), options)) as Arc<dyn Destination>
    };
    let servers: Vec<_> = std::env::args().skip(1).enumerate().map(server).collect();
    assert!(!servers.is_empty(), "usage: pages HOST:PORT HOST:PORT ...");
    let client = Client::new(Arc::new(PoolRoute::new(servers, false, KeyHash::default())));
    let mut random = fastrand::Rng::with_seed(1);
    fill(&client, &mut random).await;
    for Kind { name, keys, pages } in KINDS {
        let page_keys = page_keys(&keys, pages, &mut random);
        let pages: Vec<_> = page_keys.into_iter().map(|keys| page(keys, &mut random)).collect();
        for way in [Way::KeyByKey, Way::ComponentByComponent, Way::Plan] {
            let mut us = Histogram::<u64>::new(3).expect("valid");
            let mut round_trips = Histogram::<u64>::new(3).expect("valid");
            for page in &pages {
                let client = client.with_own_statistics();
                let started = Instant::now();
                read(&client, page, way).await;
                us.record(started.elapsed().as_micros() as u64).expect("it resizes");
                let statistics = client.statistics();
                assert_eq!((statistics.errors, statistics.misses), (0, 0), "all keys are in the cache");
                round_trips.record(statistics.round_trips).expect("it resizes");
            }
            let summary = |values: &Histogram<u64>| {
                format!("[{:.1}, {}, {}]", values.mean(), values.value_at_quantile(0.5), values.value_at_quantile(0.95))
            };
            let keys = pages.iter().flatten().map(|component| component.keys.len()).sum::<usize>();
            println!(
                r#"{{"page": "{name}", "way": "{way:?}", "pages": {}, "mean_keys": {:.1}, "round_trips": {}, "us": {}}}"#,
                pages.len(),
                keys as f64 / pages.len() as f64,
                summary(&round_trips),
                summary(&us),
            );
        }
    }
}
