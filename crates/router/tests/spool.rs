//! The spool under a paused clock: trees of routes over servers that fail, a disk in memory, and the replay. What is
//! asserted is always the same: no delete is acknowledged and lost, and no server is read before it has carried out what
//! it owes.
#![allow(missing_docs)]

#[path = "support/fake_network.rs"]
mod fake_network;

use bytes::Bytes;
use fake_network::{FakeNetwork, FakeServer, Health};
use lookaside_client::{DestinationOptions, TkoTrackers};
use lookaside_protocol::meta::{MetaOperation, MetaReply, MetaStatus, MetaVerb};
use lookaside_protocol::{Operation, Reply, Request, StoreMode};
use lookaside_router::{Disk as _, Fsync, MemoryDisk, Owed, Plan, Spool, SpoolSettings, SpoolStatistics, Tree};
use lookaside_routing::{Address, Context, Defaults, Failure, HealthSettings, Outcome};
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio::time::sleep;

const MAIN: &str = "main:1";
const GUTTER: &str = "gutter:2";
/// Longer than any outage here takes to be noticed and repaired.
const REPAIR: Duration = Duration::from_secs(10);

const ONE: &str = r#"{ "pools": { "A": { "servers": ["main:1"] } }, "route": "PoolRoute|A" }"#;
const FAILOVER: &str = r#"{
    "pools": { "A": { "servers": ["main:1"] }, "B": { "servers": ["gutter:2"] } },
    "route": { "type": "FailoverRoute", "children": ["PoolRoute|A", "PoolRoute|B"] }
}"#;
const OTHER: &str = r#"{ "pools": { "A": { "servers": ["gutter:2"] } }, "route": "PoolRoute|A" }"#;

/// What is there before a router starts, and after it has ended.
#[derive(Default)]
struct World {
    network: Arc<FakeNetwork>,
    disk: Arc<MemoryDisk>,
    settings: SpoolSettings,
}

/// A router that runs: as many trees as threads.
struct Running {
    plan: Arc<Plan>,
    spool: Arc<Spool>,
    trees: Vec<Tree>,
    replay: JoinHandle<()>,
}

impl World {
    fn start(&self, configuration: &str, threads: usize) -> Running {
        self.try_start(configuration, threads).expect("the disk is good")
    }

    fn try_start(&self, configuration: &str, threads: usize) -> Result<Running, String> {
        let tko_trackers = TkoTrackers::new();
        let health = HealthSettings { probe_initial_ms: 50, probe_max_ms: 200, ..HealthSettings::default() };
        let options =
            DestinationOptions { tko_trackers: Some(tko_trackers.clone()), health, ..DestinationOptions::default() };
        let defaults = Defaults { server_timeout_ms: 100, ..Defaults::default() };
        let spool = Spool::open(self.disk.clone(), tko_trackers, self.settings.clone())?;
        let plan = Plan::read(configuration, &defaults, &options).expect("it is good").spooling(Some(spool.clone()));
        spool.retire_others(&plan.servers());
        let plan = Arc::new(plan);
        let tree = |thread| Tree::build(&plan, self.network.clone(), thread as u64, None);
        let trees = (0..threads).map(tree).collect();
        let (replayed, network) = (spool.clone(), self.network.clone());
        let replay = tokio::spawn(async move { replayed.replay(network, 7).await });
        Ok(Running { plan, spool, trees, replay })
    }

    fn main(&self) -> Arc<FakeServer> {
        self.network.server(MAIN)
    }
}

impl Running {
    async fn ask(&self, thread: usize, key: &str, operation: Operation<Bytes>) -> Outcome {
        let request = Request { key: Bytes::copy_from_slice(key.as_bytes()), operation };
        self.trees[thread].route().route(vec![request], &Context::default()).await.remove(0)
    }

    async fn get(&self, thread: usize, key: &str) -> Outcome {
        self.ask(thread, key, Operation::Get { cas: false }).await
    }

    async fn delete(&self, thread: usize, key: &str) -> Outcome {
        self.ask(thread, key, Operation::Delete { hold_off_ms: 0 }).await
    }

    async fn set(&self, thread: usize, key: &str, value: &str) -> Outcome {
        let value = Bytes::copy_from_slice(value.as_bytes());
        self.ask(thread, key, Operation::Store { mode: StoreMode::Set, flags: 0, exptime: 0, value }).await
    }

    /// Another configuration, as a running router takes it.
    fn take(&mut self, world: &World, configuration: &str) {
        let options = self.plan.destination_options();
        let defaults = Defaults { server_timeout_ms: 100, ..Defaults::default() };
        let plan = Plan::read(configuration, &defaults, options).expect("it is good");
        self.plan = Arc::new(plan.spooling(Some(self.spool.clone())));
        self.spool.drop_others(&self.plan.servers());
        let tree = |old: &Tree| Tree::build(&self.plan, world.network.clone(), 1, Some(old));
        self.trees = self.trees.iter().map(tree).collect();
    }

    fn owed(&self) -> Owed {
        self.spool.owed(&Address(MAIN.into()))
    }

    fn statistics(&self) -> SpoolStatistics {
        self.spool.statistics()
    }

    /// As kill -9 does: the disk stays.
    async fn kill(self) {
        self.replay.abort();
        let _ = self.replay.await;
    }
}

const NOT_FOUND: Outcome = Ok(Reply::NotFound);
const TAKEN_OUT: Outcome = Err(Failure::Tko);

fn value(text: &str) -> Outcome {
    Ok(Reply::Value { flags: 0, cas: None, value: Bytes::copy_from_slice(text.as_bytes()) })
}

#[tokio::test(start_paused = true)]
async fn a_delete_that_is_lost_is_replayed_before_the_server_is_read() {
    let world = World::default();
    let (router, main) = (world.start(ONE, 2), world.main());
    main.put("k", "old");
    assert_eq!(router.get(0, "k").await, value("old"));
    main.be(Health::Frozen);
    let syncs = world.disk.syncs();
    assert_eq!(router.delete(1, "k").await, NOT_FOUND, "kept");
    assert_eq!(router.get(0, "k").await, TAKEN_OUT, "one timeout takes no server out, but one kept delete does");
    assert_eq!(router.set(0, "k", "new").await, TAKEN_OUT);
    assert_eq!(router.delete(0, "l").await, NOT_FOUND, "kept without asking the server");
    assert_eq!(router.owed().records, 2);
    sleep(REPAIR).await;
    assert_eq!(router.get(0, "k").await, TAKEN_OUT, "however long it takes");
    main.be(Health::Well);
    sleep(REPAIR).await;
    assert_eq!(router.get(0, "k").await, Ok(Reply::Miss));
    assert_eq!(router.get(1, "k").await, Ok(Reply::Miss));
    assert_eq!((router.owed(), router.statistics().replayed), (Owed::default(), 2));
    assert_eq!(world.disk.syncs(), syncs + 2, "each was safe before it was acknowledged");
}

#[tokio::test(start_paused = true)]
async fn a_single_lost_delete_keeps_the_server_out_for_no_longer_than_it_takes() {
    let world = World::default();
    let (router, main) = (world.start(ONE, 1), world.main());
    router.get(0, "k").await.expect("it is well");
    main.be(Health::Frozen);
    let delete = router.delete(0, "k");
    let thaw = async {
        sleep(Duration::from_millis(99)).await;
        main.be(Health::Gone);
        main.be(Health::Well);
    };
    assert_eq!(tokio::join!(delete, thaw).0, NOT_FOUND);
    sleep(Duration::from_millis(5)).await;
    assert_eq!(router.get(0, "k").await, Ok(Reply::Miss));
}

#[tokio::test(start_paused = true)]
async fn what_a_killed_router_owed_is_replayed_by_the_next_before_it_reads() {
    let world = World::default();
    let main = world.main();
    main.put("k", "old");
    main.be(Health::Gone);
    let router = world.start(ONE, 1);
    assert_eq!(router.delete(0, "k").await, NOT_FOUND);
    router.kill().await;
    world.disk.crash(|_| 0);
    main.be(Health::Well);
    let router = world.start(ONE, 1);
    assert_eq!(router.get(0, "k").await, TAKEN_OUT, "from the first moment");
    sleep(REPAIR).await;
    assert_eq!(router.get(0, "k").await, Ok(Reply::Miss));
    router.kill().await;
    assert_eq!(world.start(ONE, 1).owed(), Owed::default(), "nothing is left on disk");
}

#[tokio::test(start_paused = true)]
async fn a_delete_that_cannot_be_kept_fails() {
    let world = World::default();
    let (router, main) = (world.start(ONE, 1), world.main());
    main.put("k", "old");
    main.be(Health::Gone);
    world.disk.fill(Some(20));
    assert_eq!(router.delete(0, "k").await, Err(Failure::ConnectFailed));
    assert_eq!((router.owed(), router.statistics().append_failures), (Owed::default(), 1));
    world.disk.fill(None);
    assert_eq!(router.delete(0, "k").await, NOT_FOUND);
    main.be(Health::Well);
    sleep(REPAIR).await;
    assert_eq!(router.get(0, "k").await, Ok(Reply::Miss));
}

#[tokio::test(start_paused = true)]
async fn a_server_that_owes_too_much_forgets_everything_before_it_is_read() {
    let settings = SpoolSettings { bytes_max: 1_000, ..SpoolSettings::default() };
    let world = World { settings, ..World::default() };
    let (router, main) = (world.start(ONE, 1), world.main());
    main.put("never deleted", "old");
    main.put("k99", "old");
    main.be(Health::Gone);
    for number in 0..100 {
        assert_eq!(router.delete(0, &format!("k{number}")).await, NOT_FOUND);
    }
    let statistics = router.statistics();
    assert_eq!((statistics.overflows, router.owed().forget), (1, true));
    assert!(router.owed().bytes < 100);
    router.kill().await;
    let router = world.start(ONE, 1);
    assert!(router.owed().forget, "also after a restart");
    main.refuse("flush_all", "CLIENT_ERROR flush_all not allowed");
    main.be(Health::Well);
    sleep(REPAIR).await;
    assert_eq!(router.get(0, "k99").await, TAKEN_OUT, "a server that will not forget is not read");
    main.refusals.lock().unwrap().clear();
    sleep(REPAIR).await;
    assert_eq!(router.get(0, "k99").await, Ok(Reply::Miss));
    assert_eq!((main.has("never deleted"), router.statistics().forgotten), (false, 1));
}

#[tokio::test(start_paused = true)]
async fn all_servers_together_may_owe_no_more_than_is_said() {
    const BOTH: &str = r#"{
        "pools": { "A": { "servers": ["main:1"] }, "B": { "servers": ["gutter:2"] } },
        "route": { "type": "AllSyncRoute", "children": ["PoolRoute|A", "PoolRoute|B"] }
    }"#;
    let settings = SpoolSettings { total_bytes_max: 500, ..SpoolSettings::default() };
    let world = World { settings, ..World::default() };
    let router = world.start(BOTH, 1);
    for server in [MAIN, GUTTER] {
        world.network.server(server).be(Health::Gone);
    }
    for number in 0..50 {
        assert_eq!(router.delete(0, &format!("k{number}")).await, NOT_FOUND);
        assert!(router.statistics().pending_bytes <= 500 + 17, "a forget more than the bound");
    }
    assert!(router.statistics().overflows > 0);
    for server in [MAIN, GUTTER] {
        world.network.server(server).put("k3", "old");
        world.network.server(server).be(Health::Well);
    }
    sleep(REPAIR).await;
    assert_eq!(router.statistics().servers_behind, 0);
    assert!(!world.main().has("k3") && !world.network.server(GUTTER).has("k3"));
}

#[tokio::test(start_paused = true)]
async fn damage_costs_the_servers_content_and_a_torn_tail_costs_nothing() {
    for (is_torn, forgets) in [(true, 0), (false, 1)] {
        let world = World::default();
        let (router, main) = (world.start(ONE, 1), world.main());
        main.put("other", "old");
        main.be(Health::Gone);
        for key in ["a", "b", "c"] {
            assert_eq!(router.delete(0, key).await, NOT_FOUND);
        }
        router.kill().await;
        world.disk.damage(|_, _, bytes| match is_torn {
            true => bytes.extend_from_slice(&[6, 0, 0]),
            false => bytes[20] ^= 1,
        });
        main.be(Health::Well);
        let router = world.start(ONE, 1);
        sleep(REPAIR).await;
        assert_eq!(router.statistics().forgotten, forgets);
        assert_eq!((main.has("other"), main.asked("delete").len()), (is_torn, if is_torn { 3 } else { 0 }));
        assert_eq!(router.owed(), Owed::default());
    }
}

/// Once any failure to read a file, as of a process that has no descriptor left, cost the server its content at once.
#[tokio::test(start_paused = true)]
async fn a_file_that_cannot_be_read_for_a_while_costs_nothing() {
    for (failure, lasts, forgets) in [
        (ErrorKind::Other, REPAIR, 0),
        (ErrorKind::Other, Duration::from_secs(120), 1),
        (ErrorKind::NotFound, REPAIR, 1),
    ] {
        let world = World::default();
        let (router, main) = (world.start(ONE, 1), world.main());
        main.put("k", "old");
        main.put("other", "old");
        world.disk.fail_reads(Some(failure));
        main.be(Health::Gone);
        assert_eq!(router.delete(0, "k").await, NOT_FOUND);
        main.be(Health::Well);
        sleep(lasts).await;
        let expected = if forgets == 0 { TAKEN_OUT } else { Ok(Reply::Miss) };
        assert_eq!(router.get(0, "k").await, expected, "{failure} {lasts:?}");
        world.disk.fail_reads(None);
        sleep(REPAIR).await;
        assert_eq!(router.get(0, "k").await, Ok(Reply::Miss));
        assert_eq!((router.statistics().forgotten, main.has("other")), (forgets, forgets == 0), "{failure} {lasts:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_layout_of_the_future_is_refused() {
    let world = World::default();
    let router = world.start(ONE, 1);
    world.main().be(Health::Gone);
    assert_eq!(router.delete(0, "k").await, NOT_FOUND);
    router.kill().await;
    world.disk.damage(|_, _, bytes| bytes[7] = 9);
    let why = world.try_start(ONE, 1).err().expect("it is not known what is owed");
    assert!(why.contains("layout 9") && why.contains(MAIN), "{why}");
}

#[tokio::test(start_paused = true)]
async fn a_server_that_left_the_configuration_forgets_when_it_comes_back() {
    let world = World::default();
    let main = world.main();
    main.put("k", "old");
    main.be(Health::Gone);
    let router = world.start(ONE, 1);
    assert_eq!(router.delete(0, "k").await, NOT_FOUND);
    router.kill().await;
    main.be(Health::Well);
    let router = world.start(OTHER, 1);
    sleep(REPAIR).await;
    assert_eq!(main.asked("delete").len() + main.asked("flush_all").len(), 0, "it is left alone");
    assert!(router.owed().forget);
    router.kill().await;
    let router = world.start(ONE, 1);
    assert_eq!(router.get(0, "k").await, TAKEN_OUT);
    sleep(REPAIR).await;
    assert_eq!(router.get(0, "k").await, Ok(Reply::Miss));
    assert_eq!((main.asked("flush_all").len(), world.network.server(GUTTER).asked("flush_all").len()), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn a_new_configuration_changes_nothing_about_what_is_owed() {
    let world = World::default();
    let (mut router, main) = (world.start(ONE, 1), world.main());
    main.put("k", "old");
    main.be(Health::Gone);
    assert_eq!(router.delete(0, "k").await, NOT_FOUND);
    router.trees = vec![Tree::build(&router.plan, world.network.clone(), 1, None)];
    main.be(Health::Well);
    assert_eq!(router.get(0, "k").await, TAKEN_OUT, "new destinations, the same fence");
    sleep(REPAIR).await;
    assert_eq!(router.get(0, "k").await, Ok(Reply::Miss));
}

#[tokio::test(start_paused = true)]
async fn where_gets_fail_over_to_a_kept_delete_goes_too() {
    let world = World::default();
    let (router, gutter) = (world.start(FAILOVER, 1), world.network.server(GUTTER));
    world.main().be(Health::Gone);
    router.set(0, "k", "old").await.expect("the gutter takes it");
    assert_eq!(router.delete(0, "k").await, Ok(Reply::Deleted), "it was in the gutter");
    assert!(!gutter.has("k"));
    assert_eq!(router.owed().records, 1);
    gutter.refuse("delete", "SERVER_ERROR no");
    let refused = router.delete(0, "k").await;
    assert!(matches!(refused, Ok(Reply::Error(_))), "the gutter may still hold it: {refused:?}");
}

/// Once a kept delete counted as `tko` and nothing else: where only timeouts fail over, the gutter went on serving the old
/// value that gets had found their way to.
#[tokio::test(start_paused = true)]
async fn whatever_fails_over_a_kept_delete_goes_where_gets_may_have_gone() {
    for errors in [r#"["timeout"]"#, r#"{ "gets": ["timeout"], "deletes": [] }"#] {
        let configuration = FAILOVER.replace("\"children\"", &format!("\"failover_errors\": {errors}, \"children\""));
        let world = World::default();
        let (router, gutter) = (world.start(&configuration, 1), world.network.server(GUTTER));
        gutter.put("k", "old");
        world.main().be(Health::Frozen);
        assert_eq!(router.get(0, "k").await, value("old"), "{errors}: after a timeout");
        assert_eq!(router.delete(0, "k").await, Ok(Reply::Deleted), "{errors}");
        assert!(!gutter.has("k"), "{errors}");
        gutter.put("l", "old");
        assert_eq!(router.delete(0, "l").await, Ok(Reply::Deleted), "{errors}: kept at once");
        assert!(!gutter.has("l"), "{errors}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_pool_may_do_without_and_its_reads_are_fenced_all_the_same() {
    let configuration = r#"{
        "pools": { "A": { "servers": ["main:1"] } },
        "route": {
            "type": "PrefixSelectorRoute",
            "policies": { "l": { "type": "PoolRoute", "pool": "A", "asynclog": false } }, "wildcard": "PoolRoute|A"
        }
    }"#;
    let world = World::default();
    let (router, main) = (world.start(configuration, 1), world.main());
    main.be(Health::Frozen);
    assert_eq!(router.delete(0, "l").await, Err(Failure::TimedOut));
    assert_eq!(router.owed(), Owed::default());
    assert_eq!(router.delete(0, "k").await, NOT_FOUND);
    assert_eq!(router.get(0, "l").await, TAKEN_OUT);
}

/// Once nobody worked off such a server's debts, and it was never read again: only leaves that keep deletes said that it
/// was configured.
#[tokio::test(start_paused = true)]
async fn a_server_whose_pool_now_does_without_still_gets_what_it_owes() {
    let world = World::default();
    let (router, main) = (world.start(ONE, 1), world.main());
    main.put("k", "old");
    main.be(Health::Frozen);
    assert_eq!(router.delete(0, "k").await, NOT_FOUND);
    router.kill().await;
    let without = r#"{
        "pools": { "A": { "servers": ["main:1"] } },
        "route": { "type": "PoolRoute", "pool": "A", "asynclog": false }
    }"#;
    let router = world.start(without, 1);
    assert_eq!(router.get(0, "k").await, TAKEN_OUT);
    main.be(Health::Well);
    sleep(REPAIR).await;
    assert_eq!(router.get(0, "k").await, Ok(Reply::Miss));
    assert_eq!(main.asked("flush_all").len(), 0, "its deletes are replayed");
}

/// Once a hold outlived the last peer, and its server was never read again: only routers with peers looked for silent ones.
#[tokio::test(start_paused = true)]
async fn a_hold_ends_although_there_are_no_peers_any_more() {
    let world = World::default();
    world.disk.write("main%3A1", "00c0ffee00c0ffee.hold", 0, b"held\n", true).expect("there is room");
    let (router, main) = (world.start(ONE, 1), world.main());
    main.put("k", "old");
    assert_eq!(router.get(0, "k").await, TAKEN_OUT);
    sleep(world.settings.peer_timeout + REPAIR).await;
    assert_eq!(router.get(0, "k").await, Ok(Reply::Miss));
    assert_eq!(main.asked("flush_all").len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_delete_that_is_refused_for_good_does_not_hold_up_the_rest() {
    let world = World::default();
    let (router, main) = (world.start(ONE, 1), world.main());
    main.put("k", "old");
    main.be(Health::Gone);
    let hold_off = Operation::Delete { hold_off_ms: 2_000 };
    assert_eq!(router.ask(0, "k", hold_off).await, NOT_FOUND);
    main.refuse("delete-hold-off", "CLIENT_ERROR bad command line format");
    main.refuse("md", "ERROR");
    let meta = MetaOperation { verb: MetaVerb::Delete, flags: "q b O7".into(), value: None };
    let reply = router.ask(0, "a2V5", Operation::Meta(meta)).await;
    let nothing_found = MetaReply { status: MetaStatus::NotFound, flags: Bytes::from_static(b"b O7"), value: None };
    assert_eq!(reply, Ok(Reply::Meta(nothing_found)));
    main.be(Health::Well);
    sleep(REPAIR).await;
    assert_eq!(router.get(0, "k").await, Ok(Reply::Miss), "without its hold-off");
    assert_eq!((router.statistics().replayed, router.statistics().refused), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_server_that_cannot_now_is_asked_again() {
    let world = World::default();
    let (router, main) = (world.start(ONE, 1), world.main());
    main.put("k", "old");
    main.be(Health::Gone);
    assert_eq!(router.delete(0, "k").await, NOT_FOUND);
    main.refuse("delete", "SERVER_ERROR busy");
    main.be(Health::Well);
    sleep(REPAIR).await;
    assert_eq!(router.get(0, "k").await, TAKEN_OUT);
    main.refusals.lock().unwrap().clear();
    sleep(REPAIR).await;
    assert_eq!(router.get(0, "k").await, Ok(Reply::Miss));
}

/// Once what was owed to a server that a new configuration no longer names was replayed for ever, and kept peers from it.
#[tokio::test(start_paused = true)]
async fn a_server_that_a_new_configuration_drops_is_left_alone_until_one_names_it_again() {
    let world = World::default();
    let (mut router, main) = (world.start(ONE, 1), world.main());
    main.put("k", "old");
    main.be(Health::Gone);
    assert_eq!(router.delete(0, "k").await, NOT_FOUND);
    router.take(&world, OTHER);
    main.be(Health::Well);
    sleep(REPAIR).await;
    assert_eq!(main.asked("delete").len() + main.asked("flush_all").len(), 0, "it is left alone");
    assert_eq!(router.statistics().servers_behind, 1, "and not forgotten");
    router.take(&world, ONE);
    assert_eq!(router.get(0, "k").await, TAKEN_OUT);
    sleep(REPAIR).await;
    assert_eq!(router.get(0, "k").await, Ok(Reply::Miss));
    assert_eq!(router.statistics().servers_behind, 0);
}

/// As an upgrade does it, and one that comes to nothing.
#[tokio::test(start_paused = true)]
async fn what_is_left_to_another_process_is_on_disk_and_nothing_is_kept_behind_it() {
    let settings = SpoolSettings { fsync: Fsync::Interval(REPAIR), ..SpoolSettings::default() };
    let world = World { settings, ..World::default() };
    let (router, main) = (world.start(ONE, 1), world.main());
    main.put("k", "old");
    main.put("l", "old");
    main.be(Health::Frozen);
    assert_eq!(router.delete(0, "k").await, NOT_FOUND);
    router.replay.abort();
    router.spool.close().await.expect("it is let go");
    assert!(router.delete(0, "l").await.is_err(), "nobody keeps it");
    assert_eq!(router.get(0, "k").await, TAKEN_OUT, "not read by the old process either");
    assert!(router.spool.close().await.is_err(), "once");
    world.disk.crash(|_| 0);
    main.be(Health::Well);
    let next = world.start(ONE, 1);
    assert_eq!(next.get(0, "k").await, TAKEN_OUT, "from the first moment");
    sleep(REPAIR).await;
    assert_eq!((next.get(0, "k").await, next.get(0, "l").await), (Ok(Reply::Miss), value("old")));
}

/// Sets, deletes and gets on two threads of a router while the server freezes, goes and returns, and the router itself is
/// killed: a get that begins after a delete was acknowledged never finds what was set before the delete began.
#[tokio::test(start_paused = true)]
async fn nothing_that_was_deleted_is_ever_read_again() {
    let mut kept = 0;
    for seed in 0..150 {
        kept += live(seed).await;
    }
    assert!(kept > 300, "the outages hit deletes: {kept}");
}

async fn live(seed: u64) -> u64 {
    let mut random = fastrand::Rng::with_seed(seed);
    let bytes_max = if random.bool() { 200 } else { 1 << 20 };
    let world = World { settings: SpoolSettings { bytes_max, ..SpoolSettings::default() }, ..World::default() };
    let main = world.main();
    let mut router = world.start(ONE, 2);
    let mut kept = 0;
    // The version that a key must have at least; what is deleted must be gone or newer.
    let mut floors: BTreeMap<String, u64> = BTreeMap::new();
    for version in 1..80 {
        let (key, thread) = (format!("k{}", random.u8(0..4)), random.usize(0..2));
        match random.u8(0..12) {
            0 => main.be(Health::Gone),
            1 => main.be(Health::Frozen),
            2 | 3 => main.be(Health::Well),
            4 => sleep(Duration::from_millis(random.u64(0..400))).await,
            5 if random.u8(0..3) == 0 => {
                kept += router.statistics().spooled;
                if random.bool() {
                    // As an upgrade does it.
                    router.replay.abort();
                    router.spool.close().await.expect("it is let go");
                }
                router.kill().await;
                world.disk.crash(|bytes| random.usize(0..=bytes));
                router = world.start(ONE, 2);
            }
            6..8 => drop(set_safely(&router, thread, &key, version).await),
            8..10 => {
                if router.delete(thread, &key).await.is_ok() {
                    floors.insert(key, version);
                }
            }
            _ => {
                if let Ok(Reply::Value { value, .. }) = router.get(thread, &key).await {
                    let found: u64 = String::from_utf8_lossy(&value).parse().expect("a version");
                    let floor = floors.get(&key).copied().unwrap_or_default();
                    assert!(found > floor, "seed {seed}: {key} is {found}, deleted at {floor}");
                }
            }
        }
    }
    kept + router.statistics().spooled
}

/// A set that was not answered may be carried out at any time later, as it may with any memcached: so only while the
/// server is well.
async fn set_safely(router: &Running, thread: usize, key: &str, version: u64) -> Option<()> {
    router.get(thread, key).await.ok()?;
    router.set(thread, key, &version.to_string()).await.ok().map(drop)
}
