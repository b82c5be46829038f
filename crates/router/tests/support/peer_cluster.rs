//! Several routers of one cluster, each with a spool, over one server, on a fake network with a paused clock.

use super::fake_network::{FakeNetwork, FakeServer};
use super::spool_router::without_reason;
use bytes::Bytes;
use lookaside_client::{CommandConnection, DestinationOptions, Network, TkoTrackers};
use lookaside_protocol::text::{Limits, ReplyPart};
use lookaside_protocol::{Operation, Reply, Request, StoreMode};
use lookaside_router::{
    Fsync, Identity, MemoryDisk, PeerMissing, Proxy, RouterConfig, Settings, SharedState, Spool, SpoolSettings,
    SpoolStats, Tree,
};
use lookaside_routing::{Address, Context, Defaults, Failure, HealthSettings, Outcome};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::sleep;

pub const MAIN: &str = "main:1";
pub const ROUTERS: usize = 3;
/// The fence of a router that is silent for this long expires.
pub const PEER_TIMEOUT: Duration = Duration::from_secs(4);
pub const SERVER_TIMEOUT: Duration = Duration::from_millis(100);
/// How long a peer may take to reply.
pub const SPOOL_TIMEOUT: Duration = Duration::from_millis(200);
pub const CONFIGURATION: &str = r#"{ "pools": { "A": { "servers": ["main:1"] } }, "route": "PoolRoute|A" }"#;

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
    pub configuration: String,
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
            configuration: CONFIGURATION.to_owned(),
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

    /// Cuts a router off from the server, or restores the connection.
    pub fn cut_server(&self, router: usize, is_cut: bool) {
        self.network.cut(&host(router), MAIN, is_cut);
    }

    /// Cuts two routers off from each other, or restores the connection.
    pub fn cut_routers(&self, one: usize, other: usize, is_cut: bool) {
        self.network.cut(&host(one), &host(other), is_cut);
        self.network.cut(&host(other), &host(one), is_cut);
    }

    pub async fn request(&self, router: usize, key: &str, operation: Operation<Bytes>) -> Outcome {
        let Some(running) = &self.routers[router] else { return Err(Failure::ConnectFailed) };
        let request = Request { key: Bytes::copy_from_slice(key.as_bytes()), operation };
        without_reason(running.proxy.tree().root().route(vec![request], &Context::default()).await.remove(0))
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
        self.request(router, key, Operation::Get { cas: false }).await
    }

    pub async fn delete(&self, router: usize, key: &str) -> Outcome {
        self.request(router, key, Operation::Delete { hold_off_ms: 0 }).await
    }

    pub async fn set(&self, router: usize, key: &str, value: &str) -> Outcome {
        let value = Bytes::copy_from_slice(value.as_bytes());
        self.request(router, key, Operation::Store { mode: StoreMode::Set, flags: 0, exptime: 0, value, cas: false })
            .await
    }

    pub fn statistics(&self, router: usize) -> SpoolStats {
        self.routers[router].as_ref().expect("it runs").spool.statistics()
    }
}
