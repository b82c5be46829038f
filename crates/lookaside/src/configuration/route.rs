//! `lookaside route`: shows how a configuration routes a request, and, with `--routers`, where running routers send it.
//! No server is contacted.

use super::{
    ConfigArgs, LoadedConfig,
    running_routers::{self, RunningRouter},
};
use crate::statistics::parse_address;
use anyhow::{Result, anyhow, bail, ensure};
use lookaside_client::tree::HostInfo;
use lookaside_router::{Explanation, Outages, Step, explain};
use lookaside_routing::{Address, Context};
use serde_json::json;
use std::{
    collections::BTreeSet,
    io::Write as _,
    net::IpAddr,
    path::{Path, PathBuf},
};

const EXAMPLES: &str = "Examples:
  lookaside route get user:42 -f router.json
  lookaside route delete user:42 -f router.json
  lookaside route get user:42 -f router.json --down 10.0.0.7:11211    with failover
  lookaside route get user:42 -f router.json --dead 10.0.0.7:11211    with a spare
  lookaside route get user:42 -f router.json --client 10.1.2.3        with its replica
  lookaside route delete user:42 -f new.json --before old.json        does the key move?
  lookaside route get user:42 -f router.json --routers=10.0.1.1:5000,10.0.1.2:5000
                                                       where is the change, where does the key lie?
  lookaside route get user:42 -f router.json --json | jq '.[] | select(.server)'

Servers count as empty: every get misses. Routes that depend on time or chance (migrations,
rate limits, random children) are shown as for a first request.

Exit status: 0 success; 1 the configuration, the verb or the key is invalid, or a router does not
answer; 2 usage error.";

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
    /// LOOKASIDE_ETCD_PASSWORD; etcds:// for TLS)
    #[allow(rustdoc::broken_intra_doc_links, reason = "the text of --help")]
    #[arg(short = 'f', long, value_name = "FILE")]
    config_file: PathBuf,
    /// A former configuration: also show which servers the request leaves and joins by the change
    #[arg(long, value_name = "FILE")]
    before: Option<PathBuf>,
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
    /// Also ask these running routers for the state of a change of their servers, and which servers the request and a
    /// delete of the key reach through them now; without an address the one at 127.0.0.1:5000
    #[arg(
        long,
        value_name = "ADDR[,ADDR...]",
        value_delimiter = ',',
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "5000",
        value_parser = parse_address
    )]
    routers: Vec<String>,
    /// Print the steps as JSON
    #[arg(long)]
    json: bool,
}

/// Shows the route.
pub fn run(options: &Options) -> Result<()> {
    let route = explain_by(options, &options.config_file, true)?;
    let before = options.before.as_ref().map(|file| explain_by(options, file, false)).transpose()?;
    let changes = before.as_ref().map(|before| changes_of(&servers(before), &servers(&route)));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let routers = runtime.block_on(running_routers::ask(&options.routers, &options.verb, &options.key));
    let mut out = std::io::stdout().lock();
    match options.json {
        true => writeln!(out, "{}", all_as_json(&route, changes.as_deref(), &routers))?,
        false => {
            write!(out, "{route}")?;
            match changes.as_deref() {
                None => {}
                Some([]) => writeln!(out, "The key does not move.")?,
                Some(changes) => {
                    changes.iter().try_for_each(|(change, server)| writeln!(out, "{change} {server}"))?;
                }
            }
            routers.iter().try_for_each(|router| writeln!(out, "{router}"))?;
        }
    }
    let silent: Vec<&str> =
        routers.iter().filter(|router| router.report.is_err()).map(|router| &*router.address).collect();
    ensure!(silent.is_empty(), "no report from {}", silent.join(", "));
    Ok(())
}

/// The steps alone, or an object with them if there is more.
fn all_as_json(route: &Explanation, changes: Option<&[(&str, &str)]>, routers: &[RunningRouter]) -> serde_json::Value {
    if changes.is_none() && routers.is_empty() {
        return to_json(route);
    }
    let mut all = json!({ "route": to_json(route) });
    if let Some(changes) = changes {
        all["changes"] = changes.iter().map(|(change, server)| json!({ *change: server })).collect();
    }
    if !routers.is_empty() {
        all["routers"] = routers.iter().map(RunningRouter::to_json).collect();
    }
    all
}

/// Explains the request by the configuration in `file`. With `is_checked` it must have the servers of `--down` and
/// `--dead`.
fn explain_by(options: &Options, file: &Path, is_checked: bool) -> Result<Explanation> {
    let LoadedConfig { source, plan } = options.config_args.load(file, &options.host)?;
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
    runtime.block_on(async {
        let plan =
            plan.map_err(|error| anyhow!("{source}: {error}"))?.with_host(HostInfo::from_name(&options.host, now));
        let addresses = |names: &[String]| names.iter().map(|address| Address(address.as_str().into())).collect();
        let outages = Outages { down: addresses(&options.down), down_for_long: addresses(&options.dead) };
        let known = plan.servers();
        for (flag, named) in [("--down", &outages.down), ("--dead", &outages.down_for_long)] {
            if let Some(unknown) = named.iter().find(|address| is_checked && !known.contains(address)) {
                let known: Vec<String> = known.iter().map(Address::to_string).collect();
                bail!("{flag} {unknown}: {source} has no such server; it has {}", known.join(", "));
            }
        }
        let context = Context { client: options.client, ..Context::default() };
        explain(&plan, &options.verb, &options.key, &context, &outages).await.map_err(|why| anyhow!(why))
    })
}

/// The servers that a request reaches.
fn servers(route: &Explanation) -> BTreeSet<&str> {
    route.0.iter().filter(|step| step.is_server).map(|step| &*step.at).collect()
}

/// The servers that a request no longer reaches, and those that it reaches now.
fn changes_of<'a>(before: &BTreeSet<&'a str>, after: &BTreeSet<&'a str>) -> Vec<(&'static str, &'a str)> {
    let left = before.difference(after).map(|server| ("leaves", *server));
    left.chain(after.difference(before).map(|server| ("joins", *server))).collect()
}

fn to_json(trace: &Explanation) -> serde_json::Value {
    let step = |Step { depth, at, is_server, requests, replies, .. }: &Step| json!({ "depth": depth, "at": at, "server": is_server, "requests": requests, "replies": replies });
    trace.0.iter().map(step).collect()
}
