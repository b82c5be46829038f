//! Where a configuration places keys: the servers that a delete of a key reaches. A change of the configuration needs
//! it ([ADR 012](../../../../docs/adr/012-resize.md)): deletes also go to the places under other configurations, and
//! copies at places of a former configuration are purged. No server is contacted.
//!
//! The configuration's own tree is built once, with leaves that record and reply at once as empty servers do. So a
//! placement cannot differ from the routing of a request, and no route has to describe itself a second time.
//!
//! **Keys as a server lists them.** Most routes leave a key as it is, so the key on a server can pass the tree again.
//! Some store it under other names (`RouteConfig::changes_keys`), and tell which keys may have become it. Each of these
//! passes the tree, too, and counts if its delete reaches the server under the listed name:
//! ```text
//!   listed at S: hot:1::3      hot:1::3 -- tree --> hot:1::3, hot:1::3::1, ... at other servers     no
//!                              hot:1    -- tree --> hot:1, hot:1::1, ..., hot:1::3 at S              yes
//! ```
//! A copy needs the deletes of each of these keys: another configuration keeps it if it brings all of them to the copy.
//!
//! Some routes keep copies that no delete reaches (`TreeBuilder::store_undeleted`). A key is also looked for below these.
//!
//! A route that depends on time decides by the clock of the moment. One that limits rates limits nothing here, and its
//! fallback has copies that no delete is sure to reach. If a route refuses a delete for now, the place is unknown: the caller's delete must fail, and
//! a copy counts as misplaced.

use crate::config::router_config::RouterConfig;
use bytes::Bytes;
use lookaside_client::tree::HostInfo;
use lookaside_protocol::meta::{MetaOperation, MetaVerb, encode_key};
use lookaside_protocol::{KEY_BYTES_MAX, Operation, Reply, Request};
use lookaside_routing::{
    Address, Background, Batch, BoxFuture, Clock, Context, Destination, DestinationSettings, Destinations, Environment,
    Failure, Outcome, Outcomes, Route, RouteConfig, as_delete, stored_key,
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

/// The maximum number of keys that are tried for a stored key. Three routes that replace prefixes, each below the one
/// before, may have made it from about forty.
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
    /// The routes that change keys, and how many of them a key passes at most.
    key_changes: Vec<Arc<dyn RouteConfig>>,
    key_changes_deep: usize,
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
    pub(crate) servers: BTreeMap<Option<ClientKey>, BTreeSet<Address>>,
    /// Deletes of these keys are acknowledged only when all servers have replied. Not if the servers are not known.
    pub(crate) is_awaited: bool,
}

/// A key as a client writes it behind the routing prefix, or in base64.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ClientKey {
    key: Bytes,
    is_encoded: bool,
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
            key_changes_deep: 0,
            undeleted: Vec::new(),
            background: background.clone(),
        };
        let root: Arc<dyn Route> = Arc::new(config.configuration().build(&mut leaves));
        let RecordingLeaves { record, key_changes, key_changes_deep, undeleted, .. } = leaves;
        Placement { root, key_changes, key_changes_deep, undeleted, record, background, recording: Mutex::default() }
    }

    /// The places of the key of `request`, a delete or an update as a client sent it; none if the configuration cannot
    /// store it. Fails if a route refuses a delete of it for now.
    pub(crate) fn places_of(&self, request: &Request<Bytes>, context: &Context) -> Result<Vec<Place>, Failure> {
        // The client has not sent this delete: its misses remain.
        let context = context.without_misses();
        let recorded = self.record_delete(&self.root, as_delete(request), &context);
        match (recorded.is_known(), recorded.outcome) {
            (false, Err(failure)) => Err(failure),
            _ => Ok(recorded.places),
        }
    }

    /// Whether a copy of `stored` at `server`, which this configuration placed there, misses deletes under the
    /// configurations `kept`: those of a client's key that this one stored under that name. Also if it places copies there
    /// that no delete reaches, and they do not.
    pub(crate) fn misplaces(&self, server: &Address, stored: &Bytes, kept: &[Placement]) -> bool {
        let Ok(keys) = self.client_keys(stored) else { return true };
        let is_kept = |key: &ClientKey| kept.iter().any(|other| other.record_client_delete(key).is_at(server, stored));
        let may_be_stored = |key: &ClientKey| {
            let recorded = self.record_client_delete(key);
            recorded.is_at(server, stored) || !recorded.is_known()
        };
        let is_undeleted = |placement: &Placement| placement.undeleted_servers(stored).contains(server);
        keys.iter().any(|key| may_be_stored(key) && !is_kept(key))
            || is_undeleted(self) && !kept.iter().any(is_undeleted)
    }

    /// The servers at which it places the stored key `stored`.
    pub(crate) fn stored_places(&self, stored: &Bytes) -> StoredPlaces {
        let mut places = StoredPlaces { servers: BTreeMap::new(), is_awaited: true };
        let Ok(keys) = self.client_keys(stored) else {
            return StoredPlaces { is_awaited: false, ..places };
        };
        for key in keys {
            let recorded = self.record_client_delete(&key);
            places.is_awaited &= recorded.is_awaited && recorded.is_known();
            let servers: BTreeSet<Address> = recorded.servers_of(stored).cloned().collect();
            if !servers.is_empty() {
                places.servers.insert(Some(key), servers);
            }
        }
        places.servers.insert(None, self.undeleted_servers(stored));
        places
    }

    /// The keys of clients that may be stored as `stored`. Deletes show which are.
    fn client_keys(&self, stored: &Bytes) -> Result<Vec<ClientKey>, TooManyKeys> {
        let plain = self.keys_changed_to(stored)?.into_iter().map(|key| ClientKey { key, is_encoded: false });
        // No route changes a key in base64. Without such a route it has the places of the plain one.
        let encoded = (!self.key_changes.is_empty()).then(|| {
            let mut key = Vec::new();
            encode_key(stored, &mut key);
            ClientKey { key: key.into(), is_encoded: true }
        });
        Ok(plain.chain(encoded).filter(|key| key.key.len() <= KEY_BYTES_MAX).collect())
    }

    /// The keys, without routing prefixes, that the routes may have changed to `stored`, and `stored` itself.
    fn keys_changed_to(&self, stored: &Bytes) -> Result<Vec<Bytes>, TooManyKeys> {
        let mut keys = vec![stored.clone()];
        let mut added = 0..1;
        for _ in 0..self.key_changes_deep {
            for at in added.clone() {
                let changed = keys[at].clone();
                let before = self.key_changes.iter().flat_map(|route| route.keys_changed_to(&changed));
                for key in before.filter(|key| (1..=KEY_BYTES_MAX).contains(&key.len())) {
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

    /// The servers at which routes place `stored` whose copies no delete of a client reaches.
    fn undeleted_servers(&self, stored: &Bytes) -> BTreeSet<Address> {
        let mut servers = BTreeSet::new();
        // Below such a route there may be one that changes keys.
        for key in self.keys_changed_to(stored).unwrap_or_default() {
            for route in &self.undeleted {
                let recorded = self.record_delete(route, plain_delete(key.clone()), &Context::default());
                servers.extend(recorded.servers_of(stored).cloned());
            }
        }
        servers
    }

    /// The delete of a client's key in every tree. The trees are those of clusters, each of which gets all deletes.
    fn record_client_delete(&self, key: &ClientKey) -> Recorded {
        let context = Context::default();
        if key.is_encoded {
            let meta = MetaOperation { verb: MetaVerb::Delete, flags: "b".into(), value: None };
            let delete = Request { key: key.key.clone(), operation: Operation::Meta(meta) };
            return self.record_delete(&self.root, delete, &context);
        }
        let everywhere = plain_delete([EVERY_TREE, &key.key].concat().into());
        let mut recorded = self.record_delete(&self.root, everywhere, &context);
        // Routes do not change a key to one that is too long together with its prefix.
        if !self.key_changes.is_empty() {
            recorded.add(self.record_delete(&self.root, plain_delete(key.key.clone()), &context));
        }
        recorded
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
    /// Adds what a second delete of the same key has.
    fn add(&mut self, other: Recorded) {
        let is_known = other.is_known();
        self.places.extend(other.places);
        self.is_awaited &= other.is_awaited;
        if !is_known {
            self.outcome = other.outcome;
        }
    }

    /// Whether the places are all that it has: no route has refused the delete for now.
    fn is_known(&self) -> bool {
        matches!(self.outcome, Ok(_) | Err(Failure::NoRoute(_) | Failure::NoTree | Failure::Refused { .. }))
    }

    fn is_at(&self, server: &Address, stored: &Bytes) -> bool {
        self.servers_of(stored).any(|other| other == server)
    }

    /// The servers at which the delete reaches the stored key `stored`.
    fn servers_of(&self, stored: &Bytes) -> impl Iterator<Item = &Address> {
        let is_of_key = move |place: &&Place| match place.delete.operation {
            // It may be in base64.
            Operation::Meta(_) => *stored_key(&place.delete) == **stored,
            _ => place.delete.key == *stored,
        };
        self.places.iter().filter(is_of_key).map(|place| &place.server)
    }
}

fn plain_delete(key: Bytes) -> Request<Bytes> {
    Request { key, operation: Operation::Delete { hold_off_ms: 0 } }
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
    key_changes_deep: usize,
    undeleted: Vec<Arc<dyn Route>>,
    background: Background,
}

impl Destinations for RecordingLeaves<'_> {
    fn destination(&mut self, address: &Address, settings: &DestinationSettings) -> Arc<dyn Destination> {
        Arc::new(RecordingLeaf { server: address.clone(), settings: *settings, record: self.record.clone() })
    }

    fn change_keys(&mut self, route: &Arc<dyn RouteConfig>, above: usize) {
        self.key_changes_deep = self.key_changes_deep.max(above + 1);
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
        Environment { clock, background, host_id: host.id, finds_places: true, ..Environment::none() }
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
mod tests;
