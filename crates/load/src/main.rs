//! `lookaside-load`: the command line of the load generator.

use anyhow::{Context, Result, bail};
use clap::Parser;
use lookaside_load::{
    Items, KEY_BYTES, KeyOrder, LoadLimits, LoadOptions, MeasuredProcess, Mix, Pace, Report, ServerAddress, run,
};
use std::io::Write;
use std::ops::RangeInclusive;
use std::process::ExitCode;
use std::time::Duration;

/// The longest value: servers accept items of up to 1 MiB by default.
const VALUE_BYTES_MAX: u32 = 1_000_000;
/// A fill has at most this many bytes on their way, and requests.
const FILL_BYTES: usize = 256 << 10;
const FILL_REQUESTS_MAX: usize = 512;
/// The longest warm-up or measured time, in seconds: a day.
const SECONDS_MAX: f64 = 86_400.0;
/// Descriptors beside those of connections.
const OTHER_DESCRIPTORS: u64 = 64;

const EXAMPLES: &str = "Examples:
  lookaside-load 127.0.0.1:11211 --fill
      stores a million items
  lookaside-load 127.0.0.1:11211 --keys-per-get 10 --server-pid 4711
      gets of ten keys for 10 seconds, and their processor time in the server
  lookaside-load 127.0.0.1:11211 --rate 20000 --set-share 0.1 --seconds 60 --json
      20,000 requests per second at random times, a tenth of them sets
  lookaside-load udp:127.0.0.1:11211 --keys-per-get 24 --zipf 0.99
  lookaside-load unix:/run/cache.sock --depth 16

It runs on one thread; pin it to a core with taskset(1). On loopback the server's processor time contains work that the
kernel does for it. Compare servers that used about all of one core: below that, each request pays for a wake-up. It
fails if a reply is wrong or does not come.";

/// Loads a server that speaks memcached's text protocol, and checks every byte of every reply
#[derive(Clone, Debug, Parser)]
#[command(name = "lookaside-load", version, after_help = EXAMPLES)]
struct Options {
    /// The server: HOST:PORT, udp:HOST:PORT or unix:PATH
    #[arg(value_parser = ServerAddress::parse)]
    endpoint: ServerAddress,
    /// Store every item once, by one connection, and end; it is not measured
    #[arg(long, conflicts_with_all = ["rate", "depth", "connections", "set_share", "zipf", "keys_per_get", "requests"])]
    fill: bool,
    /// Connections
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    connections: u32,
    /// Closed loop: requests that each connection has on their way
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    depth: u32,
    /// Open loop: requests per second of all connections together, at random times; latencies count from when a request
    /// was due. The load then uses a whole core
    #[arg(long, value_name = "PER_SECOND", conflicts_with = "depth", value_parser = parse_rate)]
    rate: Option<f64>,
    /// The number of items
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000_000))]
    keys: u32,
    /// The length of keys, in bytes: 8 to 250
    #[arg(long, value_name = "BYTES", default_value_t = 24, value_parser = parse_key_bytes)]
    key_bytes: usize,
    /// The length of values, in bytes, or the shortest and the longest of items of all lengths between: 32 or 10-1000
    #[arg(long, value_name = "BYTES", default_value = "32", value_parser = parse_value_bytes)]
    value_bytes: RangeInclusive<u32>,
    /// Distinct keys of each get
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    keys_per_get: u32,
    /// The share of requests that are sets, from 0 to 1; not by UDP
    #[arg(long, value_name = "SHARE", default_value_t = 0.0, value_parser = parse_share)]
    set_share: f64,
    /// Draw keys by Zipf's law with this exponent, 0 to 5, instead of evenly
    #[arg(long, value_name = "EXPONENT", value_parser = parse_exponent)]
    zipf: Option<f64>,
    /// Seconds of load before the measured time
    #[arg(long, value_name = "SECONDS", default_value = "0.5", value_parser = parse_seconds)]
    warmup: Duration,
    /// Seconds of the measured time
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = parse_seconds)]
    seconds: Duration,
    /// End when this number of requests has been measured
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    requests: Option<u64>,
    /// Fail if a request by TCP or a Unix socket has no reply for this many seconds
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = parse_seconds)]
    timeout: Duration,
    /// Seconds after which a request by UDP is lost
    #[arg(long, value_name = "SECONDS", default_value = "0.2", value_parser = parse_seconds)]
    udp_timeout: Duration,
    /// The server's process, whose processor time and memory are reported
    #[arg(long, value_name = "PID")]
    server_pid: Option<u32>,
    /// The seed of keys and times
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Print the figures as one line of JSON
    #[arg(long)]
    json: bool,
}

fn parse_number(text: &str, range: RangeInclusive<f64>) -> Result<f64, String> {
    match text.parse() {
        Ok(number) if range.contains(&number) => Ok(number),
        _ => Err(format!("expected a number from {} to {}", range.start(), range.end())),
    }
}

fn parse_rate(text: &str) -> Result<f64, String> {
    parse_number(text, 1.0..=1e8)
}

fn parse_share(text: &str) -> Result<f64, String> {
    parse_number(text, 0.0..=1.0)
}

fn parse_exponent(text: &str) -> Result<f64, String> {
    parse_number(text, 0.0..=5.0)
}

fn parse_seconds(text: &str) -> Result<Duration, String> {
    parse_number(text, 0.0..=SECONDS_MAX).map(Duration::from_secs_f64)
}

fn parse_key_bytes(text: &str) -> Result<usize, String> {
    let bytes = text.parse().ok().filter(|bytes| KEY_BYTES.contains(bytes));
    bytes.ok_or_else(|| format!("expected a number from {} to {}", KEY_BYTES.start(), KEY_BYTES.end()))
}

fn parse_value_bytes(text: &str) -> Result<RangeInclusive<u32>, String> {
    let (low, high) = text.split_once('-').unwrap_or((text, text));
    let number = |text: &str| text.parse().ok().filter(|bytes| (1..=VALUE_BYTES_MAX).contains(bytes));
    let range = number(low).zip(number(high)).filter(|(low, high)| low <= high);
    let expected = || format!("expected a number from 1 to {VALUE_BYTES_MAX}, or two with - between them");
    range.map(|(low, high)| low..=high).ok_or_else(expected)
}

fn main() -> ExitCode {
    let options = Options::parse();
    match load(&options).and_then(|report| report.map_or(Ok(()), |report| print(&report, options.json))) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("lookaside-load: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Runs the load; `None` after a fill.
fn load(options: &Options) -> Result<Option<Report>> {
    let is_udp = matches!(options.endpoint, ServerAddress::Udp(_));
    if is_udp && (options.fill || options.set_share > 0.0) {
        bail!("values are stored by TCP or a Unix socket only: --fill and --set-share are not for UDP");
    }
    if is_udp && options.depth > 1 {
        bail!("--depth {}: a connection by UDP has one request at a time; use more --connections", options.depth);
    }
    if options.keys_per_get > options.keys {
        bail!(
            "--keys-per-get {}: the keys of a get are distinct, and there are --keys {}",
            options.keys_per_get,
            options.keys
        );
    }
    if options.seconds.is_zero() {
        bail!("--seconds 0: nothing would be measured");
    }
    let descriptors = u64::from(options.connections) + OTHER_DESCRIPTORS;
    if let Some(limit) = lookaside_net::raise_fd_limit(Some(descriptors)).filter(|&limit| limit < descriptors) {
        bail!("--connections {}: the limit on open files is {limit}; raise it with ulimit -n", options.connections);
    }
    let server = options.server_pid.map(MeasuredProcess::new).transpose()?;
    let items = Items::new(options.keys, options.key_bytes, options.value_bytes.clone());
    if options.fill {
        fill(options, &items)?;
        return Ok(None);
    }
    let order = options.zipf.map_or(KeyOrder::Uniform, KeyOrder::Zipf);
    let load = LoadOptions {
        endpoint: options.endpoint.clone(),
        connections: options.connections,
        pace: options.rate.map_or(Pace::Closed { depth: options.depth as usize }, |rate| Pace::Open { rate }),
        mix: Mix { order, keys_per_get: options.keys_per_get, set_share: options.set_share },
        limits: LoadLimits {
            warmup: options.warmup,
            duration: options.seconds,
            requests_max: options.requests,
            timeout: options.timeout,
            udp_timeout: options.udp_timeout,
        },
        server,
        seed: options.seed,
    };
    Ok(Some(run(&load, &items)?))
}

/// Stores every item once.
fn fill(options: &Options, items: &Items) -> Result<()> {
    let depth = (FILL_BYTES / (items.value_bytes_max() + items.key_bytes())).clamp(1, FILL_REQUESTS_MAX);
    let load = LoadOptions {
        endpoint: options.endpoint.clone(),
        connections: 1,
        pace: Pace::Closed { depth },
        mix: Mix { order: KeyOrder::Once, keys_per_get: 1, set_share: 1.0 },
        limits: LoadLimits {
            warmup: Duration::ZERO,
            duration: Duration::from_secs_f64(SECONDS_MAX),
            requests_max: None,
            timeout: options.timeout,
            udp_timeout: options.udp_timeout,
        },
        server: None,
        seed: options.seed,
    };
    run(&load, items).context("the fill failed")?;
    Ok(())
}

fn print(report: &Report, json: bool) -> Result<()> {
    let mut out = std::io::stdout().lock();
    if json {
        writeln!(out, "{}", report.json())?
    } else {
        writeln!(out, "{report}")?
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn command_line_is_consistent() {
        Options::command().debug_assert();
    }

    #[test]
    fn numbers_out_of_range_are_refused() {
        assert_eq!(parse_value_bytes("32"), Ok(32..=32));
        assert_eq!(parse_value_bytes("10-1000"), Ok(10..=1_000));
        for wrong in ["0", "9-3", "1-", "-5", "1000001", "x"] {
            assert!(parse_value_bytes(wrong).unwrap_err().contains("1000000"), "{wrong}");
        }
        assert_eq!(parse_key_bytes("8"), Ok(8));
        assert!(parse_key_bytes("7").is_err() && parse_key_bytes("251").is_err());
        assert!(parse_share("1.1").is_err() && parse_rate("0").is_err() && parse_seconds("NaN").is_err());
    }
}
