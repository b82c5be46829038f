//! Changes how long values live on their way to one child.
//!
//! | verb | effect |
//! |---|---|
//! | set add replace append prepend cas lease-set touch gat gats | exptime replaced (`set`) or shortened (`min`) |
//! | the meta commands of these verbs | the same in their flags; an `ms` without `T` is given one |
//! | get gets lease-get metaget delete incr decr | handed on as they are |
//!
//! An exptime of 0 is "never", so `min` takes it for the longest, and as a limit it limits nothing. A negative one is
//! "expired already" and stays under `min`. An absolute one (above 30 days, a Unix time) is above every limit in
//! seconds; a value about to expire by the wall clock may so live on for the limit. Routing has no clock to know.

use crate::{Batch, BoxFuture, Context, Outcomes, Route, meta::modify_exptimes};
use bytes::Bytes;
use lookaside_protocol::Operation;
use std::sync::Arc;

/// What happens to an exptime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExptimeAction {
    /// Replaced, whatever it was.
    Set,
    /// Replaced where it is longer.
    Min,
}

/// One child, whose values live otherwise than the client said.
pub struct ModifyExptimeRoute {
    target: Arc<dyn Route>,
    exptime: i64,
    action: ExptimeAction,
}

impl ModifyExptimeRoute {
    /// Requests go to `target` with their exptime changed by `action` to `exptime`, in seconds.
    pub fn new(target: Arc<dyn Route>, exptime: i64, action: ExptimeAction) -> Self {
        ModifyExptimeRoute { target, exptime, action }
    }

    fn modify(&self, operation: &mut Operation<Bytes>) {
        match operation {
            Operation::Store { exptime, .. }
            | Operation::LeaseSet { exptime, .. }
            | Operation::Touch { exptime }
            | Operation::GetAndTouch { exptime, .. } => *exptime = self.modified(*exptime),
            Operation::Meta(meta) => modify_exptimes(meta, |exptime| self.modified(exptime)),
            Operation::Get { .. } | Operation::LeaseGet | Operation::Delete { .. } | Operation::Arithmetic { .. } => {}
        }
    }

    fn modified(&self, exptime: i64) -> i64 {
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
