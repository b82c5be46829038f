//! Routers of different versions that are each other's peers, over one server, on a fake network with a paused clock.

use crate::fake_network::Health;
use crate::peer_cluster::{Fixture, PEER_TIMEOUT, host};
use lookaside_client::{Listener, Network as _, Stream};
use lookaside_protocol::Reply;
use lookaside_routing::{Address, Outcome};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, split};
use tokio::time::sleep;

const NOT_FOUND: Outcome = Ok(Reply::NotFound);

/// A router of an earlier version, which does not know how long the fences of others are to last, until a later one
/// takes over from it, and keeps its connections.
#[derive(Default)]
struct UpgradedPeer {
    is_upgraded: AtomicBool,
    /// The requests for fences with and without a duration, since the upgrade.
    fences: Mutex<Vec<String>>,
    connections: AtomicUsize,
}

impl UpgradedPeer {
    async fn serve(self: Arc<Self>, mut listener: Box<dyn Listener>) {
        while let Ok(stream) = listener.accept().await {
            self.connections.fetch_add(1, Relaxed);
            tokio::spawn(self.clone().reply_to_all(stream));
        }
    }

    async fn reply_to_all(self: Arc<Self>, stream: Box<dyn Stream>) {
        let (input, mut output) = split(stream);
        let mut lines = BufReader::new(input).lines();
        while let Ok(Some(line)) = lines.next_line().await {
            let keys = line.strip_prefix("get ").into_iter().flat_map(|keys| keys.split(' '));
            let values: String = keys.filter_map(|key| self.reply(key)).collect();
            if output.write_all(format!("{values}END\r\n").as_bytes()).await.is_err() {
                return;
            }
        }
    }

    fn reply(&self, key: &str) -> Option<String> {
        let is_upgraded = self.is_upgraded.load(Relaxed);
        if key.contains("spool_fence(") || key.contains("spool_fence_for(") {
            self.fences.lock().unwrap().extend(is_upgraded.then(|| key.to_owned()));
        }
        let value = match key {
            key if key.contains("spool_fenced(") => "",
            key if key.contains("spool_fence_for(") && !is_upgraded => return None,
            key if key.contains("spool_delete(") => return None,
            _ => "ok",
        };
        Some(format!("VALUE {key} 0 {}\r\n{value}\r\n", value.len()))
    }
}

/// The router had found out once that its peer did not know durations, and asked for fences without them for as long as
/// the connection lasted: after the peer's upgrade its fences still ended by its own time-out.
#[tokio::test(start_paused = true)]
async fn a_fence_lasts_as_long_after_an_upgrade_of_the_peer_that_keeps_its_connections() {
    let mut fixture = Fixture::start().await;
    fixture.kill(1).await;
    let peer = Arc::<UpgradedPeer>::default();
    let view = fixture.network.view(&host(1));
    let listener = view.listen(&Address(host(1).into())).await.expect("it listens");
    tokio::spawn(peer.clone().serve(listener));
    sleep(Duration::from_secs(1)).await;
    fixture.main().be(Health::Frozen);
    assert_eq!(fixture.delete(0, "k").await, NOT_FOUND, "a request without a duration will do");
    sleep(PEER_TIMEOUT * 3).await;
    assert_eq!(fixture.delete(0, "l").await, NOT_FOUND, "it is renewed");
    let connections = peer.connections.load(Relaxed);
    peer.is_upgraded.store(true, Relaxed);
    sleep(PEER_TIMEOUT).await;
    assert_eq!(fixture.delete(0, "m").await, NOT_FOUND);
    assert_eq!(peer.connections.load(Relaxed), connections, "it has kept them");
    let fences = peer.fences.lock().unwrap();
    let duration = format!(",{},", PEER_TIMEOUT.as_millis());
    let is_with_duration = |key: &String| key.contains("spool_fence_for(") && key.contains(&duration);
    assert!(!fences.is_empty() && fences.iter().all(is_with_duration), "{fences:?}");
}
