//! In which dialect a server is asked, and how the way to it is protected. No request passes here.
//!
//! ```text
//!   pool      "protocol": "ascii" | "meta"     "security_mech": "plain" | "tls" (or "ssl")     "use_ssl": true | false
//!   server    "host:port:ascii:ssl"            what it says goes before what its pool says
//! ```
//!
//! A port either speaks TLS or does not: a server that one pool reaches so and another one so is a mistake.

use super::{
    error::ConfigurationError,
    json_cursor::{Node, Object},
    pool::Lineage,
};
use crate::Address;
use std::{collections::BTreeMap, sync::Arc};

/// In which words a server is asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Protocol {
    /// memcached's text dialect, with meta commands and leases as clients send them.
    #[default]
    Text,
    /// Its meta commands alone, whatever clients speak; leases are text still, for meta has none.
    Meta,
}

/// How the bytes to and from a server are protected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Security {
    /// Not at all.
    #[default]
    Plain,
    /// TLS; the server's certificate is verified, and the name in it.
    Tls,
    /// TLS with whoever answers: nobody can listen in, and anybody can be in the middle.
    UnverifiedTls,
}

/// How one server is spoken to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Transport {
    /// In which words.
    pub protocol: Protocol,
    /// How protected.
    pub security: Security,
}

/// What stands between the router and a server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsPolicy {
    /// TLS, or none.
    pub security: Security,
    /// The name that its certificate must bear in place of its host's.
    pub identity: Option<Arc<str>>,
}

/// What a pool says for all its servers.
pub(super) struct PoolAccess {
    transport: Transport,
    skips_verification: bool,
    pub(super) identity: Option<Arc<str>>,
}

impl PoolAccess {
    pub(super) fn read(pool: &Lineage<'_>) -> Result<PoolAccess, ConfigurationError> {
        let skips_verification = pool.get("unsafe_ssl_skip_verification").map_or(Ok(false), |value| value.boolean())?;
        let mechanism = pool.nearest(said_of_tls)?.unwrap_or(false);
        let protocol = match pool.get("protocol") {
            Some(value) => named(&value, "protocol", &DIALECTS)?,
            None => Protocol::Text,
        };
        let identity = match pool.get("ssl_service_identity") {
            Some(value) => Some(value.string("the name in the servers' certificates")?.into()),
            None => None,
        };
        let security = security(mechanism, skips_verification);
        Ok(PoolAccess { transport: Transport { protocol, security }, skips_verification, identity })
    }

    /// How a server is spoken to that has `words` behind its port. The error is a word that has no meaning.
    pub(super) fn with<'a>(&self, words: impl Iterator<Item = &'a str>) -> Result<Transport, &'a str> {
        let mut transport = self.transport;
        for (at, word) in words.enumerate() {
            match at {
                0 => transport.protocol = lookup(word, &DIALECTS).ok_or(word)?,
                1 => transport.security = security(lookup(word, &MECHANISMS).ok_or(word)?, self.skips_verification),
                _ => return Err(word),
            }
        }
        Ok(transport)
    }
}

const DIALECTS: [(&str, Protocol); 2] = [("ascii", Protocol::Text), ("meta", Protocol::Meta)];

/// Whether TLS is spoken.
const MECHANISMS: [(&str, bool); 3] = [("plain", false), ("ssl", true), ("tls", true)];

fn lookup<T: Copy>(word: &str, known: &[(&str, T)]) -> Option<T> {
    known.iter().find(|(name, _)| *name == word).map(|(_, meaning)| *meaning)
}

fn named<T: Copy>(value: &Node<'_>, what: &str, known: &[(&str, T)]) -> Result<T, ConfigurationError> {
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

/// Whether a pool's own object asks for TLS, if it says so or otherwise.
fn said_of_tls(object: &Object<'_>) -> Result<Option<bool>, ConfigurationError> {
    let uses_ssl = object.get("use_ssl").map(|value| value.boolean()).transpose()?;
    let Some(value) = object.get("security_mech") else { return Ok(uses_ssl) };
    let mechanism = named(&value, "security mechanism", &MECHANISMS)?;
    match uses_ssl {
        Some(uses_ssl) if uses_ssl != mechanism => {
            Err(value.error(format!("this contradicts \"use_ssl\": {uses_ssl} beside it; expected one of them")))
        }
        _ => Ok(Some(mechanism)),
    }
}

/// What protects the way to each server, by all pools together.
#[derive(Default)]
pub(super) struct Protections(pub(super) BTreeMap<Address, TlsPolicy>);

impl Protections {
    /// Takes down a server; the error is what another pool says of it.
    pub(super) fn note(&mut self, server: &Address, protection: TlsPolicy) -> Result<(), String> {
        match self.0.get(server) {
            Some(other) if *other != protection => {
                Err(format!("{server} is reached {} here, and {} by another pool", said(&protection), said(other)))
            }
            Some(_) => Ok(()),
            None => {
                self.0.insert(server.clone(), protection);
                Ok(())
            }
        }
    }
}

fn said(protection: &TlsPolicy) -> String {
    let how = match protection.security {
        Security::Plain => return "plain".to_owned(),
        Security::Tls => "by TLS",
        Security::UnverifiedTls => "by unverified TLS",
    };
    match &protection.identity {
        Some(identity) => format!("{how} as {identity}"),
        None => how.to_owned(),
    }
}
