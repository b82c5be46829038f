//! The live view: the activity of the region in the last second, from the `stats` of its daemons.

use super::plan::{Cluster, Plan};
use crate::demo::DemoCounters;
use crate::statistics::DaemonStats;
use anyhow::Result;
use std::{
    io::{IsTerminal, Write, stdout},
    sync::Arc,
    time::{Instant, SystemTime, UNIX_EPOCH},
};

/// The heading is repeated after this many lines.
const LINES_PER_HEADING: u64 = 20;

/// Prints a line per second.
pub struct View {
    json: bool,
    demo: Option<Arc<DemoCounters>>,
    before: Totals,
    before_at: Instant,
    lines: u64,
}

/// Counters that only grow, summed over the region, and the present latency.
#[derive(Clone, Debug, Default)]
struct Totals {
    gets: u64,
    hits: u64,
    database_reads: u64,
    invalidations: u64,
    latency_us_p50: u64,
    latency_us_p99: u64,
    unreachable: u64,
    demo_failures: u64,
    /// Deletes that clusters have not acknowledged yet.
    backlog: u64,
    /// The clusters whose pipeline is not running, and why; empty if all are running.
    unhealthy: String,
}

impl View {
    /// A view without output yet. Without a demo application it shows the misses of the routers in place of database
    /// reads: a look-aside application reads the database at each miss.
    pub fn new(json: bool, demo: Option<Arc<DemoCounters>>) -> View {
        View { json, demo, before: Totals::default(), before_at: Instant::now(), lines: 0 }
    }

    /// Prints a notice.
    pub fn print_notice(&mut self, notice: &str) -> Result<()> {
        match self.json {
            true => writeln!(stdout(), "{}", serde_json::json!({ "event": notice }))?,
            false => writeln!(stdout(), "-- {notice}")?,
        }
        Ok(())
    }

    /// Prints the activity since the last line.
    pub async fn print_line(&mut self, plan: &Plan) -> Result<()> {
        let totals = self.fetch_totals(plan).await;
        let seconds = self.before_at.elapsed().as_secs_f64().max(0.001);
        let rate_since = |now: u64, before: u64| now.saturating_sub(before) as f64 / seconds;
        let gets = rate_since(totals.gets, self.before.gets);
        let hits = rate_since(totals.hits, self.before.hits);
        let database_reads = rate_since(totals.database_reads, self.before.database_reads);
        let invalidations = rate_since(totals.invalidations, self.before.invalidations);
        let hit_rate = if gets > 0.0 { hits / gets } else { 0.0 };
        if self.json {
            let line = serde_json::json!({
                "gets_per_s": gets, "hit_rate": hit_rate, "database_reads_per_s": database_reads,
                "invalidations_per_s": invalidations, "deletes_backlog": totals.backlog,
                "invalidation_latency_us": { "p50": totals.latency_us_p50, "p99": totals.latency_us_p99 },
                "unreachable_daemons": totals.unreachable, "demo_failures": totals.demo_failures,
                "unhealthy": totals.unhealthy,
            });
            writeln!(stdout(), "{line}")?;
        } else {
            self.print_heading()?;
            let hit_rate_text = if gets > 0.0 { format!("{:.2}%", hit_rate * 100.0) } else { "-".to_owned() };
            writeln!(
                stdout(),
                "{}  {gets:>9.0}  {hit_rate_text:>8}  {database_reads:>9.0}  {invalidations:>8.0}  {:>6}  {:>12}  {:>12}{}",
                time_of_day(),
                totals.backlog,
                milliseconds(totals.latency_us_p50),
                milliseconds(totals.latency_us_p99),
                self.warnings(&totals),
            )?;
        }
        self.before = totals;
        self.before_at = Instant::now();
        self.lines += 1;
        Ok(())
    }

    fn warnings(&self, totals: &Totals) -> String {
        let mut warnings = String::new();
        if totals.unreachable > 0 {
            warnings += &format!("   {} daemon(s) do not reply", totals.unreachable);
        }
        if totals.demo_failures > self.before.demo_failures {
            warnings += "   the database refuses the demo application";
        }
        if !totals.unhealthy.is_empty() {
            warnings += &format!("   {}", totals.unhealthy);
        }
        warnings
    }

    fn print_heading(&self) -> Result<()> {
        let is_terminal = stdout().is_terminal();
        if self.lines == 0 || (is_terminal && self.lines.is_multiple_of(LINES_PER_HEADING)) {
            let reads = if self.demo.is_some() { "database" } else { "misses" };
            writeln!(stdout(), "                          hit  {reads:>9}      deletes       commit to last cluster")?;
            writeln!(stdout(), "time (UTC)     gets/s    rate         /s        /s backlog         p50           p99")?;
        }
        Ok(())
    }

    async fn fetch_totals(&self, plan: &Plan) -> Totals {
        let mut totals = Totals::default();
        for cluster in &plan.clusters {
            match DaemonStats::fetch(cluster.router_port).await {
                Ok(router) => {
                    totals.gets += router.number("cmd_get") + router.number("cmd_lease_get");
                    totals.hits += router.number("get_hits");
                    totals.database_reads += router.number("get_misses");
                }
                Err(_) => totals.unreachable += 1,
            }
        }
        match DaemonStats::fetch(plan.invalidator_port).await {
            Ok(invalidator) => {
                totals.invalidations = invalidator.number("invalidations_total");
                totals.latency_us_p50 = invalidator.number("latency_us_p50");
                totals.latency_us_p99 = invalidator.number("latency_us_p99");
                let pending_keys =
                    |cluster: &Cluster| invalidator.number(&format!("cluster:{}:pending_keys", cluster.name));
                totals.backlog = plan.clusters.iter().map(pending_keys).sum();
                totals.unhealthy = invalidator.unhealthy();
            }
            Err(_) => totals.unreachable += 1,
        }
        if let Some(demo) = &self.demo {
            totals.database_reads = demo.database_reads();
            totals.demo_failures = demo.failures();
        }
        totals
    }
}

fn milliseconds(us: u64) -> String {
    if us == 0 { "-".to_owned() } else { format!("{:.2} ms", us as f64 / 1000.0) }
}

fn time_of_day() -> String {
    let unix_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    format!("{:02}:{:02}:{:02}", unix_s / 3600 % 24, unix_s / 60 % 60, unix_s % 60)
}

/// The URL without its password.
pub fn without_password(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return url.to_owned() };
    match rest.split_once('@') {
        Some((user, host)) => format!("{scheme}://{}@{host}", user.split(':').next().unwrap_or_default()),
        None => url.to_owned(),
    }
}
