//! One place of a pool: its server, and the pool's spares, one of which serves while the server is dead for long (§3.3 of the
//! paper: the gutter bridges the minutes until "an automated remediation system" has replaced a host).
//!
//! | verb | sent to | answer |
//! |---|---|---|
//! | delete | the server and all spares, whoever serves | an error if any failed; kept for later if any is; else as `AllSyncRoute` |
//! | all else | who serves the place ([`Slot`]) | that one's |
//!
//! **Every delete goes everywhere, always**, also while nothing is dead. For routers do not agree on who is dead: one may
//! still read and fill the server while another reads and fills a spare, and each chooses for itself. As all of them have
//! every delete acknowledged by, or kept for, the server and each spare, nobody ever reads what was deleted, whenever he
//! changes his mind, and no router needs to know what another thinks. A server that returns, and a spare that was dead itself,
//! is in the position of any server: not read before it has carried out what is kept for it.
//!
//! | two routers, the server cut off from A alone | A reads the spare | B reads the server |
//! |---|---|---|
//! | delete through A | deleted at the spare | kept or passed on by B, then acknowledged (the spool) |
//! | delete through B | deleted at the spare | deleted at the server |
//!
//! A lease token is good at the server that handed it out and refused by all others, so a fill does not follow a change of
//! who serves. A plain `set` without a delete is seen by those who read the same server: as beside a gutter.
//!
//! Absent on purpose: deciding who serves. The router does, from what it knows of the servers' health.

use crate::{
    Batch, BoxFuture, Context, Failure, Kind, Outcome, Outcomes, Route, Serving, Slot,
    outcome::{is_error, verb, worse},
    split::{Part, ask_parts},
};
use std::sync::Arc;

/// A place of a pool that has spares.
pub struct SpareRoute {
    /// The server, and behind it the spares.
    children: Vec<Arc<dyn Route>>,
    slot: Arc<Slot>,
}

impl SpareRoute {
    /// `server` and its pool's `spares`, one of which serves as `slot` says.
    pub fn new(server: Arc<dyn Route>, spares: Vec<Arc<dyn Route>>, slot: Arc<Slot>) -> Self {
        let children = std::iter::once(server).chain(spares).collect();
        SpareRoute { children, slot }
    }

    /// The index of the child that serves.
    fn serving(&self) -> usize {
        match self.slot.serving() {
            Serving::Own => 0,
            // A slot that was made for more spares than there are is served by the server.
            Serving::Spare(spare) => Some(spare + 1).filter(|&child| child < self.children.len()).unwrap_or(0),
        }
    }

    /// The whole batch, in its order, to who serves; its deletes to all others.
    async fn delete_everywhere(&self, serving: usize, batch: Batch, context: &Context) -> Outcomes {
        let is_delete: Vec<bool> = batch.iter().map(|request| verb(request).kind() == Kind::Delete).collect();
        let deletes: Batch = batch
            .iter()
            .zip(&is_delete)
            .filter(|(_, is_delete)| **is_delete)
            .map(|(request, _)| request.clone())
            .collect();
        let mut parts = vec![Part { child: serving, batch }];
        let others = (0..self.children.len()).filter(|&child| child != serving);
        parts.extend(others.map(|child| Part { child, batch: deletes.clone() }));
        let mut answers = ask_parts(&self.children, parts, context).await.into_iter();
        let mut outcomes: Outcomes = answers.next().expect("who serves was asked").collect();
        for others in answers {
            let of_deletes = outcomes.iter_mut().zip(&is_delete).filter(|(_, is_delete)| **is_delete);
            for ((outcome, _), other) in of_deletes.zip(others) {
                let one = std::mem::replace(outcome, Err(Failure::Tko));
                *outcome = merge_deletes(one, other);
            }
        }
        outcomes
    }
}

/// The answer to a delete that two servers were asked. That one of them has it kept must be known above: a failover has
/// others to delete at then.
fn merge_deletes(one: Outcome, other: Outcome) -> Outcome {
    let is_failed = |outcome: &Outcome| is_error(outcome) && *outcome != Err(Failure::Spooled);
    let is_spooled = [&one, &other].contains(&&Err(Failure::Spooled));
    match is_failed(&one) || is_failed(&other) {
        false if is_spooled => Err(Failure::Spooled),
        _ => worse(one, other),
    }
}

impl Route for SpareRoute {
    fn route<'a>(&'a self, batch: Batch, context: &'a Context) -> BoxFuture<'a, Outcomes> {
        let serving = self.serving();
        match batch.iter().any(|request| verb(request).kind() == Kind::Delete) {
            true => Box::pin(self.delete_everywhere(serving, batch, context)),
            false => self.children[serving].route(batch, context),
        }
    }
}
