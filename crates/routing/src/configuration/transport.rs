//! The protocol in which a server is asked, and how its connections are protected.
//!
//! ```text
//!   pool      "protocol": "ascii" | "meta"     "security_mech": "plain" | "tls" (or "ssl")     "use_ssl": true | false
//!   server    "host:port:ascii:ssl"            takes precedence over its pool
//!             "unix:/path:ascii:plain"         a socket file of this machine
//!             "host"                           with the pool's "port_override"
//! ```
//!
//! `port_override`, `use_ssl` and `security_mech` may have `_within_dc` or `_cross_dc` behind them: then they are for
//! pools in the region of the default routing prefix, or in another one, and take precedence there. A pool that names
//! no region is within.
//!
//! A port either speaks TLS or does not: two pools that reach one server in different ways are an error.

use super::{
    defaults::Defaults,
    error::ConfigurationError,
    inheritance::InheritanceChain,
    json_cursor::{Node, Object},
};
use crate::Address;
use std::{fmt, sync::Arc};

/// The protocol of requests to a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Protocol {
    /// memcached's text protocol, with meta commands and leases as clients send them.
    #[default]
    Text,
    /// Meta commands only, whatever clients send. Leases stay text commands, since meta has none.
    Meta,
}

/// How a connection to a server is protected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Security {
    /// No protection.
    #[default]
    Plain,
    /// TLS; the server's certificate and the name in it are verified.
    Tls,
    /// TLS without verification: protects against passive listeners, not against a man in the middle.
    UnverifiedTls,
}

/// Protocol and security of one server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Transport {
    /// The protocol.
    pub protocol: Protocol,
    /// The TLS policy of its connections.
    pub security: Security,
}

/// How the router verifies a server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsPolicy {
    /// Whether connections use TLS.
    pub security: Security,
    /// The name that the certificate must have; `None` for the name of the host.
    pub certificate_name: Option<Arc<str>>,
}

impl fmt::Display for TlsPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let how = match self.security {
            Security::Plain => return f.write_str("plain"),
            Security::Tls => "by TLS",
            Security::UnverifiedTls => "by unverified TLS",
        };
        match &self.certificate_name {
            Some(identity) => write!(f, "{how} as {identity}"),
            None => f.write_str(how),
        }
    }
}

/// The region of a pool's servers, seen from the default routing prefix.
#[derive(Clone, Copy)]
pub(super) enum PoolRegion {
    /// In the same region, or the pool names none.
    Same,
    /// In another region.
    Other,
}

impl PoolRegion {
    pub(super) fn of(pool: &InheritanceChain<'_>, defaults: &Defaults) -> Result<PoolRegion, ConfigurationError> {
        let Some(region) = pool.get("region") else { return Ok(PoolRegion::Same) };
        let is_same = region.string("the pool's region")? == defaults.prefix.region();
        Ok(if is_same { PoolRegion::Same } else { PoolRegion::Other })
    }

    /// The name of a setting for pools of this region.
    fn key(self, name: &str) -> String {
        match self {
            PoolRegion::Same => format!("{name}_within_dc"),
            PoolRegion::Other => format!("{name}_cross_dc"),
        }
    }
}

pub(super) struct PoolTransport {
    /// Replaces the port of each server.
    pub(super) port_override: Option<u16>,
    transport: Transport,
    skips_verification: bool,
    pub(super) identity: Option<Arc<str>>,
}

impl PoolTransport {
    pub(super) fn parse(pool: &InheritanceChain<'_>, region: PoolRegion) -> Result<PoolTransport, ConfigurationError> {
        let skips_verification = pool.get("unsafe_ssl_skip_verification").map_or(Ok(false), |value| value.boolean())?;
        let of_region = pool.nearest(|object| uses_tls(object, |name| region.key(name)))?;
        let mechanism = match of_region {
            Some(mechanism) => mechanism,
            None => pool.nearest(|object| uses_tls(object, str::to_owned))?.unwrap_or(false),
        };
        let port_override = pool.get(&region.key("port_override")).or_else(|| pool.get("port_override"));
        let port_override = port_override.map(|port| port.integer("a port", 0, u16::MAX.into())).transpose()?;
        let protocol = match pool.get("protocol") {
            Some(value) => parse_name(&value, "protocol", &PROTOCOLS)?,
            None => Protocol::Text,
        };
        let identity = match pool.get("ssl_service_identity") {
            Some(value) => Some(value.string("the name in the servers' certificates")?.into()),
            None => None,
        };
        let security = security(mechanism, skips_verification);
        Ok(PoolTransport {
            port_override: port_override.map(|port| port as u16),
            transport: Transport { protocol, security },
            skips_verification,
            identity,
        })
    }

    /// The transport of a server that has `suffixes` behind its port. The error is the first unknown suffix.
    pub(super) fn with_suffixes<'a>(&self, suffixes: impl Iterator<Item = &'a str>) -> Result<Transport, &'a str> {
        let mut transport = self.transport;
        for (at, word) in suffixes.enumerate() {
            match at {
                0 => transport.protocol = lookup(word, &PROTOCOLS).ok_or(word)?,
                1 => transport.security = security(lookup(word, &MECHANISMS).ok_or(word)?, self.skips_verification),
                2 if COMPRESSIONS.contains(&word) => {}
                _ => return Err(word),
            }
        }
        Ok(transport)
    }
}

const PROTOCOLS: [(&str, Protocol); 2] = [("ascii", Protocol::Text), ("meta", Protocol::Meta)];

/// Whether a security mechanism is TLS. `tls_to_plain` goes back to plain text after the handshake if both sides know
/// how; memcached does not, and TLS stays.
const MECHANISMS: [(&str, bool); 6] =
    [("plain", false), ("ssl", true), ("tls", true), ("fizz", true), ("ktls12", true), ("tls_to_plain", true)];

/// What may stand behind the mechanism. Values are never compressed.
const COMPRESSIONS: [&str; 2] = ["notcompressed", "compressed"];

fn lookup<T: Copy>(word: &str, known: &[(&str, T)]) -> Option<T> {
    known.iter().find(|(name, _)| *name == word).map(|(_, value)| *value)
}

fn parse_name<T: Copy>(value: &Node<'_>, what: &str, known: &[(&str, T)]) -> Result<T, ConfigurationError> {
    let word = value.string(what)?;
    lookup(word, known).ok_or_else(|| {
        let names: Vec<_> = known.iter().map(|(name, _)| format!("{name:?}")).collect();
        value.error(format!("{word:?} is not supported: expected {}", names.join(" or ")))
    })
}

fn security(is_tls: bool, skips_verification: bool) -> Security {
    match (is_tls, skips_verification) {
        (false, _) => Security::Plain,
        (true, false) => Security::Tls,
        (true, true) => Security::UnverifiedTls,
    }
}

/// Whether a pool's own object asks for TLS; `None` if it has no key for that. `key` makes the key of a setting's name.
fn uses_tls(object: &Object<'_>, key: impl Fn(&str) -> String) -> Result<Option<bool>, ConfigurationError> {
    let uses_ssl = object.get(&key("use_ssl")).map(|value| value.boolean()).transpose()?;
    let Some(value) = object.get(&key("security_mech")) else { return Ok(uses_ssl) };
    let mechanism = parse_name(&value, "security mechanism", &MECHANISMS)?;
    match uses_ssl {
        Some(uses_ssl) if uses_ssl != mechanism => {
            Err(value.error(format!("this contradicts {:?}: {uses_ssl}: expected one of them", key("use_ssl"))))
        }
        _ => Ok(Some(mechanism)),
    }
}

/// Parses `host:port`, `[v6]:port` or `unix:path`, optionally with a protocol and a security mechanism behind it
/// (`:ascii:ssl`). With `port_override`, that is the port.
pub(super) fn parse_server(
    node: &Node<'_>,
    pool: &PoolTransport,
    port_override: Option<u16>,
) -> Result<(Address, Transport), ConfigurationError> {
    let text = node.string("a server as \"host:port\"")?;
    let refused = |why: &str| node.error(format!("{text:?} is not a server: {why}; expected {ADDRESS_FORMS}"));
    let (address, words) = split_address(text, port_override).map_err(refused)?;
    let transport = pool.with_suffixes(words.into_iter());
    Ok((address, transport.map_err(|word| refused(&format!("{word:?} is not supported")))?))
}

/// How an address is written.
pub(super) const ADDRESS_FORMS: &str = "\"host:port\", \"[v6]:port\" or \"unix:path\"";

/// The address at the beginning of `text`, and the words behind it, which colons separate. With `port_override`, that
/// is the port. The error is what is wrong with it.
pub(super) fn split_address(text: &str, port_override: Option<u16>) -> Result<(Address, Vec<&str>), &'static str> {
    if let Some(socket) = text.strip_prefix("unix:") {
        let mut words = socket.split(':');
        let path = words.next().unwrap_or_default();
        return match path.starts_with('/') {
            true => Ok((Address(path.into()), words.collect())),
            false => Err("the path of the socket does not begin with a slash"),
        };
    }
    let host_bytes = match text.strip_prefix('[') {
        Some(inner) => 2 + inner.find(']').ok_or("the closing bracket is missing")?,
        None => text.find(':').unwrap_or(text.len()),
    };
    let (host, rest) = text.split_at(host_bytes);
    if host.is_empty() || host == "[]" || host.contains(char::is_whitespace) {
        return Err("the host is missing");
    }
    let mut words = rest.split(':');
    if words.next() != Some("") {
        return Err("there is no port after the bracket");
    }
    let port = match (words.next(), port_override) {
        (_, Some(port)) => port,
        (None, None) => return Err("the port is missing"),
        (Some(port), None) => match port.parse() {
            Ok(number) if !port.starts_with('+') => number,
            _ => return Err("the port is not a number from 0 to 65535"),
        },
    };
    Ok((Address(format!("{host}:{port}").into()), words.collect()))
}
