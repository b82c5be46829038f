//! One child for each key, by hash (§2 of the paper: keys are spread over servers through consistent hashing).
//!
//! | verb | effect |
//! |---|---|
//! | all | sent to the child that the key's hash picks; a single child gets everything |
//!
//! A multiget is split here: each child is asked once, all concurrently.

use crate::{
    Batch, BoxFuture, Context, KeyHash, Outcomes, Picker, Route,
    configuration::{
        ConfigurationError, Handle, Keys, Object, Parser, RouteConfig, RouteType, TreeBuilder, check_servers,
        parse_hash_keys,
    },
    split::split,
};
use std::sync::Arc;

/// Spreads keys over children.
pub struct HashRoute {
    children: Vec<Arc<dyn Route>>,
    picker: Picker,
}

impl HashRoute {
    /// Spreads keys over `children` by `hash`.
    ///
    /// # Panics
    /// If `hash` cannot spread keys over that number of children (see [`KeyHash::picker_for`]).
    pub fn new(children: Vec<Arc<dyn Route>>, hash: KeyHash) -> Self {
        let picker = hash.picker_for(children.len()).expect("a hash that fits its children");
        HashRoute { children, picker }
    }
}

impl Route for HashRoute {
    fn route<'a>(&'a self, batch: Batch, context: &'a Context) -> BoxFuture<'a, Outcomes> {
        if let [only] = &*self.children {
            return only.route(batch, context);
        }
        split(&self.children, batch, context, |request| self.picker.pick_for(request))
    }
}

pub(crate) const TYPE: RouteType = RouteType::new("HashRoute", parse).with_short_form(|node, argument, parser| {
    let children = parser.short_children(node, argument)?;
    Ok(children.map(|children| Handle::route(Config { children, hash: KeyHash::default() })))
});

#[derive(Debug, PartialEq)]
struct Config {
    children: Vec<Handle>,
    hash: KeyHash,
}

fn parse<'a>(object: &Object<'a>, parser: &mut Parser<'a>) -> Result<Handle, ConfigurationError> {
    object.check(
        &Keys::known(&["type", "name", "children", "hash_func", "salt", "weights", "tags"])
            .ignoring(&["error_on_empty"]),
    )?;
    let hash = parse_hash_keys(object)?;
    let children = parser.children(object, "children")?;
    let hash = check_servers(hash, children.len(), &object.node)?;
    Ok(Handle::route(Config { children, hash }))
}

impl RouteConfig for Config {
    fn name(&self) -> &'static str {
        TYPE.name()
    }

    fn build(&self, tree: &mut dyn TreeBuilder) -> Arc<dyn Route> {
        Arc::new(HashRoute::new(tree.build_all(&self.children), self.hash.clone()))
    }
}
