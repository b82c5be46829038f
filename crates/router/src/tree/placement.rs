//! Where a configuration places keys: the servers that a delete of a key reaches. A change of the configuration needs
//! it ([ADR 012](../../../../docs/adr/012-resize.md)): deletes also go to the places under other configurations, and
//! copies at places of a former configuration are purged. No server is contacted.
//!
//! The configuration's own tree is built once, with leaves that record and reply at once as empty servers do. So a
//! placement cannot differ from the routing of a request, and no route has to describe itself a second time.
//!
//! **Keys as a server lists them.** Most routes leave a key as it is, so the key on a server can pass the tree again.
//! Some store it under other names (`RouteConfig::changes_keys`), and tell which keys may have become it; each of these
//! passes the tree, too, and counts if its delete reaches the server under the listed name:
//! ```text
//!   listed at S: hot:1::3      hot:1::3 -- tree --> hot:1::3, hot:1::3::1, ... at other servers     no
//!                              hot:1    -- tree --> hot:1, hot:1::1, ..., hot:1::3 at S              yes
//! ```
//! A copy needs the deletes of each of these keys: another configuration keeps it if it brings all of them to the copy.
//!
//! Some routes keep copies that no delete reaches (`TreeBuilder::store_undeleted`). A key that is found at no place of
//! its deletes is looked for below these routes.
//!
//! A route that depends on time or rates decides by the clock of the moment. If it refuses a delete for its rate, the
//! place is unknown, and so the caller's delete must fail.

use crate::config::router_config::RouterConfig;
use bytes::Bytes;
use lookaside_client::tree::HostInfo;
use lookaside_protocol::{KEY_BYTES_MAX, Operation, Reply, Request};
use lookaside_routing::{
    Address, Background, Batch, BoxFuture, Clock, Context, Destination, DestinationSettings, Destinations, Environment,
    Failure, Outcome, Outcomes, Route, RouteConfig, as_delete,
};
use lookaside_sync::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::future::ready;
use std::pin::pin;
use std::sync::Arc;
use std::task::{self, Poll, Waker};
use std::time::Duration;

/// The prefix by which a delete reaches every tree, whatever their prefixes.
const EVERY_TREE: &[u8] = b"/*/*/";

/// From how many keys of clients a stored key may come. Three routes that replace prefixes, each below the one before,
/// make about forty of one.
const CLIENT_KEYS_MAX: usize = 1_000;

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
    /// The routes that change keys.
    key_changes: Vec<Arc<dyn RouteConfig>>,
    /// The routes whose copies no delete reaches.
    undeleted: Vec<Arc<dyn Route>>,
    record: Record,
    /// Counts the batches that would continue in the background. It has none.
    background: Background,
    /// Held while a delete is recorded.
    recording: Mutex<()>,
}

/// The servers that may hold a stored key under one configuration.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct StoredPlaces {
    /// For each key of clients that is stored under this name, the servers that its deletes reach, and for `None` those
    /// of the routes whose copies no delete reaches.
    pub(crate) servers: BTreeMap<Option<Bytes>, BTreeSet<Address>>,
    /// Deletes of these keys are acknowledged only when all servers have replied.
    pub(crate) is_awaited: bool,
}

/// There are more keys than [`CLIENT_KEYS_MAX`] that a stored key may come from.
struct TooManyKeys;

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
            key_changes: Vec::new(),
            undeleted: Vec::new(),
            background: background.clone(),
        };
        let root: Arc<dyn Route> = Arc::new(config.configuration().build(&mut leaves));
        let RecordingLeaves { record, key_changes, undeleted, .. } = leaves;
        Placement { root, key_changes, undeleted, record, background, recording: Mutex::default() }
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

    /// Whether a copy of `stored` at `server`, which this configuration placed there, misses deletes under the
    /// configurations `kept`: those of a key of clients under which this one stored it.
    pub(crate) fn misplaces(&self, server: &Address, stored: &Bytes, kept: &[Placement]) -> bool {
        let Ok(keys) = self.client_keys_at(server, stored) else { return true };
        if keys.is_empty() {
            let is_at = |placement: &Placement| placement.holds_undeleted(server, stored);
            return is_at(self) && !kept.iter().any(is_at);
        }
        keys.iter().any(|key| !kept.iter().any(|placement| placement.reaches(key, server, stored)))
    }

    /// The servers at which it places the stored key `stored`; none if that may come from too many keys of clients.
    pub(crate) fn stored_places(&self, stored: &Bytes) -> StoredPlaces {
        let mut places = StoredPlaces { servers: BTreeMap::new(), is_awaited: true };
        for key in self.client_keys(stored).unwrap_or_default() {
            let recorded = self.record_deletes(&key, stored);
            let is_awaited = recorded.iter().all(|recorded| recorded.is_awaited);
            let servers: BTreeSet<Address> =
                recorded.into_iter().flat_map(|recorded| recorded.into_servers_of(stored)).collect();
            if !servers.is_empty() {
                places.is_awaited &= is_awaited;
                places.servers.insert(Some(key), servers);
            }
        }
        let undeleted = self.record_undeleted(stored);
        if !undeleted.is_empty() {
            places.is_awaited &= undeleted.iter().all(|recorded| recorded.is_awaited);
            let servers = undeleted.into_iter().flat_map(|recorded| recorded.into_servers_of(stored)).collect();
            places.servers.insert(None, servers);
        }
        places
    }

    /// The keys of clients whose deletes reach `stored` at `server`.
    fn client_keys_at(&self, server: &Address, stored: &Bytes) -> Result<Vec<Bytes>, TooManyKeys> {
        let mut keys = self.client_keys(stored)?;
        keys.retain(|key| self.reaches(key, server, stored));
        Ok(keys)
    }

    /// The keys of clients that the routes may have changed to `stored`, and `stored` itself. Deletes show which of them
    /// they do change to that.
    fn client_keys(&self, stored: &Bytes) -> Result<Vec<Bytes>, TooManyKeys> {
        let mut keys = vec![stored.clone()];
        let mut added = 0..1;
        // No route is below itself: a key passes each once at most.
        for _ in &self.key_changes {
            for at in added.clone() {
                let changed = keys[at].clone();
                let before = self.key_changes.iter().flat_map(|route| route.keys_changed_to(&changed));
                for key in before.filter(|key| !key.is_empty()) {
                    if !keys.contains(&key) {
                        keys.push(key);
                    }
                }
                if keys.len() > CLIENT_KEYS_MAX {
                    return Err(TooManyKeys);
                }
            }
            added = added.end..keys.len();
        }
        Ok(keys)
    }

    /// Whether a delete of the client's key `key` reaches `stored` at `server`.
    fn reaches(&self, key: &Bytes, server: &Address, stored: &Bytes) -> bool {
        self.record_deletes(key, stored).iter().any(|recorded| recorded.is_at(server, stored))
    }

    fn holds_undeleted(&self, server: &Address, stored: &Bytes) -> bool {
        self.record_undeleted(stored).iter().any(|recorded| recorded.is_at(server, stored))
    }

    /// The deletes of a client's key that may be stored as `stored`.
    fn record_deletes(&self, key: &Bytes, stored: &Bytes) -> Vec<Recorded> {
        let everywhere = Bytes::from([EVERY_TREE, key].concat());
        // Routes do not change a key to one that is too long together with its prefix.
        let without_prefix = (EVERY_TREE.len() + stored.len() > KEY_BYTES_MAX).then(|| key.clone());
        std::iter::once(everywhere).chain(without_prefix).map(|key| self.record_delete_of(&self.root, key)).collect()
    }

    /// The deletes of a stored key below the routes whose copies no delete of a client reaches.
    fn record_undeleted(&self, stored: &Bytes) -> Vec<Recorded> {
        self.undeleted.iter().map(|route| self.record_delete_of(route, stored.clone())).collect()
    }

    fn record_delete_of(&self, route: &Arc<dyn Route>, key: Bytes) -> Recorded {
        let delete = Request { key, operation: Operation::Delete { hold_off_ms: 0 } };
        self.record_delete(route, delete, &Context::default())
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
    fn is_at(&self, server: &Address, stored: &Bytes) -> bool {
        self.places.iter().any(|place| place.server == *server && place.delete.key == *stored)
    }

    fn into_servers_of(self, stored: &Bytes) -> impl Iterator<Item = Address> {
        self.places.into_iter().filter(move |place| place.delete.key == *stored).map(|place| place.server)
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
    key_changes: Vec<Arc<dyn RouteConfig>>,
    undeleted: Vec<Arc<dyn Route>>,
    background: Background,
}

impl Destinations for RecordingLeaves<'_> {
    fn destination(&mut self, address: &Address, settings: &DestinationSettings) -> Arc<dyn Destination> {
        Arc::new(RecordingLeaf { server: address.clone(), settings: *settings, record: self.record.clone() })
    }

    fn change_keys(&mut self, route: &Arc<dyn RouteConfig>) {
        if !self.key_changes.iter().any(|other| **other == **route) {
            self.key_changes.push(route.clone());
        }
    }

    fn store_undeleted(&mut self, route: &Arc<dyn Route>) {
        if !self.undeleted.iter().any(|other| Arc::ptr_eq(other, route)) {
            self.undeleted.push(route.clone());
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
        is_misplaced(placement, &[], server, key)
    }

    fn is_misplaced(former: &Placement, kept: &[Placement], server: &str, key: &'static str) -> bool {
        former.misplaces(&Address(server.into()), &Bytes::from_static(key.as_bytes()), kept)
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
            assert_eq!(placed, [of_delete.as_str()], "{key}");
        }
        assert!(is_at(&placement, "d:1", "d1:y") && !is_at(&placement, "d:1", "c1:y"));
        assert_eq!(placement.key_changes.len(), 1, "the handle counts once");
    }

    /// All named handles are built, also those that no tree refers to.
    #[test]
    fn a_handle_that_no_tree_refers_to_keeps_nothing() {
        let is_at_l2 = |route: &str| {
            let text = r#"{
                "pools": { "A": { "servers": ["a:1"] }, "L2": { "servers": ["b:1"] } },
                "named_handles": {
                    "outer": { "type": "LoggingRoute", "target": "inner" },
                    "inner": { "type": "L1L2SizeSplitRoute", "l1": "PoolRoute|A", "l2": "PoolRoute|L2", "threshold": 100 }
                },
                "route": ROUTE
            }"#;
            is_at(&placement(&text.replace("ROUTE", route)), "b:1", "k|==|17")
        };
        assert!(!is_at_l2(r#""PoolRoute|A""#));
        assert!(is_at_l2(r#""outer""#));
        assert!(is_at_l2(r#"{ "type": "AllSyncRoute", "children": ["outer", "PoolRoute|A"] }"#));
    }

    const POOL: &str = r#""PoolRoute|A""#;
    const SUFFIXED: &str = r#"{ "type": "ModifyKeyRoute", "set_key_suffix": ":y", "target": "PoolRoute|A" }"#;
    const PREFIXED: &str = r#"{ "type": "ModifyKeyRoute", "ensure_key_prefix": "x:", "target": "PoolRoute|A" }"#;
    const REPLACED: &str = r#"{
        "type": "ModifyKeyRoute", "replace_key_prefix": "v:", "ensure_key_prefix": "x:", "target": "PoolRoute|A"
    }"#;
    const SPLIT: &str = r#"{ "type": "PrefixSelectorRoute", "wildcard": "PoolRoute|A", "policies": {
        "hot": { "type": "KeySplitRoute", "replicas": 4, "destination": "PoolRoute|A" }
    } }"#;
    const SPLIT_SHARD: &str = r#"{
        "type": "ShardSplitRoute", "shard_splits": { "7": { "new_split_size": 3, "fanout_deletes": true } },
        "destination": "PoolRoute|A"
    }"#;
    const SPLIT_AND_SUFFIXED: &str = r#"{ "type": "KeySplitRoute", "replicas": 4, "destination": {
        "type": "ModifyKeyRoute", "set_key_suffix": ":y", "target": "PoolRoute|A"
    } }"#;

    fn routed(route: &str) -> Placement {
        let pools = r#"{ "A": { "servers": ["a:1", "b:1", "c:1"] }, "L2": { "servers": ["a:1", "b:1", "c:1"] } }"#;
        placement(&format!(r#"{{ "pools": {pools}, "route": {route} }}"#))
    }

    /// Every copy that one stores, at its servers.
    fn copies(route: &str, key: &'static str) -> Vec<(String, String)> {
        places(&routed(route), key)
    }

    /// Each pair was kept as long as the servers below such routes stayed: the copies got no deletes, and were read again
    /// when the change was taken back.
    #[test]
    fn a_copy_is_misplaced_if_its_client_s_deletes_do_not_reach_it_any_more() {
        for (former, kept, key, is_kept) in [
            (POOL, POOL, "k", true),
            // A client's key is stored under another name.
            (POOL, SUFFIXED, "k", false),
            (POOL, PREFIXED, "k", false),
            (SUFFIXED, POOL, "k", false),
            (PREFIXED, POOL, "k", false),
            (SUFFIXED, PREFIXED, "k", false),
            (SUFFIXED, SUFFIXED, "k", true),
            (PREFIXED, PREFIXED, "k", true),
            // Deletes of "x:k" reach it, but not those of "k", which is stored there, too.
            (PREFIXED, POOL, "x:k", false),
            (POOL, PREFIXED, "x:k", true),
            (REPLACED, PREFIXED, "v:k", false),
            (REPLACED, PREFIXED, "x:k", false),
            (REPLACED, REPLACED, "v:k", true),
            (PREFIXED, REPLACED, "k", true),
            // The other copies of a split key have no owner but the route.
            (POOL, SPLIT, "hot:1", true),
            (SPLIT, POOL, "cold:1", true),
            (SPLIT, SPLIT, "hot:1", true),
            (POOL, SPLIT_SHARD, "user:7:x", true),
            (SPLIT_SHARD, POOL, "user:8:x", true),
            (SPLIT_SHARD, SPLIT_SHARD, "user:7:x", true),
            (SPLIT_AND_SUFFIXED, SPLIT_AND_SUFFIXED, "k", true),
            (SPLIT_AND_SUFFIXED, POOL, "k", false),
        ] {
            let copies = copies(former, key);
            assert!(!copies.is_empty());
            let (former, kept) = (routed(former), [routed(kept)]);
            for (server, stored) in copies {
                let stored: &'static str = stored.leak();
                assert_eq!(is_misplaced(&former, &kept, &server, stored), !is_kept, "{key}: {stored} at {server}");
            }
        }
        for (former, key) in [(SPLIT, "hot:1"), (SPLIT_SHARD, "user:7:x")] {
            let without_route = [routed(POOL)];
            let misplaced = |(server, stored): (String, String)| {
                is_misplaced(&routed(former), &without_route, &server, stored.clone().leak()).then_some(stored)
            };
            let of_key: Vec<_> = copies(former, key).into_iter().map(|(_, stored)| stored).collect();
            let misplaced: Vec<_> = copies(former, key).into_iter().filter_map(misplaced).collect();
            assert_eq!(misplaced.len() + 1, of_key.len(), "{of_key:?}: all but the key itself");
            assert!(of_key.len() > 2 && !misplaced.contains(&key.to_owned()), "{misplaced:?}");
        }
    }

    /// With the prefix of all trees a changed key may be too long for its route, and without it not.
    #[test]
    fn long_keys_are_found_below_routes_that_change_them() {
        for bytes in [200, 242, 243, 244, 247, 248] {
            let key: &'static str = "k".repeat(bytes).leak();
            for route in [SUFFIXED, PREFIXED, SPLIT_AND_SUFFIXED] {
                for (server, stored) in copies(route, key) {
                    assert!(is_at(&routed(route), &server, stored.leak()), "{bytes} bytes at {server}: {route}");
                }
            }
        }
    }

    #[test]
    fn a_copy_that_no_delete_reaches_stays_while_such_a_route_places_it_there() {
        let l1_l2 = |l2: &str| {
            placement(&format!(
                r#"{{
                    "pools": {{ "L1": {{ "servers": ["l:1"] }}, "L2": {{ "servers": [{l2}] }} }},
                    "route": {{ "type": "L1L2SizeSplitRoute", "l1": "PoolRoute|L1", "l2": "PoolRoute|L2", "threshold": 100 }}
                }}"#
            ))
        };
        let (two, three) = (l1_l2(r#""a:1", "b:1""#), [l1_l2(r#""a:1", "b:1", "c:1""#)]);
        let keys: Vec<&'static str> = (0..64).map(|at| &*format!("k{at}|==|{at}").leak()).collect();
        let of_former = |key: &&'static str| if is_at(&two, "a:1", key) { "a:1" } else { "b:1" };
        let moved = keys.iter().filter(|key| is_misplaced(&two, &three, of_former(key), key)).count();
        assert!((10..34).contains(&moved), "{moved} of 64: a third of them");
        assert!(keys.iter().all(|key| is_misplaced(&two, &[], of_former(key), key)));
        assert!(keys.iter().all(|key| is_at(&two, "a:1", key) != is_at(&two, "b:1", key)));
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
