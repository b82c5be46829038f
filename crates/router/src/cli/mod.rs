//! The command line: mcrouter's flags as far as they have a meaning here, and flags of our own.

mod auth;
mod ignored;
mod leases;
mod listen;
mod spool;
pub(crate) mod tls;

pub use auth::AuthOptions;
pub use leases::LeaseOptions;
pub use listen::ListenOptions;
pub use tls::TlsOptions;

use crate::config::router_config::FAILOVER_TIMEOUT;
use crate::frontend::limits::{CONNECTIONS_MAX, Settings, VALUE_BYTES_MAX};
use crate::spool::{Fsync, PeerMissing, SpoolSettings};
use clap::{ArgGroup, ArgMatches, CommandFactory as _, FromArgMatches as _, Parser};
use ignored::Ignored;
use lookaside_client::config::Source;
use lookaside_client::config::{EtcdLocation, without_user};
use lookaside_client::{DestinationOptions, TkoTrackers, WindowSettings};
use lookaside_routing::{Address, Defaults, HealthSettings, RoutingPrefix, Security, TlsPolicy};
use lookaside_telemetry::LogFormat;
use spool::{SpoolPeer, parse_fsync, parse_peer, parse_peer_missing};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

const EXAMPLES: &str = r#"Examples:
  Two servers, keys spread over both:
    lookaside-router -p 5000 --config-str '{
      "pools": {"main": {"servers": ["127.0.0.1:11211", "127.0.0.1:11212"]}},
      "route": "PoolRoute|main"
    }'

  A configuration file, watched while the router runs:
    lookaside-router -p 5000 -f /etc/lookaside/router.json

  A key in etcd, watched; the last good one is kept for a start while etcd is down:
    lookaside-router -p 5000 --config etcd://10.0.0.4:2379,10.0.0.5:2379/lookaside/one \
      --config-cache /var/lib/lookaside/router.json

  Check a configuration without starting:
    lookaside-router -f /etc/lookaside/router.json --validate-config

Exit codes: 0 after SIGINT or SIGTERM; 1 when it cannot start or go on; 2 for a bad command line or configuration."#;

/// A memcached server towards clients, a client towards memcached servers: pools, consistent hashing, failover, and
/// connections shared by all clients.
#[derive(Clone, Debug, Parser)]
#[command(name = "lookaside-router", version, after_help = EXAMPLES)]
#[command(group(ArgGroup::new("source").required(true).args(["config", "config_file", "config_str"])))]
pub struct Options {
    /// The configuration: `file:PATH`, a key in etcd, `etcd://[USER@]HOST:PORT[,HOST:PORT...]/KEY` (`etcds://` for
    /// TLS), or the JSON itself. File and key are watched
    #[arg(long, value_name = "file:PATH|etcd://...")]
    pub config: Option<String>,
    /// The configuration file. It is watched; an invalid change is refused
    #[arg(short = 'f', long, value_name = "PATH")]
    pub config_file: Option<PathBuf>,
    /// The configuration itself
    #[arg(long, value_name = "JSON")]
    pub config_str: Option<String>,
    /// Save the last good configuration to this file, and start from it if the configuration cannot be read or is
    /// invalid
    #[arg(long, value_name = "PATH")]
    pub config_cache: Option<PathBuf>,
    /// The password of the user in etcd://USER@...; better given in the environment, which other users cannot see
    #[arg(long, value_name = "PASSWORD", env = "LOOKASIDE_ETCD_PASSWORD", hide_env_values = true)]
    pub etcd_password: Option<String>,
    /// Check the configuration, print its errors, and exit
    #[arg(long)]
    pub validate_config: bool,

    /// The listeners for clients.
    #[command(flatten)]
    pub listen: ListenOptions,
    /// Certificates.
    #[command(flatten)]
    pub tls: TlsOptions,
    /// Passwords.
    #[command(flatten)]
    pub auth: AuthOptions,
    /// Threads, each with its own connections to the servers; 0 for one per core
    #[arg(long, value_name = "THREADS", default_value_t = 0, value_parser = clap::value_parser!(u16).range(0..=1024))]
    pub num_proxies: u16,
    /// Maximum simultaneous client connections, over all threads
    #[arg(short = 'c', long, value_name = "CONNECTIONS", default_value_t = CONNECTIONS_MAX as u32, value_parser = clap::value_parser!(u32).range(1..))]
    pub max_conns: u32,
    /// Disconnect clients that send nothing for this many seconds; 0 for never
    #[arg(long, value_name = "SECONDS", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=86_400 * 365))]
    pub idle_timeout: u32,
    /// The largest value a client may send, in bytes. Servers have their own limit
    #[arg(short = 'I', long, value_name = "BYTES", default_value_t = VALUE_BYTES_MAX as u32, value_parser = clap::value_parser!(u32).range(1..=1 << 30))]
    pub value_bytes_max: u32,

    /// The routing prefix of keys without one, `/region/cluster/`
    #[arg(short = 'R', long, value_name = "PREFIX", default_value = "/././")]
    pub route_prefix: String,
    /// Limit on a server's reply time, in milliseconds, unless its pool has another
    #[arg(short = 't', long, value_name = "MS", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
    pub server_timeout: u32,
    /// Limit on connecting to a server, in milliseconds [default: the server timeout]
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u32).range(1..))]
    pub connect_timeout: Option<u32>,
    /// Once a server of a request has timed out, limit on the time of all further ones, such as the gutter, in
    /// milliseconds: a page costs at most one timeout and this. 0 for none. Deletes are not limited
    #[arg(long, value_name = "MS", default_value_t = FAILOVER_TIMEOUT.as_millis() as u32)]
    pub failover_timeout: u32,
    /// Delay before the first probe of a TKO server, in milliseconds; doubled for each further probe
    #[arg(long, value_name = "MS", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
    pub probe_timeout_initial: u32,
    /// Longest delay between two probes, in milliseconds, before jitter of up to 50 % more (mcrouter: 60000). After a
    /// partition a server may return deleted values until the router that delivers the deletes has probed it too, so a
    /// long delay prolongs stale reads. Each probe costs a connection
    #[arg(long, value_name = "MS", default_value_t = 5_000, value_parser = clap::value_parser!(u32).range(1..))]
    pub probe_timeout_max: u32,
    /// Consecutive timeouts before a server is marked TKO
    #[arg(long, value_name = "TIMEOUTS", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    pub timeouts_until_tko: u32,
    /// Interval for re-resolving the host names of servers, in milliseconds; connections follow a changed address. 0
    /// resolves only on connect
    #[arg(long, value_name = "MS", default_value_t = 30_000)]
    pub resolve_interval: u32,
    /// Maximum requests queued for one server, per thread; one more fails at once
    #[arg(long, value_name = "REQUESTS", default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1..))]
    pub target_max_pending: u32,
    /// Bounds each thread's outstanding requests to all servers together, so that their replies do not cause incast
    /// congestion: `adaptive` stays where replies take about twice as long as with few requests; `loss` grows while all
    /// requests are answered; both halve when one is not; a number is a window of that many requests; `off` has no
    /// bound. With a window, a slow server delays requests to the others until it is TKO
    #[arg(long, value_name = "off|adaptive|loss|REQUESTS", default_value = "off")]
    pub window: WindowOption,

    /// Leases for clients that know none.
    #[command(flatten)]
    pub leases: LeaseOptions,

    /// Spool deletes that a server does not answer in this directory, and do not read the server before they are
    /// replayed (mcrouter: --async-dir). Without it such a delete is an error, and the client must repeat it. One
    /// directory per router
    #[arg(long, short = 'a', visible_alias = "async-dir", value_name = "DIR")]
    pub spool: Option<PathBuf>,
    /// When spooled deletes survive a crash of this machine: `always` before they are acknowledged, `interval:MS` at
    /// most that much later, `never` when the kernel writes them. A crash of the router alone loses none
    #[arg(long, value_name = "POLICY", default_value = "always", value_parser = parse_fsync)]
    pub spool_fsync: Fsync,
    /// Maximum spooled bytes per server, 14 plus the key for each delete; beyond it the server is flushed (flush_all)
    /// before it is read again
    #[arg(long, value_name = "BYTES", default_value_t = 64 << 20, value_parser = clap::value_parser!(u64).range(4096..))]
    pub spool_bytes_max: u64,
    /// Maximum spooled bytes of all servers together
    #[arg(long, value_name = "BYTES", default_value_t = 1 << 30, value_parser = clap::value_parser!(u64).range(4096..))]
    pub spool_total_bytes_max: u64,
    /// The other routers of this cluster, by their addresses for clients, each with its own spool: none of them reads a
    /// server for which this one has undelivered deletes. The suffix :ascii:ssl means TLS, verified by --pem-ca-path
    #[arg(long, value_name = "HOST:PORT[:ascii:ssl][,...]", value_delimiter = ',', requires = "spool", value_parser = parse_peer)]
    pub spool_peers: Vec<SpoolPeer>,
    /// Seconds after which a silent peer's backlog is given up and the server flushed instead. Must be equal for all
    /// routers of a cluster
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub spool_peer_timeout: u32,
    /// The result of a delete that must be spooled while a peer is unreachable: `fail`, so that the client repeats it,
    /// or `ignore`, so that the peer may read the deleted value
    #[arg(long, value_name = "fail|ignore", default_value = "fail", value_parser = parse_peer_missing)]
    pub spool_peer_missing: PeerMissing,
    /// After the start, refuse all requests but deletes until the invalidator has notified this router that it has
    /// caught up, for at most this many seconds; 0 serves at once. Without it, routers of a cluster that were all down
    /// show old values until their deletes have been delivered. Needs a lookaside-invalidator for this cluster
    #[arg(long, value_name = "SECONDS", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=3600))]
    pub wait_for_invalidator: u32,
    /// A unix socket at which the next router takes over from this one. Only this router's user may connect; only that
    /// user and root may be able to write to its directory
    #[arg(long, value_name = "FILE")]
    pub upgrade_socket: Option<PathBuf>,
    /// Take over ports, clients and spool from the router at --upgrade-socket. If there is none, start as usual
    #[arg(long, requires = "upgrade_socket")]
    pub take_over: bool,

    /// Spool no deletes, even with --spool
    #[arg(long)]
    pub asynclog_disable: bool,

    /// Address for Prometheus metrics (GET /metrics): host:port, or a port of 127.0.0.1
    #[arg(long, value_name = "ADDR", value_parser = metrics_address)]
    pub metrics_address: Option<String>,
    /// Reply to a get that no server answered with a miss instead of an error
    #[arg(long)]
    pub miss_on_get_errors: bool,
    /// Send flush_all to every server instead of refusing it, and allow the flushes of pools that row rules demand
    #[arg(long)]
    pub enable_flush_cmd: bool,
    /// Verbose: -v logs debug events, -vv everything. RUST_LOG overrides it; the command verbosity changes it
    #[arg(short, long, action = clap::ArgAction::Count)]
    pub verbose: u8,
    /// Format of the log: text, or json with an object per event
    #[arg(long, value_name = "text|json", default_value = "text")]
    pub log_format: LogFormat,
    /// mcrouter's flags that have no meaning here.
    #[command(flatten)]
    pub ignored: Ignored,
    /// The command line, by mcrouter's names of options.
    #[arg(skip)]
    pub as_given: Vec<(String, String)>,
}

/// The value of `--window`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WindowOption {
    /// No window.
    Off,
    /// A window that finds its size by the delay of replies.
    Adaptive,
    /// A window that shrinks only when a request goes unanswered, as the paper's.
    Loss,
    /// A window of this size, in requests.
    Fixed(u32),
}

impl WindowOption {
    /// The window's settings; `None` without one.
    pub fn settings(self) -> Option<WindowSettings> {
        match self {
            WindowOption::Off => None,
            WindowOption::Adaptive => Some(WindowSettings::by_delay()),
            WindowOption::Loss => Some(WindowSettings::default()),
            WindowOption::Fixed(size) => Some(WindowSettings::fixed(size as usize)),
        }
    }
}

impl FromStr for WindowOption {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "off" => Ok(WindowOption::Off),
            "adaptive" => Ok(WindowOption::Adaptive),
            "loss" => Ok(WindowOption::Loss),
            number => match number.parse() {
                Ok(size) if size > 0 => Ok(WindowOption::Fixed(size)),
                _ => Err("expected off, adaptive, loss, or a number of requests above 0"),
            },
        }
    }
}

impl Options {
    /// Parses the command line. Exits if it is invalid.
    pub fn from_command_line() -> Options {
        let matches = Options::command().get_matches();
        let mut options = Options::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
        options.as_given = options_as_given(&matches);
        options
    }

    /// The source of the configuration.
    pub fn source(&self) -> Result<Source, String> {
        if let Some(location) = self.config.as_deref().and_then(EtcdLocation::parse) {
            let location = location.map_err(|why| format!("--config: {why}"))?;
            return Ok(Source::Etcd(location.with_password(self.etcd_password.as_deref())));
        }
        match (&self.config, &self.config_file, &self.config_str) {
            (Some(config), _, _) => match config.strip_prefix("file:") {
                Some(path) => Ok(Source::File(path.into())),
                None if config.trim_start().starts_with(['{', '/']) => Ok(Source::Text(config.clone())),
                None => Err(format!(
                    "--config {}: neither file:PATH nor etcd:// nor JSON; give a path with -f PATH",
                    without_user(config)
                )),
            },
            (_, Some(path), _) => match path.to_str().filter(|path| path.contains("://")) {
                Some(path) => {
                    Err(format!("-f {}: not the path of a file; use --config for etcd://", without_user(path)))
                }
                None => Ok(Source::File(path.clone())),
            },
            (_, _, Some(text)) => Ok(Source::Text(text.clone())),
            _ => Err("no configuration; give one with -f PATH".to_owned()),
        }
    }

    /// The settings of the clients' side.
    pub fn settings(&self) -> Settings {
        let mut settings = Settings {
            connections_max: self.max_conns as usize,
            miss_on_get_errors: self.miss_on_get_errors,
            flush_enabled: self.enable_flush_cmd,
            login_timeout: self.auth.login_timeout(),
            idle_timeout: (self.idle_timeout > 0).then(|| Duration::from_secs(self.idle_timeout.into())),
            options: self.as_given.clone().into(),
            ..Settings::default()
        };
        settings.limits.value_bytes_max = self.value_bytes_max as usize;
        settings
    }

    /// The values that the configuration may override.
    pub fn defaults(&self) -> Result<Defaults, String> {
        let prefix = RoutingPrefix::parse(&self.route_prefix).map_err(|error| format!("--route-prefix: {error}"))?;
        Ok(Defaults {
            prefix,
            server_timeout_ms: self.server_timeout.into(),
            connect_timeout_ms: self.connect_timeout.map(u64::from),
            leases: self.leases.settings(),
        })
    }

    /// The options of every server. All threads must share the result of one call: it has the TKO trackers.
    pub fn destination_options(&self) -> DestinationOptions {
        DestinationOptions {
            outstanding_requests_max: self.target_max_pending as usize,
            health: HealthSettings {
                timeouts_until_tko: self.timeouts_until_tko,
                probe_initial_ms: self.probe_timeout_initial.into(),
                probe_max_ms: self.probe_timeout_max.into(),
            },
            tko_trackers: Some(TkoTrackers::new()),
            connect_eagerly: true,
            resolve_interval_ms: (self.resolve_interval > 0).then_some(self.resolve_interval.into()),
            ..DestinationOptions::default()
        }
    }

    /// The spool's directory; `None` without a spool.
    pub fn spool_directory(&self) -> Option<&Path> {
        self.spool.as_deref().filter(|_| !self.asynclog_disable)
    }

    /// The spool's settings.
    pub fn spool_settings(&self) -> SpoolSettings {
        let timeout_ms = self.server_timeout.max(self.connect_timeout.unwrap_or(0));
        SpoolSettings {
            bytes_max: self.spool_bytes_max,
            total_bytes_max: self.spool_total_bytes_max,
            fsync: self.spool_fsync,
            timeout: Duration::from_millis(timeout_ms.into()),
            peers: self.spool_peers.iter().map(|peer| peer.address.clone()).collect(),
            peer_timeout: Duration::from_secs(self.spool_peer_timeout.into()),
            peer_missing: self.spool_peer_missing,
            seed: fastrand::u64(..),
            ..SpoolSettings::default()
        }
    }

    /// The TLS policy of each of the other routers.
    pub fn peer_policies(&self) -> Vec<(Address, TlsPolicy)> {
        let policy = |peer: &SpoolPeer| {
            let security = if peer.is_tls { Security::Tls } else { Security::Plain };
            (peer.address.clone(), TlsPolicy { security, certificate_name: None })
        };
        self.spool_peers.iter().map(policy).collect()
    }

    /// The number of threads.
    pub fn threads(&self) -> usize {
        match self.num_proxies {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            threads => threads.into(),
        }
    }
}

/// Every option with its value, given or default. Secrets are left out.
fn options_as_given(matches: &ArgMatches) -> Vec<(String, String)> {
    let command = Options::command();
    let known = command.get_arguments().filter_map(|argument| Some((argument.get_id().as_str(), argument.get_long()?)));
    let value = |id: &str| -> Option<String> {
        let values: Vec<_> = matches.try_get_raw(id).ok()??.map(|value| value.to_string_lossy()).collect();
        let value = values.join(",");
        match (id, EtcdLocation::parse(&value)) {
            ("etcd_password", _) => Some("(given)".to_owned()),
            ("config", Some(location)) => location.ok().map(|location| location.to_string()),
            _ => Some(value),
        }
    };
    known.filter_map(|(id, long)| Some((long.replace('-', "_"), value(id)?))).collect()
}

fn metrics_address(text: &str) -> Result<String, String> {
    lookaside_telemetry::check_address(text).map(|()| lookaside_telemetry::full_address(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(arguments: &[&str]) -> Result<Options, clap::Error> {
        Options::try_parse_from([&["lookaside-router"], arguments].concat())
    }

    #[test]
    fn the_command_line_is_well_formed() {
        Options::command().debug_assert();
    }

    #[test]
    fn exactly_one_source_of_configuration_is_required() {
        assert!(parse(&[]).is_err());
        assert!(parse(&["-f", "a.json", "--config-str", "{}"]).is_err());
        let source = |arguments: &[&str]| parse(arguments).expect("parses").source();
        assert_eq!(source(&["-f", "a.json"]), Ok(Source::File("a.json".into())));
        assert_eq!(source(&["--config", "file:a.json"]), Ok(Source::File("a.json".into())));
        assert_eq!(source(&["--config-str", "{}"]), Ok(Source::Text("{}".into())));
        let etcd = source(&["--config", "etcd://a:1/k"]).map(|source| source.to_string());
        assert_eq!(etcd.as_deref(), Ok("etcd://a:1/k"));
        assert!(source(&["--config", "etcd://a:1"]).is_err_and(|why| why.contains("key is missing")));
        for option in ["-f", "--config"] {
            let why = source(&[option, "etdc://ops:secret@a:1/k"]).expect_err("mistyped");
            assert!(why.contains("...@a:1/k") && !why.contains("secret"), "{why}");
        }
        assert!(source(&["--config", "a.json"]).is_err_and(|why| why.contains("-f PATH")));
    }

    #[test]
    fn default_has_at_least_one_thread() {
        assert!(parse(&["--config-str", "{}"]).expect("parses").threads() >= 1);
    }

    #[test]
    fn ignored_flags_of_mcrouter_are_warned_about() {
        let options = parse(&["--config-str", "{}", "-L", "/log", "-r", "10", "--stats-root=/stats"]).expect("parses");
        let warnings = options.ignored.warnings();
        assert_eq!(warnings.len(), 3, "{warnings:?}");
        assert!(warnings[0].starts_with("--log-path /log is ignored: "), "{warnings:?}");
        assert!(parse(&["--config-str", "{}", "--listen-sock-fd", "3"]).is_err(), "clients could not connect");
    }

    #[test]
    fn options_as_given_contain_no_secret() {
        let command = Options::command();
        let arguments = ["lookaside-router", "--config", "etcd://a:secret@b/k", "--etcd-password", "secret", "-t", "7"];
        let given = options_as_given(&command.try_get_matches_from(arguments).expect("parses"));
        let value = |name: &str| given.iter().find(|(known, _)| known == name).map(|(_, value)| &**value);
        assert_eq!((value("server_timeout"), value("route_prefix")), (Some("7"), Some("/././")));
        assert_eq!((value("enable_flush_cmd"), value("config_str")), (Some("false"), None));
        assert_eq!((value("config"), value("etcd_password")), (Some("etcd://b:2379/k"), Some("(given)")));
        assert!(!format!("{given:?}").contains("secret"), "{given:?}");
    }

    #[test]
    fn spool_has_two_names() {
        let options = |more: &[&str]| parse(&[&["--config-str", "{}"], more].concat()).expect("parses");
        assert_eq!(options(&[]).spool_directory(), None);
        for name in ["--spool", "--async-dir", "-a"] {
            assert_eq!(options(&[name, "/spool"]).spool_directory(), Some(Path::new("/spool")));
        }
        assert_eq!(options(&["-a", "/spool", "--asynclog-disable"]).spool_directory(), None);
        let policy = |text| options(&["--spool-fsync", text]).spool_settings().fsync;
        assert_eq!((policy("always"), policy("never")), (Fsync::Always, Fsync::Never));
        assert_eq!(policy("interval:50"), Fsync::Interval(Duration::from_millis(50)));
        for bad in ["interval", "interval:0", "interval:x", "sometimes"] {
            assert!(parse(&["--config-str", "{}", "--spool-fsync", bad]).is_err(), "{bad}");
        }
    }

    #[test]
    fn peers_may_use_tls() {
        let line = ["--config-str", "{}", "-a", "/spool", "--spool-peers", "a:1,b:2:ascii:ssl,[::1]:3:ascii:plain"];
        let policies = parse(&line).expect("parses").peer_policies();
        let securities: Vec<_> = policies.iter().map(|(address, policy)| (&*address.0, policy.security)).collect();
        assert_eq!(securities, [("a:1", Security::Plain), ("b:2", Security::Tls), ("[::1]:3", Security::Plain)]);
        for bad in ["a", "a:0", ":1", "a:1:ssl"] {
            assert!(parse(&["--config-str", "{}", "-a", "/spool", "--spool-peers", bad]).is_err(), "{bad}");
        }
    }

    #[test]
    fn window_is_off_adaptive_by_loss_or_a_size() {
        let window = |text| parse(&["--config-str", "{}", "--window", text]).map(|options| options.window.settings());
        assert_eq!(parse(&["--config-str", "{}"]).expect("parses").window.settings(), None);
        assert_eq!(window("adaptive").expect("parses"), Some(WindowSettings::by_delay()));
        assert_eq!(window("loss").expect("parses"), Some(WindowSettings::default()));
        assert_eq!(window("50").expect("parses"), Some(WindowSettings::fixed(50)));
        for bad in ["0", "-1", "wide", ""] {
            assert!(window(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn numbers_out_of_range_are_refused() {
        for bad in [["-t", "0"], ["-c", "0"], ["-p", "70000"], ["--timeouts-until-tko", "0"]] {
            assert!(parse(&[&["--config-str", "{}"], &bad[..]].concat()).is_err(), "{bad:?}");
        }
    }
}
