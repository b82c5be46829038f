//! The spool's state of one server: its backlog ([`super::segments`]), the fences of other routers
//! ([`super::peer_fence`]), and this process's fence, which keeps the server from being read while there is either.
//!
//! Invariant: the fence is raised before a spooled delete is acknowledged, and lowered only while the backlog is empty
//! and no peer fence is set. Both happen under the lock of the state, so no interleaving of writer and replayer leaves
//! an undelivered delete behind a lowered fence.
//!
//! Under the lock no file is touched and nothing is awaited. A method with the name of one of [`Segments`] or
//! [`PeerFences`] calls that one under the lock.

use super::ids::RouterId;
use super::peer_fence::{FenceFile, PeerFences};
use super::record::Deletion;
use super::segments::{AppendTarget, Backlog, RecoveredSegment, ReplayAction, Segments, TotalBytes, file_name};
use super::storage::Disk;
use crate::read_permits::ReadPermits;
use lookaside_client::Fence;
use lookaside_routing::Address;
use lookaside_sync::Mutex;
use std::io;
use std::sync::{Arc, MutexGuard};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep};

/// How often a delete that waits for permits looks whether its server has applied it meanwhile.
const BACKLOG_CHECK_INTERVAL: Duration = Duration::from_millis(10);

#[derive(Debug)]
pub(super) struct ServerLog {
    pub(super) address: Address,
    pub(super) folder: String,
    fence: Fence,
    state: Mutex<State>,
    /// The writer has released a segment.
    append_ended: Notify,
    /// The next replay attempt is to start at once.
    retry_requested: Notify,
}

#[derive(Debug, Default)]
struct State {
    segments: Segments,
    peer_fences: PeerFences,
    /// Whether a task replays the backlog.
    has_replayer: bool,
    /// Trees of routes that name the server ([`super::ConfiguredServer`]).
    trees: usize,
}

/// The state of this router's backlog for a server, for peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BacklogState {
    /// Peers may read the server.
    Empty,
    /// This router replays its backlog.
    Replaying,
    /// There is a backlog that this router does not replay, because no tree of routes names the server. Peers are no
    /// longer asked to fence the server: their fences expire, and those that still use it flush it.
    Abandoned,
}

impl ServerLog {
    pub(super) fn new(address: Address, folder: String, fence: Fence) -> Arc<ServerLog> {
        let (append_ended, retry_requested) = (Notify::new(), Notify::new());
        Arc::new(ServerLog { address, folder, fence, state: Mutex::default(), append_ended, retry_requested })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Whether deletes go to the spool without being sent to the server.
    pub(super) fn is_fenced(&self) -> bool {
        self.fence.is_raised()
    }

    /// Waits until no client reads the server by a permit from before the fence was raised, or there is no backlog left
    /// that it should not read behind.
    pub(super) async fn wait_for_permits(&self, permits: &ReadPermits) {
        while self.backlog_state() != BacklogState::Empty
            && let Some(left) = self.permits_left(permits)
        {
            sleep(left.min(BACKLOG_CHECK_INTERVAL)).await;
        }
    }

    /// How long clients may read the server by a permit from before the fence was raised; `None` if none can.
    pub(super) fn permits_left(&self, permits: &ReadPermits) -> Option<Duration> {
        let now = Instant::now();
        let end = permits.end_of_permits_before(now - self.fence.raised_for());
        (end > now).then(|| end - now)
    }

    pub(super) fn backlog(&self) -> Backlog {
        self.state().segments.backlog()
    }

    pub(super) fn backlog_state(&self) -> BacklogState {
        let state = self.state();
        match (state.segments.is_empty(), state.is_configured()) {
            (true, _) => BacklogState::Empty,
            (false, true) => BacklogState::Replaying,
            (false, false) => BacklogState::Abandoned,
        }
    }

    pub(super) fn is_unconfigured(&self) -> bool {
        !self.state().is_configured()
    }

    /// Whether there is neither a backlog nor a peer fence.
    pub(super) fn is_idle(&self) -> bool {
        self.state().is_idle()
    }

    /// Adds a segment that was found on disk, before any client is served.
    pub(super) fn add_recovered(&self, number: u64, recovered: RecoveredSegment, total: &TotalBytes) {
        let mut state = self.state();
        state.segments.add_recovered(number, recovered, total);
        self.fence.raise();
    }

    pub(super) fn skip_number(&self, number: u64) {
        self.state().segments.skip_number(number);
    }

    /// One more tree names the server. True if a replayer must be started.
    pub(super) fn add_tree(&self) -> bool {
        let mut state = self.state();
        state.trees += 1;
        state.claim_replayer()
    }

    /// A tree that names the server has ended. True if it was the last one: the backlog stays, behind the fence, and
    /// is not replayed.
    pub(super) fn remove_tree(&self) -> bool {
        let mut state = self.state();
        state.trees -= 1;
        let is_last = !state.is_configured();
        if is_last {
            self.request_retry();
        }
        is_last
    }

    pub(super) fn begin_append(
        &self,
        bytes: u64,
        bytes_max: u64,
        total: &TotalBytes,
        total_bytes_max: u64,
    ) -> AppendTarget {
        self.state().segments.begin_append(bytes, bytes_max, total, total_bytes_max)
    }

    pub(super) fn without_repeats<'a>(&self, deletions: impl Iterator<Item = &'a Deletion>) -> Vec<Deletion> {
        self.state().segments.without_repeats(deletions)
    }

    pub(super) fn remember<'a>(&self, number: u64, deletions: impl Iterator<Item = &'a Deletion>) {
        self.state().segments.remember(number, deletions);
    }

    pub(super) fn begin_flush(&self) -> AppendTarget {
        self.state().segments.begin_flush()
    }

    /// Finishes an append ([`Segments::end_append`]) and raises the fence if it succeeded. True if a replayer must be
    /// started.
    pub(super) fn end_append_and_fence(
        &self,
        target: AppendTarget,
        written: Result<(u64, u64), &io::Error>,
        total: &TotalBytes,
        replaced: &mut Vec<u64>,
    ) -> bool {
        let mut state = self.state();
        state.segments.end_append(target, written, total, replaced);
        self.append_ended.notify_one();
        if target == AppendTarget::Covered {
            // The fence is up for the flush that covers it; or lowered, because the server has been flushed since.
            return false;
        }
        if written.is_ok() {
            self.fence.raise();
        }
        state.claim_replayer()
    }

    /// The replayer's next action. `None`: its task ends, and a later append starts a new one. The fence is then down
    /// if the backlog is empty and no peer fence is set.
    pub(super) fn next_replay_or_unfence(&self) -> Option<ReplayAction> {
        let mut state = self.state();
        if state.is_configured() || state.segments.is_extended() {
            let next = state.segments.next_replay();
            if next.is_some() {
                return next;
            }
        }
        state.has_replayer = false;
        self.unfence_if_idle(&state);
        None
    }

    pub(super) fn flush_failed(&self, number: u64) {
        self.state().segments.flush_failed(number);
    }

    pub(super) fn mark_lost(&self, number: u64) {
        self.state().segments.mark_lost(number);
    }

    pub(super) fn mark_replayed(&self, number: u64, total: &TotalBytes) -> bool {
        self.state().segments.mark_replayed(number, total)
    }

    /// As [`PeerFences::insert`], and raises the fence.
    pub(super) fn fence_for_peer(&self, router: RouterId, sequence: u64, until: Instant, file: FenceFile) {
        let mut state = self.state();
        state.peer_fences.insert(router, sequence, until, file);
        self.fence.raise();
    }

    /// As [`PeerFences::file`].
    pub(super) fn peer_fence_file(&self, router: RouterId) -> Option<FenceFile> {
        self.state().peer_fences.file(router)
    }

    pub(super) fn is_outdated(&self, router: RouterId, sequence: u64) -> bool {
        self.state().peer_fences.is_outdated(router, sequence)
    }

    pub(super) fn is_fenced_for(&self, router: RouterId) -> bool {
        self.state().peer_fences.contains(router)
    }

    pub(super) fn peer_fences(&self) -> usize {
        self.state().peer_fences.len()
    }

    /// As [`PeerFences::release`]. Lowers the fence if the server is idle then.
    pub(super) fn release_peer_fence(&self, router: RouterId, sequence: u64) -> bool {
        let mut state = self.state();
        let is_released = state.peer_fences.release(router, sequence);
        if is_released {
            self.unfence_if_idle(&state);
        }
        is_released
    }

    /// As [`PeerFences::expire`]. Lowers the fence if the server is idle then.
    pub(super) fn expire_peer_fence(&self, router: RouterId, now: Instant) -> bool {
        let mut state = self.state();
        let is_expired = state.peer_fences.expire(router, now);
        if is_expired {
            self.unfence_if_idle(&state);
        }
        is_expired
    }

    pub(super) fn overdue_peers(&self, now: Instant) -> Vec<RouterId> {
        self.state().peer_fences.overdue(now)
    }

    /// Takes the fence over from `closed`, the state of the same server in a spool of this process that was closed:
    /// lowers it if neither has a reason for it. True if only `closed` has one, which is no longer on disk: then the
    /// server must be flushed.
    pub(super) fn adopt_fence(&self, closed: &ServerLog) -> bool {
        if !closed.is_fenced() || !self.is_idle() {
            return false;
        }
        let has_reason = !closed.is_idle();
        if !has_reason {
            self.fence.lower();
        }
        has_reason
    }

    fn unfence_if_idle(&self, state: &State) {
        if state.is_idle() {
            self.fence.lower();
        }
    }

    /// Resolves when the writer has released a segment, perhaps before this was called.
    pub(super) async fn wait_for_append_end(&self) {
        self.append_ended.notified().await;
    }

    pub(super) fn request_retry(&self) {
        self.retry_requested.notify_one();
    }

    pub(super) async fn wait_for_retry_request(&self) {
        self.retry_requested.notified().await;
    }

    /// Removes segment files that are of no use. A file that stays does no harm: a restart sends its deletes once more.
    pub(super) fn remove_files(&self, disk: &dyn Disk, numbers: &[u64]) {
        for &number in numbers {
            if let Err(error) = disk.remove(&self.folder, &file_name(number)) {
                tracing::warn!(
                    server = %self.address, %error,
                    "cannot remove a replayed spool file: its deletes are sent again after a restart"
                );
            }
        }
    }
}

impl State {
    fn is_configured(&self) -> bool {
        self.trees > 0
    }

    fn is_idle(&self) -> bool {
        self.segments.is_empty() && self.peer_fences.is_empty()
    }

    /// Whether the caller must start a replayer.
    fn claim_replayer(&mut self) -> bool {
        let starts = self.is_configured() && !self.has_replayer && !self.segments.is_empty();
        self.has_replayer |= starts;
        starts
    }
}

#[cfg(test)]
mod tests;
