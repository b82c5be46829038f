//! Results of clients' requests, by verb: one thread's counts. Serves every path.

use super::command_class::CommandClass;
use lookaside_protocol::{Reply, meta::MetaStatus};
use lookaside_routing::Outcome;
use lookaside_telemetry::Counter;

/// Counts by verb and result. Only the thread that serves the clients writes them.
#[derive(Debug, Default)]
pub struct VerbResults([[Counter; ResultClass::ALL.len()]; CommandClass::COUNT]);

/// The result of a request, as it is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ResultClass {
    /// Found, stored, deleted.
    Ok,
    /// Not found, or not stored on a condition that did not hold.
    Miss,
    /// A server replied with an error.
    Error,
    /// No server replied.
    Unavailable,
}

impl ResultClass {
    pub(crate) const ALL: [ResultClass; 4] =
        [ResultClass::Ok, ResultClass::Miss, ResultClass::Error, ResultClass::Unavailable];

    /// The label in metrics.
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

impl VerbResults {
    pub(crate) fn record(&self, class: CommandClass, outcome: &Outcome) {
        self.0[class.number()][ResultClass::of(outcome) as usize].add(1);
    }

    /// The same for values that were found.
    pub(crate) fn record_hits(&self, class: CommandClass, hits: u64) {
        self.0[class.number()][ResultClass::Ok as usize].add(hits);
    }

    pub(crate) fn count(&self, class: CommandClass, result: ResultClass) -> u64 {
        self.0[class.number()][result as usize].value()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lookaside_protocol::ErrorReply;
    use lookaside_routing::{Failure, Verb};

    #[test]
    fn results_are_counted_by_verb() {
        let results = VerbResults::default();
        results.record(CommandClass::Verb(Verb::Get), &Ok(Reply::Miss));
        results.record(CommandClass::Verb(Verb::Delete), &Ok(Reply::Deleted));
        results.record(CommandClass::Verb(Verb::Delete), &Ok(Reply::Error(ErrorReply::Unknown)));
        results.record(CommandClass::Meta, &Err(Failure::TimedOut));
        let counts = |class| ResultClass::ALL.map(|result| results.count(class, result));
        assert_eq!(counts(CommandClass::Verb(Verb::Get)), [0, 1, 0, 0]);
        assert_eq!(counts(CommandClass::Verb(Verb::Delete)), [1, 0, 1, 0]);
        assert_eq!(counts(CommandClass::Meta), [0, 0, 0, 1]);
        assert_eq!(counts(CommandClass::Verb(Verb::Set)), [0; 4]);
        assert!(CommandClass::all().enumerate().all(|(at, class)| class.number() == at));
        assert_eq!(CommandClass::all().count(), CommandClass::COUNT);
        assert!(ResultClass::ALL.iter().enumerate().all(|(at, result)| *result as usize == at));
    }
}
