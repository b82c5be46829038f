//! `lookaside simulate`: seeded runs of the production code under faults, with a checker.

use anyhow::{Result, bail};
use lookaside_monitor::sampling::AgeCounts;
use lookaside_simulation::{
    checker::Tally,
    region::{self, DeleteCurve, DisabledGuarantee, RunOutcome},
    regions,
};
use std::{
    collections::BTreeMap,
    io::{IsTerminal, Write},
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

const SEEDS_LISTED_MAX: usize = 10;

/// Options of `lookaside simulate`.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Number of seeds to run
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..))]
    seeds: u64,
    /// The first seed
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    first: u64,
    /// Run only this seed
    #[arg(long, value_name = "SEED", conflicts_with_all = ["seeds", "first"])]
    seed: Option<u64>,
    /// Simulate several regions with replicas that lag, remote markers and monitors, instead of one region
    #[arg(long)]
    regions: bool,
    /// Simulate several regions for this many hours each, with few reads, writes and faults, and then until the
    /// monitors have asked about each delete that is an hour old
    #[arg(long, value_name = "HOURS", value_parser = clap::value_parser!(u64).range(1..=24))]
    hours: Option<u64>,
    /// Disable a guarantee on purpose, to test the checker: gate, leases, plain-leases, acknowledgement, fence,
    /// peers, spool, promptness, spares, resize, gutter, coverage, history, permits, copy-leases, lease-voids, takeover
    /// or takeover-spool; of several regions: markers, marker-tokens, replica-log, promotion or monitor-clock
    #[arg(long = "break", value_name = "GUARANTEE")]
    disabled: Option<DisabledGuarantee>,
    /// Threads; each runs its own seeds [default: one per core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
}

/// Runs the seeds. Fails if a guarantee was violated, with the command that repeats the run.
pub fn run(options: &Options) -> Result<()> {
    let disabled = options.disabled.unwrap_or_default();
    let (first, seeds) = options.seed.map_or((options.first, options.seeds), |seed| (seed, 1));
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = options.threads.map_or(cores, usize::from);
    let has_regions = options.regions || options.hours.is_some() || disabled.needs_regions();
    let started = Instant::now();
    let outcomes = run_seeds(first, seeds, threads, |seed| match options.hours {
        Some(hours) => regions::run_long(seed, disabled, Duration::from_secs(hours * 3_600)),
        None if has_regions => regions::run(seed, disabled),
        None => region::run(seed, disabled),
    });
    let failed: Vec<&RunOutcome> = outcomes.iter().filter(|outcome| outcome.violation.is_some()).collect();
    let tally = outcomes.iter().fold(Tally::default(), |sum, outcome| sum.plus(outcome.tally));
    let outdated = tally.outdated;
    let mut deletes = DeleteCurve::default();
    outcomes.iter().for_each(|outcome| deletes.add(&outcome.deletes));
    let mut out = std::io::stdout().lock();
    if options.json {
        let to_json = |outcome: &&RunOutcome| {
            let violation = outcome.violation.as_ref().map(ToString::to_string);
            serde_json::json!({ "seed": outcome.seed, "violation": violation })
        };
        let report = serde_json::json!({
            "seeds": seeds, "failed": failed.iter().map(to_json).collect::<Vec<_>>(),
            "commits": tally.commits, "reads": tally.reads, "cached": tally.cached, "stale": tally.stale,
            "faults": tally.faults, "hangs": tally.hangs, "upgrades": tally.upgrades,
            "upgrades_in_changes": tally.upgrades_in_changes, "warm_restarts": tally.warm_restarts,
            "server_upgrades": tally.server_upgrades, "spooled": tally.spooled, "flushes": tally.flushes,
            "spare_takeovers": tally.spare_takeovers, "spare_departures": tally.spare_departures,
            "config_changes": tally.config_changes,
            "lost_coverages": tally.lost_coverages,
            "former_owner_fills": tally.former_owner_fills, "direct_reads": tally.direct_reads,
            "plain_sets_stored": tally.plain_sets_stored, "plain_sets_refused": tally.plain_sets_refused,
            "stalled_fills_stored": tally.stalled_fills_stored, "stalled_fills_refused": tally.stalled_fills_refused,
            "remote_writes": tally.remote_writes, "unknown_writes": tally.unknown_writes,
            "master_reads": tally.master_reads, "own_writes_not_read": tally.own_writes_not_read,
            "replication_stops": tally.replication_stops, "promotions": tally.promotions,
            "monitored": AgeCounts::NAMES.into_iter().zip(tally.monitored.values()).collect::<BTreeMap<_, _>>(),
            "samples": deletes.samples,
            "deletes_by_age": deletes.by_age_s.iter().map(|(age_s, found)| age_to_json(*age_s, found)).collect::<Vec<_>>(),
            "outdated_ms_max": {
                "calm": outdated.calm_ms, "one_router": outdated.one_router_ms, "one_server": outdated.one_server_ms,
                "after_invalidator": outdated.after_invalidator_ms, "any": outdated.any_ms,
            },
            "seconds": started.elapsed().as_secs_f64(),
        });
        writeln!(out, "{report}")?;
    } else {
        writeln!(
            out,
            "seeds {seeds}, {:.1} s: {} commits, {} reads ({} from the cache, {} marked as stale), {} faults, {} failed",
            started.elapsed().as_secs_f64(),
            tally.commits,
            tally.reads,
            tally.cached,
            tally.stale,
            tally.faults,
            failed.len(),
        )?;
        writeln!(
            out,
            "processes that hung: {}, routers upgraded: {} ({} during a change of their configuration), servers \
             restarted with their items: {}, servers upgraded: {}, deletes spooled: {}, servers flushed: {}, spares in \
             place of servers: {}, departures of spares: {}, changes of a router's configuration: {}, files of covered \
             configurations lost: {}, values copied from former owners: {}, reads sent to servers directly: {}, sets of \
             plain clients stored: {}, refused: {}, fills of clients that had stalled stored: {}, refused: {}",
            tally.hangs,
            tally.upgrades,
            tally.upgrades_in_changes,
            tally.warm_restarts,
            tally.server_upgrades,
            tally.spooled,
            tally.flushes,
            tally.spare_takeovers,
            tally.spare_departures,
            tally.config_changes,
            tally.lost_coverages,
            tally.former_owner_fills,
            tally.direct_reads,
            tally.plain_sets_stored,
            tally.plain_sets_refused,
            tally.stalled_fills_stored,
            tally.stalled_fills_refused,
        )?;
        writeln!(
            out,
            "oldest reads: {} ms outdated while nothing had failed, {} ms while one router had, {} ms while one other \
             server had, {} ms after the invalidator was back, {} ms at all",
            outdated.calm_ms,
            outdated.one_router_ms,
            outdated.one_server_ms,
            outdated.after_invalidator_ms,
            outdated.any_ms,
        )?;
        if has_regions {
            let [absent, new, old, undecided, failed, late] = tally.monitored.values();
            writeln!(
                out,
                "writes from replica regions: {}, without a known outcome: {}, reads of the master from there: {}, reads \
                 older than a write of their cluster: {}, stops of replication: {}, promotions: {}; looks of monitors: \
                 {absent} absent, {new} new, {old} old, {undecided} undecided, {failed} failed, {late} late",
                tally.remote_writes,
                tally.unknown_writes,
                tally.master_reads,
                tally.own_writes_not_read,
                tally.replication_stops,
                tally.promotions,
            )?;
            for (age_s, found) in &deletes.by_age_s {
                writeln!(out, "{}", describe_age(deletes.samples, *age_s, found))?;
            }
        }
        for outcome in failed.iter().take(SEEDS_LISTED_MAX) {
            if let Some(violation) = &outcome.violation {
                writeln!(out, "seed {}: {violation}", outcome.seed)?;
            }
        }
        if failed.len() > SEEDS_LISTED_MAX {
            writeln!(out, "and {} more (--json lists all)", failed.len() - SEEDS_LISTED_MAX)?;
        }
    }
    match failed.first() {
        None => Ok(()),
        Some(outcome) => {
            let flag = match options.hours {
                Some(hours) => format!(" --hours {hours}"),
                None if has_regions => " --regions".to_owned(),
                None => String::new(),
            };
            let command = match disabled {
                DisabledGuarantee::Nothing => format!("lookaside simulate{flag} --seed {}", outcome.seed),
                disabled => format!("lookaside simulate{flag} --seed {} --break {disabled}", outcome.seed),
            };
            bail!("{} of {seeds} seeds failed; to repeat the first: {command}", failed.len())
        }
    }
}

/// What monitors have found of deletes of one age.
fn age_to_json(age_s: u32, found: &AgeCounts) -> serde_json::Value {
    let counts = AgeCounts::NAMES.into_iter().zip(found.values()).map(|(name, count)| (name.to_owned(), count.into()));
    let further = [
        ("age_s", age_s.into()),
        ("answered", found.answered().into()),
        ("old_share", found.old_share().map_or(serde_json::Value::Null, Into::into)),
    ];
    counts.chain(further.map(|(name, value)| (name.to_owned(), value))).collect::<serde_json::Map<_, _>>().into()
}

/// The same for people.
fn describe_age(samples: u64, age_s: u32, found: &AgeCounts) -> String {
    let share = found.old_share().map_or("-".to_owned(), |share| format!("{:.4} %", share * 100.0));
    format!(
        "{age_s} s after a delete, of {samples}: {} old values in {} answers ({share}), {} undecided, {} without an answer, \
         {} not asked in time",
        found.old,
        found.answered(),
        found.undecided,
        found.failed,
        found.late,
    )
}

/// Returns the outcomes in the order of the seeds.
fn run_seeds(first: u64, seeds: u64, threads: usize, run: impl Fn(u64) -> RunOutcome + Sync) -> Vec<RunOutcome> {
    let next = AtomicU64::new(0);
    let outcomes = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    if index >= seeds {
                        return;
                    }
                    let outcome = run(first + index);
                    let mut outcomes = outcomes.lock().expect("runs do not panic");
                    outcomes.push(outcome);
                    if std::io::stderr().is_terminal() {
                        eprint!("\r{:>8} of {seeds} seeds", outcomes.len());
                    }
                }
            });
        }
    });
    if std::io::stderr().is_terminal() {
        eprintln!();
    }
    let mut outcomes = outcomes.into_inner().expect("runs do not panic");
    outcomes.sort_by_key(|outcome| outcome.seed);
    outcomes
}
