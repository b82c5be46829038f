//! What routes count, for `stats`: requests that no client sent, or that a client sent to another place. Rare paths
//! only: a request that its first server answers is not counted here.

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
    /// Failures after which `failover_errors` or `failover_limit` kept a request from another child.
    failover_conditional,
    /// Of these, those that `failover_limit` kept.
    failover_rate_limited,
    /// Requests that `FailoverInOrderPolicy`, the default, sent to another child, one for each child.
    failover_inorder_policy,
    /// Of these, those that failed there, too.
    failover_inorder_policy_failed,
    /// Requests that `LeastFailuresPolicy` sent to another child, one for each child.
    failover_least_failures_policy,
    /// Of these, those that failed there, too.
    failover_least_failures_policy_failed,
    /// Requests that `DeterministicOrderPolicy` sent to another child, one for each child.
    failover_deterministic_order_policy,
    /// Of these, those that failed there, too.
    failover_deterministic_order_policy_failed,
    /// Requests that `RendezvousPolicy` sent to another child, one for each child.
    failover_rendezvous_policy,
    /// Of these, those that failed there, too.
    failover_rendezvous_policy_failed,
    /// Failures of any child of a failover route after which its policy is asked for the next one, but for those of a
    /// server that is TKO.
    failover_policy_result_error,
    /// The same of servers that are TKO.
    failover_policy_tko_error,
    /// Draws of `DeterministicOrderPolicy` that picked a child that was asked before.
    failover_num_collisions,
    /// Draws of it that picked a child of a failure domain that had failed, and passed it over.
    failover_num_failed_domain_collisions,
    /// Requests that it sent to another child of a failure domain that had failed, as there was no other.
    failover_same_failure_domain,
    /// `lease-set`s sent to the child that issued their token, instead of the first (`enable_lease_pairing`).
    redirected_lease_set_count,
}

/// The policy by which a failover route chooses the next child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PolicyKind {
    InOrder,
    LeastFailures,
    DeterministicOrder,
    Rendezvous,
}

/// What the draws for one child of a failover route have met.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Draws {
    /// Draws of a child that was asked before.
    pub(crate) collisions: u32,
    /// Draws of a child that was passed over because its failure domain had failed.
    pub(crate) failed_domain_collisions: u32,
    /// Whether the failure domain of the child that was drawn in the end had failed.
    pub(crate) is_same_domain: bool,
}

/// Requests by verb, and their errors by kind.
#[derive(Debug, Default)]
struct ExtraRequests {
    sent: [SharedCounter; Verb::ALL.len()],
    errors: [SharedCounter; ErrorKind::ALL.len()],
}

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

impl ErrorKind {
    /// All, in the order of their numbers.
    pub const ALL: [ErrorKind; 8] = [
        ErrorKind::Tko,
        ErrorKind::ConnectError,
        ErrorKind::ConnectTimeout,
        ErrorKind::Timeout,
        ErrorKind::Busy,
        ErrorKind::RemoteError,
        ErrorKind::ClientError,
        ErrorKind::LocalError,
    ];
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

    /// Counts a request that a failover has sent elsewhere by `policy`, whose draws for that child were `draws`.
    pub(crate) fn count_failover(&self, verb: Verb, error: Option<ErrorKind>, policy: PolicyKind, draws: Draws) {
        let counters = &self.counters;
        let (of_policy, of_policy_failed) = match policy {
            PolicyKind::InOrder => (&counters.failover_inorder_policy, &counters.failover_inorder_policy_failed),
            PolicyKind::LeastFailures => {
                (&counters.failover_least_failures_policy, &counters.failover_least_failures_policy_failed)
            }
            PolicyKind::DeterministicOrder => {
                (&counters.failover_deterministic_order_policy, &counters.failover_deterministic_order_policy_failed)
            }
            PolicyKind::Rendezvous => {
                (&counters.failover_rendezvous_policy, &counters.failover_rendezvous_policy_failed)
            }
        };
        [&counters.failover_all, of_policy].into_iter().for_each(|counter| counter.add(1));
        if error.is_some() {
            [&counters.failover_all_failed, of_policy_failed].into_iter().for_each(|counter| counter.add(1));
        }
        counters.failover_num_collisions.add(draws.collisions.into());
        counters.failover_num_failed_domain_collisions.add(draws.failed_domain_collisions.into());
        counters.failover_same_failure_domain.add(draws.is_same_domain.into());
        self.count_extra(verb, error);
    }

    /// Counts a failure of any child, after which the policy is asked for the next one.
    pub(crate) fn count_policy_error(&self, error: ErrorKind) {
        match error {
            ErrorKind::Tko => self.counters.failover_policy_tko_error.add(1),
            _ => self.counters.failover_policy_result_error.add(1),
        }
    }

    /// Counts a request that no client has sent there, and how it has failed.
    pub(crate) fn count_extra(&self, verb: Verb, error: Option<ErrorKind>) {
        self.extra.sent[verb as usize].add(1);
        error.into_iter().for_each(|error| self.extra.errors[error as usize].add(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_error_has_a_counter_of_its_own() {
        assert!(ErrorKind::ALL.iter().enumerate().all(|(at, kind)| *kind as usize == at));
        let statistics = RouteStatistics::default();
        for (count, kind) in ErrorKind::ALL.into_iter().enumerate() {
            (0..count).for_each(|_| statistics.count_extra(Verb::Get, Some(kind)));
        }
        let counts = ErrorKind::ALL.map(|kind| statistics.extra_errors(kind));
        assert_eq!(counts, [0, 1, 2, 3, 4, 5, 6, 7]);
    }
}
