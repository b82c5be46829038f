//! A history in memory, for tests. It can be away, and refuse changes that are too large, as etcd can.

use super::*;
use lookaside_sync::Mutex;
use std::collections::BTreeMap;

#[derive(Default)]
pub(crate) struct MemoryHistory(Mutex<Contents>);

#[derive(Default)]
struct Contents {
    stored: StoredHistory,
    texts: BTreeMap<ConfigId, String>,
    /// The next requests that fail.
    failures: usize,
    /// The most bytes of the texts of a change; `None` if there is no limit.
    text_bytes_max: Option<usize>,
    /// It refuses each change.
    refuses_all: bool,
    text_reads: usize,
}

impl MemoryHistory {
    pub(crate) fn set(&self, history: &History, texts: &[(ConfigId, &str)]) {
        let mut contents = self.0.lock();
        let revision = contents.stored.revision + 1;
        contents.stored = StoredHistory { record: Some(history.to_json()), revision };
        contents.texts.extend(texts.iter().map(|(id, text)| (*id, (*text).to_owned())));
    }

    pub(crate) fn set_record(&self, record: &str) {
        let mut contents = self.0.lock();
        contents.stored = StoredHistory { record: Some(record.to_owned()), revision: contents.stored.revision + 1 };
    }

    pub(crate) fn refuse_all(&self) {
        self.0.lock().refuses_all = true;
    }

    pub(crate) fn fail(&self, requests: usize) {
        self.0.lock().failures = requests;
    }

    pub(crate) fn refuse_above(&self, text_bytes_max: usize) {
        self.0.lock().text_bytes_max = Some(text_bytes_max);
    }

    pub(crate) fn history(&self) -> History {
        History::parse(self.0.lock().stored.record.as_deref().expect("it was stored")).expect("valid")
    }

    /// How often a text was read.
    pub(crate) fn text_reads(&self) -> usize {
        self.0.lock().text_reads
    }

    fn answer<T>(&self, answer: impl FnOnce(&mut Contents) -> Result<T, HistoryError>) -> Result<T, HistoryError> {
        let mut contents = self.0.lock();
        match contents.failures {
            0 => answer(&mut contents),
            failures => {
                contents.failures = failures.saturating_sub(1);
                Err(HistoryError::Unavailable("scripted".to_owned()))
            }
        }
    }
}

impl Contents {
    fn replace(&mut self, change: HistoryChange) -> Result<StoredHistory, HistoryError> {
        let bytes: usize = change.texts.iter().map(|(_, text)| text.len()).sum();
        if self.refuses_all {
            return Err(HistoryError::Refused("permission denied".to_owned()));
        }
        if self.text_bytes_max.is_some_and(|most| bytes > most) {
            return Err(HistoryError::Refused("request is too large".to_owned()));
        }
        if change.expected == self.stored.revision {
            self.stored = StoredHistory { record: Some(change.record), revision: self.stored.revision + 1 };
            self.texts.extend(change.texts.into_iter().map(|(id, text)| (id, text.to_string())));
            change.removed.iter().for_each(|id| _ = self.texts.remove(id));
        }
        Ok(self.stored.clone())
    }
}

impl HistoryStore for MemoryHistory {
    fn read(&self) -> BoxFuture<'_, Result<StoredHistory, HistoryError>> {
        Box::pin(async { self.answer(|contents| Ok(contents.stored.clone())) })
    }

    fn read_text(&self, id: ConfigId) -> BoxFuture<'_, Result<Option<String>, HistoryError>> {
        Box::pin(async move {
            self.answer(|contents| {
                contents.text_reads += 1;
                Ok(contents.texts.get(&id).cloned())
            })
        })
    }

    fn replace(&self, change: HistoryChange) -> BoxFuture<'_, Result<StoredHistory, HistoryError>> {
        Box::pin(async move { self.answer(|contents| contents.replace(change)) })
    }

    fn location(&self) -> String {
        format!("etcd://a:1/{}", self.key())
    }

    fn key(&self) -> String {
        "k.history/./.".to_owned()
    }
}
