//! Asks all children at the same time and waits for all of them: an acknowledgement means "done everywhere".
//!
//! | verb | sent to | answer |
//! |---|---|---|
//! | delete | all | an error if any child failed; `DELETED` if any child held the key; else `NOT_FOUND` |
//! | set add replace append prepend cas lease-set touch incr decr | all | the worst: an error, else a refusal, else the first child's |
//! | get gets gat gats lease-get metaget | all | the worst: an error, else a miss or a lease, else the first child's value |
//!
//! mcrouter answers a delete with the worst reply too, which for it is `NOT_FOUND`. Here `DELETED` wins, because the
//! question behind a delete's answer is whether something was there.
//!
//! A meta command is answered as its verb, but for `ma` without a value, which says `HD` if any child counted: `HD` and
//! `NF` do not tell which verb they answer, and `md` decides.
//!
//! `cas` and `lease-set` mean something to one server only, the one that handed out the unique or the token: all
//! others refuse, and so does the answer. Select them away (`OperationSelectorRoute`) before they get here.

use crate::{
    Batch, BoxFuture, Context, Outcomes, Route,
    configuration::{Handle, RouteConfig, RouteType, TreeBuilder},
    outcome::worse,
    split::{Part, ask_parts, next},
};
use std::sync::Arc;

/// All children, each awaited.
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

    async fn ask_all(&self, batch: Batch, context: &Context) -> Outcomes {
        let requests = batch.len();
        let last = self.children.len() - 1;
        let mut parts: Vec<Part> = (0..last).map(|child| Part { child, batch: batch.clone() }).collect();
        parts.push(Part { child: last, batch });
        let mut answers = ask_parts(&self.children, parts, context).await;
        (0..requests)
            .map(|_| {
                let mut of_each_child = answers.iter_mut().map(next);
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
            _ => Box::pin(self.ask_all(batch, context)),
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
