//! One thread's share of the daemon: a tree, the clients that this thread accepted, and their counters.

use crate::frontend::buffer_pool::Rooms;
use crate::frontend::session::{self, End, Parked};
use crate::shared::{Fleet, Seat};
use crate::stats::by_verb::Results;
use crate::stats::counters::{Counters, Tally};
use crate::{Settings, Tree};
use lookaside_client::Listener;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::sync::watch;
use tokio::task::{JoinError, JoinSet};

/// How long clients' batches in hand may take after a shutdown began. What is not answered by then is cut off.
pub const DRAIN_MAX: Duration = Duration::from_secs(5);

/// The wait after a failure to accept: most often the process has no file descriptor left, and trying again at once
/// would only spin.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// What a client over the cap is told, in memcached's words.
const TOO_MANY: &[u8] = b"ERROR Too many open connections\r\n";

/// One thread's router. Everything it does happens on the tokio runtime that [`Router::serve`] is called in.
pub struct Router {
    settings: Settings,
    fleet: Arc<Fleet>,
    tree: RwLock<Arc<Tree>>,
    counters: Counters,
    results: Results,
    rooms: Rooms,
}

impl Router {
    /// A router that serves `tree`, as one of a fleet.
    pub fn new(settings: Settings, fleet: Arc<Fleet>, tree: Tree) -> Arc<Router> {
        let router = Arc::new(Router {
            settings,
            fleet,
            tree: RwLock::new(Arc::new(tree)),
            counters: Counters::default(),
            results: Results::default(),
            rooms: Rooms::default(),
        });
        router.fleet.enlist(&router);
        router
    }

    /// How it treats its clients.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The fleet it belongs to.
    pub fn fleet(&self) -> &Arc<Fleet> {
        &self.fleet
    }

    /// The tree in force.
    pub fn tree(&self) -> Arc<Tree> {
        self.tree.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Puts another tree in force. Batches on their way finish on the old one.
    pub fn set_tree(&self, tree: Tree) {
        let old = std::mem::replace(&mut *self.tree.write().unwrap_or_else(PoisonError::into_inner), Arc::new(tree));
        // Destinations may end connections when dropped: not under the lock.
        drop(old);
    }

    /// What this thread has counted.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    pub(crate) fn rooms(&self) -> &Rooms {
        &self.rooms
    }

    /// What came of its clients' requests, by verb.
    pub(crate) fn results(&self) -> &Results {
        &self.results
    }

    /// Accepts clients and serves them until `shutdown` turns true; then answers the batches in hand, for at most
    /// [`DRAIN_MAX`], and returns.
    pub async fn serve(self: Arc<Self>, listener: Box<dyn Listener>, shutdown: watch::Receiver<bool>) {
        self.serve_all(&mut Some(listener), Vec::new(), shutdown).await;
    }

    /// The same with clients that are there from the start; returns those that are there at the end, between two batches.
    /// `listener` is there then only if they are to go on in another process, or in this one after all.
    pub(crate) async fn serve_all(
        self: &Arc<Self>,
        listener: &mut Option<Box<dyn Listener>>,
        clients: Vec<Parked>,
        mut shutdown: watch::Receiver<bool>,
    ) -> Vec<Parked> {
        let (mut sessions, mut parked) = (JoinSet::new(), Vec::new());
        let stop = shutdown.clone();
        for client in clients {
            self.welcome(client, &mut sessions, &stop);
        }
        while let Some(listener) = listener {
            tokio::select! {
                biased;
                () = told(&mut shutdown) => break,
                Some(ended) = sessions.join_next() => parked.extend(note_end(ended)),
                accepted = listener.accept() => match accepted {
                    Ok(stream) => {
                        self.counters.add(&Tally { total_connections: 1, ..Tally::default() });
                        self.welcome(Parked::new(stream), &mut sessions, &stop);
                    }
                    Err(error) => {
                        tracing::warn!(%error, "a client's connection could not be accepted; raise the limit on open files if it is reached");
                        self.counters.add(&Tally { accept_errors: 1, ..Tally::default() });
                        tokio::time::sleep(ACCEPT_RETRY).await;
                    }
                },
            }
        }
        if !self.fleet.is_leaving() {
            *listener = None;
        }
        parked.extend(drain(sessions).await);
        parked
    }

    /// Empties every server, where that is allowed. The error is for the client.
    pub(crate) async fn flush_all(&self, delay_s: i64) -> Result<(), String> {
        if !self.settings.flush_enabled {
            return Err("Command not supported".to_owned());
        }
        self.tree().flush_all(delay_s).await
    }

    fn welcome(
        self: &Arc<Self>,
        mut client: Parked,
        sessions: &mut JoinSet<(End, Option<Parked>)>,
        stop: &watch::Receiver<bool>,
    ) {
        let Some(seat) = self.fleet.take_seat(self.settings.connections_max) else {
            self.counters.add(&Tally { rejected_connections: 1, ..Tally::default() });
            // One write into an empty socket buffer does not wait; if it would, the client goes without the reason.
            sessions.spawn(async move {
                let told = async {
                    client.stream.write_all(TOO_MANY).await?;
                    client.stream.flush().await
                };
                let _ = tokio::time::timeout(ACCEPT_RETRY, told).await;
                (End::Closed, None)
            });
            return;
        };
        sessions.spawn(serve_one(self.clone(), client, seat, stop.clone()));
    }
}

impl std::fmt::Debug for Router {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Router").field("settings", &self.settings).finish_non_exhaustive()
    }
}

/// Resolves when the shutdown begins, or when nobody is left to begin it.
pub(crate) async fn told(shutdown: &mut watch::Receiver<bool>) {
    let _ = shutdown.wait_for(|&down| down).await;
}

/// Whether the shutdown has begun: a look at one word, unless something has changed.
pub(crate) fn is_told(shutdown: &mut watch::Receiver<bool>) -> bool {
    shutdown.has_changed().map_or(true, |has_changed| has_changed && *shutdown.borrow_and_update())
}

async fn serve_one(
    router: Arc<Router>,
    client: Parked,
    seat: Seat,
    stop: watch::Receiver<bool>,
) -> (End, Option<Parked>) {
    let ended = session::go_on(&router, client, stop).await;
    drop(seat);
    ended
}

fn note_end(ended: Result<(End, Option<Parked>), JoinError>) -> Option<Parked> {
    match ended {
        Ok((End::Stalled, _)) => {
            let seconds = session::WRITE_STALL_MAX.as_secs();
            tracing::warn!("a client took no byte of its replies for {seconds} s and was disconnected");
            None
        }
        Ok((End::Behind, _)) => {
            tracing::warn!(
                "a client that has megabytes of its replies to read still cannot be handed over, and is disconnected"
            );
            None
        }
        Ok((end, parked)) => {
            tracing::trace!(?end, "a client's connection ended");
            parked
        }
        Err(error) => {
            tracing::error!(%error, "a client's session failed; this is a bug of the router");
            None
        }
    }
}

async fn drain(mut sessions: JoinSet<(End, Option<Parked>)>) -> Vec<Parked> {
    let mut parked = Vec::new();
    let all = async {
        while let Some(ended) = sessions.join_next().await {
            parked.extend(note_end(ended));
        }
    };
    if tokio::time::timeout(DRAIN_MAX, all).await.is_err() {
        let seconds = DRAIN_MAX.as_secs();
        tracing::warn!("{} clients' batches were not answered within {seconds} s of the shutdown", sessions.len());
        sessions.shutdown().await;
    }
    parked
}
