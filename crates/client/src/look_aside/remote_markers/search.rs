//! How a reader that has missed a key looks for its markers.

use super::exchange::Exchange;
use super::names::{MarkerNames, Token, TokenList};
use super::settings::MarkerForm;
use bytes::Bytes;
use lookaside_protocol::{Operation, Reply, Request};
use lookaside_routing::Outcome;

/// What a search has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Found {
    /// A write of the key may not be replicated yet.
    Marked,
    /// All marked writes of the key are replicated.
    Unmarked,
    /// A server of the pool did not answer, or answered with an error.
    Unknown,
}

/// The state of a search for one key's markers. One round trip if no writer has listed a token, else two.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct MarkerSearch {
    names: MarkerNames,
    step: SearchStep,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum SearchStep {
    ReadList,
    CheckTokens(Vec<Token>),
    Done(Found),
}

impl MarkerSearch {
    pub(super) fn new(names: MarkerNames) -> MarkerSearch {
        MarkerSearch { names, step: SearchStep::ReadList }
    }

    /// `None` if the search is not over.
    pub(super) fn found(&self) -> Option<Found> {
        match self.step {
            SearchStep::Done(found) => Some(found),
            _ => None,
        }
    }

    fn after_read(&self, outcome: Outcome) -> SearchStep {
        match outcome {
            Ok(Reply::Miss) => SearchStep::Done(Found::Unmarked),
            Ok(Reply::Value { value, .. }) => match (self.names.form, TokenList::parse(&value)) {
                (MarkerForm::PerKey, _) | (_, TokenList::Unknown) => SearchStep::Done(Found::Marked),
                (MarkerForm::PerWrite, TokenList::Tokens(tokens)) if tokens.is_empty() => {
                    SearchStep::Done(Found::Unmarked)
                }
                (MarkerForm::PerWrite, TokenList::Tokens(tokens)) => SearchStep::CheckTokens(tokens),
            },
            _ => SearchStep::Done(Found::Unknown),
        }
    }
}

impl Exchange for MarkerSearch {
    fn requests(&self) -> Vec<Request<Bytes>> {
        let get = |key| Request { key, operation: Operation::Get { cas: false } };
        match &self.step {
            SearchStep::ReadList => vec![get(self.names.list.clone())],
            SearchStep::CheckTokens(tokens) => tokens.iter().map(|&token| get(self.names.marker(token))).collect(),
            SearchStep::Done(_) => Vec::new(),
        }
    }

    fn receive(&mut self, mut outcomes: Vec<Outcome>) {
        self.step = match &self.step {
            SearchStep::ReadList => self.after_read(outcomes.pop().expect("one outcome per request")),
            SearchStep::CheckTokens(_) => SearchStep::Done(judge_markers(&outcomes)),
            SearchStep::Done(_) => unreachable!("an exchange that is over sends nothing"),
        };
    }
}

fn judge_markers(outcomes: &[Outcome]) -> Found {
    if outcomes.iter().any(|outcome| matches!(outcome, Ok(Reply::Value { .. }))) {
        Found::Marked
    } else if outcomes.iter().all(|outcome| *outcome == Ok(Reply::Miss)) {
        Found::Unmarked
    } else {
        Found::Unknown
    }
}
