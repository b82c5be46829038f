use super::*;
use crate::config::router_config::RouterConfig;
use lookaside_client::DestinationOptions;
use lookaside_protocol::{Operation, Reply, StoreMode};
use lookaside_routing::Defaults;
use lookaside_sync::Mutex;
use std::future::ready;

/// A server that records what it receives, and replies `outcome`.
struct Server {
    address: Address,
    outcome: Outcome,
    received: Mutex<Vec<String>>,
}

impl Server {
    fn new(address: &str, outcome: Outcome) -> Arc<Server> {
        Arc::new(Server { address: Address(address.into()), outcome, received: Mutex::default() })
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
        Box::pin(ready(self.outcomes(&batch)))
    }

    fn address(&self) -> &Address {
        &self.address
    }
}

impl Route for Server {
    fn route<'a>(&'a self, batch: Batch, _: &'a Context) -> BoxFuture<'a, Outcomes> {
        Box::pin(ready(self.outcomes(&batch)))
    }
}

fn config(server: &str) -> Arc<RouterConfig> {
    let text = format!(r#"{{ "pools": {{ "A": {{ "servers": ["{server}"] }} }}, "route": "PoolRoute|A" }}"#);
    let config = RouterConfig::parse(&text, &Defaults::default(), &DestinationOptions::default());
    Arc::new(config.expect("the configuration is valid"))
}

/// A tree that is routed to `routed` at `new:1`, and covers a former configuration with `former` at `old:1`.
fn covering(routed: &Arc<Server>, former: &Arc<Server>, departed: &[&str]) -> CoveringRoute {
    let departed = departed.iter().map(|server| Address((*server).into())).collect();
    let covered = vec![CoveredConfig { id: "former".into(), config: config("old:1"), departed }];
    let active = ActiveConfigs { covered, ..ActiveConfigs::single(config("new:1")) };
    let destination: Arc<dyn Destination> = former.clone();
    CoveringRoute {
        routed: routed.clone(),
        places: Arc::new(CoveredPlaces::of(&active)),
        destinations: [(former.address.clone(), destination)].into(),
        deletes: active.covering_deletes,
    }
}

fn request(operation: Operation<Bytes>) -> Request<Bytes> {
    Request { key: "k".into(), operation }
}

fn delete() -> Request<Bytes> {
    request(Operation::Delete { hold_off_ms: 0 })
}

fn store(mode: StoreMode) -> Request<Bytes> {
    request(Operation::Store { mode, flags: 0, exptime: 0, value: "v".into() })
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
        (Ok(Reply::Deleted), Err(Failure::Tko), Err(Failure::Tko)),
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
    assert_eq!(explained("delete").servers(), ["old:1 delete k"]);
    assert!(explained("get").servers().is_empty());
}
