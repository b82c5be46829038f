//! Applies configurations to one thread's proxy, and reports when the batches on earlier ones have ended.

use super::Proxy;
use crate::resize::driver::Applied;
use crate::timeouts::READY_MAX;
use crate::tree::Tree;
use crate::tree::active_configs::ActiveConfigs;
use lookaside_client::{Network, spawn};
use std::future::ready;
use std::pin::pin;
use std::sync::Arc;
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until};

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
        let tree = self.build_ready_tree(&old).await;
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

    /// A tree of the newest configurations that is ready. One that reaches a server by TLS which `old` reaches plain is
    /// not waited for, also if it comes while another one is.
    async fn build_ready_tree(&mut self, old: &Tree) -> Tree {
        let waiting_ends = sleep_until(Instant::now() + READY_MAX);
        let mut waiting_ends = pin!(waiting_ends);
        loop {
            let tree = self.build_tree(Some(old));
            if tree.secures_server_of(old) {
                return tree;
            }
            tokio::select! {
                biased;
                () = tree.wait_until_ready() => return tree,
                () = &mut waiting_ends => return tree,
                Ok(()) = self.configs.changed() => {}
            }
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::router_config::RouterConfig;
    use crate::frontend::limits::Settings;
    use crate::shared::{Identity, SharedState};
    use lookaside_client::{DestinationOptions, Listener, Stream};
    use lookaside_routing::{Address, BoxFuture, Defaults};
    use std::future::pending;
    use std::io;
    use std::time::Duration;
    use tokio::sync::mpsc;

    /// Its servers hang.
    struct HungNetwork;

    impl Network for HungNetwork {
        fn connect<'a>(&'a self, _: &'a Address) -> BoxFuture<'a, io::Result<Box<dyn Stream>>> {
            Box::pin(pending())
        }

        fn listen<'a>(&'a self, _: &'a Address) -> BoxFuture<'a, io::Result<Box<dyn Listener>>> {
            Box::pin(pending())
        }
    }

    fn active(number: u64, servers: &str) -> Arc<ActiveConfigs> {
        let pool = format!(r#"{{ "servers": [{servers}], "connect_timeout": 60000 }}"#);
        let text = format!(r#"{{ "pools": {{ "A": {pool} }}, "route": "PoolRoute|A" }}"#);
        let options = DestinationOptions { connect_eagerly: true, ..DestinationOptions::default() };
        let config = RouterConfig::parse(&text, &Defaults::default(), &options).expect("a configuration");
        Arc::new(ActiveConfigs { number, ..ActiveConfigs::single(Arc::new(config)) })
    }

    /// How long it takes to apply the second configuration, and a third one that comes a tenth of a second later.
    async fn apply_two(second: &str, third: &str) -> Duration {
        let configs = watch::Sender::new(active(1, r#""a:1""#));
        let (applied, _reported) = mpsc::unbounded_channel();
        let mut updates = ConfigUpdates::new(0, configs.subscribe(), applied, Arc::new(HungNetwork), 1);
        let tree = updates.build_tree(None);
        let proxy = Proxy::new(Settings::default(), SharedState::new(Identity::default(), "a test"), tree);
        configs.send_replace(active(2, second));
        let begin = Instant::now();
        let third = active(3, third);
        tokio::join!(updates.apply(&proxy), async {
            sleep_until(begin + Duration::from_millis(100)).await;
            configs.send_replace(third);
        });
        assert_eq!(updates.number, 3);
        begin.elapsed()
    }

    /// It waited until a server of the one before was connected to, or for two seconds, and sent keys in plain
    /// meanwhile.
    #[tokio::test(start_paused = true)]
    async fn a_configuration_that_secures_a_server_does_not_wait_behind_another_one() {
        let waited = apply_two(r#""a:1", "b:1""#, r#""a:1:ascii:ssl", "b:1""#).await;
        assert_eq!(waited, Duration::from_millis(100));
        // Another one waits for its servers, and both for no longer than one does.
        let waited = apply_two(r#""a:1", "b:1""#, r#""a:1", "b:1", "c:1""#).await;
        assert!(waited.abs_diff(READY_MAX) < Duration::from_millis(5), "{waited:?}");
    }
}
