//! Reads of values whose keys depend on other values, in as few round trips as their dependencies allow. §3.1 of the
//! paper: "a directed acyclic graph representing the dependencies between data".
//!
//! ```text
//!   user:42 --+--> friends:42 --> user:7, user:9 ...       three round trips, however many keys:
//!             '--> photos:42  --> photo:1, photo:2 ...     1: user   2: friends, photos   3: all the others
//! ```
//!
//! A node begins when the nodes that it depends on have their values, and does not wait for others. The lookups of all
//! nodes that are ready in one turn of the scheduler travel as one batch (`batcher`), and the route sends those of one
//! server together.
//!
//! Invariants:
//! * No node waits for the fills of another; the run waits for all of them.
//! * A node that fails fails those that depend on it, and no others.
//! * Dependencies that form a cycle are an error, before anything is sent.
//! * All nodes run in the caller's task: dropping the run stops it, and releases its leases.

use super::{
    client::Client,
    read_through::{Fills, ReadError, ReadOptions, Value},
    stats::ClientStatistics,
};
use crate::values::Encoded;
use bytes::Bytes;
use futures_util::stream::{FuturesUnordered, StreamExt};
use lookaside_routing::BoxFuture;
use std::{
    fmt,
    sync::atomic::{AtomicU64, Ordering},
};

/// Tells plans apart.
static PLANS: AtomicU64 = AtomicU64::new(0);

/// A node of a [`Plan`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NodeId {
    plan: u64,
    index: usize,
}

type KeysOf<'a, E> = Box<dyn FnOnce(&NodeValues<'_, E>) -> Result<Vec<Bytes>, E> + Send + 'a>;
type Load<'a, E> = Box<dyn FnMut(Vec<Bytes>) -> BoxFuture<'a, Result<Vec<Encoded>, E>> + Send + 'a>;
type NodeResult<E> = Result<Vec<Value>, NodeError<E>>;

/// Values to read together, some of whose keys depend on other values. `E` is the error of the loaders.
///
/// ```
/// use bytes::Bytes;
/// use lookaside_client::{Client, Plan, ReadOptions};
/// use std::io::Error;
///
/// async fn page(client: &Client) -> Result<(), Box<dyn std::error::Error>> {
///     // Loaders get the keys that missed. These return text in place of rows.
///     let load_friends = async |_: Vec<Bytes>| Ok(vec!["7,9".into()]);
///     let load_users = async |keys: Vec<Bytes>| {
///         Ok(keys.iter().map(|key| [b"row of ", &key[..]].concat().into()).collect())
///     };
///
///     let mut plan = Plan::<Error>::new(ReadOptions::default());
///     let friends = plan.node([], |_| Ok(vec!["friends:42".into()]), load_friends);
///     let users = plan.node([friends], move |values| {
///         let ids = std::str::from_utf8(&values.of(friends)[0].value).map_err(Error::other)?;
///         Ok(ids.split(',').map(|id| format!("user:{id}").into()).collect())
///     }, load_users);
///
///     let results = client.run_plan(plan).await?;
///     let users = results.of(users).as_ref().expect("loaded");
///     assert_eq!(&users[1].value[..], b"row of user:9");
///     assert_eq!(results.statistics().round_trips, 2);
///     Ok(())
/// }
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(
/// #     page(&Client::new(std::sync::Arc::new(lookaside_routing::NullRoute)))
/// # ).unwrap();
/// ```
pub struct Plan<'a, E> {
    id: u64,
    options: ReadOptions,
    nodes: Vec<Node<'a, E>>,
}

struct Node<'a, E> {
    depends_on: Vec<usize>,
    options: ReadOptions,
    keys: KeysOf<'a, E>,
    load: Load<'a, E>,
}

/// Why a node has no values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeError<E> {
    /// Its values could not be read.
    Read(ReadError<E>),
    /// Its keys could not be derived from the values that it depends on.
    Keys(E),
    /// A node that it depends on has no values.
    Dependency(NodeId),
}

impl<E: std::error::Error + 'static> std::error::Error for NodeError<E> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            NodeError::Read(error) => Some(error),
            NodeError::Keys(error) => Some(error),
            NodeError::Dependency(_) => None,
        }
    }
}

impl<E: fmt::Display> fmt::Display for NodeError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NodeError::Read(error) => error.fmt(f),
            NodeError::Keys(error) => write!(f, "cannot derive the keys of the node: {error}"),
            NodeError::Dependency(node) => write!(f, "node {}, on which this one depends, has failed", node.index),
        }
    }
}

/// Why a plan was not run, or not to its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlanError {
    /// These nodes depend on each other, or on nodes that do. Nothing was sent.
    Cycle(Vec<NodeId>),
    /// The client's deadline has passed. Leases that were held are released.
    DeadlineExceeded,
}

impl std::error::Error for PlanError {}

impl fmt::Display for PlanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PlanError::Cycle(nodes) => {
                let nodes: Vec<String> = nodes.iter().map(|node| node.index.to_string()).collect();
                write!(f, "nodes {} of the plan depend on each other", nodes.join(", "))
            }
            PlanError::DeadlineExceeded => write!(f, "the deadline has passed"),
        }
    }
}

impl<'a, E> Plan<'a, E> {
    /// A plan without nodes, whose values are read with `options`.
    pub fn new(options: ReadOptions) -> Plan<'a, E> {
        Plan { id: PLANS.fetch_add(1, Ordering::Relaxed), options, nodes: Vec::new() }
    }

    /// Adds a node. `keys` gets the values of `depends_on`, and returns the keys to read; if there are none, the node
    /// costs no round trip. `load` gets those that must come from the database, and returns their values in that
    /// order, as [`Client::read_many`] demands.
    ///
    /// # Panics
    /// If a node that it depends on is of another plan.
    pub fn node<L>(
        &mut self,
        depends_on: impl IntoIterator<Item = NodeId>,
        keys: impl FnOnce(&NodeValues<'_, E>) -> Result<Vec<Bytes>, E> + Send + 'a,
        mut load: impl FnMut(Vec<Bytes>) -> L + Send + 'a,
    ) -> NodeId
    where
        L: Future<Output = Result<Vec<Encoded>, E>> + Send + 'a,
    {
        let depends_on = depends_on.into_iter().map(|node| self.index(node)).collect();
        let load: Load<'a, E> = Box::new(move |keys| Box::pin(load(keys)));
        self.nodes.push(Node { depends_on, options: self.options, keys: Box::new(keys), load });
        NodeId { plan: self.id, index: self.nodes.len() - 1 }
    }

    /// Makes `node` depend on another one, that may have been added after it.
    ///
    /// # Panics
    /// If one of them is of another plan.
    pub fn add_dependency(&mut self, node: NodeId, depends_on: NodeId) {
        let (node, depends_on) = (self.index(node), self.index(depends_on));
        self.nodes[node].depends_on.push(depends_on);
    }

    /// Reads `node` by options of its own, in place of those of the plan: its values may expire sooner, say.
    ///
    /// # Panics
    /// If it is of another plan.
    pub fn set_options(&mut self, node: NodeId, options: ReadOptions) {
        let node = self.index(node);
        self.nodes[node].options = options;
    }

    fn index(&self, node: NodeId) -> usize {
        assert_eq!(node.plan, self.id, "the node is of this plan");
        node.index
    }

    /// The nodes that cannot run because they depend on each other.
    fn find_cycle(&self) -> Vec<usize> {
        let (mut missing, dependents) = self.edges();
        let mut ready: Vec<usize> = (0..self.nodes.len()).filter(|&node| missing[node] == 0).collect();
        while let Some(node) = ready.pop() {
            for &dependent in &dependents[node] {
                missing[dependent] -= 1;
                if missing[dependent] == 0 {
                    ready.push(dependent);
                }
            }
        }
        (0..self.nodes.len()).filter(|&node| missing[node] > 0).collect()
    }

    /// For each node the number of nodes that it depends on, and those that depend on it.
    fn edges(&self) -> (Vec<usize>, Vec<Vec<usize>>) {
        let mut dependents = vec![Vec::new(); self.nodes.len()];
        for (node, Node { depends_on, .. }) in self.nodes.iter().enumerate() {
            depends_on.iter().for_each(|&other| dependents[other].push(node));
        }
        (self.nodes.iter().map(|node| node.depends_on.len()).collect(), dependents)
    }
}

impl<E> fmt::Debug for Plan<'_, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Plan").field("nodes", &self.nodes.len()).finish_non_exhaustive()
    }
}

/// The values on which a node depends.
pub struct NodeValues<'r, E> {
    plan: u64,
    results: &'r [Option<NodeResult<E>>],
    depends_on: &'r [usize],
}

impl<E> NodeValues<'_, E> {
    /// The values of a node, in the order of its keys.
    ///
    /// # Panics
    /// If the node whose keys are derived does not depend on `node`.
    pub fn of(&self, node: NodeId) -> &[Value] {
        assert!(node.plan == self.plan && self.depends_on.contains(&node.index), "not a dependency: {node:?}");
        match &self.results[node.index] {
            Some(Ok(values)) => values,
            _ => unreachable!("a node begins when all that it depends on have values"),
        }
    }
}

/// The results of all nodes of a plan.
#[derive(Debug)]
pub struct PlanResults<E> {
    plan: u64,
    results: Vec<NodeResult<E>>,
    statistics: ClientStatistics,
}

impl<E> PlanResults<E> {
    /// The values of a node, in the order of its keys.
    ///
    /// # Panics
    /// If the node is of another plan.
    pub fn of(&self, node: NodeId) -> &Result<Vec<Value>, NodeError<E>> {
        assert_eq!(node.plan, self.plan, "the node is of this plan");
        &self.results[node.index]
    }

    /// What this run did. Its fills count among the round trips.
    pub fn statistics(&self) -> ClientStatistics {
        self.statistics
    }
}

impl Client {
    /// Reads all values of a plan.
    pub async fn run_plan<E: Send>(&self, plan: Plan<'_, E>) -> Result<PlanResults<E>, PlanError> {
        let cycle = plan.find_cycle();
        if !cycle.is_empty() {
            let node = |index| NodeId { plan: plan.id, index };
            return Err(PlanError::Cycle(cycle.into_iter().map(node).collect()));
        }
        let counted = self.with_own_statistics();
        let client = if self.batcher.is_some() { counted.clone() } else { counted.clone().with_batching() };
        let id = plan.id;
        let results = self.limit(client.run_nodes(plan)).await.ok_or(PlanError::DeadlineExceeded)?;
        Ok(PlanResults { plan: id, results, statistics: counted.statistics() })
    }

    async fn run_nodes<E>(&self, plan: Plan<'_, E>) -> Vec<NodeResult<E>> {
        let (mut missing, dependents) = plan.edges();
        let id = plan.id;
        let mut waiting: Vec<_> = plan.nodes.into_iter().map(Some).collect();
        let mut results: Vec<Option<NodeResult<E>>> = waiting.iter().map(|_| None).collect();
        let mut ready: Vec<usize> = (0..waiting.len()).filter(|&node| missing[node] == 0).collect();
        let (mut running, mut filling) = (FuturesUnordered::new(), FuturesUnordered::new());
        loop {
            for index in std::mem::take(&mut ready) {
                let Node { depends_on, options, keys, load } = waiting[index].take().expect("a node runs once");
                let failed = depends_on.iter().find(|&&other| matches!(results[other], Some(Err(_))));
                let keys = match failed {
                    Some(&failed) => Err(NodeError::Dependency(NodeId { plan: id, index: failed })),
                    None => keys(&NodeValues { plan: id, results: &results, depends_on: &depends_on })
                        .map_err(NodeError::Keys),
                };
                running.push(async move { (index, self.run_node(keys, &options, load).await) });
            }
            // Fills go on meanwhile; the end of one is no event here.
            let (index, result) = tokio::select! {
                biased;
                Some(ended) = running.next() => ended,
                Some(()) = filling.next() => continue,
                else => break,
            };
            results[index] = Some(result.map(|(values, fills)| {
                filling.extend(fills.map(|fills| self.send_fills(fills)));
                values
            }));
            for &dependent in &dependents[index] {
                missing[dependent] -= 1;
                if missing[dependent] == 0 {
                    ready.push(dependent);
                }
            }
        }
        results.into_iter().map(|result| result.expect("without a cycle every node runs")).collect()
    }

    async fn run_node<E>(
        &self,
        keys: Result<Vec<Bytes>, NodeError<E>>,
        options: &ReadOptions,
        load: Load<'_, E>,
    ) -> Result<(Vec<Value>, Option<Fills>), NodeError<E>> {
        self.read_unfilled(&keys?, options, load).await.map_err(NodeError::Read)
    }
}
