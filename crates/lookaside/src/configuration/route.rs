//! `lookaside route`: shows how a configuration routes a request. No server is contacted.

use super::{ConfigArgs, LoadedConfig};
use anyhow::{Result, anyhow, bail};
use lookaside_router::{Explanation, HostInfo, Outages, Step, explain};
use lookaside_routing::{Address, Context};
use serde_json::json;
use std::{io::Write as _, net::IpAddr, path::PathBuf};

const EXAMPLES: &str = "Examples:
  lookaside route get user:42 -f router.json
  lookaside route delete user:42 -f router.json
  lookaside route get user:42 -f router.json --down 10.0.0.7:11211    with failover
  lookaside route get user:42 -f router.json --dead 10.0.0.7:11211    with a spare
  lookaside route get user:42 -f router.json --client 10.1.2.3        with its replica
  lookaside route get user:42 -f router.json --json | jq '.[] | select(.server)'

Servers count as empty: every get misses. Routes that depend on time or chance (migrations,
rate limits, random children) are shown as for a first request.

Exit status: 0 success; 1 the configuration, the verb or the key is invalid; 2 usage error.";

/// Options of `lookaside route`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Options {
    /// The command: get, gets, gat, gats, lease-get, set, add, replace, append, prepend, cas,
    /// lease-set, delete, incr, decr or touch
    verb: String,
    /// The key, with or without a routing prefix
    key: String,
    /// The configuration: a file, - for standard input, or etcd://[USER@]HOST:PORT/KEY (the password in
    /// LOOKASIDE_ETCD_PASSWORD)
    #[arg(short = 'f', long, value_name = "FILE")]
    config_file: PathBuf,
    #[command(flatten)]
    config_args: ConfigArgs,
    /// Show the route while this server is TKO; may be given several times
    #[arg(long, value_name = "ADDRESS")]
    down: Vec<String>,
    /// Show the route when this server has been TKO long enough that a spare serves its keys, if its pool has any; may
    /// be given several times
    #[arg(long, value_name = "ADDRESS")]
    dead: Vec<String>,
    /// The client's address, for routes that choose a replica by it
    #[arg(long, value_name = "IP")]
    client: Option<IpAddr>,
    /// The name of the router's host, for routes that choose a child by it
    #[arg(long, value_name = "NAME", default_value = "")]
    host: String,
    /// Print the steps as JSON
    #[arg(long)]
    json: bool,
}

/// Shows the route.
pub fn run(options: &Options) -> Result<()> {
    let LoadedConfig { source, plan } = options.config_args.load(&options.config_file)?;
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
    let trace = runtime.block_on(async {
        let plan =
            plan.map_err(|error| anyhow!("{source}: {error}"))?.with_host(HostInfo::from_name(&options.host, now));
        let addresses = |names: &[String]| names.iter().map(|address| Address(address.as_str().into())).collect();
        let outages = Outages { down: addresses(&options.down), down_for_long: addresses(&options.dead) };
        let known = plan.servers();
        for (flag, named) in [("--down", &outages.down), ("--dead", &outages.down_for_long)] {
            if let Some(unknown) = named.iter().find(|address| !known.contains(address)) {
                let known: Vec<String> = known.iter().map(Address::to_string).collect();
                bail!("{flag} {unknown}: {source} has no such server; it has {}", known.join(", "));
            }
        }
        let context = Context { client: options.client, ..Context::default() };
        explain(&plan, &options.verb, &options.key, &context, &outages).await.map_err(|why| anyhow!(why))
    })?;
    let mut out = std::io::stdout().lock();
    match options.json {
        true => writeln!(out, "{}", to_json(&trace))?,
        false => write!(out, "{trace}")?,
    }
    Ok(())
}

fn to_json(trace: &Explanation) -> serde_json::Value {
    let step = |Step { depth, at, is_server, requests, replies }: &Step| json!({ "depth": depth, "at": at, "server": is_server, "requests": requests, "replies": replies });
    trace.0.iter().map(step).collect()
}
