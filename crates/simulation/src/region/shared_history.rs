//! The history that the routers of a cluster share, as they do in etcd: it replies after a moment, sometimes not at
//! all, and outlives them.

use lookaside_client::config::ConfigId;
use lookaside_router::{HistoryChange, HistoryError, HistoryStore, StoredHistory};
use lookaside_routing::BoxFuture;
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

/// One request in this many is not answered, before or after it has had its effect.
const FAILURES_ONE_IN: u8 = 16;
const REPLY_MS_MAX: u64 = 20;
const TIMEOUT: Duration = Duration::from_secs(1);

/// The history of one cluster. Clones share it.
#[derive(Clone)]
pub(super) struct SharedHistory(Arc<Mutex<Contents>>);

struct Contents {
    stored: StoredHistory,
    texts: BTreeMap<ConfigId, Arc<str>>,
    rng: fastrand::Rng,
}

impl SharedHistory {
    pub(super) fn new(seed: u64) -> SharedHistory {
        let (stored, texts, rng) = (StoredHistory::default(), BTreeMap::new(), fastrand::Rng::with_seed(seed));
        SharedHistory(Arc::new(Mutex::new(Contents { stored, texts, rng })))
    }

    fn with<T>(&self, action: impl FnOnce(&mut Contents) -> T) -> T {
        action(&mut self.0.lock().expect("one thread runs a simulation"))
    }

    /// A request or a reply on its way.
    async fn travel(&self) -> Result<(), HistoryError> {
        let (delay, is_lost) = self.with(|contents| {
            (Duration::from_millis(contents.rng.u64(0..REPLY_MS_MAX)), contents.rng.u8(0..FAILURES_ONE_IN) == 0)
        });
        tokio::time::sleep(if is_lost { TIMEOUT } else { delay }).await;
        match is_lost {
            true => Err(HistoryError::Unavailable("no reply".to_owned())),
            false => Ok(()),
        }
    }
}

impl Contents {
    fn replace(&mut self, change: HistoryChange) -> StoredHistory {
        if change.expected == self.stored.revision {
            self.stored = StoredHistory { record: Some(change.record), revision: self.stored.revision + 1 };
            self.texts.extend(change.texts);
            change.removed.iter().for_each(|id| _ = self.texts.remove(id));
        }
        self.stored.clone()
    }
}

impl HistoryStore for SharedHistory {
    fn read(&self) -> BoxFuture<'_, Result<StoredHistory, HistoryError>> {
        Box::pin(async {
            self.travel().await?;
            Ok(self.with(|contents| contents.stored.clone()))
        })
    }

    fn read_text(&self, id: ConfigId) -> BoxFuture<'_, Result<Option<String>, HistoryError>> {
        Box::pin(async move {
            self.travel().await?;
            Ok(self.with(|contents| contents.texts.get(&id).map(|text| text.to_string())))
        })
    }

    fn replace(&self, change: HistoryChange) -> BoxFuture<'_, Result<StoredHistory, HistoryError>> {
        Box::pin(async move {
            self.travel().await?;
            let stored = self.with(|contents| contents.replace(change));
            self.travel().await?;
            Ok(stored)
        })
    }

    fn location(&self) -> String {
        "the shared history".to_owned()
    }

    fn key(&self) -> String {
        "history".to_owned()
    }
}
