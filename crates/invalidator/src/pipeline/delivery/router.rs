//! One router of a cluster: whether it answers. A router that does not is *suspect*: batches go to the others first.
//!
//! ```text
//!            a batch or a probe fails, or has no answer within the hedge delay
//! answering ------------------------------------------------------------------> suspect
//!     ^      a reply to a probe, or to a batch                                     |  probed at once, then after
//!     '----------------------------------------------------------------------------'  PROBE_DELAY_MIN .. _MAX
//! ```
//!
//! A probe is a get of a key that the router answers itself. It uses the connection of the deletes, so that its reply
//! shows that deletes are answered too. A router that answers is probed every [`PROBE_INTERVAL`], so that one that
//! hangs is known before a delete waits for it.

use crate::observe::{log_throttle, stats::ClusterStatistics};
use bytes::Bytes;
use lookaside_protocol::{Operation, Request};
use lookaside_routing::{Destination, Failure, Outcome};
use lookaside_sync::Mutex;
use lookaside_telemetry::LogThrottle;
use std::{
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tokio::{
    sync::Notify,
    time::{Instant, sleep, timeout},
};

/// How often a router that answers is probed.
pub(super) const PROBE_INTERVAL: Duration = Duration::from_millis(200);
/// The first and the longest delay between two probes of a suspect router. A probe of a router that is known to be down
/// costs no packet: the destination makes connections at its own pace.
const PROBE_DELAY_MIN: Duration = Duration::from_millis(10);
const PROBE_DELAY_MAX: Duration = Duration::from_millis(50);

/// A key that every router answers itself.
const PROBE_KEY: &[u8] = b"__mcrouter__.version";

/// A router, and whether it answers.
pub(super) struct Router {
    pub destination: Arc<dyn Destination>,
    is_suspect: AtomicBool,
    /// Notified when the router becomes suspect.
    suspected: Notify,
    log: Mutex<SuspicionLog>,
}

struct SuspicionLog {
    throttle: LogThrottle<Instant>,
    /// Whether the present suspicion was logged.
    is_logged: bool,
}

impl Router {
    pub fn new(destination: Arc<dyn Destination>) -> Router {
        let log = Mutex::new(SuspicionLog { throttle: log_throttle(), is_logged: false });
        Router { destination, is_suspect: AtomicBool::new(false), suspected: Notify::new(), log }
    }

    pub fn is_suspect(&self) -> bool {
        self.is_suspect.load(Ordering::Relaxed)
    }

    /// Records that the router did not answer, for this reason.
    pub fn record_failure(&self, why: &str, statistics: &ClusterStatistics) {
        if self.is_suspect.swap(true, Ordering::Relaxed) {
            return;
        }
        statistics.router_failures.add(1);
        self.suspected.notify_one();
        let mut log = self.log.lock();
        log.is_logged = log.throttle.allow(Instant::now()).is_some();
        if log.is_logged {
            let (cluster, router) = (&statistics.name, self.destination.address());
            tracing::warn!(
                cluster, %router, why,
                "router does not answer; deletes go to the cluster's other routers, and it is probed until it answers"
            );
        }
    }

    /// Records that the router answered.
    pub fn record_answer(&self, statistics: &ClusterStatistics) {
        if self.is_suspect.swap(false, Ordering::Relaxed) && std::mem::take(&mut self.log.lock().is_logged) {
            let (cluster, router) = (&statistics.name, self.destination.address());
            tracing::info!(cluster, %router, "router answers again");
        }
    }

    /// Probes the router until this is dropped. Calls `on_answer` after each reply, and `on_failure` when there is none
    /// or none within `hedge_delay`.
    pub async fn probe_repeatedly(&self, hedge_delay: Duration, on_answer: impl Fn(), on_failure: impl Fn(&str)) {
        let mut delay = PROBE_DELAY_MIN;
        loop {
            match self.probe(hedge_delay, &on_failure).await {
                Ok(_) => {
                    delay = PROBE_DELAY_MIN;
                    on_answer();
                    tokio::select! {
                        biased;
                        () = self.suspected.notified() => {}
                        () = sleep(PROBE_INTERVAL) => {}
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
        let mut probing = pin!(self.destination.send(vec![probe_request()]));
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

fn probe_request() -> Request<Bytes> {
    Request { key: Bytes::from_static(PROBE_KEY), operation: Operation::Get { cas: false } }
}

/// Why a router that is slow is suspect.
pub(super) fn no_answer(hedge_delay: Duration) -> String {
    format!("no answer within {} ms", hedge_delay.as_millis())
}

/// A failure in the words of an operator who sees a router, not a server.
pub(super) fn reason(failure: &Failure) -> &'static str {
    match failure {
        Failure::Tko => "it has not answered since it failed",
        Failure::ConnectFailed => "connection failed",
        Failure::ConnectTimedOut => "connection timed out",
        Failure::Busy => "too many requests outstanding",
        Failure::TimedOut => "no reply within the router timeout",
        Failure::ConnectionLost => "connection lost",
        Failure::Malformed => "malformed reply",
        Failure::NoRoute(_) | Failure::Spooled => "not a failure of a connection",
    }
}
