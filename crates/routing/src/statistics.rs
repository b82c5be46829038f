//! What routes count, for `stats`: requests that no client sent, or that a client sent to another place. Rare paths only:
//! a request that its first server answers is not counted here.

use crate::Verb;
use lookaside_sync::{SharedCounter, counters};

counters! {
    /// Counters of all trees of a thread.
    pub struct RouteCounters(SharedCounter);

    /// A snapshot of [`RouteCounters`], or a sum of snapshots.
    pub struct RouteCounts;

    /// Requests that a `DevNullRoute` has dropped.
    dev_null_requests,
    /// Requests sent to another child of a failover route after a failure, one for each child.
    failover_all,
    /// Of these, those that failed there, too.
    failover_all_failed,
}

/// Requests by verb, and their errors by kind.
#[derive(Debug, Default)]
struct ExtraRequests {
    sent: [SharedCounter; Verb::ALL.len()],
    errors: [SharedCounter; ERROR_KINDS],
}

/// The kinds of [`ErrorKind`].
const ERROR_KINDS: usize = 8;

/// How a request has failed, as `stats` distinguishes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "each is the failure of its name")]
pub enum ErrorKind {
    Tko,
    ConnectError,
    ConnectTimeout,
    Timeout,
    Busy,
    RemoteError,
    ClientError,
    LocalError,
}

/// Counters of all trees of a thread, as routes share them.
#[derive(Debug, Default)]
pub struct RouteStatistics {
    /// The counters by name.
    pub counters: RouteCounters,
    extra: ExtraRequests,
}

impl RouteStatistics {
    /// Requests of this verb that were copies for shadows, or sent elsewhere by a failover.
    pub fn extra_sent(&self, verb: Verb) -> u64 {
        self.extra.sent[verb as usize].value()
    }

    /// Those of them that failed this way.
    pub fn extra_errors(&self, error: ErrorKind) -> u64 {
        self.extra.errors[error as usize].value()
    }

    /// Counts a request that a failover has sent elsewhere.
    pub(crate) fn count_failover(&self, verb: Verb, error: Option<ErrorKind>) {
        self.counters.failover_all.add(1);
        self.counters.failover_all_failed.add(u64::from(error.is_some()));
        self.count_extra(verb, error);
    }

    /// Counts a request that no client has sent there, and how it has failed.
    pub(crate) fn count_extra(&self, verb: Verb, error: Option<ErrorKind>) {
        self.extra.sent[verb as usize].add(1);
        error.into_iter().for_each(|error| self.extra.errors[error as usize].add(1));
    }
}
