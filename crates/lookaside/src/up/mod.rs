//! `lookaside up`: runs a whole region on this machine, or several with a database each, as real processes, and prints
//! a line per region and second.

mod announcement;
mod plan;
mod postgres;
mod region;
mod view;

use crate::databases::{DatabaseKind, DatabasePlan, Databases, link::parse_delay};
use crate::demo::{self, Demo, DemoRegion};
use announcement::Announcement;
use anyhow::{Context, Result, bail};
use lookaside_invalidator::{source::SourceUrl, state_file::lock_file};
use plan::{CLUSTERS_MAX, PORTS_MAX, REGIONS_MAX, RegionPlan, SERVERS_MAX, plan_regions};
use postgres::RegionSlot;
use region::{LocalRegion, RegionOptions, explain_if_slow, logs_of};
use std::{
    fs::Permissions,
    net::{SocketAddr, TcpListener},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    time::Duration,
};
use view::View;

/// Options of `lookaside up`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Examples:
  lookaside up --demo                                       one region, on SQLite
  lookaside up --demo --regions 2 --replication-delay 500ms two regions, on MariaDB with replication
  lookaside up --regions 3 --database postgres              three regions, on PostgreSQL
  lookaside up --database mariadb://app:pw@127.0.0.1:3306/app")]
pub struct Options {
    /// The database whose commits invalidate the caches: sqlite:///PATH, mysql://USER:PASSWORD@HOST:PORT/SCHEMA,
    /// mariadb://... or postgres://USER:PASSWORD@HOST:PORT/DATABASE, where what `lookaside invalidator setup` creates
    /// is created if it is missing. Or one that is started here: sqlite, mariadb or postgres; with several regions only
    /// these [default: sqlite; with several regions mariadb, if it is installed]
    #[arg(long, value_name = "URL", value_parser = parse_database)]
    database: Option<DatabaseChoice>,
    /// Regions, 1 to 3: a master, and replicas whose databases follow the master's. Each has its own clusters,
    /// invalidator, regional pool and server of remote markers
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=i64::from(REGIONS_MAX)))]
    regions: u16,
    /// How much later commits reach the replica databases, such as 500ms or 2s, up to 60s. It can be changed while the
    /// regions are up
    #[arg(long, value_name = "DELAY", default_value = "0", value_parser = parse_delay)]
    replication_delay: Duration,
    /// Run a small application that reads through the caches and writes to the database
    #[arg(long)]
    demo: bool,
    /// Frontend clusters of each region, 1 to 9
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=i64::from(CLUSTERS_MAX)))]
    clusters: u16,
    /// Servers in each cluster, 1 to 9, besides its gutter server
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=i64::from(SERVERS_MAX)))]
    servers: u16,
    /// Memory of each server, in mebibytes
    #[arg(long, value_name = "MIB", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..))]
    memory: u32,
    /// The first port: the first cluster's memcached endpoint. The other ports follow; those of each further region
    /// begin 200 later
    #[arg(long, default_value_t = 5000, value_parser = clap::value_parser!(u16).range(1024..=i64::from(u16::MAX - PORTS_MAX)))]
    port: u16,
    /// Directory for logs, positions and databases [default: a temporary one, removed at the end]
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
    /// Stop after this many seconds [default: at Ctrl-C]
    #[arg(long, value_name = "S")]
    seconds: Option<u64>,
    /// Print a line of JSON per region and second instead of the view
    #[arg(long)]
    json: bool,
}

/// What `--database` names.
#[derive(Clone, Debug)]
enum DatabaseChoice {
    /// A database that is there.
    Url(SourceUrl),
    /// One to be started here.
    Start(DatabaseKind),
}

/// Validates `--database`; the database itself is opened later.
fn parse_database(text: &str) -> Result<DatabaseChoice, String> {
    if let Ok(kind) = text.parse() {
        return Ok(DatabaseChoice::Start(kind));
    }
    match is_postgres(text) || ["sqlite://", "mysql://", "mariadb://"].iter().any(|scheme| text.starts_with(scheme)) {
        true => Ok(DatabaseChoice::Url(text.into())),
        false => Err("it must begin with sqlite://, mysql://, mariadb:// or postgres://, \
                      or be one of sqlite, mariadb and postgres"
            .to_owned()),
    }
}

fn is_postgres(url: &str) -> bool {
    ["postgres://", "postgresql://"].iter().any(|scheme| url.starts_with(scheme))
}

impl Options {
    fn database(&self) -> Result<DatabaseChoice> {
        match &self.database {
            Some(DatabaseChoice::Url(_)) if self.regions > 1 => {
                bail!("with --regions the databases are started here: --database takes mariadb, postgres or sqlite")
            }
            Some(choice) => Ok(choice.clone()),
            None if self.regions > 1 => Ok(DatabaseChoice::Start(DatabaseKind::installed())),
            None => Ok(DatabaseChoice::Start(DatabaseKind::Sqlite)),
        }
    }
}

/// Runs the regions until a signal or `--seconds`. Their processes always end with it.
pub fn run(options: &Options) -> Result<()> {
    let database = options.database()?;
    if options.regions == 1 && !options.replication_delay.is_zero() {
        bail!("--replication-delay needs --regions 2 or 3: one region has no replica");
    }
    let plans = plan_regions(options.port, options.regions, options.clusters, options.servers);
    check_ports_free(&plans, matches!(&database, DatabaseChoice::Start(kind) if kind.has_ports()))?;
    // PostgreSQL runs as another account if this process runs as root, and must reach its files.
    let searchable = Permissions::from_mode(0o711);
    let temporary = tempfile::Builder::new().prefix("lookaside-").permissions(searchable).tempdir();
    let temporary = temporary.context("cannot create a directory")?;
    let state_dir = options.state_dir.as_deref().unwrap_or(temporary.path());
    std::fs::create_dir_all(state_dir)
        .with_context(|| format!("cannot create the directory {}", state_dir.display()))?;
    let state_dir = state_dir.canonicalize()?;
    // Not that of the directory: an invalidator has it.
    let lock = state_dir.join("lookaside-up.lock");
    let _lock = lock_file(&lock).with_context(|| format!("cannot lock {}", lock.display()))?.with_context(|| {
        format!("another region is up in {}; choose another directory with --state-dir", state_dir.display())
    })?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut shutdown = runtime.block_on(async { ShutdownSignals::listen() })?;
    let mut slots = Vec::new();
    let result = runtime.block_on(async {
        let start = start(options, database, plans, &state_dir, &mut slots);
        let mut running = tokio::select! {
            biased;
            () = shutdown.wait() => return Ok(()),
            started = start => started?,
        };
        running.announce(options)?;
        let view = running.view(options.json);
        run_view(&mut running, view, shutdown, options.seconds).await
    });
    // The processes have ended.
    let closed = runtime.block_on(async {
        for slot in &slots {
            slot.close().await?;
            if let Some(remainder) = slot.remainder().await? {
                eprintln!("lookaside: {remainder}");
            }
        }
        Ok(())
    });
    result.and(closed)
}

/// Everything that runs. Fields are dropped in order: the application before the regions before their databases.
struct Running {
    demo: Option<Demo>,
    regions: Vec<LocalRegion>,
    /// `None` if the database was there before.
    databases: Option<Databases>,
    announcements: Vec<Announcement>,
}

/// Starts databases, regions and the application. Slots that are to be closed at the end are added to `slots`.
async fn start(
    options: &Options,
    choice: DatabaseChoice,
    plans: Vec<RegionPlan>,
    state_dir: &Path,
    slots: &mut Vec<RegionSlot>,
) -> Result<Running> {
    let home_of = |plan: &RegionPlan| match options.regions {
        1 => state_dir.to_path_buf(),
        _ => state_dir.join(plan.name),
    };
    let mut databases = match choice {
        DatabaseChoice::Url(_) => None,
        DatabaseChoice::Start(kind) => {
            let database_plans = plans.iter().map(|plan| database_plan(plan, home_of(plan))).collect();
            let logs = logs_of(state_dir);
            let start = Databases::start(kind, database_plans, &logs);
            Some(explain_if_slow(start, "waiting for the databases to start").await?)
        }
    };
    let urls = match (&choice, &databases) {
        (DatabaseChoice::Url(url), _) => vec![url.to_string()],
        (_, databases) => databases.iter().flat_map(Databases::urls).collect(),
    };
    let mut slot_names = Vec::new();
    for (plan, url) in plans.iter().zip(&urls) {
        let slot = prepare_database(url, plan, options).await?;
        slot_names.push(slot.as_ref().map(|slot| slot.name.clone()));
        // The slots of databases that were started here end with them.
        slots.extend(slot.filter(|_| databases.is_none()));
    }
    if let Some(databases) = &mut databases {
        databases.follow_master(state_dir).await?;
    }
    let mut regions = Vec::new();
    for ((plan, url), slot) in plans.iter().zip(&urls).zip(slot_names) {
        let options = RegionOptions {
            plan: plan.clone(),
            database: url.clone(),
            slot,
            state_dir: home_of(plan),
            memory_mib: options.memory,
        };
        regions.push(LocalRegion::start(&options).await?);
    }
    let demo = match options.demo {
        true => Some(start_demo(&plans, &urls, databases.as_ref()).await.context("starting the demo application")?),
        false => None,
    };
    if let Some(databases) = &databases {
        databases.set_delay(options.replication_delay)?;
    }
    let shells = databases.as_ref().map(Databases::shells);
    let links = databases.iter().flat_map(Databases::link_files).map(Some);
    let announcements = plans
        .iter()
        .zip(&urls)
        .zip(std::iter::once(None).chain(links))
        .enumerate()
        .map(|(index, ((plan, url), link))| Announcement {
            plan: plan.clone(),
            database: url.clone(),
            state_dir: home_of(plan),
            shell: shells.as_ref().map(|shells| shells[index].clone()),
            link,
        })
        .collect();
    Ok(Running { demo, regions, databases, announcements })
}

fn database_plan(plan: &RegionPlan, home: PathBuf) -> DatabasePlan {
    DatabasePlan { region: plan.name, home, port: plan.database_port, link_port: plan.link_port }
}

/// Creates what the invalidator needs in the database; returns the region's slot if it is PostgreSQL.
async fn prepare_database(url: &str, plan: &RegionPlan, options: &Options) -> Result<Option<RegionSlot>> {
    let prepare = async {
        if !is_postgres(url) {
            return demo::prepare(url).await.map(|()| None);
        }
        postgres::prepare(url).await?;
        let port = plan.clusters[0].router_port;
        RegionSlot::open(url, port, options.state_dir.is_none()).await.map(Some)
    };
    prepare.await.with_context(|| format!("preparing the database {}", view::without_password(url)))
}

async fn start_demo(plans: &[RegionPlan], urls: &[String], databases: Option<&Databases>) -> Result<Demo> {
    demo::create_table(&urls[0]).await?;
    if let Some(databases) = databases {
        databases.replicate_table(demo::CREATE_TABLE).await?;
    }
    let region = |(plan, url): (&RegionPlan, &String)| DemoRegion { database: url.clone(), routers: plan.endpoints() };
    let regions: Vec<DemoRegion> = plans.iter().zip(urls).map(region).collect();
    Demo::start(&regions).await
}

impl Running {
    fn announce(&self, options: &Options) -> Result<()> {
        let mut out = std::io::stdout().lock();
        match options.json {
            true => announcement::print_json(&mut out, &self.announcements),
            false => announcement::print_text(&mut out, &self.announcements, options.demo),
        }
    }

    fn view(&self, json: bool) -> View {
        let mut view = View::new(json);
        for (index, region) in self.regions.iter().enumerate() {
            let counters = self.demo.as_ref().map(|demo| demo.counters()[index].clone());
            view.add_region(region.plan.clone(), counters);
        }
        view
    }

    /// Restarts processes that have died; returns what is to be printed.
    fn supervise(&mut self) -> Result<Vec<String>> {
        let are_several = self.regions.len() > 1;
        let mut notices = Vec::new();
        for region in &mut self.regions {
            let name = region.plan.name;
            let of_region = region.supervise()?.into_iter();
            notices.extend(of_region.map(|notice| if are_several { format!("{name}: {notice}") } else { notice }));
        }
        if let Some(databases) = &mut self.databases {
            notices.extend(databases.supervise()?);
        }
        Ok(notices)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // All regions at once, so that stopping takes only as long as the slowest process.
        self.regions.iter().for_each(LocalRegion::terminate);
    }
}

/// Fails if a port is in use, before anything is started.
fn check_ports_free(plans: &[RegionPlan], with_databases: bool) -> Result<()> {
    let daemons = plans.iter().flat_map(RegionPlan::daemons);
    let databases = plans.iter().filter(|_| with_databases).flat_map(RegionPlan::database_ports);
    for (port, purpose) in daemons.chain(databases) {
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

async fn run_view(
    running: &mut Running,
    mut view: View,
    mut shutdown: ShutdownSignals,
    seconds: Option<u64>,
) -> Result<()> {
    let end = async {
        match seconds {
            Some(seconds) => tokio::time::sleep(Duration::from_secs(seconds)).await,
            None => std::future::pending().await,
        }
    };
    // A signal also ends a line for which daemons that hang are waited for.
    tokio::select! {
        biased;
        () = shutdown.wait() => {}
        () = end => {}
        failed = print_each_second(running, &mut view) => return failed,
    }
    view.print_notice("stopping")
}

/// Prints what happens each second, until it fails.
async fn print_each_second(running: &mut Running, view: &mut View) -> Result<()> {
    let mut tick = tokio::time::interval(Duration::from_secs(1));
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    tick.tick().await;
    loop {
        tick.tick().await;
        for notice in running.supervise()? {
            view.print_notice(&notice)?;
        }
        view.print_lines().await?;
    }
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
