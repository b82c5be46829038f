//! Reads the log once for all clusters, and writes it to the spool.
//!
//! ```text
//! prepare a segment -> open(synced position) -> next -> gate -> append -> next -> ...
//!      ^                                                          |
//!      |                                             sync, release the log, remove segments (meanwhile)
//!      |____________ delay, after any failure ____________________|
//! ```
//!
//! | crash between | afterwards |
//! |---|---|
//! | the mark of a first start and its first segment | the start is repeated at a later present; nothing had been delivered |
//! | the copy of the newest segment and the removal of that | the former ends where the copy begins |
//! | append and sync | the rest is read again; clusters that had it skip it |
//! | sync and release | it is read again, and skipped as above |
//! | a loss and its record | the log reports the loss again |
//! | the save of the last cluster's position and the removal of a segment | it is removed later |

use super::{Spool, SpoolMarksState, position::SpoolPosition};
use crate::{
    Commits, OpenedSource, Position, Source, SourceError, Start,
    observe::log_throttle,
    source::{RETRY_DELAY_MIN, next_visible},
};
use lookaside_telemetry::LogThrottle;
use std::{convert::Infallible, io, sync::Arc};
use tokio::{
    task::JoinSet,
    time::{Instant, sleep},
};

const STATE_GONE: &str = "spool and positions of an earlier run are gone from --state-dir; if no cluster was in use, drop \
                          the replication slot and empty the folder";

const LOSS_MARKED: &str = "found by an invalidator that was active before, and not all clusters have acted on it";

/// What a cluster had saved when the daemon started.
#[derive(Clone, Debug)]
pub struct SavedStart {
    /// The log that the position belongs to.
    pub log_identity: String,
    /// The position.
    pub position: Position,
}

/// Writes the spool. There is one.
pub struct SpoolWriter {
    /// The spool.
    pub spool: Arc<Spool>,
    /// Where to begin if there is no spool and no cluster has a saved position.
    pub start: Start,
    /// The saved positions of the clusters: a spool that is missing begins at the oldest.
    pub saved: Vec<SavedStart>,
    /// Whether every cluster stops when its position is lost. Then a slot of which nothing is known is left as it is.
    pub stops_at_loss: bool,
    /// About the most keys of one read; each read costs one call of the gate.
    pub read_keys_max: usize,
}

impl SpoolWriter {
    /// Reads and writes for as long as it is polled. May be dropped at any moment.
    pub async fn run(self) -> Infallible {
        let mut delay = RETRY_DELAY_MIN;
        let (mut throttle, mut start_throttle) = (log_throttle(), log_throttle());
        loop {
            let before = self.spool.log_identity().map(|_| self.spool.end());
            let Err(error) = self.read_log(&mut start_throttle).await;
            if before != self.spool.log_identity().map(|_| self.spool.end()) {
                delay = RETRY_DELAY_MIN;
            }
            log_failure(&error, &mut throttle);
            delay = delay.min(error.retry_delay_max());
            self.spool.set_failure(Some(error));
            sleep(delay).await;
            delay *= 2;
        }
    }

    /// Reads from one source until it fails, or the spool does.
    async fn read_log(&self, start_throttle: &mut LogThrottle<Instant>) -> Result<Infallible, SourceError> {
        // First: while nothing can be written nothing is read. What an earlier run has left can be read then, also
        // while the database is down.
        self.write(Spool::prepare).await?;
        let log = self.spool.log.clone();
        let actual = log.identity().await?;
        match self.spool.log_identity() {
            Some(spooled) if spooled == actual => {}
            Some(spooled) => {
                let why = format!(
                    "the spool belongs to the log {spooled}, but the source is {actual}. Use the right --source, or \
                     another --state-dir"
                );
                return Err(SourceError::Unusable { why });
            }
            None => self.create(&actual).await?,
        }
        self.note_delivered(&actual);
        let opened = match self.spool.loss() {
            Some(why) => self.record_loss(why).await?,
            None => match log.open(&Start::At(self.spool.end().position)).await {
                Err(SourceError::PositionLost { why, .. }) => self.record_loss(why).await?,
                opened => opened?,
            },
        };
        if start_throttle.allow(Instant::now()).is_some() {
            tracing::info!(log = actual, position = opened.position.0, "reading the commit log into the spool");
        }
        self.spool.set_failure(None);
        self.copy(opened).await
    }

    /// Tells the log what clusters had saved, of the present epoch: the spool may end before it.
    fn note_delivered(&self, log_identity: &str) {
        let epoch = self.spool.end().epoch;
        let saved = self.saved.iter().filter(|saved| saved.log_identity == log_identity);
        for saved in saved.map(|saved| SpoolPosition::parse(&saved.position)).filter(|saved| saved.epoch == epoch) {
            self.spool.log.note_delivered(&saved.position);
        }
    }

    /// Copies commits to the spool until either fails.
    async fn copy(&self, mut opened: OpenedSource) -> Result<Infallible, SourceError> {
        let mut syncs = JoinSet::new();
        let mut ignored = [0; 3];
        loop {
            // Ends before the source is asked again.
            let commits: Commits = {
                let reading = next_visible(&mut *opened.source, self.read_keys_max);
                tokio::pin!(reading);
                loop {
                    tokio::select! {
                        biased;
                        Some(synced) = syncs.join_next() => {
                            checked(synced.expect("a sync does not panic"), &self.spool)?;
                            self.spool.release_log();
                            self.start_sync(&mut syncs);
                        }
                        commits = &mut reading => break commits?,
                    }
                }
            };
            self.count_ignored(&*opened.source, &mut ignored);
            self.write(move |spool| spool.append(&commits)).await?;
            self.start_sync(&mut syncs);
        }
    }

    /// Counts what the source has ignored since the last call.
    fn count_ignored(&self, source: &dyn Source, before: &mut [u64; 3]) {
        let now = [source.keys_rejected(), source.messages_untransactional(), source.messages_oversized()];
        let statistics = &self.spool.statistics;
        let counters =
            [&statistics.keys_rejected, &statistics.messages_untransactional, &statistics.messages_oversized];
        for (counter, (now, before)) in counters.into_iter().zip(now.into_iter().zip(std::mem::replace(before, now))) {
            counter.add(now - before);
        }
    }

    /// Starts to make durable what is not, unless that is going on already.
    fn start_sync(&self, syncs: &mut JoinSet<io::Result<SpoolPosition>>) {
        if !syncs.is_empty() || !self.spool.has_unsynced() {
            return;
        }
        let spool = self.spool.clone();
        syncs.spawn_blocking(move || {
            let synced = spool.sync()?;
            spool.remove_segments();
            Ok(synced)
        });
    }

    /// Begins the spool: at the oldest saved position, or else as the options say.
    async fn create(&self, log_identity: &str) -> Result<(), SourceError> {
        let log = self.spool.log.clone();
        let saved = self.saved.iter().filter(|saved| saved.log_identity == log_identity);
        let saved: Vec<_> = saved.map(|saved| SpoolPosition::parse(&saved.position)).collect();
        let saved = self.resumable(saved).await?;
        let epoch = saved.iter().map(|saved| saved.epoch).max();
        let oldest = saved.into_iter().filter(|saved| Some(saved.epoch) == epoch);
        let oldest = oldest.reduce(|oldest, saved| if saved.is_before(&oldest, &*log) { saved } else { oldest });
        if let Some(oldest) = oldest {
            let marks = self.spool.marks.as_ref().map(|marks| marks.state()).unwrap_or_default();
            if marks.losses > oldest.epoch {
                // A loss was met, and no cluster has acted on it.
                let oldest = SpoolPosition::new(marks.losses - 1, &oldest.position);
                let why = match marks.loss_reason.as_str() {
                    "" => LOSS_MARKED.to_owned(),
                    reason => format!("{reason} ({LOSS_MARKED})"),
                };
                return self.write_segment(log_identity, oldest, Some(why)).await;
            }
            // Whether the log still reaches back to it is seen when it is opened.
            return self.write_segment(log_identity, oldest, None).await;
        }
        if self.start == Start::Now && !self.is_starting() {
            if let Some(position) = log.remembered_position().await? {
                tracing::error!(position = position.0, "the database remembers a reader of this name: {STATE_GONE}");
                if self.stops_at_loss {
                    return Err(SourceError::PositionLost { position, why: STATE_GONE.into() });
                }
                return self
                    .write_segment(log_identity, SpoolPosition::new(0, &position), Some(STATE_GONE.into()))
                    .await;
            }
            self.begin_start().await?;
        }
        let (position, loss) = match log.open(&self.start).await {
            Err(SourceError::PositionLost { position, why }) => (position, Some(why)),
            opened => {
                let mut opened = opened?;
                if self.start == Start::Now {
                    // Deletes of what readers do not see yet are never sent.
                    opened.source.wait_until_visible(&opened.position).await?;
                }
                (opened.position, None)
            }
        };
        self.write_segment(log_identity, SpoolPosition::new(0, &position), loss).await
    }

    /// Those of `saved` that the log still reaches back to, if positions are all that is left of an earlier run; all of
    /// them if it reaches back to none. The clusters with older ones have lost their position, the others have not.
    async fn resumable(&self, saved: Vec<SpoolPosition>) -> Result<Vec<SpoolPosition>, SourceError> {
        let log = &self.spool.log;
        if self.spool.marks.is_none() || saved.is_empty() {
            return Ok(saved);
        }
        let Some(confirmed) = log.remembered_position().await? else { return Ok(saved) };
        let epoch = saved.iter().map(|saved| saved.epoch).max();
        let is_resumable =
            |saved: &&SpoolPosition| Some(saved.epoch) == epoch && log.covers(&saved.position, &confirmed);
        let resumable: Vec<_> = saved.iter().filter(is_resumable).cloned().collect();
        Ok(if resumable.is_empty() { saved } else { resumable })
    }

    fn is_starting(&self) -> bool {
        match &self.spool.marks {
            Some(marks) => marks.state().is_starting,
            None => self.spool.state.lock().start_mark.is_some(),
        }
    }

    async fn begin_start(&self) -> Result<(), SourceError> {
        match &self.spool.marks {
            Some(marks) => marks.save(SpoolMarksState { is_starting: true, ..marks.state() }).await,
            None => self.write(Spool::begin_start).await,
        }
    }

    async fn write_segment(&self, identity: &str, at: SpoolPosition, loss: Option<String>) -> Result<(), SourceError> {
        let identity = identity.to_owned();
        self.write(move |spool| spool.create(&identity, at, loss)).await
    }

    /// Writes down that the log no longer reaches back to the end of the spool, and continues from the present. Each
    /// cluster decides what follows when it gets there.
    async fn record_loss(&self, why: String) -> Result<OpenedSource, SourceError> {
        let lost = self.spool.end().text();
        let epoch = self.next_epoch();
        // First, and it fails if another invalidator is active: to one that hung until now the log seems to be lost.
        if let Some(marks) = &self.spool.marks {
            let losses = epoch;
            // The words of the one that met it, without those of its successors.
            let loss_reason = why.strip_suffix(&format!(" ({LOSS_MARKED})")).unwrap_or(&why).to_owned();
            marks.save(SpoolMarksState { losses, loss_reason, is_starting: false }).await?;
        }
        self.spool.statistics.gaps.add(1);
        tracing::error!(position = lost.0, why, "deletes after this position are lost for all clusters");
        let why_nothing = format!("deletes after {} are lost ({why}); waiting for open transactions", lost.0);
        self.spool.set_failure(Some(SourceError::Unreachable { why: why_nothing }));
        let reason = why.clone();
        self.write(move |spool| spool.begin_loss(&reason)).await?;
        let mut opened = self.spool.log.open(&Start::Now).await?;
        // A client that fills a key after the flush sees all commits up to here.
        opened.source.wait_until_visible(&opened.position).await?;
        let position = opened.position.clone();
        self.write(move |spool| spool.append_gap(epoch, &position, &why)).await?;
        Ok(opened)
    }

    /// The epoch that begins with the next loss. A segment that could not be read may have had losses that clusters
    /// have acted on: none of them must find another one with the same number.
    fn next_epoch(&self) -> u64 {
        let saved = self.saved.iter().map(|saved| SpoolPosition::parse(&saved.position).epoch).max();
        self.spool.end().epoch.max(saved.unwrap_or(0)) + 1
    }

    /// Writes to the spool, on a blocking thread.
    async fn write<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Spool) -> io::Result<T> + Send + 'static,
    ) -> Result<T, SourceError> {
        let spool = self.spool.clone();
        let done = tokio::task::spawn_blocking(move || work(&spool)).await;
        checked(done.expect("writing a file does not panic"), &self.spool)
    }
}

fn checked<T>(done: io::Result<T>, spool: &Spool) -> Result<T, SourceError> {
    done.map_err(|error| {
        spool.statistics.failures.add(1);
        SourceError::SpoolFailed { why: format!("{error}; make room or mend the disk of --state-dir") }
    })
}

fn log_failure(error: &SourceError, throttle: &mut LogThrottle<Instant>) {
    if throttle.allow(Instant::now()).is_none() {
        return;
    }
    match error {
        // Every cluster reports it, and stops.
        SourceError::PositionLost { .. } => {}
        SourceError::SpoolFailed { .. } => tracing::error!(%error, "no cluster gets deletes; retrying"),
        _ => tracing::warn!(%error, "reading the commit log failed; retrying"),
    }
}
