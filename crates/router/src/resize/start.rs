//! Starts the driver of a process: from its state on disk, or from the reports of its peers. Without both this is a
//! first start.
//!
//! The peers are asked although there is a state on disk. They may have forgotten the configuration that it reads: they
//! were started without this router in their `--spool-peers`, or have lost their disks. Then their deletes do not reach
//! its servers, so this router reads what they read. Those servers that no peer names have departed.
//!
//! The next process of an upgrade does not ask if the state on disk is the one that its predecessor has saved last. It
//! does not use another one.
//!
//! A history that the routers share counts as the report of one more peer, which never forgets. It always replies to a
//! router that knows nothing else: that one does not start before it has.
//!
//! A state on disk or a history that is there and cannot be used shows that this is no first start. A router that knows
//! nothing else does not start then, either. Nor does it if etcd refuses a history that the operator has asked for.

use super::driver::{Applied, InitialCoverage, ResizeHost, Resizer, ResizerSettings, UsableConfig};
use super::history::HistoryError;
use super::recorder::{HistoryAtStart, HistoryRecorder, KnownHistory, SeenRecord};
use super::report::CoverageReport;
use super::store::{CoverageDigest, CoverageStore, StoredCoverage};
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
        let (stored, unusable) = match load(&*store, settings.handed_over, host) {
            Ok(stored) => (stored, None),
            Err(why) => (None, Some(why)),
        };
        // Its clients wait, and what it needs is in its state.
        let is_continued = settings.handed_over.is_some() && stored.is_some();
        let (mut reports, texts) = match is_continued {
            true => Default::default(),
            false => ask_peers(&*network, &settings.peers, ASK_PEERS_MAX).await,
        };
        let of_peers = parse_of_peers(&texts, host);
        if !stored.as_ref().is_some_and(|stored| stored.is_known_to(&reports)) {
            // Before it records that it serves.
            of_peers.as_ref().map_err(Clone::clone)?;
        }
        let mut recorder = HistoryRecorder::new(settings.history.clone(), host.status().clone());
        let (history, recorded) = match settings.history {
            Some(_) if is_continued => (SharedHistory::Unknown, Vec::new()),
            _ => read_history(&mut recorder, &settings, host).await?,
        };
        let newest = ConfigId::of(config.text())?;
        reports.extend(history.record().and_then(|(_, history)| history.to_report(newest)));
        let mut initial = match join(stored, &reports, of_peers, &recorded)? {
            Some(joined) => joined,
            None => match (unusable, &history) {
                (Some(why), _) => return Err(why.start_error()),
                (None, SharedHistory::Unknown) => return Err(unknown_history_error(&settings)),
                (None, SharedHistory::Unusable(why)) => return Err(unusable_history_error(&settings, why)),
                (None, SharedHistory::Refused(why)) if settings.is_history_required => {
                    return Err(refused_history_error(&settings, why));
                }
                (None, SharedHistory::Unused | SharedHistory::Refused(_) | SharedHistory::Known(_)) => {
                    InitialCoverage::first(config.clone())?
                }
            },
        };
        initial.cover_recorded(recorded);
        let status = (host.status().clone(), recorder);
        let mut resizer = Resizer::new((initial, history.into_known()), settings, store, status, network, channels);
        resizer.set_newest(config, host)?;
        Ok(resizer)
    }
}

/// What a router knows of the shared history when it starts.
enum SharedHistory {
    /// None is shared.
    Unused,
    /// This router may not write it. The text says why.
    Refused(String),
    /// The store has not replied.
    Unknown,
    /// The store has something that this router cannot use. The text says what.
    Unusable(String),
    Known(SeenRecord),
}

impl SharedHistory {
    fn record(&self) -> Option<&SeenRecord> {
        match self {
            SharedHistory::Known(record) => Some(record),
            _ => None,
        }
    }

    fn into_known(self) -> KnownHistory {
        match self {
            SharedHistory::Unused | SharedHistory::Refused(_) | SharedHistory::Unusable(_) => KnownHistory::Unused,
            SharedHistory::Unknown => KnownHistory::Unknown,
            SharedHistory::Known(record) => KnownHistory::Seen(record),
        }
    }
}

/// The shared history, and its configurations.
async fn read_history(
    recorder: &mut HistoryRecorder,
    settings: &ResizerSettings,
    host: &dyn ResizeHost,
) -> Result<(SharedHistory, Vec<UsableConfig>), String> {
    let is_usable = |id, text: &str| UsableConfig::parse_recorded(id, text, host).is_ok();
    let HistoryAtStart { record, texts } = match recorder.read_first(&is_usable).await {
        Some(Ok(history)) => history,
        Some(Err(HistoryError::Unavailable(_))) => return Ok((SharedHistory::Unknown, Vec::new())),
        Some(Err(HistoryError::Unusable(why))) => return Ok((SharedHistory::Unusable(why), Vec::new())),
        Some(Err(HistoryError::Refused(why))) => return Ok((SharedHistory::Refused(why), Vec::new())),
        None => return Ok((SharedHistory::Unused, Vec::new())),
    };
    let parse = |(id, text): (ConfigId, String)| {
        let usable = UsableConfig::parse_recorded(id, &text, host);
        usable.map_err(|why| unusable_error(settings, id, &why))
    };
    let recorded = texts.into_iter().map(parse).collect::<Result<_, String>>()?;
    warn_of_lost(settings, &record);
    Ok((SharedHistory::Known(record), recorded))
}

/// A router that started as the first of its cluster would trust servers that have missed deletes.
fn unknown_history_error(settings: &ResizerSettings) -> String {
    format!(
        "etcd does not return the history of the configuration's changes ({}), and this router has none in --config-cache or \
         from a peer, so it does not know which servers have missed deletes: it must be started again; check that etcd \
         answers and can write (etcdctl endpoint health)",
        history_location(settings)
    )
}

/// Without the option it starts: an account that reads the configuration in etcd need not be one for the history.
fn refused_history_error(settings: &ResizerSettings, why: &str) -> String {
    format!(
        "etcd refuses this router the history of the configuration's changes, which --config-history asks for, and this \
         router has none in --config-cache or from a peer, so it does not know which servers have missed deletes: {why}; \
         grant the user of --config-history the permission (etcdctl role grant-permission ROLE readwrite --prefix {key}), \
         and start the router again",
        key = history_key(settings)
    )
}

fn unusable_history_error(settings: &ResizerSettings, why: &str) -> String {
    format!(
        "the history of the configuration's changes in etcd cannot be used, and this router has none in --config-cache or \
         from a peer, so it does not know which servers have missed deletes: {why}; start the version that wrote the history, \
         and name endpoints of etcd in --config or --config-history that let all requests pass. Or, if no router of \
         the cluster runs: remove the history (etcdctl del {key}, and etcdctl del --prefix {key}/) and flush all servers before \
         a router starts",
        key = history_key(settings)
    )
}

/// Why a state on disk is not used.
enum UnusableState {
    /// It cannot be read, or not in this version. The text says more.
    Unreadable(String),
    /// The predecessor has saved another one.
    OfOtherProcess,
}

impl UnusableState {
    fn log(&self) {
        match self {
            UnusableState::Unreadable(why) => tracing::error!(
                why,
                "cannot use the saved configurations, and asks the peers and the history in etcd instead: keep \
                 FILE.coverage beside --config-cache FILE, or remove both"
            ),
            UnusableState::OfOtherProcess => tracing::warn!(
                "FILE.coverage beside --config-cache FILE is not what the predecessor has saved last, so it may be \
                 outdated: asking the peers and the history in etcd instead; give both processes the same --config-cache"
            ),
        }
    }

    /// It is all that this router has.
    fn start_error(&self) -> String {
        match self {
            UnusableState::Unreadable(why) => format!(
                "the saved configurations in FILE.coverage, beside --config-cache FILE, cannot be used, and no peer and \
                 no history in etcd knows others, so this router does not know which servers have missed deletes: {why}; \
                 make the file readable, start the version that wrote it, with the certificates that its configurations \
                 name, or start a peer first. Or, if no router of the cluster runs: remove the file and flush all servers \
                 before a router starts"
            ),
            UnusableState::OfOtherProcess => "FILE.coverage beside --config-cache FILE is not what the predecessor has \
                saved last, and no peer and no history in etcd knows the configurations of before, so this router does not \
                know which servers have missed deletes: give it the --config-cache of the predecessor, which continues to \
                serve"
                .to_owned(),
        }
    }
}

/// Routers may read by a configuration that this router cannot use.
fn unusable_error(settings: &ResizerSettings, id: ConfigId, why: &str) -> String {
    let location = history_location(settings);
    format!(
        "routers may read by the configuration {id} of the history, {location}/{id}, and this router cannot use it: {why}; \
         start a version that can, with what it names (certificates). Or, if no router of the cluster runs: remove the \
         history (etcdctl del {key}, and etcdctl del --prefix {key}/) and flush all servers before a router starts",
        key = history_key(settings)
    )
}

fn history_key(settings: &ResizerSettings) -> String {
    settings.history.as_ref().map(|history| history.key()).unwrap_or_default()
}

fn history_location(settings: &ResizerSettings) -> String {
    settings.history.as_ref().map(|history| history.location()).unwrap_or_default()
}

fn warn_of_lost(settings: &ResizerSettings, (_, history): &SeenRecord) {
    for id in history.lost() {
        tracing::warn!(
            configuration = %id, history = history_location(settings),
            "a former configuration of the history cannot be used, or could not by routers that have run: all servers of the \
             next configuration will be emptied"
        );
    }
}

/// The configurations that peers cover.
fn parse_of_peers(texts: &[String], host: &dyn ResizeHost) -> Result<Vec<UsableConfig>, String> {
    let parse = |text: &String| {
        UsableConfig::parse(text, host).map_err(|why| {
            format!(
                "a peer covers a configuration that this router cannot use, so deletes through this router would not reach \
                 its servers: {why}; start this router with the version, the options and the certificates of its peers, or \
                 again when they no longer cover that configuration"
            )
        })
    };
    texts.iter().map(parse).collect()
}

/// The state by `stored`, unless a peer or the history, which have these reports, does not know it. `None` if there is
/// none at all.
fn join(
    stored: Option<InitialCoverage>,
    reports: &[CoverageReport],
    of_peers: Result<Vec<UsableConfig>, String>,
    recorded: &[UsableConfig],
) -> Result<Option<InitialCoverage>, String> {
    match stored {
        Some(stored) if stored.is_known_to(reports) => Ok(Some(stored)),
        Some(stored) => {
            tracing::warn!(
                "a peer, or the history in etcd, does not cover the configuration that this router read last: reading by \
                 theirs, and emptying servers that it does not name before they are read; name all routers of the cluster \
                 in --spool-peers"
            );
            InitialCoverage::of_peers(reports, of_peers?, recorded, Some(&stored))
        }
        None => InitialCoverage::of_peers(reports, of_peers?, recorded, None),
    }
}

/// The state in `store`; `None` if there is none. An error if it cannot be used, or is not the one that was handed over.
fn load(
    store: &dyn CoverageStore,
    handed_over: Option<CoverageDigest>,
    host: &dyn ResizeHost,
) -> Result<Option<InitialCoverage>, UnusableState> {
    let parse = |text: &str| InitialCoverage::stored(&StoredCoverage::parse(text)?, host);
    let stored = match store.load() {
        Err(error) => Err(UnusableState::Unreadable(error.to_string())),
        Ok(None) => Ok(None),
        Ok(Some(text)) if handed_over.is_some_and(|digest| digest != CoverageDigest::of(&text)) => {
            Err(UnusableState::OfOtherProcess)
        }
        Ok(Some(text)) => parse(&text).map(Some).map_err(UnusableState::Unreadable),
    };
    stored.inspect_err(UnusableState::log)
}

#[cfg(test)]
mod tests {
    use super::*;
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

    /// It started as the first of its cluster, or continued from an outdated state.
    #[test]
    fn a_peer_without_the_text_of_what_it_reads_is_an_error() {
        let id = ConfigId::of(CONFIG).expect("a configuration");
        let report = CoverageReport { reads: vec![id], covers: [id].into(), ..CoverageReport::default() };
        let refused = InitialCoverage::of_peers(&[report], Vec::new(), &[], None);
        assert!(refused.is_err_and(|why| why.contains(&id.to_string())));
        assert!(InitialCoverage::of_peers(&[], Vec::new(), &[], None).is_ok_and(|of_peers| of_peers.is_none()));
    }
}
