//! The way of one request through the tree: which routes it passes, which servers are asked, and what comes back, if the
//! request came now and every server were well, or were taken out as told. Nobody is asked.
//!
//! The answer comes from the configuration's own tree, built once more over leaves that only take notes and with a note
//! taker around every route: so it cannot differ from what happens to a request.
//!
//! ```text
//!   OperationSelectorRoute   delete user:42 -> NOT_FOUND
//!     AllSyncRoute           delete user:42 -> NOT_FOUND
//!       PoolRoute|main       delete user:42 -> NOT_FOUND
//!         10.0.0.1:11211     delete user:42 -> NOT_FOUND
//! ```
//!
//! Who called whom is known from who is being polled: a note taker makes itself the current step while it polls what it
//! stands around, and a step that begins meanwhile is below it. That holds as long as all is polled on one thread and
//! nothing goes on in the background, which a tree without surroundings never does.

use crate::config::router_config::RouterConfig;
use lookaside_protocol::text::{Limits, Parsed, compose_reply, compose_request, parse_command};
use lookaside_protocol::{Command, Operation, Reply, Request};
use lookaside_routing::{
    Address, Batch, BoxFuture, Clock, Context, Destination, DestinationSettings, Destinations, Environment, Failure,
    Handle, Outcome, Outcomes, Pool, Route, Serving, Slot, Verb, choose_spare,
};
use std::{
    cell::Cell,
    fmt,
    future::{poll_fn, ready},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

/// How far each step stands to the right of the one above it, in spaces.
const INDENT: usize = 2;

thread_local! {
    /// The step that is being polled.
    static CURRENT: Cell<Option<usize>> = const { Cell::new(None) };
}

/// The steps of one request, each behind the one that took it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Explanation(pub Vec<Step>);

/// One route, or one server, that a request came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// How many steps lead here; 0 for the top of the tree.
    pub depth: usize,
    /// The route's name and pool, or the server's address.
    pub at: String,
    /// Whether it is a server.
    pub is_server: bool,
    /// What it was asked, a command line for each request.
    pub asked: Vec<String>,
    /// What it answered, the first line of each answer, or why there was none.
    pub answered: Vec<String>,
}

impl Explanation {
    /// What each server would be asked, in order: its address and the command line.
    pub(crate) fn servers(&self) -> Vec<String> {
        let servers = self.0.iter().filter(|step| step.is_server);
        servers.flat_map(|step| step.asked.iter().map(move |asked| format!("{} {asked}", step.at))).collect()
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.0.iter().map(|step| step.depth * INDENT + step.at.chars().count()).max().unwrap_or_default();
        for step in &self.0 {
            for (asked, answered) in step.asked.iter().zip(&step.answered) {
                let at = format!("{:indent$}{}", "", step.at, indent = step.depth * INDENT);
                writeln!(f, "{at:width$}   {asked} -> {answered}")?;
            }
        }
        Ok(())
    }
}

/// Servers that are imagined not to answer.
#[derive(Clone, Debug, Default)]
pub struct Outages {
    /// Taken out a moment ago.
    pub down: Vec<Address>,
    /// Out for so long that spares serve, where there are any.
    pub dead: Vec<Address>,
}

impl Outages {
    fn is_down(&self, address: &Address) -> bool {
        self.down.contains(address) || self.dead.contains(address)
    }
}

/// The way of `verb` for `key`, asked by a client as in `context`, during `outages`. The error says why `verb` or `key`
/// cannot be asked about, or that nothing leads on from the root.
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
        return Err(failure.to_string());
    }
    Ok(to_tree_order(recorded))
}

/// Steps as they began to steps below the one that took them.
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

/// A step and the one that took it.
struct RecordedStep {
    parent: Option<usize>,
    step: Step,
}

#[derive(Clone, Default)]
struct Recorder(Arc<Mutex<Vec<RecordedStep>>>);

impl Recorder {
    fn lock(&self) -> MutexGuard<'_, Vec<RecordedStep>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes note of a step below the current one.
    fn begin_step(&self, at: String, is_server: bool, batch: &Batch) -> usize {
        let parent = CURRENT.get();
        let mut recorded = self.lock();
        let depth = parent.map_or(0, |parent| recorded[parent].step.depth + 1);
        let asked = batch.iter().map(command_line).collect();
        recorded.push(RecordedStep { parent, step: Step { depth, at, is_server, asked, answered: Vec::new() } });
        recorded.len() - 1
    }

    fn end_step(&self, step: usize, keys: &[bytes::Bytes], outcomes: &[Outcome]) {
        let answered = keys.iter().zip(outcomes).map(|(key, outcome)| outcome_text(key, outcome)).collect();
        self.lock()[step].step.answered = answered;
    }
}

/// Makes every leaf and every route of the tree take notes.
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
    fn destination(&mut self, address: &Address, _: &DestinationSettings) -> Arc<dyn Destination> {
        let is_down = self.outages.is_down(address);
        Arc::new(RecordingDestination { address: address.clone(), is_down, recorder: self.recorder.clone() })
    }

    /// As in the router that runs, if there is one; and as it would be after a long outage.
    fn slot(&mut self, pool: &Pool, at: usize) -> Arc<Slot> {
        if !self.outages.dead.contains(&pool.servers[at]) {
            return self.config.spares().map(|spares| spares.slot(pool, at)).unwrap_or_default();
        }
        let slot = Arc::new(Slot::default());
        let is_free = |spare: usize| !self.outages.is_down(&pool.spares[spare]);
        if let Some(spare) = choose_spare(at, pool.spares.len(), is_free) {
            slot.serve(Serving::Spare(spare));
        }
        slot
    }

    fn around(&mut self, handle: &Handle, route: Arc<dyn Route>) -> Arc<dyn Route> {
        match handle {
            Handle::Server { .. } => route, // The server takes note itself.
            handle => Arc::new(RecordingRoute { at: handle.label(), inner: route, recorder: self.recorder.clone() }),
        }
    }

    /// The host's own, but no time passes and nothing goes on in the background.
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

/// Stands around a route and takes note of what comes to it and what leaves it.
struct RecordingRoute {
    at: String,
    inner: Arc<dyn Route>,
    recorder: Recorder,
}

impl Route for RecordingRoute {
    fn route<'a>(&'a self, batch: Batch, context: &'a Context) -> BoxFuture<'a, Outcomes> {
        Box::pin(async move {
            let step = self.recorder.begin_step(self.at.clone(), false, &batch);
            let keys: Vec<bytes::Bytes> = batch.iter().map(|request| request.key.clone()).collect();
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

/// A server that writes down what it is asked, and has nothing.
struct RecordingDestination {
    address: Address,
    is_down: bool,
    recorder: Recorder,
}

impl Destination for RecordingDestination {
    fn send(&self, batch: Batch) -> BoxFuture<'_, Outcomes> {
        Box::pin(async move {
            let step = self.recorder.begin_step(self.address.to_string(), true, &batch);
            let keys: Vec<bytes::Bytes> = batch.iter().map(|request| request.key.clone()).collect();
            let answer = |operation| match self.is_down {
                true => Err(Failure::Tko),
                false => Ok(empty_reply(operation)),
            };
            let outcomes: Outcomes = batch.iter().map(|request| answer(&request.operation)).collect();
            self.recorder.end_step(step, &keys, &outcomes);
            outcomes
        })
    }

    fn address(&self) -> &Address {
        &self.address
    }
}

fn empty_reply(operation: &Operation<bytes::Bytes>) -> Reply<bytes::Bytes> {
    match operation {
        Operation::Get { .. } | Operation::GetAndTouch { .. } | Operation::LeaseGet => Reply::Miss,
        Operation::Store { .. } | Operation::LeaseSet { .. } => Reply::Stored,
        _ => Reply::NotFound,
    }
}

fn command_line(request: &Request<bytes::Bytes>) -> String {
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

/// A request as clients send it, with an empty value where it needs one.
fn example_request(verb: &str, key: &str) -> Result<Request<bytes::Bytes>, String> {
    if key.bytes().any(|byte| byte.is_ascii_whitespace() || byte.is_ascii_control()) {
        return Err(format!("{key:?} is no key: a key has no white space and no control characters"));
    }
    let line = match verb {
        "get" | "gets" | "lease-get" | "delete" => format!("{verb} {key}\r\n"),
        "gat" | "gats" => format!("{verb} 0 {key}\r\n"),
        "set" | "add" | "replace" | "append" | "prepend" => format!("{verb} {key} 0 0 0\r\n\r\n"),
        "cas" => format!("cas {key} 0 0 0 1\r\n\r\n"),
        "lease-set" => format!("lease-set {key} 2 0 0 0\r\n\r\n"),
        "incr" | "decr" | "touch" => format!("{verb} {key} 1\r\n"),
        "mg" | "ms" | "md" | "ma" => {
            return Err(format!(
                "a meta command goes the way of its verb: mg that of get, ms of set, md of delete, ma of incr; ask for that instead of {verb}"
            ));
        }
        _ => {
            let known: Vec<&str> = Verb::ALL.iter().map(|verb| verb.name()).filter(|name| *name != "metaget").collect();
            return Err(format!("no verb is named {verb:?}; known: {}", known.join(", ")));
        }
    };
    let limits = Limits { value_bytes_max: 0, line_bytes_max: line.len() };
    let own = bytes::Bytes::copy_from_slice;
    match parse_command(line.as_bytes(), &limits) {
        Parsed::Command { command: Command::Single { request, .. }, .. } => Ok(request.map(own)),
        Parsed::Command { command: Command::Retrieve { mut keys, operation }, .. } => {
            let key = keys.next().ok_or("no key")?;
            Ok(Request { key, operation }.map(own))
        }
        _ => Err(format!("{key:?} is no key")),
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

    async fn ask(verb: &str, key: &str) -> Result<Vec<String>, String> {
        let config =
            RouterConfig::read(CONFIGURATION, &Defaults::default(), &DestinationOptions::default()).expect("good");
        Ok(explain(&config, verb, key, &Context::default(), &Outages::default()).await?.servers())
    }

    #[tokio::test]
    async fn a_get_asks_one_server_and_a_delete_both() {
        assert_eq!(ask("get", "user:42").await, Ok(vec!["10.0.0.1:1 get user:42".to_owned()]));
        let mut asked = ask("delete", "/./././user:42").await.expect("a good key");
        asked.sort();
        assert_eq!(asked.len(), 2, "{asked:?}");
        assert!(asked[0].starts_with("10.0.0.1:1 delete ") && asked[1].starts_with("10.0.0.2:2 delete "), "{asked:?}");
    }

    #[tokio::test]
    async fn every_verb_can_be_asked_about() {
        for verb in
            "get gets gat gats lease-get set add replace append prepend cas lease-set incr decr touch".split(' ')
        {
            let asked = ask(verb, "k").await.expect(verb);
            assert!(asked.len() == 1 && asked[0].starts_with("10.0.0.1:1 ") && asked[0].contains(verb), "{asked:?}");
        }
    }

    #[tokio::test]
    async fn nonsense_is_named() {
        assert!(ask("fetch", "k").await.is_err_and(|why| why.contains("fetch")));
        assert!(ask("get", "").await.is_err());
        assert!(ask("get", "two words").await.is_err_and(|why| why.contains("white space")));
        assert!(ask("mg", "k").await.is_err_and(|why| why.contains("that of get")));
        assert!(ask("get", &"k".repeat(251)).await.is_err());
        assert_eq!(ask("get", "/a/b/foo").await, Err("no route: no tree is named /a/b/".to_owned()));
    }

    #[tokio::test]
    async fn the_way_shows_routes_and_servers_that_are_taken_out() {
        let config =
            RouterConfig::read(CONFIGURATION, &Defaults::default(), &DestinationOptions::default()).expect("good");
        let outages = Outages { down: vec![Address("10.0.0.1:1".into())], dead: Vec::new() };
        let shown = explain(&config, "get", "k", &Context::default(), &outages).await.expect("a good key").to_string();
        let lines: Vec<String> =
            shown.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
        let expected = [
            "OperationSelectorRoute get k -> miss",
            "FailoverWithExptimeRoute get k -> miss",
            "PoolRoute|main get k -> server is taken out after failures",
            "10.0.0.1:1 get k -> server is taken out after failures",
            "PoolRoute|gutter get k -> miss",
            "10.0.0.2:2 get k -> miss",
        ];
        assert_eq!(lines, expected, "{shown}");
        assert!(shown.contains("\n      10.0.0.1:1"), "three steps to the right: {shown}");
    }

    #[tokio::test]
    async fn a_server_that_is_dead_for_long_is_stood_in_for_by_a_spare() {
        const SPARED: &str = r#"{
            "pools": { "A": { "servers": ["a:1"], "spares": ["x:1", "y:1"] } },
            "route": "PoolRoute|A"
        }"#;
        let config = RouterConfig::read(SPARED, &Defaults::default(), &DestinationOptions::default()).expect("good");
        let [a, x] = ["a:1", "x:1"].map(|address| Address(address.into()));
        for (down, dead, expected) in [
            (vec![a.clone()], vec![], "a:1 get k"),
            (vec![], vec![a.clone()], "x:1 get k"),
            (vec![x], vec![a], "y:1 get k"),
        ] {
            let asked =
                explain(&config, "get", "k", &Context::default(), &Outages { down, dead }).await.expect("a good key");
            assert_eq!(asked.servers(), [expected]);
        }
        let asked =
            explain(&config, "delete", "k", &Context::default(), &Outages::default()).await.expect("a good key");
        assert_eq!(asked.servers(), ["a:1 delete k", "x:1 delete k", "y:1 delete k"]);
    }
}
