//! Fences that other routers have placed on one server because they have a backlog for it ([`super::peers`]). Each
//! stays until its router releases it. If the router stays silent for too long, the server is flushed and the fence
//! expires.

use super::ids::RouterId;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::Instant;

/// Routers whose last release is remembered, for each server.
const RELEASED_MAX: usize = 1_000;

/// The peer fences of one server.
#[derive(Debug, Default)]
pub(super) struct PeerFences {
    fences: BTreeMap<RouterId, PeerFence>,
    /// The sequence number of each router's last release.
    released: BTreeMap<RouterId, u64>,
}

#[derive(Clone, Copy, Debug)]
struct PeerFence {
    /// The router's message that set it. An older message that arrives later has no effect.
    sequence: u64,
    until: Instant,
    file: FenceFile,
}

/// What the file of a fence says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct FenceFile {
    /// For how long the fence lasts after a restart; 0 if the file does not say it.
    pub(super) duration: Duration,
    /// Its length.
    pub(super) bytes: u64,
}

impl PeerFences {
    /// Sets or renews the fence of `router` until `until`, unless a newer message has done so. `file` is its file now.
    pub(super) fn insert(&mut self, router: RouterId, sequence: u64, until: Instant, file: FenceFile) {
        let fence = self.fences.entry(router).or_insert(PeerFence { sequence, until, file });
        fence.file = file;
        if fence.sequence <= sequence {
            (fence.sequence, fence.until) = (sequence, until);
        }
    }

    /// The file of the fence of `router`; `None` if there is no fence.
    pub(super) fn file(&self, router: RouterId) -> Option<FenceFile> {
        self.fences.get(&router).map(|fence| fence.file)
    }

    /// Whether `router` has released its fence with a message newer than `sequence`.
    pub(super) fn is_outdated(&self, router: RouterId, sequence: u64) -> bool {
        self.released.get(&router).is_some_and(|released| sequence < *released)
    }

    pub(super) fn contains(&self, router: RouterId) -> bool {
        self.fences.contains_key(&router)
    }

    pub(super) fn len(&self) -> usize {
        self.fences.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.fences.is_empty()
    }

    /// Removes the fence of `router`. False if a newer message has set it.
    pub(super) fn release(&mut self, router: RouterId, sequence: u64) -> bool {
        let is_newest = self.fences.get(&router).is_some_and(|fence| fence.sequence < sequence);
        if is_newest {
            self.fences.remove(&router);
            if self.released.len() >= RELEASED_MAX {
                // A fence message delayed past this point sets a fence that expires: at worst the server is flushed.
                self.released.clear();
            }
            self.released.insert(router, sequence);
        }
        is_newest
    }

    /// Removes the fence of `router` if it was not renewed in time. False if it was.
    pub(super) fn expire(&mut self, router: RouterId, now: Instant) -> bool {
        let is_overdue = self.fences.get(&router).is_some_and(|fence| fence.until <= now);
        if is_overdue {
            self.fences.remove(&router);
        }
        is_overdue
    }

    /// Routers that did not renew their fence in time.
    pub(super) fn overdue(&self, now: Instant) -> Vec<RouterId> {
        self.fences.iter().filter(|(_, fence)| fence.until <= now).map(|(router, _)| *router).collect()
    }
}
