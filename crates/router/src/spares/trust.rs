//! Which spares' marks ([`super::prepare`]) are trusted after a configuration has removed spares ([`super`]).

use super::prepare;
use lookaside_routing::{Address, Pool};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The most spares that are remembered as distrusted. Beyond it no mark is trusted.
const DISTRUSTED_MAX: usize = 10_000;

/// The pools in force and the distrusted spares.
#[derive(Debug, Default)]
pub(super) struct MarkRegistry {
    pools: BTreeMap<String, Arc<Pool>>,
    /// Pools and spares that were removed from them by a configuration.
    distrusted: BTreeSet<(String, Address)>,
    distrusts_all: bool,
    /// Spares and marks to remove, because other routers may not have seen that configuration.
    marks_to_remove: Vec<(Address, String)>,
}

impl MarkRegistry {
    pub(super) fn is_trusted(&self, pool: &str, spare: &Address) -> bool {
        !self.distrusts_all && !self.distrusted.contains(&(pool.to_owned(), spare.clone()))
    }

    /// This router has flushed the spare.
    pub(super) fn trust(&mut self, pool: &str, spare: &Address) {
        self.distrusted.remove(&(pool.to_owned(), spare.clone()));
    }

    /// Replaces the pools, and distrusts the spares that `pools` lack.
    pub(super) fn set_pools(&mut self, pools: BTreeMap<String, Arc<Pool>>) {
        let before = std::mem::take(&mut self.pools);
        for (name, pool) in &before {
            for spare in pool.spares.iter().filter(|spare| !has_spare(&pools, name, spare)) {
                self.distrusts_all |= self.distrusted.len() >= DISTRUSTED_MAX;
                if !self.distrusts_all {
                    self.distrusted.insert((name.clone(), spare.clone()));
                    self.marks_to_remove.push((spare.clone(), prepare::mark_key(pool)));
                }
            }
        }
        self.pools = pools;
    }

    /// The marks to remove, once.
    pub(super) fn take_marks_to_remove(&mut self) -> Vec<(Address, String)> {
        std::mem::take(&mut self.marks_to_remove)
    }
}

pub(super) fn has_spare(pools: &BTreeMap<String, Arc<Pool>>, name: &str, spare: &Address) -> bool {
    pools.get(name).is_some_and(|pool| pool.spares.contains(spare))
}
