//! How a tree reaches the servers of the configurations that it is built from.

use super::active_configs::CoveredConfig;
use super::*;
use lookaside_client::{Listener, Stream};
use lookaside_routing::{BoxFuture, Defaults, Security, TlsPolicy};
use lookaside_sync::Mutex;
use std::future::pending;
use std::io;

/// Connects to nothing, and notes by which policies it was to.
#[derive(Default)]
struct RecordingNetwork(Mutex<Vec<Security>>);

impl Network for RecordingNetwork {
    fn connect<'a>(&'a self, _: &'a Address) -> BoxFuture<'a, io::Result<Box<dyn Stream>>> {
        Box::pin(pending())
    }

    fn pinned(&self, policy: &TlsPolicy) -> Option<Arc<dyn Network>> {
        self.0.lock().push(policy.security);
        None
    }

    fn listen<'a>(&'a self, _: &'a Address) -> BoxFuture<'a, io::Result<Box<dyn Listener>>> {
        Box::pin(pending())
    }
}

fn parse(server: &str) -> Arc<RouterConfig> {
    let text = format!(r#"{{ "pools": {{ "A": {{ "servers": ["{server}"] }} }}, "route": "PoolRoute|A" }}"#);
    let config = RouterConfig::parse(&text, &Defaults::default(), &DestinationOptions::default());
    Arc::new(config.expect("the configuration is valid"))
}

/// The policy was that of the configuration in force, which does not name such a server, so it was not pinned. If a
/// later configuration reached the server plain, so did deletes on the tree from before.
#[tokio::test]
async fn a_server_that_only_a_covered_configuration_names_is_reached_by_its_policy() {
    let network = Arc::<RecordingNetwork>::default();
    let [reads, former] = ["new:1:ascii:plain", "old:1:ascii:ssl"].map(parse);
    let covered = CoveredConfig { id: "former".into(), config: former, departed: [].into(), is_released: false };
    let active = ActiveConfigs { covered: vec![covered], reads_at: 1, ..ActiveConfigs::single(reads) };
    let _tree = Tree::build_active(&active, network.clone(), 1, None);
    assert_eq!(*network.0.lock(), [Security::Plain, Security::Tls]);
}
