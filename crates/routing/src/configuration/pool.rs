//! Pools: named lists of servers (§3.2.2 of the paper) and how to talk to them. No request passes here.

use super::{
    Defaults,
    error::{ConfigurationError, suggestion},
    fault_policy::{self, Spared, TkoLimit},
    json_cursor::{Keys, Node, Object},
    transport::{PoolAccess, Protocol, Security, TlsPolicy, Transport},
};
use crate::{Address, SERVERS_MAX, WEIGHT_MAX};
use std::{collections::BTreeMap, sync::Arc};

/// How to talk to a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DestinationSettings {
    /// How long to wait for a reply, in milliseconds. Too short, and a slow server counts as a dead one; too long, and
    /// every failover waits for it.
    pub server_timeout_ms: u64,
    /// How long to wait for a connection, in milliseconds; the default, or the server timeout, if not said.
    pub connect_timeout_ms: u64,
    /// Whether deletes that it does not answer are kept for it, where there is a spool (`asynclog`; true unless said).
    pub asynclog: bool,
    /// In which words it is asked.
    pub protocol: Protocol,
    /// How the way to it is protected.
    pub security: Security,
}

/// A named list of servers.
#[derive(Clone, Debug, PartialEq)]
pub struct Pool {
    /// As in the configuration.
    pub name: String,
    /// In the order of the configuration, which is part of the hash.
    pub servers: Vec<Address>,
    /// For its servers, but for what `transport` says of each.
    pub settings: DestinationSettings,
    /// Of each server, and behind them of each spare.
    pub transport: Vec<Transport>,
    /// The name that its servers' certificates must bear in place of their hosts'.
    pub identity: Option<Arc<str>>,
    /// Whether keys reach the servers with their routing prefix.
    pub keep_routing_prefix: bool,
    /// For hashes that have weights: of each server; fewer than there are servers, or none, is allowed.
    pub weights: Vec<f64>,
    /// For hashes that go by names: of each server, or none at all, and then its address is its name.
    pub tags: Vec<String>,
    /// For failover that avoids what fails together: of each server, or none at all.
    pub failure_domains: Vec<u32>,
    /// Idle servers that take the places of dead ones; perhaps none.
    pub spares: Vec<Address>,
    /// How long a server must be dead before a spare takes its place, in milliseconds. Short, and a restart costs two cold
    /// caches; long, and the gutter is all there is.
    pub spare_after_ms: u64,
    /// How many of its servers are taken out at a time, if that is bounded.
    pub out_bound: Option<TkoLimit>,
}

const POOL: Keys = Keys {
    known: &[
        "type",
        "name",
        "servers",
        "server_timeout",
        "connect_timeout",
        "keep_routing_prefix",
        "protocol",
        "use_ssl",
        "security_mech",
        "ssl_service_identity",
        "unsafe_ssl_skip_verification",
        "inherit",
        "weights",
        "tags",
        "failure_domains",
        "spares",
        "spare_after_ms",
        "tko_tracker",
    ],
    ignored: &[
        "additional_fanout",
        "cluster",
        "disable_request_deadline_check",
        "enable_compression",
        "error_on_empty",
        "hostnames",
        "qos",
        "region",
    ],
    refused: &[
        "port_override",
        "port_override_cross_dc",
        "port_override_within_dc",
        "security_mech_cross_dc",
        "security_mech_within_dc",
        "use_ssl_cross_dc",
        "use_ssl_within_dc",
    ],
};

/// An hour: a longer timeout is a slip of the unit.
const TIMEOUT_MS_MAX: i64 = 3_600_000;

/// The `pools` of a configuration before they are read.
pub(super) type PoolNodes<'a> = BTreeMap<&'a str, Node<'a>>;

/// A pool's object and behind it those of the pools that it inherits from: what one does not say the next one may.
pub(super) struct Lineage<'a>(Vec<Object<'a>>);

impl<'a> Lineage<'a> {
    fn read(name: &str, node: &Node<'a>, pools: &PoolNodes<'a>) -> Result<Self, ConfigurationError> {
        let mut seen = vec![name.to_owned()];
        let mut objects = vec![node.object("a pool: an object with \"servers\"")?];
        while let Some(parent) = objects[objects.len() - 1].get("inherit") {
            let text = parent.string("the name of the pool whose keys hold where this one says nothing")?;
            if let Some(at) = seen.iter().position(|name| name == text) {
                let circle = [&seen[at..], &[text.to_owned()]].concat().join(" -> ");
                return Err(parent.error(format!("the pool {text:?} inherits from itself: {circle}")));
            }
            let known = || suggestion(text, "pools", pools.keys().copied());
            let node = pools.get(text).ok_or_else(|| parent.error(format!("no pool is named {text:?}{}", known())))?;
            objects.push(node.object("a pool: an object with \"servers\"")?);
            seen.push(text.to_owned());
        }
        objects[0].check(&POOL)?;
        Ok(Lineage(objects))
    }

    pub(super) fn get(&self, key: &str) -> Option<Node<'a>> {
        self.0.iter().find_map(|object| object.get(key))
    }

    /// What the nearest object says of something that several keys tell.
    pub(super) fn nearest<T>(
        &self,
        read: impl Fn(&Object<'a>) -> Result<Option<T>, ConfigurationError>,
    ) -> Result<Option<T>, ConfigurationError> {
        self.0.iter().map(read).find_map(Result::transpose).transpose()
    }
}

/// What stands in a list with one entry for each server, or nothing.
fn for_each_server<'a, T>(
    pool: &Lineage<'a>,
    key: &str,
    servers: usize,
    read: impl Fn(&Node<'a>) -> Result<T, ConfigurationError>,
) -> Result<Vec<T>, ConfigurationError> {
    let Some(list) = pool.get(key) else { return Ok(Vec::new()) };
    let entries = list.array("a list with an entry for each server")?;
    match entries.len() == servers {
        true => entries.iter().map(read).collect(),
        false => Err(list.error(format!("{} entries for {servers} servers: expected one for each", entries.len()))),
    }
}

impl Pool {
    pub(super) fn read<'a>(
        name: &str,
        node: &Node<'a>,
        pools: &PoolNodes<'a>,
        defaults: &Defaults,
    ) -> Result<Pool, ConfigurationError> {
        let pool = Lineage::read(name, node, pools)?;
        let pool_access = PoolAccess::read(&pool)?;
        let Some(list) = pool.get("servers") else {
            return Err(node.error("\"servers\" is missing: expected a list of \"host:port\""));
        };
        let servers = list.array("a list of \"host:port\"")?;
        if servers.is_empty() || servers.len() > SERVERS_MAX {
            let found = servers.len();
            return Err(list.error(format!("pool {name:?} has {found} servers: expected 1 to {SERVERS_MAX}")));
        }
        let read = |node| read_server(node, &pool_access);
        let (servers, mut transport): (Vec<Address>, Vec<Transport>) =
            servers.iter().map(read).collect::<Result<Vec<_>, _>>()?.into_iter().unzip();
        let Spared { spares, transport: of_spares, after_ms: spare_after_ms } =
            fault_policy::spares(&pool, &servers, &pool_access)?;
        transport.extend(of_spares);
        Ok(Pool {
            spares,
            spare_after_ms,
            out_bound: fault_policy::out_bound(&pool, servers.len())?,
            name: name.to_owned(),
            settings: settings(&pool, defaults)?,
            transport,
            identity: pool_access.identity,
            keep_routing_prefix: pool.get("keep_routing_prefix").map_or(Ok(false), |value| value.boolean())?,
            weights: pool.get("weights").map_or(Ok(Vec::new()), |value| weights(&value))?,
            tags: for_each_server(&pool, "tags", servers.len(), |tag| Ok(tag.string("a server's tag")?.to_owned()))?,
            failure_domains: for_each_server(&pool, "failure_domains", servers.len(), |domain| {
                Ok(domain.integer("a failure domain's number", 0, u32::MAX.into())? as u32)
            })?,
            servers,
        })
    }
}

impl Pool {
    /// Its servers, and behind them its spares.
    pub(super) fn members(&self) -> impl Iterator<Item = &Address> {
        self.servers.iter().chain(&self.spares)
    }

    /// Number `at` of them.
    pub(super) fn member(&self, at: usize) -> &Address {
        self.servers.get(at).unwrap_or_else(|| &self.spares[at - self.servers.len()])
    }

    /// For number `at` of its members.
    pub(super) fn settings_of(&self, at: usize) -> DestinationSettings {
        let Transport { protocol, security } = self.transport[at];
        DestinationSettings { protocol, security, ..self.settings }
    }

    /// What stands between the router and number `at` of its members.
    pub(super) fn protection_of(&self, at: usize) -> TlsPolicy {
        let security = self.transport[at].security;
        let identity = self.identity.clone().filter(|_| security == Security::Tls);
        TlsPolicy { security, identity }
    }
}

fn settings(pool: &Lineage<'_>, defaults: &Defaults) -> Result<DestinationSettings, ConfigurationError> {
    let timeout = |key: &str, default: u64| match pool.get(key) {
        Some(value) => Ok(value.integer("milliseconds", 1, TIMEOUT_MS_MAX)? as u64),
        None => Ok(default),
    };
    let server_timeout_ms = timeout("server_timeout", defaults.server_timeout_ms)?;
    let connect_timeout_ms = timeout("connect_timeout", defaults.connect_timeout_ms.unwrap_or(server_timeout_ms))?;
    let Transport { protocol, security } = Transport::default();
    Ok(DestinationSettings { server_timeout_ms, connect_timeout_ms, asynclog: true, protocol, security })
}

/// Weights as they are written; which numbers make sense depends on the hash.
pub(super) fn weights(node: &Node<'_>) -> Result<Vec<f64>, ConfigurationError> {
    let weight = |node: &Node<'_>| node.number("a server's weight", 0.0, WEIGHT_MAX.into());
    node.array("a list of weights, one for each server")?.iter().map(weight).collect()
}

/// `host:port` or `[v6]:port`, perhaps with `:ascii` and `:ssl` behind, or what else `transport` knows.
pub(super) fn read_server(node: &Node<'_>, pool: &PoolAccess) -> Result<(Address, Transport), ConfigurationError> {
    let text = node.string("a server as \"host:port\"")?;
    let refused =
        |why: &str| node.error(format!("{text:?} is no server: {why}; expected \"host:port\" or \"[v6]:port\""));
    let host_bytes = match text.strip_prefix('[') {
        Some(inner) => 2 + inner.find(']').ok_or_else(|| refused("the closing bracket is missing"))?,
        None => text.find(':').unwrap_or(text.len()),
    };
    let (host, rest) = text.split_at(host_bytes);
    if host.is_empty() || host == "[]" || host.contains(char::is_whitespace) {
        return Err(refused("the host is missing"));
    }
    let mut rest = rest.split(':');
    if rest.next() != Some("") {
        return Err(refused("after the bracket comes no port"));
    }
    let port = rest.next().ok_or_else(|| refused("the port is missing"))?;
    if !matches!(port.parse::<u16>(), Ok(1..)) || port.starts_with('+') {
        return Err(refused("the port is no number from 1 to 65535"));
    }
    let transport = pool.with(rest).map_err(|word| refused(&format!("{word:?} is not spoken here")))?;
    Ok((Address(format!("{host}:{port}").into()), transport))
}
