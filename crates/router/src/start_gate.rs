//! The start gate (`--wait-for-invalidator`): a router that starts serves only deletes until the invalidator has
//! notified it that all commits so far are deleted in the cluster, or until a bound. Without it, a cluster whose routers
//! were all down serves what the invalidator could not delete meanwhile, until it has.
//!
//! ```text
//! router                                      invalidator
//!   | <--- get __mcrouter__.start_gate ---------- |   with every probe of a router
//!   | ---- "waiting 5f1c..." -------------------> |   looks up the newest position in the commit log
//!   | <--- delete, delete, ... ------------------ |   until everything up to that position is acknowledged
//!   | <--- get __mcrouter__.caught_up(5f1c...) -- |
//!   | ---- "open" ------------------------------> |   from now on all requests are served
//! ```
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
//! one. The gate opens at the first invalidator that reports.
//!
//! A process that takes over from another continues its predecessor's run: it has the same gate, open or closed, with the
//! same token and what is left of the bound, whatever its own command line says. No delete was missed in between, so all
//! that the invalidator has found out about the run is still right.

use bytes::Bytes;
use lookaside_protocol::{ErrorReply, Reply, Request};
use lookaside_routing::{Batch, BoxFuture, Context, Outcomes, Route, Verb};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};

/// The reply to a request that the closed gate refuses.
const REFUSAL: &[u8] = b"router waits for the invalidator to catch up (--wait-for-invalidator)";

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
    refused: AtomicU64,
}

impl StartGate {
    /// A closed gate that opens after `wait_max` at the latest. `token` is a number that no earlier run had.
    pub fn new(wait_max: Duration, token: u64) -> Arc<StartGate> {
        Arc::new(StartGate {
            is_open: AtomicBool::new(false),
            opened: Notify::new(),
            token,
            started: Instant::now(),
            wait_max,
            refused: AtomicU64::new(0),
        })
    }

    /// The gate of a predecessor, from [`StartGate::to_saved`]. `None` if the bytes are no gate.
    pub fn from_saved(saved: &[u8]) -> Option<Arc<StartGate>> {
        if saved.is_empty() {
            let gate = StartGate::new(Duration::ZERO, 0);
            gate.open_once();
            return Some(gate);
        }
        let (token, wait_ms) = saved.split_first_chunk()?;
        let wait_ms = u64::from_le_bytes(wait_ms.try_into().ok()?);
        Some(StartGate::new(Duration::from_millis(wait_ms), u64::from_le_bytes(*token)))
    }

    /// The state for a successor: nothing if the gate is open, else the token and the milliseconds until it opens.
    pub fn to_saved(&self) -> Vec<u8> {
        if self.is_open() {
            return Vec::new();
        }
        let wait_ms = u64::try_from(self.wait_left().as_millis()).unwrap_or(u64::MAX);
        [self.token.to_le_bytes(), wait_ms.to_le_bytes()].concat()
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

    /// Opens the gate if an invalidator that has caught up names this run.
    pub(crate) fn report_caught_up(&self, token: &[u8]) {
        if token == self.token_text().as_bytes() && self.open_once() {
            let waited_ms = self.started.elapsed().as_millis();
            tracing::info!(waited_ms, "invalidator has caught up: serving all requests");
        }
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
            let wait_s = self.wait_max.as_secs();
            tracing::warn!(
                wait_s,
                "invalidator has not caught up within --wait-for-invalidator: serving all requests, which may show old \
                 values; check the invalidator's state of this cluster"
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
