//! How long requests take, by class of command.
//!
//! What is measured: from the moment at which a worker is woken because bytes have come, to the moment at which the
//! reply has been handed to the kernel. So a request that waits for others of the same round shows it; the network and
//! the time that bytes wait for a busy worker do not show. All commands that a connection sent at once are one reply,
//! which counts for the class of the first of them.

use crate::session::batch::Action;
use lookaside_protocol::{Command, Operation};
use lookaside_telemetry::{Histogram, HistogramSum};

/// What a reply answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    Get,
    Store,
    Delete,
    Arithmetic,
    Touch,
    LeaseGet,
    LeaseSet,
    Meta,
    Other,
}

impl Class {
    /// All, in the order of their numbers.
    pub(crate) const ALL: [Class; 9] = [
        Class::Get,
        Class::Store,
        Class::Delete,
        Class::Arithmetic,
        Class::Touch,
        Class::LeaseGet,
        Class::LeaseSet,
        Class::Meta,
        Class::Other,
    ];

    /// The word for it in labels.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Class::Get => "get",
            Class::Store => "set",
            Class::Delete => "delete",
            Class::Arithmetic => "incr",
            Class::Touch => "touch",
            Class::LeaseGet => "lease_get",
            Class::LeaseSet => "lease_set",
            Class::Meta => "meta",
            Class::Other => "other",
        }
    }

    /// What a step of a batch is.
    pub(crate) fn of(action: &Action<'_>) -> Class {
        let operation = match action {
            Action::Command(Command::Retrieve { operation, .. }) => operation,
            Action::Command(Command::Single { request, .. }) => &request.operation,
            Action::Binary(step) => return step.class(),
            _ => return Class::Other,
        };
        match operation {
            Operation::Get { .. } => Class::Get,
            Operation::GetAndTouch { .. } | Operation::Touch { .. } => Class::Touch,
            Operation::LeaseGet => Class::LeaseGet,
            Operation::LeaseSet { .. } => Class::LeaseSet,
            Operation::Store { .. } => Class::Store,
            Operation::Delete { .. } => Class::Delete,
            Operation::Arithmetic { .. } => Class::Arithmetic,
            Operation::Meta(_) => Class::Meta,
        }
    }
}

/// One thread's histograms.
#[derive(Default)]
pub(crate) struct Latencies {
    of_class: [Histogram; Class::ALL.len()],
}

impl Latencies {
    pub(crate) fn note(&self, class: Class, took_us: u64) {
        self.of_class[class as usize].record(took_us);
    }

    /// Adds this thread's numbers of a class.
    pub(crate) fn add_to(&self, class: Class, sum: &mut HistogramSum) {
        sum.add(&self.of_class[class as usize]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_have_their_own_histograms() {
        assert!(Class::ALL.iter().enumerate().all(|(number, class)| *class as usize == number));
    }
}
