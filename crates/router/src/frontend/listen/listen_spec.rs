//! `-l`: where to listen, as `lookaside-server` and memcached have it.
//!
//! ```text
//! [notls: | btls: | mtls:] [tag[NAME]:] HOST | HOST:PORT | [V6] | [V6]:PORT | V6 | *
//! ```
//!
//! Several, separated by commas or semicolons, and the option itself any number of times. A host may have several
//! addresses; all of them are listened on.

use super::TlsMode;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};

/// One entry of `-l`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Entry<'a> {
    /// How it is protected, where it says so.
    pub(crate) tls_mode: Option<TlsMode>,
    host: Host<'a>,
    /// Its own port, where it names one.
    pub(crate) port: Option<u16>,
}

#[derive(Debug, PartialEq, Eq)]
enum Host<'a> {
    Address(IpAddr),
    /// To be looked up.
    Name(&'a str),
}

/// The entries of all arguments of `-l`. Nothing is looked up.
pub(crate) fn entries(texts: &[String]) -> Result<Vec<Entry<'_>>, String> {
    let texts = texts.iter().flat_map(|text| text.split([',', ';'])).map(str::trim).filter(|text| !text.is_empty());
    texts.map(|text| read(text).map_err(|why| format!("-l {text}: {why}"))).collect()
}

impl Entry<'_> {
    /// Where it is, with `port`.
    pub(crate) fn look_up(&self, port: u16) -> Result<Vec<SocketAddr>, String> {
        match self.host {
            Host::Address(address) => Ok(vec![SocketAddr::new(address, port)]),
            Host::Name(name) => {
                let found = (name, port).to_socket_addrs();
                let mut addresses: Vec<_> = found.map_err(|error| format!("-l {name}: {error}"))?.collect();
                addresses.dedup();
                Ok(addresses)
            }
        }
    }
}

fn read(text: &str) -> Result<Entry<'_>, String> {
    let (tls_mode, text) = tls_mode_of(text);
    let text = without_labels(text)?;
    if let Some(bracketed) = text.strip_prefix('[') {
        let (address, rest) = bracketed.split_once(']').ok_or("an IPv6 address ends with ]")?;
        let address: Ipv6Addr = address.parse().map_err(|_| "no IPv6 address between the brackets".to_owned())?;
        let port = match rest.strip_prefix(':') {
            Some(port) => Some(read_port(port)?),
            None if rest.is_empty() => None,
            None => return Err("behind the bracket comes :PORT, or nothing".to_owned()),
        };
        return Ok(Entry { tls_mode, host: Host::Address(address.into()), port });
    }
    if let Ok(address) = text.parse() {
        return Ok(Entry { tls_mode, host: Host::Address(address), port: None });
    }
    let (host, port) = match text.split_once(':') {
        Some((host, port)) => (host, Some(read_port(port)?)),
        None => (text, None),
    };
    let host = match host.parse::<Ipv4Addr>() {
        Ok(address) => Host::Address(address.into()),
        Err(_) if host == "*" => Host::Address(Ipv4Addr::UNSPECIFIED.into()),
        Err(_) if is_name(host) => Host::Name(host),
        Err(_) => return Err(format!("{host:?} is neither an address nor a name")),
    };
    Ok(Entry { tls_mode, host, port })
}

fn tls_mode_of(text: &str) -> (Option<TlsMode>, &str) {
    let prefixes = [("notls:", TlsMode::Plain), ("btls:", TlsMode::Tls), ("mtls:", TlsMode::MutualTls)];
    let prefixed = prefixes.iter().find_map(|(prefix, tls_mode)| Some((Some(*tls_mode), text.strip_prefix(prefix)?)));
    prefixed.unwrap_or((None, text))
}

fn is_name(host: &str) -> bool {
    let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_' || byte == b'.';
    let is_number = host.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    !is_number && host.bytes().all(is_letter)
}

/// What is behind memcached's labels. `tag` says nothing to a router; `proto` would, and there is none to choose.
fn without_labels(mut text: &str) -> Result<&str, String> {
    if text.starts_with("proto[") || text.starts_with("proto_") {
        return Err("the protocol is seen by a connection's first byte: leave proto[...] away".to_owned());
    }
    if let Some(rest) = text.strip_prefix("tag[").or_else(|| text.strip_prefix("tag_")) {
        let end = rest.find([']', '_']).ok_or("tag wants a name in brackets")?;
        text = rest[end + 1..].strip_prefix(':').ok_or("a colon follows tag")?;
    }
    Ok(text)
}

fn read_port(text: &str) -> Result<u16, String> {
    text.parse().map_err(|_| format!("{text:?} is no port"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(texts: &[&str]) -> Result<Vec<(String, Option<u16>)>, String> {
        let texts: Vec<String> = texts.iter().map(ToString::to_string).collect();
        let host = |host: &Host<'_>| match host {
            Host::Address(address) => address.to_string(),
            Host::Name(name) => (*name).to_owned(),
        };
        Ok(entries(&texts)?.iter().map(|entry| (host(&entry.host), entry.port)).collect())
    }

    #[test]
    fn the_servers_forms() {
        let entry = |host: &str, port| (host.to_owned(), port);
        assert_eq!(
            listed(&["10.0.0.1,10.0.0.2:8;*", "*:9"]),
            Ok(vec![
                entry("10.0.0.1", None),
                entry("10.0.0.2", Some(8)),
                entry("0.0.0.0", None),
                entry("0.0.0.0", Some(9))
            ])
        );
        assert_eq!(
            listed(&["::1, [::1],[::1]:9"]),
            Ok(vec![entry("::1", None), entry("::1", None), entry("::1", Some(9))])
        );
        assert_eq!(
            listed(&["tag[tools]:cache-1.example:7,localhost"]),
            Ok(vec![entry("cache-1.example", Some(7)), entry("localhost", None)])
        );
    }

    #[test]
    fn an_address_may_say_how_it_is_protected() {
        let texts = ["notls:127.0.0.1:1,btls:tag[a]:[::1]:2;mtls:localhost,*".to_owned()];
        let entries = entries(&texts).expect("well formed");
        let securities: Vec<_> = entries.iter().map(|entry| entry.tls_mode).collect();
        assert_eq!(securities, [Some(TlsMode::Plain), Some(TlsMode::Tls), Some(TlsMode::MutualTls), None]);
    }

    #[test]
    fn nonsense_is_refused_with_what_is_wrong() {
        for (text, why) in [
            ("127.0.0.1:x", "no port"),
            ("127.0.0.1:70000", "no port"),
            ("127.0.0.1:", "no port"),
            ("[::1", "ends with ]"),
            ("[::1]7", "behind the bracket"),
            ("[nothing]:1", "no IPv6 address"),
            ("127.0.0", "neither an address nor a name"),
            ("no such host", "neither an address nor a name"),
            ("tag[a]127.0.0.1", "colon"),
            ("proto[ascii]:127.0.0.1", "first byte"),
        ] {
            let refused = listed(&[text]).expect_err(text);
            assert!(refused.starts_with(&format!("-l {text}: ")) && refused.contains(why), "{refused}");
        }
    }

    #[test]
    fn a_name_is_looked_up_and_an_address_is_not() {
        let texts = ["localhost".to_owned(), "192.0.2.1".to_owned(), "no-such-host.invalid".to_owned()];
        let entries = entries(&texts).expect("well formed");
        assert!(entries[0].look_up(7).expect("every machine has it").iter().all(|address| address.port() == 7));
        assert_eq!(entries[1].look_up(7), Ok(vec![([192, 0, 2, 1], 7).into()]));
        assert!(entries[2].look_up(7).is_err_and(|why| why.starts_with("-l no-such-host.invalid: ")));
    }
}
