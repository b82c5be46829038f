//! The command line: memcached's flags, and those for leases (§3.2.1 of the paper).

mod extended;
mod help;
mod ignored;
mod listen_spec;
mod ports;
pub(crate) mod tls;
mod validate;
mod values;

pub use ignored::CompatibleOptions;
pub use listen_spec::ListenAddress;
pub use ports::Port;
pub use validate::UsageError;

use crate::session::context::Protocols;
use clap::error::{ContextKind, ErrorKind};
use clap::{ArgAction, CommandFactory, Parser, ValueEnum};
use lookaside_store::{Options, RegionName};
use lookaside_telemetry::LogFormat;
use std::ffi::OsString;
use std::ops::RangeInclusive;

/// The size of an item's header in the store. memcached's `-n` does not include its header either.
const ITEM_HEADER_BYTES: usize = 16;

/// Replaces clap's message, which does not say what to do.
const REMOVE_REGION_IS_ALONE: &str = "--remove-region NAME takes no other option: it removes the memory that a server has \
     left under that name, and does not start a server. Run it alone, then start the server without it";

/// The options of `lookaside-server`.
#[derive(Clone, Debug, Parser)]
#[command(name = "lookaside-server", version, about = "A cache server that speaks memcached's protocol, with leases")]
// As with memcached, the last of several counts; -l and -o add up.
#[command(after_help = help::after_help(), args_override_self = true)]
pub struct Arguments {
    /// TCP port; 0 is off, -1 picks a free one. By default 11211, or the port of -U
    #[arg(short = 'p', allow_negative_numbers = true, long = "port", value_name = "PORT", value_parser = Port::parse)]
    pub port: Option<Port>,

    /// UDP port; 0 is off, -1 picks a free one. Not opened beside -Z: its requests would be plain (-o plain_udp opens
    /// it all the same)
    #[arg(short = 'U', allow_negative_numbers = true, long = "udp-port", value_name = "PORT", default_value = "0",
          value_parser = Port::parse)]
    pub udp_port: Port,

    /// With -U, one more UDP port per worker thread: this one for the first thread, the following ones for the others
    /// (udp_worker_ports in `stats settings`); 0 is off. A client using one port is always served by the same thread
    #[arg(long, value_name = "PORT", default_value_t = 0)]
    pub udp_worker_ports: u16,

    /// Largest UDP reply to a client that has not connected by TCP from the same address, in bytes (8 of each datagram
    /// are its header); suffix k; never less than the client sent, never more than 128k. By default no more than it
    /// sent: otherwise the server could be used to flood other hosts
    #[arg(long, value_name = "BYTES", default_value = "0", hide_default_value = true, value_parser = values::parse_reply_bytes)]
    pub udp_reply_limit: usize,

    /// Addresses to listen on, separated by commas: host or host:port ([v6]:port); 0.0.0.0 or * for all. With -Z, the
    /// prefix notls:, btls: or mtls: selects no TLS, TLS without or TLS with client certificates; proto[ascii]: or
    /// proto[binary]: overrides -B there
    #[allow(rustdoc::broken_intra_doc_links, reason = "the text of --help")]
    #[arg(short = 'l', long = "listen", value_name = "ADDRESSES", value_delimiter = ',')]
    pub listen: Vec<String>,

    /// Memory for items, their metadata and the index, in megabytes
    #[arg(short = 'm', long = "memory-limit", value_name = "MB", default_value_t = 64,
          value_parser = values::parse_megabytes, allow_negative_numbers = true)]
    pub memory_megabytes: u64,

    /// The command cache_memlimit may raise the limit up to this, in megabytes; 0: not above -m. Address space is
    /// reserved for it, no memory. Default: four times -m; 0 with -k, --warm-restart and -e, whose memory is taken at
    /// the start
    #[arg(long, value_name = "MB", value_parser = values::parse_megabytes_or_zero, allow_negative_numbers = true)]
    pub memory_limit_max: Option<u64>,

    /// When memory is full, refuse to store instead of evicting items: SERVER_ERROR out of memory storing object. Items
    /// that have expired leave. For data that must not vanish, as remote markers; a cache should evict
    #[arg(short = 'M', long)]
    pub disable_evictions: bool,

    /// Worker threads; by default one per core
    #[arg(short = 't', allow_negative_numbers = true, long = "threads", value_name = "COUNT", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,

    /// Maximum simultaneous connections; others get an error and are closed
    #[arg(short = 'c', allow_negative_numbers = true, long = "conn-limit", value_name = "COUNT", default_value_t = 1024,
          value_parser = clap::value_parser!(u32).range(1..=1 << 22))]
    pub connections_max: u32,

    /// The largest item: key, value and metadata, in bytes; suffixes k and m (1k to 1024m)
    #[arg(short = 'I', long = "max-item-size", value_name = "BYTES", default_value = "1m", value_parser = values::parse_item_bytes)]
    pub item_bytes_max: usize,

    /// Verbose: -v logs connections, -vv also commands and replies, without values; the command verbosity changes it
    #[arg(short = 'v', long = "verbose", action = ArgAction::Count)]
    pub verbosity: u8,

    /// Format of the log: text, or json, one object per event
    #[arg(long, value_name = "text|json", default_value = "text")]
    pub log_format: LogFormat,

    /// Unix socket to listen on, instead of TCP and UDP
    #[arg(short = 's', long = "unix-socket", value_name = "FILE")]
    pub unix_path: Option<std::path::PathBuf>,

    /// Access mode of the Unix socket, in octal
    #[arg(short = 'a', long = "unix-mask", value_name = "MODE", default_value = "700", value_parser = lookaside_net::parse_mode)]
    pub unix_mode: u32,

    /// Maximum number of connections that wait to be accepted
    #[arg(short = 'b', allow_negative_numbers = true, long = "listen-backlog", value_name = "COUNT", default_value_t = 1024,
          value_parser = clap::value_parser!(i32).range(1..))]
    pub backlog: i32,

    /// A file to write the process id to; removed at the end
    #[arg(short = 'P', long = "pidfile", value_name = "FILE")]
    pub pid_path: Option<std::path::PathBuf>,

    /// Run in the background: returns once the ports are open, or with the reason on standard error and its exit
    /// status; the log goes to standard error until then, nowhere afterwards
    #[arg(short = 'd', long)]
    pub daemon: bool,

    /// Close connections that have been idle for this many seconds, checked every 10 s; 0 disables; also
    /// -o idle_timeout=SECONDS
    #[arg(long, value_name = "SECONDS", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=86_400 * 365))]
    pub idle_timeout: u32,

    /// TLS; with -o ssl_chain_cert=FILE and, optionally, ssl_key=FILE, ssl_ca_cert=FILE, ssl_verify_mode=0..3,
    /// ssl_min_version=2..3, ssl_ciphers=A:B, ssl_session_cache, ssl_handshake_timeout=SECONDS (30). SIGHUP and the
    /// command refresh_certs reload the files
    #[arg(short = 'Z', long = "enable-ssl")]
    pub tls: bool,

    /// Character that ends the prefix of a key, for `stats detail`; also turns prefix counts on from the start
    #[arg(short = 'D', value_name = "CHARACTER", value_parser = values::parse_delimiter)]
    pub prefix_delimiter: Option<u8>,

    /// Refuse the command `watch`
    #[arg(short = 'W', long)]
    pub disable_watch: bool,

    /// Address for Prometheus (GET /metrics): host:port, or a port on loopback
    #[arg(long, value_name = "ADDRESS")]
    pub metrics_address: Option<String>,

    /// Protocol of the clients; auto detects it for each connection
    #[arg(short = 'B', long, value_name = "NAME", value_enum, default_value_t = ProtocolName::Auto)]
    pub protocol: ProtocolName,

    /// Require authentication (SASL PLAIN), and serve the binary protocol only; the file named by MEMCACHED_SASL_PWDB
    /// has a line user:password for each user
    #[arg(short = 'S', long)]
    pub enable_sasl: bool,

    /// Require authentication in the text protocol: a first `set` of any key with `user password` as its value.
    /// The file has a line user:password for each user; a password may be a bcrypt hash (htpasswd -nB). Without -S
    /// the binary protocol is off then. SIGHUP reloads the file
    #[arg(short = 'Y', long = "auth-file", value_name = "FILE")]
    pub auth_path: Option<std::path::PathBuf>,

    /// With -S or -Y, close connections whose client has not logged in after this many seconds; 0 disables. The
    /// router's flag is --login-timeout-ms, in milliseconds
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u32).range(0..=3600))]
    pub login_timeout: u32,

    /// Become this user once the ports are open; needs to be started by root
    #[arg(short = 'u', long, value_name = "USER")]
    pub user: Option<String>,

    /// Allow core files as large as the system permits
    #[arg(short = 'r', long = "enable-coredumps")]
    pub enable_core_files: bool,

    /// Lock all memory, so that it is never paged out; takes all of -m at the start
    #[arg(short = 'k', long)]
    pub lock_memory: bool,

    /// Let clients stop the server with the command `shutdown`
    #[arg(short = 'A', long)]
    pub enable_shutdown: bool,

    /// At most one lease token per key in this time, in seconds; fractions allowed, 0 gives a token to every miss
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = values::parse_seconds_ms)]
    pub lease_interval: u32,

    /// How long a deleted value may still be returned, marked as stale, in seconds; fractions allowed, 0 for never
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = values::parse_seconds_ms)]
    pub stale_seconds: u32,

    /// Growth factor of chunk sizes from one slab class to the next, 1.05 to 4; a large factor wastes memory in each
    /// chunk, a small one spreads memory over more classes
    #[arg(short = 'f', long, value_name = "FACTOR", default_value_t = 1.07, value_parser = values::parse_factor)]
    pub slab_growth_factor: f64,

    /// Space for key, value and flags in the smallest chunk, 32 to 1008 bytes, without its header of 16 bytes
    #[arg(short = 'n', allow_negative_numbers = true, long = "slab-min-size", value_name = "BYTES", default_value_t = 48,
          value_parser = clap::value_parser!(u16).range(32..=1008))]
    pub slab_bytes_min: u16,

    /// Memory moves to the slab class whose victims have the lowest age * (chunk size)^this, 0 to 4: 0 counts every
    /// hit alike, more favours small items
    #[arg(long, value_name = "EXPONENT", default_value_t = 0.5, value_parser = values::parse_exponent)]
    pub age_exponent: f64,

    /// Items with an expiry of at most this many seconds are removed in the second in which they expire; 0 is off
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u32).range(0..=60))]
    pub transient_seconds: u32,

    /// After a delete, issue no new token before the lease interval is over
    #[arg(long)]
    pub lease_interval_outlasts_delete: bool,

    /// Keep all items in shared memory of this name at the end, for the next server with this name and the same -m; by
    /// default nothing outlives the server. Deletes that are sent while no server runs must be sent again before it is
    /// read
    #[arg(long, value_name = "NAME", value_parser = values::parse_region_name)]
    pub warm_restart: Option<RegionName>,

    /// As --warm-restart, named by the absolute path of FILE: no file is created, and --remove-region frees the memory
    #[arg(short = 'e', long, value_name = "FILE", conflicts_with = "warm_restart", value_parser = values::parse_memory_file)]
    pub memory_file: Option<RegionName>,

    /// Unix socket by which a new server can take over (see --take-over). Only this user and root may connect
    #[arg(long, value_name = "FILE")]
    pub upgrade_socket: Option<std::path::PathBuf>,

    /// Take over from the server at --upgrade-socket: its ports, its connections and, with --warm-restart, its items,
    /// without refusing a connection. If that fails, it continues to serve. If no server is running, start as usual
    #[arg(long, requires = "upgrade_socket")]
    pub take_over: bool,

    /// Remove the shared memory of --warm-restart NAME, or of -e with this absolute path, and exit. Takes no other
    /// option; no server may be using it
    #[arg(long, value_name = "NAME", exclusive = true, value_parser = values::parse_region_name)]
    pub remove_region: Option<RegionName>,

    /// Print the licence and exit
    #[arg(short = 'i', long = "license")]
    pub shows_licence: bool,

    /// Options of memcached.
    #[command(flatten)]
    pub compatible: CompatibleOptions,
}

/// memcached's names for the protocols.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ProtocolName {
    /// The first byte of a connection decides.
    #[value(alias = "negotiating")]
    Auto,
    /// Text, with meta commands and leases.
    Ascii,
    /// Binary.
    Binary,
}

impl Arguments {
    /// Parses a command line. An error has the text to print and the exit status.
    pub fn read(words: impl IntoIterator<Item: Into<OsString> + Clone>) -> Result<Arguments, clap::Error> {
        Arguments::try_parse_from(words).map_err(|error| {
            let is_conflict = error.kind() == ErrorKind::ArgumentConflict;
            let names = error.get(ContextKind::InvalidArg).map(ToString::to_string).unwrap_or_default();
            if is_conflict && names.starts_with("--remove-region") {
                return Arguments::command().error(ErrorKind::ArgumentConflict, REMOVE_REGION_IS_ALONE);
            }
            error
        })
    }

    /// The protocols that clients may speak: if clients have to authenticate, those in which they can.
    pub fn protocols(&self) -> Result<Protocols, UsageError> {
        self.protocols_at(None)
    }

    /// The same for an address of `-l` with this protocol.
    pub fn protocols_at(&self, protocol: Option<ProtocolName>) -> Result<Protocols, UsageError> {
        let advice = |ours: &str| match protocol {
            None => format!("remove -B {ours}"),
            Some(_) => format!("remove proto[{ours}] from -l"),
        };
        match (protocol.unwrap_or(self.protocol), self.enable_sasl) {
            (ProtocolName::Ascii, true) if protocol.is_none() || self.auth_path.is_none() => {
                Err(UsageError(format!("-S requires passwords in the binary protocol: {}", advice("ascii"))))
            }
            (ProtocolName::Binary, false) if self.auth_path.is_some() => {
                Err(UsageError(format!("-Y requires passwords in the text protocol: {}", advice("binary"))))
            }
            (ProtocolName::Ascii, _) => Ok(Protocols::Text),
            (ProtocolName::Auto, false) if self.auth_path.is_some() => Ok(Protocols::Text),
            (ProtocolName::Auto, true) if self.auth_path.is_some() => Ok(Protocols::Both),
            (ProtocolName::Auto, false) => Ok(Protocols::Both),
            (ProtocolName::Binary, _) | (ProtocolName::Auto, true) => Ok(Protocols::Binary),
        }
    }

    /// The highest memory limit that `cache_memlimit` may set, in megabytes.
    pub fn memory_megabytes_max(&self) -> u64 {
        /// By default the limit can be raised to this many times `-m`.
        const GROWTH_DEFAULT: u64 = 4;
        let is_fixed = self.lock_memory || self.region_name().is_some();
        let wanted = self.memory_limit_max.unwrap_or(GROWTH_DEFAULT * self.memory_megabytes);
        if is_fixed { self.memory_megabytes } else { wanted.max(self.memory_megabytes) }
    }

    /// The options of the store. `token_seed` makes the lease tokens of this process differ from those of all others;
    /// `hash_seed` must be secret.
    pub fn store_options(&self, token_seed: u64, hash_seed: u64) -> Options {
        Options {
            memory_bytes_max: (self.memory_megabytes as usize) << 20,
            memory_bytes_reserved: (self.memory_megabytes_max() as usize) << 20,
            item_bytes_max: self.item_bytes_max,
            lease_interval_ms: self.lease_interval,
            lease_interval_outlasts_delete: self.lease_interval_outlasts_delete,
            stale_ms: self.stale_seconds,
            growth_factor: self.slab_growth_factor,
            chunk_bytes_min: usize::from(self.slab_bytes_min) + ITEM_HEADER_BYTES,
            rebalance: self.compatible.slab_automove(),
            age_exponent: self.age_exponent,
            transient_s: self.transient_seconds,
            evictions: !self.disable_evictions,
            seed: token_seed,
            hash_seed,
        }
    }

    /// The number of seconds after which an idle connection is closed; 0 for never.
    pub fn idle_timeout_s(&self) -> u32 {
        self.compatible.idle_timeout_s().unwrap_or(self.idle_timeout)
    }

    /// The region that outlives the server; `None` if there is none.
    pub fn region_name(&self) -> Option<&RegionName> {
        self.warm_restart.as_ref().or(self.memory_file.as_ref())
    }

    /// The number of workers.
    pub fn threads_count(&self) -> usize {
        let cores = || std::thread::available_parallelism().map_or(1, |cores| cores.get());
        self.threads.map_or_else(cores, usize::from)
    }

    /// The UDP ports of the single workers, fewer than workers if the numbers run out; `None` if workers have none.
    pub fn udp_worker_ports(&self) -> Option<RangeInclusive<u16>> {
        let last = usize::from(self.udp_worker_ports) + self.threads_count() - 1;
        let last = u16::try_from(last).unwrap_or(u16::MAX);
        (self.udp_worker_ports != 0).then_some(self.udp_worker_ports..=last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(arguments: &[&str]) -> Result<Arguments, clap::Error> {
        Arguments::try_parse_from([&["lookaside-server"], arguments].concat())
    }

    #[test]
    fn defaults_are_those_of_memcached_except_the_address() {
        let arguments = parse(&[]).expect("no argument is needed");
        let options = arguments.store_options(7, 8);
        assert_eq!((arguments.tcp_port(), arguments.connections_max), (Port::Number(11211), 1024));
        assert_eq!((options.memory_bytes_max, options.item_bytes_max), (64 << 20, 1 << 20));
        assert_eq!(arguments.addresses(11211).expect("an address")[0].address.to_string(), "127.0.0.1:11211");
    }

    #[test]
    fn command_lines_of_memcached_are_accepted() {
        let arguments = parse(&[
            "-p",
            "11300",
            "-U",
            "11301",
            "-l",
            "0.0.0.0,[::1]:99",
            "-m",
            "128",
            "-t4",
            "-c",
            "10",
            "-I",
            "2m",
            "-vv",
        ])
        .expect("memcached takes these");
        assert_eq!((arguments.threads_count(), arguments.verbosity, arguments.item_bytes_max), (4, 2, 2 << 20));
        let addresses: Vec<String> =
            arguments.addresses(1).expect("addresses").iter().map(|a| a.address.to_string()).collect();
        assert_eq!(addresses, ["0.0.0.0:1", "[::1]:99"]);
    }

    #[test]
    fn options_without_effect_are_logged() {
        let arguments = parse(&["-d", "-P", "/run/m.pid", "-C", "-R", "20", "-o", "modern,hashpower=20"]);
        let compatible = arguments.expect("memcached takes these").compatible;
        let ignored_options = compatible.ignored_options();
        assert_eq!(ignored_options.len(), 4);
        assert!(ignored_options[0].text.starts_with("-R ") && ignored_options[3].text.starts_with("-o hashpower=20 "));
        assert!(ignored_options.iter().all(|remark| !remark.is_unsupported));
        let lost = parse(&["-o", "ext_path=/x:1G"]).expect("memcached takes these").compatible.ignored_options();
        assert!(lost.len() == 1 && lost.iter().all(|remark| remark.is_unsupported));
        assert_eq!(compatible.refusal(), None);
    }

    #[test]
    fn the_last_of_several_counts_and_lists_add_up() {
        let arguments = parse(&["-t", "1", "-t", "3", "-l", "10.0.0.1", "-l", "10.0.0.2", "-vv", "-o", "a", "-o", "b"]);
        let arguments = arguments.expect("memcached takes these");
        assert_eq!((arguments.threads_count(), arguments.verbosity), (3, 2));
        assert_eq!((arguments.listen.len(), arguments.compatible.extended().len()), (2, 2));
    }

    #[test]
    fn the_defaults_are_those_of_the_store() {
        let options = parse(&[]).expect("no argument is needed").store_options(0, 0);
        let default = Options::default();
        assert_eq!((options.growth_factor, options.chunk_bytes_min), (default.growth_factor, default.chunk_bytes_min));
        assert_eq!((options.age_exponent, options.transient_s), (default.age_exponent, default.transient_s));
        assert!(options.rebalance && options.evictions);
        assert!(!parse(&["-M"]).expect("memcached takes it").store_options(0, 0).evictions);
        let arguments = parse(&["-f", "1.25", "-n", "80", "-o", "modern,slab_automove=0", "--age-exponent", "0"]);
        let options = arguments.expect("memcached takes most of these").store_options(0, 0);
        assert_eq!((options.growth_factor, options.chunk_bytes_min, options.age_exponent), (1.25, 96, 0.0));
        assert!(!options.rebalance);
        for bad in
            ["slab_automove=3", "slab_automove=x", "slab_automove=", "read_buf_mem_limit", "resp_obj_mem_limit=-1"]
        {
            assert!(parse(&["-o", bad]).expect("an option").compatible.refusal().is_some(), "{bad}");
        }
    }

    #[test]
    fn all_connections_together_have_limits() {
        let limits = parse(&["-o", "read_buf_mem_limit=1,resp_obj_mem_limit=32", "-o", "read_buf_mem_limit=64"]);
        let limits = limits.expect("two limits").compatible;
        assert_eq!((limits.read_limit_bytes(), limits.reply_limit_bytes()), (64 << 20, 32 << 20));
        assert_eq!((limits.refusal(), limits.ignored_options().len()), (None, 0));
        let waits = |options| parse(&["-o", options]).expect("memcached takes these").compatible.waits_when_full();
        assert!(waits("no_maxconns_fast") && !waits("modern") && !waits("no_maxconns_fast,maxconns_fast"));
    }

    #[test]
    fn fractions_of_seconds() {
        let arguments = parse(&["--lease-interval", "0.25", "--stale-seconds", "1.5"]).expect("fractions");
        let options = arguments.store_options(0, 0);
        assert_eq!((options.lease_interval_ms, options.stale_ms), (250, 1500));
    }

    #[test]
    fn a_region_is_named_in_two_ways_and_removed_alone() {
        for named in [&["--warm-restart", "/main"][..], &["-e", "/main"], &["--memory-file=/main"]] {
            let arguments = parse(named).expect("a name");
            assert_eq!(arguments.region_name().map(RegionName::as_str), Some("/main"), "{named:?}");
        }
        let relative = parse(&["-e", "main"]).expect("a name");
        let here = std::env::current_dir().expect("a folder").join("main");
        assert_eq!(relative.region_name().map(RegionName::as_str), here.to_str());
        assert_eq!(parse(&["--remove-region", "main"]).expect("a name").region_name(), None);
        assert_eq!(parse(&[]).expect("no argument is needed").region_name(), None);
        let contradictions = [&["-e", "a", "--warm-restart", "b"][..], &["--remove-region", "a", "-m", "64"]];
        for bad in contradictions.into_iter().chain([&["--warm-restart", ""][..], &["--warm-restart", "a\nb"]]) {
            assert!(parse(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn invalid_values_are_refused() {
        for bad in [
            ["-I", "1x"],
            ["-f", "1"],
            ["-n", "8"],
            ["--age-exponent", "-1"],
            ["--transient-seconds", "61"],
            ["-I", "2000m"],
            ["--lease-interval", "-1"],
            ["--stale-seconds", "NaN"],
            ["-t", "0"],
            ["-m", "0"],
            ["--udp-reply-limit", "129k"],
            ["-a", "8"],
        ] {
            assert!(parse(&bad).is_err(), "{bad:?}");
        }
    }
}
