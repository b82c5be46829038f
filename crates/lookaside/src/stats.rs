//! `lookaside stats`: the statistics of any daemon, as its `stats` command reports them.

use crate::statistics::{DaemonStats, parse_address};
use anyhow::{Result, anyhow, ensure};
use lookaside_routing::Address;
use serde_json::json;
use std::io::Write as _;

const EXAMPLES: &str = "Examples:
  lookaside stats                       the invalidator on this machine (--listen 127.0.0.1:11250)
  lookaside stats 10.0.1.1:5000         a router
  lookaside stats 11211 settings        a group of a server on this machine

Exit status: 0 success; 1 the daemon does not answer, or refuses; 2 usage error.";

/// The options of `stats`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Options {
    /// The daemon: HOST:PORT, or a port of 127.0.0.1. Of an invalidator that is --listen
    #[arg(value_name = "ADDR", default_value = "127.0.0.1:11250", value_parser = parse_address)]
    address: String,
    /// A group, as in the daemon's `stats GROUP`
    #[arg(value_name = "GROUP")]
    group: Option<String>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Prints the statistics.
pub fn run(options: &Options) -> Result<()> {
    let group = options.group.as_deref().unwrap_or_default();
    ensure!(!group.contains(char::is_control), "the group {group:?} has control characters");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let address = Address(options.address.as_str().into());
    let statistics =
        runtime.block_on(DaemonStats::fetch_group(&address, group)).map_err(|error| anyhow!("{error:#}"))?;
    let mut out = std::io::stdout().lock();
    if options.json {
        return Ok(writeln!(out, "{}", json!(statistics.values()))?);
    }
    Ok(statistics.values().iter().try_for_each(|(name, value)| writeln!(out, "{name} {value}"))?)
}
