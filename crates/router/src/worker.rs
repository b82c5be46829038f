//! One thread: a runtime, its acceptor, a tree over its own connections to servers, and the clients that it accepted.
//!
//! It connects to the servers first, while another process may still serve the clients. Then it serves until the
//! shutdown, and ends; or, on a handover to another process, suspends its sessions and waits for the result
//! ([`crate::handover`]).

use crate::backend::tls_connector::TlsNetwork;
use crate::frontend::limits::Settings;
use crate::handover::{WorkerChannels, WorkerCommand, close_gracefully, restore_client};
use crate::proxy::Proxy;
use crate::resize::driver::Applied;
use crate::shared::SharedState;
use crate::tree::Tree;
use crate::tree::active_configs::ActiveConfigs;
use std::sync::Arc;
use std::thread;
use tokio::sync::mpsc::{self, UnboundedSender};
use tokio::sync::watch;
use tokio::task::JoinHandle;

pub(crate) struct Worker {
    pub(crate) settings: Settings,
    pub(crate) shared: Arc<SharedState>,
    pub(crate) configs: watch::Receiver<Arc<ActiveConfigs>>,
    /// Receives the number of each change that this thread has applied.
    pub(crate) applied: UnboundedSender<Applied>,
    pub(crate) shutdown: watch::Receiver<bool>,
    /// Dropped when the thread ends.
    pub(crate) _alive: mpsc::Sender<()>,
    pub(crate) network: Arc<TlsNetwork>,
    pub(crate) seed: u64,
    /// Reports the last change when the batches on earlier trees have ended.
    pub(crate) draining: Option<JoinHandle<()>>,
}

impl Worker {
    /// Starts the thread, which connects to the servers and waits for [`WorkerCommand::Start`].
    pub(crate) fn spawn(self, channels: WorkerChannels) -> Result<thread::JoinHandle<()>, String> {
        let runtime = new_runtime()?;
        thread::Builder::new()
            .name(format!("proxy-{}", channels.index))
            .spawn(move || {
                runtime.block_on(self.run(channels));
                // A drop would wait for lookups of host names, which cannot be interrupted.
                runtime.shutdown_background();
            })
            .map_err(|error| format!("cannot start a thread: {error}"))
    }

    async fn run(mut self, channels: WorkerChannels) {
        let WorkerChannels { index, suspended: suspended_in, mut commands, connecting } = channels;
        let (connected, _) = self.build_tree(None);
        connected.wait_until_ready().await;
        drop(connecting);
        let Some(WorkerCommand::Start { acceptor, clients }) = commands.recv().await else { return };
        // Its servers are those that are connected. Now the configuration may have a spool.
        let (tree, number) = self.build_tree(Some(&connected));
        drop(connected);
        let mut listener = Some(acceptor.register().expect("the sockets do not block, and this is a runtime"));
        let proxy = Proxy::new(self.settings.clone(), self.shared.clone(), tree);
        let _ = self.applied.send((index, number));
        // A socket that cannot be registered has been closed by its client meanwhile.
        let mut clients = clients
            .into_iter()
            .filter_map(|(socket, connection_state)| restore_client(socket, connection_state).ok())
            .collect();
        loop {
            let shutdown = self.shutdown.clone();
            let suspended = tokio::select! {
                biased;
                never = self.reload_loop(&proxy, index) => never,
                suspended = proxy.serve_all(&mut listener, clients, shutdown) => suspended,
            };
            proxy.tree().background_tasks().drain().await;
            if listener.is_none() {
                return;
            }
            // The main thread receives it unless the process ends.
            let _ = suspended_in.send((index, suspended));
            clients = match commands.recv().await {
                Some(WorkerCommand::Resume(clients)) => clients,
                Some(WorkerCommand::Exit(remaining)) => {
                    drop(listener);
                    return close_gracefully(remaining).await;
                }
                Some(WorkerCommand::Start { .. }) => unreachable!("it is sent once"),
                None => return,
            };
            // The spool may have been opened again.
            self.apply_config(&proxy, index).await;
        }
    }

    /// Builds a tree from each new configuration. Never returns.
    async fn reload_loop<T>(&mut self, proxy: &Arc<Proxy>, index: usize) -> T {
        while self.configs.changed().await.is_ok() {
            self.apply_config(proxy, index).await;
        }
        std::future::pending().await
    }

    async fn apply_config(&mut self, proxy: &Arc<Proxy>, index: usize) {
        let old = proxy.tree();
        let (tree, number) = self.build_tree(Some(&old));
        if !tree.secures_server_of(&old) {
            tree.wait_until_ready().await;
        }
        let old_tree_ended = old.ended();
        drop(old);
        let background_tasks = tree.background_tasks().clone();
        proxy.set_tree(tree);
        let applied = self.applied.clone();
        let earlier = self.draining.take();
        self.draining = Some(tokio::spawn(async move {
            if let Some(earlier) = earlier {
                let _ = earlier.await;
            }
            old_tree_ended.await;
            // Batches may have left a part of themselves in the background.
            background_tasks.running_ended().await;
            let _ = applied.send((index, number));
        }));
    }

    /// A tree of the newest configurations, and their number.
    fn build_tree(&mut self, old: Option<&Tree>) -> (Tree, u64) {
        let active = self.configs.borrow_and_update().clone();
        (Tree::build_active(&active, self.network.clone(), self.seed, old), active.number)
    }
}

pub(crate) fn new_runtime() -> Result<tokio::runtime::Runtime, String> {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().build().map_err(|error| format!("cannot create the tokio runtime: {error}"))
}
