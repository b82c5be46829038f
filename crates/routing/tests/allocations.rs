//! The allocations of a batch: routing is on the path of every get, and allocations would be its largest cost.

use bytes::Bytes;
use futures_util::FutureExt;
use lookaside_protocol::{Operation, Reply, Request};
use lookaside_routing::{
    Batch, BoxFuture, Context, FailoverErrors, FailoverWithExptimeRoute, HashFunction, KeyHash, OperationSelectorRoute,
    Outcomes, PoolRoute, RootRoute, Route, RoutingPrefix, Verb,
};
use lookaside_test_support::{CountingAllocator, count_allocations};
use std::sync::Arc;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// A leaf with two allocations: its outcomes and its future.
struct Leaf;

impl Route for Leaf {
    fn route<'a>(&'a self, batch: Batch, _context: &'a Context) -> BoxFuture<'a, Outcomes> {
        let outcomes = vec![Ok(Reply::Miss); batch.len()];
        Box::pin(async move { outcomes })
    }
}

fn allocations(route: &dyn Route, keys: usize) -> usize {
    // Keys as in a connection: slices of the read buffer, so a clone allocates nothing.
    let read: Bytes = (0..keys).map(|n| format!("key:{n:04}")).collect::<String>().into();
    let key = |n: usize| read.slice(n * 8..n * 8 + 8);
    let batch: Batch = (0..keys).map(|n| Request { key: key(n), operation: Operation::Get { cas: false } }).collect();
    let context = Context::default();
    let mut outcomes = None;
    let spent = count_allocations(|| outcomes = route.route(batch, &context).now_or_never());
    assert_eq!(outcomes.expect("no leaf waits").len(), keys);
    spent
}

fn pool(servers: usize) -> PoolRoute {
    PoolRoute::from_routes((0..servers).map(|_| Arc::new(Leaf) as Arc<dyn Route>).collect(), KeyHash::default())
}

#[test]
fn one_key_allocates_nothing_above_its_leaf() {
    assert_eq!(allocations(&pool(4), 1), 2);
    assert_eq!(allocations(&pool(1), 24), 2, "the same for a batch for one server");
}

#[test]
fn a_split_batch_has_a_few_allocations_and_three_for_each_server() {
    let spent = allocations(&pool(4), 24);
    assert!(spent <= 3 * 4 + 9, "{spent} allocations for 24 keys over 4 servers");
    assert_eq!(allocations(&pool(4), 240), spent, "independent of the number of keys");
}

/// The usual tree of a cluster: prefix, verb, failover, pool.
#[test]
fn a_whole_tree_adds_few_allocations() {
    let (main, gutter) = (Arc::new(pool(4)), Arc::new(pool(1)));
    let failover = FailoverWithExptimeRoute::new(main.clone(), vec![gutter], 10, FailoverErrors::default());
    let by_verb = OperationSelectorRoute::new(Some(Arc::new(failover)), [(Verb::Delete, main as Arc<dyn Route>)]);
    let prefix = RoutingPrefix::default();
    let root = RootRoute::new(prefix.clone(), vec![(vec![prefix], Arc::new(by_verb))]).unwrap();
    assert_eq!(allocations(&root, 24), allocations(&pool(4), 24) + 2, "failover's future and its copy of the batch");
    assert_eq!(allocations(&root, 1), 4);
}

#[test]
fn no_hash_allocates_for_a_key() {
    let names: Vec<String> = (0..20).map(|n| format!("10.0.0.{n}:11211")).collect();
    for function in HashFunction::all() {
        for salt in ["", "salt"] {
            let hash = KeyHash { function, salt: salt.into(), names: names.clone(), weights: vec![1.0; 20] };
            let picker = hash.picker_for(20).unwrap();
            let mut picked = 0_usize;
            let spent = count_allocations(|| {
                picked = ["user:42", "a:7:b", "", "a-key-that-is-longer-than-most|#|x"]
                    .iter()
                    .map(|key| picker.pick(key.as_bytes()))
                    .sum();
            });
            assert_eq!(spent, 0, "{} picked {picked}", function.name());
        }
    }
}
