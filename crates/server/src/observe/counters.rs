//! The counters of a worker thread.
//!
//! Each thread has [`Counters`] of its own, on cache lines that no other thread writes: counting is a load and a store,
//! no locked instruction. `stats` adds the threads' snapshots up. A sum taken while requests run may be a few requests
//! behind, as in memcached.

use lookaside_sync::Counter;

lookaside_sync::counters! {
    /// One thread's counters. Aligned so that the counters of two threads share no cache line (two lines: processors
    /// fetch lines in pairs).
    #[repr(align(128))]
    pub struct Counters(Counter);

    /// A snapshot of one thread's [`Counters`], or the sum over threads. The names are memcached's.
    pub struct CounterSnapshot;

    /// Keys requested by any of the get verbs.
    cmd_get,
    /// Storage commands.
    cmd_set,
    /// `flush_all` commands.
    cmd_flush,
    /// `lease-void-all` commands.
    cmd_lease_void_all,
    /// `touch`, `gat` and `gats` commands.
    cmd_touch,
    /// Meta commands.
    cmd_meta,
    /// Keys found.
    get_hits,
    /// Keys not found.
    get_misses,
    /// Deletes that found a live value.
    delete_hits,
    /// Deletes that found no live value.
    delete_misses,
    /// `incr` of an existing item.
    incr_hits,
    /// `incr` without an item.
    incr_misses,
    /// `decr` of an existing item.
    decr_hits,
    /// `decr` without an item.
    decr_misses,
    /// `cas` that stored.
    cas_hits,
    /// `cas` without an item.
    cas_misses,
    /// `cas` of an item that had changed.
    cas_badval,
    /// Touches of an existing item.
    touch_hits,
    /// Touches without an item.
    touch_misses,
    /// Stores refused because the length in their line is too large. The store counts those that it refuses itself.
    store_too_large,
    /// Turns of a connection that ended with input left.
    conn_yields,
    /// Connections closed because they were idle for too long.
    idle_kicks,
    /// Connections closed because their client did not log in in time.
    login_timeouts,
    /// Connections closed because their client spoke HTTP, or began a TLS handshake.
    closed_foreign_protocol,
    /// Connections closed because of a command line without an end.
    closed_long_line,
    /// Connections closed because partial commands exceeded their limit.
    read_buf_oom,
    /// Connections closed because unread replies exceeded their limit.
    response_obj_oom,
    /// TLS handshakes that resumed no session.
    ssl_new_sessions,
    /// Failed TLS handshakes.
    ssl_handshake_errors,
    /// TLS protocol errors after the handshake.
    ssl_proto_errors,
    /// UDP replies that exceeded their bound.
    udp_replies_refused,
    /// Logins.
    auth_cmds,
    /// Refused logins.
    auth_errors,
    /// Bytes received from clients.
    bytes_read,
    /// Bytes sent to clients.
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
