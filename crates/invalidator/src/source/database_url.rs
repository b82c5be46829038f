//! The URL of a database server, as each kind of database reads it:
//!
//! ```text
//! scheme://user:password@host:port/database?parameter=value&parameter=value
//! ```
//!
//! All but the scheme and the host may be missing. All but host and port may be percent-encoded. Errors continue "the
//! database URL", and do not show the URL, which may hold a password.

use super::{
    Password,
    tls::{DatabaseTls, TlsParameters},
};
use lookaside_protocol::percent;

/// The parts of a URL.
pub(super) struct DatabaseUrl {
    /// The user, which may be empty, and the password; `None` if the URL names no account.
    pub account: Option<(String, Password)>,
    /// A host name or an address, without the brackets of an IPv6 address.
    pub host: String,
    /// `None` if the URL names none.
    pub port: Option<u16>,
    /// The name behind the host; `None` if there is none.
    pub database: Option<String>,
    /// What the parameters of TLS demand; `None` for connections without it.
    pub tls: Option<DatabaseTls>,
    /// Names and values of the other parameters.
    pub parameters: Vec<(String, String)>,
}

impl DatabaseUrl {
    /// Parses `url`, which begins with one of `schemes`.
    pub fn parse(url: &str, schemes: [&str; 2]) -> Result<DatabaseUrl, String> {
        let rest = schemes.iter().find_map(|scheme| url.strip_prefix(scheme));
        let rest = rest.ok_or_else(|| format!("does not begin with {}", schemes.join(" or ")))?;
        let (rest, parameters) = rest.split_once('?').unwrap_or((rest, ""));
        let (rest, database) = rest.split_once('/').unwrap_or((rest, ""));
        if database.contains('/') {
            return Err("has more than a database after the host".into());
        }
        let (account, endpoint) = match rest.rsplit_once('@') {
            Some((account, endpoint)) => (Some(parse_account(account)?), endpoint),
            None => (None, rest),
        };
        let (host, port) = match endpoint.rsplit_once(':') {
            Some((host, port)) if !port.ends_with(']') => {
                (host, Some(port.parse().map_err(|_| "has an invalid port")?))
            }
            _ => (endpoint, None),
        };
        if host.is_empty() {
            return Err("has no host".into());
        }
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let database = Some(decode(database)?).filter(|database| !database.is_empty());
        let (tls, parameters) = parse_parameters(parameters)?;
        Ok(DatabaseUrl { account, host, port, database, tls, parameters })
    }
}

fn parse_account(account: &str) -> Result<(String, Password), String> {
    let (user, password) = account.split_once(':').unwrap_or((account, ""));
    Ok((decode(user)?, decode(password)?.into()))
}

type OtherParameters = Vec<(String, String)>;

fn parse_parameters(parameters: &str) -> Result<(Option<DatabaseTls>, OtherParameters), String> {
    let (mut tls, mut others) = (TlsParameters::default(), Vec::new());
    for parameter in parameters.split('&').filter(|parameter| !parameter.is_empty()) {
        let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
        let value = decode(value)?;
        if !tls.set(name, &value)? {
            others.push((name.to_owned(), value));
        }
    }
    Ok((tls.into_options()?, others))
}

fn decode(text: &str) -> Result<String, String> {
    let decoded = percent::decode_text(text).filter(|text| !text.contains('\0'));
    decoded.ok_or_else(|| "has an invalid percent escape or a zero byte".to_owned())
}

/// `host:port`, with brackets around an IPv6 address.
pub(super) fn endpoint(host: &str, port: u16) -> String {
    match host.contains(':') {
        true => format!("[{host}]:{port}"),
        false => format!("{host}:{port}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(url: &str) -> Result<DatabaseUrl, String> {
        DatabaseUrl::parse(url, ["db://", "database://"])
    }

    #[test]
    fn every_part_but_the_host_may_be_missing() {
        let url = parse("database://a%40b:s%3Acret@h:5/shop%2F1?x=1%262&&sslmode=disable&y").expect("it is valid");
        assert_eq!(url.account, Some(("a@b".to_owned(), "s:cret".into())));
        assert_eq!((url.host.as_str(), url.port, url.database.as_deref()), ("h", Some(5), Some("shop/1")));
        assert_eq!(url.parameters, [("x".to_owned(), "1&2".to_owned()), ("y".to_owned(), String::new())]);
        assert_eq!(url.tls, None);
        for least in ["db://h", "db://h/", "db://h?"] {
            let DatabaseUrl { account, host, port, database, tls, parameters } = parse(least).expect("it is valid");
            assert_eq!((account, host.as_str(), port, database, tls), (None, "h", None, None, None), "{least}");
            assert!(parameters.is_empty());
        }
    }

    #[test]
    fn an_ipv6_host_has_brackets() {
        for (url, port) in [("db://u@[::1]:4000/", Some(4000)), ("db://[::1]", None)] {
            let parsed = parse(url).expect("it is valid");
            assert_eq!((parsed.host.as_str(), parsed.port), ("::1", port));
            assert_eq!(endpoint(&parsed.host, 7), "[::1]:7");
        }
        assert_eq!(endpoint("h", 7), "h:7");
    }

    #[test]
    fn an_error_names_the_part_and_shows_no_password() {
        for (url, why) in [
            ("other://u:secret@h", "db:// or database://"),
            ("u:secret@h", "db:// or database://"),
            ("db://", "no host"),
            ("db://u:secret@:5", "no host"),
            ("db://u:secret@h:x", "port"),
            ("db://u:secret@h:70000", "port"),
            ("db://u:secret@h/app/", "more than a database"),
            ("db://u:secret%4@h", "percent escape"),
            ("db://u:secret%00@h", "zero byte"),
            ("db://u:secret@h/%zz", "percent escape"),
            ("db://u:secret@h?sslmode=prefer", "sslmode"),
            ("db://u:secret@h?sslrootcert=a", "sslmode"),
        ] {
            let Err(error) = parse(url) else { panic!("{url}") };
            assert!(error.contains(why) && !error.contains("secret"), "{error}");
        }
    }
}
