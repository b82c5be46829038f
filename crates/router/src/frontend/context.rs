//! State that the sessions of one thread share.

use super::buffer_pool::BufferPool;
use super::limits::Settings;
use super::session_lru::UseClock;
use crate::admin::AdminView;
use crate::admin::stats_command::StatsView;
use crate::shared::SharedState;
use crate::stats::by_verb::VerbResults;
use crate::stats::counters::Counters;
use crate::tree::Tree;
use lookaside_sync::RwLock;
use std::sync::Arc;

pub(crate) struct SessionContext {
    pub(crate) settings: Settings,
    pub(crate) shared: Arc<SharedState>,
    pub(crate) counters: Counters,
    pub(crate) results: VerbResults,
    pub(crate) buffers: BufferPool,
    pub(crate) uses: UseClock,
    tree: RwLock<Arc<Tree>>,
}

impl SessionContext {
    pub(crate) fn new(settings: Settings, shared: Arc<SharedState>, tree: Tree) -> SessionContext {
        SessionContext {
            settings,
            shared,
            counters: Counters::default(),
            results: VerbResults::default(),
            buffers: BufferPool::default(),
            uses: UseClock::new(),
            tree: RwLock::new(Arc::new(tree)),
        }
    }

    pub(crate) fn tree(&self) -> Arc<Tree> {
        self.tree.read().clone()
    }

    /// Puts another tree in force. Batches that have begun end on the old one.
    pub(crate) fn set_tree(&self, tree: Tree) {
        let old = std::mem::replace(&mut *self.tree.write(), Arc::new(tree));
        // Destinations may close connections when dropped: not under the lock.
        drop(old);
    }

    /// Flushes every server, if that is allowed. The error is for the client.
    pub(crate) async fn flush_all(&self, delay_s: i64) -> Result<(), String> {
        if !self.settings.flush_enabled {
            return Err("Command disabled".to_owned());
        }
        Box::pin(self.tree().flush_all(delay_s)).await
    }

    pub(crate) fn set_verbosity(&self, level: u32) {
        if let Some(log) = self.shared.log() {
            log.set_verbosity(level);
        }
    }

    pub(crate) fn admin(&self) -> AdminView<'_> {
        let Settings { version, options, flush_enabled, .. } = &self.settings;
        AdminView { shared: &self.shared, tree: self.tree(), version, options, flush_enabled: *flush_enabled }
    }

    pub(crate) fn write_stats(&self, arguments: &[u8], out: &mut Vec<u8>) {
        let Settings { version, connections_max, command_line, .. } = &self.settings;
        let (shared, connections_max) = (&self.shared, *connections_max);
        let stats = StatsView { shared, tree: self.tree(), version, connections_max, command_line };
        stats.write(arguments, out);
    }
}
