//! One thread: a runtime, its doors, a tree over its own connections, and the clients that came in here.
//!
//! It serves until it is told to stop. Then it ends, or, if another process is to serve its clients, lets go of them and hears
//! what comes of that ([`crate::upgrade`]).

use crate::backend::tls_connector::SecuredNetwork;
use crate::config::router_config::Plan;
use crate::frontend::listen::Doors;
use crate::frontend::session::Parked;
use crate::upgrade::{Client, Verdict, farewell, parked};
use crate::{Fleet, Router, Settings, Tree};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio::sync::watch;

/// What one thread is made of.
pub(crate) struct Worker {
    pub(crate) settings: Settings,
    pub(crate) fleet: Arc<Fleet>,
    pub(crate) plans: watch::Receiver<Arc<Plan>>,
    pub(crate) shutdown: watch::Receiver<bool>,
    /// Dropped when the thread ends.
    pub(crate) _alive: mpsc::Sender<()>,
    pub(crate) network: Arc<SecuredNetwork>,
    pub(crate) seed: u64,
    pub(crate) index: usize,
    /// Where it says that it has let go of its clients,
    pub(crate) left: UnboundedSender<(usize, Vec<Parked>)>,
    /// and hears what came of that.
    pub(crate) verdicts: UnboundedReceiver<Verdict>,
}

impl Worker {
    /// Starts the thread. `clients` are an earlier process's.
    pub(crate) fn spawn(self, doors: Doors, clients: Vec<Client>) -> Result<JoinHandle<()>, String> {
        let runtime = runtime()?;
        thread::Builder::new()
            .name(format!("proxy-{}", self.index))
            .spawn(move || runtime.block_on(self.run(doors, clients)))
            .map_err(|error| format!("the system gives no thread: {error}"))
    }

    async fn run(mut self, doors: Doors, clients: Vec<Client>) {
        let plan = self.plans.borrow_and_update().clone();
        let tree = Tree::build(&plan, self.network.clone(), self.seed, None);
        // Clients that have connected wait in the listener's queue meanwhile.
        tree.settled().await;
        let mut listener = Some(doors.watched().expect("they are not blocking and this is a runtime"));
        let router = Router::new(self.settings.clone(), self.fleet.clone(), tree);
        // One that the system does not take any more has ended meanwhile.
        let mut clients = clients
            .into_iter()
            .filter_map(|(socket, connection_state)| parked(socket, connection_state).ok())
            .collect();
        loop {
            let shutdown = self.shutdown.clone();
            let left = tokio::select! {
                biased;
                never = self.reload(&router) => never,
                left = router.serve_all(&mut listener, clients, shutdown) => left,
            };
            router.tree().backyard().drain().await;
            if listener.is_none() {
                return;
            }
            // Whoever hears it is gone only when the process ends.
            let _ = self.left.send((self.index, left));
            clients = match self.verdicts.recv().await {
                Some(Verdict::Back(clients)) => clients,
                Some(Verdict::Taken(left)) => {
                    drop(listener);
                    return farewell(left).await;
                }
                None => return,
            };
            // The spool may be another one.
            self.take_plan(&router).await;
        }
    }

    /// Builds a tree from each new plan, for ever.
    async fn reload<T>(&mut self, router: &Arc<Router>) -> T {
        while self.plans.changed().await.is_ok() {
            self.take_plan(router).await;
        }
        std::future::pending().await
    }

    async fn take_plan(&mut self, router: &Arc<Router>) {
        let plan = self.plans.borrow_and_update().clone();
        let tree = Tree::build(&plan, self.network.clone(), self.seed, Some(&router.tree()));
        tree.settled().await;
        router.set_tree(tree);
    }
}

/// A runtime of one thread.
pub(crate) fn runtime() -> Result<tokio::runtime::Runtime, String> {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().build().map_err(|error| format!("the system gives no event queue: {error}"))
}
