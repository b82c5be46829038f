//! Adds up what the routers of a run have done: a run in which no spool and no spare was used would prove nothing
//! about them.

use crate::checker::Checker;
use lookaside_router::{SharedState, Spares, Spool};
use std::sync::Arc;

/// The spools and spares of all routers that were started.
#[derive(Default)]
pub(super) struct Usage {
    spools: Vec<Arc<Spool>>,
    spares: Vec<Arc<Spares>>,
    shared: Vec<Arc<SharedState>>,
}

impl Usage {
    pub(super) fn add(&mut self, spool: &Option<Arc<Spool>>, spares: &Arc<Spares>, shared: &Arc<SharedState>) {
        self.spools.extend(spool.clone());
        self.spares.push(spares.clone());
        self.shared.push(shared.clone());
    }

    pub(super) fn count(&self, checker: &Checker) {
        checker.count(|tally| {
            for spool in &self.spools {
                let counts = spool.statistics().counts;
                tally.spooled += counts.spooled;
                tally.flushes += counts.flushes;
            }
            tally.former_owner_fills +=
                self.shared.iter().map(|shared| shared.resize().former_owners().fills.value()).sum::<u64>();
            tally.spare_takeovers += self.spares.iter().map(|spares| spares.statistics().takeovers).sum::<u64>();
        });
    }
}
