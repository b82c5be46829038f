//! `get __mcrouter__.route(delete,user:42)`: which servers would be asked, and what, if the request came now and every
//! server were well. Nobody is asked.
//!
//! The answer comes from the configuration's own tree, built once more over leaves that only take notes: so it cannot
//! differ from what happens to a request.

use crate::Plan;
use lookaside_protocol::text::{Limits, Parsed, compose_request, parse_command};
use lookaside_protocol::{Command, Operation, Reply, Request};
use lookaside_routing::{
    Address, Batch, BoxFuture, Context, Destination, DestinationSettings, Destinations, Outcomes, Route,
};
use std::sync::{Arc, Mutex, PoisonError};

type Notes = Arc<Mutex<Vec<String>>>;

/// One line for each request that a server would get, in order: its address and the command line. The error says why
/// `verb` or `key` cannot be asked about.
pub(crate) async fn trace(plan: &Plan, verb: &str, key: &str, context: &Context) -> Result<Vec<String>, String> {
    let request = example(verb, key)?;
    let notes = Notes::default();
    let tree = plan.configuration().build(&mut NoteTakers(notes.clone()));
    tree.route(vec![request], context).await;
    let noted = std::mem::take(&mut *notes.lock().unwrap_or_else(PoisonError::into_inner));
    Ok(noted)
}

/// A request as clients send it, with an empty value where it needs one.
fn example(verb: &str, key: &str) -> Result<Request<bytes::Bytes>, String> {
    let line = match verb {
        "get" | "gets" | "lease-get" | "delete" => format!("{verb} {key}\r\n"),
        "gat" | "gats" => format!("{verb} 0 {key}\r\n"),
        "set" | "add" | "replace" | "append" | "prepend" => format!("{verb} {key} 0 0 0\r\n\r\n"),
        "cas" => format!("cas {key} 0 0 0 1\r\n\r\n"),
        "lease-set" => format!("lease-set {key} 2 0 0 0\r\n\r\n"),
        "incr" | "decr" | "touch" => format!("{verb} {key} 1\r\n"),
        _ => return Err(format!("no verb is named {verb}")),
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

struct NoteTakers(Notes);

impl Destinations for NoteTakers {
    fn destination(&mut self, address: &Address, _: &DestinationSettings) -> Arc<dyn Destination> {
        Arc::new(NoteTaker { address: address.clone(), notes: self.0.clone() })
    }
}

/// A server that writes down what it is asked, and has nothing.
struct NoteTaker {
    address: Address,
    notes: Notes,
}

impl Destination for NoteTaker {
    fn send(&self, batch: Batch) -> BoxFuture<'_, Outcomes> {
        let mut notes = self.notes.lock().unwrap_or_else(PoisonError::into_inner);
        let outcomes = batch.iter().map(|request| Ok(nothing(&request.operation))).collect();
        notes.extend(batch.iter().map(|request| format!("{} {}", self.address, command_line(request))));
        Box::pin(std::future::ready(outcomes))
    }

    fn address(&self) -> &Address {
        &self.address
    }
}

fn nothing(operation: &Operation<bytes::Bytes>) -> Reply<bytes::Bytes> {
    match operation {
        Operation::Get { .. } | Operation::GetAndTouch { .. } | Operation::LeaseGet => Reply::Miss,
        Operation::Store { .. } | Operation::LeaseSet { .. } => Reply::Stored,
        _ => Reply::NotFound,
    }
}

fn command_line(request: &Request<bytes::Bytes>) -> String {
    let mut bytes = Vec::new();
    compose_request(request, &mut bytes);
    String::from_utf8_lossy(&bytes).lines().next().unwrap_or_default().to_owned()
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
        let plan = Plan::read(CONFIGURATION, &Defaults::default(), &DestinationOptions::default()).expect("good");
        trace(&plan, verb, key, &Context::default()).await
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
        assert!(ask("get", &"k".repeat(251)).await.is_err());
    }
}
