//! Routers that answer, hang, are down, or refuse deletes, as a test wants it, and that record what they received.

use bytes::Bytes;
use lookaside_client::{Listener, Network, Stream};
use lookaside_invalidator::{
    observe::stats::{ClusterStatistics, Statistics},
    pipeline::delivery::{HEDGE_DELAY, RouterConnections, RouterDelivery},
};
use lookaside_protocol::{ErrorReply, Operation, Reply, Request};
use lookaside_routing::{Address, Batch, BoxFuture, Destination, Failure, Outcome, Outcomes, TkoReason};
use std::{
    io,
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::{sync::watch, time::timeout};

/// As long as the daemon waits for a router by default.
pub const ROUTER_TIMEOUT: Duration = Duration::from_secs(5);

/// The key whose value is the state of a router's start gate.
pub const START_GATE: &str = "__mcrouter__.start_gate";

/// The key of a report to a router that waits.
fn caught_up(token: &str) -> String {
    format!("__mcrouter__.caught_up({token})")
}

/// How a router behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Behavior {
    Answers,
    /// Requests get no reply until the behavior changes, or the timeout is over.
    Hangs,
    /// As a router that is TKO.
    IsDown,
    /// Probes are answered; each connection for deletes is lost.
    LosesDeletes,
    /// Probes are answered; deletes are not, as those of a server that hangs.
    HangsWithDeletes,
}

/// A router.
pub struct FakeRouter {
    address: Address,
    behavior: watch::Sender<Behavior>,
    /// Deletes of keys that begin with this are refused; `None` if none are.
    refused_prefix: Mutex<Option<String>>,
    /// The router has no route for keys that begin with this; `None` if it has one for all.
    unrouted_prefix: Mutex<Option<String>>,
    /// The keys of deletes, as they arrived.
    received: Mutex<Vec<String>>,
    /// The keys of gets: probes.
    probes: Mutex<Vec<String>>,
    /// The values of keys that the router answers itself.
    pub values: Mutex<Vec<(String, String)>>,
}

impl FakeRouter {
    pub fn new(name: &str, behavior: Behavior) -> Arc<FakeRouter> {
        Arc::new(FakeRouter {
            address: Address(name.into()),
            behavior: watch::Sender::new(behavior),
            refused_prefix: Mutex::default(),
            unrouted_prefix: Mutex::default(),
            received: Mutex::default(),
            probes: Mutex::default(),
            values: Mutex::default(),
        })
    }

    pub fn set(&self, behavior: Behavior) {
        self.behavior.send_replace(behavior);
    }

    /// Refuses deletes of keys that begin with `prefix`, as a router that reaches neither their server nor its peers.
    pub fn refuse(&self, prefix: &str) {
        *self.refused_prefix.lock().expect("no panic") = Some(prefix.into());
    }

    /// Has no route for keys that begin with `prefix`; for all keys there is one if it is `None`.
    pub fn set_unrouted(&self, prefix: Option<&str>) {
        *self.unrouted_prefix.lock().expect("no panic") = prefix.map(str::to_owned);
    }

    pub fn received(&self) -> Vec<String> {
        self.received.lock().expect("no panic").clone()
    }

    pub fn gets(&self) -> Vec<String> {
        self.probes.lock().expect("no panic").clone()
    }

    /// Waits at its start gate, as run `token`.
    pub fn close_gate(&self, token: &str) {
        let state = (START_GATE.into(), format!("waiting {token}"));
        *self.values.lock().expect("no panic") = vec![state, (caught_up(token), "open".into())];
        self.probes.lock().expect("no panic").clear();
    }

    /// Whether a probe has found it waiting as run `token`.
    pub fn is_waiting(&self, token: &str) -> bool {
        let waits = format!("waiting {token}");
        let is_closed = self.values.lock().expect("no panic").iter().any(|(_, value)| *value == waits);
        is_closed && self.gets().iter().any(|key| key == START_GATE)
    }

    /// Whether it was notified, as run `token`, that its cluster is up to date.
    pub fn is_notified(&self, token: &str) -> bool {
        self.gets().contains(&caught_up(token))
    }

    fn execute(&self, request: &Request<Bytes>) -> Outcome {
        let key = String::from_utf8_lossy(&request.key).into_owned();
        match request.operation {
            Operation::Delete { .. } => {
                let prefix = self.refused_prefix.lock().expect("no panic").clone();
                let is_refused = prefix.is_some_and(|prefix| key.starts_with(&prefix));
                let prefix = self.unrouted_prefix.lock().expect("no panic").clone();
                let is_unrouted = prefix.is_some_and(|prefix| key.starts_with(&prefix));
                self.received.lock().expect("no panic").push(key);
                let error = |message: &str| Ok(Reply::Error(ErrorReply::Server(message.to_owned().into())));
                match (is_unrouted, is_refused) {
                    (true, _) => error("no route: no tree is named /new/"),
                    (_, true) => error("no reply from the server"),
                    _ => Ok(Reply::Deleted),
                }
            }
            _ => {
                let values = self.values.lock().expect("no panic");
                let value = values.iter().find(|(name, _)| *name == key).map(|(_, value)| value.clone());
                self.probes.lock().expect("no panic").push(key);
                Ok(value.map_or(Reply::Miss, |value| Reply::Value { flags: 0, cas: None, value: value.into() }))
            }
        }
    }
}

/// A connection to a router. It answers in order, so a probe must not be sent among deletes.
struct FakeConnection {
    router: Arc<FakeRouter>,
    is_for_deletes: bool,
}

impl Destination for FakeConnection {
    fn send(&self, batch: Batch) -> BoxFuture<'_, Outcomes> {
        for request in &batch {
            let is_delete = matches!(request.operation, Operation::Delete { .. });
            assert_eq!(is_delete, self.is_for_deletes, "{request:?} on the wrong connection");
        }
        self.router.execute_batch(batch)
    }

    fn address(&self) -> &Address {
        &self.router.address
    }
}

impl FakeRouter {
    fn execute_batch(&self, batch: Batch) -> BoxFuture<'_, Outcomes> {
        Box::pin(async move {
            if *self.behavior.borrow() == Behavior::IsDown {
                return vec![Err(Failure::Tko(TkoReason::ConnectFailed)); batch.len()];
            }
            let is_delete = |request: &Request<Bytes>| matches!(request.operation, Operation::Delete { .. });
            if *self.behavior.borrow() == Behavior::LosesDeletes && batch.iter().any(is_delete) {
                batch.iter().for_each(|request| drop(self.execute(request)));
                return vec![Err(Failure::ConnectionLost); batch.len()];
            }
            let has_delete = batch.iter().any(is_delete);
            let hangs = |behavior: &Behavior| match behavior {
                Behavior::Hangs => true,
                Behavior::HangsWithDeletes => has_delete,
                _ => false,
            };
            let mut behavior = self.behavior.subscribe();
            let mut resumed = std::pin::pin!(behavior.wait_for(|behavior| !hangs(behavior)));
            match timeout(ROUTER_TIMEOUT, &mut resumed).await {
                Ok(_) => batch.iter().map(|request| self.execute(request)).collect(),
                Err(_) => vec![Err(Failure::TimedOut); batch.len()],
            }
        })
    }
}

/// Delivery through `routers`, and its statistics.
pub fn delivery_through(routers: &[&Arc<FakeRouter>]) -> (Arc<RouterDelivery>, Arc<ClusterStatistics>) {
    let statistics = Statistics::new(["a"]).clusters()[0].clone();
    (Arc::new(build_delivery(routers, &statistics)), statistics)
}

/// Delivery through `routers` that counts in `statistics`.
pub fn build_delivery(routers: &[&Arc<FakeRouter>], statistics: &Arc<ClusterStatistics>) -> RouterDelivery {
    let connect = |router: &Arc<FakeRouter>, is_for_deletes| {
        Arc::new(FakeConnection { router: router.clone(), is_for_deletes }) as Arc<dyn Destination>
    };
    let connections = |&router: &&Arc<FakeRouter>| RouterConnections {
        deletes: connect(router, true),
        probes: connect(router, false),
    };
    let routers = routers.iter().map(connections).collect();
    RouterDelivery::new(routers, Arc::new(NoNetwork), statistics.clone()).with_hedge_delay(HEDGE_DELAY)
}

struct NoNetwork;

impl Network for NoNetwork {
    fn connect<'a>(&'a self, _: &'a Address) -> BoxFuture<'a, io::Result<Box<dyn Stream>>> {
        Box::pin(async { Err(io::ErrorKind::Unsupported.into()) })
    }

    fn listen<'a>(&'a self, _: &'a Address) -> BoxFuture<'a, io::Result<Box<dyn Listener>>> {
        Box::pin(async { Err(io::ErrorKind::Unsupported.into()) })
    }
}
