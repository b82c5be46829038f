//! The counts of one thread. `admin` adds up the threads and reports the sums.

pub(crate) mod by_verb;
pub(crate) mod command_class;
pub(crate) mod counters;
pub(crate) mod per_target;
pub(crate) mod plain_leases;
pub(crate) mod rates;
