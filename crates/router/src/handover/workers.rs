//! The worker threads around a handover: they connect to the servers before they serve; they suspend their clients,
//! and then exit or resume.

use super::takeover::InheritedClient;
use crate::frontend::listen::AcceptorSockets;
use crate::frontend::session::ClientSession;
use crate::shared::SharedState;
use crate::timeouts::DRAIN_MAX;
use lookaside_upgrade::{CONNECTION_STATE_BYTES_MAX, Successor};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::watch;
use tokio::time::timeout;

/// How long a thread may take to suspend its clients. The bounds on batches and background work are lower.
const SUSPEND_MAX: Duration = DRAIN_MAX.saturating_mul(3);

/// The next step of a thread after it has connected to the servers, or has suspended its clients.
pub(crate) enum WorkerCommand {
    /// Serve with the newest configuration. `clients` are connections of an earlier process.
    Start { acceptor: AcceptorSockets, clients: Vec<InheritedClient> },
    /// Another process serves: close these clients, which could not be handed over, and exit.
    Exit(Vec<ClientSession>),
    /// No other process serves: serve these clients again.
    Resume(Vec<ClientSession>),
}

/// The index of a thread and its suspended clients.
type SuspendedClients = (usize, Vec<ClientSession>);

/// A new thread's ends of the channels to the main thread.
pub(crate) struct WorkerChannels {
    pub(crate) index: usize,
    /// Receives the thread's suspended sessions on a handover.
    pub(crate) suspended: UnboundedSender<SuspendedClients>,
    pub(crate) commands: UnboundedReceiver<WorkerCommand>,
    /// Dropped when the thread has connected to the servers.
    pub(crate) connecting: mpsc::Sender<()>,
}

/// All worker threads, as the main thread controls them.
pub(crate) struct WorkerSet {
    shared: Arc<SharedState>,
    stop: watch::Sender<bool>,
    suspended_in: UnboundedSender<SuspendedClients>,
    suspended: UnboundedReceiver<SuspendedClients>,
    commands: Vec<UnboundedSender<WorkerCommand>>,
    /// `None` when no further thread is added.
    connecting_in: Option<mpsc::Sender<()>>,
    connecting: mpsc::Receiver<()>,
}

impl WorkerSet {
    /// A set without threads. `stop` makes them end, or suspend their clients.
    pub(crate) fn new(shared: Arc<SharedState>, stop: watch::Sender<bool>) -> WorkerSet {
        let (suspended_in, suspended) = unbounded_channel();
        let (connecting_in, connecting) = mpsc::channel(1);
        let (commands, connecting_in) = (Vec::new(), Some(connecting_in));
        WorkerSet { shared, stop, suspended_in, suspended, commands, connecting_in, connecting }
    }

    /// Adds a thread. Must not be called after [`WorkerSet::wait_until_connected`].
    pub(crate) fn add(&mut self) -> WorkerChannels {
        let (sender, commands) = unbounded_channel();
        let index = self.commands.len();
        self.commands.push(sender);
        let connecting = self.connecting_in.clone().expect("threads are still added");
        WorkerChannels { index, suspended: self.suspended_in.clone(), commands, connecting }
    }

    /// Waits until every thread has connected to the servers, or knows which are down.
    pub(crate) async fn wait_until_connected(&mut self) {
        self.connecting_in = None;
        let _ = self.connecting.recv().await;
    }

    /// Makes all threads serve, each with its acceptor and clients.
    pub(crate) fn start(&self, acceptors: Vec<AcceptorSockets>, clients: Vec<Vec<InheritedClient>>) {
        for (commands, (acceptor, clients)) in self.commands.iter().zip(acceptors.into_iter().zip(clients)) {
            let _ = commands.send(WorkerCommand::Start { acceptor, clients });
        }
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
