//! What a router says about itself and its servers to whoever gets a key that begins with `__mcrouter__.`: mcrouter's names,
//! two of its own for the spool (`spool`, `spool(HOST:PORT)`), and one for spares (`spares`). Which server is in which state
//! is found out here for `stats` and metrics, too.
//!
//! | key | value |
//! |---|---|
//! | `version`, `verbosity`, `hostid` | this router, the level of its log, the number by which routes know its host |
//! | `options`, `options(NAME)` | the command line, a line for each option; one of them |
//! | `config_age`, `config_file`, `config_md5_digest`, `config_sources_info` | seconds since the one in force was taken; where it is; its MD5; both as JSON |
//! | `preprocessed_config` | the configuration without macros and comments |
//! | `pools`, `failure_domains` | servers by pool, numbers by server, as JSON |
//! | `global_params` | an empty object: configurations have no parameters here |
//! | `route(VERB,KEY)`, `route_handles(VERB,KEY)` | the servers, or the whole way, of a request |

use crate::frontend::parse::ADMIN_KEY_PREFIX;
use crate::shared::ConfigurationStatus;
use crate::{Fleet, Owed, Plan, Router, Trace};
use lookaside_client::{DestinationStatistics, TcpDestination};
use lookaside_protocol::{Reply, meta::MetaStatus};
use lookaside_routing::{Address, Configuration, Context, Destination as _, Outcome, Pool};
use md5::{Digest as _, Md5};
use serde_json::json;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

impl Router {
    /// The value of a key that begins with `__mcrouter__.`; `None` where there is none.
    pub(crate) async fn admin_value(&self, key: &[u8], context: &Context) -> Option<Vec<u8>> {
        let status = self.fleet().configuration();
        let name = key.strip_prefix(ADMIN_KEY_PREFIX)?;
        if let Some(question) = name.strip_prefix(b"spool_") {
            return self.answer_peer(question).await;
        }
        if let Some(address) = arguments_of("spool", name) {
            return self.spooled(address);
        }
        if let Some(arguments) = arguments_of("route", name) {
            return self.trace(arguments, context, |trace| trace.servers().join("\r\n")).await;
        }
        if let Some(arguments) = arguments_of("route_handles", name) {
            return self.trace(arguments, context, |trace| trace.to_string().trim_end().replace('\n', "\r\n")).await;
        }
        let text = match name {
            b"version" => self.settings().version.clone(),
            b"config_age" => age_s(&status).to_string(),
            b"config_file" => status.source,
            b"spool" => self.tree().spool()?.report(),
            b"spares" => self.tree().spares()?.report(),
            b"options" => self.options(),
            b"verbosity" => self.fleet().log()?.verbosity().to_string(),
            b"global_params" => "{}".to_owned(),
            _ => match arguments_of("options", name) {
                Some(wanted) => self.option(wanted)?,
                None => of_plan(name, self.tree().plan()?, &status)?,
            },
        };
        Some(text.into_bytes())
    }

    /// Has the log say more, or less.
    pub(crate) fn set_verbosity(&self, level: u32) {
        if let Some(log) = self.fleet().log() {
            log.set_verbosity(level);
        }
    }

    /// A line for each option.
    fn options(&self) -> String {
        let lines: Vec<_> = self.settings().options.iter().map(|(name, value)| format!("{name} {value}")).collect();
        lines.join("\r\n")
    }

    fn option(&self, wanted: &[u8]) -> Option<String> {
        let (_, value) = self.settings().options.iter().find(|(name, _)| name.as_bytes() == wanted)?;
        Some(value.clone())
    }

    /// The answer to another router of the cluster.
    async fn answer_peer(&self, question: &[u8]) -> Option<Vec<u8>> {
        let tree = self.tree();
        let spool = tree.spool()?;
        let Some((address, request)) = spool.passed_on(question) else { return spool.answer_peer(question).await };
        let destination = tree.destinations().find(|destination| *destination.address() == address)?;
        let outcome = destination.send(vec![request]).await.pop()?;
        Some(if is_deleted(&outcome) { b"ok".to_vec() } else { b"no".to_vec() })
    }

    /// How many deletes are kept for a server, or that it is to forget everything. Who asks wants the server back: it is
    /// tried again at once.
    fn spooled(&self, address: &[u8]) -> Option<Vec<u8>> {
        let address = Address(str::from_utf8(address).ok()?.into());
        let tree = self.tree();
        let spool = tree.spool()?;
        spool.hurry(&address);
        let owed = spool.owed(&address);
        let text = if owed.forget { "flush_pending".to_owned() } else { owed.records.to_string() };
        Some(text.into_bytes())
    }

    /// `verb,key` to the way that the request would take, shown by `show`.
    async fn trace(&self, arguments: &[u8], context: &Context, show: impl FnOnce(&Trace) -> String) -> Option<Vec<u8>> {
        let arguments = String::from_utf8_lossy(arguments);
        let (verb, key) = arguments.split_once(',')?;
        let text = match self.tree().trace(verb, key, context).await? {
            Ok(trace) => show(&trace),
            Err(why) => format!("error: {why}"),
        };
        Some(text.into_bytes())
    }
}

/// Every server that any thread's tree names.
pub(crate) fn servers(fleet: &Fleet) -> BTreeMap<String, Server> {
    let mut servers: BTreeMap<String, Server> = BTreeMap::new();
    for router in fleet.routers() {
        for destination in router.tree().destinations() {
            let server = servers.entry(one_line(&destination.address().to_string())).or_default();
            server.add(destination);
            server.owed = router.tree().spool().map(|spool| spool.owed(destination.address())).unwrap_or_default();
        }
    }
    servers
}

/// One server, as all threads together see it.
#[derive(Default)]
pub(crate) struct Server {
    destinations: u64,
    /// How many threads have taken it out, and how many of them because they cannot connect.
    taken_out_of: u64,
    taken_out_hard_of: u64,
    /// Whether it is not read because it owes deletes.
    pub(crate) is_fenced: bool,
    /// For how long.
    pub(crate) fenced_for: Duration,
    pub(crate) owed: Owed,
    pub(crate) sum: DestinationStatistics,
}

impl Server {
    fn add(&mut self, destination: &Arc<TcpDestination>) {
        let DestinationStatistics {
            requests,
            busy,
            refused_taken_out,
            outstanding,
            writes,
            answered_batches,
            timed_out_batches,
            late_answers,
            connects,
            connect_failures,
            connections_lost,
            malformed,
            probes,
            taken_out,
            relocations,
        } = destination.statistics();
        self.destinations += 1;
        self.taken_out_of += u64::from(destination.is_tko());
        self.taken_out_hard_of += u64::from(destination.is_taken_out_hard());
        self.is_fenced |= destination.is_fenced();
        self.fenced_for = self.fenced_for.max(destination.fenced_for());
        self.sum.requests += requests;
        self.sum.busy += busy;
        self.sum.refused_taken_out += refused_taken_out;
        self.sum.outstanding += outstanding;
        self.sum.writes += writes;
        self.sum.answered_batches += answered_batches;
        self.sum.timed_out_batches += timed_out_batches;
        self.sum.late_answers += late_answers;
        self.sum.connects += connects;
        self.sum.connect_failures += connect_failures;
        self.sum.connections_lost += connections_lost;
        self.sum.malformed += malformed;
        self.sum.probes += probes;
        self.sum.taken_out += taken_out;
        self.sum.relocations += relocations;
    }

    /// Every state that a server may be in.
    pub(crate) const STATES: [&'static str; 4] = ["up", "soft_tko", "hard_tko", "fenced"];

    pub(crate) fn state(&self) -> &'static str {
        match self.taken_out_of {
            0 if self.is_fenced => "fenced",
            0 => "up",
            _ if self.taken_out_hard_of > 0 => "hard_tko",
            _ => "soft_tko",
        }
    }

    pub(crate) fn in_words(&self) -> String {
        let sum = &self.sum;
        let failed_batches = sum.timed_out_batches + sum.connect_failures + sum.connections_lost + sum.malformed;
        format!(
            "state:{} sent:{} failed:{failed_batches} outstanding:{} refused_tko:{} refused_busy:{} writes:{} \
             timeouts:{} late:{} connects:{} connect_failures:{} connections_lost:{} probes:{} tko:{} moves:{} threads:{} \
             spooled_deletes:{} forget:{}",
            self.state(),
            sum.requests,
            sum.outstanding,
            sum.refused_taken_out,
            sum.busy,
            sum.writes,
            sum.timed_out_batches,
            sum.late_answers,
            sum.connects,
            sum.connect_failures,
            sum.connections_lost,
            sum.probes,
            sum.taken_out,
            sum.relocations,
            self.destinations,
            self.owed.records,
            u8::from(self.owed.forget),
        )
    }
}

/// What there is to say of the configuration in force.
fn of_plan(name: &[u8], plan: &Plan, status: &ConfigurationStatus) -> Option<String> {
    let pools = || plan.pools().into_values();
    let text = match name {
        b"hostid" => plan.host().id.to_string(),
        b"config_md5_digest" => md5_digest(plan.text()),
        b"config_sources_info" => json!({ &*status.source: md5_digest(plan.text()) }).to_string(),
        b"preprocessed_config" => Configuration::preprocessed(plan.text()).ok()?,
        b"pools" => {
            let servers = |pool: &Pool| pool.servers.iter().map(|server| server.to_string()).collect::<Vec<_>>();
            json!(pools().map(|pool| (pool.name.clone(), servers(&pool))).collect::<BTreeMap<_, _>>()).to_string()
        }
        b"failure_domains" => {
            let domains = |pool: Arc<Pool>| {
                let servers = pool.servers.iter().zip(&pool.failure_domains);
                servers.map(|(server, domain)| (server.to_string(), *domain)).collect::<Vec<_>>()
            };
            json!(pools().flat_map(domains).collect::<BTreeMap<_, _>>()).to_string()
        }
        _ => return None,
    };
    Some(text)
}

fn md5_digest(text: &str) -> String {
    Md5::digest(text).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The arguments in `question(arguments)`.
fn arguments_of<'a>(question: &str, name: &'a [u8]) -> Option<&'a [u8]> {
    name.strip_prefix(question.as_bytes())?.strip_prefix(b"(")?.strip_suffix(b")")
}

/// Whether a delete left nothing behind.
fn is_deleted(outcome: &Outcome) -> bool {
    match outcome {
        Ok(Reply::Deleted | Reply::NotFound) => true,
        Ok(Reply::Meta(meta)) => matches!(meta.status, MetaStatus::Done | MetaStatus::NotFound),
        _ => false,
    }
}

pub(crate) fn age_s(status: &ConfigurationStatus) -> u64 {
    status.loaded.elapsed().as_secs()
}

/// Text from outside, fit for one line of an answer.
pub(crate) fn one_line(text: &str) -> String {
    text.chars().map(|character| if character.is_control() { ' ' } else { character }).collect()
}
