//! The order in which a failover route asks its children, and how many of them.
//!
//! | policy | first | then |
//! |---|---|---|
//! | in order (default) | the first child | the others in order |
//! | `LeastFailuresPolicy` | the first child | the others by the number of failures since their last reply |
//! | `DeterministicOrderPolicy` | the first child, or the one that the pool's hash picks | those that the hash picks for key and 1, key and 2, ... |
//! | `RendezvousPolicy` | the highest score for the key | the next highest |
//!
//! A request has at most `max_tries` tries; a child that is TKO, or fails with one of `exclude_errors`, does not count:
//! there was no wait. At most `max_error_tries` children are asked in all. **Deletes are not counted**: every child
//! that may be chosen for the key is asked, as each may hold a copy.
//!
//! With the last two policies a key always has the same children, by default at most [`CANDIDATES_DEFAULT`], so its
//! copies are few and a delete finds them. Their orders are not mcrouter's.

use crate::{FailoverError, FailoverErrorSet, Outcome, Picker, hash::Rendezvous, key::routing_key};
use bytes::Bytes;
use lookaside_protocol::Request;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// The default number of children among which a policy chooses by key.
pub const CANDIDATES_DEFAULT: u32 = 5;

/// The number of salts that are tried for each child.
const SALTS_PER_CHILD: usize = 16;

/// The order of children and the number of tries.
#[derive(Debug)]
pub struct FailoverPolicy {
    order: Order,
    max_tries: u32,
    max_error_tries: u32,
    exclude_errors: FailoverErrorSet,
}

#[derive(Debug)]
enum Order {
    Listed,
    /// For each child, the failures since its last reply.
    LeastFailures(Box<[AtomicU32]>),
    ByKey {
        /// Picks the first child. `None`: that is the child at 0, and the others are picked among the rest.
        first: Option<Picker>,
        others: Picker,
        /// The failure domain of each child; empty if failure domains are not enabled.
        domains: Box<[Option<u32>]>,
    },
    Rendezvous(Rendezvous),
}

impl FailoverPolicy {
    fn with_order(order: Order, max_error_tries: u32) -> Self {
        FailoverPolicy { order, max_tries: u32::MAX, max_error_tries, exclude_errors: FailoverErrorSet::NONE }
    }

    /// One child after the other.
    pub fn in_order() -> Self {
        Self::with_order(Order::Listed, u32::MAX)
    }

    /// The first of `children` children, then those that failed least.
    pub fn least_failures(children: usize) -> Self {
        Self::with_order(Order::LeastFailures((0..children).map(|_| AtomicU32::new(0)).collect()), u32::MAX)
    }

    /// The first child, then those that `others` picks of the rest, by key. With `domains` (one for each child, the
    /// first included) a child comes last if another one of its domain has been asked.
    pub fn by_key(others: Picker, domains: Vec<Option<u32>>) -> Self {
        Self::with_order(Order::ByKey { first: None, others, domains: domains.into() }, CANDIDATES_DEFAULT)
    }

    /// The child that `first` picks, then those that `others` picks of all, by key.
    pub fn within_pool(first: Picker, others: Picker, domains: Vec<Option<u32>>) -> Self {
        Self::with_order(Order::ByKey { first: Some(first), others, domains: domains.into() }, CANDIDATES_DEFAULT)
    }

    /// The children by the scores of their tags.
    pub fn rendezvous(tags: &[String]) -> Self {
        Self::with_order(Order::Rendezvous(Rendezvous::new(tags, &[])), CANDIDATES_DEFAULT)
    }

    /// Limits the number of tries (at least one); failures of `exclude_errors` are not tries.
    pub fn with_tries(mut self, max_tries: u32, exclude_errors: FailoverErrorSet) -> Self {
        self.max_tries = max_tries.max(1);
        self.exclude_errors = exclude_errors;
        self
    }

    /// Limits the number of children that are asked (at least one).
    pub fn with_candidates(mut self, max_error_tries: u32) -> Self {
        self.max_error_tries = max_error_tries.max(1);
        self
    }

    /// The first child of every request; `None` if it depends on the key.
    pub(crate) fn common_first(&self) -> Option<usize> {
        match &self.order {
            Order::ByKey { first: Some(_), .. } | Order::Rendezvous(_) => None,
            _ => Some(0),
        }
    }

    pub(crate) fn first(&self, request: &Request<Bytes>) -> usize {
        match &self.order {
            Order::ByKey { first: Some(first), .. } => first.pick_for(request),
            Order::Rendezvous(rendezvous) => rendezvous.pick(&routing_key(request)) as usize,
            _ => 0,
        }
    }

    /// The children to ask for this request, of `children` in all; the first child included.
    pub(crate) fn order(&self, request: &Request<Bytes>, children: usize) -> Vec<u32> {
        let mut order: Vec<u32> = (0..children as u32).collect();
        match &self.order {
            Order::Listed => {}
            Order::LeastFailures(failures) => {
                order[1..].sort_by_key(|&child| (failures[child as usize].load(Relaxed), child));
            }
            Order::ByKey { first, others, domains } => {
                order = self.order_by_salts(request, children, first.is_some(), others, domains);
            }
            Order::Rendezvous(rendezvous) => rendezvous.order(&routing_key(request), &mut order),
        }
        order.truncate(self.max_error_tries as usize);
        order
    }

    fn order_by_salts(
        &self,
        request: &Request<Bytes>,
        children: usize,
        over_all: bool,
        others: &Picker,
        domains: &[Option<u32>],
    ) -> Vec<u32> {
        let wanted = children.min(self.max_error_tries as usize);
        let mut order = vec![self.first(request) as u32];
        let domain = |child: u32| domains.get(child as usize).copied().flatten();
        let mut same_domain = Vec::new();
        for salt in 1..=wanted * SALTS_PER_CHILD {
            if order.len() >= wanted {
                break;
            }
            let child = others.pick_with_suffix(request, salt.to_string().as_bytes()) as u32 + u32::from(!over_all);
            if order.contains(&child) || same_domain.contains(&child) {
                continue;
            }
            let is_known = domain(child).is_some_and(|its| order.iter().any(|&asked| domain(asked) == Some(its)));
            if is_known { same_domain.push(child) } else { order.push(child) }
        }
        order.extend(same_domain);
        order
    }

    /// Records an outcome of a child; `counts`: whether it is a failure after which another child is asked.
    pub(crate) fn record_outcome(&self, child: impl FnOnce() -> usize, counts: bool) {
        if let Order::LeastFailures(failures) = &self.order {
            let failures = &failures[child()];
            match counts {
                true => _ = failures.fetch_update(Relaxed, Relaxed, |failures| failures.checked_add(1)),
                false if failures.load(Relaxed) > 0 => failures.store(0, Relaxed),
                false => {}
            }
        }
    }

    pub(crate) fn is_try(&self, outcome: &Outcome) -> bool {
        let error = FailoverError::of(outcome);
        error.is_none_or(|error| error != FailoverError::Tko && !self.exclude_errors.contains(error))
    }

    pub(crate) fn allows_try(&self, tries: u32) -> bool {
        tries < self.max_tries
    }
}
