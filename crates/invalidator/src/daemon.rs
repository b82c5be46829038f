//! The daemon: gives sockets, files, signals and the clock to the pipelines.
//!
//! One thread runs all pipelines. Calls of SQLite and saves of positions block, so they run on tokio's blocking
//! threads. With `--shared-state` pipelines run only while this invalidator is active ([`crate::election`]).

mod active;
mod table_store;

use crate::{
    CommitLog, WallClock,
    election::{CurrentOptions, MemberOptions, Standby, StateLocation, Term},
    key_options::{RowDatabase, SourceDatabase},
    observe::{log_throttle, prometheus, stats::Statistics, stats_endpoint},
    options::{Cluster, Options},
    pipeline::positions::PositionFile,
    rule_file::RuleCheck,
    rules::RowRules,
    source::{
        mysql::MysqlLog,
        postgres::{PostgresLog, PostgresOptions, SeenTables},
    },
    state_file::lock_directory,
};
use active::Active;
use lookaside_client::{LoginNetwork, Network, RefusalHandler, TcpNetwork};
use lookaside_routing::Address;
use lookaside_sync::Mutex;
use lookaside_telemetry::MetricsThread;
use std::{
    collections::BTreeSet,
    fs, io,
    process::{self, ExitCode},
    sync::Arc,
    time::SystemTime,
};
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    sync::watch,
    task::JoinSet,
    time::Instant,
};

/// The exit code for an invalid command line.
const EXIT_USAGE: u8 = 2;

/// Runs the daemon until SIGINT or SIGTERM.
pub fn run(options: Options) -> ExitCode {
    lookaside_telemetry::Log::start(options.log_format, options.verbose.into());
    let loaded = options.check().and_then(|()| {
        let (text, rules) = options.keys.read_rules()?;
        let row_rules = RowRules::new(rules);
        let state = options.shared_state.as_deref();
        let state = state.map(|url| StateLocation::parse("--shared-state", url, &options.source)).transpose()?;
        let source = SourceDatabase::from_url(&options.keys, "--source", &options.source, &row_rules)?;
        let (publication, slot) = (options.publication.clone(), options.slot.clone());
        let source = source.map_postgres(|server| PostgresOptions { publication, slot, ..server });
        Ok((source, state, text, row_rules))
    });
    let (source, state, rules_text, row_rules) = match loaded {
        Ok(loaded) => loaded,
        Err(why) => return fail(&why, EXIT_USAGE),
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let served = runtime
        .map_err(|error| format!("cannot create the tokio runtime: {error}"))
        .and_then(|runtime| runtime.block_on(serve(&options, source, state, rules_text, row_rules)));
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => fail(&why, 1),
    }
}

fn fail(why: &str, code: u8) -> ExitCode {
    eprintln!("lookaside-invalidator: {why}");
    code.into()
}

/// The log; `shared` is the name of the shared state and the term of an invalidator with a standby, and `seen` what is
/// kept of tables with a rule.
fn open_log(
    daemon: &Daemon<'_>,
    shared: Option<(&str, &Arc<Term>)>,
    seen: Option<watch::Sender<SeenTables>>,
) -> Arc<dyn CommitLog> {
    let wall_clock: WallClock = Arc::new(SystemTime::now);
    let network = daemon.network.clone();
    match &daemon.database {
        SourceDatabase::Sqlite(log) => Arc::new(log.clone()),
        SourceDatabase::Rows(RowDatabase::Mysql(server)) => {
            Arc::new(MysqlLog::new(server.clone(), network, wall_clock))
        }
        SourceDatabase::Rows(RowDatabase::Postgres(server)) => {
            let log = PostgresLog::new(server.clone(), network, wall_clock);
            let log = log.with_seen_tables(seen.unwrap_or_default());
            Arc::new(match shared.map(|(name, term)| (name, term.clone())) {
                Some((name, term)) => log.with_shared_slot(name, Arc::new(move || term.is_certain())),
                None => log,
            })
        }
    }
}

/// Whether this is no first start, as far as is known: with a standby, positions are elsewhere.
fn has_run_before(options: &Options) -> bool {
    let has_position =
        |cluster: &Cluster| !matches!(PositionFile::new(&options.state_dir, &cluster.name).read(), Ok(None));
    options.shared_state.is_some() || options.clusters.iter().any(has_position)
}

/// What an active invalidator is made of.
struct Daemon<'a> {
    options: &'a Options,
    database: SourceDatabase,
    network: Arc<dyn Network>,
    /// To routers: logs in, if they require it.
    routers: Arc<dyn Network>,
    statistics: Arc<Statistics>,
}

/// The signals that end the daemon.
struct EndSignals {
    interrupt: Signal,
    terminate: Signal,
}

impl EndSignals {
    fn new() -> io::Result<EndSignals> {
        let (interrupt, terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
        Ok(EndSignals { interrupt, terminate })
    }

    /// Waits for one of them, and logs it.
    async fn recv(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => tracing::info!("SIGINT: shutting down"),
            _ = self.terminate.recv() => tracing::info!("SIGTERM: shutting down"),
        }
    }
}

async fn serve(
    options: &Options,
    database: SourceDatabase,
    state: Option<StateLocation>,
    rules_text: String,
    row_rules: Arc<RowRules>,
) -> Result<(), String> {
    let mut signals = EndSignals::new().map_err(|error| format!("cannot receive signals: {error}"))?;
    let _lock = lock_directory(&options.state_dir, "lookaside-invalidator")?;
    let network: Arc<dyn Network> = Arc::new(TcpNetwork);
    let listener = network
        .listen(&Address(options.listen.as_str().into()))
        .await
        .map_err(|why| format!("cannot listen on {}: {why}; --listen HOST:PORT chooses another", options.listen))?;
    let login = options.router_login.as_deref();
    let routers = LoginNetwork::for_routers(&network, login, Some(log_refused_logins()))?;
    let names = options.clusters.iter().map(|cluster| cluster.name.as_str());
    let statistics = Statistics::with_row_rules(names, row_rules.clone());
    let metrics = options.metrics_address.as_deref();
    let shown = statistics.clone();
    let render = move || prometheus::render(&shown, SystemTime::now());
    let _metrics = metrics.map(|address| MetricsThread::bind(address, render)).transpose()?;
    let mut background = JoinSet::new();
    let strictness = if has_run_before(options) { RuleCheck::AllTables } else { RuleCheck::Full };
    let keys = &options.keys;
    keys.watch_rules(&database, &network, rules_text, row_rules.clone(), strictness, &mut background).await?;
    background.spawn(stats_endpoint::serve(listener, statistics.clone()));
    let standby = state.map(|state| {
        statistics.election.enable();
        let store = state.store(network.clone(), &options.shared_state_name);
        Standby::new(store, holder_name(), statistics.election.clone(), || fastrand::u64(..))
            .with_options(member_options(options, &database, &row_rules))
    });
    tracing::info!(clusters = options.clusters.len(), listen = options.listen, "started");
    let daemon = Daemon { options, database, network, routers, statistics };
    tokio::select! {
        biased;
        // Without one of them the daemon would seem to run.
        Some(Err(why)) = background.join_next() => Err(background_panicked(&why)),
        ended = run_roles(&daemon, standby.as_ref(), &mut signals) => ended,
    }
}

/// Logs which router refuses the login, and why: pipelines know only that there is no connection.
fn log_refused_logins() -> RefusalHandler {
    let throttle = Mutex::new(log_throttle());
    Arc::new(move |router, why| {
        if throttle.lock().allow(Instant::now()).is_some() {
            tracing::error!(
                %router, %why,
                "the login at a router failed; correct the file of --router-login, or the users of the router (-Y)"
            );
        }
    })
}

fn background_panicked(why: &tokio::task::JoinError) -> String {
    format!("a background task panicked: {why}; please report this bug")
}

/// Is active, or a standby that becomes active, and again a standby if another one has become active.
async fn run_roles(daemon: &Daemon<'_>, standby: Option<&Standby>, signals: &mut EndSignals) -> Result<(), String> {
    loop {
        let term = match standby {
            None => None,
            Some(standby) => {
                daemon.statistics.set_standby();
                tokio::select! {
                    biased;
                    () = signals.recv() => return Ok(()),
                    term = standby.wait_until_active() => Some(term),
                }
            }
        };
        if let Some(ended) = run_active(daemon, term.as_ref(), signals).await {
            if let Some(term) = &term {
                term.resign().await;
            }
            return ended;
        }
    }
}

/// Runs the pipelines until a signal, or until nothing is left to run; `None` once another invalidator is active.
async fn run_active(
    daemon: &Daemon<'_>,
    term: Option<&Arc<Term>>,
    signals: &mut EndSignals,
) -> Option<Result<(), String>> {
    if term.is_some_and(|term| term.is_takeover()) {
        daemon.database.note_read();
    }
    let mut active = match Active::start(daemon, term) {
        Ok(active) => active,
        Err(why) => return Some(Err(why)),
    };
    let hold = async {
        match term {
            Some(term) => term.hold().await,
            None => std::future::pending().await,
        }
    };
    tokio::pin!(hold);
    tokio::select! {
        biased;
        () = signals.recv() => {}
        why = active.failed() => return Some(Err(why)),
        () = &mut hold => {
            active.abort().await;
            return None;
        }
    }
    if let Some(term) = term {
        term.begin_close();
    }
    tokio::select! {
        () = active.stop() => {}
        () = hold => {}
    }
    Some(Ok(()))
}

/// The options that the other invalidators with the same shared state should have.
fn member_options(options: &Options, database: &SourceDatabase, row_rules: &Arc<RowRules>) -> CurrentOptions {
    let clusters: BTreeSet<String> = options.clusters.iter().map(|cluster| cluster.name.clone()).collect();
    let slot = database.needs_spool().then(|| options.slot.clone());
    // The digest of these rules: they are loaded again rarely, and the record is renewed every second.
    let digest = Mutex::new((row_rules.version(), row_rules.current().digest()));
    let row_rules = row_rules.clone();
    Arc::new(move || {
        let mut digest = digest.lock();
        let version = row_rules.version();
        if digest.0 != version {
            *digest = (version, row_rules.current().digest());
        }
        MemberOptions { clusters: clusters.clone(), rules: digest.1.clone(), slot: slot.clone() }
    })
}

/// The name by which operators know this process.
fn holder_name() -> String {
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host: String = host.chars().filter(|c| c.is_ascii_alphanumeric() || "-._".contains(*c)).take(64).collect();
    format!("{host}/{}", process::id())
}
