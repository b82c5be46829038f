//! `lookaside advise`: proposes from a trace which families of keys should be in a regional pool, in a replicated one, or
//! in a pool of their own (§3.2.2, §3.2.3, §4.2).

use anyhow::{Result, bail};
use lookaside_workload::{Advice, AdviceOptions, FamilyMeter, Placement, USERS_MAX, advise, read_csv};
use serde_json::{Value, json};
use std::{io::Write, path::PathBuf};

const EXAMPLES: &str = "Examples:
  lookaside advise --clusters 4 trace.csv.zst
  lookaside advise --clusters 2 --separator / --json trace.csv

A line of the trace is timestamp,key,key size,value size,client,operation,ttl, as in Twitter's traces. Without clients no
family is proposed for a regional pool.";

/// Options of `lookaside advise`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Options {
    /// The trace, Twitter's CSV, compressed (.zst) or not
    trace: PathBuf,
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

/// Reads the trace, and prints the advice on each family.
pub fn run(options: &Options) -> Result<()> {
    let mut meter = FamilyMeter::new(&options.separator, options.clusters);
    read_csv(&options.trace, |request| meter.record(request))?;
    let Some(families) = meter.families() else { bail!("{} has no requests", options.trace.display()) };
    let advices = advise(
        families,
        &AdviceOptions {
            regional_users_max: options.regional_users,
            server_gets_per_s: options.server_gets.into(),
            server_bytes: u64::from(options.server_memory) << 20,
        },
    );
    let mut out = std::io::stdout().lock();
    match options.json {
        true => writeln!(out, "{}", to_json(&advices, options.clusters))?,
        false => print_table(&mut out, &advices, options.clusters)?,
    }
    Ok(())
}

fn name_of(placement: Placement) -> &'static str {
    match placement {
        Placement::Cluster => "cluster",
        Placement::Regional => "regional",
        Placement::Replicated => "replicated",
        Placement::OwnPool => "own_pool",
    }
}

fn to_json(advices: &[Advice], clusters: u32) -> Value {
    let advice = |advice: &Advice| {
        let family = &advice.family;
        json!({
            "family": family.name, "placement": name_of(advice.placement), "why": advice.why,
            "saved_bytes": advice.saved_bytes,
            "keys": family.keys, "users_per_key_median": family.users_median, "gets_per_s": family.gets_per_s,
            "value_bytes_median": family.value_bytes_median, "data_bytes": family.data_bytes,
            "get_bytes_per_s": family.get_bytes_per_s, "sets_per_s": family.sets_per_s,
            "written_bytes_per_s": family.written_bytes_per_s, "deletes_per_s": family.deletes_per_s,
            "keys_per_page": family.keys_per_page,
        })
    };
    let saved_bytes: u64 = advices.iter().map(|advice| advice.saved_bytes).sum();
    json!({
        "clusters": clusters, "saved_bytes": saved_bytes,
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
            bytes(advice.saved_bytes as f64),
            advice.why,
        )?;
    }
    let saved: u64 = advices.iter().map(|advice| advice.saved_bytes).sum();
    writeln!(out, "In {clusters} clusters together, {} would be saved.", bytes(saved as f64))?;
    Ok(())
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
