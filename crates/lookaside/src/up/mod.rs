//! `lookaside up`: runs a whole region on this machine, as real processes, and prints a line per second.

mod plan;
mod postgres;
mod region;
mod view;

use crate::demo::{self, Demo};
use anyhow::{Context, Result, bail};
use lookaside_invalidator::source::SourceUrl;
use plan::{CLUSTERS_MAX, PORTS_MAX, RegionPlan, SERVERS_MAX, local};
use postgres::RegionSlot;
use region::{LocalRegion, RegionOptions, logs_of};
use std::{
    fs::File,
    io::Write,
    net::{SocketAddr, TcpListener},
    path::{Path, PathBuf},
    time::Duration,
};
use view::View;

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
    let plan = RegionPlan::new("local", options.port, options.clusters, options.servers);
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
        let region = RegionOptions {
            plan: plan.clone(),
            database: database.clone(),
            slot: slot.as_ref().map(|slot| slot.name.clone()),
            state_dir: state_dir.clone(),
            memory_mib: options.memory,
        };
        let start = start(&region, options.demo);
        let (mut region, demo) = tokio::select! {
            biased;
            () = shutdown.wait() => return Ok(()),
            started = start => started?,
        };
        announce(&plan, options, &database, state_dir)?;
        let mut view = View::new(options.json);
        view.add_region(plan, demo.as_ref().map(Demo::counters));
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

async fn start(options: &RegionOptions, with_demo: bool) -> Result<(LocalRegion, Option<Demo>)> {
    let region = LocalRegion::start(options).await?;
    let demo = match with_demo {
        true => {
            let started = Demo::start(&options.database, &options.plan.endpoints()).await;
            Some(started.context("starting the demo application")?)
        }
        false => None,
    };
    Ok((region, demo))
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

/// Fails if a port is in use, before anything is started.
fn check_ports_free(plan: &RegionPlan) -> Result<()> {
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

fn announce(plan: &RegionPlan, options: &Options, database: &str, state_dir: &Path) -> Result<()> {
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
    writeln!(out, "Logs       {}", logs_of(state_dir).display())?;
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
                for notice in region.supervise()? {
                    view.print_notice(&notice)?;
                }
                view.print_lines().await?;
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
