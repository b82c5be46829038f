//! `-l`: where to listen, as memcached has it.
//!
//! ```text
//! [notls: | btls: | mtls:] [proto[NAME]:] [tag[NAME]:] HOST | HOST:PORT | [V6] | [V6]:PORT | V6 | *
//! ```
//!
//! Several, separated by commas or semicolons, and the option itself any number of times. A host may have several
//! addresses; all of them are listened on. `proto` takes the place of `-B` for whoever comes in by that address; `tag` changes
//! nothing, for nothing here asks for tags.

use crate::cli::{ProtocolName, UsageError};
use crate::session::context::Protocols;
use clap::ValueEnum;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};

/// How the connections of one address are secured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TlsMode {
    /// As `-Z` and `ssl_verify_mode` say.
    #[default]
    AsConfigured,
    /// `notls:` plain, beside others that are not.
    Plain,
    /// `btls:` TLS without asking for a client's certificate.
    Basic,
    /// `mtls:` TLS for clients with a certificate alone.
    Mutual,
}

impl TlsMode {
    /// What the log says behind such an address.
    pub(crate) fn remark(self) -> &'static str {
        match self {
            TlsMode::AsConfigured => "",
            TlsMode::Plain => " without TLS",
            TlsMode::Basic => " with TLS",
            TlsMode::Mutual => " with TLS, for clients with a certificate",
        }
    }
}

/// One address to listen on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listen {
    /// Where.
    pub address: SocketAddr,
    /// How.
    pub tls_mode: TlsMode,
    /// In which protocol clients may speak there; `None` is as `-B` says.
    pub protocol: Option<ProtocolName>,
    /// In which dialects they may therefore.
    pub protocols: Option<Protocols>,
}

/// The addresses that the arguments of `-l` name, with `port` where they name none; loopback if there are none.
pub(super) fn addresses(texts: &[String], port: u16) -> anyhow::Result<Vec<Listen>> {
    let mut specs = Vec::new();
    for text in split(texts) {
        let (tls_mode, host) = parse_tls_mode(text);
        let (protocol, host) = strip_labels(host).map_err(|why| usage_error(text, &why))?;
        let resolved = match read(host, port).map_err(|why| usage_error(text, &why))? {
            Host::Address(address) => vec![address],
            Host::Name(name, port) => look_up(name, port).map_err(|why| anyhow::anyhow!("-l {text}: {why}"))?,
        };
        specs.extend(resolved.into_iter().map(|address| Listen { address, tls_mode, protocol, protocols: None }));
    }
    if specs.is_empty() {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        specs.push(Listen { address, tls_mode: TlsMode::AsConfigured, protocol: None, protocols: None });
    }
    Ok(specs)
}

/// How each address is secured and what is spoken there, or what is no address. Nothing is looked up.
pub(super) fn check(texts: &[String]) -> Result<Vec<(TlsMode, Option<ProtocolName>)>, UsageError> {
    let mut labels = Vec::new();
    for text in split(texts) {
        let (tls_mode, host) = parse_tls_mode(text);
        let (protocol, host) = strip_labels(host).map_err(|why| usage_error(text, &why))?;
        read(host, 0).map_err(|why| usage_error(text, &why))?;
        labels.push((tls_mode, protocol));
    }
    if labels.is_empty() && !texts.is_empty() {
        return Err(UsageError::new("-l names no address"));
    }
    Ok(labels)
}

fn split(texts: &[String]) -> impl Iterator<Item = &str> {
    texts.iter().flat_map(|text| text.split([',', ';'])).map(str::trim).filter(|text| !text.is_empty())
}

fn usage_error(text: &str, why: &str) -> UsageError {
    UsageError(format!("-l {text}: {why}"))
}

/// What stands for one or more addresses.
enum Host<'a> {
    Address(SocketAddr),
    /// To be looked up.
    Name(&'a str, u16),
}

fn parse_tls_mode(text: &str) -> (TlsMode, &str) {
    let prefixes = [("notls:", TlsMode::Plain), ("btls:", TlsMode::Basic), ("mtls:", TlsMode::Mutual)];
    let prefixed = prefixes.iter().find_map(|(prefix, tls_mode)| Some((*tls_mode, text.strip_prefix(prefix)?)));
    prefixed.unwrap_or((TlsMode::AsConfigured, text))
}

fn read(host: &str, port: u16) -> Result<Host<'_>, String> {
    if host == "*" {
        return Ok(Host::Address(SocketAddr::from((Ipv4Addr::UNSPECIFIED, port))));
    }
    if let Some(bracketed) = host.strip_prefix('[') {
        let (address, rest) = bracketed.split_once(']').ok_or("an IPv6 address ends with ]")?;
        let address: Ipv6Addr = address.parse().map_err(|_| "no IPv6 address between the brackets".to_string())?;
        let port = rest.strip_prefix(':').map_or(Ok(port), parse_port)?;
        return Ok(Host::Address(SocketAddr::from((address, port))));
    }
    if let Ok(address) = host.parse::<IpAddr>() {
        return Ok(Host::Address(SocketAddr::from((address, port))));
    }
    let (host, port) = match host.split_once(':') {
        Some((host, port)) => (host, parse_port(port)?),
        None => (host, port),
    };
    let host = if host == "*" { "0.0.0.0" } else { host };
    if let Ok(address) = host.parse::<Ipv4Addr>() {
        return Ok(Host::Address(SocketAddr::from((address, port))));
    }
    let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_' || byte == b'.';
    let is_number = host.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    if is_number || !host.bytes().all(is_letter) {
        return Err(format!("{host:?} is neither an address nor a name"));
    }
    Ok(Host::Name(host, port))
}

fn look_up(host: &str, port: u16) -> Result<Vec<SocketAddr>, String> {
    let resolved = (host, port).to_socket_addrs().map_err(|error| format!("no such address: {error}"))?;
    let mut addresses: Vec<SocketAddr> = resolved.collect();
    addresses.dedup();
    Ok(addresses)
}

/// What `proto[NAME]:` names, and what is left behind that and `tag[NAME]:`, also written with underscores as memcached allows.
fn strip_labels(mut text: &str) -> Result<(Option<ProtocolName>, &str), String> {
    let mut protocol = None;
    for label in ["proto", "tag"] {
        let Some(rest) = text.strip_prefix(label) else { continue };
        let Some(named) = rest.strip_prefix(['[', '_']) else { continue };
        let end = named.find([']', '_']).ok_or_else(|| format!("{label} wants a name in brackets"))?;
        if label == "proto" {
            let name = ProtocolName::from_str(&named[..end], false);
            protocol = Some(name.map_err(|_| "the protocol is one of ascii, binary, negotiating, auto".to_string())?);
        }
        text = named[end + 1..].strip_prefix(':').ok_or_else(|| format!("a colon follows {label}"))?;
    }
    Ok((protocol, text))
}

fn parse_port(text: &str) -> Result<u16, String> {
    text.parse().map_err(|_| format!("{text} is no port"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(texts: &[&str]) -> Vec<(String, TlsMode)> {
        let texts: Vec<String> = texts.iter().map(|text| text.to_string()).collect();
        let specs = addresses(&texts, 7).expect("memcached takes these");
        specs.iter().map(|spec| (spec.address.to_string(), spec.tls_mode)).collect()
    }

    #[test]
    fn memcacheds_forms() {
        let plain = |text: &str| (text.to_string(), TlsMode::AsConfigured);
        assert_eq!(listed(&[]), [plain("127.0.0.1:7")]);
        assert_eq!(
            listed(&["10.0.0.1,10.0.0.2:8", "*"]),
            [plain("10.0.0.1:7"), plain("10.0.0.2:8"), plain("0.0.0.0:7")]
        );
        assert_eq!(listed(&["::1,[::1],[::1]:9"]), [plain("[::1]:7"), plain("[::1]:7"), plain("[::1]:9")]);
        assert_eq!(
            listed(&["notls:127.0.0.1:1;mtls:proto[ascii]:tag_tools_:127.0.0.1:2,btls:[::1]:3"]),
            [
                ("127.0.0.1:1".to_string(), TlsMode::Plain),
                ("127.0.0.1:2".to_string(), TlsMode::Mutual),
                ("[::1]:3".to_string(), TlsMode::Basic)
            ]
        );
    }

    #[test]
    fn an_address_may_have_a_protocol_of_its_own() {
        let texts = ["127.0.0.1:1,proto[binary]:127.0.0.1:2;notls:proto[ascii]:tag[a]:[::1]:3,proto_negotiating_:*"];
        let specs = addresses(&texts.map(String::from), 7).expect("memcached takes these");
        let protocols: Vec<_> = specs.iter().map(|spec| spec.protocol).collect();
        let [binary, ascii, auto] = [ProtocolName::Binary, ProtocolName::Ascii, ProtocolName::Auto].map(Some);
        assert_eq!(protocols, [None, binary, ascii, auto]);
    }

    #[test]
    fn nonsense_is_refused() {
        for text in ["127.0.0.1:x", "[::1", "[nothing]:1", "proto[proxy]:127.0.0.1", "tag[a]127.0.0.1", "no such host"]
        {
            assert!(addresses(&[text.to_string()], 7).is_err(), "{text}");
        }
    }
}
