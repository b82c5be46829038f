//! A child by the host that the router runs on, so that hosts are spread evenly over replicas (§3.2.3 of the paper).
//!
//! | verb | effect |
//! |---|---|
//! | all | sent to the child that the host's id and the salt pick: always the same one |
//!
//! A delete reaches one child only: combine with `OperationSelectorRoute` and `AllSyncRoute`. A child's failure is
//! returned. The choice differs from mcrouter's, which has different host ids.

use crate::{
    Batch, BoxFuture, Context, KeyHash, Outcomes, Route,
    configuration::{
        ConfigurationError, Handle, Keys, Object, Parser, RouteConfig, RouteType, TreeBuilder, parse_salt,
    },
};
use std::sync::Arc;

/// One of several children, the same for this host.
pub struct HostIdRoute {
    chosen: Arc<dyn Route>,
}

impl HostIdRoute {
    /// Picks one of `children` by `host_id` and `salt`.
    ///
    /// # Panics
    /// Without a child.
    pub fn new(children: Vec<Arc<dyn Route>>, host_id: u32, salt: &str) -> Self {
        let hash = KeyHash { salt: salt.to_owned(), ..KeyHash::default() };
        let picker = hash.picker_for(children.len()).expect("at least one child");
        let chosen = picker.pick(host_id.to_string().as_bytes());
        HostIdRoute { chosen: children[chosen].clone() }
    }
}

impl Route for HostIdRoute {
    fn route<'a>(&'a self, batch: Batch, context: &'a Context) -> BoxFuture<'a, Outcomes> {
        self.chosen.route(batch, context)
    }
}

pub(crate) const TYPE: RouteType = RouteType::new("HostIdRoute", parse).with_short_form(|node, argument, parser| {
    let children = parser.short_children(node, argument)?;
    Ok(children.map(|children| Handle::route(Config { children, salt: String::new() })))
});

#[derive(Debug, PartialEq)]
struct Config {
    children: Vec<Handle>,
    salt: String,
}

fn parse<'a>(object: &Object<'a>, parser: &mut Parser<'a>) -> Result<Handle, ConfigurationError> {
    object.check(&Keys::known(&["type", "name", "children", "salt"]))?;
    let children = parser.children(object, "children")?;
    Ok(Handle::route(Config { children, salt: parse_salt(object)? }))
}

impl RouteConfig for Config {
    fn name(&self) -> &'static str {
        TYPE.name()
    }

    fn passes_reads(&self) -> bool {
        true
    }

    fn build(&self, tree: &mut dyn TreeBuilder) -> Arc<dyn Route> {
        let children = tree.build_all(&self.children);
        Arc::new(HostIdRoute::new(children, tree.environment().host_id, &self.salt))
    }
}
