//! All pools of a configuration by name, and what must hold between them.

use super::{
    defaults::Defaults,
    error::{ConfigurationError, suggestion},
    inheritance::PoolNodes,
    json_cursor::Node,
    pool::{ParsedPool, Pool},
    transport::{Security, TlsPolicy},
};
use crate::Address;
use std::{cell::RefCell, collections::BTreeMap, sync::Arc};

pub(super) struct Pools<'a> {
    defaults: Defaults,
    by_name: BTreeMap<&'a str, ParsedPool<'a>>,
    /// The pools with an error, which is reported.
    failed: BTreeMap<&'a str, ConfigurationError>,
    nodes: PoolNodes<'a>,
    tls_policies: RefCell<TlsPolicies>,
}

impl<'a> Pools<'a> {
    /// Parses the pools. Errors are reported.
    pub(super) fn parse(nodes: PoolNodes<'a>, defaults: &Defaults) -> Self {
        let (mut by_name, mut failed) = (BTreeMap::new(), BTreeMap::new());
        for (&name, node) in &nodes {
            match Pool::parse(name, node, &nodes, defaults) {
                Ok(mut parsed) => {
                    // The others of the list belong to a pool that it inherits from.
                    parsed.routes.iter_mut().for_each(|route| _ = route.owner.get_or_insert(name));
                    by_name.insert(name, parsed);
                }
                Err(error) => {
                    node.report(&error);
                    failed.insert(name, error);
                }
            }
        }
        let mut tls_policies = TlsPolicies::default();
        let pools: Vec<&Arc<Pool>> = by_name.values().map(|parsed: &ParsedPool<'_>| &parsed.pool).collect();
        for (name, ParsedPool { pool, .. }) in &by_name {
            let node = &nodes[name];
            let report = |error: ConfigurationError| node.report(&error);
            tls_policies.add_pool(pool, node).unwrap_or_else(report);
            check_spares(pool, node, pools.iter().copied()).unwrap_or_else(report);
        }
        Pools { defaults: defaults.clone(), by_name, failed, nodes, tls_policies: RefCell::new(tls_policies) }
    }

    pub(super) fn get(&self, node: &Node<'_>, name: &str) -> Result<ParsedPool<'a>, ConfigurationError> {
        self.by_name.get(name).cloned().ok_or_else(|| {
            if let Some(error) = self.failed.get(name) {
                return error.clone();
            }
            let known = suggestion(name, "pools", self.by_name.keys().copied());
            node.error(format!("no pool is named {name:?}{known}"))
        })
    }

    /// The names of all pools without an error.
    pub(super) fn names(&self) -> Vec<&'a str> {
        self.by_name.keys().copied().collect()
    }

    pub(super) fn parse_inline(&self, node: &Node<'a>) -> Result<ParsedPool<'a>, ConfigurationError> {
        let name = match node.object("a pool")?.get("name") {
            Some(name) => name.string("the pool's name")?,
            None => "",
        };
        let parsed = Pool::parse(name, node, &self.nodes, &self.defaults)?;
        self.tls_policies.borrow_mut().add_pool(&parsed.pool, node)?;
        check_spares(&parsed.pool, node, self.by_name.values().map(|other| &other.pool))?;
        Ok(parsed)
    }

    /// The TLS policies so far.
    pub(super) fn save_tls_policies(&self) -> TlsPolicies {
        self.tls_policies.borrow().clone()
    }

    /// Undoes what inline pools have added since.
    pub(super) fn restore_tls_policies(&self, saved: TlsPolicies) {
        *self.tls_policies.borrow_mut() = saved;
    }

    pub(super) fn tls_policies(&self) -> BTreeMap<Address, TlsPolicy> {
        self.tls_policies.borrow().by_server.clone()
    }

    pub(super) fn tls_places(&self) -> BTreeMap<Address, ConfigurationError> {
        self.tls_policies.borrow().places.clone()
    }
}

/// The TLS policy of each server, over all pools.
#[derive(Clone, Default)]
pub(super) struct TlsPolicies {
    by_server: BTreeMap<Address, TlsPolicy>,
    /// An error without a message at the first pool of each server that is reached by TLS.
    places: BTreeMap<Address, ConfigurationError>,
}

impl TlsPolicies {
    /// Adds the members of a pool; an error if another pool reaches one of them in a different way.
    fn add_pool(&mut self, pool: &Pool, node: &Node<'_>) -> Result<(), ConfigurationError> {
        for (at, server) in pool.members().enumerate() {
            let policy = pool.tls_policy_of(at);
            match self.by_server.get(server) {
                Some(other) if *other != policy => {
                    return Err(node.error(format!(
                        "{server} is reached {policy} here, and {other} by another pool: a port either speaks TLS or \
                         does not, and has one certificate; expected the same"
                    )));
                }
                Some(_) => {}
                None => {
                    if policy.security != Security::Plain {
                        self.places.insert(server.clone(), node.error(""));
                    }
                    self.by_server.insert(server.clone(), policy);
                }
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
