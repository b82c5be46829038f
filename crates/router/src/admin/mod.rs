//! The values of keys that begin with `__mcrouter__.`, by which the router reports on itself. The names are mcrouter's,
//! with two for the spool (`spool`, `spool(HOST:PORT)`), one for spares (`spares`), two for changes of the
//! configuration (`coverage`, `coverage(ID)`), three for the invalidator (`start_gate`, `caught_up(TOKEN,SOURCE)`,
//! `flush_prefix(PREFIX)`), and one for clients that read servers directly (`read_permit`), and `explain(VERB,KEY)`. A
//! name that is unknown is a hit, as it is in mcrouter: `ERROR: unknown command: NAME`.
//!
//! | key | value |
//! |---|---|
//! | `version`, `verbosity`, `hostid` | this router, the level of its log, the number by which routes know its host |
//! | `verbosity(N)` | sets the level: `OLD -> NEW` |
//! | `options`, `options(NAME)` | the command line, a line for each option; one of them |
//! | `config_age`, `config_file`, `config_md5_digest`, `config_sources_info` | seconds since the configuration in force was applied; where it is; its MD5; both as JSON |
//! | `preprocessed_config` | the configuration without macros and comments |
//! | `pools`, `failure_domains`, `failure_domains(POOL)` | servers by pool, failure domains by server, of all pools or of one, as JSON |
//! | `start_gate`, `caught_up(TOKEN,SOURCE)` | `open`, or `waiting TOKEN` ([`crate::start_gate`]); the second opens the gate, or is `counted` |
//! | `flush_prefix(PREFIX)` | flushes the servers that may hold keys with the prefix: `flushed` and their number, or `refused: ` and why ([`crate::tree`]). Needs `--enable-flush-cmd` |
//! | `read_permit` | a permit to read servers directly ([`crate::read_permits`]) |
//! | `global_params` | the constants that macros of the configuration can use, as JSON |
//! | `get_bucket(KEY)` | the number of the key's server in its pool, from 0: what the pool's hash chooses |
//! | `route(VERB,KEY)` | the servers that a request would reach, an address in each line |
//! | `route_handles(VERB,KEY)` | the routes and servers on its way, by mcrouter's names ([`crate::tree::mcrouter_names`]) |
//! | `explain(VERB,KEY)` | the same by the names of the configuration, with the requests and replies of each |

mod destination_sum;
mod mcrouter_stats;
pub(crate) mod metrics_endpoint;
mod process_stats;
mod prometheus;
mod server_lines;
pub(crate) mod server_status;
pub(crate) mod stats_command;
pub(crate) mod stats_files;

use crate::admin_key::ADMIN_KEY_PREFIX;
use crate::config::router_config::RouterConfig;
use crate::shared::{ConfigStatus, SharedState};
use crate::tree::Tree;
use crate::tree::explain::Explanation;
use crate::tree::mcrouter_names::{bucket, route_handles};
use lookaside_client::{PERMIT_DURATION, Permit, PermitReply};
use lookaside_protocol::{ErrorReply, Reply, meta::MetaStatus};
use lookaside_routing::{Address, Configuration, Context, Destination as _, MacroConstant, Outcome, Pool, is_no_route};
use serde_json::{Value, json};
use stats_files::config_sources;
use std::collections::BTreeMap;
use std::sync::Arc;

pub(crate) struct AdminView<'a> {
    pub(crate) shared: &'a SharedState,
    pub(crate) tree: Arc<Tree>,
    pub(crate) version: &'a str,
    /// The command line, by the names of options.
    pub(crate) options: &'a [(String, String)],
    /// As [`crate::frontend::limits::Settings::flush_enabled`].
    pub(crate) flush_enabled: bool,
}

/// A longer reason why servers were not flushed is cut off.
const REFUSAL_CHARS_MAX: usize = 1_000;

impl AdminView<'_> {
    /// The value of `key`, which begins with `__mcrouter__.`; `None` if there is no such key.
    pub(crate) async fn value(&self, key: &[u8], client: &Context) -> Option<Vec<u8>> {
        let status = self.shared.config_status();
        let name = key.strip_prefix(ADMIN_KEY_PREFIX)?;
        if let Some(request) = name.strip_prefix(b"spool_") {
            return self.reply_to_peer(request).await;
        }
        let (function, arguments) = parse_call(name);
        let pools = || self.tree.config().map(RouterConfig::pools).unwrap_or_default();
        let text = match (function, arguments) {
            (b"read_permit", None) => self.read_permit().to_string(),
            (b"version", None) => self.version.to_owned(),
            (b"config_age", None) => status.age_s().to_string(),
            (b"config_file", None) => status.source,
            (b"spool", None) => self.tree.spool()?.report(),
            (b"spool", Some(address)) => self.spool_backlog(address)?,
            (b"coverage", None) => self.shared.resize().report()?,
            (b"coverage", Some(id)) => self.shared.resize().text(id)?.to_string(),
            (b"spares", None) => self.tree.spares()?.report(),
            (b"start_gate", None) => self.start_gate_state(),
            (b"caught_up", Some(report)) => self.tree.start_gate()?.report_caught_up(report),
            (b"flush_prefix", Some(key_prefix)) => self.flush_prefix(key_prefix).await,
            (b"options", None) => self.option_lines(),
            (b"verbosity", None) => self.shared.log()?.verbosity().to_string(),
            (b"route", Some(request)) => self.explain(request, client, |steps| steps.servers().join("\r\n")).await?,
            (b"route_handles", Some(request)) => {
                let pools = pools();
                self.explain(request, client, |steps| route_handles(steps, &pools)).await?
            }
            (b"get_bucket", Some(key)) => {
                let pools = pools();
                let number = |steps: &_| match bucket(steps, &pools) {
                    Some(bucket) => bucket.to_string(),
                    None => "ERROR: no server of a pool is asked for this key".to_owned(),
                };
                self.explain(&[b"get,", key].concat(), client, number).await?
            }
            (b"explain", Some(request)) => {
                let show = |steps: &Explanation| steps.to_string().trim_end().replace('\n', "\r\n");
                self.explain(request, client, show).await?
            }
            _ => self.option_or_config(function, arguments, &status).unwrap_or_else(|| unknown_command(name)),
        };
        Some(text.into_bytes())
    }

    /// The value of an option, or of what the configuration in force has; `None` if it is unknown.
    fn option_or_config(&self, function: &[u8], arguments: Option<&[u8]>, status: &ConfigStatus) -> Option<String> {
        match (function, arguments) {
            (b"options", Some(wanted)) => self.option_value(wanted),
            (b"verbosity", Some(level)) => self.set_verbosity(level),
            (b"failure_domains", Some(pool)) => {
                let pool = self.tree.config()?.pools().remove(str::from_utf8(pool).ok()?)?;
                Some(json!(failure_domains(&pool).collect::<BTreeMap<_, _>>()).to_string())
            }
            (name, None) => config_value(name, self.tree.config()?, status),
            _ => None,
        }
    }

    /// Sets the level of the log, and returns the change.
    fn set_verbosity(&self, level: &[u8]) -> Option<String> {
        let level = str::from_utf8(level).ok()?.parse().ok()?;
        let log = self.shared.log()?;
        let before = log.verbosity();
        log.set_verbosity(level);
        Some(format!("{before} -> {level}"))
    }

    /// Permits the client to read servers directly as this thread does ([`crate::read_permits`]).
    fn read_permit(&self) -> PermitReply {
        let permits = self.shared.read_permits();
        let takes_leases = self.tree.leasing().is_some();
        let configuration = match self.tree.permitted_configuration() {
            Ok(configuration) => configuration,
            Err(why) => {
                permits.refused.add(1);
                return PermitReply::Refused { why: why.to_owned(), takes_leases: Some(takes_leases) };
            }
        };
        // First: a fence that is raised from here on waits for the permit.
        permits.record();
        permits.given.add(1);
        let spares = self.tree.spares().map(|spares| spares.serving()).unwrap_or_default();
        let fenced = self.tree.fenced();
        let data_options = self.tree.config().map(|config| config.data_options().to_owned()).unwrap_or_default();
        PermitReply::Permitted(Permit {
            duration: PERMIT_DURATION,
            configuration,
            data_options,
            fenced,
            spares,
            takes_leases,
        })
    }

    /// A router without a gate is open.
    fn start_gate_state(&self) -> String {
        self.tree.start_gate().map_or_else(|| "open".to_owned(), |gate| gate.state())
    }

    async fn flush_prefix(&self, key_prefix: &[u8]) -> String {
        let flushed = match self.flush_enabled {
            true => self.tree.flush_prefix(key_prefix).await,
            false => Err("flushes are not allowed; start the router with --enable-flush-cmd".to_owned()),
        };
        match flushed {
            Ok(servers) => format!("flushed {servers}"),
            Err(why) => format!("refused: {}", why.chars().take(REFUSAL_CHARS_MAX).collect::<String>()),
        }
    }

    fn option_lines(&self) -> String {
        let lines: Vec<_> = self.options.iter().map(|(name, value)| format!("{name} {value}")).collect();
        lines.join("\r\n")
    }

    fn option_value(&self, wanted: &[u8]) -> Option<String> {
        let (_, value) = self.options.iter().find(|(name, _)| name.as_bytes() == wanted)?;
        Some(value.clone())
    }

    async fn reply_to_peer(&self, request: &[u8]) -> Option<Vec<u8>> {
        let spool = self.tree.spool()?;
        if let Some(server) = spool.parse_forwarded_flush(request) {
            let is_flushed = self.tree.flush_for_peer(&server).await;
            return Some(if is_flushed { b"ok".to_vec() } else { b"no".to_vec() });
        }
        let Some((address, delete)) = spool.parse_forwarded_delete(request) else {
            return spool.reply_to_peer(request).await;
        };
        let destination = self.tree.destinations().find(|destination| *destination.address() == address)?;
        let outcome = destination.send(vec![delete]).await.pop()?;
        Some(if is_deleted(&outcome) { b"ok".to_vec() } else { b"no".to_vec() })
    }

    /// The number of deletes that are spooled for a server, or `flush_pending`. Also retries the server at once,
    /// because the operator who reads this wants it back.
    fn spool_backlog(&self, address: &[u8]) -> Option<String> {
        let address = Address(str::from_utf8(address).ok()?.into());
        let spool = self.tree.spool()?;
        spool.retry_now(&address);
        let backlog = spool.backlog(&address);
        Some(if backlog.flush_pending { "flush_pending".to_owned() } else { backlog.deletes.to_string() })
    }

    /// Explains the request in `arguments`, `verb,key`, as text by `show`.
    async fn explain(
        &self,
        arguments: &[u8],
        client: &Context,
        show: impl FnOnce(&Explanation) -> String,
    ) -> Option<String> {
        let arguments = String::from_utf8_lossy(arguments);
        let (verb, key) = arguments.split_once(',')?;
        Some(match self.tree.explain(verb, key, client).await? {
            Ok(explanation) => show(&explanation),
            Err(why) => format!("ERROR: {why}"),
        })
    }
}

fn config_value(name: &[u8], config: &RouterConfig, status: &ConfigStatus) -> Option<String> {
    let pools = || config.pools().into_values();
    let text = match name {
        b"hostid" => config.host().id.to_string(),
        b"config_md5_digest" => config.md5_digest().to_owned(),
        b"config_sources_info" => config_sources(&status.source, config).to_string(),
        b"global_params" => json!(config.constants().iter().map(constant).collect::<BTreeMap<_, _>>()).to_string(),
        b"preprocessed_config" => Configuration::expand_macros(config.text()).ok()?,
        b"pools" => {
            let servers = |pool: &Pool| pool.servers.iter().map(|server| server.to_string()).collect::<Vec<_>>();
            json!(pools().map(|pool| (pool.name.clone(), servers(&pool))).collect::<BTreeMap<_, _>>()).to_string()
        }
        b"failure_domains" => {
            let domains = |pool: Arc<Pool>| failure_domains(&pool).collect::<Vec<_>>();
            json!(pools().flat_map(domains).collect::<BTreeMap<_, _>>()).to_string()
        }
        _ => return None,
    };
    Some(text)
}

/// The servers of a pool with their failure domains.
fn failure_domains(pool: &Pool) -> impl Iterator<Item = (String, String)> {
    let domain_of = |(at, server)| Some((server, pool.failure_domains.get(pool.entry_index(at))?));
    let servers = pool.servers.iter().enumerate().filter_map(domain_of);
    servers.map(|(server, domain)| (server.to_string(), domain.to_string()))
}

/// The name and the value of a constant.
fn constant((name, value): (&String, &MacroConstant)) -> (String, Value) {
    let value = match value {
        MacroConstant::Text(text) => text.clone().into(),
        MacroConstant::Number(number) => (*number).into(),
    };
    (name.clone(), value)
}

fn unknown_command(name: &[u8]) -> String {
    format!("ERROR: unknown command: {}", String::from_utf8_lossy(name))
}

/// The function and the arguments of `function(arguments)`; the arguments are `None` if there are no parentheses.
fn parse_call(name: &[u8]) -> (&[u8], Option<&[u8]>) {
    let call = name.strip_suffix(b")").and_then(|call| {
        let open = call.iter().position(|&byte| byte == b'(')?;
        Some((&call[..open], Some(&call[open + 1..])))
    });
    call.unwrap_or((name, None))
}

/// Whether the key is gone after a delete with this outcome, or cannot be there.
fn is_deleted(outcome: &Outcome) -> bool {
    match outcome {
        Ok(Reply::Deleted | Reply::NotFound) => true,
        Ok(Reply::Meta(meta)) => matches!(meta.status, MetaStatus::Done | MetaStatus::NotFound),
        Ok(Reply::Error(ErrorReply::Server(why))) => is_no_route(why),
        _ => false,
    }
}
