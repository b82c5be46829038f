//! Lets clients read and change nothing (`--allow-only-gets`): above every tree, so that a route below may still store
//! what it copies.
//!
//! | verb | effect |
//! |---|---|
//! | get gets gat gats lease-get metaget | sent to the target |
//! | all others | the reply of an empty cache ([`NullRoute`]): `NOT_STORED` or `NOT_FOUND` |

use crate::{
    Batch, BoxFuture, Context, NullRoute, Outcomes, Route,
    configuration::{Handle, RouteConfig, TreeBuilder},
    split::split,
    verb::{Verb, VerbKind},
};
use std::sync::Arc;

const READS: usize = 0;
const CHANGES: usize = 1;

pub(crate) struct OnlyGetsRoute {
    /// The target and a [`NullRoute`].
    children: [Arc<dyn Route>; 2],
}

impl OnlyGetsRoute {
    /// The description of an `OnlyGetsRoute` over `target`.
    pub(crate) fn handle(target: Handle) -> Handle {
        Handle::route(Config { target })
    }
}

impl Route for OnlyGetsRoute {
    fn route<'a>(&'a self, batch: Batch, context: &'a Context) -> BoxFuture<'a, Outcomes> {
        split(&self.children, batch, context, |request| match Verb::of(&request.operation).kind() {
            VerbKind::Read => READS,
            VerbKind::Update | VerbKind::Delete => CHANGES,
        })
    }
}

#[derive(Debug, PartialEq)]
struct Config {
    target: Handle,
}

impl RouteConfig for Config {
    fn name(&self) -> &'static str {
        "allow-only-gets"
    }

    fn passes_reads(&self) -> bool {
        true
    }

    fn build(&self, tree: &mut dyn TreeBuilder) -> Arc<dyn Route> {
        Arc::new(OnlyGetsRoute { children: [tree.build(&self.target), Arc::new(NullRoute)] })
    }
}
