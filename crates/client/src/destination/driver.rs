//! A destination's task: connects when there is something to send, serves the connection until it ends, and probes the
//! server while it is TKO. Serves every path; §3.3 of the paper needs failures to be found quickly.
//!
//! ```text
//!        a batch              connected
//! idle ---------> connecting -----------> connection --.
//!   ^                 | failed               | TKO     | ended: back to idle
//!   |  probe answered v                      v         |
//!   '------------- TKO <---------------------'         v
//! ```
//!
//! A TKO server loses its connection too: after a partition an old one can stay silent for minutes, while a new one
//! fails or succeeds at once. A probe is a new connection with a `version` on it, which stays if that is answered.
//!
//! Of the destinations that share a server's TKO state (`tko`), the one that marked it probes. The others refuse their
//! batches until the server is back, and then make a new connection.
//!
//! With `connect_eagerly` the task connects without a batch when it starts, and a moment after a connection has ended
//! or another destination has marked the server TKO. So a server's failure or return is found before a request needs
//! it.

use super::{
    connect::{OpenStream, connect, connect_and_probe},
    connection::{Connection, ConnectionContext, End, Replacement, millis_since},
    options::{DestinationOptions, log_destination},
    pipeline::{PendingBatch, ProtocolError},
    reresolve::relocated_connection,
    shared::{ConnectionState, DestinationShared},
};
use crate::{network::Network, tko::TkoEpoch};
use lookaside_routing::{Address, Failure, Health, HealthChange, Outcome, TkoReason};
use std::{collections::VecDeque, sync::Arc, time::Duration};
use tokio::{
    sync::mpsc,
    time::{Instant, sleep, sleep_until},
};

/// Time between attempts to connect eagerly, plus up to a half.
const RECONNECT_INTERVAL: Duration = Duration::from_secs(1);

pub(super) struct Driver {
    address: Address,
    network: Arc<dyn Network>,
    options: DestinationOptions,
    queue: mpsc::UnboundedReceiver<PendingBatch>,
    waiting: VecDeque<PendingBatch>,
    shared: Arc<DestinationShared>,
    health: Health,
    random: fastrand::Rng,
    started: Instant,
    /// Before the first attempt to connect.
    is_new: bool,
}

/// The destination's handle was dropped: the task ends.
struct HandleDropped;

impl Driver {
    pub(super) fn new(
        address: Address,
        network: Arc<dyn Network>,
        options: DestinationOptions,
        queue: mpsc::UnboundedReceiver<PendingBatch>,
        shared: Arc<DestinationShared>,
    ) -> Driver {
        Driver {
            address,
            network,
            queue,
            waiting: VecDeque::new(),
            shared,
            health: Health::new(options.health),
            random: fastrand::Rng::with_seed(options.seed),
            started: Instant::now(),
            is_new: true,
            options,
        }
    }

    pub(super) async fn run(mut self) {
        let mut replacement = None;
        loop {
            let connected = match replacement.take() {
                Some(connected) => Some(connected),
                None => match self.next_stream().await {
                    Ok(connected) => connected,
                    Err(HandleDropped) => return,
                },
            };
            self.shared.is_ready.send_if_modified(|is_ready| !std::mem::replace(is_ready, true));
            let Some((stream, epoch)) = connected else { continue };
            self.shared.set_connection(ConnectionState::Up);
            let jitter = self.random.f64();
            let peer = stream.stream.peer();
            let relocation =
                relocated_connection(&*self.network, &self.address, peer, &self.options, &self.shared, jitter);
            let context = ConnectionContext {
                queue: &mut self.queue,
                waiting: &mut self.waiting,
                address: &self.address,
                health: &mut self.health,
                shared: &self.shared,
                options: &self.options,
                started: self.started,
            };
            match Connection::new(stream, epoch, context, Box::pin(relocation)).run().await {
                End::HandleDropped => return,
                End::Relocated(Replacement(stream)) => replacement = Some((stream, epoch)),
                end => self.on_end(&end, epoch),
            }
        }
    }

    /// Waits until a connection is needed, and makes it; `None` if that failed or the server is TKO.
    async fn next_stream(&mut self) -> Result<Option<(OpenStream, TkoEpoch)>, HandleDropped> {
        if let Some(at_ms) = self.health.next_probe_at_ms() {
            self.wait_for_probe(self.started + Duration::from_millis(at_ms)).await?;
            return Ok(self.probe().await);
        }
        if self.waiting.is_empty() {
            self.wait_for_work().await?;
        }
        let Some(epoch) = self.shared.tracker.epoch() else {
            self.fail_waiting(&Failure::Tko(self.tko_reason()));
            return Ok(None);
        };
        match connect(&*self.network, &self.address, &self.options, &self.shared).await {
            Ok(stream) => Ok(Some((stream, epoch))),
            Err(failure) => {
                self.shared.add_failures_in_a_row(1);
                self.fail_waiting(&failure);
                self.record_connect_failure(&Err(failure), epoch);
                Ok(None)
            }
        }
    }

    /// Why the server is TKO, or was a moment ago.
    fn tko_reason(&self) -> TkoReason {
        self.shared.tracker.reason().unwrap_or(TkoReason::ConnectFailed)
    }

    async fn wait_for_work(&mut self) -> Result<(), HandleDropped> {
        let is_new = std::mem::replace(&mut self.is_new, false);
        let wait = match (self.options.connect_eagerly, is_new) {
            (true, true) => return Ok(()),
            (true, false) => Some(RECONNECT_INTERVAL.mul_f64(1.0 + 0.5 * self.random.f64())),
            (false, _) => None,
        };
        tokio::select! {
            biased;
            batch = self.queue.recv() => self.waiting.push_back(batch.ok_or(HandleDropped)?),
            () = sleep(wait.unwrap_or_default()), if wait.is_some() => {}
        }
        Ok(())
    }

    /// Waits until a probe is due, and refuses batches that were queued before the handle saw the TKO state.
    async fn wait_for_probe(&mut self, probe_at: Instant) -> Result<(), HandleDropped> {
        loop {
            tokio::select! {
                biased;
                batch = self.queue.recv() => batch.ok_or(HandleDropped)?.fail(&Failure::Tko(self.tko_reason())),
                () = sleep_until(probe_at) => return Ok(()),
            }
        }
    }

    /// Probes the server. If it answers, it is no longer TKO, and the probe's connection can be used.
    async fn probe(&mut self) -> Option<(OpenStream, TkoEpoch)> {
        self.shared.counters.probes.add(1);
        let stream = connect_and_probe(&*self.network, &self.address, &self.options, &self.shared).await;
        let jitter = self.random.f64();
        self.health.on_probe(stream.is_some(), millis_since(self.started), jitter);
        if stream.is_none() {
            self.shared.add_failures_in_a_row(1);
        }
        let stream = stream?;
        self.shared.end_failures_in_a_row();
        let epoch = self.shared.tracker.clear_tko();
        let (role, change) = (self.options.role, self.tko_change("unmarked TKO", "mc_res_ok"));
        log_destination!(info, role, self.address, "{role} answered a probe: no longer TKO: {change}");
        Some((stream, epoch))
    }

    fn on_end(&mut self, end: &End, epoch: TkoEpoch) {
        self.shared.set_connection(ConnectionState::Closed);
        let role = self.options.role;
        match end {
            End::ProtocolError(ProtocolError::Malformed(why)) => {
                log_destination!(warn, role, self.address, why, "malformed reply: connection closed");
            }
            End::ProtocolError(ProtocolError::Desynchronized) => {
                log_destination!(
                    warn,
                    role,
                    self.address,
                    "{role} refused a command with a data block: connection closed, as it may parse the block as commands"
                );
            }
            End::TooManyLateReplies => {
                log_destination!(warn, role, self.address, "too many replies are late: connection closed");
            }
            End::Tko(change) => self.mark_tko(*change, &Failure::TimedOut, epoch),
            End::TkoByOther => self.health = Health::new(self.options.health),
            End::TlsRejected(error) => {
                log_destination!(warn, role, self.address, %error, "TLS failed before the first reply");
                self.record_connect_failure(&Err(Failure::ConnectFailed), epoch);
            }
            End::Closed(kind) => log_destination!(debug, role, self.address, %kind, "connection ended"),
            End::Idle => log_destination!(debug, role, self.address, "idle connection closed"),
            End::HandleDropped | End::Relocated(_) => {}
        }
    }

    /// The failed attempt began in `epoch`.
    fn record_connect_failure(&mut self, outcome: &Outcome, epoch: TkoEpoch) {
        self.shared.set_connection(ConnectionState::Down);
        if let Some(change) = self.health.on_outcome(outcome, millis_since(self.started))
            && let Err(failure) = outcome
        {
            self.mark_tko(change, failure, epoch);
        }
    }

    /// A change of the TKO state in mcrouter's words, for scripts that search for them.
    fn tko_change(&self, change: &str, reply: &str) -> String {
        let (hard, soft) = self.options.tko_trackers.as_ref().map(|trackers| trackers.totals()).unwrap_or_default();
        format!("{} {change}. Total hard TKOs: {hard}; soft TKOs: {soft}. Reply: {reply}", self.address)
    }

    /// Marks the server TKO, unless another destination has (which then probes it), or too many servers of its pool are
    /// TKO (then this one stays in use as if it had not failed).
    fn mark_tko(&mut self, change: HealthChange, failure: &Failure, epoch: TkoEpoch) {
        let reason = match failure {
            Failure::ConnectFailed => TkoReason::ConnectFailed,
            Failure::ConnectTimedOut => TkoReason::ConnectTimedOut,
            _ => TkoReason::TimedOut,
        };
        let is_tko = match &self.options.tko_trackers {
            Some(trackers) => trackers.mark_tko(&self.address, &self.shared.tracker, epoch, reason),
            None => self.shared.tracker.mark_tko(epoch, reason),
        };
        if !is_tko {
            self.health = Health::new(self.options.health);
            return;
        }
        self.health.delay_probe(self.random.f64());
        self.shared.counters.tko_marks.add(1);
        let (state, marked) = match change {
            HealthChange::HardTko => ("hard_tko", "marked hard TKO"),
            _ => ("soft_tko", "marked soft TKO"),
        };
        let reply = reason.name();
        let (role, change) = (self.options.role, self.tko_change(marked, reply));
        log_destination!(warn, role, self.address, %state, "{role} marked TKO: it is probed until it answers: {change}");
    }

    fn fail_waiting(&mut self, failure: &Failure) {
        for batch in self.waiting.drain(..) {
            batch.fail(failure);
        }
        while let Ok(batch) = self.queue.try_recv() {
            batch.fail(failure);
        }
    }
}

impl Drop for Driver {
    /// No other destination probes a server that this one marked TKO: the others find out for themselves.
    fn drop(&mut self) {
        if !self.health.may_send() {
            self.shared.tracker.clear_tko();
            let (role, change) = (self.options.role, self.tko_change("was TKO, removed from config", "mc_res_tko"));
            log_destination!(info, role, self.address, "{role} is no longer used: {change}");
        }
    }
}
