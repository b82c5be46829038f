//! Reads the commit log, and looks up its end.
//!
//! The log is read by connections of the monitor's own, from the position at which it stopped. If the log does not
//! reach back to that any more, or cannot be read again (PostgreSQL), it is read from its present end: a part of the
//! deletes is not sampled then, which does not falsify what is found about the others.

use crate::{
    asking::MonitorClock,
    sampling::{EndOfLog, Sampler},
};
use lookaside_invalidator::{CommitLog, SourceError, Start};
use lookaside_sync::Mutex;
use lookaside_telemetry::LogThrottle;
use std::{convert::Infallible, sync::Arc, time::Duration};
use tokio::{
    sync::Notify,
    time::{Instant, sleep},
};

/// About the most keys of one read.
const READ_KEYS_MAX: usize = 1_024;
const RETRY_DELAY_MIN: Duration = Duration::from_millis(50);
/// The least time between two log messages of one kind.
const LOG_INTERVAL_MIN: Duration = Duration::from_secs(5);

/// The log of one database, and where its deletes go.
pub struct Follower {
    /// The log.
    pub log: Arc<dyn CommitLog>,
    /// The samples.
    pub sampler: Arc<Mutex<Sampler>>,
    /// The monitor's clock.
    pub clock: MonitorClock,
    /// Notified when there are new samples.
    pub sampled: Arc<Notify>,
    /// Whether the log can be read from an earlier position: not so with a temporary slot.
    pub can_resume: bool,
}

impl Follower {
    /// Reads the log for ever.
    pub async fn read_log(&self) -> Infallible {
        let mut throttle = LogThrottle::new(1, LOG_INTERVAL_MIN);
        let mut delay = RETRY_DELAY_MIN;
        loop {
            let begun = Instant::now();
            let Err(error) = self.read_source().await;
            self.sampler.lock().stop_reading();
            if let SourceError::PositionLost { .. } = &error {
                tracing::warn!(%error, "deletes are not sampled from there to the present end of the log");
                let mut sampler = self.sampler.lock();
                sampler.counts.positions_lost += 1;
                sampler.drop_position();
            } else if throttle.allow(Instant::now()).is_some() {
                tracing::warn!(%error, "reading the commit log failed; retrying");
            }
            if begun.elapsed() > error.retry_delay_max() {
                delay = RETRY_DELAY_MIN;
            }
            sleep(delay.min(error.retry_delay_max())).await;
            delay = (delay * 2).min(error.retry_delay_max());
        }
    }

    async fn read_source(&self) -> Result<Infallible, SourceError> {
        let identity = self.log.identity().await?;
        let resumed = self.sampler.lock().resume_from(&identity).filter(|_| self.can_resume);
        let start = resumed.map_or(Start::Now, Start::At);
        let mut opened = self.log.open(&start).await?;
        let position = opened.position.clone();
        tracing::info!(log = identity, position = position.0, "reading the commit log");
        self.sampler.lock().start_reading(&identity, &position);
        loop {
            let commits = opened.source.next(READ_KEYS_MAX).await?;
            if opened.source.gates_every_position() || !commits.commits.is_empty() {
                opened.source.wait_until_visible(&commits.position).await?;
            }
            let covers = |position: &_, other: &_| self.log.covers(position, other);
            self.sampler.lock().add_commits(&commits, (self.clock)(), &covers);
            self.log.release(&commits.position);
            self.sampled.notify_waiters();
        }
    }

    /// Looks up the end of the log at intervals, for ever.
    pub async fn look_up_ends(&self, interval: Duration) -> Infallible {
        let mut throttle = LogThrottle::new(1, LOG_INTERVAL_MIN);
        loop {
            let begun_at = (self.clock)();
            match self.look_up_end().await {
                Ok((identity, position)) => {
                    self.sampler.lock().add_end_of_log(&identity, EndOfLog { begun_at, position });
                }
                Err(error) if throttle.allow(Instant::now()).is_some() => {
                    tracing::warn!(%error, "the end of the commit log cannot be looked up; retrying");
                }
                Err(_) => {}
            }
            sleep(interval).await;
        }
    }

    /// The identity is looked up last: the end of another server's log must not count as that of this one.
    async fn look_up_end(&self) -> Result<(String, lookaside_invalidator::Position), SourceError> {
        let position = self.log.newest_position().await?;
        Ok((self.log.identity().await?, position))
    }
}
