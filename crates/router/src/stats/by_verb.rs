//! What came of clients' requests, by verb: one thread's counts. Serves every path.

use crate::frontend::parse::Tallied;
use lookaside_protocol::{Reply, meta::MetaStatus};
use lookaside_routing::Outcome;
use lookaside_telemetry::Counter;

/// Counts by verb and result. Only the thread that answers clients notes.
#[derive(Debug, Default)]
pub struct Results([[Counter; ResultClass::ALL.len()]; Tallied::ALL.len()]);

/// What came of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ResultClass {
    /// Found, stored, deleted.
    Ok,
    /// Not found, or not stored on a condition that did not hold.
    Miss,
    /// A server answered with an error.
    Error,
    /// No server answered.
    Unavailable,
}

impl ResultClass {
    pub(crate) const ALL: [ResultClass; 4] =
        [ResultClass::Ok, ResultClass::Miss, ResultClass::Error, ResultClass::Unavailable];

    /// The word for it in labels.
    pub(crate) fn name(self) -> &'static str {
        match self {
            ResultClass::Ok => "ok",
            ResultClass::Miss => "miss",
            ResultClass::Error => "error",
            ResultClass::Unavailable => "unavailable",
        }
    }

    fn of(outcome: &Outcome) -> ResultClass {
        match outcome {
            Err(_) => ResultClass::Unavailable,
            Ok(Reply::Error(_)) => ResultClass::Error,
            Ok(Reply::Miss | Reply::Lease { .. } | Reply::NotFound | Reply::NotStored | Reply::Exists) => {
                ResultClass::Miss
            }
            Ok(Reply::Meta(meta)) => match meta.status {
                MetaStatus::Miss | MetaStatus::NotFound | MetaStatus::NotStored | MetaStatus::Exists => {
                    ResultClass::Miss
                }
                _ => ResultClass::Ok,
            },
            Ok(_) => ResultClass::Ok,
        }
    }
}

impl Results {
    /// Takes note of what came of one request.
    pub(crate) fn note(&self, verb: Tallied, outcome: &Outcome) {
        self.0[verb as usize][ResultClass::of(outcome) as usize].add(1);
    }

    /// How many requests of this verb had this result.
    pub(crate) fn of(&self, verb: Tallied, result: ResultClass) -> u64 {
        self.0[verb as usize][result as usize].value()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lookaside_protocol::ErrorReply;
    use lookaside_routing::Failure;

    #[test]
    fn each_verb_has_its_own_results() {
        let results = Results::default();
        results.note(Tallied::Get, &Ok(Reply::Miss));
        results.note(Tallied::Delete, &Ok(Reply::Deleted));
        results.note(Tallied::Delete, &Ok(Reply::Error(ErrorReply::Unknown)));
        results.note(Tallied::Meta, &Err(Failure::TimedOut));
        let found = |verb| ResultClass::ALL.map(|result| results.of(verb, result));
        assert_eq!(found(Tallied::Get), [0, 1, 0, 0]);
        assert_eq!(found(Tallied::Delete), [1, 0, 1, 0]);
        assert_eq!(found(Tallied::Meta), [0, 0, 0, 1]);
        assert_eq!(found(Tallied::Store), [0; 4]);
        assert!(Tallied::ALL.iter().enumerate().all(|(at, verb)| *verb as usize == at));
        assert!(ResultClass::ALL.iter().enumerate().all(|(at, result)| *result as usize == at));
    }
}
