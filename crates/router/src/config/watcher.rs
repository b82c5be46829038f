//! Watches the configuration's source while the router runs.

use super::etcd::EtcdWatcher;
use super::file::FileWatcher;
use super::source::Source;
use lookaside_client::Network;
use std::sync::Arc;

pub(crate) enum ConfigWatcher {
    File(FileWatcher),
    Etcd(Box<EtcdWatcher>),
    /// The command line, which never changes.
    Fixed(String),
}

impl ConfigWatcher {
    /// Watches `source`; etcd is reached through `network`. `seen` is the text that was read before, if any.
    pub(crate) fn open(source: &Source, network: Arc<dyn Network>, seen: Option<&str>) -> ConfigWatcher {
        match source {
            Source::File(path) => ConfigWatcher::File(FileWatcher::new(path, seen.unwrap_or_default().to_owned())),
            Source::Etcd(location) => {
                let watcher = EtcdWatcher::new(location.clone(), network, seen, fastrand::u64(..));
                ConfigWatcher::Etcd(Box::new(watcher))
            }
            Source::Text(text) => ConfigWatcher::Fixed(text.clone()),
        }
    }

    /// The next text that differs from the last one, or why it cannot be read. Cancel safe.
    pub(crate) async fn next_change(&mut self) -> Result<String, String> {
        match self {
            ConfigWatcher::File(file) => file.next_change().await,
            ConfigWatcher::Etcd(etcd) => etcd.next_change().await,
            ConfigWatcher::Fixed(_) => std::future::pending().await,
        }
    }

    /// The text as it is now, changed or not.
    pub(crate) async fn read(&mut self) -> Result<String, String> {
        match self {
            ConfigWatcher::File(file) => file.read(),
            ConfigWatcher::Etcd(etcd) => etcd.read().await,
            ConfigWatcher::Fixed(text) => Ok(text.clone()),
        }
    }
}
