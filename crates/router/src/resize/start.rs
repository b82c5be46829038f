//! Starts the driver of a process: from its state on disk, or from the reports of its peers. Without both this is a
//! first start.
//!
//! The peers are asked although there is a state on disk. They may have forgotten the configuration that it reads: they
//! were started without this router in their `--spool-peers`, or have lost their disks. Then their deletes do not reach
//! its servers, so this router reads what they read. Those servers that no peer names have departed.
//!
//! A history that the routers share counts as the report of one more peer, which never forgets and always replies.

use super::driver::{Applied, InitialCoverage, ResizeHost, Resizer, ResizerSettings};
use super::history::HistoryError;
use super::recorder::{HistoryAtStart, HistoryRecorder};
use super::report::CoverageReport;
use super::store::{CoverageStore, StoredCoverage};
use super::work::ask_peers;
use crate::config::router_config::RouterConfig;
use crate::tree::active_configs::ActiveConfigs;
use lookaside_client::Network;
use lookaside_client::config::ConfigId;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};

/// How long a router that starts waits for the report of each peer.
const ASK_PEERS_MAX: Duration = Duration::from_secs(1);

/// Connects a driver with the threads of its process.
pub struct ResizerChannels {
    /// Sends configurations to the threads.
    pub publish: watch::Sender<Arc<ActiveConfigs>>,
    /// Receives what threads have applied.
    pub applied: mpsc::UnboundedReceiver<Applied>,
}

impl Resizer {
    /// A driver that continues from the state in `store`, before any thread serves. `config` is the newest
    /// configuration of the source, and is read at once if there is no such state. An error tells why a configuration
    /// cannot be used.
    pub async fn start(
        config: RouterConfig,
        settings: ResizerSettings,
        store: Box<dyn CoverageStore>,
        host: &dyn ResizeHost,
        network: Arc<dyn Network>,
        channels: ResizerChannels,
    ) -> Result<Resizer, String> {
        let stored = load(&*store, host);
        let mut recorder = HistoryRecorder::new(settings.history.clone(), host.status().clone());
        let first = match stored {
            // Its clients wait, and what it needs is in its state.
            Some(_) if settings.is_takeover && settings.history.is_some() => {
                Some(Err(HistoryError::Away("not read yet".to_owned())))
            }
            _ => recorder.read_first().await,
        };
        let (history, texts) = match first {
            Some(Ok(HistoryAtStart { record, texts })) => (Some(Some(record)), texts),
            Some(Err(HistoryError::Away(_))) => (Some(None), Vec::new()),
            Some(Err(HistoryError::Refused(_))) | None => (None, Vec::new()),
        };
        let mut initial = match stored {
            Some(stored) if settings.is_takeover => stored,
            stored => {
                let newest = ConfigId::of(config.text())?;
                let known = history.iter().flatten().find_map(|(_, history)| history.to_report(newest));
                ask_and_join(stored, &settings, &*network, (known, &texts), &config, host).await?
            }
        };
        initial.cover_recorded(&texts, host)?;
        let status = (host.status().clone(), recorder);
        let mut resizer = Resizer::new((initial, history), settings, store, status, network, channels);
        resizer.set_newest(config, host)?;
        Ok(resizer)
    }
}

/// The state by `stored`, unless a peer or the history does not know it.
async fn ask_and_join(
    stored: Option<InitialCoverage>,
    settings: &ResizerSettings,
    network: &dyn Network,
    (history, recorded): (Option<CoverageReport>, &[String]),
    config: &RouterConfig,
    host: &dyn ResizeHost,
) -> Result<InitialCoverage, String> {
    let (mut reports, mut texts) = ask_peers(network, &settings.peers, ASK_PEERS_MAX).await;
    reports.extend(history);
    texts.extend_from_slice(recorded);
    match stored {
        Some(stored) if stored.is_known_to(&reports) => Ok(stored),
        Some(stored) => {
            tracing::warn!(
                "a peer, or the history in etcd, does not cover the configuration that this router read last: reading by \
                 theirs, and emptying servers that it does not name before they are read; name all routers of the cluster \
                 in --spool-peers"
            );
            let of_peers = InitialCoverage::of_peers(&reports, &texts, Some(&stored), host)?;
            Ok(of_peers.expect("a peer has reported"))
        }
        None => {
            let of_peers = InitialCoverage::of_peers(&reports, &texts, None, host)?;
            of_peers.map_or_else(|| InitialCoverage::first(config.clone()), Ok)
        }
    }
}

fn load(store: &dyn CoverageStore, host: &dyn ResizeHost) -> Option<InitialCoverage> {
    let stored = store.load().map_err(|error| error.to_string()).and_then(|text| {
        let Some(text) = text else { return Ok(None) };
        InitialCoverage::stored(&StoredCoverage::parse(&text)?, host).map(Some)
    });
    stored.unwrap_or_else(|why| {
        tracing::error!(
            why,
            "cannot use the saved configurations, and asks the peers instead: copies that a former configuration \
            placed may be read if no peer knows it; flush the servers if the configuration was changed"
        );
        None
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resize::status::ResizeStatus;
    use lookaside_client::{Listener, Stream, TcpNetwork};
    use lookaside_routing::{Address, BoxFuture};
    use std::io;
    use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
    use tokio::net::TcpListener;
    use tokio::time::sleep;

    const CONFIG: &str = r#"{ "pools": { "a": { "servers": ["127.0.0.1:1"] } }, "route": "PoolRoute|a" }"#;

    /// Connecting takes a moment, so that the limit on a reply ends after the limit on all of them.
    struct SlowNetwork;

    impl Network for SlowNetwork {
        fn connect<'a>(&'a self, address: &'a Address) -> BoxFuture<'a, io::Result<Box<dyn Stream>>> {
            Box::pin(async move {
                sleep(Duration::from_millis(20)).await;
                TcpNetwork.connect(address).await
            })
        }

        fn listen<'a>(&'a self, address: &'a Address) -> BoxFuture<'a, io::Result<Box<dyn Listener>>> {
            TcpNetwork.listen(address)
        }
    }

    fn address_of(listener: &TcpListener) -> Address {
        Address(listener.local_addr().expect("bound").to_string().into())
    }

    /// A router that replies to one peer.
    async fn serve(listener: TcpListener) {
        let id = ConfigId::of(CONFIG).expect("a configuration");
        let report = CoverageReport { reads: vec![id], covers: [id].into(), ..CoverageReport::default() };
        let (mut stream, _) = listener.accept().await.expect("a peer connects");
        let (input, mut output) = stream.split();
        let mut lines = BufReader::new(input).lines();
        while let Ok(Some(line)) = lines.next_line().await {
            let key = line.strip_prefix("get ").expect("it only asks");
            let value = if key.ends_with("coverage") { report.to_json() } else { CONFIG.to_owned() };
            let reply = format!("VALUE {key} 0 {}\r\n{value}\r\nEND\r\n", value.len());
            output.write_all(reply.as_bytes()).await.expect("it reads");
        }
    }

    /// A peer that hung used to keep a router from what the others had replied: it took itself for the first of its
    /// cluster, and read by a configuration that no other covered.
    #[tokio::test]
    async fn a_peer_that_hangs_does_not_hide_what_another_reports() {
        // The kernel accepts its connections.
        let hung = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let healthy = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let peers = [address_of(&hung), address_of(&healthy)];
        let server = tokio::spawn(serve(healthy));
        let (reports, texts) = ask_peers(&SlowNetwork, &peers, ASK_PEERS_MAX).await;
        server.abort();
        assert_eq!((reports.len(), texts), (1, vec![CONFIG.to_owned(); 2]));
    }

    struct Host;

    impl ResizeHost for Host {
        fn status(&self) -> &Arc<ResizeStatus> {
            unreachable!("there is no state")
        }

        fn parse(&self, _: &str) -> Result<RouterConfig, String> {
            unreachable!("there is no text")
        }

        fn prepare(&self, _: &ActiveConfigs) {}

        fn record_in_force(&self, _: &RouterConfig) {}
    }

    /// It started as the first of its cluster, or continued from an outdated state.
    #[test]
    fn a_peer_without_the_text_of_what_it_reads_is_an_error() {
        let id = ConfigId::of(CONFIG).expect("a configuration");
        let report = CoverageReport { reads: vec![id], covers: [id].into(), ..CoverageReport::default() };
        let refused = InitialCoverage::of_peers(&[report], &[], None, &Host);
        assert!(refused.is_err_and(|why| why.contains(&id.to_string())));
        assert!(InitialCoverage::of_peers(&[], &[], None, &Host).is_ok_and(|of_peers| of_peers.is_none()));
    }
}
