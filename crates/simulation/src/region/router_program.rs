//! The program of a router: what the daemon's threads do, as tasks.
//!
//! ```text
//!   main thread      replay of the spool, spares, configurations ---.
//!   thread 0         a proxy: a tree over its own connections  <----+
//!   thread 1         a proxy: a tree over its own connections  <----'
//! ```
//!
//! They share what the daemon's threads share: TKO states, fences, the spool.

use lookaside_client::{DestinationOptions, Listener, Network, Stream};
use lookaside_router::{Proxy, RouterConfig, Settings, SharedState, Spares, Spool, Tree};
use lookaside_routing::{Address, BoxFuture, Defaults};
use std::{future::pending, io, pin::pin, sync::Arc};
use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
};

/// Threads of a router.
const THREADS: usize = 2;

/// Commands to a running router.
pub(super) enum RouterCommand {
    /// The text of a new configuration.
    Configure(String),
    /// Answer the batches that have begun, close the spool, and end.
    Exit,
}

/// What a router's process consists of.
pub(super) struct RouterProgram {
    pub(super) network: Arc<dyn Network>,
    pub(super) options: DestinationOptions,
    pub(super) spool: Option<Arc<Spool>>,
    pub(super) spares: Arc<Spares>,
    pub(super) shared: Arc<SharedState>,
    pub(super) seed: u64,
}

impl RouterProgram {
    /// Serves on `address`, with the configuration in `text` at first.
    pub(super) async fn run(
        self,
        address: Address,
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
        let mut replay = pin!(self.replay_spool());
        let mut run_spares = pin!(self.spares.run(self.network.clone()));
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
        self.spares.configure(config.pools());
        let config = Arc::new(config);
        for thread in threads {
            // The thread ends with this process.
            let _ = thread.configs.send(config.clone());
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
