//! All pools of a configuration by name, and what must hold between them.

use super::{
    defaults::Defaults,
    error::{ConfigurationError, suggestion},
    inheritance::PoolNodes,
    json_cursor::Node,
    pool::Pool,
    transport::TlsPolicy,
};
use crate::Address;
use std::{cell::RefCell, collections::BTreeMap, sync::Arc};

pub(super) struct Pools<'a> {
    defaults: Defaults,
    by_name: BTreeMap<&'a str, Arc<Pool>>,
    nodes: PoolNodes<'a>,
    tls_policies: RefCell<TlsPolicies>,
}

impl<'a> Pools<'a> {
    pub(super) fn parse(nodes: PoolNodes<'a>, defaults: &Defaults) -> Result<Self, ConfigurationError> {
        let parse =
            |(name, node): (&&'a str, &Node<'a>)| Ok((*name, Arc::new(Pool::parse(name, node, &nodes, defaults)?)));
        let by_name: BTreeMap<&'a str, Arc<Pool>> =
            nodes.iter().map(parse).collect::<Result<_, ConfigurationError>>()?;
        let mut tls_policies = TlsPolicies::default();
        for (name, pool) in &by_name {
            tls_policies.add_pool(pool, &nodes[name])?;
            check_spares(pool, &nodes[name], by_name.values())?;
        }
        Ok(Pools { defaults: defaults.clone(), by_name, nodes, tls_policies: RefCell::new(tls_policies) })
    }

    pub(super) fn get(&self, node: &Node<'_>, name: &str) -> Result<Arc<Pool>, ConfigurationError> {
        self.by_name.get(name).cloned().ok_or_else(|| {
            let known = suggestion(name, "pools", self.by_name.keys().copied());
            node.error(format!("no pool is named {name:?}{known}"))
        })
    }

    pub(super) fn parse_inline(&self, node: &Node<'a>) -> Result<Arc<Pool>, ConfigurationError> {
        let name = match node.object("a pool")?.get("name") {
            Some(name) => name.string("the pool's name")?,
            None => "",
        };
        let pool = Pool::parse(name, node, &self.nodes, &self.defaults)?;
        self.tls_policies.borrow_mut().add_pool(&pool, node)?;
        check_spares(&pool, node, self.by_name.values())?;
        Ok(Arc::new(pool))
    }

    pub(super) fn tls_policies(&self) -> BTreeMap<Address, TlsPolicy> {
        self.tls_policies.borrow().0.clone()
    }
}

/// The TLS policy of each server, over all pools.
#[derive(Default)]
struct TlsPolicies(BTreeMap<Address, TlsPolicy>);

impl TlsPolicies {
    /// Adds the members of a pool; an error if another pool reaches one of them in a different way.
    fn add_pool(&mut self, pool: &Pool, node: &Node<'_>) -> Result<(), ConfigurationError> {
        for (at, server) in pool.members().enumerate() {
            let policy = pool.tls_policy_of(at);
            match self.0.get(server) {
                Some(other) if *other != policy => {
                    return Err(node.error(format!(
                        "{server} is reached {policy} here, and {other} by another pool: a port either speaks TLS or \
                         does not, and has one certificate; expected the same"
                    )));
                }
                Some(_) => {}
                None => _ = self.0.insert(server.clone(), policy),
            }
        }
        Ok(())
    }
}

/// Checks that no other pool uses a spare of this pool as a server, nor has a server of it as a spare: a spare is
/// flushed before it serves.
fn check_spares<'p>(
    pool: &Pool,
    node: &Node<'_>,
    mut others: impl Iterator<Item = &'p Arc<Pool>> + Clone,
) -> Result<(), ConfigurationError> {
    for spare in &pool.spares {
        if let Some(other) = others.clone().find(|other| other.servers.contains(spare)) {
            return Err(node.error(format!(
                "the spare {spare} is a server of pool {:?}, which would be flushed when it serves here: expected \
                 one that is idle",
                other.name
            )));
        }
    }
    let shared = |other: &&Arc<Pool>| pool.servers.iter().find(|server| other.spares.contains(server)).cloned();
    match others.find_map(|other| Some((shared(&other)?, other))) {
        Some((server, other)) => Err(node.error(format!(
            "the server {server} is a spare of pool {:?}, and is flushed when it serves there: expected one that is \
             no spare",
            other.name
        ))),
        None => Ok(()),
    }
}
