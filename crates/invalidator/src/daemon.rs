//! The daemon: gives sockets, files, signals and the clock to the pipelines.
//!
//! One thread runs all pipelines. Calls of SQLite and saves of positions block, so they run on tokio's blocking
//! threads.

use crate::{
    CommitLog, WallClock,
    key_options::RowDatabase,
    observe::{metrics_endpoint::MetricsThread, source_lag, stats::Statistics, stats_endpoint},
    options::Options,
    pipeline::{Pipeline, delivery::connect_routers, positions::PositionFile},
    rule_file::{RuleChecker, RuleFile},
    rules::RowRules,
    source::{
        mysql::MysqlLog,
        postgres::{PostgresLog, PostgresOptions},
        sqlite::{PRUNE_EVERY, SqliteLog, prune},
    },
    spool::{SavedStart, SegmentFolder, Spool, SpoolWriter, SpooledLog},
};
use lookaside_client::{LoginNetwork, Network, TcpNetwork};
use lookaside_routing::Address;
use std::{
    fs::{self, File, TryLockError},
    io,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
    time::{Duration, SystemTime},
};
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::watch,
    task::JoinSet,
    time::sleep,
};

/// The exit code for an invalid command line.
const EXIT_USAGE: u8 = 2;
/// Runs the daemon until SIGINT or SIGTERM.
pub fn run(options: Options) -> ExitCode {
    lookaside_telemetry::Log::start(options.log_format, options.verbose.into());
    let loaded = options.check().and_then(|()| {
        let (text, rules) = options.keys.read_rules()?;
        let row_rules = RowRules::new(rules);
        Ok((DatabaseUrl::from_options(&options, &row_rules)?, text, row_rules))
    });
    let (source, rules_text, row_rules) = match loaded {
        Ok(loaded) => loaded,
        Err(why) => return fail(&why, EXIT_USAGE),
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let served = runtime
        .map_err(|error| format!("cannot create the tokio runtime: {error}"))
        .and_then(|runtime| runtime.block_on(serve(&options, source, rules_text, row_rules)));
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => fail(&why, 1),
    }
}

fn fail(why: &str, code: u8) -> ExitCode {
    eprintln!("lookaside-invalidator: {why}");
    code.into()
}

/// The database that `--source` names.
#[expect(clippy::large_enum_variant, reason = "a daemon has one")]
enum DatabaseUrl {
    Sqlite(SqliteLog),
    Rows(RowDatabase),
}

impl DatabaseUrl {
    fn from_options(options: &Options, row_rules: &Arc<RowRules>) -> Result<DatabaseUrl, String> {
        let url = &options.source;
        match options.keys.row_database("--source", url, row_rules)? {
            Some(RowDatabase::Postgres(server)) => {
                let (publication, slot) = (options.publication.clone(), options.slot.clone());
                let server = PostgresOptions { publication, slot, ..server };
                return Ok(DatabaseUrl::Rows(RowDatabase::Postgres(server)));
            }
            Some(server) => return Ok(DatabaseUrl::Rows(server)),
            None => {}
        }
        if let Some(path) = url.strip_prefix("sqlite://").filter(|path| !path.is_empty()) {
            return Ok(DatabaseUrl::Sqlite(SqliteLog::new(path)));
        }
        // Not the URL itself: it may hold a password.
        Err("--source must be sqlite:///PATH, or mysql://, mariadb:// or postgres:// with USER:PASSWORD@HOST:PORT"
            .into())
    }

    /// Compares rules with the database; `None` if it has no row rules.
    fn rule_checker(&self, network: &Arc<dyn Network>) -> Option<RuleChecker> {
        let DatabaseUrl::Rows(database) = self else { return None };
        Some(database.rule_checker(network))
    }

    fn log(&self, network: &Arc<dyn Network>) -> Arc<dyn CommitLog> {
        let wall_clock: WallClock = Arc::new(SystemTime::now);
        match self {
            DatabaseUrl::Sqlite(log) => Arc::new(log.clone()),
            DatabaseUrl::Rows(RowDatabase::Mysql(server)) => {
                Arc::new(MysqlLog::new(server.clone(), network.clone(), wall_clock))
            }
            DatabaseUrl::Rows(RowDatabase::Postgres(server)) => {
                Arc::new(PostgresLog::new(server.clone(), network.clone(), wall_clock))
            }
        }
    }

    /// Whether its log cannot be read again, so that commits must be kept until every cluster has them.
    fn needs_spool(&self) -> bool {
        matches!(self, DatabaseUrl::Rows(RowDatabase::Postgres(_)))
    }
}

/// Opens the spool in the folder `spool` of --state-dir, and spawns its writer.
fn open_spool(
    options: &Options,
    log: Arc<dyn CommitLog>,
    statistics: &Arc<Statistics>,
    background: &mut JoinSet<()>,
) -> Result<Arc<Spool>, String> {
    let path = options.state_dir.join("spool");
    let shown = path.display();
    let files = SegmentFolder::open(&path).map_err(|why| format!("{shown} cannot be used: {why}"))?;
    let clusters = options.clusters.iter().map(|cluster| cluster.name.as_str());
    let spool =
        Spool::recover(Arc::new(files), log, options.spool_bytes_max, clusters.clone(), statistics.spool.clone())
            .map_err(|why| format!("{shown}: {why}"))?;
    // A file that cannot be read stops its own pipeline, which reports it.
    let saved = clusters.filter_map(|cluster| PositionFile::new(&options.state_dir, cluster).read().ok().flatten());
    let saved = saved.map(|saved| SavedStart { log_identity: saved.log_identity, position: saved.position }).collect();
    let pipeline = options.pipeline();
    let writer =
        SpoolWriter { spool: spool.clone(), start: pipeline.start, saved, read_keys_max: pipeline.read_keys_max };
    background.spawn(async move { match writer.run().await {} });
    Ok(spool)
}

/// Compares the rules with the database, and spawns the task that loads them again.
async fn watch_rules(
    options: &Options,
    database: &DatabaseUrl,
    network: &Arc<dyn Network>,
    rules_text: String,
    row_rules: Arc<RowRules>,
    background: &mut JoinSet<()>,
) -> Result<(), String> {
    // Without rules too: the default action of SIGHUP ends the process.
    let mut hangup = signal(SignalKind::hangup()).map_err(|error| format!("cannot receive signals: {error}"))?;
    let (Some(path), Some(check)) = (&options.keys.rules, database.rule_checker(network)) else {
        background.spawn(async move {
            while hangup.recv().await.is_some() {
                tracing::info!("SIGHUP: there is no rule file to load (--rules)");
            }
        });
        return Ok(());
    };
    options.keys.check_rules(&check, &row_rules.current()).await?;
    row_rules.statistics.loads.add(1);
    background.spawn(RuleFile::new(path.clone(), rules_text, row_rules, check).watch(hangup));
    Ok(())
}

async fn serve(
    options: &Options,
    database: DatabaseUrl,
    rules_text: String,
    row_rules: Arc<RowRules>,
) -> Result<(), String> {
    let cannot_receive = |error: io::Error| format!("cannot receive signals: {error}");
    let mut interrupt = signal(SignalKind::interrupt()).map_err(cannot_receive)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(cannot_receive)?;
    let _lock = lock_directory(&options.state_dir)?;
    let network: Arc<dyn Network> = Arc::new(TcpNetwork);
    let listener = network
        .listen(&Address(options.listen.as_str().into()))
        .await
        .map_err(|why| format!("cannot listen on {}: {why}; --listen HOST:PORT chooses another", options.listen))?;
    let routers = match &options.router_login {
        Some(file) => {
            Arc::new(LoginNetwork::new(network.clone(), file, None).map_err(|why| format!("--router-login: {why}"))?)
        }
        None => network.clone(),
    };
    let names = options.clusters.iter().map(|cluster| cluster.name.as_str());
    let statistics = Statistics::with_row_rules(names, row_rules.clone());
    let metrics = options.metrics_address.as_deref();
    let _metrics = metrics.map(|address| MetricsThread::start(address, statistics.clone())).transpose()?;
    let mut background = JoinSet::new();
    watch_rules(options, &database, &network, rules_text, row_rules, &mut background).await?;
    let spool = match database.needs_spool() {
        true => Some(open_spool(options, database.log(&network), &statistics, &mut background)?),
        false => None,
    };
    let log_of = |cluster: &str| -> Arc<dyn CommitLog> {
        match &spool {
            Some(spool) => Arc::new(SpooledLog::new(spool.clone(), cluster)),
            None => database.log(&network),
        }
    };
    let (request_shutdown, shutdown) = watch::channel(false);
    let mut pipelines = JoinSet::new();
    for (index, cluster) in options.clusters.iter().enumerate() {
        let pipeline = build_pipeline(options, index, log_of(&cluster.name), &routers, &statistics);
        pipelines.spawn(pipeline.run(shutdown.clone()));
    }
    background.spawn(source_lag::watch(log_of(&options.clusters[0].name), statistics.clone()));
    background.spawn(stats_endpoint::serve(listener, statistics.clone()));
    // The other databases prune their logs themselves.
    if let DatabaseUrl::Sqlite(log) = &database {
        let history = Duration::from_secs(options.journal_history_s.into());
        background.spawn(prune_loop(log.path().to_path_buf(), statistics, history));
    }
    tracing::info!(clusters = options.clusters.len(), listen = options.listen, "started");
    tokio::select! {
        biased;
        _ = interrupt.recv() => tracing::info!("SIGINT: shutting down"),
        _ = terminate.recv() => tracing::info!("SIGTERM: shutting down"),
        () = join_all(&mut pipelines) => return Err("all pipelines have stopped; see the errors above".into()),
        // Without the writer of the spool the clusters would wait for ever.
        Some(Err(why)) = background.join_next() => {
            return Err(format!("a background task panicked: {why}; please report this bug"));
        }
    }
    request_shutdown.send_replace(true);
    join_all(&mut pipelines).await;
    Ok(())
}

/// Waits until all pipelines have stopped. Each logs the reason itself.
async fn join_all<T: 'static>(pipelines: &mut JoinSet<T>) {
    while let Some(joined) = pipelines.join_next().await {
        if let Err(why) = joined {
            tracing::error!(%why, "a pipeline panicked; please report this bug");
        }
    }
}

fn build_pipeline(
    options: &Options,
    index: usize,
    log: Arc<dyn CommitLog>,
    network: &Arc<dyn Network>,
    statistics: &Arc<Statistics>,
) -> Pipeline {
    let cluster = &options.clusters[index];
    let wall_clock: WallClock = Arc::new(SystemTime::now);
    Pipeline {
        log,
        delivery: Arc::new(
            connect_routers(&cluster.routers, options.router_timeout_ms, network, &statistics.clusters()[index])
                .with_hedge_delay(Duration::from_millis(options.hedge_delay_ms)),
        ),
        positions: Arc::new(PositionFile::new(&options.state_dir, &cluster.name)),
        statistics: statistics.clone(),
        cluster: index,
        wall_clock,
        options: options.pipeline(),
    }
}

/// Locks the directory: two invalidators in it would overwrite each other's positions.
fn lock_directory(directory: &Path) -> Result<File, String> {
    let failed = |why: io::Error| format!("--state-dir {}: {why}", directory.display());
    fs::create_dir_all(directory)
        .map_err(|why| format!("--state-dir {} cannot be created: {why}", directory.display()))?;
    // Not truncated, because it may be a link to another user's file.
    let file = File::options().write(true).create(true).truncate(false).open(directory.join("lock")).map_err(failed)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => {
            Err(format!("--state-dir {} is in use by another lookaside-invalidator", directory.display()))
        }
        Err(TryLockError::Error(why)) => Err(failed(why)),
    }
}

async fn prune_loop(path: PathBuf, statistics: Arc<Statistics>, history: Duration) {
    loop {
        sleep(PRUNE_EVERY).await;
        let saved: Option<Vec<_>> = statistics.clusters().iter().map(|cluster| cluster.saved_position()).collect();
        match prune(path.clone(), saved.unwrap_or_default(), history, SystemTime::now()).await {
            Ok(0) => {}
            Ok(rows) => tracing::debug!(rows, "pruned the journal"),
            Err(why) => tracing::warn!(%why, "pruning the journal failed; retrying"),
        }
    }
}
