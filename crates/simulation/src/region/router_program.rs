//! The program of a router: what the daemon's threads do, as tasks.
//!
//! ```text
//!   main thread      replay of the spool, spares, changes of the configuration ---.
//!   thread 0         a proxy: a tree over its own connections  <------------------+
//!   thread 1         a proxy: a tree over its own connections  <------------------'
//! ```
//!
//! They share what the daemon's threads share: TKO states, fences, the spool.

use super::coverage_disk::CoverageDisk;
use super::router_configs::{RouterConfigs, RouterHost};
use crate::process::Process;
use lookaside_client::{Listener, Network, Stream};
use lookaside_router::{
    ActiveConfigs, Applied, ConfigUpdates, CoverageDigest, HistoryStore, Proxy, ResizerChannels, ResizerSettings,
    Settings,
};
use lookaside_routing::{Address, BoxFuture};
use std::{future::pending, io, pin::pin, sync::Arc, time::Duration};
use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
    time::sleep,
};

/// Threads of a router.
pub(super) const THREADS: usize = 2;
/// The wait before a start that has failed is repeated.
const RESTART_DELAY: Duration = Duration::from_millis(500);

/// Commands to a running router.
pub(super) enum RouterCommand {
    /// The text of a new configuration.
    Configure(String),
    /// Answer the batches that have begun, close the spool, and end.
    Exit,
}

/// What a router's process consists of.
pub(super) struct RouterProgram {
    pub(super) process: Process,
    pub(super) network: Arc<dyn Network>,
    pub(super) host: RouterHost,
    /// Sends configurations to the main thread's observers, and the threads.
    pub(super) publish: watch::Sender<Arc<ActiveConfigs>>,
    /// The other routers of the cluster.
    pub(super) peers: Vec<Address>,
    pub(super) coverage: CoverageDisk,
    /// `None` if the routers share none.
    pub(super) history: Option<Arc<dyn HistoryStore>>,
    /// Whether a change of the configuration goes through its steps.
    pub(super) covers: bool,
    /// The state on disk of a process that has just handed over; `None` if there is none.
    pub(super) handed_over: Option<CoverageDigest>,
    pub(super) seed: u64,
}

impl RouterProgram {
    /// The configurations in force, and where the threads report what they have applied. A start that fails is
    /// repeated, as by a supervisor.
    async fn start_configs(&self, text: &str) -> (RouterConfigs, mpsc::UnboundedSender<Applied>) {
        loop {
            let (applied, applied_by_threads) = mpsc::unbounded_channel();
            if !self.covers {
                return (RouterConfigs::at_once(text, self.publish.clone(), &self.host), applied);
            }
            let channels = ResizerChannels { publish: self.publish.clone(), applied: applied_by_threads };
            let settings = ResizerSettings {
                peers: self.peers.clone(),
                ignores_missing_peers: false,
                threads: THREADS,
                handed_over: self.handed_over,
                history: self.history.clone(),
                is_history_required: false,
            };
            let (disk, network) = (self.coverage.clone(), self.network.clone());
            match RouterConfigs::covering(text, settings, disk, channels, network, &self.host).await {
                Ok(configs) => return (configs, applied),
                Err(_) => sleep(RESTART_DELAY).await,
            }
        }
    }

    /// Serves on `address`, with the configuration in `text` at first.
    pub(super) async fn run(
        self,
        address: Address,
        text: String,
        mut commands: mpsc::UnboundedReceiver<RouterCommand>,
    ) {
        let (mut configs, applied) = self.start_configs(&text).await;
        let RouterProgram { network, host, .. } = &self;
        if let Some(spool) = &host.spool {
            spool.mark_unconfigured_for_flush(&configs.active().servers());
        }
        host.spares.configure(configs.active().reads().pools());
        let mut threads: Vec<Thread> =
            (0..THREADS).map(|index| self.start_thread(configs.active(), applied.clone(), index)).collect();
        let mut listener = network.listen(&address).await.expect("a simulated network listens");
        let mut replay = pin!(self.replay_spool());
        let mut run_spares = pin!(host.spares.run(network.clone()));
        let mut accepted = 0;
        loop {
            tokio::select! {
                biased;
                () = &mut replay => {}
                () = &mut run_spares => {}
                command = commands.recv() => match command {
                    Some(RouterCommand::Configure(text)) => configs.set_newest(&text, host),
                    Some(RouterCommand::Exit) | None => break,
                },
                () = configs.step(host) => {}
                stream = listener.accept() => {
                    let Ok(stream) = stream else { break };
                    threads[accepted % THREADS].serve(stream);
                    accepted += 1;
                }
            }
            for thread in &threads {
                thread.publish(&configs.active());
            }
        }
        // As in an upgrade: the next process continues from what is on disk.
        drop(configs);
        // Batches that have begun are answered, and may need the peers; then the spool is closed, so that the next
        // process can open it.
        let drained = async {
            for thread in &mut threads {
                thread.drain().await;
            }
        };
        tokio::select! {
            biased;
            () = &mut replay => {}
            () = drained => {}
        }
        if let Some(spool) = &host.spool {
            spool.close().await.expect("its own disk can be released");
        }
    }

    async fn replay_spool(&self) {
        match &self.host.spool {
            Some(spool) => spool.replay(self.network.clone(), self.seed).await,
            None => pending().await,
        }
    }

    fn start_thread(
        &self,
        active: Arc<ActiveConfigs>,
        applied: mpsc::UnboundedSender<Applied>,
        index: usize,
    ) -> Thread {
        let (configs, received) = watch::channel(active);
        let seed = self.seed ^ index as u64;
        let mut updates = ConfigUpdates::new(index, received, applied, self.network.clone(), seed);
        let proxy = Proxy::new(
            Settings { flush_enabled: true, ..Settings::default() },
            self.host.shared.clone(),
            updates.build_tree(None),
        );
        updates.report_first(&proxy);
        let mut tasks = JoinSet::new();
        let updated = proxy.clone();
        tasks.spawn_local(self.process.task(async move { updates.apply_all(&updated).await }));
        Thread {
            process: self.process.clone(),
            proxy,
            configs,
            _updates: tasks,
            sessions: JoinSet::new(),
            shutdowns: Vec::new(),
        }
    }
}

/// A thread of the router. Its tasks end when it is dropped.
struct Thread {
    process: Process,
    proxy: Arc<Proxy>,
    /// Its own: a channel wakes its receivers in an unseeded random order.
    configs: watch::Sender<Arc<ActiveConfigs>>,
    _updates: JoinSet<()>,
    sessions: JoinSet<()>,
    /// One for each session, for the same reason.
    shutdowns: Vec<watch::Sender<bool>>,
}

impl Thread {
    /// Sends it `active`, unless it was the last.
    fn publish(&self, active: &Arc<ActiveConfigs>) {
        self.configs.send_if_modified(|last| {
            let is_new = !Arc::ptr_eq(last, active);
            *last = active.clone();
            is_new
        });
    }

    fn serve(&mut self, stream: Box<dyn Stream>) {
        let (stop, shutdown) = watch::channel(false);
        self.shutdowns.push(stop);
        let serve = self.proxy.clone().serve(Box::new(OneConnection(Some(stream))), shutdown);
        self.sessions.spawn_local(self.process.task(serve));
    }

    /// Answers the batches that have begun, and closes all connections.
    async fn drain(&mut self) {
        for stop in &self.shutdowns {
            stop.send_replace(true);
        }
        while self.sessions.join_next().await.is_some() {}
    }
}

/// A listener that accepts one connection.
struct OneConnection(Option<Box<dyn Stream>>);

impl Listener for OneConnection {
    fn accept(&mut self) -> BoxFuture<'_, io::Result<Box<dyn Stream>>> {
        Box::pin(async move {
            match self.0.take() {
                Some(stream) => Ok(stream),
                None => pending().await,
            }
        })
    }
}
