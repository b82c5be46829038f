//! One thread of the router (mcrouter: proxy): a tree, the clients that this thread accepted, and their counters.

mod config_updates;

pub use config_updates::ConfigUpdates;

use crate::frontend::context::SessionContext;
use crate::frontend::limits::{Settings, WRITE_STALL_MAX};
use crate::frontend::session::{self, ClientSession, SessionEnd, shutdown_requested};
use crate::frontend::session_lru::{SessionActivity, SessionLru};
use crate::shared::{SharedState, StatsSource};
use crate::stats::by_verb::VerbResults;
use crate::stats::counters::{CounterDelta, Counters};
use crate::timeouts::DRAIN_MAX;
use crate::tree::Tree;
use lookaside_client::{Listener, spawn_in};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::sync::watch;
use tokio::task::{JoinError, JoinSet};

/// The wait after a failure to accept. Most often the process has no file descriptor left; an immediate retry would
/// only spin.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// memcached's reply to a client above the limit.
const TOO_MANY: &[u8] = b"ERROR Too many open connections\r\n";

/// One thread's proxy. [`Proxy::serve`] must be called in a single-threaded tokio runtime: its counters have one
/// writer.
pub struct Proxy {
    context: SessionContext,
}

/// The sessions of this thread.
#[derive(Default)]
struct Sessions {
    tasks: JoinSet<Ended>,
    lru: SessionLru,
}

/// The end of a session, and the session if it is to be served again.
type Ended = (SessionEnd, Option<ClientSession>);

impl Proxy {
    /// A proxy that serves `tree`; `stats` adds up its counters.
    pub fn new(settings: Settings, shared: Arc<SharedState>, tree: Tree) -> Arc<Proxy> {
        let proxy = Arc::new(Proxy { context: SessionContext::new(settings, shared, tree) });
        let weak: Weak<Proxy> = Arc::downgrade(&proxy);
        proxy.context.shared.register(weak);
        proxy
    }

    /// The state that it shares with the other threads.
    pub fn shared(&self) -> &Arc<SharedState> {
        &self.context.shared
    }

    /// The tree in force.
    pub fn tree(&self) -> Arc<Tree> {
        self.context.tree()
    }

    /// Puts another tree in force. Batches that have begun end on the old one.
    pub fn set_tree(&self, tree: Tree) {
        self.context.set_tree(tree);
    }

    /// This thread's counters.
    pub fn counters(&self) -> &Counters {
        &self.context.counters
    }

    /// Accepts clients and serves them until `shutdown` turns true; then answers the batches that have begun, for at
    /// most [`DRAIN_MAX`], and returns.
    pub async fn serve(self: Arc<Self>, listener: Box<dyn Listener>, shutdown: watch::Receiver<bool>) {
        self.serve_all(&mut Some(listener), Vec::new(), shutdown).await;
    }

    /// As [`Proxy::serve`], with `clients` from the start. Returns the sessions that are open at the end, between two
    /// batches. `listener` is `Some` at the end only if they are handed over to another process, or will be served here
    /// again.
    pub(crate) async fn serve_all(
        self: &Arc<Self>,
        listener: &mut Option<Box<dyn Listener>>,
        clients: Vec<ClientSession>,
        mut shutdown: watch::Receiver<bool>,
    ) -> Vec<ClientSession> {
        let (mut sessions, mut suspended) = (Sessions::default(), Vec::new());
        let stop = shutdown.clone();
        for client in clients {
            self.admit(client, &mut sessions, &stop);
        }
        while let Some(listener) = listener {
            tokio::select! {
                biased;
                () = shutdown_requested(&mut shutdown) => break,
                Some(ended) = sessions.tasks.join_next() => suspended.extend(log_session_end(ended, self.shared())),
                accepted = listener.accept() => match accepted {
                    Ok(stream) => {
                        self.counters().add(&CounterDelta { total_connections: 1, ..CounterDelta::default() });
                        self.admit(ClientSession::new(stream), &mut sessions, &stop);
                    }
                    Err(error) => {
                        tracing::warn!(%error, "cannot accept a client connection; raise the limit on open files if it is reached");
                        self.counters().add(&CounterDelta { accept_errors: 1, ..CounterDelta::default() });
                        tokio::time::sleep(ACCEPT_RETRY).await;
                    }
                },
            }
        }
        if !self.shared().is_handing_over() {
            *listener = None;
        }
        suspended.extend(drain_sessions(sessions.tasks, self.shared()).await);
        suspended
    }

    /// Serves a client in a task of its own. If there are too many, the least recently used one is closed; if none can
    /// be, the new one is refused.
    fn admit(self: &Arc<Self>, mut client: ClientSession, sessions: &mut Sessions, stop: &watch::Receiver<bool>) {
        let connections_max = self.context.settings.connections_max;
        let mut permit = self.shared().acquire_connection(connections_max);
        if permit.is_none() && sessions.lru.close_least_recently_used(self.context.uses.now_ms()) {
            self.counters().add(&CounterDelta { evicted_connections: 1, ..CounterDelta::default() });
            // The other permit is returned when its task has been dropped, in a moment.
            permit = self.shared().acquire_connection(usize::MAX);
        }
        let Some(permit) = permit else {
            self.counters().add(&CounterDelta { rejected_connections: 1, ..CounterDelta::default() });
            // One write into an empty socket buffer does not wait. If it does, the connection is closed without the
            // reply.
            spawn_in(&mut sessions.tasks, async move {
                let refusal = async {
                    client.stream.write_all(TOO_MANY).await?;
                    client.stream.flush().await
                };
                let _ = tokio::time::timeout(ACCEPT_RETRY, refusal).await;
                (SessionEnd::Closed, None)
            });
            return;
        };
        let (proxy, stop, activity) = (self.clone(), stop.clone(), Arc::new(SessionActivity::default()));
        activity.end_waiting(self.context.uses.next());
        let of_session = activity.clone();
        let task = spawn_in(&mut sessions.tasks, async move {
            let ended = session::serve(&proxy.context, client, &of_session, stop).await;
            drop(permit);
            ended
        });
        if connections_max < usize::MAX {
            sessions.lru.add(activity, task, sessions.tasks.len());
        }
    }
}

impl StatsSource for Proxy {
    fn counters(&self) -> &Counters {
        &self.context.counters
    }

    fn results(&self) -> &VerbResults {
        &self.context.results
    }

    fn tree(&self) -> Arc<Tree> {
        self.context.tree()
    }

    fn connections_max(&self) -> usize {
        self.context.settings.connections_max
    }
}

impl std::fmt::Debug for Proxy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Proxy").field("settings", &self.context.settings).finish_non_exhaustive()
    }
}

fn log_session_end(ended: Result<Ended, JoinError>, shared: &SharedState) -> Option<ClientSession> {
    match ended {
        Ok((SessionEnd::Stalled, _)) => {
            let (seconds, rate) = (WRITE_STALL_MAX.as_secs(), session::TRANSFER_BYTES_PER_S_MIN);
            tracing::warn!(
                "closed a client connection: the client read none of its replies for --client-timeout, or sent nothing \
                 inside a large command for {seconds} s, or was slower than {rate} bytes a second for longer"
            );
            None
        }
        Ok((SessionEnd::InputBound, _)) => {
            shared.warn_of_input_bound();
            None
        }
        Ok((SessionEnd::OutputBound, _)) => {
            shared.warn_of_output_bound();
            None
        }
        Ok((SessionEnd::TooSlowForHandover, _)) => {
            tracing::warn!("closed a client connection that cannot be handed over: it has megabytes of unread replies");
            None
        }
        Ok((end, suspended)) => {
            tracing::trace!(?end, "client connection ended");
            suspended
        }
        Err(error) if error.is_cancelled() => {
            tracing::trace!("closed the least recently used client connection for a new one");
            None
        }
        Err(error) => {
            tracing::error!(%error, "a client's session failed; this is a bug of the router");
            None
        }
    }
}

/// Waits for the sessions to end, for at most [`DRAIN_MAX`].
async fn drain_sessions(mut sessions: JoinSet<Ended>, shared: &SharedState) -> Vec<ClientSession> {
    let mut suspended = Vec::new();
    let all = async {
        while let Some(ended) = sessions.join_next().await {
            suspended.extend(log_session_end(ended, shared));
        }
    };
    if tokio::time::timeout(DRAIN_MAX, all).await.is_err() {
        let seconds = DRAIN_MAX.as_secs();
        tracing::warn!(
            "dropped {} clients' batches that were not answered {seconds} s after the shutdown began",
            sessions.len()
        );
        sessions.shutdown().await;
    }
    suspended
}
