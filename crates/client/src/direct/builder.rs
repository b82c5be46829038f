//! Builds a [`DirectRoute`], and starts its tasks.

use super::DirectRoute;
use super::permission::DirectState;
use super::renewal::renew_permits;
use super::routers::{NO_ROUTER, Routers};
use super::settings::TreeSettings;
use super::tree::DirectTree;
use crate::config::{ConfigWatcher, Source};
use crate::tree::{BackgroundTasks, HostInfo};
use crate::{
    Client, DestinationOptions, Network, TcpNetwork, TkoTrackers, UdpOptions, UdpSockets, Window, WindowSettings,
    spawn_in,
};
use lookaside_routing::{Address, Defaults};
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::task::JoinSet;
use tokio::time::timeout;

/// How long connecting to the servers of a new configuration may take before it is put in force.
const READY_MAX: Duration = Duration::from_secs(2);
/// How long the routers' first reply is waited for.
const FIRST_REPLY_MAX: Duration = Duration::from_millis(500);
/// How long the first configuration may take to be read.
const CONFIGURATION_TIMEOUT: Duration = Duration::from_secs(10);
/// The time for further servers of a request after one has timed out, as routers have it by default.
const FAILOVER_TIMEOUT: Duration = Duration::from_millis(250);

/// Why a direct client cannot be built.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DirectError {
    /// No router was named, nor does the configuration name one.
    NoRouter,
    /// The configuration could not be read, or is invalid.
    Configuration {
        /// The source, the line and the reason.
        why: String,
    },
    /// The sockets for UDP could not be opened.
    Sockets {
        /// The system's reason.
        why: String,
    },
}

impl DirectError {
    fn of_sockets(error: io::Error) -> DirectError {
        DirectError::Sockets { why: error.to_string() }
    }
}

impl std::error::Error for DirectError {}

impl fmt::Display for DirectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DirectError::NoRouter => f.write_str(NO_ROUTER),
            DirectError::Sockets { why } => {
                write!(f, "no UDP socket: {why}; raise the limit on open files if it is reached")
            }
            DirectError::Configuration { why } => write!(f, "no configuration: {why}"),
        }
    }
}

/// The settings of a [`DirectRoute`].
pub struct DirectRouteBuilder {
    source: Source,
    routers: Vec<Address>,
    first_routers: Vec<Address>,
    network: Arc<dyn Network>,
    routers_network: Option<Arc<dyn Network>>,
    defaults: Defaults,
    options: DestinationOptions,
    host: HostInfo,
    watcher: Option<ConfigWatcher>,
    configuration_may_follow: bool,
    udp: Option<UdpOptions>,
    window: Option<WindowSettings>,
    updates_directly: bool,
}

impl DirectRouteBuilder {
    pub(super) fn new(source: Source, routers: Vec<Address>) -> DirectRouteBuilder {
        let unix_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        DirectRouteBuilder {
            source,
            routers,
            first_routers: Vec::new(),
            network: Arc::new(TcpNetwork),
            routers_network: None,
            defaults: Defaults::default(),
            options: DestinationOptions::default(),
            host: HostInfo::from_name("", unix_s),
            watcher: None,
            configuration_may_follow: false,
            udp: None,
            window: Some(WindowSettings::by_delay()),
            updates_directly: false,
        }
    }

    /// How servers, routers and etcd are connected to. Default: by TCP, without TLS; a configuration that demands TLS
    /// is then refused.
    pub fn network(self, network: Arc<dyn Network>) -> DirectRouteBuilder {
        DirectRouteBuilder { network, ..self }
    }

    /// How routers are connected to. Default: as servers are. A network by TLS
    /// ([`TlsClientNetwork::pinned`](crate::Network::pinned)) is needed where the configuration names routers that are
    /// reached so: their addresses are not known before.
    pub fn routers_network(self, network: Arc<dyn Network>) -> DirectRouteBuilder {
        DirectRouteBuilder { routers_network: Some(network), ..self }
    }

    /// Begins with these routers if those that the configuration names are used, and it has not been read yet: with
    /// those that another process has read, for instance.
    pub fn first_routers(self, routers: impl IntoIterator<Item = Address>) -> DirectRouteBuilder {
        DirectRouteBuilder { first_routers: routers.into_iter().collect(), ..self }
    }

    /// What the configuration leaves to the command line of the routers: the client must have the same. Default: as of
    /// a router without such options.
    pub fn defaults(self, defaults: Defaults) -> DirectRouteBuilder {
        DirectRouteBuilder { defaults, ..self }
    }

    /// The options of each connection. The configuration overrides the timeouts of those to servers.
    pub fn destination_options(self, options: DestinationOptions) -> DirectRouteBuilder {
        DirectRouteBuilder { options, ..self }
    }

    /// The host, for routes that distinguish hosts. Default: one without a name.
    pub fn host(self, host: HostInfo) -> DirectRouteBuilder {
        DirectRouteBuilder { host, ..self }
    }

    /// Watches the configuration by `watcher` instead of opening the source, which then only has a name. The first
    /// change is the first configuration.
    pub fn watcher(self, watcher: ConfigWatcher) -> DirectRouteBuilder {
        DirectRouteBuilder { watcher: Some(watcher), ..self }
    }

    /// Lets [`DirectRouteBuilder::build`] wait for nothing: not for a configuration, nor for servers and routers. All
    /// requests pass through the routers until a configuration has been read, however long its source is away; if it is
    /// the configuration that names the routers, they fail until then ([`DirectRouteBuilder::first_routers`]). One that
    /// is invalid is logged and counted (`configurations_refused`) in place of being an error. Default: a configuration
    /// is read within 10 s, or the route is not built.
    pub fn configuration_may_follow(self) -> DirectRouteBuilder {
        DirectRouteBuilder { configuration_may_follow: true, ..self }
    }

    /// Sends sets, fills and deletes to servers directly, too, while there is a permit. **This gives promises up:** a
    /// delete that a server does not answer fails and is not spooled, so its sender must repeat it or leave it to the
    /// invalidator; and while a pool changes its servers, an acknowledged delete may miss a copy of the key, and a late
    /// fill may leave one behind. Where routers take leases for plain clients (`--leases`, `LeaseRoute`) only fills are
    /// sent directly: plain sets and deletes pass through a router, which applies its rules for sets without a miss and
    /// its hold-offs to them. Default: all pass through a router.
    pub fn send_updates_directly(self) -> DirectRouteBuilder {
        DirectRouteBuilder { updates_directly: true, ..self }
    }

    /// Sends gets to servers by UDP (§3.1 of the paper), over a socket for each thread of the runtime. Default: by TCP.
    /// Servers must have their UDP port open. One whose address in the configuration is no IPv4 address, or that is
    /// reached by TLS or the meta protocol, is sent its gets by TCP.
    pub fn udp(self, options: UdpOptions) -> DirectRouteBuilder {
        DirectRouteBuilder { udp: Some(options), ..self }
    }

    /// Bounds all that is outstanding at servers by one window (§3.1 of the paper), so that their replies, which come
    /// at once, do not overrun the network; `None` for no bound. Default: a window that finds its size by the delay of
    /// replies ([`WindowSettings::by_delay`]). With a window, a server that is slow or hangs delays requests to others,
    /// until it is TKO; what could not be sent in [`WindowSettings::wait_ms_max`] fails.
    pub fn window(self, window: Option<WindowSettings>) -> DirectRouteBuilder {
        DirectRouteBuilder { window, ..self }
    }

    /// Reads the configuration, connects to the servers, and asks for the first permit, for at most half a second. Must
    /// be called inside the tokio runtime on which the route will live.
    pub async fn build(self) -> Result<Arc<DirectRoute>, DirectError> {
        let DirectRouteBuilder {
            source,
            routers,
            first_routers,
            network,
            routers_network,
            defaults,
            options,
            host,
            watcher,
            configuration_may_follow,
            udp,
            window,
            updates_directly,
        } = self;
        let mut watcher = watcher.unwrap_or_else(|| ConfigWatcher::open(&source, network.clone(), None));
        let refuse = |why: String| DirectError::Configuration { why: source.error_context(&why) };
        watcher.request_read();
        let text = match configuration_may_follow {
            true => None,
            false => Some(first_text(&mut watcher).await.map_err(refuse)?),
        };
        let follows_named_routers = routers.is_empty();
        let known = if follows_named_routers { first_routers } else { routers };
        let options = DestinationOptions { names_failures: true, ..options };
        let routers_network = routers_network.unwrap_or_else(|| network.clone());
        let routers = Arc::new(Routers::new_or_none(&known, routers_network, &options));
        let tko_trackers = TkoTrackers::new();
        let settings = TreeSettings {
            options: DestinationOptions {
                tko_trackers: Some(tko_trackers.clone()),
                connect_eagerly: true,
                ..options.clone()
            },
            network: network.clone(),
            defaults,
            tko_trackers,
            host,
            background_tasks: BackgroundTasks::default(),
            updates_directly,
            udp: match udp {
                Some(options) => Some((Arc::new(UdpSockets::bind().await.map_err(DirectError::of_sockets)?), options)),
                None => None,
            },
            window: window.map(Window::new),
            failover_timeout: Some(FAILOVER_TIMEOUT),
            routers: routers.clone(),
            leases: Arc::default(),
            counters: Arc::default(),
        };
        let tree = text.map(|text| DirectTree::build(&text, &settings, None)).transpose().map_err(refuse)?;
        if let Some(tree) = &tree {
            if follows_named_routers {
                if tree.routers.is_empty() {
                    return Err(DirectError::NoRouter);
                }
                routers.replace(&tree.routers);
            }
            tree.destinations.wait_until_ready(READY_MAX).await;
        } else if known.is_empty() {
            tracing::warn!(%source, "no router is known before the configuration is read; requests fail until then");
        }
        let state = Arc::new(DirectState::new(settings, follows_named_routers, tree));
        let mut tasks = JoinSet::new();
        spawn_in(&mut tasks, renew_permits(state.clone()));
        spawn_in(&mut tasks, follow_configuration(state.clone(), watcher, source));
        if !configuration_may_follow {
            // Until then it is not known whether plain requests need leases.
            state.wait_for_reply(FIRST_REPLY_MAX).await;
        }
        Ok(Arc::new(DirectRoute::new(state, tasks)))
    }
}

async fn first_text(watcher: &mut ConfigWatcher) -> Result<String, String> {
    let read = timeout(CONFIGURATION_TIMEOUT, watcher.next_change()).await;
    read.unwrap_or_else(|_| Err(format!("it could not be read within {CONFIGURATION_TIMEOUT:?}")))
}

/// Builds the tree of each new configuration. Never returns.
async fn follow_configuration(state: Arc<DirectState>, mut watcher: ConfigWatcher, source: Source) {
    loop {
        let built = match watcher.next_change().await {
            Ok(text) => state.set_newest(&text, READY_MAX).await,
            Err(why) => Err(why),
        };
        match built {
            Ok(()) => {
                state.settings.counters.configurations.add(1);
                tracing::info!(%source, "new configuration; reading by it once a router does");
            }
            Err(why) => {
                state.settings.counters.configurations_refused.add(1);
                tracing::error!(%source, why = source.error_context(&why), "new configuration refused; keeping the old one");
            }
        }
    }
}

impl Client {
    /// A client that builds its routes from the configuration in `source` and reads servers directly; all else passes
    /// through `routers`, those of its cluster, or without any through those that the configuration names.
    /// [`DirectRoute::builder`] has more settings.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), lookaside_client::DirectError> {
    /// use lookaside_client::{Client, config::Source};
    /// use lookaside_routing::Address;
    /// let source = Source::File("router.json".into());
    /// let client = Client::from_config(source.clone(), [Address("10.0.0.1:5000".into())]).await?;
    /// // The configuration has "routers": ["10.0.0.1:5000"].
    /// let client = Client::from_config(source, []).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn from_config(
        source: Source,
        routers: impl IntoIterator<Item = Address>,
    ) -> Result<Client, DirectError> {
        Ok(Client::new(DirectRoute::builder(source, routers).build().await?))
    }
}
