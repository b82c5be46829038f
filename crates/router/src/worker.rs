//! One thread: a runtime, its acceptor, a tree over its own connections to servers, and the clients that it accepted.
//!
//! It serves until the shutdown. Then it ends, or, on a handover to another process, suspends its sessions and waits
//! for the result ([`crate::handover`]).

use crate::backend::tls_connector::TlsNetwork;
use crate::frontend::limits::Settings;
use crate::frontend::listen::AcceptorSockets;
use crate::frontend::session::ClientSession;
use crate::handover::{InheritedClient, WorkerCommand, close_gracefully, restore_client};
use crate::proxy::Proxy;
use crate::resize::driver::Applied;
use crate::shared::SharedState;
use crate::tree::Tree;
use crate::tree::active_configs::ActiveConfigs;
use std::sync::Arc;
use std::thread;
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
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
    pub(crate) index: usize,
    /// Receives the thread's suspended sessions on a handover.
    pub(crate) suspended: UnboundedSender<(usize, Vec<ClientSession>)>,
    /// The main thread's commands after that.
    pub(crate) commands: UnboundedReceiver<WorkerCommand>,
    /// Reports the last change when the batches on earlier trees have ended.
    pub(crate) draining: Option<JoinHandle<()>>,
}

impl Worker {
    /// Starts the thread. `clients` are connections of an earlier process.
    pub(crate) fn spawn(
        self,
        acceptor: AcceptorSockets,
        clients: Vec<InheritedClient>,
    ) -> Result<thread::JoinHandle<()>, String> {
        let runtime = new_runtime()?;
        thread::Builder::new()
            .name(format!("proxy-{}", self.index))
            .spawn(move || runtime.block_on(self.run(acceptor, clients)))
            .map_err(|error| format!("cannot start a thread: {error}"))
    }

    async fn run(mut self, acceptor: AcceptorSockets, clients: Vec<InheritedClient>) {
        let active = self.configs.borrow_and_update().clone();
        let tree = Tree::build_active(&active, self.network.clone(), self.seed, None);
        // Clients that connect meanwhile wait in the listener's queue.
        tree.wait_until_ready().await;
        let mut listener = Some(acceptor.register().expect("the sockets do not block, and this is a runtime"));
        let proxy = Proxy::new(self.settings.clone(), self.shared.clone(), tree);
        let _ = self.applied.send((self.index, active.number));
        // A socket that cannot be registered has been closed by its client meanwhile.
        let mut clients = clients
            .into_iter()
            .filter_map(|(socket, connection_state)| restore_client(socket, connection_state).ok())
            .collect();
        loop {
            let shutdown = self.shutdown.clone();
            let suspended = tokio::select! {
                biased;
                never = self.reload_loop(&proxy) => never,
                suspended = proxy.serve_all(&mut listener, clients, shutdown) => suspended,
            };
            proxy.tree().background_tasks().drain().await;
            if listener.is_none() {
                return;
            }
            // The main thread receives it unless the process ends.
            let _ = self.suspended.send((self.index, suspended));
            clients = match self.commands.recv().await {
                Some(WorkerCommand::Resume(clients)) => clients,
                Some(WorkerCommand::Exit(remaining)) => {
                    drop(listener);
                    return close_gracefully(remaining).await;
                }
                None => return,
            };
            // The spool may have been opened again.
            self.apply_config(&proxy).await;
        }
    }

    /// Builds a tree from each new configuration. Never returns.
    async fn reload_loop<T>(&mut self, proxy: &Arc<Proxy>) -> T {
        while self.configs.changed().await.is_ok() {
            self.apply_config(proxy).await;
        }
        std::future::pending().await
    }

    async fn apply_config(&mut self, proxy: &Arc<Proxy>) {
        let active = self.configs.borrow_and_update().clone();
        let tree = Tree::build_active(&active, self.network.clone(), self.seed, Some(&proxy.tree()));
        tree.wait_until_ready().await;
        let old_tree_ended = proxy.tree().ended();
        let background_tasks = tree.background_tasks().clone();
        proxy.set_tree(tree);
        let (applied, index, number) = (self.applied.clone(), self.index, active.number);
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
}

pub(crate) fn new_runtime() -> Result<tokio::runtime::Runtime, String> {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().build().map_err(|error| format!("cannot create the tokio runtime: {error}"))
}
