//! The daemon: gives sockets, files, signals and the clock to the parts. One thread runs all of them.

use crate::{
    asking::{Asker, BATCH_KEYS_MAX, MonitorClock},
    follow::Follower,
    observe::{self, Liveness},
    options::Options,
    sampling::{Finding, Sampler},
    state::{SavedState, StateFile, boot_id, now},
};
use lookaside_client::{LoginNetwork, Network, TcpNetwork};
use lookaside_invalidator::{
    CommitLog,
    key_options::{RowDatabase, SourceDatabase},
    observe::metrics_endpoint::MetricsThread,
    rule_file::{RuleCheck, RuleFile},
    rules::RowRules,
    source::{
        mysql::MysqlLog,
        postgres::{PostgresLog, PostgresOptions},
    },
    state_file::{lock_directory, run_blocking},
};
use lookaside_protocol::percent;
use lookaside_sync::Mutex;
use lookaside_telemetry::LogThrottle;
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
    time::{Instant, sleep, sleep_until},
};

/// How the temporary slot is named in PostgreSQL; a random number follows.
const SLOT_PREFIX: &str = "lookaside_monitor";
/// The exit code for an invalid command line.
const EXIT_USAGE: u8 = 2;
/// The least time between two saves of the state.
const SAVE_INTERVAL: Duration = Duration::from_secs(1);
/// Saves take at most one part in this many of the time.
const SAVE_SHARE: u32 = 20;
/// An asker with nothing due looks again after this time at the latest.
const IDLE_MAX: Duration = Duration::from_secs(1);
/// The most log lines about old values in [`FINDINGS_LOG_WINDOW`]; all are counted.
const FINDINGS_LOGGED_MAX: u32 = 100;
const FINDINGS_LOG_WINDOW: Duration = Duration::from_secs(10);

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
        })
    }

    fn state(&self) -> SavedState {
        SavedState {
            version: 1,
            boot: self.boot.clone(),
            region: self.region.clone(),
            sample: self.sample,
            sampler: self.sampler.lock().save(),
        }
    }

    fn liveness(&self) -> Liveness {
        let is_watching = self.sampler.lock().is_watching();
        Liveness { is_watching, saves_failed: self.saves_failed.load(Relaxed) }
    }

    async fn save(&self, file: &StateFile) {
        let (state, file) = (self.state(), file.clone());
        if let Err(why) = run_blocking(move || file.save(&state)).await
            && self.saves_failed.fetch_add(1, Relaxed) == 0
        {
            tracing::error!(
                why,
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
    let caches: Arc<dyn Network> = match &options.router_login {
        Some(file) => {
            Arc::new(LoginNetwork::new(network.clone(), file, None).map_err(|why| format!("--router-login: {why}"))?)
        }
        None => network.clone(),
    };
    let file = StateFile::in_directory(&options.state_dir);
    let monitor = Arc::new(Monitor::load(options, &file)?);
    let shown = monitor.clone();
    let render = move || observe::render(&shown.state(), shown.liveness());
    let metrics = options.metrics_address.as_deref();
    let _metrics = metrics.map(|address| MetricsThread::start(address, render)).transpose()?;
    let mut background = JoinSet::new();
    watch_rules(options, &database, &network, rules_text, row_rules, &mut background).await?;
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
        };
        background.spawn(questions.ask_repeatedly());
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

/// Compares the rules with the database, and loads the rule file again when it changes, as the invalidator does.
async fn watch_rules(
    options: &Options,
    database: &SourceDatabase,
    network: &Arc<dyn Network>,
    rules_text: String,
    row_rules: Arc<RowRules>,
    background: &mut JoinSet<()>,
) -> Result<(), String> {
    // Without rules too: the default action of SIGHUP ends the process.
    let mut hangup = signal(SignalKind::hangup()).map_err(|error| format!("cannot receive signals: {error}"))?;
    let (Some(path), Some(check)) = (&options.keys.rules, database.rule_checker(network)) else {
        background.spawn(async move { while hangup.recv().await.is_some() {} });
        return Ok(());
    };
    options.keys.check_rules(&check, &row_rules.current(), RuleCheck::FitOnly).await?;
    background.spawn(RuleFile::new(path.clone(), rules_text, row_rules, check).watch(hangup));
    Ok(())
}

/// The questions to one cluster.
struct Questions {
    asker: Asker,
    sampler: Arc<Mutex<Sampler>>,
    /// Its index.
    cluster: usize,
    clock: MonitorClock,
    sampled: Arc<Notify>,
    per_s_max: u32,
}

impl Questions {
    /// Asks what is due, for ever.
    async fn ask_repeatedly(mut self) {
        let mut throttle = LogThrottle::new(FINDINGS_LOGGED_MAX, FINDINGS_LOG_WINDOW);
        let mut next_at = Instant::now();
        loop {
            sleep_until(next_at).await;
            let sampler = self.sampler.clone();
            let sampled = self.sampled.clone();
            // Created before the samples are looked at, so that none is missed in between.
            let notified = sampled.notified();
            let batch_max = BATCH_KEYS_MAX.min(self.per_s_max as usize);
            let due = sampler.lock().clusters[self.cluster].due((self.clock)(), batch_max);
            let Some(batch) = due else {
                let due_at = sampler.lock().clusters[self.cluster].next_due_at();
                let wait = due_at.map_or(IDLE_MAX, |due_at| (due_at - (self.clock)()).min(IDLE_MAX));
                tokio::select! {
                    () = notified => {}
                    () = sleep(wait) => {}
                }
                continue;
            };
            // One that was held up does not catch up by a burst.
            next_at = next_at.max(Instant::now()) + Duration::from_secs(batch.samples.len() as u64) / self.per_s_max;
            let samples = batch.samples.clone();
            let keys: Vec<&[u8]> = samples.iter().map(|sample| sample.key.as_slice()).collect();
            let looks = self.asker.ask(&keys).await;
            let mut sampler = sampler.lock();
            let cluster = &mut sampler.clusters[self.cluster];
            for finding in cluster.record(batch, looks) {
                if let Some(suppressed) = throttle.allow(Instant::now()) {
                    log_finding(&cluster.name, &finding, suppressed);
                }
            }
        }
    }
}

fn log_finding(cluster: &str, finding: &Finding, suppressed: u64) {
    let Finding { sample, from, age_s, stored } = finding;
    let committed_at = sample.committed_at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    tracing::warn!(
        key = %percent::encode_except(&sample.key, |byte| byte.is_ascii_graphic() && byte != b'%'),
        cluster,
        from,
        after_s = age_s,
        stored_before_ms = stored.map(|age| age.min_ms),
        committed_at_ms = committed_at.as_millis() as u64,
        position = sample.position.0,
        suppressed,
        "an old value is still cached after its delete; `lookaside invalidator replay` sends deletes again"
    );
}
