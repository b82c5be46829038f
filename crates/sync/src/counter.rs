//! Counters, and a macro that declares a set of them with its snapshot.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A number that one thread increments and any thread may read: a load and a store, no locked instruction.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds `amount`. Only the owning thread may call this; a second writer would lose counts, nothing worse.
    pub fn add(&self, amount: u64) {
        self.0.store(self.0.load(Relaxed) + amount, Relaxed);
    }

    /// The number.
    pub fn value(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// A number that any thread may increment, with one locked instruction.
#[derive(Debug, Default)]
pub struct SharedCounter(AtomicU64);

impl SharedCounter {
    /// Adds `amount`.
    pub fn add(&self, amount: u64) {
        self.0.fetch_add(amount, Relaxed);
    }

    /// The number.
    pub fn value(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// Declares a struct of counters and a struct of plain numbers with the same fields: a snapshot of the counters, a sum
/// over threads, or the amounts that one event adds.
///
/// The type after the first name is that of each counter: [`Counter`] or [`SharedCounter`]. The name of a field is also
/// its name in `stats`, unless `=> "name"` gives another. Attributes of either struct are kept.
///
/// ```
/// use lookaside_sync::{Counter, counters};
///
/// counters! {
///     /// The counters of one thread.
///     #[repr(align(128))]
///     pub struct Counters(Counter);
///
///     /// A snapshot of [`Counters`], or a sum of snapshots.
///     pub struct Counts;
///
///     /// Keys requested.
///     cmd_get,
///     /// Servers flushed.
///     flushes => "spool_flushes",
/// }
///
/// let counters = Counters::default();
/// counters.cmd_get.add(2);
/// counters.add(&Counts { flushes: 1, ..Counts::default() });
/// let mut sum = counters.snapshot();
/// sum.add(&counters.snapshot());
/// assert_eq!((sum.cmd_get, sum.flushes), (4, 2));
/// assert_eq!(sum.named().collect::<Vec<_>>(), [("cmd_get", 4), ("spool_flushes", 2)]);
/// ```
#[macro_export]
macro_rules! counters {
    (
        $(#[$counters_meta:meta])* $counters_vis:vis struct $counters:ident($counter:ty);
        $(#[$counts_meta:meta])* $counts_vis:vis struct $counts:ident;
        $($(#[$meta:meta])* $name:ident $(=> $stat:literal)?,)*
    ) => {
        $(#[$counters_meta])*
        #[derive(Debug, Default)]
        $counters_vis struct $counters { $($(#[$meta])* $counters_vis $name: $counter,)* }

        $(#[$counts_meta])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        $counts_vis struct $counts { $($(#[$meta])* $counts_vis $name: u64,)* }

        #[allow(dead_code, reason = "not every set of counters needs every function")]
        impl $counters {
            /// The numbers at this moment.
            $counters_vis fn snapshot(&self) -> $counts {
                $counts { $($name: self.$name.value(),)* }
            }

            /// Adds each of `amounts` that is not 0.
            $counters_vis fn add(&self, amounts: &$counts) {
                $(if amounts.$name != 0 { self.$name.add(amounts.$name); })*
            }
        }

        #[allow(dead_code, reason = "not every set of counters needs every function")]
        impl $counts {
            /// Adds `other` to these numbers.
            $counts_vis fn add(&mut self, other: &$counts) {
                $(self.$name += other.$name;)*
            }

            /// The increase since `baseline`.
            $counts_vis fn since(&self, baseline: &$counts) -> $counts {
                $counts { $($name: self.$name.saturating_sub(baseline.$name),)* }
            }

            /// Each number with its name in `stats`.
            $counts_vis fn named(&self) -> impl Iterator<Item = (&'static str, u64)> + use<> {
                [$(($crate::counters!(@stat $name $($stat)?), self.$name),)*].into_iter()
            }
        }
    };
    (@stat $name:ident) => { stringify!($name) };
    (@stat $name:ident $stat:literal) => { $stat };
}

#[cfg(test)]
mod tests {
    use super::*;

    counters! {
        /// Counters of several threads.
        struct Counters(SharedCounter);

        /// Their values.
        struct Counts;

        /// Hits.
        hits,
        /// Misses.
        misses => "get_misses",
    }

    #[test]
    fn snapshots_add_up_and_are_compared_with_a_baseline() {
        let counters = Counters::default();
        counters.hits.add(3);
        counters.add(&Counts { misses: 2, ..Counts::default() });
        let baseline = counters.snapshot();
        counters.hits.add(1);
        let mut sum = counters.snapshot();
        assert_eq!(sum.since(&baseline), Counts { hits: 1, misses: 0 });
        assert_eq!(baseline.since(&sum), Counts::default(), "a reset races with a count");
        sum.add(&baseline);
        assert_eq!(sum, Counts { hits: 7, misses: 4 });
        assert_eq!(sum.named().collect::<Vec<_>>(), [("hits", 7), ("get_misses", 4)]);
    }

    #[test]
    fn both_counters_count() {
        let (own, shared) = (Counter::default(), SharedCounter::default());
        own.add(2);
        own.add(3);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..1_000).for_each(|_| shared.add(1)));
            }
        });
        assert_eq!((own.value(), shared.value()), (5, 4_000));
    }
}
