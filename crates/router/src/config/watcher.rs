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
    Fixed {
        text: String,
        is_requested: bool,
    },
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
            Source::Text(text) => ConfigWatcher::Fixed { text: text.clone(), is_requested: false },
        }
    }

    /// The next text that differs from the last one or was requested, or why it cannot be read. Cancel safe.
    pub(crate) async fn next_change(&mut self) -> Result<String, String> {
        match self {
            ConfigWatcher::File(file) => file.next_change().await,
            ConfigWatcher::Etcd(etcd) => etcd.next_change().await,
            ConfigWatcher::Fixed { text, is_requested } => match std::mem::take(is_requested) {
                true => Ok(text.clone()),
                false => std::future::pending().await,
            },
        }
    }

    /// Makes [`ConfigWatcher::next_change`] read the source at once and return its text, changed or not. While etcd is
    /// away it waits for etcd, as for a change.
    pub(crate) fn request_read(&mut self) {
        match self {
            ConfigWatcher::File(file) => file.request_read(),
            ConfigWatcher::Etcd(etcd) => etcd.request_read(),
            ConfigWatcher::Fixed { is_requested, .. } => *is_requested = true,
        }
    }
}
