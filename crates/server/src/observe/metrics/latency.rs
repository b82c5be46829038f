//! How long requests take, by class of command.
//!
//! What is measured: from the moment at which a worker is woken because bytes have come, to the moment at which the
//! reply has been handed to the kernel. So a request that waits for others of the same round shows it; the network and
//! the time that bytes wait for a busy worker do not show. All commands that a connection sent at once are one reply,
//! which counts for the class of the first of them.

use lookaside_telemetry::{Histogram, HistogramSum};

/// What a reply answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CommandClass {
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

impl CommandClass {
    /// All, in the order of their numbers.
    pub(crate) const ALL: [CommandClass; 9] = [
        CommandClass::Get,
        CommandClass::Store,
        CommandClass::Delete,
        CommandClass::Arithmetic,
        CommandClass::Touch,
        CommandClass::LeaseGet,
        CommandClass::LeaseSet,
        CommandClass::Meta,
        CommandClass::Other,
    ];

    /// The word for it in labels.
    pub(crate) fn name(self) -> &'static str {
        match self {
            CommandClass::Get => "get",
            CommandClass::Store => "set",
            CommandClass::Delete => "delete",
            CommandClass::Arithmetic => "incr",
            CommandClass::Touch => "touch",
            CommandClass::LeaseGet => "lease_get",
            CommandClass::LeaseSet => "lease_set",
            CommandClass::Meta => "meta",
            CommandClass::Other => "other",
        }
    }
}

/// One thread's histograms.
#[derive(Default)]
pub(crate) struct Latencies {
    by_class: [Histogram; CommandClass::ALL.len()],
}

impl Latencies {
    pub(crate) fn record(&self, class: CommandClass, took_us: u64) {
        self.by_class[class as usize].record(took_us);
    }

    /// Adds this thread's numbers of a class.
    pub(crate) fn add_to(&self, class: CommandClass, sum: &mut HistogramSum) {
        sum.add(&self.by_class[class as usize]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_have_their_own_histograms() {
        assert!(CommandClass::ALL.iter().enumerate().all(|(number, class)| *class as usize == number));
    }
}
