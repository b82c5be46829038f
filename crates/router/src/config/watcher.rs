//! Where configurations come from while the router runs: a file's watch, etcd's, or nowhere.

use crate::config::etcd::EtcdWatch;
use crate::config::file::FileWatch;
use crate::config::router_config::Source;
use lookaside_client::Network;
use std::sync::Arc;

/// What is watched.
pub(crate) enum Feed {
    /// A file.
    File(FileWatch),
    /// A key in etcd.
    Etcd(Box<EtcdWatch>),
    /// The command line, which never changes.
    Fixed(String),
}

impl Feed {
    /// Watches `source`, through `network` where it is on another host. Its text is known to be `seen`, if it is.
    pub(crate) fn open(source: &Source, network: Arc<dyn Network>, seen: Option<&str>) -> Feed {
        match source {
            Source::File(path) => Feed::File(FileWatch::new(path, seen.unwrap_or_default().to_owned())),
            Source::Etcd(location) => {
                Feed::Etcd(Box::new(EtcdWatch::new(location.clone(), network, seen, fastrand::u64(..))))
            }
            Source::Text(text) => Feed::Fixed(text.clone()),
        }
    }

    /// The next text that differs from the one before, or why there is none to be read. Nothing is lost where the future is
    /// dropped.
    pub(crate) async fn changed(&mut self) -> Result<String, String> {
        match self {
            Feed::File(file) => file.changed().await,
            Feed::Etcd(etcd) => etcd.changed().await,
            Feed::Fixed(_) => std::future::pending().await,
        }
    }

    /// The text as it is now, changed or not.
    pub(crate) async fn read(&mut self) -> Result<String, String> {
        match self {
            Feed::File(file) => file.read(),
            Feed::Etcd(etcd) => etcd.read().await,
            Feed::Fixed(text) => Ok(text.clone()),
        }
    }
}
