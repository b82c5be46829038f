//! What runs while the invalidator is active: the pipelines, and what serves them all.

use super::{Daemon, background_panicked, open_log, table_store::TableStore};
use crate::{
    CommitLog, WallClock,
    election::{SharedMarks, SharedPositions, Term},
    key_options::SourceDatabase,
    observe::{source_lag, stats::Statistics},
    options::Options,
    pipeline::{
        OnPositionLost, Pipeline, PipelineError,
        delivery::connect_routers,
        positions::{PositionFile, PositionStore},
    },
    rules::Otherwise,
    source::sqlite::{PRUNE_EVERY, prune},
    spool::{KeepingFolder, SavedStart, SegmentFolder, Spool, SpoolWriter, SpooledLog},
};
use std::{
    fs, io,
    path::PathBuf,
    sync::Arc,
    time::{Duration, SystemTime},
};
use tokio::{sync::watch, task::JoinSet, time::sleep};

/// The pipelines of all clusters.
pub(super) struct Active {
    pipelines: JoinSet<Result<(), PipelineError>>,
    background: JoinSet<()>,
    request_shutdown: watch::Sender<bool>,
}

impl Active {
    /// Starts them. Positions are shared in `term`, or files if it is `None`.
    pub fn start(daemon: &Daemon<'_>, term: Option<&Arc<Term>>) -> Result<Active, String> {
        let Daemon { options, database, statistics, .. } = daemon;
        let mut background = JoinSet::new();
        let shared = term.map(|term| (options.shared_state_name.as_str(), term));
        let spool = match database.needs_spool() {
            true => {
                let store = TableStore::new(&options.state_dir, term);
                let seen = watch::Sender::new(store.load()?);
                background.spawn(store.save_changes(seen.subscribe()));
                let log = open_log(daemon, shared, Some(seen));
                Some(open_spool(options, log, term, statistics, &mut background)?)
            }
            false => None,
        };
        let log_of = |cluster: &str| -> Arc<dyn CommitLog> {
            match &spool {
                Some(spool) => Arc::new(SpooledLog::new(spool.clone(), cluster)),
                None => open_log(daemon, shared, None),
            }
        };
        let (request_shutdown, shutdown) = watch::channel(false);
        let (mut pipelines, mut watched) = (JoinSet::new(), Vec::new());
        for (index, cluster) in options.clusters.iter().enumerate() {
            let log = log_of(&cluster.name);
            watched.push(log.clone());
            pipelines.spawn(build_pipeline(daemon, index, log, term).run(shutdown.clone()));
        }
        background.spawn(source_lag::watch(watched, statistics.clone()));
        // The other databases prune their logs themselves.
        if let SourceDatabase::Sqlite(log) = database {
            let history = Duration::from_secs(options.journal_history_s.into());
            background.spawn(prune_loop(log.path().to_path_buf(), statistics.clone(), history));
        }
        Ok(Active { pipelines, background, request_shutdown })
    }

    /// Returns the reason once nothing is left to run.
    pub async fn failed(&mut self) -> String {
        tokio::select! {
            biased;
            () = join_all(&mut self.pipelines) => "all pipelines have stopped; see the errors above".into(),
            // Without the writer of the spool the clusters would wait for ever.
            Some(Err(why)) = self.background.join_next() => background_panicked(&why),
        }
    }

    /// Lets the pipelines save their positions, and returns when they have stopped.
    pub async fn stop(&mut self) {
        self.request_shutdown.send_replace(true);
        join_all(&mut self.pipelines).await;
    }

    /// Stops everything at once.
    pub async fn abort(mut self) {
        self.pipelines.shutdown().await;
        self.background.shutdown().await;
    }
}

/// Waits until all pipelines have stopped. Each logs the reason itself.
async fn join_all<T: 'static>(pipelines: &mut JoinSet<T>) {
    while let Some(joined) = pipelines.join_next().await {
        if let Err(why) = joined {
            tracing::error!(%why, "a pipeline panicked; please report this bug");
        }
    }
}

fn build_pipeline(daemon: &Daemon<'_>, index: usize, log: Arc<dyn CommitLog>, term: Option<&Arc<Term>>) -> Pipeline {
    let Daemon { options, routers, statistics, .. } = daemon;
    let cluster = &options.clusters[index];
    let wall_clock: WallClock = Arc::new(SystemTime::now);
    let file = PositionFile::new(&options.state_dir, &cluster.name);
    let needs_flush = options.on_position_lost == OnPositionLost::Flush
        || statistics.row_rules.current().iter().any(|rule| rule.otherwise != Otherwise::Count);
    let positions: Arc<dyn PositionStore> = match term {
        Some(term) => Arc::new(SharedPositions::new(term.clone(), &cluster.name, file)),
        None => Arc::new(file),
    };
    Pipeline {
        log,
        delivery: Arc::new(
            connect_routers(
                &cluster.routers,
                options.router_timeout_ms,
                routers,
                &statistics.clusters()[index],
                fastrand::u64(..),
            )
            .with_hedge_delay(Duration::from_millis(options.hedge_delay_ms))
            .with_flush_check(needs_flush)
            .with_source_id(options.source.database_id()),
        ),
        positions,
        statistics: statistics.clone(),
        cluster: index,
        wall_clock,
        options: options.pipeline(),
    }
}

/// Opens the spool in --state-dir, and spawns its writer.
fn open_spool(
    options: &Options,
    log: Arc<dyn CommitLog>,
    term: Option<&Arc<Term>>,
    statistics: &Arc<Statistics>,
    background: &mut JoinSet<()>,
) -> Result<Arc<Spool>, String> {
    let clusters = options.clusters.iter().map(|cluster| cluster.name.as_str());
    // A file that cannot be read stops its own pipeline, which reports it.
    let from_file = |cluster: &str| PositionFile::new(&options.state_dir, cluster).read().ok().flatten();
    let keeping =
        |folder| KeepingFolder::new(folder, options.keep_limits(), Arc::new(SystemTime::now), statistics.spool.clone());
    let (spool, saved): (_, Vec<_>) = match term {
        None => {
            let path = options.state_dir.join("spool");
            let shown = path.display();
            let files = SegmentFolder::open(&path).and_then(keeping);
            let files = files.map_err(|why| format!("{shown} cannot be used: {why}"))?;
            let (bytes_max, statistics) = (options.spool_bytes_max, statistics.spool.clone());
            let spool = Spool::recover(Arc::new(files), log, bytes_max, clusters.clone(), statistics)
                .map_err(|why| format!("{shown}: {why}"))?;
            (spool, clusters.filter_map(from_file).collect())
        }
        Some(term) => {
            let files = create_cache(options).and_then(keeping).map_err(|why| {
                format!("a folder for the spool in {} cannot be created: {why}", options.state_dir.display())
            })?;
            let marks = Arc::new(SharedMarks(term.clone()));
            let (bytes_max, statistics) = (options.spool_bytes_max, statistics.spool.clone());
            let spool = Spool::cache(Arc::new(files), log, bytes_max, clusters.clone(), statistics, marks);
            let mut shared = term.state().positions;
            (spool, clusters.filter_map(|cluster| shared.remove(cluster).or_else(|| from_file(cluster))).collect())
        }
    };
    let saved = saved.into_iter();
    let saved: Vec<SavedStart> =
        saved.map(|saved| SavedStart { log_identity: saved.log_identity, position: saved.position }).collect();
    if term.is_none() {
        spool.discard_if_passed(&saved).map_err(|why| format!("the spool in --state-dir: {why}"))?;
    }
    let pipeline = options.pipeline();
    let writer = SpoolWriter {
        spool: spool.clone(),
        start: pipeline.start,
        saved,
        stops_at_loss: pipeline.on_position_lost == OnPositionLost::Stop,
        read_keys_max: pipeline.read_keys_max,
    };
    background.spawn(async move { match writer.run().await {} });
    Ok(spool)
}

/// Creates an empty folder for the spool of an invalidator with a standby, and removes the former one. The name is new
/// each time: a write that was under way when the invalidator stepped down may still happen.
fn create_cache(options: &Options) -> io::Result<SegmentFolder> {
    let caches = options.state_dir.join("spool-cache");
    fs::remove_dir_all(&caches).or_else(|error| match error.kind() {
        io::ErrorKind::NotFound => Ok(()),
        // What such a write has left; the next start removes it.
        io::ErrorKind::DirectoryNotEmpty => Ok(()),
        _ => Err(error),
    })?;
    SegmentFolder::open(&caches.join(format!("{:016x}", fastrand::u64(..))))
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
