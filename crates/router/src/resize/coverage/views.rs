//! What others see of a coverage: the disk, the peers, the threads, the operator.

use super::{Candidate, Coverage, Stage};
use crate::resize::departed::Departed;
use crate::resize::report::CoverageReport;
use lookaside_client::config::ConfigId;
use lookaside_routing::Address;
use std::collections::BTreeSet;

/// The part of a coverage that outlives the process.
#[derive(Clone, Debug)]
pub(crate) struct SavedCoverage {
    /// One of `covered`.
    pub(crate) reads: ConfigId,
    pub(crate) covered: Vec<SavedConfig>,
    pub(crate) departed: Departed,
}

#[derive(Clone, Debug)]
pub(crate) struct SavedConfig {
    pub(crate) config: Candidate,
    pub(crate) is_claimed: bool,
    pub(crate) was_read: bool,
}

/// What the threads of the process are to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ActiveCoverage {
    /// Increases with each change.
    pub(crate) number: u64,
    pub(crate) reads: ConfigId,
    /// The other covered configurations in the order of their deletes, and the servers that are left out of each.
    pub(crate) others: Vec<(ConfigId, BTreeSet<Address>)>,
    /// How many of `others` precede the one that is read.
    pub(crate) reads_at: usize,
    /// Those of `others` that are being purged: no router can read by them.
    pub(crate) released: Vec<ConfigId>,
    /// The configuration whose owners of moved keys are read after a miss; `None` if none are.
    pub(crate) former: Option<ConfigId>,
}

impl SavedCoverage {
    /// The state of a router that remembers nothing, from the reports of its peers. `configs` are those that the
    /// reports name, in the order of the first report that has them: that of a peer whose deletes others rely on. It
    /// has to cover what its peers cover, and reads what they read. `None` without a report.
    pub(crate) fn from_peers(reports: &[CoverageReport], configs: Vec<Candidate>) -> Option<SavedCoverage> {
        let reads = *reports.first()?.reads.first()?;
        let is_read = |id: &ConfigId| reports.iter().any(|report| report.reads.contains(id));
        // Before it lost its memory, it may have sent no deletes to any other server.
        let (read, other): (Vec<_>, Vec<_>) = configs.iter().partition(|config| is_read(&config.id));
        let servers = |configs: Vec<&Candidate>| -> BTreeSet<Address> {
            configs.iter().flat_map(|config| config.servers.all.clone()).collect()
        };
        let read = servers(read);
        let mut departed = Departed::default();
        // What one router knows to be this cluster's is that, whatever another one has missed.
        departed.add(reports.iter().flat_map(|report| report.departed.difference(&report.departed_unread)).cloned());
        departed.add_unread(reports.iter().flat_map(|report| &report.departed_unread).cloned());
        departed.record_read(&read);
        departed.add_unread(servers(other).difference(&read).cloned());
        let saved = |config: Candidate| SavedConfig { is_claimed: true, was_read: is_read(&config.id), config };
        let covered: Vec<SavedConfig> = configs.iter().cloned().map(saved).collect();
        covered.iter().any(|covered| covered.config.id == reads).then_some(SavedCoverage { reads, covered, departed })
    }

    /// Whether both are the same on disk.
    pub(crate) fn is_same(&self, other: &SavedCoverage) -> bool {
        let is_same = |(one, other): (&SavedConfig, &SavedConfig)| {
            let flags = |saved: &SavedConfig| (saved.config.id, saved.is_claimed, saved.was_read);
            flags(one) == flags(other) && one.config.text == other.config.text
        };
        self.reads == other.reads
            && self.departed == other.departed
            && self.covered.len() == other.covered.len()
            && self.covered.iter().zip(&other.covered).all(is_same)
    }
}

impl Coverage {
    /// What must be on disk before the report is announced to peers and the change is sent to the threads.
    pub(crate) fn saved(&self) -> SavedCoverage {
        let saved = |covered: &super::Covered| SavedConfig {
            config: covered.config.clone(),
            is_claimed: covered.stage == Stage::Claimed,
            was_read: covered.was_read,
        };
        let covered = self.covered.iter().map(saved).collect();
        SavedCoverage { reads: self.reads, covered, departed: self.departed.clone() }
    }

    pub(crate) fn report(&self) -> CoverageReport {
        let mut reads = vec![self.reads];
        let former = self.former.as_ref().map(|former| former.id);
        for id in former.into_iter().chain(self.draining.iter().map(|(id, _)| *id)) {
            if !reads.contains(&id) {
                reads.push(id);
            }
        }
        let claimed = self.covered.iter().filter(|covered| covered.stage == Stage::Claimed);
        CoverageReport {
            reads,
            waits_for: self.target,
            claims: claimed.map(|covered| covered.config.id).collect(),
            covers: self.covered.iter().map(|covered| covered.config.id).collect(),
            is_ordered: true,
            departed: self.departed.servers.iter().cloned().collect(),
            departed_unread: self.departed.unread.clone(),
        }
    }

    /// Whether former owners are read.
    pub(crate) fn is_warming_up(&self) -> bool {
        self.former.is_some()
    }

    /// What the threads are to do.
    pub(crate) fn active(&self) -> ActiveCoverage {
        let others = self.covered.iter().filter(|covered| covered.config.id != self.reads);
        let left_out = |stage: &Stage| match stage {
            Stage::Purging { departed, .. } => departed.clone(),
            _ => BTreeSet::new(),
        };
        let others = others.map(|covered| (covered.config.id, left_out(&covered.stage))).collect();
        let reads_at = self.covered.iter().position(|covered| covered.config.id == self.reads);
        let reads_at = reads_at.expect("what is read is covered");
        let former = self.former.as_ref().map(|former| former.id);
        let released = self.covered.iter().filter(|covered| !covered.is_active());
        let released = released.map(|covered| covered.config.id).collect();
        ActiveCoverage { number: self.number, reads: self.reads, others, reads_at, released, former }
    }

    /// The configurations that are covered and not being purged.
    pub(crate) fn active_ids(&self) -> Vec<ConfigId> {
        self.covered.iter().filter(|covered| covered.is_active()).map(|covered| covered.config.id).collect()
    }

    /// The configuration that it reads by.
    pub(crate) fn reads(&self) -> ConfigId {
        self.reads
    }

    /// The configuration that it waits for; `None` if it reads by the newest.
    pub(crate) fn target(&self) -> Option<ConfigId> {
        self.target
    }

    /// The stage of the configuration that it waits for.
    pub(crate) fn target_stage(&self) -> Option<&Stage> {
        Some(&self.get(self.target?)?.stage)
    }

    /// Whether a step is outstanding.
    pub(crate) fn is_changing(&self) -> bool {
        self.covered.len() > 1 || self.next.is_some()
    }

    pub(crate) fn covered(&self) -> impl Iterator<Item = &Candidate> {
        self.covered.iter().map(|covered| &covered.config)
    }
}
