//! The command line: this router's options, most of them under mcrouter's names. [`mcrouter`] makes a command line of
//! mcrouter one of these.

mod as_given;
mod auth;
mod configuration;
mod leases;
mod listen;
mod mcrouter;
mod routes;
mod servers;
mod shadows;
mod spool;
mod stats_files;
pub(crate) mod tls;
mod window;

pub use auth::AuthOptions;
pub use configuration::{ConfigurationOptions, Validation};
pub use leases::LeaseOptions;
pub use listen::ListenOptions;
pub use routes::RouteOptions;
pub use servers::ServerOptions;
pub use shadows::ShadowOptions;
pub use spool::SpoolOptions;
pub use stats_files::StatsFileOptions;
pub use tls::TlsOptions;

use crate::admin::stats_files::StatsFiles;
use crate::config::dump::ConfigDump;
use crate::frontend::limits::{CLIENT_REQUESTS_MAX, CONNECTIONS_MAX, Settings, VALUE_BYTES_MAX, WRITE_STALL_MAX};
use crate::spool::SpoolSettings;
use clap::{CommandFactory as _, FromArgMatches as _, Parser};
use lookaside_routing::{Defaults, MacroConstant};
use lookaside_telemetry::LogFormat;
use mcrouter::{Translation, program_name, translate};
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// The exit code for a command line that cannot be used, or a configuration that only had to be checked and is wrong: a
/// restart does not help.
pub(crate) const EXIT_USAGE: u8 = 3;

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

mcrouter's command line is understood: an unknown flag is logged and ignored, unless it restricts access.

Exit codes: 0 after SIGINT or SIGTERM; 1 when it cannot go on; 2 when it cannot start now, as while its configuration is
wrong or cannot be read; 3 for a wrong command line, and with --validate-config for a wrong configuration."#;

/// A memcached server towards clients, a client towards memcached servers: pools, consistent hashing, failover, and
/// connections shared by all clients.
#[derive(Clone, Debug, Parser)]
#[command(name = "lookaside-router", version, after_help = EXAMPLES, args_override_self = true)]
pub struct Options {
    /// The configuration.
    #[command(flatten)]
    pub configuration: ConfigurationOptions,
    /// The listeners for clients.
    #[command(flatten)]
    pub listen: ListenOptions,
    /// Certificates.
    #[command(flatten)]
    pub tls: TlsOptions,
    /// Passwords.
    #[command(flatten)]
    pub auth: AuthOptions,
    /// Threads, each with its own connections to the servers; 0 or `auto` for one per core. One is enough until it is
    /// busy most of the time: further ones open as many connections again
    #[arg(long, value_name = "THREADS", default_value = "1", value_parser = parse_threads)]
    pub num_proxies: u16,
    /// Maximum simultaneous client connections, over all threads; for one more, the least recently used one that waits
    /// for its client is closed. 0 for no limit, 1 for what the limit on open files allows
    #[arg(short = 'c', long, value_name = "CONNECTIONS", default_value_t = CONNECTIONS_MAX as u32)]
    pub max_conns: u32,
    /// Disconnect clients that send nothing for this many seconds; 0 for never
    #[arg(long, value_name = "SECONDS", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=86_400 * 365))]
    pub idle_timeout: u32,
    /// Disconnect clients that read none of their replies for as many milliseconds; 0 for never (mcrouter: 1000)
    #[arg(long, value_name = "MS", default_value_t = WRITE_STALL_MAX.as_millis() as u32)]
    pub client_timeout: u32,
    /// Maximum requests of one client that are in progress; beyond, its socket is not read. 0 for no limit of its own
    #[arg(long, value_name = "REQUESTS", default_value_t = CLIENT_REQUESTS_MAX as u32)]
    pub max_client_outstanding_reqs: u32,
    /// The largest value a client may send, in bytes. Servers have their own limit
    #[arg(long, value_name = "BYTES", default_value_t = VALUE_BYTES_MAX as u32, value_parser = clap::value_parser!(u32).range(1..=1 << 30))]
    pub value_bytes_max: u32,

    /// Routing.
    #[command(flatten)]
    pub routes: RouteOptions,
    /// Connections to servers.
    #[command(flatten)]
    pub servers: ServerOptions,

    /// Shadows.
    #[command(flatten)]
    pub shadows: ShadowOptions,
    /// Leases for clients that know none.
    #[command(flatten)]
    pub leases: LeaseOptions,

    /// The spool.
    #[command(flatten)]
    pub spool: SpoolOptions,
    /// After the start, refuse all requests but deletes until the invalidator has notified this router that it has
    /// caught up, for at most this many seconds; 0 serves at once. Without it, routers of a cluster that were all down
    /// show old values until their deletes have been delivered. Needs a lookaside-invalidator for this cluster
    #[arg(long, value_name = "SECONDS", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=3600))]
    pub wait_for_invalidator: u32,
    /// How many databases the keys of this cluster come from: --wait-for-invalidator waits until the invalidators of as
    /// many have caught up. A database is known by the host, port and name in its --source, so a standby must have the
    /// same
    #[arg(long, value_name = "DATABASES", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub wait_for_sources: u32,
    /// A unix socket at which the next router takes over from this one. Only this router's user may connect; only that
    /// user and root may be able to write to its directory
    #[arg(long, value_name = "FILE")]
    pub upgrade_socket: Option<PathBuf>,
    /// Take over ports, clients and spool from the router at --upgrade-socket. If there is none, start as usual
    #[arg(long, requires = "upgrade_socket")]
    pub take_over: bool,

    /// Address for Prometheus metrics (GET /metrics): host:port, or a port of 127.0.0.1
    #[arg(long, value_name = "ADDR", value_parser = metrics_address)]
    pub metrics_address: Option<String>,
    /// Reply to a get that no server answered with a miss instead of an error
    #[arg(long)]
    pub miss_on_get_errors: bool,
    /// Reply to every request that failed with SERVER_ERROR remote error, whatever the cause
    #[arg(long)]
    pub group_remote_errors: bool,
    /// Send flush_all to every server instead of refusing it, and allow the flushes of pools that row rules demand
    #[arg(long)]
    pub enable_flush_cmd: bool,
    /// The name of this service in files and lines for operators
    #[arg(long, value_name = "NAME", default_value = "mcrouter")]
    pub service_name: String,
    /// Files of statistics.
    #[command(flatten)]
    pub stats_files: StatsFileOptions,
    /// Append the log to this file, instead of writing it to standard error
    #[arg(short = 'L', long, value_name = "FILE")]
    pub log_path: Option<PathBuf>,
    /// The level of the log: -v or 1 adds debug events, -vv or 2 everything. RUST_LOG overrides it; the command
    /// verbosity changes it
    #[arg(short, long, visible_alias = "verbose", value_name = "LEVEL", default_value_t = 0)]
    pub verbosity: u32,
    /// Format of the log: text, or json with an object per event
    #[arg(long, value_name = "text|json", default_value = "text")]
    pub log_format: LogFormat,
    /// The command line, by this router's and by mcrouter's names of options. Secrets are left out.
    #[arg(skip)]
    pub as_given: Vec<(String, String)>,
    /// The command line as it was given, without the program's name, and without secrets.
    #[arg(skip)]
    pub command_line: String,
    /// The name of mcrouter's file of options that was given; `None` without one.
    #[arg(skip)]
    pub flavor: Option<String>,
    /// Lines for the log about what the command line asks for in vain.
    #[arg(skip)]
    pub notes: Vec<String>,
}

/// Why a command line is not used.
#[derive(Debug)]
pub(crate) enum UsageError {
    /// A flag that must not be ignored.
    Refused(String),
    /// It is wrong, or only asks for help.
    Clap(clap::Error),
}

impl UsageError {
    /// Prints it.
    pub(crate) fn print(&self) -> ExitCode {
        match self {
            UsageError::Refused(why) => {
                eprintln!("lookaside-router: {why}");
                EXIT_USAGE.into()
            }
            UsageError::Clap(error) => {
                let _ = error.print();
                if error.use_stderr() { EXIT_USAGE.into() } else { ExitCode::SUCCESS }
            }
        }
    }
}

impl Options {
    /// Parses the command line of this process. The error is the exit code, and has been printed.
    pub fn from_command_line() -> Result<Options, ExitCode> {
        let mut words = std::env::args_os();
        let program = words.next();
        Options::from_words(program.as_deref(), words).map_err(|error| error.print())
    }

    /// Parses a command line. The program's name stands before it; `None` for this router's own.
    pub(crate) fn from_words(
        program: Option<&OsStr>,
        words: impl IntoIterator<Item = OsString>,
    ) -> Result<Options, UsageError> {
        let is_mcrouter = program_name::is_mcrouter(program);
        let command = match is_mcrouter {
            true => program_name::with_mcrouters_defaults(Options::command()),
            false => Options::command(),
        };
        let Translation { words, mut notes, shown, without_effect, flavor } =
            translate(words, &command, cores()).map_err(UsageError::Refused)?;
        let words = std::iter::once(OsString::from(command.get_name())).chain(words);
        let matches = command.try_get_matches_from(words).map_err(UsageError::Clap)?;
        let options = Options::from_arg_matches(&matches).map_err(UsageError::Clap)?;
        if is_mcrouter {
            if options.configuration.validate_config != Some(Validation::Exit) {
                options.listen.check_has_listener().map_err(UsageError::Refused)?;
            }
            notes.push(program_name::NOTE.to_owned());
        }
        let as_given = as_given::add_mcrouters_names(as_given::options_as_given(&matches), &without_effect);
        Ok(Options { as_given, command_line: shown, notes, flavor, ..options })
    }

    /// The settings of the clients' side.
    pub fn settings(&self) -> Settings {
        let mut settings = Settings {
            connections_max: self.connections_max(),
            miss_on_get_errors: self.miss_on_get_errors,
            group_remote_errors: self.group_remote_errors,
            flush_enabled: self.enable_flush_cmd && !self.routes.allow_only_gets,
            login_timeout: self.auth.login_timeout(),
            client_timeout: (self.client_timeout > 0).then(|| Duration::from_millis(self.client_timeout.into())),
            requests_max: match self.max_client_outstanding_reqs {
                0 => usize::MAX,
                requests => requests as usize,
            },
            idle_timeout: (self.idle_timeout > 0).then(|| Duration::from_secs(self.idle_timeout.into())),
            command_line: self.command_line.clone(),
            options: self.as_given.clone().into(),
            ..Settings::default()
        };
        settings.limits.value_bytes_max = self.value_bytes_max as usize;
        settings
    }

    /// The limit on client connections over all threads.
    pub fn connections_max(&self) -> usize {
        match self.max_conns {
            0 => usize::MAX,
            1 => {
                let files = lookaside_net::raise_fd_limit(None).unwrap_or(CONNECTIONS_MAX as u64);
                files.saturating_sub(FDS_RESERVED).max(1) as usize
            }
            connections => connections as usize,
        }
    }

    /// The values that the configuration may override, and routes above it.
    pub fn defaults(&self) -> Result<Defaults, String> {
        Ok(Defaults {
            prefix: self.routes.prefix()?,
            server_timeout_ms: self.servers.server_timeout.into(),
            connect_timeout_ms: self.servers.connect_timeout.map(u64::from),
            leases: self.leases.settings(),
            place_timeouts: self.routes.place_timeouts(),
            sends_unknown_prefix_to_default: self.routes.send_invalid_route_to_default,
            broadcasts_in_background: self.routes.broadcast_in_background,
            big_values: self.routes.big_values(),
            logs_requests: self.routes.enable_logging_route,
            allows_only_gets: self.routes.allow_only_gets,
            splits_shards: !self.routes.disable_shard_split_route,
        })
    }

    /// The spool's settings.
    pub fn spool_settings(&self) -> SpoolSettings {
        let timeout_ms = self.servers.server_timeout.max(self.servers.connect_timeout.unwrap_or(0));
        self.spool.settings(Duration::from_millis(timeout_ms.into()))
    }

    /// The router's name in files: that of its flavor, or its first port, or 0 without one.
    fn router_name(&self) -> String {
        let ListenOptions { ports, ssl_ports, unix_path, listen_sock_fd, .. } = &self.listen;
        match &self.flavor {
            Some(flavor) => flavor.clone(),
            None if unix_path.is_some() || *listen_sock_fd >= 0 => "0".to_owned(),
            None => ports.first().or(ssl_ports.first()).copied().unwrap_or(listen::DEFAULT_PORT).to_string(),
        }
    }

    /// The router's name in names of files, of statistics and in the log.
    pub(crate) fn name_in_files(&self) -> String {
        format!("libmcrouter.{}.{}", self.service_name, self.router_name())
    }

    /// The copies of the configuration's files; `None` without `--config-dump-root`.
    pub(crate) fn config_dump(&self) -> Option<ConfigDump> {
        let root = self.configuration.config_dump_root.as_deref().filter(|root| !root.as_os_str().is_empty())?;
        let age_s = self.configuration.max_dumped_config_age;
        let age_max = (age_s > 0).then_some(Duration::from_secs(age_s));
        Some(ConfigDump::new(root, &self.service_name, &self.router_name(), age_max))
    }

    /// The files of statistics; `None` without `--stats-root`.
    pub(crate) fn stats_files(&self) -> Option<StatsFiles> {
        let (root, interval) = self.stats_files.root_and_interval()?;
        let settings = self.settings();
        Some(StatsFiles {
            root: root.to_owned(),
            name: self.name_in_files(),
            interval,
            options: settings.options,
            version: settings.version,
            command_line: settings.command_line,
            connections_max: settings.connections_max,
        })
    }

    /// The constants for macros of the configuration, on the host with this number.
    pub(crate) fn macro_constants(&self, host_id: u32) -> Result<BTreeMap<String, MacroConstant>, String> {
        let prefix = self.routes.prefix()?;
        let text = |text: &str| MacroConstant::Text(text.to_owned());
        let mut constants = BTreeMap::from([
            ("default-route".to_owned(), text(prefix.as_str())),
            ("default-region".to_owned(), text(prefix.region())),
            ("default-cluster".to_owned(), text(prefix.cluster())),
            ("hostid".to_owned(), MacroConstant::Number(host_id.into())),
            ("router-name".to_owned(), MacroConstant::Text(self.router_name())),
            ("service-name".to_owned(), text(&self.service_name)),
            ("router-info-name".to_owned(), text("Memcache")),
            ("num-proxies".to_owned(), MacroConstant::Number(self.threads() as i64)),
            ("service-router-capable".to_owned(), MacroConstant::Number(0)),
        ]);
        constants.extend(self.as_given.iter().map(|(name, value)| (format!("mcr_opts-{name}"), text(value))));
        let given = self.configuration.config_params.iter().chain(&self.configuration.additional_config_params);
        constants.extend(given.map(|(name, value)| (name.clone(), text(value))));
        Ok(constants)
    }

    /// The constants for macros of a configuration that is read without a router: those of a router with these two
    /// options, the default of every other, and this number of its host.
    ///
    /// # Errors
    /// One of the two is malformed.
    pub fn constants_without_router(
        route_prefix: &str,
        config_params: &str,
        host_id: u32,
    ) -> Result<BTreeMap<String, MacroConstant>, String> {
        let words = [format!("--route-prefix={route_prefix}"), format!("--config-params={config_params}")];
        let options = Options::from_words(None, words.map(OsString::from)).map_err(|error| match error {
            UsageError::Refused(why) => why,
            UsageError::Clap(error) => {
                let text = error.to_string();
                text.lines().next().unwrap_or_default().trim_start_matches("error: ").to_owned()
            }
        })?;
        options.macro_constants(host_id)
    }

    /// The number of threads.
    pub fn threads(&self) -> usize {
        match self.num_proxies {
            0 => cores(),
            threads => threads.into(),
        }
    }
}

/// File descriptors besides those of clients: listeners, event queues, connections to servers.
pub(crate) const FDS_RESERVED: u64 = 100;

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// More threads than any machine has cores.
const THREADS_MAX: u16 = 1_024;

fn parse_threads(text: &str) -> Result<u16, String> {
    match (text, text.parse()) {
        ("auto", _) => Ok(0),
        (_, Ok(threads @ 0..=THREADS_MAX)) => Ok(threads),
        _ => Err(format!("expected a number of threads up to {THREADS_MAX}, or auto")),
    }
}

fn metrics_address(text: &str) -> Result<String, String> {
    lookaside_telemetry::check_address(text).map(|()| lookaside_telemetry::full_address(text))
}

#[cfg(test)]
mod tests;
