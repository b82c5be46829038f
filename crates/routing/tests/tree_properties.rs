//! Properties of random trees: every request has one outcome, in order, from the server that was asked for it, and a
//! server gets the requests for one key in the client's order.

use crate::fakes::{Fake, request};
use bytes::Bytes;
use lookaside_protocol::Reply;
use lookaside_routing::{
    AllSyncRoute, Context, FailoverErrors, FailoverRoute, Failure, HashFunction, HashRoute, KeyHash,
    OperationSelectorRoute, PrefixSelectorRoute, RootRoute, Route, RoutingPrefix, Verb,
};
use proptest::prelude::*;
use std::sync::Arc;

/// The shape of a tree.
#[derive(Clone, Debug)]
enum Shape {
    Server,
    Hash(Vec<Shape>, bool),
    Prefix(Vec<Shape>),
    Operation(Vec<Shape>),
    AllSync(Vec<Shape>),
    Failover(Vec<Shape>),
    Root(Vec<Shape>),
}

fn shape() -> impl Strategy<Value = Shape> {
    Just(Shape::Server).prop_recursive(4, 40, 4, |inner| {
        let children = prop::collection::vec(inner, 1..4);
        prop_oneof![
            (children.clone(), any::<bool>()).prop_map(|(children, crc)| Shape::Hash(children, crc)),
            children.clone().prop_map(Shape::Prefix),
            children.clone().prop_map(Shape::Operation),
            children.clone().prop_map(Shape::AllSync),
            children.clone().prop_map(Shape::Failover),
            children.prop_map(Shape::Root),
        ]
    })
}

/// Builds the tree; every leaf is the same server, so that its record shows the order of everything.
fn build(shape: &Shape, server: &Arc<Fake>) -> Arc<dyn Route> {
    let all = |children: &[Shape]| -> Vec<Arc<dyn Route>> { children.iter().map(|c| build(c, server)).collect() };
    match shape {
        Shape::Server => server.leaf(),
        Shape::Hash(children, crc) => {
            let function = if *crc { HashFunction::Crc32 } else { HashFunction::Ch3 };
            Arc::new(HashRoute::new(all(children), KeyHash { function, ..KeyHash::default() }))
        }
        Shape::Prefix(children) => {
            let mut children = all(children);
            let wildcard = children.pop();
            Arc::new(PrefixSelectorRoute::new(
                ["k1", "k"].map(String::from).into_iter().zip(children).collect(),
                wildcard,
            ))
        }
        Shape::Operation(children) => {
            let mut children = all(children);
            let default = children.pop();
            Arc::new(OperationSelectorRoute::new(default, [Verb::Delete, Verb::Set].into_iter().zip(children)))
        }
        Shape::AllSync(children) => Arc::new(AllSyncRoute::new(all(children))),
        Shape::Failover(children) => {
            let mut children = all(children);
            let first = children.remove(0);
            Arc::new(FailoverRoute::new(first, children, FailoverErrors::default()))
        }
        Shape::Root(children) => {
            let name = |n: usize| vec![RoutingPrefix::parse(&format!("/r/c{n}/")).unwrap()];
            let named = all(children).into_iter().enumerate().map(|(n, tree)| (name(n), tree)).collect();
            Arc::new(RootRoute::new(RoutingPrefix::parse("/r/c0/").unwrap(), named).unwrap())
        }
    }
}

/// Lines of "verb key", with prefixes of existing and missing trees.
fn requests() -> impl Strategy<Value = Vec<String>> {
    let verb = prop::sample::select(vec!["get", "set", "delete"]);
    let prefix = prop::sample::select(vec!["", "", "", "/r/c0/", "/r/c1/", "/*/*/", "/x/y/"]);
    prop::collection::vec((verb, prefix, 0..14_u32).prop_map(|(verb, at, key)| format!("{verb} {at}k{key}")), 0..40)
}

fn route_all(route: &dyn Route, requests: &[String]) -> Vec<Result<Reply<Bytes>, Failure>> {
    let batch = requests.iter().map(|text| request(text)).collect();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(route.route(batch, &Context::default()))
}

proptest! {
    #[test]
    fn outcomes_are_in_order(shape in shape(), requests in requests(), failing in any::<bool>()) {
        // Every outcome is the requested key, or a failure that counts.
        let server = Fake::new("s", move |request| match failing && request.key.ends_with(b"3") {
            true => Err(Failure::TimedOut),
            false => Ok(Reply::Value { flags: 0, cas: None, value: request.key.clone() }),
        });
        let outcomes = route_all(&*build(&shape, &server), &requests);
        prop_assert_eq!(outcomes.len(), requests.len());
        for (request, outcome) in requests.iter().zip(outcomes) {
            match outcome {
                Ok(Reply::Value { value, .. }) => prop_assert!(request.as_bytes().ends_with(&[b"k", &value[1..]].concat())),
                Err(Failure::TimedOut) => prop_assert!(failing && request.ends_with('3')),
                Err(Failure::NoTree) => {}
                other => prop_assert!(false, "{:?} for {}", other, request),
            }
        }
    }

    /// Without broadcasts and failures each request is executed once, and per key in the client's order.
    #[test]
    fn order_per_key_is_kept(shape in single_copy(), requests in requests()) {
        let requests: Vec<String> =
            requests.iter().map(|text| format!("{} {}", &text[..text.find(' ').unwrap()], &text[text.rfind('k').unwrap()..])).collect();
        let server = Fake::hit("s");
        route_all(&*build(&shape, &server), &requests);
        let asked: Vec<String> = server.asked().iter().map(|line| line.trim_end_matches(" 0").to_owned()).collect();
        for key in 0..14 {
            let about = |lines: &[String]| -> Vec<String> {
                lines.iter().filter(|line| line.ends_with(&format!(" k{key}"))).cloned().collect()
            };
            prop_assert_eq!(about(&asked), about(&requests));
        }
    }
}

/// Trees that ask one server for each request.
fn single_copy() -> impl Strategy<Value = Shape> {
    Just(Shape::Server).prop_recursive(4, 40, 4, |inner| {
        let children = prop::collection::vec(inner, 1..4);
        prop_oneof![
            (children.clone(), any::<bool>()).prop_map(|(children, crc)| Shape::Hash(children, crc)),
            children.clone().prop_map(Shape::Prefix),
            children.clone().prop_map(Shape::Operation),
            children.prop_map(Shape::Root),
        ]
    })
}
