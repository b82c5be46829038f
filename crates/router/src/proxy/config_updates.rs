//! Applies configurations to one thread's proxy, and reports when the batches on earlier ones have ended.

use super::Proxy;
use crate::resize::driver::Applied;
use crate::tree::Tree;
use crate::tree::active_configs::ActiveConfigs;
use lookaside_client::{Network, spawn};
use std::future::ready;
use std::sync::Arc;
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::sleep_until;

/// The configurations that one thread is to apply.
pub struct ConfigUpdates {
    /// The thread.
    index: usize,
    configs: watch::Receiver<Arc<ActiveConfigs>>,
    applied: UnboundedSender<Applied>,
    network: Arc<dyn Network>,
    seed: u64,
    /// The change that the last tree was built from.
    number: u64,
    /// Reports the last change when the batches on earlier trees have ended.
    draining: Option<JoinHandle<()>>,
}

impl ConfigUpdates {
    /// Updates of the thread `index`, which sends to `applied` what it has applied. `seed` determines the jitter of
    /// probes.
    pub fn new(
        index: usize,
        configs: watch::Receiver<Arc<ActiveConfigs>>,
        applied: UnboundedSender<Applied>,
        network: Arc<dyn Network>,
        seed: u64,
    ) -> ConfigUpdates {
        ConfigUpdates { index, configs, applied, network, seed, number: 0, draining: None }
    }

    /// A tree of the newest configurations.
    pub fn build_tree(&mut self, old: Option<&Tree>) -> Tree {
        let active = self.configs.borrow_and_update().clone();
        self.number = active.number;
        Tree::build_active(&active, self.network.clone(), self.seed, old)
    }

    /// Reports the tree that was built last, which serves first. Another process may have given permits for an earlier
    /// configuration.
    pub fn report_first(&mut self, proxy: &Proxy) {
        self.report_after(ready(()), proxy);
    }

    /// Applies each new configuration. Never returns.
    pub async fn apply_all<T>(&mut self, proxy: &Proxy) -> T {
        while self.configs.changed().await.is_ok() {
            self.apply(proxy).await;
        }
        std::future::pending().await
    }

    /// Applies the newest configurations.
    pub async fn apply(&mut self, proxy: &Proxy) {
        let old = proxy.tree();
        let tree = self.build_tree(Some(&old));
        if !tree.secures_server_of(&old) {
            tree.wait_until_ready().await;
        }
        let old_tree_ended = old.ended();
        drop(old);
        let background_tasks = tree.background_tasks().clone();
        proxy.set_tree(tree);
        self.report_after(
            async move {
                old_tree_ended.await;
                // Batches may have left a part of themselves in the background.
                background_tasks.running_ended().await;
            },
            proxy,
        );
    }

    /// Reports the tree that was built last when the earlier ones were reported, `batches_ended` has resolved, and the
    /// permits from before have ended: sessions have given them for the configuration of another tree.
    fn report_after(&mut self, batches_ended: impl Future<Output = ()> + Send + 'static, proxy: &Proxy) {
        let (applied, index, number) = (self.applied.clone(), self.index, self.number);
        let read_permits = proxy.shared().read_permits().clone();
        let earlier = self.draining.take();
        self.draining = Some(spawn(async move {
            if let Some(earlier) = earlier {
                let _ = earlier.await;
            }
            batches_ended.await;
            sleep_until(read_permits.latest_end()).await;
            let _ = applied.send((index, number));
        }));
    }
}
