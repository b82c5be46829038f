//! The live view: the activity of each region in the last second, from the `stats` of its daemons.

use super::plan::{Cluster, RegionPlan};
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

/// The heading of the columns of several regions.
const REPLICATION_HEADING: [&str; 2] = [
    "       stale  database         own                markers/s    master",
    "        /s       lag  read stale     set   found  cleared   reads/s",
];

/// Prints a line per region and second.
pub struct View {
    json: bool,
    regions: Vec<RegionView>,
    lines: u64,
}

/// One region, and what was printed of it.
struct RegionView {
    plan: RegionPlan,
    /// What its applications did; `None` without the demo application.
    demo: Option<Arc<DemoCounters>>,
    before: Totals,
    before_at: Instant,
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
    /// Values that the demo application read and that were older than the master database.
    stale_reads: u64,
    /// Reads of users that had just written the key, and those of them that were older than the write.
    own_reads: u64,
    own_stale_reads: u64,
    /// The lag of the region's database; see [`DemoCounters::lag_us`].
    lag_us: u64,
    /// Remote markers that the demo application has set, and those that a miss has found.
    markers_set: u64,
    markers_found: u64,
    /// Remote markers that the region's invalidator has deleted.
    markers_cleared: u64,
    /// What the demo application has read from the master, although this is a replica region.
    master_reads: u64,
    /// Deletes that clusters have not acknowledged yet.
    backlog: u64,
    /// The clusters whose pipeline is not running, and why; empty if all are running.
    unhealthy: String,
}

/// The activity of a region between two lines.
struct Activity {
    gets_per_s: f64,
    hit_rate: f64,
    database_reads_per_s: f64,
    invalidations_per_s: f64,
    stale_reads_per_s: f64,
    markers_set_per_s: f64,
    markers_found_per_s: f64,
    markers_cleared_per_s: f64,
    master_reads_per_s: f64,
    warnings: String,
    totals: Totals,
}

impl View {
    /// A view without output yet.
    pub fn new(json: bool) -> View {
        View { json, regions: Vec::new(), lines: 0 }
    }

    /// Adds a region. Without a demo application its misses are shown in place of database reads: a look-aside
    /// application reads the database at each miss.
    pub fn add_region(&mut self, plan: RegionPlan, demo: Option<Arc<DemoCounters>>) {
        self.regions.push(RegionView { plan, demo, before: Totals::default(), before_at: Instant::now() });
    }

    /// Prints a notice.
    pub fn print_notice(&mut self, notice: &str) -> Result<()> {
        match self.json {
            true => writeln!(stdout(), "{}", serde_json::json!({ "event": notice }))?,
            false => writeln!(stdout(), "-- {notice}")?,
        }
        Ok(())
    }

    /// Prints the activity of each region since its last line.
    pub async fn print_lines(&mut self) -> Result<()> {
        if !self.json {
            self.print_heading()?;
        }
        let are_several = self.regions.len() > 1;
        for region in &mut self.regions {
            let activity = region.measure().await;
            let line = match (self.json, are_several) {
                (true, _) => activity.json(region.plan.name).to_string(),
                (false, false) => format!("{}{}", activity.text(""), activity.warnings),
                (false, true) => {
                    let replication = activity.replication_text(region.demo.is_some());
                    format!(
                        "{}{replication}{}",
                        activity.text(&format!("  {:<6}", region.plan.name)),
                        activity.warnings
                    )
                }
            };
            writeln!(stdout(), "{line}")?;
        }
        self.lines += 1;
        Ok(())
    }

    fn print_heading(&self) -> Result<()> {
        let is_terminal = stdout().is_terminal();
        if self.lines == 0 || (is_terminal && self.lines.is_multiple_of(LINES_PER_HEADING)) {
            let reads = if self.regions.iter().any(|region| region.demo.is_some()) { "database" } else { "misses" };
            let (region, replication) = match self.regions.len() {
                1 => (["", ""], ["", ""]),
                _ => (["        ", "  region"], REPLICATION_HEADING),
            };
            let [blank, name] = region;
            let [above, below] = replication;
            let mut out = stdout().lock();
            writeln!(
                out,
                "          {blank}                hit  {reads:>9}      deletes       commit to last cluster{above}"
            )?;
            writeln!(
                out,
                "time (UTC){name}     gets/s    rate         /s        /s backlog         p50           p99{below}"
            )?;
        }
        Ok(())
    }
}

impl RegionView {
    async fn measure(&mut self) -> Activity {
        let totals = self.fetch_totals().await;
        let seconds = self.before_at.elapsed().as_secs_f64().max(0.001);
        let rate_since = |now: u64, before: u64| now.saturating_sub(before) as f64 / seconds;
        let gets = rate_since(totals.gets, self.before.gets);
        let hits = rate_since(totals.hits, self.before.hits);
        let activity = Activity {
            gets_per_s: gets,
            hit_rate: if gets > 0.0 { hits / gets } else { 0.0 },
            database_reads_per_s: rate_since(totals.database_reads, self.before.database_reads),
            invalidations_per_s: rate_since(totals.invalidations, self.before.invalidations),
            stale_reads_per_s: rate_since(totals.stale_reads, self.before.stale_reads),
            markers_set_per_s: rate_since(totals.markers_set, self.before.markers_set),
            markers_found_per_s: rate_since(totals.markers_found, self.before.markers_found),
            markers_cleared_per_s: rate_since(totals.markers_cleared, self.before.markers_cleared),
            master_reads_per_s: rate_since(totals.master_reads, self.before.master_reads),
            warnings: totals.warnings(&self.before),
            totals: totals.clone(),
        };
        self.before = totals;
        self.before_at = Instant::now();
        activity
    }

    async fn fetch_totals(&self) -> Totals {
        let mut totals = Totals::default();
        for cluster in &self.plan.clusters {
            match DaemonStats::fetch(cluster.router_port).await {
                Ok(router) => {
                    totals.gets += router.number("cmd_get") + router.number("cmd_lease_get");
                    totals.hits += router.number("get_hits");
                    totals.database_reads += router.number("get_misses");
                }
                Err(_) => totals.unreachable += 1,
            }
        }
        match DaemonStats::fetch(self.plan.invalidator_port).await {
            Ok(invalidator) => {
                totals.invalidations = invalidator.number("invalidations_total");
                totals.latency_us_p50 = invalidator.number("latency_us_p50");
                totals.latency_us_p99 = invalidator.number("latency_us_p99");
                let pending_keys =
                    |cluster: &Cluster| invalidator.number(&format!("cluster:{}:pending_keys", cluster.name));
                totals.backlog = self.plan.clusters.iter().map(pending_keys).sum();
                totals.unhealthy = invalidator.unhealthy();
            }
            Err(_) => totals.unreachable += 1,
        }
        if let Some(port) = self.plan.marker_port {
            match DaemonStats::fetch(port).await {
                // Lists of tokens are never deleted.
                Ok(server) => totals.markers_cleared = server.number("delete_hits"),
                Err(_) => totals.unreachable += 1,
            }
        }
        if let Some(demo) = &self.demo {
            totals.database_reads = demo.database_reads();
            totals.demo_failures = demo.failures();
            totals.stale_reads = demo.stale_reads();
            totals.own_reads = demo.own_reads();
            totals.own_stale_reads = demo.own_stale_reads();
            totals.lag_us = demo.lag_us();
            let markers = demo.markers();
            totals.markers_set = markers.marked;
            totals.markers_found = markers.found;
            totals.master_reads = demo.master_reads();
        }
        totals
    }
}

impl Totals {
    fn warnings(&self, before: &Totals) -> String {
        let mut warnings = String::new();
        if self.unreachable > 0 {
            warnings += &format!("   {} daemon(s) do not reply", self.unreachable);
        }
        if self.demo_failures > before.demo_failures {
            warnings += "   reads or writes of the demo application fail";
        }
        if !self.unhealthy.is_empty() {
            warnings += &format!("   {}", self.unhealthy);
        }
        warnings
    }
}

impl Activity {
    fn json(&self, region: &str) -> serde_json::Value {
        let totals = &self.totals;
        serde_json::json!({
            "region": region,
            "gets_per_s": self.gets_per_s, "hit_rate": self.hit_rate,
            "database_reads_per_s": self.database_reads_per_s,
            "invalidations_per_s": self.invalidations_per_s, "deletes_backlog": totals.backlog,
            "invalidation_latency_us": { "p50": totals.latency_us_p50, "p99": totals.latency_us_p99 },
            "unreachable_daemons": totals.unreachable, "demo_failures": totals.demo_failures,
            "stale_reads_per_s": self.stale_reads_per_s, "database_lag_us": totals.lag_us,
            "own_reads": totals.own_reads, "own_stale_reads": totals.own_stale_reads,
            "markers_set_per_s": self.markers_set_per_s, "markers_found_per_s": self.markers_found_per_s,
            "markers_cleared_per_s": self.markers_cleared_per_s, "master_reads_per_s": self.master_reads_per_s,
            "unhealthy": totals.unhealthy,
        })
    }

    /// A line of the table; `region` is its column, or empty if there is only one.
    fn text(&self, region: &str) -> String {
        let hit_rate = if self.gets_per_s > 0.0 { format!("{:.2}%", self.hit_rate * 100.0) } else { "-".to_owned() };
        format!(
            "{}{region}  {:>9.0}  {hit_rate:>8}  {:>9.0}  {:>8.0}  {:>6}  {:>12}  {:>12}",
            time_of_day(),
            self.gets_per_s,
            self.database_reads_per_s,
            self.invalidations_per_s,
            self.totals.backlog,
            milliseconds(self.totals.latency_us_p50),
            milliseconds(self.totals.latency_us_p99),
        )
    }

    /// The columns of several regions, of which only the demo application knows.
    fn replication_text(&self, is_demo: bool) -> String {
        match is_demo {
            true => format!(
                "  {:>6.0}  {:>8}  {:>10}  {:>6.0}  {:>6.0}  {:>7.0}  {:>8.0}",
                self.stale_reads_per_s,
                milliseconds(self.totals.lag_us),
                self.totals.own_stale_reads,
                self.markers_set_per_s,
                self.markers_found_per_s,
                self.markers_cleared_per_s,
                self.master_reads_per_s,
            ),
            false => format!(
                "  {:>6}  {:>8}  {:>10}  {:>6}  {:>6}  {:>7.0}  {:>8}",
                "-", "-", "-", "-", "-", self.markers_cleared_per_s, "-"
            ),
        }
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
