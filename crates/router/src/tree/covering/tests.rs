use super::*;
use crate::config::router_config::RouterConfig;
use lookaside_client::DestinationOptions;
use lookaside_protocol::{Operation, Reply, StoreMode};
use lookaside_routing::{Defaults, TkoReason};
use lookaside_sync::Mutex;
use std::task::{self, Waker};
use tokio::sync::Semaphore;
use tokio::time::timeout;

mod copying;
mod plain_leases;

/// A server that records what it receives, and replies `outcome` when its gate is open.
struct Server {
    address: Address,
    outcome: Outcome,
    received: Mutex<Vec<String>>,
    gate: Semaphore,
}

impl Server {
    fn new(address: &str, outcome: Outcome) -> Arc<Server> {
        let gate = Semaphore::new(1);
        Arc::new(Server { address: Address(address.into()), outcome, received: Mutex::default(), gate })
    }

    fn outcomes(&self, batch: &Batch) -> Outcomes {
        let text = |request: &Request<Bytes>| format!("{:?} {}", verb(request), String::from_utf8_lossy(&request.key));
        self.received.lock().extend(batch.iter().map(text));
        vec![self.outcome.clone(); batch.len()]
    }

    fn received(&self) -> Vec<String> {
        self.received.lock().drain(..).collect()
    }
}

impl Destination for Server {
    fn send(&self, batch: Batch) -> BoxFuture<'_, Outcomes> {
        let outcomes = self.outcomes(&batch);
        Box::pin(async move {
            drop(self.gate.acquire().await);
            outcomes
        })
    }

    fn address(&self) -> &Address {
        &self.address
    }
}

impl Route for Server {
    fn route<'a>(&'a self, batch: Batch, _: &'a Context) -> BoxFuture<'a, Outcomes> {
        self.send(batch)
    }
}

fn config(server: &str) -> Arc<RouterConfig> {
    parse(&format!(r#"{{ "pools": {{ "A": {{ "servers": ["{server}"] }} }}, "route": "PoolRoute|A" }}"#))
}

fn parse(text: &str) -> Arc<RouterConfig> {
    let config = RouterConfig::parse(text, &Defaults::default(), &DestinationOptions::default());
    Arc::new(config.expect("the configuration is valid"))
}

/// A tree that is routed to `routed` at `new:1`, and covers a former configuration with `former` at `old:1`.
fn covering(routed: &Arc<Server>, former: &Arc<Server>, departed: &[&str]) -> CoveringRoute {
    let departed = departed.iter().map(|server| Address((*server).into())).collect();
    let covered = vec![CoveredConfig { id: "former".into(), config: config("old:1"), departed, is_released: false }];
    let active = ActiveConfigs { covered, reads_at: 1, ..ActiveConfigs::single(config("new:1")) };
    covering_in_order(&active, routed, &[former])
}

fn covering_in_order(active: &ActiveConfigs, routed: &Arc<Server>, others: &[&Arc<Server>]) -> CoveringRoute {
    let destination = |server: &&Arc<Server>| (server.address.clone(), (*server).clone() as Arc<dyn Destination>);
    CoveringRoute {
        routed: routed.clone(),
        places: Arc::new(CoveredPlaces::of(active)),
        destinations: others.iter().map(destination).collect(),
        deletes: active.covering_deletes.clone(),
    }
}

/// Configurations with these servers in the order of deletes; the one at `reads_at` is routed by.
fn in_order(servers: &[&str], reads_at: usize) -> ActiveConfigs {
    let covered = |server: &&str| CoveredConfig {
        id: (*server).into(),
        config: config(server),
        departed: [].into(),
        is_released: false,
    };
    let mut covered: Vec<CoveredConfig> = servers.iter().map(covered).collect();
    let reads = covered.remove(reads_at).config;
    ActiveConfigs { covered, reads_at, ..ActiveConfigs::single(reads) }
}

fn request(operation: Operation<Bytes>) -> Request<Bytes> {
    Request { key: "k".into(), operation }
}

fn delete() -> Request<Bytes> {
    request(Operation::Delete { hold_off_ms: 0 })
}

fn store(mode: StoreMode) -> Request<Bytes> {
    request(Operation::Store { mode, flags: 0, exptime: 0, value: "v".into(), cas: false })
}

async fn outcome_of(request: Request<Bytes>, routed: Outcome, former: Outcome) -> Outcome {
    let (routed, former) = (Server::new("new:1", routed), Server::new("old:1", former));
    covering(&routed, &former, &[]).route(vec![request], &Context::default()).await.remove(0)
}

#[tokio::test]
async fn deletes_and_updates_reach_the_former_server_and_nothing_else_does() {
    let (routed, former) = (Server::new("new:1", Ok(Reply::Stored)), Server::new("old:1", Ok(Reply::NotFound)));
    let route = covering(&routed, &former, &[]);
    let batch = vec![
        request(Operation::Get { cas: false }),
        delete(),
        store(StoreMode::Set),
        store(StoreMode::Add),
        request(Operation::LeaseGet),
    ];
    assert_eq!(route.route(batch, &Context::default()).await.len(), 5);
    assert_eq!(routed.received().len(), 5);
    assert_eq!(former.received(), ["Delete k", "Delete k"]);
    assert_eq!(route.deletes.value(), 2);
    let route = covering(&routed, &former, &["old:1"]);
    route.route(vec![delete()], &Context::default()).await;
    assert!(former.received().is_empty(), "it has departed");
}

#[tokio::test]
async fn a_delete_is_acknowledged_when_both_servers_have_applied_or_spooled_it() {
    for (routed, former, merged) in [
        (Ok(Reply::Deleted), Ok(Reply::NotFound), Ok(Reply::Deleted)),
        (Ok(Reply::NotFound), Ok(Reply::Deleted), Ok(Reply::Deleted)),
        (Ok(Reply::Deleted), Err(Failure::Spooled), Err(Failure::Spooled)),
        (Ok(Reply::Deleted), Err(Failure::Tko(TkoReason::ConnectFailed)), Err(Failure::Tko(TkoReason::ConnectFailed))),
        (Err(Failure::TimedOut), Ok(Reply::Deleted), Err(Failure::TimedOut)),
    ] {
        assert_eq!(outcome_of(delete(), routed, former).await, merged);
    }
}

#[tokio::test]
async fn an_update_promises_no_more_than_holds() {
    let set = || store(StoreMode::Set);
    for (former, merged) in [
        (Ok(Reply::Deleted), Ok(Reply::Stored)),
        (Err(Failure::Spooled), Ok(Reply::Stored)),
        (Err(Failure::TimedOut), Err(Failure::TimedOut)),
    ] {
        assert_eq!(outcome_of(set(), Ok(Reply::Stored), former).await, merged);
    }
}

#[tokio::test]
async fn the_explanation_names_the_former_server() {
    let (routed, former) = (Server::new("new:1", Ok(Reply::NotFound)), Server::new("old:1", Ok(Reply::NotFound)));
    let route = covering(&routed, &former, &[]);
    let context = Context::default();
    let explained =
        |verb| explain(&route.places, Ok(Explanation::default()), verb, "k", &context).expect("it is valid");
    assert_eq!(explained("delete").servers(), ["old:1"]);
    assert!(explained("get").servers().is_empty());
}

/// A router filled the new owner with the former owner's copy between the two deletes of its key, under a lease that
/// the first delete should have voided. The deletes were sent at the same time.
#[tokio::test]
async fn a_delete_reaches_the_former_owner_before_the_new_one() {
    for reads_at in [0, 1] {
        let (old, new) = (Server::new("old:1", Ok(Reply::Deleted)), Server::new("new:1", Ok(Reply::Deleted)));
        let servers = [&old, &new];
        let (routed, other) = (servers[reads_at], servers[1 - reads_at]);
        let route = covering_in_order(&in_order(&["old:1", "new:1"], reads_at), routed, &[other]);
        let closed = old.gate.acquire().await.expect("it is never closed");
        let context = Context::default();
        let mut delete = std::pin::pin!(route.route(vec![delete()], &context));
        assert!(delete.as_mut().poll(&mut task::Context::from_waker(Waker::noop())).is_pending());
        assert_eq!((old.received().len(), new.received().len()), (1, 0), "routed by {reads_at}");
        drop(closed);
        assert_eq!(delete.await, [Ok(Reply::Deleted)]);
        assert_eq!(new.received(), ["Delete k"]);
    }
}

/// A key was read from its new owner for as long as the router waited for its former owner, which hung.
#[tokio::test(start_paused = true)]
async fn a_server_that_hangs_does_not_delay_the_first_delete_elsewhere_and_the_order_holds() {
    for (reads_at, hung) in [(0, 0), (1, 0), (2, 0), (0, 1), (1, 1), (2, 1)] {
        let servers = ["a:1", "b:1", "c:1"].map(|address| Server::new(address, Ok(Reply::Deleted)));
        let others: Vec<&Arc<Server>> =
            servers.iter().filter(|server| *server.address.0 != *servers[reads_at].address.0).collect();
        let route = covering_in_order(&in_order(&["a:1", "b:1", "c:1"], reads_at), &servers[reads_at], &others);
        let closed = servers[hung].gate.acquire().await.expect("it is never closed");
        let context = Context::default();
        let mut deleted = std::pin::pin!(route.route(vec![delete()], &context));
        let received = || servers.iter().map(|server| server.received().len()).collect::<Vec<_>>();
        assert!(timeout(EARLY_AFTER / 2, &mut deleted).await.is_err());
        let in_order: Vec<usize> = (0..3).map(|at| usize::from(at <= hung)).collect();
        assert_eq!(received(), in_order, "reads {reads_at}, {hung} hangs");
        assert!(timeout(EARLY_AFTER, &mut deleted).await.is_err());
        let early: Vec<usize> = (0..3).map(|at| usize::from(at > hung)).collect();
        assert_eq!(received(), early, "reads {reads_at}, {hung} hangs");
        drop(closed);
        assert_eq!(deleted.await, [Ok(Reply::Deleted)]);
        assert_eq!(received(), early, "again, in the order");
    }
}

/// An update that is sent twice would be done twice.
#[tokio::test(start_paused = true)]
async fn an_update_waits_for_a_server_that_hangs() {
    let (old, new) = (Server::new("old:1", Ok(Reply::Deleted)), Server::new("new:1", Ok(Reply::Stored)));
    let route = covering(&new, &old, &[]);
    let closed = old.gate.acquire().await.expect("it is never closed");
    let context = Context::default();
    let mut stored = std::pin::pin!(route.route(vec![store(StoreMode::Set), delete()], &context));
    assert!(timeout(EARLY_AFTER * 2, &mut stored).await.is_err());
    assert_eq!(new.received(), ["Delete k"]);
    drop(closed);
    assert_eq!(stored.await.len(), 2);
    assert_eq!(new.received(), ["Set k", "Delete k"]);
}

#[tokio::test]
async fn neighbours_with_the_same_places_are_deleted_at_once_and_others_again() {
    for (order, reads_at, expected) in [
        (&["a:1", "a:1", "b:1"][..], 2, "a:1 b:1"),
        (&["b:1", "b:1", "b:1"], 0, "b:1"),
        (&["b:1", "a:1", "b:1", "b:1"], 2, "b:1 a:1 b:1"),
        (&["b:1", "a:1", "b:1"], 0, "b:1 a:1 b:1"),
    ] {
        let places = CoveredPlaces::of(&in_order(order, reads_at));
        let servers = |request: &Request<Bytes>| {
            let steps = places.steps(request, &Context::default()).expect("no route refuses it");
            let step = |step: &CoveredStep<'_>| (step.config, step.places[0].server.to_string());
            let mut servers: Vec<(usize, String)> = steps.iter().map(step).collect();
            let after = servers.partition_point(|(config, _)| *config < reads_at);
            servers.insert(after, (0, order[reads_at].to_owned()));
            servers.into_iter().map(|(_, server)| server).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(servers(&delete()), expected, "{order:?}");
        assert_eq!(servers(&store(StoreMode::Set)).matches("b:1").count(), 1, "an update is not deleted: {order:?}");
    }
}

/// A router that read by such a configuration sent the delete to the new owner while that to the former one was still
/// in flight, and another one copied the old value in that moment.
#[test]
fn former_owners_are_not_read_if_deletes_there_are_not_awaited() {
    for (route, is_owned) in [
        ("AllSyncRoute", true),
        ("AllAsyncRoute", false),
        ("AllInitialRoute", false),
        ("AllFastestRoute", false),
        ("AllMajorityRoute", false),
    ] {
        let former = parse(&format!(
            r#"{{
                "pools": {{ "A": {{ "servers": ["old:1"] }}, "B": {{ "servers": ["old:2"] }} }},
                "route": {{ "type": "{route}", "children": ["PoolRoute|A", "PoolRoute|B"] }}
            }}"#
        ));
        let covered =
            vec![CoveredConfig { id: "former".into(), config: former, departed: [].into(), is_released: false }];
        let active = ActiveConfigs { covered, reads_at: 1, ..ActiveConfigs::single(config("new:1")) };
        let places = CoveredPlaces::of(&active);
        let (former_owner, owner) = (Address("old:1".into()), Address("new:1".into()));
        assert_eq!(places.is_owned("former", &former_owner, &owner, &"k".into()), is_owned, "{route}");
    }
}

/// A copy is made if all keys that are stored under its name move with it.
#[test]
fn keys_that_routes_change_are_read_from_their_former_owners_while_these_routes_stay() {
    let modified = |arguments: &str, server: &str| {
        parse(&format!(
            r#"{{
                "pools": {{ "A": {{ "servers": ["{server}"] }} }},
                "route": {{ "type": "ModifyKeyRoute", {arguments}, "target": "PoolRoute|A" }}
            }}"#
        ))
    };
    let l1_l2 = |l1: &str, l2: &str| {
        parse(&format!(
            r#"{{
                "pools": {{ "L1": {{ "servers": ["{l1}"] }}, "L2": {{ "servers": ["{l2}"] }} }},
                "route": {{ "type": "L1L2SizeSplitRoute", "l1": "PoolRoute|L1", "l2": "PoolRoute|L2", "threshold": 100 }}
            }}"#
        ))
    };
    const PREFIX: &str = r#""ensure_key_prefix": "x:""#;
    const OTHER_PREFIX: &str = r#""ensure_key_prefix": "x:", "replace_key_prefix": "v:""#;
    let (prefixed, other) = (modified(PREFIX, "new:1"), modified(OTHER_PREFIX, "new:1"));
    for (former, reads, stored, is_owned) in [
        (modified(PREFIX, "old:1"), &prefixed, "x:k", true),
        (modified(OTHER_PREFIX, "old:1"), &other, "x:k", true),
        // Deletes of "v:k" reach the copy of "x:k" at one of both only.
        (modified(OTHER_PREFIX, "old:1"), &prefixed, "x:k", false),
        (modified(PREFIX, "old:1"), &other, "x:k", false),
        (config("old:1"), &prefixed, "x:k", false),
        (modified(PREFIX, "old:1"), &config("new:1"), "x:k", false),
        // A set of a large value at the new L2 deletes nothing at the former one.
        (l1_l2("l1:1", "old:1"), &l1_l2("l1:1", "new:1"), "k", false),
        (l1_l2("old:1", "l2:1"), &l1_l2("new:1", "l2:1"), "k", true),
    ] {
        let covered =
            vec![CoveredConfig { id: "former".into(), config: former, departed: [].into(), is_released: false }];
        let active = ActiveConfigs { covered, reads_at: 1, ..ActiveConfigs::single(reads.clone()) };
        let places = CoveredPlaces::of(&active);
        let (former_owner, owner) = (Address("old:1".into()), Address("new:1".into()));
        let found = places.is_owned("former", &former_owner, &owner, &stored.into());
        assert_eq!(found, is_owned, "{stored} from {} to {}", active.covered[0].config.text(), reads.text());
    }
}

/// Reads and deletes of other keys in the same batch waited for a former owner that hung.
#[tokio::test]
async fn only_requests_for_the_keys_of_a_former_owner_wait_for_it() {
    let former = parse(
        r#"{
            "pools": { "A": { "servers": ["a:1"] }, "B": { "servers": ["b:1"] }, "new": { "servers": ["new:1"] } },
            "route": {
                "type": "PrefixSelectorRoute",
                "policies": { "a": "PoolRoute|A", "b": "PoolRoute|B" },
                "wildcard": "PoolRoute|new"
            }
        }"#,
    );
    let covered = vec![CoveredConfig { id: "former".into(), config: former, departed: [].into(), is_released: false }];
    let active = ActiveConfigs { covered, reads_at: 1, ..ActiveConfigs::single(config("new:1")) };
    let server = |address| Server::new(address, Ok(Reply::Deleted));
    let (a, b, new) = (server("a:1"), server("b:1"), server("new:1"));
    let route = covering_in_order(&active, &new, &[&a, &b]);
    let closed = a.gate.acquire().await.expect("it is never closed");
    let get = |key: &'static str| Request { key: key.into(), operation: Operation::Get { cas: false } };
    let delete = |key: &'static str| Request { key: key.into(), operation: Operation::Delete { hold_off_ms: 0 } };
    let batch = vec![get("a"), delete("a"), get("a"), delete("b"), get("b"), get("c"), delete("c")];
    let context = Context::default();
    let mut routed = std::pin::pin!(route.route(batch, &context));
    assert!(routed.as_mut().poll(&mut task::Context::from_waker(Waker::noop())).is_pending());
    assert_eq!((a.received(), b.received()), (vec!["Delete a".to_owned()], vec!["Delete b".to_owned()]));
    let mut received = new.received();
    received.sort();
    assert_eq!(received, ["Delete b", "Delete c", "Get b", "Get c"]);
    drop(closed);
    assert_eq!(routed.await.len(), 7);
    assert_eq!(new.received(), ["Get a", "Delete a", "Get a"], "in the order of the batch");
}
