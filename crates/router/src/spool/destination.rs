//! The spool in a tree of routes: its destinations spool failed deletes, its root replies to them (mcrouter:
//! `AsynclogRoute`).
//!
//! | | destination | root |
//! |---|---|---|
//! | delete (`delete`, `md`, binary) without a reply, or answered with `SERVER_ERROR`: it was not carried out | spooled, [`Failure::Spooled`] | `NOT_FOUND`, like mcrouter |
//! | delete that a router in the place of a server has no route for | that `SERVER_ERROR`: it would never apply it, and can have no value | the same |
//! | delete that could not be spooled, or was refused because of a limit | the failure | the failure |
//! | delete to a fenced server | spooled without asking the server | `NOT_FOUND` |
//! | everything else | sent to the server; if it is fenced, [`Failure::Tko`] | unchanged |
//!
//! In between, a route with further servers (a failover) sends the delete to them too, because a spooled delete is not
//! yet applied.

use super::record::Deletion;
use super::{ConfiguredServer, Spool};
use bytes::Bytes;
use lookaside_protocol::{ErrorReply, Reply, Request};
use lookaside_routing::{
    Address, Batch, BoxFuture, Context, Destination, Failure, NullRoute, Outcome, Outcomes, Route, TkoReason, Verb,
    is_no_route,
};
use std::sync::Arc;

/// A destination that spools the deletes that its server does not answer.
pub(crate) struct SpoolingDestination {
    inner: Arc<dyn Destination>,
    server: ConfiguredServer,
    spool: Arc<Spool>,
}

impl SpoolingDestination {
    pub(super) fn new(inner: Arc<dyn Destination>, server: ConfiguredServer, spool: Arc<Spool>) -> Self {
        SpoolingDestination { inner, server, spool }
    }

    async fn send_or_spool(&self, batch: Batch) -> Outcomes {
        let deletes: Vec<_> = with_indexes(&batch).filter(|(_, request)| is_delete(request)).collect();
        let mut outcomes = self.inner.send(batch).await;
        let failed: Vec<_> = deletes.into_iter().filter(|(at, _)| must_spool(&outcomes[*at])).collect();
        self.spool(failed, &mut outcomes).await;
        outcomes
    }

    /// Spools all deletes. The rest is sent first: if the server is unfenced meanwhile, a delete that comes last is
    /// always correct.
    async fn spool_deletes(&self, batch: Batch) -> Outcomes {
        let mut outcomes: Outcomes = vec![Err(Failure::Tko(TkoReason::Fenced)); batch.len()];
        let (deletes, rest): (Vec<_>, Vec<_>) = with_indexes(&batch).partition(|(_, request)| is_delete(request));
        let (indexes, rest): (Vec<_>, Batch) = rest.into_iter().unzip();
        for (at, outcome) in indexes.into_iter().zip(self.inner.send(rest).await) {
            outcomes[at] = outcome;
        }
        self.spool(deletes, &mut outcomes).await;
        outcomes
    }

    /// Spools `failed` and replaces their outcomes.
    async fn spool(&self, failed: Vec<(usize, Request<Bytes>)>, outcomes: &mut Outcomes) {
        let deletions: Vec<_> = failed.iter().filter_map(|(_, request)| Deletion::of(request)).collect();
        if deletions.is_empty() || self.spool.append(&self.server.log, deletions).await.is_err() {
            return;
        }
        for (at, _) in failed {
            outcomes[at] = Err(Failure::Spooled);
        }
    }
}

fn with_indexes(batch: &Batch) -> impl Iterator<Item = (usize, Request<Bytes>)> {
    batch.iter().cloned().enumerate()
}

fn is_delete(request: &Request<Bytes>) -> bool {
    Verb::of(&request.operation) == Verb::Delete
}

/// Whether a delete with this outcome may not have been applied and must be spooled.
fn must_spool(outcome: &Outcome) -> bool {
    match outcome {
        Ok(Reply::Error(ErrorReply::Server(why))) => !is_no_route(why),
        Ok(_)
        | Err(
            Failure::Busy
            | Failure::TooManyPending { .. }
            | Failure::NoRoute(_)
            | Failure::NoTree
            | Failure::Refused { .. }
            | Failure::Spooled,
        ) => false,
        Err(
            Failure::Tko(_)
            | Failure::ConnectFailed
            | Failure::ConnectTimedOut
            | Failure::TimedOut
            | Failure::QueueTimedOut
            | Failure::ConnectionLost
            | Failure::ReadFailed(_)
            | Failure::Malformed
            | Failure::DatagramLost { .. },
        ) => true,
        Err(Failure::OfServer { failure, .. }) => must_spool(&Err((**failure).clone())),
    }
}

impl Destination for SpoolingDestination {
    fn send(&self, batch: Batch) -> BoxFuture<'_, Outcomes> {
        match batch.iter().any(is_delete) {
            false => self.inner.send(batch),
            true if self.server.log.is_fenced() => Box::pin(self.spool_deletes(batch)),
            true => Box::pin(self.send_or_spool(batch)),
        }
    }

    fn address(&self) -> &Address {
        self.inner.address()
    }
}

pub(crate) struct SpoolingRoot(pub(crate) Arc<dyn Route>);

impl SpoolingRoot {
    async fn reply(&self, batch: Batch, context: &Context) -> Outcomes {
        let deletes: Vec<_> = with_indexes(&batch).filter(|(_, request)| is_delete(request)).collect();
        let mut outcomes = self.0.route(batch, context).await;
        for (at, request) in deletes {
            if outcomes[at] == Err(Failure::Spooled) {
                outcomes[at] = NullRoute.route(vec![request], context).await.remove(0);
            }
        }
        outcomes
    }
}

impl Route for SpoolingRoot {
    fn route<'a>(&'a self, batch: Batch, context: &'a Context) -> BoxFuture<'a, Outcomes> {
        match batch.iter().any(is_delete) {
            false => self.0.route(batch, context),
            true => Box::pin(self.reply(batch, context)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lookaside_routing::{NO_POLICY, NO_ROUTE, NO_TREE};

    #[test]
    fn a_delete_is_spooled_after_an_error_of_the_server_unless_nothing_reaches_the_key() {
        let refused = |why: &str| Ok(Reply::Error(ErrorReply::Server(Bytes::copy_from_slice(why.as_bytes()))));
        for (why, is_spooled) in [
            ("busy", true),
            ("out of memory", true),
            ("", true),
            (&*Failure::Tko(TkoReason::TimedOut).to_string(), true),
            (&*Failure::ConnectionLost.to_string(), true),
            // Only deletes have no route there: gets may.
            (&*Failure::NoRoute(NO_POLICY.into()).to_string(), true),
            (&*Failure::NoRoute("no pool for the key".into()).to_string(), false),
            (&*Failure::NoTree.to_string(), false),
            (&*format!("{NO_TREE} for key /a/b/k"), false),
            (&*format!("{NO_ROUTE}anything else"), false),
        ] {
            assert_eq!(must_spool(&refused(why)), is_spooled, "{why:?}");
        }
        for reply in [ErrorReply::Unknown, ErrorReply::Client(Bytes::from_static(b"bad key"))] {
            assert!(!must_spool(&Ok(Reply::Error(reply))), "it would be refused again");
        }
    }
}
