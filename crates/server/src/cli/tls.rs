//! memcached's options for TLS, out of `-o`.

use std::path::PathBuf;

/// What clients are asked for: `ssl_verify_mode`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum ClientCertificate {
    /// 0: not asked for.
    #[default]
    Ignored,
    /// 1: asked for, and if one is shown it must be good.
    Requested,
    /// 2 and 3: nobody comes in without.
    Required,
}

/// How the private key is written down: `ssl_keyformat`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum KeyFormat {
    /// 1: between lines of dashes.
    #[default]
    Pem,
    /// 2: bare.
    Der,
}

/// The options of `-o` that begin with `ssl_`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct TlsOptions {
    pub(crate) chain_path: PathBuf,
    /// The file of the chain if it is not given.
    pub(crate) key_path: Option<PathBuf>,
    pub(crate) key_format: KeyFormat,
    pub(crate) client_certificate: ClientCertificate,
    /// As given, for `stats settings`.
    pub(crate) verify_mode: u8,
    pub(crate) authorities_path: Option<PathBuf>,
    /// OpenSSL's names of cipher suites of TLS 1.2; empty for all.
    pub(crate) ciphers: Vec<String>,
    pub(crate) session_cache: bool,
    pub(crate) only_tls13: bool,
}

impl TlsOptions {
    /// Whether an option of `-o` is one of these.
    pub(crate) fn is_tls_option(option: &str) -> bool {
        option.trim_start_matches("no_").starts_with("ssl_")
    }

    /// Reads them; beside them come lines for the log about those that mean nothing here. An error says what is wrong.
    pub(crate) fn parse(extended: &[String]) -> Result<(TlsOptions, Vec<String>), String> {
        let (mut options, mut ignored) = (TlsOptions::default(), Vec::new());
        for option in extended.iter().filter(|option| TlsOptions::is_tls_option(option)) {
            if let Some(ignored_because) = options.parse_option(option).map_err(|why| format!("-o {option}: {why}"))? {
                ignored.push(format!("-o {option} changes nothing here: {ignored_because}"));
            }
        }
        if options.chain_path.as_os_str().is_empty() {
            return Err(
                "-Z needs a certificate: -o ssl_chain_cert=FILE, and ssl_key=FILE if the key is not in it".into()
            );
        }
        if options.client_certificate != ClientCertificate::Ignored && options.authorities_path.is_none() {
            return Err("-o ssl_verify_mode: clients' certificates are verified against -o ssl_ca_cert=FILE".into());
        }
        Ok((options, ignored))
    }

    /// Takes one option; `Some` says why it means nothing.
    fn parse_option(&mut self, option: &str) -> Result<Option<&'static str>, String> {
        let (name, value) = option.split_once('=').unwrap_or((option, ""));
        let file = || if value.is_empty() { Err("a file is missing") } else { Ok(PathBuf::from(value)) };
        match name {
            "ssl_chain_cert" => self.chain_path = file()?,
            "ssl_key" => self.key_path = Some(file()?),
            "ssl_ca_cert" => self.authorities_path = Some(file()?),
            "ssl_session_cache" => self.session_cache = true,
            "ssl_verify_mode" => {
                self.verify_mode = value.parse().ok().filter(|mode| *mode <= 3).ok_or("a number from 0 to 3")?;
                self.client_certificate = match self.verify_mode {
                    0 => ClientCertificate::Ignored,
                    1 => ClientCertificate::Requested,
                    _ => ClientCertificate::Required,
                };
            }
            "ssl_keyformat" => {
                self.key_format = match value {
                    "1" | "PEM" => KeyFormat::Pem,
                    "2" | "DER" => KeyFormat::Der,
                    _ => return Err("PEM or DER; engines are not served".into()),
                }
            }
            "ssl_ciphers" => self.ciphers = value.split(':').map(str::to_string).collect(),
            "ssl_min_version" => match value {
                "0" | "1" | "tlsv1.0" | "tlsv1.1" => return Ok(Some("the oldest version served is TLS 1.2")),
                "2" | "tlsv1.2" => {}
                "3" | "tlsv1.3" => self.only_tls13 = true,
                _ => return Err("a number from 0 to 3".into()),
            },
            "ssl_wbuf_size" => return Ok(Some("a connection's output is bounded by what rustls holds")),
            "ssl_kernel_tls" => return Ok(Some("records are encrypted in the process")),
            "no_ssl_session_cache" | "no_ssl_kernel_tls" => {}
            _ => return Err("no such option".into()),
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(options: &[&str]) -> Result<(TlsOptions, Vec<String>), String> {
        TlsOptions::parse(&options.iter().map(|option| option.to_string()).collect::<Vec<_>>())
    }

    #[test]
    fn memcacheds_options() {
        let given = ["ssl_chain_cert=/c", "modern", "ssl_verify_mode=2", "ssl_ca_cert=/a", "ssl_min_version=3"];
        let (options, ignored) = parse(&given).expect("memcached takes these");
        assert_eq!(options.client_certificate, ClientCertificate::Required);
        assert!(options.only_tls13 && !options.session_cache && ignored.is_empty());
        let (_, ignored) = parse(&["ssl_chain_cert=/c", "ssl_wbuf_size=16", "ssl_min_version=1"]).expect("accepted");
        assert_eq!(ignored.len(), 2);
    }

    #[test]
    fn what_cannot_be_kept_is_refused() {
        for bad in [
            &["ssl_key=/k"][..],
            &["ssl_chain_cert"],
            &["ssl_chain_cert=/c", "ssl_verify_mode=4"],
            &["ssl_chain_cert=/c", "ssl_verify_mode=1"],
            &["ssl_chain_cert=/c", "ssl_keyformat=ENGINE"],
            &["ssl_chain_cert=/c", "ssl_min_version=9"],
            &["ssl_chain_cert=/c", "ssl_typo=1"],
        ] {
            assert!(parse(bad).is_err(), "{bad:?}");
        }
    }
}
