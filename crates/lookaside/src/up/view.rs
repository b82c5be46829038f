//! The live view: what the region did in the last second, from the `stats` of its daemons.

use super::plan::Plan;
use crate::demo::Counters;
use crate::statistics::Statistics;
use std::{
    io::IsTerminal,
    sync::Arc,
    time::{Instant, SystemTime, UNIX_EPOCH},
};

/// The heading is said again after so many lines.
const LINES_PER_HEADING: u64 = 20;

/// Prints a line a second.
pub struct View {
    json: bool,
    demo: Option<Arc<Counters>>,
    before: Totals,
    before_at: Instant,
    lines: u64,
}

/// Counters that only grow, summed over the region, and the present latency.
#[derive(Clone, Copy, Debug, Default)]
struct Totals {
    gets: u64,
    hits: u64,
    database_reads: u64,
    invalidations: u64,
    latency_us_p50: u64,
    latency_us_p99: u64,
    unreachable: u64,
    demo_failures: u64,
}

impl View {
    /// A view that has not said anything yet. Without a demo application, the misses of the routers stand for database
    /// reads: an application that looks aside reads the database at each.
    pub fn new(json: bool, demo: Option<Arc<Counters>>) -> View {
        View { json, demo, before: Totals::default(), before_at: Instant::now(), lines: 0 }
    }

    /// Says something out of turn.
    pub fn say(&mut self, news: &str) {
        if self.json {
            println!("{}", serde_json::json!({ "event": news }));
        } else {
            println!("-- {news}");
        }
    }

    /// Says what happened since the last line.
    pub fn line(&mut self, plan: &Plan) {
        let totals = self.totals(plan);
        let seconds = self.before_at.elapsed().as_secs_f64().max(0.001);
        let since = |now: u64, before: u64| now.saturating_sub(before) as f64 / seconds;
        let gets = since(totals.gets, self.before.gets);
        let hits = since(totals.hits, self.before.hits);
        let database_reads = since(totals.database_reads, self.before.database_reads);
        let invalidations = since(totals.invalidations, self.before.invalidations);
        let hit_rate = if gets > 0.0 { hits / gets } else { 0.0 };
        if self.json {
            let line = serde_json::json!({
                "gets_per_s": gets, "hit_rate": hit_rate, "database_reads_per_s": database_reads,
                "invalidations_per_s": invalidations,
                "invalidation_latency_us": { "p50": totals.latency_us_p50, "p99": totals.latency_us_p99 },
                "unreachable_daemons": totals.unreachable, "demo_failures": totals.demo_failures,
            });
            println!("{line}");
        } else {
            self.heading();
            let mut trouble = String::new();
            if totals.unreachable > 0 {
                trouble += &format!("   {} daemon(s) do not answer", totals.unreachable);
            }
            if totals.demo_failures > self.before.demo_failures {
                trouble += "   the database refuses the demo application";
            }
            println!(
                "{}  {gets:>9.0}  {:>7.2}%  {database_reads:>9.0}  {invalidations:>13.0}  {:>9.2} ms  {:>9.2} ms{trouble}",
                time_of_day(),
                hit_rate * 100.0,
                totals.latency_us_p50 as f64 / 1000.0,
                totals.latency_us_p99 as f64 / 1000.0,
            );
        }
        self.before = totals;
        self.before_at = Instant::now();
        self.lines += 1;
    }

    fn heading(&self) {
        let again = if std::io::stdout().is_terminal() {
            self.lines.is_multiple_of(LINES_PER_HEADING)
        } else {
            self.lines == 0
        };
        if again {
            println!("                            hit   database  invalidations   commit to last cluster empty");
            println!("time (UTC)     gets/s      rate    reads/s             /s           p50           p99");
        }
    }

    fn totals(&self, plan: &Plan) -> Totals {
        let mut totals = Totals::default();
        for cluster in &plan.clusters {
            match Statistics::ask(cluster.router_port) {
                Ok(router) => {
                    totals.gets += router.number("cmd_get") + router.number("cmd_lease_get");
                    totals.hits += router.number("get_hits");
                    totals.database_reads += router.number("get_misses");
                }
                Err(_) => totals.unreachable += 1,
            }
        }
        match Statistics::ask(plan.invalidator_port) {
            Ok(invalidator) => {
                totals.invalidations = invalidator.number("invalidations_total");
                totals.latency_us_p50 = invalidator.number("latency_us_p50");
                totals.latency_us_p99 = invalidator.number("latency_us_p99");
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

fn time_of_day() -> String {
    let unix_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    format!("{:02}:{:02}:{:02}", unix_s / 3600 % 24, unix_s / 60 % 60, unix_s % 60)
}

/// The URL as it may be shown.
pub fn without_password(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return url.to_owned() };
    match rest.split_once('@') {
        Some((user, host)) => format!("{scheme}://{}@{host}", user.split(':').next().unwrap_or_default()),
        None => url.to_owned(),
    }
}
