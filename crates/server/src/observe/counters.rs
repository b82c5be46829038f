//! What a worker thread counts about its own requests.
//!
//! Each thread has a [`Counters`] of its own, on cache lines that no other thread writes: counting is a load and a
//! store, no locked instruction. `stats` sums the threads' snapshots; a sum taken while requests run may be a few
//! requests behind, as memcached's may.

use lookaside_telemetry::Counter;

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// One thread's counters. Aligned so that two threads' counters share no cache line (two lines: processors
        /// fetch lines in pairs).
        #[derive(Debug, Default)]
        #[repr(align(128))]
        pub struct Counters { $($(#[$doc])* pub $name: Counter,)* }

        /// A snapshot of one thread's [`Counters`], or the sum over threads.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct CounterSnapshot { $($(#[$doc])* pub $name: u64,)* }

        impl Counters {
            /// The numbers as they stand.
            pub fn snapshot(&self) -> CounterSnapshot {
                CounterSnapshot { $($name: self.$name.value(),)* }
            }
        }

        impl CounterSnapshot {
            /// Adds another thread's numbers.
            pub fn add(&mut self, other: &CounterSnapshot) {
                $(self.$name += other.$name;)*
            }

            /// What has been counted since `baseline`, which `stats reset` took.
            pub fn since(&self, baseline: &CounterSnapshot) -> CounterSnapshot {
                CounterSnapshot { $($name: self.$name.saturating_sub(baseline.$name),)* }
            }

            /// Every number under memcached's name for it.
            pub fn named(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name),)*].into_iter()
            }
        }
    };
}

counters! {
    /// Keys asked for by any of the get verbs.
    cmd_get,
    /// Storage commands.
    cmd_set,
    /// `flush_all` commands.
    cmd_flush,
    /// `touch`, `gat` and `gats` commands.
    cmd_touch,
    /// Meta commands.
    cmd_meta,
    /// Keys that were there.
    get_hits,
    /// Keys that were not.
    get_misses,
    /// Deletes that found a live value.
    delete_hits,
    /// Deletes that found none.
    delete_misses,
    /// `incr` of an item that was there.
    incr_hits,
    /// `incr` of none.
    incr_misses,
    /// `decr` of an item that was there.
    decr_hits,
    /// `decr` of none.
    decr_misses,
    /// `cas` that stored.
    cas_hits,
    /// `cas` without an item.
    cas_misses,
    /// `cas` of an item that had changed.
    cas_badval,
    /// Touches of an item that was there.
    touch_hits,
    /// Touches of none.
    touch_misses,
    /// Connections closed because they were idle for too long.
    idle_kicks,
    /// Connections closed because of what partial commands take in all.
    read_buf_oom,
    /// Connections closed because of what unread replies take in all.
    response_obj_oom,
    /// Handshakes of TLS that succeeded.
    ssl_new_sessions,
    /// Handshakes of TLS that did not.
    ssl_handshake_errors,
    /// Connections that broke the rules of TLS behind their handshake.
    ssl_proto_errors,
    /// Replies by UDP that were larger than they may be.
    udp_replies_refused,
    /// Authentications tried.
    auth_cmds,
    /// Authentications refused.
    auth_errors,
    /// Bytes from clients.
    bytes_read,
    /// Bytes to clients.
    bytes_written,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_and_baselines() {
        let counters = Counters::default();
        counters.get_hits.add(3);
        counters.get_hits.add(2);
        let mut sum = counters.snapshot();
        sum.add(&counters.snapshot());
        assert_eq!(sum.get_hits, 10);
        assert_eq!(sum.since(&counters.snapshot()).get_hits, 5);
        assert!(sum.named().any(|(name, value)| name == "get_hits" && value == 10));
    }
}
