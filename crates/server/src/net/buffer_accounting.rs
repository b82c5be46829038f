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
pub(crate) struct Holding {
    pub(crate) input_bytes: u32,
    pub(crate) output_bytes: u32,
}

/// A limit that a connection has made its worker go over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Excess {
    Input,
    Output,
}

/// What the connections of one worker keep.
#[derive(Debug, Default)]
pub(crate) struct Holdings {
    pub(crate) input: Account,
    pub(crate) output: Account,
}

/// One kind of it.
#[derive(Debug, Default)]
pub(crate) struct Account {
    bytes: AtomicU64,
    connections: AtomicU64,
    /// The most there was since it was last asked for.
    peak_bytes: AtomicU64,
    limit_bytes: Option<u64>,
}

impl Holdings {
    /// With limits for this worker alone.
    pub(crate) fn new(input_limit_bytes: Option<u64>, output_limit_bytes: Option<u64>) -> Holdings {
        let account = |limit_bytes| Account { limit_bytes, ..Account::default() };
        Holdings { input: account(input_limit_bytes), output: account(output_limit_bytes) }
    }

    /// A connection keeps something else than before. Says which limit its growth has broken.
    pub(crate) fn change(&self, before: Holding, now: Holding) -> Option<Excess> {
        let input = self.input.change(before.input_bytes, now.input_bytes);
        let output = self.output.change(before.output_bytes, now.output_bytes);
        (!input).then_some(Excess::Input).or((!output).then_some(Excess::Output))
    }

    /// The most there was since this was last asked for, and what there is.
    pub(crate) fn take_peak_bytes(&self) -> (u64, u64) {
        let (input, output) = (&self.input, &self.output);
        (input.take_peak_bytes() + output.take_peak_bytes(), input.bytes() + output.bytes())
    }
}

impl Account {
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
    fn change(&self, before_bytes: u32, now_bytes: u32) -> bool {
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

    const NOTHING: Holding = Holding { input_bytes: 0, output_bytes: 0 };

    #[test]
    fn what_is_kept_is_summed_and_given_back() {
        let holdings = Holdings::default();
        let (partial, unread) = (Holding { input_bytes: 7, ..NOTHING }, Holding { output_bytes: 1_000, ..NOTHING });
        assert_eq!((holdings.change(NOTHING, partial), holdings.change(NOTHING, unread)), (None, None));
        assert_eq!((holdings.input.bytes(), holdings.output.bytes()), (7, 1_000));
        assert_eq!((holdings.input.connections(), holdings.output.connections()), (1, 1));
        assert_eq!(holdings.change(partial, unread), None);
        assert_eq!((holdings.input.connections(), holdings.output.connections()), (0, 2));
        assert_eq!((holdings.change(unread, NOTHING), holdings.change(unread, NOTHING)), (None, None));
        assert_eq!((holdings.output.bytes(), holdings.output.connections()), (0, 0));
        assert_eq!(holdings.take_peak_bytes(), (2_007, 0));
        assert_eq!(holdings.take_peak_bytes(), (0, 0));
    }

    #[test]
    fn whoever_grows_over_a_limit_breaks_it_and_nobody_else() {
        let holdings = Holdings::new(Some(100), Some(200));
        let of = |input_bytes, output_bytes| Holding { input_bytes, output_bytes };
        assert_eq!(holdings.change(NOTHING, of(100, 0)), None);
        assert_eq!(holdings.change(NOTHING, of(1, 0)), Some(Excess::Input));
        assert_eq!(holdings.change(of(100, 0), of(100, 200)), None, "what it had before is no growth");
        assert_eq!(holdings.change(of(1, 0), of(0, 1)), Some(Excess::Output));
        assert_eq!(holdings.change(of(0, 1), NOTHING), None);
    }
}
