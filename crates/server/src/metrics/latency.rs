//! How long requests take, by class of command.
//!
//! What is measured: from the moment at which a worker is woken because bytes have come, to the moment at which the
//! reply has been handed to the kernel. So a request that waits for others of the same round shows it; the network and
//! the time that bytes wait for a busy worker do not show. All commands that a connection sent at once are one reply,
//! which counts for the class of the first of them.

use crate::Counter;
use crate::batch::Action;
use lookaside_protocol::{Command, Operation};

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

/// A bucket holds what took up to 2^its number microseconds; the last holds the rest, beyond half a second.
pub(crate) const BUCKETS: usize = 21;

/// One thread's histograms.
#[derive(Default)]
pub(crate) struct Latencies {
    of_class: [Histogram; Class::ALL.len()],
}

#[derive(Default)]
struct Histogram {
    buckets: [Counter; BUCKETS],
    sum_us: Counter,
}

/// One class's numbers, added up over threads.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sum {
    pub(crate) buckets: [u64; BUCKETS],
    pub(crate) sum_us: u64,
}

impl Latencies {
    pub(crate) fn note(&self, class: Class, took_us: u64) {
        let histogram = &self.of_class[class as usize];
        histogram.buckets[bucket_of(took_us)].add(1);
        histogram.sum_us.add(took_us);
    }

    /// Adds this thread's numbers of a class.
    pub(crate) fn add_to(&self, class: Class, sum: &mut Sum) {
        let histogram = &self.of_class[class as usize];
        for (of_all, own) in sum.buckets.iter_mut().zip(&histogram.buckets) {
            *of_all += own.value();
        }
        sum.sum_us += histogram.sum_us.value();
    }
}

fn bucket_of(took_us: u64) -> usize {
    let doublings = u64::BITS - took_us.saturating_sub(1).leading_zeros();
    (doublings as usize).min(BUCKETS - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_holds_what_took_up_to_its_bound() {
        for (took_us, bucket) in [(0, 0), (1, 0), (2, 1), (3, 2), (4, 2), (5, 3), (524_288, 19), (524_289, 20)] {
            assert_eq!(bucket_of(took_us), bucket, "{took_us} us");
        }
        assert_eq!(bucket_of(u64::MAX), BUCKETS - 1);
        assert!(Class::ALL.iter().enumerate().all(|(number, class)| *class as usize == number));
    }
}
