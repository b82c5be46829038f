//! One thread: a runtime, its acceptor, a tree over its own connections to servers, and the clients that it accepted.
//!
//! It connects to the servers first, while another process may still serve the clients. Then it serves until the
//! shutdown, and ends; or, on a handover to another process, suspends its sessions and waits for the result
//! ([`crate::handover`]).

use crate::frontend::limits::Settings;
use crate::handover::{WorkerChannels, WorkerCommand, close_gracefully, restore_client};
use crate::proxy::{ConfigUpdates, Proxy};
use crate::shared::SharedState;
use crate::timeouts::DRAIN_MAX;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use tokio::sync::{mpsc, watch};

pub(crate) struct Worker {
    pub(crate) settings: Settings,
    pub(crate) shared: Arc<SharedState>,
    pub(crate) updates: ConfigUpdates,
    pub(crate) shutdown: watch::Receiver<bool>,
    /// Dropped when the thread ends.
    pub(crate) _alive: mpsc::Sender<()>,
}

impl Worker {
    /// Starts the thread, which connects to the servers and waits for [`WorkerCommand::Start`].
    pub(crate) fn spawn(self, channels: WorkerChannels) -> Result<JoinHandle<()>, String> {
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
        let connected = self.updates.build_tree(None);
        connected.wait_until_ready().await;
        drop(connecting);
        let Some(WorkerCommand::Start { acceptor, clients }) = commands.recv().await else { return };
        // Its servers are those that are connected. Now the configuration may have a spool.
        let tree = self.updates.build_tree(Some(&connected));
        drop(connected);
        let mut listener = Some(acceptor.register().expect("the sockets do not block, and this is a runtime"));
        let proxy = Proxy::new(self.settings.clone(), self.shared.clone(), tree);
        self.updates.report_first(&proxy);
        // A socket that cannot be registered has been closed by its client meanwhile.
        let mut clients = clients
            .into_iter()
            .filter_map(|(socket, connection_state)| restore_client(socket, connection_state).ok())
            .collect();
        loop {
            let shutdown = self.shutdown.clone();
            let suspended = tokio::select! {
                biased;
                never = self.updates.apply_all(&proxy) => never,
                suspended = proxy.serve_all(&mut listener, clients, shutdown) => suspended,
            };
            proxy.tree().background_tasks().drain(DRAIN_MAX).await;
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
            self.updates.apply(&proxy).await;
        }
    }
}

pub(crate) fn new_runtime() -> Result<tokio::runtime::Runtime, String> {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().build().map_err(|error| format!("cannot create the tokio runtime: {error}"))
}
