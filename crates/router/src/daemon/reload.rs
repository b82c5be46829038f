//! Loads configurations, the first and all later ones.

use super::EXIT_USAGE;
use super::etcd_network::etcd_network;
use crate::backend::tls_connector::TlsNetwork;
use crate::cli::Options;
use crate::config::last_good::LastGoodConfig;
use crate::config::router_config::RouterConfig;
use crate::frontend::users::Users;
use crate::resize::driver::{ResizeHost, Resizer};
use crate::resize::status::ResizeStatus;
use crate::shared::SharedState;
use crate::spares::Spares;
use crate::spool::Spool;
use crate::start_gate::StartGate;
use crate::tls::Certificates;
use crate::tree::active_configs::ActiveConfigs;
use lookaside_client::config::ConfigWatcher;
use lookaside_client::config::Source;
use lookaside_client::tree::HostInfo;
use lookaside_client::{DestinationOptions, LoginNetwork, Network, TcpNetwork, WindowSettings};
use lookaside_routing::{Address, Defaults, Security, TlsPolicy};
use std::collections::BTreeMap;
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
    /// `None` without `--config-cache`.
    last_good: Option<LastGoodConfig>,
    defaults: Defaults,
    destination_options: DestinationOptions,
    /// `None` without `--spool`.
    pub(super) spool: Option<Arc<Spool>>,
    spares: Arc<Spares>,
    /// `None` without `--wait-for-invalidator`.
    pub(super) start_gate: Option<Arc<StartGate>>,
    window: Option<WindowSettings>,
    is_measured: bool,
    failover_timeout: Option<Duration>,
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
        let destination_options = options.destination_options();
        let tko_trackers = destination_options.tko_trackers.clone().expect("the options give all destinations one");
        let spares = Spares::new(tko_trackers);
        let (source, defaults, window) = (options.source()?, options.defaults()?, options.window.settings());
        let last_good = options.config_cache.as_deref().filter(|_| !options.validate_config).map(LastGoodConfig::new);
        let certificates = Arc::new(Certificates::read(options.tls.files())?);
        let etcd = etcd_network(&source, &certificates).map_err(|why| format!("--config: {why}"))?;
        if let Source::Etcd(location) = &source
            && location.user.is_some()
            && !location.is_secured
        {
            tracing::warn!(etcd = %location, "the etcd user's password is sent unencrypted; use etcds://");
        }
        let peers = options.peer_policies();
        certificates
            .check_for_servers(&peers.iter().cloned().collect())
            .map_err(|why| format!("--spool-peers: {why}"))?;
        let network = Arc::new(TlsNetwork::new(Arc::new(TcpNetwork), certificates.clone()));
        Ok(ConfigLoader {
            source,
            etcd: Arc::new(etcd),
            last_good,
            defaults,
            destination_options,
            spool: None,
            spares,
            start_gate: None,
            window,
            is_measured: options.metrics_address.is_some(),
            failover_timeout: match options.failover_timeout {
                0 => None,
                ms => Some(Duration::from_millis(ms.into())),
            },
            spool_network: spool_network(options, network.clone())?,
            network,
            certificates,
            peers,
        })
    }

    pub(super) fn source(&self) -> &Source {
        &self.source
    }

    pub(super) fn etcd(&self) -> Arc<TlsNetwork> {
        self.etcd.clone()
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

    /// Loads the first configuration: the source's, or else the last good one.
    pub(super) fn load_initial(&self) -> Result<InitialConfig, String> {
        let content = self.source.read_through(self.etcd.clone());
        let why = match self.load(content.clone()) {
            Ok(config) => {
                self.save_last_good(&config);
                return Ok(InitialConfig { config, seen: content.ok(), refusal: None });
            }
            Err(why) => why,
        };
        let Some(last_good) = &self.last_good else { return Err(why) };
        let config = self.load(last_good.read()).map_err(|saved| format!("{why}; and of {last_good}: {saved}"))?;
        tracing::error!(cache = %last_good, %why, "cannot load the configuration; starting with the last good one");
        Ok(InitialConfig { config, seen: content.ok(), refusal: Some(why) })
    }

    /// The error names the source and the line.
    pub(super) fn load(&self, content: Result<String, String>) -> Result<RouterConfig, String> {
        let text = content.map_err(|why| self.source.error_context(&why))?;
        let config = RouterConfig::parse(&text, &self.defaults, &self.destination_options)
            .map_err(|error| self.source.error_context(&error.to_string()))?;
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
            .with_failover_timeout(self.failover_timeout))
    }

    fn save_last_good(&self, config: &RouterConfig) {
        if let Some(last_good) = &self.last_good {
            last_good.save(config.text());
        }
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

    /// The exit code if no configuration can be loaded. An unreachable etcd may be back at the next start.
    pub(super) fn exit_code(&self) -> u8 {
        match self.source {
            Source::Etcd(_) => 1,
            _ => EXIT_USAGE,
        }
    }
}

/// The network to servers and to the other routers, where `--spool-peers-login` logs in.
fn spool_network(options: &Options, network: Arc<TlsNetwork>) -> Result<Arc<dyn Network>, String> {
    let Some(file) = &options.auth.spool_peers_login else { return Ok(network) };
    let peers = options.spool_peers.iter().map(|peer| peer.address.clone()).collect();
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
        self.loader.load(Ok(text.to_owned()))
    }

    fn prepare(&self, active: &ActiveConfigs) {
        self.loader.prepare(active);
    }

    fn record_in_force(&self) {
        self.shared.record_config_applied();
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
        let content = {
            let next_content = async {
                loop {
                    tokio::select! {
                        biased;
                        _ = hangup.recv() => {
                            tracing::info!("SIGHUP: reading the configuration");
                            watcher.request_read();
                        }
                        content = watcher.next_change() => return content,
                    }
                }
            };
            // It may take longer than the time between two events.
            let mut next_content = pin!(next_content);
            loop {
                tokio::select! {
                    biased;
                    content = &mut next_content => break content,
                    () = resizer.step(host) => {}
                }
            }
        };
        match loader.load(content) {
            Ok(config) => {
                loader.save_last_good(&config);
                tracing::info!(source = %loader.source, "configuration read; it is valid");
                shared.record_config_accepted();
                if let Err(why) = resizer.set_newest(config, host) {
                    tracing::error!(source = %loader.source, %why, "new configuration has no identity; this is a bug of the router");
                }
            }
            Err(why) => {
                tracing::error!(source = %loader.source, %why, "new configuration refused, the old one stays in force");
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
