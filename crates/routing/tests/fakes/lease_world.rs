//! A `LeaseRoute` over a server with leases, and its clients.

use crate::environment::FakeEnvironment;
use crate::fakes::{Fake, request};
use bytes::Bytes;
use lookaside_protocol::{
    LeaseToken, Operation, Reply, Request, StoreMode,
    meta::{MetaReply, MetaStatus, MetaVerb},
};
use lookaside_routing::{
    ClientMisses, Context, LeaseClients, LeaseRoute, LeaseScope, LeaseSettings, Leasing, Outcome, Route, UnleasedSet,
};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

/// A server with leases.
#[derive(Default)]
pub struct Store {
    pub values: BTreeMap<Bytes, Bytes>,
    pub stale: BTreeMap<Bytes, Bytes>,
    pub leases: BTreeMap<Bytes, LeaseToken>,
    pub tokens: u64,
}

impl Store {
    pub fn reply(&mut self, request: &Request<Bytes>) -> Reply<Bytes> {
        let key = &request.key;
        let value = self.values.get(key).map(|value| Reply::Value { flags: 0, cas: None, value: value.clone() });
        match &request.operation {
            Operation::Get { .. } | Operation::GetAndTouch { .. } => value.unwrap_or(Reply::Miss),
            Operation::LeaseGet => value.unwrap_or_else(|| {
                let token = match self.leases.contains_key(key) {
                    true => LeaseToken::HOT_MISS,
                    false => {
                        self.tokens += 1;
                        self.leases.insert(key.clone(), LeaseToken(self.tokens + 100));
                        LeaseToken(self.tokens + 100)
                    }
                };
                Reply::Lease { token, flags: 0, stale: self.stale.get(key).cloned() }
            }),
            Operation::LeaseSet { token, exptime, value, .. } => match self.leases.get(key) == Some(token) {
                true => {
                    self.leases.remove(key);
                    if *exptime >= 0 {
                        self.values.insert(key.clone(), value.clone());
                    }
                    Reply::Stored
                }
                false => Reply::NotStored,
            },
            Operation::Store { mode: StoreMode::Add, .. } if value.is_some() => Reply::NotStored,
            Operation::Store { mode: StoreMode::Replace, .. } if value.is_none() => Reply::NotStored,
            Operation::Store { value, .. } => {
                self.leases.remove(key);
                self.values.insert(key.clone(), value.clone());
                Reply::Stored
            }
            Operation::Delete { .. } => {
                self.leases.remove(key);
                match self.values.remove(key) {
                    Some(value) => {
                        self.stale.insert(key.clone(), value);
                        Reply::Deleted
                    }
                    None => Reply::NotFound,
                }
            }
            Operation::Arithmetic { .. } | Operation::Touch { .. } => {
                if value.is_some() {
                    Reply::Touched
                } else {
                    Reply::NotFound
                }
            }
            Operation::Meta(meta) => Reply::Meta(match (meta.verb, self.values.get(key)) {
                (MetaVerb::Get, Some(value)) => {
                    MetaReply { status: MetaStatus::Value, flags: Bytes::new(), value: Some(value.clone()) }
                }
                (MetaVerb::Get, None) => meta_reply(MetaStatus::Miss),
                _ => meta_reply(MetaStatus::Done),
            }),
        }
    }
}

fn meta_reply(status: MetaStatus) -> MetaReply<Bytes> {
    MetaReply { status, flags: Bytes::new(), value: None }
}

pub struct World {
    pub server: Arc<Fake>,
    pub store: Arc<Mutex<Store>>,
    pub env: Arc<FakeEnvironment>,
    pub route: LeaseRoute,
    pub clients: Arc<LeaseClients>,
}

impl World {
    pub fn new(settings: LeaseSettings) -> World {
        let store = Arc::new(Mutex::new(Store::default()));
        let of_server = store.clone();
        let server = Fake::new("a", move |request| Ok(of_server.lock().unwrap().reply(request)));
        let env = FakeEnvironment::new();
        let route = LeaseRoute::new(server.leaf(), settings, env.clone());
        World { server, store, env, route, clients: Arc::default() }
    }

    pub fn client(&self) -> Client<'_> {
        self.client_of(LeaseScope::Connection)
    }

    pub fn client_of(&self, scope: LeaseScope) -> Client<'_> {
        Client { world: self, misses: self.clients.add(Leasing { scope, version: 0 }, None) }
    }

    /// What the invalidator does.
    pub fn delete(&self, key: &str) {
        self.store.lock().unwrap().reply(&request(&format!("delete {key}")));
    }

    pub fn value(&self, key: &str) -> Option<Bytes> {
        self.store.lock().unwrap().values.get(key.as_bytes()).cloned()
    }
}

pub struct Client<'a> {
    pub world: &'a World,
    pub misses: Arc<ClientMisses>,
}

impl Client<'_> {
    pub async fn ask(&self, batch: Vec<Request<Bytes>>) -> Vec<Outcome> {
        let context = Context { misses: Some(self.misses.clone()), ..Context::default() };
        self.world.route.route(batch, &context).await
    }

    pub async fn ask_text(&self, requests: &[&str]) -> Vec<Reply<Bytes>> {
        let batch = requests.iter().map(|text| request(text)).collect();
        self.ask(batch).await.into_iter().map(|outcome| outcome.expect("a reply")).collect()
    }

    pub async fn one(&self, text: &str) -> Reply<Bytes> {
        self.ask_text(&[text]).await.remove(0)
    }
}

pub fn refusing() -> World {
    World::new(LeaseSettings::default())
}

pub fn with(unleased_set: UnleasedSet) -> World {
    World::new(LeaseSettings { unleased_set, ..LeaseSettings::default() })
}
