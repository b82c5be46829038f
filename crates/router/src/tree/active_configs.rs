//! The configurations in force: the one that requests are routed by, and the others that deletes cover
//! ([ADR 012](../../../../docs/adr/012-resize.md)).

use crate::config::router_config::RouterConfig;
use lookaside_routing::{Address, FormerOwnerCounters};
use lookaside_sync::SharedCounter;
use std::collections::BTreeSet;
use std::sync::Arc;

/// The configurations that every thread builds its tree from.
#[derive(Clone, Debug)]
pub struct ActiveConfigs {
    /// Increases with each change.
    pub(crate) number: u64,
    /// The configuration that requests are routed by.
    pub(crate) reads: Arc<RouterConfig>,
    /// Others, under which servers may hold copies, in the order in which deletes go to their places. Empty unless a
    /// change is in progress.
    pub(crate) covered: Vec<CoveredConfig>,
    /// How many of `covered` precede `reads` in that order.
    pub(crate) reads_at: usize,
    /// The configuration whose owners of moved keys are read after a miss; `None` if none are.
    pub(crate) former: Option<FormerConfig>,
    /// Deletes at places of `covered`.
    pub(crate) covering_deletes: Arc<SharedCounter>,
    /// Increases whenever other keys are leased for clients ([`lookaside_routing::Leasing`]).
    pub(crate) lease_version: u64,
}

/// A configuration to whose places deletes go, besides the one that requests are routed by.
#[derive(Clone, Debug)]
pub(crate) struct CoveredConfig {
    /// Its identity, for operators.
    pub(crate) id: Arc<str>,
    pub(crate) config: Arc<RouterConfig>,
    /// Servers that have departed: they are flushed before they serve again.
    pub(crate) departed: BTreeSet<Address>,
    /// No router can read by it.
    pub(crate) is_released: bool,
}

/// A configuration that was read before, and whose copies may still be read.
#[derive(Clone, Debug)]
pub(crate) struct FormerConfig {
    /// Its identity. It is covered.
    pub(crate) id: Arc<str>,
    pub(crate) config: Arc<RouterConfig>,
    pub(crate) counters: Arc<FormerOwnerCounters>,
}

impl ActiveConfigs {
    /// One configuration alone.
    pub fn single(config: Arc<RouterConfig>) -> ActiveConfigs {
        ActiveConfigs {
            number: 1,
            reads: config,
            covered: Vec::new(),
            reads_at: 0,
            former: None,
            covering_deletes: Arc::default(),
            lease_version: 0,
        }
    }

    /// The same for threads that `former` was sent to.
    pub fn after(self, former: &ActiveConfigs) -> ActiveConfigs {
        let is_other = self.reads.configuration().leased_keys != former.reads.configuration().leased_keys;
        ActiveConfigs { lease_version: former.lease_version + u64::from(is_other), ..self }
    }

    /// The configuration that requests are routed by.
    pub fn reads(&self) -> &Arc<RouterConfig> {
        &self.reads
    }

    /// The configuration whose owners of moved keys are read after a miss; `None` if none are.
    pub fn former(&self) -> Option<&Arc<RouterConfig>> {
        self.former.as_ref().map(|former| &former.config)
    }

    /// Whether another one is covered.
    pub fn is_changing(&self) -> bool {
        !self.covered.is_empty()
    }

    /// Every server that any of them names, and that has not departed.
    pub fn servers(&self) -> BTreeSet<Address> {
        let mut servers = self.reads.servers();
        for covered in &self.covered {
            servers.extend(covered.config.servers().difference(&covered.departed).cloned());
        }
        servers
    }
}
