//! The order in which a failover route asks its children, and how many of them. The first child is always asked first.
//!
//! | policy | then | limits |
//! |---|---|---|
//! | in order (default) | the others in order | none |
//! | `LeastFailuresPolicy` | the others by the number of failures since their last reply | `max_tries` failures |
//! | `DeterministicOrderPolicy` | those that a hash picks for the key and 2, the key and 3, ... | `max_tries` children, `max_error_tries` failures |
//! | `RendezvousPolicy` | the others by their scores for the key | none |
//!
//! A child that is TKO, or fails with one of `exclude_errors`, does not count as a failure here: there was no wait.
//! **For deletes failures are not counted**: every child that may be chosen for the key is asked, as each may hold a
//! copy.
//!
//! The last two policies choose by key, as mcrouter does, so a key always has the same children. Often the first child
//! is a pool whose servers follow it as children of their own. The server that the pool has chosen for the key has
//! failed then, and is left out ([`FirstChoice`]).

use crate::{
    FailoverError, FailoverErrorSet, Outcome, Picker,
    hash::Rendezvous,
    key::routing_key,
    statistics::{Draws, PolicyKind},
};
use bytes::Bytes;
use lookaside_protocol::Request;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// The number of children of a pool that a request is sent to, unless a policy says so.
pub const CANDIDATES_DEFAULT: u32 = 5;

/// The number that is appended to the key for the first draw.
const DRAW_FIRST: u32 = 2;

/// The number of draws for one request.
const DRAWS_MAX: u32 = 100;

/// In as many draws a child is passed over if one of its failure domain has failed.
const DOMAIN_DRAWS: u32 = 75;

/// The order of children and the number of tries.
#[derive(Debug)]
pub struct FailoverPolicy {
    order: Order,
    children_max: u32,
    tries_max: u32,
    exclude_errors: FailoverErrorSet,
}

#[derive(Debug)]
enum Order {
    Listed,
    /// For each child, the failures since its last reply.
    LeastFailures(Box<[AtomicU32]>),
    ByKey {
        /// Over all children.
        hash: Picker,
        first: FirstChoice,
        /// The failure domain of each child; empty if failure domains are not enabled.
        domains: Box<[Option<u32>]>,
    },
    Rendezvous {
        /// Over all children but the first.
        scores: Rendezvous,
        first: FirstChoice,
    },
}

/// How the first child chooses a server for a key, if its servers follow it as children, in order.
#[derive(Debug, Default)]
pub struct FirstChoice {
    /// Picks the server; `None` if that is not known.
    pub picker: Option<Picker>,
    /// The failure domain of each of its servers; empty if failure domains are not enabled.
    pub domains: Vec<Option<u32>>,
    /// Whether the server may be asked once more, as one of the other children.
    pub is_asked_again: bool,
}

impl FirstChoice {
    fn server(&self, request: &Request<Bytes>) -> Option<u32> {
        self.picker.as_ref().map(|picker| picker.pick_for(request) as u32)
    }
}

/// The children to ask for one request, in order, the first child included.
#[derive(Debug)]
pub(crate) struct ChildOrder {
    pub(crate) children: Vec<u32>,
    /// What the draws for each of them have met; empty if children are not drawn.
    draws: Vec<Draws>,
}

impl ChildOrder {
    /// What the draws for the child at this index of `children` have met.
    pub(crate) fn draws(&self, at: usize) -> Draws {
        self.draws.get(at).copied().unwrap_or_default()
    }
}

impl FailoverPolicy {
    fn with_order(order: Order) -> Self {
        FailoverPolicy { order, children_max: u32::MAX, tries_max: u32::MAX, exclude_errors: FailoverErrorSet::NONE }
    }

    /// One child after the other.
    pub fn in_order() -> Self {
        Self::with_order(Order::Listed)
    }

    /// The first of `children` children, then those that failed least.
    pub fn least_failures(children: usize) -> Self {
        Self::with_order(Order::LeastFailures((0..children).map(|_| AtomicU32::new(0)).collect()))
    }

    /// The first child, then those that `hash` picks of all, by key. With `domains` (one for each child) a child is
    /// passed over at first if another one of its domain has failed.
    pub fn by_key(hash: Picker, first: FirstChoice, domains: Vec<Option<u32>>) -> Self {
        Self::with_order(Order::ByKey { hash, first, domains: domains.into() })
    }

    /// The first child, then the others by the scores of their `tags`.
    pub fn rendezvous(tags: &[String], first: FirstChoice) -> Self {
        Self::with_order(Order::Rendezvous { scores: Rendezvous::new(tags, &[]), first })
    }

    /// Limits the number of tries (at least one): of failures, without those of `exclude_errors`.
    pub fn with_tries(mut self, tries_max: u32, exclude_errors: FailoverErrorSet) -> Self {
        self.tries_max = tries_max.max(1);
        self.exclude_errors = exclude_errors;
        self
    }

    /// Limits the number of children that are asked (at least one).
    pub fn with_children(mut self, children_max: u32) -> Self {
        self.children_max = children_max.max(1);
        self
    }

    /// Which policy it is.
    pub(crate) fn kind(&self) -> PolicyKind {
        match &self.order {
            Order::Listed => PolicyKind::InOrder,
            Order::LeastFailures(_) => PolicyKind::LeastFailures,
            Order::ByKey { .. } => PolicyKind::DeterministicOrder,
            Order::Rendezvous { .. } => PolicyKind::Rendezvous,
        }
    }

    /// The children to ask for this request, of `children` in all; the first child included.
    pub(crate) fn order(&self, request: &Request<Bytes>, children: usize) -> ChildOrder {
        let mut order: Vec<u32> = (0..children as u32).collect();
        let mut draws = Vec::new();
        match &self.order {
            Order::Listed => {}
            Order::LeastFailures(failures) => {
                order[1..].sort_by_key(|&child| (failures[child as usize].load(Relaxed), child));
            }
            Order::ByKey { hash, first, domains } => {
                (order, draws) = self.order_by_draws(request, children, hash, first, domains);
            }
            Order::Rendezvous { scores, first } => {
                let failed = first.server(request);
                let others = scores.order(&routing_key(request)).into_iter();
                order = std::iter::once(0).chain(others.filter(|&at| Some(at) != failed).map(|at| at + 1)).collect();
            }
        }
        order.truncate(self.children_max as usize);
        ChildOrder { children: order, draws }
    }

    /// The children, and what the draws for each have met.
    fn order_by_draws(
        &self,
        request: &Request<Bytes>,
        children: usize,
        hash: &Picker,
        first: &FirstChoice,
        domains: &[Option<u32>],
    ) -> (Vec<u32>, Vec<Draws>) {
        let domain = |child: u32| domains.get(child as usize).copied().flatten();
        let failed = first.server(request);
        let domain_of_failed = failed.and_then(|server| first.domains.get(server as usize).copied().flatten());
        let mut failed_domains: Vec<u32> = domain(0).into_iter().chain(domain_of_failed).collect();
        let (mut order, mut draws) = (vec![0], vec![Draws::default()]);
        let mut met = Draws::default();
        for draw in 0..DRAWS_MAX {
            if order.len() >= children.min(self.children_max as usize) {
                break;
            }
            let child = hash.pick_with_suffix(request, (DRAW_FIRST + draw).to_string().as_bytes()) as u32;
            let is_server_of_first = !first.is_asked_again && failed.is_some_and(|server| child == server + 1);
            if order.contains(&child) || is_server_of_first {
                met.collisions += 1;
                continue;
            }
            met.is_same_domain = domain(child).is_some_and(|domain| failed_domains.contains(&domain));
            if met.is_same_domain && draw < DOMAIN_DRAWS {
                met.failed_domain_collisions += 1;
                continue;
            }
            order.push(child);
            draws.push(std::mem::take(&mut met));
            failed_domains.extend(domain(child));
        }
        (order, draws)
    }

    /// Records an outcome of a child, which `triggers_failover` or not.
    pub(crate) fn record_outcome(&self, child: usize, triggers_failover: bool) {
        if let Order::LeastFailures(failures) = &self.order {
            let failures = &failures[child];
            match triggers_failover {
                true => _ = failures.fetch_update(Relaxed, Relaxed, |failures| failures.checked_add(1)),
                false if failures.load(Relaxed) > 0 => failures.store(0, Relaxed),
                false => {}
            }
        }
    }

    /// Whether a child that had this outcome counts as a try ([`FailoverPolicy::allows_try`]).
    pub(crate) fn counts_as_try(&self, outcome: &Outcome) -> bool {
        let error = FailoverError::of(outcome);
        error.is_none_or(|error| error != FailoverError::Tko && !self.exclude_errors.contains(error))
    }

    /// Whether a further child may be asked after this number of tries.
    pub(crate) fn allows_try(&self, tries: u32) -> bool {
        tries < self.tries_max
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{HashFunction, KeyHash};
    use lookaside_protocol::Operation;
    use std::collections::BTreeSet;

    fn get(number: usize) -> Request<Bytes> {
        Request { key: format!("key:{number}").into(), operation: Operation::Get { cas: false } }
    }

    fn ch3(servers: usize) -> Picker {
        KeyHash::default().picker_for(servers).unwrap()
    }

    /// The draws of a key, each by a pick of its own.
    fn draws(number: usize, children: usize) -> Vec<u32> {
        let pick = |draw| ch3(children).pick(format!("key:{number}{draw}").as_bytes()) as u32;
        (2..102).map(pick).collect()
    }

    #[test]
    fn children_are_drawn_in_order_and_never_twice() {
        for children in [2, 3, 9, 40] {
            for max in [1, 2, 5, 100] {
                let policy = FailoverPolicy::by_key(ch3(children), FirstChoice::default(), vec![]).with_children(max);
                for number in 0..200 {
                    let order = policy.order(&get(number), children).children;
                    let distinct: BTreeSet<_> = order.iter().collect();
                    assert!(order[0] == 0 && distinct.len() == order.len() && order.len() <= max as usize, "{order:?}");
                    let mut expected = vec![0];
                    for child in draws(number, children) {
                        if !expected.contains(&child) {
                            expected.push(child);
                        }
                    }
                    expected.truncate(max as usize);
                    assert_eq!(order, expected);
                }
            }
        }
    }

    #[test]
    fn the_server_that_the_first_child_chose_is_left_out() {
        let first = || FirstChoice { picker: Some(ch3(6)), ..FirstChoice::default() };
        let by_key = FailoverPolicy::by_key(ch3(7), first(), vec![]);
        let tags: Vec<String> = (0..6).map(|tag| tag.to_string()).collect();
        let rendezvous = FailoverPolicy::rendezvous(&tags, first());
        for number in 0..200 {
            let request = get(number);
            let failed = ch3(6).pick(&request.key) as u32 + 1;
            assert!(!by_key.order(&request, 7).children.contains(&failed));
            let order = rendezvous.order(&request, 7).children;
            assert!(order[0] == 0 && order.len() == 6 && !order.contains(&failed), "{order:?}");
        }
        for first in [FirstChoice::default(), FirstChoice { is_asked_again: true, ..first() }] {
            let policy = FailoverPolicy::by_key(ch3(7), first, vec![]);
            let failed = |number| ch3(6).pick(&get(number).key) as u32 + 1;
            assert!((0..200).all(|number| policy.order(&get(number), 7).children.contains(&failed(number))));
        }
    }

    #[test]
    fn a_failed_domain_is_passed_over_for_75_draws() {
        // The first child chose among six servers in three domains, which are the children 1 to 6.
        let of_servers: Vec<Option<u32>> = [0, 0, 1, 1, 2, 2].map(Some).to_vec();
        let of_children: Vec<Option<u32>> = [vec![None], of_servers.clone()].concat();
        let first = FirstChoice { picker: Some(ch3(6)), domains: of_servers.clone(), is_asked_again: false };
        let policy = FailoverPolicy::by_key(ch3(7), first, of_children.clone());
        for number in 0..300 {
            let failed = ch3(6).pick(&get(number).key);
            let (mut expected, mut domains) = (vec![0], vec![of_servers[failed]]);
            let (mut expected_draws, mut met) = (vec![Draws::default()], Draws::default());
            for (draw, child) in draws(number, 7).into_iter().enumerate() {
                let is_same_domain = domains.contains(&of_children[child as usize]);
                if expected.contains(&child) || child as usize == failed + 1 {
                    met.collisions += 1;
                } else if draw < 75 && is_same_domain {
                    met.failed_domain_collisions += 1;
                } else {
                    expected.push(child);
                    domains.push(of_children[child as usize]);
                    expected_draws.push(Draws { is_same_domain, ..met });
                    met = Draws::default();
                }
            }
            let ordered = policy.order(&get(number), 7);
            let of_each: Vec<Draws> = (0..expected.len()).map(|at| ordered.draws(at)).collect();
            let order = ordered.children;
            assert_eq!((&order, of_each), (&expected, expected_draws));
            let asked: BTreeSet<_> = order[1..3].iter().map(|child| of_children[*child as usize]).collect();
            assert!(asked.len() == 2 && !asked.contains(&of_servers[failed]), "{order:?}");
            assert!(order.len() > 3, "after that the others are asked, too");
        }
    }

    #[test]
    fn weights_of_the_hash_keep_children_out() {
        let weights = vec![1.0, 1.0, 0.0, 1.0, 0.0];
        let hash = KeyHash { function: HashFunction::WeightedCh3, weights, ..KeyHash::default() };
        let policy = FailoverPolicy::by_key(hash.picker_for(5).unwrap(), FirstChoice::default(), vec![]);
        for number in 0..200 {
            let mut order = policy.order(&get(number), 5).children;
            order.sort_unstable();
            assert_eq!(order, [0, 1, 3]);
        }
    }
}
