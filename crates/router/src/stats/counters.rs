//! What a router counts, and how `stats` tells it: memcached's names, as far as a router can give them.
//!
//! Every thread counts for itself and nobody waits for anybody: a batch is tallied in plain numbers and added to the
//! thread's counters once. `stats` adds up the threads.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

macro_rules! counters {
    ($($(#[$meta:meta])* $name:ident,)*) => {
        /// What one batch, or one event, adds to the counters.
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub struct Tally {
            $($(#[$meta])* pub $name: u64,)*
        }

        /// One thread's counters since its start. Each only ever grows.
        #[derive(Debug, Default)]
        pub struct Counters {
            $($name: AtomicU64,)*
        }

        impl Counters {
            /// Adds what has been tallied.
            pub fn add(&self, tally: &Tally) {
                $(if tally.$name != 0 { self.$name.fetch_add(tally.$name, Relaxed); })*
            }

            /// How things stand.
            pub fn read(&self) -> Tally {
                Tally { $($name: self.$name.load(Relaxed),)* }
            }
        }

        impl Tally {
            /// Adds another tally to this one.
            pub fn merge(&mut self, other: &Tally) {
                $(self.$name += other.$name;)*
            }

            /// Every counter with the name that `stats` gives it.
            pub fn named(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name),)*]
            }
        }
    };
}

counters! {
    /// Client connections accepted.
    total_connections,
    /// Client connections closed at once because of the cap on connections.
    rejected_connections,
    /// Client connections ended because the client did not take its replies.
    stalled_connections,
    /// Failures to accept a connection.
    accept_errors,
    /// Keys asked for with `get` or `gets`.
    cmd_get,
    /// Keys asked for with `gat` or `gats`.
    cmd_gat,
    /// Keys asked for with `lease-get`.
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
    /// Keys of any get verb that were answered with a value.
    get_hits,
    /// Keys of any get verb that were answered without one, lease misses included.
    get_misses,
    /// Keys of any get verb that no server answered.
    get_failures,
    /// Deletes that found something.
    delete_hits,
    /// Deletes that found nothing.
    delete_misses,
    /// Deletes that no server confirmed.
    delete_failures,
    /// All else that no server answered or that a server refused.
    other_failures,
    /// Lease tokens passed on to clients.
    lease_tokens,
    /// Lease-gets answered with "another client holds the lease".
    lease_hot_misses,
    /// Lease-sets that stored a live value.
    lease_sets_stored,
    /// Lease-sets refused, or kept only as a stale value, because the token was void.
    lease_sets_void,
    /// Commands that were not understood or not allowed.
    bad_commands,
    /// Batches handed to the routing tree.
    batches,
    /// Requests in those batches.
    batched_requests,
    /// Bytes read from clients.
    bytes_read,
    /// Bytes written to clients.
    bytes_written,
}

/// Appends one line of `stats`.
pub fn write_stat(name: &str, value: impl std::fmt::Display, out: &mut Vec<u8>) {
    use std::io::Write as _;
    write!(out, "STAT {name} {value}\r\n").expect("a Vec takes all that is written");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tallies_add_up() {
        let counters = Counters::default();
        counters.add(&Tally { cmd_get: 3, get_hits: 2, ..Tally::default() });
        counters.add(&Tally { cmd_get: 1, ..Tally::default() });
        let mut sum = counters.read();
        sum.merge(&Tally { cmd_get: 10, ..Tally::default() });
        assert_eq!(sum, Tally { cmd_get: 14, get_hits: 2, ..Tally::default() });
        assert!(sum.named().contains(&("cmd_get", 14)));
    }

    #[test]
    fn a_stat_is_a_line() {
        let mut out = Vec::new();
        write_stat("uptime", 5, &mut out);
        assert_eq!(out, b"STAT uptime 5\r\n");
    }
}
