//! Asks all children concurrently and waits for all of them: an acknowledgement means "done everywhere".
//!
//! | verb | sent to | reply |
//! |---|---|---|
//! | delete | all | an error if any child failed; `DELETED` if any child held the key; else `NOT_FOUND` |
//! | set add replace append prepend cas lease-set touch incr decr | all | the worst: an error, else a refusal, else the first child's |
//! | get gets gat gats lease-get metaget | all | the worst: an error, else a miss or a lease, else the first child's value |
//!
//! mcrouter also returns the worst reply to a delete, which for mcrouter is `NOT_FOUND`. Here `DELETED` wins, because
//! the reply to a delete tells whether there was a value.
//!
//! A meta command is treated as its verb, except `ma` without a value, which returns `HD` if any child counted: `HD`
//! and `NF` do not show which verb they answer, and the rule for `md` applies.
//!
//! `cas` and `lease-set` are valid only at the server that issued the CAS unique or the token. All others refuse, and
//! so does this route: route these verbs around it (`OperationSelectorRoute`).

use crate::{
    Batch, BoxFuture, Context, Outcomes, Route,
    configuration::{Handle, RouteConfig, RouteType, TreeBuilder},
    outcome::worse,
    split::{Part, next, route_parts},
};
use std::sync::Arc;

/// All children; each is awaited.
pub struct AllSyncRoute {
    children: Vec<Arc<dyn Route>>,
}

impl AllSyncRoute {
    /// Asks every one of `children`.
    ///
    /// # Panics
    /// Without a child.
    pub fn new(children: Vec<Arc<dyn Route>>) -> Self {
        assert!(!children.is_empty(), "no child to ask");
        AllSyncRoute { children }
    }

    async fn route_to_all(&self, batch: Batch, context: &Context) -> Outcomes {
        let requests = batch.len();
        let last = self.children.len() - 1;
        let mut parts: Vec<Part> = (0..last).map(|child| Part { child, batch: batch.clone() }).collect();
        parts.push(Part { child: last, batch });
        let mut of_children = route_parts(&self.children, parts, context).await;
        (0..requests)
            .map(|_| {
                let mut of_each_child = of_children.iter_mut().map(next);
                let first = of_each_child.next().expect("at least one child");
                of_each_child.fold(first, worse)
            })
            .collect()
    }
}

impl Route for AllSyncRoute {
    fn route<'a>(&'a self, batch: Batch, context: &'a Context) -> BoxFuture<'a, Outcomes> {
        match &*self.children {
            [only] => only.route(batch, context),
            _ => Box::pin(self.route_to_all(batch, context)),
        }
    }
}

pub(crate) const TYPE: RouteType = RouteType::new("AllSyncRoute", |object, parser| {
    Ok(Handle::route(AllSyncRouteConfig { children: parser.only_children(object)? }))
})
.with_short_form(|node, argument, parser| {
    let children = parser.short_children(node, argument)?;
    Ok(children.map(|children| Handle::route(AllSyncRouteConfig { children })))
});

/// The arguments of an [`AllSyncRoute`].
#[derive(Debug, PartialEq)]
pub struct AllSyncRouteConfig {
    /// The routes that are all asked.
    pub children: Vec<Handle>,
}

impl RouteConfig for AllSyncRouteConfig {
    fn name(&self) -> &'static str {
        TYPE.name()
    }

    fn build(&self, tree: &mut dyn TreeBuilder) -> Arc<dyn Route> {
        Arc::new(AllSyncRoute::new(tree.build_all(&self.children)))
    }
}
