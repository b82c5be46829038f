//! `lookaside invalidator replay`: reads a part of a database's log again and sends its deletes to a cluster.

use anyhow::{Result, anyhow, bail};
use clap::value_parser;
use lookaside_client::{LoginNetwork, Network, TcpNetwork};
use lookaside_invalidator::{
    CommitLog, Position, Start, commit_time,
    key_options::{KeyOptions, RowDatabase, SourceDatabase},
    observe::stats::Statistics,
    options::Cluster,
    pipeline::delivery::{Delivery, connect_routers},
    replay::{Replay, ReplayFilter, ReplaySummary},
    rule_file::RuleCheck,
    rules::{RowRules, RuleStatistics},
    source::{
        SourceUrl,
        mysql::{MysqlLog, MysqlOptions},
        postgres::PostgresLog,
    },
    spool::SpoolArchive,
};
use serde_json::json;
use std::{
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};
use tokio::task::JoinSet;

/// How often progress is shown.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(1);

pub const EXAMPLES: &str = "Examples:
  The deletes of the last quarter of an hour, for one cluster:
    lookaside invalidator replay --database mysql://lookaside:secret@db.example --since 15m \\
        --cluster front-1=10.0.1.1:5000,10.0.1.2:5000

  How many that would be, of keys that begin with user: only:
    lookaside invalidator replay --database sqlite:///srv/app.db --from earliest --key-prefix user: \\
        --cluster front-1=10.0.1.1:5000 --dry-run

  The same from the spool of an invalidator of PostgreSQL, on its host:
    lookaside invalidator replay --database postgres://lookaside:secret@db.example/shop \\
        --state-dir /var/lib/lookaside --since 15m --cluster front-1=10.0.1.1:5000

A replay reads up to the end that the log has when it begins. It leaves the positions of the running
daemon alone. Give it --rules, --outbox-table and so on as the daemon has them. It flushes nothing:
commits for which a rule demands a flush are counted.

What a slot of PostgreSQL has confirmed cannot be read again: --state-dir is the one of the invalidator,
which keeps what it has read for a while (--spool-keep-hours). The database is not asked, and keys are
those that the invalidator has found, so --rules and the like have no effect.

Exit status: 0 success; 1 the log cannot be read or the cluster does not acknowledge, with the position
from which to continue on standard error; 1 also if the log begins later than --since or ends before --from, or if
reading begins after --to, with the place on standard error (in the first case what the log has was sent), or if the
invalidator itself has lost a part of the period; 2 usage error.";

/// The options of `replay`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = EXAMPLES, group = clap::ArgGroup::new("start").required(true).multiple(true))]
pub struct ReplayOptions {
    /// The database, as the invalidator's --source: sqlite:///PATH; mysql:// or mariadb:// with
    /// USER:PASSWORD@HOST:PORT; postgres://..., with --state-dir
    #[arg(long, value_name = "URL", env = "LOOKASIDE_DATABASE", hide_env_values = true)]
    database: SourceUrl,
    /// PostgreSQL: the --state-dir of the invalidator whose spool is read. It may be running
    #[arg(long, value_name = "PATH")]
    state_dir: Option<PathBuf>,
    /// The cluster and its routers
    #[arg(long, value_name = "NAME=HOST:PORT[,HOST:PORT...]")]
    cluster: Cluster,
    /// Commits from this time on, by the database's clock: 2026-11-22T19:00:00Z, or how long ago: 90s, 15m, 2h, 1d.
    /// The log is read from --from, by default from its beginning
    #[arg(long, value_name = "TIME", value_parser = parse_time, group = "start")]
    since: Option<SystemTime>,
    /// Commits up to this time
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    until: Option<SystemTime>,
    /// Commits after this position, in the database's own notation (0-1-270, UUID:1-5, 16/B374D848, 4711), or earliest.
    /// PostgreSQL: with the number of losses before it if there were any (1:16/B374D848), as `stats` shows it
    #[arg(long, value_name = "earliest|POSITION", group = "start")]
    from: Option<String>,
    /// Commits up to this position; by default to the end that the log has now
    #[arg(long, value_name = "POSITION")]
    to: Option<String>,
    /// Only keys that begin with this
    #[arg(long, value_name = "TEXT", default_value = "")]
    key_prefix: String,
    /// Maximum deletes per second, 1 to 1,000,000
    #[arg(long, value_name = "DELETES", default_value_t = 5_000, value_parser = value_parser!(u32).range(1..=1_000_000))]
    rate: u32,
    /// Read and count, and send nothing
    #[arg(long)]
    dry_run: bool,
    /// Print the summary as JSON
    #[arg(long)]
    json: bool,
    /// Milliseconds within which a router must reply to a batch
    #[arg(long, value_name = "MS", default_value_t = 5_000, value_parser = value_parser!(u64).range(1..=600_000))]
    router_timeout_ms: u64,
    /// Log in at the routers with the line user:password in this file
    #[arg(long, value_name = "FILE")]
    router_login: Option<PathBuf>,
    /// How commits name keys, as the invalidator has it.
    #[command(flatten)]
    keys: KeyOptions,
}

fn parse_time(text: &str) -> Result<SystemTime, String> {
    commit_time::parse(text, SystemTime::now())
}

/// Runs the command.
pub fn run(options: &ReplayOptions) -> Result<()> {
    let network: Arc<dyn Network> = Arc::new(TcpNetwork);
    let (_, rules) = options.keys.read_rules().map_err(|why| anyhow!(why))?;
    let row_rules = RowRules::new(rules);
    let routers =
        LoginNetwork::for_routers(&network, options.router_login.as_deref(), None).map_err(|why| anyhow!(why))?;
    let statistics = Statistics::new([options.cluster.name.as_str()]);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let begun = Instant::now();
    let (summary, losses) = runtime.block_on(async {
        let OpenedLog { log, archive } = open_log(options, &row_rules, &network).await?;
        let mut probes = JoinSet::new();
        let delivery = (!options.dry_run).then(|| {
            let (routers_of, timeout_ms) = (&options.cluster.routers, options.router_timeout_ms);
            let delivery = Arc::new(connect_routers(
                routers_of,
                timeout_ms,
                &routers,
                &statistics.clusters()[0],
                fastrand::u64(..),
            ));
            let watched = delivery.clone();
            probes.spawn(async move { watched.watch_routers().await });
            delivery as Arc<dyn Delivery>
        });
        let replay = Replay {
            log,
            delivery,
            start: match options.from.as_deref() {
                None | Some("earliest") => Start::Earliest,
                Some(position) => Start::At(Position(position.into())),
            },
            to: options.to.clone().map(Position),
            filter: ReplayFilter { since: options.since, until: options.until, key_prefix: options.key_prefix.clone() },
            deletes_per_s_max: options.rate,
        };
        let mut shown_at = begun;
        let show = |summary: &ReplaySummary| {
            if shown_at.elapsed() >= PROGRESS_INTERVAL {
                shown_at = Instant::now();
                eprintln!("{}", describe(summary, options.dry_run));
            }
        };
        let summary = replay.run(show).await?;
        anyhow::Ok((summary, archive.map_or(0, |archive| archive.losses())))
    })?;
    print_summary(options, &summary, losses, &row_rules.statistics, begun.elapsed());
    warn_of_inexpressible(&summary, &row_rules.statistics);
    if losses > 0 {
        bail!(
            "the invalidator lost its position {losses} times within what was read: commits are missing there, and so are \
             their deletes. If the cluster's caches are in doubt, flush it (flush_all)"
        );
    }
    if summary.begins_late {
        let begin = summary.log_begins_at.map_or_else(
            || "the log has no commits any more".to_owned(),
            |at| format!("the log begins at {}", commit_time::format(at)),
        );
        bail!(
            "{begin}, and --since is earlier: commits of before may have been removed from it, and their deletes were not \
             sent. The others were{}. If the cluster's caches are in doubt, flush it (flush_all)",
            if options.dry_run { " counted" } else { "" }
        );
    }
    Ok(())
}

/// Opens the log, with keys named as the daemon with the same options finds them.
async fn open_log(options: &ReplayOptions, row_rules: &Arc<RowRules>, network: &Arc<dyn Network>) -> Result<OpenedLog> {
    let database = SourceDatabase::from_url(&options.keys, "--database", &options.database, row_rules);
    let database = database.map_err(|why| anyhow!(why))?;
    if !database.needs_spool() {
        if options.state_dir.is_some() {
            bail!("--state-dir is for PostgreSQL: the logs of other databases are read again");
        }
        if let Some(check) = database.rule_checker(network) {
            let checked = options.keys.check_rules(&check, &row_rules.current(), RuleCheck::Full).await;
            checked.map_err(|why| anyhow!(why))?;
        }
    }
    match database {
        SourceDatabase::Sqlite(log) => Ok(OpenedLog::of_database(log)),
        SourceDatabase::Rows(RowDatabase::Mysql(server)) => {
            let server = MysqlOptions { is_replay: true, ..server };
            Ok(OpenedLog::of_database(MysqlLog::new(server, network.clone(), Arc::new(SystemTime::now))))
        }
        SourceDatabase::Rows(RowDatabase::Postgres(server)) => {
            open_spool(options, PostgresLog::new(server, network.clone(), Arc::new(SystemTime::now)))
        }
    }
}

/// Opens the spool of an invalidator.
fn open_spool(options: &ReplayOptions, log: PostgresLog) -> Result<OpenedLog> {
    let Some(state_dir) = &options.state_dir else {
        bail!(
            "PostgreSQL's log cannot be read again: a replication slot ends at what the invalidator has confirmed. Give \
             --state-dir PATH, on the host of the invalidator: its spool has what it has read"
        );
    };
    let archive = SpoolArchive::open(state_dir, Arc::new(log)).map_err(|why| anyhow!("--state-dir: {why}"))?;
    if let Some(to) = &options.to {
        archive.check_position(&Position(to.clone())).map_err(|why| anyhow!("--to: {why}"))?;
    }
    Ok(OpenedLog { log: Arc::new(archive.clone()), archive: Some(archive) })
}

/// A log, and the spool that it is; `None` if it is the database's own.
struct OpenedLog {
    log: Arc<dyn CommitLog>,
    archive: Option<SpoolArchive>,
}

impl OpenedLog {
    fn of_database(log: impl CommitLog + 'static) -> OpenedLog {
        OpenedLog { log: Arc::new(log), archive: None }
    }
}

fn describe(summary: &ReplaySummary, is_dry_run: bool) -> String {
    let verb = if is_dry_run { "found" } else { "sent" };
    let at = summary.position.as_ref().map_or("-", |position| &position.0);
    let commits = summary.commits;
    format!("{commits} commits, {} deletes {verb}, {} without a route, at {at}", summary.deletes, summary.unroutable)
}

/// Reports changes whose stale keys no rule can name: deletes cannot make up for them.
fn warn_of_inexpressible(summary: &ReplaySummary, statistics: &RuleStatistics) {
    let changes = statistics.inexpressible.value();
    if changes > 0 {
        eprintln!("{changes} of the changes that were read cannot be expressed as keys; cached values may be stale");
    }
    if summary.flushes_skipped > 0 {
        eprintln!(
            "{} commits demand a flush of the cluster or of pools, which a replay does not do: send flush_all to one of its \
             routers, unless the cluster was flushed since",
            summary.flushes_skipped
        );
    }
}

/// `losses` is how often the invalidator lost its position within what was read.
fn print_summary(
    options: &ReplayOptions,
    summary: &ReplaySummary,
    losses: u64,
    statistics: &RuleStatistics,
    took: Duration,
) {
    if !options.json {
        return println!("{}, in {:.1} s", describe(summary, options.dry_run), took.as_secs_f64());
    }
    let summary = json!({
        "cluster": options.cluster.name,
        "dry_run": options.dry_run,
        "commits_read": summary.commits_read,
        "losses": losses,
        "commits": summary.commits,
        "deletes": summary.deletes,
        "unroutable": summary.unroutable,
        "flushes_skipped": summary.flushes_skipped,
        "row_changes_inexpressible": statistics.inexpressible.value(),
        "position": summary.position.as_ref().map(|position| &position.0),
        "log_begins_at": summary.log_begins_at.map(commit_time::format),
        "begins_late": summary.begins_late,
        "seconds": took.as_secs_f64(),
    });
    println!("{summary}");
}
