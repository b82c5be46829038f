//! A server of a pool and the pool's spares, one of which serves while the server is unreadable for long (§3.3 of the
//! paper: the gutter bridges the minutes until "an automated remediation system" has replaced a host).
//!
//! | verb | sent to | reply |
//! |---|---|---|
//! | delete | the server and all spares, whichever serves | an error if any failed; spooled if any is; else as `AllSyncRoute` |
//! | all others | the one that serves the [`Slot`] | its reply |
//!
//! **Every delete is always sent to all**, also while every server is readable: one router may still read and fill the
//! server while another reads and fills a spare. Every router delivers or spools each delete to the server and all its
//! spares, so no router reads a deleted value, and routers need not agree. A server or a spare that returns is not read
//! before its spooled deletes are replayed.
//!
//! | two routers, the server cut off from A alone | A reads the spare | B reads the server |
//! |---|---|---|
//! | delete through A | deleted at the spare | spooled or forwarded by B, then acknowledged (the spool) |
//! | delete through B | deleted at the spare | deleted at the server |
//!
//! A lease token is refused by all servers but its issuer, so a fill does not follow a change of the serving server. A
//! plain `set` without a delete is visible only to routers that read the same server, as with a gutter.
//!
//! Absent on purpose: choosing the server that serves. The router does that, by the health of the servers.

use crate::{
    Batch, BoxFuture, Context, Failure, Outcomes, Route, Serving, Slot, VerbKind,
    outcome::{merge_deletes, verb},
    split::{Part, route_parts},
};
use std::sync::Arc;

/// A server of a pool with spares.
pub struct SpareRoute {
    /// The server, then the spares.
    children: Vec<Arc<dyn Route>>,
    slot: Arc<Slot>,
}

impl SpareRoute {
    /// `server` and its pool's `spares`; `slot` names the one that serves.
    pub fn new(server: Arc<dyn Route>, spares: Vec<Arc<dyn Route>>, slot: Arc<Slot>) -> Self {
        let children = std::iter::once(server).chain(spares).collect();
        SpareRoute { children, slot }
    }

    fn serving(&self) -> usize {
        match self.slot.serving() {
            Serving::Own => 0,
            // The slot may be of a configuration with more spares.
            Serving::Spare(spare) => Some(spare + 1).filter(|&child| child < self.children.len()).unwrap_or(0),
        }
    }

    /// Sends the whole batch to the child that serves, and its deletes to all others.
    async fn delete_everywhere(&self, serving: usize, batch: Batch, context: &Context) -> Outcomes {
        let is_delete: Vec<bool> = batch.iter().map(|request| verb(request).kind() == VerbKind::Delete).collect();
        let deletes: Batch = batch
            .iter()
            .zip(&is_delete)
            .filter(|(_, is_delete)| **is_delete)
            .map(|(request, _)| request.clone())
            .collect();
        let mut parts = vec![Part { child: serving, batch }];
        let others = (0..self.children.len()).filter(|&child| child != serving);
        parts.extend(others.map(|child| Part { child, batch: deletes.clone() }));
        let mut of_children = route_parts(&self.children, parts, context).await.into_iter();
        let mut outcomes: Outcomes = of_children.next().expect("the child that serves was asked").collect();
        for others in of_children {
            let of_deletes = outcomes.iter_mut().zip(&is_delete).filter(|(_, is_delete)| **is_delete);
            for ((outcome, _), other) in of_deletes.zip(others) {
                let one = std::mem::replace(outcome, Err(Failure::ConnectionLost));
                *outcome = merge_deletes(one, other);
            }
        }
        outcomes
    }
}

impl Route for SpareRoute {
    fn route<'a>(&'a self, batch: Batch, context: &'a Context) -> BoxFuture<'a, Outcomes> {
        let serving = self.serving();
        match batch.iter().any(|request| verb(request).kind() == VerbKind::Delete) {
            true => Box::pin(self.delete_everywhere(serving, batch, context)),
            false => self.children[serving].route(batch, context),
        }
    }
}
