//! A validated configuration, together with the parts that the command line adds.

use crate::spares::Spares;
use crate::spool::Spool;
use crate::start_gate::StartGate;
use crate::tls::server_name;
use lookaside_client::tree::HostInfo;
use lookaside_client::{DestinationOptions, WindowSettings};
use lookaside_routing::{
    Address, Batch, BoxFuture, Configuration, ConfigurationErrors, ConfigurationWarning, Defaults, Destination,
    DestinationSettings, Destinations, Failure, Handle, KeyHash, MacroConstant, MacroInputs, Outcomes, Pool,
    PoolEntries, PoolRouteConfig, Route, ShadowSettings,
};
use md5::{Digest as _, Md5};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// The default of `--failover-timeout`: a quarter of the default server timeout, and many round trips.
pub const FAILOVER_TIMEOUT: Duration = Duration::from_millis(250);

/// A validated configuration, and the options for servers that it does not contain.
#[derive(Clone, Debug)]
pub struct RouterConfig {
    text: String,
    digest: String,
    configuration: Configuration,
    /// See [`Defaults::data_options`].
    data_options: String,
    destination_options: DestinationOptions,
    host: HostInfo,
    spool: Option<Arc<Spool>>,
    spares: Option<Arc<Spares>>,
    start_gate: Option<Arc<StartGate>>,
    window: Option<WindowSettings>,
    is_measured: bool,
    failover_timeout: Option<Duration>,
    shadow_settings: ShadowSettings,
    unleased_copies_after: Option<Duration>,
    constants: BTreeMap<String, MacroConstant>,
    imported: BTreeMap<String, String>,
}

impl RouterConfig {
    /// Parses a configuration. The errors have line, column and reason.
    pub fn parse(
        text: &str,
        defaults: &Defaults,
        destination_options: &DestinationOptions,
    ) -> Result<RouterConfig, ConfigurationErrors> {
        RouterConfig::parse_with(text, defaults, destination_options, &MacroInputs::NONE)
    }

    /// As [`RouterConfig::parse`], with macros that may use `inputs`.
    pub(crate) fn parse_with(
        text: &str,
        defaults: &Defaults,
        destination_options: &DestinationOptions,
        inputs: &MacroInputs<'_>,
    ) -> Result<RouterConfig, ConfigurationErrors> {
        let configuration = Configuration::parse_with(text, defaults, inputs)?;
        configuration.check_tls_policies(|server, policy| server_name(server, policy).map(drop))?;
        let destination_options = destination_options.clone();
        Ok(RouterConfig {
            digest: md5_digest(text),
            text: self_contained(text, inputs)?,
            configuration,
            data_options: defaults.data_options(),
            destination_options,
            host: HostInfo::from_name("", 0),
            spool: None,
            spares: None,
            start_gate: None,
            window: None,
            is_measured: false,
            failover_timeout: Some(FAILOVER_TIMEOUT),
            shadow_settings: ShadowSettings::default(),
            unleased_copies_after: None,
            constants: inputs.constants.clone(),
            imported: BTreeMap::new(),
        })
    }

    /// The configuration for this host. Without it all hosts are alike, and the wall clock starts at 1970.
    pub fn with_host(self, host: HostInfo) -> RouterConfig {
        RouterConfig { host, ..self }
    }

    /// The configuration with failed deletes spooled in `spool`, if there is one. The spool must have the destination
    /// options' TKO trackers.
    pub fn with_spool(self, spool: Option<Arc<Spool>>) -> RouterConfig {
        RouterConfig { spool, ..self }
    }

    /// The configuration with spares that replace servers after long outages. They must have the destination options'
    /// TKO trackers. Without it spares receive deletes, and never serve.
    pub fn with_spares(self, spares: Arc<Spares>) -> RouterConfig {
        RouterConfig { spares: Some(spares), ..self }
    }

    /// The configuration with a gate that gets must pass, if there is one.
    pub fn with_start_gate(self, start_gate: Option<Arc<StartGate>>) -> RouterConfig {
        RouterConfig { start_gate, ..self }
    }

    /// The configuration with one window over all that a thread has outstanding, if `window` is `Some`.
    pub fn with_window(self, window: Option<WindowSettings>) -> RouterConfig {
        RouterConfig { window, ..self }
    }

    /// The configuration with or without counts for each pool and server.
    pub fn with_target_stats(self, is_measured: bool) -> RouterConfig {
        RouterConfig { is_measured, ..self }
    }

    /// The configuration with a limit on the time that the further destinations of a request may take after one has
    /// timed out, [`FAILOVER_TIMEOUT`] by default; `None`: each may take a server timeout.
    pub fn with_failover_timeout(self, failover_timeout: Option<Duration>) -> RouterConfig {
        RouterConfig { failover_timeout, ..self }
    }

    /// The configuration with other settings of shadows than the default.
    pub fn with_shadow_settings(self, shadow_settings: ShadowSettings) -> RouterConfig {
        RouterConfig { shadow_settings, ..self }
    }

    /// The configuration with values of former owners copied without leases after a time, if `after` is `Some`: for a
    /// simulation that shows why leases are needed.
    pub fn with_unleased_copies(self, after: Option<Duration>) -> RouterConfig {
        RouterConfig { unleased_copies_after: after, ..self }
    }

    /// The configuration with the digests of the files that it imports, by their paths.
    pub(crate) fn with_imported(self, imported: BTreeMap<String, String>) -> RouterConfig {
        RouterConfig { imported, ..self }
    }

    /// The constants that its macros could use.
    pub(crate) fn constants(&self) -> &BTreeMap<String, MacroConstant> {
        &self.constants
    }

    /// The digests of the files that it imports, by their paths.
    pub(crate) fn imported(&self) -> &BTreeMap<String, String> {
        &self.imported
    }

    /// How long copies without leases are delayed; `None` if copies have leases.
    pub(crate) fn unleased_copies_after(&self) -> Option<Duration> {
        self.unleased_copies_after
    }

    /// The limit on the time that the further destinations of a request may take after one has timed out.
    pub(crate) fn failover_timeout(&self) -> Option<Duration> {
        self.failover_timeout
    }

    /// The settings of shadows.
    pub(crate) fn shadow_settings(&self) -> &ShadowSettings {
        &self.shadow_settings
    }

    /// Whether each pool and server is measured.
    pub fn is_measured(&self) -> bool {
        self.is_measured
    }

    /// The window over all that a thread has outstanding; `None` if there is no limit.
    pub fn window(&self) -> Option<WindowSettings> {
        self.window
    }

    /// The spares; `None` if they never serve.
    pub(crate) fn spares(&self) -> Option<&Arc<Spares>> {
        self.spares.as_ref()
    }

    /// The gate that gets must pass; `None` if there is none.
    pub(crate) fn start_gate(&self) -> Option<&Arc<StartGate>> {
        self.start_gate.as_ref()
    }

    /// The spool for failed deletes.
    pub fn spool(&self) -> Option<&Arc<Spool>> {
        self.spool.as_ref()
    }

    /// Every server that it names.
    pub fn servers(&self) -> BTreeSet<Address> {
        let mut collector = ServerCollector::default();
        drop(self.configuration.build(&mut collector));
        collector.servers
    }

    /// Every server that may hold a key that begins with `key_prefix`, and perhaps others.
    pub(crate) fn servers_of_keys(&self, key_prefix: &[u8]) -> BTreeSet<Address> {
        let mut collector = ServerCollector::default();
        self.configuration.visit_servers_of_keys(key_prefix, &mut collector);
        collector.servers
    }

    /// Every server that it names, with the settings of its connections.
    pub(crate) fn leaves(&self) -> BTreeSet<(Address, DestinationSettings)> {
        let mut collector = ServerCollector::default();
        drop(self.configuration.build(&mut collector));
        collector.leaves
    }

    /// Every use of a pool by its routes. Pools may have no name, or be used more than once.
    pub(crate) fn pool_uses(&self) -> Vec<Pool> {
        let mut collector = ServerCollector::default();
        drop(self.configuration.build(&mut collector));
        collector.pool_uses
    }

    /// Every pool that its routes use, by name.
    pub fn pools(&self) -> BTreeMap<String, Arc<Pool>> {
        let mut collector = ServerCollector::default();
        drop(self.configuration.build(&mut collector));
        collector.pools
    }

    /// Every pool that its `PoolRoute`s use, by name, unless two of them differ.
    pub(crate) fn pool_routes(&self) -> BTreeMap<String, PoolUse> {
        let mut collector = ServerCollector::default();
        drop(self.configuration.build(&mut collector));
        collector.pool_routes.into_iter().filter_map(|(name, pool)| Some((name, pool?))).collect()
    }

    /// The host it is for.
    pub fn host(&self) -> HostInfo {
        self.host
    }

    /// The text it was read from; if that uses more than itself, the text with its macros expanded.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The MD5 of the source's text, in hexadecimal digits.
    pub(crate) fn md5_digest(&self) -> &str {
        &self.digest
    }

    /// The parsed text.
    pub fn configuration(&self) -> &Configuration {
        &self.configuration
    }

    /// The options of the command line that decide where a key is and what clients get for it.
    pub(crate) fn data_options(&self) -> &str {
        &self.data_options
    }

    /// The options of every destination. The configuration overrides the timeouts.
    pub fn destination_options(&self) -> &DestinationOptions {
        &self.destination_options
    }

    /// Warnings about settings that were ignored.
    pub fn warnings(&self) -> &[ConfigurationWarning] {
        &self.configuration.warnings
    }
}

/// The MD5 of a text, in hexadecimal digits.
pub(crate) fn md5_digest(text: &str) -> String {
    Md5::digest(text).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A text that stands for `text` without `inputs`: the text itself, or with its macros expanded.
fn self_contained(text: &str, inputs: &MacroInputs<'_>) -> Result<String, ConfigurationErrors> {
    let expanded = Configuration::expand_macros_with(text, inputs)?;
    match Configuration::expand_macros(text) {
        Ok(without_inputs) if without_inputs == expanded => Ok(text.to_owned()),
        _ => Ok(expanded),
    }
}

/// A pool and the hash over its servers.
#[derive(Clone, PartialEq)]
pub(crate) struct PoolUse {
    pub(crate) pool: Arc<Pool>,
    pub(crate) hash: KeyHash,
}

/// Collects the servers and pools that a configuration names.
#[derive(Default)]
struct ServerCollector {
    servers: BTreeSet<Address>,
    leaves: BTreeSet<(Address, DestinationSettings)>,
    pools: BTreeMap<String, Arc<Pool>>,
    pool_uses: Vec<Pool>,
    /// `None` if uses of the pool differ.
    pool_routes: BTreeMap<String, Option<PoolUse>>,
}

impl Destinations for ServerCollector {
    fn destination(&mut self, address: &Address, settings: &DestinationSettings) -> Arc<dyn Destination> {
        self.servers.insert(address.clone());
        self.leaves.insert((address.clone(), *settings));
        Arc::new(UnusedDestination(address.clone()))
    }

    fn use_pool(&mut self, pool: &Pool) {
        self.pool_uses.push(pool.clone());
    }

    fn wrap_route(&mut self, handle: &Handle, route: Arc<dyn Route>) -> Arc<dyn Route> {
        if let Some(pool) = handle.pool() {
            self.pools.insert(pool.name.clone(), pool.clone());
        }
        // Routes among the servers have no address, by which a former owner is read.
        if let Some(PoolRouteConfig { entries, hash, .. }) = handle.config::<PoolRouteConfig>()
            && !entries.has_routes()
        {
            let PoolEntries { pool, .. } = entries;
            let pool_use = PoolUse { pool: pool.clone(), hash: hash.clone() };
            let known = self.pool_routes.entry(pool.name.clone()).or_insert_with(|| Some(pool_use.clone()));
            *known = known.take().filter(|known| *known == pool_use);
        }
        route
    }
}

/// A destination that receives no requests.
struct UnusedDestination(Address);

impl Destination for UnusedDestination {
    fn send(&self, batch: Batch) -> BoxFuture<'_, Outcomes> {
        Box::pin(std::future::ready(vec![Err(Failure::NoTree); batch.len()]))
    }

    fn address(&self) -> &Address {
        &self.0
    }
}
