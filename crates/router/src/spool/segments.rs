//! The backlog of one server: a list of segment files. The writer appends at its end, the replayer removes at its
//! front. Sans-I/O; [`super::server_log`] keeps it under a lock.
//!
//! ```text
//!   writer     begin_append: where to?       ->  write, sync the file                     ->  end_append: count it
//!   replayer   next_replay: oldest segment   ->  send it, all acknowledged, remove file   ->  mark_replayed: drop it
//! ```
//!
//! Invariants:
//! * A segment that is being replayed is not extended. While the writer extends a segment, its replayer waits.
//! * One flush record stands for the whole backlog before it. A delete that is appended before `flush_all` is sent to
//!   the server needs no record, because the flush covers it too; a delete that is appended after that does.

use super::record::{Deletion, HEADER};
use super::remembered::{REMEMBERED_BYTES_MAX, RememberedDeletes};
use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A segment of at least this size is closed. A segment is read whole to be replayed.
const SEGMENT_BYTES_MAX: u64 = 4 << 20;

/// Bytes of the backlogs of all servers together.
pub(super) type TotalBytes = AtomicU64;

#[derive(Debug, Default)]
pub(super) struct Segments {
    /// The oldest first.
    list: VecDeque<Segment>,
    next_number: u64,
    /// The segment that the writer is extending.
    extended: Option<u64>,
}

#[derive(Clone, Debug)]
struct Segment {
    number: u64,
    bytes: u64,
    kind: SegmentKind,
    /// `None` once its replay has begun: a delete that arrives then must be appended.
    remembered: Option<RememberedDeletes>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SegmentKind {
    Deletes {
        deletes: u64,
        is_closed: bool,
    },
    /// `is_durable`: a file holds the flush record, so a restart finds it again. `is_started`: `flush_all` may have
    /// been sent.
    Flush {
        is_durable: bool,
        is_started: bool,
    },
}

/// Where the writer puts an append.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AppendTarget {
    /// Nowhere: a pending flush covers it.
    Covered,
    /// Into this segment, at the offset `at`. At 0 the segment is new.
    Segment { number: u64, at: u64 },
    /// Into a new segment that holds one flush record and replaces the backlog, which has become too large.
    Flush { number: u64 },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReplayAction {
    /// Send the deletes in the first `bytes` of this segment.
    SendDeletes { number: u64, bytes: u64 },
    /// Flush the server. `is_durable`: a file holds the flush record.
    Flush { number: u64, is_durable: bool },
    /// Wait until the writer has released the segment.
    Wait,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RecoveredSegment {
    Deletes {
        deletes: u64,
        bytes: u64,
    },
    /// Its content stands for the whole backlog before it. `is_durable`: the next start takes it for a flush, too.
    Flush {
        is_durable: bool,
        bytes: u64,
    },
}

/// The undelivered deletes of one server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Backlog {
    /// Spooled deletes.
    pub deletes: u64,
    /// Their bytes on disk.
    pub bytes: u64,
    /// Whether the server must be flushed before it is read.
    pub flush_pending: bool,
}

impl Backlog {
    /// Whether nothing is undelivered, so that the server may be read.
    pub fn is_empty(&self) -> bool {
        self.deletes == 0 && !self.flush_pending
    }
}

pub(super) fn file_name(number: u64) -> String {
    format!("{number:016}.deletes")
}

pub(super) fn file_number(name: &str) -> Option<u64> {
    name.strip_suffix(".deletes").filter(|digits| digits.len() == 16)?.parse().ok()
}

impl Segments {
    pub(super) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    pub(super) fn is_extended(&self) -> bool {
        self.extended.is_some()
    }

    pub(super) fn backlog(&self) -> Backlog {
        let mut backlog = Backlog::default();
        for segment in &self.list {
            backlog.bytes += segment.bytes;
            match segment.kind {
                SegmentKind::Deletes { deletes, .. } => backlog.deletes += deletes,
                SegmentKind::Flush { .. } => backlog.flush_pending = true,
            }
        }
        backlog
    }

    fn bytes(&self) -> u64 {
        self.list.iter().map(|segment| segment.bytes).sum()
    }

    /// Whether the newest segment is a flush that covers what is appended now.
    fn is_covered(&self) -> bool {
        let newest = self.list.back().map(|segment| segment.kind);
        matches!(newest, Some(SegmentKind::Flush { is_durable: true, is_started: false }))
    }

    /// Adds a segment that was found on disk.
    pub(super) fn add_recovered(&mut self, number: u64, recovered: RecoveredSegment, total: &TotalBytes) {
        self.skip_number(number);
        let (bytes, kind) = match recovered {
            RecoveredSegment::Deletes { deletes, bytes } => (bytes, SegmentKind::Deletes { deletes, is_closed: true }),
            RecoveredSegment::Flush { is_durable, bytes } => {
                (bytes, SegmentKind::Flush { is_durable, is_started: false })
            }
        };
        self.list.push_back(Segment { number, bytes, kind, remembered: None });
        total.fetch_add(bytes, Relaxed);
    }

    /// Never gives a new segment this number.
    pub(super) fn skip_number(&mut self, number: u64) {
        self.next_number = self.next_number.max(number + 1);
    }

    /// Those of `deletions` that must be appended: without the ones that the server will receive after this call
    /// in any case.
    pub(super) fn without_repeats<'a>(&self, deletions: impl Iterator<Item = &'a Deletion>) -> Vec<Deletion> {
        let remembered: Vec<_> = self.list.iter().filter_map(|segment| segment.remembered.as_ref()).collect();
        let mut first = BTreeSet::new();
        let is_new = |deletion: &&'a Deletion| {
            !remembered.iter().any(|remembered| remembered.contains(deletion)) && first.insert(*deletion)
        };
        deletions.filter(is_new).cloned().collect()
    }

    /// Remembers deletes that have been written to this segment, unless its replay has begun.
    pub(super) fn remember<'a>(&mut self, number: u64, deletions: impl Iterator<Item = &'a Deletion>) {
        let bytes_used: u64 =
            self.list.iter().flat_map(|segment| &segment.remembered).map(RememberedDeletes::bytes).sum();
        let segment = self.list.iter_mut().find(|segment| segment.number == number);
        if let Some(remembered) = segment.and_then(|segment| segment.remembered.as_mut()) {
            remembered.extend(deletions, REMEMBERED_BYTES_MAX - bytes_used);
        }
    }

    pub(super) fn begin_append(
        &mut self,
        bytes: u64,
        bytes_max: u64,
        total: &TotalBytes,
        total_bytes_max: u64,
    ) -> AppendTarget {
        if self.is_covered() {
            return AppendTarget::Covered;
        }
        let target = match self.list.back() {
            _ if self.bytes() + bytes > bytes_max || total.load(Relaxed) + bytes > total_bytes_max => {
                AppendTarget::Flush { number: self.next_number }
            }
            Some(Segment { number, bytes: at, kind: SegmentKind::Deletes { is_closed: false, .. }, .. })
                if *at < SEGMENT_BYTES_MAX =>
            {
                AppendTarget::Segment { number: *number, at: *at }
            }
            _ => AppendTarget::Segment { number: self.next_number, at: 0 },
        };
        match target {
            AppendTarget::Segment { number, at } if at > 0 => self.extended = Some(number),
            _ => self.next_number += 1,
        }
        target
    }

    /// Starts to replace the backlog by a flush record.
    pub(super) fn begin_flush(&mut self) -> AppendTarget {
        if self.is_covered() {
            return AppendTarget::Covered;
        }
        let number = self.next_number;
        self.next_number += 1;
        AppendTarget::Flush { number }
    }

    /// Finishes an append: `written` is the number of records and their bytes. Segments that a flush record has
    /// replaced are added to `replaced`; their files can be removed.
    pub(super) fn end_append(
        &mut self,
        target: AppendTarget,
        written: Result<(u64, u64), &io::Error>,
        total: &TotalBytes,
        replaced: &mut Vec<u64>,
    ) {
        self.extended = None;
        match (target, written) {
            // The flush that covers it is pending still; or it is done, and covered this too.
            (AppendTarget::Covered, _) => {}
            (AppendTarget::Flush { .. } | AppendTarget::Segment { at: 0, .. }, Err(_)) => {}
            (AppendTarget::Segment { number, at: 0 }, Ok((deletes, bytes))) => {
                let kind = SegmentKind::Deletes { deletes, is_closed: false };
                let bytes = bytes + HEADER.len() as u64;
                total.fetch_add(bytes, Relaxed);
                let remembered = Some(RememberedDeletes::default());
                self.list.push_back(Segment { number, bytes, kind, remembered });
            }
            (AppendTarget::Segment { number, .. }, written) => {
                let segment = self.list.iter_mut().find(|segment| segment.number == number);
                let segment = segment.expect("the replayer does not drop a segment that is being extended");
                let SegmentKind::Deletes { deletes, is_closed } = &mut segment.kind else {
                    unreachable!("only segments of deletes are extended")
                };
                match written {
                    Ok((added, bytes)) => {
                        *deletes += added;
                        segment.bytes += bytes;
                        total.fetch_add(bytes, Relaxed);
                    }
                    // The bytes behind the valid ones are unknown now, so nothing may follow them.
                    Err(_) => *is_closed = true,
                }
            }
            (AppendTarget::Flush { number }, Ok((_, bytes))) => {
                let bytes = bytes + HEADER.len() as u64;
                let freed = self.bytes();
                replaced.extend(self.list.drain(..).map(|segment| segment.number));
                total.fetch_sub(freed, Relaxed);
                total.fetch_add(bytes, Relaxed);
                let kind = SegmentKind::Flush { is_durable: true, is_started: false };
                self.list.push_back(Segment { number, bytes, kind, remembered: None });
            }
        }
    }

    /// The next action of the replayer. `None` if the backlog is empty.
    pub(super) fn next_replay(&mut self) -> Option<ReplayAction> {
        let extended = self.extended;
        let segment = self.list.front_mut()?;
        if Some(segment.number) == extended {
            return Some(ReplayAction::Wait);
        }
        Some(match segment {
            Segment { number, bytes, kind: SegmentKind::Deletes { is_closed, .. }, remembered } => {
                *is_closed = true;
                *remembered = None;
                ReplayAction::SendDeletes { number: *number, bytes: *bytes }
            }
            Segment { number, kind: SegmentKind::Flush { is_started, is_durable }, .. } => {
                *is_started = true;
                ReplayAction::Flush { number: *number, is_durable: *is_durable }
            }
        })
    }

    /// The server may not have been flushed. What is appended from now on is covered by the next attempt.
    pub(super) fn flush_failed(&mut self, number: u64) {
        for segment in &mut self.list {
            if let SegmentKind::Flush { is_started, .. } = &mut segment.kind
                && segment.number == number
            {
                *is_started = false;
            }
        }
    }

    /// A segment is unreadable: it is not known which deletes it held, so the server must be flushed.
    pub(super) fn mark_lost(&mut self, number: u64) {
        for segment in &mut self.list {
            if segment.number == number {
                segment.kind = SegmentKind::Flush { is_durable: false, is_started: false };
            }
        }
    }

    /// Drops a replayed segment. False if a flush record has replaced it meanwhile.
    pub(super) fn mark_replayed(&mut self, number: u64, total: &TotalBytes) -> bool {
        match self.list.front() {
            Some(segment) if segment.number == number => {
                total.fetch_sub(segment.bytes, Relaxed);
                self.list.pop_front();
                true
            }
            _ => false,
        }
    }
}
