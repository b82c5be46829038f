//! `-l`: the addresses to listen on. [`ListenSpec`] has the grammar.

use super::{Arguments, ProtocolName, UsageError};
use crate::session::context::Protocols;
use lookaside_net::{ListenProtocol, ListenSpec, TlsMode};
use std::net::{Ipv4Addr, SocketAddr};

/// One address to listen on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListenAddress {
    /// The address.
    pub address: SocketAddr,
    /// `None`: as `-Z` and `ssl_verify_mode` say.
    pub tls: Option<TlsMode>,
    /// The protocols that clients may speak there; `None`: those of the server.
    pub protocols: Option<Protocols>,
}

impl Arguments {
    /// The addresses of `-l`, with `port` for those that name none; loopback without `-l`. Resolves host names.
    pub fn addresses(&self, port: u16) -> anyhow::Result<Vec<ListenAddress>> {
        if self.listen.is_empty() {
            let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
            return Ok(vec![ListenAddress { address, tls: None, protocols: None }]);
        }
        let mut addresses = Vec::new();
        for spec in parse_specs(&self.listen)? {
            let protocols = protocol_name(&spec).map(|name| self.protocols_at(Some(name))).transpose()?;
            let resolved = spec.resolve(spec.port.unwrap_or(port)).map_err(anyhow::Error::msg)?;
            addresses.extend(resolved.into_iter().map(|address| ListenAddress { address, tls: spec.tls, protocols }));
        }
        Ok(addresses)
    }

    /// Whether an address of `-l` has the prefix `mtls:`.
    pub(crate) fn has_mutual_tls(&self) -> bool {
        parse_specs(&self.listen).is_ok_and(|specs| specs.iter().any(|spec| spec.tls == Some(TlsMode::MutualTls)))
    }
}

/// Parses `-l` without resolving host names.
pub(super) fn parse_specs(arguments: &[String]) -> Result<Vec<ListenSpec<'_>>, UsageError> {
    ListenSpec::parse_all(arguments).map_err(UsageError)
}

/// The value of the label `proto`, as `-B` names it.
pub(super) fn protocol_name(spec: &ListenSpec<'_>) -> Option<ProtocolName> {
    spec.protocol.map(|protocol| match protocol {
        ListenProtocol::Auto => ProtocolName::Auto,
        ListenProtocol::Ascii => ProtocolName::Ascii,
        ListenProtocol::Binary => ProtocolName::Binary,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(texts: &[&str]) -> Vec<ListenAddress> {
        let words = ["lookaside-server"].into_iter().chain(texts.iter().flat_map(|text| ["-l", text]));
        Arguments::read(words).expect("options of memcached").addresses(7).expect("forms of memcached")
    }

    fn listed(texts: &[&str]) -> Vec<(String, Option<TlsMode>)> {
        addresses(texts).iter().map(|one| (one.address.to_string(), one.tls)).collect()
    }

    #[test]
    fn forms_of_memcached_are_accepted() {
        let plain = |text: &str| (text.to_string(), None);
        assert_eq!(listed(&[]), [plain("127.0.0.1:7")]);
        assert_eq!(
            listed(&["10.0.0.1,10.0.0.2:8", "*"]),
            [plain("10.0.0.1:7"), plain("10.0.0.2:8"), plain("0.0.0.0:7")]
        );
        assert_eq!(listed(&["::1,[::1],[::1]:9"]), [plain("[::1]:7"), plain("[::1]:7"), plain("[::1]:9")]);
        assert_eq!(
            listed(&["notls:127.0.0.1:1;mtls:proto[ascii]:tag_tools_:127.0.0.1:2,btls:[::1]:3"]),
            [
                ("127.0.0.1:1".to_string(), Some(TlsMode::Plain)),
                ("127.0.0.1:2".to_string(), Some(TlsMode::MutualTls)),
                ("[::1]:3".to_string(), Some(TlsMode::Tls))
            ]
        );
    }

    #[test]
    fn an_address_may_have_its_own_protocol() {
        let texts = ["127.0.0.1:1,proto[binary]:127.0.0.1:2;notls:proto[ascii]:tag[a]:[::1]:3,proto_negotiating_:*"];
        let protocols: Vec<_> = addresses(&texts).iter().map(|one| one.protocols).collect();
        assert_eq!(protocols, [None, Some(Protocols::Binary), Some(Protocols::Text), Some(Protocols::Both)]);
    }

    #[test]
    fn malformed_addresses_are_refused() {
        for text in ["127.0.0.1:x", "[::1", "[nothing]:1", "proto[proxy]:127.0.0.1", "tag[a]127.0.0.1", "no such host"]
        {
            assert!(parse_specs(&[text.to_string()]).is_err(), "{text}");
        }
    }
}
