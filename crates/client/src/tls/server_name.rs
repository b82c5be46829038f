//! The name that a server's certificate must bear.

use lookaside_routing::{Address, TlsPolicy};
use rustls::pki_types::ServerName;

/// The policy's name, or else the address's host.
pub fn server_name(address: &Address, policy: &TlsPolicy) -> Result<ServerName<'static>, String> {
    let host = match &policy.certificate_name {
        Some(identity) => identity,
        None => {
            let host = address.0.rsplit_once(':').map_or(&*address.0, |(host, _)| host);
            host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
        }
    };
    let name = ServerName::try_from(host.to_owned());
    name.map_err(|_| {
        format!("{address}: {host:?} cannot stand in a certificate; name another with \"ssl_service_identity\"")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use lookaside_routing::Security;

    #[test]
    fn name_is_the_host_or_the_policys_identity() {
        let name = |address: &str, identity: Option<&str>| {
            let policy = TlsPolicy { security: Security::Tls, certificate_name: identity.map(Into::into) };
            server_name(&Address(address.into()), &policy).map(|name| name.to_str().into_owned())
        };
        assert_eq!(name("cache-1.example:11211", None).as_deref(), Ok("cache-1.example"));
        assert_eq!(name("10.0.0.7:11211", None).as_deref(), Ok("10.0.0.7"));
        assert_eq!(name("[::1]:11211", None).as_deref(), Ok("::1"));
        assert_eq!(name("10.0.0.7:11211", Some("cache.example")).as_deref(), Ok("cache.example"));
        assert!(name("no/name:1", None).is_err_and(|why| why.contains("ssl_service_identity")));
    }
}
