//! Batches of deletes, and how many keys one may hold.

use super::Limits;
use bytes::Bytes;

/// Deletes that are sent together. Return it with their results to [`PendingDeletes::complete`].
///
/// [`PendingDeletes::complete`]: super::PendingDeletes::complete
#[derive(Debug)]
pub struct InFlightBatch {
    pub(super) keys: BatchKeys,
    /// The newest commit when the batch was sent: its deletes cover no later one.
    pub(super) newest_commit: u64,
}

/// The keys of a batch, each once.
#[derive(Debug)]
pub(super) enum BatchKeys {
    /// Keys that were not sent for these commits before.
    Fresh(Vec<(Bytes, Vec<u64>)>),
    /// Keys of the retry queue.
    Retry(Vec<Bytes>),
}

impl InFlightBatch {
    /// The keys, each once.
    pub fn keys(&self) -> Vec<Bytes> {
        match &self.keys {
            BatchKeys::Fresh(pending) => pending.iter().map(|(key, _)| key.clone()).collect(),
            BatchKeys::Retry(keys) => keys.clone(),
        }
    }

    /// The key at `index` of [`InFlightBatch::keys`].
    pub fn key(&self, index: usize) -> &Bytes {
        match &self.keys {
            BatchKeys::Fresh(pending) => &pending[index].0,
            BatchKeys::Retry(keys) => &keys[index],
        }
    }

    /// Whether these keys come from the retry queue.
    pub fn is_retry(&self) -> bool {
        matches!(self.keys, BatchKeys::Retry(_))
    }
}

/// The capacity that is left in a batch.
pub(super) struct BatchBudget {
    is_empty: bool,
    keys: usize,
    bytes: usize,
}

impl BatchBudget {
    pub fn new(limits: &Limits) -> BatchBudget {
        BatchBudget { is_empty: true, keys: limits.batch_keys_max, bytes: limits.batch_bytes_max }
    }

    /// Reserves capacity for `key`; false if the batch is full. The first key always fits.
    pub fn reserve(&mut self, key: &Bytes) -> bool {
        let fits = self.is_empty || (self.keys > 0 && key.len() <= self.bytes);
        if fits {
            self.is_empty = false;
            self.keys = self.keys.saturating_sub(1);
            self.bytes = self.bytes.saturating_sub(key.len());
        }
        fits
    }
}
