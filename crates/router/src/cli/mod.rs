//! The command line: mcrouter's flags as far as they have a meaning here, and those that can be done without.

mod ignored;
mod listen;
pub(crate) mod tls;

pub use listen::ListenOptions;
pub use tls::TlsOptions;

use crate::config::etcd::{EtcdLocation, without_user};
use crate::config::router_config::Source;
use crate::frontend::limits::{CONNECTIONS_MAX, Settings, VALUE_BYTES_MAX};
use crate::spool::{Fsync, PeerMissing, SpoolSettings};
use clap::{ArgGroup, ArgMatches, CommandFactory as _, FromArgMatches as _, Parser};
use ignored::Ignored;
use lookaside_client::{DestinationOptions, TkoTrackers, WindowSettings};
use lookaside_routing::{Address, Defaults, HealthSettings, RoutingPrefix, Security, TlsPolicy};
use lookaside_telemetry::LogFormat;
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
    /// Where the configuration is: `file:PATH`, a key in etcd, `etcd://[USER@]HOST:PORT[,HOST:PORT...]/KEY` (`etcds://` by
    /// TLS), or the JSON itself. File and key are watched
    #[arg(long, value_name = "file:PATH|etcd://...")]
    pub config: Option<String>,
    /// The configuration file; it is watched, and a bad change is refused
    #[arg(short = 'f', long, value_name = "PATH")]
    pub config_file: Option<PathBuf>,
    /// The configuration itself
    #[arg(long, value_name = "JSON")]
    pub config_str: Option<String>,
    /// Keep the last good configuration in this file, and start from it when the configuration cannot be read or is wrong
    #[arg(long, value_name = "PATH")]
    pub config_cache: Option<PathBuf>,
    /// The password of the user in etcd://USER@...; better in the environment, where other users do not see it
    #[arg(long, value_name = "PASSWORD", env = "LOOKASIDE_ETCD_PASSWORD", hide_env_values = true)]
    pub etcd_password: Option<String>,
    /// Check the configuration, say what is wrong with it, and exit
    #[arg(long)]
    pub validate_config: bool,

    /// Where clients come in.
    #[command(flatten)]
    pub listen: ListenOptions,
    /// Certificates.
    #[command(flatten)]
    pub tls: TlsOptions,
    /// Threads, each with connections of its own to the servers; 0 for one a core
    #[arg(long, value_name = "THREADS", default_value_t = 0, value_parser = clap::value_parser!(u16).range(0..=1024))]
    pub num_proxies: u16,
    /// Client connections open at once, over all threads
    #[arg(short = 'c', long, value_name = "CONNECTIONS", default_value_t = CONNECTIONS_MAX as u32, value_parser = clap::value_parser!(u32).range(1..))]
    pub max_conns: u32,
    /// The largest value a client may send, in bytes. Servers have a limit of their own
    #[arg(short = 'I', long, value_name = "BYTES", default_value_t = VALUE_BYTES_MAX as u32, value_parser = clap::value_parser!(u32).range(1..=1 << 30))]
    pub value_bytes_max: u32,

    /// The prefix of keys that come without one, `/region/cluster/`
    #[arg(short = 'R', long, value_name = "PREFIX", default_value = "/././")]
    pub route_prefix: String,
    /// How long a server may take to answer, in milliseconds, unless its pool says otherwise
    #[arg(short = 't', long, value_name = "MS", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
    pub server_timeout: u32,
    /// How long connecting to a server may take, in milliseconds [default: the server timeout]
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u32).range(1..))]
    pub connect_timeout: Option<u32>,
    /// A server that was taken out is probed after so many milliseconds, then ever more rarely
    #[arg(long, value_name = "MS", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
    pub probe_timeout_initial: u32,
    /// The longest wait between two probes, in milliseconds, before jitter of up to a half more (mcrouter: 60000). A
    /// server that was cut off and is back may show deleted values until the router that passes the deletes on has
    /// probed it too: a long wait is a long time of stale reads. A short one costs a connection each time
    #[arg(long, value_name = "MS", default_value_t = 5_000, value_parser = clap::value_parser!(u32).range(1..))]
    pub probe_timeout_max: u32,
    /// So many timeouts in a row take a server out
    #[arg(long, value_name = "TIMEOUTS", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    pub timeouts_until_tko: u32,
    /// A server that is known by a name is looked up so often while it is in use, in milliseconds, and followed when the name
    /// leads elsewhere; 0: only when a connection to it is made
    #[arg(long, value_name = "MS", default_value_t = 30_000)]
    pub resolve_interval: u32,
    /// Requests waiting for one server, per thread; one more fails at once
    #[arg(long, value_name = "REQUESTS", default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1..))]
    pub target_max_pending: u32,
    /// Bounds what each thread has outstanding at all servers together, so that their answers do not flood the network:
    /// `adaptive` grows while all is answered and halves when something is not; a number is a window of so many
    /// requests; `off` is none. A server that is slow then holds up requests to the others, until it is taken out
    #[arg(long, value_name = "off|adaptive|REQUESTS", default_value = "off")]
    pub window: WindowOption,

    /// Keep deletes that a server does not answer in this directory, and do not read the server before it has carried
    /// them out (mcrouter: --async-dir). Without it such a delete is an error, and the client must repeat it. One router
    /// a directory
    #[arg(long, short = 'a', visible_alias = "async-dir", value_name = "DIR")]
    pub spool: Option<PathBuf>,
    /// When kept deletes are safe from a crash of this machine: `always` before they are acknowledged, `interval:MS` at
    /// most so much later, `never` when the system likes. A crash of the router alone loses none
    #[arg(long, value_name = "POLICY", default_value = "always", value_parser = fsync)]
    pub spool_fsync: Fsync,
    /// The most bytes of deletes that are kept for one server, 14 a delete and the key; a server that owes more is
    /// made to forget everything (flush_all) before it is read
    #[arg(long, value_name = "BYTES", default_value_t = 64 << 20, value_parser = clap::value_parser!(u64).range(4096..))]
    pub spool_bytes_max: u64,
    /// The same for all servers together
    #[arg(long, value_name = "BYTES", default_value_t = 1 << 30, value_parser = clap::value_parser!(u64).range(4096..))]
    pub spool_total_bytes_max: u64,
    /// The other routers of this cluster, where they listen for clients, each with a spool of its own: none of them reads a
    /// server that this one owes deletes. Behind an address :ascii:ssl stands for TLS, verified against --pem-ca-path
    #[arg(long, value_name = "HOST:PORT[:ascii:ssl][,...]", value_delimiter = ',', requires = "spool", value_parser = peer)]
    pub spool_peers: Vec<SpoolPeer>,
    /// A peer that owes a server deletes and is silent for so many seconds is not waited for: the server is made to forget
    /// everything. The same for all routers of a cluster
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub spool_peer_timeout: u32,
    /// What becomes of a delete that must be kept while a peer cannot be told: `fail`, so that its sender sends it again, or
    /// `ignore`, and the peer may read what was deleted
    #[arg(long, value_name = "fail|ignore", default_value = "fail", value_parser = peer_missing)]
    pub spool_peer_missing: PeerMissing,
    /// Where the next router takes over from this one: a unix socket for its own user alone, in a directory that only that
    /// user and root can write
    #[arg(long, value_name = "FILE")]
    pub upgrade_socket: Option<PathBuf>,
    /// Take over from the router at --upgrade-socket: its ports, its clients and its --spool. If there is none, start as
    /// usual
    #[arg(long, requires = "upgrade_socket")]
    pub take_over: bool,

    /// Keep no deletes, even where --spool is given
    #[arg(long)]
    pub asynclog_disable: bool,

    /// Where Prometheus reads metrics (GET /metrics): host:port, or a port of this machine alone
    #[arg(long, value_name = "ADDR", value_parser = metrics_address)]
    pub metrics_address: Option<String>,
    /// Tell clients of a get that no server answered as of a miss, not an error
    #[arg(long)]
    pub miss_on_get_errors: bool,
    /// Pass flush_all on to every server instead of refusing it
    #[arg(long)]
    pub enable_flush_cmd: bool,
    /// Log more: -v for debugging, -vv for everything. RUST_LOG overrides; the command verbosity changes it
    #[arg(short, long, action = clap::ArgAction::Count)]
    pub verbose: u8,
    /// What a line of the log looks like: text, or json, an object for each event
    #[arg(long, value_name = "text|json", default_value = "text")]
    pub log_format: LogFormat,
    /// mcrouter's flags that have no meaning here.
    #[command(flatten)]
    pub ignored: Ignored,
    /// What all of it says, by the names that mcrouter gives options.
    #[arg(skip)]
    pub told: Vec<(String, String)>,
}

/// What `--window` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WindowOption {
    /// No window.
    Off,
    /// One that finds its size.
    Adaptive,
    /// One of this size, in requests.
    Fixed(u32),
}

impl WindowOption {
    /// The window's settings, if there is one.
    pub fn settings(self) -> Option<WindowSettings> {
        match self {
            WindowOption::Off => None,
            WindowOption::Adaptive => Some(WindowSettings::default()),
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
            number => match number.parse() {
                Ok(size) if size > 0 => Ok(WindowOption::Fixed(size)),
                _ => Err("expected off, adaptive, or a number of requests above 0"),
            },
        }
    }
}

impl Options {
    /// What the command line says; ends the process where that is wrong.
    pub fn from_command_line() -> Options {
        let matches = Options::command().get_matches();
        let mut options = Options::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
        options.told = told(&matches);
        options
    }

    /// Where the configuration is.
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
                Some(path) => Err(format!("-f {}: no path of a file; --config takes etcd://", without_user(path))),
                None => Ok(Source::File(path.clone())),
            },
            (_, _, Some(text)) => Ok(Source::Text(text.clone())),
            _ => Err("no configuration; give one with -f PATH".to_owned()),
        }
    }

    /// How clients are treated.
    pub fn settings(&self) -> Settings {
        let mut settings = Settings {
            connections_max: self.max_conns as usize,
            miss_on_get_errors: self.miss_on_get_errors,
            flush_enabled: self.enable_flush_cmd,
            options: self.told.clone().into(),
            ..Settings::default()
        };
        settings.limits.value_bytes_max = self.value_bytes_max as usize;
        settings
    }

    /// What holds where the configuration does not say otherwise.
    pub fn defaults(&self) -> Result<Defaults, String> {
        let prefix = RoutingPrefix::parse(&self.route_prefix).map_err(|error| format!("--route-prefix: {error}"))?;
        Ok(Defaults {
            prefix,
            server_timeout_ms: self.server_timeout.into(),
            connect_timeout_ms: self.connect_timeout.map(u64::from),
        })
    }

    /// What holds for every server. All threads must have it from one call: they share what they know of servers.
    pub fn destination_options(&self) -> DestinationOptions {
        DestinationOptions {
            outstanding_requests_max: self.target_max_pending as usize,
            health: HealthSettings {
                timeouts_until_out: self.timeouts_until_tko,
                probe_initial_ms: self.probe_timeout_initial.into(),
                probe_max_ms: self.probe_timeout_max.into(),
            },
            tko_trackers: Some(TkoTrackers::new()),
            connect_eagerly: true,
            resolve_interval_ms: (self.resolve_interval > 0).then_some(self.resolve_interval.into()),
            ..DestinationOptions::default()
        }
    }

    /// Where deletes that fail are kept.
    pub fn spool_directory(&self) -> Option<&Path> {
        self.spool.as_deref().filter(|_| !self.asynclog_disable)
    }

    /// How they are kept.
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

    /// How the way to each of the other routers is protected.
    pub fn peer_protections(&self) -> Vec<(Address, TlsPolicy)> {
        let protection = |peer: &SpoolPeer| {
            let security = if peer.is_tls { Security::Tls } else { Security::Plain };
            (peer.address.clone(), TlsPolicy { security, identity: None })
        };
        self.spool_peers.iter().map(protection).collect()
    }

    /// How many threads to run.
    pub fn threads(&self) -> usize {
        match self.num_proxies {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            threads => threads.into(),
        }
    }
}

/// Every option and its value, given or by default.
fn told(matches: &ArgMatches) -> Vec<(String, String)> {
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

/// Another router of the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpoolPeer {
    /// Where it listens for clients.
    pub address: Address,
    /// Whether it speaks TLS there.
    pub is_tls: bool,
}

fn peer(text: &str) -> Result<SpoolPeer, String> {
    let (text, is_tls) = match (text.strip_suffix(":ascii:ssl"), text.strip_suffix(":ascii:plain")) {
        (Some(address), _) => (address, true),
        (_, Some(address)) => (address, false),
        _ => (text, false),
    };
    let is_address = |(host, port): (&str, &str)| !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port > 0);
    match text.rsplit_once(':').is_some_and(is_address) {
        true => Ok(SpoolPeer { address: Address(text.into()), is_tls }),
        false => Err("expected HOST:PORT, or HOST:PORT:ascii:ssl".to_owned()),
    }
}

fn peer_missing(text: &str) -> Result<PeerMissing, String> {
    match text {
        "fail" => Ok(PeerMissing::Fail),
        "ignore" => Ok(PeerMissing::Ignore),
        _ => Err("expected fail or ignore".to_owned()),
    }
}

fn fsync(text: &str) -> Result<Fsync, String> {
    match (text, text.strip_prefix("interval:").map(str::parse)) {
        ("always", _) => Ok(Fsync::Always),
        ("never", _) => Ok(Fsync::Never),
        (_, Some(Ok(interval_ms @ 1..=60_000))) => Ok(Fsync::Interval(Duration::from_millis(interval_ms))),
        _ => Err("expected always, never, or interval:MS with 1 to 60000 milliseconds".to_owned()),
    }
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
    fn one_source_of_configuration_is_needed_and_no_more() {
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
    fn there_is_a_thread_for_each_core() {
        assert!(parse(&["--config-str", "{}"]).expect("parses").threads() >= 1);
    }

    #[test]
    fn flags_of_mcrouter_without_a_meaning_here_are_named_and_not_refused() {
        let options = parse(&["--config-str", "{}", "-L", "/log", "-r", "10", "--stats-root=/stats"]).expect("parses");
        let warnings = options.ignored.warnings();
        assert_eq!(warnings.len(), 3, "{warnings:?}");
        assert!(warnings[0].starts_with("--log-path /log is ignored: "), "{warnings:?}");
        assert!(parse(&["--config-str", "{}", "--listen-sock-fd", "3"]).is_err(), "clients would find nobody");
    }

    #[test]
    fn every_option_can_be_told_and_no_secret() {
        let command = Options::command();
        let arguments = ["lookaside-router", "--config", "etcd://a:secret@b/k", "--etcd-password", "secret", "-t", "7"];
        let told = told(&command.try_get_matches_from(arguments).expect("parses"));
        let value = |name: &str| told.iter().find(|(known, _)| known == name).map(|(_, value)| &**value);
        assert_eq!((value("server_timeout"), value("route_prefix")), (Some("7"), Some("/././")));
        assert_eq!((value("enable_flush_cmd"), value("config_str")), (Some("false"), None));
        assert_eq!((value("config"), value("etcd_password")), (Some("etcd://b:2379/k"), Some("(given)")));
        assert!(!format!("{told:?}").contains("secret"), "{told:?}");
    }

    #[test]
    fn the_spool_is_where_either_name_says() {
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
    fn a_peer_may_be_reached_by_tls() {
        let line = ["--config-str", "{}", "-a", "/spool", "--spool-peers", "a:1,b:2:ascii:ssl,[::1]:3:ascii:plain"];
        let protections = parse(&line).expect("parses").peer_protections();
        let securities: Vec<_> = protections.iter().map(|(address, it)| (&*address.0, it.security)).collect();
        assert_eq!(securities, [("a:1", Security::Plain), ("b:2", Security::Tls), ("[::1]:3", Security::Plain)]);
        for bad in ["a", "a:0", ":1", "a:1:ssl"] {
            assert!(parse(&["--config-str", "{}", "-a", "/spool", "--spool-peers", bad]).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_window_is_off_adaptive_or_a_size() {
        let window = |text| parse(&["--config-str", "{}", "--window", text]).map(|options| options.window.settings());
        assert_eq!(parse(&["--config-str", "{}"]).expect("parses").window.settings(), None);
        assert_eq!(window("adaptive").expect("parses"), Some(WindowSettings::default()));
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
