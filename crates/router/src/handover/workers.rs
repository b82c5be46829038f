//! The worker threads during a handover: they suspend their clients, and then exit or resume.

use crate::frontend::session::ClientSession;
use crate::shared::SharedState;
use crate::timeouts::DRAIN_MAX;
use lookaside_upgrade::{CONNECTION_STATE_BYTES_MAX, Successor};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::watch;
use tokio::time::timeout;

/// How long a thread may take to suspend its clients. The bounds on batches and background work are lower.
const SUSPEND_MAX: Duration = DRAIN_MAX.saturating_mul(3);

/// The next step of a thread after it has suspended its clients.
pub(crate) enum WorkerCommand {
    /// Another process serves: close these clients, which could not be handed over, and exit.
    Exit(Vec<ClientSession>),
    /// No other process serves: serve these clients again.
    Resume(Vec<ClientSession>),
}

/// The index of a thread and its suspended clients.
type SuspendedClients = (usize, Vec<ClientSession>);

/// All worker threads, as the main thread controls them.
pub(crate) struct WorkerSet {
    shared: Arc<SharedState>,
    stop: watch::Sender<bool>,
    suspended_in: UnboundedSender<SuspendedClients>,
    suspended: UnboundedReceiver<SuspendedClients>,
    commands: Vec<UnboundedSender<WorkerCommand>>,
}

impl WorkerSet {
    /// A set without threads. `stop` makes them end, or suspend their clients.
    pub(crate) fn new(shared: Arc<SharedState>, stop: watch::Sender<bool>) -> WorkerSet {
        let (suspended_in, suspended) = unbounded_channel();
        WorkerSet { shared, stop, suspended_in, suspended, commands: Vec::new() }
    }

    /// Adds a thread. Returns where it sends its suspended clients and where it receives commands.
    pub(crate) fn add(&mut self) -> (UnboundedSender<SuspendedClients>, UnboundedReceiver<WorkerCommand>) {
        let (sender, commands) = unbounded_channel();
        self.commands.push(sender);
        (self.suspended_in.clone(), commands)
    }

    pub(crate) fn shut_down(&self) {
        self.stop.send_replace(true);
    }

    /// Makes all threads finish the batches in progress and suspend their clients.
    pub(crate) fn suspend(&self) {
        self.shared.set_handing_over(true);
        self.stop.send_replace(true);
    }

    /// The clients of each thread, when all threads have suspended them.
    pub(crate) async fn suspended_clients(&mut self) -> Result<Vec<Vec<ClientSession>>, String> {
        let mut clients: Vec<_> = self.commands.iter().map(|_| Vec::new()).collect();
        for _ in 0..clients.len() {
            let suspended = timeout(SUSPEND_MAX, self.suspended.recv()).await.ok().flatten();
            let (index, of_thread) =
                suspended.ok_or("a thread does not suspend its clients; this is a bug of the router")?;
            clients[index] = of_thread;
        }
        Ok(clients)
    }

    /// Makes all threads exit after they have closed the clients that could not be handed over.
    pub(crate) fn exit(&self, clients: Vec<Vec<ClientSession>>) {
        let not_sent =
            |clients: Vec<ClientSession>| clients.into_iter().filter(|client| !is_portable(client)).collect();
        for (commands, clients) in self.commands.iter().zip(clients) {
            let _ = commands.send(WorkerCommand::Exit(not_sent(clients)));
        }
    }

    pub(crate) fn resume(&self, clients: Vec<Vec<ClientSession>>) {
        self.shared.set_handing_over(false);
        self.stop.send_replace(false);
        for (commands, clients) in self.commands.iter().zip(clients) {
            let _ = commands.send(WorkerCommand::Resume(clients));
        }
    }
}

/// Sends clients to the next process, which does not own them yet. False if it has ended.
pub(crate) fn send_clients(successor: &Successor, clients: &[Vec<ClientSession>]) -> bool {
    let portable = clients.iter().flatten().filter(|client| is_portable(client));
    let connections =
        portable.filter_map(|client| Some((Some(client.connection_state.clone()), client.stream.descriptor()?)));
    successor.send(connections).is_some()
}

fn is_portable(client: &ClientSession) -> bool {
    let connection_state = &client.connection_state;
    client.stream.descriptor().is_some()
        && connection_state.input.len() + connection_state.output.len() <= CONNECTION_STATE_BYTES_MAX
}
