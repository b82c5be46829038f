//! The source's side of a pipeline: opens the log, reads, waits at the gate, hands over; and opens again when that
//! fails.
//!
//! ```text
//! identity? -> open(position) -> next -> visible -> hand over -> next -> ...
//!      ^____________ wait, from the last position that was handed over ______|
//! ```
//!
//! Invariants:
//! * Nothing is handed over before the gate let it through: the log runs ahead of what readers see, and a delete that
//!   is sent too early is undone by a reader that still fills the old row. One call of the gate a read.
//! * After a failure it goes on from what was handed over last: what was read but not handed over is read again.
//! * A position that the log no longer has means lost deletes. It is counted and logged as an error, and then it is
//!   the operator's choice: stop, or empty the cluster and go on from the present.

use super::{
    delivery::Delivery,
    positions::{PositionError, PositionStore},
};
use crate::{
    Commits, Log, Position, Source, SourceError, Start,
    observe::{
        Pace,
        stats::{ClusterStatistics, State},
    },
};
use std::{convert::Infallible, sync::Arc, time::Duration};
use tokio::{
    sync::mpsc,
    time::{Instant, sleep},
};

/// The wait after the first failure of a source; doubles up to the longest.
const RETRY_MIN: Duration = Duration::from_millis(50);
/// The longest wait between attempts: how late we may notice that the database is back.
const RETRY_MAX: Duration = Duration::from_secs(5);

/// What to do when the log no longer reaches back to our position.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum OnPositionLost {
    /// End the pipeline, and say what to do.
    #[default]
    Stop,
    /// Empty the whole cluster, and go on from the present.
    Flush,
}

/// Why a pipeline is at an end though nobody asked it to be.
#[derive(Debug, thiserror::Error)]
pub enum Ended {
    /// Deletes were lost.
    #[error(
        "{0}: deletes between there and the oldest commit in the log are lost, and the cluster may hold old values. \
         Empty the cluster (flush_all on its servers), move its position file away and start again with --from now; \
         --on-position-lost flush does the same by itself"
    )]
    PositionLost(SourceError),
    /// There is no telling where to go on.
    #[error(transparent)]
    Position(#[from] PositionError),
}

/// What has passed the gate.
#[derive(Debug)]
pub(crate) enum Passed {
    /// Where reading begins; the first to be handed over, and again with every new source.
    From {
        /// The identity of the log.
        log: String,
        /// What lies between the position that was handed over before and this one needs no deletes.
        position: Position,
    },
    /// Commits, in order.
    Commits(Commits),
}

/// Reads for one pipeline.
pub(crate) struct Reader {
    pub log: Arc<dyn Log>,
    pub delivery: Arc<dyn Delivery>,
    pub positions: Arc<dyn PositionStore>,
    /// Where to begin when there is no record.
    pub start: Start,
    pub on_position_lost: OnPositionLost,
    pub read_keys_max: usize,
    pub statistics: Arc<ClusterStatistics>,
    pub passed: mpsc::Sender<Passed>,
}

/// Why one attempt came to its end.
enum Stop {
    /// Worth another attempt.
    Again(String),
    /// The log no longer reaches back.
    Lost(SourceError),
    /// Nobody listens any more.
    Hangup,
    /// No attempt can help.
    Ended(Ended),
}

impl From<SourceError> for Stop {
    fn from(error: SourceError) -> Stop {
        match error {
            SourceError::PositionLost { .. } => Stop::Lost(error),
            // What cannot be used now may be set up in a minute: somebody may be at it.
            SourceError::Unreachable { .. } | SourceError::Unusable { .. } => Stop::Again(error.to_string()),
        }
    }
}

impl Reader {
    /// Reads until the other end is dropped, or there is no going on.
    pub async fn run(self) -> Result<(), Ended> {
        let record = self.positions.load().await?;
        if let (Some(record), Start::At(_) | Start::Earliest) = (&record, &self.start) {
            let (cluster, position) = (&self.statistics.name, &record.position.0);
            tracing::warn!(cluster, position, "a position has been saved, so --from means nothing here");
        }
        let mut from = record.as_ref().map(|record| record.position.clone());
        let mut log = record.map(|record| record.log);
        let mut wait = RETRY_MIN;
        let (mut failed, mut reading) = (Pace::default(), Pace::default());
        loop {
            let before = from.clone();
            let Err(mut stop) = self.attempt(&mut log, &mut from, &mut reading).await;
            if let Stop::Lost(error) = stop {
                match self.recover(error, &log, &mut from).await {
                    Ok(()) => continue,
                    Err(failed) => stop = failed,
                }
            }
            let why = match stop {
                Stop::Hangup => return Ok(()),
                Stop::Ended(ended) => return Err(ended),
                Stop::Lost(error) => error.to_string(),
                Stop::Again(why) => why,
            };
            if from != before {
                wait = RETRY_MIN;
            }
            self.statistics.source_failures.add(1);
            if failed.allows(Instant::now()) {
                tracing::warn!(cluster = self.statistics.name, why, "reading the commit log failed; it is tried again");
            }
            self.statistics.set_state(State::SourceFailing(why));
            sleep(wait).await;
            wait = (wait * 2).min(RETRY_MAX);
        }
    }

    /// Reads from one source until it fails. `log` is the identity that `from` belongs to.
    async fn attempt(
        &self,
        log: &mut Option<String>,
        from: &mut Option<Position>,
        reading: &mut Pace,
    ) -> Result<Infallible, Stop> {
        let actual = self.log.identity().await?;
        let saved = log.get_or_insert_with(|| actual.clone());
        if *saved != actual {
            return Err(Stop::Ended(PositionError::OtherLog { saved: saved.clone(), actual }.into()));
        }
        let start = from.clone().map_or_else(|| self.start.clone(), Start::At);
        let mut opened = self.log.open(&start).await?;
        let position = opened.position.clone();
        if reading.allows(Instant::now()) {
            let cluster = &self.statistics.name;
            tracing::info!(cluster, log = actual, position = position.0, "reading the commit log");
        }
        self.hand_over(Passed::From { log: actual, position: position.clone() }).await?;
        *from = Some(position);
        self.statistics.set_state(State::Running);
        loop {
            let commits = read_and_wait(&mut *opened.source, self.read_keys_max).await?;
            let position = commits.position.clone();
            self.hand_over(Passed::Commits(commits)).await?;
            *from = Some(position);
        }
    }

    /// Deletes are lost: never in silence.
    async fn recover(&self, lost: SourceError, log: &Option<String>, from: &mut Option<Position>) -> Result<(), Stop> {
        self.statistics.positions_lost.add(1);
        tracing::error!(cluster = self.statistics.name, %lost, "deletes are lost");
        if self.on_position_lost == OnPositionLost::Stop {
            return Err(Stop::Ended(Ended::PositionLost(lost)));
        }
        // Behind a position that readers see already: whoever fills a key after the flush sees all up to there.
        let mut opened = self.log.open(&Start::Now).await?;
        opened.source.visible(&opened.position).await?;
        self.delivery.flush().await.map_err(Stop::Again)?;
        tracing::warn!(cluster = self.statistics.name, position = opened.position.0, "the cluster has been emptied");
        *from = Some(opened.position.clone());
        let log = log.clone().expect("a log that lost a position has told who it is");
        self.hand_over(Passed::From { log, position: opened.position }).await
    }

    async fn hand_over(&self, passed: Passed) -> Result<(), Stop> {
        self.passed.send(passed).await.map_err(|_| Stop::Hangup)
    }
}

/// The next commits, when every reader that begins now sees them.
async fn read_and_wait(source: &mut dyn Source, keys_max: usize) -> Result<Commits, SourceError> {
    let commits = source.next(keys_max).await?;
    if commits.commits.iter().any(|commit| !commit.keys.is_empty()) {
        source.visible(&commits.position).await?;
    }
    Ok(commits)
}
