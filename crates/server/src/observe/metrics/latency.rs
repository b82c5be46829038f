//! Latencies, by class of command.
//!
//! A latency is the time from the wake-up of a worker by new input until the reply is passed to the kernel. It includes
//! the wait for other requests of the same round, but neither the network nor the time that input waits for a busy
//! worker. All commands that a connection has sent at once get one reply, which counts for the class of its first
//! command.

use lookaside_telemetry::{Histogram, HistogramSum};

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
    /// All classes, in the order of their discriminants.
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

    /// The name in labels.
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

#[derive(Default)]
pub(crate) struct Latencies {
    by_class: [Histogram; CommandClass::ALL.len()],
}

impl Latencies {
    pub(crate) fn record(&self, class: CommandClass, took_us: u64) {
        self.by_class[class as usize].record(took_us);
    }

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
