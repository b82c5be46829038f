//! A destination's task: connects when there is something to send, serves the connection until it ends, and while the
//! server is taken out (TKO), probes it. Serves every path; §3.3 of the paper needs its verdicts to be quick.
//!
//! ```text
//!        a job                connected
//! idle ---------> connecting -----------> connection --.
//!   ^                 | failed               | taken   | ended: back to idle
//!   |  probe answered v                      v  out    |
//!   '------------- taken out <---------------'         v
//! ```
//!
//! A server that is taken out loses its connection too: after a partition, an old connection can stay silent for
//! minutes, while a new one tells at once. A probe is a new connection and a `version` on it; answered, it stays.
//!
//! Several destinations may have one server (see `standing`). The one that took it out has a probe due and is the one
//! that probes; the others refuse what they get until the server is back, and then connect anew.
//!
//! A destination that connects ahead needs no job to leave `idle`: it connects at once when it is made, and a moment after
//! a connection has ended or another destination has taken the server out. So a server that is gone, or back, is known
//! before anybody asks for it.

use super::{
    DestinationOptions, Shared,
    connection::{Connection, ConnectionContext, End, Replacement, answer_limits, millis_since},
    count,
    pipeline::{Broken, Job},
    reresolve::moved,
};
use crate::{Network, network::Stream, tko::Up};
use lookaside_protocol::text::{ParsedReply, parse_reply};
use lookaside_routing::{Address, Failure, Health, HealthChange, Outcome};
use std::{collections::VecDeque, sync::Arc, time::Duration};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    sync::mpsc,
    time::{Instant, sleep, sleep_until, timeout},
};

/// How long one who connects ahead waits, between attempts that nobody asked for; up to a half more, by chance.
const CONNECT_AHEAD_WAIT: Duration = Duration::from_secs(1);

/// The longest answer to a probe, in bytes.
const PROBE_ANSWER_BYTES_MAX: usize = 1_024;

pub(crate) struct Driver {
    address: Address,
    network: Arc<dyn Network>,
    options: DestinationOptions,
    queue: mpsc::UnboundedReceiver<Job>,
    waiting: VecDeque<Job>,
    shared: Arc<Shared>,
    health: Health,
    random: fastrand::Rng,
    epoch: Instant,
    /// Nobody has tried to connect yet.
    is_new: bool,
}

/// The destination was dropped: there is nothing left to do.
struct Dropped;

impl Driver {
    pub(crate) fn new(
        address: Address,
        network: Arc<dyn Network>,
        options: DestinationOptions,
        queue: mpsc::UnboundedReceiver<Job>,
        shared: Arc<Shared>,
    ) -> Driver {
        Driver {
            address,
            network,
            queue,
            waiting: VecDeque::new(),
            shared,
            health: Health::new(options.health),
            random: fastrand::Rng::with_seed(options.seed),
            epoch: Instant::now(),
            is_new: true,
            options,
        }
    }

    pub(crate) async fn run(mut self) {
        let mut replacement = None;
        loop {
            let connected = match replacement.take() {
                Some(connected) => Some(connected),
                None => match self.next_stream().await {
                    Ok(connected) => connected,
                    Err(Dropped) => return,
                },
            };
            self.shared.is_settled.send_if_modified(|is_settled| !std::mem::replace(is_settled, true));
            let Some((stream, up)) = connected else { continue };
            let jitter = self.random.f64();
            let moved = moved(&*self.network, &self.address, stream.peer(), &self.options, &self.shared, jitter);
            let around = ConnectionContext {
                queue: &mut self.queue,
                waiting: &mut self.waiting,
                health: &mut self.health,
                shared: &self.shared,
                options: &self.options,
                epoch: self.epoch,
            };
            match Connection::new(stream, up, around, Box::pin(moved)).run().await {
                End::Dropped => return,
                End::Moved(Replacement(stream)) => replacement = Some((stream, up)),
                end => self.on_end(&end, up),
            }
        }
    }

    /// Waits for a reason to connect, and connects; `None` when that failed, or must not be.
    async fn next_stream(&mut self) -> Result<Option<(Box<dyn Stream>, Up)>, Dropped> {
        if let Some(at_ms) = self.health.next_probe_at_ms() {
            self.wait_taken_out(self.epoch + Duration::from_millis(at_ms)).await?;
            return Ok(self.probe().await);
        }
        if self.waiting.is_empty() {
            self.wait_for_reason().await?;
        }
        let Some(up) = self.shared.standing.up() else {
            self.fail_waiting(&Failure::Tko);
            return Ok(None);
        };
        match self.connect().await {
            Ok(stream) => Ok(Some((stream, up))),
            Err(failure) => {
                self.fail_waiting(&failure);
                self.on_failure(&Err(failure), up);
                Ok(None)
            }
        }
    }

    /// Waits for a job, or until it is time to connect without one.
    async fn wait_for_reason(&mut self) -> Result<(), Dropped> {
        let is_new = std::mem::replace(&mut self.is_new, false);
        let wait = match (self.options.connect_eagerly, is_new) {
            (true, true) => return Ok(()),
            (true, false) => Some(CONNECT_AHEAD_WAIT.mul_f64(1.0 + 0.5 * self.random.f64())),
            (false, _) => None,
        };
        tokio::select! {
            biased;
            job = self.queue.recv() => self.waiting.push_back(job.ok_or(Dropped)?),
            () = sleep(wait.unwrap_or_default()), if wait.is_some() => {}
        }
        Ok(())
    }

    async fn connect(&mut self) -> Result<Box<dyn Stream>, Failure> {
        connect(&*self.network, &self.address, &self.options, &self.shared).await
    }

    /// Waits until a probe is due. Jobs that slipped into the queue before the handle knew are refused.
    async fn wait_taken_out(&mut self, probe_at: Instant) -> Result<(), Dropped> {
        loop {
            tokio::select! {
                biased;
                job = self.queue.recv() => job.ok_or(Dropped)?.fail(&Failure::Tko),
                () = sleep_until(probe_at) => return Ok(()),
            }
        }
    }

    /// Connects and asks for the version. Answered, the server is back in and the connection can be used.
    async fn probe(&mut self) -> Option<(Box<dyn Stream>, Up)> {
        count(&self.shared.counters.probes, 1);
        let stream = match self.connect().await {
            Ok(stream) => {
                let limit = Duration::from_millis(self.options.server_timeout_ms);
                timeout(limit, ask_version(stream, &self.options)).await.ok().flatten()
            }
            Err(_) => None,
        };
        let jitter = self.random.f64();
        self.health.on_probe(stream.is_some(), millis_since(self.epoch), jitter);
        let stream = stream?;
        tracing::info!(server = %self.address, "server is back");
        Some((stream, self.shared.standing.bring_back()))
    }

    /// Does what follows from a connection that was made while the server was `up`.
    fn on_end(&mut self, end: &End, up: Up) {
        match end {
            End::Broken(Broken::Malformed(why)) => {
                tracing::warn!(server = %self.address, why, "malformed answer: connection closed");
            }
            End::Broken(Broken::OutOfStep) => {
                tracing::warn!(server = %self.address, "server refused a command with a value: connection closed");
            }
            End::TooManyLate => {
                tracing::warn!(server = %self.address, "too many answers are late: connection closed");
            }
            End::Tko(change) => self.take_out(*change, up),
            End::TkoByOther => self.health = Health::new(self.options.health),
            End::Unproven(error) => {
                tracing::warn!(server = %self.address, %error, "TLS failed before the first answer");
                self.on_failure(&Err(Failure::ConnectFailed), up);
            }
            End::Closed(kind) => tracing::debug!(server = %self.address, %kind, "connection ended"),
            End::Dropped | End::Moved(_) => {}
        }
    }

    /// Takes note of an attempt to connect that failed and that began while the server was `up`.
    fn on_failure(&mut self, outcome: &Outcome, up: Up) {
        if let Some(change) = self.health.on_outcome(outcome, millis_since(self.epoch)) {
            self.take_out(change, up);
        }
    }

    /// Makes it known that the server is out, unless another destination has: then that one probes it. Or unless too many
    /// servers of its pool are out: then it is asked on as if nothing were known.
    fn take_out(&mut self, change: HealthChange, up: Up) {
        let is_tko = match &self.options.tko_trackers {
            Some(tko_trackers) => tko_trackers.take_out(&self.address, &self.shared.standing, up, change),
            None => self.shared.standing.take_out(up, change),
        };
        if !is_tko {
            self.health = Health::new(self.options.health);
            return;
        }
        self.health.delay_probe(self.random.f64());
        count(&self.shared.counters.taken_out, 1);
        tracing::warn!(server = %self.address, ?change, "server is taken out; it is probed until it answers");
    }

    fn fail_waiting(&mut self, failure: &Failure) {
        for job in self.waiting.drain(..) {
            job.fail(failure);
        }
        while let Ok(job) = self.queue.try_recv() {
            job.fail(failure);
        }
    }
}

impl Drop for Driver {
    /// Nobody else probes a server that this destination took out: let the others find out for themselves.
    fn drop(&mut self) {
        if !self.health.may_send() {
            self.shared.standing.bring_back();
        }
    }
}

/// Makes a connection, and counts what came of it.
pub(crate) async fn connect(
    network: &dyn Network,
    address: &Address,
    options: &DestinationOptions,
    shared: &Shared,
) -> Result<Box<dyn Stream>, Failure> {
    let limit_ms = options.connect_timeout_ms.unwrap_or(options.server_timeout_ms);
    let counters = &shared.counters;
    match timeout(Duration::from_millis(limit_ms), network.connect(address)).await {
        Ok(Ok(stream)) => {
            count(&counters.connects, 1);
            Ok(stream)
        }
        Ok(Err(error)) => {
            tracing::debug!(server = %address, %error, "connection failed");
            count(&counters.connect_failures, 1);
            Err(Failure::ConnectFailed)
        }
        Err(_) => {
            tracing::debug!(server = %address, limit_ms, "connection timed out");
            count(&counters.connect_failures, 1);
            Err(Failure::ConnectTimedOut)
        }
    }
}

/// Sends `version` and waits for any whole answer: even an error line proves that the server lives.
pub(crate) async fn ask_version(mut stream: Box<dyn Stream>, options: &DestinationOptions) -> Option<Box<dyn Stream>> {
    stream.write_all(b"version\r\n").await.ok()?;
    stream.flush().await.ok()?;
    let limits = answer_limits(options);
    let mut reply = Vec::new();
    while reply.len() < PROBE_ANSWER_BYTES_MAX {
        if stream.read_buf(&mut reply).await.ok()? == 0 {
            return None;
        }
        match parse_reply(&reply, &limits) {
            ParsedReply::Part { consumed, .. } => return (consumed == reply.len()).then_some(stream),
            ParsedReply::Malformed { .. } => return None,
            ParsedReply::Incomplete { .. } => {}
        }
    }
    None
}
