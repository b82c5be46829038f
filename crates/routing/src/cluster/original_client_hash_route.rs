//! A replica by the client's address (§3.2.3 of the paper): a client always reads the same one, so its multigets stay
//! one batch, and a server of a replicated pool serves half the clients, not half the keys.
//!
//! | verb | effect |
//! |---|---|
//! | all | sent to the child that the client's IP address picks; without a known address to the child at `offset` |
//!
//! So a lease token goes back to the replica that issued it. A delete must reach all replicas: route it to an
//! `AllSyncRoute` instead. A child's failure is returned; put a failover route above, or around each child.
//!
//! An IPv4 address that came over an IPv6 socket counts as the IPv4 address. The port does not count.

use crate::{
    Batch, BoxFuture, Context, KeyHash, Outcomes, Picker, Route, SERVERS_MAX,
    configuration::{
        ConfigurationError, Handle, Keys, Object, Parser, RouteConfig, RouteType, TreeBuilder, parse_salt,
    },
};
use std::sync::Arc;

/// Replicas, one for each client.
pub struct OriginalClientHashRoute {
    children: Vec<Arc<dyn Route>>,
    picker: Picker,
    offset: usize,
}

impl OriginalClientHashRoute {
    /// Assigns clients to `children`; `offset` rotates the assignment, so that two pools can differ in it.
    ///
    /// # Panics
    /// Without a child.
    pub fn new(children: Vec<Arc<dyn Route>>, salt: &str, offset: usize) -> Self {
        let hash = KeyHash { salt: salt.to_owned(), ..KeyHash::default() };
        let picker = hash.picker_for(children.len()).expect("at least one child");
        OriginalClientHashRoute { children, picker, offset }
    }

    fn choose(&self, context: &Context) -> usize {
        let children = self.children.len();
        let of_client = context.client.map_or(0, |client| {
            let address = client.to_canonical().to_string();
            self.picker.pick(address.as_bytes())
        });
        (of_client + self.offset % children) % children
    }
}

impl Route for OriginalClientHashRoute {
    fn route<'a>(&'a self, batch: Batch, context: &'a Context) -> BoxFuture<'a, Outcomes> {
        self.children[self.choose(context)].route(batch, context)
    }
}

pub(crate) const TYPE: RouteType = RouteType::new("OriginalClientHashRoute", parse);

#[derive(Debug, PartialEq)]
struct Config {
    children: Vec<Handle>,
    salt: String,
    offset: usize,
}

fn parse<'a>(object: &Object<'a>, parser: &mut Parser<'a>) -> Result<Handle, ConfigurationError> {
    object.check(&Keys::known(&["type", "name", "children", "salt", "offset"]))?;
    let offset = object.integer_or("offset", "an offset", SERVERS_MAX as i64, 0)?;
    Ok(Handle::route(Config {
        children: parser.children(object, "children")?,
        salt: parse_salt(object)?,
        offset: offset as usize,
    }))
}

impl RouteConfig for Config {
    fn name(&self) -> &'static str {
        TYPE.name()
    }

    fn build(&self, tree: &mut dyn TreeBuilder) -> Arc<dyn Route> {
        let children = tree.build_all(&self.children);
        Arc::new(OriginalClientHashRoute::new(children, &self.salt, self.offset))
    }
}
