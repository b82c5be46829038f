//! The daemon: threads, sockets, signals, and the configuration file.
//!
//! ```text
//!   main thread     signals, replay of the spool, spares, the file's watch --- configuration ---.
//!   thread 0        runtime | doors | Router    | destinations  <----------------------+
//!   thread 1        runtime | doors | Router    | destinations  <----------------------+
//!   spool           writes and syncs the deletes that servers did not answer
//! ```
//!
//! Threads share a port (SO_REUSEPORT) and, of what a request needs, one word a server: whether it is taken out,
//! and whether it owes deletes. A
//! new configuration is read and tried once, on the main thread; every thread then builds its own tree from it.

use crate::backend::tls_connector::SecuredNetwork;
use crate::config::last_good::Cache;
use crate::config::router_config::{Plan, Source};
use crate::config::watcher::Feed;
use crate::frontend::listen::{self, Door, Doors, Security, SocketFile};
use crate::frontend::session::Parked;
use crate::spool::FileDisk;
use crate::stats::metrics_endpoint;
use crate::tls::{Certificates, keep_fresh};
use crate::upgrade::{self, Closed, Crew, Gatehouse, Heir, Left, adopt, open_gate};
use crate::worker::{Worker, runtime};
use crate::{Fleet, Host, Identity, Options, Spares, Spool};
use lookaside_client::{DestinationOptions, TcpNetwork, WindowSettings};
use lookaside_routing::{Address, Defaults, TlsPolicy};
use lookaside_telemetry::Log;
use lookaside_upgrade::{Inherited, Successor, notify_ready};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::pin::pin;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep};

/// The exit code for a command line or a configuration that cannot be used.
const EXIT_USAGE: u8 = 2;

/// How long the spool may take to be free again after a process that did not take over, and how often it is tried.
const REOPEN_MAX: Duration = Duration::from_secs(5);
const REOPEN_RETRY: Duration = Duration::from_millis(5);

/// Files beside those of clients: listeners, event queues, connections to servers.
const FILES_SPARE: u64 = 100;

/// Runs the daemon until SIGINT or SIGTERM.
pub fn run(options: Options) -> ExitCode {
    let log = Log::start(options.log_format, options.verbose.into());
    for warning in options.ignored.warnings() {
        tracing::warn!("{warning}");
    }
    let reader = match Reader::new(&options) {
        Ok(reader) => reader,
        Err(why) => return complain(&why, EXIT_USAGE),
    };
    let first = match reader.first() {
        Ok(first) => first,
        Err(why) => return complain(&why, reader.exit_code()),
    };
    if options.validate_config {
        println!("{}: the configuration is good", reader.source);
        return ExitCode::SUCCESS;
    }
    let doors = match wanted_doors(&options, &reader.certificates) {
        Ok(doors) => doors,
        Err(why) => return complain(&why, EXIT_USAGE),
    };
    match serve(&options, &doors, reader, first, log) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => complain(&why, 1),
    }
}

/// Where clients are to come in.
fn wanted_doors(options: &Options, certificates: &Certificates) -> Result<Vec<Door>, String> {
    let security = if options.tls.ssl_require_peer_certs { Security::MutualTls } else { Security::Tls };
    let doors = options.listen.doors(security)?;
    listen::check_certificates(&doors, certificates)?;
    Ok(doors)
}

fn complain(why: &str, code: u8) -> ExitCode {
    eprintln!("lookaside-router: {why}");
    code.into()
}

/// Reads configurations, the first and all that follow.
struct Reader {
    source: Source,
    /// The way to etcd, where the source is there.
    etcd: Arc<SecuredNetwork>,
    cache: Option<Cache>,
    defaults: Defaults,
    destination_options: DestinationOptions,
    spool: Option<Arc<Spool>>,
    spares: Arc<Spares>,
    window: Option<WindowSettings>,
    is_measured: bool,
    /// What servers and clients are believed by, and shown.
    certificates: Arc<Certificates>,
    /// How servers, and other routers, are reached.
    network: Arc<SecuredNetwork>,
    peers: Vec<(Address, TlsPolicy)>,
}

impl Reader {
    fn new(options: &Options) -> Result<Reader, String> {
        let destination_options = options.destination_options();
        let tko_trackers = destination_options.tko_trackers.clone().expect("the options give all destinations one");
        let spares = Spares::new(tko_trackers);
        let (source, defaults, window) = (options.source()?, options.defaults()?, options.window.settings());
        let cache = options.config_cache.as_deref().filter(|_| !options.validate_config).map(Cache::new);
        let certificates = Arc::new(Certificates::read(options.tls.clone())?);
        let etcd = SecuredNetwork::new(Arc::new(TcpNetwork), certificates.clone());
        if let Source::Etcd(location) = &source {
            let protections = location.protections();
            certificates.check_for_servers(&protections).map_err(|why| format!("--config: {why}"))?;
            etcd.protect(protections);
            if location.user.is_some() && !location.is_secured {
                tracing::warn!(etcd = %location, "the password of etcd's user goes over the network as it stands; etcds:// hides it");
            }
        }
        let peers = options.peer_protections();
        certificates
            .check_for_servers(&peers.iter().cloned().collect())
            .map_err(|why| format!("--spool-peers: {why}"))?;
        Ok(Reader {
            source,
            etcd: Arc::new(etcd),
            cache,
            defaults,
            destination_options,
            spool: None,
            spares,
            window,
            is_measured: options.metrics_address.is_some(),
            network: Arc::new(SecuredNetwork::new(Arc::new(TcpNetwork), certificates.clone())),
            certificates,
            peers,
        })
    }

    /// What to start with: what the source says, or else what was kept of it.
    fn first(&self) -> Result<First, String> {
        let content = self.source.read_through(self.etcd.clone());
        let why = match self.plan(content.clone()) {
            Ok(plan) => return Ok(First { plan: self.kept(plan), seen: content.ok(), refusal: None }),
            Err(why) => why,
        };
        let Some(cache) = &self.cache else { return Err(why) };
        let plan = self.plan(cache.read()).map_err(|kept| format!("{why}; and of {cache}: {kept}"))?;
        tracing::error!(%cache, %why, "the router starts with the last good configuration, which was kept");
        Ok(First { plan, seen: content.ok(), refusal: Some(why) })
    }

    fn kept(&self, plan: Plan) -> Plan {
        if let Some(cache) = &self.cache {
            cache.keep(plan.text());
        }
        plan
    }

    /// What to end with where there is nothing to start with. An etcd that is away may be back at the next start.
    fn exit_code(&self) -> u8 {
        match self.source {
            Source::Etcd(_) => 1,
            _ => EXIT_USAGE,
        }
    }

    /// The plan in `content`. What is wrong is said with the source and the line.
    fn plan(&self, content: Result<String, String>) -> Result<Plan, String> {
        let text = content.map_err(|why| self.source.blame(&why))?;
        let plan = Plan::read(&text, &self.defaults, &self.destination_options)
            .map_err(|error| self.source.blame(&error.to_string()))?;
        let protections = &plan.configuration().protections;
        self.certificates.check_for_servers(protections).map_err(|why| self.source.blame(&why))?;
        for warning in plan.warnings() {
            tracing::warn!(source = %self.source, "{warning}");
        }
        Ok(plan
            .on(Host::named(&host_name(), unix_s()))
            .spooling(self.spool.clone())
            .sparing(self.spares.clone())
            .windowed(self.window)
            .measured(self.is_measured))
    }

    /// From now on servers are reached as `plan` says.
    fn protect(&self, plan: &Plan) {
        let protections = &plan.configuration().protections;
        for (server, _) in
            protections.iter().filter(|(_, it)| it.security == lookaside_routing::Security::UnverifiedTls)
        {
            tracing::warn!(%server, "this server need not prove who it is (unsafe_ssl_skip_verification)");
        }
        let servers = protections.iter().map(|(server, protection)| (server.clone(), protection.clone()));
        self.network.protect(servers.chain(self.peers.iter().cloned()));
    }
}

/// What a daemon starts with.
struct First {
    plan: Plan,
    /// What the source says, if it could be read.
    seen: Option<String>,
    /// Why that is not the plan, if it is not.
    refusal: Option<String>,
}

/// The host's name; empty where the system does not tell it, and then hosts count as one.
fn host_name() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default()
}

fn unix_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Lets this process have as many files open as the system allows it to ask for: each client is one.
fn raise_open_files(connections_max: u32) {
    let limits = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limits.maximum, maximum: limits.maximum };
    let open_files_max = match setrlimit(Resource::Nofile, raised) {
        Ok(()) => limits.maximum,
        Err(_) => limits.current,
    };
    if open_files_max.is_some_and(|files| files < u64::from(connections_max) + FILES_SPARE) {
        let files = open_files_max.unwrap_or_default();
        tracing::warn!("the system allows {files} open files: fewer than --max-conns {connections_max} clients need");
    }
}

fn serve(options: &Options, doors: &[Door], mut reader: Reader, first: First, log: Log) -> Result<(), String> {
    let First { plan, seen, refusal } = first;
    raise_open_files(options.max_conns);
    let mut inherited = Inherited::from_supervisor();
    let mut heir = match &options.upgrade_socket {
        Some(path) if options.take_over => Heir::find(path, &mut inherited)?,
        _ => None,
    };
    // All that can fail comes before the router that runs is asked to leave.
    let mut open_doors = listen::open(doors, options.threads(), options.listen.tcp_listen_backlog, &mut inherited)?;
    let metrics =
        options.metrics_address.as_deref().map(|at| metrics_endpoint::Port::open(at, &mut inherited)).transpose()?;
    let mut gate = open_gate(options, &open_doors, metrics.as_ref(), &mut inherited)?;
    inherited.close_rest();
    let runtime = runtime()?;
    let estate = heir.as_mut().map(Heir::inherit).transpose()?.unwrap_or_default();
    let mut clients = adopt(estate.connections, &open_doors, options);
    // Before anybody is served: what servers owe from an earlier run, or process, keeps them from being read.
    reader.spool = open_spool(options, &plan)?;
    if estate.is_kept && reader.spool.is_none() {
        tracing::error!("deletes that the router before this one has kept may be lost: that asks for --spool");
    }
    let plan = plan.spooling(reader.spool.clone());
    heir.as_mut().map_or(Ok(()), Heir::take)?;
    let mut is_anew = false;
    for door in &mut open_doors {
        is_anew |= door.take(options.listen.tcp_listen_backlog)?;
    }
    if let Some(gate) = gate.as_mut().filter(|_| is_anew) {
        gate.renew(&open_doors, metrics.as_ref())?;
    }
    if let Some(spool) = &reader.spool {
        // Not before: the router that goes on if this one does not take over may have these servers.
        spool.retire_others(&plan.servers());
    }
    // Before the port is announced: who has read the announcement may end the daemon at once.
    let mut ends = runtime.block_on(async { Ends::receive() })?;
    let mut doors_of_threads: Vec<Doors> = (0..options.threads()).map(|_| Doors::none()).collect();
    let (mut names, mut files) = (Vec::new(), Vec::new());
    for door in open_doors {
        names.push(door.name.clone());
        files.extend(door.share_out(&mut doors_of_threads, &reader.certificates)?);
    }
    let fleet = Fleet::new(Identity { pid: std::process::id(), started_unix_s: unix_s() }, reader.source.to_string());
    fleet.protect(reader.certificates.clone());
    fleet.set_log(log);
    if let Some(why) = refusal {
        fleet.configuration_refused(why);
    }
    let (shut, shutdown) = watch::channel(false);
    reader.protect(&plan);
    reader.spares.configure(plan.pools());
    let (publish, plans) = watch::channel(Arc::new(plan));
    let (alive, mut ends_of_threads) = mpsc::channel::<()>(1);
    let mut crew = Crew::new(fleet.clone(), shut);
    let mut threads = Vec::new();
    for (index, doors) in doors_of_threads.into_iter().enumerate() {
        let (left, verdicts) = crew.join();
        let worker = Worker {
            settings: options.settings(),
            fleet: fleet.clone(),
            plans: plans.clone(),
            shutdown: shutdown.clone(),
            _alive: alive.clone(),
            network: reader.network.clone(),
            seed: fastrand::u64(..),
            index,
            left,
            verdicts,
        };
        let clients = clients.pop().unwrap_or_default();
        threads.push(worker.spawn(doors, clients)?);
    }
    let version = options.settings().version;
    let _metrics = metrics.map(|port| port.serve(fleet.clone(), version)).transpose()?;
    tracing::info!(threads = threads.len(), source = %reader.source, "serving");
    for name in names {
        tracing::info!("listening on {name}");
    }
    drop(alive);
    notify_ready();
    if let Some(heir) = heir {
        heir.log_pause();
    }
    let mut gate = gate.map(Closed::attend).transpose()?;
    let mut seen = seen;
    let successor = loop {
        let left = runtime.block_on(async {
            let mut replay = pin!(replay(&reader));
            let why = tokio::select! {
                biased;
                why = stay(&reader, seen.take(), &fleet, &publish, &mut ends, gate.as_mut()) => why,
                () = &mut replay => Stay::Ended,
            };
            match why {
                Stay::Ended => {
                    // Nobody may take over from here on, and no door is kept open for it.
                    drop(gate.take());
                    // While the sockets still answer: who comes next must not find the files of a router that does not.
                    files.clear();
                    crew.end();
                }
                Stay::Upgraded(_) => crew.let_go(),
            }
            // Deletes in hand may have to be told to peers.
            let letting_go = async {
                match why {
                    Stay::Ended => {
                        let _ = ends_of_threads.recv().await;
                        Ok::<_, String>(None)
                    }
                    Stay::Upgraded(successor) => Ok(Some((successor, crew.clients().await?))),
                }
            };
            tokio::select! {
                biased;
                left = letting_go => left,
                () = &mut replay => Ok(None),
            }
        })?;
        let Some((successor, clients)) = left else { break None };
        match runtime.block_on(hand_over(options, &mut reader, &crew, &publish, &mut ends, successor, clients))? {
            HandedOver::Taken(successor) => break Some(successor),
            HandedOver::Stopped => break None,
            HandedOver::Not => {
                tracing::info!("goes on serving");
                seen = Some(publish.borrow().text().to_owned());
                gate.iter().for_each(Gatehouse::hear_again);
            }
        }
    };
    drop((gate, crew));
    // Another process listens there now, or may.
    files.into_iter().for_each(SocketFile::leave);
    let mut outcome = Ok(());
    for thread in threads {
        if thread.join().is_err() {
            outcome = Err("a thread failed; this is a bug of the router".to_owned());
        }
    }
    if let Some(successor) = successor {
        upgrade::settle(successor);
    }
    outcome
}

/// The signals that the daemon takes: two that end it, and one that has it read its configuration and certificates at once.
struct Ends {
    hangup: Signal,
    /// The same: everybody who waits for a signal gets it.
    hangup_too: Signal,
    interrupt: Signal,
    terminate: Signal,
}

impl Ends {
    fn receive() -> Result<Ends, String> {
        let receive = |kind| signal(kind).map_err(|error| format!("signals cannot be received: {error}"));
        Ok(Ends {
            hangup: receive(SignalKind::hangup())?,
            hangup_too: receive(SignalKind::hangup())?,
            interrupt: receive(SignalKind::interrupt())?,
            terminate: receive(SignalKind::terminate())?,
        })
    }
}

/// Why the daemon has stopped to wait.
enum Stay {
    /// It is to end.
    Ended,
    /// Another process is ready to take over.
    Upgraded(Successor),
}

/// Waits for the signal to end, or for the next process, and takes changes of the configuration until then.
async fn stay(
    reader: &Reader,
    seen: Option<String>,
    fleet: &Fleet,
    publish: &watch::Sender<Arc<Plan>>,
    ends: &mut Ends,
    gate: Option<&mut Gatehouse>,
) -> Stay {
    let feed = Feed::open(&reader.source, reader.etcd.clone(), seen.as_deref());
    let successor = async {
        match gate {
            Some(gate) => gate.successor().await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        biased;
        _ = ends.interrupt.recv() => tracing::info!("SIGINT: shutting down"),
        _ = ends.terminate.recv() => tracing::info!("SIGTERM: shutting down"),
        successor = successor => return Stay::Upgraded(successor),
        () = keep_fresh(&reader.certificates, &mut ends.hangup_too) => {}
        () = follow(reader, feed, &mut ends.hangup, fleet, publish) => {}
        () = reader.spares.run(reader.network.clone()) => {}
    }
    Stay::Ended
}

/// What came of an upgrade.
enum HandedOver {
    /// The other process serves.
    Taken(Successor),
    /// It does not, and this one serves again.
    Not,
    /// This process was told to stop meanwhile.
    Stopped,
}

/// Leaves everything to another process. The error: this one can neither leave it nor go on.
async fn hand_over(
    options: &Options,
    reader: &mut Reader,
    crew: &Crew,
    publish: &watch::Sender<Arc<Plan>>,
    ends: &mut Ends,
    successor: Successor,
    clients: Vec<Vec<Parked>>,
) -> Result<HandedOver, String> {
    let pid = successor.pid();
    tracing::info!("hands over to process {pid}, with {} connections", clients.iter().map(Vec::len).sum::<usize>());
    let is_sent = upgrade::send(&successor, &clients);
    if let Some(spool) = &reader.spool {
        // Nothing works it off any more: it is opened anew, here or there.
        spool.close().await?;
    }
    let told_to_stop = async {
        tokio::select! {
            biased;
            _ = ends.interrupt.recv() => {}
            _ = ends.terminate.recv() => {}
        }
    };
    let outcome = match is_sent {
        true => upgrade::leave_to(successor, reader.spool.is_some(), told_to_stop).await?,
        false => Left::Back,
    };
    match outcome {
        Left::Taken(successor) => {
            tracing::info!("process {pid} has taken over");
            crew.taken(clients);
            Ok(HandedOver::Taken(successor))
        }
        Left::Stopped => Ok(HandedOver::Stopped),
        Left::Back => {
            if reader.spool.is_some() {
                let plan = publish.borrow().clone();
                reader.spool = reopen_spool(options, &plan).await?;
                reader.spool.iter().for_each(|spool| spool.retire_others(&plan.servers()));
                publish.send_replace(Arc::new(Plan::clone(&plan).spooling(reader.spool.clone())));
            }
            crew.back(clients);
            Ok(HandedOver::Not)
        }
    }
}

/// The spool again, once the process that was to take over has let go of it by its end.
async fn reopen_spool(options: &Options, plan: &Plan) -> Result<Option<Arc<Spool>>, String> {
    let deadline = Instant::now() + REOPEN_MAX;
    loop {
        match open_spool(options, plan) {
            Err(why) if Instant::now() < deadline => {
                tracing::debug!("not yet: {why}");
                sleep(REOPEN_RETRY).await;
            }
            outcome => return outcome,
        }
    }
}

/// The spool that the options ask for.
fn open_spool(options: &Options, plan: &Plan) -> Result<Option<Arc<Spool>>, String> {
    let Some(directory) = options.spool_directory() else { return Ok(None) };
    let tko_trackers = plan.destination_options().tko_trackers.clone().expect("the options give all destinations one");
    let disk = Arc::new(FileDisk::open(directory)?);
    let spool = Spool::open_threaded(disk, tko_trackers, options.spool_settings())?;
    tracing::info!(spool = %directory.display(), "deletes that servers do not answer are kept");
    Ok(Some(spool))
}

/// Works off what servers owe, for ever.
async fn replay(reader: &Reader) {
    match &reader.spool {
        Some(spool) => spool.replay(reader.network.clone(), fastrand::u64(..)).await,
        None => std::future::pending().await,
    }
}

/// Takes each good change of the configuration, and refuses each bad one, for ever.
async fn follow(
    reader: &Reader,
    mut feed: Feed,
    hangup: &mut Signal,
    fleet: &Fleet,
    publish: &watch::Sender<Arc<Plan>>,
) {
    loop {
        let content = tokio::select! {
            biased;
            _ = hangup.recv() => {
                tracing::info!("SIGHUP: reading the configuration");
                feed.read().await
            }
            content = feed.changed() => content,
        };
        match reader.plan(content) {
            Ok(plan) => {
                let plan = reader.kept(plan);
                tracing::info!(source = %reader.source, "new configuration in force");
                let servers = plan.servers();
                reader.protect(&plan);
                reader.spares.configure(plan.pools());
                publish.send_replace(Arc::new(plan));
                if let Some(spool) = &reader.spool {
                    spool.drop_others(&servers);
                }
                fleet.configuration_taken();
            }
            Err(why) => {
                tracing::error!(source = %reader.source, %why, "new configuration refused, the old one stays in force");
                fleet.configuration_refused(why);
            }
        }
    }
}
