//! The state from which a process starts: that of its disk, its peers or the shared history.

use super::ResizeHost;
use crate::config::router_config::RouterConfig;
use crate::resize::coverage::{COVERED_MAX, Candidate, SavedConfig, SavedCoverage};
use crate::resize::pool_servers::ConfigServers;
use crate::resize::report::CoverageReport;
use crate::resize::store::StoredCoverage;
use lookaside_client::config::ConfigId;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The state from which a process starts.
pub(crate) struct InitialCoverage {
    pub(super) coverage: SavedCoverage,
    pub(super) configs: BTreeMap<ConfigId, Arc<RouterConfig>>,
}

impl InitialCoverage {
    /// A first start.
    pub(crate) fn first(config: RouterConfig) -> Result<InitialCoverage, String> {
        let (config, candidate) = candidate_of(config)?;
        let reads = candidate.id;
        let covered = vec![SavedConfig { config: candidate, is_claimed: true, was_read: true }];
        let coverage = SavedCoverage { reads, covered, departed: Default::default() };
        Ok(InitialCoverage { coverage, configs: [(reads, config)].into() })
    }

    /// The state on disk.
    pub(crate) fn stored(stored: &StoredCoverage, host: &dyn ResizeHost) -> Result<InitialCoverage, String> {
        let reads = stored.reads().ok_or("\"reads\" is not an identity")?;
        let (mut covered, mut configs) = (Vec::new(), BTreeMap::new());
        for saved in &stored.covered {
            let (config, candidate) = candidate_of(host.parse(&saved.text)?)?;
            configs.insert(candidate.id, config);
            covered.push(SavedConfig { config: candidate, is_claimed: saved.is_claimed, was_read: saved.was_read });
        }
        match configs.contains_key(&reads) {
            true => {
                let coverage = SavedCoverage { reads, covered, departed: stored.departed() };
                Ok(InitialCoverage { coverage, configs })
            }
            false => Err(format!("the configuration {reads}, by which the router reads, is missing")),
        }
    }

    fn usable(&self) -> impl Iterator<Item = UsableConfig> {
        self.coverage.covered.iter().map(|saved| UsableConfig {
            config: self.configs[&saved.config.id].clone(),
            candidate: saved.config.clone(),
        })
    }

    /// Covers configurations of the shared history, too.
    pub(crate) fn cover_recorded(&mut self, recorded: Vec<UsableConfig>) {
        for UsableConfig { config, candidate } in recorded {
            if self.configs.contains_key(&candidate.id) || self.coverage.covered.len() >= COVERED_MAX {
                continue;
            }
            self.configs.insert(candidate.id, config);
            self.coverage.covered.push(SavedConfig { config: candidate, is_claimed: true, was_read: true });
        }
    }

    /// Whether all peers that have reported will cover what this reads until they have seen that it is not read.
    pub(crate) fn is_known_to(&self, reports: &[CoverageReport]) -> bool {
        reports.iter().all(|report| report.claims.contains(&self.coverage.reads))
    }

    /// The state by the peers' reports and the configurations that these and the history name, of a router that has
    /// none on disk or an outdated one. `None` if no peer has reported.
    pub(crate) fn of_peers(
        reports: &[CoverageReport],
        configs_of_peers: Vec<UsableConfig>,
        recorded: &[UsableConfig],
        outdated: Option<&InitialCoverage>,
    ) -> Result<Option<InitialCoverage>, String> {
        let (mut candidates, mut configs) = (Vec::new(), BTreeMap::new());
        // It covers what it covered, so that misplaced copies are removed.
        let own = outdated.into_iter().flat_map(InitialCoverage::usable);
        let known = configs_of_peers.into_iter().chain(recorded.iter().cloned()).chain(own);
        for UsableConfig { config, candidate } in known {
            if configs.insert(candidate.id, config).is_none() {
                candidates.push(candidate);
            }
        }
        let coverage = SavedCoverage::from_peers(reports, candidates).map(|mut coverage| {
            let recorded = recorded.iter().map(|usable| &usable.candidate);
            let own =
                outdated.iter().flat_map(|outdated| outdated.coverage.covered.iter().filter(|saved| saved.was_read));
            for read in recorded.chain(own.map(|saved| &saved.config)) {
                coverage.departed.record_read(&read.servers.all);
            }
            outdated.iter().for_each(|outdated| coverage.departed.add_all(&outdated.coverage.departed));
            coverage
        });
        match (coverage, reports.first().and_then(|report| report.reads.first())) {
            (Some(coverage), _) => Ok(Some(InitialCoverage { coverage, configs })),
            (None, None) => Ok(None),
            (None, Some(read)) => Err(format!(
                "a peer, or the history in etcd, reads by the configuration {read} and does not return its text; start this \
                 router again"
            )),
        }
    }
}

/// A configuration that this router can use.
#[derive(Clone)]
pub(crate) struct UsableConfig {
    pub(super) config: Arc<RouterConfig>,
    pub(super) candidate: Candidate,
}

impl UsableConfig {
    /// An error tells why `text` cannot be used.
    pub(crate) fn parse(text: &str, host: &dyn ResizeHost) -> Result<UsableConfig, String> {
        let (config, candidate) = candidate_of(host.parse(text)?)?;
        Ok(UsableConfig { config, candidate })
    }

    /// The same of the text of `id` in the history.
    pub(crate) fn parse_recorded(id: ConfigId, text: &str, host: &dyn ResizeHost) -> Result<UsableConfig, String> {
        match UsableConfig::parse(text, host)? {
            usable if usable.candidate.id == id => Ok(usable),
            other => Err(format!("its text has the identity {}", other.candidate.id)),
        }
    }
}

pub(super) fn candidate_of(config: RouterConfig) -> Result<(Arc<RouterConfig>, Candidate), String> {
    let servers = Arc::new(ConfigServers::of(&config));
    let candidate = Candidate { id: ConfigId::of(config.text())?, text: config.text().into(), servers };
    Ok((Arc::new(config), candidate))
}
