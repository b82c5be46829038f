//! The daemon: gives sockets, files, signals and the clock to the parts. One thread runs all of them.

use crate::{
    asking::{Asker, MonitorClock},
    follow::Follower,
    observe::{self, Liveness, MonitorReport},
    options::Options,
    questions::{self, Questions},
    sampling::Sampler,
    state::{SavedState, StateFile, VERSION, boot_id, now},
};
use lookaside_client::{LoginNetwork, Network, TcpNetwork};
use lookaside_invalidator::{
    CommitLog,
    key_options::{RowDatabase, SourceDatabase},
    rule_file::RuleCheck,
    rules::RowRules,
    source::{
        mysql::MysqlLog,
        postgres::{PostgresLog, PostgresOptions},
    },
    state_file::{lock_directory, run_blocking},
};
use lookaside_sync::Mutex;
use lookaside_telemetry::{LogThrottle, MetricsThread};
use std::{
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, SystemTime},
};
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::Notify,
    task::JoinSet,
    time::{Instant, sleep},
};

/// How the temporary slot is named in PostgreSQL; a random number follows.
const SLOT_PREFIX: &str = "lookaside_monitor";
/// The exit code for an invalid command line.
const EXIT_USAGE: u8 = 2;
/// The least time between two saves of the state.
const SAVE_INTERVAL: Duration = Duration::from_secs(1);
/// The least time between two messages about a failed save.
const SAVE_LOG_INTERVAL_MIN: Duration = Duration::from_secs(10);
/// Saves take at most one part in this many of the time.
const SAVE_SHARE: u32 = 20;

/// Runs the daemon until SIGINT or SIGTERM.
pub fn run(options: Options) -> ExitCode {
    lookaside_telemetry::Log::start(options.log_format, options.verbose.into());
    let loaded = options.check().and_then(|()| {
        let (text, rules) = options.keys.read_rules()?;
        let row_rules = RowRules::new(rules);
        let database = SourceDatabase::from_url(&options.keys, "--source", &options.source, &row_rules)?;
        let publication = options.publication.clone();
        let database = database.map_postgres(|server| {
            PostgresOptions { publication, ..server }.with_temporary_slot(SLOT_PREFIX, fastrand::u64(..))
        });
        Ok((database, text, row_rules))
    });
    let (database, rules_text, row_rules) = match loaded {
        Ok(loaded) => loaded,
        Err(why) => return fail(&why, EXIT_USAGE),
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let served = runtime
        .map_err(|error| format!("cannot create the tokio runtime: {error}"))
        .and_then(|runtime| runtime.block_on(serve(&options, database, rules_text, row_rules)));
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => fail(&why, 1),
    }
}

fn fail(why: &str, code: u8) -> ExitCode {
    eprintln!("lookaside-monitor: {why}");
    code.into()
}

/// What all parts share.
struct Monitor {
    sampler: Arc<Mutex<Sampler>>,
    boot: String,
    region: String,
    sample: u32,
    saves_failed: AtomicU64,
    save_throttle: Mutex<LogThrottle<Instant>>,
}

impl Monitor {
    /// Continues from the state file, if there is one.
    fn load(options: &Options, file: &StateFile) -> Result<Monitor, String> {
        let watched = options.watched();
        let clusters = watched.map(|(_, watched)| (watched.cluster.name.as_str(), options.region_of(watched)));
        let mut sampler = Sampler::new(options.sampler(), clusters);
        let boot = boot_id()?;
        if let Some(mut saved) = file.load()? {
            if saved.boot != boot {
                tracing::warn!("the host was restarted, so the deletes that were watched are dropped; counts are kept");
                saved.sampler.drop_times();
            }
            sampler.restore(saved.sampler);
        }
        Ok(Monitor {
            sampler: Arc::new(Mutex::new(sampler)),
            boot,
            region: options.region.clone(),
            sample: options.sample,
            saves_failed: AtomicU64::new(0),
            save_throttle: Mutex::new(LogThrottle::new(1, SAVE_LOG_INTERVAL_MIN)),
        })
    }

    /// Writes the state. The samples are locked while they are cloned, which costs little; encoding many of them takes
    /// seconds, and is done by another thread, so that questions are asked meanwhile. That thread goes on when the
    /// future is dropped, as at the end, when the last save follows: the file orders them.
    async fn write_state(&self, file: &StateFile) -> Result<(), String> {
        let (file, boot, region, sample) = (file.clone(), self.boot.clone(), self.region.clone(), self.sample);
        let sampler = self.sampler.clone();
        let state = move || {
            let copy = sampler.lock().clone();
            SavedState { version: VERSION, boot, region, sample, sampler: copy.save() }
        };
        run_blocking(move || file.save(state)).await
    }

    /// The metrics. Their cost does not depend on the number of samples.
    fn render(&self) -> String {
        let report = MonitorReport::of_sampler(&self.region, self.sample, &self.sampler.lock());
        observe::render(&report, self.liveness())
    }

    fn liveness(&self) -> Liveness {
        let is_watching = self.sampler.lock().is_watching(now());
        Liveness { is_watching, saves_failed: self.saves_failed.load(Relaxed) }
    }

    async fn save(&self, file: &StateFile) {
        let Err(why) = self.write_state(file).await else { return };
        self.saves_failed.fetch_add(1, Relaxed);
        if let Some(suppressed) = self.save_throttle.lock().allow(Instant::now()) {
            tracing::error!(
                why,
                suppressed,
                "the state cannot be saved; retrying. Counts since the last save do not survive a crash"
            );
        }
    }

    async fn save_repeatedly(&self, file: &StateFile) {
        loop {
            let begun = Instant::now();
            self.save(file).await;
            sleep(SAVE_INTERVAL.max(begun.elapsed() * SAVE_SHARE)).await;
        }
    }
}

async fn serve(
    options: &Options,
    database: SourceDatabase,
    rules_text: String,
    row_rules: Arc<RowRules>,
) -> Result<(), String> {
    let no_signals = |error| format!("cannot receive signals: {error}");
    let mut interrupt = signal(SignalKind::interrupt()).map_err(no_signals)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(no_signals)?;
    let _lock = lock_directory(&options.state_dir, "lookaside-monitor")?;
    let network: Arc<dyn Network> = Arc::new(TcpNetwork);
    let caches = LoginNetwork::for_routers(&network, options.router_login.as_deref(), None)?;
    let file = StateFile::in_directory(&options.state_dir);
    let monitor = Arc::new(Monitor::load(options, &file)?);
    let shown = monitor.clone();
    let render = move || shown.render();
    let metrics = options.metrics_address.as_deref();
    let _metrics = metrics.map(|address| MetricsThread::bind(address, render)).transpose()?;
    let mut background = JoinSet::new();
    let keys = &options.keys;
    keys.watch_rules(&database, &network, rules_text, row_rules, RuleCheck::AllTables, &mut background).await?;
    let clock: MonitorClock = Arc::new(now);
    let sampled = Arc::new(Notify::new());
    let (log, can_resume) = open_log(&database, &network);
    let follower = Arc::new(Follower {
        log,
        sampler: monitor.sampler.clone(),
        clock: clock.clone(),
        sampled: sampled.clone(),
        can_resume,
    });
    let reading = follower.clone();
    background.spawn(async move { match reading.read_log().await {} });
    let interval = Duration::from_millis(options.look_up_every_ms);
    background.spawn(async move { match follower.look_up_ends(interval).await {} });
    for (index, (through, watched)) in options.watched().enumerate() {
        let timeout = Duration::from_millis(options.timeout_ms);
        let questions = Questions {
            asker: Asker::new(through, &watched.cluster.routers, timeout, &caches, &clock),
            sampler: monitor.sampler.clone(),
            cluster: index,
            clock: clock.clone(),
            sampled: sampled.clone(),
            per_s_max: options.rate,
            on_finding: questions::log_old_values(&watched.cluster.name, options.region_of(watched)),
        };
        background.spawn(async move { match questions.ask_repeatedly().await {} });
    }
    let (saving, saved_file) = (monitor.clone(), file.clone());
    background.spawn(async move { saving.save_repeatedly(&saved_file).await });
    tracing::info!(clusters = options.watched().count(), sample = options.sample, "started");
    let ended = tokio::select! {
        biased;
        _ = interrupt.recv() => Ok("SIGINT"),
        _ = terminate.recv() => Ok("SIGTERM"),
        // Without one of them the daemon would seem to run.
        Some(Err(why)) = background.join_next() => Err(format!("a task panicked: {why}; please report this bug")),
    };
    background.shutdown().await;
    monitor.save(&file).await;
    ended.map(|signal| tracing::info!("{signal}: shutting down"))
}

/// The log, and whether it can be read from a position at which an earlier process has stopped.
fn open_log(database: &SourceDatabase, network: &Arc<dyn Network>) -> (Arc<dyn CommitLog>, bool) {
    match database {
        SourceDatabase::Sqlite(log) => (Arc::new(log.clone()), true),
        SourceDatabase::Rows(RowDatabase::Mysql(server)) => {
            (Arc::new(MysqlLog::new(server.clone(), network.clone(), Arc::new(SystemTime::now))), true)
        }
        SourceDatabase::Rows(RowDatabase::Postgres(server)) => {
            (Arc::new(PostgresLog::new(server.clone(), network.clone(), Arc::new(SystemTime::now))), false)
        }
    }
}
