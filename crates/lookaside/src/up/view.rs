//! The live view: the activity of each region in the last second, from the `stats` of its daemons.

use super::plan::{Cluster, RegionPlan};
use crate::demo::DemoCounters;
use crate::statistics::DaemonStats;
use anyhow::Result;
use std::{
    io::{IsTerminal, Write, stdout},
    sync::Arc,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

/// The heading is repeated after this many lines.
const LINES_PER_HEADING: u64 = 20;

/// CounterRates over a shorter time than this say little: a line follows at once after one for which a daemon was
/// waited for.
const RATES_INTERVAL_MIN: Duration = Duration::from_millis(500);

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
    /// Of each cluster's router: gets, hits, misses.
    routers: Vec<CounterRates<3>>,
    /// Deletes.
    invalidator: CounterRates<1>,
    /// Remote markers that the region's invalidator has deleted.
    markers: CounterRates<1>,
    /// Of the demo application: database reads, stale reads, markers set and found, reads of the master.
    applications: CounterRates<5>,
    demo_failures: u64,
}

/// The rates of counters that only grow. Those of one daemon have the same time: one that does not reply for a while
/// has no rates, and then those of the whole time.
struct CounterRates<const N: usize> {
    before: [u64; N],
    before_at: Instant,
    per_s: [f64; N],
}

impl<const N: usize> CounterRates<N> {
    /// Of counters that were 0 at this time.
    fn new(now: Instant) -> CounterRates<N> {
        CounterRates { before: [0; N], before_at: now, per_s: [0.0; N] }
    }

    /// The rates per second, if the counters have these values now; `None` if the daemon did not reply.
    fn update(&mut self, counts: Option<[u64; N]>, now: Instant) -> [f64; N] {
        let elapsed = now.saturating_duration_since(self.before_at);
        match counts {
            None => self.per_s = [0.0; N],
            Some(_) if elapsed < RATES_INTERVAL_MIN => {}
            Some(counts) => {
                // A daemon that was restarted counts from 0.
                let rate = |at: usize| counts[at].saturating_sub(self.before[at]) as f64 / elapsed.as_secs_f64();
                self.per_s = std::array::from_fn(rate);
                (self.before, self.before_at) = (counts, now);
            }
        }
        self.per_s
    }
}

/// The present latency and states, and counters that are shown as they are, of the region.
#[derive(Clone, Debug, Default)]
struct Totals {
    latency_us_p50: u64,
    latency_us_p99: u64,
    unreachable: u64,
    demo_failures: u64,
    /// Reads of users that had just written the key, and those of them that were older than the write.
    own_reads: u64,
    own_stale_reads: u64,
    /// The lag of the region's database; see [`DemoCounters::lag_us`].
    lag_us: u64,
    /// Deletes that clusters have not acknowledged yet.
    backlog: u64,
    /// The clusters whose pipeline is not running, and why; empty if all are running.
    unhealthy: String,
}

/// The activity of a region between two lines.
#[derive(Default)]
struct Activity {
    gets_per_s: f64,
    hit_rate: f64,
    database_reads_per_s: f64,
    invalidations_per_s: f64,
    /// Values that the demo application read and that were older than the master database.
    stale_reads_per_s: f64,
    /// Remote markers that the demo application has set, and those that a miss has found.
    markers_set_per_s: f64,
    markers_found_per_s: f64,
    /// Remote markers that the region's invalidator has deleted.
    markers_cleared_per_s: f64,
    /// What the demo application has read from the master, although this is a replica region.
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
        let now = Instant::now();
        self.regions.push(RegionView {
            routers: plan.clusters.iter().map(|_| CounterRates::new(now)).collect(),
            plan,
            demo,
            invalidator: CounterRates::new(now),
            markers: CounterRates::new(now),
            applications: CounterRates::new(now),
            demo_failures: 0,
        });
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
        let mut activity = Activity::default();
        self.measure_routers(&mut activity).await;
        self.measure_invalidator(&mut activity).await;
        if let Some(port) = self.plan.marker_port {
            let server = DaemonStats::fetch(port).await.ok();
            activity.totals.unreachable += u64::from(server.is_none());
            // Lists of tokens are never deleted.
            let counts = server.map(|server| [server.number("delete_hits")]);
            [activity.markers_cleared_per_s] = self.markers.update(counts, Instant::now());
        }
        self.measure_demo(&mut activity);
        activity.warnings = activity.totals.warnings(self.demo_failures);
        self.demo_failures = activity.totals.demo_failures;
        activity
    }

    async fn measure_routers(&mut self, activity: &mut Activity) {
        let mut hits_per_s = 0.0;
        for (cluster, rates) in self.plan.clusters.iter().zip(&mut self.routers) {
            let router = DaemonStats::fetch(cluster.router_port).await.ok();
            activity.totals.unreachable += u64::from(router.is_none());
            let counts = router.map(|router| {
                let gets = router.number("cmd_get") + router.number("cmd_lease_get");
                [gets, router.number("get_hits"), router.number("get_misses")]
            });
            let [gets, hits, misses] = rates.update(counts, Instant::now());
            activity.gets_per_s += gets;
            hits_per_s += hits;
            activity.database_reads_per_s += misses;
        }
        activity.hit_rate = if activity.gets_per_s > 0.0 { hits_per_s / activity.gets_per_s } else { 0.0 };
    }

    async fn measure_invalidator(&mut self, activity: &mut Activity) {
        let invalidator = DaemonStats::fetch(self.plan.invalidator_port).await.ok();
        let totals = &mut activity.totals;
        match &invalidator {
            Some(invalidator) => {
                totals.latency_us_p50 = invalidator.number("latency_us_p50");
                totals.latency_us_p99 = invalidator.number("latency_us_p99");
                let pending_keys =
                    |cluster: &Cluster| invalidator.number(&format!("cluster:{}:pending_keys", cluster.name));
                totals.backlog = self.plan.clusters.iter().map(pending_keys).sum();
                totals.unhealthy = invalidator.unhealthy();
            }
            None => totals.unreachable += 1,
        }
        let counts = invalidator.map(|invalidator| [invalidator.number("invalidations_total")]);
        [activity.invalidations_per_s] = self.invalidator.update(counts, Instant::now());
    }

    fn measure_demo(&mut self, activity: &mut Activity) {
        let Some(demo) = &self.demo else { return };
        let totals = &mut activity.totals;
        totals.demo_failures = demo.failures();
        totals.own_reads = demo.own_reads();
        totals.own_stale_reads = demo.own_stale_reads();
        totals.lag_us = demo.lag_us();
        let markers = demo.markers();
        let counts = [demo.database_reads(), demo.stale_reads(), markers.marked, markers.found, demo.master_reads()];
        [
            activity.database_reads_per_s,
            activity.stale_reads_per_s,
            activity.markers_set_per_s,
            activity.markers_found_per_s,
            activity.master_reads_per_s,
        ] = self.applications.update(Some(counts), Instant::now());
    }
}

impl Totals {
    fn warnings(&self, demo_failures_before: u64) -> String {
        let mut warnings = String::new();
        if self.unreachable > 0 {
            warnings += &format!("   {} daemon(s) do not reply", self.unreachable);
        }
        if self.demo_failures > demo_failures_before {
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A stopped invalidator's counters were taken for 0: the line after it had resumed showed all deletes since its
    /// start as those of one second.
    #[test]
    fn a_daemon_that_replies_again_has_the_rate_of_the_whole_time() {
        let begin = Instant::now();
        let at = |s: f64| begin + Duration::from_secs_f64(s);
        let mut rates = CounterRates::<1>::new(begin);
        assert_eq!(rates.update(Some([100_000]), at(1.0)), [100_000.0]);
        assert_eq!(rates.update(None, at(2.0)), [0.0]);
        assert_eq!(rates.update(None, at(7.0)), [0.0]);
        assert_eq!(rates.update(Some([100_090]), at(10.0)), [10.0]);
        assert_eq!(rates.update(Some([20]), at(11.0)), [0.0], "it was restarted");
    }

    /// The line that followed at once after one for which a daemon was waited for had a rate over some milliseconds.
    #[test]
    fn a_line_that_follows_too_soon_has_the_rates_of_the_one_before() {
        let begin = Instant::now();
        let mut rates = CounterRates::<1>::new(begin);
        assert_eq!(rates.update(Some([50]), begin + Duration::from_secs(5)), [10.0]);
        assert_eq!(rates.update(Some([150]), begin + Duration::from_millis(5_001)), [10.0]);
        assert_eq!(rates.update(Some([150]), begin + Duration::from_secs(10)), [20.0], "nothing is left out");
    }
}
