//! Copies values of former owners to new ones, under leases.

use super::{FormerValue, MovedRead, Shared};
use crate::{Context, split::route_some};
use bytes::Bytes;
use lookaside_protocol::{ErrorReply, LeaseToken, Operation, Reply, Request, StoreMode};
use std::sync::{Arc, atomic::Ordering::Relaxed};

/// What a copy of one key found at the new owner, or did.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum CopyState {
    /// The new owner has a value.
    Filled,
    /// Another client has the lease.
    Hot,
    /// There is none: the former owner has lost it meanwhile, or a server has failed.
    NotCopied,
}

impl Shared {
    /// A background task that copies those of `moved` that none copies.
    pub(super) fn copy_in_background(this: &Arc<Shared>, mut moved: Vec<MovedRead>) {
        moved.retain(|read| !this.is_refused(read));
        let mut copying = this.copying.lock();
        moved.retain(|read| copying.insert(read.request.key.clone()));
        drop(copying);
        if moved.is_empty() {
            return;
        }
        let task = BackgroundCopy { shared: this.clone(), moved };
        this.environment.background.spawn_or_drop(async move {
            task.shared.copy(&task.moved, &Context::default()).await;
        });
    }

    /// Copies values from former owners to new ones.
    pub(super) async fn copy(&self, moved: &[MovedRead], context: &Context) -> Vec<CopyState> {
        let lease_get = |read: &MovedRead| Request { key: read.request.key.clone(), operation: Operation::LeaseGet };
        let leases = route_some(&*self.pool, moved.iter().map(lease_get).enumerate().collect(), context).await;
        let mut states = vec![CopyState::NotCopied; moved.len()];
        let mut leased = Vec::new();
        for (at, lease) in leases {
            match lease {
                Ok(Reply::Lease { token, .. }) if token.is_held() => leased.push((at, token)),
                Ok(Reply::Lease { .. }) => states[at] = CopyState::Hot,
                Ok(Reply::Value { .. }) => states[at] = CopyState::Filled,
                Ok(Reply::Error(ErrorReply::Unknown)) => self.record_refusal(&moved[at]),
                // Another key, or another time, may have more luck.
                _ => {}
            }
        }
        if leased.is_empty() {
            return states;
        }
        // The value must be read again, after the lease was issued.
        let again: Vec<MovedRead> = leased.iter().map(|(at, _)| moved[*at].clone()).collect();
        let values = self.read_former(&again, context).await;
        let (mut stores, mut returned) = (Vec::new(), Vec::new());
        for ((at, token), value) in leased.into_iter().zip(values) {
            let key = moved[at].request.key.clone();
            match value {
                Ok(Some(value)) => {
                    states[at] = CopyState::Filled;
                    stores.push((token, key, value));
                }
                _ => returned.push((token, key)),
            }
        }
        self.store(stores, context).await;
        self.return_leases(returned, context).await;
        states
    }

    /// Stores values at new owners, as far as their leases are valid.
    pub(super) async fn store(&self, leased: Vec<(LeaseToken, Bytes, FormerValue)>, context: &Context) {
        let lease_set = |(token, key, value): (LeaseToken, Bytes, FormerValue)| {
            let FormerValue { flags, exptime, value } = value;
            let operation = match self.unleased_after {
                None => Operation::LeaseSet { token, flags, exptime, value },
                Some(_) => Operation::Store { mode: StoreMode::Set, flags, exptime, value, cas: false },
            };
            Request { key, operation }
        };
        if let Some(delay) = self.unleased_after {
            self.environment.clock.sleep(delay).await;
        }
        let stores = leased.into_iter().map(lease_set).enumerate().collect();
        let outcomes = route_some(&*self.pool, stores, context).await;
        let stored = outcomes.iter().filter(|(_, outcome)| matches!(outcome, Ok(Reply::Stored))).count();
        self.counters.fills.add(stored as u64);
    }

    /// Makes way for clients' leases. The value has expired when it is stored, and is refused if the key was written
    /// meanwhile; a delete would remove what was written.
    async fn return_leases(&self, leased: Vec<(LeaseToken, Bytes)>, context: &Context) {
        let lease_set = |(token, key)| {
            let operation = Operation::LeaseSet { token, flags: 0, exptime: EXPIRED, value: Bytes::new() };
            Request { key, operation }
        };
        route_some(&*self.pool, leased.into_iter().map(lease_set).enumerate().collect(), context).await;
    }

    /// Whether the new owner has no leases.
    pub(super) fn is_refused(&self, read: &MovedRead) -> bool {
        self.is_refused[read.owner].load(Relaxed)
    }

    fn record_refusal(&self, read: &MovedRead) {
        if !self.is_refused[read.owner].swap(true, Relaxed) {
            let server = &self.servers[read.owner];
            self.environment.log.line(&format!(
                "{server} does not know lease-get, so keys that have moved to it are read from their former owners, and \
                 not copied; remove \"resize_warm_up_s\" from pools whose servers have no leases"
            ));
        }
    }
}

/// The exptime of a value that has expired.
const EXPIRED: i64 = -1;

/// Keys that are copied in the background.
struct BackgroundCopy {
    shared: Arc<Shared>,
    moved: Vec<MovedRead>,
}

impl Drop for BackgroundCopy {
    fn drop(&mut self) {
        let mut copying = self.shared.copying.lock();
        for read in &self.moved {
            copying.remove(&read.request.key);
        }
    }
}
