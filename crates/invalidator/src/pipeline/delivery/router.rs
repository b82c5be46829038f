//! One router of a cluster: whether it answers. A router that does not is TKO: batches go to the others first.
//!
//! ```text
//!            a batch or a probe fails, or has no answer within the hedge delay
//! answering ------------------------------------------------------------------> TKO
//!     ^      a reply to a probe, or to a batch                                    |  probed at once, then after
//!     '---------------------------------------------------------------------------'  PROBE_DELAY_MIN .. _MAX
//! ```
//!
//! This state and that of the router's connections (`lookaside_client::tko`) differ in what they are for. A destination
//! whose connections failed refuses requests at once. A router that is merely late is TKO here, one late answer is
//! enough, and it still gets batches while all routers of its cluster are TKO.
//!
//! A probe is a get of the state of the router's start gate, which the router answers itself. A router that answers is
//! probed every [`PROBE_INTERVAL`], so that one that hangs is known before a delete waits for it.
//!
//! Probes have a connection of their own. A router answers a connection in order, so a probe among the deletes would
//! wait for a server that hangs, and the deletes behind it for the probe.

use super::demotion::Demotion;
use crate::observe::{log_throttle, stats::ClusterStatistics};
use bytes::Bytes;
use lookaside_protocol::{Operation, Reply, Request};
use lookaside_routing::{Address, Batch, BoxFuture, Destination, Failure, Outcome, Outcomes};
use lookaside_sync::Mutex;
use lookaside_telemetry::LogThrottle;
use std::{
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::{
    sync::Notify,
    time::{Instant, sleep, timeout},
};

/// How often a router that answers is probed.
pub(super) const PROBE_INTERVAL: Duration = Duration::from_millis(200);
/// The first and the longest delay between two probes of a TKO router; the longest is also the shortest between two
/// that are answered. A probe of a router that is known to be down costs no packet: the destination makes connections
/// at its own pace.
const PROBE_DELAY_MIN: Duration = Duration::from_millis(10);
const PROBE_DELAY_MAX: Duration = Duration::from_millis(50);

/// The key of the start gate's state. Every router answers it, those that do not know it with a miss or an error.
const START_GATE_KEY: &[u8] = b"__mcrouter__.start_gate";
/// The key of the option without which a router flushes nothing.
const FLUSH_OPTION_KEY: &[u8] = b"__mcrouter__.options(enable_flush_cmd)";
/// The key of the digest of the configuration that a router uses.
const CONFIG_KEY: &[u8] = b"__mcrouter__.config_md5_digest";
/// The key of the report to whose places a router's deletes go.
const COVERAGE_KEY: &[u8] = b"__mcrouter__.coverage";
/// The delay before a router that does not answer is asked for it again.
const FLUSH_CHECK_DELAY: Duration = Duration::from_secs(1);
/// The state of an open gate.
const OPEN: &[u8] = b"open";
/// The same of one that waits for the invalidators of other databases, too.
const COUNTED: &[u8] = b"counted";
/// Before the token in the state of a closed gate.
const WAITING: &[u8] = b"waiting ";
/// The longest token of a router's run.
const TOKEN_BYTES_MAX: usize = 64;
/// The longest digest of a configuration.
const DIGEST_BYTES_MAX: usize = 64;

/// The connections to one router.
pub struct RouterConnections {
    /// For deletes.
    pub deletes: Arc<dyn Destination>,
    /// For probes. It should share its TKO state with the other: then a router that returns is used at once.
    pub probes: Arc<dyn Destination>,
}

/// A router, and whether it answers.
pub(super) struct Router {
    connections: RouterConnections,
    is_tko: AtomicBool,
    /// Notified when the router becomes TKO.
    became_tko: Notify,
    log: Mutex<TkoLog>,
    /// The batches that it has and has not answered.
    unanswered: AtomicUsize,
    demotion: Mutex<Demotion>,
    demotion_log: Mutex<LogThrottle<Instant>>,
    /// The run of the router that waits at its start gate; `None` if it serves.
    waiting: Mutex<Option<WaitingRun>>,
}

struct WaitingRun {
    token: String,
    /// Whether the pipeline knows of it.
    is_announced: bool,
}

struct TkoLog {
    throttle: LogThrottle<Instant>,
    /// Whether the present TKO was logged.
    is_logged: bool,
}

/// A batch that a router has; it is counted until this is dropped.
pub(super) struct UnansweredBatch<'a>(&'a AtomicUsize);

impl Drop for UnansweredBatch<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Router {
    pub fn new(connections: RouterConnections) -> Router {
        let log = Mutex::new(TkoLog { throttle: log_throttle(), is_logged: false });
        Router {
            connections,
            is_tko: AtomicBool::new(false),
            became_tko: Notify::new(),
            log,
            unanswered: AtomicUsize::new(0),
            demotion: Mutex::new(Demotion::new(Instant::now())),
            demotion_log: Mutex::new(log_throttle()),
            waiting: Mutex::new(None),
        }
    }

    pub fn address(&self) -> &Address {
        self.connections.deletes.address()
    }

    /// Sends a batch of deletes.
    pub fn delete(&self, batch: Batch) -> BoxFuture<'_, Outcomes> {
        self.connections.deletes.send(batch)
    }

    /// Counts a batch that is about to be sent.
    pub fn count_unanswered(&self) -> UnansweredBatch<'_> {
        self.unanswered.fetch_add(1, Ordering::Relaxed);
        UnansweredBatch(&self.unanswered)
    }

    /// How many batches it has and has not answered.
    pub fn unanswered(&self) -> usize {
        self.unanswered.load(Ordering::Relaxed)
    }

    /// Until when it is asked after the others; `None` if it is not demoted.
    pub fn demoted_until(&self, now: Instant) -> Option<Instant> {
        self.demotion.lock().until(now)
    }

    pub fn is_tko(&self) -> bool {
        self.is_tko.load(Ordering::Relaxed)
    }

    /// Records that the router did not answer, for this reason. `has_others` says whether another router of the cluster
    /// does.
    pub fn record_failure(&self, why: &str, has_others: bool, statistics: &ClusterStatistics) {
        if self.is_tko.swap(true, Ordering::Relaxed) {
            return;
        }
        statistics.router_failures.add(1);
        self.became_tko.notify_one();
        let mut log = self.log.lock();
        log.is_logged = log.throttle.allow(Instant::now()).is_some();
        if log.is_logged {
            let (cluster, router) = (&statistics.name, self.address());
            match has_others {
                true => tracing::warn!(
                    cluster, %router, why,
                    "router does not answer; deletes go to the cluster's other routers, and it is probed until it answers"
                ),
                false => tracing::warn!(
                    cluster, %router, why,
                    "router does not answer, and the cluster has no other one that does: its deletes wait until one answers"
                ),
            }
        }
    }

    /// Records that the router answered.
    pub fn record_answer(&self, statistics: &ClusterStatistics) {
        if self.is_tko.swap(false, Ordering::Relaxed) && std::mem::take(&mut self.log.lock().is_logged) {
            let (cluster, router) = (&statistics.name, self.address());
            tracing::info!(cluster, %router, "router answers again");
        }
    }

    /// Records that the router refused deletes that `other` applied.
    pub fn record_refusals(&self, deletes: u32, other: &Address, statistics: &ClusterStatistics) {
        if self.demotion.lock().record_refusals(deletes, Instant::now()) {
            self.demote("it refuses them", other, statistics);
        }
    }

    /// Has the router asked after the others for a while, as it did not do, for this reason, what `other` did.
    pub fn demote(&self, why: &str, other: &Address, statistics: &ClusterStatistics) {
        let now = Instant::now();
        let Some(pause) = self.demotion.lock().demote(now) else { return };
        statistics.router_demotions.add(1);
        if self.demotion_log.lock().allow(now).is_some() {
            let (cluster, router, pause_s) = (&statistics.name, self.address(), pause.as_secs());
            tracing::warn!(
                cluster, %router, %other, why, pause_s,
                "router does not apply deletes that another one applies, and is asked after the others for a while; check \
                 its links to the servers"
            );
        }
    }

    /// Records the reply to a probe. True if the router waits at its start gate and that is not announced.
    fn record_start_gate(&self, reply: &Reply<Bytes>) -> bool {
        let mut waiting = self.waiting.lock();
        let Some(token) = waiting_token(reply) else {
            *waiting = None;
            return false;
        };
        if waiting.as_ref().is_none_or(|run| run.token != token) {
            *waiting = Some(WaitingRun { token: token.to_owned(), is_announced: false });
        }
        waiting.as_ref().is_some_and(|run| !run.is_announced)
    }

    /// The token of a run that waits and was not announced. It is announced now.
    pub fn announce_waiting(&self) -> Option<String> {
        let mut waiting = self.waiting.lock();
        let run = waiting.as_mut().filter(|run| !run.is_announced)?;
        run.is_announced = true;
        Some(run.token.clone())
    }

    /// Announces the run `token` again, if it still waits.
    pub fn announce_again(&self, token: &str) {
        if let Some(run) = self.waiting.lock().as_mut().filter(|run| run.token == token) {
            run.is_announced = false;
        }
    }

    /// Notifies the run `token` of the router that all deletes of `source_id` are applied, so that it opens its start
    /// gate. False if it is not known to have counted that.
    pub async fn report_caught_up(&self, token: &str, source_id: Option<u64>) -> bool {
        let source = source_id.map(|id| format!(",{id:x}")).unwrap_or_default();
        let request = get_request(format!("__mcrouter__.caught_up({token}{source})").into());
        let outcomes = self.connections.probes.send(vec![request]).await;
        matches!(&outcomes[..], [Ok(Reply::Value { value, .. })] if value == OPEN || value == COUNTED)
    }

    /// Asks the router, once it answers, whether it would flush its servers, and logs if it would not. Its operator
    /// learns that before a flush is needed.
    pub async fn check_flush(&self, statistics: &ClusterStatistics) {
        loop {
            let request = get_request(Bytes::from_static(FLUSH_OPTION_KEY));
            match self.connections.probes.send(vec![request]).await.pop() {
                Some(Ok(Reply::Value { value, .. })) if matches!(&value[..], b"false" | b"0") => {
                    let (cluster, router) = (&statistics.name, self.address());
                    tracing::error!(
                        cluster, %router,
                        "router refuses flush_all, which rules or --on-position-lost flush need; start it with \
                         --enable-flush-cmd"
                    );
                    return;
                }
                Some(Ok(_)) => return,
                Some(Err(_)) | None => sleep(FLUSH_CHECK_DELAY).await,
            }
        }
    }

    /// The digest of the router's configuration; `None` if it does not answer, or knows no such digest.
    pub async fn config_digest(&self) -> Option<String> {
        match self.connections.probes.send(vec![get_request(Bytes::from_static(CONFIG_KEY))]).await.pop() {
            Some(Ok(Reply::Value { value, .. })) if value.len() <= DIGEST_BYTES_MAX => {
                Some(String::from_utf8_lossy(&value).into_owned())
            }
            _ => None,
        }
    }

    /// The router's report of the configurations that it covers, as JSON; `None` if it does not answer, or sends none.
    pub async fn coverage(&self) -> Option<Bytes> {
        match self.connections.probes.send(vec![get_request(Bytes::from_static(COVERAGE_KEY))]).await.pop() {
            Some(Ok(Reply::Value { value, .. })) => Some(value),
            _ => None,
        }
    }

    /// Probes the router until this is dropped. Calls `on_answer` after each reply, and `on_failure` when there is none
    /// or none within `hedge_delay`. The argument of `on_answer` is true if the router waits at its start gate and that
    /// is not announced.
    pub async fn probe_repeatedly(&self, hedge_delay: Duration, on_answer: impl Fn(bool), on_failure: impl Fn(&str)) {
        let mut delay = PROBE_DELAY_MIN;
        loop {
            match self.probe(hedge_delay, &on_failure).await {
                Ok(reply) => {
                    delay = PROBE_DELAY_MIN;
                    on_answer(self.record_start_gate(&reply));
                    // Deletes may fail while probes are answered: each answer has refused deletes sent again.
                    sleep(PROBE_DELAY_MAX).await;
                    tokio::select! {
                        biased;
                        () = self.became_tko.notified() => {}
                        () = sleep(PROBE_INTERVAL - PROBE_DELAY_MAX) => {}
                    }
                }
                Err(failure) => {
                    on_failure(reason(&failure));
                    sleep(delay).await;
                    delay = (delay * 2).min(PROBE_DELAY_MAX);
                }
            }
        }
    }

    async fn probe(&self, hedge_delay: Duration, on_failure: impl Fn(&str)) -> Outcome {
        let mut probing = pin!(self.connections.probes.send(vec![get_request(Bytes::from_static(START_GATE_KEY))]));
        let mut outcomes = match timeout(hedge_delay, &mut probing).await {
            Ok(outcomes) => outcomes,
            Err(_) => {
                on_failure(&no_answer(hedge_delay));
                probing.await
            }
        };
        outcomes.pop().expect("a destination returns one outcome per request")
    }
}

fn get_request(key: Bytes) -> Request<Bytes> {
    Request { key, operation: Operation::Get { cas: false } }
}

/// The token in the state of a start gate; `None` if the gate is open, or the reply is something else.
fn waiting_token(reply: &Reply<Bytes>) -> Option<&str> {
    let Reply::Value { value, .. } = reply else { return None };
    let token = str::from_utf8(value.strip_prefix(WAITING)?).ok()?;
    let is_token = |token: &str| token.len() <= TOKEN_BYTES_MAX && token.bytes().all(|b| b.is_ascii_alphanumeric());
    Some(token).filter(|token| is_token(token))
}

/// Why a router that is slow is TKO.
pub(super) fn no_answer(hedge_delay: Duration) -> String {
    format!("no answer within {} ms", hedge_delay.as_millis())
}

/// A failure in the words of an operator who sees a router, not a server.
pub(super) fn reason(failure: &Failure) -> &'static str {
    match failure {
        Failure::Tko(_) => "it has not answered since it failed",
        Failure::ConnectFailed => "connection failed",
        Failure::ConnectTimedOut => "connection timed out",
        Failure::Busy | Failure::TooManyPending { .. } => "too many requests outstanding",
        Failure::TimedOut | Failure::QueueTimedOut | Failure::DatagramLost { .. } => {
            "no reply within the router timeout"
        }
        Failure::ConnectionLost | Failure::ReadFailed(_) => "connection lost",
        Failure::Malformed => "malformed reply",
        Failure::NoRoute(_) | Failure::NoTree | Failure::Refused { .. } | Failure::Spooled => {
            "not a failure of a connection"
        }
        Failure::OfServer { failure, .. } => reason(failure),
    }
}
