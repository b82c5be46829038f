//! One region: clusters of servers with a gutter and a router each, applications, a database, an invalidator.
//!
//! ```text
//!   app-0 --- router-0 --- server-0-0, server-0-1, gutter-0, spare-0
//!               |
//!   database - invalidator
//!               |
//!   app-1 --- router-1 --- server-1-0, server-1-1, gutter-1, spare-1
//! ```
//!
//! What runs here is what runs in production: the server's sessions on the store, the router with its configuration
//! language, the client's destinations and look-aside reads, the invalidator's pipelines. Only sockets, the clock, the
//! database, the position file and the spool's disk are played. In half of the runs routers keep what their servers did
//! not answer in a spool (§5); in half of those it is so small that servers are made to forget.

mod application;
mod faults;
mod invalidator;
mod panics;
mod router;
mod server;

use crate::{
    checker::{Checker, Tally, Violation},
    database::Database,
    network::{SimulatedNetwork, Weather},
};
use lookaside_router::MemoryDisk;
use router::Spooling;
use std::{cell::RefCell, collections::BTreeMap, fmt, future::Future, rc::Rc, str::FromStr, sync::Arc, time::Duration};
use tokio::time::Instant;

/// Frontend clusters.
const CLUSTERS: usize = 2;
/// Servers of a cluster, beside its gutter server and its spare.
const SERVERS: usize = 2;
/// How long applications and faults go on, in simulated time.
const BUSY: Duration = Duration::from_secs(8);
/// How long everything may take to come to rest afterwards, in simulated time.
const REST_MAX: Duration = Duration::from_secs(120);
/// What is still under way when all deletes are acknowledged has arrived after this time.
const SETTLE: Duration = Duration::from_secs(5);

const WEATHER: Weather = Weather { delay_us_min: 50, delay_us_max: 800, late_one_in: 50, late_us_max: 40_000 };
/// The longest time by which the commit log runs ahead of visibility, as measured on MySQL.
const VISIBILITY_LAG_US_MAX: u64 = 250_000;

/// A promise that is broken on purpose, so that one sees the checker find it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Broken {
    /// Nothing.
    #[default]
    Nothing,
    /// The invalidator deletes as soon as the log shows a commit, before readers see it.
    Gate,
    /// Applications fill by plain sets instead of under a lease.
    Leases,
    /// The invalidator takes a delete for applied that no router has acknowledged.
    Acknowledgement,
    /// Routers read a server that owes deletes which they have acknowledged.
    Fence,
    /// A router that dies loses the deletes that it kept and acknowledged.
    Spool,
    /// Deletes do not reach the spare that stands in for a dead server.
    Spares,
}

impl FromStr for Broken {
    type Err = String;

    fn from_str(word: &str) -> Result<Broken, String> {
        match word {
            "gate" => Ok(Broken::Gate),
            "leases" => Ok(Broken::Leases),
            "acknowledgement" => Ok(Broken::Acknowledgement),
            "fence" => Ok(Broken::Fence),
            "spool" => Ok(Broken::Spool),
            "spares" => Ok(Broken::Spares),
            _ => Err(format!("{word} is none of: gate, leases, acknowledgement, fence, spool, spares")),
        }
    }
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Broken::Nothing => "nothing",
            Broken::Gate => "gate",
            Broken::Leases => "leases",
            Broken::Acknowledgement => "acknowledgement",
            Broken::Fence => "fence",
            Broken::Spool => "spool",
            Broken::Spares => "spares",
        })
    }
}

/// What came of one run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The run's seed.
    pub seed: u64,
    /// The first promise that did not hold.
    pub violation: Option<Violation>,
    /// How much was exercised.
    pub tally: Tally,
}

/// Runs a region from `seed`: the same seed gives the same run, on any machine.
pub fn run(seed: u64, broken: Broken) -> Outcome {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    let runtime = runtime.expect("a runtime without sockets needs nothing from the system");
    let (violation, tally) = tokio::task::LocalSet::new().block_on(&runtime, scenario(seed, broken));
    Outcome { seed, violation, tally }
}

async fn scenario(seed: u64, broken: Broken) -> (Option<Violation>, Tally) {
    let panics = panics::Watch::begin();
    let mut rng = fastrand::Rng::with_seed(seed);
    let database = Database::new(rng.u64(..), VISIBILITY_LAG_US_MAX, broken != Broken::Gate);
    let region = Region {
        network: SimulatedNetwork::new(rng.u64(..), WEATHER),
        checker: Checker::new(database.clone()),
        database,
        broken,
        spooling: Spooling::draw(&mut rng),
        hosts: Rc::default(),
        stores: Rc::default(),
        positions: Rc::default(),
        spools: Rc::default(),
        started: Instant::now(),
    };
    for cluster in 0..CLUSTERS {
        for address in server_names(cluster) {
            region.start_server(&address, rng.u64(..));
        }
        region.start_router(cluster, rng.u64(..));
    }
    region.start_invalidator(rng.u64(..));
    region.start_applications(&mut rng);
    region.inject_faults(&mut rng, Instant::now() + BUSY).await;
    region.come_to_rest().await;
    if let Some(what) = panics.first() {
        region.checker.panicked(what);
    }
    region.checker.verdict()
}

/// The servers of a cluster, behind them its gutter server and its spare.
fn server_names(cluster: usize) -> impl Iterator<Item = String> {
    let others = [format!("gutter-{cluster}"), format!("spare-{cluster}")];
    (0..SERVERS).map(move |server| format!("server-{cluster}-{server}")).chain(others)
}

/// A name that this host's program listens on.
fn address(host: &str) -> lookaside_routing::Address {
    lookaside_routing::Address(format!("{host}:11211").into())
}

/// Everything that a run consists of. Clones are the same region.
#[derive(Clone)]
struct Region {
    network: SimulatedNetwork,
    database: Database,
    checker: Checker,
    broken: Broken,
    spooling: Spooling,
    /// The program of each host.
    hosts: Rc<RefCell<BTreeMap<String, tokio::task::JoinHandle<()>>>>,
    stores: Rc<RefCell<BTreeMap<String, server::Memory>>>,
    /// What the invalidator has on disk: the position of each cluster.
    positions: Rc<RefCell<BTreeMap<usize, invalidator::Disk>>>,
    /// What each cluster's router has on disk: the deletes that its servers did not answer.
    spools: Rc<RefCell<BTreeMap<usize, Arc<MemoryDisk>>>>,
    started: Instant,
}

impl Region {
    /// Runs `program` on `host` in the place of what ran there.
    fn start(&self, host: &str, program: impl Future<Output = ()> + 'static) {
        let running = tokio::task::spawn_local(program);
        if let Some(old) = self.hosts.borrow_mut().insert(host.to_owned(), running) {
            old.abort();
        }
    }

    /// Ends the program of `host` between two of its steps, and all of its connections.
    async fn kill(&self, host: &str) {
        self.network.kill(host);
        let running = self.hosts.borrow_mut().remove(host);
        if let Some(running) = running {
            running.abort();
            // What it owned is gone when it has been dropped.
            let _ = running.await;
        }
    }

    /// Applications end; the deletes that are under way arrive; then everything is looked at.
    async fn come_to_rest(&self) {
        for cluster in 0..CLUSTERS {
            self.kill(&application::host(cluster)).await;
        }
        let deadline = Instant::now() + REST_MAX;
        let names: Vec<String> = (0..CLUSTERS).map(cluster_name).collect();
        let logged = self.database.logged();
        while names.iter().any(|name| self.checker.position(name) < logged) && Instant::now() < deadline {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        tokio::time::sleep(SETTLE).await;
        let now = self.now();
        let stores = self.stores.borrow();
        self.checker.at_rest(&names, |key| {
            let held = |(name, memory): (&String, &server::Memory)| Some((name.clone(), memory.version(key, now)?));
            stores.iter().filter_map(held).collect()
        });
    }

    /// The time of day, as the servers' clocks show it.
    fn now(&self) -> lookaside_store::Now {
        let unix_ms = server::BOOT_UNIX_MS + self.started.elapsed().as_millis() as u64;
        lookaside_store::Now { unix_ms }
    }
}

fn cluster_name(cluster: usize) -> String {
    format!("cluster-{cluster}")
}
