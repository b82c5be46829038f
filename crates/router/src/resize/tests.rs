//! A router's driver with a history in memory, on a paused clock.

use super::coverage::RELEASE_AFTER;
use super::driver::{Applied, ResizeHost, Resizer, ResizerSettings};
use super::history::memory::MemoryHistory;
use super::history::{History, RecordedConfig};
use super::start::ResizerChannels;
use super::status::{HistoryState, ResizeStatus};
use super::store::{CoverageDigest, CoverageStore, NoStore, StoredCoverage};
use crate::config::router_config::RouterConfig;
use crate::tree::active_configs::ActiveConfigs;
use lookaside_client::config::ConfigId;
use lookaside_client::{DestinationOptions, TcpNetwork};
use lookaside_routing::Defaults;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, timeout};

/// The servers are never asked for anything.
fn text_of(server: &str) -> String {
    let pool = format!(r#"{{"servers": ["{server}"], "flush_new_servers": false}}"#);
    format!(r#"{{"pools": {{"a": {pool}}}, "route": "PoolRoute|a"}}"#)
}

/// Of a later version, which knows more route handles.
const LATER: &str = r#"{"pools": {"a": {"servers": ["later:1"]}}, "route": {"type": "LaterRoute", "pool": "a"}}"#;

/// Removes the history of this cluster, and not that of another one whose name begins with this one's.
const REMOVE: &str = "(etcdctl del k.history/./., and etcdctl del --prefix k.history/././)";

fn id_of(text: &str) -> ConfigId {
    ConfigId::of(text).expect("it has an identity")
}

fn recorded(text: &str, is_readable: bool) -> RecordedConfig {
    RecordedConfig { id: id_of(text), is_readable, is_lost: false }
}

#[derive(Default)]
struct Host(Arc<ResizeStatus>);

impl ResizeHost for Host {
    fn status(&self) -> &Arc<ResizeStatus> {
        &self.0
    }

    fn parse(&self, text: &str) -> Result<RouterConfig, String> {
        let config = RouterConfig::parse(text, &Defaults::default(), &DestinationOptions::default());
        config.map_err(|error| error.to_string())
    }

    fn prepare(&self, _: &ActiveConfigs) {}

    fn record_in_force(&self, _: &RouterConfig) {}
}

fn settings_of(history: &Arc<MemoryHistory>) -> ResizerSettings {
    ResizerSettings {
        peers: Vec::new(),
        ignores_missing_peers: false,
        threads: 1,
        handed_over: None,
        history: Some(history.clone()),
        is_history_required: false,
    }
}

/// A process of one thread, without peers.
struct Router {
    host: Host,
    resizer: Resizer,
    applied: mpsc::UnboundedSender<Applied>,
    /// The last that was sent.
    applied_number: u64,
    /// Where its history was, each time that this has changed.
    states: Vec<HistoryState>,
}

impl Router {
    async fn start(text: &str, history: &Arc<MemoryHistory>) -> Result<Router, String> {
        Router::start_with(text, history, Box::new(NoStore)).await
    }

    async fn start_with(
        text: &str,
        history: &Arc<MemoryHistory>,
        store: Box<dyn CoverageStore>,
    ) -> Result<Router, String> {
        Router::start_as(text, history, store, false).await
    }

    async fn start_as(
        text: &str,
        history: &Arc<MemoryHistory>,
        store: Box<dyn CoverageStore>,
        is_history_required: bool,
    ) -> Result<Router, String> {
        let settings = ResizerSettings { is_history_required, ..settings_of(history) };
        Router::start_by(text, settings, store).await
    }

    async fn start_by(text: &str, settings: ResizerSettings, store: Box<dyn CoverageStore>) -> Result<Router, String> {
        let host = Host::default();
        let config = host.parse(text).expect("a configuration");
        let publish = watch::Sender::new(Arc::new(ActiveConfigs::single(Arc::new(config.clone()))));
        let (applied, applied_by_threads) = mpsc::unbounded_channel();
        let channels = ResizerChannels { publish, applied: applied_by_threads };
        let resizer = Resizer::start(config, settings, store, &host, Arc::new(TcpNetwork), channels).await?;
        let states = vec![host.0.history()];
        Ok(Router { host, resizer, applied, applied_number: 0, states })
    }

    async fn run(&mut self, time: Duration) {
        let end = Instant::now() + time;
        while let Ok(()) = timeout(end - Instant::now(), self.resizer.step(&self.host)).await {
            let number = self.resizer.active().number;
            if std::mem::replace(&mut self.applied_number, number) != number {
                self.applied.send((0, number)).expect("the driver receives");
            }
            let state = self.host.0.history();
            if self.states.last() != Some(&state) {
                self.states.push(state);
            }
        }
    }

    fn set_newest(&mut self, text: &str) {
        self.resizer
            .set_newest(self.host.parse(text).expect("a configuration"), &self.host)
            .expect("it has an identity");
    }

    fn reads(&self) -> ConfigId {
        id_of(self.resizer.active().reads().text())
    }
}

/// One request that failed let a router take itself for the first of its cluster. It read servers that had missed
/// deletes.
#[tokio::test(start_paused = true)]
async fn a_start_waits_for_the_history() {
    let (recorded_text, newest) = (text_of("a:1"), text_of("b:1"));
    let history = Arc::<MemoryHistory>::default();
    let configs = vec![recorded(&recorded_text, true)];
    history.set(&History { configs, ..History::default() }, &[(id_of(&recorded_text), &recorded_text)]);
    history.fail(5);
    let started = Instant::now();
    let router = Router::start(&newest, &history).await.expect("the history is read in the end");
    assert_eq!((router.reads(), &router.states[..]), (id_of(&recorded_text), &[HistoryState::Recorded][..]));
    assert!(started.elapsed() < Duration::from_secs(1), "{:?}", started.elapsed());
}

/// A disk that has the state of a router that reads by this text.
struct Disk(String);

impl CoverageStore for Disk {
    fn load(&self) -> io::Result<Option<String>> {
        let covered = serde_json::json!([{ "text": self.0, "is_claimed": true, "was_read": true }]);
        let stored = serde_json::json!({
            "version": 1, "reads": id_of(&self.0).to_string(), "covered": covered, "departed": [],
            "is_departed_incomplete": false,
        });
        assert!(serde_json::from_value::<StoredCoverage>(stored.clone()).is_ok(), "it is one");
        Ok(Some(stored.to_string()))
    }

    fn save(&self, _: &str) -> io::Result<()> {
        Ok(())
    }

    fn is_durable(&self) -> bool {
        true
    }
}

/// It took itself for the first of its cluster, and only logged that etcd was away.
#[tokio::test(start_paused = true)]
async fn a_router_that_knows_nothing_does_not_start_without_the_history() {
    let (text, history) = (text_of("a:1"), Arc::<MemoryHistory>::default());
    history.fail(usize::MAX);
    let started = Instant::now();
    let refused = Router::start(&text, &history).await.err().expect("it does not start");
    assert!(refused.contains("etcd://a:1/k.history/./.") && refused.contains("must be started again"), "{refused}");
    assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
    // One with a file knows enough.
    let router = Router::start_with(&text, &history, Box::new(Disk(text.clone()))).await.expect("it starts");
    assert_eq!((router.reads(), &router.states[..]), (id_of(&text), &[HistoryState::Away][..]));
    history.fail(0);
    assert!(Router::start(&text, &history).await.is_ok(), "the history is empty: this is a first start");
}

/// It took itself for the first of its cluster, with a line in the log, and trusted servers that had missed deletes.
#[tokio::test(start_paused = true)]
async fn a_router_with_a_history_that_cannot_be_used_does_not_start_without_memory() {
    let text = text_of("a:1");
    let present = History { configs: vec![recorded(&text, true)], ..History::default() };
    let history = |record: &str| {
        let history = Arc::<MemoryHistory>::default();
        history.set_record(record);
        history
    };
    let of_later = present.to_json().replace(r#""version":1"#, r#""version":2"#);
    // The last one names a text that is not there.
    for (record, why) in [(&*of_later, "version 2"), ("{", "malformed"), (&*present.to_json(), "no text")] {
        let refused = Router::start(&text, &history(record)).await.err().expect("it does not start");
        assert!(refused.contains(why) && refused.contains(REMOVE), "{refused}");
        // One with a file knows enough.
        let router =
            Router::start_with(&text, &history(record), Box::new(Disk(text.clone()))).await.expect("it starts");
        assert_eq!((router.reads(), &router.states[..]), (id_of(&text), &[HistoryState::Refused][..]), "{record}");
    }
    // An account that may not write has no history.
    let refusing = Arc::<MemoryHistory>::default();
    refusing.refuse_all();
    let router = Router::start(&text, &refusing).await.expect("it starts");
    assert_eq!((router.reads(), &router.states[..]), (id_of(&text), &[HistoryState::Refused][..]));
}

/// It started as the first of its cluster, with a line in the log, and trusted all servers: the option gave no
/// protection.
#[tokio::test(start_paused = true)]
async fn a_router_that_is_refused_the_history_that_it_was_given_does_not_start_without_memory() {
    let (text, refusing) = (text_of("a:1"), Arc::<MemoryHistory>::default());
    refusing.refuse_all();
    let refused = Router::start_as(&text, &refusing, Box::new(NoStore), true).await.err().expect("it does not start");
    for part in ["permission denied", "etcdctl role grant-permission ROLE readwrite --prefix k.history/./."] {
        assert!(refused.contains(part), "{refused}");
    }
    // One with a file knows enough.
    let router = Router::start_as(&text, &refusing, Box::new(Disk(text.clone())), true).await.expect("it starts");
    assert_eq!((router.reads(), &router.states[..]), (id_of(&text), &[HistoryState::Refused][..]));
    let router = Router::start_as(&text, &Arc::default(), Box::new(NoStore), true).await.expect("a first start");
    assert_eq!(router.states, [HistoryState::Recorded]);
}

/// The next process of an upgrade had another --config-cache, with an old file in its folder. It read by that.
#[tokio::test(start_paused = true)]
async fn the_next_process_of_an_upgrade_continues_only_from_what_its_predecessor_saved() {
    let (outdated, newest) = (text_of("a:1"), text_of("b:1"));
    let start = async |saved: &Disk, history: &Arc<MemoryHistory>| {
        let saved = saved.load().expect("readable").expect("there");
        let settings = ResizerSettings { handed_over: Some(CoverageDigest::of(&saved)), ..settings_of(history) };
        Router::start_by(&newest, settings, Box::new(Disk(outdated.clone()))).await
    };
    let router = start(&Disk(outdated.clone()), &Arc::default()).await.expect("it continues");
    assert_eq!(router.reads(), id_of(&outdated));
    let refused = start(&Disk(newest.clone()), &Arc::default()).await.err().expect("it knows nothing else");
    assert!(refused.contains("give it the --config-cache of the predecessor"), "{refused}");
    let history = Arc::<MemoryHistory>::default();
    let configs = vec![recorded(&newest, true)];
    history.set(&History { configs, ..History::default() }, &[(id_of(&newest), &newest)]);
    let router = start(&Disk(newest.clone()), &history).await.expect("the history knows");
    assert_eq!(router.reads(), id_of(&newest));
}

/// A disk that another process uses, too.
#[derive(Clone, Default)]
struct SharedDisk(Arc<Mutex<Option<String>>>);

impl CoverageStore for SharedDisk {
    fn load(&self) -> io::Result<Option<String>> {
        Ok(self.0.lock().expect("no test panics with it").clone())
    }

    fn save(&self, text: &str) -> io::Result<()> {
        *self.0.lock().expect("no test panics with it") = Some(text.to_owned());
        Ok(())
    }

    fn is_durable(&self) -> bool {
        true
    }
}

/// Otherwise no later process could take over, until the next change.
#[tokio::test(start_paused = true)]
async fn the_state_is_saved_again_after_a_handover_that_has_failed() {
    let (text, disk) = (text_of("a:1"), SharedDisk::default());
    let mut router = Router::start_with(&text, &Arc::default(), Box::new(disk.clone())).await.expect("a first start");
    let saved = disk.load().expect("readable").expect("it has saved its state");
    assert_eq!(router.resizer.saved_digest(), CoverageDigest::of(&saved));
    disk.save("that of the process that did not take over").expect("in memory");
    router.resizer.save_again(&router.host);
    assert_eq!(disk.load().expect("readable"), Some(saved));
}

/// A disk whose file was damaged, or cannot be read.
struct DamagedDisk(Option<&'static str>);

impl CoverageStore for DamagedDisk {
    fn load(&self) -> io::Result<Option<String>> {
        self.0.map(|text| Some(text.to_owned())).ok_or_else(|| io::Error::other("Permission denied"))
    }

    fn save(&self, _: &str) -> io::Result<()> {
        Ok(())
    }

    fn is_durable(&self) -> bool {
        true
    }
}

/// It logged that, and took itself for the first of its cluster.
#[tokio::test(start_paused = true)]
async fn a_router_whose_file_cannot_be_used_does_not_start_without_another_memory() {
    let (former, text, history) = (text_of("a:1"), text_of("b:1"), Arc::<MemoryHistory>::default());
    for (file, why) in [(Some("{\"version\": 1"), "EOF"), (None, "Permission denied")] {
        let refused = Router::start_with(&text, &history, Box::new(DamagedDisk(file))).await.err();
        let refused = refused.expect("it does not start");
        assert!(refused.contains(why) && refused.contains("FILE.coverage"), "{refused}");
    }
    let configs = vec![recorded(&former, true)];
    history.set(&History { configs, ..History::default() }, &[(id_of(&former), &former)]);
    let router = Router::start_with(&text, &history, Box::new(DamagedDisk(None))).await.expect("the history is enough");
    assert_eq!(router.reads(), id_of(&former));
}

/// No router of a cluster started any more after its version had been replaced by an earlier one.
#[tokio::test(start_paused = true)]
async fn a_former_configuration_that_cannot_be_used_is_lost() {
    let (text, history) = (text_of("a:1"), Arc::<MemoryHistory>::default());
    let configs = vec![recorded(LATER, false), recorded(&text, true)];
    history.set(&History { configs, ..History::default() }, &[(id_of(LATER), LATER), (id_of(&text), &text)]);
    let mut router = Router::start(&text, &history).await.expect("it starts");
    assert_eq!(history.history().lost().collect::<Vec<_>>(), [id_of(LATER)], "before any client is served");
    let reads = history.text_reads();
    router.run(Duration::from_secs(60)).await;
    assert_eq!((router.reads(), history.text_reads()), (id_of(&text), reads));
    // Also for a version that could use it.
    assert_eq!(history.history().lost().collect::<Vec<_>>(), [id_of(LATER)]);
}

#[tokio::test(start_paused = true)]
async fn a_router_does_not_start_if_it_cannot_use_what_others_may_read_by() {
    let (text, history) = (text_of("a:1"), Arc::<MemoryHistory>::default());
    let configs = vec![recorded(LATER, true), recorded(&text, true)];
    history.set(&History { configs, ..History::default() }, &[(id_of(LATER), LATER), (id_of(&text), &text)]);
    let refused = Router::start(&text, &history).await.err().expect("it does not start");
    let key = format!("etcd://a:1/k.history/././{}", id_of(LATER));
    for part in [&*key, "LaterRoute", REMOVE] {
        assert!(refused.contains(part), "{refused}");
    }
    assert_eq!(history.history().lost().count(), 0);
}

/// Its text was fetched at each step, with an error in the log each time.
#[tokio::test(start_paused = true)]
async fn a_configuration_that_cannot_be_used_is_fetched_again_after_a_minute() {
    let (text, history) = (text_of("a:1"), Arc::<MemoryHistory>::default());
    let mut router = Router::start(&text, &history).await.expect("it starts");
    router.run(Duration::from_secs(10)).await;
    // Of routers that are not its peers.
    let configs = vec![recorded(&text, true), recorded(LATER, true)];
    history.set(&History { configs, ..History::default() }, &[(id_of(LATER), LATER)]);
    let reads = history.text_reads();
    router.run(Duration::from_secs(150)).await;
    assert_eq!(history.text_reads() - reads, 3, "at once, after a minute and after two");
}

/// The state went to and fro between "recorded" and "refused", and each step waited while it was the former.
#[tokio::test(start_paused = true)]
async fn a_change_that_is_too_large_is_refused_until_the_configuration_changes() {
    let history = Arc::<MemoryHistory>::default();
    history.refuse_above(1_000);
    let mut router = Router::start(&text_of("a:1"), &history).await.expect("it starts");
    router.run(Duration::from_secs(10)).await;
    let large = format!("/* {} */ {}", "x".repeat(1_000), text_of("b:1"));
    router.set_newest(&large);
    router.run(Duration::from_secs(600)).await;
    use HistoryState::{Recorded, Refused};
    assert_eq!((router.reads(), &router.states[..]), (id_of(&large), &[Recorded, Refused][..]));
    let small = text_of("c:1");
    router.set_newest(&small);
    router.run(RELEASE_AFTER * 2).await;
    assert_eq!((router.reads(), &router.states[..]), (id_of(&small), &[Recorded, Refused, Recorded][..]));
    assert!(history.history().is_readable(id_of(&small)));
}

/// The limit was raised, or the account got the permission.
#[tokio::test(start_paused = true)]
async fn a_change_that_was_refused_is_tried_every_minute() {
    let (text, history) = (text_of("a:1"), Arc::<MemoryHistory>::default());
    history.refuse_above(10);
    let mut router = Router::start(&text, &history).await.expect("it starts");
    router.run(Duration::from_secs(100)).await;
    history.refuse_above(1_000);
    router.run(Duration::from_secs(61)).await;
    use HistoryState::{Recorded, Refused};
    assert_eq!(router.states, [Recorded, Refused, Recorded]);
    assert!(history.history().is_readable(id_of(&text)));
}
