//! Pools: named lists of servers (§3.2.2 of the paper) and how to talk to them. No request passes here.

use super::{
    Defaults,
    document::{Keys, Node},
    error::ConfigurationError,
};
use crate::{Address, SERVERS_MAX};

/// How to talk to a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DestinationSettings {
    /// How long to wait for a reply, in milliseconds. Too short, and a slow server counts as a dead one; too long, and
    /// every failover waits for it.
    pub server_timeout_ms: u64,
    /// How long to wait for a connection, in milliseconds; the default, or the server timeout, if not said.
    pub connect_timeout_ms: u64,
}

/// A named list of servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pool {
    /// As in the configuration.
    pub name: String,
    /// In the order of the configuration, which is part of the hash.
    pub servers: Vec<Address>,
    /// For each of its servers.
    pub settings: DestinationSettings,
    /// Whether keys reach the servers with their routing prefix.
    pub keep_routing_prefix: bool,
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
    ],
    ignored: &[
        "additional_fanout",
        "cluster",
        "disable_request_deadline_check",
        "enable_compression",
        "error_on_empty",
        "failure_domains",
        "hostnames",
        "qos",
        "region",
        "tags",
        "tko_tracker",
        "weights",
    ],
    refused: &[
        "inherit",
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

impl Pool {
    pub(super) fn read(name: &str, node: &Node<'_>, defaults: &Defaults) -> Result<Pool, ConfigurationError> {
        let pool = node.object("a pool: an object with \"servers\"")?;
        pool.check(&POOL)?;
        let only = |key: &str, supported: &str| match pool.get(key) {
            Some(value) if value.string("a string")? != supported => {
                Err(value.error(format!("{:?} is not supported: expected {supported:?}", value.string("a string")?)))
            }
            _ => Ok(()),
        };
        only("protocol", "ascii")?;
        only("security_mech", "plain")?;
        if let Some(use_ssl) = pool.get("use_ssl").filter(|value| value.boolean().ok() != Some(false)) {
            use_ssl.boolean()?;
            return Err(use_ssl.error("TLS towards servers is not supported: expected false"));
        }
        let timeout = |key: &str, default: u64| match pool.get(key) {
            Some(value) => Ok(value.integer("milliseconds", 1, TIMEOUT_MS_MAX)? as u64),
            None => Ok(default),
        };
        let server_timeout_ms = timeout("server_timeout", defaults.server_timeout_ms)?;
        let connect_timeout_ms = timeout("connect_timeout", defaults.connect_timeout_ms.unwrap_or(server_timeout_ms))?;
        let keep_routing_prefix = pool.get("keep_routing_prefix").map_or(Ok(false), |value| value.boolean())?;
        let list = pool.require("servers", "a list of \"host:port\"")?;
        let servers = list.array("a list of \"host:port\"")?;
        if servers.is_empty() || servers.len() > SERVERS_MAX {
            let found = servers.len();
            return Err(list.error(format!("pool {name:?} has {found} servers: expected 1 to {SERVERS_MAX}")));
        }
        let servers = servers.iter().map(read_server).collect::<Result<_, _>>()?;
        let settings = DestinationSettings { server_timeout_ms, connect_timeout_ms };
        Ok(Pool { name: name.to_owned(), servers, settings, keep_routing_prefix })
    }
}

/// `host:port` or `[v6]:port`, perhaps with `:ascii` and `:plain` behind, which is all that is spoken here.
fn read_server(node: &Node<'_>) -> Result<Address, ConfigurationError> {
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
    for (said, supported) in rest.zip(["ascii", "plain"].into_iter().chain(std::iter::repeat(""))) {
        if said != supported {
            return Err(refused(&format!("{said:?} is not spoken here")));
        }
    }
    Ok(Address(format!("{host}:{port}").into()))
}
