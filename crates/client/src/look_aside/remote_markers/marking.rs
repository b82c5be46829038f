//! How a write sets its marker of one key.
//!
//! ```text
//! SetMarker: set the marker, gets the list ---> StoreList: add or cas the list with the token ---> Done
//!                                  \            ^        |
//!         (many tokens) CheckTokens: which are there?    | changed meanwhile
//!                                  ^            \        v
//!                                  '----------- ReadList: gets the list
//!
//! a full list:         AddShared, TouchShared (the marker of every token) ---> StoreList
//! a list that others change all the time:                       the same ---> ReplaceList ---> the same ---> Done
//! one marker per key:  AddShared, TouchShared ---> Done
//! ```
//!
//! A marker that other writes may need, too, is never stored by `set`: one that finds no memory removes the value that
//! was there. `add` does not, and `touch` needs none.

use super::super::error::{ClientError, unexpected};
use super::exchange::Exchange;
use super::names::{MarkerNames, TOKENS_MAX, Token, TokenList};
use super::settings::MarkerForm;
use bytes::Bytes;
use lookaside_protocol::{Cas, Operation, Reply, Request, StoreMode};
use lookaside_routing::Outcome;

/// [`Marking::checked_tokens_min`]: below it a round trip would cost more than the tokens do.
const CHECKED_TOKENS_MIN: usize = 8;

/// How often a list that other writers change at the same time is tried, before it is replaced; and how often a shared
/// marker that vanishes between `add` and `touch` is.
const STORES_MAX: u32 = 8;

const MARKER_VALUE: &[u8] = b"1";

/// The state of setting one key's marker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Marking {
    names: MarkerNames,
    token: Token,
    /// The exptime of the markers and of the list.
    exptime: i64,
    step: MarkingStep,
    /// Lists with at least this number of tokens are cleared of the tokens of writes that are replicated.
    checked_tokens_min: usize,
    /// The most tokens of a list.
    tokens_max: usize,
    /// Stores of the list so far.
    stores: u32,
    /// Stores of a shared marker so far.
    adds: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum MarkingStep {
    SetMarker,
    /// Stores the shared marker if it is not there.
    AddShared(AfterShared),
    /// Lets the shared marker live on.
    TouchShared(AfterShared),
    ReadList,
    /// A list that may have tokens of writes that are replicated.
    CheckTokens {
        cas: Cas,
        tokens: Vec<Token>,
    },
    /// `None`: there was no list.
    StoreList {
        cas: Option<Cas>,
        tokens: Vec<Token>,
    },
    ReplaceList,
    Done(Result<(), ClientError>),
}

/// What follows when the shared marker is there: that of the key, or that of every token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AfterShared {
    StoreList(Cas),
    ReplaceList,
    Done,
}

impl Marking {
    pub(super) fn new(names: MarkerNames, token: Token, ttl_s: u32) -> Marking {
        let step = match names.form {
            MarkerForm::PerWrite => MarkingStep::SetMarker,
            MarkerForm::PerKey => MarkingStep::AddShared(AfterShared::Done),
        };
        Marking {
            names,
            token,
            exptime: i64::from(ttl_s),
            step,
            checked_tokens_min: CHECKED_TOKENS_MIN,
            tokens_max: TOKENS_MAX,
            stores: 0,
            adds: 0,
        }
    }

    #[cfg(test)]
    pub(super) fn with_tokens(self, checked_tokens_min: usize, tokens_max: usize) -> Marking {
        Marking { checked_tokens_min, tokens_max, ..self }
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

    /// The marker that other writes may need, too.
    fn shared_marker(&self) -> Bytes {
        self.names.marker(Token::EVERY)
    }

    fn store(&self, key: Bytes, mode: StoreMode, value: Bytes) -> Request<Bytes> {
        Request { key, operation: Operation::Store { mode, flags: 0, exptime: self.exptime, value, cas: false } }
    }

    fn store_marker(&self, key: Bytes, mode: StoreMode) -> Request<Bytes> {
        self.store(key, mode, Bytes::from_static(MARKER_VALUE))
    }

    fn store_list(&self, mode: StoreMode, tokens: &[Token]) -> Request<Bytes> {
        self.store(self.names.list.clone(), mode, TokenList::value_of(tokens))
    }

    /// The list of a key whose other tokens are covered by the marker of every token.
    fn shortened_list(&self) -> Vec<Token> {
        vec![Token::EVERY, self.token]
    }

    fn after_set(&self, set: Outcome, list: Outcome) -> MarkingStep {
        match set {
            Ok(Reply::Stored) => self.after_read(list),
            other => MarkingStep::Done(Err(not_stored("set", other))),
        }
    }

    fn after_add(&self, after: AfterShared, outcome: Outcome) -> MarkingStep {
        match outcome {
            Ok(Reply::Stored) => self.after_shared(after),
            Ok(Reply::NotStored) => MarkingStep::TouchShared(after),
            other => MarkingStep::Done(Err(unexpected("add", other))),
        }
    }

    fn after_touch(&self, after: AfterShared, outcome: Outcome) -> MarkingStep {
        match outcome {
            Ok(Reply::Touched) => self.after_shared(after),
            // It has just been deleted, or has expired.
            Ok(Reply::NotFound) if self.adds < STORES_MAX => MarkingStep::AddShared(after),
            Ok(Reply::NotFound) => MarkingStep::Done(Err(ClientError::NotStored)),
            other => MarkingStep::Done(Err(unexpected("touch", other))),
        }
    }

    fn after_shared(&self, after: AfterShared) -> MarkingStep {
        match after {
            AfterShared::StoreList(cas) => MarkingStep::StoreList { cas: Some(cas), tokens: self.shortened_list() },
            AfterShared::ReplaceList => MarkingStep::ReplaceList,
            AfterShared::Done => MarkingStep::Done(Ok(())),
        }
    }

    fn after_read(&self, list: Outcome) -> MarkingStep {
        match list {
            Ok(Reply::Miss) => MarkingStep::StoreList { cas: None, tokens: vec![self.token] },
            Ok(Reply::Value { cas: Some(cas), value, .. }) => match TokenList::parse(&value) {
                TokenList::Tokens(tokens) if tokens.len() >= self.checked_tokens_min => {
                    MarkingStep::CheckTokens { cas, tokens }
                }
                TokenList::Tokens(tokens) => self.with_own_token(cas, tokens),
                TokenList::Unknown => MarkingStep::AddShared(AfterShared::StoreList(cas)),
            },
            other => MarkingStep::Done(Err(unexpected("gets", other))),
        }
    }

    /// Leaves out the tokens whose markers are certainly gone.
    fn after_check(&self, cas: Cas, tokens: Vec<Token>, outcomes: Vec<Outcome>) -> MarkingStep {
        let is_needed = |(token, outcome)| (outcome != Ok(Reply::Miss)).then_some(token);
        self.with_own_token(cas, tokens.into_iter().zip(outcomes).filter_map(is_needed).collect())
    }

    fn with_own_token(&self, cas: Cas, mut tokens: Vec<Token>) -> MarkingStep {
        if tokens.len() >= self.tokens_max {
            return MarkingStep::AddShared(AfterShared::StoreList(cas));
        }
        tokens.push(self.token);
        MarkingStep::StoreList { cas: Some(cas), tokens }
    }

    fn after_store(&self, outcome: Outcome) -> MarkingStep {
        match outcome {
            Ok(Reply::Stored) => MarkingStep::Done(Ok(())),
            Ok(Reply::Exists | Reply::NotFound | Reply::NotStored) if self.stores < STORES_MAX => MarkingStep::ReadList,
            Ok(Reply::Exists | Reply::NotFound | Reply::NotStored) => MarkingStep::AddShared(AfterShared::ReplaceList),
            other => MarkingStep::Done(Err(unexpected("cas", other))),
        }
    }

    /// The marker of every token must outlive those of all tokens that were just replaced, also of writes that began
    /// after it was set.
    fn after_replace(outcome: Outcome) -> MarkingStep {
        match outcome {
            Ok(Reply::Stored) => MarkingStep::AddShared(AfterShared::Done),
            // Or the list has just vanished, after it was changed many times.
            other => MarkingStep::Done(Err(not_stored("replace", other))),
        }
    }
}

fn not_stored(operation: &'static str, outcome: Outcome) -> ClientError {
    match outcome {
        Ok(Reply::NotStored) => ClientError::NotStored,
        other => unexpected(operation, other),
    }
}

impl Exchange for Marking {
    fn requests(&self) -> Vec<Request<Bytes>> {
        let read = |key: Bytes, cas| Request { key, operation: Operation::Get { cas } };
        let read_list = || read(self.names.list.clone(), true);
        match &self.step {
            MarkingStep::SetMarker => vec![self.store_marker(self.marker(), StoreMode::Set), read_list()],
            MarkingStep::AddShared(_) => vec![self.store_marker(self.shared_marker(), StoreMode::Add)],
            MarkingStep::TouchShared(_) => {
                let operation = Operation::Touch { exptime: self.exptime };
                vec![Request { key: self.shared_marker(), operation }]
            }
            MarkingStep::ReadList => vec![read_list()],
            MarkingStep::CheckTokens { tokens, .. } => {
                tokens.iter().map(|&token| read(self.names.marker(token), false)).collect()
            }
            MarkingStep::StoreList { cas, tokens } => {
                vec![self.store_list(cas.map_or(StoreMode::Add, StoreMode::Cas), tokens)]
            }
            MarkingStep::ReplaceList => vec![self.store_list(StoreMode::Replace, &self.shortened_list())],
            MarkingStep::Done(_) => Vec::new(),
        }
    }

    fn receive(&mut self, outcomes: Vec<Outcome>) {
        let step = std::mem::replace(&mut self.step, MarkingStep::Done(Ok(())));
        let mut each = outcomes.into_iter();
        let mut next = || each.next().expect("one outcome per request");
        self.step = match step {
            MarkingStep::SetMarker => {
                let set = next();
                self.after_set(set, next())
            }
            MarkingStep::AddShared(after) => {
                self.adds += 1;
                self.after_add(after, next())
            }
            MarkingStep::TouchShared(after) => self.after_touch(after, next()),
            MarkingStep::ReadList => self.after_read(next()),
            MarkingStep::CheckTokens { cas, tokens } => self.after_check(cas, tokens, each.collect()),
            MarkingStep::StoreList { .. } => {
                self.stores += 1;
                self.after_store(next())
            }
            MarkingStep::ReplaceList => Marking::after_replace(next()),
            MarkingStep::Done(_) => unreachable!("an exchange that is over sends nothing"),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::super::settings::MarkerSettings;
    use super::*;

    fn marking_of(form: MarkerForm, token: u64) -> Marking {
        let settings = MarkerSettings { form, ..MarkerSettings::default() };
        let names = MarkerNames::new(&settings, b"k").expect("a short key");
        Marking::new(names, Token(token), 60)
    }

    fn marking(token: u64) -> Marking {
        marking_of(MarkerForm::PerWrite, token)
    }

    fn list(tokens: impl IntoIterator<Item = u64>) -> Outcome {
        let value = TokenList::value_of(&tokens.into_iter().map(Token).collect::<Vec<_>>());
        Ok(Reply::Value { flags: 0, cas: Some(Cas(7)), value })
    }

    fn hit() -> Outcome {
        Ok(Reply::Value { flags: 0, cas: None, value: Bytes::from_static(b"1") })
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

    /// The step that makes sure that a shared marker is there.
    fn assert_shares(marking: &Marking, marker: &str) {
        match &marking.requests()[..] {
            [Request { key, operation: Operation::Store { mode: StoreMode::Add, exptime: 60, .. } }]
            | [Request { key, operation: Operation::Touch { exptime: 60 } }] => assert_eq!(key, marker),
            other => panic!("not of a shared marker: {other:?}"),
        }
    }

    const EVERY_MARKER: &str = "marker:k|#|0000000000000000";

    #[test]
    fn a_list_with_many_tokens_keeps_those_of_writes_that_may_be_under_way() {
        let mut marking = marking(99);
        marking.receive(vec![Ok(Reply::Stored), list(1..9)]);
        assert_eq!(marking.requests().len(), 8);
        let miss = || Ok(Reply::Miss);
        let lost = Err(lookaside_routing::Failure::ConnectionLost);
        marking.receive(vec![miss(), hit(), miss(), lost, miss(), miss(), miss(), hit()]);
        let needed = [2, 4, 8, 99].map(Token).to_vec();
        assert_eq!(stored(&marking), (StoreMode::Cas(Cas(7)), TokenList::Tokens(needed)));
        marking.receive(vec![Ok(Reply::Stored)]);
        assert_eq!(marking.result(), Some(&Ok(())));
    }

    #[test]
    fn a_full_list_is_replaced_by_a_marker_of_every_token() {
        let mut marking = marking(99);
        marking.receive(vec![Ok(Reply::Stored), list(1..=TOKENS_MAX as u64)]);
        marking.receive((0..TOKENS_MAX).map(|_| hit()).collect());
        assert_shares(&marking, EVERY_MARKER);
        marking.receive(vec![Ok(Reply::Stored)]);
        let short = TokenList::Tokens(vec![Token::EVERY, Token(99)]);
        assert_eq!(stored(&marking), (StoreMode::Cas(Cas(7)), short));
        marking.receive(vec![Ok(Reply::Stored)]);
        assert_eq!(marking.result(), Some(&Ok(())));
    }

    /// A list that had once been full stayed so for as long as the key was written once in a marker's life.
    #[test]
    fn the_token_of_every_write_leaves_the_list_when_its_marker_has_expired() {
        let mut marking = marking(99);
        marking.receive(vec![Ok(Reply::Stored), list(0..8)]);
        marking.receive((0..8).map(|token| if token == 0 { Ok(Reply::Miss) } else { hit() }).collect());
        let needed = (1..8).chain([99]).map(Token).collect();
        assert_eq!(stored(&marking).1, TokenList::Tokens(needed));
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
        assert_shares(&marking, EVERY_MARKER);
        marking.receive(vec![Ok(Reply::Stored)]);
        assert_eq!(stored(&marking), (StoreMode::Replace, TokenList::Tokens(vec![Token::EVERY, Token(99)])));
        marking.receive(vec![Ok(Reply::Stored)]);
        assert_shares(&marking, EVERY_MARKER);
        marking.receive(vec![Ok(Reply::NotStored)]);
        assert_shares(&marking, EVERY_MARKER);
        marking.receive(vec![Ok(Reply::Touched)]);
        assert_eq!(marking.result(), Some(&Ok(())));
    }

    #[test]
    fn a_marker_that_writes_share_is_added_or_lives_on() {
        let mut marking = marking_of(MarkerForm::PerKey, 99);
        for _ in 1..STORES_MAX {
            assert_shares(&marking, "marker:k");
            marking.receive(vec![Ok(Reply::NotStored)]);
            assert_shares(&marking, "marker:k");
            // The invalidator has deleted it in between.
            marking.receive(vec![Ok(Reply::NotFound)]);
        }
        let mut unlucky = marking.clone();
        unlucky.receive(vec![Ok(Reply::NotStored)]);
        unlucky.receive(vec![Ok(Reply::NotFound)]);
        assert_eq!(unlucky.result(), Some(&Err(ClientError::NotStored)));
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
        let mut shared = marking_of(MarkerForm::PerKey, 1);
        shared.receive(vec![full()]);
        for marking in [at_once, at_the_list, shared] {
            let why = marking.result().expect("it is over").clone().expect_err("refused").to_string();
            assert!(why.contains("out of memory"), "{why}");
            assert!(marking.requests().is_empty());
        }
    }
}
