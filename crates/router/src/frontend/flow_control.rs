//! Bounds the bytes of values that a session holds, by routing a batch in chunks. Serves the get verbs.
//!
//! A get costs its client 10 bytes and its router a value. So the next chunk follows when the replies to the last are
//! written: a client that sends without reading delays only itself. The size of values is estimated from those that
//! came: a session that is new, or whose values are large, gets small chunks; one with small values gets its multigets
//! in one chunk (§3.1: in one round trip).
//!
//! ```text
//!   values of a new session    32      then, all of 1 MiB:   8     8     8 ...
//!                                            all small:    128   512  2048  2048 ...
//! ```
//!
//! An estimate can be wrong: a session whose values were small may hold one chunk of large ones, and only one.

use lookaside_protocol::{Operation, Reply, Request};
use lookaside_routing::{Batch, Outcome};
use std::vec;

/// The target for the values of one chunk, in bytes.
pub const REPLY_BYTES_MAX: usize = 8 << 20;
/// While the sessions of all threads hold this many bytes of values, chunks have one value.
pub const TOTAL_REPLY_BYTES_MAX: usize = 256 << 20;
/// Chunks with fewer bytes are not counted. Most have fewer, and need not touch the shared counter.
pub const COUNTED_BYTES_MIN: usize = 64 << 10;
/// The most bytes of input buffers that sessions may hold, over all threads, for commands that are half received or
/// being routed. A client that needs more is disconnected.
pub const TOTAL_INPUT_BYTES_MAX: usize = 1 << 30;
/// Input buffers up to this size are not counted. Only a large value or line needs more, so that small requests need
/// not touch the shared counter.
pub const UNCOUNTED_INPUT_BYTES: usize = 64 << 10;
/// The most bytes of composed replies that sessions may hold for clients that do not read them, over all threads. A
/// client that would add to more is disconnected.
pub const TOTAL_OUTPUT_BYTES_MAX: usize = 1 << 30;
/// Replies up to this size are not counted.
pub const UNCOUNTED_OUTPUT_BYTES: usize = 64 << 10;
/// The first estimate of a value's size. It allows 32 values, and an average page needs 24 (§3.1).
const VALUE_BYTES_FIRST: usize = 256 << 10;
/// The smallest estimate. A chunk has at most 2,048 values, and the largest common page, 1,740 (§3.1), is one chunk.
const VALUE_BYTES_MIN: usize = 4 << 10;
/// An estimate that was too high is divided by at most this.
const ESTIMATE_DECREASE_MAX: usize = 4;

/// One session's estimate of the size of its values.
#[derive(Debug)]
pub struct ValueSizeEstimator {
    value_bytes: usize,
}

impl ValueSizeEstimator {
    /// The estimate of a new session.
    pub fn new() -> ValueSizeEstimator {
        ValueSizeEstimator { value_bytes: VALUE_BYTES_FIRST }
    }

    /// The next requests to route, at least one if `rest` has any. `total_bytes` are held by all sessions.
    pub fn next_chunk(&self, rest: &mut vec::IntoIter<Request<bytes::Bytes>>, total_bytes: usize) -> Batch {
        let mut values_left = self.values_max(total_bytes);
        if rest.len() <= values_left {
            return std::mem::take(rest).collect();
        }
        let fits = |request: &Request<bytes::Bytes>| {
            let fits = values_left > 0 || !may_return_value(&request.operation);
            values_left = values_left.saturating_sub(usize::from(may_return_value(&request.operation)));
            fits
        };
        let requests = rest.as_slice();
        let chunk = requests.iter().map(fits).position(|fits| !fits).unwrap_or(requests.len());
        match chunk == requests.len() {
            // Reuses the allocation.
            true => std::mem::take(rest).collect(),
            false => rest.by_ref().take(chunk).collect(),
        }
    }

    /// Updates the estimate by a chunk that could bring `values` and brought `bytes` in all.
    pub fn update(&mut self, values: usize, bytes: usize) {
        if values > 0 {
            self.value_bytes =
                bytes.div_ceil(values).max(self.value_bytes / ESTIMATE_DECREASE_MAX).max(VALUE_BYTES_MIN);
        }
    }

    fn values_max(&self, total_bytes: usize) -> usize {
        match total_bytes < TOTAL_REPLY_BYTES_MAX {
            true => (REPLY_BYTES_MAX / self.value_bytes).max(1),
            false => 1,
        }
    }
}

/// Whether the reply to `operation` may have a value.
pub fn may_return_value<B>(operation: &Operation<B>) -> bool {
    matches!(
        operation,
        Operation::Get { .. } | Operation::GetAndTouch { .. } | Operation::LeaseGet | Operation::Meta(_)
    )
}

/// The bytes of the value in an outcome.
pub fn value_bytes(outcome: &Outcome) -> usize {
    match outcome {
        Ok(Reply::Value { value, .. }) => value.len(),
        Ok(Reply::Lease { stale: Some(value), .. }) => value.len(),
        Ok(Reply::Meta(reply)) => reply.value.as_ref().map_or(0, |value| value.len()),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    fn requests(operations: impl IntoIterator<Item = Operation<Bytes>>) -> vec::IntoIter<Request<Bytes>> {
        let request = |operation| Request { key: Bytes::from_static(b"k"), operation };
        operations.into_iter().map(request).collect::<Vec<_>>().into_iter()
    }

    fn gets(number: usize) -> vec::IntoIter<Request<Bytes>> {
        requests((0..number).map(|_| Operation::Get { cas: false }))
    }

    #[test]
    fn chunks_follow_the_size_of_the_values() {
        let mut estimator = ValueSizeEstimator::new();
        let mut rest = gets(100_000);
        let mut route = |value_bytes: usize| {
            let chunk = estimator.next_chunk(&mut rest, 0).len();
            estimator.update(chunk, chunk * value_bytes);
            chunk
        };
        assert_eq!([1 << 20, 1 << 20, 100, 100, 100].map(&mut route), [32, 8, 8, 32, 128]);
        assert_eq!([100; 5].map(&mut route), [512, 2_048, 2_048, 2_048, 2_048]);
        assert_eq!([64 << 20, 0].map(&mut route), [2_048, 1], "one chunk of large values, then one value at a time");
    }

    #[test]
    fn deletes_are_not_limited() {
        let delete = || Operation::Delete { hold_off_ms: 0 };
        let mut rest = requests((0..500).flat_map(|_| [delete(), Operation::Get { cas: false }]));
        assert_eq!(ValueSizeEstimator::new().next_chunk(&mut rest, 0).len(), 65, "32 gets, 33 deletes");
        assert_eq!(ValueSizeEstimator::new().next_chunk(&mut rest, TOTAL_REPLY_BYTES_MAX).len(), 2, "a get, a delete");
        let mut rest = requests((0..500).map(|_| delete()));
        assert_eq!(ValueSizeEstimator::new().next_chunk(&mut rest, TOTAL_REPLY_BYTES_MAX).len(), 500);
    }
}
