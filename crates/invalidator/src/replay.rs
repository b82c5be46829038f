//! Replay: reads a part of the commit log again and sends its deletes to a cluster, beside the running daemon. It
//! neither reads nor writes saved positions.
//!
//! ```text
//! log from `start` to its present end -> gate -> commits of the period -> keys with the prefix -> batches -> routers
//! ```
//!
//! Deletes are idempotent, so a replay costs hits and nothing else. It ends at the end that the log had when it began:
//! what is committed later is the daemon's.
//!
//! Invariants:
//! * A batch is sent after the one before it was acknowledged. So everything up to [`ReplaySummary::position`] has been
//!   deleted, and a replay that failed can be continued from there.
//! * Nothing is flushed: a flush is not limited in rate and empties what no commit of the period has changed. A commit
//!   that demands one ([`Flush`]) is counted, and the operator decides.
//! * At most [`ATTEMPTS_MAX`] attempts are made for each delete.

use crate::{
    CommitLog, Position, SourceError, Start,
    keys::Flush,
    pipeline::delivery::{DeleteResult, Delivery},
    source::next_visible,
};
use bytes::Bytes;
use std::{
    collections::BTreeSet,
    sync::Arc,
    time::{Duration, SystemTime},
};
use tokio::time::{Instant, sleep, sleep_until};

/// About the most keys of one read.
const READ_KEYS_MAX: usize = 4_096;
/// The most keys of a batch.
const BATCH_KEYS_MAX: usize = 1_000;
/// At a limited rate a batch has the deletes of this time, so that they are spread.
const BATCHES_PER_S: u32 = 20;
/// How often a delete is sent until the replay gives up.
pub const ATTEMPTS_MAX: u32 = 10;
/// The first and the longest delay before a delete is sent again.
const RETRY_DELAY_MIN: Duration = Duration::from_millis(20);
const RETRY_DELAY_MAX: Duration = Duration::from_secs(1);

/// Which deletes are sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplayFilter {
    /// Commits from this time on; `None` for all.
    pub since: Option<SystemTime>,
    /// Commits up to this time; `None` for all.
    pub until: Option<SystemTime>,
    /// Keys that begin with this.
    pub key_prefix: String,
}

/// A replay.
pub struct Replay {
    /// The commit log.
    pub log: Arc<dyn CommitLog>,
    /// The cluster that gets the deletes; `None` to send nothing.
    pub delivery: Option<Arc<dyn Delivery>>,
    /// Where reading starts.
    pub start: Start,
    /// The last commit to read; `None` for the present end of the log.
    pub to: Option<Position>,
    /// Which deletes are sent.
    pub filter: ReplayFilter,
    /// The most deletes per second.
    pub deletes_per_s_max: u32,
}

/// What a replay has done so far.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplaySummary {
    /// Commits with keys that were read.
    pub commits_read: u64,
    /// Those of the period.
    pub commits: u64,
    /// Deletes that were acknowledged, or that would have been sent.
    pub deletes: u64,
    /// Deletes that the routers have no route for: nothing can be cached there.
    pub unroutable: u64,
    /// Commits of the period that demand a flush of the cluster or of pools, whatever the prefix. They are counted and
    /// not flushed.
    pub flushes_skipped: u64,
    /// Everything up to here is done; `None` before the first read.
    pub position: Option<Position>,
    /// When the first and the last commit that were read were committed; `None` before the first one.
    pub first_committed_at: Option<SystemTime>,
    /// As above.
    pub committed_at: Option<SystemTime>,
    /// Whether the log begins after the period does, so that commits of the period may be gone. Known at the end.
    pub begins_late: bool,
    /// When the log begins; `None` if it does not show that.
    pub log_begins_at: Option<SystemTime>,
}

/// Why a replay ended early.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// The log cannot be read.
    #[error("reading the log failed: {0}{1}")]
    Source(SourceError, ContinueFrom),
    /// The log ends before the position from which, or to which, it was to be read.
    #[error("the log ends at {newest}, before the position {to}")]
    BeyondEnd {
        /// The end of the log.
        newest: String,
        /// The position that was asked for.
        to: String,
    },
    /// Reading starts behind the position to which the log was to be read, so there is nothing between.
    #[error("the log is read from {begin}, which is after the position {to}")]
    BeforeBeginning {
        /// Where reading starts.
        begin: String,
        /// The position that was asked for.
        to: String,
    },
    /// The cluster does not acknowledge deletes.
    #[error("the cluster did not acknowledge a delete in {ATTEMPTS_MAX} attempts: {0}{1}")]
    Refused(String, ContinueFrom),
}

/// The position that a replay reached before it failed, in words; empty if there is none.
#[derive(Debug)]
pub struct ContinueFrom(Option<Position>);

impl std::fmt::Display for ContinueFrom {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.0 {
            Some(position) => write!(f, "; to continue, replay again with --from '{}'", position.0),
            None => Ok(()),
        }
    }
}

impl ReplaySummary {
    fn new() -> ReplaySummary {
        ReplaySummary {
            commits_read: 0,
            commits: 0,
            deletes: 0,
            unroutable: 0,
            flushes_skipped: 0,
            position: None,
            first_committed_at: None,
            committed_at: None,
            begins_late: false,
            log_begins_at: None,
        }
    }

    fn continue_from(&self) -> ContinueFrom {
        ContinueFrom(self.position.clone())
    }
}

impl Replay {
    /// Runs to the end. Calls `on_progress` after each read.
    pub async fn run(&self, mut on_progress: impl FnMut(&ReplaySummary)) -> Result<ReplaySummary, ReplayError> {
        let mut summary = ReplaySummary::new();
        let no_source = |why| ReplayError::Source(why, ContinueFrom(None));
        let (newest, end) = self.find_end().await?;
        let opened = self.log.open(&self.start).await;
        if let Start::At(from) = &self.start
            && !self.log.covers(&newest, from)
            && matches!(&opened, Ok(_) | Err(SourceError::PositionLost { .. }))
        {
            return Err(ReplayError::BeyondEnd { newest: newest.0, to: from.0.clone() });
        }
        let mut opened = opened.map_err(no_source)?;
        let mut pace = Pace::new(self.deletes_per_s_max);
        let begin = opened.position;
        if self.log.covers(&begin, &end) && !self.log.covers(&end, &begin) {
            return Err(ReplayError::BeforeBeginning { begin: begin.0, to: end.0 });
        }
        let mut reached = begin.clone();
        while !self.log.covers(&reached, &end) {
            let read = next_visible(&mut *opened.source, READ_KEYS_MAX).await;
            let read = read.map_err(|why| ReplayError::Source(why, summary.continue_from()))?;
            let keys = self.keys_to_delete(&read.commits, &end, &mut summary);
            self.delete(keys, &mut pace, &mut summary).await?;
            reached = read.position;
            let is_done = self.log.covers(&reached, &end);
            summary.position = Some(if is_done { end.clone() } else { reached.clone() });
            on_progress(&summary);
        }
        summary.log_begins_at = opened.source.log_begins_at().or(summary.first_committed_at);
        // A log from which nothing was removed may begin at any time.
        if self.start == Start::Earliest && !self.log.is_beginning(&begin) {
            let is_after = |since| summary.log_begins_at.is_none_or(|at| at > since);
            summary.begins_late = self.filter.since.is_some_and(is_after);
        }
        Ok(summary)
    }

    /// The present end of the log, and the position to which it is read: the same, unless an earlier one is wanted.
    async fn find_end(&self) -> Result<(Position, Position), ReplayError> {
        let newest = self.log.newest_position().await.map_err(|why| ReplayError::Source(why, ContinueFrom(None)))?;
        match &self.to {
            None => Ok((newest.clone(), newest)),
            Some(to) if self.log.covers(&newest, to) => Ok((newest, to.clone())),
            Some(to) => Err(ReplayError::BeyondEnd { newest: newest.0, to: to.0.clone() }),
        }
    }

    /// The keys of the commits that pass the filter, each once.
    fn keys_to_delete(&self, commits: &[crate::Commit], end: &Position, summary: &mut ReplaySummary) -> Vec<Bytes> {
        let ReplayFilter { since, until, key_prefix } = &self.filter;
        let mut keys = BTreeSet::new();
        for commit in commits {
            // A read may go beyond the end. Commits there are not wanted.
            if !self.log.covers(end, &commit.position) {
                break;
            }
            summary.commits_read += 1;
            summary.first_committed_at.get_or_insert(commit.committed_at);
            summary.committed_at = Some(commit.committed_at);
            let is_in_period = since.is_none_or(|since| commit.committed_at >= since)
                && until.is_none_or(|until| commit.committed_at <= until);
            if is_in_period {
                summary.commits += 1;
                let (flushes, named): (Vec<_>, Vec<_>) =
                    commit.keys.iter().partition(|key| Flush::parse(key).is_some());
                summary.flushes_skipped += flushes.len().min(1) as u64;
                let wanted = named.into_iter().filter(|key| key.starts_with(key_prefix.as_bytes()));
                keys.extend(wanted.map(|key| Bytes::copy_from_slice(key)));
            }
        }
        keys.into_iter().collect()
    }

    async fn delete(&self, keys: Vec<Bytes>, pace: &mut Pace, summary: &mut ReplaySummary) -> Result<(), ReplayError> {
        let Some(delivery) = &self.delivery else {
            summary.deletes += keys.len() as u64;
            return Ok(());
        };
        for batch in keys.chunks(pace.batch_keys_max) {
            pace.wait(batch.len()).await;
            let (applied, unroutable) = delete_batch(&**delivery, batch)
                .await
                .map_err(|why| ReplayError::Refused(why, summary.continue_from()))?;
            summary.deletes += applied;
            summary.unroutable += unroutable;
        }
        Ok(())
    }
}

/// Deletes the keys, and sends those that are refused again. Returns how many were applied, and how many had no route.
async fn delete_batch(delivery: &dyn Delivery, keys: &[Bytes]) -> Result<(u64, u64), String> {
    let (mut keys, mut applied, mut unroutable) = (keys.to_vec(), 0, 0);
    let (mut delay, mut refusal) = (RETRY_DELAY_MIN, String::new());
    for attempt in 0..ATTEMPTS_MAX {
        if attempt > 0 {
            sleep(delay).await;
            delay = (delay * 2).min(RETRY_DELAY_MAX);
        }
        let results = delivery.delete(keys.clone()).await;
        let mut refused = Vec::new();
        for (key, result) in keys.into_iter().zip(results) {
            match result {
                DeleteResult::Applied => applied += 1,
                DeleteResult::Unroutable(_) => unroutable += 1,
                DeleteResult::Refused(why) => {
                    refusal = why;
                    refused.push(key);
                }
            }
        }
        keys = refused;
        if keys.is_empty() {
            return Ok((applied, unroutable));
        }
    }
    Err(refusal)
}

/// Spreads deletes over time.
struct Pace {
    per_s_max: u32,
    batch_keys_max: usize,
    /// When the next batch may be sent.
    next_at: Instant,
}

impl Pace {
    fn new(per_s_max: u32) -> Pace {
        let batch_keys_max = (per_s_max / BATCHES_PER_S).max(1) as usize;
        Pace { per_s_max, batch_keys_max: batch_keys_max.min(BATCH_KEYS_MAX), next_at: Instant::now() }
    }

    /// Waits until a batch of `keys` may be sent.
    async fn wait(&mut self, keys: usize) {
        sleep_until(self.next_at).await;
        // A replay that was held up does not catch up by a burst.
        self.next_at = self.next_at.max(Instant::now()) + Duration::from_secs(keys as u64) / self.per_s_max;
    }
}
