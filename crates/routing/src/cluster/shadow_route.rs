//! Copies of some requests to another target, whose replies are ignored: to test a server with real traffic.
//!
//! | verb | normal | shadow |
//! |---|---|---|
//! | get gets gat gats metaget set add replace append prepend touch incr decr delete | asked; its outcome is returned | the same, in the background |
//! | lease-get | asked | a `get`: an unused token would make other clients wait |
//! | lease-set cas | asked | a `set`, after the normal target has replied `STORED`: token and CAS unique are not valid at the shadow |
//!
//! Copied are the keys whose hash is in `key_fraction_range`, so a key is always shadowed or never.
//!
//! A copy outlives its caller, but a caller that is dropped before the normal target has accepted a `lease-set` or
//! `cas` leaves none. If the background is full, copies are dropped and counted.

use crate::{
    Batch, BoxFuture, Context, Outcomes, Route, SERVERS_MAX,
    configuration::{ConfigurationError, Handle, Keys, Node, Object, Parser, RouteConfig, RouteType, TreeBuilder},
    environment::Background,
    hash::murmur64a,
    key::routing_key,
    outcome::as_get,
};
use bytes::Bytes;
use lookaside_protocol::{Operation, Reply, Request, StoreMode};
use std::sync::Arc;

/// The part of all keys that is copied: from `start` up to, not including, `end`, in millionths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyFraction {
    /// In millionths of all keys.
    pub start: u32,
    /// In millionths of all keys.
    pub end: u32,
}

impl KeyFraction {
    /// Every key.
    pub const ALL: KeyFraction = KeyFraction { start: 0, end: Self::WHOLE };
    /// One, in millionths.
    pub const WHOLE: u32 = 1_000_000;

    fn contains(self, request: &Request<Bytes>) -> bool {
        let hash = murmur64a(&routing_key(request));
        let millionth = ((u128::from(hash) * u128::from(Self::WHOLE)) >> 64) as u32;
        (self.start..self.end).contains(&millionth)
    }
}

/// A target, and shadows that get copies.
pub struct ShadowRoute {
    normal: Arc<dyn Route>,
    shadows: Vec<(Arc<dyn Route>, KeyFraction)>,
    background: Background,
}

impl ShadowRoute {
    /// Sends requests to `normal`, and copies to each of `shadows`.
    pub fn new(normal: Arc<dyn Route>, shadows: Vec<(Arc<dyn Route>, KeyFraction)>, background: Background) -> Self {
        ShadowRoute { normal, shadows, background }
    }

    fn send_copies(&self, batch: &Batch, context: &Context, copy: impl Fn(&Request<Bytes>) -> Option<Request<Bytes>>) {
        for (shadow, fraction) in &self.shadows {
            let copies: Batch = batch.iter().filter(|request| fraction.contains(request)).filter_map(&copy).collect();
            if !copies.is_empty() {
                let (shadow, context) = (shadow.clone(), context.without_misses());
                self.background.spawn_or_drop(async move { drop(shadow.route(copies, &context).await) });
            }
        }
    }

    async fn route_and_copy_accepted(&self, batch: Batch, context: &Context) -> Outcomes {
        let conditional: Batch = batch.iter().filter(|request| as_plain_set(request).is_some()).cloned().collect();
        let conditional_at: Vec<bool> = batch.iter().map(|request| as_plain_set(request).is_some()).collect();
        let outcomes = self.normal.route(batch, context).await;
        let of_conditional = outcomes.iter().zip(conditional_at).filter(|(_, conditional)| *conditional);
        let accepted: Batch = conditional
            .into_iter()
            .zip(of_conditional)
            .filter(|(_, (outcome, _))| matches!(outcome, Ok(Reply::Stored | Reply::StoredAs(_))))
            .map(|(request, _)| request)
            .collect();
        self.send_copies(&accepted, context, as_plain_set);
        outcomes
    }
}

impl Route for ShadowRoute {
    fn route<'a>(&'a self, batch: Batch, context: &'a Context) -> BoxFuture<'a, Outcomes> {
        self.send_copies(&batch, context, |request| match request.operation {
            Operation::LeaseGet => Some(as_get(request)),
            _ if as_plain_set(request).is_some() => None,
            _ => Some(request.clone()),
        });
        match batch.iter().any(|request| as_plain_set(request).is_some()) {
            true => Box::pin(self.route_and_copy_accepted(batch, context)),
            false => self.normal.route(batch, context),
        }
    }
}

/// A `lease-set` or `cas` without its condition.
fn as_plain_set(request: &Request<Bytes>) -> Option<Request<Bytes>> {
    let (flags, exptime, value) = match &request.operation {
        Operation::LeaseSet { flags, exptime, value, .. }
        | Operation::Store { mode: StoreMode::Cas(_), flags, exptime, value, .. } => (*flags, *exptime, value.clone()),
        _ => return None,
    };
    let operation = Operation::Store { mode: StoreMode::Set, flags, exptime, value, cas: false };
    Some(Request { key: request.key.clone(), operation })
}

pub(crate) const TYPE: RouteType = RouteType::new("ShadowRoute", parse);

#[derive(Debug, PartialEq)]
struct Config {
    normal: Handle,
    shadows: Vec<Shadow>,
}

fn parse<'a>(object: &Object<'a>, parser: &mut Parser<'a>) -> Result<Handle, ConfigurationError> {
    object.check(&Keys::known(&["type", "name", "target", "shadows"]).ignoring(&["shadow_policy"]))?;
    let normal = parser.parse_required(object, "target")?;
    let shadows = parse_shadows(&object.require("shadows", "a list of shadows")?, parser)?;
    Ok(Handle::route(Config { normal, shadows }))
}

impl RouteConfig for Config {
    fn name(&self) -> &'static str {
        TYPE.name()
    }

    fn build(&self, tree: &mut dyn TreeBuilder) -> Arc<dyn Route> {
        let shadows = self.shadows.iter().map(|shadow| (tree.build(&shadow.target), shadow.keys)).collect();
        let normal = tree.build(&self.normal);
        Arc::new(ShadowRoute::new(normal, shadows, tree.environment().background.clone()))
    }
}

/// The description of one shadow.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Shadow {
    pub(crate) target: Handle,
    pub(crate) keys: KeyFraction,
    /// The servers of a pool whose requests are copied: the first and the last index.
    servers: (usize, usize),
}

impl Shadow {
    pub(crate) fn is_of_server(&self, at: usize) -> bool {
        (self.servers.0..=self.servers.1).contains(&at)
    }
}

const SHADOW: Keys = Keys::known(&["target", "index_range", "key_fraction_range"])
    .ignoring(&["validate_replies"])
    .refusing(&["key_fraction_range_rv", "keys_to_shadow", "requests_fraction"]);

fn parse_shadows<'a>(node: &Node<'a>, parser: &mut Parser<'a>) -> Result<Vec<Shadow>, ConfigurationError> {
    let mut shadows = Vec::new();
    for node in node.array("a list of shadows")? {
        let object = node.object("a shadow: an object with a \"target\"")?;
        object.check(&SHADOW)?;
        let target = parser.parse_required(&object, "target")?;
        let servers = object.get("index_range").map_or(Ok((0, SERVERS_MAX)), |node| parse_index_range(&node))?;
        let keys = object.get("key_fraction_range").map_or(Ok(KeyFraction::ALL), |node| parse_fraction_range(&node))?;
        shadows.push(Shadow { target, keys, servers });
    }
    Ok(shadows)
}

/// Parses the `shadows` of a pool; none by default.
pub(crate) fn parse_optional_shadows<'a>(
    object: &Object<'a>,
    parser: &mut Parser<'a>,
) -> Result<Vec<Shadow>, ConfigurationError> {
    object.get("shadows").map_or(Ok(Vec::new()), |node| parse_shadows(&node, parser))
}

const AN_INDEX_RANGE: &str = "the first and the last index of a server, such as [0, 3]";

fn parse_index_range(node: &Node<'_>) -> Result<(usize, usize), ConfigurationError> {
    let index = |node: &Node<'_>| Ok(node.integer("a server's index", 0, SERVERS_MAX as i64)? as usize);
    match &*node.array(AN_INDEX_RANGE)? {
        [first, last] => {
            let range = (index(first)?, index(last)?);
            if range.0 > range.1 {
                Err(node.error(format!("the range is backwards: expected {AN_INDEX_RANGE}")))
            } else {
                Ok(range)
            }
        }
        other => Err(node.error(format!("{} numbers: expected {AN_INDEX_RANGE}", other.len()))),
    }
}

const A_FRACTION_RANGE: &str = "the start and the end of the keys, as parts of 1, such as [0, 0.25]";

fn parse_fraction_range(node: &Node<'_>) -> Result<KeyFraction, ConfigurationError> {
    let millionths = |node: &Node<'_>| {
        let part = node.number("a part of all keys", 0.0, 1.0)?;
        Ok::<u32, ConfigurationError>((part * f64::from(KeyFraction::WHOLE)).round() as u32)
    };
    match &*node.array(A_FRACTION_RANGE)? {
        [start, end] => {
            let range = KeyFraction { start: millionths(start)?, end: millionths(end)? };
            if range.start > range.end {
                Err(node.error(format!("the range is backwards: expected {A_FRACTION_RANGE}")))
            } else {
                Ok(range)
            }
        }
        other => Err(node.error(format!("{} numbers: expected {A_FRACTION_RANGE}", other.len()))),
    }
}
