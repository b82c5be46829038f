//! Where a tree of routes meets the spool: at its leaves, failed deletes are kept; at its root, they become an answer.
//!
//! | | leaf | root |
//! |---|---|---|
//! | delete (`delete`, `md`, binary) that its server did not answer | kept, then [`Failure::Spooled`] | `NOT_FOUND`, as mcrouter says |
//! | delete that could not be kept, or was refused as too much | the failure | the failure |
//! | delete while the server owes others | kept at once, the server is not asked | `NOT_FOUND` |
//! | all else | the server; while it owes deletes, [`Failure::Tko`] | as it is |
//!
//! In between, a route that has other servers to ask (a failover) asks them: what is kept is not done yet.

use super::Spool;
use super::record::Deletion;
use super::server_log::Server;
use bytes::Bytes;
use lookaside_protocol::Request;
use lookaside_routing::{
    Address, Batch, BoxFuture, Context, Destination, Failure, NullRoute, Outcome, Outcomes, Route, Verb,
};
use std::sync::Arc;

/// A server whose deletes are not lost.
pub(crate) struct SpoolingDestination {
    inner: Arc<dyn Destination>,
    server: Arc<Server>,
    spool: Arc<Spool>,
}

impl SpoolingDestination {
    pub(super) fn new(inner: Arc<dyn Destination>, server: Arc<Server>, spool: Arc<Spool>) -> Self {
        SpoolingDestination { inner, server, spool }
    }

    /// Asks the server, and keeps what it did not answer.
    async fn send_or_keep(&self, batch: Batch) -> Outcomes {
        let deletes: Vec<_> = indexed(&batch).filter(|(_, request)| is_delete(request)).collect();
        let mut outcomes = self.inner.send(batch).await;
        let failed: Vec<_> = deletes.into_iter().filter(|(at, _)| is_to_keep(&outcomes[*at])).collect();
        self.keep(failed, &mut outcomes).await;
        outcomes
    }

    /// Keeps all deletes. The rest goes first: should the server be back meanwhile, a delete that comes last is right in
    /// any case.
    async fn keep_or_refuse(&self, batch: Batch) -> Outcomes {
        let mut outcomes: Outcomes = vec![Err(Failure::Tko); batch.len()];
        let (deletes, rest): (Vec<_>, Vec<_>) = indexed(&batch).partition(|(_, request)| is_delete(request));
        let (places, rest): (Vec<_>, Batch) = rest.into_iter().unzip();
        for (at, outcome) in places.into_iter().zip(self.inner.send(rest).await) {
            outcomes[at] = outcome;
        }
        self.keep(deletes, &mut outcomes).await;
        outcomes
    }

    /// Replaces the outcomes of `failed` once they are kept.
    async fn keep(&self, failed: Vec<(usize, Request<Bytes>)>, outcomes: &mut Outcomes) {
        let deletions: Vec<_> = failed.iter().filter_map(|(_, request)| Deletion::of(request)).collect();
        if deletions.is_empty() || self.spool.keep(&self.server, deletions).await.is_err() {
            return;
        }
        for (at, _) in failed {
            outcomes[at] = Err(Failure::Spooled);
        }
    }
}

fn indexed(batch: &Batch) -> impl Iterator<Item = (usize, Request<Bytes>)> {
    batch.iter().cloned().enumerate()
}

fn is_delete(request: &Request<Bytes>) -> bool {
    Verb::of(&request.operation) == Verb::Delete
}

/// Whether a delete may be undone at its server, with nobody else to see to it.
fn is_to_keep(outcome: &Outcome) -> bool {
    match outcome {
        Ok(_) | Err(Failure::Busy | Failure::NoRoute(_) | Failure::Spooled) => false,
        Err(
            Failure::Tko
            | Failure::ConnectFailed
            | Failure::ConnectTimedOut
            | Failure::TimedOut
            | Failure::ConnectionLost
            | Failure::Malformed,
        ) => true,
    }
}

impl Destination for SpoolingDestination {
    fn send(&self, batch: Batch) -> BoxFuture<'_, Outcomes> {
        match batch.iter().any(is_delete) {
            false => self.inner.send(batch),
            true if self.server.is_fenced() => Box::pin(self.keep_or_refuse(batch)),
            true => Box::pin(self.send_or_keep(batch)),
        }
    }

    fn address(&self) -> &Address {
        self.inner.address()
    }
}

/// The root of a tree whose leaves keep deletes.
pub(crate) struct SpoolingRoot(pub(crate) Arc<dyn Route>);

impl SpoolingRoot {
    async fn reply(&self, batch: Batch, context: &Context) -> Outcomes {
        let deletes: Vec<_> = indexed(&batch).filter(|(_, request)| is_delete(request)).collect();
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
