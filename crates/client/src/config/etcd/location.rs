//! `etcd://[USER[:PASSWORD]@]HOST:PORT[,HOST:PORT...]/KEY`: the location of a configuration in etcd; `etcds://` by TLS.
//!
//! The key follows the first slash: `etcd://h:2379/lookaside/one` is the key `lookaside/one`, and
//! `etcd://h:2379//lookaside/one` is `/lookaside/one`. User and password are percent-encoded. So a key has no `@`: the
//! text before an `@` may be a part of a password, and no message shows that.

use lookaside_protocol::percent;
use lookaside_routing::{Address, Security, TlsPolicy};
use std::collections::BTreeMap;
use std::fmt;

/// etcd's default port for clients.
const PORT_DEFAULT: u16 = 2379;
/// No etcd cluster has more endpoints.
const ENDPOINTS_MAX: usize = 64;

/// A key in an etcd cluster.
#[derive(Clone, PartialEq, Eq)]
pub struct EtcdLocation {
    /// Members of one cluster; the next is asked when one does not reply.
    pub endpoints: Vec<Address>,
    /// Whether they are reached by TLS, with verified certificates.
    pub is_secured: bool,
    /// The key.
    pub key: String,
    /// The user to log in as; `None` if etcd requires none.
    pub user: Option<EtcdUser>,
}

/// A user of etcd.
#[derive(Clone, PartialEq, Eq)]
pub struct EtcdUser {
    /// The user's name.
    pub name: String,
    /// The user's password; empty if it is given elsewhere.
    pub password: String,
}

impl EtcdLocation {
    /// Parses a location; `None` if `text` is not an etcd URL.
    pub fn parse(text: &str) -> Option<Result<EtcdLocation, String>> {
        let (is_secured, rest) = match text.strip_prefix("etcds://") {
            Some(rest) => (true, rest),
            None => (false, text.strip_prefix("etcd://")?),
        };
        let location = read(rest).map(|location| EtcdLocation { is_secured, ..location });
        Some(location.map_err(|why| format!("{why}; expected etcd://HOST:PORT[,HOST:PORT...]/KEY")))
    }

    /// The TLS policies of its endpoints.
    pub fn tls_policies(&self) -> BTreeMap<Address, TlsPolicy> {
        let security = if self.is_secured { Security::Tls } else { Security::Plain };
        self.endpoints
            .iter()
            .map(|endpoint| (endpoint.clone(), TlsPolicy { security, certificate_name: None }))
            .collect()
    }

    /// The location with `password`, if there is a user without one.
    pub fn with_password(mut self, password: Option<&str>) -> EtcdLocation {
        if let (Some(user), Some(password)) = (&mut self.user, password)
            && user.password.is_empty()
        {
            user.password = password.to_owned();
        }
        self
    }
}

fn read(rest: &str) -> Result<EtcdLocation, String> {
    let (authority, key) = rest.split_once('/').unwrap_or((rest, ""));
    if key.is_empty() {
        return Err("the key is missing".to_owned());
    }
    if key.contains('@') {
        return Err("there is an @ after the first /; in a user or password / is %2F and @ is %40".to_owned());
    }
    let (user, hosts) = match authority.rsplit_once('@') {
        Some((user, hosts)) => (Some(read_user(user)?), hosts),
        None => (None, authority),
    };
    let endpoints: Vec<Address> = hosts.split(',').map(read_endpoint).collect::<Result<_, _>>()?;
    match endpoints.len() <= ENDPOINTS_MAX {
        true => Ok(EtcdLocation { endpoints, is_secured: false, key: key.to_owned(), user }),
        false => Err(format!("more than {ENDPOINTS_MAX} endpoints")),
    }
}

fn read_user(text: &str) -> Result<EtcdUser, String> {
    let (name, password) = text.split_once(':').unwrap_or((text, ""));
    let plain = |text| {
        percent::decode_text(text).ok_or("a % in the user or password is not followed by two hexadecimal digits")
    };
    Ok(EtcdUser { name: plain(name)?, password: plain(password)? })
}

fn read_endpoint(text: &str) -> Result<Address, String> {
    let wrong = || format!("{text:?} is not host:port");
    let (host, port) = match text.strip_prefix('[') {
        Some(inner) => {
            let end = inner.find(']').ok_or_else(wrong)? + 2;
            (&text[..end], text[end..].strip_prefix(':').or(text[end..].is_empty().then_some("")).ok_or_else(wrong)?)
        }
        None => text.split_once(':').unwrap_or((text, "")),
    };
    let port = if port.is_empty() { PORT_DEFAULT } else { port.parse().map_err(|_| wrong())? };
    match !host.is_empty() && port > 0 && !host.contains(char::is_whitespace) {
        true => Ok(Address(format!("{host}:{port}").into())),
        false => Err(wrong()),
    }
}

/// `text` without the part that may be a user and a password.
pub fn without_user(text: &str) -> String {
    match text.rsplit_once('@') {
        Some((_, rest)) => format!("...@{rest}"),
        None => text.to_owned(),
    }
}

/// Without user and password: this is for logs.
impl fmt::Display for EtcdLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let endpoints: Vec<_> = self.endpoints.iter().map(|endpoint| &*endpoint.0).collect();
        let scheme = if self.is_secured { "etcds" } else { "etcd" };
        write!(f, "{scheme}://{}/{}", endpoints.join(","), self.key)
    }
}

impl fmt::Debug for EtcdLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EtcdLocation({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<EtcdLocation, String> {
        EtcdLocation::parse(text).expect("names etcd")
    }

    #[test]
    fn endpoints_key_and_user_are_parsed() {
        let location = parse("etcd://a:1,[::1]:2,b/lookaside/one").expect("good");
        let endpoints: Vec<_> = location.endpoints.iter().map(|endpoint| &*endpoint.0).collect();
        assert_eq!((endpoints, &*location.key), (vec!["a:1", "[::1]:2", "b:2379"], "lookaside/one"));
        assert!(location.user.is_none());
        assert_eq!(parse("etcd://a:1//one").expect("good").key, "/one");
        let secured = parse("etcds://a:1/k").expect("good");
        assert!(secured.tls_policies().values().all(|policy| policy.security == Security::Tls));
        assert_eq!((secured.to_string(), location.is_secured), ("etcds://a:1/k".to_owned(), false));
        let user = parse("etcd://ops:p%40s:s@a:1/k").expect("good").user.expect("a user");
        assert_eq!((&*user.name, &*user.password), ("ops", "p@s:s"));
        let given = parse("etcd://ops@a:1/k").expect("good").with_password(Some("secret"));
        assert_eq!(given.user.expect("a user").password, "secret");
    }

    #[test]
    fn display_and_debug_show_no_password() {
        let location = parse("etcd://ops:secret@a:1/k").expect("good");
        assert_eq!(
            (location.to_string(), format!("{location:?}")),
            ("etcd://a:1/k".into(), "EtcdLocation(etcd://a:1/k)".into())
        );
    }

    #[test]
    fn errors_show_no_part_of_a_password() {
        for bad in [
            "etcd://ops:se/cret@a:1/k",
            "etcd://ops:12/cret@a:1/k",
            "etcd://ops:se@cr/et@a:1/k",
            "etcd://ops:secret@a:x/k",
            "etcd://ops:se%zzcret@a:1/k",
            "etcd://ops:se/cret@a:1",
        ] {
            let error = parse(bad).expect_err(bad);
            assert!(
                !["ops", "se", "cr", "12"]
                    .iter()
                    .any(|piece| error.split(|c: char| !c.is_alphanumeric()).any(|word| word == *piece))
                    && !error.contains("cret"),
                "{bad}: {error}"
            );
        }
        assert_eq!(without_user("etdc://ops:se@cret@a:1/k"), "...@a:1/k");
        assert_eq!(without_user("router.json"), "router.json");
    }

    #[test]
    fn errors_name_the_reason() {
        assert!(EtcdLocation::parse("file:a.json").is_none());
        for (bad, why) in [
            ("etcd://a:1", "key is missing"),
            ("etcd://a:1/", "key is missing"),
            ("etcd:///k", "not host:port"),
            ("etcd://a:0/k", "not host:port"),
            ("etcd://a:x/k", "not host:port"),
            ("etcd://[::1/k", "not host:port"),
            ("etcd://[::1]2/k", "not host:port"),
            ("etcd://a:1,,b:2/k", "not host:port"),
            ("etcd://u%zz@a:1/k", "hexadecimal"),
            ("etcd://a:1/k@home", "an @ after the first /"),
        ] {
            let error = parse(bad).expect_err(bad);
            assert!(error.contains(why), "{bad}: {error}");
        }
    }
}
