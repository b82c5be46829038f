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
    text::{LINE_END, append_key, append_retrieve_verb, compose_request},
};
use lookaside_routing::{Outcomes, Verb};
use tokio::time::Instant;

/// The most keys in one get line: enough to make the cost of a line small, few enough that one line does not delay
/// other requests for long.
const MULTIGET_KEYS_MAX: usize = 64;

/// The longest get line with more than one key, in bytes. memcached closes the connection if it finds no line end
/// within 2,048 bytes and the command is not a plain `get`.
const MULTIGET_BYTES_MAX: usize = 2_000;

/// The longest beginning of a get line: `gats` and an exptime.
const RETRIEVE_VERB_BYTES_MAX: usize = 25;

/// A get line that has no end yet: more keys may be added.
#[derive(Debug)]
pub(super) struct OpenLine {
    /// The same for every key.
    operation: Operation<Bytes>,
    requests: usize,
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
        self.unanswered += requests.len();
        for request in &requests {
            if !self.extend_line(request, out) {
                self.end_line(out);
                self.begin_line(request, out);
            }
        }
        let outcomes = Outcomes::with_capacity(requests.len());
        self.batches.push_back(InFlightBatch { requests, outcomes, done: 0, waiter: Some((reply, permit)), deadline });
    }

    /// Adds a key to the open line. False if it does not fit.
    fn extend_line(&mut self, request: &Request<Bytes>, out: &mut Vec<u8>) -> bool {
        let Some(open) = &mut self.open else { return false };
        let bytes = open.bytes + 1 + request.key.len();
        let fits = open.requests < MULTIGET_KEYS_MAX
            && bytes <= MULTIGET_BYTES_MAX
            && is_same_get(&request.operation, &open.operation);
        if fits {
            open.bytes = bytes;
            open.requests += 1;
            append_key(&request.key, out);
        }
        fits
    }

    /// Composes a line for one request. A get stays open for more keys.
    fn begin_line(&mut self, request: &Request<Bytes>, out: &mut Vec<u8>) {
        let kind = match self.cas_support.needs_meta_set(&request.operation) {
            true => LineKind::TranslatedWithData,
            false => LineKind::of(&request.operation, self.protocol),
        };
        if kind == LineKind::Retrieve {
            let bytes = RETRIEVE_VERB_BYTES_MAX + 1 + request.key.len();
            self.open = Some(OpenLine { operation: request.operation.clone(), requests: 1, bytes });
            append_retrieve_verb(&request.operation, out);
            append_key(&request.key, out);
            return;
        }
        self.counts.add_sent(Verb::of(&request.operation), 1);
        if kind.is_translated() {
            compose_request(&meta::to_meta(request), out);
        } else {
            compose_single(request, out);
        }
        self.lines.push_back(SentLine { requests: 1, kind });
    }

    pub(crate) fn end_line(&mut self, out: &mut Vec<u8>) {
        let Some(OpenLine { operation, requests, .. }) = self.open.take() else { return };
        self.counts.add_sent(Verb::of(&operation), requests);
        out.extend_from_slice(LINE_END);
        self.lines.push_back(SentLine { requests, kind: LineKind::Retrieve });
    }
}

/// Whether two operations are the same get: then their keys can share a line.
fn is_same_get(one: &Operation<Bytes>, other: &Operation<Bytes>) -> bool {
    match (one, other) {
        (Operation::Get { cas: one }, Operation::Get { cas: other }) => one == other,
        (Operation::GetAndTouch { .. }, Operation::GetAndTouch { .. }) => one == other,
        (Operation::LeaseGet, Operation::LeaseGet) => true,
        _ => false,
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
