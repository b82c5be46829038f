//! Where the configuration comes from.

use super::etcd::{EtcdLocation, EtcdWatcher};
use super::file::read_config_file;
use lookaside_client::{Network, TcpNetwork};
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

/// Where the configuration comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A file, watched while the router runs.
    File(PathBuf),
    /// A key in etcd, watched while the router runs.
    Etcd(EtcdLocation),
    /// The command line.
    Text(String),
}

impl Source {
    /// The text of the configuration as it is now. Blocks, so it must not be called inside a runtime. Fails for etcd
    /// over TLS, for want of certificates.
    pub fn read(&self) -> Result<String, String> {
        match self {
            Source::Etcd(location) if location.is_secured => Err(format!(
                "{location} needs the router's certificates: only a router can read it; use lookaside-router \
                     --config {location} --validate-config with its other options"
            )),
            _ => self.read_through(Arc::new(TcpNetwork)),
        }
    }

    /// As [`Source::read`]; etcd is reached through `network`.
    pub(crate) fn read_through(&self, network: Arc<dyn Network>) -> Result<String, String> {
        match self {
            Source::File(path) => read_config_file(path),
            Source::Etcd(location) => {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
                let runtime = runtime.map_err(|error| format!("cannot create the tokio runtime: {error}"))?;
                runtime.block_on(EtcdWatcher::new(location.clone(), network, None, 0).read())
            }
            Source::Text(text) => Ok(text.clone()),
        }
    }

    /// `why` with the source in front of it, unless it names that already.
    pub fn error_context(&self, why: &str) -> String {
        let source = self.to_string();
        match why.contains(&source) {
            true => why.to_owned(),
            false => format!("{source}: {why}"),
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::File(path) => write!(f, "{}", path.display()),
            Source::Etcd(location) => write!(f, "{location}"),
            Source::Text(_) => write!(f, "configuration on the command line"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn etcd_over_tls_is_not_read_without_certificates() {
        // Nothing listens there: an attempt to connect would fail with another error.
        let location = EtcdLocation::parse("etcds://127.0.0.1:1/k").expect("names etcd").expect("good");
        assert!(Source::Etcd(location).read().is_err_and(|why| why.contains("only a router")));
    }
}
