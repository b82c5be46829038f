//! Pools: named lists of servers (§3.2.2 of the paper) and the settings of their connections.

use super::{
    defaults::Defaults,
    error::ConfigurationError,
    fault_policy::{Spares, TkoLimit, parse_spares, parse_tko_limit},
    inheritance::{InheritanceChain, PoolNodes},
    json_cursor::{Keys, Node},
    transport::{PoolRegion, PoolTransport, Protocol, Security, TlsPolicy, Transport, parse_server},
};
use crate::{Address, SERVERS_MAX, WEIGHT_MAX};
use std::sync::Arc;

/// The settings of connections to a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DestinationSettings {
    /// How long to wait for a reply, in milliseconds. A short timeout makes a slow server TKO; every failover waits for
    /// a long one.
    pub server_timeout_ms: u64,
    /// How long to wait for a connection, in milliseconds. Default: [`Defaults::connect_timeout_ms`], or else the
    /// server timeout.
    pub connect_timeout_ms: u64,
    /// Whether deletes that it does not answer are spooled, if the router has a spool. Default true.
    pub asynclog: bool,
    /// The protocol of requests to it.
    pub protocol: Protocol,
    /// The TLS policy of its connections.
    pub security: Security,
}

/// A named list of servers.
#[derive(Clone, Debug, PartialEq)]
pub struct Pool {
    /// The name in the configuration; empty for an inline pool without one.
    pub name: String,
    /// The servers, in the order of the configuration, which is part of the hash.
    pub servers: Vec<Address>,
    /// The settings of all servers; protocol and security of each are in `transport`.
    pub settings: DestinationSettings,
    /// One for each server, then one for each spare.
    pub transport: Vec<Transport>,
    /// The name that its servers' certificates must have; `None` for the names of their hosts.
    pub identity: Option<Arc<str>>,
    /// Whether keys reach the servers with their routing prefix.
    pub keep_routing_prefix: bool,
    /// Whether a server that joins the pool is flushed, because its content is of unknown age. `None` if the pool does
    /// not say: then it is, unless nothing is known of the pool, which must be empty.
    pub flush_new_servers: Option<bool>,
    /// How long after a change of the servers a key that has moved is read from its former owner after a miss, in
    /// seconds. Default 0: never. Until its end deletes go to both owners.
    pub resize_warm_up_s: u64,
    /// The indexes of the entries of `servers` in the configuration that are routes, ascending: `[1]` if the second of
    /// three is one. Empty for most pools.
    pub routes_at: Vec<usize>,
    /// For weighted hashes, one for each entry (server or route). The list may be shorter, or empty.
    pub weights: Vec<f64>,
    /// For hashes of names, one for each entry. Empty: a server's address is its name.
    pub tags: Vec<String>,
    /// For failover that avoids servers that fail together, one for each entry. May be empty.
    pub failure_domains: Vec<Arc<str>>,
    /// Whether a route over no servers answers with an error (default), or as an empty cache.
    pub error_on_empty: bool,
    /// Idle servers that replace unreadable ones. May be empty.
    pub spares: Vec<Address>,
    /// After how long unreadable a spare replaces a server, in milliseconds. With a short time, a restart leaves two
    /// cold caches; for a long time, only the gutter helps.
    pub spare_after_ms: u64,
    /// The limit on servers in TKO; `None` for no limit.
    pub tko_limit: Option<TkoLimit>,
}

const POOL: Keys = Keys::known(&[
    "type",
    "name",
    "servers",
    "server_timeout",
    "connect_timeout",
    "keep_routing_prefix",
    "flush_new_servers",
    "resize_warm_up_s",
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
    "error_on_empty",
    "region",
    "cluster",
])
.and(&[
    "port_override",
    "port_override_cross_dc",
    "port_override_within_dc",
    "security_mech_cross_dc",
    "security_mech_within_dc",
    "use_ssl_cross_dc",
    "use_ssl_within_dc",
])
.ignoring(&["additional_fanout", "disable_request_deadline_check", "enable_compression", "hostnames", "qos"]);

/// An hour: a longer timeout is probably a wrong unit.
const TIMEOUT_MS_MAX: i64 = 3_600_000;

/// An hour: meanwhile the former configuration is covered, and each delete of a moved key costs a second one.
const RESIZE_WARM_UP_S_MAX: i64 = 3_600;

fn parse_resize_warm_up_s(
    pool: &InheritanceChain<'_>,
    keeps_prefix: bool,
    has_routes: bool,
) -> Result<u64, ConfigurationError> {
    let Some(node) = pool.get("resize_warm_up_s") else { return Ok(0) };
    match node.integer("seconds", 0, RESIZE_WARM_UP_S_MAX)? {
        seconds if seconds > 0 && has_routes => Err(node.error(
            "the former owners of keys are not known where routes are among the servers: expected 0, or a \"HashRoute\" \
             over routes to pools that have servers only",
        )),
        seconds if seconds > 0 && keeps_prefix => {
            Err(node
                .error("the servers of a pool with \"keep_routing_prefix\" are routers, which own no keys: expected 0"))
        }
        seconds => Ok(seconds as u64),
    }
}

/// Parses a list with one element for each entry of `servers`; an empty list if there is none.
fn parse_per_entry<'a, T>(
    pool: &InheritanceChain<'a>,
    key: &str,
    count: usize,
    parse: impl Fn(&Node<'a>) -> Result<T, ConfigurationError>,
) -> Result<Vec<T>, ConfigurationError> {
    let Some(list) = pool.get(key) else { return Ok(Vec::new()) };
    let elements = list.array("a list with one for each entry of \"servers\"")?;
    match elements.len() == count {
        true => elements.iter().map(parse).collect(),
        false => {
            let found = elements.len();
            Err(list.error(format!("{found} elements for {count} entries of \"servers\": expected one for each")))
        }
    }
}

/// A pool whose routes are not parsed.
#[derive(Clone)]
pub(super) struct ParsedPool<'a> {
    pub(super) pool: Arc<Pool>,
    /// One for each of [`Pool::routes_at`].
    pub(super) routes: Vec<RouteEntry<'a>>,
}

/// A route among the servers of a pool.
#[derive(Clone)]
pub(super) struct RouteEntry<'a> {
    /// The pool that has the list of servers; `None` if that is the pool itself.
    pub(super) owner: Option<&'a str>,
    /// The index in the list.
    pub(super) at: usize,
    pub(super) node: Node<'a>,
}

const SERVERS: &str = "a list of \"host:port\"";

impl Pool {
    pub(super) fn parse<'a>(
        name: &str,
        node: &Node<'a>,
        pools: &PoolNodes<'a>,
        defaults: &Defaults,
    ) -> Result<ParsedPool<'a>, ConfigurationError> {
        let pool = InheritanceChain::parse(name, node, pools)?;
        // Errors from here on are independent of each other: all are reported.
        let report = |error: &ConfigurationError| node.report(error);
        let keys = pool.own().check(&POOL);
        let settings = parse_settings(&pool, defaults).inspect_err(report);
        let region = PoolRegion::of(&pool, defaults)?;
        let pool_transport = PoolTransport::parse(&pool, region)?;
        let Some((owner, list)) = pool.get_with_owner("servers") else {
            return Err(pool.own().missing("servers", SERVERS));
        };
        let nodes = list.array(SERVERS)?;
        let found = nodes.len();
        if found > SERVERS_MAX {
            return Err(list.error(format!("pool {name:?} has {found} servers: expected at most {SERVERS_MAX}")));
        }
        let parse = |node: &Node<'a>| match node.is_object() {
            true => Ok(None),
            false => {
                node.string("a server as \"host:port\", or a route")?;
                parse_server(node, &pool_transport, pool_transport.port_override).map(Some)
            }
        };
        let entries = list.parse_elements(SERVERS, parse);
        let routes = nodes.into_iter().enumerate().filter(|(_, node)| node.is_object());
        let routes: Vec<RouteEntry<'a>> = routes.map(|(at, node)| RouteEntry { owner, at, node }).collect();
        let tko_limit = parse_tko_limit(&pool, found - routes.len()).inspect_err(report);
        let (servers, mut transport): (Vec<Address>, Vec<Transport>) = entries?.into_iter().flatten().unzip();
        let Spares { addresses: spares, transport: spare_transport, after_ms: spare_after_ms } =
            parse_spares(&pool, &servers, &pool_transport)?;
        transport.extend(spare_transport);
        keys?;
        let keep_routing_prefix = pool.get("keep_routing_prefix").map_or(Ok(false), |value| value.boolean())?;
        let pool = Pool {
            spares,
            spare_after_ms,
            tko_limit: tko_limit?,
            name: name.to_owned(),
            settings: settings?,
            transport,
            identity: pool_transport.identity,
            keep_routing_prefix,
            resize_warm_up_s: parse_resize_warm_up_s(&pool, keep_routing_prefix, !routes.is_empty())?,
            flush_new_servers: pool.get("flush_new_servers").map(|value| value.boolean()).transpose()?,
            weights: parse_pool_weights(&pool, found)?,
            tags: parse_per_entry(&pool, "tags", found, |tag| Ok(tag.string("a server's tag")?.to_owned()))?,
            failure_domains: parse_per_entry(&pool, "failure_domains", found, parse_failure_domain)?,
            error_on_empty: pool.get("error_on_empty").map_or(Ok(true), |value| value.boolean())?,
            routes_at: routes.iter().map(|route| route.at).collect(),
            servers,
        };
        Ok(ParsedPool { pool: Arc::new(pool), routes })
    }
}

impl Pool {
    /// The number of its servers and of the routes among them.
    pub fn entry_count(&self) -> usize {
        self.servers.len() + self.routes_at.len()
    }

    /// The index among all entries of the server at index `server`.
    pub fn entry_index(&self, server: usize) -> usize {
        self.routes_at.iter().fold(server, |entry, &route| entry + usize::from(route <= entry))
    }

    pub(super) fn members(&self) -> impl Iterator<Item = &Address> {
        self.servers.iter().chain(&self.spares)
    }

    /// The member at index `at` of [`Pool::members`].
    pub(crate) fn member(&self, at: usize) -> &Address {
        self.servers.get(at).unwrap_or_else(|| &self.spares[at - self.servers.len()])
    }

    /// The settings of the member at index `at`: the servers, then the spares.
    pub fn settings_of(&self, at: usize) -> DestinationSettings {
        let Transport { protocol, security } = self.transport[at];
        DestinationSettings { protocol, security, ..self.settings }
    }

    pub(super) fn tls_policy_of(&self, at: usize) -> TlsPolicy {
        let security = self.transport[at].security;
        let certificate_name = self.identity.clone().filter(|_| security == Security::Tls);
        TlsPolicy { security, certificate_name }
    }
}

fn parse_settings(pool: &InheritanceChain<'_>, defaults: &Defaults) -> Result<DestinationSettings, ConfigurationError> {
    let timeout = |key: &str, default: u64| match pool.get(key) {
        Some(value) => Ok(value.integer("milliseconds", 1, TIMEOUT_MS_MAX)? as u64),
        None => Ok(default),
    };
    let mut server_timeout_ms = timeout("server_timeout", defaults.server_timeout_ms)?;
    if let (Some(region), Some(cluster)) = (pool.get("region"), pool.get("cluster")) {
        let (region, cluster) = (region.string("the pool's region")?, cluster.string("the pool's cluster")?);
        server_timeout_ms = defaults.timeout_at_ms(region, cluster).unwrap_or(server_timeout_ms);
    }
    let connect_timeout_ms = timeout("connect_timeout", defaults.connect_timeout_ms.unwrap_or(server_timeout_ms))?;
    let Transport { protocol, security } = Transport::default();
    Ok(DestinationSettings { server_timeout_ms, connect_timeout_ms, asynclog: true, protocol, security })
}

/// Parses the weights of a pool of `servers` servers. Further weights are dropped; missing ones are those of the hash.
fn parse_pool_weights(pool: &InheritanceChain<'_>, servers: usize) -> Result<Vec<f64>, ConfigurationError> {
    let Some(node) = pool.get("weights") else { return Ok(Vec::new()) };
    let mut weights = parse_weights(&node)?;
    if weights.len() != servers {
        let given = weights.len();
        node.warn(format!("{given} weights for {servers} servers: further ones are ignored, missing ones are 0.5"));
        weights.truncate(servers);
    }
    Ok(weights)
}

/// A number, or a name.
fn parse_failure_domain(node: &Node<'_>) -> Result<Arc<str>, ConfigurationError> {
    match node.as_string() {
        Some(name) => Ok(name.into()),
        None => Ok(node.integer("a failure domain's name or number", 0, u32::MAX.into())?.to_string().into()),
    }
}

/// Parses weights; which numbers are valid depends on the hash.
pub(crate) fn parse_weights(node: &Node<'_>) -> Result<Vec<f64>, ConfigurationError> {
    let weight = |node: &Node<'_>| node.number("a server's weight", 0.0, WEIGHT_MAX.into());
    node.array("a list of weights, one for each server")?.iter().map(weight).collect()
}
