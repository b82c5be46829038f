//! The source's side of a pipeline: opens the log, reads it, waits at the gate, and sends commits to the pipeline.
//! After a failure it opens the log again.
//!
//! ```text
//! identity? -> open(position) -> next -> wait_until_visible -> send -> next -> ...
//!      ^____________ delay, then from the last position that was sent ______|
//! ```
//!
//! Invariants:
//! * Nothing is sent before the gate has let it pass ([`Source::wait_until_visible`]). Each read costs one call of the
//!   gate.
//! * A start from the present passes the gate, too, before its position is sent: a client that reads the database after
//!   that sees all commits before the position.
//! * After a failure reading resumes after what was sent last. Commits that were read but not sent are read again.
//! * A position that the log no longer has means lost deletes. It is counted and logged as an error. The operator
//!   chooses what follows: stop, or flush the cluster and continue from the present, or continue without a flush.
//! * A loss is counted once, however often the routers refuse the flush that follows. The flush is retried, whatever
//!   another reading from the lost position would find.
//! * A position counts as read from only when the source has it: [`ReaderMessage::StartAt`] is sent after the source
//!   was opened there, and routers are notified that a cluster is up to date after that.
//! * A log that is lost again and again is read, and the cluster flushed, at growing intervals.

use super::{
    delivery::{Delivery, Refusal},
    positions::{PositionError, PositionStore},
};
use crate::{
    CommitLog, Commits, OpenedSource, Position, SourceError, Start,
    observe::{
        log_throttle,
        stats::{ClusterStatistics, PipelineState},
    },
    source::{Anomalies, RETRY_DELAY_MAX, RETRY_DELAY_MIN, next_visible},
};
use lookaside_telemetry::LogThrottle;
use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};
use tokio::{
    sync::mpsc,
    time::{Instant, sleep},
};

/// The longest delay after a loss before the log is read again. Each loss empties the cluster, whose database bears
/// that; meanwhile nothing is deleted.
const LOSS_DELAY_MAX: Duration = Duration::from_secs(5);
/// The delay begins at its shortest again if no position was lost for this long.
const LOSSES_APART: Duration = Duration::from_secs(60);

/// The reaction to a log that no longer reaches back to the saved position.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum OnPositionLost {
    /// Stop the pipeline with an error that says what to do.
    #[default]
    Stop,
    /// Flush the whole cluster, and continue from the present.
    Flush,
    /// Continue from the present. The operator flushes the cluster.
    Continue,
}

/// Why a pipeline stopped by itself.
#[derive(Debug, thiserror::Error)]
pub enum PipelineError {
    /// Deletes were lost.
    #[error(
        "{0}: deletes between there and the oldest commit in the log are lost, and the cluster may hold old values. \
         Empty the cluster: start again with --on-position-lost flush, which does it through its routers (they need \
         --enable-flush-cmd), or with --on-position-lost continue, and do it yourself once the log is read again \
         (flush_all on its servers)"
    )]
    PositionLost(SourceError),
    /// The position to resume from is unknown.
    #[error(transparent)]
    Position(#[from] PositionError),
}

/// A message of a [`LogReader`] to the pipeline.
#[derive(Debug)]
pub(crate) enum ReaderMessage {
    /// Where reading starts. Sent first, and again for every new source.
    StartAt {
        /// The identity of the log.
        log_identity: String,
        /// Everything between the last position that was sent and this one needs no deletes.
        position: Position,
        /// Whether it is the one that was saved.
        is_saved: bool,
        /// [`LogReader::stops`] until then: the log is read while it stays so.
        stops: u64,
    },
    /// Commits that readers see, in order.
    Commits(Commits),
}

pub(crate) struct LogReader {
    pub log: Arc<dyn CommitLog>,
    pub delivery: Arc<dyn Delivery>,
    pub positions: Arc<dyn PositionStore>,
    /// Where to start when no position has been saved.
    pub start: Start,
    pub on_position_lost: OnPositionLost,
    pub read_keys_max: usize,
    pub statistics: Arc<ClusterStatistics>,
    pub sender: mpsc::Sender<ReaderMessage>,
    /// How often reading has stopped.
    pub stops: Arc<AtomicU64>,
}

enum ReadStop {
    /// Another attempt may help.
    Retry(SourceError),
    /// The log no longer reaches back.
    PositionLost(SourceError),
    /// The cluster must be flushed, and no router did it.
    FlushFailed(Refusal),
    ReceiverDropped,
    /// No attempt can help.
    Fatal(PipelineError),
}

impl From<SourceError> for ReadStop {
    fn from(error: SourceError) -> ReadStop {
        match error {
            SourceError::PositionLost { .. } => ReadStop::PositionLost(error),
            _ => ReadStop::Retry(error),
        }
    }
}

impl LogReader {
    /// Reads until the receiver is dropped or no attempt can help.
    pub async fn run(self) -> Result<(), PipelineError> {
        let saved = self.positions.load().await?;
        if let (Some(saved), Start::At(_) | Start::Earliest) = (&saved, &self.start) {
            let (cluster, position) = (&self.statistics.name, &saved.position.0);
            tracing::warn!(cluster, position, "ignoring --from: this cluster has a saved position");
        }
        let mut from = saved.as_ref().map(|saved| saved.position.clone());
        if let Some((position, prepared)) =
            saved.as_ref().and_then(|saved| Some((&saved.position, saved.prepared.clone()?)))
        {
            self.log.begin_at(position, prepared);
        }
        let mut log_identity = saved.map(|saved| saved.log_identity);
        let loss = self.positions.loss().zip(from.clone());
        let mut loss = loss.map(|(why, position)| SourceError::PositionLost { position, why });
        let (mut delay, mut loss_delay) = (RETRY_DELAY_MIN, LossDelay::default());
        let (mut log, mut reported_loss) = (FailureThrottles::default(), None);
        loop {
            let from_before = from.clone();
            let Err(mut stop) = self.read_source(&mut log_identity, &mut from, &loss, &mut log.start).await;
            self.stops.fetch_add(1, SeqCst);
            if let ReadStop::PositionLost(error) = stop {
                let why = error.to_string();
                self.report_loss(&error, &mut reported_loss);
                loss = Some(error.clone());
                match self.recover_lost_position(error, &log_identity, &mut from).await {
                    Ok(()) => {
                        (loss, reported_loss) = (None, None);
                        self.statistics.set_state(PipelineState::SourceFailing(why));
                        sleep(loss_delay.next(Instant::now())).await;
                        continue;
                    }
                    Err(failed) => stop = failed,
                }
            }
            let delay_max = match stop {
                ReadStop::ReceiverDropped => return Ok(()),
                ReadStop::Fatal(error) => return Err(error),
                ReadStop::FlushFailed(why) => self.report_flush_failure(why, &mut log.flush_failure),
                ReadStop::PositionLost(error) | ReadStop::Retry(error) => {
                    self.report_source_failure(&error, &mut log.source_failure)
                }
            };
            if from != from_before {
                delay = RETRY_DELAY_MIN;
            }
            delay = delay.min(delay_max);
            sleep(delay).await;
            delay *= 2;
        }
    }

    /// Counts and logs a loss, once for all attempts to recover from it. `reported` is the position of the last one.
    fn report_loss(&self, error: &SourceError, reported: &mut Option<Position>) {
        let SourceError::PositionLost { position, .. } = error else { return };
        if reported.as_ref() != Some(position) {
            *reported = Some(position.clone());
            self.statistics.positions_lost.add(1);
            tracing::error!(cluster = self.statistics.name, %error, "deletes are lost");
        }
    }

    /// Returns the longest delay before the next attempt.
    fn report_flush_failure(&self, why: Refusal, throttle: &mut LogThrottle<Instant>) -> Duration {
        self.statistics.flush_failures.add(1);
        if throttle.allow(Instant::now()).is_some() {
            let cluster = &self.statistics.name;
            tracing::error!(cluster, why, "the cluster cannot be flushed after lost deletes, and gets none; retrying");
        }
        self.statistics.set_state(PipelineState::FlushFailing(why));
        RETRY_DELAY_MAX
    }

    /// Returns the longest delay before the next attempt.
    fn report_source_failure(&self, error: &SourceError, throttle: &mut LogThrottle<Instant>) -> Duration {
        self.statistics.source_failures.add(1);
        let why = error.to_string();
        if !self.log.is_logged(error) && throttle.allow(Instant::now()).is_some() {
            tracing::warn!(cluster = self.statistics.name, why, "reading the commit log failed; retrying");
        }
        self.statistics.set_state(PipelineState::SourceFailing(why));
        error.retry_delay_max()
    }

    /// Reads from one source until it fails. `log_identity` is that of the log that `from` belongs to, and `loss` is
    /// the loss of deletes after that from which the cluster has not recovered; `None` if there is none, as far as is
    /// known.
    async fn read_source(
        &self,
        log_identity: &mut Option<String>,
        from: &mut Option<Position>,
        loss: &Option<SourceError>,
        start_throttle: &mut LogThrottle<Instant>,
    ) -> Result<Infallible, ReadStop> {
        let actual = self.log.identity().await?;
        let saved = log_identity.get_or_insert_with(|| actual.clone());
        if *saved != actual {
            let continues = match &from {
                Some(position) => self.log.continues(saved, position).await?,
                None => false,
            };
            if !continues {
                return Err(ReadStop::Fatal(PositionError::OtherLog { saved: saved.clone(), actual }.into()));
            }
            let cluster = &self.statistics.name;
            tracing::warn!(cluster, log = actual, former = *saved, "another server continues the commit log");
            saved.clone_from(&actual);
        }
        if let Some(loss) = loss {
            return Err(loss.clone().into());
        }
        let start = from.clone().map_or_else(|| self.start.clone(), Start::At);
        let mut opened = self.log.open(&start).await?;
        let position = opened.position.clone();
        if from.is_none() && start == Start::Now {
            // The end of the log may be ahead of readers: deletes of what they do not see yet are never sent.
            opened.source.wait_until_visible(&position).await?;
        }
        if start_throttle.allow(Instant::now()).is_some() {
            let cluster = &self.statistics.name;
            tracing::info!(cluster, log = actual, position = position.0, "reading the commit log");
        }
        self.begin_at(&opened);
        let is_saved = from.as_ref() == Some(&position);
        self.send_start(actual, position.clone(), is_saved).await?;
        *from = Some(position);
        self.statistics.set_state(PipelineState::Running);
        let (mut rejected, mut anomalies) = (0, Anomalies::default());
        loop {
            let commits = next_visible(&mut *opened.source, self.read_keys_max).await?;
            let position = commits.position.clone();
            let rejected_before = std::mem::replace(&mut rejected, opened.source.keys_rejected());
            self.statistics.keys_rejected.add(rejected - rejected_before);
            let anomalies_before = std::mem::replace(&mut anomalies, opened.source.anomalies());
            self.statistics.record_anomalies(anomalies - anomalies_before);
            self.send(ReaderMessage::Commits(commits)).await?;
            *from = Some(position);
        }
    }

    /// Stops, or continues from the present, after a flush of the cluster if that is wanted.
    async fn recover_lost_position(
        &self,
        error: SourceError,
        log_identity: &Option<String>,
        from: &mut Option<Position>,
    ) -> Result<(), ReadStop> {
        if self.on_position_lost == OnPositionLost::Stop {
            return Err(ReadStop::Fatal(PipelineError::PositionLost(error)));
        }
        // The flush waits until readers see this position: a client that fills a key after it sees all commits up to
        // it.
        let mut opened = self.log.open(&Start::Now).await?;
        opened.source.wait_until_visible(&opened.position).await?;
        let (cluster, position) = (&self.statistics.name, &opened.position.0);
        if self.on_position_lost == OnPositionLost::Flush {
            self.delivery.flush().await.map_err(ReadStop::FlushFailed)?;
            self.statistics.flushes.add(1);
            tracing::warn!(cluster, position, "flushed the cluster");
        } else {
            tracing::warn!(
                cluster,
                position,
                "continuing after lost deletes, without a flush: the cluster may hold old values until you empty it \
                 (flush_all on its servers)"
            );
        }
        // Only now: until the cluster is flushed, the loss must be found again after a crash.
        self.begin_at(&opened);
        *from = Some(opened.position.clone());
        let log_identity = log_identity.clone().expect("a log that lost a position has an identity");
        self.send_start(log_identity, opened.position, false).await
    }

    /// What was prepared before the source began to read has a meaning from now on.
    fn begin_at(&self, opened: &OpenedSource) {
        if let Some(prepared) = opened.source.prepared_state() {
            self.log.begin_at(&opened.position, prepared);
        }
    }

    async fn send_start(&self, log_identity: String, position: Position, is_saved: bool) -> Result<(), ReadStop> {
        let stops = self.stops.load(SeqCst);
        self.send(ReaderMessage::StartAt { log_identity, position, is_saved, stops }).await
    }

    async fn send(&self, commits: ReaderMessage) -> Result<(), ReadStop> {
        self.sender.send(commits).await.map_err(|_| ReadStop::ReceiverDropped)
    }
}

/// Limits what is logged.
struct FailureThrottles {
    start: LogThrottle<Instant>,
    source_failure: LogThrottle<Instant>,
    flush_failure: LogThrottle<Instant>,
}

impl Default for FailureThrottles {
    fn default() -> FailureThrottles {
        FailureThrottles { start: log_throttle(), source_failure: log_throttle(), flush_failure: log_throttle() }
    }
}

/// Delays after losses: growing while one follows the other.
#[derive(Default)]
struct LossDelay {
    /// When the last position was lost, and the delay after it; `None` if none was.
    last: Option<(Instant, Duration)>,
}

impl LossDelay {
    /// The delay after a loss at `now`.
    fn next(&mut self, now: Instant) -> Duration {
        let last = self.last.filter(|(at, _)| now < *at + LOSSES_APART);
        let delay = last.map_or(RETRY_DELAY_MIN, |(_, delay)| (delay * 2).min(LOSS_DELAY_MAX));
        self.last = Some((now, delay));
        delay
    }
}
