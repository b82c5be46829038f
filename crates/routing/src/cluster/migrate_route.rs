//! Moves from one set of servers to another, at a time that all routers know.
//!
//! ```text
//!            start          start + interval     start + 2 intervals
//!   ----------|--------------------|--------------------|------------
//!   all  from |  from              |  to                |  to
//!   del  from |  from and to       |  from and to       |  to
//! ```
//!
//! | verb | effect |
//! |---|---|
//! | delete | to both around the switch, both awaited: an error if either failed, `DELETED` if either held the key |
//! | all others | to `from`, and from `start + interval` on to `to`; its outcome, including failures |
//!
//! Routers need not switch in the same second, since deletes reach both sides. Routers whose clocks differ by more than
//! an interval may read deleted values.
//!
//! Absent on purpose: copying. The new servers fill by misses, or by a `WarmUpRoute` in place of `to`.

use crate::{
    AllSyncRoute, Batch, BoxFuture, Context, Outcomes, Route,
    cluster::modify_exptime_route::EXPTIME_RELATIVE_S_MAX,
    configuration::{ConfigurationError, Handle, Keys, Object, Parser, RouteConfig, RouteType, TreeBuilder},
    environment::Clock,
    outcome::verb,
    split::split,
    verb::VerbKind,
};
use std::sync::Arc;

/// mcrouter's default for `interval`, in seconds.
pub const MIGRATE_INTERVAL_S: u32 = 3_600;

/// Two children, and the time of the switch between them.
pub struct MigrateRoute {
    /// `from`, `to`, and both.
    children: [Arc<dyn Route>; 3],
    start_unix_s: u64,
    interval_s: u32,
    clock: Arc<dyn Clock>,
}

const FROM: usize = 0;
const TO: usize = 1;
const BOTH: usize = 2;

impl MigrateRoute {
    /// Moves from `from` to `to`, starting at `start_unix_s` in seconds since 1970.
    pub fn new(
        from: Arc<dyn Route>,
        to: Arc<dyn Route>,
        start_unix_s: u64,
        interval_s: u32,
        clock: Arc<dyn Clock>,
    ) -> Self {
        let both = Arc::new(AllSyncRoute::new(vec![from.clone(), to.clone()]));
        MigrateRoute { children: [from, to, both], start_unix_s, interval_s, clock }
    }

    /// The current child for deletes, and for all other verbs.
    fn choose(&self) -> (usize, usize) {
        let (now, interval) = (self.clock.unix_s(), u64::from(self.interval_s));
        match now.checked_sub(self.start_unix_s) {
            None => (FROM, FROM),
            Some(since) if since < interval => (BOTH, FROM),
            Some(since) if since < 2 * interval => (BOTH, TO),
            Some(_) => (TO, TO),
        }
    }
}

impl Route for MigrateRoute {
    fn route<'a>(&'a self, batch: Batch, context: &'a Context) -> BoxFuture<'a, Outcomes> {
        let (of_delete, of_others) = self.choose();
        if of_delete == of_others {
            return self.children[of_others].route(batch, context);
        }
        // A mixed batch is executed in runs, so that a get after a delete of the same key misses.
        match batch.iter().all(|request| verb(request).kind() != VerbKind::Delete) {
            true => self.children[of_others].route(batch, context),
            false => Box::pin(async move {
                let mut outcomes = Outcomes::with_capacity(batch.len());
                let mut rest = batch.into_iter().peekable();
                while let Some(first) = rest.next() {
                    let is_delete = verb(&first).kind() == VerbKind::Delete;
                    let mut run = vec![first];
                    while let Some(next) = rest.next_if(|next| (verb(next).kind() == VerbKind::Delete) == is_delete) {
                        run.push(next);
                    }
                    let child = if is_delete { of_delete } else { of_others };
                    outcomes.extend(split(&self.children, run, context, |_| child).await);
                }
                outcomes
            }),
        }
    }
}

/// The end of the year 9999.
pub(crate) const UNIX_S_MAX: i64 = 253_402_300_799;

pub(crate) const TYPE: RouteType = RouteType::new("MigrateRoute", parse);

#[derive(Debug, PartialEq)]
struct Config {
    from: Handle,
    to: Handle,
    start_unix_s: u64,
    interval_s: u32,
}

fn parse<'a>(object: &Object<'a>, parser: &mut Parser<'a>) -> Result<Handle, ConfigurationError> {
    object.check(&Keys::known(&["type", "name", "from", "to", "start_time", "interval"]))?;
    let start = object.require("start_time", "when the migration begins, in seconds since 1970")?;
    let interval_default_s = MIGRATE_INTERVAL_S.into();
    Ok(Handle::route(Config {
        start_unix_s: start.integer("seconds since 1970", 0, UNIX_S_MAX)? as u64,
        interval_s: object.integer_or("interval", "seconds", EXPTIME_RELATIVE_S_MAX, interval_default_s)? as u32,
        from: parser.parse_required(object, "from")?,
        to: parser.parse_required(object, "to")?,
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
        let (from, to) = (tree.build(&self.from), tree.build(&self.to));
        let clock = tree.environment().clock.clone();
        Arc::new(MigrateRoute::new(from, to, self.start_unix_s, self.interval_s, clock))
    }
}
