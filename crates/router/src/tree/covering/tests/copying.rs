//! Copies from former owners while routers warm up after different changes, which move a key to and fro.

use super::*;
use lookaside_protocol::LeaseToken;
use lookaside_protocol::meta::{MetaReply, MetaStatus};
use lookaside_routing::{Environment, FormerOwnerRoute, KeyHash, Owners, PoolRoute};

/// A server with leases, for one key. It applies deletes when its gate is open, and all else at once.
struct LeaseServer {
    address: Address,
    deletes: Semaphore,
    state: Mutex<LeaseState>,
}

#[derive(Default)]
struct LeaseState {
    value: Option<Bytes>,
    lease: Option<LeaseToken>,
    leases: u64,
}

impl LeaseServer {
    fn new(address: &str) -> Arc<LeaseServer> {
        Arc::new(LeaseServer { address: Address(address.into()), deletes: Semaphore::new(1), state: Mutex::default() })
    }

    fn apply(&self, request: &Request<Bytes>) -> Outcome {
        let mut state = self.state.lock();
        Ok(match (&request.operation, state.value.clone()) {
            (Operation::Delete { .. }, value) => {
                (state.value, state.lease) = (None, None);
                if value.is_some() { Reply::Deleted } else { Reply::NotFound }
            }
            (Operation::Meta(_), Some(value)) => {
                Reply::Meta(MetaReply { status: MetaStatus::Value, flags: "f0 t-1".into(), value: Some(value) })
            }
            (Operation::Meta(_), None) => {
                Reply::Meta(MetaReply { status: MetaStatus::Miss, flags: Bytes::new(), value: None })
            }
            (Operation::LeaseGet, Some(value)) => Reply::Value { flags: 0, cas: None, value },
            (Operation::LeaseGet, None) => {
                state.leases += 1;
                let token = LeaseToken(1 + state.leases);
                state.lease = Some(token);
                Reply::Lease { token, flags: 0, stale: None }
            }
            (Operation::LeaseSet { token, value, .. }, _) if state.lease == Some(*token) => {
                (state.value, state.lease) = (Some(value.clone()), None);
                Reply::Stored
            }
            _ => Reply::NotStored,
        })
    }

    fn value(&self) -> Option<Bytes> {
        self.state.lock().value.clone()
    }
}

impl Destination for LeaseServer {
    fn send(&self, batch: Batch) -> BoxFuture<'_, Outcomes> {
        Box::pin(async move {
            if batch.iter().any(|request| verb(request) == Verb::Delete) {
                drop(self.deletes.acquire().await);
            }
            batch.iter().map(|request| self.apply(request)).collect()
        })
    }

    fn address(&self) -> &Address {
        &self.address
    }
}

/// Configurations with these servers in the order of deletes, of a router that reads by the one at `reads_at`. The id
/// of each is its position.
fn numbered(servers: &[&str], reads_at: usize) -> ActiveConfigs {
    let mut active = in_order(servers, reads_at);
    let others = (0..servers.len()).filter(|at| *at != reads_at);
    active.covered.iter_mut().zip(others).for_each(|(covered, at)| covered.id = at.to_string().into());
    active
}

/// The pool of a router that reads by the configuration at `reads_at`, and read by the one at `former_at` a moment ago.
fn pool_of(
    order: &[&str],
    (former_at, reads_at): (usize, usize),
    former: &Arc<LeaseServer>,
    owner: &Arc<LeaseServer>,
) -> FormerOwnerRoute {
    let places = CoveredPlaces::of(&numbered(order, reads_at));
    let former_id = former_at.to_string();
    let owners = Owners {
        servers: vec![owner.address.clone()],
        hash: KeyHash::default(),
        former: vec![former.clone()],
        former_hash: KeyHash::default(),
        is_owned: Box::new(move |former, owner, key| places.is_owned(&former_id, former, owner, key)),
        unleased_after: None,
    };
    let pool = Arc::new(PoolRoute::new(vec![owner.clone()], false, KeyHash::default()));
    FormerOwnerRoute::new(pool, owners, Arc::default(), Environment::none())
}

/// The root of a router that reads by the configuration at `reads_at`, of `owner`.
fn root_of(order: &[&str], reads_at: usize, owner: &Arc<LeaseServer>, servers: &[&Arc<LeaseServer>]) -> CoveringRoute {
    let destination = |server: &&Arc<LeaseServer>| (server.address.clone(), (*server).clone() as Arc<dyn Destination>);
    CoveringRoute {
        routed: Arc::new(PoolRoute::new(vec![owner.clone()], false, KeyHash::default())),
        places: Arc::new(CoveredPlaces::of(&numbered(order, reads_at))),
        destinations: servers.iter().map(destination).collect(),
        deletes: Arc::default(),
    }
}

/// A key moved from one server to another and back, and one router had seen the second change when the other had not.
/// So one copied the old value to where the other copied it from, each time away from the delete that came next.
#[tokio::test]
async fn a_deleted_value_is_not_copied_to_and_fro() {
    let (a, b) = (LeaseServer::new("a:1"), LeaseServer::new("b:1"));
    let order = ["a:1", "b:1", "a:1"];
    let (to_b, to_a) = (pool_of(&order, (0, 1), &a, &b), pool_of(&order, (1, 2), &b, &a));
    let root = root_of(&order, 1, &b, &[&a, &b]);
    let (context, lease_get) = (Context::default(), || vec![request(Operation::LeaseGet)]);
    let mut waker = task::Context::from_waker(Waker::noop());
    b.state.lock().value = Some("old".into());

    let at_b = b.deletes.acquire().await.expect("it is never closed");
    let mut deleted = std::pin::pin!(root.route(vec![delete()], &context));
    assert!(deleted.as_mut().poll(&mut waker).is_pending(), "applied at a under the first configuration");
    to_a.route(lease_get(), &context).await;
    let at_a = a.deletes.acquire().await.expect("it is never closed");
    drop(at_b);
    assert!(deleted.as_mut().poll(&mut waker).is_pending(), "applied at b under the second one");
    to_b.route(lease_get(), &context).await;
    drop(at_a);
    assert_eq!(deleted.await, [Ok(Reply::Deleted)], "applied at a under the third one");
    assert_eq!((a.value(), b.value()), (None, None));
}

/// Two routers began to cover the second and the third configuration in different orders, and a key moved on from both
/// to where it was at first. One router copied the old value there, and the other one from there to a server that the
/// delete had left behind.
#[tokio::test]
async fn a_deleted_value_is_not_copied_past_the_delete_by_routers_with_different_orders() {
    let servers @ [a, b, c] = &["a:1", "b:1", "c:1"].map(LeaseServer::new);
    let (order, other_order) = (["a:1", "c:1", "b:1", "a:1"], ["a:1", "b:1", "c:1", "a:1"]);
    let (a_to_c, b_to_a) = (pool_of(&order, (0, 1), a, c), pool_of(&other_order, (1, 3), b, a));
    let root = root_of(&order, 1, c, &servers.each_ref());
    let (context, lease_get) = (Context::default(), || vec![request(Operation::LeaseGet)]);
    let mut waker = task::Context::from_waker(Waker::noop());
    servers.iter().for_each(|server| server.state.lock().value = Some("old".into()));

    let at_b = b.deletes.acquire().await.expect("it is never closed");
    let mut deleted = std::pin::pin!(root.route(vec![delete()], &context));
    assert!(deleted.as_mut().poll(&mut waker).is_pending(), "applied at a and c");
    assert_eq!((a.value(), c.value()), (None, None));
    b_to_a.route(lease_get(), &context).await;
    a_to_c.route(lease_get(), &context).await;
    drop(at_b);
    assert_eq!(deleted.await, [Ok(Reply::Deleted)], "applied at b, and at a under the last configuration");
    assert!(
        servers.iter().all(|server| server.value().is_none()),
        "{:?}",
        servers.each_ref().map(|server| server.value())
    );
}

#[test]
fn only_a_key_that_has_moved_once_is_copied() {
    for (order, reads_at, is_owned) in [
        (&["a:1", "b:1"][..], 1, true),
        (&["a:1", "a:1", "b:1"], 2, true),
        (&["a:1", "b:1", "b:1"], 1, true),
        (&["a:1", "b:1", "a:1"], 1, false),
        (&["b:1", "a:1", "b:1"], 2, false),
        (&["c:1", "a:1", "b:1"], 2, false),
        (&["a:1", "b:1", "c:1"], 1, false),
    ] {
        let places = CoveredPlaces::of(&numbered(order, reads_at));
        let (former, owner) = (Address(order[reads_at - 1].into()), Address(order[reads_at].into()));
        let former_id = (reads_at - 1).to_string();
        assert_eq!(places.is_owned(&former_id, &former, &owner, &"k".into()), is_owned, "{order:?} {reads_at}");
    }
    let mut active = numbered(&["b:1", "a:1", "b:1"], 2);
    active.covered[0].is_released = true;
    let (former, owner) = (Address("a:1".into()), Address("b:1".into()));
    assert!(CoveredPlaces::of(&active).is_owned("1", &former, &owner, &"k".into()), "none reads by the first any more");
    let places = CoveredPlaces::of(&numbered(&["b:1", "a:1"], 0));
    assert!(!places.is_owned("1", &former, &owner, &"k".into()), "deletes reach the new owner first");
}

/// One pool of a configuration took a server from another one, so the old value of a key that both have was copied to
/// it and from there.
#[test]
fn a_server_that_a_key_keeps_is_not_copied_from() {
    let pools = |one: &str, other: &str| {
        parse(&format!(
            r#"{{
                "pools": {{ "A": {{ "servers": ["{one}"] }}, "B": {{ "servers": ["{other}"] }} }},
                "route": {{ "type": "AllSyncRoute", "children": ["PoolRoute|A", "PoolRoute|B"] }}
            }}"#
        ))
    };
    let covered = vec![CoveredConfig {
        id: "former".into(),
        config: pools("a:1", "b:1"),
        departed: [].into(),
        is_released: false,
    }];
    let active = ActiveConfigs { covered, reads_at: 1, ..ActiveConfigs::single(pools("c:1", "a:1")) };
    let places = CoveredPlaces::of(&active);
    let is_owned = |former: &str, owner: &str| {
        places.is_owned("former", &Address(former.into()), &Address(owner.into()), &"k".into())
    };
    assert!(!is_owned("a:1", "c:1"), "a:1 is filled from b:1");
    assert!(is_owned("b:1", "a:1"));
}
