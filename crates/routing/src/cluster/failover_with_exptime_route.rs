//! The gutter (§3.3 of the paper): if a server does not reply, a small pool of idle servers takes its place. Values
//! filled there expire soon, since deletes for them may have gone elsewhere.
//!
//! | verb | normal | failover children, after a failure that counts |
//! |---|---|---|
//! | get gets lease-get metaget | asked first | asked in order until one replies |
//! | set add replace append prepend cas lease-set touch gat gats | asked first | the same, the exptime at most `failover_exptime` |
//! | incr decr | asked first | the same |
//! | delete | asked first | all asked; the failure stands (`failover_route.rs` explains why) |

use crate::{
    Batch, BoxFuture, Context, FailoverErrors, Outcomes, Route,
    cluster::{
        failover_route::FailoverRoute,
        modify_exptime_route::{EXPTIME_RELATIVE_S_MAX, ExptimeAction, ModifyExptimeRoute},
        support::{
            failover_options::{FAILOVER_KEYS, FailoverOptions},
            failover_policy::FailoverPolicy,
        },
    },
    configuration::{ConfigurationError, Handle, Keys, Object, Parser, RouteConfig, RouteType, TreeBuilder},
};
use std::sync::Arc;

/// mcrouter's default for `failover_exptime`, in seconds.
pub const FAILOVER_EXPTIME_S: u32 = 60;

/// A normal child, and failover children with short-lived values.
pub struct FailoverWithExptimeRoute {
    inner: FailoverRoute,
}

impl FailoverWithExptimeRoute {
    /// `failover_exptime_s` in seconds: long enough for the gutter to become warm, short enough that a value that
    /// missed its delete expires soon. 0 leaves exptimes unchanged.
    pub fn new(
        normal: Arc<dyn Route>,
        failover: Vec<Arc<dyn Route>>,
        failover_exptime_s: u32,
        errors: FailoverErrors,
    ) -> Self {
        let children = Self::limit_exptimes(normal, failover, failover_exptime_s);
        Self::from_failover(FailoverRoute::by_policy(children, errors, FailoverPolicy::in_order()))
    }

    /// `normal`, then the others with their exptimes limited.
    pub(crate) fn limit_exptimes(
        normal: Arc<dyn Route>,
        failover: Vec<Arc<dyn Route>>,
        failover_exptime_s: u32,
    ) -> Vec<Arc<dyn Route>> {
        let short_lived = |target| {
            Arc::new(ModifyExptimeRoute::new(target, failover_exptime_s.into(), ExptimeAction::Min)) as Arc<dyn Route>
        };
        std::iter::once(normal).chain(failover.into_iter().map(short_lived)).collect()
    }

    /// Wraps a failover over children of [`Self::limit_exptimes`].
    pub(crate) fn from_failover(inner: FailoverRoute) -> Self {
        FailoverWithExptimeRoute { inner }
    }
}

impl Route for FailoverWithExptimeRoute {
    fn route<'a>(&'a self, batch: Batch, context: &'a Context) -> BoxFuture<'a, Outcomes> {
        self.inner.route(batch, context)
    }
}

pub(crate) const TYPE: RouteType = RouteType::new("FailoverWithExptimeRoute", parse);

#[derive(Debug, PartialEq)]
struct Config {
    /// The normal child first.
    children: Vec<Handle>,
    exptime_s: u32,
    options: FailoverOptions,
}

fn parse<'a>(object: &Object<'a>, parser: &mut Parser<'a>) -> Result<Handle, ConfigurationError> {
    object.check(&Keys::known(&["type", "name", "normal", "failover", "failover_exptime"]).and(FAILOVER_KEYS))?;
    let exptime_s =
        object.integer_or("failover_exptime", "seconds", EXPTIME_RELATIVE_S_MAX, FAILOVER_EXPTIME_S.into())? as u32;
    let mut children = vec![parser.parse_required(object, "normal")?];
    children.extend(parser.children(object, "failover")?);
    let options = FailoverOptions::parse(object, &children, parser)?;
    Ok(Handle::route(Config { children, exptime_s, options }))
}

impl RouteConfig for Config {
    fn name(&self) -> &'static str {
        TYPE.name()
    }

    fn mcrouter_name(&self) -> String {
        "failover".to_owned()
    }

    /// With a tag the key is another one at the further children.
    fn passes_reads(&self) -> bool {
        !self.options.has_tag
    }

    fn build(&self, tree: &mut dyn TreeBuilder) -> Arc<dyn Route> {
        let mut children = tree.build_all(&self.children);
        let normal = children.remove(0);
        let children = FailoverWithExptimeRoute::limit_exptimes(normal, children, self.exptime_s);
        let inner = FailoverRoute::with_options(children, &self.options, tree.environment());
        Arc::new(FailoverWithExptimeRoute::from_failover(inner))
    }
}
