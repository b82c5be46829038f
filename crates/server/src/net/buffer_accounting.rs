//! Accounts for the bytes that the connections of a worker buffer: partial commands, and replies that clients do not
//! read.
//!
//! | buffered | per connection at most | of all connections |
//! |---|---|---|
//! | a partial command | twice what has arrived of it, and no more than the command needs and one read | `-o read_buf_mem_limit` |
//! | a reply | [`crate::REPLY_BYTES_MAX`] and one item | `-o resp_obj_mem_limit` |
//!
//! A connection that makes either sum exceed its limit is closed, as in memcached, and counted (`read_buf_oom`,
//! `response_obj_oom`). Each worker has its share of the limits. Without a limit, all connections together may buffer
//! `-c` times the bound of one connection, beside `-m`.
//!
//! Only the worker writes; any thread reads. Idle connections buffer nothing and do not appear here.

use std::sync::atomic::{AtomicU64, Ordering};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct BufferUsage {
    pub(crate) input_bytes: u32,
    pub(crate) output_bytes: u32,
}

/// The limit that a connection has made its worker exceed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LimitExceeded {
    Input,
    Output,
}

#[derive(Debug, Default)]
pub(crate) struct BufferAccounting {
    pub(crate) input: BufferGauge,
    pub(crate) output: BufferGauge,
}

/// One of the two sums.
#[derive(Debug, Default)]
pub(crate) struct BufferGauge {
    bytes: AtomicU64,
    connections: AtomicU64,
    /// The maximum since it was last taken.
    peak_bytes: AtomicU64,
    limit_bytes: Option<u64>,
}

impl BufferAccounting {
    /// Both limits are those of this worker alone.
    pub(crate) fn new(input_limit_bytes: Option<u64>, output_limit_bytes: Option<u64>) -> BufferAccounting {
        let gauge = |limit_bytes| BufferGauge { limit_bytes, ..BufferGauge::default() };
        BufferAccounting { input: gauge(input_limit_bytes), output: gauge(output_limit_bytes) }
    }

    /// Records that the usage of a connection has changed. Returns the limit that its growth exceeds.
    pub(crate) fn update(&self, before: BufferUsage, now: BufferUsage) -> Option<LimitExceeded> {
        let input = self.input.update(before.input_bytes, now.input_bytes);
        let output = self.output.update(before.output_bytes, now.output_bytes);
        (!input).then_some(LimitExceeded::Input).or((!output).then_some(LimitExceeded::Output))
    }

    /// The maximum since the last call, and the present sum.
    pub(crate) fn take_peak_bytes(&self) -> (u64, u64) {
        let (input, output) = (&self.input, &self.output);
        (input.take_peak_bytes() + output.take_peak_bytes(), input.bytes() + output.bytes())
    }
}

impl BufferGauge {
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// The number of connections that buffer something.
    pub(crate) fn connections(&self) -> u64 {
        self.connections.load(Ordering::Relaxed)
    }

    fn take_peak_bytes(&self) -> u64 {
        self.peak_bytes.swap(self.bytes(), Ordering::Relaxed)
    }

    /// Returns whether the limit holds; a connection that buffers less than before does not exceed it.
    fn update(&self, before_bytes: u32, now_bytes: u32) -> bool {
        if before_bytes == now_bytes {
            return true;
        }
        let bytes = self.bytes() + u64::from(now_bytes) - u64::from(before_bytes);
        let connections = self.connections() + u64::from(now_bytes > 0) - u64::from(before_bytes > 0);
        self.bytes.store(bytes, Ordering::Relaxed);
        self.connections.store(connections, Ordering::Relaxed);
        // Another thread may reset the peak meanwhile: then this one is seen a second later or not at all.
        if bytes > self.peak_bytes.load(Ordering::Relaxed) {
            self.peak_bytes.store(bytes, Ordering::Relaxed);
        }
        now_bytes < before_bytes || self.limit_bytes.is_none_or(|limit_bytes| bytes <= limit_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOTHING: BufferUsage = BufferUsage { input_bytes: 0, output_bytes: 0 };

    #[test]
    fn usage_is_added_up_and_subtracted() {
        let accounting = BufferAccounting::default();
        let (partial, unread) =
            (BufferUsage { input_bytes: 7, ..NOTHING }, BufferUsage { output_bytes: 1_000, ..NOTHING });
        assert_eq!((accounting.update(NOTHING, partial), accounting.update(NOTHING, unread)), (None, None));
        assert_eq!((accounting.input.bytes(), accounting.output.bytes()), (7, 1_000));
        assert_eq!((accounting.input.connections(), accounting.output.connections()), (1, 1));
        assert_eq!(accounting.update(partial, unread), None);
        assert_eq!((accounting.input.connections(), accounting.output.connections()), (0, 2));
        assert_eq!((accounting.update(unread, NOTHING), accounting.update(unread, NOTHING)), (None, None));
        assert_eq!((accounting.output.bytes(), accounting.output.connections()), (0, 0));
        assert_eq!(accounting.take_peak_bytes(), (2_007, 0));
        assert_eq!(accounting.take_peak_bytes(), (0, 0));
    }

    #[test]
    fn only_a_connection_that_grows_beyond_a_limit_exceeds_it() {
        let accounting = BufferAccounting::new(Some(100), Some(200));
        let of = |input_bytes, output_bytes| BufferUsage { input_bytes, output_bytes };
        assert_eq!(accounting.update(NOTHING, of(100, 0)), None);
        assert_eq!(accounting.update(NOTHING, of(1, 0)), Some(LimitExceeded::Input));
        assert_eq!(accounting.update(of(100, 0), of(100, 200)), None, "its input has not grown");
        assert_eq!(accounting.update(of(1, 0), of(0, 1)), Some(LimitExceeded::Output));
        assert_eq!(accounting.update(of(0, 1), NOTHING), None);
    }
}
