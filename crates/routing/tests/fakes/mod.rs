//! Destinations that record their requests and reply as a test defines.

pub mod cache;

use bytes::Bytes;
use lookaside_protocol::{
    Direction, ErrorReply, LeaseToken, Operation, Reply, Request, StoreMode,
    meta::{MetaOperation, MetaReply, MetaStatus, MetaVerb},
};
use lookaside_routing::{
    Address, Batch, BoxFuture, Context, Destination, DestinationRoute, Failure, Outcome, Outcomes, Route,
};
use std::sync::{Arc, Mutex};

/// The reply of a fake to a request.
pub type Behaviour = Box<dyn Fn(&Request<Bytes>) -> Outcome + Send + Sync>;

/// A fake server.
pub struct Fake {
    address: Address,
    asked: Mutex<Vec<Batch>>,
    behaviour: Behaviour,
}

impl Fake {
    /// Replies to every request by `behaviour`.
    pub fn new(name: &str, behaviour: impl Fn(&Request<Bytes>) -> Outcome + Send + Sync + 'static) -> Arc<Fake> {
        Arc::new(Fake { address: Address(name.into()), asked: Mutex::default(), behaviour: Box::new(behaviour) })
    }

    /// Replies to a get with its own name as the value; all other requests succeed.
    pub fn hit(name: &str) -> Arc<Fake> {
        let value = Bytes::copy_from_slice(name.as_bytes());
        Fake::new(name, move |request| Ok(done(request, &value)))
    }

    /// Misses every key.
    pub fn miss(name: &str) -> Arc<Fake> {
        Fake::new(name, |request| {
            Ok(match request.operation {
                Operation::Get { .. } | Operation::GetAndTouch { .. } => Reply::Miss,
                Operation::LeaseGet => Reply::Lease { token: LeaseToken(7), flags: 0, stale: None },
                Operation::Store { .. } | Operation::LeaseSet { .. } => Reply::NotStored,
                _ if is_metaget(request) => meta_reply(MetaStatus::Miss, ""),
                _ => Reply::NotFound,
            })
        })
    }

    /// Fails every time.
    pub fn failing(name: &str, failure: Failure) -> Arc<Fake> {
        Fake::new(name, move |_| Err(failure.clone()))
    }

    /// The leaf over this fake.
    pub fn leaf(self: &Arc<Fake>) -> Arc<dyn Route> {
        Arc::new(DestinationRoute::new(self.clone(), false))
    }

    /// Takes the recorded batches, as "verb key" lines.
    pub fn asked_batches(&self) -> Vec<Vec<String>> {
        let batches = std::mem::take(&mut *self.asked.lock().unwrap());
        batches.iter().map(|batch| batch.iter().map(line).collect()).collect()
    }

    /// Takes the recorded requests in order, as "verb key" lines.
    pub fn asked(&self) -> Vec<String> {
        self.asked_batches().concat()
    }

    /// Takes the recorded requests.
    pub fn requests(&self) -> Batch {
        std::mem::take(&mut *self.asked.lock().unwrap()).concat()
    }
}

impl Destination for Fake {
    fn send(&self, batch: Batch) -> BoxFuture<'_, Outcomes> {
        let outcomes = batch.iter().map(&self.behaviour).collect();
        self.asked.lock().unwrap().push(batch);
        Box::pin(async move { outcomes })
    }

    fn address(&self) -> &Address {
        &self.address
    }
}

/// The reply of a server where the request succeeds.
fn done(request: &Request<Bytes>, value: &Bytes) -> Reply<Bytes> {
    match request.operation {
        Operation::Get { .. } | Operation::GetAndTouch { .. } | Operation::LeaseGet => {
            Reply::Value { flags: 0, cas: None, value: value.clone() }
        }
        Operation::Store { .. } | Operation::LeaseSet { .. } => Reply::Stored,
        Operation::Delete { .. } => Reply::Deleted,
        Operation::Arithmetic { .. } => Reply::Number(1),
        Operation::Touch { .. } => Reply::Touched,
        Operation::Meta(_) if is_metaget(request) => meta_reply(MetaStatus::Debug, "k exp=-1 la=0"),
        Operation::Meta(_) => Reply::Ok,
    }
}

fn is_metaget(request: &Request<Bytes>) -> bool {
    matches!(&request.operation, Operation::Meta(meta) if meta.verb == MetaVerb::Debug)
}

fn meta_reply(status: MetaStatus, flags: &'static str) -> Reply<Bytes> {
    Reply::Meta(MetaReply { status, flags: flags.into(), value: None })
}

/// "verb key", with the exptime if there is one.
fn line(request: &Request<Bytes>) -> String {
    let key = String::from_utf8_lossy(&request.key);
    let verb = lookaside_routing::Verb::of(&request.operation).name();
    match request.operation {
        Operation::Store { exptime, .. }
        | Operation::LeaseSet { exptime, .. }
        | Operation::Touch { exptime }
        | Operation::GetAndTouch { exptime, .. } => format!("{verb} {key} {exptime}"),
        _ => format!("{verb} {key}"),
    }
}

/// Parses a request as in the text protocol: `get k`, `set k 60`, `delete k`. The default exptime is 0. A `metaget` is
/// an `me`.
pub fn request(text: &str) -> Request<Bytes> {
    let mut words = text.split(' ');
    let verb = words.next().unwrap();
    let key = Bytes::copy_from_slice(words.next().expect("a key").as_bytes());
    let exptime = words.next().map_or(0, |word| word.parse().expect("an exptime"));
    let store = |mode| Operation::Store { mode, flags: 0, exptime, value: Bytes::from_static(b"v"), cas: false };
    let operation = match verb {
        "get" => Operation::Get { cas: false },
        "gets" => Operation::Get { cas: true },
        "gat" => Operation::GetAndTouch { exptime, cas: false },
        "gats" => Operation::GetAndTouch { exptime, cas: true },
        "lease-get" => Operation::LeaseGet,
        "set" => store(StoreMode::Set),
        "add" => store(StoreMode::Add),
        "replace" => store(StoreMode::Replace),
        "append" => store(StoreMode::Append),
        "prepend" => store(StoreMode::Prepend),
        "cas" => store(StoreMode::Cas(lookaside_protocol::Cas(9))),
        "lease-set" => Operation::LeaseSet { token: LeaseToken(7), flags: 0, exptime, value: Bytes::from_static(b"v") },
        "delete" => Operation::Delete { hold_off_ms: 0 },
        "incr" => Operation::Arithmetic { direction: Direction::Up, delta: 1 },
        "decr" => Operation::Arithmetic { direction: Direction::Down, delta: 1 },
        "touch" => Operation::Touch { exptime },
        "metaget" => Operation::Meta(MetaOperation { verb: MetaVerb::Debug, flags: Bytes::new(), value: None }),
        other => panic!("unknown verb {other}"),
    };
    Request { key, operation }
}

/// The verbs of `request`.
pub const VERBS: [&str; 17] = [
    "get",
    "gets",
    "gat",
    "gats",
    "lease-get",
    "set",
    "add",
    "replace",
    "append",
    "prepend",
    "cas",
    "lease-set",
    "delete",
    "incr",
    "decr",
    "touch",
    "metaget",
];

/// A meta request without a value.
pub fn meta(verb: MetaVerb, key: &'static str, flags: &'static str) -> Request<Bytes> {
    let operation = Operation::Meta(MetaOperation { verb, flags: flags.into(), value: None });
    Request { key: key.into(), operation }
}

/// Routes requests given as text. Returns the outcomes as text.
pub async fn ask(route: &dyn Route, requests: &[&str]) -> Vec<String> {
    let batch = requests.iter().map(|text| request(text)).collect();
    route.route(batch, &Context::default()).await.iter().map(describe).collect()
}

/// A value as its text, any other outcome in its debug form.
fn describe(outcome: &Outcome) -> String {
    match outcome {
        Ok(Reply::Value { value, .. }) => String::from_utf8_lossy(value).into_owned(),
        Ok(reply) => match reply {
            Reply::Error(ErrorReply::Server(why)) => format!("SERVER_ERROR {}", String::from_utf8_lossy(why)),
            Reply::Lease { token, .. } => format!("Lease {}", token.0),
            Reply::Meta(meta) => format!("{:?}", meta.status),
            other => format!("{other:?}"),
        },
        Err(failure) => failure.to_string(),
    }
}

/// A `SERVER_ERROR` reply.
pub fn server_error(why: &'static str) -> Outcome {
    Ok(Reply::Error(ErrorReply::Server(Bytes::from_static(why.as_bytes()))))
}
