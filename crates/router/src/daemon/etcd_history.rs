//! The history that the routers of a cluster share, in etcd:
//!
//! ```text
//!   HISTORY/REGION/CLUSTER        the record, where -R is /REGION/CLUSTER/
//!   HISTORY/REGION/CLUSTER/ID     the text of a configuration that it names
//! ```
//!
//! `HISTORY` is the key of `--config-history`, or `KEY.history` if the configuration is in etcd at `KEY`.
//! Routers of several clusters may read one configuration, each with its own `-R`; their histories differ.

use crate::resize::history::{HistoryChange, HistoryError, HistoryStore, StoredHistory};
use lookaside_client::Network;
use lookaside_client::config::{ConfigId, EtcdError, EtcdLocation, EtcdRecord, EtcdValue};
use lookaside_routing::{BoxFuture, RoutingPrefix};
use std::sync::Arc;

/// The record of one cluster.
pub(super) struct EtcdHistory(EtcdRecord);

impl EtcdHistory {
    /// That of the cluster `prefix`, below `location`.
    pub(super) fn new(location: EtcdLocation, prefix: &RoutingPrefix, network: Arc<dyn Network>) -> EtcdHistory {
        let key = record_key(&location.key, prefix);
        EtcdHistory(EtcdRecord::new(EtcdLocation { key, ..location }, network))
    }
}

fn record_key(history: &str, prefix: &RoutingPrefix) -> String {
    format!("{history}{}", prefix.to_string().trim_end_matches('/'))
}

impl HistoryStore for EtcdHistory {
    fn read(&self) -> BoxFuture<'_, Result<StoredHistory, HistoryError>> {
        Box::pin(async { self.stored(self.0.read().await) })
    }

    fn read_text(&self, id: ConfigId) -> BoxFuture<'_, Result<Option<String>, HistoryError>> {
        Box::pin(async move { self.0.read_below(&id.to_string()).await.map_err(|error| self.history_error(error)) })
    }

    fn replace(&self, change: HistoryChange) -> BoxFuture<'_, Result<StoredHistory, HistoryError>> {
        Box::pin(async move {
            let HistoryChange { expected, record, texts, removed } = change;
            let texts: Vec<_> = texts.into_iter().map(|(id, text)| (id.to_string(), text)).collect();
            let removed: Vec<_> = removed.iter().map(ConfigId::to_string).collect();
            self.stored(self.0.replace(expected, &record, &texts, &removed).await)
        })
    }

    fn location(&self) -> String {
        self.0.location().to_string()
    }

    fn key(&self) -> String {
        self.0.location().key.clone()
    }
}

impl EtcdHistory {
    fn stored(&self, value: Result<EtcdValue, EtcdError>) -> Result<StoredHistory, HistoryError> {
        let EtcdValue { text, revision } = value.map_err(|error| self.history_error(error))?;
        Ok(StoredHistory { record: text, revision })
    }

    /// The error names the key.
    fn history_error(&self, error: EtcdError) -> HistoryError {
        let location = self.0.location();
        match error {
            EtcdError::Unavailable(why) => HistoryError::Unavailable(format!("{location}: {why}")),
            EtcdError::Refused(why) => HistoryError::Refused(format!("{location}: {why}")),
            EtcdError::Foreign(why) => HistoryError::Unusable(format!("{location}: {why}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_names_the_cluster() {
        for (prefix, key) in [("/./.", "one.history/./."), ("/region/one/", "one.history/region/one")] {
            assert_eq!(record_key("one.history", &RoutingPrefix::parse(prefix).expect("a prefix")), key);
        }
    }
}
