//! Recovery at the start: reads what an earlier run left on disk.
//!
//! | found | treated as |
//! |---|---|
//! | the newest segment | its valid part is written again, to a new one: if a sync of it has failed, reads show what is not on disk. Until that is done it is read up to its first loss |
//! | a newest segment that is cut off or damaged | the part before; the database is asked for the rest |
//! | a segment that reaches beyond the beginning of the next one | it was given up, and ends there: the next one has the rest |
//! | an older segment that does not reach up to the next one, or is missing | removed, with all older ones: their deletes are lost for the clusters that need them |
//! | a segment that the disk cannot read | removed; what clusters need of it is lost as if it was missing |
//! | a segment without a valid base | a start of a segment that failed: removed |
//! | nothing but a segment with a header alone | a first start that did not finish. It stays until there is a segment |
//! | a newer format | an error: only the newer version can read it |

use super::{
    position::SpoolPosition,
    record::{Base, Decoded, HEADER, Record, decode},
    segments::{Segments, SpoolSegment},
    storage::SegmentFiles,
};
use crate::{Commit, CommitLog};
use std::{collections::VecDeque, io, sync::Arc};

/// Errors of Linux for bytes that are on the disk and cannot be read: EIO, and EBADMSG and EUCLEAN of damaged file
/// systems.
const UNREADABLE: [i32; 3] = [5, 74, 117];

/// Segments are closed at a smaller size; one batch of commits may follow.
const SEGMENT_BYTES_READ_MAX: usize = 256 << 20;

/// The state of a spool.
#[derive(Debug)]
pub(super) struct Recovered {
    /// `None` if the spool is empty.
    pub segments: Option<Segments>,
    /// What is to be written to the newest segment; `None` if the spool is empty.
    pub uncopied: Option<Arc<UncopiedSegment>>,
    /// The file that an earlier run wrote before it began to read the log, if it has delivered nothing; `None` if there
    /// is none.
    pub start_mark: Option<u64>,
    pub next_number: u64,
}

/// The newest segment of an earlier run, which is to be copied to another file.
#[derive(Debug)]
pub(super) struct UncopiedSegment {
    /// The number of the copy.
    pub copy_number: u64,
    /// Its valid part.
    pub bytes: Vec<u8>,
}

pub(super) struct ScannedSegment {
    pub base: Base,
    pub end: SpoolPosition,
    pub valid_bytes: u64,
}

pub(super) fn recover(files: &dyn SegmentFiles, log: &dyn CommitLog) -> Result<Recovered, String> {
    let failed = |error: io::Error| format!("cannot read the spool: {error}");
    let numbers = files.numbers().map_err(failed)?;
    let mut recovered = Recovered {
        segments: None,
        uncopied: None,
        start_mark: None,
        next_number: numbers.last().map_or(1, |newest| newest + 1),
    };
    // Read from the newest on, as far as each one reaches up to the next.
    let mut list: VecDeque<SpoolSegment> = VecDeque::new();
    let mut end: Option<SpoolPosition> = None;
    let (mut unconnected, mut unreadable, mut start_marks) = (Vec::new(), Vec::new(), Vec::new());
    for &number in numbers.iter().rev() {
        let bytes = match files.read(number, 0, SEGMENT_BYTES_READ_MAX) {
            Ok(bytes) => bytes,
            Err(error) if error.raw_os_error().is_some_and(|code| UNREADABLE.contains(&code)) => {
                tracing::error!(
                    segment = number,
                    %error,
                    "the disk cannot read a segment of the spool: its deletes are lost for clusters that need them, but for \
                     what the database can send again; check the disk of --state-dir"
                );
                unreadable.push(number);
                continue;
            }
            Err(error) => return Err(failed(error)),
        };
        let scan = scan(&bytes, list.front().map(|next| &next.base.position), log).map_err(|version| {
            format!("the spool has format {version}, written by a newer version; run that one until all is delivered")
        })?;
        let Some(scan) = scan else {
            match bytes == HEADER {
                true => start_marks.push(number),
                false => files.remove(number).map_err(failed)?,
            }
            continue;
        };
        let is_connected = list.front().is_none_or(|next| scan.end.covers(&next.base.position, log));
        if !unconnected.is_empty() || !is_connected {
            unconnected.push(number);
            continue;
        }
        if end.is_none() {
            let mut valid = bytes;
            valid.truncate(scan.valid_bytes as usize);
            list.push_front(SpoolSegment { number, base: scan.base, bytes: bytes_before_gap(&valid) });
            end = Some(scan.end);
            let copy_number = recovered.next_number;
            recovered.uncopied = Some(Arc::new(UncopiedSegment { copy_number, bytes: valid }));
            recovered.next_number += 1;
            continue;
        }
        if scan.valid_bytes < bytes.len() as u64 {
            remove_rest(files, number, scan.valid_bytes);
        }
        list.push_front(SpoolSegment { number, base: scan.base, bytes: scan.valid_bytes });
    }
    recovered.segments = end.map(|end| {
        let log_identity = list.back().map(|newest| newest.base.log_identity.clone()).unwrap_or_default();
        Segments { log_identity, list, end }
    });
    // This run may end before the first segment, too: the next one must find the mark.
    recovered.start_mark = start_marks.first().copied().filter(|_| recovered.segments.is_none());
    let is_needless = |mark: &&u64| recovered.start_mark != Some(**mark);
    start_marks.iter().filter(is_needless).try_for_each(|&mark| files.remove(mark)).map_err(failed)?;
    unreadable.iter().try_for_each(|&number| files.remove(number)).map_err(failed)?;
    if !unconnected.is_empty() {
        let (segments, from) = (unconnected.len(), recovered.segments.as_ref().map(|segments| &segments.list[0].base));
        let from = from.map_or_else(String::new, |base| base.position.text().0);
        tracing::error!(
            segments,
            from,
            "segments of the spool are damaged or missing: their deletes are lost for clusters with a position before this"
        );
        // The oldest first: a crash in between leaves what is unconnected, too.
        unconnected.iter().rev().try_for_each(|&number| files.remove(number)).map_err(failed)?;
    }
    Ok(recovered)
}

/// How much of the valid part of a segment is before its first loss.
fn bytes_before_gap(valid: &[u8]) -> u64 {
    let mut at = HEADER.len();
    while let Decoded::Record(record, length) = decode(&valid[at..])
        && !matches!(record, Record::Gap { .. })
    {
        at += length;
    }
    at as u64
}

/// Frees what a segment that was given up has behind its first `bytes` bytes, which are all that is read of it: no
/// limit counts that.
pub(super) fn remove_rest(files: &dyn SegmentFiles, number: u64, bytes: u64) {
    if let Err(error) = files.truncate(number, bytes) {
        tracing::warn!(%error, "a segment of the spool was given up and cannot be cut off; it takes space until it is removed");
    }
}

/// The valid part at the start of a segment, up to `next_base`, where the next one begins; `None` if it does not begin
/// with a base. Fails with the version of a newer format.
pub(super) fn scan(
    bytes: &[u8],
    next_base: Option<&SpoolPosition>,
    log: &dyn CommitLog,
) -> Result<Option<ScannedSegment>, u8> {
    let Some((header, mut rest)) = bytes.split_first_chunk::<8>() else { return Ok(None) };
    if header[..7] == HEADER[..7] && header[7] > HEADER[7] {
        return Err(header[7]);
    }
    let Decoded::Record(Record::Base(base), length) = decode(rest) else { return Ok(None) };
    if *header != HEADER {
        return Ok(None);
    }
    rest = &rest[length..];
    let mut end = base.position.clone();
    while let Decoded::Record(record, length) = decode(rest) {
        let record_end = match record {
            Record::Base(_) => break,
            Record::Commit(Commit { position, .. }) | Record::Advance(position) => SpoolPosition { position, ..end },
            Record::Gap { position, .. } => position,
        };
        // It was given up, and the log was read again from there on: perhaps that of another server.
        if next_base.is_some_and(|next| !next.covers(&record_end, log)) {
            break;
        }
        end = record_end;
        rest = &rest[length..];
    }
    let valid_bytes = (bytes.len() - rest.len()) as u64;
    Ok(Some(ScannedSegment { base, end, valid_bytes }))
}
