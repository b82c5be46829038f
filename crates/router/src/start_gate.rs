//! The start gate (`--wait-for-invalidator`): a router that starts serves only deletes until the invalidator has
//! notified it that all commits so far are deleted in the cluster, or until a bound. Without it, a cluster whose
//! routers were all down serves what the invalidator could not delete meanwhile, until it has.
//!
//! ```text
//! router                                      invalidator
//!   | <--- get __mcrouter__.start_gate ---------- |   with every probe of a router
//!   | ---- "waiting 5f1c..." -------------------> |   looks up the newest position in the commit log
//!   | <--- delete, delete, ... ------------------ |   until everything up to that position is acknowledged
//!   | <--- get __mcrouter__.caught_up(5f1c...,9a) |   9a: its source
//!   | ---- "open" ------------------------------> |   from now on all requests are served
//! ```
//!
//! Keys of several databases have an invalidator for each: the gate opens when as many sources as `--wait-for-sources`
//! have reported, each once. Until then the reply is `counted`. A standby has the source of the active one.
//!
//! | request | while the gate is closed |
//! |---|---|
//! | delete | served |
//! | any other | `SERVER_ERROR`, as if no server answered: a get may be old, and a fill could put an old value where no delete finds it any more |
//!
//! A get that fails is read from the database and not filled. With `--miss-on-get-errors` it is a miss, and the fill
//! that follows is refused.
//!
//! The number tells one run of the router from the next: a message for an earlier run must not open the gate of a later
//! one.
//!
//! A process that takes over from another continues its predecessor's run: it has the same gate, open or closed, with
//! the same token and what is left of the bound, whatever its own command line says. No delete was missed in between,
//! so all that the invalidator has found out about the run is still right.

use bytes::Bytes;
use lookaside_protocol::{ErrorReply, Reply, Request};
use lookaside_routing::{Batch, BoxFuture, Context, Outcomes, Route, Verb};
use lookaside_sync::Mutex;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};

/// The reply to a request that the closed gate refuses.
const REFUSAL: &[u8] = b"router waits for the invalidator to catch up (--wait-for-invalidator)";

/// The reply to a source that has caught up while others have not.
const COUNTED: &str = "counted";

/// The gate of one run of a router, shared by its threads.
#[derive(Debug)]
pub struct StartGate {
    is_open: AtomicBool,
    /// Notified when the gate opens. One task waits.
    opened: Notify,
    /// Identifies this run.
    token: u64,
    started: Instant,
    wait_max: Duration,
    /// How many sources must have caught up.
    sources: u64,
    /// Those that have.
    caught_up: Mutex<BTreeSet<u64>>,
    refused: AtomicU64,
}

impl StartGate {
    /// A closed gate that opens when `sources` have caught up, or after `wait_max`. `token` is a number that no earlier
    /// run had.
    pub fn new(wait_max: Duration, token: u64, sources: u64) -> Arc<StartGate> {
        StartGate::with_caught_up(wait_max, token, sources, BTreeSet::new())
    }

    fn with_caught_up(wait_max: Duration, token: u64, sources: u64, caught_up: BTreeSet<u64>) -> Arc<StartGate> {
        Arc::new(StartGate {
            is_open: AtomicBool::new(false),
            opened: Notify::new(),
            token,
            started: Instant::now(),
            wait_max,
            sources,
            caught_up: Mutex::new(caught_up),
            refused: AtomicU64::new(0),
        })
    }

    /// The gate of a predecessor, from [`StartGate::to_saved`]. `None` if the bytes are no gate.
    pub fn from_saved(saved: &[u8]) -> Option<Arc<StartGate>> {
        if saved.is_empty() {
            let gate = StartGate::new(Duration::ZERO, 0, 1);
            gate.open_once();
            return Some(gate);
        }
        let (numbers, []) = saved.as_chunks() else { return None };
        let numbers: Vec<u64> = numbers.iter().copied().map(u64::from_le_bytes).collect();
        let [token, wait_ms, rest @ ..] = &numbers[..] else { return None };
        // An earlier version waits for one source.
        let (sources, caught_up) = rest.split_first().unwrap_or((&1, &[]));
        let caught_up = caught_up.iter().copied().collect();
        Some(StartGate::with_caught_up(Duration::from_millis(*wait_ms), *token, *sources, caught_up))
    }

    /// The state for a successor: nothing if the gate is open, else numbers of 8 bytes: the token, the milliseconds
    /// until it opens, the sources that must have caught up, and those that have.
    pub fn to_saved(&self) -> Vec<u8> {
        if self.is_open() {
            return Vec::new();
        }
        let wait_ms = u64::try_from(self.wait_left().as_millis()).unwrap_or(u64::MAX);
        let caught_up = self.caught_up.lock();
        let numbers = [self.token, wait_ms, self.sources].into_iter().chain(caught_up.iter().copied());
        numbers.flat_map(u64::to_le_bytes).collect()
    }

    pub(crate) fn is_open(&self) -> bool {
        self.is_open.load(Acquire)
    }

    /// False if it was open already.
    fn open_once(&self) -> bool {
        let was_open = self.is_open.swap(true, Release);
        self.opened.notify_one();
        !was_open
    }

    /// How many requests were refused.
    pub(crate) fn refused(&self) -> u64 {
        self.refused.load(Relaxed)
    }

    /// The state of the gate, for the invalidator: `open`, or `waiting` and the token of this run.
    pub(crate) fn state(&self) -> String {
        match self.is_open() {
            true => "open".to_owned(),
            false => format!("waiting {}", self.token_text()),
        }
    }

    fn token_text(&self) -> String {
        format!("{:016x}", self.token)
    }

    /// Records the report `TOKEN,SOURCE` of an invalidator that has caught up, if it names this run. An invalidator of
    /// an earlier version names no source. Returns the reply.
    pub(crate) fn report_caught_up(&self, report: &[u8]) -> String {
        let mut parts = report.splitn(2, |&byte| byte == b',');
        let names_this_run = parts.next() == Some(self.token_text().as_bytes());
        let source = parts.next().map_or(Some(0), |source| u64::from_str_radix(str::from_utf8(source).ok()?, 16).ok());
        match source {
            Some(source) if names_this_run && !self.is_open() => self.record_source(source),
            _ => self.state(),
        }
    }

    fn record_source(&self, source: u64) -> String {
        let caught_up = {
            let mut sources = self.caught_up.lock();
            sources.insert(source);
            sources.len() as u64
        };
        let source = format!("{source:x}");
        if caught_up < self.sources {
            let sources = self.sources;
            tracing::info!(
                source,
                caught_up,
                sources,
                "invalidator has caught up: waiting for those of other databases"
            );
            return COUNTED.to_owned();
        }
        if self.open_once() {
            let waited_ms = self.started.elapsed().as_millis();
            tracing::info!(waited_ms, source, "invalidator has caught up: serving all requests");
        }
        self.state()
    }

    /// How long it stays closed at most.
    pub(crate) fn wait_left(&self) -> Duration {
        self.wait_max.saturating_sub(self.started.elapsed())
    }

    /// Opens the gate after the longest wait, unless it is open by then. Resolves when it is open. Has one caller.
    pub async fn wait_until_open(&self) {
        let wait_left = self.wait_left();
        while !self.is_open() && timeout(wait_left, self.opened.notified()).await.is_ok() {}
        if self.open_once() {
            let (wait_s, caught_up) = (self.wait_max.as_secs(), self.caught_up.lock().len());
            let sources = self.sources;
            tracing::warn!(
                wait_s,
                caught_up,
                sources,
                "invalidator has not caught up within --wait-for-invalidator: serving all requests, which may show old \
                 values; check the invalidator's state of this cluster, and --wait-for-sources"
            );
        }
    }
}

/// The root of a tree behind a gate.
pub(crate) struct GatedRoot {
    pub(crate) gate: Arc<StartGate>,
    pub(crate) root: Arc<dyn Route>,
}

impl GatedRoot {
    /// Routes the deletes of a batch and refuses the rest.
    async fn route_deletes(&self, batch: Batch, context: &Context) -> Outcomes {
        let is_served: Vec<bool> = batch.iter().map(is_delete).collect();
        let deletes: Batch = batch.into_iter().filter(is_delete).collect();
        let refused = is_served.len() - deletes.len();
        self.gate.refused.fetch_add(refused as u64, Relaxed);
        let mut outcomes = match deletes.is_empty() {
            true => Outcomes::new(),
            false => self.root.route(deletes, context).await,
        }
        .into_iter();
        let outcome = |is_served| match is_served {
            true => outcomes.next().expect("a route answers every request once"),
            false => Ok(Reply::Error(ErrorReply::Server(Bytes::from_static(REFUSAL)))),
        };
        is_served.into_iter().map(outcome).collect()
    }
}

impl Route for GatedRoot {
    fn route<'a>(&'a self, batch: Batch, context: &'a Context) -> BoxFuture<'a, Outcomes> {
        match self.gate.is_open() {
            true => self.root.route(batch, context),
            false => Box::pin(self.route_deletes(batch, context)),
        }
    }
}

fn is_delete(request: &Request<Bytes>) -> bool {
    Verb::of(&request.operation) == Verb::Delete
}
