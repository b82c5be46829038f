//! A router: the production code with its configuration language, on a simulated network. The disk of its spool
//! survives it.
//!
//! ```text
//!   main thread      replay of the spool, spares, configurations ---.
//!   thread 0         a proxy: a tree over its own connections  <----+
//!   thread 1         a proxy: a tree over its own connections  <----'
//! ```
//!
//! The daemon's threads are tasks here. They share what the daemon's threads share: TKO states, fences, the spool.

use super::names::{RouterName, address};
use super::{DisabledGuarantee, SimulatedRegion};
use crate::process::Process;
use lookaside_client::{DestinationOptions, Listener, Network, Stream, TkoTrackers};
use lookaside_router::{
    Identity, MemoryDisk, Proxy, RouterConfig, Settings, SharedState, Spares, Spool, SpoolSettings, Tree,
};
use lookaside_routing::{BoxFuture, Defaults, HealthSettings};
use std::{future::pending, io, sync::Arc, time::Duration};
use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
};

/// How long a server, or a peer, may take to answer the spool.
const SPOOL_TIMEOUT: Duration = Duration::from_millis(200);
/// The fence of a router that is silent for this long expires.
const PEER_TIMEOUT: Duration = Duration::from_secs(3);
/// The size of a small spool, in bytes: a few deletes per server.
const SPOOL_BYTES_SMALL: u64 = 200;
/// Threads of a router.
const THREADS: usize = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SpoolMode {
    Off,
    Large,
    /// So small that it overflows and servers are flushed.
    Small,
}

impl SpoolMode {
    pub(super) fn random(rng: &mut fastrand::Rng) -> SpoolMode {
        match rng.u8(0..4) {
            0 | 1 => SpoolMode::Off,
            2 => SpoolMode::Large,
            _ => SpoolMode::Small,
        }
    }
}

/// Commands to a running router.
pub(super) enum RouterCommand {
    /// The text of a new configuration.
    Configure(String),
    /// Answer the batches that have begun, close the spool, and end.
    Exit,
}

/// What a router's process consists of.
struct RouterProgram {
    network: Arc<dyn Network>,
    options: DestinationOptions,
    spool: Option<Arc<Spool>>,
    spares: Arc<Spares>,
    shared: Arc<SharedState>,
    seed: u64,
}

impl SimulatedRegion {
    /// Starts a router with the configuration in its file.
    pub(super) fn start_router(&self, router: RouterName, seed: u64) {
        let text = self.configuration_file(router);
        let process = Process::default();
        let network = self.network.host(&router.host(), &process);
        let tko_trackers = TkoTrackers::new();
        let spool = self.open_spool(router, &tko_trackers, seed);
        let spares = Spares::new(tko_trackers.clone());
        let health = HealthSettings { probe_initial_ms: 100, ..HealthSettings::default() };
        let options = DestinationOptions {
            health,
            tko_trackers: Some(tko_trackers),
            connect_eagerly: true,
            ..DestinationOptions::default()
        };
        let (commands, received) = mpsc::unbounded_channel();
        self.usage.borrow_mut().add(&spool, &spares);
        self.routers.borrow_mut().insert(router, commands);
        let shared = SharedState::new(Identity { pid: 1, started_unix_s: 0 }, "simulation");
        let program = RouterProgram { network, options, spool, spares, shared, seed };
        self.start(&router.host(), process, program.run(address(&router.host()), text, received));
    }

    /// `None` in runs without a spool.
    fn open_spool(&self, router: RouterName, tko_trackers: &Arc<TkoTrackers>, seed: u64) -> Option<Arc<Spool>> {
        let bytes_max = match self.plan.spool_mode {
            SpoolMode::Off => return None,
            SpoolMode::Large => SpoolSettings::default().bytes_max,
            SpoolMode::Small => SPOOL_BYTES_SMALL,
        };
        let peers = self.plan.routers(router.cluster).filter(|peer| *peer != router);
        let settings = SpoolSettings {
            bytes_max,
            timeout: SPOOL_TIMEOUT,
            peers: match self.disabled {
                DisabledGuarantee::Peers => Vec::new(),
                _ => peers.map(|peer| address(&peer.host())).collect(),
            },
            peer_timeout: PEER_TIMEOUT,
            seed,
            ..SpoolSettings::default()
        };
        let mut disks = self.spools.borrow_mut();
        let disk = disks.entry(router).or_default();
        if self.disabled == DisabledGuarantee::Spool {
            *disk = Arc::new(MemoryDisk::new());
        }
        // A fence in a tracker that the destinations do not share has no effect.
        let tko_trackers =
            if self.disabled == DisabledGuarantee::Fence { TkoTrackers::new() } else { tko_trackers.clone() };
        Some(Spool::open(disk.clone(), tko_trackers, settings).expect("its own files can be read"))
    }
}

impl RouterProgram {
    async fn run(
        self,
        address: lookaside_routing::Address,
        text: String,
        mut commands: mpsc::UnboundedReceiver<RouterCommand>,
    ) {
        let config = self.parse(&text);
        if let Some(spool) = &self.spool {
            spool.mark_unconfigured_for_flush(&config.servers());
        }
        self.spares.configure(config.pools());
        let config = Arc::new(config);
        let mut threads: Vec<Thread> = (0..THREADS).map(|index| self.start_thread(&config, index)).collect();
        let mut listener = self.network.listen(&address).await.expect("a simulated network listens");
        let mut replay = std::pin::pin!(self.replay_spool());
        let mut run_spares = std::pin::pin!(self.spares.run(self.network.clone()));
        let mut accepted = 0;
        loop {
            tokio::select! {
                biased;
                () = &mut replay => {}
                () = &mut run_spares => {}
                command = commands.recv() => match command {
                    Some(RouterCommand::Configure(text)) => self.publish(&text, &threads),
                    Some(RouterCommand::Exit) | None => break,
                },
                stream = listener.accept() => {
                    let Ok(stream) = stream else { break };
                    threads[accepted % THREADS].serve(stream);
                    accepted += 1;
                }
            }
        }
        // As in an upgrade: batches that have begun are answered, and may need the peers; then the spool is closed, so
        // that the next process can open it.
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
        if let Some(spool) = &self.spool {
            spool.close().await.expect("its own disk can be released");
        }
    }

    fn parse(&self, text: &str) -> RouterConfig {
        let config = RouterConfig::parse(text, &Defaults::default(), &self.options);
        config.expect("the configuration is valid").with_spool(self.spool.clone()).with_spares(self.spares.clone())
    }

    /// Puts a new configuration in force, as the daemon's main thread does it.
    fn publish(&self, text: &str, threads: &[Thread]) {
        let config = self.parse(text);
        let servers = config.servers();
        self.spares.configure(config.pools());
        let config = Arc::new(config);
        for thread in threads {
            // The thread ends with this process.
            let _ = thread.configs.send(config.clone());
        }
        if let Some(spool) = &self.spool {
            spool.pause_unconfigured(&servers);
        }
    }

    async fn replay_spool(&self) {
        match &self.spool {
            Some(spool) => spool.replay(self.network.clone(), self.seed).await,
            None => pending().await,
        }
    }

    fn start_thread(&self, config: &Arc<RouterConfig>, index: usize) -> Thread {
        let (network, seed) = (self.network.clone(), self.seed ^ index as u64);
        let tree = Tree::build(config, network.clone(), seed, None);
        let proxy = Proxy::new(Settings::default(), self.shared.clone(), tree);
        let (configs, mut received) = mpsc::unbounded_channel::<Arc<RouterConfig>>();
        let mut tasks = JoinSet::new();
        let reloading = proxy.clone();
        tasks.spawn_local(async move {
            while let Some(mut config) = received.recv().await {
                while let Ok(newer) = received.try_recv() {
                    config = newer;
                }
                let tree = Tree::build(&config, network.clone(), seed, Some(&reloading.tree()));
                tree.wait_until_ready().await;
                reloading.set_tree(tree);
            }
        });
        Thread { proxy, configs, _reload: tasks, sessions: JoinSet::new(), shutdowns: Vec::new() }
    }
}

/// A thread of the router. Its tasks end when it is dropped.
struct Thread {
    proxy: Arc<Proxy>,
    configs: mpsc::UnboundedSender<Arc<RouterConfig>>,
    _reload: JoinSet<()>,
    sessions: JoinSet<()>,
    /// One for each session: a channel wakes its receivers in an unseeded random order.
    shutdowns: Vec<watch::Sender<bool>>,
}

impl Thread {
    fn serve(&mut self, stream: Box<dyn Stream>) {
        let (stop, shutdown) = watch::channel(false);
        self.shutdowns.push(stop);
        self.sessions.spawn_local(self.proxy.clone().serve(Box::new(OneConnection(Some(stream))), shutdown));
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
