//! The state that the writer, the replayers and the destinations share.

use super::peers::Peers;
use super::segments::TotalBytes;
use super::server_log::{BacklogState, ServerLog};
use super::settings::SpoolSettings;
use super::stats::SpoolCounters;
use super::storage::Disk;
use lookaside_client::TkoTrackers;
use lookaside_routing::Address;
use lookaside_sync::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::sync::mpsc;

pub(super) struct SpoolShared {
    pub(super) settings: SpoolSettings,
    pub(super) disk: Arc<dyn Disk>,
    pub(super) tko_trackers: Arc<TkoTrackers>,
    pub(super) servers: Mutex<BTreeMap<Address, Arc<ServerLog>>>,
    pub(super) total: Arc<TotalBytes>,
    pub(super) counters: Arc<SpoolCounters>,
    pub(super) peers: Peers,
    /// Receives servers that need a replayer.
    pub(super) replay_starts: mpsc::UnboundedSender<Arc<ServerLog>>,
}

impl SpoolShared {
    pub(super) fn backlog_state(&self, address: &Address) -> BacklogState {
        let server = self.servers.lock().get(address).cloned();
        server.map_or(BacklogState::Empty, |server| server.backlog_state())
    }
}
