//! Leases for clients that know none (§3.2.1 of the paper): a client's miss becomes a lease, and its later `set` is
//! stored under it. A value that was read from the database before a delete is not stored after it.
//!
//! ```text
//!   client      get k             miss    (reads the database)    set k            STORED | NOT_STORED
//!   router        lease-get k       token T, remembered             lease-set k T
//!   server                                       delete k: T is void
//! ```
//!
//! | verb | effect |
//! |---|---|
//! | get | `lease-get`; a token is remembered, and the client misses. A hot miss is asked again for `hot_miss_wait_ms`; then it is a miss, or the stale value with `return_stale` |
//! | gets gat gats, `mg` without `N` | the target; after a miss as get, but never a stale value. A value that has appeared meanwhile is asked for again |
//! | touch incr decr, `ma` without `N` | the target; if the key is missing, a token is taken: clients `add` or `set` it next |
//! | set add, `ms` | `lease-set` if the client has missed the key, or refused (`NOT_STORED`) if its token is void; else by `set_without_miss` |
//! | replace | refused if the client has missed the key; else by `set_without_miss` |
//! | delete | the target; the client's token is void. With `only-if-absent` the delete has a hold-off |
//! | cas append prepend lease-get lease-set metaget, `mg` and `ma` with `N` | the target |
//! | `mg` of a tool that compares caches ([`OBSERVER_OPAQUE`](lookaside_protocol::meta::OBSERVER_OPAQUE)) | the target: its token would keep clients waiting, and no store would use it |
//!
//! `cas` needs none of this: a delete or another store changes the CAS unique. `append` and `prepend` store nothing
//! that was read from the database before, and keys in base64 cannot be leased: their reads pass, their stores are
//! stores without a miss. A key with a broadcast prefix is likewise stored without a miss.
//!
//! **What is remembered** is [`crate::ClientMisses`]: it lives with the connection, in [`Context`], and
//! outlives this route. Requests without a client (copies for shadows) pass, and their stores have no miss.
//!
//! With `"scope": "address"` the connections of an address share them. Then a miss is also held back while an older
//! value may still be stored over another of them.
//!
//! A request's misses are recorded after the stores of its batch: those were sent before the client had the reply.
//!
//! Put it above handles that copy requests or store values by themselves (`AllSyncRoute`, `WarmUpRoute`,
//! `L1L2CacheRoute`, `FailoverRoute` with `enable_lease_pairing`), not below: below, several tokens of one miss would
//! void each other, and what such a handle stores has no miss.

mod fill;
mod lookup;

use crate::{
    Batch, BoxFuture, ClientMisses, Context, LeaseScope, Outcome, Outcomes, Route,
    client_misses::{Age, KeyState},
    configuration::{
        ConfigurationError, Handle, HotMisses, Keys, LeaseSettings, Node, Object, Parser, RouteConfig, RouteType,
        SCOPE, SET_WITHOUT_MISS, TreeBuilder, UnleasedSet,
    },
    environment::Clock,
    hash::murmur64a,
    key::{is_encoded, prefix_bytes, stored_key},
    meta::{is_of_observer, token},
    outcome::verb,
    verb::Verb,
};
use bytes::Bytes;
use fill::{Fill, as_add, refuse};
use lookaside_protocol::{Operation, Reply, Request, meta::MetaVerb};
use lookup::{Lookup, Read, as_lease_get, as_lease_return};
use std::{collections::BTreeMap, sync::Arc, time::Duration};

/// Takes leases for clients that know none.
pub struct LeaseRoute {
    target: Arc<dyn Route>,
    settings: LeaseSettings,
    clock: Arc<dyn Clock>,
}

/// The part that a request has in leases.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    /// A `get`, which a `lease-get` can replace.
    Get,
    /// A request that finds out that a key is missing.
    Lookup,
    Store,
    Delete,
    Other,
}

/// A batch, as it is sent.
#[derive(Default)]
struct Prepared {
    batch: Batch,
    reads: Vec<Read>,
    fills: Vec<(usize, Fill)>,
    /// Outcomes of requests that are not sent.
    refused: Vec<(usize, Outcome)>,
    /// Sent behind the batch: they return tokens that no store can use, which would keep other clients waiting.
    returned: Batch,
}

impl LeaseRoute {
    /// Takes leases at `target`.
    pub fn new(target: Arc<dyn Route>, settings: LeaseSettings, clock: Arc<dyn Clock>) -> Self {
        LeaseRoute { target, settings, clock }
    }

    async fn route_for(&self, batch: Batch, misses: &ClientMisses, context: &Context) -> Outcomes {
        let age = self.age();
        let Prepared { batch, reads, fills, refused, returned } = self.prepare(batch, Some((misses, age)));
        // Until the batch is answered.
        let unanswered = UnansweredReads::new(&reads, misses, age);
        let mut outcomes = self.send(batch, refused, returned, context).await;
        for (at, fill) in fills {
            let reply = fill.client_reply(std::mem::replace(&mut outcomes[at], Ok(Reply::Miss)));
            let counters = misses.counters();
            if fill::is_stored(&reply) { &counters.stored } else { &counters.refused }.add(1);
            outcomes[at] = reply;
        }
        let lookup =
            Lookup { target: &*self.target, clock: &*self.clock, hot_misses: self.settings.hot_misses, misses, age };
        lookup.finish(reads, outcomes, unanswered, context).await
    }

    /// Takes back the misses of gets that a client does not wait for any more, since it has got their values elsewhere:
    /// no set will answer them. Tokens that no other miss can use are returned to their servers.
    pub async fn withdraw(&self, keys: Vec<Bytes>, misses: &ClientMisses, context: &Context) {
        let age = self.age();
        let returned = keys.into_iter().filter_map(|key| {
            let get = Request { key, operation: Operation::Get { cas: false } };
            let token = misses.withdraw(key_hash(&get), age)?;
            Some(as_lease_return(&get, token))
        });
        let returned: Batch = returned.collect();
        if !returned.is_empty() {
            self.target.route(returned, context).await;
        }
    }

    fn age(&self) -> Age {
        Age { now_s: self.clock.unix_s(), miss_age_s: self.settings.miss_age_s.into() }
    }

    /// Routes a batch whose client is not known.
    async fn route_unleased(&self, batch: Batch, context: &Context) -> Outcomes {
        let Prepared { batch, refused, .. } = self.prepare(batch, None);
        self.send(batch, refused, Batch::new(), context).await
    }

    /// The outcomes of a batch, with those of the requests that are not sent.
    async fn send(
        &self,
        mut batch: Batch,
        refused: Vec<(usize, Outcome)>,
        returned: Batch,
        context: &Context,
    ) -> Outcomes {
        let sent = batch.len();
        batch.extend(returned);
        let mut outcomes = match batch.is_empty() {
            true => Outcomes::new(),
            false => self.target.route(batch, context).await,
        };
        outcomes.truncate(sent);
        // In the order of the batch, so each index is right when it is used.
        refused.into_iter().for_each(|(at, outcome)| outcomes.insert(at, outcome));
        outcomes
    }

    fn prepare(&self, batch: Batch, client: Option<(&ClientMisses, Age)>) -> Prepared {
        let mut prepared = Prepared { batch: Batch::with_capacity(batch.len()), ..Prepared::default() };
        for (at, request) in batch.into_iter().enumerate() {
            let role = role(&request);
            let sent = match (role, client) {
                (Role::Get | Role::Lookup, Some((misses, age))) => {
                    let hash = key_hash(&request);
                    let is_leased = role == Role::Get && misses.state(hash, age) != KeyState::Void;
                    misses.counters().lease_gets.add(is_leased.into());
                    prepared.reads.push(Read { at, request: request.clone(), hash, is_leased });
                    if is_leased { as_lease_get(&request) } else { request }
                }
                (Role::Store, _) => match self.prepare_store(request, client, &mut prepared.returned) {
                    Ok((fill, request)) => {
                        prepared.fills.extend(fill.map(|fill| (at, fill)));
                        request
                    }
                    Err(outcome) => {
                        prepared.refused.push((at, outcome));
                        continue;
                    }
                },
                (Role::Delete, _) => {
                    if let Some((misses, _)) = client {
                        misses.void(key_hash(&request));
                    }
                    self.with_hold_off(request)
                }
                (Role::Get | Role::Lookup | Role::Other, _) => request,
            };
            prepared.batch.push(sent);
        }
        prepared
    }

    /// The request to send for a store, and its [`Fill`] if it is one; or the outcome of a store that is refused. A
    /// token that such a store cannot use goes to `returned`.
    fn prepare_store(
        &self,
        request: Request<Bytes>,
        client: Option<(&ClientMisses, Age)>,
        returned: &mut Batch,
    ) -> Result<(Option<Fill>, Request<Bytes>), Outcome> {
        let is_broadcast = request.key[..prefix_bytes(&request)].contains(&b'*');
        let state = match client {
            Some((misses, age)) if !is_broadcast => misses.answer(key_hash(&request), age),
            _ => KeyState::None,
        };
        let counters = client.map(|(misses, _)| misses.counters());
        let count = |pick: fn(&crate::LeaseCounters) -> &lookaside_sync::SharedCounter| {
            counters.inspect(|counters| pick(counters).add(1));
        };
        match (state, self.settings.unleased_set) {
            (KeyState::Held(token), _) => match Fill::new(&request, token) {
                Some((fill, request)) => Ok((Some(fill), request)),
                None => {
                    count(|counters| &counters.refused);
                    returned.push(as_lease_return(&request, token));
                    Err(refuse(&request))
                }
            },
            (KeyState::Void, _) => {
                count(|counters| &counters.refused);
                Err(refuse(&request))
            }
            (KeyState::None, UnleasedSet::Pass) => {
                count(|counters| &counters.unleased_passed);
                Ok((None, request))
            }
            (KeyState::None, UnleasedSet::OnlyIfAbsent { .. }) if verb(&request) != Verb::Replace => {
                count(|counters| &counters.unleased_added);
                Ok((None, as_add(request)))
            }
            (KeyState::None, _) => {
                count(|counters| &counters.unleased_refused);
                Err(refuse(&request))
            }
        }
    }

    fn with_hold_off(&self, mut request: Request<Bytes>) -> Request<Bytes> {
        if let UnleasedSet::OnlyIfAbsent { hold_off_ms: least_ms } = self.settings.unleased_set
            && let Operation::Delete { hold_off_ms } = &mut request.operation
        {
            *hold_off_ms = (*hold_off_ms).max(least_ms);
        }
        request
    }
}

impl Route for LeaseRoute {
    fn route<'a>(&'a self, batch: Batch, context: &'a Context) -> BoxFuture<'a, Outcomes> {
        match &context.misses {
            Some(misses) => Box::pin(self.route_for(batch, misses, context)),
            None => Box::pin(self.route_unleased(batch, context)),
        }
    }
}

/// Reads of a client that may give up before they are answered, and go on: it reads the database then, as after an
/// error, so that is what they count as, once. Hits count, too: the client does not get them. An address's reads end
/// early only with their connection.
struct UnansweredReads<'a> {
    /// By their places in the batch. Those whose misses are recorded are removed.
    hashes: BTreeMap<usize, u64>,
    misses: &'a ClientMisses,
    age: Age,
}

impl<'a> UnansweredReads<'a> {
    fn new(reads: &[Read], misses: &'a ClientMisses, age: Age) -> UnansweredReads<'a> {
        let hashes = match misses.scope() {
            LeaseScope::Connection | LeaseScope::Process => {
                reads.iter().filter(|read| lookup::is_read(read)).map(|read| (read.at, read.hash)).collect()
            }
            LeaseScope::Address => BTreeMap::new(),
        };
        UnansweredReads { hashes, misses, age }
    }

    /// The miss of the read at this place is recorded.
    fn remove(&mut self, at: usize) {
        self.hashes.remove(&at);
    }

    /// All are answered.
    fn end(mut self) {
        self.hashes.clear();
    }
}

impl Drop for UnansweredReads<'_> {
    fn drop(&mut self) {
        for &hash in self.hashes.values() {
            self.misses.record(hash, None, self.age);
        }
    }
}

fn key_hash(request: &Request<Bytes>) -> u64 {
    murmur64a(&stored_key(request))
}

fn role(request: &Request<Bytes>) -> Role {
    let verb = verb(request);
    let creates = matches!(&request.operation, Operation::Meta(meta) if meta.verb != MetaVerb::Set && token(&meta.flags, b'N').is_some());
    match verb {
        Verb::Delete => Role::Delete,
        Verb::Set | Verb::Add | Verb::Replace => Role::Store,
        _ if creates || is_encoded(request) || is_of_observer(request) => Role::Other,
        Verb::Get if matches!(request.operation, Operation::Get { .. }) => Role::Get,
        Verb::Get | Verb::Gets | Verb::Gat | Verb::Gats | Verb::Touch | Verb::Incr | Verb::Decr => Role::Lookup,
        Verb::LeaseGet | Verb::LeaseSet | Verb::Cas | Verb::Append | Verb::Prepend | Verb::Metaget => Role::Other,
    }
}

/// Clients give up after about a second.
const HOT_MISS_WAIT_MS_MAX: i64 = 1_000;
/// Longer than any client waits for its database.
const MISS_AGE_S_MAX: i64 = 3_600;
/// A minute: nothing is filled for as long after a delete.
const HOLD_OFF_MS_MAX: i64 = 60_000;

pub(crate) const TYPE: RouteType = RouteType::new("LeaseRoute", parse).with_short_form(|node, argument, parser| {
    let Some(argument) = argument else { return Ok(None) };
    let target = parser.short_handle(node, argument)?;
    parser.use_leases(LeaseScope::Connection);
    Ok(Some(LeaseRoute::handle(target, LeaseSettings::default())))
});

#[derive(Debug, PartialEq)]
struct Config {
    target: Handle,
    settings: LeaseSettings,
}

impl LeaseRoute {
    /// The description of a `LeaseRoute` over `target`.
    pub(crate) fn handle(target: Handle, settings: LeaseSettings) -> Handle {
        Handle::route(Config { target, settings })
    }

    /// Whether `handle` is the description of a `LeaseRoute`.
    pub(crate) fn is_described_by(handle: &Handle) -> bool {
        handle.config::<Config>().is_some()
    }
}

const KEYS: &[&str] = &[
    "type",
    "name",
    "target",
    "scope",
    "set_without_miss",
    "hold_off_ms",
    "hot_miss_wait_ms",
    "return_stale",
    "miss_age_s",
];

fn parse<'a>(object: &Object<'a>, parser: &mut Parser<'a>) -> Result<Handle, ConfigurationError> {
    object.check(&Keys::known(KEYS))?;
    let defaults = LeaseSettings::default();
    let (wait_ms, age_s) = (defaults.hot_misses.wait.as_millis() as i64, defaults.miss_age_s.into());
    let wait_ms = object.integer_or("hot_miss_wait_ms", "milliseconds", HOT_MISS_WAIT_MS_MAX, wait_ms)?;
    let hot_misses =
        HotMisses { wait: Duration::from_millis(wait_ms as u64), return_stale: object.flag("return_stale")? };
    let miss_age_s =
        object.get("miss_age_s").map_or(Ok(age_s), |node| node.integer("seconds", 1, MISS_AGE_S_MAX))? as u32;
    let scope = match object.get("scope") {
        Some(node) => node.string(SCOPE)?.parse().map_err(|why: String| node.error(why))?,
        None => defaults.scope,
    };
    let unleased_set = match object.get("set_without_miss") {
        Some(node) => node.string(SET_WITHOUT_MISS)?.parse().map_err(|why: String| node.error(why))?,
        None => defaults.unleased_set,
    };
    let unleased_set = match (unleased_set, object.get("hold_off_ms")) {
        (set, None) => set,
        (UnleasedSet::OnlyIfAbsent { .. }, Some(node)) => parse_hold_off(&node)?,
        (_, Some(node)) => return Err(node.error("\"hold_off_ms\" needs \"set_without_miss\": \"only-if-absent\"")),
    };
    let target = parser.parse_required(object, "target")?;
    parser.use_leases(scope);
    Ok(LeaseRoute::handle(target, LeaseSettings { scope, unleased_set, hot_misses, miss_age_s }))
}

fn parse_hold_off(node: &Node<'_>) -> Result<UnleasedSet, ConfigurationError> {
    let hold_off_ms = node.integer("milliseconds", 0, HOLD_OFF_MS_MAX)? as u32;
    Ok(UnleasedSet::OnlyIfAbsent { hold_off_ms })
}

impl RouteConfig for Config {
    fn name(&self) -> &'static str {
        TYPE.name()
    }

    /// It has a lease taken for a plain get, and nothing to do with a `lease-get`.
    fn passes_reads(&self) -> bool {
        true
    }

    fn build(&self, tree: &mut dyn TreeBuilder) -> Arc<dyn Route> {
        let target = tree.build(&self.target);
        Arc::new(LeaseRoute::new(target, self.settings, tree.environment().clock.clone()))
    }
}
