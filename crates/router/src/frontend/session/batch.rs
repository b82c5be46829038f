//! A batch is routed in chunks whose values the session may hold ([`crate::frontend::flow_control`]). The next chunk is
//! routed when the replies to the one before it have been composed.

use super::Session;
use crate::frontend::flow_control::{COUNTED_BYTES_MIN, may_return_value, value_bytes};
use crate::shared::HeldBytesPermit;
use bytes::Bytes;
use lookaside_protocol::{Operation, Request};
use lookaside_routing::{Batch, Context, Failure, Outcome, Outcomes};
use std::time::Duration;
use std::vec;

pub(super) struct BatchInProgress {
    /// Requests that are not routed yet.
    rest: vec::IntoIter<Request<Bytes>>,
    /// Outcomes of the last chunk that are not written yet.
    pub(super) outcomes: vec::IntoIter<Outcome>,
    permit: Option<HeldBytesPermit>,
    /// For reads of the next chunk, after one in which a server has timed out: timeouts do not add up over chunks.
    read_time_limit: Option<Duration>,
}

impl BatchInProgress {
    pub(super) fn new(batch: Batch) -> BatchInProgress {
        BatchInProgress {
            rest: batch.into_iter(),
            outcomes: Outcomes::new().into_iter(),
            permit: None,
            read_time_limit: None,
        }
    }

    /// A batch that has been routed.
    pub(super) fn of_outcomes(outcomes: Outcomes) -> BatchInProgress {
        BatchInProgress { outcomes: outcomes.into_iter(), ..BatchInProgress::new(Batch::new()) }
    }
}

impl Session<'_> {
    /// The outcome of the batch's next request. Routes another chunk if none is left.
    pub(super) async fn next_outcome_or_route(&mut self, batch: &mut BatchInProgress) -> Outcome {
        if let Some(outcome) = batch.outcomes.next() {
            return outcome;
        }
        batch.permit = None;
        self.route_chunk(batch).await;
        batch.outcomes.next().expect("a batch has a request for each reply")
    }

    /// Routes as much of a batch as this session may hold the values of.
    async fn route_chunk(&mut self, batch: &mut BatchInProgress) {
        let shared = &self.context.shared;
        let chunk = self.value_sizes.next_chunk(&mut batch.rest, shared.reply_bytes());
        let requests = chunk.len();
        let values = chunk.iter().filter(|request| may_return_value(&request.operation)).count();
        self.count_batch(&chunk);
        let tree = self.context.tree();
        self.prepare_misses(&tree);
        let context = Context { read_time_limit: batch.read_time_limit, ..self.client.clone() };
        let outcomes = tree.root().route(chunk, &context).await;
        assert_eq!(outcomes.len(), requests, "a route gives exactly one outcome per request");
        let bytes = outcomes.iter().map(value_bytes).sum();
        self.value_sizes.update(values, bytes);
        if !batch.rest.as_slice().is_empty() && outcomes.iter().any(is_timeout) {
            // A half for the server, and a half for the gutter.
            batch.read_time_limit = tree.failover_timeout().map(|timeout| timeout / 2);
        }
        batch.permit = (bytes >= COUNTED_BYTES_MIN).then(|| shared.reserve_reply_bytes(bytes));
        batch.outcomes = outcomes.into_iter();
    }

    /// Executes the mutations of a batch whose client has disconnected.
    pub(super) async fn execute_mutations(&mut self, batch: BatchInProgress) {
        let is_mutation =
            |request: &Request<_>| !matches!(request.operation, Operation::Get { .. } | Operation::LeaseGet);
        let mut mutations = BatchInProgress::new(batch.rest.filter(is_mutation).collect());
        drop((batch.outcomes, batch.permit));
        while !mutations.rest.as_slice().is_empty() {
            mutations.permit = None;
            self.route_chunk(&mut mutations).await;
        }
    }
}

fn is_timeout(outcome: &Outcome) -> bool {
    outcome.as_ref().is_err_and(Failure::is_timeout)
}
