//! Watches the configuration's source while a process runs.

use super::etcd::EtcdWatcher;
use super::file::FileWatcher;
use super::source::Source;
use crate::Network;
use std::sync::Arc;
use tokio::sync::mpsc;

/// Watches the source of a configuration.
pub struct ConfigWatcher(Watched);

enum Watched {
    File(FileWatcher),
    Etcd(Box<EtcdWatcher>),
    /// The command line, which never changes.
    Fixed {
        text: String,
        is_requested: bool,
    },
    /// The texts that another part of the process sends.
    Channel(mpsc::UnboundedReceiver<String>),
}

impl ConfigWatcher {
    /// Watches `source`; etcd is reached through `network`. `seen` is the text that was read before, if any.
    pub fn open(source: &Source, network: Arc<dyn Network>, seen: Option<&str>) -> ConfigWatcher {
        ConfigWatcher(match source {
            Source::File(path) => Watched::File(FileWatcher::new(path, seen.unwrap_or_default().to_owned())),
            Source::Etcd(location) => {
                let watcher = EtcdWatcher::new(location.clone(), network, seen, fastrand::u64(..));
                Watched::Etcd(Box::new(watcher))
            }
            Source::Text(text) => Watched::Fixed { text: text.clone(), is_requested: false },
        })
    }

    /// Sees no change.
    pub fn never() -> ConfigWatcher {
        ConfigWatcher(Watched::Channel(mpsc::unbounded_channel().1))
    }

    /// Returns each of `texts` as a change: for a simulation, which has no files.
    pub fn of_texts(texts: mpsc::UnboundedReceiver<String>) -> ConfigWatcher {
        ConfigWatcher(Watched::Channel(texts))
    }

    /// The next text that differs from the last one or was requested, or why it cannot be read. Cancel safe.
    pub async fn next_change(&mut self) -> Result<String, String> {
        match &mut self.0 {
            Watched::File(file) => file.next_change().await,
            Watched::Etcd(etcd) => etcd.next_change().await,
            Watched::Fixed { text, is_requested } => match std::mem::take(is_requested) {
                true => Ok(text.clone()),
                false => std::future::pending().await,
            },
            Watched::Channel(texts) => match texts.recv().await {
                Some(text) => Ok(text),
                None => std::future::pending().await,
            },
        }
    }

    /// Makes [`ConfigWatcher::next_change`] read the source at once and return its text, changed or not. While etcd is
    /// away it waits for etcd, as for a change.
    pub fn request_read(&mut self) {
        match &mut self.0 {
            Watched::File(file) => file.request_read(),
            Watched::Etcd(etcd) => etcd.request_read(),
            Watched::Fixed { is_requested, .. } => *is_requested = true,
            Watched::Channel(_) => {}
        }
    }
}
