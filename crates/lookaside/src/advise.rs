//! `lookaside advise`: proposes from a trace, or from the requests of running servers, which families of keys should be
//! in a regional pool, in a replicated one, or in a pool of their own (§3.2.2, §3.2.3, §4.2).

mod watch;

use crate::statistics::parse_address;
use anyhow::{Context as _, Result, bail};
use lookaside_workload::{Advice, AdviceOptions, Family, FamilyMeter, Placement, USERS_MAX, advise, read_csv};
use serde_json::{Value, json};
use std::{
    io::Write,
    path::{Path, PathBuf},
    time::Duration,
};
use watch::{Watched, watch_servers};

const EXAMPLES: &str = "Examples:
  lookaside advise --clusters 4 trace.csv.zst
  lookaside advise --clusters 2 --separator / --json trace.csv
  lookaside advise --clusters 2 --watch 10.0.1.11:11211,10.0.1.12:11211,10.0.2.11:11211,10.0.2.12:11211 --seconds 30

A line of the trace is timestamp,key,key size,value size,client,operation,ttl, as in Twitter's traces. Without clients
no family is proposed for a regional pool.

--watch reads the requests that servers answer, by `watch`: of all servers of the pool, in all clusters. It slows them
while it lasts. A server sees routers in place of users, so give --client-addresses only if clients connect to the
servers themselves. Ctrl-C ends it and prints what there is.";

/// Options of `lookaside advise`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Options {
    /// The trace, Twitter's CSV, compressed (.zst) or not
    #[arg(required_unless_present = "watch")]
    trace: Option<PathBuf>,
    /// Watch the requests that these servers answer, instead of reading a trace. May be given several times
    #[arg(
        long,
        value_name = "HOST:PORT[,HOST:PORT...]",
        value_delimiter = ',',
        value_parser = parse_address,
        conflicts_with = "trace"
    )]
    watch: Vec<String>,
    /// Seconds to watch, 1 to 86,400
    #[arg(long, value_name = "N", default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..=86_400))]
    seconds: u32,
    /// With --watch: the addresses that connect to the servers are the users
    #[arg(long, conflicts_with = "trace")]
    client_addresses: bool,
    /// Clusters that share the traffic of the trace, 1 to 1,000
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    clusters: u32,
    /// What ends the prefix of a key, which names its family
    #[arg(long, value_name = "TEXT", default_value = ":", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    separator: String,
    /// A family may be regional if half of its keys have at most this number of users, 1 to 63
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..USERS_MAX as i64))]
    regional_users: u32,
    /// The gets that a server answers per second
    #[arg(long, value_name = "N", default_value_t = 500_000, value_parser = clap::value_parser!(u32).range(1..))]
    server_gets: u32,
    /// The memory of a server, in mebibytes
    #[arg(long, value_name = "MIB", default_value_t = 65_536, value_parser = clap::value_parser!(u32).range(1..))]
    server_memory: u32,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Reads the trace or watches the servers, and prints the advice on each family.
pub fn run(options: &Options) -> Result<()> {
    let meter = FamilyMeter::new(&options.separator, options.clusters);
    let (families, watched) = match &options.trace {
        Some(trace) => (read_trace(trace, meter)?, None),
        None => {
            let (families, watched) = watch(options, meter)?;
            (families, Some(watched))
        }
    };
    let advices = advise(
        families,
        &AdviceOptions {
            clusters: options.clusters,
            regional_users_max: options.regional_users,
            server_gets_per_s: options.server_gets.into(),
            server_bytes: u64::from(options.server_memory) << 20,
        },
    );
    let mut out = std::io::stdout().lock();
    match options.json {
        true => writeln!(out, "{}", to_json(&advices, options.clusters, watched.as_ref()))?,
        false => print_table(&mut out, &advices, options.clusters)?,
    }
    Ok(())
}

fn read_trace(trace: &Path, mut meter: FamilyMeter) -> Result<Vec<Family>> {
    read_csv(trace, |request| meter.record(request))?;
    meter.families().with_context(|| format!("{} has no requests", trace.display()))
}

fn watch(options: &Options, mut meter: FamilyMeter) -> Result<(Vec<Family>, Watched)> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let time_max = Duration::from_secs(options.seconds.into());
    let watched = runtime.block_on(watch_servers(&options.watch, options.client_addresses, time_max, &mut meter))?;
    if watched.requests == 0 {
        bail!("the servers have answered no requests in {:.0} seconds", watched.seconds);
    }
    if watched.dropped > 0 {
        eprintln!(
            "lookaside advise: the servers have dropped {} of {} events: there were more than `watch` can carry, and the \
             rates are of the others",
            watched.dropped,
            watched.dropped + watched.requests
        );
    }
    Ok((meter.families_over(watched.seconds), watched))
}

fn name_of(placement: Placement) -> &'static str {
    match placement {
        Placement::Cluster => "cluster",
        Placement::Regional => "regional",
        Placement::Replicated => "replicated",
        Placement::OwnPool => "own_pool",
    }
}

fn to_json(advices: &[Advice], clusters: u32, watched: Option<&Watched>) -> Value {
    let advice = |advice: &Advice| {
        let family = &advice.family;
        json!({
            "family": family.name, "placement": name_of(advice.placement), "why": advice.why,
            "saved_bytes": advice.saved_bytes, "cost_bytes": advice.cost_bytes,
            "keys": family.keys, "users_per_key_median": family.users_median, "gets_per_s": family.gets_per_s,
            "value_bytes_median": family.value_bytes_median, "data_bytes": family.data_bytes,
            "get_bytes_per_s": family.get_bytes_per_s, "sets_per_s": family.sets_per_s,
            "written_bytes_per_s": family.written_bytes_per_s, "deletes_per_s": family.deletes_per_s,
            "keys_per_page": family.keys_per_page,
        })
    };
    let saved_bytes: u64 = advices.iter().map(|advice| advice.saved_bytes).sum();
    let cost_bytes: u64 = advices.iter().map(|advice| advice.cost_bytes).sum();
    let watched = watched.map(|watched| {
        json!({ "seconds": watched.seconds, "requests": watched.requests, "dropped_events": watched.dropped })
    });
    json!({
        "clusters": clusters, "saved_bytes": saved_bytes, "cost_bytes": cost_bytes, "watched": watched,
        "families": advices.iter().map(advice).collect::<Vec<_>>(),
    })
}

fn print_table(out: &mut impl Write, advices: &[Advice], clusters: u32) -> Result<()> {
    writeln!(
        out,
        "{:<20} {:<10} {:>10} {:>9} {:>10} {:>10} {:>10} {:>10} {:>10}  why",
        "family", "placement", "keys", "users/key", "gets/s", "value", "all", "written/s", "saves"
    )?;
    for advice in advices {
        let family = &advice.family;
        writeln!(
            out,
            "{:<20} {:<10} {:>10} {:>9} {:>10.1} {:>10} {:>10} {:>10} {:>10}  {}",
            family.name,
            name_of(advice.placement),
            family.keys,
            users(family.users_median),
            family.gets_per_s,
            bytes(f64::from(family.value_bytes_median)),
            bytes(family.data_bytes as f64),
            bytes(family.written_bytes_per_s),
            saves(advice),
            advice.why,
        )?;
    }
    let saved: u64 = advices.iter().map(|advice| advice.saved_bytes).sum();
    let cost: u64 = advices.iter().map(|advice| advice.cost_bytes).sum();
    write!(out, "In {clusters} clusters together, {} would be saved", bytes(saved as f64))?;
    match cost {
        0 => writeln!(out, ".")?,
        cost => writeln!(out, ", and copies of replicated families would take {} more.", bytes(cost as f64))?,
    }
    Ok(())
}

/// What a placement saves; with a minus sign what it costs.
fn saves(advice: &Advice) -> String {
    match advice.cost_bytes {
        0 => bytes(advice.saved_bytes as f64),
        cost => format!("-{}", bytes(cost as f64)),
    }
}

fn users(median: Option<u32>) -> String {
    match median {
        None => "-".to_owned(),
        Some(users) if users as usize >= USERS_MAX => format!(">={USERS_MAX}"),
        Some(users) => users.to_string(),
    }
}

fn bytes(bytes: f64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let unit = units.iter().enumerate().rev().find(|(power, _)| bytes >= 1024f64.powi(*power as i32));
    let (power, unit) = unit.unwrap_or((0, &"B"));
    match power {
        0 => format!("{bytes:.0} {unit}"),
        _ => format!("{:.1} {unit}", bytes / 1024f64.powi(power as i32)),
    }
}
