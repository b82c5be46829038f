//! A child for each verb: for instance deletes to all copies, the rest by failover.
//!
//! | verb | effect |
//! |---|---|
//! | all | sent to the child that `operation_policies` names for the verb, else to `default_policy` |
//!
//! Two children may lead to the same server, and a client that pipelines `delete k`, `get k` must not read the old
//! value. So a request waits for earlier ones of the same key that went to another child: the batch is executed in
//! rounds, each as large as that allows. Nearly every batch is one round.

use crate::{
    Batch, BoxFuture, Context, NO_POLICY, Outcome, Outcomes, Route, Verb,
    cluster::no_route::NoRoute,
    configuration::{
        ConfigurationError, Handle, Keys, Object, Parser, RouteConfig, RouteType, TreeBuilder, suggestion,
    },
    key::stored_key,
    split::{Choices, scatter},
};
use bytes::Bytes;
use lookaside_protocol::Request;
use std::sync::Arc;

/// Selects a child by verb.
pub struct OperationSelectorRoute {
    /// The index in `children` for each verb, in the order of [`Verb::ALL`].
    child_of_verb: [usize; Verb::ALL.len()],
    /// The default child first.
    children: Vec<Arc<dyn Route>>,
}

impl OperationSelectorRoute {
    /// Sends verbs that `operation_policies` names to their child, all others to `default_policy`; without that they
    /// fail with "no route".
    pub fn new(
        default_policy: Option<Arc<dyn Route>>,
        operation_policies: impl IntoIterator<Item = (Verb, Arc<dyn Route>)>,
    ) -> Self {
        let nowhere = || Arc::new(NoRoute::new(NO_POLICY));
        let mut children = vec![default_policy.unwrap_or_else(|| nowhere())];
        let mut child_of_verb = [0; Verb::ALL.len()];
        for (verb, policy) in operation_policies {
            let known = children.iter().position(|child| Arc::ptr_eq(child, &policy));
            child_of_verb[verb as usize] = known.unwrap_or_else(|| {
                children.push(policy);
                children.len() - 1
            });
        }
        OperationSelectorRoute { child_of_verb, children }
    }

    fn choose(&self, request: &Request<Bytes>) -> usize {
        self.child_of_verb[Verb::of(&request.operation) as usize]
    }

    async fn route_in_rounds(
        &self,
        batch: Batch,
        context: &Context,
        choices: Vec<u32>,
        round_of: Vec<u32>,
    ) -> Outcomes {
        let rounds = round_of.iter().max().map_or(0, |last| last + 1);
        let mut outcomes: Vec<Option<Outcome>> = vec![None; batch.len()];
        for round in 0..rounds {
            let members: Vec<usize> = (0..batch.len()).filter(|&at| round_of[at] == round).collect();
            let part = members.iter().map(|&at| batch[at].clone()).collect();
            let part_choices = members.iter().map(|&at| choices[at]).collect();
            let of_round = scatter(&self.children, part, context, part_choices).await;
            for (at, outcome) in members.into_iter().zip(of_round) {
                outcomes[at] = Some(outcome);
            }
        }
        outcomes.into_iter().map(|outcome| outcome.expect("each request is in one round")).collect()
    }
}

impl Route for OperationSelectorRoute {
    fn route<'a>(&'a self, batch: Batch, context: &'a Context) -> BoxFuture<'a, Outcomes> {
        match Choices::of(&batch, |request| self.choose(request)) {
            Choices::Whole(child) => self.children[child].route(batch, context),
            Choices::Each(choices) => match rounds(&batch, &choices) {
                None => Box::pin(scatter(&self.children, batch, context, choices)),
                Some(round_of) => Box::pin(self.route_in_rounds(batch, context, choices, round_of)),
            },
        }
    }
}

/// The round of each request: one after that of the previous request for the same key, if that goes to another child.
/// `None` if one round is enough.
fn rounds(batch: &Batch, choices: &[u32]) -> Option<Vec<u32>> {
    let keys: Vec<_> = batch.iter().map(stored_key).collect();
    let mut by_key: Vec<usize> = (0..batch.len()).collect();
    by_key.sort_unstable_by(|&a, &b| keys[a].cmp(&keys[b]).then(a.cmp(&b)));
    let mut rounds: Option<Vec<u32>> = None;
    for pair in by_key.windows(2) {
        let (before, at) = (pair[0], pair[1]);
        if keys[before] != keys[at] {
            continue;
        }
        let apart = choices[before] != choices[at];
        if apart || rounds.is_some() {
            let rounds = rounds.get_or_insert_with(|| vec![0; batch.len()]);
            rounds[at] = rounds[before] + u32::from(apart);
        }
    }
    rounds
}

pub(crate) const TYPE: RouteType = RouteType::new("OperationSelectorRoute", parse).with_alias("PrefixPolicyRoute");

#[derive(Debug, PartialEq)]
struct Config {
    default_policy: Option<Handle>,
    operation_policies: Vec<(Verb, Handle)>,
}

fn parse<'a>(object: &Object<'a>, parser: &mut Parser<'a>) -> Result<Handle, ConfigurationError> {
    object.check(&Keys::known(&["type", "name", "default_policy", "operation_policies"]))?;
    let mut operation_policies = Vec::new();
    if let Some(node) = object.get("operation_policies") {
        for (operation, policy) in node.object("an object with a route for each operation")?.entries() {
            let Some(verb) = Verb::from_name(operation) else {
                let known = suggestion(operation, "operations", Verb::ALL.map(Verb::name));
                policy.warn(format!("no operation is named {operation:?}: ignored{known}"));
                continue;
            };
            operation_policies.push((verb, parser.handle(&policy)));
        }
    }
    let default_policy = parser.optional(object, "default_policy");
    if operation_policies.is_empty() && default_policy.is_none() {
        let expected = "expected \"default_policy\" or \"operation_policies\"";
        return Err(object.node.error(format!("no operation would have a route: {expected}")));
    }
    Ok(Handle::route(Config { default_policy, operation_policies }))
}

impl RouteConfig for Config {
    fn name(&self) -> &'static str {
        TYPE.name()
    }

    fn passes_reads(&self) -> bool {
        true
    }

    fn build(&self, tree: &mut dyn TreeBuilder) -> Arc<dyn Route> {
        let default = tree.build_optional(&self.default_policy);
        let policies = self.operation_policies.iter().map(|(verb, handle)| (*verb, tree.build(handle)));
        Arc::new(OperationSelectorRoute::new(default, policies))
    }
}
