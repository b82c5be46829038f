//! The top of the tree: the routing prefix of a key chooses one cluster, or many. So one batch of deletes from the
//! invalidator reaches every frontend cluster of a region (§4.1 of the paper).
//!
//! | verb | no prefix | `/region/cluster/` | `/*/*/`, `/region/*/`, any other pattern |
//! |---|---|---|---|
//! | delete | default tree | that tree | every tree that matches, all awaited; the reply as of `AllSyncRoute` |
//! | set add replace append prepend touch incr decr | default tree | that tree | the same |
//! | get gets gat gats lease-get metaget | default tree | that tree | one tree: the default if it matches, else the first by name |
//! | cas lease-set | default tree | that tree | the same: only the issuer of the CAS unique or the token accepts it |
//!
//! A cluster without a tree of its name uses `/region/fallback/` if there is one; otherwise the request fails with "no
//! tree", or goes to the default tree if unknown prefixes are sent there. A tree with several names is asked once.
//!
//! mcrouter awaits the first tree of a broadcast only. Here all are awaited: the invalidator drops a key that is
//! acknowledged, so an earlier reply would lose the delete of a cluster that then fails. With broadcasts in the
//! background it is as in mcrouter: the reply is that of the default tree if it matches, else of the first by name.
//! Without a background permit all are awaited, and the reply is still that of the first.
//!
//! Requests for one tree, broadcasts included, travel together, so the order per key is preserved. So a tree that has a
//! request in the batch whose reply is awaited is awaited for all of its requests.

use crate::{
    Batch, BoxFuture, Context, Failure, Outcomes, Route, RoutingPrefix,
    environment::Background,
    key::prefix_bytes,
    outcome::worse,
    split::{Part, next, route_owned, route_parts},
    verb::{Verb, VerbKind},
};
use bytes::Bytes;
use futures_util::future::{join, join_all};
use lookaside_protocol::Request;
use std::{fmt, sync::Arc};

/// The trees of all clusters by routing prefix.
pub struct RootRoute {
    /// By name, the default first; one entry for each name of a tree.
    names: Vec<(RoutingPrefix, u32)>,
    trees: Vec<Arc<dyn Route>>,
    sends_unknown_to_default: bool,
    /// Where the further trees of a broadcast are asked; `None` if all are awaited.
    background: Option<Background>,
}

/// No tree has the default prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoDefaultTree {
    /// The default prefix.
    pub default_prefix: RoutingPrefix,
}

impl std::error::Error for NoDefaultTree {}

impl fmt::Display for NoDefaultTree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no route is named {}, the default prefix for keys without one", self.default_prefix)
    }
}

/// The cluster name of the tree for unknown clusters of a region.
const FALLBACK_CLUSTER: &[u8] = b"fallback/";

impl RootRoute {
    /// The trees with their names; the one with the name `default_prefix` serves keys without a prefix. If several
    /// trees have the same name, the last one gets it.
    pub fn new(
        default_prefix: RoutingPrefix,
        named: Vec<(Vec<RoutingPrefix>, Arc<dyn Route>)>,
    ) -> Result<Self, NoDefaultTree> {
        let mut names = std::collections::BTreeMap::new();
        let mut trees = Vec::with_capacity(named.len());
        for (prefixes, tree) in named {
            names.extend(prefixes.into_iter().map(|prefix| (prefix, trees.len() as u32)));
            trees.push(tree);
        }
        let Some(default) = names.remove(&default_prefix) else { return Err(NoDefaultTree { default_prefix }) };
        let names = std::iter::once((default_prefix, default)).chain(names).collect();
        Ok(RootRoute { names, trees, sends_unknown_to_default: false, background: None })
    }

    /// The same, with keys whose prefix names no tree sent to the default tree if `is_sent` (mcrouter's
    /// `--send-invalid-route-to-default`). By default they fail.
    pub fn with_unknown_sent_to_default(self, is_sent: bool) -> Self {
        RootRoute { sends_unknown_to_default: is_sent, ..self }
    }

    /// The same, with only the first tree of a broadcast awaited and the others asked in `background`, as in mcrouter.
    /// Failures of the others are not reported. By default, and with `None`, all are awaited.
    pub fn with_broadcasts_in(self, background: Option<Background>) -> Self {
        RootRoute { background, ..self }
    }

    fn default_tree(&self) -> u32 {
        self.names[0].1
    }

    /// Appends the trees of a request; none if there is no tree for its prefix.
    fn targets(&self, request: &Request<Bytes>, targets: &mut Vec<u32>) {
        let start = targets.len();
        let prefix = &request.key[..prefix_bytes(request)];
        if prefix.is_empty() {
            targets.push(self.default_tree());
        } else if !prefix.contains(&b'*') {
            targets.extend(self.tree_named(prefix));
        } else {
            for (_, tree) in self.names.iter().filter(|(name, _)| name.matches_pattern(prefix)) {
                if !targets[start..].contains(tree) {
                    targets.push(*tree);
                }
            }
            if goes_to_one_tree(request) {
                targets.truncate(start + 1);
            }
        }
        if targets.len() == start && self.sends_unknown_to_default {
            targets.push(self.default_tree());
        }
    }

    /// The tree of that name, or the fallback of its region.
    fn tree_named(&self, prefix: &[u8]) -> Option<u32> {
        let find = |wanted: &dyn Fn(&[u8]) -> bool| {
            self.names.iter().find(|(name, _)| wanted(name.as_str().as_bytes())).map(|(_, tree)| *tree)
        };
        let region = &prefix[..=1 + prefix[1..].iter().position(|&byte| byte == b'/')?];
        find(&|name| name == prefix)
            .or_else(|| find(&|name| name.strip_prefix(region).is_some_and(|cluster| cluster == FALLBACK_CLUSTER)))
    }

    async fn route_by_prefix(&self, batch: Batch, context: &Context) -> Outcomes {
        let mut targets_of =
            TargetLists { targets: Vec::with_capacity(batch.len()), ends: Vec::with_capacity(batch.len()) };
        let mut batches: Vec<Batch> = vec![Batch::new(); self.trees.len()];
        for request in batch {
            match targets_of.add(|targets| self.targets(&request, targets)) {
                [] => {}
                [others @ .., last] => {
                    others.iter().for_each(|&tree| batches[tree as usize].push(request.clone()));
                    batches[*last as usize].push(request);
                }
            }
        }
        let parts = batches.into_iter().enumerate().map(|(child, batch)| Part { child, batch });
        let parts = parts.filter(|part| !part.batch.is_empty());
        let (parts, others): (Vec<Part>, Vec<Part>) = match &self.background {
            None => (parts.collect(), Vec::new()),
            Some(_) => {
                let firsts: Vec<u32> = targets_of.each().filter_map(|targets| targets.first().copied()).collect();
                parts.partition(|part| firsts.contains(&(part.child as u32)))
            }
        };
        let others = self.ask_in_background(others, context);
        let asked: Vec<usize> = parts.iter().map(|part| part.child).collect();
        let (outcomes, ()) = join(route_parts(&self.trees, parts, context), others).await;
        let mut outcomes_of_tree = vec![std::vec::IntoIter::default(); self.trees.len()];
        asked.iter().zip(outcomes).for_each(|(&tree, outcomes)| outcomes_of_tree[tree] = outcomes);
        let is_first_alone = self.background.is_some();
        targets_of
            .each()
            .map(|targets| {
                let awaited = targets.iter().filter(|&&tree| !is_first_alone || asked.contains(&(tree as usize)));
                let of_each_tree = awaited.map(|&tree| next(&mut outcomes_of_tree[tree as usize]));
                let chosen =
                    of_each_tree.reduce(|first, other| if is_first_alone { first } else { worse(first, other) });
                chosen.unwrap_or(Err(Failure::NoTree))
            })
            .collect()
    }

    /// Asks trees whose replies are not awaited; completes at once, or, without a permit, when all have replied.
    fn ask_in_background(&self, parts: Vec<Part>, context: &Context) -> impl Future<Output = ()> + Send + 'static {
        let permit = self.background.as_ref().filter(|_| !parts.is_empty()).and_then(Background::try_permit);
        let of_parts = parts.into_iter().map(|part| route_owned(&self.trees[part.child], part.batch, context));
        let mut pending = Some(join_all(of_parts));
        if let Some(permit) = permit
            && let Some(pending) = pending.take()
        {
            permit.spawn_rest(async move { drop(pending.await) });
        }
        async move {
            if let Some(pending) = pending {
                pending.await;
            }
        }
    }
}

impl Route for RootRoute {
    fn route<'a>(&'a self, batch: Batch, context: &'a Context) -> BoxFuture<'a, Outcomes> {
        if batch.iter().all(|request| prefix_bytes(request) == 0) {
            return self.trees[self.default_tree() as usize].route(batch, context);
        }
        Box::pin(self.route_by_prefix(batch, context))
    }
}

/// The trees of each request of a batch, in consecutive lists.
struct TargetLists {
    targets: Vec<u32>,
    /// The end of each request's list.
    ends: Vec<u32>,
}

impl TargetLists {
    /// Adds one request; `fill` appends its trees. Returns them.
    fn add(&mut self, fill: impl FnOnce(&mut Vec<u32>)) -> &[u32] {
        let start = self.targets.len();
        fill(&mut self.targets);
        self.ends.push(self.targets.len() as u32);
        &self.targets[start..]
    }

    fn each(&self) -> impl Iterator<Item = &[u32]> {
        let starts = std::iter::once(&0).chain(&self.ends);
        starts.zip(&self.ends).map(|(&start, &end)| &self.targets[start as usize..end as usize])
    }
}

fn goes_to_one_tree(request: &Request<Bytes>) -> bool {
    let verb = Verb::of(&request.operation);
    verb.kind() == VerbKind::Read || matches!(verb, Verb::Cas | Verb::LeaseSet)
}
