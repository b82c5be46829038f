//! Changes the exptimes of requests to one child.
//!
//! | verb | effect |
//! |---|---|
//! | set add replace append prepend cas lease-set touch gat gats | exptime replaced (`set`) or limited (`min`) |
//! | the meta commands of these verbs | the same in their flags; an `ms` without `T` gets one |
//! | get gets lease-get metaget delete incr decr | unchanged |
//!
//! For `min`, 0 ("never") is the longest exptime, and limits nothing as a limit. A negative one ("already expired")
//! stays, and that of a lease-set stays for `set`, too: it releases a lease, and must not store its empty value. An
//! absolute one (above 30 days: a Unix time) is above every limit, so a value that is about to expire by the wall clock
//! may live on for the limit: routing has no clock to compare.

use crate::{
    Batch, BoxFuture, Context, Outcomes, Route,
    configuration::{ConfigurationError, Handle, Keys, Object, Parser, RouteConfig, RouteType, TreeBuilder},
    meta::modify_exptimes,
};
use bytes::Bytes;
use lookaside_protocol::Operation;
use std::sync::Arc;

/// 30 days in seconds: in the protocol a larger exptime is a Unix time.
pub(crate) const EXPTIME_RELATIVE_S_MAX: i64 = 2_592_000;

/// The change of an exptime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExptimeAction {
    /// Always replaced.
    Set,
    /// Replaced if it is longer.
    Min,
}

/// A child whose requests have changed exptimes.
pub struct ModifyExptimeRoute {
    target: Arc<dyn Route>,
    exptime: i64,
    action: ExptimeAction,
}

impl ModifyExptimeRoute {
    /// Sends requests to `target` with their exptime changed by `action` to `exptime`, in seconds.
    pub fn new(target: Arc<dyn Route>, exptime: i64, action: ExptimeAction) -> Self {
        ModifyExptimeRoute { target, exptime, action }
    }

    fn modify(&self, operation: &mut Operation<Bytes>) {
        match operation {
            Operation::LeaseSet { exptime: ..0, .. } => {}
            Operation::Store { exptime, .. }
            | Operation::LeaseSet { exptime, .. }
            | Operation::Touch { exptime }
            | Operation::GetAndTouch { exptime, .. } => *exptime = self.new_exptime(*exptime),
            Operation::Meta(meta) => modify_exptimes(meta, |exptime| self.new_exptime(exptime)),
            Operation::Get { .. } | Operation::LeaseGet | Operation::Delete { .. } | Operation::Arithmetic { .. } => {}
        }
    }

    fn new_exptime(&self, exptime: i64) -> i64 {
        match self.action {
            ExptimeAction::Set => self.exptime,
            ExptimeAction::Min if self.exptime == 0 => exptime,
            ExptimeAction::Min if exptime == 0 => self.exptime,
            ExptimeAction::Min => exptime.min(self.exptime),
        }
    }
}

impl Route for ModifyExptimeRoute {
    fn route<'a>(&'a self, mut batch: Batch, context: &'a Context) -> BoxFuture<'a, Outcomes> {
        for request in &mut batch {
            self.modify(&mut request.operation);
        }
        self.target.route(batch, context)
    }
}

pub(crate) const TYPE: RouteType = RouteType::new("ModifyExptimeRoute", parse);

#[derive(Debug, PartialEq)]
struct Config {
    target: Handle,
    exptime_s: i64,
    action: ExptimeAction,
}

fn parse<'a>(object: &Object<'a>, parser: &mut Parser<'a>) -> Result<Handle, ConfigurationError> {
    object.check(&Keys::known(&["type", "name", "target", "exptime", "action"]))?;
    let action = match object.get("action") {
        None => ExptimeAction::Set,
        Some(node) => match node.string("\"set\" or \"min\"")? {
            "set" => ExptimeAction::Set,
            "min" => ExptimeAction::Min,
            other => return Err(node.error(format!("no action is named {other:?}: expected \"set\" or \"min\""))),
        },
    };
    Ok(Handle::route(Config {
        target: parser.parse_required(object, "target")?,
        exptime_s: object.require("exptime", "seconds")?.integer("seconds", -1, EXPTIME_RELATIVE_S_MAX)?,
        action,
    }))
}

impl RouteConfig for Config {
    fn name(&self) -> &'static str {
        TYPE.name()
    }

    fn passes_reads(&self) -> bool {
        true
    }

    fn build(&self, tree: &mut dyn TreeBuilder) -> Arc<dyn Route> {
        Arc::new(ModifyExptimeRoute::new(tree.build(&self.target), self.exptime_s, self.action))
    }
}
