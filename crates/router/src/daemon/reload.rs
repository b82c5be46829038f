//! Loads configurations, the first and all later ones.

use super::etcd_history::EtcdHistory;
use super::etcd_network::{etcd_network, source_network};
use super::runtime_variables::RuntimeVariablesFile;
use crate::admin::stats_files::config_sources;
use crate::backend::keepalive::KeepaliveNetwork;
use crate::backend::tls_connector::TlsNetwork;
use crate::cli::Options;
use crate::config::dump::ConfigDump;
use crate::config::inputs::ConfigInputs;
use crate::config::last_good::LastGoodConfig;
use crate::config::router_config::RouterConfig;
use crate::frontend::users::Users;
use crate::resize::driver::{ResizeHost, Resizer};
use crate::resize::history::HistoryStore;
use crate::resize::status::ResizeStatus;
use crate::shared::SharedState;
use crate::spares::Spares;
use crate::spool::Spool;
use crate::start_gate::StartGate;
use crate::tls::Certificates;
use crate::tree::active_configs::ActiveConfigs;
use crate::worker::new_runtime;
use lookaside_client::config::{ConfigWatcher, EtcdLocation, Source, read_config_file};
use lookaside_client::tree::HostInfo;
use lookaside_client::{DestinationOptions, LoginNetwork, Network, TcpNetwork, WindowSettings};
use lookaside_routing::{Address, Defaults, RoutingPrefix, Security, TlsPolicy};
use std::collections::BTreeMap;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use std::time::{SystemTime, UNIX_EPOCH};
use tokio::signal::unix::Signal;

/// Loads configurations, and adds the options of the command line.
pub(super) struct ConfigLoader {
    source: Source,
    /// The network to etcd.
    etcd: Arc<TlsNetwork>,
    /// Where the routers of the cluster share the history of their changes; `None` if they share none.
    history: Option<Arc<dyn HistoryStore>>,
    /// `None` without `--config-cache`.
    last_good: Option<LastGoodConfig>,
    /// `None` without `--config-dump-root`.
    dump: Option<ConfigDump>,
    inputs: ConfigInputs,
    defaults: Defaults,
    destination_options: DestinationOptions,
    /// `None` without `--spool`.
    pub(super) spool: Option<Arc<Spool>>,
    spares: Arc<Spares>,
    /// `None` without `--wait-for-invalidator`.
    pub(super) start_gate: Option<Arc<StartGate>>,
    window: Option<WindowSettings>,
    threads: usize,
    /// Whether changes of the source are read.
    is_reloading: bool,
    is_measured: bool,
    failover_timeout: Option<Duration>,
    pub(super) runtime_variables: RuntimeVariablesFile,
    certificates: Arc<Certificates>,
    /// The network to servers and to the other routers.
    network: Arc<TlsNetwork>,
    /// The same; logs in at the other routers.
    spool_network: Arc<dyn Network>,
    peers: Vec<(Address, TlsPolicy)>,
}

pub(super) struct InitialConfig {
    pub(super) config: RouterConfig,
    /// The text of the source; `None` if it could not be read.
    pub(super) seen: Option<String>,
    /// Why the source's text is not the configuration; `None` if it is.
    pub(super) refusal: Option<String>,
}

impl ConfigLoader {
    pub(super) fn new(options: &Options) -> Result<ConfigLoader, String> {
        let destination_options = options.servers.destination_options(options.take_over);
        let tko_trackers = destination_options.tko_trackers.clone().expect("the options give all destinations one");
        let spares = Spares::new(tko_trackers);
        let (source, defaults) = (options.configuration.source()?, options.defaults()?);
        // A configuration that is to be checked is not replaced by another one.
        let is_checked = options.configuration.validate_config.is_some();
        let last_good = options.configuration.config_cache.as_deref().filter(|_| !is_checked).map(LastGoodConfig::new);
        let dump = options.config_dump().filter(|_| !is_checked);
        let host = HostInfo::from_name(&host_name(), unix_s());
        let inputs = ConfigInputs::new(&source, options.macro_constants(host.id)?);
        let certificates = Arc::new(Certificates::read(options.tls.files())?);
        let etcd = source_network(&source, &certificates).map_err(|why| format!("--config: {why}"))?;
        let history = options.configuration.history(&source)?;
        if let Some(location) = &history
            && location.user.is_some()
            && !location.is_secured
        {
            tracing::warn!(etcd = %location, "the etcd user's password is sent unencrypted; use etcds://");
        }
        let history = history.map(|location| open_history(location, &defaults.prefix, &certificates)).transpose()?;
        let peers = options.spool.peer_policies();
        certificates
            .check_for_servers(&peers.iter().cloned().collect())
            .map_err(|why| format!("--spool-peers: {why}"))?;
        let tcp: Arc<dyn Network> = match options.servers.keepalive() {
            Some(keepalive) => Arc::new(KeepaliveNetwork::new(Arc::new(TcpNetwork), keepalive)),
            None => Arc::new(TcpNetwork),
        };
        let network = Arc::new(TlsNetwork::new(tcp, certificates.clone()));
        Ok(ConfigLoader {
            source,
            etcd: Arc::new(etcd),
            history,
            last_good,
            dump,
            inputs,
            defaults,
            destination_options,
            spool: None,
            spares,
            start_gate: None,
            window: options.servers.window.settings(),
            threads: options.threads(),
            is_reloading: !options.configuration.disable_reload_configs,
            is_measured: options.metrics_address.is_some(),
            failover_timeout: options.servers.failover_timeout(),
            runtime_variables: RuntimeVariablesFile::read(&options.shadows),
            spool_network: spool_network(options, network.clone())?,
            network,
            certificates,
            peers,
        })
    }

    pub(super) fn source(&self) -> &Source {
        &self.source
    }

    pub(super) fn is_reloading(&self) -> bool {
        self.is_reloading
    }

    pub(super) fn etcd(&self) -> Arc<TlsNetwork> {
        self.etcd.clone()
    }

    /// Where the routers of the cluster share the history of their changes; `None` if they share none.
    pub(super) fn history(&self) -> Option<Arc<dyn HistoryStore>> {
        self.history.clone()
    }

    pub(super) fn certificates(&self) -> &Arc<Certificates> {
        &self.certificates
    }

    pub(super) fn network(&self) -> Arc<TlsNetwork> {
        self.network.clone()
    }

    pub(super) fn spares(&self) -> &Arc<Spares> {
        &self.spares
    }

    /// Loads the first configuration: the source's, or else the last good one, or else the dumped one.
    pub(super) fn load_initial(&self) -> Result<InitialConfig, String> {
        let content = self.source.read_through(self.etcd.clone());
        if let Err(why) = &content {
            eprintln!("lookaside-router: Can not read config from {}: {why}", self.source);
        }
        let loaded = new_runtime()?.block_on(self.load_stable(content.clone()));
        let why = match loaded {
            Ok(config) => {
                self.save_last_good(&config, content.as_deref().ok());
                return Ok(InitialConfig { config, seen: content.ok(), refusal: None });
            }
            Err(why) => why,
        };
        // They may be what is wrong, and are watched until they are right.
        let imported = self.inputs.imported();
        if let Some(config) = self.load_dump(&why)? {
            self.inputs.watch(imported);
            return Ok(InitialConfig { config, seen: content.ok(), refusal: Some(why) });
        }
        let Some(last_good) = &self.last_good else { return Err(why) };
        let config = self.load(last_good.read()).map_err(|saved| format!("{why}; and of {last_good}: {saved}"))?;
        self.inputs.watch(imported);
        tracing::error!(
            cache = %last_good,
            "Failed to configure, initial error '{why}', from backup {last_good}: starting with the last good one"
        );
        Ok(InitialConfig { config, seen: content.ok(), refusal: Some(why) })
    }

    /// The configuration in the dump; `None` if there is none, or the last good one is used instead. `why` the source's
    /// is not used.
    ///
    /// Imported files are the dump's, too: those beside the source may be what is wrong, or newer, and then both
    /// together were never in force.
    fn load_dump(&self, why: &str) -> Result<Option<RouterConfig>, String> {
        let (Some(dump), Source::File(path), None) = (&self.dump, &self.source, &self.last_good) else {
            return Ok(None);
        };
        let config = dump.read(path).and_then(|text| self.load_from(&text, &|path| dump.read(path)));
        let config = config.map_err(|dumped| format!("{why}; and of its dump: {dumped}"))?;
        tracing::error!("Failed to configure, initial error '{why}', from backup {}", path.display());
        Ok(Some(config))
    }

    /// The error names the source and the line.
    fn load(&self, content: Result<String, String>) -> Result<RouterConfig, String> {
        let text = content.map_err(|why| format!("Can not read config from {}: {why}", self.source))?;
        self.load_from(&text, &|path| read_config_file(path))
    }

    /// The same of the source, together with which imported files may be replaced.
    async fn load_stable(&self, content: Result<String, String>) -> Result<RouterConfig, String> {
        let text = content.map_err(|why| format!("Can not read config from {}: {why}", self.source))?;
        let parsed = self.inputs.parse_stable(&text, &self.defaults, &self.destination_options).await;
        self.complete(parsed.map_err(|error| self.source.error_context(&error.to_string()))?)
    }

    /// The same, with imported files that `read` reads.
    fn load_from(&self, text: &str, read: &dyn Fn(&Path) -> Result<String, String>) -> Result<RouterConfig, String> {
        let config = self
            .inputs
            .parse_from(text, &self.defaults, &self.destination_options, read)
            .map_err(|error| self.source.error_context(&error.to_string()))?;
        self.complete(config)
    }

    /// A configuration from its own text, which needs no other file ([`RouterConfig::text`]).
    fn parse_saved(&self, text: &str) -> Result<RouterConfig, String> {
        let config = RouterConfig::parse(text, &self.defaults, &self.destination_options);
        self.complete(config.map_err(|error| self.source.error_context(&error.to_string()))?)
    }

    /// Checks a configuration against the certificates, and adds the options of the command line.
    fn complete(&self, config: RouterConfig) -> Result<RouterConfig, String> {
        let policies = &config.configuration().tls_policies;
        self.certificates.check_for_servers(policies).map_err(|why| self.source.error_context(&why))?;
        for warning in config.warnings() {
            tracing::warn!(source = %self.source, "{warning}");
        }
        Ok(config
            .with_host(HostInfo::from_name(&host_name(), unix_s()))
            .with_spool(self.spool.clone())
            .with_spares(self.spares.clone())
            .with_start_gate(self.start_gate.clone())
            .with_window(self.window)
            .with_target_stats(self.is_measured)
            .with_failover_timeout(self.failover_timeout)
            .with_shadow_settings(self.runtime_variables.settings()))
    }

    /// Saves a configuration that was taken, and the text of its source, where that is asked for.
    fn save_last_good(&self, config: &RouterConfig, text: Option<&str>) {
        if let Some(last_good) = &self.last_good {
            last_good.save(config.text());
        }
        let Some(dump) = &self.dump else { return };
        if let (Source::File(path), Some(text)) = (&self.source, text) {
            dump.save(path, text);
        }
        for (path, text) in self.inputs.imported() {
            match text {
                Ok(text) => dump.save(&path, &text),
                // `@import` has taken its default: from the dump it must take that again.
                Err(_) => dump.remove(&path),
            }
        }
    }

    /// What the configuration in force was read from.
    pub(super) fn config_sources(&self, config: &RouterConfig) -> serde_json::Value {
        config_sources(&self.source.to_string(), config)
    }

    /// Sets the TLS policies of servers, and the pools of the spares, before `active` is published.
    pub(super) fn prepare(&self, active: &ActiveConfigs) {
        let policies_of = |config: &RouterConfig| config.configuration().tls_policies.clone();
        let mut policies: BTreeMap<Address, TlsPolicy> =
            active.covered.iter().flat_map(|covered| policies_of(&covered.config)).collect();
        policies.extend(policies_of(&active.reads));
        for (server, _) in policies.iter().filter(|(_, policy)| policy.security == Security::UnverifiedTls) {
            tracing::warn!(%server, "the server's certificate is not verified (unsafe_ssl_skip_verification)");
        }
        self.network.set_policies(policies.into_iter().chain(self.peers.iter().cloned()));
        self.spares.configure(active.reads.pools());
    }

    /// Logs that `config` is in force.
    pub(super) fn log_in_force(&self, config: &RouterConfig) {
        let (threads, pools, clients) = (self.threads, config.pools().len(), config.servers().len());
        let digest = config.md5_digest();
        tracing::info!(source = %self.source, "reconfigured {threads} proxies with {pools} pools, {clients} clients {digest}");
    }

    /// The network to servers and to the other routers, at which it logs in.
    pub(super) fn spool_network(&self) -> Arc<dyn Network> {
        self.spool_network.clone()
    }

    /// Replays the spool. Never returns.
    pub(super) async fn replay_spool(&self) {
        match &self.spool {
            Some(spool) => spool.replay(self.spool_network.clone(), fastrand::u64(..)).await,
            None => std::future::pending().await,
        }
    }
}

fn open_history(
    location: EtcdLocation,
    prefix: &RoutingPrefix,
    certificates: &Arc<Certificates>,
) -> Result<Arc<dyn HistoryStore>, String> {
    let network = etcd_network(&location, certificates).map_err(|why| format!("--config-history: {why}"))?;
    Ok(Arc::new(EtcdHistory::new(location, prefix, Arc::new(network))))
}

/// The network to servers and to the other routers, where `--spool-peers-login` logs in.
fn spool_network(options: &Options, network: Arc<TlsNetwork>) -> Result<Arc<dyn Network>, String> {
    let Some(file) = &options.auth.spool_peers_login else { return Ok(network) };
    let peers = options.spool.peers().cloned().collect();
    let network = LoginNetwork::new(network, file, Some(peers)).map_err(|why| format!("--spool-peers-login: {why}"))?;
    Ok(Arc::new(network))
}

/// The daemon, as far as a change of the configuration needs it.
pub(super) struct ReloadHost<'a> {
    pub(super) loader: &'a ConfigLoader,
    pub(super) shared: &'a SharedState,
}

impl ResizeHost for ReloadHost<'_> {
    fn status(&self) -> &Arc<ResizeStatus> {
        self.shared.resize()
    }

    fn parse(&self, text: &str) -> Result<RouterConfig, String> {
        self.loader.parse_saved(text)
    }

    fn prepare(&self, active: &ActiveConfigs) {
        self.loader.prepare(active);
    }

    fn record_in_force(&self, config: &RouterConfig) {
        self.shared.record_config_applied();
        self.loader.log_in_force(config);
    }
}

/// Takes each valid change of the configuration through its steps, and refuses each invalid one. Never returns.
pub(super) async fn reload_loop(
    host: &ReloadHost<'_>,
    mut watcher: ConfigWatcher,
    hangup: &mut Signal,
    resizer: &mut Resizer,
) {
    let ReloadHost { loader, shared } = host;
    loop {
        let (content, loaded) = {
            let next_change = async {
                loop {
                    tokio::select! {
                        biased;
                        _ = hangup.recv() => {
                            tracing::info!("SIGHUP: reading the configuration");
                            watcher.request_read();
                        }
                        () = loader.inputs.wait_for_change() => {
                            tracing::info!("imported file changed: reading the configuration");
                            watcher.request_read();
                        }
                        content = watcher.next_change() => {
                            let loaded = loader.load_stable(content.clone()).await;
                            return (content, loaded);
                        }
                    }
                }
            };
            // It may take longer than the time between two events.
            let mut next_change = pin!(next_change);
            loop {
                tokio::select! {
                    biased;
                    change = &mut next_change => break change,
                    () = resizer.step(host) => {}
                }
            }
        };
        match loaded {
            Ok(config) => {
                loader.save_last_good(&config, content.as_deref().ok());
                tracing::info!(source = %loader.source, "configuration read; it is valid");
                shared.record_config_accepted();
                if let Err(why) = resizer.set_newest(config, host) {
                    tracing::error!(source = %loader.source, %why, "new configuration has no identity; this is a bug of the router");
                }
            }
            Err(why) => {
                tracing::error!(
                    source = %loader.source,
                    %why,
                    "Failed to reconfigure: Error while reconfiguring mcrouter after config change: the new configuration is \
                     refused, the old one stays in force"
                );
                shared.record_config_refused(why);
            }
        }
    }
}

/// Reloads the users of `-Y` and `-S` at each SIGHUP. Never returns.
pub(super) async fn reload_users(users: Option<&Users>, hangup: &mut Signal) {
    let Some(users) = users else { return std::future::pending().await };
    while hangup.recv().await.is_some() {
        users.reload_and_log();
    }
}

/// The host's name; empty if the system has none, and then all hosts are alike.
fn host_name() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default()
}

/// The wall clock, in seconds since 1970.
pub(super) fn unix_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
