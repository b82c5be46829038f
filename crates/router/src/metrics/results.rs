//! What came of clients' requests, by verb: one thread's counts. Serves every path.

use crate::intake::Tallied;
use lookaside_observation::Counter;
use lookaside_protocol::{Reply, meta::MetaStatus};
use lookaside_routing::Outcome;

/// Counts by verb and result. Only the thread that answers clients notes.
#[derive(Debug, Default)]
pub struct Results([[Counter; Fate::ALL.len()]; Tallied::ALL.len()]);

/// What came of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// Found, stored, deleted.
    Done,
    /// Not found, or not stored on a condition that did not hold.
    Missed,
    /// A server answered with an error.
    Refused,
    /// No server answered.
    Failed,
}

impl Fate {
    pub(crate) const ALL: [Fate; 4] = [Fate::Done, Fate::Missed, Fate::Refused, Fate::Failed];

    /// The word for it in labels.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Fate::Done => "done",
            Fate::Missed => "missed",
            Fate::Refused => "refused",
            Fate::Failed => "failed",
        }
    }

    fn of(outcome: &Outcome) -> Fate {
        match outcome {
            Err(_) => Fate::Failed,
            Ok(Reply::Error(_)) => Fate::Refused,
            Ok(Reply::Miss | Reply::Lease { .. } | Reply::NotFound | Reply::NotStored | Reply::Exists) => Fate::Missed,
            Ok(Reply::Meta(meta)) => match meta.status {
                MetaStatus::Miss | MetaStatus::NotFound | MetaStatus::NotStored | MetaStatus::Exists => Fate::Missed,
                _ => Fate::Done,
            },
            Ok(_) => Fate::Done,
        }
    }
}

impl Results {
    /// Takes note of what came of one request.
    pub(crate) fn note(&self, verb: Tallied, outcome: &Outcome) {
        self.0[verb as usize][Fate::of(outcome) as usize].add(1);
    }

    /// How many requests of this verb had this result.
    pub(crate) fn of(&self, verb: Tallied, result: Fate) -> u64 {
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
        let found = |verb| Fate::ALL.map(|result| results.of(verb, result));
        assert_eq!(found(Tallied::Get), [0, 1, 0, 0]);
        assert_eq!(found(Tallied::Delete), [1, 0, 1, 0]);
        assert_eq!(found(Tallied::Meta), [0, 0, 0, 1]);
        assert_eq!(found(Tallied::Store), [0; 4]);
        assert!(Tallied::ALL.iter().enumerate().all(|(at, verb)| *verb as usize == at));
        assert!(Fate::ALL.iter().enumerate().all(|(at, result)| *result as usize == at));
    }
}
