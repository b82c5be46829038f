//! The counters of `stats`: memcached's names, as far as a router can count them.
//!
//! Every thread counts for itself, with no locked instruction, and no thread waits for another. `stats` adds up the
//! threads.

use lookaside_protocol::text::CloseReason;
use lookaside_telemetry::{Counter, counters};

counters! {
    /// One thread's counters since its start. Each only ever grows.
    pub struct Counters(Counter);

    /// A snapshot of [`Counters`], or a sum of snapshots.
    pub struct CounterDelta;

    /// Client connections accepted.
    total_connections,
    /// Client connections closed at once because of the limit on connections, as all others had requests in progress.
    rejected_connections,
    /// Client connections closed because they were the least recently used, for a new one at the limit on connections.
    evicted_connections,
    /// Client connections closed because the client did not read its replies, or did not end a large command.
    stalled_connections,
    /// Client connections closed because the client did not log in in time.
    login_timeouts,
    /// Client connections closed because the client spoke HTTP, or began a TLS handshake.
    closed_foreign_protocol,
    /// Client connections closed because of a command line without an end.
    closed_long_line,
    /// Client connections closed because all clients together had too many bytes of commands half received.
    closed_input_bound,
    /// Client connections closed because all clients together had too many bytes of replies that they did not read.
    closed_output_bound,
    /// Client connections closed because the client sent nothing for the idle timeout.
    idle_kicks,
    /// Login attempts.
    auth_cmds,
    /// Refused logins.
    auth_errors,
    /// Failures to accept a connection.
    accept_errors,
    /// Keys requested with `get` or `gets`.
    cmd_get,
    /// Keys requested with `gat` or `gats`.
    cmd_gat,
    /// Keys requested with `lease-get`.
    cmd_lease_get,
    /// `set`, `add`, `replace`, `append`, `prepend`, and `cas`.
    cmd_set,
    /// `lease-set`.
    cmd_lease_set,
    /// `touch`.
    cmd_touch,
    /// `delete`.
    cmd_delete,
    /// `incr` and `decr`.
    cmd_arithmetic,
    /// The meta commands.
    cmd_meta,
    /// `flush_all`.
    cmd_flush,
    /// Keys of any get verb that had a value.
    get_hits,
    /// Keys of any get verb that had none, lease misses included.
    get_misses,
    /// Keys of any get verb that no server replied to.
    get_failures,
    /// Deletes of keys that existed.
    delete_hits,
    /// Deletes of keys that did not exist.
    delete_misses,
    /// Deletes that no server confirmed.
    delete_failures,
    /// All other requests that no server replied to or that a server refused.
    other_failures,
    /// Lease tokens sent to clients.
    lease_tokens,
    /// Lease-gets with the reply "another client holds the lease".
    lease_hot_misses,
    /// Lease-sets that stored a live value.
    lease_sets_stored,
    /// Lease-sets refused, or stored as a stale value only, because the token was void.
    lease_sets_void,
    /// Commands that were malformed or not allowed.
    bad_commands,
    /// Batches routed.
    batches,
    /// Requests in those batches.
    batched_requests,
    /// Of the batches, those with deletes only that did not wait for an earlier one of their connection.
    overlapped_batches,
    /// Bytes read from clients.
    bytes_read,
    /// Bytes written to clients.
    bytes_written,
}

impl Counters {
    /// Counts a connection that is closed because the client sent what no memcached client sends.
    pub(crate) fn count_close(&self, reason: CloseReason) {
        match reason {
            CloseReason::ForeignProtocol => self.closed_foreign_protocol.add(1),
            CloseReason::LineTooLong => self.closed_long_line.add(1),
        }
    }
}

/// Appends one line of `stats`.
pub fn write_stat(name: &str, value: impl std::fmt::Display, out: &mut Vec<u8>) {
    use std::io::Write as _;
    write!(out, "STAT {name} {value}\r\n").expect("a write to a Vec succeeds");
}

/// `text` on one line: control characters become spaces.
pub(crate) fn one_line(text: &str) -> String {
    text.chars().map(|character| if character.is_control() { ' ' } else { character }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deltas_add_up() {
        let counters = Counters::default();
        counters.add(&CounterDelta { cmd_get: 3, get_hits: 2, ..CounterDelta::default() });
        counters.add(&CounterDelta { cmd_get: 1, ..CounterDelta::default() });
        let mut sum = counters.snapshot();
        sum.add(&CounterDelta { cmd_get: 10, ..CounterDelta::default() });
        assert_eq!(sum, CounterDelta { cmd_get: 14, get_hits: 2, ..CounterDelta::default() });
        assert!(sum.named().any(|stat| stat == ("cmd_get", 14)));
    }

    #[test]
    fn a_stat_is_a_line() {
        let mut out = Vec::new();
        write_stat("uptime", 5, &mut out);
        assert_eq!(out, b"STAT uptime 5\r\n");
    }
}
