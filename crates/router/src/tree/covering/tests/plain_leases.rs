//! Leases for clients that know none, while more than one configuration is covered.

use super::*;
use lookaside_protocol::LeaseToken;
use lookaside_routing::{Environment, LeaseClients, LeaseRoute, LeaseSettings, Leasing};

const TOKEN: LeaseToken = LeaseToken(7);

/// A server that has no value, and stores under its token.
struct EmptyServer;

impl Route for EmptyServer {
    fn route<'a>(&'a self, batch: Batch, _: &'a Context) -> BoxFuture<'a, Outcomes> {
        let outcome = |request: &Request<Bytes>| {
            Ok(match request.operation {
                Operation::LeaseGet => Reply::Lease { token: TOKEN, flags: 0, stale: None },
                Operation::LeaseSet { token: TOKEN, .. } => Reply::Stored,
                _ => Reply::NotFound,
            })
        };
        Box::pin(std::future::ready(batch.iter().map(outcome).collect()))
    }
}

fn leasing(server: &str) -> Arc<RouterConfig> {
    parse(&format!(r#"{{ "pools": {{ "A": {{ "servers": ["{server}"] }} }}, "route": "LeaseRoute|PoolRoute|A" }}"#))
}

/// The places of a `set` were found by a delete that passed the `LeaseRoute` of each configuration as the client's own,
/// so each `set` voided its own token: nothing was filled for as long as a pool changed.
#[tokio::test]
async fn plain_sets_are_stored_while_a_pool_changes() {
    let former = Server::new("old:1", Ok(Reply::NotFound));
    let covered =
        vec![CoveredConfig { id: "former".into(), config: leasing("old:1"), departed: [].into(), is_released: false }];
    let active = ActiveConfigs { covered, reads_at: 1, ..ActiveConfigs::single(leasing("new:1")) };
    let leases = LeaseRoute::new(Arc::new(EmptyServer), LeaseSettings::default(), Environment::none().clock);
    let route = CoveringRoute {
        routed: Arc::new(leases),
        ..covering_in_order(&active, &Server::new("new:1", Ok(Reply::NotFound)), &[&former])
    };
    let misses = Arc::new(LeaseClients::default()).add(Leasing::default(), None);
    let context = Context { misses: Some(misses), ..Context::default() };
    let get = request(Operation::Get { cas: false });
    assert_eq!(route.route(vec![get.clone()], &context).await, [Ok(Reply::Miss)]);
    assert_eq!(route.route(vec![store(StoreMode::Set)], &context).await, [Ok(Reply::Stored)]);
    assert_eq!(former.received(), ["Delete k"]);
    // A delete of the client does.
    for request in [get, delete()] {
        route.route(vec![request], &context).await;
    }
    assert_eq!(route.route(vec![store(StoreMode::Set)], &context).await, [Ok(Reply::NotStored)]);
}
