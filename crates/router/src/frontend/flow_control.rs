//! How much of a batch is asked for at once: as much as a session may hold in values. Serves the get verbs.
//!
//! A get costs its client 10 bytes and its router a value. So a batch goes out in portions, and the next portion is
//! asked for when the replies to the one before are written: who asks without reading stalls only itself. How large
//! values are is learnt from those that came: a session that is new, or whose values are large, gets small portions,
//! one with small values gets its multigets whole (§3.1: in one round trip).
//!
//! ```text
//!   values of a new session    32      then, all of 1 MiB:   8     8     8 ...
//!                                            all small:    128   512  2048  2048 ...
//! ```
//!
//! An estimate is no promise: a session that had small values alone may hold one portion of large ones, and only one.

use lookaside_protocol::{Operation, Reply, Request};
use lookaside_routing::{Batch, Outcome};
use std::vec;

/// What the values of one portion should have together, in bytes.
pub const REPLY_BYTES_MAX: usize = 8 << 20;
/// While the sessions of all threads hold so many bytes in values, portions have one value.
pub const FLEET_REPLY_BYTES_MAX: usize = 256 << 20;
/// Portions with less are not counted for the fleet: most have, and they need not share a counter.
pub const COUNTED_BYTES_MIN: usize = 64 << 10;
/// The first guess at a value's size: it lets 32 be asked for, and an average page needs 24 (§3.1).
const VALUE_BYTES_FIRST: usize = 256 << 10;
/// No estimate is below this: so a portion has at most 2,048 values, and the largest common page, 1,740 (§3.1), is one.
const VALUE_BYTES_MIN: usize = 4 << 10;
/// An estimate that turned out too high falls to this part of itself at once, and no further.
const FALL: usize = 4;

/// What one session knows of the size of its values.
#[derive(Debug)]
pub struct Budget {
    value_bytes: usize,
}

impl Budget {
    /// Nothing known.
    pub fn new() -> Budget {
        Budget { value_bytes: VALUE_BYTES_FIRST }
    }

    /// The next requests to route, while all sessions hold `fleet_bytes`: at least one, if there is any.
    pub fn take_portion(&self, rest: &mut vec::IntoIter<Request<bytes::Bytes>>, fleet_bytes: usize) -> Batch {
        let mut values_left = self.values_max(fleet_bytes);
        if rest.len() <= values_left {
            return std::mem::take(rest).collect();
        }
        let fits = |request: &Request<bytes::Bytes>| {
            let fits = values_left > 0 || !brings_value(&request.operation);
            values_left = values_left.saturating_sub(usize::from(brings_value(&request.operation)));
            fits
        };
        let requests = rest.as_slice();
        let portion = requests.iter().map(fits).position(|fits| !fits).unwrap_or(requests.len());
        match portion == requests.len() {
            // Keeps the memory it has.
            true => std::mem::take(rest).collect(),
            false => rest.by_ref().take(portion).collect(),
        }
    }

    /// Learns from a portion that asked for `values` and got `bytes` in all.
    pub fn learn(&mut self, values: usize, bytes: usize) {
        if values > 0 {
            self.value_bytes = bytes.div_ceil(values).max(self.value_bytes / FALL).max(VALUE_BYTES_MIN);
        }
    }

    fn values_max(&self, fleet_bytes: usize) -> usize {
        match fleet_bytes < FLEET_REPLY_BYTES_MAX {
            true => (REPLY_BYTES_MAX / self.value_bytes).max(1),
            false => 1,
        }
    }
}

/// Whether the reply may have a value.
pub fn brings_value<B>(operation: &Operation<B>) -> bool {
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
    fn portions_follow_the_size_of_the_values() {
        let mut budget = Budget::new();
        let mut rest = gets(100_000);
        let mut ask = |value_bytes: usize| {
            let portion = budget.take_portion(&mut rest, 0).len();
            budget.learn(portion, portion * value_bytes);
            portion
        };
        assert_eq!([1 << 20, 1 << 20, 100, 100, 100].map(&mut ask), [32, 8, 8, 32, 128]);
        assert_eq!([100; 5].map(&mut ask), [512, 2_048, 2_048, 2_048, 2_048]);
        assert_eq!([64 << 20, 0].map(&mut ask), [2_048, 1], "one surprise, and then one at a time");
    }

    #[test]
    fn deletes_do_not_wait_for_memory_that_they_do_not_need() {
        let delete = || Operation::Delete { hold_off_ms: 0 };
        let mut rest = requests((0..500).flat_map(|_| [delete(), Operation::Get { cas: false }]));
        assert_eq!(Budget::new().take_portion(&mut rest, 0).len(), 65, "32 gets, 33 deletes");
        assert_eq!(Budget::new().take_portion(&mut rest, FLEET_REPLY_BYTES_MAX).len(), 2, "a get, a delete");
        let mut rest = requests((0..500).map(|_| delete()));
        assert_eq!(Budget::new().take_portion(&mut rest, FLEET_REPLY_BYTES_MAX).len(), 500);
    }
}
