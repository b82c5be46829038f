//! `lookaside route --routers`: where running routers send a request now, and the state of a change of their
//! configuration ([ADR 012](../../../../docs/adr/012-resize.md)).
//!
//! ```text
//!   stats                                              resize_state, resize_history, configurations_covered
//!   get __mcrouter__.route(VERB,KEY) __mcrouter__.route(delete,KEY)
//! ```

use crate::statistics::DaemonStats;
use anyhow::{Context as _, Result, bail};
use lookaside_client::{CommandConnection, TcpNetwork};
use lookaside_protocol::{
    Reply,
    text::{Limits, ReplyPart},
};
use lookaside_routing::Address;
use serde_json::{Value, json};
use std::{collections::BTreeSet, fmt, time::Duration};

/// How long connecting to a router and its replies may take.
const TIMEOUT: Duration = Duration::from_secs(2);
const LIMITS: Limits = Limits { value_bytes_max: 1 << 20, line_bytes_max: 2_048 };

/// What one router reports.
#[derive(Debug)]
pub struct RunningRouter {
    /// Its address.
    pub address: String,
    /// Where it sends the request, or why that is unknown.
    pub report: Result<RouterReport>,
}

/// The state of a router, and where it sends a request.
#[derive(Debug, Default)]
pub struct RouterReport {
    /// As in its `stats`: `steady` while no change is in progress.
    resize_state: String,
    /// As in its `stats`: `recorded` if the routers share it in etcd; empty of an earlier version.
    resize_history: String,
    configurations_covered: u64,
    /// The servers that the request reaches.
    reached: BTreeSet<String>,
    /// The servers that a delete of the key reaches: with a change in progress, also former owners.
    deleted_at: BTreeSet<String>,
}

/// Asks each of `routers` where it sends `verb` of `key`.
pub async fn ask(routers: &[String], verb: &str, key: &str) -> Vec<RunningRouter> {
    let ask = |address: &String| {
        let (router, verb, key) = (Address(address.as_str().into()), verb.to_owned(), key.to_owned());
        tokio::spawn(async move { RouterReport::fetch(&router, &verb, &key).await })
    };
    let asked: Vec<_> = routers.iter().map(|address| (address.clone(), ask(address))).collect();
    let mut reports = Vec::new();
    for (address, report) in asked {
        let report = report.await.unwrap_or_else(|panic| Err(panic.into()));
        reports.push(RunningRouter { address, report });
    }
    reports
}

impl RouterReport {
    async fn fetch(router: &Address, verb: &str, key: &str) -> Result<RouterReport> {
        let stats = DaemonStats::fetch_group(router, "").await?;
        let state = stats.values().get("resize_state").context("it is no router: it has no resize_state")?;
        let mut connection = CommandConnection::connect(&TcpNetwork, router, LIMITS, TIMEOUT).await?;
        let names = [verb, "delete"].map(|verb| format!("__mcrouter__.route({verb},{key})"));
        connection.send(format!("get {}\r\n", names.join(" ")).as_bytes()).await?;
        let mut values: [Option<String>; 2] = Default::default();
        let on_part = |part: ReplyPart<'_>| {
            if let ReplyPart::Item { key, reply: Reply::Value { value, .. } } = part {
                let text = String::from_utf8_lossy(value).into_owned();
                let wanted = names.iter().zip(&mut values).filter(|(name, _)| name.as_bytes() == key);
                wanted.for_each(|(_, value)| *value = Some(text.clone()));
            }
        };
        connection.read_until_end(on_part).await?;
        let [reached, deleted_at] = values.map(|value| servers(&value.unwrap_or_default()));
        Ok(RouterReport {
            resize_state: state.clone(),
            resize_history: stats.values().get("resize_history").cloned().unwrap_or_default(),
            configurations_covered: stats.number("configurations_covered"),
            reached: reached?,
            deleted_at: deleted_at?,
        })
    }
}

/// The servers in the lines of `__mcrouter__.route(...)`: an address each.
fn servers(lines: &str) -> Result<BTreeSet<String>> {
    if let Some(why) = lines.strip_prefix("ERROR: ") {
        bail!("{why}");
    }
    Ok(lines.lines().map(str::to_owned).collect())
}

impl RunningRouter {
    /// The report as JSON, or an object with the `error`.
    pub fn to_json(&self) -> Value {
        match &self.report {
            Err(why) => json!({ "router": self.address, "error": format!("{why:#}") }),
            Ok(report) => json!({
                "router": self.address,
                "resize_state": report.resize_state,
                "resize_history": report.resize_history,
                "configurations_covered": report.configurations_covered,
                "reached": report.reached,
                "deleted_at": report.deleted_at,
            }),
        }
    }
}

impl fmt::Display for RunningRouter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let address = &self.address;
        let report = match &self.report {
            Err(why) => return write!(f, "router {address}: {why:#}"),
            Ok(report) => report,
        };
        let join = |servers: &BTreeSet<String>| match servers.is_empty() {
            true => "none".to_owned(),
            false => servers.iter().cloned().collect::<Vec<_>>().join(", "),
        };
        let RouterReport { resize_state, resize_history, configurations_covered, reached, deleted_at } = report;
        write!(f, "router {address}: {resize_state}, configurations covered: {configurations_covered}")?;
        match &**resize_history {
            "" | "unused" => writeln!(f)?,
            history => writeln!(f, ", history {history}")?,
        }
        write!(f, "  reaches {}; a delete reaches {}", join(reached), join(deleted_at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_read_from_the_lines_of_a_router() {
        let read = servers("10.0.0.2:1\r\n10.0.0.1:1\r\n10.0.0.2:1").expect("servers");
        assert_eq!(read.into_iter().collect::<Vec<_>>(), ["10.0.0.1:1", "10.0.0.2:1"]);
        assert!(servers("").expect("an empty reply").is_empty());
        assert_eq!(servers("ERROR: unknown verb").expect_err("an error").to_string(), "unknown verb");
    }
}
