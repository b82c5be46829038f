//! A workload replayed in strict order with classic gets and sets, to measure the miss ratio of any memcached, of
//! requests and of bytes.
//!
//! Requests are sent in batches over one connection. A batch ends before an object that it contains already, and the
//! misses are filled at the start of the next batch. So every request finds the cache as if each had waited for the one
//! before it, except for the order within a batch between fills and gets of other objects.
//!
//! Time matters to a cache: it balances its slab classes by ages, works in the background, and expires items. So a
//! replay can follow the trace's own clock, or a multiple of it.

use crate::replay::Progress;
use crate::trace::{Trace, Verb};
use bytes::Bytes;
use lookaside_protocol::{Operation, Reply, Request, StoreMode};
use lookaside_routing::{Batch, Destination, Outcome};
use std::time::Duration;
use tokio::time::Instant;

/// A replay that follows the clock checks for due requests this often.
const TICK: Duration = Duration::from_millis(5);

/// How a workload is replayed in strict order.
#[derive(Clone, Copy, Debug)]
pub struct StrictReplayOptions {
    /// The number of requests of the trace, from its start.
    pub requests_max: usize,
    /// The number of requests at the start that fill the cache and are not counted.
    pub warmup_requests: usize,
    /// The most requests in a batch.
    pub batch_requests: usize,
    /// Seconds of the trace per second; `None`: as fast as possible.
    pub speed: Option<f64>,
}

/// The results, without the requests of the warm-up.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StrictReplayReport {
    /// Gets.
    pub gets: u64,
    /// Gets that missed.
    pub misses: u64,
    /// Gets of objects that expire.
    pub expiring_gets: u64,
    /// Misses of objects that expire.
    pub expiring_misses: u64,
    /// The bytes of the objects of all gets, keys included.
    pub bytes: u64,
    /// The bytes of the objects of all misses.
    pub missed_bytes: u64,
    /// Sets that are not fills.
    pub updates: u64,
    /// Deletes.
    pub deletes: u64,
    /// Deletes of an existing item.
    pub deleted: u64,
    /// Requests with no reply or a wrong one, warm-up included.
    pub errors: u64,
    /// Values that the server refused, warm-up included.
    pub refused: u64,
    /// The duration.
    pub took: Duration,
}

/// The compulsory misses, and their bytes: those of an unbounded cache, on objects that are new, deleted or expired.
pub fn compulsory_misses(trace: &Trace, options: &StrictReplayOptions) -> (u64, u64) {
    let (mut misses, mut missed_bytes) = (0, 0);
    // The second at which each object expires; 0: it is not cached.
    let mut until_s = vec![0u64; trace.object_bytes.len()];
    let (mut second, mut second_end) = (1, trace.requests_per_s.first().map_or(0, |&count| count as usize));
    for (index, &object) in trace.requests.iter().enumerate().take(options.requests_max) {
        while index >= second_end && (second as usize) < trace.requests_per_s.len() {
            second_end += trace.requests_per_s[second as usize] as usize;
            second += 1;
        }
        let until = &mut until_s[object as usize];
        let verb = trace.verb(index);
        if verb == Verb::Delete {
            *until = 0;
        } else if verb == Verb::Set || *until <= second {
            let exptime_s = u64::from(trace.exptime_s(object));
            *until = if exptime_s == 0 { u64::MAX } else { second + exptime_s };
            if verb == Verb::Get && index >= options.warmup_requests {
                misses += 1;
                missed_bytes += u64::from(trace.object_bytes[object as usize]);
            }
        }
    }
    (misses, missed_bytes)
}

/// Replays `trace` against one server.
pub async fn replay_strictly(
    server: &dyn Destination,
    trace: &Trace,
    options: &StrictReplayOptions,
    progress: &Progress,
) -> StrictReplayReport {
    let started = Instant::now();
    let requests = options.requests_max.min(trace.requests.len());
    let mut clock = ReplayClock { trace, speed: options.speed, started, second: 0, before_second: 0 };
    let mut run = Run::new(server, trace, options.warmup_requests);
    let mut next = 0;
    while next < requests {
        let due = clock.wait_for(next).await.min(requests).min(next + options.batch_requests.max(1));
        let sent = run.send_batch(next, due).await;
        next += sent;
        progress.advance(sent);
    }
    run.send_batch(requests, requests).await;
    StrictReplayReport { took: started.elapsed(), ..run.report }
}

/// Stores the workload's objects under new keys until `bytes_max` bytes were sent, to measure the memory of a full
/// server. Returns the number of objects that were not stored.
pub async fn fill(server: &dyn Destination, trace: &Trace, bytes_max: u64, batch_requests: usize) -> u64 {
    let value = longest_value(trace);
    let objects = trace.object_bytes.len() as u64;
    let (mut number, mut bytes, mut failures) = (0, 0, 0);
    while bytes < bytes_max {
        let mut batch = Batch::new();
        while batch.len() < batch_requests.max(1) && bytes < bytes_max {
            // Consecutive objects often have similar sizes: a stride visits all sizes from the start.
            let object = (number * 7_919 % objects) as u32;
            let key = key(number, trace.key_bytes);
            batch.push(store(key, value.slice(..trace.value_bytes(object)), 0));
            bytes += u64::from(trace.object_bytes[object as usize]);
            number += 1;
        }
        let outcomes = server.send(batch).await;
        failures += outcomes.iter().filter(|outcome| !matches!(outcome, Ok(Reply::Stored))).count() as u64;
    }
    failures
}

struct Run<'a> {
    server: &'a dyn Destination,
    trace: &'a Trace,
    warmup_requests: usize,
    value: Bytes,
    /// The last batch with each object.
    batch_of: Vec<u32>,
    batches: u32,
    /// Sets for misses, to be sent with the next batch.
    fills: Batch,
    report: StrictReplayReport,
}

impl<'a> Run<'a> {
    fn new(server: &'a dyn Destination, trace: &'a Trace, warmup_requests: usize) -> Run<'a> {
        let batch_of = vec![0; trace.object_bytes.len()];
        let (value, report) = (longest_value(trace), StrictReplayReport::default());
        Run { server, trace, warmup_requests, value, batch_of, batches: 0, fills: Batch::new(), report }
    }

    /// Sends pending fills, and requests from `first` on, up to `end` or to an object that is in the batch already.
    /// Returns the number of requests sent.
    async fn send_batch(&mut self, first: usize, end: usize) -> usize {
        self.batches += 1;
        let mut batch = std::mem::take(&mut self.fills);
        let fills = batch.len();
        for index in first..end {
            let object = self.trace.requests[index];
            let last_batch = std::mem::replace(&mut self.batch_of[object as usize], self.batches);
            if last_batch == self.batches {
                break;
            }
            batch.push(self.request(index, object));
        }
        let sent = batch.len() - fills;
        let outcomes = self.server.send(batch).await;
        for (place, outcome) in outcomes.into_iter().enumerate() {
            match place.checked_sub(fills) {
                None => self.record_store(&outcome),
                Some(place) => self.record_outcome(first + place, &outcome),
            }
        }
        sent
    }

    fn request(&self, index: usize, object: u32) -> Request<Bytes> {
        let key = key(object.into(), self.trace.key_bytes);
        match self.trace.verb(index) {
            Verb::Get => Request { key, operation: Operation::Get { cas: false } },
            Verb::Set => self.store(object),
            Verb::Delete => Request { key, operation: Operation::Delete { hold_off_ms: 0 } },
        }
    }

    fn store(&self, object: u32) -> Request<Bytes> {
        let value = self.value.slice(..self.trace.value_bytes(object));
        store(key(object.into(), self.trace.key_bytes), value, self.trace.exptime_s(object))
    }

    fn record_outcome(&mut self, index: usize, outcome: &Outcome) {
        let object = self.trace.requests[index];
        let counts = u64::from(index >= self.warmup_requests);
        let bytes = counts * u64::from(self.trace.object_bytes[object as usize]);
        let expiring = if self.trace.exptime_s(object) > 0 { counts } else { 0 };
        let report = &mut self.report;
        match (self.trace.verb(index), outcome) {
            (Verb::Get, Ok(Reply::Value { value, .. })) => {
                report.gets += counts;
                report.expiring_gets += expiring;
                report.bytes += bytes;
                report.errors += u64::from(value.len() != self.trace.value_bytes(object));
            }
            (Verb::Get, Ok(Reply::Miss)) => {
                report.gets += counts;
                report.expiring_gets += expiring;
                report.bytes += bytes;
                report.misses += counts;
                report.expiring_misses += expiring;
                report.missed_bytes += bytes;
                let fill = self.store(object);
                self.fills.push(fill);
            }
            (Verb::Set, outcome) => {
                report.updates += counts;
                self.record_store(outcome);
            }
            (Verb::Delete, Ok(Reply::Deleted | Reply::NotFound)) => {
                report.deletes += counts;
                report.deleted += if matches!(outcome, Ok(Reply::Deleted)) { counts } else { 0 };
            }
            _ => report.errors += 1,
        }
    }

    fn record_store(&mut self, outcome: &Outcome) {
        match outcome {
            Ok(Reply::Stored) => {}
            Ok(Reply::Error(_)) => self.report.refused += 1,
            _ => self.report.errors += 1,
        }
    }
}

struct ReplayClock<'a> {
    trace: &'a Trace,
    speed: Option<f64>,
    started: Instant,
    second: usize,
    /// Requests before that second.
    before_second: usize,
}

impl ReplayClock<'_> {
    /// Waits until request number `next` is due; returns the number of due requests.
    async fn wait_for(&mut self, next: usize) -> usize {
        let Some(speed) = self.speed else {
            return usize::MAX;
        };
        loop {
            let elapsed_s = self.started.elapsed().as_secs_f64() * speed;
            while self.second < self.trace.requests_per_s.len() && (self.second + 1) as f64 <= elapsed_s {
                self.before_second += self.trace.requests_per_s[self.second] as usize;
                self.second += 1;
            }
            let here = self.trace.requests_per_s.get(self.second).map_or(usize::MAX, |&count| count as usize);
            let share = (elapsed_s - self.second as f64).clamp(0.0, 1.0);
            let due = self.before_second.saturating_add((here as f64 * share) as usize);
            if due > next {
                return due;
            }
            tokio::time::sleep(TICK).await;
        }
    }
}

fn store(key: Bytes, value: Bytes, exptime_s: u32) -> Request<Bytes> {
    Request {
        key,
        operation: Operation::Store { mode: StoreMode::Set, flags: 0, exptime: exptime_s.into(), value, cas: false },
    }
}

fn key(number: u64, key_bytes: usize) -> Bytes {
    Bytes::from(format!("{number:0key_bytes$x}"))
}

/// The longest value; all others are a prefix of it.
fn longest_value(trace: &Trace) -> Bytes {
    let objects = 0..trace.object_bytes.len() as u32;
    Bytes::from(vec![b'v'; objects.map(|object| trace.value_bytes(object)).max().unwrap_or(0)])
}

#[cfg(test)]
mod tests {
    use super::*;
    use lookaside_routing::{Address, BoxFuture, Outcomes};
    use std::collections::BTreeMap;
    use std::sync::Mutex;

    /// A server with unbounded memory.
    struct Unbounded {
        address: Address,
        items: Mutex<BTreeMap<Bytes, Bytes>>,
    }

    impl Destination for Unbounded {
        fn send(&self, batch: Batch) -> BoxFuture<'_, Outcomes> {
            let mut items = self.items.lock().unwrap();
            let reply = |request: Request<Bytes>| match request.operation {
                Operation::Get { .. } => match items.get(&request.key) {
                    Some(value) => Reply::Value { flags: 0, cas: None, value: value.clone() },
                    None => Reply::Miss,
                },
                Operation::Store { value, .. } => {
                    items.insert(request.key, value);
                    Reply::Stored
                }
                Operation::Delete { .. } if items.remove(&request.key).is_some() => Reply::Deleted,
                _ => Reply::NotFound,
            };
            let outcomes = batch.into_iter().map(reply).map(Ok).collect();
            Box::pin(async move { outcomes })
        }

        fn address(&self) -> &Address {
            &self.address
        }
    }

    fn unbounded() -> Unbounded {
        Unbounded { address: Address("server".into()), items: Mutex::default() }
    }

    fn trace(requests: &[(Verb, u32)], requests_per_s: &[u32]) -> Trace {
        Trace {
            requests: requests.iter().map(|&(_, object)| object).collect(),
            verbs: requests.iter().map(|&(verb, _)| verb).collect(),
            object_bytes: vec![100, 50, 30],
            object_exptime_s: Vec::new(),
            requests_per_s: requests_per_s.to_vec(),
            key_bytes: 10,
        }
    }

    const OPTIONS: StrictReplayOptions =
        StrictReplayOptions { requests_max: usize::MAX, warmup_requests: 0, batch_requests: 64, speed: None };

    #[tokio::test]
    async fn an_unbounded_cache_has_only_compulsory_misses() {
        use Verb::{Delete, Get, Set};
        let verbs = [(Get, 0), (Get, 0), (Get, 1), (Get, 0), (Delete, 0), (Get, 0), (Set, 2), (Get, 2), (Get, 1)];
        let trace = trace(&verbs, &[9]);
        let report = replay_strictly(&unbounded(), &trace, &OPTIONS, &Progress::default()).await;
        assert_eq!((report.gets, report.misses, report.bytes, report.missed_bytes), (7, 3, 530, 250));
        assert_eq!((report.updates, report.deletes, report.deleted), (1, 1, 1));
        assert_eq!((report.errors, report.refused), (0, 0));
        assert_eq!(compulsory_misses(&trace, &OPTIONS), (3, 250));
        // The first three are not counted, but their fills are cached.
        let later = StrictReplayOptions { warmup_requests: 3, ..OPTIONS };
        let report = replay_strictly(&unbounded(), &trace, &later, &Progress::default()).await;
        assert_eq!((report.gets, report.misses), (4, 1));
        assert_eq!(compulsory_misses(&trace, &later).0, 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_replay_follows_the_clock_of_the_trace() {
        let trace = trace(&[(Verb::Get, 0); 6], &[2, 0, 0, 4]);
        let paced = StrictReplayOptions { speed: Some(2.0), ..OPTIONS };
        let report = replay_strictly(&unbounded(), &trace, &paced, &Progress::default()).await;
        // The last of four in the fourth second is due in its last quarter.
        assert!((1.8..2.1).contains(&report.took.as_secs_f64()), "{report:?}");
        assert_eq!((report.gets, report.misses), (6, 1));
    }
}
