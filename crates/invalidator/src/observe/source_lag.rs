//! How far each cluster's saved position is behind the log, and whether the database can still be used as a source.
//!
//! The end of the log is looked up every [`LOOKUP_INTERVAL`], once for all clusters. A cluster is behind since the first
//! look-up that its position has not reached yet, so no clock of the database is involved, and the age is too small by
//! an interval at most.
//!
//! Each look-up connects and checks the database as a start does. What would refuse a start, as a setting that hides keys
//! from new sessions or a changed password, does not disturb a source that is open.

use super::stats::Statistics;
use crate::{
    Position,
    source::{CommitLog, LogDistance, SourceError},
};
use std::{collections::VecDeque, sync::Arc, time::Duration};
use tokio::time::{Instant, sleep};

/// How often the end of the log is looked up: some queries, over a connection of their own.
pub const LOOKUP_INTERVAL: Duration = Duration::from_secs(5);
/// The most look-ups that are kept for a cluster that is behind: those of more than an hour. After that its age is still
/// right until it has caught up with them.
const LOOKUPS_MAX: usize = 1_000;

/// How far a saved position is behind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceLag {
    /// For how long; 0 if it is at the end.
    pub behind_for: Duration,
    /// By how much.
    pub distance: LogDistance,
}

/// Looks up the end of `log` repeatedly, and records the lag of every cluster. Never returns.
pub async fn watch(log: Arc<dyn CommitLog>, statistics: Arc<Statistics>) {
    let mut unreached = vec![VecDeque::new(); statistics.clusters().len()];
    loop {
        let newest = log.newest_position().await;
        record_unusable(&newest, &statistics);
        let newest = newest.ok();
        for (cluster, unreached) in statistics.clusters().iter().zip(&mut unreached) {
            let lag = newest.as_ref().zip(cluster.saved_position());
            cluster.set_source_lag(lag.map(|(newest, saved)| lag_behind(&*log, &saved, newest, unreached)));
        }
        sleep(LOOKUP_INTERVAL).await;
    }
}

/// Shows and logs whether a start would be refused, as far as a look-up tells.
fn record_unusable(newest: &Result<Position, SourceError>, statistics: &Statistics) {
    let unusable = match newest {
        Ok(_) => None,
        Err(SourceError::Unusable { why }) => Some(why.clone()),
        Err(_) => return,
    };
    let mut shown = statistics.source_unusable.lock();
    if *shown == unusable {
        return;
    }
    match &unusable {
        Some(why) => {
            tracing::error!(why, "a start would be refused now; if a setting hides keys, DELETES ARE LOST from now on")
        }
        None => {
            tracing::warn!("a start would not be refused any more; if a setting has hidden keys, flush the clusters")
        }
    }
    *shown = unusable;
}

/// How far `saved` is behind `newest`, which was looked up now. `unreached` has the earlier look-ups that were not
/// reached.
fn lag_behind(
    log: &dyn CommitLog,
    saved: &Position,
    newest: &Position,
    unreached: &mut VecDeque<(Instant, Position)>,
) -> SourceLag {
    let now = Instant::now();
    while unreached.front().is_some_and(|(_, position)| log.covers(saved, position)) {
        unreached.pop_front();
    }
    if !log.covers(saved, newest) && unreached.len() < LOOKUPS_MAX {
        unreached.push_back((now, newest.clone()));
    }
    let behind_for = unreached.front().map_or(Duration::ZERO, |(looked_up_at, _)| now - *looked_up_at);
    SourceLag { behind_for, distance: log.distance(saved, newest) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{OpenedSource, Start};
    use lookaside_routing::BoxFuture;
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

    /// A log that has commits up to a number; with [`UNUSABLE`] its database is not set up as it must be.
    struct Log(AtomicU64);

    const UNUSABLE: u64 = u64::MAX;

    impl CommitLog for Log {
        fn identity(&self) -> BoxFuture<'_, Result<String, SourceError>> {
            unreachable!("the lag needs no identity")
        }

        fn open<'a>(&'a self, _: &'a Start) -> BoxFuture<'a, Result<OpenedSource, SourceError>> {
            unreachable!("the lag reads no log")
        }

        fn newest_position(&self) -> BoxFuture<'_, Result<Position, SourceError>> {
            Box::pin(async {
                match self.0.load(Relaxed) {
                    UNUSABLE => Err(SourceError::Unusable { why: "SET GLOBAL a = ON".into() }),
                    number => Ok(Position(number.to_string())),
                }
            })
        }

        fn covers(&self, position: &Position, other: &Position) -> bool {
            number(position) >= number(other)
        }

        fn distance(&self, from: &Position, to: &Position) -> LogDistance {
            LogDistance { transactions: Some(number(to) - number(from)), bytes: None }
        }
    }

    fn number(position: &Position) -> u64 {
        position.0.parse().expect("a number")
    }

    /// A setting that was changed while the log was read hid the keys of all new sessions. Each look-up noticed it, and
    /// dropped the reason.
    #[tokio::test(start_paused = true)]
    async fn settings_that_hide_keys_are_shown() {
        let (log, statistics) = (Arc::new(Log(AtomicU64::new(0))), Statistics::new(["one"]));
        tokio::spawn(watch(log.clone(), statistics.clone()));
        for (newest, is_unusable) in [(0, false), (UNUSABLE, true), (UNUSABLE, true), (1, false)] {
            log.0.store(newest, Relaxed);
            sleep(LOOKUP_INTERVAL).await;
            let now = std::time::SystemTime::UNIX_EPOCH;
            let report = statistics.report(now);
            let stat = |name: &str| report.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_str());
            assert_eq!(stat("source_unusable"), Some(if is_unusable { "1" } else { "0" }));
            assert_eq!(stat("source_unusable_why"), is_unusable.then_some("SET GLOBAL a = ON"));
            let metric = format!("\nlookaside_invalidator_source_unusable {}\n", u8::from(is_unusable));
            let metrics = super::super::prometheus::render(&statistics, now);
            assert!(metrics.contains(&metric), "{metrics}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn cluster_is_behind_since_the_first_end_of_the_log_that_it_has_not_reached() {
        let (log, statistics) = (Arc::new(Log(AtomicU64::new(0))), Statistics::new(["one"]));
        let cluster = statistics.clusters()[0].clone();
        let lag = || {
            let lag = cluster.locked.lock().source_lag.clone();
            lag.map(|lag| (lag.behind_for.as_secs(), lag.distance.transactions.unwrap_or_default()))
        };
        tokio::spawn(watch(log.clone(), statistics));
        let mut seen = Vec::new();
        // In each step: the end of the log, and the saved position.
        for (newest, saved) in [(0, None), (0, Some(0)), (10, Some(0)), (20, Some(5)), (30, Some(10)), (30, Some(30))] {
            log.0.store(newest, Relaxed);
            saved.into_iter().for_each(|saved: u64| cluster.set_saved_position(Position(saved.to_string())));
            sleep(LOOKUP_INTERVAL).await;
            seen.push(lag());
        }
        assert_eq!(seen, [None, Some((0, 0)), Some((0, 10)), Some((5, 15)), Some((5, 20)), Some((0, 0))]);
    }
}
