//! A router whose servers are those of a fake network, and a client with a connection to it.

use super::fake_network::{FakeNetwork, FakeServer};
use lookaside_client::{DestinationOptions, Network, Stream, TkoTrackers};
use lookaside_router::{Identity, Proxy, RouterConfig, Settings, SharedState, Tree};
use lookaside_routing::{Address, Defaults};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::watch;

pub const SERVER_TIMEOUT: Duration = Duration::from_secs(1);
pub const SERVERS: usize = 3;
/// Every verb fails over, deletes too.
const CONFIGURATION: &str = r#"{
    "pools": {
        "A": { "servers": ["server-0:1", "server-1:1", "server-2:1"] },
        "gutter": { "servers": ["gutter:1"] }, "last": { "servers": ["last:1"] }
    },
    "route": {
        "type": "FailoverWithExptimeRoute", "normal": "PoolRoute|A", "failover": ["PoolRoute|gutter", "PoolRoute|last"]
    }
}"#;

pub struct Fixture {
    pub network: Arc<FakeNetwork>,
    client: Box<dyn Stream>,
    _running: watch::Sender<bool>,
}

impl Fixture {
    pub async fn start() -> Fixture {
        let network = Arc::<FakeNetwork>::default();
        let (view, address) = (network.view("router"), Address("router:5000".into()));
        (0..SERVERS).for_each(|at| drop(network.server(&format!("server-{at}:1"))));
        ["gutter:1", "last:1"].iter().for_each(|gutter| drop(network.server(gutter)));
        let options = DestinationOptions { tko_trackers: Some(TkoTrackers::new()), ..DestinationOptions::default() };
        let defaults = Defaults { server_timeout_ms: SERVER_TIMEOUT.as_millis() as u64, ..Defaults::default() };
        let config = RouterConfig::parse(CONFIGURATION, &defaults, &options).expect("it is good");
        let tree = Tree::build(&Arc::new(config), view.clone(), 1, None);
        let proxy = Proxy::new(Settings::default(), SharedState::new(Identity::default(), "a test"), tree);
        let listener = view.listen(&address).await.expect("it listens");
        let (running, shutdown) = watch::channel(false);
        tokio::spawn(proxy.serve(listener, shutdown));
        let client = network.view("client").connect(&address).await.expect("it listens");
        Fixture { network, client, _running: running }
    }

    pub fn server(&self, at: usize) -> Arc<FakeServer> {
        self.network.server(&format!("server-{at}:1"))
    }

    pub fn gutter(&self) -> Arc<FakeServer> {
        self.network.server("gutter:1")
    }

    /// The gutter that is asked when the first one fails.
    pub fn last(&self) -> Arc<FakeServer> {
        self.network.server("last:1")
    }

    /// The reply to one command.
    pub async fn command(&mut self, command: &str) -> String {
        self.client.write_all(format!("{command}\r\nmn\r\n").as_bytes()).await.expect("it reads");
        let mut reply = Vec::new();
        while !reply.ends_with(b"MN\r\n") {
            assert!(self.client.read_buf(&mut reply).await.expect("it replies") > 0, "closed");
        }
        reply.truncate(reply.len() - "MN\r\n".len());
        String::from_utf8(reply).expect("text")
    }
}
