//! Parses memcached's options for TLS, from `-o`.

use crate::net::tls::options::{ClientCertificate, HandshakeTimeout, KeyFormat, TlsOptions};
use std::path::PathBuf;

pub(crate) fn is_tls_option(option: &str) -> bool {
    option.trim_start_matches("no_").starts_with("ssl_")
}

/// Parses the TLS options among those of `-o`. The second result is a log line for each option without effect.
pub(crate) fn parse_tls_options(extended: &[String]) -> Result<(TlsOptions, Vec<String>), String> {
    let (mut options, mut ignored) = (TlsOptions::default(), Vec::new());
    for option in extended.iter().filter(|option| is_tls_option(option)) {
        if let Some(why) = parse_option(&mut options, option).map_err(|why| format!("-o {option}: {why}"))? {
            ignored.push(format!("-o {option} has no effect: {why}"));
        }
    }
    if options.chain_path.as_os_str().is_empty() {
        return Err("-Z needs a certificate: -o ssl_chain_cert=FILE, and ssl_key=FILE if the key is not in it".into());
    }
    if options.client_certificate != ClientCertificate::Ignored && options.authorities_path.is_none() {
        return Err("-o ssl_verify_mode: clients' certificates are verified against -o ssl_ca_cert=FILE".into());
    }
    Ok((options, ignored))
}

/// Parses one option; `Some` is the reason why it has no effect.
fn parse_option(options: &mut TlsOptions, option: &str) -> Result<Option<&'static str>, String> {
    let (name, value) = option.split_once('=').unwrap_or((option, ""));
    let file = || if value.is_empty() { Err("a file is missing") } else { Ok(PathBuf::from(value)) };
    match name {
        "ssl_chain_cert" => options.chain_path = file()?,
        "ssl_key" => options.key_path = Some(file()?),
        "ssl_ca_cert" => options.authorities_path = Some(file()?),
        "ssl_session_cache" => options.session_cache = true,
        "ssl_verify_mode" => {
            options.verify_mode = value.parse().ok().filter(|mode| *mode <= 3).ok_or("a number from 0 to 3")?;
            options.client_certificate = match options.verify_mode {
                0 => ClientCertificate::Ignored,
                1 => ClientCertificate::Requested,
                _ => ClientCertificate::Required,
            };
        }
        "ssl_keyformat" => {
            options.key_format = match value {
                "1" | "PEM" => KeyFormat::Pem,
                "2" | "DER" => KeyFormat::Der,
                _ => return Err("PEM or DER; engines are not supported".into()),
            }
        }
        "ssl_ciphers" => options.ciphers = value.split(':').map(str::to_string).collect(),
        "ssl_min_version" => match value {
            "0" | "1" | "tlsv1.0" | "tlsv1.1" => return Ok(Some("the oldest supported version is TLS 1.2")),
            "2" | "tlsv1.2" => {}
            "3" | "tlsv1.3" => options.only_tls13 = true,
            _ => return Err("a number from 0 to 3".into()),
        },
        "ssl_handshake_timeout" => {
            let seconds = value.parse().ok().filter(|seconds| (1..=3_600).contains(seconds));
            options.handshake_timeout = HandshakeTimeout(seconds.ok_or("a number of seconds from 1 to 3600")?);
        }
        "ssl_wbuf_size" => {
            options.write_buffer_kilobytes = Some(value.parse().map_err(|_| "a number of kilobytes")?);
            return Ok(Some("rustls bounds a connection's output buffer"));
        }
        "ssl_kernel_tls" => return Ok(Some("records are encrypted in the process")),
        "no_ssl_session_cache" | "no_ssl_kernel_tls" => {}
        _ => return Err("no such option".into()),
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(options: &[&str]) -> Result<(TlsOptions, Vec<String>), String> {
        parse_tls_options(&options.iter().map(|option| option.to_string()).collect::<Vec<_>>())
    }

    #[test]
    fn options_of_memcached_are_accepted() {
        let given = ["ssl_chain_cert=/c", "modern", "ssl_verify_mode=2", "ssl_ca_cert=/a", "ssl_min_version=3"];
        let (options, ignored) = parse(&given).expect("memcached takes these");
        assert_eq!(options.client_certificate, ClientCertificate::Required);
        assert!(options.only_tls13 && !options.session_cache && ignored.is_empty());
        let (_, ignored) = parse(&["ssl_chain_cert=/c", "ssl_wbuf_size=16", "ssl_min_version=1"]).expect("accepted");
        assert_eq!(ignored.len(), 2);
    }

    #[test]
    fn options_that_cannot_take_effect_are_refused() {
        for bad in [
            &["ssl_key=/k"][..],
            &["ssl_chain_cert"],
            &["ssl_chain_cert=/c", "ssl_verify_mode=4"],
            &["ssl_chain_cert=/c", "ssl_verify_mode=1"],
            &["ssl_chain_cert=/c", "ssl_keyformat=ENGINE"],
            &["ssl_chain_cert=/c", "ssl_min_version=9"],
            &["ssl_chain_cert=/c", "ssl_handshake_timeout=0"],
            &["ssl_chain_cert=/c", "ssl_typo=1"],
        ] {
            assert!(parse(bad).is_err(), "{bad:?}");
        }
    }
}
