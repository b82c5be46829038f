//! `lookaside up`: runs a whole region on this machine, as real processes, and prints a line per second.

mod plan;
mod postgres;
mod process;
mod view;

use crate::demo::{self, Demo};
use crate::statistics::DaemonStats;
use anyhow::{Context, Result, bail};
use lookaside_invalidator::source::SourceUrl;
use plan::{CLUSTERS_MAX, PORTS_MAX, Plan, SERVERS_MAX, local};
use postgres::RegionSlot;
use process::Process;
use std::{
    fs::File,
    io::Write,
    net::{SocketAddr, TcpListener},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};
use view::View;

const START_TIME_MAX: Duration = Duration::from_secs(20);
/// How long the invalidator may take to start reading the database's log.
const DATABASE_TIME_MAX: Duration = Duration::from_secs(10);

/// A step of the start that takes longer than this is explained.
const SLOW_AFTER: Duration = Duration::from_secs(1);

/// Options of `lookaside up`.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// The database whose commits invalidate the caches: sqlite:///PATH, mysql://USER:PASSWORD@HOST:PORT/SCHEMA,
    /// mariadb://... or postgres://USER:PASSWORD@HOST:PORT/DATABASE, where what `lookaside invalidator setup` creates is
    /// created if it is missing [default: an embedded SQLite database]
    #[arg(long, value_name = "URL", value_parser = parse_database_url)]
    database: Option<SourceUrl>,
    /// Run a small application that reads through the caches and writes to the database
    #[arg(long)]
    demo: bool,
    /// Frontend clusters, 1 to 9
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=i64::from(CLUSTERS_MAX)))]
    clusters: u16,
    /// Servers in each cluster, 1 to 9, besides its gutter server
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=i64::from(SERVERS_MAX)))]
    servers: u16,
    /// Memory of each server, in mebibytes
    #[arg(long, value_name = "MIB", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..))]
    memory: u32,
    /// The first port: the first cluster's memcached endpoint. The region's other ports follow
    #[arg(long, default_value_t = 5000, value_parser = clap::value_parser!(u16).range(1024..=i64::from(u16::MAX - PORTS_MAX)))]
    port: u16,
    /// Directory for logs, positions and the embedded database [default: a temporary one, removed at the end]
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
    /// Stop after this many seconds [default: at Ctrl-C]
    #[arg(long, value_name = "S")]
    seconds: Option<u64>,
    /// Print a line of JSON per second instead of the view
    #[arg(long)]
    json: bool,
}

/// Validates `--database`; the database itself is opened later.
fn parse_database_url(url: &str) -> Result<SourceUrl, String> {
    match is_postgres(url) || ["sqlite://", "mysql://", "mariadb://"].iter().any(|scheme| url.starts_with(scheme)) {
        true => Ok(url.into()),
        false => Err("it must begin with sqlite://, mysql://, mariadb:// or postgres://".to_owned()),
    }
}

fn is_postgres(url: &str) -> bool {
    ["postgres://", "postgresql://"].iter().any(|scheme| url.starts_with(scheme))
}

/// Runs the region until a signal or `--seconds`. Its processes always end with it.
pub fn run(options: &Options) -> Result<()> {
    let plan = Plan::new(options.port, options.clusters, options.servers);
    check_ports_free(&plan)?;
    let temporary = tempfile::Builder::new().prefix("lookaside-").tempdir().context("cannot create a directory")?;
    let state_dir = options.state_dir.as_deref().unwrap_or(temporary.path());
    std::fs::create_dir_all(state_dir)
        .with_context(|| format!("cannot create the directory {}", state_dir.display()))?;
    let state_dir = &state_dir.canonicalize()?;
    let _lock = lock_directory(state_dir)?;
    let database = match &options.database {
        Some(url) => url.to_string(),
        None => format!("sqlite://{}", state_dir.join("region.db").display()),
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut shutdown = runtime.block_on(async { ShutdownSignals::listen() })?;
    let slot = runtime.block_on(prepare_database(&database, options))?;
    let result = runtime.block_on(async {
        let start = start(&plan, options, &database, slot.as_ref(), state_dir);
        let (mut region, demo) = tokio::select! {
            biased;
            () = shutdown.wait() => return Ok(()),
            started = start => started?,
        };
        announce(&plan, options, &database, state_dir)?;
        let view = View::new(options.json, demo.as_ref().map(Demo::counters));
        run_view(&mut region, view, shutdown, options.seconds).await
    });
    // The processes have ended.
    match slot {
        Some(slot) => result.and(runtime.block_on(slot.close())),
        None => result,
    }
}

/// Creates what the invalidator needs in the database; returns the region's slot if it is PostgreSQL.
async fn prepare_database(database: &str, options: &Options) -> Result<Option<RegionSlot>> {
    let prepare = async {
        if !is_postgres(database) {
            return demo::prepare(database).await.map(|()| None);
        }
        postgres::prepare(database).await?;
        RegionSlot::open(database, options.port, options.state_dir.is_none()).await.map(Some)
    };
    prepare.await.with_context(|| format!("preparing the database {}", view::without_password(database)))
}

async fn start(
    plan: &Plan,
    options: &Options,
    database: &str,
    slot: Option<&RegionSlot>,
    state_dir: &Path,
) -> Result<(LocalRegion, Option<Demo>)> {
    let mut region = LocalRegion { plan: plan.clone(), processes: Vec::new() };
    let logs = state_dir.join("logs");
    std::fs::create_dir_all(&logs)?;
    region.start_servers(options.memory, &logs)?;
    with_slow_notice(region.wait_until_ready(&plan.servers()), "waiting for the servers to start").await?;
    region.start_routers(state_dir, &logs)?;
    region.start_invalidator(database, slot, state_dir, &logs)?;
    with_slow_notice(region.wait_until_ready(&plan.ports()), "waiting for the processes to start").await?;
    with_slow_notice(region.wait_until_pipelines_run(), "waiting for the invalidator to read the commit log").await?;
    let demo = match options.demo {
        true => Some(Demo::start(database, &plan_routers(plan)).await.context("starting the demo application")?),
        false => None,
    };
    Ok((region, demo))
}

/// Prints `what` if `work` takes longer than [`SLOW_AFTER`].
async fn with_slow_notice<T>(work: impl Future<Output = T>, what: &str) -> T {
    let mut work = std::pin::pin!(work);
    if let Ok(done) = tokio::time::timeout(SLOW_AFTER, work.as_mut()).await {
        return done;
    }
    eprintln!("lookaside: {what}");
    work.await
}

/// Locks the directory, until the file is closed, so that no two regions write to it.
fn lock_directory(state_dir: &Path) -> Result<File> {
    let path = state_dir.join("lookaside-up.lock");
    let file = File::create(&path).with_context(|| format!("cannot write {}", path.display()))?;
    match rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(_) => bail!("another region is up in {}; choose another directory with --state-dir", state_dir.display()),
    }
}

fn plan_routers(plan: &Plan) -> Vec<String> {
    plan.clusters.iter().map(|cluster| local(cluster.router_port)).collect()
}

/// Fails if a port is in use, before anything is started.
fn check_ports_free(plan: &Plan) -> Result<()> {
    for (port, purpose) in plan.ports() {
        if let Err(error) = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], port))) {
            bail!(
                "port {port} on 127.0.0.1, meant for {purpose}, is not available: {error}\n\
                 Another region may be up. Choose other ports with --port, as in: lookaside up --port {}",
                u32::from(port) / 100 * 100 + 1000
            );
        }
    }
    Ok(())
}

struct LocalRegion {
    plan: Plan,
    processes: Vec<Process>,
}

impl LocalRegion {
    /// The servers start before the routers, which connect eagerly: a missing server would be TKO for a while.
    fn start_servers(&mut self, memory_mib: u32, logs: &Path) -> Result<()> {
        for cluster in &self.plan.clusters {
            for (index, port) in cluster.server_ports.iter().chain([&cluster.gutter_port]).enumerate() {
                let name = match index < cluster.server_ports.len() {
                    true => format!("{}-server-{}", cluster.name, index + 1),
                    false => format!("{}-gutter", cluster.name),
                };
                let arguments = to_strings(&["-p", &port.to_string(), "-t", "1", "-m", &memory_mib.to_string()]);
                self.processes.push(Process::start(&name, "lookaside-server", arguments, vec![], logs)?);
            }
        }
        Ok(())
    }

    fn start_routers(&mut self, state_dir: &Path, logs: &Path) -> Result<()> {
        let configuration = state_dir.join("router.json");
        std::fs::write(&configuration, format!("{:#}\n", self.plan.router_configuration()))?;
        for cluster in &self.plan.clusters {
            let spool = state_dir.join("spool").join(cluster.name);
            let arguments = to_strings(&[
                "-p",
                &cluster.router_port.to_string(),
                "--spool",
                &spool.display().to_string(),
                "-R",
                &cluster.routing_prefix(),
                "-f",
                &configuration.display().to_string(),
                "--num-proxies",
                "1",
            ]);
            let name = format!("{}-router", cluster.name);
            self.processes.push(Process::start(&name, "lookaside-router", arguments, vec![], logs)?);
        }
        Ok(())
    }

    fn start_invalidator(
        &mut self,
        database: &str,
        slot: Option<&RegionSlot>,
        state_dir: &Path,
        logs: &Path,
    ) -> Result<()> {
        let state = state_dir.display().to_string();
        let mut arguments = to_strings(&["--state-dir", &state]);
        arguments.extend(to_strings(&["--listen", &local(self.plan.invalidator_port)]));
        for cluster in &self.plan.clusters {
            arguments.extend(to_strings(&["--cluster", &format!("{}={}", cluster.name, local(cluster.router_port))]));
        }
        if let Some(slot) = slot {
            arguments.extend(to_strings(&["--slot", &slot.name]));
        }
        let source = vec![("LOOKASIDE_SOURCE", database.to_owned())];
        self.processes.push(Process::start("invalidator", "lookaside-invalidator", arguments, source, logs)?);
        Ok(())
    }

    async fn wait_until_ready(&mut self, ports: &[(u16, String)]) -> Result<()> {
        let deadline = Instant::now() + START_TIME_MAX;
        for (port, purpose) in ports {
            while let Err(error) = DaemonStats::fetch(*port).await {
                self.processes.iter_mut().try_for_each(Process::ensure_running)?;
                if Instant::now() > deadline {
                    return Err(error.context(format!("{purpose} did not start")));
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
        Ok(())
    }

    /// Waits until the pipeline of every cluster runs: otherwise caches would silently go stale.
    async fn wait_until_pipelines_run(&mut self) -> Result<()> {
        let deadline = Instant::now() + DATABASE_TIME_MAX;
        loop {
            let statistics = DaemonStats::fetch(self.plan.invalidator_port).await;
            let unhealthy = statistics.as_ref().map_or_else(ToString::to_string, DaemonStats::unhealthy);
            if unhealthy.is_empty() {
                return Ok(());
            }
            self.processes.iter_mut().try_for_each(Process::ensure_running)?;
            if Instant::now() > deadline {
                bail!("no commit would reach the caches: {unhealthy}");
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

impl Drop for LocalRegion {
    fn drop(&mut self) {
        // All at once, so that stopping takes only as long as the slowest process.
        self.processes.iter().for_each(Process::terminate);
    }
}

fn to_strings(words: &[&str]) -> Vec<String> {
    words.iter().map(|&word| word.to_owned()).collect()
}

fn announce(plan: &Plan, options: &Options, database: &str, state_dir: &Path) -> Result<()> {
    let mut out = std::io::stdout().lock();
    if options.json {
        let endpoint = |cluster: &plan::Cluster| serde_json::json!({ "name": cluster.name, "endpoint": local(cluster.router_port) });
        let ready = serde_json::json!({
            "ready": true,
            "clusters": plan.clusters.iter().map(endpoint).collect::<Vec<_>>(),
            "invalidator": local(plan.invalidator_port),
            "database": view::without_password(database),
        });
        return Ok(writeln!(out, "{ready}")?);
    }
    writeln!(out, "A region is up. Memcached endpoints:")?;
    for cluster in &plan.clusters {
        let (name, endpoint, servers) = (cluster.name, local(cluster.router_port), cluster.server_ports.len());
        let plural = if servers == 1 { "" } else { "s" };
        writeln!(out, "  cluster {name:<6} {endpoint}   ({servers} server{plural} and a gutter server behind it)")?;
    }
    writeln!(out, "Database   {}", view::without_password(database))?;
    writeln!(out, "Statistics {}   (of the invalidator; the endpoints serve their own)", local(plan.invalidator_port))?;
    writeln!(out, "Logs       {}", state_dir.join("logs").display())?;
    writeln!(out, "{}", demo::invalidation_help(database))?;
    if options.demo {
        writeln!(out, "The demo application uses the table demo_users.")?;
    }
    writeln!(out, "Ctrl-C stops all of it.\n")?;
    Ok(())
}

async fn run_view(
    region: &mut LocalRegion,
    mut view: View,
    mut shutdown: ShutdownSignals,
    seconds: Option<u64>,
) -> Result<()> {
    let mut tick = tokio::time::interval(Duration::from_secs(1));
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    tick.tick().await;
    let end = seconds.map(|seconds| tokio::time::Instant::now() + Duration::from_secs(seconds));
    loop {
        tokio::select! {
            biased;
            () = shutdown.wait() => break,
            () = async { tokio::time::sleep_until(end.expect("guarded by is_some")).await }, if end.is_some() => break,
            _ = tick.tick() => {
                for process in &mut region.processes {
                    if let Some(notice) = process.supervise()? {
                        view.print_notice(&notice)?;
                    }
                }
                view.print_line(&region.plan).await?;
            }
        }
    }
    view.print_notice("stopping")
}

struct ShutdownSignals {
    interrupt: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
}

impl ShutdownSignals {
    fn listen() -> Result<ShutdownSignals> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(ShutdownSignals { interrupt: signal(SignalKind::interrupt())?, terminate: signal(SignalKind::terminate())? })
    }

    async fn wait(&mut self) {
        tokio::select! {
            biased;
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}
