//! From batches to command lines: the part of the pipeline that composes requests. Serves every path.
//!
//! Consecutive requests of the same get become one line, also if they are of several batches.

use super::{InFlightBatch, PendingBatch, Pipeline};
use crate::destination::cas_support::{ASK_VERSION, CasSupport, requests_cas};
use crate::destination::meta_translation as meta;
use crate::destination::sent_line::{LineKind, SentLine};
use bytes::Bytes;
use lookaside_protocol::{
    Operation, Request,
    meta::MetaOperation,
    text::{compose_request, compose_retrieve},
};
use lookaside_routing::{Failure, Verb};
use tokio::time::Instant;

/// The most keys in one get line: enough to make the cost of a line small, few enough that one line does not delay
/// other requests for long.
const MULTIGET_KEYS_MAX: usize = 64;

/// The longest get line with more than one key, in bytes. memcached closes the connection if it finds no line end
/// within 2,048 bytes and the command is not a plain `get`.
const MULTIGET_BYTES_MAX: usize = 2_000;

/// The longest beginning of a get line: `gats` and an exptime.
const RETRIEVE_VERB_BYTES_MAX: usize = 25;

/// A get line to which more keys may be added.
#[derive(Debug)]
pub(super) struct OpenLine {
    /// The same for every key.
    operation: Operation<Bytes>,
    /// The position of its first request.
    batch: usize,
    request: usize,
    /// The most that the line may be long so far.
    bytes: usize,
}

impl Pipeline {
    /// Whether the next batch must wait for the reply to `version`, which is sent once.
    pub(crate) fn must_ask_version(&mut self, next: &PendingBatch, out: &mut Vec<u8>) -> bool {
        if self.cas_support.is_known() || !next.requests.iter().any(|request| requests_cas(&request.operation)) {
            return false;
        }
        if self.cas_support == CasSupport::Unknown {
            self.end_line(out);
            out.extend_from_slice(ASK_VERSION);
            self.lines.push_back(SentLine { requests: 0, kind: LineKind::Version });
            self.cas_support = CasSupport::Asked;
        }
        true
    }

    /// Appends the batch's lines to `out`. [`Pipeline::end_line`] must follow before the bytes are written.
    pub(crate) fn push(&mut self, pending: PendingBatch, deadline: Instant, out: &mut Vec<u8>) {
        let PendingBatch { requests, reply, permit } = pending;
        let outcomes = vec![Err(Failure::ConnectionLost); requests.len()];
        let batch = self.batches.len();
        self.unanswered += requests.len();
        self.batches.push_back(InFlightBatch { requests, outcomes, done: 0, waiter: Some((reply, permit)), deadline });
        for index in 0..self.batches[batch].requests.len() {
            if self.extend_line(batch, index) {
                continue;
            }
            self.end_line(out);
            let request = &self.batches[batch].requests[index];
            let kind = match self.cas_support.needs_meta_set(&request.operation) {
                true => LineKind::TranslatedWithData,
                false => LineKind::of(&request.operation, self.protocol),
            };
            if kind == LineKind::Retrieve {
                let bytes = RETRIEVE_VERB_BYTES_MAX + 1 + request.key.len();
                self.open = Some(OpenLine { operation: request.operation.clone(), batch, request: index, bytes });
                self.lines.push_back(SentLine { requests: 1, kind });
                continue;
            }
            self.counts.add_sent(Verb::of(&request.operation), 1);
            if kind.is_translated() {
                compose_request(&meta::to_meta(request), out);
            } else {
                compose_single(request, out);
            }
            self.lines.push_back(SentLine { requests: 1, kind });
        }
    }

    /// False if it does not fit.
    fn extend_line(&mut self, batch: usize, index: usize) -> bool {
        let (Some(open), Some(line)) = (&mut self.open, self.lines.back_mut()) else { return false };
        let request = &self.batches[batch].requests[index];
        let bytes = open.bytes + 1 + request.key.len();
        let fits = line.requests < MULTIGET_KEYS_MAX
            && bytes <= MULTIGET_BYTES_MAX
            && LineKind::of(&request.operation, self.protocol) == LineKind::Retrieve
            && request.operation == open.operation;
        if fits {
            open.bytes = bytes;
            line.requests += 1;
        }
        fits
    }

    pub(crate) fn end_line(&mut self, out: &mut Vec<u8>) {
        let Some(open) = self.open.take() else { return };
        let line = self.lines.back().expect("the open line is the last one");
        let first = self.batches[open.batch].requests[open.request..].iter();
        let more = self.batches.range(open.batch + 1..).flat_map(|batch| &batch.requests);
        let keys = first.chain(more).take(line.requests).map(|request| &request.key);
        self.counts.add_sent(Verb::of(&open.operation), line.requests);
        compose_retrieve(&open.operation, keys, out);
    }
}

/// A quiet meta command is sent without its `q`: a reply that may or may not come could not be matched. The caller that
/// got the quiet command suppresses the reply itself.
fn compose_single(request: &Request<Bytes>, out: &mut Vec<u8>) {
    let is_quiet = |flag: &&[u8]| flag.first() == Some(&b'q');
    match &request.operation {
        Operation::Meta(meta) if meta.flags.split(|&byte| byte == b' ').any(|flag| is_quiet(&flag)) => {
            let loud: Vec<&[u8]> = meta.flags.split(|&byte| byte == b' ').filter(|flag| !is_quiet(flag)).collect();
            let meta = MetaOperation { flags: loud.join(&b' ').into(), ..meta.clone() };
            compose_request(&Request { key: request.key.clone(), operation: Operation::Meta(meta) }, out);
        }
        _ => compose_request(request, out),
    }
}
