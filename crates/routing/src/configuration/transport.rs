//! The protocol in which a server is asked, and how its connections are protected.
//!
//! ```text
//!   pool      "protocol": "ascii" | "meta"     "security_mech": "plain" | "tls" (or "ssl")     "use_ssl": true | false
//!   server    "host:port:ascii:ssl"            takes precedence over its pool
//! ```
//!
//! A port either speaks TLS or does not: two pools that reach one server in different ways are an error.

use super::{
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

pub(super) struct PoolTransport {
    transport: Transport,
    skips_verification: bool,
    pub(super) identity: Option<Arc<str>>,
}

impl PoolTransport {
    pub(super) fn parse(pool: &InheritanceChain<'_>) -> Result<PoolTransport, ConfigurationError> {
        let skips_verification = pool.get("unsafe_ssl_skip_verification").map_or(Ok(false), |value| value.boolean())?;
        let mechanism = pool.nearest(uses_tls)?.unwrap_or(false);
        let protocol = match pool.get("protocol") {
            Some(value) => parse_name(&value, "protocol", &PROTOCOLS)?,
            None => Protocol::Text,
        };
        let identity = match pool.get("ssl_service_identity") {
            Some(value) => Some(value.string("the name in the servers' certificates")?.into()),
            None => None,
        };
        let security = security(mechanism, skips_verification);
        Ok(PoolTransport { transport: Transport { protocol, security }, skips_verification, identity })
    }

    /// The transport of a server that has `suffixes` behind its port. The error is the first unknown suffix.
    pub(super) fn with_suffixes<'a>(&self, suffixes: impl Iterator<Item = &'a str>) -> Result<Transport, &'a str> {
        let mut transport = self.transport;
        for (at, word) in suffixes.enumerate() {
            match at {
                0 => transport.protocol = lookup(word, &PROTOCOLS).ok_or(word)?,
                1 => transport.security = security(lookup(word, &MECHANISMS).ok_or(word)?, self.skips_verification),
                _ => return Err(word),
            }
        }
        Ok(transport)
    }
}

const PROTOCOLS: [(&str, Protocol); 2] = [("ascii", Protocol::Text), ("meta", Protocol::Meta)];

/// Whether a security mechanism is TLS.
const MECHANISMS: [(&str, bool); 3] = [("plain", false), ("ssl", true), ("tls", true)];

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

/// Whether a pool's own object asks for TLS; `None` if it has no key for that.
fn uses_tls(object: &Object<'_>) -> Result<Option<bool>, ConfigurationError> {
    let uses_ssl = object.get("use_ssl").map(|value| value.boolean()).transpose()?;
    let Some(value) = object.get("security_mech") else { return Ok(uses_ssl) };
    let mechanism = parse_name(&value, "security mechanism", &MECHANISMS)?;
    match uses_ssl {
        Some(uses_ssl) if uses_ssl != mechanism => {
            Err(value.error(format!("this contradicts \"use_ssl\": {uses_ssl}: expected one of them")))
        }
        _ => Ok(Some(mechanism)),
    }
}

/// Parses `host:port` or `[v6]:port`, optionally with a protocol and a security mechanism behind it (`:ascii:ssl`).
pub(super) fn parse_server(node: &Node<'_>, pool: &PoolTransport) -> Result<(Address, Transport), ConfigurationError> {
    let text = node.string("a server as \"host:port\"")?;
    let refused =
        |why: &str| node.error(format!("{text:?} is not a server: {why}; expected \"host:port\" or \"[v6]:port\""));
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
        return Err(refused("there is no port after the bracket"));
    }
    let port = rest.next().ok_or_else(|| refused("the port is missing"))?;
    if !matches!(port.parse::<u16>(), Ok(1..)) || port.starts_with('+') {
        return Err(refused("the port is not a number from 1 to 65535"));
    }
    let transport = pool.with_suffixes(rest).map_err(|word| refused(&format!("{word:?} is not supported")))?;
    Ok((Address(format!("{host}:{port}").into()), transport))
}
