//! How a write sets its marker of one key.
//!
//! ```text
//! SetMarker: set the marker, gets the list ---> StoreList: add or cas the list with the token ---> Done
//!                                  \            ^        |
//!         (many tokens) CheckTokens: which are there?    | changed meanwhile
//!                                  ^            \        v
//!                                  '----------- ReadList: gets the list   (often: ReplaceList by `*`)
//! ```

use super::super::error::{ClientError, unexpected};
use super::exchange::Exchange;
use super::names::{MarkerNames, Token, TokenList};
use super::settings::MarkerForm;
use bytes::Bytes;
use lookaside_protocol::{Cas, Operation, Reply, Request, StoreMode};
use lookaside_routing::Outcome;

/// [`Marking::checked_tokens_min`]: below it a round trip would cost more than the tokens do.
const CHECKED_TOKENS_MIN: usize = 8;

/// How often a list that other writers change at the same time is tried, before it is replaced by `*`.
const STORES_MAX: u32 = 8;

const MARKER_VALUE: &[u8] = b"1";

/// The state of setting one key's marker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Marking {
    names: MarkerNames,
    token: Token,
    /// The exptime of the marker and of the list.
    exptime: i64,
    step: MarkingStep,
    /// Lists with at least this number of tokens are cleared of the tokens of writes that are replicated.
    checked_tokens_min: usize,
    /// Stores of the list so far.
    stores: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum MarkingStep {
    SetMarker,
    ReadList,
    /// A list that may have tokens of writes that are replicated.
    CheckTokens {
        cas: Cas,
        tokens: Vec<Token>,
    },
    /// `None`: there was no list.
    StoreList {
        cas: Option<Cas>,
        list: TokenList,
    },
    ReplaceList,
    Done(Result<(), ClientError>),
}

impl Marking {
    pub(super) fn new(names: MarkerNames, token: Token, ttl_s: u32) -> Marking {
        Marking {
            names,
            token,
            exptime: i64::from(ttl_s),
            step: MarkingStep::SetMarker,
            checked_tokens_min: CHECKED_TOKENS_MIN,
            stores: 0,
        }
    }

    #[cfg(test)]
    pub(super) fn with_checked_tokens_min(self, checked_tokens_min: usize) -> Marking {
        Marking { checked_tokens_min, ..self }
    }

    /// Whether the marker is set; `None` if that is not known yet.
    pub(super) fn result(&self) -> Option<&Result<(), ClientError>> {
        match &self.step {
            MarkingStep::Done(result) => Some(result),
            _ => None,
        }
    }

    /// The marker, to be named in the transaction.
    pub(super) fn marker(&self) -> Bytes {
        self.names.marker(self.token)
    }

    fn store(&self, key: Bytes, mode: StoreMode, value: Bytes) -> Request<Bytes> {
        Request { key, operation: Operation::Store { mode, flags: 0, exptime: self.exptime, value, cas: false } }
    }

    fn store_list(&self, mode: StoreMode, list: &TokenList) -> Request<Bytes> {
        self.store(self.names.list.clone(), mode, list.to_value())
    }

    fn after_set(&self, set: Outcome, list: Option<Outcome>) -> MarkingStep {
        match (set, list) {
            (Ok(Reply::Stored), None) => MarkingStep::Done(Ok(())),
            (Ok(Reply::Stored), Some(list)) => self.after_read(list),
            (Ok(Reply::NotStored), _) => MarkingStep::Done(Err(ClientError::NotStored)),
            (other, _) => MarkingStep::Done(Err(unexpected("set", other))),
        }
    }

    fn after_read(&self, list: Outcome) -> MarkingStep {
        let (cas, list) = match list {
            Ok(Reply::Miss) => (None, TokenList::Tokens(Vec::new())),
            Ok(Reply::Value { cas: Some(cas), value, .. }) => (Some(cas), TokenList::parse(&value)),
            other => return MarkingStep::Done(Err(unexpected("gets", other))),
        };
        match (cas, list) {
            (Some(cas), TokenList::Tokens(tokens)) if tokens.len() >= self.checked_tokens_min => {
                MarkingStep::CheckTokens { cas, tokens }
            }
            (cas, list) => MarkingStep::StoreList { cas, list: list.with(self.token) },
        }
    }

    /// Leaves out the tokens whose markers are certainly gone.
    fn after_check(&self, cas: Cas, tokens: Vec<Token>, outcomes: Vec<Outcome>) -> MarkingStep {
        let is_needed = |(token, outcome)| (outcome != Ok(Reply::Miss)).then_some(token);
        let needed = tokens.into_iter().zip(outcomes).filter_map(is_needed).collect();
        MarkingStep::StoreList { cas: Some(cas), list: TokenList::Tokens(needed).with(self.token) }
    }

    fn after_store(&self, outcome: Outcome) -> MarkingStep {
        match outcome {
            Ok(Reply::Stored) => MarkingStep::Done(Ok(())),
            Ok(Reply::Exists | Reply::NotFound | Reply::NotStored) if self.stores < STORES_MAX => MarkingStep::ReadList,
            Ok(Reply::Exists | Reply::NotFound | Reply::NotStored) => MarkingStep::ReplaceList,
            other => MarkingStep::Done(Err(unexpected("cas", other))),
        }
    }
}

impl Exchange for Marking {
    fn requests(&self) -> Vec<Request<Bytes>> {
        let read = |key: Bytes, cas| Request { key, operation: Operation::Get { cas } };
        let read_list = || read(self.names.list.clone(), true);
        match &self.step {
            MarkingStep::SetMarker => {
                let set = self.store(self.marker(), StoreMode::Set, Bytes::from_static(MARKER_VALUE));
                match self.names.form {
                    MarkerForm::PerWrite => vec![set, read_list()],
                    MarkerForm::PerKey => vec![set],
                }
            }
            MarkingStep::ReadList => vec![read_list()],
            MarkingStep::CheckTokens { tokens, .. } => {
                tokens.iter().map(|&token| read(self.names.marker(token), false)).collect()
            }
            MarkingStep::StoreList { cas, list } => {
                vec![self.store_list(cas.map_or(StoreMode::Add, StoreMode::Cas), list)]
            }
            MarkingStep::ReplaceList => vec![self.store_list(StoreMode::Replace, &TokenList::Every)],
            MarkingStep::Done(_) => Vec::new(),
        }
    }

    fn receive(&mut self, outcomes: Vec<Outcome>) {
        let step = std::mem::replace(&mut self.step, MarkingStep::Done(Ok(())));
        let mut each = outcomes.into_iter();
        let mut next = || each.next().expect("one outcome per request");
        self.step = match step {
            MarkingStep::SetMarker if self.names.form == MarkerForm::PerKey => self.after_set(next(), None),
            MarkingStep::SetMarker => {
                let set = next();
                self.after_set(set, Some(next()))
            }
            MarkingStep::ReadList => self.after_read(next()),
            MarkingStep::CheckTokens { cas, tokens } => self.after_check(cas, tokens, each.collect()),
            MarkingStep::StoreList { .. } => {
                self.stores += 1;
                self.after_store(next())
            }
            MarkingStep::ReplaceList => match next() {
                Ok(Reply::Stored) => MarkingStep::Done(Ok(())),
                // The list has just vanished, after it was changed many times.
                Ok(Reply::NotStored) => MarkingStep::Done(Err(ClientError::NotStored)),
                other => MarkingStep::Done(Err(unexpected("replace", other))),
            },
            MarkingStep::Done(_) => unreachable!("an exchange that is over sends nothing"),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::super::names::TOKENS_MAX;
    use super::super::settings::MarkerSettings;
    use super::*;

    fn marking(token: u64) -> Marking {
        let names = MarkerNames::new(&MarkerSettings::default(), b"k").expect("a short key");
        Marking::new(names, Token(token), 60)
    }

    fn list(tokens: impl IntoIterator<Item = u64>) -> Outcome {
        let value = TokenList::Tokens(tokens.into_iter().map(Token).collect()).to_value();
        Ok(Reply::Value { flags: 0, cas: Some(Cas(7)), value })
    }

    /// The value and mode of the store of the list.
    fn stored(marking: &Marking) -> (StoreMode, TokenList) {
        match &marking.requests()[..] {
            [Request { key, operation: Operation::Store { mode, value, exptime: 60, .. } }] if key == "marker:k" => {
                (*mode, TokenList::parse(value))
            }
            other => panic!("not a store of the list: {other:?}"),
        }
    }

    #[test]
    fn a_list_with_many_tokens_keeps_those_of_writes_that_may_be_under_way() {
        let mut marking = marking(99);
        marking.receive(vec![Ok(Reply::Stored), list(0..8)]);
        assert_eq!(marking.requests().len(), 8);
        let hit = || Ok(Reply::Value { flags: 0, cas: None, value: Bytes::from_static(b"1") });
        let miss = || Ok(Reply::Miss);
        let lost = Err(lookaside_routing::Failure::ConnectionLost);
        marking.receive(vec![miss(), hit(), miss(), lost, miss(), miss(), miss(), hit()]);
        let needed = [1, 3, 7, 99].map(Token).to_vec();
        assert_eq!(stored(&marking), (StoreMode::Cas(Cas(7)), TokenList::Tokens(needed)));
        marking.receive(vec![Ok(Reply::Stored)]);
        assert_eq!(marking.result(), Some(&Ok(())));
    }

    #[test]
    fn a_list_that_is_full_stands_for_every_token() {
        let mut marking = marking(99);
        marking.receive(vec![Ok(Reply::Stored), list(0..TOKENS_MAX as u64)]);
        let hit = || Ok(Reply::Value { flags: 0, cas: None, value: Bytes::from_static(b"1") });
        marking.receive((0..TOKENS_MAX).map(|_| hit()).collect());
        assert_eq!(stored(&marking), (StoreMode::Cas(Cas(7)), TokenList::Every));
    }

    #[test]
    fn a_list_that_others_change_all_the_time_is_replaced() {
        let mut marking = marking(99);
        marking.receive(vec![Ok(Reply::Stored), list([1])]);
        for _ in 1..STORES_MAX {
            marking.receive(vec![Ok(Reply::Exists)]);
            marking.receive(vec![list([1])]);
            assert_eq!(stored(&marking).1, TokenList::Tokens(vec![Token(1), Token(99)]));
        }
        marking.receive(vec![Ok(Reply::Exists)]);
        assert_eq!(stored(&marking), (StoreMode::Replace, TokenList::Every));
        marking.receive(vec![Ok(Reply::Stored)]);
        assert_eq!(marking.result(), Some(&Ok(())));
    }

    #[test]
    fn a_pool_that_refuses_ends_it_with_the_reason() {
        let full = || Ok(Reply::Error(lookaside_protocol::ErrorReply::Server(Bytes::from_static(b"out of memory"))));
        let mut at_once = marking(1);
        at_once.receive(vec![full(), Ok(Reply::Miss)]);
        let mut at_the_list = marking(1);
        at_the_list.receive(vec![Ok(Reply::Stored), Ok(Reply::Miss)]);
        at_the_list.receive(vec![full()]);
        for marking in [at_once, at_the_list] {
            let why = marking.result().expect("it is over").clone().expect_err("refused").to_string();
            assert!(why.contains("out of memory"), "{why}");
            assert!(marking.requests().is_empty());
        }
    }
}
