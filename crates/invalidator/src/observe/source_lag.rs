//! How far each cluster's saved position is behind the log.
//!
//! The end of the log is looked up every [`LOOKUP_INTERVAL`], once for all clusters. A cluster is behind since the
//! first look-up that its position has not reached yet, so no clock of the database is involved, and the age is too
//! small by an interval at most.
//!
//! Each look-up connects and checks the database as a start does. What it fails for, an unsafe setting or a
//! changed password, does not disturb a source that is open (`source_lookups`).

use super::stats::Statistics;
use crate::{
    Position,
    source::{CommitLog, LogLookup},
};
use std::{collections::VecDeque, sync::Arc, time::Duration};
use tokio::time::{Instant, sleep};

/// How often the end of the log is looked up: some queries, over a connection of their own.
pub const LOOKUP_INTERVAL: Duration = Duration::from_secs(5);
/// The most look-ups that are kept for a cluster that is behind: those of more than an hour. After that its age is
/// still right until it has caught up with them.
const LOOKUPS_MAX: usize = 1_000;

/// How far a saved position is behind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceLag {
    /// For how long; 0 if it is at the end.
    pub behind_for: Duration,
    /// By how many transactions; `None` if positions do not show that.
    pub transactions: Option<u64>,
    /// How many transaction ids were given out since, as an estimate; `None` if ids do not grow with time.
    pub transaction_ids: Option<u64>,
    /// By how many bytes of the log; `None` if that is not known.
    pub bytes: Option<u64>,
}

/// Looks up the end of the log repeatedly, and records the lag of every cluster. `logs` has the log that each cluster
/// reads, in the order of `statistics`: all are of one database. Never returns.
pub async fn watch(logs: Vec<Arc<dyn CommitLog>>, statistics: Arc<Statistics>) {
    let mut earlier: Vec<EarlierLookups> = logs.iter().map(|_| EarlierLookups::default()).collect();
    loop {
        let lookup = match logs.first() {
            Some(log) => log.look_up().await,
            None => return,
        };
        // A start from a position that an earlier process has saved counts once the log is open.
        let has_read = statistics.clusters().iter().any(|cluster| cluster.saved_position().is_some());
        statistics.source_lookups.record(&lookup, has_read);
        let lookup = lookup.ok();
        for ((cluster, log), earlier) in statistics.clusters().iter().zip(&logs).zip(&mut earlier) {
            let lag = lookup.as_ref().zip(cluster.saved_position());
            cluster.set_source_lag(lag.map(|(lookup, saved)| earlier.lag_behind(&**log, &saved, lookup)));
        }
        sleep(LOOKUP_INTERVAL).await;
    }
}

/// A look-up that is kept.
#[derive(Debug)]
struct EarlierLookup {
    at: Instant,
    newest: Position,
    next_transaction_id: Option<u64>,
}

/// The look-ups by which the lag of one cluster is known.
#[derive(Debug, Default)]
struct EarlierLookups {
    /// The newest that its position has reached.
    reached: Option<EarlierLookup>,
    /// Those that it has not reached.
    unreached: VecDeque<EarlierLookup>,
}

impl EarlierLookups {
    /// How far `saved` is behind the end that `lookup` has found now.
    fn lag_behind(&mut self, log: &dyn CommitLog, saved: &Position, lookup: &LogLookup) -> SourceLag {
        let (at, newest) = (Instant::now(), lookup.newest.clone());
        let now = EarlierLookup { at, newest, next_transaction_id: lookup.next_transaction_id };
        if log.covers(saved, &lookup.newest) {
            self.unreached.clear();
            self.reached = Some(now);
        } else {
            while self.unreached.front().is_some_and(|earlier| log.covers(saved, &earlier.newest)) {
                self.reached = self.unreached.pop_front();
            }
            if self.unreached.len() < LOOKUPS_MAX {
                self.unreached.push_back(now);
            }
        }
        SourceLag {
            behind_for: self.unreached.front().map_or(Duration::ZERO, |earlier| at - earlier.at),
            transactions: log.distance(saved, &lookup.newest).transactions,
            transaction_ids: self.transaction_ids_behind(log, saved, lookup),
            bytes: log.bytes_behind(saved, lookup),
        }
    }

    /// The ids given out after `saved`. Positions do not show ids, so the id there is estimated by the bytes between
    /// the look-ups before and after it; `None` until it has reached a look-up.
    fn transaction_ids_behind(&self, log: &dyn CommitLog, saved: &Position, lookup: &LogLookup) -> Option<u64> {
        let next = lookup.next_transaction_id?;
        let Some(after) = self.unreached.front() else { return Some(0) };
        let before = self.reached.as_ref()?;
        let first = before.next_transaction_id?;
        let ids = u128::from(after.next_transaction_id?.saturating_sub(first));
        let bytes_to = |position: &Position| log.distance(&before.newest, position).bytes.map(u128::from);
        let (read, all) = (bytes_to(saved)?, bytes_to(&after.newest)?);
        let passed = ids * read.min(all) / all.max(1);
        Some(next.saturating_sub(first).saturating_sub(passed.try_into().unwrap_or(u64::MAX)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{LogDistance, OpenedSource, SourceError, Start};
    use lookaside_routing::BoxFuture;
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

    /// A log that has commits up to a number, of 100 bytes each; each takes two transaction ids.
    struct Log(AtomicU64);

    impl CommitLog for Log {
        fn identity(&self) -> BoxFuture<'_, Result<String, SourceError>> {
            unreachable!("the lag needs no identity")
        }

        fn open<'a>(&'a self, _: &'a Start) -> BoxFuture<'a, Result<OpenedSource, SourceError>> {
            unreachable!("the lag reads no log")
        }

        fn newest_position(&self) -> BoxFuture<'_, Result<Position, SourceError>> {
            Box::pin(async { Ok(Position(self.0.load(Relaxed).to_string())) })
        }

        fn look_up(&self) -> BoxFuture<'_, Result<LogLookup, SourceError>> {
            Box::pin(async {
                let newest = self.newest_position().await?;
                let next_transaction_id = Some(1_000 + 2 * number(&newest));
                Ok(LogLookup { newest, next_transaction_id, ..LogLookup::default() })
            })
        }

        fn covers(&self, position: &Position, other: &Position) -> bool {
            number(position) >= number(other)
        }

        fn distance(&self, from: &Position, to: &Position) -> LogDistance {
            let transactions = number(to) - number(from);
            LogDistance { transactions: Some(transactions), bytes: Some(transactions * 100) }
        }
    }

    fn number(position: &Position) -> u64 {
        position.0.parse().expect("a number")
    }

    /// The lag after each step, which has the end of the log and the saved position.
    async fn lags(steps: &[(u64, Option<u64>)]) -> Vec<Option<SourceLag>> {
        let (log, statistics) = (Arc::new(Log(AtomicU64::new(0))), Statistics::new(["one"]));
        let cluster = statistics.clusters()[0].clone();
        tokio::spawn(watch(vec![log.clone()], statistics));
        let mut seen = Vec::new();
        for &(newest, saved) in steps {
            log.0.store(newest, Relaxed);
            saved.into_iter().for_each(|saved| cluster.set_saved_position(Position(saved.to_string())));
            sleep(LOOKUP_INTERVAL).await;
            seen.push(cluster.locked.lock().source_lag.clone());
        }
        seen
    }

    #[tokio::test(start_paused = true)]
    async fn cluster_is_behind_since_the_first_end_of_the_log_that_it_has_not_reached() {
        let steps = [(0, None), (0, Some(0)), (10, Some(0)), (20, Some(5)), (30, Some(10)), (30, Some(30))];
        let shown = |lag: SourceLag| (lag.behind_for.as_secs(), lag.transactions, lag.bytes);
        let shown: Vec<_> = lags(&steps).await.into_iter().map(|lag| lag.map(shown)).collect();
        let lag = |seconds, transactions| Some((seconds, Some(transactions), Some(transactions * 100)));
        assert_eq!(shown, [None, lag(0, 0), lag(0, 10), lag(5, 15), lag(5, 20), lag(0, 0)]);
    }

    #[tokio::test(start_paused = true)]
    async fn transaction_ids_are_estimated_by_bytes_once_a_look_up_was_reached() {
        let steps = [
            (10, Some(5)),
            (20, Some(8)),
            (30, Some(10)),
            (40, Some(25)),
            (50, Some(39)),
            (60, Some(60)),
            (62, Some(61)),
        ];
        let ids: Vec<_> = lags(&steps).await.into_iter().map(|lag| lag.and_then(|lag| lag.transaction_ids)).collect();
        assert_eq!(ids, [None, None, Some(40), Some(30), Some(22), Some(0), Some(2)]);
    }
}
