//! What connections make their worker keep: partial commands, and replies that a client does not read.
//!
//! | kept | of one connection at most | of all together |
//! |---|---|---|
//! | a partial command | as much again as it has sent, and no more than the command needs and one read | `-o read_buf_mem_limit` |
//! | a reply | [`crate::net::round::REPLY_BYTES_MAX`] and one item | `-o resp_obj_mem_limit` |
//!
//! Who makes either go over its limit is disconnected, as memcached does it, and counted (`read_buf_oom`,
//! `response_obj_oom`); each worker has its share of the limit. Without a limit, the connections' number (`-c`) times
//! the bound of one is what all may hold, beside `-m`.
//!
//! Only the worker writes; any thread reads. Idle connections keep nothing and are not seen here.

use std::sync::atomic::{AtomicU64, Ordering};

/// What one connection keeps, as it was last told of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct BufferUsage {
    pub(crate) input_bytes: u32,
    pub(crate) output_bytes: u32,
}

/// A limit that a connection has made its worker go over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LimitExceeded {
    Input,
    Output,
}

/// What the connections of one worker keep.
#[derive(Debug, Default)]
pub(crate) struct BufferAccounting {
    pub(crate) input: BufferGauge,
    pub(crate) output: BufferGauge,
}

/// One kind of it.
#[derive(Debug, Default)]
pub(crate) struct BufferGauge {
    bytes: AtomicU64,
    connections: AtomicU64,
    /// The most there was since it was last asked for.
    peak_bytes: AtomicU64,
    limit_bytes: Option<u64>,
}

impl BufferAccounting {
    /// With limits for this worker alone.
    pub(crate) fn new(input_limit_bytes: Option<u64>, output_limit_bytes: Option<u64>) -> BufferAccounting {
        let gauge = |limit_bytes| BufferGauge { limit_bytes, ..BufferGauge::default() };
        BufferAccounting { input: gauge(input_limit_bytes), output: gauge(output_limit_bytes) }
    }

    /// A connection keeps something else than before. Says which limit its growth has broken.
    pub(crate) fn update(&self, before: BufferUsage, now: BufferUsage) -> Option<LimitExceeded> {
        let input = self.input.update(before.input_bytes, now.input_bytes);
        let output = self.output.update(before.output_bytes, now.output_bytes);
        (!input).then_some(LimitExceeded::Input).or((!output).then_some(LimitExceeded::Output))
    }

    /// The most there was since this was last asked for, and what there is.
    pub(crate) fn take_peak_bytes(&self) -> (u64, u64) {
        let (input, output) = (&self.input, &self.output);
        (input.take_peak_bytes() + output.take_peak_bytes(), input.bytes() + output.bytes())
    }
}

impl BufferGauge {
    /// What is kept.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// For how many connections.
    pub(crate) fn connections(&self) -> u64 {
        self.connections.load(Ordering::Relaxed)
    }

    fn take_peak_bytes(&self) -> u64 {
        self.peak_bytes.swap(self.bytes(), Ordering::Relaxed)
    }

    /// Says whether the limit is kept; who gives something back does not break it.
    fn update(&self, before_bytes: u32, now_bytes: u32) -> bool {
        if before_bytes == now_bytes {
            return true;
        }
        let bytes = self.bytes() + u64::from(now_bytes) - u64::from(before_bytes);
        let connections = self.connections() + u64::from(now_bytes > 0) - u64::from(before_bytes > 0);
        self.bytes.store(bytes, Ordering::Relaxed);
        self.connections.store(connections, Ordering::Relaxed);
        // Another thread may set it back meanwhile: then this peak is seen a second later or not at all.
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
    fn what_is_kept_is_summed_and_given_back() {
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
    fn whoever_grows_over_a_limit_breaks_it_and_nobody_else() {
        let accounting = BufferAccounting::new(Some(100), Some(200));
        let of = |input_bytes, output_bytes| BufferUsage { input_bytes, output_bytes };
        assert_eq!(accounting.update(NOTHING, of(100, 0)), None);
        assert_eq!(accounting.update(NOTHING, of(1, 0)), Some(LimitExceeded::Input));
        assert_eq!(accounting.update(of(100, 0), of(100, 200)), None, "what it had before is no growth");
        assert_eq!(accounting.update(of(1, 0), of(0, 1)), Some(LimitExceeded::Output));
        assert_eq!(accounting.update(of(0, 1), NOTHING), None);
    }
}
