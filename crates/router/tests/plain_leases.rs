//! Leases for clients that know none, over changes of the configuration, under a paused clock.

use crate::fake_network::{FakeNetwork, FakeServer};
use crate::support::{FakeRoute, SessionHarness, expect};
use lookaside_client::DestinationOptions;
use lookaside_router::{ActiveConfigs, RouterConfig, Settings, Tree};
use lookaside_routing::Defaults;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncWriteExt as _, DuplexStream};
use tokio::time::{advance, timeout};

const ALL: &str = r#""LeaseRoute|PoolRoute|A""#;
const NONE: &str = r#""PoolRoute|A""#;
const POSTS: &str = r#"{
    "type": "PrefixSelectorRoute", "policies": { "post:": "LeaseRoute|PoolRoute|A" }, "wildcard": "PoolRoute|A"
}"#;

fn active(servers: &str, route: &str) -> ActiveConfigs {
    let text = format!(r#"{{ "pools": {{ "A": {{ "servers": [{servers}] }} }}, "route": {route} }}"#);
    let config = RouterConfig::parse(&text, &Defaults::default(), &DestinationOptions::default());
    ActiveConfigs::single(Arc::new(config.expect("it is valid")))
}

/// A client of a router whose configuration changes.
struct Fixture {
    network: Arc<FakeNetwork>,
    server: Arc<FakeServer>,
    harness: SessionHarness,
    active: ActiveConfigs,
    client: DuplexStream,
}

impl Fixture {
    fn start(route: &str) -> Fixture {
        let network = Arc::<FakeNetwork>::default();
        let active = active(r#""main:1""#, route);
        let tree = Tree::build_active(&active, network.clone(), 1, None);
        let harness = SessionHarness::start_with(Settings::default(), tree, FakeRoute::new());
        let (server, client) = (network.server("main:1"), harness.connect());
        Fixture { network, server, harness, active, client }
    }

    fn configure(&mut self, servers: &str, route: &str) {
        self.active = active(servers, route).after(&self.active);
        let proxy = &self.harness.proxy;
        proxy.set_tree(Tree::build_active(&self.active, self.network.clone(), 1, Some(&proxy.tree())));
    }

    /// The client misses the key, which has this lease at the server.
    async fn miss(&mut self, lease: u64) {
        self.server.refuse("lease-get", &format!("LVALUE k {lease} 0 0\r\n\r\nEND"));
        self.client.write_all(b"get k\r\n").await.expect("a pipe does not break");
        expect(&mut self.client, "END\r\n").await;
    }

    async fn set(&mut self, reply: &str) {
        self.client.write_all(b"set k 0 0 1\r\nv\r\n").await.expect("a pipe does not break");
        let expected = format!("{reply}\r\n");
        timeout(Duration::from_secs(5), expect(&mut self.client, &expected)).await.expect("the reply is as long");
    }
}

/// Two threads share a connection. One missed the key while it was not leased, and has read the database; the other
/// missed it behind a delete, when it was leased. The set of the first was stored under the token of the second.
#[tokio::test(start_paused = true)]
async fn a_value_that_was_read_before_its_key_was_leased_is_not_stored() {
    for (first, second) in [(ALL, NONE), (NONE, NONE), (POSTS, POSTS), (ALL, POSTS)] {
        let mut fixture = Fixture::start(first);
        fixture.configure(r#""main:1""#, second);
        fixture.miss(6).await;
        fixture.configure(r#""main:1""#, ALL);
        fixture.miss(7).await;
        fixture.server.refuse("set", "STORED");
        fixture.set("NOT_STORED").await;
        advance(Duration::from_secs(11)).await;
        fixture.miss(8).await;
        fixture.set("STORED").await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_change_of_servers_leaves_all_misses_known() {
    for route in [ALL, &POSTS.replace("post:", "k")] {
        let mut fixture = Fixture::start(route);
        fixture.miss(7).await;
        fixture.configure(r#""main:1", "main:1""#, route);
        fixture.server.refuse("set", "STORED");
        fixture.set("STORED").await;
        fixture.miss(8).await;
        fixture.set("STORED").await;
    }
}

/// An explanation of a delete took the client's own lease.
#[tokio::test(start_paused = true)]
async fn an_explanation_leaves_a_miss_as_it_is() {
    let mut fixture = Fixture::start(ALL);
    fixture.miss(7).await;
    fixture.client.write_all(b"get __mcrouter__.route(delete,k)\r\n").await.expect("a pipe does not break");
    expect(&mut fixture.client, "VALUE __mcrouter__.route(delete,k) 0 6\r\nmain:1\r\nEND\r\n").await;
    fixture.server.refuse("set", "STORED");
    fixture.set("STORED").await;
}
