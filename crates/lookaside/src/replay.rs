//! `lookaside replay`: replays a trace, or one of the paper's pools, through the cache, look-aside. `--plain` is in
//! `plain`.

mod plain;

use anyhow::{Context, Result, bail};
use lookaside_client::{Client, DestinationOptions, TcpDestination, TcpNetwork};
use lookaside_routing::{Address, DestinationRoute};
use lookaside_workload::{
    POOLS, Pool, Progress, ReplayOptions, Report, SYNTHETIC_REQUESTS_MAX, Trace, family, replay, synthetic,
};
use std::{
    io::{IsTerminal, Write},
    net::ToSocketAddrs,
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

/// The longest family of keys, limited by memory.
const FAMILY_S_MAX: usize = 3_600;

/// Options of `lookaside replay`.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// The trace: packed planes or Twitter's CSV, compressed (.zst) or not; or, with --plain, pool:NAME, one of the
    /// pools of the paper's Tables 2 and 3 (wildcard, app, replicated, regional), family:SECONDS, short-lived keys
    /// among long-lived ones, or synthetic:REQUESTS, requests like those of a real trace
    trace: PathBuf,
    /// The memcached endpoint: a router or a server
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:5000")]
    endpoint: String,
    /// Stop after this number of requests
    #[arg(long, value_name = "N")]
    requests: Option<usize>,
    /// Maximum outstanding requests
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    concurrency: u32,
    /// Connections
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    connections: u32,
    /// Keys per get
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    batch: u32,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
    /// Plain gets and sets in strict order, over one connection: for hit ratios of any memcached; needs an empty server
    #[arg(long)]
    plain: bool,
    /// With --plain: replay at this multiple of the trace's own speed; 1 is real time
    #[arg(long, value_name = "TIMES", requires = "plain", value_parser = parse_speed)]
    speed: Option<f64>,
    /// With --plain: exclude this number of requests at the start from the counts; they fill the cache
    #[arg(long, value_name = "N", requires = "plain", default_value_t = 0)]
    warmup: usize,
    /// With --plain: do not replay; store the trace's objects under new keys until this many MiB were sent
    #[arg(long, value_name = "MIB", requires = "plain")]
    fill: Option<u32>,
    /// The random seed of a pool, a family or synthetic requests
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
}

fn parse_speed(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(speed) if (0.001..=10_000.0).contains(&speed) => Ok(speed),
        _ => Err(format!("{text:?} is not a number from 0.001 to 10000")),
    }
}

/// Replays and reports.
pub fn run(options: &Options) -> Result<()> {
    let mut resolved = options.endpoint.to_socket_addrs();
    resolved
        .as_mut()
        .ok()
        .and_then(Iterator::next)
        .with_context(|| format!("--endpoint {}: expected HOST:PORT", options.endpoint))?;
    std::net::TcpStream::connect(&options.endpoint)
        .with_context(|| format!("cannot connect to {}; is a region up? (lookaside up)", options.endpoint))?;
    let trace = Arc::new(open(options)?);
    if options.plain {
        return plain::run(options, &trace);
    }
    if !trace.verbs.is_empty() || trace.object_exptime_s.iter().any(|&exptime_s| exptime_s > 0) {
        bail!("pools contain sets and deletes, and keys of families and synthetic traces expire: use --plain");
    }
    let replay_options = ReplayOptions {
        requests_max: options.requests.unwrap_or(usize::MAX),
        concurrency: options.concurrency as usize,
        batch_keys: options.batch as usize,
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let report = runtime.block_on(async {
        let clients: Vec<Client> =
            (0..options.connections).map(|seed| client(&options.endpoint, seed.into())).collect();
        let progress = Arc::new(Progress::default());
        let display =
            tokio::spawn(show_progress(progress.clone(), trace.requests.len().min(replay_options.requests_max)));
        let report = replay(&clients, trace, replay_options, progress).await;
        display.abort();
        report
    });
    print(&report, options.json)
}

fn open(options: &Options) -> Result<Trace> {
    let (kind, name) = options.trace.to_str().and_then(|path| path.split_once(':')).unwrap_or_default();
    if kind == "family" {
        let seconds = name.parse().ok().filter(|seconds| (1..=FAMILY_S_MAX).contains(seconds));
        let seconds = seconds.with_context(|| format!("family:{name} is not 1 to {FAMILY_S_MAX} seconds"))?;
        return Ok(family(seconds, options.seed));
    }
    if kind == "synthetic" {
        let requests = name.parse().ok().filter(|requests| (1..=SYNTHETIC_REQUESTS_MAX).contains(requests));
        let requests = requests.with_context(|| format!("synthetic:{name} is not 1 to {SYNTHETIC_REQUESTS_MAX}"))?;
        return Ok(synthetic(requests, options.seed));
    }
    if kind != "pool" {
        return Ok(Trace::open(&options.trace)?);
    }
    let known = POOLS.map(|pool| pool.name).join(", ");
    let pool = Pool::named(name).with_context(|| format!("unknown pool {name:?}; the pools are {known}"))?;
    Ok(pool.trace(options.requests.unwrap_or(pool.requests), options.seed))
}

fn client(endpoint: &str, seed: u64) -> Client {
    let options = DestinationOptions { seed, ..DestinationOptions::default() };
    let destination = TcpDestination::new(Address(endpoint.into()), Arc::new(TcpNetwork), options);
    Client::new(Arc::new(DestinationRoute::new(Arc::new(destination), true)))
}

async fn show_progress(progress: Arc<Progress>, requests: usize) {
    let mut tick = tokio::time::interval(Duration::from_secs(1));
    while std::io::stderr().is_terminal() {
        tick.tick().await;
        eprint!("\r{:>12} of {requests} requests", progress.begun().min(requests));
    }
}

fn print(report: &Report, json: bool) -> Result<()> {
    let mut out = std::io::stdout().lock();
    let requests = report.requests.max(1) as f64;
    let miss_ratio = report.database_reads as f64 / requests;
    let compulsory_ratio = report.compulsory as f64 / requests;
    let per_second = report.requests as f64 / report.took.as_secs_f64().max(1e-9);
    let latency_us = |quantile: f64| report.latency_us.value_at_quantile(quantile);
    if json {
        let line = serde_json::json!({
            "requests": report.requests, "hits": report.hits, "database_reads": report.database_reads,
            "errors": report.errors, "compulsory": report.compulsory, "miss_ratio": miss_ratio,
            "compulsory_ratio": compulsory_ratio, "seconds": report.took.as_secs_f64(), "requests_per_s": per_second,
            "latency_us": { "p50": latency_us(0.5), "p99": latency_us(0.99), "max": report.latency_us.max() },
        });
        return Ok(writeln!(out, "{line}")?);
    }
    if std::io::stderr().is_terminal() {
        eprintln!();
    }
    writeln!(out, "requests         {:>12}", report.requests)?;
    writeln!(out, "hits             {:>12}", report.hits)?;
    writeln!(out, "database reads   {:>12}   miss ratio {miss_ratio:.4}", report.database_reads)?;
    writeln!(out, "  compulsory     {:>12}   compulsory miss ratio {compulsory_ratio:.4}", report.compulsory)?;
    writeln!(out, "errors           {:>12}", report.errors)?;
    writeln!(out, "took             {:>12.1} s   {per_second:.0} requests/s", report.took.as_secs_f64())?;
    writeln!(
        out,
        "latency          {:>12} us p50   {} us p99   {} us max",
        latency_us(0.5),
        latency_us(0.99),
        report.latency_us.max()
    )?;
    Ok(())
}
