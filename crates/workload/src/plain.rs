//! A workload replayed in strict order with plain gets and sets, so that any memcached can be measured: its miss ratio,
//! of requests and of bytes.
//!
//! Requests travel in batches over one connection. A batch ends where an object comes a second time, and what missed is
//! set in front of the next batch: so every request finds the cache as if each had waited for the one before it, but for
//! the order within a batch between fills and gets of other objects.
//!
//! Time matters to a cache: it balances its parts by ages, works in the background, and expires items. So a replay can
//! keep to the trace's own clock, or to a multiple of it.

use crate::Progress;
use crate::trace::{Trace, Verb};
use bytes::Bytes;
use lookaside_protocol::{Operation, Reply, Request, StoreMode};
use lookaside_routing::{Batch, Destination, Outcome};
use std::time::Duration;
use tokio::time::Instant;

/// A replay that keeps to the clock looks this often for what is due.
const TICK: Duration = Duration::from_millis(5);

/// How a workload is replayed in strict order.
#[derive(Clone, Copy, Debug)]
pub struct PlainOptions {
    /// How many requests of the trace, from its start.
    pub requests_max: usize,
    /// So many requests at the start fill the cache and are not counted.
    pub warmup_requests: usize,
    /// At most so many requests travel together.
    pub batch_requests: usize,
    /// Seconds of the trace in a second; `None`: as fast as it goes.
    pub speed: Option<f64>,
}

/// What came of it, the requests of the warm-up left out.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PlainReport {
    /// Objects asked for.
    pub gets: u64,
    /// Those not found.
    pub misses: u64,
    /// Of the gets, those of objects that expire.
    pub expiring_gets: u64,
    /// Of the misses, those of objects that expire.
    pub expiring_misses: u64,
    /// The bytes of the objects asked for, keys included.
    pub bytes: u64,
    /// Of those not found.
    pub missed_bytes: u64,
    /// Sets that fill no miss.
    pub updates: u64,
    /// Deletes.
    pub deletes: u64,
    /// Deletes that found something.
    pub deleted: u64,
    /// Requests that brought no answer, or the wrong one, from the first request on.
    pub errors: u64,
    /// Values that the server would not store, from the first request on.
    pub refused: u64,
    /// How long it took.
    pub took: Duration,
}

/// The misses, and the bytes missed, of a cache without bound: objects asked for first, deleted or expired.
pub fn unavoidable(trace: &Trace, options: &PlainOptions) -> (u64, u64) {
    let (mut misses, mut missed_bytes) = (0, 0);
    // Until which second each object is there; 0: it is not.
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
pub async fn replay_plain(
    server: &dyn Destination,
    trace: &Trace,
    options: &PlainOptions,
    progress: &Progress,
) -> PlainReport {
    let started = Instant::now();
    let requests = options.requests_max.min(trace.requests.len());
    let mut clock = Clock { trace, speed: options.speed, started, second: 0, before_second: 0 };
    let mut run = Run::new(server, trace, options.warmup_requests);
    let mut next = 0;
    while next < requests {
        let due = clock.wait_for(next).await.min(requests).min(next + options.batch_requests.max(1));
        let taken = run.send(next, due).await;
        next += taken;
        progress.advance(taken);
    }
    run.send(requests, requests).await;
    PlainReport { took: started.elapsed(), ..run.report }
}

/// Stores the workload's objects, under ever new keys, until so many bytes were sent: what a full server takes can
/// then be measured. Returns how many of them were not stored.
pub async fn fill(server: &dyn Destination, trace: &Trace, bytes_max: u64, batch_requests: usize) -> u64 {
    let value = a_value(trace);
    let objects = trace.object_bytes.len() as u64;
    let (mut number, mut bytes, mut failures) = (0, 0, 0);
    while bytes < bytes_max {
        let mut batch = Batch::new();
        while batch.len() < batch_requests.max(1) && bytes < bytes_max {
            // Neighbours in time are often alike: a stride visits all sizes from the start.
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

/// One replay under way.
struct Run<'a> {
    server: &'a dyn Destination,
    trace: &'a Trace,
    warmup_requests: usize,
    value: Bytes,
    /// The batch in which each object came last.
    batch_of: Vec<u32>,
    batches: u32,
    /// What missed and has not been set yet.
    fills: Batch,
    report: PlainReport,
}

impl<'a> Run<'a> {
    fn new(server: &'a dyn Destination, trace: &'a Trace, warmup_requests: usize) -> Run<'a> {
        let batch_of = vec![0; trace.object_bytes.len()];
        let (value, report) = (a_value(trace), PlainReport::default());
        Run { server, trace, warmup_requests, value, batch_of, batches: 0, fills: Batch::new(), report }
    }

    /// Sends the fills that wait and requests from `first` on, up to `end` or to an object that comes again; says how
    /// many requests went.
    async fn send(&mut self, first: usize, end: usize) -> usize {
        self.batches += 1;
        let mut batch = std::mem::take(&mut self.fills);
        let fills = batch.len();
        for index in first..end {
            let object = self.trace.requests[index];
            let seen = std::mem::replace(&mut self.batch_of[object as usize], self.batches);
            if seen == self.batches {
                break;
            }
            batch.push(self.request(index, object));
        }
        let taken = batch.len() - fills;
        let outcomes = self.server.send(batch).await;
        for (place, outcome) in outcomes.into_iter().enumerate() {
            match place.checked_sub(fills) {
                None => self.note_store(&outcome),
                Some(place) => self.note(first + place, &outcome),
            }
        }
        taken
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

    fn note(&mut self, index: usize, outcome: &Outcome) {
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
                self.note_store(outcome);
            }
            (Verb::Delete, Ok(Reply::Deleted | Reply::NotFound)) => {
                report.deletes += counts;
                report.deleted += if matches!(outcome, Ok(Reply::Deleted)) { counts } else { 0 };
            }
            _ => report.errors += 1,
        }
    }

    fn note_store(&mut self, outcome: &Outcome) {
        match outcome {
            Ok(Reply::Stored) => {}
            Ok(Reply::Error(_)) => self.report.refused += 1,
            _ => self.report.errors += 1,
        }
    }
}

/// The trace's clock.
struct Clock<'a> {
    trace: &'a Trace,
    speed: Option<f64>,
    started: Instant,
    second: usize,
    /// Requests before that second.
    before_second: usize,
}

impl Clock<'_> {
    /// Waits until request number `next` is due; says how many are.
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
    Request { key, operation: Operation::Store { mode: StoreMode::Set, flags: 0, exptime: exptime_s.into(), value } }
}

/// The key of an object, of so many bytes.
fn key(number: u64, key_bytes: usize) -> Bytes {
    Bytes::from(format!("{number:0key_bytes$x}"))
}

/// What all values are the beginning of.
fn a_value(trace: &Trace) -> Bytes {
    let objects = 0..trace.object_bytes.len() as u32;
    Bytes::from(vec![b'v'; objects.map(|object| trace.value_bytes(object)).max().unwrap_or(0)])
}

#[cfg(test)]
mod tests {
    use super::*;
    use lookaside_routing::{Address, BoxFuture, Outcomes};
    use std::collections::BTreeMap;
    use std::sync::Mutex;

    /// A server that forgets nothing.
    struct Unbounded {
        address: Address,
        items: Mutex<BTreeMap<Bytes, Bytes>>,
    }

    impl Destination for Unbounded {
        fn send(&self, batch: Batch) -> BoxFuture<'_, Outcomes> {
            let mut items = self.items.lock().unwrap();
            let answer = |request: Request<Bytes>| match request.operation {
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
            let outcomes = batch.into_iter().map(answer).map(Ok).collect();
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

    const OPTIONS: PlainOptions =
        PlainOptions { requests_max: usize::MAX, warmup_requests: 0, batch_requests: 64, speed: None };

    #[tokio::test]
    async fn without_a_bound_only_the_unavoidable_misses() {
        use Verb::{Delete, Get, Set};
        let verbs = [(Get, 0), (Get, 0), (Get, 1), (Get, 0), (Delete, 0), (Get, 0), (Set, 2), (Get, 2), (Get, 1)];
        let trace = trace(&verbs, &[9]);
        let report = replay_plain(&unbounded(), &trace, &OPTIONS, &Progress::default()).await;
        assert_eq!((report.gets, report.misses, report.bytes, report.missed_bytes), (7, 3, 530, 250));
        assert_eq!((report.updates, report.deletes, report.deleted), (1, 1, 1));
        assert_eq!((report.errors, report.refused), (0, 0));
        assert_eq!(unavoidable(&trace, &OPTIONS), (3, 250));
        // The first three are not counted, but what they filled is there.
        let later = PlainOptions { warmup_requests: 3, ..OPTIONS };
        let report = replay_plain(&unbounded(), &trace, &later, &Progress::default()).await;
        assert_eq!((report.gets, report.misses), (4, 1));
        assert_eq!(unavoidable(&trace, &later).0, 1);
    }

    #[tokio::test(start_paused = true)]
    async fn the_clock_is_the_traces() {
        let trace = trace(&[(Verb::Get, 0); 6], &[2, 0, 0, 4]);
        let paced = PlainOptions { speed: Some(2.0), ..OPTIONS };
        let report = replay_plain(&unbounded(), &trace, &paced, &Progress::default()).await;
        // The last of four in the fourth second is due in its last quarter.
        assert!((1.8..2.1).contains(&report.took.as_secs_f64()), "{report:?}");
        assert_eq!((report.gets, report.misses), (6, 1));
    }
}
