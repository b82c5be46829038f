//! A child for each group of verbs.
//!
//! | verb | group | effect |
//! |---|---|---|
//! | get gets gat gats lease-get metaget | `get_like` | sent to the child that `routing_group_policies` names, else to `default_policy` |
//! | set add replace append prepend cas lease-set | `update_like` | the same |
//! | delete | `delete_like` | the same |
//! | incr decr | `arithmetic_like` | the same |
//! | touch | none | sent to `default_policy` |
//!
//! A request without a child is refused with `SERVER_ERROR unknown result`, mcrouter's text. The rest is as in
//! `operation_selector_route.rs`, which executes it.

use crate::{
    ErrorRoute, Route, Verb,
    cluster::operation_selector_route::OperationSelectorRoute,
    configuration::{
        ConfigurationError, Handle, Keys, Object, Parser, RouteConfig, RouteType, TreeBuilder, suggestion,
    },
};
use std::sync::Arc;

/// The verbs of each group.
const GROUPS: [(&str, &[Verb]); 4] = [
    ("get_like", &[Verb::Get, Verb::Gets, Verb::Gat, Verb::Gats, Verb::LeaseGet, Verb::Metaget]),
    ("update_like", &[Verb::Set, Verb::Add, Verb::Replace, Verb::Append, Verb::Prepend, Verb::Cas, Verb::LeaseSet]),
    ("delete_like", &[Verb::Delete]),
    ("arithmetic_like", &[Verb::Incr, Verb::Decr]),
];

pub(crate) const TYPE: RouteType = RouteType::new("RoutingGroupRoute", parse);

#[derive(Debug, PartialEq)]
struct Config {
    default_policy: Option<Handle>,
    /// Each with the verbs of its group.
    policies: Vec<(&'static [Verb], Handle)>,
}

fn parse<'a>(object: &Object<'a>, parser: &mut Parser<'a>) -> Result<Handle, ConfigurationError> {
    object.check(&Keys::known(&["type", "name", "default_policy", "routing_group_policies"]))?;
    let groups = object.get("routing_group_policies");
    if groups.is_none() && object.get("default_policy").is_none() {
        let expected = "expected \"default_policy\" or \"routing_group_policies\"";
        return Err(object.node.error(format!("no group would have a route: {expected}")));
    }
    let mut policies = Vec::new();
    if let Some(node) = groups {
        for (name, policy) in node.object("an object with a route for each group")?.entries() {
            let Some((_, verbs)) = GROUPS.into_iter().find(|(group, _)| *group == name) else {
                let known = suggestion(name, "groups", GROUPS.map(|(group, _)| group));
                return Err(policy.error(format!("no group is named {name:?}{known}")));
            };
            policies.push((verbs, parser.handle(&policy)));
        }
    }
    Ok(Handle::route(Config { default_policy: parser.optional(object, "default_policy"), policies }))
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
        let default = default.unwrap_or_else(|| Arc::new(ErrorRoute::new("unknown result")));
        let mut by_verb: Vec<(Verb, Arc<dyn Route>)> = Vec::new();
        for (verbs, policy) in &self.policies {
            let policy = tree.build(policy);
            by_verb.extend(verbs.iter().map(|verb| (*verb, policy.clone())));
        }
        Arc::new(OperationSelectorRoute::new(Some(default), by_verb))
    }
}
