//! What a configuration refers to by name: pools, and handles that several routes share. No request passes here.
//!
//! A named handle is read when it is first referred to, so that they may stand in any order; one that leads back to
//! itself is found because it is still being read.

use super::{
    Defaults, Handle, Pool, TlsPolicy,
    error::{ConfigurationError, suggestion},
    json_cursor::{Node, Object},
    pool::PoolNodes,
    transport::Protections,
};
use crate::Address;
use std::{cell::RefCell, collections::BTreeMap, sync::Arc};

/// The deepest tree, in handles: reading and every request's way down recurse.
const DEPTH_MAX: usize = 100;

pub(super) struct Names<'a> {
    defaults: Defaults,
    pools: BTreeMap<&'a str, Arc<Pool>>,
    pool_nodes: PoolNodes<'a>,
    /// By all pools that have been read.
    protections: RefCell<Protections>,
    handles: BTreeMap<&'a str, Node<'a>>,
    /// Being read, outermost first.
    open: Vec<&'a str>,
    /// Read, each behind those that it refers to.
    done: Vec<(String, Handle)>,
    done_at: BTreeMap<&'a str, Done>,
    /// How many handles the one that is being read lies in.
    depth: usize,
    /// The most of `depth` so far, within the named handle that is being read.
    deepest: usize,
}

/// Takes down how a pool reaches its servers.
fn note(pool: &Pool, node: &Node<'_>, protections: &mut Protections) -> Result<(), ConfigurationError> {
    for (at, server) in pool.members().enumerate() {
        protections.note(server, pool.protection_of(at)).map_err(|why| {
            node.error(format!(
                "{why}: a port either speaks TLS or does not, and has one certificate; expected the same"
            ))
        })?;
    }
    Ok(())
}

/// Whether no other pool works with what stands by for this one: a spare is emptied before it serves.
fn check_spares<'p>(
    pool: &Pool,
    node: &Node<'_>,
    mut others: impl Iterator<Item = &'p Arc<Pool>> + Clone,
) -> Result<(), ConfigurationError> {
    for spare in &pool.spares {
        if let Some(other) = others.clone().find(|other| other.servers.contains(spare)) {
            return Err(node.error(format!(
                "the spare {spare} is a server of pool {:?}, whose content would go when it takes a place here: expected \
                 one that is idle otherwise",
                other.name
            )));
        }
    }
    let takes = |other: &&Arc<Pool>| pool.servers.iter().find(|server| other.spares.contains(server)).cloned();
    match others.find_map(|other| Some((takes(&other)?, other))) {
        Some((server, other)) => Err(node.error(format!(
            "the server {server} is a spare of pool {:?}, and is emptied when it takes a place there: expected one that is \
             no spare",
            other.name
        ))),
        None => Ok(()),
    }
}

#[derive(Clone, Copy)]
struct Done {
    at: usize,
    /// How many handles lie on the longest way down from it.
    height: usize,
}

impl<'a> Names<'a> {
    /// Reads all pools, and notes the named handles.
    pub(super) fn read(top: &Object<'a>, defaults: &Defaults) -> Result<Self, ConfigurationError> {
        let pool_nodes: PoolNodes<'a> = match top.get("pools") {
            Some(node) => node.object("an object with a pool for each name")?.entries().collect(),
            None => PoolNodes::new(),
        };
        let read =
            |(name, node): (&&'a str, &Node<'a>)| Ok((*name, Arc::new(Pool::read(name, node, &pool_nodes, defaults)?)));
        let pools: BTreeMap<&'a str, Arc<Pool>> =
            pool_nodes.iter().map(read).collect::<Result<_, ConfigurationError>>()?;
        let handles = match top.get("named_handles") {
            Some(node) => named_handles(&node)?,
            None => BTreeMap::new(),
        };
        let mut protections = Protections::default();
        for (name, pool) in &pools {
            note(pool, &pool_nodes[name], &mut protections)?;
            check_spares(pool, &pool_nodes[name], pools.values())?;
        }
        Ok(Names {
            defaults: defaults.clone(),
            pools,
            protections: RefCell::new(protections),
            pool_nodes,
            handles,
            open: Vec::new(),
            done: Vec::new(),
            done_at: BTreeMap::new(),
            depth: 0,
            deepest: 0,
        })
    }

    /// The pool that `node` (whose text is `name`, or ends with it) refers to.
    pub(super) fn pool(&self, node: &Node<'_>, name: &str) -> Result<Arc<Pool>, ConfigurationError> {
        self.pools.get(name).cloned().ok_or_else(|| {
            let known = suggestion(name, "pools", self.pools.keys().copied());
            node.error(format!("no pool is named {name:?}{known}"))
        })
    }

    /// The pool that a route refers to or describes, and where it does.
    pub(super) fn pool_of(&self, object: &Object<'a>) -> Result<(Arc<Pool>, Node<'a>), ConfigurationError> {
        let node = object.require("pool", "the name of a pool")?;
        let pool = match node.is_object() {
            true => self.inline_pool(&node)?,
            false => self.pool(&node, node.string("the name of a pool, or a pool")?)?,
        };
        Ok((pool, node))
    }

    /// A pool that is described where it is used.
    pub(super) fn inline_pool(&self, node: &Node<'a>) -> Result<Arc<Pool>, ConfigurationError> {
        let name = match node.object("a pool")?.get("name") {
            Some(name) => name.string("the pool's name")?,
            None => "",
        };
        let pool = Pool::read(name, node, &self.pool_nodes, &self.defaults)?;
        note(&pool, node, &mut self.protections.borrow_mut())?;
        check_spares(&pool, node, self.pools.values())?;
        Ok(Arc::new(pool))
    }

    /// What protects the way to each server.
    pub(super) fn protections(&self) -> BTreeMap<Address, TlsPolicy> {
        self.protections.borrow().0.clone()
    }

    /// The handle at `node`.
    pub(super) fn handle(&mut self, node: &Node<'a>) -> Result<Handle, ConfigurationError> {
        self.go_down(node, 1)?;
        self.depth += 1;
        let handle = Handle::read(node, self);
        self.depth -= 1;
        handle
    }

    /// Notes that the tree goes on so much deeper.
    fn go_down(&mut self, node: &Node<'_>, height: usize) -> Result<(), ConfigurationError> {
        self.deepest = self.deepest.max(self.depth + height);
        match self.deepest > DEPTH_MAX {
            true => Err(node.error(format!("the tree is more than {DEPTH_MAX} handles deep here: expected fewer"))),
            false => Ok(()),
        }
    }

    /// The handle that others gave the name `name`, if one has it.
    pub(super) fn named(&mut self, node: &Node<'a>, name: &str) -> Result<Option<Handle>, ConfigurationError> {
        if let Some(&Done { at, height }) = self.done_at.get(name) {
            self.go_down(node, height)?;
            return Ok(Some(Handle::Named(at)));
        }
        let Some((&name, target)) = self.handles.get_key_value(name) else { return Ok(None) };
        if let Some(at) = self.open.iter().position(|open| *open == name) {
            let circle = [&self.open[at..], &[name]].concat().join(" -> ");
            return Err(node.error(format!("the named handle {name:?} leads back to itself: {circle}")));
        }
        let target = target.clone();
        self.open.push(name);
        let deepest_outside = std::mem::replace(&mut self.deepest, self.depth);
        let handle = self.handle(&target)?;
        let height = self.deepest - self.depth;
        self.deepest = self.deepest.max(deepest_outside);
        self.open.pop();
        let at = self.done.len();
        self.done.push((name.to_owned(), handle));
        self.done_at.insert(name, Done { at, height });
        Ok(Some(Handle::Named(at)))
    }

    /// The names of the named handles.
    pub(super) fn handle_names(&self) -> impl Iterator<Item = &'a str> {
        self.handles.keys().copied()
    }

    /// All named handles; those that nothing refers to are read now, for their mistakes.
    pub(super) fn into_named(mut self, top: &Object<'a>) -> Result<Vec<(String, Handle)>, ConfigurationError> {
        let names: Vec<&str> = self.handle_names().collect();
        for name in names {
            self.named(&top.node, name)?;
        }
        Ok(self.done)
    }
}

/// A list of handles that have a `name`, or an object of handles by name.
fn named_handles<'a>(node: &Node<'a>) -> Result<BTreeMap<&'a str, Node<'a>>, ConfigurationError> {
    if node.is_object() {
        return Ok(node.object("handles by name")?.entries().collect());
    }
    let mut handles = BTreeMap::new();
    for handle in node.array("a list of handles with a \"name\", or an object of handles by name")? {
        let name = handle.object("a handle with a \"name\"")?.require("name", "the handle's name")?;
        let text = name.string("the handle's name")?;
        if handles.insert(text, handle).is_some() {
            return Err(name.error(format!("two named handles are named {text:?}: expected each name once")));
        }
    }
    Ok(handles)
}
