//! `-l`: the addresses to listen on, in memcached's grammar.
//!
//! ```text
//! [notls: | btls: | mtls:] [proto[NAME]:] [tag[NAME]:] HOST | HOST:PORT | [V6] | [V6]:PORT | V6 | *
//! ```
//!
//! An argument holds any number of addresses, separated by commas or semicolons. The brackets of a label may be
//! underscores. A host name may have several addresses, and the daemon listens on all of them. A `tag` has no effect.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs as _};

/// Whether the connections to an address use TLS; the stricter mode is the greater.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum TlsMode {
    /// `notls:` no TLS.
    #[default]
    Plain,
    /// `btls:` TLS without client certificates.
    Tls,
    /// `mtls:` TLS with client certificates.
    MutualTls,
}

/// The protocol that clients speak at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListenProtocol {
    /// `auto` or `negotiating`: the first byte of a connection decides.
    Auto,
    /// `ascii`.
    Ascii,
    /// `binary`.
    Binary,
}

/// One address of `-l`, parsed but not resolved.
#[derive(Debug, PartialEq, Eq)]
pub struct ListenSpec<'a> {
    /// The address as written, for messages.
    pub text: &'a str,
    /// `None` if it has no prefix.
    pub tls: Option<TlsMode>,
    /// `None` if it has no `proto` label.
    pub protocol: Option<ListenProtocol>,
    /// `None` if it names no port.
    pub port: Option<u16>,
    host: Host<'a>,
}

#[derive(Debug, PartialEq, Eq)]
enum Host<'a> {
    Address(IpAddr),
    Name(&'a str),
}

impl<'a> ListenSpec<'a> {
    /// Parses all arguments of `-l`; empty only if there are none. Host names are not resolved.
    pub fn parse_all(arguments: &'a [String]) -> Result<Vec<ListenSpec<'a>>, String> {
        let texts = arguments.iter().flat_map(|argument| argument.split([',', ';'])).map(str::trim);
        let specs = texts.filter(|text| !text.is_empty()).map(ListenSpec::parse).collect::<Result<Vec<_>, _>>()?;
        if specs.is_empty() && !arguments.is_empty() {
            return Err("-l names no address".to_owned());
        }
        Ok(specs)
    }

    fn parse(text: &'a str) -> Result<ListenSpec<'a>, String> {
        let parse = || {
            let (tls, rest) = split_tls(text);
            let (protocol, rest) = split_labels(rest)?;
            let (host, port) = parse_host(rest)?;
            Ok(ListenSpec { text, tls, protocol, port, host })
        };
        parse().map_err(|why: String| format!("-l {text}: {why}"))
    }

    /// Its socket addresses with `port`. Resolves a host name, and blocks meanwhile.
    pub fn resolve(&self, port: u16) -> Result<Vec<SocketAddr>, String> {
        match self.host {
            Host::Address(address) => Ok(vec![SocketAddr::new(address, port)]),
            Host::Name(name) => {
                let found = (name, port).to_socket_addrs();
                let found = found.map_err(|error| format!("-l {}: cannot resolve the name: {error}", self.text))?;
                let mut addresses: Vec<SocketAddr> = found.collect();
                addresses.dedup();
                Ok(addresses)
            }
        }
    }
}

fn split_tls(text: &str) -> (Option<TlsMode>, &str) {
    let prefixes = [("notls:", TlsMode::Plain), ("btls:", TlsMode::Tls), ("mtls:", TlsMode::MutualTls)];
    let found = prefixes.iter().find_map(|&(prefix, mode)| Some((Some(mode), text.strip_prefix(prefix)?)));
    found.unwrap_or((None, text))
}

fn split_labels(mut text: &str) -> Result<(Option<ListenProtocol>, &str), String> {
    let mut protocol = None;
    for label in ["proto", "tag"] {
        let Some(rest) = text.strip_prefix(label) else { continue };
        let Some(value) = rest.strip_prefix(['[', '_']) else { continue };
        let end = value.find([']', '_']).ok_or_else(|| format!("{label} needs a name in brackets"))?;
        if label == "proto" {
            protocol = Some(match &value[..end] {
                "auto" | "negotiating" => ListenProtocol::Auto,
                "ascii" => ListenProtocol::Ascii,
                "binary" => ListenProtocol::Binary,
                _ => return Err("the protocol is one of ascii, binary, negotiating, auto".to_owned()),
            });
        }
        text = value[end + 1..].strip_prefix(':').ok_or_else(|| format!("{label} is not followed by a colon"))?;
    }
    Ok((protocol, text))
}

fn parse_host(text: &str) -> Result<(Host<'_>, Option<u16>), String> {
    if let Some(bracketed) = text.strip_prefix('[') {
        let (address, rest) = bracketed.split_once(']').ok_or("an IPv6 address ends with ]")?;
        let address: Ipv6Addr = address.parse().map_err(|_| "no IPv6 address between the brackets".to_owned())?;
        let port = match rest.strip_prefix(':') {
            Some(port) => Some(parse_port(port)?),
            None if rest.is_empty() => None,
            None => return Err("only :PORT may follow the closing bracket".to_owned()),
        };
        return Ok((Host::Address(address.into()), port));
    }
    if let Ok(address) = text.parse() {
        return Ok((Host::Address(address), None));
    }
    let (host, port) = match text.split_once(':') {
        Some((host, port)) => (host, Some(parse_port(port)?)),
        None => (text, None),
    };
    let host = match host.parse::<Ipv4Addr>() {
        Ok(address) => Host::Address(address.into()),
        Err(_) if host == "*" => Host::Address(Ipv4Addr::UNSPECIFIED.into()),
        Err(_) if is_name(host) => Host::Name(host),
        Err(_) => return Err(format!("{host:?} is neither an address nor a host name")),
    };
    Ok((host, port))
}

fn is_name(host: &str) -> bool {
    let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_' || byte == b'.';
    let is_number = host.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    !is_number && host.bytes().all(is_letter)
}

fn parse_port(text: &str) -> Result<u16, String> {
    text.parse().map_err(|_| format!("{text:?} is not a port"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hosts(texts: &[&str]) -> Result<Vec<(String, Option<u16>)>, String> {
        let texts: Vec<String> = texts.iter().map(ToString::to_string).collect();
        let host = |host: &Host<'_>| match host {
            Host::Address(address) => address.to_string(),
            Host::Name(name) => (*name).to_owned(),
        };
        Ok(ListenSpec::parse_all(&texts)?.iter().map(|spec| (host(&spec.host), spec.port)).collect())
    }

    #[test]
    fn forms_of_memcached_are_accepted() {
        let spec = |host: &str, port| (host.to_owned(), port);
        assert_eq!(
            hosts(&["10.0.0.1,10.0.0.2:8;*", "*:9"]),
            Ok(vec![
                spec("10.0.0.1", None),
                spec("10.0.0.2", Some(8)),
                spec("0.0.0.0", None),
                spec("0.0.0.0", Some(9))
            ])
        );
        assert_eq!(
            hosts(&["::1, [::1],[::1]:9"]),
            Ok(vec![spec("::1", None), spec("::1", None), spec("::1", Some(9))])
        );
        assert_eq!(
            hosts(&["tag[tools]:cache-1.example:7,localhost", "protocol.example", "tags"]),
            Ok(vec![
                spec("cache-1.example", Some(7)),
                spec("localhost", None),
                spec("protocol.example", None),
                spec("tags", None)
            ])
        );
        assert_eq!(hosts(&[]), Ok(vec![]));
        assert_eq!(hosts(&["", " , ;"]), Err("-l names no address".to_owned()));
    }

    #[test]
    fn prefix_sets_the_tls_mode() {
        let texts = ["notls:127.0.0.1:1,btls:tag[a]:[::1]:2;mtls:proto[ascii]:tag_tools_:localhost,*".to_owned()];
        let specs = ListenSpec::parse_all(&texts).expect("well formed");
        let modes: Vec<_> = specs.iter().map(|spec| spec.tls).collect();
        assert_eq!(modes, [Some(TlsMode::Plain), Some(TlsMode::Tls), Some(TlsMode::MutualTls), None]);
    }

    #[test]
    fn label_sets_the_protocol() {
        let texts = ["127.0.0.1:1,proto[binary]:127.0.0.1:2;notls:proto[ascii]:tag[a]:[::1]:3,proto_negotiating_:*"];
        let texts = texts.map(String::from);
        let specs = ListenSpec::parse_all(&texts).expect("well formed");
        let protocols: Vec<_> = specs.iter().map(|spec| spec.protocol).collect();
        let [binary, ascii, auto] = [ListenProtocol::Binary, ListenProtocol::Ascii, ListenProtocol::Auto].map(Some);
        assert_eq!(protocols, [None, binary, ascii, auto]);
    }

    #[test]
    fn malformed_addresses_are_refused_with_the_reason() {
        for (text, why) in [
            ("127.0.0.1:x", "not a port"),
            ("127.0.0.1:70000", "not a port"),
            ("127.0.0.1:", "not a port"),
            ("[::1", "ends with ]"),
            ("[::1]7", "closing bracket"),
            ("[nothing]:1", "no IPv6 address"),
            ("127.0.0", "neither an address nor a host name"),
            ("no such host", "neither an address nor a host name"),
            ("tag[a]127.0.0.1", "colon"),
            ("tag[a", "brackets"),
            ("proto[proxy]:127.0.0.1", "the protocol is one of"),
        ] {
            let refused = hosts(&[text]).expect_err(text);
            assert!(refused.starts_with(&format!("-l {text}: ")) && refused.contains(why), "{refused}");
        }
    }

    #[test]
    fn only_names_are_resolved() {
        let texts = ["localhost".to_owned(), "192.0.2.1".to_owned(), "no-such-host.invalid".to_owned()];
        let specs = ListenSpec::parse_all(&texts).expect("well formed");
        assert!(specs[0].resolve(7).expect("every machine has it").iter().all(|address| address.port() == 7));
        assert_eq!(specs[1].resolve(7), Ok(vec![([192, 0, 2, 1], 7).into()]));
        assert!(specs[2].resolve(7).is_err_and(|why| why.starts_with("-l no-such-host.invalid: ")));
    }
}
