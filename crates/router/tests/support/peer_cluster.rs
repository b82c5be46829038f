//! Several routers of one cluster, each with a spool, over one server, on a fake network with a paused clock.

use super::fake_network::{FakeNetwork, FakeServer, Health};
pub use super::spool_router::{MAIN, ONE, REPAIR};
use super::tree_requests::{DELETE, GET, NOT_FOUND, request, request_batch, set};
use bytes::Bytes;
use lookaside_client::{CommandConnection, DestinationOptions, Network, TkoTrackers};
use lookaside_protocol::text::{Limits, ReplyPart};
use lookaside_protocol::{Operation, Reply};
use lookaside_router::{
    Fsync, Identity, MemoryDisk, PeerMissing, Proxy, RouterConfig, Settings, SharedState, Spool, SpoolSettings,
    SpoolStats, Tree,
};
use lookaside_routing::{Address, Defaults, Failure, HealthSettings, Outcome};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::sleep;

pub const ROUTERS: usize = 3;
/// The fence of a router that is silent for this long expires.
pub const PEER_TIMEOUT: Duration = Duration::from_secs(4);
pub const SERVER_TIMEOUT: Duration = Duration::from_millis(100);
/// How long a peer may take to reply.
pub const SPOOL_TIMEOUT: Duration = Duration::from_millis(200);

pub fn host(index: usize) -> String {
    format!("router-{index}:5000")
}

pub struct Fixture {
    pub network: Arc<FakeNetwork>,
    pub disks: Vec<Arc<MemoryDisk>>,
    pub routers: Vec<Option<RunningRouter>>,
    pub missing: PeerMissing,
    bytes_max: u64,
    pub fsync: Fsync,
    /// Of each router.
    pub peer_timeouts: [Duration; ROUTERS],
    configuration: String,
}

pub struct RunningRouter {
    pub proxy: Arc<Proxy>,
    pub spool: Arc<Spool>,
    pub options: DestinationOptions,
    pub tasks: [JoinHandle<()>; 2],
}

impl Fixture {
    pub async fn start() -> Fixture {
        Self::start_with(PeerMissing::Fail, 1 << 20).await
    }

    pub async fn start_with(missing: PeerMissing, bytes_max: u64) -> Fixture {
        let network = Arc::<FakeNetwork>::default();
        network.server(MAIN);
        let disks = (0..ROUTERS).map(|_| Arc::default()).collect();
        let mut fixture = Fixture {
            network,
            disks,
            routers: Vec::new(),
            missing,
            bytes_max,
            fsync: Fsync::Always,
            peer_timeouts: [PEER_TIMEOUT; ROUTERS],
            configuration: ONE.to_owned(),
        };
        for index in 0..ROUTERS {
            fixture.routers.push(None);
            fixture.start_router(index).await;
        }
        // The routers connect to each other.
        sleep(Duration::from_secs(1)).await;
        fixture
    }

    pub async fn start_router(&mut self, index: usize) {
        let view = self.network.view(&host(index));
        let peers = (0..ROUTERS).filter(|peer| *peer != index).map(|peer| Address(host(peer).into())).collect();
        let shared = SharedState::new(Identity { pid: 1, started_unix_s: 0 }, "a test");
        let settings = SpoolSettings {
            peers,
            read_permits: shared.read_permits().clone(),
            peer_timeout: self.peer_timeouts[index],
            peer_missing: self.missing,
            bytes_max: self.bytes_max,
            fsync: self.fsync,
            timeout: SPOOL_TIMEOUT,
            wait_max: Duration::from_millis(200),
            seed: 100 + index as u64,
            ..SpoolSettings::default()
        };
        let tko_trackers = TkoTrackers::new();
        let health = HealthSettings { probe_initial_ms: 50, probe_max_ms: 200, ..HealthSettings::default() };
        let options =
            DestinationOptions { tko_trackers: Some(tko_trackers.clone()), health, ..DestinationOptions::default() };
        let defaults = Defaults { server_timeout_ms: SERVER_TIMEOUT.as_millis() as u64, ..Defaults::default() };
        let spool = Spool::open(self.disks[index].clone(), tko_trackers, settings).expect("the disk is good");
        let config = RouterConfig::parse(&self.configuration, &defaults, &options)
            .expect("it is good")
            .with_spool(Some(spool.clone()));
        let tree = Tree::build(&Arc::new(config), view.clone(), index as u64, None);
        let proxy = Proxy::new(Settings { flush_enabled: true, ..Settings::default() }, shared, tree);
        let listener = view.listen(&Address(host(index).into())).await.expect("it listens");
        let (serving, replayed) = (proxy.clone(), spool.clone());
        let serve = tokio::spawn(async move {
            let (_running, shutdown) = watch::channel(false);
            serving.serve(listener, shutdown).await;
        });
        let replay = tokio::spawn(async move { replayed.replay(view, index as u64).await });
        self.routers[index] = Some(RunningRouter { proxy, spool, options, tasks: [serve, replay] });
    }

    pub async fn kill(&mut self, index: usize) {
        let Some(running) = self.routers[index].take() else { return };
        for task in running.tasks {
            task.abort();
            let _ = task.await;
        }
    }

    /// Kills a router and starts the next run on the same disk.
    pub async fn restart(&mut self, index: usize) {
        self.kill(index).await;
        self.start_router(index).await;
    }

    /// Restarts all routers with another configuration, and waits until they are connected to each other.
    pub async fn restart_all(&mut self, configuration: &str) {
        configuration.clone_into(&mut self.configuration);
        for index in 0..ROUTERS {
            self.kill(index).await;
        }
        for index in 0..ROUTERS {
            self.start_router(index).await;
        }
        sleep(Duration::from_secs(1)).await;
    }

    /// The next process takes over the closed spool of this one.
    pub async fn upgrade(&mut self, index: usize) {
        let Some(running) = &self.routers[index] else { return };
        running.tasks.iter().for_each(JoinHandle::abort);
        running.spool.close().await.expect("it is released");
        self.kill(index).await;
        self.start_router(index).await;
    }

    pub fn main(&self) -> Arc<FakeServer> {
        self.network.server(MAIN)
    }

    /// Freezes the server, which has a value of `k`, and deletes `k` through the first router: that router has a
    /// backlog, and all have fenced the server.
    pub async fn spool_delete(&self) {
        self.main().put("k", "old");
        self.main().be(Health::Frozen);
        assert_eq!(self.delete(0, "k").await, NOT_FOUND, "spooled");
    }

    /// Lets the server return, and gives the routers the time to replay its backlog.
    pub async fn repair(&self) {
        self.main().be(Health::Well);
        sleep(REPAIR).await;
    }

    /// Asserts what every router replies to a get.
    pub async fn check_get_of_all(&self, key: &str, expected: &Outcome) {
        for router in 0..ROUTERS {
            assert_eq!(self.get(router, key).await, *expected, "{router}");
        }
    }

    /// Cuts a router off from the server, or restores the connection.
    pub fn cut_server(&self, router: usize, is_cut: bool) {
        self.network.cut(&host(router), MAIN, is_cut);
    }

    /// Cuts two routers off from each other, or restores the connection.
    pub fn cut_routers(&self, one: usize, other: usize, is_cut: bool) {
        self.network.cut(&host(one), &host(other), is_cut);
        self.network.cut(&host(other), &host(one), is_cut);
    }

    /// Cuts a router off from the server and from its peers.
    pub fn isolate(&self, router: usize) {
        self.cut_server(router, true);
        (0..ROUTERS).filter(|peer| *peer != router).for_each(|peer| self.cut_routers(router, peer, true));
    }

    pub async fn request(&self, router: usize, key: &str, operation: Operation<Bytes>) -> Outcome {
        let Some(running) = &self.routers[router] else { return Err(Failure::ConnectFailed) };
        request(&running.proxy.tree(), key, operation).await
    }

    /// The reply of a router to a flush of the servers that may hold keys with a prefix.
    pub async fn flush_prefix(&self, router: usize, prefix: &str) -> String {
        let limits = Limits { value_bytes_max: 4_096, line_bytes_max: 4_096 };
        let (client, address) = (self.network.view("client"), Address(host(router).into()));
        let connection = CommandConnection::connect(&*client, &address, limits, Duration::from_secs(10)).await;
        let mut connection = connection.expect("the router runs");
        let command = format!("get __mcrouter__.flush_prefix({prefix})\r\n");
        connection.send(command.as_bytes()).await.expect("it is sent");
        let mut reply = String::new();
        let on_part = |part: ReplyPart<'_>| {
            if let ReplyPart::Item { reply: Reply::Value { value, .. }, .. } = part {
                reply = String::from_utf8_lossy(value).into_owned();
            }
        };
        connection.read_until_end(on_part).await.expect("a reply");
        reply
    }

    pub async fn get(&self, router: usize, key: &str) -> Outcome {
        self.request(router, key, GET).await
    }

    pub async fn delete(&self, router: usize, key: &str) -> Outcome {
        self.request(router, key, DELETE).await
    }

    /// Deletes several keys as one batch.
    pub async fn delete_batch(&self, router: usize, keys: &[&str]) -> Vec<Outcome> {
        let running = self.routers[router].as_ref().expect("it runs");
        request_batch(&running.proxy.tree(), keys, DELETE).await
    }

    pub async fn set(&self, router: usize, key: &str, value: &str) -> Outcome {
        self.request(router, key, set(value)).await
    }

    pub fn statistics(&self, router: usize) -> SpoolStats {
        self.routers[router].as_ref().expect("it runs").spool.statistics()
    }
}
