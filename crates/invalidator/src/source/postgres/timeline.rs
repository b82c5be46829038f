//! Timelines: which part of a server's log is that of its former primary.
//!
//! A promoted standby begins a new timeline where the log that it had received ended, the fork. Positions on both sides
//! look alike, so a position has the number of its timeline, too (`16/B374D848@2`). Whether a server's log continues
//! that of a former one is then seen from the forks, however much the server has written since:
//!
//! ```text
//! timeline 1   ------A------------B      read up to B: the log of timeline 2 is another one behind the fork
//! timeline 2         fork ------------   read up to A, or exactly up to the fork: timeline 2 goes on there
//! ```
//!
//! | the timeline of the position | |
//! |---|---|
//! | that of the server | it goes on |
//! | a former one of the server's, up to a fork that is not before the position | it goes on |
//! | a former one, with a fork before the position | the position is lost |
//! | none of the server's: a former primary is back, or another standby was promoted | the position is lost |
//! | unknown, as an earlier version has not saved it | it goes on, and is known from then on |
//!
//! Not seen: two standbys of one primary, both promoted from the same timeline without knowing of each other, give
//! their new timelines the same number.

use super::{
    connection::{PostgresConnection, QueryError, protocol_error},
    lsn::{LogPosition, Lsn},
    slot::{column, first_row},
};
use crate::SourceError;
use lookaside_sync::Mutex;
use std::sync::Arc;

/// The identity and the timeline of a log, which several share; `None` if none is known.
pub(super) type SharedLogId = Arc<Mutex<Option<(String, Option<u32>)>>>;

/// The timelines of a server's log.
#[derive(Clone, Debug, Default)]
pub(super) struct Timelines {
    /// `None` if it is unknown.
    current: Option<u32>,
    /// The former ones and where they end, the oldest first; empty if reading begins behind them all.
    former: Vec<(u32, Lsn)>,
}

impl Timelines {
    /// The timelines of the server of `connection`, which is one for replication. Fails if its log does not continue
    /// the one that `from` was read from, and `delivered`: a cluster that has got more than is read again from `from`
    /// skips it.
    pub async fn read(
        connection: &mut PostgresConnection,
        from: LogPosition,
        delivered: LogPosition,
    ) -> Result<Timelines, SourceError> {
        let row = first_row(connection, "IDENTIFY_SYSTEM").await?;
        let current: u32 = column(&row, 1)?.parse().map_err(|_| protocol_error("a malformed timeline"))?;
        let known = [from, delivered].map(|position| position.timeline.unwrap_or(current));
        let former = match known.iter().any(|timeline| *timeline < current) {
            true => read_history(connection, current).await?,
            false => Vec::new(),
        };
        for (position, timeline) in [from, delivered].into_iter().zip(known) {
            check_fork(&former, timeline, position.lsn, current)
                .map_err(|why| SourceError::PositionLost { position: from.position(), why })?;
        }
        if known[0] < current {
            tracing::info!(timeline = current, former = known[0], "a promoted standby continues the log");
        }
        Ok(Timelines { current: Some(current), former })
    }

    /// The one that the server writes.
    pub fn current(&self) -> Option<u32> {
        self.current
    }

    /// The position `lsn` of this log.
    pub fn position(&self, lsn: Lsn) -> LogPosition {
        let former = self.former.iter().find(|(_, end)| lsn <= *end).map(|(timeline, _)| *timeline);
        LogPosition { lsn, timeline: former.or(self.current) }
    }
}

/// The former timelines of the server, which is on the timeline `current`.
async fn read_history(connection: &mut PostgresConnection, current: u32) -> Result<Vec<(u32, Lsn)>, SourceError> {
    match connection.query(&format!("TIMELINE_HISTORY {current}")).await {
        Ok(rows) => parse_history(column(rows.first().unwrap_or(&Vec::new()), 1)?),
        Err(QueryError::Server(error)) => {
            let why = format!("the server does not show the history of its timeline {current}: {error}");
            Err(SourceError::Unreachable { why })
        }
        Err(QueryError::Source(error)) => Err(error),
    }
}

/// Fails with the reason if a log on the timeline `current`, with these former ones, does not have what was read of
/// `timeline` up to `read`.
fn check_fork(former: &[(u32, Lsn)], timeline: u32, read: Lsn, current: u32) -> Result<(), String> {
    if timeline == current {
        return Ok(());
    }
    if timeline > current {
        return Err(format!("the server is on timeline {current}: it is a former primary that is back"));
    }
    match former.iter().find(|(number, _)| *number == timeline) {
        None => Err(format!("the log of the server, of timeline {current}, never was on timeline {timeline}")),
        Some((_, fork)) if *fork < read => Err(format!(
            "the server's timeline {current} left timeline {timeline} at {fork}: it is a promoted standby that had \
             received less, and a cluster has got all up to {read}"
        )),
        Some(_) => Ok(()),
    }
}

/// The lines of a timeline's history: a former timeline, where it ends, and why, which is for readers.
fn parse_history(text: &str) -> Result<Vec<(u32, Lsn)>, SourceError> {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let parsed = lines.map(|line| {
        let mut words = line.split_whitespace();
        Some((words.next()?.parse().ok()?, Lsn::parse(words.next()?)?))
    });
    parsed.collect::<Option<_>>().ok_or_else(|| protocol_error("a malformed history of a timeline"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_is_on_the_first_timeline_that_reaches_it() {
        let former = parse_history("1\t0/3000\tno recovery target specified\n\n# a comment\n2\t0/5000\tbefore x\n");
        let timelines = Timelines { current: Some(3), former: former.expect("a history") };
        let number = |lsn| timelines.position(Lsn(lsn)).timeline;
        assert_eq!([0x2000, 0x3000, 0x3001, 0x5000, 0x5001].map(number), [1, 1, 2, 2, 3].map(Some));
        assert!(parse_history("1").is_err() && parse_history("x\t0/1").is_err());
    }

    #[test]
    fn what_was_read_behind_the_fork_is_lost() {
        let former = [(1, Lsn(0x3000)), (3, Lsn(0x5000))];
        let check = |timeline, read| check_fork(&former, timeline, Lsn(read), 4);
        assert_eq!((check(1, 0x3000), check(3, 0x4000)), (Ok(()), Ok(())));
        assert!(check(1, 0x3001).is_err_and(|why| why.contains("0/3000")));
        assert!(check(2, 0x1000).is_err_and(|why| why.contains("never")), "another standby's timeline");
        assert_eq!(check(4, 0x9000), Ok(()));
        assert!(check(5, 0x1000).is_err_and(|why| why.contains("former primary")));
    }
}
