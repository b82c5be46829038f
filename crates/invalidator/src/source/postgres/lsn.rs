//! Positions in the write-ahead log, and PostgreSQL's clock.

use crate::{Position, SourceError};
use std::{
    fmt,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

/// A byte position in the write-ahead log, written as PostgreSQL does: `16/B374D848`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Lsn(pub u64);

/// The header of a page of the log, and that of the first page of a segment.
const PAGE_HEADER_BYTES: u64 = 24;
const SEGMENT_HEADER_BYTES: u64 = 40;

impl Lsn {
    /// Parses `16/B374D848`; `None` if it is anything else.
    pub fn parse(text: &str) -> Option<Lsn> {
        let (high, low) = text.split_once('/')?;
        let part = |text: &str| u32::from_str_radix(text, 16).ok().filter(|_| !text.starts_with('+'));
        Some(Lsn(u64::from(part(high)?) << 32 | u64::from(part(low)?)))
    }

    /// The end of the last record, if the next one begins here. They differ on a fresh page, which begins with a
    /// header: a reader of the log does not get behind the header before there is a record.
    pub(super) fn end_before(self, block_bytes: u64, segment_bytes: u64) -> Lsn {
        let is_segment_start = self.0.checked_rem(segment_bytes) == Some(SEGMENT_HEADER_BYTES);
        match self.0.checked_rem(block_bytes) {
            Some(PAGE_HEADER_BYTES) => Lsn(self.0 - PAGE_HEADER_BYTES),
            _ if is_segment_start => Lsn(self.0 - SEGMENT_HEADER_BYTES),
            _ => self,
        }
    }

    /// The position of which nothing else is known.
    pub(super) fn position(self) -> Position {
        Position(self.to_string())
    }
}

/// A position and the timeline that it is on: `16/B374D848@2`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LogPosition {
    pub lsn: Lsn,
    /// `None` if it is unknown, as in what earlier versions have saved: `16/B374D848`.
    pub timeline: Option<u32>,
}

impl LogPosition {
    pub fn parse(position: &Position) -> Option<LogPosition> {
        let (lsn, timeline) = match position.0.split_once('@') {
            Some((lsn, timeline)) => (lsn, Some(timeline.parse().ok().filter(|_| !timeline.starts_with('+'))?)),
            None => (position.0.as_str(), None),
        };
        Some(LogPosition { lsn: Lsn::parse(lsn)?, timeline })
    }

    pub fn of_position(position: &Position) -> Result<LogPosition, SourceError> {
        LogPosition::parse(position).ok_or_else(|| SourceError::Unusable {
            why: format!("a position in PostgreSQL's log is like 16/B374D848@1, not {:?}", position.0),
        })
    }

    pub fn position(self) -> Position {
        Position(match self.timeline {
            Some(timeline) => format!("{}@{timeline}", self.lsn),
            None => self.lsn.to_string(),
        })
    }
}

/// The place of `position` in the log, whatever its timeline is.
pub(super) fn lsn_of(position: &Position) -> Option<Lsn> {
    LogPosition::parse(position).map(|position| position.lsn)
}

impl fmt::Display for Lsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:X}/{:X}", self.0 >> 32, self.0 & 0xffff_ffff)
    }
}

/// PostgreSQL counts microseconds from 2000-01-01.
const EPOCH: Duration = Duration::from_secs(946_684_800);

pub(super) fn time_of(us: i64) -> SystemTime {
    UNIX_EPOCH + EPOCH + Duration::from_micros(us.max(0) as u64)
}

pub(super) fn us_of(time: SystemTime) -> i64 {
    let since = time.duration_since(UNIX_EPOCH + EPOCH).unwrap_or_default();
    i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_are_written_as_they_are_read() {
        for text in ["0/0", "16/B374D848", "FFFFFFFF/FFFFFFFF"] {
            assert_eq!(Lsn::parse(text).expect("a position").to_string(), text);
        }
        for text in ["", "1", "1/", "/1", "1/100000000", "x/1", "+1/1", "1/1/1"] {
            assert_eq!(Lsn::parse(text), None, "{text}");
        }
        assert!(Lsn::parse("1/0") > Lsn::parse("0/FFFFFFFF"));
    }

    #[test]
    fn a_position_with_its_timeline_is_written_as_it_is_read() {
        for (text, timeline) in [("16/B374D848@2", Some(2)), ("16/B374D848", None)] {
            let position = Position(text.into());
            let parsed = LogPosition::parse(&position).expect("a position");
            assert_eq!((parsed.position(), parsed.timeline, parsed.lsn), (position, timeline, Lsn(0x16_b374_d848)));
        }
        for text in ["16/B374D848@", "@2", "16/B374D848@+2", "16/B374D848@2@3", "16/B374D848@x"] {
            assert_eq!(LogPosition::parse(&Position(text.into())), None, "{text}");
        }
    }

    #[test]
    fn a_record_ends_before_the_header_of_the_next_page() {
        let end = |lsn| Lsn(lsn).end_before(8192, 1 << 24).0;
        assert_eq!((end(8192 + 24), end((1 << 24) + 40)), (8192, 1 << 24));
        assert_eq!((end(8192), end(8192 + 32), end(8192 + 40)), (8192, 8192 + 32, 8192 + 40));
    }

    #[test]
    fn times_are_counted_from_2000() {
        let time = time_of(1_500_000);
        assert_eq!(time.duration_since(UNIX_EPOCH).expect("later"), Duration::from_millis(946_684_801_500));
        assert_eq!(us_of(time), 1_500_000);
    }
}
