//! Caches behind one another: after a miss of the first, the next is asked.
//!
//! | verb | sent to | reply |
//! |---|---|---|
//! | get gets gat gats metaget | the children in order, until one has the key | the first hit; else the last child's outcome, or the best one with `return_best_on_error` |
//! | lease-get | the same; a `get` once some child has granted a lease | the first hit; else the first lease |
//! | set add replace append prepend cas lease-set touch incr decr | the first child; the next one after a failure | that child's |
//! | delete | all children in order | an error if any failed; `DELETED` if any held the key |
//!
//! Unlike in mcrouter, a delete goes to all children: a value that stayed in the second child would be read as soon as
//! the first has lost the key.
//!
//! A meta get that creates the key on a miss (`N`) does not miss. After any error the next child is asked.

use crate::{
    Batch, BoxFuture, Context, Outcome, Outcomes, Route,
    configuration::{ConfigurationError, Handle, Keys, Object, Parser, RouteConfig, RouteType, TreeBuilder},
    outcome::{as_get, is_error, is_miss, verb, worse},
    split::route_some,
    verb::{Verb, VerbKind},
};
use bytes::Bytes;
use lookaside_protocol::{Reply, Request};
use std::sync::Arc;

/// Children in the order in which they are asked.
pub struct MissFailoverRoute {
    children: Vec<Arc<dyn Route>>,
    return_best_on_error: bool,
}

impl MissFailoverRoute {
    /// Asks `children` in order. With `return_best_on_error` any child's miss takes precedence over the last's error.
    ///
    /// # Panics
    /// Without a child.
    pub fn new(children: Vec<Arc<dyn Route>>, return_best_on_error: bool) -> Self {
        assert!(!children.is_empty(), "no child to ask");
        MissFailoverRoute { children, return_best_on_error }
    }

    async fn route_in_order(&self, batch: Batch, context: &Context) -> Outcomes {
        let requests = batch.clone();
        let (first, others) = self.children.split_first().expect("at least one child");
        let mut outcomes = first.route(batch, context).await;
        for child in others {
            let asked: Vec<_> = requests
                .iter()
                .zip(&outcomes)
                .enumerate()
                .filter_map(|(at, (request, outcome))| Some((at, next_request(request, outcome)?)))
                .collect();
            if asked.is_empty() {
                break;
            }
            for (at, outcome) in route_some(&**child, asked, context).await {
                let before = std::mem::replace(&mut outcomes[at], Ok(Reply::Miss));
                outcomes[at] = self.merge(verb(&requests[at]), before, outcome);
            }
        }
        outcomes
    }

    fn merge(&self, verb: Verb, before: Outcome, now: Outcome) -> Outcome {
        match verb.kind() {
            VerbKind::Delete => worse(before, now),
            VerbKind::Update => now,
            VerbKind::Read if !is_miss(&now) && !is_error(&now) => now,
            VerbKind::Read if matches!(before, Ok(Reply::Lease { .. })) => before,
            VerbKind::Read if self.return_best_on_error && is_error(&now) => before,
            VerbKind::Read => now,
        }
    }
}

/// The request to the next child after the outcome so far; `None` if the outcome is final.
fn next_request(request: &Request<Bytes>, so_far: &Outcome) -> Option<Request<Bytes>> {
    let asked = match verb(request).kind() {
        VerbKind::Delete => true,
        VerbKind::Update => is_error(so_far),
        VerbKind::Read => is_error(so_far) || is_miss(so_far),
    };
    let has_lease = matches!(so_far, Ok(Reply::Lease { .. }));
    asked.then(|| if has_lease { as_get(request) } else { request.clone() })
}

impl Route for MissFailoverRoute {
    fn route<'a>(&'a self, batch: Batch, context: &'a Context) -> BoxFuture<'a, Outcomes> {
        match &*self.children {
            [only] => only.route(batch, context),
            _ => Box::pin(self.route_in_order(batch, context)),
        }
    }
}

pub(crate) const TYPE: RouteType =
    RouteType::new("MissFailoverRoute", parse).with_short_form(|node, argument, parser| {
        let children = parser.short_children(node, argument)?;
        Ok(children.map(|children| Handle::route(Config { children, return_best_on_error: false })))
    });

#[derive(Debug, PartialEq)]
struct Config {
    children: Vec<Handle>,
    return_best_on_error: bool,
}

fn parse<'a>(object: &Object<'a>, parser: &mut Parser<'a>) -> Result<Handle, ConfigurationError> {
    object.check(&Keys::known(&["type", "name", "children", "return_best_on_error"]))?;
    Ok(Handle::route(Config {
        children: parser.children(object, "children")?,
        return_best_on_error: object.flag("return_best_on_error")?,
    }))
}

impl RouteConfig for Config {
    fn name(&self) -> &'static str {
        TYPE.name()
    }

    fn build(&self, tree: &mut dyn TreeBuilder) -> Arc<dyn Route> {
        Arc::new(MissFailoverRoute::new(tree.build_all(&self.children), self.return_best_on_error))
    }
}
