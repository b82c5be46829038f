//! Where a configuration places keys: the servers that a delete of a key reaches. A change of the configuration needs
//! it ([ADR 012](../../../../docs/adr/012-resize.md)): deletes also go to the places under other configurations, and
//! copies at places of a former configuration are purged. No server is contacted.
//!
//! The configuration's own tree is built once, with leaves that record and reply at once as empty servers do. So a
//! placement cannot differ from the routing of a request, and no route has to describe itself a second time.
//!
//! **Keys as a server lists them.** Most routes leave a key as it is, so the key on a server can pass the tree again.
//! Some store it under other names (`RouteConfig::changes_keys`): such a key is also given to the routes below these. To no
//! other one: a key that is not changed passes the whole tree, whose routes decide where it is placed and where not.
//!
//! A route that depends on time or rates decides by the clock of the moment. If it refuses a delete for its rate, the
//! place is unknown, and so the caller's delete must fail.

use crate::config::router_config::RouterConfig;
use bytes::Bytes;
use lookaside_client::tree::HostInfo;
use lookaside_protocol::{Operation, Reply, Request};
use lookaside_routing::{
    Address, Background, Batch, BoxFuture, Clock, Context, Destination, DestinationSettings, Destinations, Environment,
    Failure, Outcome, Outcomes, Route, as_delete,
};
use lookaside_sync::Mutex;
use std::collections::BTreeSet;
use std::future::ready;
use std::pin::pin;
use std::sync::Arc;
use std::task::{self, Poll, Waker};
use std::time::Duration;

/// The prefix by which a delete reaches every tree, whatever their prefixes.
const EVERY_TREE: &[u8] = b"/*/*/";

/// A server, and the delete that removes a key there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) server: Address,
    pub(crate) settings: DestinationSettings,
    /// With the key as the server stores it.
    pub(crate) delete: Request<Bytes>,
}

/// The places of every key under one configuration.
pub(crate) struct Placement {
    root: Arc<dyn Route>,
    /// The children of routes that change keys.
    of_changed_keys: Vec<Arc<dyn Route>>,
    record: Record,
    /// Counts the batches that would continue in the background. It has none.
    background: Background,
    /// Held while a delete is recorded.
    recording: Mutex<()>,
}

/// The servers that may hold a key under one configuration.
pub(crate) struct StoredPlaces {
    pub(crate) servers: BTreeSet<Address>,
    /// Deletes of the key are acknowledged only when all of them have replied.
    pub(crate) is_awaited: bool,
}

/// What a tree does with a delete.
struct Recorded {
    places: Vec<Place>,
    outcome: Outcome,
    /// It is acknowledged when all places have replied; some routes return before.
    is_awaited: bool,
}

impl Placement {
    pub(crate) fn of(config: &RouterConfig) -> Placement {
        let background = Background::none();
        let mut leaves = RecordingLeaves {
            config,
            record: Record::default(),
            of_changed_keys: Vec::new(),
            background: background.clone(),
        };
        let root: Arc<dyn Route> = Arc::new(config.configuration().build(&mut leaves));
        let RecordingLeaves { record, of_changed_keys, .. } = leaves;
        Placement { root, of_changed_keys, record, background, recording: Mutex::default() }
    }

    /// The places of the key of `request`, a delete or an update as a client sent it; none if the configuration cannot
    /// store it. Fails if a route refuses a delete of it for now.
    pub(crate) fn places_of(&self, request: &Request<Bytes>, context: &Context) -> Result<Vec<Place>, Failure> {
        // The client has not sent this delete: its misses remain.
        let context = context.without_misses();
        let Recorded { places, outcome, .. } = self.record_delete(&self.root, as_delete(request), &context);
        match outcome {
            Ok(_) | Err(Failure::NoRoute(_) | Failure::NoTree | Failure::Refused { .. }) => Ok(places),
            Err(failure) => Err(failure),
        }
    }

    /// Whether the configuration places the stored key `key` at `server`.
    pub(crate) fn places_at(&self, server: &Address, key: &Bytes) -> bool {
        self.recorded(key).any(|recorded| recorded.is_at(server, key))
    }

    /// The servers at which it places the stored key `key`.
    pub(crate) fn stored_places(&self, key: &Bytes) -> StoredPlaces {
        let mut places = StoredPlaces { servers: BTreeSet::new(), is_awaited: true };
        for recorded in self.recorded(key) {
            places.is_awaited &= recorded.is_awaited;
            let of_key = recorded.places.into_iter().filter(|place| place.delete.key == *key);
            places.servers.extend(of_key.map(|place| place.server));
        }
        places
    }

    /// The deletes that reach the stored key `key`.
    fn recorded<'a>(&'a self, key: &'a Bytes) -> impl Iterator<Item = Recorded> + 'a {
        let everywhere = Bytes::from([EVERY_TREE, key].concat());
        let of_changed_keys = self.of_changed_keys.iter().map(move |route| (route, key.clone()));
        std::iter::once((&self.root, everywhere)).chain(of_changed_keys).map(|(route, key)| {
            let delete = Request { key, operation: Operation::Delete { hold_off_ms: 0 } };
            self.record_delete(route, delete, &Context::default())
        })
    }

    fn record_delete(&self, route: &Arc<dyn Route>, delete: Request<Bytes>, context: &Context) -> Recorded {
        let _recording = self.recording.lock();
        let blocked = self.background.statistics().blocked;
        let outcomes = poll_once(route.route(vec![delete], context));
        let mut places = std::mem::take(&mut *self.record.lock());
        places.sort_unstable_by(|one, other| one.key().cmp(&other.key()));
        places.dedup_by(|one, other| one.key() == other.key());
        let outcome = outcomes.and_then(|mut outcomes| outcomes.pop()).unwrap_or(Err(Failure::Busy));
        Recorded { places, outcome, is_awaited: self.background.statistics().blocked == blocked }
    }
}

impl Recorded {
    fn is_at(&self, server: &Address, key: &Bytes) -> bool {
        self.places.iter().any(|place| place.server == *server && place.delete.key == *key)
    }
}

impl Place {
    /// Two places with equal keys hold the same copy.
    fn key(&self) -> (&Address, DestinationSettings, &Bytes) {
        (&self.server, self.settings, &self.delete.key)
    }
}

/// The output of a future that waits for nothing; `None` if it does wait.
fn poll_once<T>(future: impl Future<Output = T>) -> Option<T> {
    match pin!(future).poll(&mut task::Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}

type Record = Arc<Mutex<Vec<Place>>>;

struct RecordingLeaves<'a> {
    config: &'a RouterConfig,
    record: Record,
    of_changed_keys: Vec<Arc<dyn Route>>,
    background: Background,
}

impl Destinations for RecordingLeaves<'_> {
    fn destination(&mut self, address: &Address, settings: &DestinationSettings) -> Arc<dyn Destination> {
        Arc::new(RecordingLeaf { server: address.clone(), settings: *settings, record: self.record.clone() })
    }

    fn change_keys(&mut self, children: &[Arc<dyn Route>]) {
        for child in children {
            if !self.of_changed_keys.iter().any(|other| Arc::ptr_eq(other, child)) {
                self.of_changed_keys.push(child.clone());
            }
        }
    }

    /// The host's; nothing runs in the background.
    fn environment(&mut self) -> Environment {
        let host = self.config.host();
        let (clock, background) = (Arc::new(HostClock(host)), self.background.clone());
        Environment { clock, background, host_id: host.id, ..Environment::none() }
    }
}

struct RecordingLeaf {
    server: Address,
    settings: DestinationSettings,
    record: Record,
}

impl Destination for RecordingLeaf {
    fn send(&self, batch: Batch) -> BoxFuture<'_, Outcomes> {
        let outcomes = vec![Ok(Reply::NotFound); batch.len()];
        let place = |delete| Place { server: self.server.clone(), settings: self.settings, delete };
        self.record.lock().extend(batch.into_iter().map(place));
        Box::pin(std::future::ready(outcomes))
    }

    fn address(&self) -> &Address {
        &self.server
    }
}

struct HostClock(HostInfo);

impl Clock for HostClock {
    fn now(&self) -> Duration {
        self.0.at.elapsed()
    }

    fn unix_s(&self) -> u64 {
        self.0.unix_s_now()
    }

    fn sleep(&self, _: Duration) -> BoxFuture<'static, ()> {
        Box::pin(ready(()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lookaside_client::DestinationOptions;
    use lookaside_routing::Defaults;

    fn placement(text: &str) -> Placement {
        let config = RouterConfig::parse(text, &Defaults::default(), &DestinationOptions::default());
        Placement::of(&config.expect("the configuration is valid"))
    }

    fn places(placement: &Placement, key: &'static str) -> Vec<(String, String)> {
        let request = Request { key: Bytes::from_static(key.as_bytes()), operation: Operation::LeaseGet };
        let places = placement.places_of(&request, &Context::default()).expect("no route refuses it");
        let text = |bytes: &Bytes| String::from_utf8(bytes.to_vec()).expect("text");
        places.iter().map(|place| (place.server.to_string(), text(&place.delete.key))).collect()
    }

    fn is_at(placement: &Placement, server: &str, key: &'static str) -> bool {
        placement.places_at(&Address(server.into()), &Bytes::from_static(key.as_bytes()))
    }

    const GUTTERED: &str = r#"{
        "pools": { "main": { "servers": ["a:1", "b:1", "c:1"] }, "gutter": { "servers": ["g:1"] } },
        "route": {
            "type": "OperationSelectorRoute",
            "default_policy": {
                "type": "FailoverWithExptimeRoute", "normal": "PoolRoute|main", "failover": "PoolRoute|gutter"
            },
            "operation_policies": {
                "delete": { "type": "AllSyncRoute", "children": ["PoolRoute|main", "PoolRoute|gutter"] }
            }
        }
    }"#;

    #[test]
    fn a_key_is_placed_where_its_deletes_go() {
        let placement = placement(GUTTERED);
        for key in ["user:1", "user:2", "user:3", "user:4"] {
            let of_key = places(&placement, key);
            let [(server, stored), (gutter, _)] = &of_key[..] else { panic!("{of_key:?}") };
            assert_eq!((gutter.as_str(), stored.as_str()), ("g:1", key));
            for other in ["a:1", "b:1", "c:1"] {
                assert_eq!(is_at(&placement, other, key), server == other, "{key} at {other}");
            }
            assert!(is_at(&placement, "g:1", key));
        }
    }

    #[test]
    fn a_server_that_is_only_read_is_no_place() {
        let placement = placement(
            r#"{
                "pools": { "cold": { "servers": ["c:1"] }, "warm": { "servers": ["w:1"] } },
                "route": { "type": "WarmUpRoute", "cold": "PoolRoute|cold", "warm": "PoolRoute|warm", "exptime": 60 }
            }"#,
        );
        assert_eq!(places(&placement, "k"), [("c:1".to_owned(), "k".to_owned())]);
        assert!(!is_at(&placement, "w:1", "k"));
    }

    #[test]
    fn stored_keys_are_found_in_every_tree_and_below_routes_that_change_keys() {
        let placement = placement(
            r#"{
                "pools": { "A": { "servers": ["a:1"] }, "B": { "servers": ["b:1"] }, "C": { "servers": ["c:1", "d:1"] } },
                "routes": [
                    { "aliases": ["/././"], "route": "PoolRoute|A" },
                    { "aliases": ["/east/web/"], "route": "PoolRoute|B" },
                    { "aliases": ["/east/split/"], "route": {
                        "type": "ModifyKeyRoute", "ensure_key_prefix": "x:", "set_key_suffix": ":y", "target": "PoolRoute|C"
                    } }
                ]
            }"#,
        );
        assert_eq!(places(&placement, "k"), [("a:1".to_owned(), "k".to_owned())]);
        assert_eq!(places(&placement, "/east/web/k"), [("b:1".to_owned(), "k".to_owned())]);
        assert_eq!(places(&placement, "/east/none/k"), []);
        let stored = places(&placement, "/east/split/k");
        let [(server, key)] = &stored[..] else { panic!("{stored:?}") };
        assert_eq!(key, "x:k:y");
        assert!(is_at(&placement, "a:1", "k") && is_at(&placement, "b:1", "k"));
        assert!(is_at(&placement, server, "x:k:y"));
        assert!(!is_at(&placement, if server == "c:1" { "d:1" } else { "c:1" }, "x:k:y"));
    }

    /// One route that changes keys made every key count as placed at each server of the other ones: copies that had moved
    /// were not purged, and were read again after a change back.
    #[test]
    fn keys_that_no_route_changes_are_placed_where_their_deletes_go() {
        let placement = placement(
            r#"{
                "pools": { "A": { "servers": ["a:1", "b:1"] }, "C": { "servers": ["c:1"] }, "D": { "servers": ["d:1"] } },
                "named_handles": { "changing": { "type": "ModifyKeyRoute", "set_key_suffix": ":y", "target": "PoolRoute|D" } },
                "route": { "type": "PrefixSelectorRoute", "wildcard": "NullRoute", "policies": {
                    "d": { "type": "HashRoute", "children": ["changing", "changing"] },
                    "c": "PoolRoute|C",
                    "h": { "type": "HashRoute", "children": "Pool|A" }
                } }
            }"#,
        );
        let servers = ["a:1", "b:1", "c:1", "d:1"];
        for key in ["c1", "h1", "h2", "h3", "h4", "h5"] {
            let [(of_delete, _)] = &places(&placement, key)[..] else { panic!("{key} has one place") };
            let placed: Vec<_> = servers.into_iter().filter(|server| is_at(&placement, server, key)).collect();
            // Below the route that changes keys any key may have been stored.
            assert_eq!(placed, [of_delete.as_str(), "d:1"], "{key}");
        }
        assert_eq!(placement.of_changed_keys.len(), 1, "the handle counts once");
    }

    /// All named handles are built. Once such a route in one of them made every stored key be looked for in each pool by
    /// itself: a server at which no key of a client is stored counted as its place.
    #[test]
    fn a_named_handle_that_no_tree_refers_to_changes_no_keys() {
        let placed = |route: &str| {
            let text = r#"{
                "pools": { "A": { "servers": ["a:1"] }, "B": { "servers": ["b:1"] } },
                "named_handles": {
                    "outer": { "type": "LoggingRoute", "target": "inner" },
                    "inner": { "type": "ModifyKeyRoute", "set_key_suffix": ":y", "target": "PoolRoute|B" }
                },
                "route": ROUTE
            }"#;
            let placement = placement(&text.replace("ROUTE", route));
            ["a:1", "b:1"].map(|server| is_at(&placement, server, "k"))
        };
        assert_eq!(placed(r#""PoolRoute|A""#), [true, false]);
        // Below the handle any key may have been stored.
        assert_eq!(placed(r#""outer""#), [false, true]);
        assert_eq!(placed(r#"{ "type": "AllSyncRoute", "children": ["outer", "PoolRoute|A"] }"#), [true, true]);
    }

    #[test]
    fn the_place_of_an_encoded_key_is_deleted_by_the_same_encoding() {
        use lookaside_protocol::meta::{MetaOperation, MetaVerb};
        let placement = placement(r#"{ "pools": { "A": { "servers": ["a:1"] } }, "route": "PoolRoute|A" }"#);
        let meta = MetaOperation { verb: MetaVerb::Delete, flags: "b I q C5".into(), value: None };
        let request = Request { key: "AP8=".into(), operation: Operation::Meta(meta) };
        let places = placement.places_of(&request, &Context::default()).expect("a place");
        let unconditional = MetaOperation { verb: MetaVerb::Delete, flags: "b".into(), value: None };
        assert_eq!(places[0].delete, Request { key: "AP8=".into(), operation: Operation::Meta(unconditional) });
    }
}
