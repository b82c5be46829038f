//! Explains how one request would be routed: the routes and servers that it would reach, and their replies, if all
//! servers were healthy, or down as assumed. No server is contacted.
//!
//! The configuration's own tree is built once more, with leaves that only record and with a recorder around every
//! route. So the explanation cannot differ from the routing of a request.
//!
//! ```text
//!   OperationSelectorRoute   delete user:42 -> NOT_FOUND
//!     AllSyncRoute           delete user:42 -> NOT_FOUND
//!       PoolRoute|main       delete user:42 -> NOT_FOUND
//!         10.0.0.1:11211     delete user:42 -> NOT_FOUND
//! ```
//!
//! The caller of a step is the step that is being polled: a recorder makes its step the current one while it polls the
//! route inside it, and a step that begins meanwhile is its child. That is correct as long as everything is polled on
//! one thread and nothing runs in the background, which a tree without an environment never does.

use super::mcrouter_names::{route_names, server_name};
use crate::config::router_config::RouterConfig;
use bytes::Bytes;
use lookaside_protocol::meta::{MetaOperation, MetaReply, MetaStatus, MetaVerb};
use lookaside_protocol::text::{Limits, Parsed, compose_reply, compose_request, parse_command};
use lookaside_protocol::{Command, Operation, Reply, Request};
use lookaside_routing::{
    Address, Batch, BoxFuture, Clock, Context, Destination, DestinationSettings, Destinations, Environment, Failure,
    Handle, Outcome, Outcomes, Pool, Route, Serving, Slot, TkoReason, Verb, choose_spare,
};
use lookaside_sync::Mutex;
use std::{
    cell::Cell,
    fmt,
    future::{poll_fn, ready},
    sync::{Arc, MutexGuard},
    time::Duration,
};

/// Spaces by which a step is indented below its caller.
const INDENT: usize = 2;

thread_local! {
    /// The step that is being polled.
    static CURRENT: Cell<Option<usize>> = const { Cell::new(None) };
}

/// The steps of one request, each after its caller.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Explanation(pub Vec<Step>);

/// One route, or one server, that a request reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The number of callers; 0 for the root.
    pub depth: usize,
    /// The route's name and pool, or the server's address.
    pub at: String,
    /// mcrouter's names of it, the outermost first; empty for a server of another configuration.
    pub names: Vec<String>,
    /// Whether it is a server.
    pub is_server: bool,
    /// The requests, each as its command line.
    pub requests: Vec<String>,
    /// The first line of each reply, or why there was none.
    pub replies: Vec<String>,
}

impl Explanation {
    /// The addresses of the servers that are asked, in order, each once.
    pub(crate) fn servers(&self) -> Vec<&str> {
        let mut servers = Vec::new();
        for step in self.0.iter().filter(|step| step.is_server) {
            if !servers.contains(&&*step.at) {
                servers.push(&*step.at);
            }
        }
        servers
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.0.iter().map(|step| step.depth * INDENT + step.at.chars().count()).max().unwrap_or_default();
        for step in &self.0 {
            for (request, reply) in step.requests.iter().zip(&step.replies) {
                let at = format!("{:indent$}{}", "", step.at, indent = step.depth * INDENT);
                writeln!(f, "{at:width$}   {request} -> {reply}")?;
            }
        }
        Ok(())
    }
}

/// Servers that are assumed to be down.
#[derive(Clone, Debug, Default)]
pub struct Outages {
    /// TKO since a moment ago.
    pub down: Vec<Address>,
    /// TKO long enough for spares to serve, if there are any.
    pub down_for_long: Vec<Address>,
}

impl Outages {
    fn is_down(&self, address: &Address) -> bool {
        self.down.contains(address) || self.down_for_long.contains(address)
    }
}

/// Explains `verb` for `key`, sent by the client in `context`, during `outages`. Fails if `verb` or `key` is invalid,
/// or if the root has no route for the key.
pub async fn explain(
    config: &RouterConfig,
    verb: &str,
    key: &str,
    context: &Context,
    outages: &Outages,
) -> Result<Explanation, String> {
    let request = example_request(verb, key)?;
    let mut destinations = RecordingDestinations::new(config, outages);
    let tree = config.configuration().build(&mut destinations);
    let outcomes = tree.route(vec![request], context).await;
    let recorded = std::mem::take(&mut *destinations.recorder.lock());
    if let ([], [Err(failure)]) = (&recorded[..], &outcomes[..]) {
        return Err(match failure {
            Failure::NoTree => format!("{failure}: no tree has the routing prefix of {key}"),
            failure => failure.to_string(),
        });
    }
    Ok(to_tree_order(recorded))
}

/// Orders steps by the tree instead of by their start.
fn to_tree_order(recorded: Vec<RecordedStep>) -> Explanation {
    fn below(parent: Option<usize>, recorded: &[RecordedStep], explain: &mut Vec<Step>) {
        for (at, note) in recorded.iter().enumerate().filter(|(_, note)| note.parent == parent) {
            explain.push(note.step.clone());
            below(Some(at), recorded, explain);
        }
    }
    let mut explain = Vec::with_capacity(recorded.len());
    below(None, &recorded, &mut explain);
    Explanation(explain)
}

/// A step and the index of its caller.
struct RecordedStep {
    parent: Option<usize>,
    step: Step,
}

#[derive(Clone, Default)]
struct Recorder(Arc<Mutex<Vec<RecordedStep>>>);

impl Recorder {
    fn lock(&self) -> MutexGuard<'_, Vec<RecordedStep>> {
        self.0.lock()
    }

    /// Records a step whose caller is the current one.
    fn begin_step(&self, at: String, names: Vec<String>, is_server: bool, batch: &Batch) -> usize {
        let parent = CURRENT.get();
        let mut recorded = self.lock();
        let depth = parent.map_or(0, |parent| recorded[parent].step.depth + 1);
        let requests = batch.iter().map(command_line).collect();
        recorded
            .push(RecordedStep { parent, step: Step { depth, at, names, is_server, requests, replies: Vec::new() } });
        recorded.len() - 1
    }

    fn end_step(&self, step: usize, keys: &[Bytes], outcomes: &[Outcome]) {
        let answered = keys.iter().zip(outcomes).map(|(key, outcome)| outcome_text(key, outcome)).collect();
        self.lock()[step].step.replies = answered;
    }
}

/// Builds a tree whose leaves and routes record.
struct RecordingDestinations<'a> {
    config: &'a RouterConfig,
    recorder: Recorder,
    outages: &'a Outages,
}

impl<'a> RecordingDestinations<'a> {
    fn new(config: &'a RouterConfig, outages: &'a Outages) -> Self {
        RecordingDestinations { config, recorder: Recorder::default(), outages }
    }
}

impl Destinations for RecordingDestinations<'_> {
    fn destination(&mut self, address: &Address, settings: &DestinationSettings) -> Arc<dyn Destination> {
        let (is_down, name) = (self.outages.is_down(address), server_name(address, settings));
        Arc::new(RecordingDestination { address: address.clone(), name, is_down, recorder: self.recorder.clone() })
    }

    /// The running router's slots, if there is one; servers in `down_for_long` have their own, served by a spare.
    fn slot(&mut self, pool: &Pool, at: usize) -> Arc<Slot> {
        if !self.outages.down_for_long.contains(&pool.servers[at]) {
            return self.config.spares().map(|spares| spares.slot(pool, at)).unwrap_or_default();
        }
        let slot = Arc::new(Slot::default());
        let is_free = |spare: usize| !self.outages.is_down(&pool.spares[spare]);
        if let Some(spare) = choose_spare(at, pool.spares.len(), is_free) {
            slot.serve(Serving::Spare(spare));
        }
        slot
    }

    fn wrap_route(&mut self, handle: &Handle, route: Arc<dyn Route>) -> Arc<dyn Route> {
        match handle {
            Handle::Server { .. } => route, // The destination records itself.
            handle => Arc::new(RecordingRoute {
                at: handle.label(),
                names: route_names(handle),
                inner: route,
                recorder: self.recorder.clone(),
            }),
        }
    }

    /// The host's, but time stands still and nothing runs in the background.
    fn environment(&mut self) -> Environment {
        let host = self.config.host();
        let clock = Arc::new(FrozenClock { unix_s: host.unix_s_now() });
        Environment { clock, host_id: host.id, ..Environment::none() }
    }
}

struct FrozenClock {
    unix_s: u64,
}

impl Clock for FrozenClock {
    fn now(&self) -> Duration {
        Duration::ZERO
    }

    fn unix_s(&self) -> u64 {
        self.unix_s
    }

    fn sleep(&self, _: Duration) -> BoxFuture<'static, ()> {
        Box::pin(ready(()))
    }
}

struct RecordingRoute {
    at: String,
    names: Vec<String>,
    inner: Arc<dyn Route>,
    recorder: Recorder,
}

impl Route for RecordingRoute {
    fn route<'a>(&'a self, batch: Batch, context: &'a Context) -> BoxFuture<'a, Outcomes> {
        Box::pin(async move {
            let step = self.recorder.begin_step(self.at.clone(), self.names.clone(), false, &batch);
            let keys: Vec<Bytes> = batch.iter().map(|request| request.key.clone()).collect();
            let outer = CURRENT.replace(Some(step));
            let mut inner = self.inner.route(batch, context);
            CURRENT.set(outer);
            let outcomes = poll_fn(|cx| {
                let outer = CURRENT.replace(Some(step));
                let polled = inner.as_mut().poll(cx);
                CURRENT.set(outer);
                polled
            })
            .await;
            self.recorder.end_step(step, &keys, &outcomes);
            outcomes
        })
    }
}

/// A destination that records requests and stores nothing.
struct RecordingDestination {
    address: Address,
    name: String,
    is_down: bool,
    recorder: Recorder,
}

impl Destination for RecordingDestination {
    fn send(&self, batch: Batch) -> BoxFuture<'_, Outcomes> {
        Box::pin(async move {
            let step = self.recorder.begin_step(self.address.to_string(), vec![self.name.clone()], true, &batch);
            let keys: Vec<Bytes> = batch.iter().map(|request| request.key.clone()).collect();
            let reply = |operation| match self.is_down {
                true => Err(Failure::Tko(TkoReason::ConnectFailed)),
                false => Ok(empty_reply(operation)),
            };
            let outcomes: Outcomes = batch.iter().map(|request| reply(&request.operation)).collect();
            self.recorder.end_step(step, &keys, &outcomes);
            outcomes
        })
    }

    fn address(&self) -> &Address {
        &self.address
    }
}

fn empty_reply(operation: &Operation<Bytes>) -> Reply<Bytes> {
    match operation {
        Operation::Get { .. } | Operation::GetAndTouch { .. } | Operation::LeaseGet => Reply::Miss,
        Operation::Store { .. } | Operation::LeaseSet { .. } => Reply::Stored,
        Operation::Meta(MetaOperation { verb: MetaVerb::Get | MetaVerb::Debug, .. }) => {
            Reply::Meta(MetaReply { status: MetaStatus::Miss, flags: Bytes::new(), value: None })
        }
        _ => Reply::NotFound,
    }
}

pub(super) fn command_line(request: &Request<Bytes>) -> String {
    first_line(|bytes| compose_request(request, bytes))
}

fn outcome_text(key: &[u8], outcome: &Outcome) -> String {
    match outcome {
        Ok(Reply::Miss) => "miss".to_owned(),
        Ok(reply) => first_line(|bytes| compose_reply(key, reply, bytes)),
        Err(failure) => failure.to_string(),
    }
}

fn first_line(compose: impl FnOnce(&mut Vec<u8>)) -> String {
    let mut bytes = Vec::new();
    compose(&mut bytes);
    String::from_utf8_lossy(&bytes).lines().next().unwrap_or_default().to_owned()
}

/// A request as clients send it, with an empty value if it needs one.
pub(super) fn example_request(verb: &str, key: &str) -> Result<Request<Bytes>, String> {
    if key.bytes().any(|byte| byte.is_ascii_whitespace() || byte.is_ascii_control()) {
        return Err(format!("invalid key {key:?}: a key has no white space and no control characters"));
    }
    let line = match verb {
        "get" | "gets" | "lease-get" | "delete" => format!("{verb} {key}\r\n"),
        "gat" | "gats" => format!("{verb} 0 {key}\r\n"),
        "set" | "add" | "replace" | "append" | "prepend" => format!("{verb} {key} 0 0 0\r\n\r\n"),
        "cas" => format!("cas {key} 0 0 0 1\r\n\r\n"),
        "lease-set" => format!("lease-set {key} 2 0 0 0\r\n\r\n"),
        "incr" | "decr" | "touch" => format!("{verb} {key} 1\r\n"),
        "metaget" => format!("me {key}\r\n"),
        "mg" | "ms" | "md" | "ma" => {
            return Err(format!(
                "a meta command is routed like its classic verb: mg like get, ms like set, md like delete, ma like incr; use that instead of {verb}"
            ));
        }
        _ => {
            let known = Verb::ALL.map(Verb::name);
            return Err(format!("unknown verb {verb:?}; known: {}", known.join(", ")));
        }
    };
    let limits = Limits { value_bytes_max: 0, line_bytes_max: line.len() };
    let own = Bytes::copy_from_slice;
    match parse_command(line.as_bytes(), &limits) {
        Parsed::Command { command: Command::Single { request, .. }, .. } => Ok(request.map(own)),
        Parsed::Command { command: Command::Retrieve { mut keys, operation }, .. } => {
            let key = keys.next().ok_or("no key")?;
            Ok(Request { key, operation }.map(own))
        }
        _ => Err(format!("invalid key {key:?}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lookaside_client::DestinationOptions;
    use lookaside_routing::Defaults;

    const CONFIGURATION: &str = r#"{
        "pools": { "main": { "servers": ["10.0.0.1:1"] }, "gutter": { "servers": ["10.0.0.2:2"] } },
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

    async fn explain_servers(verb: &str, key: &str) -> Result<Vec<String>, String> {
        let config =
            RouterConfig::parse(CONFIGURATION, &Defaults::default(), &DestinationOptions::default()).expect("good");
        let explanation = explain(&config, verb, key, &Context::default(), &Outages::default()).await?;
        Ok(requests_to_servers(&explanation))
    }

    /// Address and command line of each request to a server.
    fn requests_to_servers(explanation: &Explanation) -> Vec<String> {
        let servers = explanation.0.iter().filter(|step| step.is_server);
        servers.flat_map(|step| step.requests.iter().map(move |asked| format!("{} {asked}", step.at))).collect()
    }

    #[tokio::test]
    async fn get_reaches_one_server_and_delete_both() {
        assert_eq!(explain_servers("get", "user:42").await, Ok(vec!["10.0.0.1:1 get user:42".to_owned()]));
        let mut asked = explain_servers("delete", "/./././user:42").await.expect("a good key");
        asked.sort();
        assert_eq!(asked.len(), 2, "{asked:?}");
        assert!(asked[0].starts_with("10.0.0.1:1 delete ") && asked[1].starts_with("10.0.0.2:2 delete "), "{asked:?}");
    }

    #[tokio::test]
    async fn every_verb_can_be_explained() {
        for verb in
            "get gets gat gats lease-get set add replace append prepend cas lease-set incr decr touch".split(' ')
        {
            let asked = explain_servers(verb, "k").await.expect(verb);
            assert!(asked.len() == 1 && asked[0].starts_with("10.0.0.1:1 ") && asked[0].contains(verb), "{asked:?}");
        }
    }

    /// Servers have no such command.
    #[tokio::test]
    async fn metaget_is_explained_as_it_is_sent() {
        assert_eq!(explain_servers("metaget", "k").await, Ok(vec!["10.0.0.1:1 me k".to_owned()]));
    }

    #[tokio::test]
    async fn invalid_verbs_and_keys_are_named() {
        assert!(explain_servers("fetch", "k").await.is_err_and(|why| why.contains("fetch")));
        assert!(explain_servers("get", "").await.is_err());
        assert!(explain_servers("get", "two words").await.is_err_and(|why| why.contains("white space")));
        assert!(explain_servers("mg", "k").await.is_err_and(|why| why.contains("like get")));
        assert!(explain_servers("get", &"k".repeat(251)).await.is_err());
        assert_eq!(
            explain_servers("get", "/a/b/foo").await,
            Err("RootRoute: No rh found: no tree has the routing prefix of /a/b/foo".to_owned())
        );
    }

    #[tokio::test]
    async fn explanation_shows_routes_and_tko_servers() {
        let config =
            RouterConfig::parse(CONFIGURATION, &Defaults::default(), &DestinationOptions::default()).expect("good");
        let outages = Outages { down: vec![Address("10.0.0.1:1".into())], down_for_long: Vec::new() };
        let shown = explain(&config, "get", "k", &Context::default(), &outages).await.expect("a good key").to_string();
        let lines: Vec<String> =
            shown.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
        let expected = [
            "OperationSelectorRoute get k -> miss",
            "FailoverWithExptimeRoute get k -> miss",
            "PoolRoute|main get k -> server is TKO after failures",
            "10.0.0.1:1 get k -> server is TKO after failures",
            "PoolRoute|gutter get k -> miss",
            "10.0.0.2:2 get k -> miss",
        ];
        assert_eq!(lines, expected, "{shown}");
        assert!(shown.contains("\n      10.0.0.1:1"), "indented by three levels: {shown}");
    }

    #[tokio::test]
    async fn spare_replaces_a_server_that_is_dead() {
        const SPARED: &str = r#"{
            "pools": { "A": { "servers": ["a:1"], "spares": ["x:1", "y:1"] } },
            "route": "PoolRoute|A"
        }"#;
        let config = RouterConfig::parse(SPARED, &Defaults::default(), &DestinationOptions::default()).expect("good");
        let [a, x] = ["a:1", "x:1"].map(|address| Address(address.into()));
        for (down, down_for_long, expected) in [
            (vec![a.clone()], vec![], "a:1 get k"),
            (vec![], vec![a.clone()], "x:1 get k"),
            (vec![x], vec![a], "y:1 get k"),
        ] {
            let asked = explain(&config, "get", "k", &Context::default(), &Outages { down, down_for_long })
                .await
                .expect("a good key");
            assert_eq!(requests_to_servers(&asked), [expected]);
        }
        let asked =
            explain(&config, "delete", "k", &Context::default(), &Outages::default()).await.expect("a good key");
        assert_eq!(requests_to_servers(&asked), ["a:1 delete k", "x:1 delete k", "y:1 delete k"]);
        assert_eq!(asked.servers(), ["a:1", "x:1", "y:1"]);
    }
}
