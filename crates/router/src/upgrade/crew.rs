//! The threads that serve, when they leave their clients to another process: all let go, and all hear what comes of it.

use crate::frontend::session::SuspendedSession;
use crate::{DRAIN_MAX, Fleet};
use lookaside_upgrade::{CONNECTION_STATE_BYTES_MAX, Successor};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::watch;
use tokio::time::timeout;

/// A thread that has not let go after so long has failed: batches and background work are bounded by less.
const LETTING_GO_MAX: Duration = DRAIN_MAX.saturating_mul(3);

/// What a thread hears after it has let go.
pub(crate) enum Verdict {
    /// Another process serves. These could not be handed over.
    Taken(Vec<SuspendedSession>),
    /// It does not: here are the clients again.
    Back(Vec<SuspendedSession>),
}

/// A thread's clients, when it has let go.
type Left = (usize, Vec<SuspendedSession>);

/// All threads, as the main one sees them.
pub(crate) struct Crew {
    fleet: Arc<Fleet>,
    stop: watch::Sender<bool>,
    tell: UnboundedSender<Left>,
    left: UnboundedReceiver<Left>,
    verdicts: Vec<UnboundedSender<Verdict>>,
}

impl Crew {
    /// No thread yet. `stop` ends them, or has them let go.
    pub(crate) fn new(fleet: Arc<Fleet>, stop: watch::Sender<bool>) -> Crew {
        let (tell, left) = unbounded_channel();
        Crew { fleet, stop, tell, left, verdicts: Vec::new() }
    }

    /// One more thread: where it says that it has let go, by its index, and where it hears what comes of it.
    pub(crate) fn join(&mut self) -> (UnboundedSender<Left>, UnboundedReceiver<Verdict>) {
        let (verdict, verdicts) = unbounded_channel();
        self.verdicts.push(verdict);
        (self.tell.clone(), verdicts)
    }

    /// Ends all threads.
    pub(crate) fn end(&self) {
        self.stop.send_replace(true);
    }

    /// Has all threads answer what they have begun, and let go of their clients.
    pub(crate) fn let_go(&self) {
        self.fleet.set_handing_over(true);
        self.stop.send_replace(true);
    }

    /// The clients, by thread, once all have let go.
    pub(crate) async fn clients(&mut self) -> Result<Vec<Vec<SuspendedSession>>, String> {
        let mut clients: Vec<_> = self.verdicts.iter().map(|_| Vec::new()).collect();
        for _ in 0..clients.len() {
            let left = timeout(LETTING_GO_MAX, self.left.recv()).await.ok().flatten();
            let (index, left) = left.ok_or("a thread does not let go of its clients; this is a bug of the router")?;
            clients[index] = left;
        }
        Ok(clients)
    }

    /// Tells all threads that another process serves. They end once the clients that it has not got have heard farewell.
    pub(crate) fn taken(&self, clients: Vec<Vec<SuspendedSession>>) {
        let not_sent =
            |clients: Vec<SuspendedSession>| clients.into_iter().filter(|client| !is_portable(client)).collect();
        for (verdict, clients) in self.verdicts.iter().zip(clients) {
            let _ = verdict.send(Verdict::Taken(not_sent(clients)));
        }
    }

    /// Has all threads serve again.
    pub(crate) fn back(&self, clients: Vec<Vec<SuspendedSession>>) {
        self.fleet.set_handing_over(false);
        self.stop.send_replace(false);
        for (verdict, clients) in self.verdicts.iter().zip(clients) {
            let _ = verdict.send(Verdict::Back(clients));
        }
    }
}

/// Sends clients to the next process, which owns nothing yet. False: it has gone.
pub(crate) fn send(successor: &Successor, clients: &[Vec<SuspendedSession>]) -> bool {
    let portable = clients.iter().flatten().filter(|client| is_portable(client));
    let packed =
        portable.filter_map(|client| Some((Some(client.connection_state.clone()), client.stream.descriptor()?)));
    successor.send(packed).is_some()
}

fn is_portable(client: &SuspendedSession) -> bool {
    let connection_state = &client.connection_state;
    client.stream.descriptor().is_some()
        && connection_state.input.len() + connection_state.output.len() <= CONNECTION_STATE_BYTES_MAX
}
