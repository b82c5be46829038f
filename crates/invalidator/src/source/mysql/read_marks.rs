//! Where in the server's files the positions lie that were read: GTIDs do not show that.
//!
//! Serves the lag in bytes. A mark is made for each position that is returned, and one for the position where reading
//! begins. Marks close to each other are merged, so that a cluster which is far behind its reader needs little memory:
//! the lag is too large by the distance of two marks at most, or by one batch of commits.

use super::gtid;
use crate::{LogFile, Position};
use std::collections::VecDeque;

/// The most marks that are kept. If there are more, every second one is dropped.
const MARKS_MAX: usize = 1_000;
/// Marks closer than this are merged, at first.
const SPACING_MIN_BYTES: u64 = 64 << 10;

/// The marks of one reader, in the order of the log.
#[derive(Debug)]
pub(super) struct ReadMarks {
    marks: VecDeque<ReadMark>,
    spacing_bytes: u64,
}

#[derive(Debug)]
struct ReadMark {
    position: Position,
    file: String,
    /// All of the file before this belongs to the position.
    offset: u64,
}

impl Default for ReadMarks {
    fn default() -> ReadMarks {
        ReadMarks { marks: VecDeque::new(), spacing_bytes: SPACING_MIN_BYTES }
    }
}

impl ReadMarks {
    /// Forgets all: reading begins again, maybe at another server.
    pub fn clear(&mut self) {
        *self = ReadMarks::default();
    }

    /// Records that `position` lies at `offset` in `file`. It is not before the one that was recorded last.
    pub fn record(&mut self, position: &Position, file: &str, offset: u64) {
        let before = self.marks.len().checked_sub(2).and_then(|index| self.marks.get(index));
        // The last one always shows how far reading is.
        if before.is_some_and(|mark| mark.file == file && offset.saturating_sub(mark.offset) < self.spacing_bytes) {
            self.marks.pop_back();
        }
        self.marks.push_back(ReadMark { position: position.clone(), file: file.to_owned(), offset });
        if self.marks.len() > MARKS_MAX {
            let mut index = 0;
            self.marks.retain(|_| {
                index += 1;
                index % 2 == 1
            });
            self.spacing_bytes *= 2;
        }
    }

    /// The bytes of `files`, the oldest first, after `position`; `None` if it was not read. Forgets the marks before
    /// it.
    pub fn bytes_after(&mut self, position: &Position, files: &[LogFile]) -> Option<u64> {
        let reached = self.marks.partition_point(|mark| gtid::covers(&position.0, &mark.position.0));
        self.marks.drain(..reached.checked_sub(1)?);
        let mark = self.marks.front()?;
        let (_, from) = files.split_at(files.iter().position(|file| file.name == mark.file)?);
        let bytes = from.iter().fold(0, |sum: u64, file| sum.saturating_add(file.bytes));
        Some(bytes.saturating_sub(mark.offset))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn position(sequence: u64) -> Position {
        Position(format!("0-1-{sequence}"))
    }

    fn files(bytes: &[u64]) -> Vec<LogFile> {
        bytes.iter().zip(1..).map(|(&bytes, number)| LogFile { name: format!("log.{number}"), bytes }).collect()
    }

    #[test]
    fn bytes_are_counted_from_the_newest_mark_that_was_reached() {
        let mut marks = ReadMarks::default();
        let log = files(&[10_000_000, 2_000_000, 500_000]);
        assert_eq!(marks.bytes_after(&position(1), &log), None, "nothing was read");
        for (sequence, file, offset) in [(10, "log.1", 4_000), (20, "log.1", 9_000_000), (30, "log.2", 200_000)] {
            marks.record(&position(sequence), file, offset);
        }
        assert_eq!(marks.bytes_after(&position(9), &log), None, "it is before all that was read");
        assert_eq!(marks.bytes_after(&position(10), &log), Some(12_496_000));
        assert_eq!(marks.bytes_after(&position(29), &log), Some(3_500_000));
        assert_eq!(marks.bytes_after(&position(30), &log), Some(2_300_000));
        assert_eq!(marks.bytes_after(&position(30), &files(&[1])), None, "its file is gone");
    }

    #[test]
    fn marks_are_few_however_far_the_reader_is_ahead() {
        let mut marks = ReadMarks::default();
        let log = files(&[4_000_000_000]);
        for sequence in 1..=400_000 {
            marks.record(&position(sequence), "log.1", sequence * 10_000);
        }
        assert!(marks.marks.len() <= MARKS_MAX, "{}", marks.marks.len());
        for behind in [300_000, 10_000, 1, 0] {
            let bytes = marks.bytes_after(&position(400_000 - behind), &log).expect("it was read");
            let exact = behind * 10_000;
            assert!((exact..=exact + 2 * marks.spacing_bytes).contains(&bytes), "{behind}: {bytes}");
        }
    }
}
