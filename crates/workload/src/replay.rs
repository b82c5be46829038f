//! A trace replayed look-aside: get; on a miss, fill with a value of the object's size (§2 of the paper, Figure 1).
//!
//! Each worker takes the next requests of the trace and has one batch in flight, so the order among workers is that of
//! a busy application, not strict. There is no database: its values are generated, without delay.

use crate::trace::{KEY_BYTES, Trace};
use bytes::Bytes;
use hdrhistogram::Histogram;
use lookaside_client::{Client, Origin, ReadOptions};
use std::{
    convert::Infallible,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::time::Instant;

/// Latencies above a minute are recorded as a minute.
const LATENCY_US_MAX: u64 = 60_000_000;

/// How a trace is replayed.
#[derive(Clone, Copy, Debug)]
pub struct ReplayOptions {
    /// The number of requests of the trace, from its start.
    pub requests_max: usize,
    /// The number of workers, each with one batch in flight.
    pub concurrency: usize,
    /// The number of keys of a batch.
    pub batch_keys: usize,
}

/// The results of a replay.
#[derive(Clone, Debug)]
pub struct Report {
    /// Keys read.
    pub requests: u64,
    /// Keys served by the cache.
    pub hits: u64,
    /// Keys served by the simulated database.
    pub database_reads: u64,
    /// Keys for which the cache returned an error; part of `database_reads`.
    pub errors: u64,
    /// Compulsory misses, one for each distinct object: no cache can have fewer database reads.
    pub compulsory: u64,
    /// The duration.
    pub took: Duration,
    /// Microseconds from the request of a batch to its last value.
    pub latency_us: Histogram<u64>,
}

/// The progress of a replay.
#[derive(Debug, Default)]
pub struct Progress {
    next: AtomicUsize,
    hits: AtomicU64,
    database_reads: AtomicU64,
}

impl Progress {
    pub(crate) fn advance(&self, requests: usize) {
        self.next.fetch_add(requests, Ordering::Relaxed);
    }

    /// The number of requests sent.
    pub fn begun(&self) -> usize {
        self.next.load(Ordering::Relaxed)
    }
}

/// The key of an object.
pub fn key(object: u32) -> String {
    format!("{object:0width$x}", width = KEY_BYTES)
}

/// Replays `trace` through `clients`, which are assigned to workers in turn.
pub async fn replay(clients: &[Client], trace: Arc<Trace>, options: ReplayOptions, progress: Arc<Progress>) -> Report {
    let requests = options.requests_max.min(trace.requests.len());
    let latency_us = Arc::new(Mutex::new(Histogram::new_with_bounds(1, LATENCY_US_MAX, 3).expect("valid bounds")));
    let started = Instant::now();
    let mut workers = tokio::task::JoinSet::new();
    for worker in 0..options.concurrency.max(1) {
        let client = clients[worker % clients.len()].clone();
        workers.spawn(run_worker(client, trace.clone(), options, requests, progress.clone(), latency_us.clone()));
    }
    while let Some(ended) = workers.join_next().await {
        ended.expect("a worker does not panic");
    }
    let took = started.elapsed();
    let objects = trace.requests[..requests].iter().max().map_or(0, |&object| u64::from(object) + 1);
    let latency_us = latency_us.lock().expect("the workers have ended").clone();
    Report {
        requests: requests as u64,
        hits: progress.hits.load(Ordering::Relaxed),
        database_reads: progress.database_reads.load(Ordering::Relaxed),
        errors: clients.iter().map(|client| client.statistics().errors).sum(),
        compulsory: objects,
        took,
        latency_us,
    }
}

async fn run_worker(
    client: Client,
    trace: Arc<Trace>,
    options: ReplayOptions,
    requests: usize,
    progress: Arc<Progress>,
    latency_us: Arc<Mutex<Histogram<u64>>>,
) {
    loop {
        let first = progress.next.fetch_add(options.batch_keys, Ordering::Relaxed);
        if first >= requests {
            return;
        }
        let objects = &trace.requests[first..requests.min(first + options.batch_keys)];
        let keys: Vec<String> = objects.iter().map(|&object| key(object)).collect();
        let load = |missed: Vec<Bytes>| {
            let values = missed.iter().map(|key| value_of(&trace, key)).collect();
            async move { Ok::<Vec<Bytes>, Infallible>(values) }
        };
        let sent_at = Instant::now();
        let values =
            client.read_many(&keys, &ReadOptions::default(), load).await.expect("keys are valid, loads succeed");
        let took_us = sent_at.elapsed().as_micros() as u64;
        latency_us.lock().expect("no worker panics").saturating_record(took_us);
        let hits = values.iter().filter(|value| value.origin != Origin::Database).count();
        progress.hits.fetch_add(hits as u64, Ordering::Relaxed);
        progress.database_reads.fetch_add((values.len() - hits) as u64, Ordering::Relaxed);
    }
}

/// A value that has the object's size together with its key.
fn value_of(trace: &Trace, key: &[u8]) -> Bytes {
    let object = std::str::from_utf8(key).ok().and_then(|key| usize::from_str_radix(key, 16).ok());
    let object_bytes = object.map_or(0, |object| trace.object_bytes[object] as usize);
    Bytes::from(vec![b'v'; object_bytes.saturating_sub(KEY_BYTES).max(1)])
}
